"""A placement: as text, as a picture of the chips of a slice, and as JSON (`shardspec.mesh/1`)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from shardspec.diagnostics.lines import columns
from shardspec.diagnostics.source import printable
from shardspec.diagnostics.words import three_figures
from shardspec.ir.spec import Target, shape_text
from shardspec.records import Data, picked
from shardspec.report.table import target_title, typed
from shardspec.topology.explanation import (
    AxisExplanation,
    Seat,
    core_note,
    drawn_axis,
    explain_axes,
    seats,
)
from shardspec.topology.machine import host_shape
from shardspec.topology.placement import Placement, place
from shardspec.topology.submesh import SubmeshChoice, choose_submesh
from shardspec.versions import MESH_JSON

AXIS_HEADINGS = (
    "axis",
    "size",
    "runs over",
    "shape",
    "hops",
    "hosts",
    "slices",
    "one way, per device",
)
_COLOURS = (196, 39, 46, 226, 201, 51, 208, 129, 118, 33, 199, 220, 44, 160, 105, 154)
_PLANES_DRAWN = 4
_ROWS_DRAWN = 32


def mesh_lines(target: Target, placement: Placement, *, color: bool = False) -> Iterator[str]:
    """Yield the whole report on one target; every escape sequence in it is a colour of ours."""
    yield from map(printable, _report(target, placement))
    yield from drawing(placement, color=color)


def _report(target: Target, placement: Placement) -> Iterator[str]:
    yield target_title(target)
    yield from machine_lines(placement)
    yield f"mesh {placement.mesh}{_asked(placement)}"
    yield ""
    yield from axis_table(explain_axes(placement))
    yield ""
    notes = tuple(note_lines(placement))
    yield from (*notes, "") if notes else ()


def machine_lines(placement: Placement) -> Iterator[str]:
    """Yield what hosts have, and how far the torus wraps around."""
    hardware = placement.hardware
    hosts = shape_text(host_shape(hardware))
    wrapped = [axis.name for axis in placement.machine if axis.wraps]
    if hardware.chip.torus_rank:
        torus = f"wraps around in {', '.join(wrapped)}" if wrapped else "does not wrap around"
        yield f"  a host has {hosts} chips; the torus {torus}"
    elif hardware.chip.platform == "gpu":
        yield f"  a host has {hosts} GPUs; {hardware.chip.fabric} joins {hardware.topology[0]}"


def _asked(placement: Placement) -> str:
    said = []
    for placed in placement.axes:
        axis = placed.axis
        if axis.submesh is not None:
            said.append(f"{axis.name} = submesh {shape_text(axis.submesh)}")
        elif axis.auto:
            tile = shape_text(tile_of(placement, axis.name))
            said.append(f"{axis.name} = auto {axis.size}: submesh {tile}")
        elif axis.over:
            said.append(f"{axis.name} = over {' '.join(map(str, axis.over))}")
    said += typed(placement.mesh)
    said += ["devices as listed" if placement.order == "listed" else f"order {placement.order}"]
    said += [placement.path] if placement.path and placement.path != "plain" else []
    return f"   ({', '.join(said)})"


def tile_of(placement: Placement, name: str) -> tuple[int, ...]:
    """Return how many devices a mesh axis takes along each physical axis inside a slice."""
    sizes = [1] * len(placement.machine)
    for digit in placement.axis(name).digits:
        sizes[digit.axis] *= digit.size
    return tuple(sizes[1:])


def axis_table(explanations: Sequence[AxisExplanation]) -> Iterator[str]:
    """Return the lines of the table of mesh axes."""
    return columns([AXIS_HEADINGS, *map(axis_cells, explanations)])


def axis_cells(explanation: AxisExplanation) -> tuple[str, ...]:
    """Return the cells of a mesh axis under `AXIS_HEADINGS`."""
    runs = "; ".join(map(str, explanation.runs)) or "-"
    return (
        explanation.name,
        str(explanation.size),
        runs,
        explanation.shape,
        hops_text(explanation),
        str(explanation.hosts),
        str(explanation.slices),
        speed_text(explanation),
    )


def hops_text(explanation: AxisExplanation) -> str:
    """Return `1`, or `1 to 3, 5 back`: hops to the next device, and from the last to the first."""
    if not explanation.hops:
        return "-"
    low, high, back = min(explanation.steps), max(explanation.steps), explanation.hops[-1]
    steps = str(low) if low == high else f"{low} to {high}"
    return steps if back == high == low else f"{steps}, {back} back"


def speed_text(explanation: AxisExplanation) -> str:
    """Return `~ 158 GB/s ICI`."""
    names = {"dcn": "DCN", "ici": "ICI", "chip": "in the chip", "nvlink": explanation.fabric}
    if explanation.bottleneck not in names:
        return "-"
    if explanation.bytes_per_s is None:
        return names[explanation.bottleneck]
    speed = three_figures(explanation.bytes_per_s / 1e9)
    return f"~ {speed} GB/s {names[explanation.bottleneck]}"


def note_lines(placement: Placement) -> Iterator[str]:
    """Yield what is worth saying of cores, of chosen tiles, and of the order."""
    if placement.hardware.chip.platform == "tpu":
        yield f"  {core_note(placement.hardware)}"
    name = drawn_axis(placement)
    tiled = [p for p in placement.axes if p.axis.auto or p.axis.submesh or p.axis.over]
    for placed in tiled if len(tiled) == 1 else ():
        if placed.axis.auto:
            choice = choose_submesh(placement.hardware, placed.axis.size)
            if choice is not None:
                yield f"  {choice_text(choice, placed.axis.size)}"
    if name is None or placement.order == "listed" or placement.axis(name).axis.over:
        return
    if placement.hardware.chip.torus_rank:
        yield from _order_lines(placement, name)


def _order_lines(placement: Placement, name: str) -> Iterator[str]:
    """Yield the hops of the drawn axis in both orders, where they differ."""
    target = Target("", placement.mesh, placement.hardware)
    texts = {}
    for order in ("t5x", "ring"):
        other = place(target, "ring" if order == "ring" else "t5x")
        if isinstance(other, Placement):
            explained = next(entry for entry in explain_axes(other) if entry.name == name)
            texts[order] = f"{hops_text(explained)} ({sum(explained.hops)} around)"
    if len(set(texts.values())) > 1:
        said = "; ".join(f"order {order}: hops {text}" for order, text in texts.items())
        yield f"  `{name}`, {said}"


def choice_text(choice: SubmeshChoice, partitions: int) -> str:
    """Return how our tile for `auto N` compares with T5X's."""
    ours = f"auto {partitions} takes {shape_text(choice.tile)}"
    if choice.t5x_tile is None:
        return f"{ours}; T5X has no default here"
    theirs = shape_text(choice.t5x_tile)
    if choice.t5x_score is None:
        return f"{ours}; T5X's default {theirs} does not tile this slice"
    if choice.t5x_tile == choice.tile:
        return f"{ours}, as T5X does"
    if choice.t5x_score == choice.score:
        return f"{ours}; T5X's default {theirs} is as good"
    detail = f"{choice.score.links:g} links at work, not {choice.t5x_score.links:g}"
    if choice.score.links == choice.t5x_score.links:
        detail = "the same links, and closer together"
    return f"{ours}, better than T5X's default {theirs}: {detail}"


