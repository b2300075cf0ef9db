"""Findings of a step: real ones, ones that must not be told, and steps of every kind."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest
from hypothesis import given

import shardspec
from shardspec import pipeline
from shardspec.analysis.cost import Cost, cost_of
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.render import render
from shardspec.ir.spec import Param
from shardspec.ir.step import Step
from shardspec.lints.registry import run_on_steps
from tests import strategies
from tests.lints.step_examples import findings
from tests.models.steps import CASES

#: What there is to say of the steps of real sizes, each looked at: dispatch and combine of GShard's
#: mixture of experts are computed on both devices of `tensor`; T5 XXL without remat fits neither
#: v4 nor H100 (libtpu says 83.6 GiB, SHD510 83.4).
REAL = {
    "moe-47b-v5p": ["SHD507"],
    "moe-47b-h100-64": ["SHD507"],
    "t5-xxl-v4": ["SHD510"],
    "t5-xxl-h100-64": ["SHD510"],
}
USUAL = ("llama-4-layers-v5p", "decode-8b-v5e", "moe-47b-v5p")


@cache
def of_real_size(name: str) -> tuple[Diagnostic, ...]:
    from shardspec.jax_backend.step.reading import step_of

    text = CASES[name].spec.replace(", SHD5: allow", "")
    resolver = shardspec.Resolver(shardspec.loads(text, "spec.yaml"), "pod", devices="abstract")
    function, args = CASES[name].step(resolver)
    return pipeline.step_findings([cost(text, step_of(resolver, function, *args))])


def cost(text: str, step: Step) -> Cost:
    """Return the cost of a step under a spec without arrays: those of the step are its arrays."""
    spec, _ = pipeline.load_text(text, "spec.yaml")
    assert spec is not None
    params = tuple(
        Param(each.path, each.array.shape, each.array.dtype)
        for each in step.arguments
        if each.role == "parameter"
    )
    return cost_of(pipeline.compile_plans(spec, params)[0], step)


@pytest.mark.parametrize(
    "name",
    [name if name in USUAL else pytest.param(name, marks=pytest.mark.nightly) for name in CASES],
)
def test_steps_of_real_sizes(name: str) -> None:
    assert [found.code.id for found in of_real_size(name)] == REAL.get(name, [])


def test_a_finding_says_what_where_how_much_and_what_to_do() -> None:
    (found,) = of_real_size("moe-47b-v5p")
    assert "computed 2 times" in found.message
    assert "5.4 % of the step's FLOPs" in found.message
    assert found.primary is not None
    assert "tensor: 2" in found.primary.span.source.line_text(found.primary.span.line)
    assert any(
        re.search(r"product at tests/models/steps\.py:\d+ \(gsxc,gse->xgce\)", note)
        for note in found.notes
    )
    assert "sends more than it saves" in str(found.help)


HEAD = """\
shardspec: 1
hardware: tpu v5e 4x4
mesh: {data: 4, tensor: 4}
axes: {batch: 16384, features: 4096}
rules:
  - batch -> data
  - mlp, sequence -> tensor
  - features -> none
params:
  wi: features mlp
  wo: mlp features
arrays:
  wi: bf16[4096, 16384]
  wo: bf16[16384, 4096]
activations:
  x: batch features
lints: {SHD2: allow, SHD4: allow}
"""
FSDP = HEAD.replace("features -> none", "features_act -> none\n  - features -> data")


def codes(code: str, text: str = HEAD) -> list[str]:
    lines = "".join(f"# {line}\n" for line in code.splitlines())
    return [found.code.id for found in findings(lines + text)]


def test_a_gather_of_fsdp_is_no_finding() -> None:
    text = FSDP.replace("features: 4096}", "features: 4096, features_act: 4096}")
    text = text.replace("x: batch features", "x: batch features_act")
    step = (
        "def step(params, x):\n"
        '    hidden = resolver.constrain(x @ params["wi"], "batch mlp")\n'
        '    return resolver.constrain(hidden @ params["wo"], activation="x")'
    )
    assert codes(step, text) == []


def test_a_gather_for_a_product_that_the_axis_splits_elsewhere_is_no_finding() -> None:
    """Sequence parallelism: activations lie on `tensor` between products, and are gathered."""
    text = HEAD.replace("x: batch features", "x: batch sequence features")
    text = text.replace("batch: 16384", "batch: 64, sequence: 2048")
    step = (
        "def step(params, x):\n"
        "    x = resolver.constrain(x, 'batch _ features')\n"
        '    hidden = resolver.constrain(x @ params["wi"], "batch _ mlp")\n'
        '    return resolver.constrain(hidden @ params["wo"], activation="x")'
    )
    assert codes(step, text) == []


def test_new_state_that_lies_as_the_old_is_no_finding() -> None:
    """ZeRO: each device updates its part of the parameters, and all of them gather the rest."""
    step = (
        "from jax.sharding import NamedSharding, PartitionSpec as P\n"
        "whole, split = (NamedSharding(resolver.mesh, P(*s)) for s in [(), ('data',)])\n"
        "def update(params, x):\n"
        "    grads = jax.grad(lambda p: jnp.sum((x @ p['wi'] @ p['wo']) ** 2))(params)\n"
        "    cut = lambda tree: jax.lax.with_sharding_constraint(tree, split)\n"
        "    return jax.tree.map(lambda p, g: p - 0.1 * g, cut(params), cut(grads))\n"
        "step = jax.jit(update, out_shardings={'wi': whole, 'wo': whole})"
    )
    text = HEAD.replace("mlp, sequence -> tensor", "mlp, sequence -> none").replace(
        "{data: 4, tensor: 4}", "{data: 16}"
    )
    text += "replicate: [{path: '*', because: small}]\n"
    assert codes(step, text) == []
    moved = step.replace("'wi': whole, 'wo': whole", "'wi': split, 'wo': split").replace(
        "cut(params), cut(grads)", "params, grads"
    )
    assert codes(moved, text) == ["SHD517"], "the next call is given other state"


def test_a_gather_for_what_goes_element_by_element_is_told() -> None:
    """The softmax of logits needs no whole rows, and nor does its gradient."""
    step = (
        "def step(params, x):\n"
        '    logits = resolver.constrain(x @ params["wi"], "batch _")\n'
        "    return jnp.sum(jax.nn.logsumexp(logits.astype(jnp.float32), -1))"
    )
    assert codes(step) == ["SHD504"]
    assert codes(step.replace("batch _", "batch mlp")) == []


def test_fewer_kv_heads_than_devices_repeat_work() -> None:
    """Of 16 devices over 8 KV heads, each two make the same keys; queries are shared by all."""
    text = """\
