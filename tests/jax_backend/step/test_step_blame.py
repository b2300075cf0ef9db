"""Down to the rule: which argument or constraint a mesh axis came from, and what is carried."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import shardspec
from shardspec.ir.spec import MeshAxis
from shardspec.ir.step import CauseKind, Collective, CollectiveKind, Step
from shardspec.jax_backend.step.reading import step_of
from shardspec.jax_backend.step.trace import Layouts
from tests.models import small_steps


@cache
def step(name: str) -> Step:
    resolver = small_steps.resolver()
    function, args = small_steps.PROGRAMS[name](resolver)
    return step_of(resolver, function, *args)


def sends(found: Step, carries: str) -> Collective:
    return next(each for each in found.collectives if str(each.carries) == carries)


def line_of(text: str) -> int:
    lines = small_steps.SPEC.splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


def test_a_weight_that_is_gathered() -> None:
    (cause,) = sends(step("plain"), "weight mlp/wi").because
    assert (cause.kind, cause.array, cause.dim) == (CauseKind.ARGUMENT, "mlp/wi", 0)
    assert (cause.logical_axis, str(cause.rule)) == ("embed", "embed -> fsdp")
    assert cause.span is not None
    assert (cause.span.source.name, cause.span.line) == ("small.yaml", line_of("embed -> fsdp"))


def test_a_product_that_is_summed() -> None:
    found = next(each for each in step("plain").collectives if each.kind == "all-reduce")
    (cause,) = found.because
    assert (cause.array, cause.dim, str(cause.rule)) == ("mlp/wo", 0, "mlp -> tensor")


@pytest.mark.parametrize(
    "name", ["gradient", "clipped_adam", "multi_steps", "microbatches", "custom_rule"]
)
def test_gradients_are_known_by_their_parameter(name: str) -> None:
    for path in ("mlp/wi", "mlp/wo"):
        found = sends(step(name), f"gradient of {path}")
        assert found.mesh_axes == ("fsdp",)
        assert found.phase == "backward"
        (cause,) = found.because
        assert (cause.logical_axis, str(cause.rule)) == ("batch", "batch -> fsdp")


def test_a_constraint_has_its_line_and_the_rule_of_its_names() -> None:
    (cause,) = sends(step("gradient"), "gradient of mlp/wo").because
    assert cause.kind is CauseKind.CONSTRAINT
    assert cause.place.file == "tests/models/small_steps.py"
    code = Path(cause.place.file).read_text(encoding="utf-8").splitlines()[cause.place.line - 1]
    assert 'activation="residual"' in code


def test_a_constraint_of_jax_is_matched_by_how_it_lies() -> None:
    found = step("own_constraints")
    assert all(cause.rule for each in found.collectives for cause in each.because)


ONES = """
shardspec: 1
axes: {batch: 64, embed: 512}
mesh: {data: 1, fsdp: 4, tensor: 2}
rules: ["batch -> (data, fsdp)", "embed -> tensor"]
activations: {residual: batch embed}
params: {w: embed _}
"""


@pytest.mark.parametrize(
    ("more", "expected"), [("", "batch -> (data, fsdp)"), ("other -> fsdp", "None")]
)
def test_mesh_axes_of_size_1_do_not_hide_the_rule_of_a_constraint(more: str, expected: str) -> None:
    text = ONES.replace("rules: [", f"rules: [{more!r}, ") if more else ONES
    layouts = Layouts(shardspec.Resolver(shardspec.loads(text), devices="abstract"))
    (first, _) = layouts.constrained("", (64, 512), ((MeshAxis("fsdp", 4),), ()))
    assert str(first.taken and first.taken.rule) == expected


def test_a_result_that_is_forced() -> None:
    found = step("forced_result").collectives[-1]
    assert found.forced_by is not None
    assert found.forced_by.kind is CauseKind.RESULT
    assert str(found.carries) == "activation residual"


def test_what_a_shard_map_asks_for() -> None:
    first, *rest = step("shard_mapped").collectives
    assert str(first.carries) == "weight mlp/wi"
    assert first.forced_by is not None
    assert first.forced_by.place.is_known
    assert [str(cause.rule) for cause in first.because] == ["mlp -> tensor"]
    assert {cause.kind for each in rest for cause in each.because} == {CauseKind.WRITTEN}


def test_origins_inside_a_shard_map_are_not_read_as_the_modules() -> None:
    """`mc_0_input: 0` counts what the region is given: its first is `wo`, the module's is `wi`."""
    found = sends(step("half_mapped"), "weight mlp/wo")
    (cause,) = found.because
    assert (cause.array, cause.dim, str(cause.rule)) == ("mlp/wo", 1, "embed -> fsdp")


def test_an_axis_that_nobody_stated_is_propagated() -> None:
    """The activation has `tensor` from the weight that made it, not from a constraint."""
    resolver = small_steps.resolver()

    def both(params: Any, x: Any, other: Any) -> Any:
        return (x @ params["mlp"]["wi"].astype(x.dtype)) @ other["free"]

    struct: Any = jax.ShapeDtypeStruct
    free = {"free": struct((4096, 64), jnp.bfloat16, sharding=whole(resolver))}
    found = step_of(
        resolver, both, small_steps.weights(), small_steps.activations(), free
    ).collectives
    (cause,) = next(each for each in found if each.kind == "all-reduce").because
    assert cause.kind is CauseKind.PROPAGATED
    assert (cause.array, cause.dim, str(cause.rule)) == ("mlp/wi", 1, "mlp -> tensor")
    assert cause.through


