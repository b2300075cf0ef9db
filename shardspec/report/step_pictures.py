"""A step drawn: a time line with memory below it, and a roofline of its operations.

Both are SVG that is complete without scripts, so a notebook and a print show them too. Names and
figures stand beside it as text, and the table of operations has every figure once more. A page adds
a brush and a cursor (`web/step.js`), which read the times of slices off their paths.

The slices are those of `cost --format perfetto`; nothing of a step is worked out twice.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from shardspec.analysis.comparison import Spent, array_of, timed_of
from shardspec.analysis.cost import Cost
from shardspec.analysis.step_memory import Life, made_of
from shardspec.analysis.step_time import peak, per_device
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.words import (
    binary_bytes,
    by_key,
    counted,
    flops_text,
    grouped,
    percent,
    seconds_text,
    template,
    three_figures,
)
from shardspec.ir.spec import Shape
from shardspec.ir.step import Collective, StepOp
from shardspec.report.cost_json import line_of
from shardspec.report.html import Html, Scale, chart, joined, straight, table, tag
from shardspec.report.page_pieces import axis_number, filled, swatch
from shardspec.report.trace import COMPUTE, Slice, memory_over, second_of, slices_of

#: What a drawing is wide, in its own units: a millionth of a step has a place.
WIDE = 1_000_000
#: Slices of a row, columns of the memory, its values, and rows of the table, at most.
_MOST_SLICES, _MOST_COLUMNS, _MOST_LIVES, _MOST_ROWS = 4000, 1500, 150, 25
#: What a device has is drawn where it is at most this many times what the step holds.
_NEAR = 4
#: The heights of a row, of the memory and of a roofline; only those of the rows are stretched.
_LANE, _HIGH, _ROOF = 18, 90, 320


@dataclass(frozen=True, slots=True)
class DrawnStep:
    """A step as it is drawn.

    Attributes:
      axes: mesh axes, in the order of their colours.
      memory: the bytes of each part that a device holds, from each second on.
      end: how long it takes, in seconds.
    """

    cost: Cost
    axes: tuple[str, ...]
    slices: tuple[Slice, ...]
    memory: tuple[tuple[float, dict[str, int]], ...]
    end: float

    @property
    def mark(self) -> str:
        """Return how well its times are known: `~`, `x~`, or at least so much."""
        least = "at least " if self.cost.uncounted("time") else ""
        return f"{least}{'~' if self.cost.time is None else self.cost.time.mark}"

    def text(self, seconds: float) -> str:
        """Return a time behind its mark."""
        return f"{self.mark} {seconds_text(seconds)}"

    def x(self, second: float) -> int:
        """Return where a second is drawn."""
        return round(second / self.end * WIDE)


def drawn_step(cost: Cost, axes: Sequence[str] = ()) -> DrawnStep | None:
    """Return a step to draw; None where no time of it is predicted."""
    slices = slices_of(cost)
    if not slices:
        return None
    end = max(0.0 if cost.time is None else cost.time.step_seconds, *(e.end for e in slices))
    axes = tuple(axes or cost.plan.mesh.names)
    return DrawnStep(cost, axes, tuple(slices), tuple(_held(cost, end)), end)


def _held(cost: Cost, end: float) -> list[tuple[float, dict[str, int]]]:
    """Return the bytes of each part that is ever there, from each second on."""
    over = memory_over(cost, end)
    parts = [name for name in (over[0][1] if over else ()) if any(held[name] for _, held in over)]
    return [(second, {name: held[name] for name in parts}) for second, held in over if parts]


def step_pictures(step: DrawnStep) -> Html:
    """Return the time line with the memory below it, the roofline, and the table of both."""
    groups = operations(step)
    return joined((*_time_line(step), *_roofline(step, groups), _table(step, groups)))


def step_data(step: DrawnStep) -> dict[str, Any]:
    """Return what a cursor says: of slices, by the numbers on their paths, and of the memory."""
    words: dict[str, int] = {}

    def number(text: str) -> int:
        return words.setdefault(text, len(words))

    labels = [found[0] for found in grouped(step.slices, _label).values()]
    said = [_said(each.spent, is_wait=each.is_wait) for each in labels]
    parts = list(step.memory[0][1]) if step.memory else []
    lives = []
    for each, ends in _lives(step):
        array, place = each.tensor.array, line_of(each.tensor.place) or "line unknown"
        word = number(f"{array.name or array}, {place}")
        lives.append([*ends, each.bytes, parts.index(each.part), word])
    return {
        "end": step.end,
        "labels": [list(map(number, texts)) for texts in said],
        "parts": parts,
        "points": [[x, *held.values()] for x, held in _columns(step)],
        "lives": lives,
        "words": list(words),
    }


def _lives(step: DrawnStep) -> Iterator[tuple[Life, tuple[int, int]]]:
    """Yield the largest values that a step makes, and from where to where they are alive."""
    if step.cost.step is None or not step.memory:
        return
    made = made_of(step.cost.step, step.cost.target)
    for each in sorted(made.lives, key=lambda each: -each.bytes)[:_MOST_LIVES]:
        born, ends = (step.x(second_of(at, made, step.end)) for at in (each.born, each.ends))
        yield each, (born, ends)


def _label(each: Slice) -> tuple[object, ...]:
    """Return what slices agree in that say the same: layers of one name do."""
    spent, place = each.spent, str(each.spent.place)
    same = spent.kind, spent.what, place, spent.phase, spent.mesh_axes, spent.askers
    return *same, template(spent.array), each.is_wait


def _said(spent: Spent, *, is_wait: bool = False) -> list[str]:
    """Return what it is, its line, rules, array and phase, and how often it runs."""
    rules = " + ".join(map(str, spent.askers)) or "unknown"
    at = str(line_of(spent.place) or "unknown")
    what = f"wait: {spent.what}" if is_wait else spent.what
    return [what, at, rules, template(spent.array), spent.phase, f"x{spent.runs:.6g}"]


# the time line


def _time_line(step: DrawnStep) -> Iterator[Html]:
    keys: dict[tuple[object, ...], int] = {}
    numbers = {id(each): keys.setdefault(_label(each), len(keys)) for each in step.slices}
    rows = grouped(step.slices, lambda each: each.row)
    names = [COMPUTE, *sorted(set(rows) - {COMPUTE})]
    lanes = (piece for name in names for piece in _lane(name, rows.get(name, []), step, numbers))
    ends = (tag("span", text) for text in ("0 s", step.text(step.end)))
    yield tag("h3", "Time line")
    yield tag("p", _HOW, class_="quiet")
    below = _memory(step) if step.memory else (tag("p", _NO_MEMORY, class_="quiet"),)
    yield tag("div", *lanes, *below, tag("p", *ends, class_="ends"), class_="timeline")


_HOW = (
    "Operations are in the order of the program; several runs of one are drawn together. What the"
    " step waits for is in the row of what computes, in the colour of its mesh axis."
)
_NO_MEMORY = "Memory over the step: unknown, no value that the step makes is known."


def _lane(
    name: str, row: Sequence[Slice], step: DrawnStep, numbers: Mapping[int, int]
) -> Iterator[Html]:
    """Yield the name of a row, and its slices: a path for each colour."""
    shown = sorted(row, key=lambda each: -each.seconds)[:_MOST_SLICES]
    marks = grouped(sorted(shown, key=lambda each: each.start), lambda each: _kinds(each, step))
    paths = []
    for kinds, slices in marks.items():
        labels, line = " ".join(str(numbers[id(each)]) for each in slices), _line(slices, step)
        for at, kind in enumerate(kinds):
            high = _LANE / len(kinds)
            start = f"M0 {high * (at + 0.5):.4g}"
            more = {"data_labels": None if at else labels, "stroke_width": f"{high:.4g}"}
            colour = filled(kind.replace("stroke-", "fill-"))
            paths.append(tag("path", class_=kind, d=start + line, stroke=colour, **more))
    waits = sum(each.seconds for each in row if each.is_wait)
    said = f" {step.text(sum(each.seconds for each in row))}"
    said += f", {step.text(waits)} of it waits" if waits else ""
    if left := len(row) - len(shown):
        said += f"; {counted(left, 'shorter operation')} not drawn"
    axes = [] if name == COMPUTE else name.split("+")
    keys = [swatch(f"fill-{axis_number(axis, step.axes)}") for axis in axes] or [_OWN]
    yield tag("p", *keys, tag("b", name), said, class_="lane-name")
    yield _svg(paths, _LANE, class_="lane", data_row=name)


_OWN = swatch("part-compute")


def _kinds(each: Slice, step: DrawnStep) -> tuple[str, ...]:
    """Return the colours of a slice, below each other: of each mesh axis that it goes over."""
    axes = each.spent.mesh_axes if each.spent.kind == "collective" else ()
    found = tuple(f"stroke-{axis_number(axis, step.axes)}" for axis in sorted(axes))
    return found or ("stroke-idle" if each.spent.kind == "idle" else "stroke-compute",)


def _line(slices: Iterable[Slice], step: DrawnStep) -> str:
    """Return slices as a path, each from where the one before it ends."""
    line, x = [], 0
    for each in slices:
        start, end = max(step.x(each.start), x), max(step.x(each.end), x)
        line.append(f"m{start - x} 0h{end - start}" if start > x else f"h{end - start}")
        x = end
    return "".join(line)


def _svg(inner: Iterable[Html], high: int, **more: object) -> Html:
    view = {"viewBox": f"0 0 {WIDE} {high}", "preserveAspectRatio": "none"}
    size = {"width": "100%", "height": high}
    return tag("svg", *inner, aria_hidden="true", **view, **size, **more)


# memory


def _columns(step: DrawnStep) -> list[tuple[int, dict[str, int]]]:
    """Return where the memory changes; of changes too near to be seen apart, that of the most."""
    found: dict[int, tuple[int, dict[str, int]]] = {}
    for second, held in step.memory:
        x = step.x(second)
        column = x * _MOST_COLUMNS // WIDE
        if column not in found or sum(held.values()) >= sum(found[column][1].values()):
            found[column] = x, held
    return list(found.values())


def _memory(step: DrawnStep) -> Iterator[Html]:
    """Yield what a device holds over the step, part on part, and what it has."""
    memory, columns = step.cost.memory, _columns(step)
    parts, limit = list(columns[0][1]), memory.hbm_bytes
    is_near = limit is not None and limit <= _NEAR * memory.total.bytes
    whole = max(memory.total.bytes, limit if is_near and limit else 1)
    drawn = []
    for at in reversed(range(len(parts))):
        line = f"M0 {_HIGH}"
        for x, held in columns:
            share = sum(list(held.values())[: at + 1]) / whole
            line += f"H{x}V{_HIGH * (1 - share):.3f}"
        kind = f"part part-{parts[at]}"
        drawn.append(tag("path", class_=kind, fill=filled(kind[5:]), d=f"{line}H{WIDE}V{_HIGH}z"))
    if limit is not None and is_near:
        y = f"{_HIGH * (1 - limit / whole):.3f}"
        ends = {"x1": 0, "x2": WIDE, "y1": y, "y2": y}
        drawn.append(tag("line", class_="limit", stroke="#b3261e", stroke_width=2, **ends))
    room = (
        "" if limit is None else f" of {binary_bytes(limit)}{', the red line' if is_near else ''}"
    )
    said = f" at most {memory.total}{room}; by the order of the program, spread over the step"
    yield tag("p", tag("b", "memory"), said, class_="lane-name")
    keys = (tag("span", swatch(f"part-{part}"), part, class_="key") for part in parts)
    yield tag("p", *keys, class_="legend")
    yield _svg(drawn, _HIGH, class_="lane held")


# operations


class Operation(NamedTuple):
    """Operations of one line that do the same, of all layers and runs.

    Attributes:
      shown: the seconds of the step that they account for.
      flops: of one device in a step; None where they are not known, likewise `bytes`.
    """

    first: Spent
    seconds: float
    shown: float
    flops: float | None
    bytes: float | None

    @property
    def point(self) -> tuple[float, float] | None:
        """Return FLOPs by byte, and FLOPs by second; None where there are none."""
        if not self.flops or not self.bytes or not self.seconds:
            return None
        return self.flops / self.bytes, self.flops / self.seconds


def operations(step: DrawnStep) -> list[Operation]:
    """Return what a step does, what accounts for most of it first."""
    spent = {id(each.spent): each.spent for each in step.slices}.values()
    groups = grouped(spent, lambda e: (e.kind, e.what, str(e.place), e.phase, e.mesh_axes))
    found = []
    for rows in groups.values():
        flops = [each.flops for each in rows if each.flops is not None]
        sizes = [each.bytes for each in rows if each.bytes is not None]
        sums = sum(each.seconds for each in rows), sum(each.shown for each in rows)
        known = (sum(each) if len(each) == len(rows) else None for each in (flops, sizes))
        found.append(Operation(rows[0], *sums, *known))
    return sorted(found, key=lambda each: -each.shown)


def _table(step: DrawnStep, groups: Sequence[Operation]) -> Html:
    rows = []
    for at, each in enumerate(groups[:_MOST_ROWS], 1):
        what, place, rule, _, phase, _ = _said(each.first)
        point = ("", "") if each.point is None else _figures(*each.point)
        times = step.text(each.seconds), percent(each.shown, step.end)
        row = "+".join(each.first.mesh_axes) or COMPUTE
        rows.append((str(at), what, row, f"{place} ({phase})", rule, *times, *point))
    left = groups[_MOST_ROWS:]
    if left:
        sums = (sum(each.seconds for each in left), sum(each.shown for each in left))
        times = step.text(sums[0]), percent(sums[1], step.end)
        rows.append(("rest", f"{counted(len(left), 'row')} more", "", "", "", *times, "", ""))
    headings = ("#", "operation", "row", "at", "rule", "takes", "of the step", "FLOP/B", "FLOP/s")
    inner = table(headings, rows, (0, 5, 6, 7, 8), class_="stack")
    return joined((tag("h3", "Operations"), tag("details", tag("summary", _TABLE), inner)))


_TABLE = "The operations of the drawings as a table"


def _figures(intensity: float, speed: float) -> tuple[str, str]:
    return f"~ {three_figures(intensity)}", f"~ {flops_text(round(speed))}/s"


# the roofline


class Roofs(NamedTuple):
    """What a device can do: bytes a second, and FLOPs a second for each dtype that is used."""

    bytes_per_s: float
    flops_per_s: dict[str, float]


def roofs(step: DrawnStep) -> Roofs:
    """Return the roofs over the operations of a step."""
    hardware, ops = step.cost.target.hardware, step.cost.step and step.cost.step.ops
    assert hardware is not None, "a step with a time has a machine"
    chip = hardware.chip
    dtypes = sorted({op.dtype for op in ops or () if op.flops})
    by_speed = grouped(dtypes, lambda dtype: peak(dtype, chip))
    flat = {", ".join(names): speed for speed, names in by_speed.items()}
    return Roofs(per_device(chip.hbm_bytes_per_s, chip), flat)


def _roofline(step: DrawnStep, groups: Sequence[Operation]) -> Iterator[Html]:
    """Yield the operations by FLOPs for each byte and each second, below what a device can do."""
    yield tag("h3", "Roofline")
    found = [(at, each, each.point) for at, each in enumerate(groups, 1) if each.point is not None]
    if not found:
        yield tag("p", "Not drawn: the FLOPs and bytes of no operation are known.", class_="quiet")
        return
    over = roofs(step)
    flat, slope = over.flops_per_s, over.bytes_per_s
    edges = [speed / slope for speed in flat.values()]
    x = Scale.decades([*(point[0] for _, _, point in found), *edges])
    y = Scale.decades([*(point[1] for _, _, point in found), *flat.values()])
    said = (f"{name} {flops_text(round(speed))}/s" for name, speed in flat.items())
    yield tag(
        "p",
        f"FLOP/B to the right, FLOP/s up, both of one device; roofs: {binary_bytes(slope)}/s of"
        f" memory, {', '.join(said)}. An area is a share of the step, a number a row of the table.",
        class_="quiet",
    )
    yield chart((*_roof_lines(x, y, over), *_points(x, y, found, step)), (x, y), _ROOF, "roofline")


def _roof_lines(x: Scale, y: Scale, over: Roofs) -> Iterator[Html]:
    for speed in over.flops_per_s.values():
        yield straight(x, y, (max(speed / over.bytes_per_s, x.low), speed), (x.high, speed), "roof")
    top = max(over.flops_per_s.values())
    first, last = max(x.low, y.low / over.bytes_per_s), top / over.bytes_per_s
    yield straight(x, y, (first, first * over.bytes_per_s), (last, top), "roof")


def _points(
    x: Scale,
    y: Scale,
    found: Sequence[tuple[int, Operation, tuple[float, float]]],
    step: DrawnStep,
) -> Iterator[Html]:
    numbers: list[Html] = []
    numbered: list[tuple[float, float]] = []
    for at, each, (intensity, speed) in found:
        what, place, rule, *_ = _said(each.first)
        share, here = each.shown / step.end, (x.share(intensity), y.share(speed))
        told = ", ".join((what, place, rule, percent(share, 1), *_figures(intensity, speed)))
        cx, cy, r = x.at(intensity), y.down(speed), f"{3 + 26 * math.sqrt(share):.1f}"
        fill = filled("part-compute")
        yield tag("circle", tag("title", told), class_="point", fill=fill, cx=cx, cy=cy, r=r)
        is_free = all(abs(a - here[0]) > 0.04 or abs(b - here[1]) > 0.05 for a, b in numbered)
        if at <= _MOST_ROWS and is_free:
            numbered.append(here)
            where = {"x": cx, "y": cy, "dy": "4", "text_anchor": "middle"}
            numbers.append(tag("text", str(at), class_="number", **where))
    yield from numbers


#: Rows, and arrays named in one, at most.
_MOST_OPERATIONS, _MOST_NAMES = 150, 3
#: How wide the arrows are, in their own units, and where the points of rows are.
_WIDE, _POINT = 100, 88
_HOW_GRAPH = (
    "Rows are in the order of the program, layers and runs of one line in one row. An arrow leads"
    " from what makes a value to what reads it; one that others together say is left out. What is"
    " sent has the colour of its mesh axis."
)
#: A line of the code, and the phase.
_Where = tuple[str, str]


@dataclass(slots=True, eq=False)
class Node:
    """A row of the graph.

    Attributes:
      ops: the operations that it stands for; none of a row that is sent.
      sent: the collectives that it stands for.
      seconds: of the step, what it accounts for.
    """

    where: _Where
    ops: Sequence[StepOp] = ()
    sent: Sequence[Collective] = ()
    seconds: float = 0.0
    readers: set[int] = field(default_factory=set)

    @property
    def at(self) -> int:
        """Return its first tick."""
        sent = (each.reshard.at if each.reshard else each.at for each in self.sent)
        return min((*(op.at for op in self.ops), *sent))

    @property
    def reads(self) -> set[int]:
        """Return the ticks of the operations that make what it reads."""
        return {tick for op in self.ops for tick in op.reads}

    @property
    def is_sum(self) -> bool:
        """Say whether what is sent adds up what devices have computed."""
        return bool(self.sent) and self.sent[0].kind.traits.sums

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the mesh axes that it is sent over."""
        return self.sent[0].axes if self.sent else ()

    @property
    def title(self) -> str:
        """Return `product of x and layers/up`, or what is sent over which mesh axes."""
        if self.sent:
            first = self.sent[0]
            return f"{first.kind} of {template(str(first.carries))} over {'+'.join(first.axes)}"
        op = max(self.ops, key=lambda op: op.flops * op.count)
        names = dict.fromkeys(template(each.name) or str(each) for each in op.operands)
        kind = "product" if op.kind == "einsum" else op.kind
        return f"{kind} of {' and '.join([*names][:_MOST_NAMES])}"

    @property
    def flow(self) -> str:
        """Return what it makes, or how what is sent is sharded before and after."""
        if self.sent:
            reshard = next((each.reshard for each in self.sent if each.reshard), None)
            size = binary_bytes(sum(each.wire_bytes for each in self.sent))
            moved = "" if reshard is None else f"resharded {reshard.before} -> {reshard.after}, "
            return f"{moved}{size} per device"
        op = max(self.ops, key=lambda op: op.flops * op.count)
        name = template(op.result.name)
        return f"makes {f'{name} ' if name else ''}{op.result} {op.result.split}"


