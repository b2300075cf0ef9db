"""What is known of how fast a kind of chip is, as lines: from the catalogue, or found out here."""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics.lines import columns
from shardspec.diagnostics.words import binary_bytes, counted, flops_text, percent, seconds_text
from shardspec.ir.calibration import Calibration, Curve, MatmulTable, Sizes

#: How many rows of the left operand are shown, and right ones of which sizes, as far as they go.
_SHOWN_M = 4
_SHOWN = ((4096, 4096), (4096, 256), (256, 4096))


def calibration_lines(made: Calibration) -> Iterator[str]:
    """Yield what a calibration holds, an excerpt of its tables, and what it was found by."""
    if made.matmuls:
        yield "matmuls [m, k] x [k, n] reach, of the longer of peak FLOPs and memory bandwidth:"
        shown = made.matmuls[0].m
        shown = shown[:: max(1, round(len(shown) / _SHOWN_M))]
        heads = tuple(f"m={m}" for m in shown)
        rows = [("", "k, n", *heads, "")]
        rows += (row for table in made.matmuls for row in _rows(table, shown))
        yield from columns(rows, right=range(2, 2 + len(heads)))
    hbm = made.hbm_bytes_per_s
    if hbm is not None:
        ends = f"{hbm.low / 1e9:.3g} to {hbm.high / 1e9:.3g}"
        yield f"memory, read and written   {hbm.median / 1e9:.3g} GB/s a device, {ends}"
    for dtype, per_s in made.flops_per_s:
        yield f"most in {dtype}   {flops_text(round(per_s))}/s a device"
    if made.exposed is not None:
        exposed = made.exposed
        yield f"exposed   {percent(exposed.median, 1)} of collectives{_counted(exposed.operations)}"
    if made.curves:
        yield "collectives, by mesh axes and bytes on one device:"
        yield from columns([_curve(each) for each in made.curves])
    yield f"found {made.date} by {made.how}"


def _counted(operations: int) -> str:
    return f", of {counted(operations, 'operation')}" if operations else ""


def _curve(curve: Curve) -> tuple[str, ...]:
    """Return the least and the most that was carried, with the range of the runs."""
    ends = dict.fromkeys((0, len(curve.payloads) - 1))
    told = (
        f"{binary_bytes(curve.payloads[at])} in {seconds_text(curve.seconds[at].median)}"
        f" ({seconds_text(curve.seconds[at].low)} to {seconds_text(curve.seconds[at].high)})"
        f"{_counted(curve.seconds[at].operations)}"
        for at in ends
    )
    return "+".join(curve.mesh_axes), curve.kind, ", ".join(told)


def _rows(table: MatmulTable, shown: Sizes) -> Iterator[tuple[str, ...]]:
    spread = f", +- {percent(table.spread / 2, 1)}" if table.spread else ""
    told = f"of {counted(len(table.shares), 'size')}{spread}{_counted(table.operations)}"
    sizes = (
        (min(max(k, table.k[0]), table.k[-1]), min(max(n, table.n[0]), table.n[-1]))
        for k, n in _SHOWN
    )
    for number, (k, n) in enumerate(dict.fromkeys(sizes)):
        shares = (percent(table.share(m, k, n), 1) for m in shown)
        yield "" if number else table.dtype, f"{k}, {n}", *shares, "" if number else told
