"""What a search over a traced step found, for people and as JSON, `shardspec.cure/1`."""

from __future__ import annotations

import json
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardspec.analysis.cost import Cost
from shardspec.analysis.memory import WAY_OUT
from shardspec.analysis.step_memory import MARKS
from shardspec.cure.figures import LEAST_GAIN, Figures
from shardspec.cure.lines import Line
from shardspec.cure.patching import Patched, Refused
from shardspec.cure.searching import Found
from shardspec.diagnostics.lines import columns
from shardspec.diagnostics.words import binary_bytes, counted, percent, seconds_text
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec
from shardspec.ir.step import Added, Cure, rows_of
from shardspec.programs.op_names import shown
from shardspec.report.table import target_title
from shardspec.search.variants import Candidate
from shardspec.versions import CURE_JSON, PACKAGE


@dataclass(frozen=True, slots=True)
class Tried:
    """Lines that were written into the code, which was traced again.

    Attributes:
      lines: none for the step as it is.
      figures: of the traced step; of its compiled program where `cost` is a compiler's.
      patches: the files with the lines, or why they cannot be written.
      cost: None where the step could not be traced with them.
      why: what went wrong, or why no compiler answered.
      candidate: the mesh, where it is not that of the target.
      saved: policies of `jax.checkpoint` that save other names: file, line, names.
      is_late: whether the time ended before it was traced again, or compiled.
    """

    lines: tuple[Line, ...]
    figures: Figures
    patches: tuple[Patched, ...] | Refused = ()
    cost: Cost | None = None
    why: str = ""
    candidate: Candidate | None = None
    saved: tuple[tuple[str, int, tuple[str, ...]], ...] = ()
    is_late: bool = False

    @property
    def basis(self) -> str | None:
        """Return where the figures are from; None where the step could not be traced."""
        return None if self.cost is None else self.cost.basis


@dataclass(frozen=True, slots=True)
class OtherMeshes:
    """A step on other meshes.

    Attributes:
      late: meshes for which there was no time.
      failed: mesh, and why the step could not be traced or priced on it.
    """

    tried: tuple[Tried, ...]
    late: int = 0
    failed: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class OtherNames:
    """A step whose policies of `jax.checkpoint` save other names.

    Attributes:
      policies: how many the code has.
      names: that the code gives its values.
      tried: the best first.
      late: sets of names for which there was no time.
    """

    policies: int
    names: tuple[str, ...]
    tried: tuple[Tried, ...] = ()
    late: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """A search, and its answers as they were tried.

    Attributes:
      base: the step as it is.
      answers: the best first.
      beyond: values that are made outside of the working folder, or that no line can constrain;
        `mapped` of them are inside of `jax.vmap`.
      trials: how many were priced.
      seconds: since the command began; `within_s` is what it may take.
      late: trials that were not, for want of time.
      has_lines: whether lines were searched for.
      meshes: what the step takes on other meshes with the best lines, the best first; None where
        none were asked for.
      names: the same where values of other names are saved.
      untraced: answers that were not traced again since the time ended.
      unproved: programs that were not compiled since the time ended.
    """

    base: Tried
    answers: tuple[Tried, ...]
    found: Found | None
    beyond: int
    trials: int
    late: int
    within_s: float
    seconds: float = 0.0
    has_lines: bool = True
    meshes: OtherMeshes | None = None
    mapped: int = 0
    names: OtherNames | None = None
    untraced: int = 0
    unproved: int = 0

    @property
    def unfinished(self) -> dict[str, int]:
        """Return what was not done since the time ended, by what it is."""
        names = 0 if self.names is None else self.names.late
        meshes = 0 if self.meshes is None else self.meshes.late
        counts = {
            "trials": self.late,
            "answers": self.untraced,
            "programs": self.unproved,
            "names": names,
            "meshes": meshes,
        }
        return {what: count for what, count in counts.items() if count}

    @property
    def refuted(self) -> tuple[Tried, ...]:
        """Return the answers that earn too little once they are tried."""
        return tuple(e for e in self._sound if not e.figures.is_better(self.base.figures))

    @property
    def best(self) -> Tried | None:
        """Return the best answer that can be written and earns its place by the best figures."""
        found = (e for e in self._sound if e.figures.is_better(self.base.figures))
        return min(found, key=lambda each: each.figures.rank, default=None)

    @property
    def _sound(self) -> tuple[Tried, ...]:
        """Return the answers that could be traced."""
        return tuple(each for each in self.answers if each.cost is not None)

    @property
    def today(self) -> Tried:
        """Return the step on the mesh of its target, with the best lines."""
        return self.best or self.base

    @property
    def mesh(self) -> Tried | None:
        """Return the best mesh where it is better than today's with the best lines."""
        return self._better(() if self.meshes is None else self.meshes.tried)

    @property
    def remat(self) -> Tried | None:
        """Return the best names to save, where they are better than those that the code saves."""
        tried = () if self.names is None else self.names.tried
        best = self._better(tried)
        if best is None:
            return None
        alike = [e for e in tried if e.basis == best.basis]
        as_good = [e for e in alike if not best.figures.is_better(e.figures, _AS_GOOD)]
        return min(as_good, key=lambda each: sum(len(names) for _, _, names in each.saved))

    def _better(self, tried: Sequence[Tried]) -> Tried | None:
        """Return the best of the authority of today's figures, where it is better than these."""
        today = self.today
        alike = (each for each in tried if each.basis == today.basis)
        found = min(alike, key=lambda each: each.figures.rank, default=None)
        return found if found is not None and found.figures.is_better(today.figures) else None


