"""What a step costs, for people: a few lines of memory and time, and a table of what is sent.

Every figure stands behind its basis: `=` is exact, `~` is a floor, a guess or worked out by a model
of the machine, `x` is a compiler's. Lines are whole; `diagnostics.lines` fits them to a width.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, fields

from shardspec.analysis import cost as figures
from shardspec.analysis.accuracy import Interval
from shardspec.analysis.comparison import By, Change, CostDiff, TrafficRow, group, of_arrays
from shardspec.analysis.step_memory import MARKS, StepMemory, room_lines
from shardspec.analysis.step_time import StepTime
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.lines import columns, fitted
from shardspec.diagnostics.words import binary_bytes, counted, grouped, percent
from shardspec.diagnostics.words import flops_text as flops_text
from shardspec.diagnostics.words import seconds_text as seconds_text
from shardspec.ir.step import Collective, StepTensor, Unknown, told_once
from shardspec.pipeline import step_findings
from shardspec.records import Data, data_of, picked
from shardspec.report.cost_json import rates_said, room_said, uncounted
from shardspec.report.table import target_title

#: How wide it is where no terminal says.
WIDTH = 100
#: Rows of the table where nobody says how many.
TOP = 10
#: Tensors shown of those that are alive at the peak.
_LARGEST = 3
#: Before a figure to which something unknown adds.
AT_LEAST = "at least"
#: The share of a row that is not worth a word.
_LITTLE = 0.01

Cells = tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Cost(figures.Cost):
    """What a plan costs on its target, and what one step of it does; `print` shows what to notice.

    Attributes:
      step: None where only a plan is known: then only what the spec's state takes is.
      time: None without a step, and for machines whose speeds the catalogue does not state.
      tokens: what one step goes through, on all devices; None where that is not clear.
    """

    @classmethod
    def of(cls, cost: figures.Cost) -> Cost:
        """Return the same figures, to print."""
        return cls(**{each.name: getattr(cost, each.name) for each in fields(cost)})

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Return what is sent in a step, in the order of the program."""
        return () if self.step is None else self.step.collectives

    def by(self, by: By) -> tuple[TrafficRow, ...]:
        """Return what is sent, in rows, the heaviest first.

        Args:
          by: `op`, `axis`, `line` of the code, `rule` of the spec, or `array`.
        """
        return group(self.collectives, by)

    @property
    def findings(self) -> tuple[Diagnostic, ...]:
        """Return what the step sends and computes in vain, as loud as the spec asks."""
        return step_findings((self,)) if self.step is not None else ()

    def __str__(self) -> str:
        """Return what `shardspec cost` prints."""
        return "\n".join(fitted(cost_lines(self), WIDTH))

    def _repr_html_(self) -> str:
        from shardspec.report.page import cost_pieces

        return cost_pieces(self)

    def __repr__(self) -> str:
        """Return `Cost(target pod, = 1.25 GiB, ~ 3.00 GiB sent per device and step)`."""
        total = str(self.memory.total)
        least = f"{AT_LEAST} " if self.uncounted("sends") else ""
        sent = f"{least}{MARKS[self.basis]} {binary_bytes(self.sent_bytes)}"
        step = "no step" if self.step is None else f"{sent} sent by a device a step"
        return f"Cost(target {self.target.name}, {total}, {step})"


def cost_lines(
    cost: figures.Cost,
    by: By = "op",
    *,
    top: int = TOP,
    arrays: Collection[str] | None = None,
) -> Iterator[str]:
    """Yield what a cost is, and what is sent.

    Args:
      by: what the table is of.
      top: how many rows it has at most.
      arrays: those whose traffic is asked for; None for all there is.
    """
    target = target_title(cost.target).removeprefix("target ")
    heading = [cost.plan.spec.source.name, target, f"mesh {cost.plan.mesh.heading}"]
    if cost.step is not None and cost.step.place.is_known:
        heading.append(f"step at {cost.step.place}")
    yield "   ".join(heading)
    yield ""
    if cost.step is not None:
        yield from _basis(cost)
    yield from _memory(cost.memory)
    yield from (f"        {line}" for line in room_lines(cost.plan, cost.memory))
    if cost.step is None:
        return
    yield from _time(cost)
    yield from _uneven(cost.uneven)
    yield ""
    yield from _sends(cost, by, top, arrays)
    yield from _added(cost)
    yield from unknown_lines(cost.step.unknown)
    for note in (*cost.step.notes, *(() if cost.time is None else cost.time.notes)):
        yield f"note    {note}"


