"""Padding: the laws of `padded`, one test each, and what is padded and what is not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given

from shardspec.diagnostics import SourceFile, codes
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import LogicalAxis, Mesh, MeshAxis, Param, Params, Policy, Spec, Target
from shardspec.language.formatting import formatted
from shardspec.pipeline import check, compile_plans, findings, load_text, plans_of_phases
from shardspec.resolve.resolver import padded, pads, resolve
from tests.strategies import families, specs

arrays = families()


def padding(spec: Spec) -> Spec:
    return replace(spec, policy=replace(spec.policy, indivisible="pad", whole_below=None))


@given(specs(), arrays)
def test_least(spec: Spec, params: Params) -> None:
    """A padded size is the next multiple of what the axis is padded to."""
    made, found = padded(padding(spec), params)
    multiples = dict(made.multiples)
    for before, after in zip(params, found, strict=True):
        assert after.true_shape == before.shape
        for name, true, size in zip(
            before.logical_axes or (), before.shape, after.shape, strict=False
        ):
            multiple = multiples.get(name or "", 1)
            assert true <= size < true + multiple
            assert size % multiple == 0


@given(specs(), arrays)
def test_even(spec: Spec, params: Params) -> None:
    """What is padded and split is split evenly, in whole units, on every target."""
    made, found = padded(padding(spec), params)
    units = {axis.name: axis.unit for axis in spec.logical_axes}
    for target in spec.targets:
        for sharding in resolve(made, target, found).arrays:
            for dim, more in zip(
                sharding.dims, sharding.param.padding or (0,) * len(sharding.dims), strict=True
            ):
                assert dim.is_even
                if more and dim.ways > 1:
                    assert dim.size is not None
                    assert dim.size % (dim.ways * units.get(dim.logical_axis or "", 1)) == 0


@given(specs(), arrays)
def test_shared(spec: Spec, params: Params) -> None:
    """Arrays with an axis of one size have one padded size of it, split or not."""
    _, found = padded(padding(spec), params)
    sizes: dict[tuple[str, int], int] = {}
    for each in found:
        names = each.logical_axes or ()
        for name, true, size in zip(names, each.true_shape, each.shape, strict=False):
            if name is not None:
                assert sizes.setdefault((name, true), size) == size


@given(specs(), arrays)
def test_unpadded(spec: Spec, params: Params) -> None:
    """Where every dimension divides, the answers are those of `next`."""
    plain = replace(padding(spec), policy=Policy("next"))
    plans = [resolve(plain, target, params) for target in spec.targets]
    refused = any(
        attempt.outcome == "indivisible"
        or any(e.outcome == "indivisible" for e in attempt.left_out)
        for plan in plans
        for sharding in plan.arrays
        for dim in sharding.dims
        for attempt in dim.attempts
    )
    assume(not refused)
    made, found = padded(padding(spec), params)
    assert found == params
    assert made.logical_axes == spec.logical_axes
    for plan in plans:
        assert resolve(made, plan.target, found).arrays == plan.arrays


@given(specs(), arrays)
def test_again(spec: Spec, params: Params) -> None:
    """What is padded is not padded further."""
    made, found = padded(padding(spec), params)
    assert padded(made, found) == (made, found)


@given(specs(), arrays)
def test_without_the_word(spec: Spec, params: Params) -> None:
    assume(not pads(spec))
    assert padded(spec, params) == (spec, params)


WHISPER = """
shardspec: 1
axes: {vocab: 51865, embed: 1280, heads: 20, kv: 64, joined: {size: heads * kv, unit: kv}}
policy: {indivisible: pad}
targets:
  small: {mesh: {data: 2, tensor: 4}}
  pod: {mesh: {data: 2, tensor: 8}}
rules:
  - vocab, joined -> tensor
  - embed, kv -> none
arrays:
  embedding: bf16[vocab embed]
  logits/kernel: bf16[embed vocab]
  logits/bias: bf16[vocab]
  query: bf16[embed joined]
