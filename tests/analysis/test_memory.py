from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.analysis.memory import Held, Memory, memory
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Param, Spec, StatePolicy
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


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("", [2 * KERNELS // 4 + 4, 0, 0]),
        ("state: {optimizer: same}", [2 * KERNELS // 4 + 4, 2 * KERNELS // 4, 8 * KERNELS // 4]),
        ("state: {moments: 1, dtype: bf16}", [2 * KERNELS // 4 + 4] + [2 * KERNELS // 4] * 2),
        ("state: {moments: 0}", [2 * KERNELS // 4 + 4, 2 * KERNELS // 4, 0]),
        ("state: {optimizer: zero1}", [2 * KERNELS // 4 + 4, 2 * KERNELS // 4, 8 * KERNELS // 16]),
        ("state: {optimizer: zero2}", [2 * KERNELS // 4 + 4, 2 * KERNELS // 16, 8 * KERNELS // 16]),
        (
            "state: {optimizer: zero1, over: model}",
            [2 * KERNELS // 4 + 4, 2 * KERNELS // 4, 8 * KERNELS // 4],
        ),
    ],
)
def test_the_sum_line_by_line(state: str, expected: list[int]) -> None:
    held = memory(plan_of(state))
    assert list(sums(held).values()) == expected
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
    [("tpu v5e 4x4", 16), ("tpu v3 4x4", 16), ("tpu v4 2x2x4", 32), ("16 cpu", None)],
)
def test_memory_of_a_device(hardware: str, gib: int | None) -> None:
    hbm = memory(plan_of(hardware=hardware, data=2)).hbm_bytes
    assert hbm == (None if gib is None else gib << 30)


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
    least = memory(plan).bytes
    for axis in spec.targets[0].mesh.names:
        assert memory(plan, over=(axis,)).bytes <= least
    if state is not None:
        for optimizer in ("zero1", "zero2"):
            policy = replace(state, optimizer=optimizer)
            assert (
                memory(plan, state=policy).bytes
                <= memory(plan, state=replace(state, optimizer="same")).bytes
            )