def nodes_of(drawn: DrawnStep) -> list[Node]:
    """Return the rows of a step, in the order of the program, each with those that read it."""
    cost = drawn.cost.for_checks
    if cost.step is None:
        return []
    spent = by_key((_key(row), row.shown) for _, row in timed_of(cost))
    ops = grouped(cost.step.ops, lambda op: (str(op.place), op.phase))
    found = [Node(where, rows, seconds=sum(spent.get(where, ()))) for where, rows in ops.items()]
    homes = {node.where: node for node in found}
    for key, rows in grouped(cost.step.collectives, _sent_key).items():
        found.append(Node(key[0], sent=rows, seconds=sum(spent.get(key, ()))))
    kept = sorted(found, key=lambda node: -node.seconds)[:_MOST_OPERATIONS]
    kept.sort(key=lambda node: _order(node, homes.get(node.where)))
    _join(kept, homes)
    return kept


def _key(row: Spent) -> object:
    where = str(row.place), row.phase
    is_sent = row.kind == "collective"
    return (where, row.what, row.mesh_axes, template(row.array)) if is_sent else where


def _sent_key(sent: Collective) -> tuple[_Where, str, tuple[str, ...], str]:
    return (str(sent.place), sent.phase), str(sent.kind), sent.axes, template(array_of(sent))


