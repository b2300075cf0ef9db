"""How far caches may grow: the next shard would not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.analysis.memory import Held, limit, memory
from shardspec.analysis.step_memory import Amount, room_lines, rooms, step_memory
from shardspec.ir.plan import Origin, ShardingPlan
from shardspec.ir.spec import Param, Spec

TEXT = """\
shardspec: 1
extends: serving
hardware: {hardware}
mesh: {{data: 2, tensor: rest}}
axes: {{batch: {batch}, cache_length: 4096, kv_heads: 8, kv: 128, pages: 64, page_size: 16}}
arrays: {{w: "bf16[embed=4096 mlp=14336]"}}
caches: {{"cache/{{0..3}}/{{key,value}}": "{type}"}}
{more}
"""
CONTIGUOUS = "bf16[batch cache_length kv_heads kv]"


def spec_of(
    type: str = CONTIGUOUS, hardware: str = "tpu v5e 2x4", batch: int = 8, more: str = ""
) -> Spec:
    text = TEXT.format(type=type, hardware=hardware, batch=batch, more=more)
    spec, faults = pipeline.load_text(text)
    assert spec is not None
    assert faults == ()
    return spec


def plan_of(spec: Spec, params: tuple[Param, ...] | None = None) -> ShardingPlan:
    return pipeline.compile_plans(spec, params)[0]


@given(
    st.integers(1, 40).map(lambda half: 2 * half), st.sampled_from(("tpu v5e 2x4", "h100", "a100"))
)
def test_one_shard_more_would_not_fit(batch: int, hardware: str) -> None:
    """fits: a device holds caches of `most`, and not of one shard more."""
    plan = plan_of(spec_of(hardware=hardware, batch=batch))
    most = limit(plan.target)
    assert most is not None
    (of_batch, of_length) = rooms(plan)
    assert (of_batch.axis, of_batch.size, of_length.axis) == ("batch", batch, "cache_length")
    assert of_batch.most % 2 == 0

    def held(size: int) -> int:
        return step_memory(plan_of(spec_of(hardware=hardware, batch=size))).total.bytes

    assert held(of_batch.most) <= most < held(of_batch.most + 2)


def test_pages_are_tokens_and_sequences() -> None:
    (room,) = rooms(plan_of(spec_of("bf16[pages page_size kv_heads kv]")))
    assert room.tokens == room.most * 16
    assert room.sequences == room.most * 16 // 4096
    assert "tokens" in str(room)


@pytest.mark.parametrize(
    ("type", "hardware"),
    [("bf16[blocks=8 kv_heads kv]", "tpu v5e 2x4"), (CONTIGUOUS, "8 cpu")],
)
def test_nothing_is_said_without_a_known_axis_or_memory(type: str, hardware: str) -> None:
    assert list(room_lines(plan_of(spec_of(type, hardware)))) == []


def test_none_fits() -> None:
    plan = plan_of(spec_of(more='manifest: llama-3-70b\nreplicate: [{path: "**", because: test}]'))
    assert {room.most for room in rooms(plan)} == {0}


def test_caches_have_no_gradients_and_count_apart() -> None:
    held = memory(plan_of(spec_of(more="state: {moments: 2}")))
    parts = held.by_kind
    assert parts[Held.CACHES] == 8 * 8 * 4096 * 8 * 128 * 2 // (2 * 4)
    assert parts[Held.GRADIENTS] == parts[Held.PARAMETERS]


def test_caches_stand_beside_whatever_arrays_are_given() -> None:
    spec = spec_of()
    given_arrays = (Param("v", (8, 8)), Param("cache/0/key", (2, 64, 8, 128), "bf16"))
    plan = plan_of(spec, given_arrays)
    assert len(plan.arrays) == 1 + 8
    live = plan["cache/0/key"]
    assert live.param.shape == (2, 64, 8, 128)
    assert live.param.is_cache
    assert live.origin is Origin.CACHES
    assert str(live.partition_spec) == "P('data', None, 'tensor', None)"
    found = pipeline.findings(spec, (plan,)).shown
    assert not [each for each in found if each.code.id == "SHD302"], "a live one may be shorter"


def test_a_phase_has_caches_of_its_own() -> None:
    more = 'phases: {decode: {caches: {more/key: "bf16[batch kv]"}}}'
    spec = spec_of(more=more)
    (decode,) = spec.phases
    assert "more/key" in plan_of(decode).arrays[-1].path
    assert all(each.path != "more/key" for each in plan_of(spec).arrays)
    assert replace(decode, phases=()).caches[0].is_cache


def test_a_phase_may_state_a_cache_anew() -> None:
    own = "cache/{0..3}/{key,value}"
    longer = (
        f'caches: {{"{own}": "s8[batch cache_length kv_heads kv]"}}, axes: {{cache_length: 8192}}'
    )
    spec = spec_of(more=f"phases: {{decode: {{{longer}}}, answer: {{axes: {{batch: 4}}}}}}")
    there = [plan_of(each)["cache/0/key"].param for each in (spec, *spec.phases)]
    assert [each.shape[:2] for each in there] == [(8, 4096), (8, 8192), (4, 4096)]
    assert [each.dtype for each in there] == ["bf16", "s8", "bf16"]
    assert all(len(each.caches) == 8 for each in (spec, *spec.phases))


def test_caches_in_host_memory_have_no_room_and_take_none() -> None:
    plan, apart = plan_of(spec_of()), plan_of(spec_of(more='memory: {"cache/**": pinned_host}'))
    assert rooms(plan)
    assert rooms(apart) == ()
    held = memory(apart)
    assert held.by_kind[Held.PARAMETERS] == memory(plan).by_kind[Held.PARAMETERS]
    assert held.host_by_kind == {Held.CACHES: memory(plan).by_kind[Held.CACHES]}


def test_caches_on_device_have_the_room_that_weights_on_the_host_leave() -> None:
    plan, apart = plan_of(spec_of()), plan_of(spec_of(more="memory: {w: pinned_host}"))
    (batch, _), (more, _) = rooms(plan), rooms(apart)
    assert more.most > batch.most


def test_rules_for_any_array_are_not_for_caches() -> None:
    text = (
        "shardspec: 1\nmesh: {data: 2}\nrules: ['* -> data']\narrays: {w: 'f32[8, 4]'}\n"
        "caches: {key: 'f32[8, 4]'}\n"
    )
    spec, _ = pipeline.load_text(text)
    assert spec is not None
    plan = plan_of(spec)
    assert [str(plan[path].partition_spec) for path in ("w", "key")] == [
        "P('data', None)",
        "P(None, None)",
    ]


def test_what_a_step_makes_takes_room() -> None:
    plan = plan_of(spec_of())
    alone = step_memory(plan)
    step = replace(alone, activations=Amount(1 << 30, "floor"))
    (before, _), (after, _), (same, _) = rooms(plan), rooms(plan, step), rooms(plan, alone)
    assert after.most < before.most == same.most