def report_lines(report: Report, *, is_taken: bool = False) -> Iterator[str]:
    """Yield what `shardspec search` prints of a traced step.

    Args:
      is_taken: whether the spec gets the best mesh.
    """
    cost = report.base.cost
    assert cost is not None, "the step as it is was traced"
    target = target_title(cost.target).removeprefix("target ")
    place = f"   step at {cost.step.place}" if cost.step and cost.step.place.is_known else ""
    yield f"{cost.plan.spec.source.name}   {target}   mesh {cost.plan.mesh.heading}{place}"
    if report.has_lines:
        yield from _lines(report, cost.plan.spec)
    if report.names is not None:
        yield ""
        yield from _names(report, report.names)
    if report.meshes is not None:
        yield ""
        yield from _meshes(report, report.meshes, is_taken=is_taken)
    if report.unfinished:
        yield ""
        yield f"stopped by `--within {report.within_s:g}`: {'; '.join(_unfinished(report))}"
    if (report.mesh or report.today).figures.fits is False:
        yield ""
        yield f"it does not fit: {WAY_OUT}"


def _unfinished(report: Report) -> Iterator[str]:
    """Yield what a longer search would have done."""
    for what, count in report.unfinished.items():
        one, done = _UNFINISHED[what]
        yield f"{counted(count, one)} {done.format(was='was' if count == 1 else 'were')}"
    if "trials" in report.unfinished:
        longer = f"`--within {2 * report.within_s:g}`"
        yield f"{longer}, or a step with fewer layers, tries more"


#: What was not done, by its word in JSON.
_UNFINISHED = {
    "trials": ("layout", "{was} not tried in the part of it that trials have"),
    "answers": ("answer", "{was} not traced again"),
    "programs": ("program", "{was} not compiled"),
    "names": ("set", "of names to save {was} not tried"),
    "meshes": ("mesh", "{was} not tried"),
}


def _lines(report: Report, spec: Spec) -> Iterator[str]:
    """Yield the lines that were tried, and what the best of them gain."""
    best = report.best
    yield f"    {_searched(report)}"
    if best is not None and report.refuted:
        yield f"    {_refuted(report)}"
    yield ""
    yield from _table(report)
    yield ""
    if best is None:
        yield nothing(report)
        return
    lines = counted(sum(len(each.layouts) for each in best.lines), "line")
    yield f"add {lines}: {_gain(report.base.figures, best.figures)}"
    yield from _written(best, spec)
    yield from _others(report, best)


