"""Pieces of a page about a target: memory against the chip, time, what is sent, the mesh axes.

They are made of a `CostRecord`, so that one that was saved shows
as one that was just worked out. A notebook shows the same pieces under a style of its own.
Bars are SVG without text in it: what they say stands beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from shardspec.analysis.comparison import IDLE
from shardspec.analysis.step_time import AxisTime
from shardspec.diagnostics import words
from shardspec.report import cost_json
from shardspec.report.html import Html, joined, table, tag
from shardspec.report.mesh import AXIS_HEADINGS, axis_cells, machine_lines, note_lines
from shardspec.report.saved_cost import bytes_of, carried_by, operation
from shardspec.topology.placement import Placement, explain_axes

_WIDTH = 1000
_AXES = ("#56a0d8", "#e8a33d", "#3fae8b", "#cf8bb4", "#d8c83a", "#8f93d1")
#: What parts are filled with where no style is applied; `page.css` has the same for light and dark.
_FILLS = {
    **{f"fill-{at}": fill for at, fill in enumerate(_AXES)},
    "part-parameters": "#34506f",
    "part-optimizer": "#8c5a3c",
    "part-gradients": "#6f7f3a",
    "part-activations": "#7a4a6d",
    **dict.fromkeys(("part-caches", "part-batch"), "#b59a7a"),
    "part-temporaries": "#9aa3ab",
    **dict.fromkeys(("part-compute", "part-sent", "fill-compute"), "#7d8894"),
    "part-memory": "#aab4bd",
}
_COLOURS = len(_AXES)
_OTHER_FILL = "#5c6670"
#: Rows of a table of what is sent, and causes inside one.
_MOST_ROWS = 60
_MOST_CAUSES = 25


def filled(kind: str) -> str:
    """Return the colour of a class where no style is applied."""
    return _FILLS.get(kind, _OTHER_FILL)


def axis_number(axis: str, axes: Sequence[str]) -> int:
    """Return the number of the colour of a mesh axis, of all those that a page shows."""
    return axes.index(axis) % _COLOURS if axis in axes else _COLOURS


def bar(parts: Iterable[tuple[str, str, float]], whole: float, limit: float | None = None) -> Html:
    """Return a bar of parts, each with its class, its title and its share of `whole`.

    Args:
      limit: where a line is drawn across it.
    """
    drawn, at = [], 0.0
    for kind, title, size in parts:
        width = _WIDTH * size / whole if whole else 0
        place = {"x": f"{at:.2f}", "y": "0", "width": f"{width:.2f}", "height": "20"}
        fill = filled(kind)
        named = [tag("title", title)] if title else []
        drawn.append(tag("rect", *named, class_=f"part {kind}", fill=fill, **place))
        at += width
    if limit is not None and whole > limit:
        x = f"{_WIDTH * limit / whole:.2f}"
        ends = {"x1": x, "x2": x, "y1": "0", "y2": "20"}
        drawn.append(tag("line", class_="limit", stroke="#b3261e", stroke_width=3, **ends))
    view = {"viewBox": f"0 0 {_WIDTH} 20", "preserveAspectRatio": "none"}
    box = {"width": "100%", "height": "20"}
    return tag("svg", *drawn, class_="bar", aria_hidden="true", **view, **box)


# memory


def memory_rows(costs: Iterable[tuple[str, cost_json.CostRecord]]) -> Html:
    """Return a bar for each target: what a device holds, against what it has.

    Args:
      costs: names of targets, and what `cost` says on them.
    """
    found = [(name, cost.memory) for name, cost in costs]
    shown = [tag("li", *_memory_row(name, memory)) for name, memory in found]
    kinds = dict.fromkeys(part for _, memory in found for part in memory.parts)
    keys = (tag("span", swatch(f"part-{kind}"), kind, class_="key") for kind in kinds)
    return joined((tag("p", *keys, class_="legend"), tag("ul", *shown, class_="bars")))


def _memory_row(name: str, memory: cost_json.Memory) -> Iterator[Html]:
    limit, parts = memory.hbm_bytes, memory.parts.items()
    title = tag("span", memory_text(memory), class_="figure")
    yield tag("p", tag("b", name), " ", title, class_="bar-title")
    whole = max(memory.total.bytes, limit or 0)
    yield bar(
        ((f"part-{kind}", f"{kind} {part}", part.bytes) for kind, part in parts), whole, limit
    )
    host = memory.host
    more = [] if host is None else [f"{host} in host memory, for each device"]
    yield tag("p", " · ".join([f"{kind} {part}" for kind, part in parts] + more), class_="quiet")


def memory_text(memory: cost_json.Memory) -> Html:
    """Return `= 4.12 GiB of 15.8 GiB per device, fits`, as `cost` says it."""
    if not memory.total.bytes and memory.fits is None and memory.host is None:
        return joined(["nothing to count: there are no arrays"])
    return with_misfit(f"{memory.total}{cost_json.room_said(memory)}")


def with_misfit(text: str) -> Html:
    """Return a text in which DOES NOT FIT looks like what it says."""
    before, said, after = text.partition("DOES NOT FIT")
    return joined((before, *([tag("b", said, class_="misfit")] if said else []), after))


def swatch(kind: str) -> Html:
    """Return a small square in the colour of a class."""
    fill = filled(kind)
    inner = tag("rect", class_=f"part {kind}", fill=fill, width=12, height=12)
    size = {"viewBox": "0 0 12 12", "width": "12", "height": "12"}
    return tag("svg", inner, class_="swatch", aria_hidden="true", **size)


# time


def time_piece(cost: cost_json.CostRecord, axes: Sequence[str] = ()) -> Html:
    """Return how long a step takes, and of what.

    Args:
      axes: the mesh axes of a page in the order of their colours; none for those of the mesh.
    """
    time = cost.time
    if time is None:
        said = "not known: the catalogue has no speeds of this target"
        return tag("p", f"time {said}{_rates(cost)}", class_="figure")
    step = f"{cost.at_least('sends', 'flops', 'time')}~ {words.seconds_text(time.step_s)}"
    title = f"{step} +- {words.percent(time.spread, 1)}, bound by {time.bound}{_rates(cost)}"
    compute = f"compute ~ {words.seconds_text(time.compute_s)}"
    rows: list[tuple[tuple[str, ...], str, float]] = [
        (("part-compute",), compute, time.compute_s - time.hbm_s)
    ]
    if time.hbm_s:
        said = f"{words.seconds_text(time.hbm_s)} of it memory"
        rows.append((("part-memory",), said, time.hbm_s))
    for name, axis in time.axes.items():
        numbers = (axis_number(each, axes or tuple(cost.mesh)) for each in name.split("+"))
        kinds = tuple(f"fill-{number}" for number in numbers)
        rows.append((kinds, str(AxisTime(name, *axis)), axis.exposed_s))
    parts = ((kind, said, took / len(kinds)) for kinds, said, took in rows for kind in kinds)
    keys = [tag("span", *map(swatch, kinds), said, class_="key") for kinds, said, _ in rows]
    return joined(
        (
            tag("p", title, class_="figure"),
            bar(parts, time.step_s),
            tag("p", *keys, class_="legend"),
        )
    )


def _rates(cost: cost_json.CostRecord) -> str:
    least, mark = cost.at_least("flops"), "=" if cost.compiled_by is None else cost.mark
    return "".join(f" · {each}" for each in cost_json.rates_said(cost, f"{least}{mark}"))


# predicted compared with measured


def measured_piece(run: cost_json.MeasuredRun, axes: Sequence[str]) -> Html:
    """Return a pair of bars for what computes and for each mesh axis; each side sums to its step.

    Args:
      axes: the mesh axes of a page in the order of their colours.
    """
    sides = [words.grouped(rows, _row_of) for rows in (run.predicted, run.operations)]
    names = dict.fromkeys((*sides[1], *sides[0]))
    took = {name: [sum(e.shown_s for e in side.get(name, ())) for side in sides] for name in names}
    whole = max((time for pair in took.values() for time in pair), default=0.0)
    sends = [each for each in (*run.operations, *run.predicted) if each.kind == "collective"]
    over = set(map(_row_of, sends))
    rows = []
    for name, (predicted, measured) in sorted(took.items(), key=lambda row: -max(row[1])):
        mesh_axes = name.split("+") if name in over else ()
        kinds = [f"fill-{axis_number(axis, axes)}" for axis in mesh_axes]
        kinds = kinds or ["part-compute"]
        said = "unknown" if run.predicted_s is None else f"~ {words.seconds_text(predicted)}"
        text = f" predicted {said}, measured {words.seconds_text(measured)}"
        title = tag("p", *map(swatch, kinds), tag("b", name), text, class_="lane-name")
        pair = (
            bar(((kind, side, time / len(kinds)) for kind in kinds), whole)
            for side, time in (("predicted", predicted), ("measured", measured))
            if side == "measured" or run.predicted_s is not None
        )
        rows.append(tag("li", title, *pair))
    step = "unknown" if run.predicted_s is None else f"~ {words.seconds_text(run.predicted_s)}"
    said = f"{run.run}: a step took {words.seconds_text(run.step_s)}, predicted {step}."
    said += " A collective counts for what no computation hides."
    if run.predicted_s is not None:
        said += " Of each pair the upper bar is predicted, the lower measured."
    notes = (tag("p", note, class_="quiet") for note in run.notes)
    head = tag("h3", "Predicted compared with measured"), tag("p", said, class_="quiet")
    return joined((*head, tag("ul", *rows, class_="bars pairs"), *notes))


def _row_of(each: cost_json.SpentRow) -> str:
    """Return the row of the pairs that an operation counts in, as in `Spent.name`."""
    if each.kind == "collective":
        return "+".join(each.mesh_axes) or "no mesh axis"
    return IDLE if each.kind == "idle" else "compute"


# what is sent

#: A table of what is sent: its title, and what a collective counts under.
_TABLES: dict[str, tuple[str, Callable[[cost_json.Sent], str]]] = {
    "axis": ("By mesh axis", lambda sent: "+".join(sorted(sent.mesh_axes))),
    "rule": ("By rule of the spec", lambda sent: " + ".join(sent.askers)),
    "line": ("By line of the code", lambda sent: place_text(sent.place)),
}


def sent_piece(cost: cost_json.CostRecord) -> Html:
    """Return what is sent in a step: by mesh axis, rule and line, with the cause behind each."""
    sent, total = cost.collectives, bytes_of(cost.collectives)
    least, unknown = cost.at_least("sends"), _unknown(cost.unknown)
    if not sent:
        title = f"sends {'unknown' if least else 'nothing'}"
        return joined((tag("p", title, class_="figure"), unknown))
    times = f"{round(sum(each.count for each in sent)):,} collectives"
    title = f"sends {least}{cost.mark} {words.binary_bytes(total)} per device and step, in {times}"
    if cost.compiled_by is not None:
        title += f" · compiled by {cost.compiled_by.name}"
    elif cost.why_modelled:
        title += f" · modelled: {cost.why_modelled}"
    tables = (
        tag("div", tag("h4", heading), *_sent_rows(sent, by, total), class_="sent", data_by=by)
        for by, (heading, _) in _TABLES.items()
    )
    return joined((tag("p", title, class_="figure"), unknown, *tables))


def _unknown(unknown: Sequence[cost_json.Uncounted]) -> Html:
    """Return what could not be counted, with its lines; nothing where there is none."""
    rows = []
    for each in unknown[:_MOST_ROWS]:
        figures, count = ", ".join(each.figures), f"x{each.count:.6g}"
        rows.append((each.what, place_text(each.place), count, figures, each.reason))
    headings = ("unknown", "at", "times", "at least", "because")
    return table(headings, rows, (2,)) if rows else Html("")


def sent_by(sent: Iterable[cost_json.Sent], by: str) -> list[tuple[str, list[cost_json.Sent]]]:
    """Return what is sent in rows, the heaviest first: each byte in one of them."""
    key = _TABLES[by][1]
    if by == "rule":  # whose axes stand in another order is the same row
        groups = words.grouped(sent, lambda each: frozenset(each.askers))
        rows = [(key(found[0]), found) for found in groups.values()]
    else:
        rows = list(words.grouped(sent, key).items())
    return sorted(rows, key=lambda row: -bytes_of(row[1]))


def _sent_rows(sent: Sequence[cost_json.Sent], by: str, total: int) -> Iterator[Html]:
    rows = sent_by(sent, by)
    for name, found in rows[:_MOST_ROWS]:
        size = bytes_of(found)
        count = sum(each.count for each in found)
        figures = f"{words.binary_bytes(size)}  {words.percent(size, total)}  x{count:.6g}"
        line = tag("span", tag("b", name), " ", tag("span", figures, class_="figures"))
        share = bar((("part-sent", "", size),), total)
        place = name if by == "line" else None
        yield tag("details", tag("summary", line, share), _causes(found), data_line=place)
    if len(rows) > _MOST_ROWS:
        yield tag("p", f"and {words.counted(len(rows) - _MOST_ROWS, 'row')} more", class_="quiet")


def _causes(found: Sequence[cost_json.Sent]) -> Html:
    """Return what is sent for one reason, layers that differ in a number as one, and why."""
    rows = []
    groups = sorted(words.grouped(found, _operation).values(), key=bytes_of, reverse=True)
    for group in groups[:_MOST_CAUSES]:
        first = group[0]
        what = carried_by(group)
        axes, size = "+".join(sorted(first.mesh_axes)), words.binary_bytes(bytes_of(group))
        count = f"x{sum(each.count for each in group):.6g}"
        phases = f" ({', '.join(first.phases)})" if first.phases else ""
        why = " + ".join(first.askers) + _forced(first)
        rows.append((first.kind, axes, size, count, what, place_text(first.place) + phases, why))
    headings = ("collective", "axes", "bytes", "times", "carries", "at", "because")
    left = len(groups) - _MOST_CAUSES
    more = [tag("p", f"and {words.counted(left, 'row')} more", class_="quiet")] if left > 0 else []
    return joined((table(headings, rows, (2, 3)), *more))


def _operation(sent: cost_json.Sent) -> tuple[object, ...]:
    return *operation(sent), frozenset(sent.askers), _forced(sent)


def _forced(sent: cost_json.Sent) -> str:
    if sent.forced_by is None:
        return ""
    place = sent.forced_by.place
    return f", forced by the {f'constraint {place}' if place else 'sharding of a result'}"


def place_text(place: cost_json.Line | None) -> str:
    """Return `model.py:71`, or `unknown`."""
    return str(place or "unknown")


# the machine


def axes_piece(placement: Placement) -> Html:
    """Return the table of `shardspec mesh`: what each mesh axis runs over, and its speed."""
    rows = map(axis_cells, explain_axes(placement))
    told = (tag("p", line.strip(), class_="quiet") for line in machine_lines(placement))
    notes = (tag("p", line.strip(), class_="quiet") for line in note_lines(placement))
    return joined((*told, table(AXIS_HEADINGS, rows, (1,), class_="axes stack"), *notes))
