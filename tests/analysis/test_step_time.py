from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.analysis.step_time import (
    FITTED,
    ON_GPU,
    StepTime,
    _table,
    efficiency,
    made_bytes,
    matmul_seconds,
    matmul_sizes,
    op_bytes,
    op_seconds,
    peak,
    step_time,
    tiled,
    update_bytes,
)
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Chip, PartitionSpec, array_bytes
from shardspec.ir.step import (
    Carried,
    CarriedKind,
    Collective,
    CollectiveKind,
    OpKind,
    Phase,
    Place,
    Step,
    StepArgument,
    StepArray,
    StepOp,
    ring_bytes,
)
from shardspec.language.catalogue import catalogue_entry
from tests.analysis.test_memory import plan_of

V5E = catalogue_entry("tpu_v5e").chip
H100 = catalogue_entry("h100").chip
V7X = catalogue_entry("tpu_v7x").chip


def array(*shape: int, dtype: str = "bf16") -> StepArray:
    return StepArray(dtype, shape, PartitionSpec(((),) * len(shape)), shape)


def product(m: int, k: int, n: int, phase: Phase = "forward", count: float = 1) -> StepOp:
    operands = array(m, k), array(k, n)
    return StepOp("einsum", "", operands, array(m, n), 2 * m * k * n, count, Place(), phase)


def gathered(size: int, carries: CarriedKind = "weight", axis: str = "data") -> Collective:
    kind = CollectiveKind.ALL_GATHER
    sent = ring_bytes(kind, size, 4)
    what = Carried(carries)
    return Collective(kind, (axis,), size, sent, 1, array(1), Place(), "forward", what)


def timed(plan: ShardingPlan, step: Step) -> StepTime:
    found = step_time(plan, step)
    assert found is not None
    return found


BIG = product(4096, 4096, 4096)
BIG_SHARE = efficiency(V5E, "bf16", 4096, 4096, 4096)
#: What the norms and residuals around this matmul add to its time, by its FLOPs at the peak.
BESIDE = FITTED.passes * BIG.result.bytes / 819e9 / (2 * 4096**3 / 197e12)
#: Of a step that is this matmul alone.
MFU = 1 / (1 / BIG_SHARE + BESIDE)


def test_an_operation_takes_as_long_as_its_flops_or_its_bytes() -> None:
    flops, hbm = op_seconds(BIG, V5E)
    assert flops == pytest.approx(2 * 4096**3 / (197e12 * BIG_SHARE))
    assert hbm == pytest.approx(3 * 4096 * 4096 * 2 / (819e9 * BIG_SHARE))
    one_token = op_seconds(product(1, 4096, 4096), V5E)
    assert one_token[1] > one_token[0]


@pytest.mark.parametrize(
    ("dtype", "per_s"),
    [("bf16", 989e12), ("f32", 989e12 / 2), ("s8", 1979e12), ("f8_e4m3", 1979e12)],
)
def test_peak_of_a_dtype(dtype: str, per_s: float) -> None:
    assert peak(dtype, H100) == per_s


def test_peak_of_a_device_and_of_f32_on_a_tpu() -> None:
    assert peak("bf16", V7X) == 2307e12 / 2
    assert peak("f32", V5E) == peak("bf16", V5E) == 197e12
    assert peak("f8_e4m3", V5E) == 197e12


@pytest.mark.parametrize("dtype", ["bf16", "f8_e4m3fn"])
def test_a_kernel_takes_longer_than_its_flops_and_has_16_bits(dtype: str) -> None:
    operand = array(4096, 4096, dtype=dtype)
    kernel = replace(BIG, kind="kernel", operands=(operand, operand))
    assert op_seconds(kernel, H100)[0] == pytest.approx(ON_GPU.kernel * 2 * 4096**3 / 989e12)


def test_numbers_of_8_bits_are_scaled_and_rounded() -> None:
    narrow = array(4096, 4096, dtype="f8_e4m3fn")
    op = replace(BIG, operands=(narrow, narrow))
    assert H100.matmul_efficiency is not None
    share = H100.matmul_efficiency * tiled(132, 4096, 4096, 4096)
    ideal = 2 * 4096**3 / (1979e12 * share)
    assert op_seconds(op, H100)[0] == pytest.approx(FITTED.narrow * ideal)


def test_what_is_made_goes_to_memory_and_back_a_few_times() -> None:
    assert made_bytes(replace(BIG, count=3)) == 3 * BIG.result.bytes
    assert made_bytes(replace(BIG, result=array(8, dtype="f8_e4m3fn"))) == 16
    assert made_bytes(replace(BIG, kind="scatter")) == 0
    plan = plan_of()
    found, none = (
        step_time(plan, Step("code", plan.mesh, (BIG,)), replace(FITTED, passes=passes))
        for passes in (FITTED.passes, 0)
    )
    assert found is not None
    assert none is not None
    beside = FITTED.passes * BIG.result.bytes / 819e9
    assert found.compute_seconds == pytest.approx(none.compute_seconds + beside)


