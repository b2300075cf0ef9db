"""A resolver without devices answers as one with devices does, for any number of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType

import shardspec
from shardspec.diagnostics import ShardspecError
from tests.models import layers, moe_linen, t5_linen, t5_nnx

SPEC = """\
shardspec: 1
axes: {batch: 8, embed: 16, mlp: 32, length: 4}
targets:
  eight: {mesh: {data: 2, model: 4}}
  many: {hardware: tpu v5p 8x8x8, mesh: {data: rest, model: 4}}
  most: {hardware: tpu v5p 16x16x16, mesh: {data: rest, model: 4}}
rules:
  - batch -> data | none
  - mlp -> model
  - embed -> data | none
  - length -> none
params:
  "**/wi": embed mlp
  "**/wo": mlp embed
activations:
  residual: batch length embed
policy: {indivisible: next}
state: {optimizer: zero1, over: data}
"""
#: Sizes that every target divides.
LARGE = SPEC.replace("batch: 8", "batch: 4096").replace("embed: 16", "embed: 4096")


def tree(embed: int = 16) -> Any:
    shape = jax.ShapeDtypeStruct
    return {"mlp": {"wi": shape((embed, 32), jnp.float32), "wo": shape((32, embed), jnp.float32)}}


def specs_of(shardings: Any) -> Any:
    return jax.tree.map(lambda sharding: sharding.spec, shardings)


def abstract(text: str = SPEC, target: str = "eight") -> shardspec.Resolver:
    return shardspec.Resolver(shardspec.loads(text), target, devices="abstract")


def test_the_mesh_is_that_of_the_target() -> None:
    mesh = abstract(LARGE, "most").mesh
    assert isinstance(mesh, AbstractMesh)
    assert dict(mesh.shape) == {"data": 1024, "model": 4}
    kinds = SPEC.replace("data: 2, model: 4", "data: 2 explicit, model: 4")
    assert abstract(kinds).mesh.axis_types == (AxisType.Explicit, AxisType.Auto)


def test_answers_are_those_of_devices() -> None:
    without, on_eight = abstract(), shardspec.Resolver(shardspec.loads(SPEC), "eight")
    params, tx = tree(), optax.adam(1e-3)
    state = jax.eval_shape(tx.init, params)
    for ask in (
        lambda r: r.shardings(params),
        lambda r: r.state_shardings(state, params),
        lambda r: r.grad_shardings(params),
        lambda r: r.batch("batch length").sharding((8, 4)),
        lambda r: r.sharding("batch length embed"),
    ):
        assert specs_of(ask(without)) == specs_of(ask(on_eight))
        assert {type(s.mesh) for s in jax.tree.leaves(ask(without))} == {AbstractMesh}
    assert without.partition_spec("batch length") == on_eight.partition_spec("batch length")
    assert str(without.plan(params)) == str(on_eight.plan(params))
    assert without.findings(params) == on_eight.findings(params)
    kept = without.abstract(params)["mlp"]["wi"]
    assert (kept.shape, kept.sharding.spec) == (
        (16, 32),
        without.shardings(params)["mlp"]["wi"].spec,
    )


def lowered(resolver: Any, embed: int, batch: int) -> str:
    def loss(params: Any, x: jax.Array) -> jax.Array:
        x = resolver.constrain(x, activation="residual")
        hidden = resolver.constrain(x @ params["mlp"]["wi"], "batch length mlp")
        return jnp.sum(resolver.constrain(hidden @ params["mlp"]["wo"], "batch length embed"))

    params = resolver.abstract(tree(embed))
    shape = (batch, 4, embed)
    x = jax.ShapeDtypeStruct(
        shape, jnp.float32, sharding=resolver.batch("batch _ _").sharding(shape)
    )
    step = jax.jit(jax.grad(loss), out_shardings=resolver.grad_shardings(tree(embed)))
    return step.trace(params, x).lower(lowering_platforms=("tpu",)).as_text()


def constraints(text: str) -> list[str]:
    return re.findall(r"sdy\.sharding_constraint \S+ <@\w+, (\[.*?\])>", text)


@pytest.mark.parametrize("target", ["eight", "many", "most"])
def test_a_step_lowers_for_any_number_of_devices(target: str) -> None:
    text = lowered(abstract(LARGE, target), 4096, 4096)
    assert constraints(text) == constraints(lowered(abstract(LARGE), 4096, 4096))
    assert constraints(text)


@pytest.mark.parametrize("kinds", ["data: 2, model: 4", "data: 2 explicit, model: 4 explicit"])
def test_constraints_are_those_of_devices(kinds: str) -> None:
    text = SPEC.replace("data: 2, model: 4", kinds)
    both = [abstract(text), shardspec.Resolver(shardspec.loads(text), "eight")]

    def program(resolver: Any) -> str:
        placed = resolver.batch("batch _ _").sharding((8, 4, 16))
        x = jax.ShapeDtypeStruct((8, 4, 16), jnp.float32, sharding=placed)
        step = jax.jit(lambda x: resolver.constrain(x, activation="residual"))
        return step.trace(x).lower(lowering_platforms=("tpu",)).as_text()

    one, other = map(program, both)
    assert constraints(one) == constraints(other)
    assert constraints(one)


def test_what_needs_devices_says_that_there_are_none() -> None:
    resolver = abstract()
    arrays = {"mlp": {"wi": np.ones((16, 32), np.float32), "wo": np.ones((32, 16), np.float32)}}
    for call in (
        lambda: resolver.put(arrays),
        lambda: resolver.verify_placement(arrays),
        lambda: resolver.restore("nowhere", tree()),
        lambda: resolver.batch("batch length").put(np.ones((8, 4))),
        lambda: resolver.batch("batch length").local_rows((8, 4)),
        lambda: resolver.batch("batch length").layout(8),
        lambda: resolver.constrain(jnp.ones((8, 4, 16)), activation="residual"),
    ):
        with pytest.raises(TypeError, match="needs devices, and this resolver has none"):
            call()
    with pytest.raises(ValueError, match="AbstractMesh does not implement devices"):
        _ = resolver.mesh.devices


def test_a_target_is_named_unless_there_is_one() -> None:
    with pytest.raises(ShardspecError, match="one of eight, many, most"):
        shardspec.Resolver(shardspec.loads(SPEC), devices="abstract")
    text = "mesh: {data: 512}\nrules: [batch -> data]\n"
    assert shardspec.Resolver(shardspec.loads(text), devices="abstract").mesh.size == 512
    with pytest.raises(TypeError, match="None or 'abstract'"):
        shardspec.Resolver(shardspec.loads(text), devices="none")  # type: ignore[arg-type]


def test_another_machine_than_this_one_is_no_fault() -> None:
    """No device of a TPU is here, and none is asked for."""
    assert abstract(LARGE, "most").target.hardware is not None


T5 = """\
shardspec: 1
extends: fsdp-tensor
targets:
  pod: {hardware: tpu v5e 16x16, mesh: {fsdp: rest, tensor: 4}}
