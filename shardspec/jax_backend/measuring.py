"""How fast the devices that are here are: matmuls, memory, and collectives over each mesh axis.

Every device of the mesh does the same at once, as in a step: what they share, power or cores, is
shared. One program runs a thing many times in a loop, each round waiting for the one before, so
that starting it does not count; it is run several times over, and the median stands with its range.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any, assert_never

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from shardspec.analysis.step_time import matmul_seconds
from shardspec.ir.calibration import Calibration, Curve, MatmulTable, Spread
from shardspec.ir.spec import Chip, Target
from shardspec.ir.step import CollectiveKind
from shardspec.jax_backend.xla.estimating import Grid, Tell, dtypes_of
from shardspec.language.calibration import calibrated_chip

#: Seconds that the rounds of one run are to take together, and rounds at most.
_LEAST_S = 0.02
_MOST_ROUNDS = 1 << 14
_DTYPES = {
    "bf16": jnp.bfloat16,
    "f32": jnp.float32,
    "s8": jnp.int8,
    "f8_e4m3fn": jnp.float8_e4m3fn,
}
#: What is read and written at once, by platform: more than caches hold, less than memory.
_COPIED_BYTES = {"cpu": 1 << 22}
_COPIED_ELSE = 1 << 28
_PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")

#: Sizes of matmuls, those of CPUs apart, and of what collectives carry, in bytes.
GRID = Grid((8, 128, 1024, 8192), (128, 512, 2048, 8192), (128, 512, 2048, 8192))
CPU_GRID = Grid((8, 64, 512), (64, 256, 1024), (64, 256, 1024))
QUICK_GRID = Grid((8, 128), (64, 256), (64, 256))
PAYLOADS = (2**16, 2**20, 2**24, 2**27)
CPU_PAYLOADS = (2**16, 2**20, 2**23)
QUICK_PAYLOADS = (1 << 14, 1 << 18)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
      payloads: bytes of the array on one device where it is largest.
      repeats: runs of each, of which the median counts.
    """

    dtypes: tuple[str, ...]
    grid: Grid
    payloads: tuple[int, ...]
    repeats: int = 5


def plan_for(chip: Chip, dtypes: tuple[str, ...], *, is_quick: bool) -> Plan:
    """Return what is measured on a chip, all dtypes that it multiplies where none is asked for."""
    dtypes = dtypes or multiplied(chip)
    is_cpu = chip.platform == "cpu"
    if is_quick:
        return Plan(dtypes, QUICK_GRID, QUICK_PAYLOADS, 3)
    return Plan(dtypes, CPU_GRID if is_cpu else GRID, CPU_PAYLOADS if is_cpu else PAYLOADS)


def multiplied(chip: Chip) -> tuple[str, ...]:
    """Return the dtypes whose matmuls are measured on a chip."""
    return ("f32", "bf16") if chip.platform == "cpu" else dtypes_of(chip)


def measured(
    target: Target, mesh: jax.sharding.Mesh, plan: Plan, tell: Tell = lambda stage: None
) -> Calibration:
    """Return how fast the devices of a mesh are; every one of them works.

    Args:
      target: whose machine they are.
      tell: hears what is measured.
    """
    assert target.hardware is not None, "who measures knows the machine"
    chip, device = target.hardware.chip, mesh.devices.flat[0]
    bench = _Bench(mesh, plan.repeats)
    tell("memory")
    found = Calibration(
        chip.name,
        device.device_kind,
        time.strftime("%Y-%m-%d"),
        f"measuring {target.hardware}, mesh {target.mesh}, each figure {plan.repeats} times",
        tuple(_versions()),
        machine=target.hardware.machine,
        mesh=str(target.mesh),
        hbm_bytes_per_s=_memory(bench, chip),
    )
    runs = {
        (dtype, point): bench.matmul(dtype, *point, tell)
        for dtype in plan.dtypes
        for point in plan.grid.points
    }
    if chip.bf16_flops_per_s is None:
        peaks = {
            dtype: max(
                2 * math.prod(point) / runs[dtype, point].median for point in plan.grid.points
            )
            for dtype in plan.dtypes
        }
        found = replace(found, flops_per_s=tuple(peaks.items()))
    found = replace(found, matmuls=tuple(_tables(calibrated_chip(chip, found), plan, runs)))
    return replace(found, curves=tuple(_curves(bench, plan, tell)))


def _tables(
    chip: Chip, plan: Plan, runs: dict[tuple[str, tuple[int, int, int]], Spread]
) -> Iterator[MatmulTable]:
    """Yield the shares of the roofline, which stands on the memory as it was measured."""
    for dtype in plan.dtypes:
        found = [
            (runs[dtype, point], matmul_seconds(chip, dtype, *point)) for point in plan.grid.points
        ]
        shares = (min(1.0, float(f"{least / run.median:.3g}")) for run, least in found)
        spread = statistics.median((run.high - run.low) / run.median for run, _ in found)
        grid = plan.grid
        yield MatmulTable(dtype, grid.m, grid.k, grid.n, tuple(shares), spread)


