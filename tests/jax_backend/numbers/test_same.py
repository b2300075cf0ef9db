"""Wrong steps are found with axis and line; right ones are not called wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import shardspec
from shardspec.jax_backend.numbers.comparing import Asked, meshes_of
from shardspec.jax_backend.numbers.same import StepCode, same_numbers
from shardspec.programs.numbers import Numbers

SPEC = """\
shardspec: 1
axes: {batch: 512, length: 1024, embed: 2048, mlp: 8192, layers: 24, vocab: 32000}
targets:
  pod: {hardware: tpu v5p 4x4x4, mesh: {data: rest, tensor: 4}}
rules: [batch -> data, mlp -> tensor, length -> none, embed -> none, layers -> none, vocab -> none]
params: {table: vocab embed, up: layers embed mlp, down: layers mlp embed}
"""
#: A language model by `shard_map`: data parallel, its MLPs split over `tensor`.
STEP = """\
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

LAYERS, VOCAB, EMBED, MLP = 24, 32000, 2048, 8192
BATCH, LENGTH = 512, 1024


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def summed(x, axis):
    return jax.lax.psum(x, axis)


summed.defvjp(lambda x, axis: (summed(x, axis), None), lambda axis, _, g: (g,))


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def copied(x, axis):
    return x


copied.defvjp(lambda x, axis: (x, None), lambda axis, _, g: (jax.lax.psum(g, axis),))


def block(x, layer, key):
    hidden = jnp.tanh(copied(x, "tensor") @ layer["up"])  # hidden
    return x + summed(hidden @ layer["down"], "tensor"), None  # row


def vocabulary_loss(logits, tokens, is_summed=True):
    size = logits.shape[-1] // jax.lax.psum(1, "tensor")
    first = jax.lax.axis_index("tensor") * size
    logits = jax.lax.dynamic_slice_in_dim(copied(logits, "tensor"), first, size, -1)
    local = tokens - first
    own = jnp.take_along_axis(logits, jnp.clip(local, 0, size - 1)[..., None], -1)[..., 0]
    own = jnp.where((local >= 0) & (local < size), own, 0.0)  # label
    own = summed(own, "tensor") if is_summed else own
    total = summed(jnp.exp(logits).sum(-1), "tensor")
    return jnp.log(total) - own


def step(resolver):
    def loss_of(params, tokens, mask, key):
        x = params["table"][tokens].astype(jnp.bfloat16)
        layers = {name: params[name].astype(jnp.bfloat16) for name in ("up", "down")}
        x, _ = jax.lax.scan(jax.checkpoint(lambda x, layer: block(x, layer, key)), x, layers)
        logits = x.astype(jnp.float32) @ params["table"].T
        losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], -1)[..., 0]
        count = jax.lax.psum(mask.sum(), "data")  # count
        return (losses * mask).sum() / count, losses.shape

    places = {"table": P(), "up": P(None, None, "tensor"), "down": P(None, "tensor", None)}

    @partial(
        jax.shard_map,
        mesh=resolver.mesh,
        in_specs=(places, places, P("data"), P("data"), P()),
        out_specs=(places, places, P()),
        check_vma=False,
    )
    def train(params, moments, tokens, mask, key):
        (loss, _), grads = jax.value_and_grad(loss_of, has_aux=True)(params, tokens, mask, key)
        grads = jax.tree.map(lambda g: jax.lax.psum(g, "data"), grads)  # gradients
        moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, grads)  # moments
        params = jax.tree.map(lambda p, m: p - 0.1 * m, params, moments)
        return params, moments, jax.lax.psum(loss, "data")

    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    layers = {"up": f32(LAYERS, EMBED, MLP), "down": f32(LAYERS, MLP, EMBED)}
    params = {"table": f32(VOCAB, EMBED), **layers}
    tokens = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.int32)
    mask = jax.ShapeDtypeStruct((BATCH, LENGTH), jnp.bool_)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return jax.jit(train, donate_argnums=(0, 1)), (params, params, tokens, mask, key)