def _meshes(report: Report, meshes: OtherMeshes, *, is_taken: bool) -> Iterator[str]:
    """Yield the step on other meshes, and what the best of them gains."""
    cost, best = report.base.cost, report.mesh
    assert cost is not None, "the step as it is was traced"
    lines = "with these lines" if report.best is not None else "with the code as it is"
    others = [each for each in meshes.tried if each is best or not _is_today(each, cost.plan)]
    if not others and meshes.late and not meshes.failed:
        yield "unknown whether another mesh is better"
        return
    yield f"{counted(len(others), 'other mesh')}, {lines}"
    now = ("now", *_cells(_by_model_among(report.today, others)), f"{cost.plan.mesh}")
    shown = enumerate(others[:_MOST_MESHES], 1)
    rows = [(str(at), *_cells(each), str(each.candidate)) for at, each in shown]
    cells = [("", "step", "sends", "memory", "mesh"), now, *rows]
    yield from columns(cells, right=(0,), is_prose=True)
    for mesh, why in meshes.failed[:_MOST_FAILED]:
        yield f"  not priced: {mesh}: {why}"
    more = len(meshes.failed) - _MOST_FAILED
    if more > 0:
        yield f"  not priced: {more:,} more"
    yield ""
    if not others:
        why = "could be priced" if meshes.failed or meshes.late else "goes with these devices"
        yield f"no other mesh {why}"
    elif best is None:
        tried = " that was tried" if meshes.late else ""
        yield f"no other mesh{tried} saves {_LEAST}"
    else:
        take = f"{cost.plan.spec.source.name} gets" if is_taken else "take"
        yield f"{take} {best.candidate}: {_gain(report.today.figures, best.figures)}"
        if best.candidate is not None and "microbatches" in dict(best.candidate.variant.changes):
            yield "    with other sums: a step of microbatches adds up in another order"


def _is_today(tried: Tried, plan: ShardingPlan) -> bool:
    """Say whether a mesh is that of a plan, perhaps with a tile that was chosen for it."""
    found, target = tried.candidate, plan.target
    if found is None or found.variant.changes or found.order != plan.spec.policy.order:
        return False
    pairs = zip(found.mesh.axes, target.mesh.axes, strict=False)
    is_same = all(replace(one, auto=False) == replace(two, auto=False) for one, two in pairs)
    return is_same and found.mesh.names == target.mesh.names and found.hardware == target.hardware


def _by_model_among(today: Tried, others: Sequence[Tried]) -> Tried:
    """Return a compiled step by the model, where all that it is compared with is by the model."""
    model = None if today.cost is None else today.cost.predicted
    if model is None or any(each.basis == "compiled" for each in others):
        return today
    return replace(today, cost=model, figures=Figures.of(model))


def _names(report: Report, names: OtherNames) -> Iterator[str]:
    """Yield the step with other names saved, and what the best of them gains."""
    if not names.policies or not names.names:
        what = "names no value by `checkpoint_name`" if names.policies else "has none with names"
        yield f"no policy of `jax.checkpoint` is searched: the code {what}"
        return
    lines = "with these lines" if report.best is not None else "with the code as it is"
    yield f"{counted(len(names.tried), 'set')} of names to save, {lines}"
    rows = [(str(at), *_cells(e), _saved(e)) for at, e in enumerate(names.tried[:_MOST_MESHES], 1)]
    cells = [("", "step", "sends", "memory", "saved"), ("now", *_cells(report.today), ""), *rows]
    yield from columns(cells, right=(0,), is_prose=True)
    yield ""
    if report.remat is None:
        tried = " that were tried" if names.late else ""
        yield f"no other names{tried} save {_LEAST}"
    else:
        gain = _gain(report.today.figures, report.remat.figures)
        yield f"save {_saved(report.remat)}: {gain}"


def _saved(tried: Tried) -> str:
    """Return what policies save: `query, key at model.py:7`."""
    return "; ".join(
        f"{', '.join(names) or 'nothing'} at {shown(file)}:{line}"
        for file, line, names in tried.saved
    )


#: What a line saves at the least.
_LEAST = f"{LEAST_GAIN:.0%}".replace("%", " %")
#: Of names that take at most so much more, the fewest are saved.
_AS_GOOD = 0.02
#: Meshes, and meshes that could not be priced, that are shown.
_MOST_MESHES, _MOST_FAILED = 8, 3


