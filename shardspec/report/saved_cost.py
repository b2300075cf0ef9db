"""A saved cost, asked: what a mesh axis, a line of the spec or an array costs in its figures.

`shardspec cost -o cost.json` saves them, so that verbs which run nobody's code can show them. They
are of one spec, target and mesh; where one of these is another now, that is said.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from shardspec.analysis.layout_diff import inputs
from shardspec.diagnostics import Diagnostic, codes, point, words
from shardspec.diagnostics.lines import columns
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec, Target
from shardspec.ir.step import Carried, CarriedKind
from shardspec.language.files import read_argument, read_source
from shardspec.report.cost_json import CostRecord, Sent, read_cost

#: Rows shown of what is sent.
_MOST = 6
_ANEW = "`shardspec cost --step MODULE:FUNCTION -o FILE` makes it anew"


@dataclass(frozen=True, slots=True)
class SavedCost:
    """The figures of a file.

    Attributes:
      name: of the file.
    """

    name: str
    cost: CostRecord = field(repr=False)

    @property
    def title(self) -> str:
        """Return `cost.json (2026-11-22)`."""
        date = self.cost.date
        return f"{self.name} ({date[:10]})" if date else self.name

    def is_of(self, spec: Spec) -> bool:
        """Say whether it is about a spec, by the name of its file."""
        return posixpath.basename(self.cost.spec) == posixpath.basename(spec.source.name)

    def by_line(self, file: str, line: int, spec: Spec) -> list[Sent]:
        """Return what a line of the spec, or of what it extends, has asked for."""
        wanted = _below(file, spec.source.name), line
        return [each for each in self.cost.collectives if wanted in self.lines_of(each)]

    def lines_of(self, sent: Sent) -> set[tuple[str, int]]:
        """Return the lines that asked for a collective, their files as seen from the spec."""
        rules = (cause.rule for cause in sent.because)
        return {(_below(rule.file, self.cost.spec), rule.line) for rule in rules if rule}

    def by_place(self, file: str, line: int) -> list[Sent]:
        """Return what a line of the user's code needs."""
        wanted = f"{posixpath.normpath(file)}:{line}"
        pairs = ((each, each.place) for each in self.cost.collectives)
        return [each for each, at in pairs if at and wanted in (f"{at.file}:{at.line}", at.via)]

    def by_axis(self, name: str) -> list[Sent]:
        """Return what goes over a mesh axis, alone or with others."""
        return [each for each in self.cost.collectives if name in each.mesh_axes]

    def by_arrays(self, paths: Collection[str]) -> list[Sent]:
        """Return what carries one of some arrays, or what their lying so asked for."""
        return [each for each in self.cost.collectives if not _names(each).isdisjoint(paths)]


def saved_cost(name: str, *, is_named: bool = True) -> SavedCost | Diagnostic:
    """Return the saved cost of a file, or what is wrong with it.

    Args:
      is_named: whether a person named the file; what a project names is read as a plain file.
    """
    from pathlib import Path

    source = read_argument(name) if is_named else read_source(Path(name), name=name)
    if isinstance(source, Diagnostic):
        return source
    cost = read_cost(source)
    return cost if isinstance(cost, Diagnostic) else SavedCost(name, cost)


def _below(file: str, spec: str) -> str:
    """Return the name of a file as seen from the folder of a spec; that of a preset as it is."""
    if ":" in file:
        return file
    return posixpath.relpath(posixpath.normpath(file), posixpath.dirname(spec) or ".")


def _names(sent: Sent) -> set[str]:
    return {name for name in (sent.carried.name, *(each.array for each in sent.because)) if name}


# stale


def stale_because(saved: SavedCost, spec: Spec, target: Target) -> str | None:
    """Return what is another than when a cost was saved; None where nothing is."""
    cost, then = saved.cost, saved.cost.inputs
    now = {each.name: each.digest for each in inputs(spec, has_lines=True)}
    changed = [name for name in now if then.get(name) != now[name]]
    said = [f"{words.listed(changed)} changed"] if changed else []
    if cost.target != target.name:
        said.append(f"it is of target {cost.target}")
    elif cost.mesh != target.mesh.sizes:
        said.append(f"its mesh is {' '.join(f'{name}={size}' for name, size in cost.mesh.items())}")
    elif cost.hardware != (target.hardware and str(target.hardware)):
        said.append(f"its hardware is {cost.hardware}")
    return "; ".join(said) or None


def stale_finding(saved: SavedCost, spec: Spec) -> Diagnostic | None:
    """Return the finding that a cost is not of the spec as it is; None where it is."""
    targets = {target.name: target for target in spec.targets}
    target = targets.get(saved.cost.target)
    why = f"the spec has no target {saved.cost.target}"
    if target is not None and not (why := stale_because(saved, spec, target) or ""):
        return None
    message = f"`{saved.name}` is stale: {why}"
    return point(codes.STALE_COST, message, spec.source.whole, help=_ANEW)


# what it says


