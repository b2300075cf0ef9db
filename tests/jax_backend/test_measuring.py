"""What eight CPU devices reach, and that the figures are those of what was run."""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shardspec import Resolver, loads
from shardspec.analysis.step_time import efficiency, matmul_seconds
from shardspec.ir.calibration import Calibration, Spread
from shardspec.ir.step import CollectiveKind
from shardspec.jax_backend import measuring
from shardspec.jax_backend.measuring import Grid, Plan, measured, multiplied, plan_for
from shardspec.language.calibration import calibrated_chip, calibration_text
from shardspec.language.catalogue import catalogue_entry

pytestmark = pytest.mark.fresh

SPEC = "shardspec: 1\nhardware: 8 cpu\nmesh: {data: 4, one: 1, model: 2}\nrules: [batch -> data]\n"
PLAN = Plan(("f32",), Grid((8, 64), (64,), (64,)), (1 << 10, 1 << 14), 2)
CPU = catalogue_entry("cpu").chip


@pytest.fixture(scope="module")
def made() -> Calibration:
    patch = pytest.MonkeyPatch()
    patch.setattr(measuring, "_LEAST_S", 0.001)
    patch.setitem(measuring._COPIED_BYTES, "cpu", 1 << 16)
    resolver = Resolver(loads(SPEC), agree_within_s=None)
    told: list[str] = []
    try:
        found = measured(resolver.target, resolver.mesh, PLAN, told.append)
    finally:
        patch.undo()
    assert {"memory", "f32 8 x 64 x 64", "all-reduce over data+model"} <= set(told)
    return found


def test_whose_figures_they_are(made: Calibration) -> None:
    assert (made.chip, made.device_kind, made.machine) == ("cpu", "cpu", "8 cpu")
    assert made.mesh == "data=4 one=1 model=2"
    assert made.is_measured
    assert dict(made.versions)["jax"] == jax.__version__
    assert made.how == "measuring 8 cpu, mesh data=4 one=1 model=2, each figure 2 times"


def test_every_collective_over_every_axis(made: Calibration) -> None:
    assert {curve.mesh_axes for curve in made.curves} == {("data",), ("model",), ("data", "model")}
    assert len(made.curves) == 3 * len(CollectiveKind)
    for curve in made.curves:
        assert curve.payloads == PLAN.payloads
        for seconds in curve.seconds:
            assert 0 < seconds.low <= seconds.median <= seconds.high < 10


def test_shares_stand_on_what_was_measured(made: Calibration) -> None:
    (table,) = made.matmuls
    assert (table.m, table.k, table.n) == ((8, 64), (64,), (64,))
    chip = calibrated_chip(CPU, made)
    assert made.hbm_bytes_per_s is not None
    assert chip.hbm_bytes_per_s == made.hbm_bytes_per_s.median
    assert chip.bf16_flops_per_s == dict(made.flops_per_s)["f32"]
    for m in table.m:
        seconds = matmul_seconds(chip, "f32", m, 64, 64) / efficiency(chip, "f32", m, 64, 64)
        assert 1e-8 < seconds < 1


def test_it_can_be_written(made: Calibration) -> None:
    assert "\n  data+model:\n    all-gather: |-\n      1024 " in calibration_text(made)


def test_rounds_count_and_starting_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a run that takes 2 ms to start and 1 ms a round, a round takes 1 ms."""
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def run(count: int) -> None:
        clock[0] += 0.002 + 0.001 * count

    found = measuring._timed(run, 5)
    assert found[:3] == pytest.approx((0.001, 0.001, 0.001))


def test_median_and_range(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, takes = [0.0], iter([9.0, *[0.0] * 3, 1.0, 3.0, 1.0, 2.0])
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    def run(count: int) -> None:
        clock[0] += next(takes)

    assert measuring._timed(run, 3) == Spread(2.0, 1.0, 3.0)


def test_what_is_measured_is_run_in_full_each_round() -> None:
    """A round reads the result of the one before, so none is left out."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    bench = measuring._Bench(mesh, 1)
    programs: list[Any] = []

    def work(x: Any, y: Any) -> Any:
        programs.append(x.shape)
        return x @ y

    seconds = bench.run(work, jnp.ones((256, 256)), jnp.ones((256, 256)))
    assert programs == [(256, 256)]
    assert seconds.median > 2 * 256**3 / 1e13, "faster than any CPU: rounds were left out"


@pytest.mark.parametrize(
    ("name", "dtypes"),
    [
        ("cpu", ("f32", "bf16")),
        ("h100", ("bf16", "f32", "s8", "f8_e4m3fn")),
        ("a100", ("bf16", "f32", "s8")),
    ],
)
def test_dtypes_that_are_measured(name: str, dtypes: tuple[str, ...]) -> None:
    assert multiplied(catalogue_entry(name).chip) == dtypes
    assert set(dtypes) <= set(measuring._DTYPES)


def test_plans() -> None:
    h100 = catalogue_entry("h100").chip
    assert plan_for(h100, (), is_quick=False).grid is measuring.GRID
    assert plan_for(CPU, (), is_quick=False).grid is measuring.CPU_GRID
    quick = plan_for(CPU, ("bf16",), is_quick=True)
    assert (quick.grid, quick.dtypes) == (measuring.QUICK_GRID, ("bf16",))
