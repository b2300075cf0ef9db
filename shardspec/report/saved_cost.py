"""A saved cost, asked: what a mesh axis, a line of the spec or an array costs in its figures.

`shardspec cost -o cost.json` saves them, so that verbs which run nobody's code can show them. They
are of one spec, target and mesh; where one of these is another now, that is said.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from shardspec.analysis.layouts import inputs
from shardspec.diagnostics import Diagnostic, Span, codes, point
from shardspec.diagnostics.lines import columns
from shardspec.diagnostics.words import (
    as_one,
    binary_bytes,
    counted,
    grouped,
    listed,
    seconds_text,
    template,
)
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec, Target
from shardspec.ir.step import Carried
from shardspec.language.files import read_argument, read_source
from shardspec.report.cost_json import Data, at_least, read_data

#: Rows shown of what is sent.
_MOST = 6
_ANEW = "`shardspec cost --step MODULE:FUNCTION -o FILE` makes it anew"


@dataclass(frozen=True, slots=True)
class SavedCost:
    """The figures of a file.

    Attributes:
      name: of the file.
      data: as the schema describes it.
    """

    name: str
    data: Data = field(repr=False)

    @property
    def title(self) -> str:
        """Return `cost.json (2026-11-22)`."""
        date = self.data.get("date")
        return f"{self.name} ({date[:10]})" if date else self.name

    @property
    def sent(self) -> list[Data]:
        """Return the collectives."""
        found: list[Data] = self.data["collectives"]
        return found

    def is_of(self, spec: Spec) -> bool:
        """Say whether it is about a spec, by the name of its file."""
        name: str = self.data["spec"]
        return posixpath.basename(name) == posixpath.basename(spec.source.name)

    def by_line(self, file: str, line: int, spec: Spec) -> list[Data]:
        """Return what a line of the spec, or of what it extends, has asked for."""
        wanted = _below(file, spec.source.name), line
        return [each for each in self.sent if wanted in self.lines_of(each)]

    def lines_of(self, sent: Data) -> set[tuple[str, int]]:
        """Return the lines that asked for a collective, their files as seen from the spec."""
        rules = (cause["rule"] for cause in sent["because"])
        return {(_below(rule["file"], self.data["spec"]), rule["line"]) for rule in rules if rule}

    def by_place(self, file: str, line: int) -> list[Data]:
        """Return what a line of the user's code needs."""
        wanted = {"file": posixpath.normpath(file), "line": line}
        return [each for each in self.sent if each["place"] == wanted]

    def by_axis(self, name: str) -> list[Data]:
        """Return what goes over a mesh axis, alone or with others."""
        return [each for each in self.sent if name in each["mesh_axes"]]

    def by_arrays(self, paths: Collection[str]) -> list[Data]:
        """Return what carries one of some arrays, or what their lying so asked for."""
        return [each for each in self.sent if not _names(each).isdisjoint(paths)]


def saved_cost(name: str, *, is_named: bool = True) -> SavedCost | Diagnostic:
    """Return the saved cost of a file, or what is wrong with it.

    Args:
      is_named: whether a person named the file; what a project names is read as a plain file.
    """
    from pathlib import Path

    source = read_argument(name) if is_named else read_source(Path(name), name=name)
    if isinstance(source, Diagnostic):
        return source
    data = read_data(source)
    return data if isinstance(data, Diagnostic) else SavedCost(name, data)


def _below(file: str, spec: str) -> str:
    """Return the name of a file as seen from the folder of a spec; that of a preset as it is."""
    if ":" in file:
        return file
    return posixpath.relpath(posixpath.normpath(file), posixpath.dirname(spec) or ".")


def _names(sent: Data) -> set[str]:
    return {sent["carried"]["name"], *(cause["array"] for cause in sent["because"])} - {None}


# stale


def stale_because(saved: SavedCost, spec: Spec, target: Target) -> str | None:
    """Return what is another than when a cost was saved; None where nothing is."""
    then: dict[str, str] = saved.data["inputs"]
    now = {each.name: each.digest for each in inputs(spec)}
    changed = [name for name in now if then.get(name) != now[name]]
    mesh = {axis.name: axis.size for axis in target.mesh.axes}
    said = [f"{listed(changed)} changed"] if changed else []
    if saved.data["target"] != target.name:
        said.append(f"it is of target {saved.data['target']}")
    elif saved.data["mesh"] != mesh:
        said.append(f"its mesh is {_mesh(saved.data['mesh'])}")
    elif saved.data["hardware"] != (target.hardware and str(target.hardware)):
        said.append(f"its hardware is {saved.data['hardware']}")
    return "; ".join(said) or None


def _mesh(mesh: dict[str, int]) -> str:
    return " ".join(f"{name}={size}" for name, size in mesh.items())


def stale_finding(saved: SavedCost, spec: Spec) -> Diagnostic | None:
    """Return the finding that a cost is not of the spec as it is; None where it is."""
    targets = {target.name: target for target in spec.targets}
    target = targets.get(saved.data["target"])
    why = f"the spec has no target {saved.data['target']}"
    if target is not None and not (why := stale_because(saved, spec, target) or ""):
        return None
    message = f"`{saved.name}` is stale: {why}"
    return point(codes.STALE_COST, message, spec.source.whole, help=_ANEW)


# what it says