"""
LOSSES = next(line.strip() for line in STEP.split("\n") if line.lstrip().startswith("losses ="))
#: What is changed, the axis at fault, and the lines that may be named.
WRONG = {
    "gradients are not summed": (
        ('jax.lax.psum(g, "data"), grads)', "g, grads)"),
        "data",
        ("moments", "gradients"),
    ),
    "the mean of the counts of each device": (
        ('count = jax.lax.psum(mask.sum(), "data")', "count = 2 * mask.sum()"),
        "data",
        ("count", "return (losses"),
    ),
    "the loss is summed over tensor, too": (
        ('jax.lax.psum(loss, "data")', 'jax.lax.psum(loss, ("data", "tensor"))'),
        "tensor",
        ("psum(loss",),
    ),
    "a row is not summed": (
        ('summed(hidden @ layer["down"], "tensor")', 'hidden @ layer["down"]'),
        "tensor",
        ("# row",),
    ),
    "gradients of the input are not summed": (
        ("lambda axis, _, g: (jax.lax.psum(g, axis),)", "lambda axis, _, g: (g,)"),
        "tensor",
        ("copied.defvjp",),
    ),
    "a bias before the sum": (
        (
            'summed(hidden @ layer["down"], "tensor")',
            'summed(hidden @ layer["down"] + 1.0, "tensor")',
        ),
        "tensor",
        ("# row",),
    ),
    "gradients of a mean are summed": (
        ("(losses * mask).sum() / count", "losses.mean()"),
        "data",
        ("# gradients",),
    ),
    "a label in another part of the vocabulary": (
        (
            LOSSES,
            "losses = vocabulary_loss(logits, tokens, is_summed=False)",
        ),
        "tensor",
        ("# label", "- own"),
    ),
    "the same dropout everywhere": (
        ("# hidden", "\n    x = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)"),
        "data",
        ("bernoulli",),
    ),
}
RIGHT = {
    "as it is": ("", ""),
    "dropout of each device": (
        "# hidden",
        '\n    key = jax.random.fold_in(key, jax.lax.axis_index("data"))'
        "\n    x = jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0)",
    ),
    "a vocabulary in parts": (
        LOSSES,
        "losses = vocabulary_loss(logits, tokens)",
    ),
    "a choice that may tie": ("# hidden", "\n    x = jnp.where(x > 0, x, jnp.sign(x) * 0.5)"),
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Return what compares the step with one place changed."""
    monkeypatch.chdir(tmp_path)

    def compared(old: str = "", new: str = "", **asked: object) -> tuple[Numbers, str]:
        assert old in STEP
        text = STEP.replace(old, new) if old else STEP
        (tmp_path / "spec.yaml").write_text(SPEC)
        (tmp_path / "numbers_step.py").write_text(text)
        spec = shardspec.load("spec.yaml").ir
        code = StepCode("numbers_step:step", str(tmp_path), spec, spec.targets[0])
        return same_numbers(code, Asked(**asked), lambda stage: None), text

    return compared


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_step_is_found(name: str, run) -> None:
    (old, new), axis, lines = WRONG[name]
    numbers, text = run(old, new)
    assert numbers.verdict == "different", name
    assert numbers.axes == ((axis,),)
    assert numbers.first is not None
    line = text.split("\n")[numbers.first.place.line - 1]
    assert any(each in line for each in lines), (line, numbers.first)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_step_is_the_same(name: str, run) -> None:
    numbers, _ = run(*RIGHT[name])
    assert numbers.verdict == "same", str(numbers)
    assert dict(numbers.meshes[0]) == {"data": 2, "tensor": 4}
    assert bool(numbers.device_random) == (name == "dropout of each device")


def test_sizes_in_code_and_spec_become_small_together(run) -> None:
    numbers, _ = run()
    small = dict(numbers.sizes)
    assert small[24] == 4
    assert {2048, 8192, 32000, 512, 1024} <= small.keys()
    assert any(re.match(r"numbers_step.py:7 LAYERS = 24 \(4\)", each) for each in numbers.written)


def test_a_size_may_stay(run) -> None:
    numbers, _ = run(kept=("layers",))
    assert 24 not in dict(numbers.sizes)
    assert numbers.verdict == "same"
    with pytest.raises(shardspec.ShardspecError, match="no size"):
        run(kept=("nothing",))


def test_what_is_not_finite_is_not_called_the_same(run) -> None:
    numbers, _ = run('jax.lax.psum(loss, "data")', 'jax.lax.psum(loss, "data") * jnp.nan')
    assert numbers.verdict == "untried"
    assert numbers.unstable == ("2",)
    assert "NOT COMPARED in 1 of" in str(numbers)


def test_each_axis_is_tried_once_at_least() -> None:
    axes = ["a", "b", "c", "d", "e"]
    found = list(meshes_of(axes, {"c": None}))
    assert [axis for mesh in found for axis in mesh] == axes
    assert {size for mesh in found for axis, size in mesh.items() if axis == "c"} == {4}


@pytest.mark.parametrize("axes", [["a", "b"], ["a", "b", "c"], ["a", "b", "c", "d"]])
@pytest.mark.parametrize("long", ["a", "b", "ab", "abcd"])
def test_an_axis_that_may_be_longer_has_another_size_than_others(axes: list, long: str) -> None:
    found = list(meshes_of(axes, {}, [*long]))
    assert {axis for mesh in found for axis in mesh} == {*axes}
    assert any(mesh.get("a", 1) != mesh.get("b", 1) for mesh in found)
    assert all(np.prod([*mesh.values()]) <= 8 for mesh in found)
