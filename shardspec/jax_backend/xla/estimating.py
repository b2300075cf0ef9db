"""How long matmuls take by the TPU compiler's own estimate, for chips that are not here.

libtpu chooses by cycles that it estimates for each fusion, and states them with the code. A matmul
alone in a program says so how much of the speed of a chip its sizes leave; a grid of them is a
table that any local shape can be looked up in. Compiling one takes a tenth of a second to two.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from shardspec.analysis.step_time import matmul_seconds, result_dtype
from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.ir.calibration import Calibration, MatmulTable, Sizes
from shardspec.ir.spec import Chip, Hardware
from shardspec.jax_backend.xla import compiling
from shardspec.jax_backend.xla.compiling import End, child_in, installed, no_answer, no_room

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
            tables = tuple(_tables(Path(name), hardware, compiler, grids, tell))
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


def _tables(
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
    order = [[0] * (2 + len("xyz"))]  # any order of the devices: the first alone compiles
    job = {
        **compiling.described(hardware),
        "hardware": hardware.machine,
        "order": order,
        "matmuls": words,
    }
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