def drawing(placement: Placement, *, color: bool = False) -> Iterator[str]:
    """Yield the chips of one slice: a letter for each group, a number for the place in it."""
    name = drawn_axis(placement)
    if name is None:
        return
    placed = seats(placement)
    yield f"  same letter: one group of `{printable(name)}`; number: index on it"
    if placement.hardware.chip.platform != "tpu":
        yield from _draw_nodes(placement, placed, color=color)
        return
    _, x, y, z, _ = (axis.extent for axis in placement.machine)
    for plane in range(min(z, _PLANES_DRAWN)):
        title = f"z={plane}" if z > 1 else "   "
        yield f"  {title}  y = 0 to {y - 1}, from left to right"
        yield from _draw_plane(placement, placed, plane, (x, y), color=color)
    if z > _PLANES_DRAWN:
        yield f"  ({z - _PLANES_DRAWN} more planes along z)"
    if placement.hardware.slice_count > 1:
        yield f"  (slice 0 of {placement.hardware.slice_count})"


def _draw_plane(
    placement: Placement,
    placed: dict[tuple[int, ...], Seat],
    plane: int,
    shape: tuple[int, int],
    *,
    color: bool,
) -> Iterator[str]:
    cores = placement.machine[4].extent
    rows = [
        [
            chip_cell([placed[(0, x, y, plane, core)] for core in range(cores)])
            for y in range(shape[1])
        ]
        for x in range(shape[0])
    ]
    width = max(len(cell) for row in rows for cell, _ in row)
    for number, row in enumerate(rows[:_ROWS_DRAWN]):
        cells = " ".join(_painted(cell.ljust(width), group, color) for cell, group in row)
        yield f"    x={number:<3}{cells}".rstrip()
    if len(rows) > _ROWS_DRAWN:
        yield f"    ({len(rows) - _ROWS_DRAWN} more rows along x)"