def _order(node: Node, home: Node | None) -> tuple[int, int, int]:
    """Return where a row is: what is sent stands before or behind the operation of its line."""
    tick = node.at
    if node.ops or home is None:
        return tick, 0, tick
    return home.at, 1 if node.is_sum or tick > home.at else -1, tick


def _join(kept: Sequence[Node], homes: Mapping[_Where, Node]) -> None:
    """Note which rows read what each makes.

    Args:
      homes: the operations of each line and phase.
    """
    numbers = {id(node): at for at, node in enumerate(kept)}
    makers = {op.at: node for node in homes.values() for op in node.ops}

    def lead(*way: Node) -> None:
        for one, other in pairwise(each for each in way if id(each) in numbers):
            one.readers.add(numbers[id(other)])

    between: dict[tuple[int, Shape], Node] = {}
    for node in kept:
        home = homes.get(node.where)
        for each in node.sent:
            works = each.reshard.works if each.reshard else ()
            readers = [makers[tick] for tick in works if tick in makers]
            if not readers and home is not None and _order(node, home)[1] > 0:
                lead(home, node)
                between[id(home), each.array.shape] = node
                continue
            for reader in readers or ([] if home is None else [home]):
                lead(node, reader)
                if each.carries.kind == "activation":
                    between[id(reader), each.array.shape] = node
    for maker, reader in ((makers.get(at), node) for node in kept for at in node.reads):
        if maker is not None and maker is not reader:
            shapes = {op.result.shape for op in maker.ops}
            ways = ((id(end), shape) for end in (reader, maker) for shape in shapes)
            sent = next((between[way] for way in ways if way in between), None)
            lead(maker, *([] if sent is None else [sent]), reader)