"""


def loaded(text: str) -> Spec:
    spec, faults = load_text(text)
    assert spec is not None
    assert not faults
    return spec


def plan_of(text: str, target: str = "pod") -> ShardingPlan:
    spec = loaded(text)
    return next(plan for plan in compile_plans(spec) if plan.target.name == target)


def shapes(plan: ShardingPlan) -> dict[str, tuple[int, ...]]:
    return {each.path: each.param.shape for each in plan.arrays}


def test_one_size_on_every_target() -> None:
    """A checkpoint moves between targets, so both have the size that the larger one needs."""
    for target in ("small", "pod"):
        found = shapes(plan_of(WHISPER, target))
        assert found["embedding"] == (51872, 1280)
        assert found["logits/kernel"] == (1280, 51872)
        assert found["logits/bias"] == (51872,)


def test_true_shape_is_kept() -> None:
    param = plan_of(WHISPER)["embedding"].param
    assert (param.shape, param.true_shape) == ((51872, 1280), (51865, 1280))


def test_a_product_is_padded_in_its_factor() -> None:
    """20 heads over 8 devices are 24 heads, in every size that names them; `kv` is a unit."""
    spec = loaded(WHISPER)
    sizes = {axis.name: (axis.true_size, axis.size) for axis in spec.logical_axes}
    assert sizes["heads"] == (20, 24)
    assert sizes["kv"] == (64, 64)
    assert sizes["joined"] == (20 * 64, 24 * 64)
    assert shapes(plan_of(WHISPER))["query"] == (1280, 24 * 64)


@pytest.mark.parametrize(
    ("change", "to"),
    [
        ("  - vocab, joined -> tensor", "  - vocab -> tensor | none\n  - joined -> tensor"),
        ("  - vocab, joined -> tensor", "  - vocab -> (data, tensor)?\n  - joined -> tensor"),
        ("vocab: 51865,", "vocab: {parts: {text: 51864, other: 1}},"),
        ("vocab: 51865,", "vocab: 51865, rows: 2 * vocab + 1,"),
        ("policy:", 'scan: {"x/**": vocab@0}\npolicy:'),
    ],
)
def test_never_padded(change: str, to: str) -> None:
    """What a rule says to do, parts, terms of a sum, and stacked layers are left as they are."""
    text = WHISPER.replace(change, to)
    assert text != WHISPER
    spec, _ = load_text(text)
    assert spec is not None
    assert {axis.name: axis.padding for axis in spec.logical_axes}["vocab"] == 0


def test_data_is_no_reason_to_pad() -> None:
    """Activations and caches have the padded sizes of parameters, and none of their own."""
    text = WHISPER.replace("axes: {", "axes: {batch: 3, ").replace(
        "rules:", "rules:\n  - batch -> data"
    )
    text += "activations: {logits: batch vocab}\ncaches: {k: 'bf16[batch vocab]'}\n"
    spec = loaded(text)
    assert {axis.name: axis.size for axis in spec.logical_axes}["batch"] == 3
    plan = plan_of(text)
    assert [dim.size for dim in plan.activations[0].dims] == [3, 51872]
    assert plan["k"].param.shape == (3, 51872)


def test_derived_arrays_follow() -> None:
    text = WHISPER + (
        'derive: {"lora_b": from logits/kernel dims _ 1, "scale": from logits/kernel dims 1/128,'
        ' "twice": from logits/kernel dims 1*2}\n'
    )
    text = text.replace("arrays:", "arrays:\n  lora_b: bf16[16, 51865]\n  scale: f32[406]")
    text = text.replace("arrays:", "arrays:\n  twice: f32[103730]")
    found = shapes(plan_of(text))
    assert found["lora_b"] == (16, 51872)
    assert found["scale"] == (math.ceil(51872 / 128),)
    assert found["twice"] == (2 * 51872,)


def test_phases_share_the_size() -> None:
    text = WHISPER + "phases: {decode: {mesh: {data: 1, tensor: 16}}}\n"
    spec = loaded(text)
    multiple = {plan.name: shapes(plan)["embedding"][0] for plan in plans_of_phases(spec)}
    assert set(multiple.values()) == {51872}
    assert 51872 % 16 == 0


def test_arrays_from_elsewhere_count() -> None:
    """`--arrays` and `compile(arrays)` are padded as those of the spec are."""
    spec = loaded(WHISPER.partition("arrays:")[0] + "params: {embedding: vocab embed}\n")
    given_params = (Param("embedding", (51865, 1280), "bf16"),)
    for plan in compile_plans(spec, given_params):
        assert plan["embedding"].param.shape == (51872, 1280)
    report = check(spec, (), given_params)
    assert not [each for each in report.shown if each.code.id.startswith("SHD3")]


def test_sizes_on_other_targets_are_those_of_their_plans() -> None:
    """A mesh that needs no padding has the true sizes, and no array contradicts them."""
    spec = loaded(WHISPER)
    alone = Target("one", Mesh((MeshAxis("data", 2), MeshAxis("tensor", 1))))
    plans = compile_plans(replace(spec, targets=(alone,)), tuple(map(true_param, spec.params)))
    assert shapes(plans[0])["embedding"] == (51865, 1280)
    assert not findings(spec, plans, only={codes.SIZE_MISMATCH}).found


def true_param(param: Param) -> Param:
    return replace(param, shape=param.true_shape, padding=())


def test_sizes_follow_the_names_of_params_without_arrays() -> None:
    """Code builds the model by `resolver.size`, before there are arrays."""
    spec = loaded(WHISPER.partition("arrays:")[0] + "params: {embedding: vocab embed}\n")
    sizes = {axis.name: axis.size for axis in spec.logical_axes}
    assert (sizes["vocab"], sizes["heads"]) == (51872, 20)


def test_both_spellings_mean_the_same() -> None:
    dsl, _ = formatted(SourceFile("spec.yaml", WHISPER), "dsl")
    assert dsl is not None
    assert "policy indivisible pad" in dsl
    there, _ = load_text(dsl, "spec.shard")
    yaml, _ = formatted(SourceFile("spec.shard", dsl), "yaml")
    assert yaml is not None
    for spec in (there, loaded(yaml)):
        assert spec is not None
        assert spec.logical_axes == loaded(WHISPER).logical_axes
        assert [each.shape for each in spec.params] == [e.shape for e in loaded(WHISPER).params]


def test_padded_axis_says_what_it_was() -> None:
    axis = LogicalAxis("vocab", 51872, padding=7)
    assert axis.true_size == 51865