lints: {SHD2: allow, SHD3: allow, SHD4: allow, SHD1: allow}
policy: {indivisible: next}
"""


@pytest.mark.parametrize("model", [t5_linen, moe_linen, t5_nnx], ids=["t5", "moe", "nnx"])
def test_steps_of_frameworks_lower(model: Any) -> None:
    """Parameters with and without boxes, a constraint in the loss, gradients as the plan says."""
    resolver = shardspec.Resolver(shardspec.loads(T5), devices="abstract")
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = resolver.abstract(shapes)
    assert {leaf.sharding.mesh.size for leaf in jax.tree.leaves(params)} == {256}
    tokens = jax.ShapeDtypeStruct((layers.BATCH, layers.LENGTH), jnp.int32)
    batch = {"inputs": tokens, "targets": tokens}

    def step(params: Any, batch: Any) -> Any:
        grads = jax.grad(model.loss)(params, batch)
        return jax.lax.with_sharding_constraint(grads, resolver.grad_shardings(shapes))

    text = jax.jit(step).trace(params, batch).lower(lowering_platforms=("tpu",)).as_text()
    assert '<["fsdp"=64, "tensor"=4]>' in text
    assert len(constraints(text)) >= len(jax.tree.leaves(params))


def test_the_page_runs() -> None:
    page = Path("docs/abstract.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    exec(compile(block, "docs/abstract.md", "exec"), {})


def test_a_constant_is_constrained_in_a_function_under_jit() -> None:
    found = shardspec.Resolver(shardspec.loads(SPEC, "s.yaml"), target="many", devices="abstract")
    constant = jnp.ones((128, 32))
    lowered = jax.jit(lambda: found.constrain(constant, "batch mlp")).lower()
    assert lowered.as_text().count("sharding_constraint") == 1
    with pytest.raises(TypeError, match="outside of jit needs devices"):
        found.constrain(constant, "batch mlp")