def _basis(cost: figures.Cost) -> Iterator[str]:
    """Yield who gave the figures, where a compiler did, or was asked."""
    if cost.compiler is not None:
        yield f"basis   x {cost.compiler}"
        if cost.other is not None:
            yield f"        {_other(cost, cost.other)}"
    elif cost.why_modelled:
        yield f"basis   ~ modelled: {cost.why_modelled}"


def _other(cost: figures.Cost, other: figures.Cost) -> str:
    """Return what another version of the compiler makes of a step: figures are as uncertain."""
    pairs = (
        ("memory", cost.memory.total.bytes, other.memory.total.bytes),
        ("sent", cost.sent_bytes, other.sent_bytes),
    )
    told = (
        f"{name} x {binary_bytes(there)} ({(there - here) / here if here else 0.0:+.1%})"
        for name, here, there in pairs
    )
    return f"by {other.compiler.name if other.compiler else ''}: {', '.join(told)}"


# memory


def _memory(memory: StepMemory) -> Iterator[str]:
    if memory.is_empty and not memory.is_partial:
        yield "memory  nothing to count: there are no arrays"
        return
    parts = (f"   {name} {part}" for name, part in memory.parts.items() if part.bytes)
    within = _within(memory.interval)
    yield f"memory  {memory.total}{within}{room_said(memory)}{''.join(parts)}"
    if memory.host is not None:
        yield f"        {memory.host} in host memory, for each device"
    alike = grouped(memory.peak, lambda each: (str(each.array), each.phase, each.place))
    largest = sorted(alike.values(), key=lambda group: -sum(each.bytes for each in group))
    mark = memory.total.mark
    rows = (_tensors(group, mark) for group in largest[:_LARGEST])
    yield from columns(rows, right=(1,), indent=8, paths=3)


def _within(found: Interval | None) -> str:
    """Return where a figure is in nine of ten steps: ` (9.90 to 14.2 GiB)`."""
    if found is None:
        return ""
    low, high = binary_bytes(found.low), binary_bytes(found.high)
    return f" ({low.removesuffix(high[-4:])} to {high})"


def _tensors(group: Sequence[StepTensor], mark: str) -> Cells:
    """Return what tensors that are alike take, and the line that makes them."""
    first = group[0]
    named = f"{first.array.name} " if first.array.name else ""
    times = f" x{len(group)}" if len(group) > 1 else ""
    total = sum(each.bytes for each in group)
    size, why = f"{mark} {binary_bytes(total)}", first.reason_of(total)
    return f"{named}{first.array}{times}", size, first.phase, str(first.place), why


# time


def _time(cost: figures.Cost) -> Iterator[str]:
    least = f"{AT_LEAST} " if cost.uncounted("flops") else ""
    rates = "   ".join(rates_said(cost, f"{least}{'=' if cost.compiler is None else 'x'}"))
    time = cost.time
    if time is None:
        made = cost.calibration
        why = "the catalogue has no speeds of this target"
        if made is not None:
            why = "the calibration has no collectives"
            if made.mesh != str(cost.target.mesh):
                why += f" of this mesh, but of {made.mesh}"
        yield f"time    not known: {why}   {rates}"
        return
    step = f"~ {seconds_text(time.step_seconds)} +- {percent(time.spread, 1)}"
    step = f"{AT_LEAST} {step}" if cost.uncounted("time") else f"{step}, bound by {time.bound}"
    yield "   ".join((f"time    {step}", *_parts(time), rates))
    if cost.schedule is not None:
        whole = f"{cost.schedule.mark} {seconds_text(cost.schedule.step_seconds)}"
        yield "   ".join((f"        by the compiled schedule {whole}", *_parts(cost.schedule)))
    made = cost.calibration
    if made is not None:
        yield f"        {made}"


def _uneven(found: figures.Uneven | None) -> Iterator[str]:
    """Yield what a step takes as uneven as its experts are: most steps, and one of a hundred."""
    if found is None:
        return
    sides = (("expected", found.expected), ("at p99", found.p99))
    held = f"a device has {found.held} of {counted(found.experts, 'expert')}"
    yield (
        f"experts {held}; the busiest takes ~ {found.expected.load:.3g} times its even share, and"
        f" {found.p99.load:.3g} times at p99"
    )
    times = ", ".join(
        f"~ {seconds_text(each.seconds)} {name}" for name, each in sides if each.seconds is not None
    )
    sizes = ", ".join(f"~ {binary_bytes(each.memory_bytes)} {name}" for name, each in sides)
    yield "   ".join(
        filter(None, ("        " + (f"time {times}" if times else ""), f"memory {sizes}"))
    )


