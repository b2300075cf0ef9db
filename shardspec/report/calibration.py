"""What is known of how fast a kind of chip is, as lines: from the catalogue, or found out here."""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics.lines import columns
from shardspec.diagnostics.words import counted, percent
from shardspec.ir.calibration import Calibration, MatmulTable

#: Rows of the left operand that are shown, of matmuls with a right one of these sizes.
_SHOWN_M = (8, 128, 2048, 8192)
_SHOWN = ((4096, 4096), (4096, 256), (256, 4096))


def calibration_lines(made: Calibration) -> Iterator[str]:
    """Yield what a calibration holds, an excerpt of its tables, and what it was found by."""
    if made.matmuls:
        yield "matmuls [m, k] x [k, n] reach, of the longer of peak FLOPs and memory bandwidth:"
        heads = tuple(f"m={m}" for m in _SHOWN_M)
        rows = [("", "k, n", *heads, ""), *(row for table in made.matmuls for row in _rows(table))]
        yield from columns(rows, right=range(2, 2 + len(heads)))
    yield f"found {made.date} by {made.how}"


def _rows(table: MatmulTable) -> Iterator[tuple[str, ...]]:
    for number, (k, n) in enumerate(_SHOWN):
        shares = (percent(table.share(m, k, n), 1) for m in _SHOWN_M)
        sizes = counted(len(table.shares), "size")
        yield "" if number else table.dtype, f"{k}, {n}", *shares, "" if number else f"of {sizes}"