hardware: tpu v5e 4x4
mesh: {tensor: 16}
axes: {batch: 512, length: 1024, features: 1024, heads: 64, kv_heads: 8, kv: 128}
rules: [heads -> tensor, "batch, length, features, kv_heads, kv -> none"]
params: {q: features heads kv, k: features kv_heads kv}
arrays: {q: "bf16[1024, 64, 128]", k: "bf16[1024, 8, 128]"}
activations: {x: batch length features}
lints: {SHD2: allow, SHD4: allow}
"""
    step = (
        "def step(params, x):\n"
        '    q = jnp.einsum("ble,ehd->blhd", x, params["q"])\n'
        '    q = resolver.constrain(q, "batch length heads kv").reshape(512, 1024, 8, 8, 128)\n'
        '    k = jnp.einsum("ble,ehd->blhd", x, params["k"])\n'
        '    return jnp.max(jnp.einsum("blkgd,bmkd->bkglm", q, k), axis=-1)'
    )
    lines = "".join(f"# {line}\n" for line in step.splitlines())
    (found,) = findings(lines + text)
    assert found.code.id == "SHD507"
    assert found.message.startswith("1 product of the step is computed 2 times")
    assert "product at model.py:4 (ble,ehd->blhd)" in found.notes[0]


def test_a_cache_that_a_loop_splits_is_gathered_each_step() -> None:
    text = """\
hardware: tpu v5e 4x4
mesh: {tensor: 16}
axes: {rows: 4096, columns: 65536, parts: 65536}
rules: [parts -> tensor, "rows, columns -> none"]
activations: {cache: rows columns, new: rows parts}
lints: {SHD2: allow, SHD4: allow}
"""
    step = (
        "whole = resolver.sharding('rows columns', (4096, 65536))\n"
        "step = jax.jit(lambda cache, new: cache + new, out_shardings=whole)"
    )
    assert codes(step, text) == ["SHD504"]


def test_what_says_more_of_dcn_stands_alone() -> None:
    from tests.test_docs import example

    code = next(code for code in shardspec.diagnostics.codes.ALL if code.id == "SHD506")
    text = example(code, "Bad")
    assert [found.code.id for found in findings(text)] == ["SHD506"]
    spec, faults = pipeline.load_text(text, "spec.yaml")
    assert spec is not None
    alone = pipeline.checked(spec, faults, pipeline.compile_plans(spec)).shown
    assert [found.code.id for found in alone] == ["SHD111"]


def test_a_transition_between_two_operands_is_found_as_well() -> None:
    text = """\
mesh: {x: 4, y: 2}
axes: {heads: 64, length: 4096, embed: 4096, rows: 4096}
rules: [heads -> y, "rows -> (x, y)", embed -> x, length -> none]
activations: {a: heads length embed, b: _ rows _}
lints: {SHD2: allow}
"""
    step = "def step(a, b):\n    return jnp.tanh(a) + b"
    text = text.replace("b: _ rows _", "b: few rows many")
    text = text.replace("rows: 4096", "rows: 4096, few: 64, many: 4096")
    assert codes(step, text) == ["SHD508"]
    assert codes(step, text.replace("rows -> (x, y)", "rows -> y")) == []


def test_on_gpus_and_cpus_loops_are_left_to_the_compiler() -> None:
    from tests.test_docs import example

    code = next(code for code in shardspec.diagnostics.codes.ALL if code.id == "SHD509")
    text = example(code, "Bad")
    assert [found.code.id for found in findings(text)] == ["SHD509"]
    assert findings(text.replace("hardware: tpu v5e 2x4", "hardware: 8 h100")) == ()


@given(strategies.steps())
def test_findings_are_whole_on_every_step(step: Step) -> None:
    text = "mesh: {data: 4, fsdp: 2, tensor: 3, expert: 1}\nhardware: tpu v5e 4x6\n"
    text += "arrays: {a0: 'bf16[8, 4096]', mlp/wi: 'f32[8]'}"
    spec, _ = pipeline.load_text(text, "spec.yaml")
    assert spec is not None
    (plan,) = pipeline.compile_plans(spec)
    context: Any = pipeline.step_findings([cost_of(plan, step)])
    assert context == pipeline.step_findings([cost_of(plan, step)])
    known = {code.id for code in shardspec.lints.registry.step_codes()}
    for found in context:
        assert found.code.id in known
        assert found.help
        assert found.target == "default"
        assert "\n" not in found.message
        assert render(found)


def test_without_a_step_they_have_nothing_to_say() -> None:
    from shardspec.lints.context import Context

    spec, _ = pipeline.load_text(HEAD, "spec.yaml")
    assert spec is not None
    plans = pipeline.compile_plans(spec)
    bare = Context(spec, plans, (cost_of(plans[0]),))
    assert list(run_on_steps(bare)) == []
    assert pipeline.step_findings([]) == ()