def _parts(time: StepTime) -> Iterator[str]:
    """Yield what of a step is computation, and what each mesh axis takes."""
    compute = f"compute {time.mark} {seconds_text(time.compute_seconds)}"
    if time.hbm_seconds:
        compute += f", {seconds_text(time.hbm_seconds)} of it memory"
    yield compute
    yield from (axis.text(time.mark) for axis in time.axes)
    if time.waits_seconds:
        yield f"stages wait {time.mark} {seconds_text(time.waits_seconds)}"


# what is sent

#: What a row is headed by, where that is no operation.
_OF = {"axis": "mesh axis", "line": "line", "rule": "rule", "array": "array"}


def _sends(cost: figures.Cost, by: By, top: int, arrays: Collection[str] | None) -> Iterator[str]:
    step, mark = cost.step, MARKS[cost.basis]
    assert step is not None, "only a step sends"
    collectives = step.collectives
    chosen = of_arrays(collectives, arrays)
    total = sum(each.wire_bytes for each in chosen)
    of_all = sum(each.wire_bytes for each in collectives)
    share = "" if arrays is None else f" of {mark} {binary_bytes(of_all)}"
    least = f"{AT_LEAST} " if step.uncounted("sends") else ""
    if not chosen:
        yield f"sends   {'unknown' if least else 'nothing'}{share}"
        return
    count = round(sum(each.count for each in chosen))
    times = f"{count:,} collective{'' if count == 1 else 's'}"
    order = "" if by == "op" else f", by {_OF[by]}"
    within = _within(cost.sends_interval) if arrays is None else ""
    size = f"{least}{mark} {binary_bytes(total)}{within}{share}"
    yield f"sends   {size} per device and step, in {times}{order}"
    rows = group(chosen, by)
    lines = (_cells(row, by, total) for row in rows[:top])
    right, paths = ((2, 3), 4) if by == "op" else ((1, 2, 3), 0)
    yield from columns(lines, right=right, paths=paths, is_prose=True)
    rest = rows[top:]
    if rest:
        left = binary_bytes(sum(row.wire_bytes for row in rest))
        yield f"  and {counted(len(rest), 'row')} more, {mark} {left}: --top {len(rows)} shows all"


def _added(cost: figures.Cost) -> Iterator[str]:
    """Yield what the compiler added, the largest of it with its line."""
    if not cost.added:
        return
    kinds = grouped(cost.added, lambda each: each.what)
    sizes = {what: round(sum(each.step_bytes for each in same)) for what, same in kinds.items()}
    told = ", ".join(f"x {binary_bytes(size)} {_ADDED[what]}" for what, size in sizes.items())
    yield f"adds    {told}: added by the compiler, not by code"
    rows = (
        (each.what, f"{each.array} x{each.runs:.6g}", f"x {size}", each.phase, str(each.place))
        for each in cost.added[:_LARGEST]
        for size in (binary_bytes(round(each.step_bytes)),)
    )
    yield from columns(rows, right=(2,), indent=8, paths=4)


#: What the compiler added, in a sentence.
_ADDED = {
    "copy": "copied",
    "written out": "of constants written out",
    "computed again": "computed again to save memory",
}


def unknown_lines(unknown: Sequence[Unknown]) -> Iterator[str]:
    """Yield what could not be counted, each with its line and the figures that it touches."""
    if not unknown:
        return
    yield f"unknown {counted(len(unknown), 'operation')}: figures with `at least` are lower bounds"
    rows = (
        (each.what, str(each.place), f"x{each.count:.6g}", ", ".join(each.figures), each.reason)
        for each in told_once(unknown)
    )
    yield from columns(rows, right=(2,), indent=8, paths=1, is_prose=True)


def _cells(row: TrafficRow, by: By, total: int) -> Cells:
    """Return the cells of a row; the last one is the reason."""
    sent, times = binary_bytes(row.wire_bytes), f"x{row.count:.6g}"
    if by == "op":
        first = row.collectives[0]
        axes = "+".join(first.axes)
        reason = _because(row) + _forced(first)
        return first.kind, axes, sent, times, row.carries[0], str(first.place), reason
    kinds = _few(row.kinds)
    share = percent(row.wire_bytes, total)
    if by == "rule":
        return row.name, sent, share, times, kinds, _few(row.carries) + _propagated(row)
    return row.name, sent, share, times, kinds, _because(row)