def _searched(report: Report) -> str:
    if report.found is None:
        why = "the time ended" if report.late else "the step cannot be priced"
        return f"{why}: nothing was searched"
    sites, layouts = report.found.sites, report.found.layouts
    told = f"searched {counted(sites, 'value')} and {counted(layouts, 'layout')}: "
    told += f"{counted(report.trials, 'trial')} in {seconds_text(report.seconds)}"
    if report.beyond:
        told += f"; no line can constrain {counted(report.beyond, 'other value')}"
    if report.mapped:
        told += f", {report.mapped} of them inside of `jax.vmap`, where they have no batch"
    if not sites and report.beyond > report.mapped:
        told += ": files outside of this folder are not changed, so start in that of the code"
    return told


def _refuted(report: Report) -> str:
    """Return how many answers were tried, and how many of them earn too little."""
    how = "compiled" if report.base.basis == "compiled" else "traced again"
    tried = f"{counted(len(report._sound), 'answer')} {how}"
    verb = "it saves" if len(report.refuted) == 1 else "they save"
    return f"{tried}; {len(report.refuted)} refuted: {verb} less than {_LEAST}"


def _table(report: Report) -> Iterator[str]:
    tried = [
        each
        for each in report.answers
        if each.cost is not None and each.figures.is_better(report.base.figures)
    ] or report.answers
    rows = [("now", report.base), *((str(at), each) for at, each in enumerate(tried, 1))]
    cells = [(name, *_cells(each), _places(each)) for name, each in rows]
    yield from columns([("", "step", "sends", "memory", "at"), *cells], right=(0,), is_prose=True)


def _cells(tried: Tried) -> tuple[str, str, str]:
    figures, cost = tried.figures, tried.cost
    mark = "~" if cost is None else MARKS[cost.basis]
    time = "unknown" if figures.seconds is None else f"~ {seconds_text(figures.seconds)}"
    memory = f"{mark} {binary_bytes(figures.memory)}"
    room = {False: ", does not fit", None: ", may not fit", True: ""}[figures.fits]
    return time, f"{mark} {binary_bytes(figures.bytes)}", memory + room


def _places(tried: Tried) -> str:
    places = ", ".join(dict.fromkeys(_place(line) for line in tried.lines))
    if tried.cost is not None:
        return places
    return f"{places}   {tried.why if tried.is_late else f'not tried: {tried.why}'}"


def _place(line: Line) -> str:
    at = line.site.at
    return "`params` of the spec" if at is None else f"{shown(at.file)}:{at.line}"


def _gain(before: Figures, after: Figures) -> str:
    told = []
    if before.seconds and after.seconds:
        times = before.seconds / after.seconds
        if times > _FASTER:
            told.append(f"{_times(times)} as fast")
        else:
            told.append("as fast" if times * _FASTER > 1 else f"takes {_times(1 / times)} as long")
    if before.bytes > after.bytes:
        less = _times(before.bytes / max(1.0, after.bytes))
        told.append(f"sends {less} less ({_by_axis(before, after)})")
    if before.fits is False and after.fits is not False:
        told.append("fits")
    return ", ".join(told)


def _times(share: float) -> str:
    digits = 0 if share >= _ROUND else 1
    return f"{share:,.{digits}f} times"


#: From here on a step is faster; from here on a factor is whole.
_FASTER, _ROUND = 1.01, 20


def _by_axis(before: Figures, after: Figures) -> str:
    old, new = dict(before.sent), dict(after.sent)
    axes = sorted(old.keys() | new.keys(), key=lambda axes: -old.get(axes, 0.0))
    return ", ".join(
        f"{axes} {binary_bytes(old.get(axes, 0))} -> {binary_bytes(new.get(axes, 0))}"
        for axes in axes[:_MOST_AXES]
    )


_MOST_AXES = 3


def cure_of(report: Report) -> Cure:
    """Return what a search found, for the help of findings."""
    best = report.best
    if best is None or best.cost is None:
        return Cure((), "")
    lines = tuple(
        Added(file, line.site.at.line if line.site.at else 0, "" if "\n" in text else text)
        for line, file, text in _texts(best, best.cost.plan.spec)
    )
    gain = _gain(report.base.figures, best.figures).partition(" (")[0]
    return Cure(lines, f"{gain}, {'compiled' if best.basis == 'compiled' else 'by the model'}")


