from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.analysis.memory import Held, Memory, memory, room_text
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import MemoryRule, Param, Spec, StatePolicy
from shardspec.resolve.resolver import resolve
from tests import strategies
from tests.analysis.test_alike import arrays

HEAD = """\
hardware: {hardware}
mesh: {{data: {data}, model: rest}}
rules: [batch -> data, mlp -> model]
axes: {{batch: 64}}
arrays:
  "layers_{{0..3}}/kernel": bf16[_=1024 mlp=4096]
  step: s32[]
"""


def plan_of(more: str = "", hardware: str = "tpu v5e 4x4", data: int = 4) -> ShardingPlan:
    spec, faults = pipeline.load_text(HEAD.format(hardware=hardware, data=data) + more)
    assert spec is not None
    assert faults == ()
    return pipeline.compile_plans(spec)[0]


def sums(held: Memory) -> dict[str, int]:
    return {part.value: sum(figure.bytes for figure in held.of(part)) for part in Held}


KERNELS = 4 * 1024 * 4096  # elements; over model = 4
STEP = 512  # bytes of one number on a TPU


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("", [2 * KERNELS // 4 + STEP, 0, 0]),
        ("state: {optimizer: same}", [2 * KERNELS // 4 + STEP, 2 * KERNELS // 4, 8 * KERNELS // 4]),
        ("state: {moments: 1, dtype: bf16}", [2 * KERNELS // 4 + STEP] + [2 * KERNELS // 4] * 2),
        ("state: {moments: 0}", [2 * KERNELS // 4 + STEP, 2 * KERNELS // 4, 0]),
        (
            "state: {optimizer: zero1}",
            [2 * KERNELS // 4 + STEP, 2 * KERNELS // 4, 8 * KERNELS // 16],
        ),
        (
            "state: {optimizer: zero2}",
            [2 * KERNELS // 4 + STEP, 2 * KERNELS // 16, 8 * KERNELS // 16],
        ),
        (
            "state: {optimizer: zero1, over: model}",
            [2 * KERNELS // 4 + STEP, 2 * KERNELS // 4, 8 * KERNELS // 4],
        ),
    ],
)
def test_the_sum_line_by_line(state: str, expected: list[int]) -> None:
    held = memory(plan_of(state))
    assert list(sums(held).values()) == [*expected, 0], "and no caches"
    assert held.bytes == sum(expected)


def test_each_figure_knows_its_arrays() -> None:
    held = memory(plan_of("state: {optimizer: same}"))
    (figure,) = held.of(Held.MOMENTS)
    paths = [sharding.param.path for sharding in figure.arrays.shardings]
    assert paths == [f"layers_{i}/kernel" for i in range(4)]


def test_whole_numbers_are_not_trained() -> None:
    held = memory(plan_of("state: {optimizer: same}"))
    assert {figure.arrays.dtype for figure in held.of(Held.PARAMETERS)} == {"bf16", "s32"}
    assert {figure.arrays.dtype for figure in held.of(Held.GRADIENTS)} == {"bf16"}


@pytest.mark.parametrize(
    ("hardware", "gib"),
    [
        ("tpu v5e 4x4", "15.8 GiB"),
        ("tpu v3 4x4", "15.5 GiB"),
        ("tpu v4 2x2x4", "30.8 GiB"),
        ("2 * h100", "59.3 GiB (75 % of the GPU)"),
        ("2 * h100 memory 0.9", "71.2 GiB (90 % of the GPU)"),
        ("16 cpu", None),
    ],
)
def test_memory_of_a_device(hardware: str, gib: str | None) -> None:
    held = memory(plan_of(hardware=hardware, data=2))
    room = None if held.hbm_bytes is None else room_text(held.hbm_bytes, held.hbm_share)
    assert room == gib


def test_it_fits_up_to_the_last_byte() -> None:
    held = memory(plan_of())
    assert replace(held, hbm_bytes=held.bytes).fits
    assert not replace(held, hbm_bytes=held.bytes - 1).fits
    assert replace(held, hbm_bytes=None).fits


states = st.none() | st.builds(
    StatePolicy,
    st.sampled_from(("same", "zero1", "zero2")),
    st.lists(st.sampled_from(strategies.MESH), unique=True, max_size=2).map(tuple),
    st.integers(0, 3),
    st.sampled_from(("f32", "bf16")),
)


@given(strategies.specs(), arrays, states)
def test_floor(spec: Spec, params: tuple[Param, ...], state: StatePolicy | None) -> None:
    for target in spec.targets:
        plan = resolve(replace(spec, state=state), target, params)
        held = memory(plan)
        assert held.bytes * target.mesh.device_count >= held.global_bytes
        assert sum(figure.bytes for figure in held.of(Held.PARAMETERS)) == plan.per_device_bytes


@given(strategies.specs(), arrays, states)
def test_splitting_further_never_takes_more(
    spec: Spec, params: tuple[Param, ...], state: StatePolicy | None
) -> None:
    plan = resolve(replace(spec, state=state), spec.targets[0], params)
    if state is not None:
        for optimizer in ("zero1", "zero2"):
            policy = replace(state, optimizer=optimizer)
            assert (
                memory(plan, state=policy).bytes
                <= memory(plan, state=replace(state, optimizer="same")).bytes
            )


@pytest.mark.parametrize(
    ("more", "device", "host"),
    [
        ('memory: {"opt_state/**": pinned_host}', [1, 1, 0], [0, 0, 4]),
        ('memory: {"opt_state/**/mu/**": pinned_host}', [1, 1, 2], [0, 0, 2]),
        ('memory: {"opt_state/**/layers_0/**": unpinned_host}', [1, 1, 3], [0, 0, 1]),
        ('memory: {"opt_state/**": device, "**": pinned_host}', [0, 1, 4], [1, 0, 0]),
        ('memory: {"layers_*/kernel": pinned_host}', [0, 1, 0], [1, 0, 4]),
        ('memory: {"**": device}', [1, 1, 4], [0, 0, 0]),
    ],
)
def test_what_lies_on_the_host_is_counted_apart(
    more: str, device: list[int], host: list[int]
) -> None:
    plan = plan_of(f"state: {{optimizer: same}}\n{more}", "16 cpu")
    held, all_on_device = memory(plan), memory(plan_of("state: {optimizer: same}", "16 cpu"))
    unit = 2 * KERNELS // 4

    def units(sizes: dict[Held, int]) -> list[int]:
        return [round(sizes.get(kind, 0) / unit) for kind in Held if kind is not Held.CACHES]

    assert units(held.by_kind) == device
    assert units(held.host_by_kind) == host
    assert held.bytes + held.host_bytes == all_on_device.bytes
    assert plan.per_device_bytes + plan.host_bytes == all_on_device.by_kind[Held.PARAMETERS]
    assert ("in host memory" in str(held)) == any(host)


def test_what_lies_on_the_host_needs_no_room_on_the_device() -> None:
    more = "state: {optimizer: same}\narrays:\n  a: bf16[_=131072 mlp=262144]\n"
    text = f"hardware: tpu v5e 4x4\nmesh: {{model: rest}}\nrules: [mlp -> model]\n{more}"
    for memory_text, fits in (("", False), ('memory: {"opt_state/**": pinned_host}\n', True)):
        spec, _ = pipeline.load_text(text + memory_text)
        assert spec is not None
        assert memory(pipeline.compile_plans(spec)[0]).fits is fits


@given(strategies.specs(), st.lists(strategies.params(), max_size=3), strategies.memories)
def test_memory_moves_bytes_and_makes_none(
    spec: Spec, params: list[Param], rules: tuple[MemoryRule, ...]
) -> None:
    """Invariant apart: device and host together hold what the device held alone."""
    named = [replace(param, path=f"a{at}") for at, param in enumerate(params)]
    target = spec.targets[0]
    plain, moved = (
        memory(resolve(replace(spec, memory=each), target, named)) for each in ((), rules)
    )
    assert plain.host_bytes == 0
    assert moved.bytes + moved.host_bytes == plain.bytes


def test_frozen_arrays_are_parameters_alone() -> None:
    frozen = memory(plan_of('state: {optimizer: same}\ntraining: {"layers_{0..2}/**": frozen}\n'))
    own = 4 * 1024 * 4096 // 4  # elements of four layers on a device
    assert list(sums(frozen).values()) == [2 * own + STEP, 2 * own // 4, 8 * own // 4, 0]
    first = memory(
        plan_of('state: {optimizer: same}\ntraining: {"layers_3/*": trained, "**": frozen}\n')
    )
    assert sums(first) == sums(frozen)


@given(st.data())
def test_what_is_frozen_changes_no_layout(data: st.DataObject) -> None:
    """Laws: parameters lie as they did; nothing else grows; without an entry nothing changes."""
    spec = data.draw(strategies.specs())
    params = data.draw(arrays)
    spec = replace(spec, state=data.draw(strategies.state_policies), memory=())
    bare = replace(spec, training=())
    for target in spec.targets:
        plan, free = (resolve(each, target, params) for each in (spec, bare))
        assert [each.dims for each in plan.arrays] == [each.dims for each in free.arrays]
        held, whole = memory(plan), memory(free)
        assert sums(held)["parameters"] == sums(whole)["parameters"]
        assert all(sums(held)[kind] <= sums(whole)[kind] for kind in Held)
        trained = [each for each in plan.arrays if each.is_trained]
        figures = [f for f in held.figures if f.held is Held.GRADIENTS]
        assert sum(figure.arrays.count for figure in figures) == len(trained)