def _few(names: Sequence[str]) -> str:
    """Return the first of some names, and how many more there are."""
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"


def _because(row: TrafficRow) -> str:
    said = _few([" + ".join(map(str, each)) for each in row.askers])
    return said + _propagated(row)


def _propagated(row: TrafficRow) -> str:
    is_little = row.propagated_bytes < _LITTLE * row.wire_bytes
    askers = (asker for each in row.askers for asker in each)
    is_named = all("chosen by XLA" not in asker.text for asker in askers)
    if is_little or not row.propagated_bytes or not is_named:
        return ""
    is_part = row.propagated_bytes != row.wire_bytes
    part = f"{binary_bytes(row.propagated_bytes)} of it " if is_part else ""
    return f", {part}propagated"


def _forced(sent: Collective) -> str:
    forced = sent.forced_by
    if forced is None:
        return ""
    what = f"constraint {forced.place}" if forced.place.is_known else "sharding of a result"
    return f", forced by the {what}"


# What a change of a spec does to a step, as text and as JSON.


#: Rows of one kind.
_MOST = 10


def cost_diff_lines(diff: CostDiff) -> Iterator[str]:
    """Yield the lines of one target."""
    if diff.is_same:
        yield f"step on target {diff.target}: costs what it did"
        return
    yield f"step on target {diff.target}, per device"
    yield f"  memory  {diff.mark} {change_text(diff.memory, binary_bytes)}{_fits(diff)}"
    yield from _rows(diff.parts)
    if diff.seconds is not None:
        yield f"  time    ~ {change_text(diff.seconds, seconds_text)}"
    yield f"  FLOPs   {change_text(diff.flops, lambda flops: flops_text(round(flops)))}"
    yield f"  sends   {diff.mark} {change_text(diff.sent, binary_bytes)}"
    yield from _rows(diff.axes)
    if diff.rules:
        yield "  by rule"
        yield from _rows(diff.rules)
    yield from (f"  {line}" for line in unknown_lines(diff.unknown))


def change_text(change: Change, text: Callable[[float], str]) -> str:
    """Return `2.59 GiB -> 1.31 GiB (-49 %)`.

    >>> change_text(Change("", 2048, 1024), binary_bytes), change_text(Change("", 1, 1), str)
    ('2.00 KiB -> 1.00 KiB (-50 %)', '1, as before')
    """
    if change.is_same:
        return f"{text(change.after)}, as before"
    sides = f"{text(change.before)} -> {text(change.after)}"
    if not change.before or not change.after:
        return sides
    sign = "+" if change.after > change.before else "-"
    return f"{sides} ({sign}{percent(abs(change.after - change.before), change.before)})"


def _fits(diff: CostDiff) -> str:
    """Return what has become of fitting, where that changed."""
    old, new = diff.before.memory.fits, diff.after.memory.fits
    if new is None and diff.after.memory.is_partial and new is not old:
        return ", whether it fits is unknown now"
    if old is new or new is None:
        return ""
    return ", may fit now" if new else ", DOES NOT FIT any more"


def _rows(changes: Sequence[Change]) -> Iterator[str]:
    rows = [
        (each.name, change_text(each, binary_bytes), ", ".join(each.places))
        for each in changes[:_MOST]
    ]
    yield from columns(rows, indent=10)
    if changes[_MOST:]:
        yield f"          ... and {len(changes) - _MOST} more"


def cost_diff_data(diff: CostDiff) -> Data:
    """Return one target as JSON data: bytes and FLOPs as whole numbers, times in seconds."""
    return {
        "same": diff.is_same,
        "basis": diff.after.basis,
        "memory": _sides(diff.memory),
        "parts": {each.name: _sides(each) for each in diff.parts},
        "step_s": diff.seconds and picked(diff.seconds, "before after"),
        "flops": _sides(diff.flops),
        "wire_bytes": _sides(diff.sent),
        "axes": {each.name: _sides(each) for each in diff.axes},
        "unknown": [data_of(uncounted(each)) for each in diff.unknown],
        "rules": [{**picked(each, "rule=name places"), **_sides(each)} for each in diff.rules],
    }


def _sides(change: Change) -> dict[str, int]:
    return {"before": round(change.before), "after": round(change.after)}