def _texts(tried: Tried, spec: Spec) -> Iterator[tuple[Line, str, str]]:
    """Yield each line with the file that it changes, and what is written there."""
    patches = () if isinstance(tried.patches, Refused) else tried.patches
    waiting = {each.file: list(each.lines) for each in patches}
    for line in tried.lines:
        at = line.site.at
        file = spec.source.name if at is None or line.site.place else at.file
        texts = waiting.get(file, [])
        yield line, file, texts.pop(0) if texts else ""


def _written(tried: Tried, spec: Spec) -> Iterator[str]:
    step = None if tried.cost is None else tried.cost.step
    given = () if step is None else step.arguments
    data = rows_of(each for each in given if not each.is_guess)
    for line, _, text in _texts(tried, spec):
        yield f"    {_place(line)}"
        yield from (f"        {each}" for each in text.split("\n"))
        rules = dict.fromkeys(rule for each in line.layouts for rule in _rules(each, spec))
        if rules:
            yield f"            by {', '.join(rules)}"
        yield from (f"            {doubt}" for doubt in _doubts(line, spec, data))


def _doubts(line: Line, spec: Spec, data: Container[int]) -> Iterator[str]:
    """Yield which dimensions are taken for the batch without proof, where they could be others.

    Args:
      data: how many rows the data of the step has; no doubt about the only dimension of so many.
    """
    sizes = {axis.name: axis.size for axis in spec.logical_axes}
    site = line.site
    for dim, name in zip(site.order, line.layouts[0].names.split(), strict=True):
        if "batch" not in name or not site.rows or site.rows[dim] is not None:
            continue
        own = site.shape[dim]
        alike = [e for e, size in sizes.items() if size == own and "batch" not in e]
        is_data = own in data and site.shape.count(own) == 1
        if alike or (sizes.get(name) is None and not is_data):
            other = " or ".join(alike) or "another dimension"
            yield f"guess: {name}; the code does not tell it from {other} of {site.shape[dim]}"


def _rules(layout: Any, spec: Spec) -> Iterator[str]:
    """Yield the rules that place a layout."""
    for name, axes in zip(layout.names.split(), layout.split, strict=True):
        found = next(
            (r for r in spec.axis_rules if r.logical_axis == name and r.mesh_axes == axes), None
        )
        if axes and found is not None:
            place = "" if found.span is None else f" {found.span.place}"
            yield f"{name} -> {' '.join(axes)}{place}"


def _others(report: Report, best: Tried) -> Iterator[str]:
    """Yield why others lost, and how far away the best may be."""
    lost = [each for each in report.answers if each is not best and each.cost is not None]
    for each in lost[:1]:
        yield f"runner-up  {_places(each)}: {_against(best.figures, each.figures)}"
    together = None if report.found is None else report.found.together
    if report.found is not None and together is not None:
        modelled = dict(report.found.tried).get(best.lines, best.figures)
        yield f"with every value constrained  {_against(modelled, together)}"


def _against(best: Figures, other: Figures) -> str:
    time = "" if other.seconds is None else f"~ {seconds_text(other.seconds)}, "
    more = other.bytes / best.bytes - 1 if best.bytes else 0.0
    size = binary_bytes(other.bytes)
    if abs(more) < _SAME:
        return f"{time}{size}, the same"
    if more >= _MANY_TIMES:
        return f"{time}{size}, {_times(more + 1)} as much sent"
    return f"{time}{size}, {percent(abs(more), 1)} {'more' if more > 0 else 'less'} sent"


#: Shares of bytes: from where on they differ, and from where on a factor is shown.
_SAME, _MANY_TIMES = 0.005, 9.0