def axis_lines(saved: SavedCost, name: str, plan: ShardingPlan) -> Iterator[str]:
    """Yield what a mesh axis sends and takes."""
    yield from _lines(saved, saved.by_axis(name), f"{name} sends", plan)
    time = saved.cost.time
    if time is None or saved.cost.target != plan.target.name:
        return
    for axes, taken in time.axes.items():
        if name in axes.split("+"):
            step = words.seconds_text(time.step_s)
            times = f"{words.seconds_text(taken.s)}, {words.seconds_text(taken.exposed_s)} exposed"
            least = saved.cost.at_least("sends", "flops", "time")
            yield f"  {axes} takes ~ {times}, of a step of {least}~ {step}"


def line_lines(saved: SavedCost, file: str, line: int, plan: ShardingPlan) -> Iterator[str]:
    """Yield what a line of the spec sends; nothing where it sends nothing."""
    found = saved.by_line(file, line, plan.spec)
    shared = bytes_of(each for each in found if len(saved.lines_of(each)) > 1)
    if found:
        yield from _lines(saved, found, "this line sends", plan)
    if shared:
        yield f"  {saved.cost.mark} {words.binary_bytes(shared)} of it together with other lines"


def place_lines(saved: SavedCost, file: str, line: int, plan: ShardingPlan) -> Iterator[str]:
    """Yield what a line of the code sends, and who asked for that."""
    found = saved.by_place(file, line)
    yield from _lines(saved, found, f"{file}:{line} sends", plan)
    rules = words.grouped(found, lambda each: tuple(sorted(saved.lines_of(each))))
    for lines, sent in sorted(rules.items(), key=lambda item: -bytes_of(item[1])):
        said = " and ".join(f"{name}:{number}" for name, number in lines)
        size = f"{saved.cost.mark} {words.binary_bytes(bytes_of(sent))}"
        yield f"  {size} of it for {said or 'no line of the spec'}"


def array_lines(saved: SavedCost, paths: Sequence[str], plan: ShardingPlan) -> Iterator[str]:
    """Yield what some arrays send: they are carried, or what lies as they do is."""
    found = saved.by_arrays(frozenset(paths))
    is_one = len(paths) == 1
    what = f"{paths[0]} and its sharding send" if is_one else f"{len(paths)} arrays send"
    yield from _lines(saved, found, what, plan)


def _lines(saved: SavedCost, found: list[Sent], what: str, plan: ShardingPlan) -> Iterator[str]:
    """Yield how much of what is sent some collectives are, which ones, and if that is stale."""
    if saved.cost.source is None:
        yield f"{saved.title} holds no step, and nothing that is sent"
        return
    target = saved.cost.target
    if target != plan.target.name:
        yield f"{saved.title} is of target {target}: --target {target} shows what it says"
        return
    mark = saved.cost.mark
    part = f"{mark} {words.binary_bytes(bytes_of(found))}" if found else "nothing"
    least = saved.cost.at_least("sends")
    part = "unknown" if least and not found else f"{least}{part}"
    whole = f"{least}{mark} {words.binary_bytes(bytes_of(saved.cost.collectives))}"
    yield f"{saved.title}: {what} {part} of {whole} a device and step"
    stale = stale_because(saved, plan.spec, plan.target)
    if stale is not None:
        yield f"  STALE: {stale}; {_ANEW}"
    groups = list(words.grouped(found, operation).values())
    groups.sort(key=bytes_of, reverse=True)
    yield from columns(map(_row, groups[:_MOST]), right=(2, 3), paths=4)
    if len(groups) > _MOST:
        yield f"  and {words.counted(len(groups) - _MOST, 'row')} more"


def bytes_of(found: Iterable[Sent]) -> int:
    """Return what some collectives send in a step."""
    return sum(each.wire_bytes for each in found)


def operation(sent: Sent) -> tuple[object, ...]:
    """Return what collectives of one row agree in: layers that differ in a number are one."""
    return sent.kind, tuple(sorted(sent.mesh_axes)), words.template(sent.carries), sent.place


def carried_by(group: Sequence[Sent]) -> str:
    """Return what collectives of one row carry, their names as one."""
    names = {each.carried.name or "" for each in group}
    name = words.as_one(names, " ..") if any(names) else ""
    return str(Carried(cast(CarriedKind, group[0].carried.kind), name))


def _row(group: list[Sent]) -> tuple[str, ...]:
    first, carried = group[0], carried_by(group)
    axes, size = "+".join(sorted(first.mesh_axes)), words.binary_bytes(bytes_of(group))
    count = sum(each.count for each in group)
    return first.kind, axes, size, f"x{count:.6g}", carried, str(first.place or "unknown")


# findings


def with_cost(found: Diagnostic, saved: SavedCost, spec: Spec) -> Diagnostic:
    """Return a finding with what its line, or else its arrays, cost in the saved figures."""
    span = found.primary.span if found.primary else None
    by: tuple[tuple[str, Callable[[], list[Sent]]], ...] = (
        ("this line", lambda: saved.by_line(span.source.name, span.line, spec) if span else []),
        ("these arrays", lambda: saved.by_arrays(found.arrays)),
    )
    for what, sent in by:
        size = bytes_of(sent())
        if size:
            sent_text = (
                f"{saved.cost.at_least('sends')}{saved.cost.mark} {words.binary_bytes(size)} sent"
            )
            told = f"{what}: {sent_text} per device and step, by {saved.title}"
            return replace(found, notes=(*found.notes, told))
    return found