def whole(resolver: Any) -> Any:
    spec: Any = jax.P
    return jax.sharding.NamedSharding(resolver.mesh, spec())


def test_a_rule_of_a_preset_has_its_span_there() -> None:
    text = small_steps.SPEC.replace("rules:", "extends: fsdp-tensor\nrules:").replace(
        "  - mlp -> tensor\n", ""
    )
    resolver = small_steps.resolver(spec=text)
    function, args = small_steps.PROGRAMS["plain"](resolver)
    found = next(
        each for each in step_of(resolver, function, *args).collectives if each.kind == "all-reduce"
    )
    (cause,) = found.because
    assert cause.span is not None
    assert cause.span.source.name == "preset:fsdp-tensor"
    assert "mlp" in cause.span.source.line_text(cause.span.line)


def test_zero_is_told_as_the_spec_says_it() -> None:
    text = small_steps.SPEC.replace("  - embed -> fsdp\n", "  - embed -> none\n")
    text += "state: {optimizer: zero1, over: fsdp}\n"
    resolver = small_steps.resolver(spec=text)
    function, args = small_steps.PROGRAMS["clipped_adam"](resolver)
    shardings = (resolver.shardings(args[0]), resolver.state_shardings(args[1], args[0]))
    step = jax.jit(function.__wrapped__, out_shardings=shardings, donate_argnums=(0, 1))
    found = step_of(resolver, step, *args).collectives
    back = next(each for each in found if each.kind == "all-gather" and each.phase == "update")
    (cause,) = back.because
    assert str(back.carries) in {"weight mlp/wi", "weight mlp/wo"}
    assert (cause.kind, cause.array.partition("/mlp")[0]) == (CauseKind.RESULT, "1/0/mu")
    assert cause.span is not None
    assert cause.span.text == "fsdp"
    assert "zero1" in cause.span.source.line_text(cause.span.line)
    assert back.forced_by is not None
    assert back.forced_by.kind is CauseKind.RESULT


LOOKUP = """\
shardspec: 1
targets:
  pod: {hardware: tpu v5e 4x4, mesh: {data: 8, tensor: 2}}
rules:
  - batch -> data
  - vocab -> VOCAB
  - embed -> EMBED
params:
  "**/table": vocab embed
activations:
  residual: batch _ _
lints: {SHD1: allow, SHD2: allow, SHD3: allow, SHD4: allow, SHD5: allow}
"""


def looked_up(rules: dict[str, str], *, is_trained: bool = True) -> Step:
    text = LOOKUP
    for name, axes in rules.items():
        text = text.replace(name.upper(), axes).replace(f"{name} -> data", f"{name} -> {axes}")
    own = shardspec.Resolver(shardspec.loads(text), "pod", devices="abstract")

    def loss(params: Any, tokens: Any) -> Any:
        rows = own.constrain(params["m"]["table"][tokens], activation="residual")
        return jnp.sum(rows**2)

    table = jax.ShapeDtypeStruct((32768, 512), jnp.float32)
    tokens = jax.ShapeDtypeStruct((64, 128), jnp.int32)
    function = jax.grad(loss) if is_trained else loss
    return step_of(own, function, {"m": {"table": table}}, tokens)


LOOKUPS = [
    {"vocab": "tensor", "embed": "none"},
    {"vocab": "data", "embed": "none"},
    {"vocab": "(data, tensor)", "embed": "none"},
    {"vocab": "none", "embed": "data"},
]


@pytest.mark.parametrize("rules", LOOKUPS, ids=str)
def test_a_lookup_is_for_the_rule_of_its_table(rules: dict[str, str]) -> None:
    """Without the rule of the indices, their devices would send more and not less."""
    step = looked_up(rules, is_trained=False)
    blamed = {c.logical_axis for each in step.collectives for c in each.because if each.array.shape}
    (name,) = blamed
    without = looked_up({**rules, str(name): "none"}, is_trained=False)
    assert sum(without.wire_bytes.values()) < 100 < sum(step.wire_bytes.values())


@pytest.mark.parametrize("rules", [*LOOKUPS, {"vocab": "data", "embed": "tensor"}], ids=str)
def test_without_the_rule_that_is_blamed_a_lookup_does_not_send(rules: dict[str, str]) -> None:
    """The oracle is the step with the rule put to `none`; what remains is sent for another."""
    step = looked_up(rules)
    assert step.collectives
    for each in step.collectives:
        gone = []
        for cause in each.because:
            assert cause.rule is not None, f"{each.array} over {cause.mesh_axis}"
            without = looked_up({**rules, str(cause.logical_axis): "none"})
            left = {
                (other.kind, other.mesh_axes, other.array.shape) for other in without.collectives
            }
            gone.append((each.kind, each.mesh_axes, each.array.shape) not in left)
        if each.array.dtype != "s32":  # indices go from device to device in an order of XLA's own
            assert any(gone)
            assert all(gone) or each.kind is CollectiveKind.COLLECTIVE_PERMUTE