def graph_piece(drawn: DrawnStep, findings: Iterable[Diagnostic] = ()) -> Html:
    """Return the graph of a step, with the findings at the lines that they name."""
    nodes = nodes_of(drawn)
    if not nodes:
        return Html("")
    found = list(findings)
    rows = (_row(node, drawn, found) for node in nodes)
    inner = tag("div", _arrows(nodes, drawn), *rows, class_="graph")
    more = [] if len(nodes) < _MOST_OPERATIONS else [tag("p", _LEFT, class_="quiet")]
    how = tag("p", _HOW_GRAPH, class_="quiet")
    return joined((tag("h3", "Graph"), how, inner, *more))


_LEFT = f"The {_MOST_OPERATIONS} rows that take most of the step are drawn."


def _row(node: Node, drawn: DrawnStep, findings: Sequence[Diagnostic]) -> Html:
    first = node.sent[0].place if node.sent else node.ops[0].place
    place, phase = str(line_of(first) or "line unknown"), node.where[1]
    runs = sum(each.count for each in (node.ops or node.sent))
    shown = f"{drawn.text(node.seconds)}, {percent(node.seconds, drawn.end)}"
    keys = [swatch(f"fill-{axis_number(axis, drawn.axes)}") for axis in node.axes]
    said = [each for each in findings if node.ops and is_at(each, place)]
    marks = (
        tag("span", str(each.code.id), class_=f"level {each.severity}", title=each.message)
        for each in said
    )
    about = " · ".join((place, phase, f"x{runs:.6g}", node.flow))
    head = tag("p", *keys, tag("b", node.title), tag("span", shown, class_="figures"), *marks)
    return tag("div", head, tag("p", about, class_="quiet"), class_="node", data_line=place)


