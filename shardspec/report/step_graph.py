"""A step drawn as a graph: its operations in order, what flows between them, what is resharded.

A row is an operation with its line, in all layers and runs, or what is sent there. Arrows are at
the left, so a graph of any size is a list that can be read, printed and walked through by keys. It
needs no scripts: rows are equally high, and the arrows are stretched over all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from shardspec.analysis.comparison import Spent, timed_of
from shardspec.analysis.traffic import array_of
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.words import binary_bytes, by_key, grouped, percent, template
from shardspec.ir.spec import Shape
from shardspec.ir.step import Collective, StepOp
from shardspec.report.cost_json import line_of
from shardspec.report.html import Html, joined, tag
from shardspec.report.page_pieces import axis_number, filled, swatch
from shardspec.report.step_pictures import DrawnStep

#: Rows, and arrays named in one, at most.
_MOST_ROWS, _MOST_NAMES = 150, 3
#: How wide the arrows are, in their own units, and where the points of rows are.
_WIDE, _POINT = 100, 88
_HOW = (
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
    kept = sorted(found, key=lambda node: -node.seconds)[:_MOST_ROWS]
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
    more = [] if len(nodes) < _MOST_ROWS else [tag("p", _LEFT, class_="quiet")]
    how = tag("p", _HOW, class_="quiet")
    return joined((tag("h3", "Graph"), how, inner, *more))


_LEFT = f"The {_MOST_ROWS} rows that take most of the step are drawn."


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
