"""How fast the devices that are here are: matmuls, memory, and collectives over each mesh axis.

Every device of the mesh does the same at once, as in a step: what they share, power or cores, is
shared. One program runs a thing many times in a loop, each round waiting for the one before, so
that starting it does not count; it is run several times over, and the median stands with its range.

For chips that are not here, the TPU compiler's own estimate says how long matmuls take. libtpu
chooses by cycles that it estimates for each fusion, and states them with the code. A matmul alone
in a program says so how much of the speed of a chip its sizes leave; a grid of them is a table that
any local shape can be looked up in. Compiling one takes a tenth of a second to two.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any, assert_never

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from shardspec.analysis.step_time import matmul_seconds, result_dtype
from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.ir.calibration import Calibration, Curve, MatmulTable, Sizes, Spread
from shardspec.ir.spec import Chip, Hardware, Target
from shardspec.ir.step import CollectiveKind
from shardspec.jax_backend.xla import compiling
from shardspec.jax_backend.xla.compiling import End, child_in, installed, no_answer, no_room
from shardspec.language.calibration import calibrated_chip

#: Called with what is being done.
Tell = Callable[[str], None]

#: Names of dtypes in StableHLO, of those that TPUs multiply.
_STABLEHLO = {"bf16": "bf16", "f32": "f32", "s8": "i8", "s32": "i32", "f8_e4m3fn": "f8E4M3FN"}
#: Seconds between two looks at what the child has written, and what one matmul may take.
_POLL_S = 0.2
_MOST_S = 600.0


@dataclass(frozen=True, slots=True)
class Grid:
    """The sizes of matmuls [m, k] x [k, n] that are estimated or measured."""

    m: Sizes
    k: Sizes
    n: Sizes

    @property
    def points(self) -> tuple[tuple[int, int, int], ...]:
        """Return every m, k, n, the last fastest."""
        return tuple(product(self.m, self.k, self.n))


_ROWS = (8, 32, 128, 512, 2048, 8192, 32768)
_FINE = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_COARSE = (64, 256, 1024, 4096, 16384)
#: 567 sizes, and 175.
FINE = Grid(_ROWS, _FINE, _FINE)
COARSE = Grid(_ROWS, _COARSE, _COARSE)


def dtypes_of(chip: Chip) -> tuple[str, ...]:
    """Return the dtypes that a TPU multiplies at a peak that is known."""
    narrow = {"s8": chip.int8_ops_per_s, "f8_e4m3fn": chip.fp8_flops_per_s}
    has_f8 = (chip.fp8_flops_per_s or 0) > (chip.bf16_flops_per_s or 0)
    known = [dtype for dtype, per_s in narrow.items() if per_s and (dtype == "s8" or has_f8)]
    return ("bf16", "f32", *known)


def estimated(
    hardware: Hardware, grids: dict[str, Grid], tell: Tell = lambda stage: None
) -> Calibration:
    """Return the shares of the roofline that matmuls reach on a chip, by its compiler.

    Args:
      hardware: a slice of the chip that its compiler can describe; one device of it counts.
      grids: the sizes, by dtype.
      tell: hears how far it is.

    Raises:
      ShardspecError: there is no compiler for the chip here, or it gives no estimates.
    """
    chip = hardware.chip
    if chip.platform != "tpu" or chip.clock_hz is None:
        message = f"the compiler for {chip.title} does not say how long operations take"
        help = "libtpu does, for TPUs; on other devices measure: `shardspec calibrate`"
        raise ShardspecError((Diagnostic(codes.NOT_COMPILED, message, help=help),))
    compiler = compiling.compiler_of(hardware)
    try:
        with tempfile.TemporaryDirectory(prefix="shardspec-compile-") as name:
            tables = tuple(_estimated_tables(Path(name), hardware, compiler, grids, tell))
    except OSError as error:
        raise ShardspecError((no_room(error),)) from error
    how = (
        f"{compiler}, the cycles that it estimates for each matmul alone in a program,"
        f" at {chip.clock_hz / 1e9:g} GHz"
    )
    packages = ("jax", "jaxlib", "libtpu")
    versions = tuple((each, installed(each) or "") for each in packages)
    date = time.strftime("%Y-%m-%d")
    return Calibration(chip.name, chip.device_kinds[0], date, how, versions, tables)


def _estimated_tables(
    folder: Path, hardware: Hardware, compiler: str, grids: dict[str, Grid], tell: Tell
) -> Iterator[MatmulTable]:
    asked = [(dtype, *point) for dtype, grid in grids.items() for point in grid.points]
    cycles = iter(_cycles(folder, hardware, compiler, asked, tell))
    chip = hardware.chip
    assert chip.clock_hz is not None, "looked at before"
    for dtype, grid in grids.items():
        shares = []
        for point in grid.points:
            seconds = next(cycles) / chip.clock_hz
            shares.append(min(1.0, float(f"{matmul_seconds(chip, dtype, *point) / seconds:.3g}")))
        yield MatmulTable(dtype, grid.m, grid.k, grid.n, tuple(shares))


def _cycles(
    folder: Path,
    hardware: Hardware,
    compiler: str,
    asked: Sequence[tuple[str, int, int, int]],
    tell: Tell,
) -> list[int]:
    """Return the cycles of each matmul; the folder is for this alone."""
    words = [
        (_STABLEHLO[dtype], _STABLEHLO[result_dtype(dtype)], *sizes) for dtype, *sizes in asked
    ]
    job = {**compiling.described(hardware), "hardware": hardware.machine}
    # Any order of the devices: the first alone compiles.
    job |= {"order": [[0] * (2 + len("xyz"))], "matmuls": words}
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    (folder / "dump").mkdir()
    with child_in(folder) as child:
        said, since = 0, time.monotonic()
        end: End | None = None
        while end is None:
            status = child.poll()
            found = _lines(folder)
            if len(found) > said:
                said, since = len(found), time.monotonic()
            dtype = asked[min(said, len(asked) - 1)][0]
            tell(f"{hardware.chip.title} {dtype}: {said} of {len(asked)} matmuls")
            if status is not None:
                end = End("ended", status)
            elif time.monotonic() - since > _MOST_S:
                end = End("late")
            else:
                time.sleep(_POLL_S)
    if len(found) != len(asked):
        _, *sizes = asked[len(found)]
        what = "a matmul of {} x {} x {}".format(*sizes)
        fault = no_answer(folder, end, compiler, str(hardware), compiling.Compiling(_MOST_S), what)
        raise ShardspecError((fault,))
    if "-" in found:
        message = f"{compiler} does not say how long operations take on {hardware.chip.title}"
        help = "another version of it may; the tables that come with shardspec stay in use"
        raise ShardspecError((Diagnostic(codes.NOT_COMPILED, message, help=help),))
    return list(map(int, found))


def _lines(folder: Path) -> list[str]:
    """Return the lines that are written whole."""
    try:
        return (folder / "cycles.txt").read_text("utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return []


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