def axis_lines(saved: SavedCost, name: str, plan: ShardingPlan) -> Iterator[str]:
    """Yield what a mesh axis sends and takes."""
    yield from _lines(saved, saved.by_axis(name), f"{name} sends", plan)
    time = saved.data["time"]
    if time is None or saved.data["target"] != plan.target.name:
        return
    for axes, taken in time["axes"].items():
        if name in axes.split("+"):
            step = seconds_text(time["step_s"])
            times = f"{seconds_text(taken['s'])}, {seconds_text(taken['exposed_s'])} exposed"
            least = at_least(saved.data, "sends", "flops", "time")
            yield f"  {axes} takes ~ {times}, of a step of {least}~ {step}"


def line_lines(saved: SavedCost, file: str, line: int, plan: ShardingPlan) -> Iterator[str]:
    """Yield what a line of the spec sends; nothing where it sends nothing."""
    found = saved.by_line(file, line, plan.spec)
    shared = bytes_of(each for each in found if len(saved.lines_of(each)) > 1)
    if found:
        yield from _lines(saved, found, "this line sends", plan)
    if shared:
        yield f"  ~ {binary_bytes(shared)} of it together with other lines"


def place_lines(saved: SavedCost, file: str, line: int, plan: ShardingPlan) -> Iterator[str]:
    """Yield what a line of the code sends, and who asked for that."""
    found = saved.by_place(file, line)
    yield from _lines(saved, found, f"{file}:{line} sends", plan)
    rules = grouped(found, lambda each: tuple(sorted(saved.lines_of(each))))
    for lines, sent in sorted(rules.items(), key=lambda item: -bytes_of(item[1])):
        said = " and ".join(f"{name}:{number}" for name, number in lines)
        yield f"  ~ {binary_bytes(bytes_of(sent))} of it for {said or 'no line of the spec'}"


def array_lines(saved: SavedCost, paths: Sequence[str], plan: ShardingPlan) -> Iterator[str]:
    """Yield what some arrays send: they are carried, or what lies as they do is."""
    found = saved.by_arrays(frozenset(paths))
    is_one = len(paths) == 1
    what = f"{paths[0]}, and how it lies, sends" if is_one else f"{len(paths)} arrays send"
    yield from _lines(saved, found, what, plan)


def _lines(saved: SavedCost, found: list[Data], what: str, plan: ShardingPlan) -> Iterator[str]:
    """Yield how much of what is sent some collectives are, which ones, and if that is stale."""
    if saved.data["source"] is None:
        yield f"{saved.title} holds no step, and nothing that is sent"
        return
    if saved.data["target"] != plan.target.name:
        target = saved.data["target"]
        yield f"{saved.title} is of target {target}: --target {target} shows what it says"
        return
    part = f"~ {binary_bytes(bytes_of(found))}" if found else "nothing"
    least = at_least(saved.data, "sends")
    part = "unknown" if least and not found else f"{least}{part}"
    whole = f"{least}~ {binary_bytes(bytes_of(saved.sent))}"
    yield f"{saved.title}: {what} {part} of {whole} a device and step"
    stale = stale_because(saved, plan.spec, plan.target)
    if stale is not None:
        yield f"  STALE: {stale}; {_ANEW}"
    groups = list(grouped(found, operation).values())
    groups.sort(key=bytes_of, reverse=True)
    yield from columns(map(_row, groups[:_MOST]), right=(2, 3), paths=4)
    if len(groups) > _MOST:
        yield f"  and {counted(len(groups) - _MOST, 'row')} more"


def bytes_of(found: Iterable[Data]) -> int:
    """Return what some collectives send in a step."""
    return sum(each["wire_bytes"] for each in found)


def operation(sent: Data) -> tuple[object, ...]:
    """Return what collectives of one row agree in: layers that differ in a number are one."""
    place = sent["place"] and (sent["place"]["file"], sent["place"]["line"])
    return sent["kind"], tuple(sorted(sent["mesh_axes"])), template(sent["carries"]), place


def _row(group: list[Data]) -> tuple[str, ...]:
    first = group[0]
    carried: Carried = Carried(first["carried"]["kind"], _named(group))
    place = f"{first['place']['file']}:{first['place']['line']}" if first["place"] else "unknown"
    count = sum(each["count"] for each in group)
    sent = binary_bytes(bytes_of(group))
    return (
        first["kind"],
        "+".join(sorted(first["mesh_axes"])),
        sent,
        f"x{count:.6g}",
        str(carried),
        place,
    )


def _named(group: list[Data]) -> str:
    names = {each["carried"]["name"] or "" for each in group}
    return as_one(names, " ..") if names != {""} else ""


# findings


def with_cost(found: Diagnostic, saved: SavedCost, spec: Spec) -> Diagnostic:
    """Return a finding with what its line, or else its arrays, cost in the saved figures."""
    span = found.primary.span if found.primary else None
    by: tuple[tuple[str, Callable[[], list[Data]]], ...] = (
        ("this line", lambda: _of_span(saved, span, spec)),
        ("these arrays", lambda: saved.by_arrays(found.arrays)),
    )
    for what, sent in by:
        size = bytes_of(sent())
        if size:
            least = at_least(saved.data, "sends")
            told = (
                f"{what}: {least}~ {binary_bytes(size)} sent per device and step, by {saved.title}"
            )
            return replace(found, notes=(*found.notes, told))
    return found


def _of_span(saved: SavedCost, span: Span | None, spec: Spec) -> list[Data]:
    return [] if span is None else saved.by_line(span.source.name, span.line, spec)