def nothing(report: Report) -> str:
    """Return why no line is added; what is before its colon says whether that is known."""
    if report.found is None:
        return "unknown whether a line helps" if report.late else "nothing to add is known"
    if report.answers and all(each.is_late for each in report.answers):
        return "unknown whether a line helps: the time ended before an answer was traced again"
    if report.answers and all(each.cost is None for each in report.answers):
        return f"nothing to add: {report.answers[0].why}"
    if report.answers:
        return f"nothing to add: {_refuted(report)}"
    if report.late >= report.trials:
        every = report.late + report.trials
        return f"unknown whether a line helps: {report.trials} of {counted(every, 'layout')} tried"
    return f"nothing to add: no line that was tried saves {_LEAST} of the time or of the bytes sent"


def report_text(report: Report, patch: str) -> str:
    """Return a search as JSON. Equal searches have equal texts, apart from `seconds`."""
    cost, found = report.base.cost, report.found
    assert cost is not None, "the step as it is was traced"
    data = {
        "schema": CURE_JSON,
        "made_by": f"shardspec {PACKAGE}",
        "spec": cost.plan.spec.source.name,
        "target": cost.target.name,
        "values": None if found is None else found.sites,
        "layouts": None if found is None else found.layouts,
        "trials": report.trials,
        "late": report.late,
        "refuted": len(report.refuted),
        "elsewhere": report.beyond,
        "mapped": report.mapped,
        "seconds": round(report.seconds, 3),
        "unfinished": report.unfinished,
        "now": _row(report.base),
        "together": None if found is None or found.together is None else _data(found.together),
        "best": None if report.best is None else report.answers.index(report.best),
        "answers": [_row(each) for each in report.answers],
        **_names_data(report),
        **_meshes_data(report),
        "patch": patch,
    }
    return json.dumps(data, indent=2) + "\n"


def _row(tried: Tried) -> dict[str, Any]:
    lines = [_line(each) for each in tried.lines]
    return {"lines": lines, "basis": tried.basis, **_data(tried.figures), "why": tried.why}


def _names_data(report: Report) -> dict[str, Any]:
    """Return the names to save; nothing where none were asked for."""
    if report.names is None:
        return {}
    keys = ("file", "line", "names")
    rows = [
        {
            "saved": [dict(zip(keys, (shown(e[0]), *e[1:]), strict=True)) for e in each.saved],
            "basis": each.basis,
            **_data(each.figures),
            "why": each.why,
        }
        for each in report.names.tried
    ]
    best = None if report.remat is None else report.names.tried.index(report.remat)
    return {"remat": best, "names": rows, "names_late": report.names.late}


def _meshes_data(report: Report) -> dict[str, Any]:
    """Return the meshes; nothing where none were asked for."""
    meshes = report.meshes
    if meshes is None:
        return {}
    rows = [_mesh_row(each) for each in meshes.tried]
    failed = [{"mesh": mesh, "why": why} for mesh, why in meshes.failed]
    best = None if report.mesh is None else meshes.tried.index(report.mesh)
    return {"mesh": best, "meshes": rows, "meshes_late": meshes.late, "meshes_failed": failed}


def _mesh_row(tried: Tried) -> dict[str, Any]:
    found = tried.candidate
    assert found is not None, "of a mesh"
    return {
        "sizes": dict(found.mesh.sizes),
        "mesh": found.mesh_text,
        "hardware": str(found.hardware),
        "order": found.order,
        "changes": dict(found.variant.changes),
        "basis": tried.basis,
        **_data(tried.figures),
        "why": tried.why,
    }


def _line(line: Line) -> dict[str, Any]:
    at = line.site.at
    return {
        "file": None if at is None else shown(at.file),
        "line": None if at is None else at.line,
        "path": line.site.path or None,
        "mapped": line.site.vmaps,
        "shape": list(line.site.shape),
        "names": [each.names for each in line.layouts],
        "partition": [[list(axes) for axes in each.split] for each in line.layouts],
    }


def _data(figures: Figures) -> dict[str, Any]:
    return {
        "fits": figures.fits,
        "step_s": figures.seconds,
        "sends": figures.bytes,
        "by_axis": dict(figures.sent),
        "memory": figures.memory,
    }


def ordered(found: Sequence[Tried]) -> tuple[Tried, ...]:
    """Return answers, the best first; those that could not be traced come last."""
    return tuple(sorted(found, key=lambda each: (each.cost is None, each.figures.rank)))