def _memory(bench: _Bench, chip: Chip) -> Spread:
    """Return the bytes a second that one device reads and writes, as it does both."""
    size = _COPIED_BYTES.get(chip.platform, _COPIED_ELSE)
    run = bench.run(lambda x: x * 1.0001, jnp.ones(size // 4, jnp.float32))
    return Spread(2 * size / run.median, 2 * size / run.high, 2 * size / run.low)


def _curves(bench: _Bench, plan: Plan, tell: Tell) -> Iterator[Curve]:
    """Yield each collective over each mesh axis, and over all of them together."""
    names = [name for name, size in bench.mesh.shape.items() if size > 1]
    joint = [tuple(names)] if len(names) > 1 else []
    for axes in [*((name,) for name in names), *joint]:
        ways = math.prod(bench.mesh.shape[name] for name in axes)
        for kind in CollectiveKind:
            tell(f"{kind} over {'+'.join(axes)}")
            seconds = []
            for payload in plan.payloads:
                count = -(-payload // 4 // ways) * ways
                carried = jnp.ones(kind.payload(count, count // ways), jnp.float32)
                seconds.append(bench.run(lambda x, k=kind, a=axes: _sent(k, x, a), carried))
            yield Curve(str(kind), axes, plan.payloads, tuple(seconds))


def _shifted(x: Any, axes: tuple[str, ...]) -> Any:
    ways = lax.axis_size(axes)
    return lax.ppermute(x, axes, [(at, (at + 1) % ways) for at in range(ways)])


def _sent(kind: CollectiveKind, x: Any, axes: tuple[str, ...]) -> Any:
    """Return what a collective over mesh axes makes of an array."""
    match kind:
        case CollectiveKind.ALL_GATHER:
            return lax.all_gather(x, axes, tiled=True)
        case CollectiveKind.REDUCE_SCATTER:
            return lax.psum_scatter(x, axes, tiled=True)
        case CollectiveKind.ALL_REDUCE:
            return lax.psum(x, axes)
        case CollectiveKind.ALL_TO_ALL:
            return lax.all_to_all(x, axes, 0, 0, tiled=True)
        case CollectiveKind.COLLECTIVE_PERMUTE:
            return _shifted(x, axes)
        case _:
            assert_never(kind)


@dataclass(frozen=True, slots=True)
class _Bench:
    """Runs one thing at a time on all devices of a mesh."""

    mesh: jax.sharding.Mesh
    repeats: int

    def matmul(self, dtype: str, m: int, k: int, n: int, tell: Tell) -> Spread:
        """Return the seconds of a matmul [m, k] x [k, n]."""
        tell(f"{dtype} {m} x {k} x {n}")
        kind = _DTYPES[dtype]
        out = {"s8": jnp.int32, "f8_e4m3fn": jnp.bfloat16}.get(dtype)
        left, right = jnp.full((m, k), 0.5, kind), jnp.full((k, n), 0.5, kind)
        return self.run(lambda x, y: lax.dot(x, y, preferred_element_type=out), left, right)

    def run(self, work: Callable[..., Any], first: Any, *others: Any) -> Spread:
        """Return the seconds of one round of a work on arrays, of which each device has its own."""

        def rounds(count: Any, first: Any, *others: Any) -> Any:
            corner = (0,) * first.ndim

            def body(_: Any, carried: Any) -> Any:
                # one number of the result goes into what is read next: rounds cannot overlap, and
                # no part of the result is left out
                x, _ = carried
                made = lax.optimization_barrier(work(x, *others))
                seen = made[(0,) * made.ndim].astype(jnp.float32) * 1e-3
                return x.at[corner].set(seen.astype(x.dtype)), seen

            return lax.fori_loop(0, count, body, (first, jnp.float32(0)))[1]

        whole = PartitionSpec()
        specs = (whole,) * (2 + len(others))
        program = jax.jit(
            jax.shard_map(rounds, mesh=self.mesh, in_specs=specs, out_specs=whole, check_vma=False)
        )
        held = jax.device_put((first, *others), jax.NamedSharding(self.mesh, whole))
        return _timed(lambda count: program(count, *held).block_until_ready(), self.repeats)


def _timed(run: Callable[[int], Any], repeats: int) -> Spread:
    """Return the seconds of one round: of many rounds, less what starting takes."""

    def seconds(count: int) -> float:
        started = time.perf_counter()
        run(count)
        return time.perf_counter() - started

    run(1)
    start, count = min(seconds(0) for _ in range(repeats)), 1
    while seconds(count) - start < _LEAST_S and count < _MOST_ROUNDS:
        count *= 4
    found = sorted(max(seconds(count) - start, 1e-9) / count for _ in range(repeats))
    return Spread(statistics.median(found), found[0], found[-1])


def _versions() -> Iterator[tuple[str, str]]:
    for package in _PACKAGES:
        try:
            yield package, version(package)
        except PackageNotFoundError:
            continue