def test_without_a_table_or_the_number_of_cores_there_is_one_share() -> None:
    unknown = replace(H100, compiler=())
    assert efficiency(unknown, "bf16", 8192, 8192, 8192) == H100.matmul_efficiency
    assert op_seconds(BIG, unknown)[0] == pytest.approx(2 * 4096**3 / (989e12 * 0.81))


def test_a_gpu_makes_tiles_in_rounds() -> None:
    """132 cores: 132 tiles of 256x128 are one round, and one tile more is two."""
    full, more, tail = (tiled(132, 256 * 132, 8192, n) for n in (128, 256, 130))
    assert full == more > 0.99
    assert tail < 0.7
    assert tiled(132, 2048, 4096, 512) < tiled(132, 2048, 4096, 4096)


def test_a_thin_shard_costs_what_it_costs() -> None:
    """A tensor axis of 64 leaves 64 columns of 4096: the multipliers wait."""
    whole, thin = (op_seconds(product(8192, n, 4096), V5E) for n in (4096, 64))
    assert max(thin) > 5 * max(whole) / 64


@pytest.mark.parametrize(
    ("left", "right", "result", "sizes"),
    [
        ((16, 32), (32, 64), (16, 64), (16, 32, 64)),
        ((2, 8, 32), (32, 4, 16), (2, 8, 4, 16), (16, 32, 64)),
        ((4, 16, 32), (4, 32, 64), (4, 16, 64), (64, 32, 64)),
    ],
)
def test_sizes_of_a_contraction(
    left: tuple[int, ...], right: tuple[int, ...], result: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    m, k, n = sizes
    arrays = (array(*left), array(*right)), array(*result)
    op = StepOp("einsum", "", *arrays, 2 * m * k * n, 1, Place(), "forward")
    assert matmul_sizes(op) == sizes


@pytest.mark.parametrize("kind", ["gather", "kernel", "convolution"])
def test_what_is_no_contraction_has_no_sizes(kind: OpKind) -> None:
    assert matmul_sizes(replace(BIG, kind=kind)) is None


chips = st.sampled_from(
    [catalogue_entry(f"tpu_{name}").chip for name in ("v4", "v5e", "v5p", "v6e", "v7x")]
)
dtypes = st.sampled_from(["bf16", "f32", "s8", "f8_e4m3fn", "f16", "u8", "f8_e5m2"])
sizes = st.integers(1, 100_000)


@given(chips, dtypes, sizes, sizes, sizes)
def test_efficiency_is_a_share(chip: Chip, dtype: str, m: int, k: int, n: int) -> None:
    assert 0 < efficiency(chip, dtype, m, k, n) <= 1


@given(chips, st.integers(1, 64), st.integers(1, 64))
def test_what_is_smaller_than_the_table_takes_as_long(chip: Chip, one: int, other: int) -> None:
    def seconds(n: int) -> float:
        return matmul_seconds(chip, "bf16", 512, 512, n) / efficiency(chip, "bf16", 512, 512, n)

    assert seconds(one) == pytest.approx(seconds(other))


def test_a_lookup_reads_the_rows_that_it_takes() -> None:
    table, rows = array(128256, 4096), array(16, 4096)
    found = StepOp("gather", "", (table, array(16)), rows, 0, 1, Place(), "forward")
    assert op_bytes(found) == 2 * rows.bytes


@pytest.mark.parametrize("carries", ["weight", "gradient", "activation", "einsum"])
def test_what_shows_beside_much_computation(carries: CarriedKind) -> None:
    plan = plan_of()
    ops = (replace(BIG, count=1000),)
    (axis,) = timed(plan, Step("code", plan.mesh, ops, (gathered(1 << 20, carries),))).axes
    assert axis.exposed_seconds == pytest.approx(FITTED.shown * axis.seconds)


def test_what_computation_is_too_short_to_hide_shows() -> None:
    plan = plan_of()
    alone = timed(plan, Step("code", plan.mesh, (), (gathered(1 << 20),)))
    (axis,) = alone.axes
    assert axis.exposed_seconds == axis.seconds == alone.step_seconds
    assert alone.bound == "data"


def test_axes_that_go_together_have_a_row_of_their_own() -> None:
    plan = plan_of()
    both = replace(gathered(1 << 20), mesh_axes=("data", "model"))
    found = timed(plan, Step("code", plan.mesh, (), (gathered(1 << 20), both)))
    assert [axis.mesh_axis for axis in found.axes] == ["data", "data+model"]


def test_the_bound() -> None:
    plan = plan_of()
    assert timed(plan, Step("code", plan.mesh, (BIG,))).bound == "compute"
    assert timed(plan, Step("code", plan.mesh, (product(1, 4096, 4096),))).bound == "memory"
    assert timed(plan, Step("code", plan.mesh)).bound == "compute"


def test_work_that_is_done_again_is_time_and_no_merit() -> None:
    plan = plan_of()
    split = replace(BIG, mesh_axes=("data", "model"))
    once = timed(plan, Step("code", plan.mesh, (split,)))
    again = timed(plan, Step("code", plan.mesh, (split, replace(split, phase="remat"))))
    assert once.mfu == pytest.approx(MFU)
    assert again.mfu == pytest.approx(MFU / 2)
    assert again.step_seconds == pytest.approx(2 * once.step_seconds)


def test_what_devices_do_alike_counts_once() -> None:
    plan = plan_of()
    split = timed(plan, Step("code", plan.mesh, (replace(BIG, mesh_axes=("data", "model")),)))
    alike = timed(plan, Step("code", plan.mesh, (replace(BIG, mesh_axes=("data",)),)))
    assert split.mfu == pytest.approx(MFU)
    assert alike.mfu == pytest.approx(MFU / 4)


def test_the_update_goes_to_memory_and_back() -> None:
    parameter = StepArgument("w", "parameter", array(1024, dtype="f32"), is_donated=True)
    moment = StepArgument("m", "optimizer", array(1024, dtype="f32"))
    plan = plan_of()
    assert update_bytes(Step("code", plan.mesh, arguments=(parameter, moment))) == 5 * 4096
    assert update_bytes(Step("code", plan.mesh, arguments=(parameter,))) == 3 * 4096
    kept = replace(parameter, is_donated=False)
    assert update_bytes(Step("code", plan.mesh, arguments=(kept,))) == 0


def test_machines_without_speeds_have_no_time() -> None:
    plan = plan_of(hardware="16 cpu")
    assert step_time(plan, Step("code", plan.mesh, (BIG,))) is None


def test_kernels_that_do_not_say_what_they_compute_are_told() -> None:
    plan = plan_of()
    silent = replace(BIG, kind="kernel", flops=0, place=Place("model.py", 7))
    assert timed(plan, Step("code", plan.mesh, (silent,))).notes == (
        "the kernel at model.py:7 does not state its FLOPs: it counts by its bytes",
    )


def test_dcn_is_told() -> None:
    plan = plan_of(hardware="4 * tpu v5e 2x2")
    found = timed(plan, Step("code", plan.mesh, (BIG,), (gathered(1 << 20),)))
    assert any("`data` goes over DCN" in note for note in found.notes)


collectives = st.lists(
    st.builds(
        gathered,
        st.integers(0, 1 << 34),
        st.sampled_from(("weight", "gradient", "activation", "einsum", "unknown")),
        st.sampled_from(("data", "model")),
    ),
    max_size=6,
)
operations = st.lists(
    st.builds(product, *[st.sampled_from((1, 128, 4096))] * 3, count=st.integers(1, 99)), max_size=3
)


@given(operations, collectives)
def test_sum_and_exposed(ops: list[StepOp], sent: list[Collective]) -> None:
    plan = plan_of()
    found = timed(plan, Step("code", plan.mesh, tuple(ops), tuple(sent)))
    assert 0 <= found.hbm_seconds <= found.compute_seconds
    assert all(0 <= axis.exposed_seconds <= axis.seconds for axis in found.axes)
    exposed = sum(axis.exposed_seconds for axis in found.axes)
    assert found.step_seconds == pytest.approx(found.compute_seconds + exposed)
    assert 0 <= found.mfu <= 1
    assert found.bound in {"compute", "memory", *(axis.mesh_axis for axis in found.axes)}


@given(operations, collectives, st.integers(0, 5), st.integers(0, 1 << 34))
def test_more_is_never_faster(
    ops: list[StepOp], sent: list[Collective], at: int, more: int
) -> None:
    plan = plan_of()
    before = timed(plan, Step("code", plan.mesh, tuple(ops), tuple(sent)))
    grown = [
        replace(each, payload_bytes=each.payload_bytes + more) if index == at else each
        for index, each in enumerate(sent)
    ]
    after = timed(plan, Step("code", plan.mesh, (*ops, BIG), tuple(grown)))
    assert after.step_seconds >= before.step_seconds * (1 - 1e-12)


@given(chips | st.just(catalogue_entry("h100").chip), dtypes)
def test_a_dtype_without_a_table_goes_by_one_of_its_kind(chip: Chip, dtype: str) -> None:
    """By its own table, else by that of numbers as wide and as whole, else by that of bf16."""

    def kind(dtype: str) -> tuple[int, bool]:
        return array_bytes((8,), dtype), dtype[0] in "su"

    found = _table(chip, dtype)
    tables = {each.dtype for each in chip.calibration.matmuls} if chip.calibration else set()
    alike = {each for each in tables if kind(each) == kind(dtype)}
    if not tables:
        assert found is None
        return
    assert found is not None
    wanted = tables & {dtype} or alike or tables & {"bf16"} or tables
    assert found.dtype in wanted