def _draw_nodes(
    placement: Placement, placed: dict[tuple[int, ...], Seat], *, color: bool
) -> Iterator[str]:
    outer, inner = placement.machine
    width = max(len(str(seat)) for seat in placed.values())
    for node in range(min(outer.extent, _ROWS_DRAWN)):
        row = [placed[(node, index)] for index in range(inner.extent)]
        cells = " ".join(_painted(str(seat).ljust(width), seat.group, color) for seat in row)
        yield f"    {outer.name} {node:<3}{cells}".rstrip()
    if outer.extent > _ROWS_DRAWN:
        yield f"    ({outer.extent - _ROWS_DRAWN} more)"


def chip_cell(devices: Sequence[Seat]) -> tuple[str, int]:
    """Return the text of one chip: `A0`, `A0+1` for two devices of a group, `A0,B0` else."""
    first = devices[0]
    if all(seat.group == first.group for seat in devices):
        return first.letters + "+".join(str(seat.position) for seat in devices), first.group
    return ",".join(map(str, devices)), first.group


def _painted(cell: str, group: int, color: bool) -> str:
    return f"\x1b[38;5;{_COLOURS[group % len(_COLOURS)]}m{cell}\x1b[0m" if color else cell


def compare_lines(
    before: tuple[Target, Placement], after: tuple[Target, Placement]
) -> Iterator[str]:
    """Yield two placements axis by axis: the hops, hosts and speed of each."""
    yield f"A  {target_title(before[0])}   mesh {before[1].mesh}{_asked(before[1])}"
    yield f"B  {target_title(after[0])}   mesh {after[1].mesh}{_asked(after[1])}"
    yield ""
    lines: list[tuple[str, ...]] = [("", *AXIS_HEADINGS)]
    ours = {entry.name: entry for entry in explain_axes(before[1])}
    theirs = {entry.name: entry for entry in explain_axes(after[1])}
    for name in dict.fromkeys((*ours, *theirs)):
        for letter, entries in (("A", ours), ("B", theirs)):
            if name in entries:
                lines.append((letter, *axis_cells(entries[name])))
    yield from columns(lines)
    yield ""
    yield from verdict_lines(ours, theirs)


def verdict_lines(
    ours: dict[str, AxisExplanation], theirs: dict[str, AxisExplanation]
) -> Iterator[str]:
    """Yield, for each axis both have, which of the two is faster and by how much."""
    for name in ours:
        a, b = ours[name], theirs.get(name)
        if b is None or a.bytes_per_s is None or b.bytes_per_s is None:
            continue
        if a.bytes_per_s == b.bytes_per_s:
            yield f"  {name}: the same speed"
            continue
        ratio = b.bytes_per_s / a.bytes_per_s
        better = "B" if ratio > 1 else "A"
        yield f"  {name}: {better} is {three_figures(max(ratio, 1 / ratio))} times as fast (~)"


#: Keys of a machine and of a mesh axis, as `picked` takes them.
_HARDWARE = (
    "chip=chip.name title=chip.title accelerator_type slices=slice_count topology"
    " chips=chip_count devices=device_count"
)
_AXIS = "name size runs shape wrapped hops hosts slices bytes_per_s bottleneck"


def mesh_json(target: Target, placement: Placement) -> str:
    """Return the placement with its explanation; devices are rows of `physical_axes`."""
    hardware = placement.hardware
    data: Data = {
        "schema": MESH_JSON,
        "target": target.name,
        "hardware": {
            **picked(hardware, _HARDWARE),
            "host_shape": host_shape(hardware),
        },
        "physical_axes": [picked(axis, "name extent link wraps") for axis in placement.machine],
        **picked(placement, "mesh=mesh.sizes order path"),
        "axes": [picked(each, _AXIS) for each in explain_axes(placement)],
        "devices": list(placement.coordinates()),
    }
    types = {axis.name: axis.axis_type for axis in target.mesh.axes if axis.axis_type != "auto"}
    if types:
        data["axis_types"] = types
    if hardware.chip.platform == "tpu":
        data["core"] = core_note(hardware)
    return json.dumps(data, sort_keys=True)