def is_at(found: Diagnostic, place: str) -> bool:
    """Say whether a finding names a line of the code."""
    texts = (found.message, *found.notes, *(each.text for each in found.labels))
    spans = (str(each.span) for each in found.labels)
    exact = re.compile(rf"(?<![\w./-]){re.escape(place)}(?![\d.])")
    return any(map(exact.search, texts)) or any(each.startswith(f"{place}:") for each in spans)


def _arrows(nodes: Sequence[Node], drawn: DrawnStep) -> Html:
    """Return the points of all rows, and an arrow for each value that flows on."""
    paths = list(_edges(nodes, drawn))
    for at, node in enumerate(nodes):
        colours = [f"stroke-{axis_number(axis, drawn.axes)}" for axis in node.axes]
        kind = (colours or ["stroke-compute"])[0]
        stroke = filled(kind.replace("stroke-", "fill-"))
        wide = 9 if node.ops else 6
        point = f"M{_POINT} {at + 0.5}h0"
        paths.append(tag("path", class_=f"point {kind}", d=point, stroke=stroke, stroke_width=wide))
    view = {"viewBox": f"0 0 {_WIDE} {len(nodes)}", "preserveAspectRatio": "none"}
    return tag("svg", *paths, class_="arrows", aria_hidden="true", **view)


def _edges(nodes: Sequence[Node], drawn: DrawnStep) -> Iterator[Html]:
    for at, node in enumerate(nodes):
        for reader in sorted(node.readers):
            axes = node.axes or nodes[reader].axes
            kind = f"stroke-{axis_number(axes[0], drawn.axes)}" if axes else "stroke-compute"
            stroke = filled(kind.replace("stroke-", "fill-"))
            far = _POINT - min(8 * math.sqrt(abs(reader - at)) + 6, _POINT)
            line = f"M{_POINT} {at + 0.5}C{far:.4g} {at + 0.5} {far:.4g} {reader + 0.5}"
            ends = {"data_from": at, "data_to": reader}
            line += f" {_POINT} {reader + 0.5}"
            yield tag("path", class_=f"flow {kind}", d=line, fill="none", stroke=stroke, **ends)
