"""`shardspec diff`: what moved between two specs, two locks, or two revisions."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, cast

import click

from shardspec import pipeline
from shardspec.analysis import layout_diff
from shardspec.analysis.layout_diff import Layout, Mark, TargetDiff, held_by, layout_of, reasons_of
from shardspec.cli import completion, options
from shardspec.cli.request import NO_ARRAYS, Request, find_spec, matching, unknown_path
from shardspec.cli.steps import BASIS, STEP, comparison, is_run, step_costs
from shardspec.cli.streams import FINDINGS, FINE, echo, fail, show
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.words import binary_bytes, counted, percent, seconds_text, tallied
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec
from shardspec.lock.diff_forms import (
    diff_lines,
    diff_text,
    machine_change,
    markdown_lines,
    unchanged,
)

if TYPE_CHECKING:
    from shardspec.analysis.comparison import CostDiff
    from shardspec.analysis.cost import Cost

_GIT = "git:"
_GROWTH = re.compile(
    r"(?P<kind>memory|traffic|time)\+(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>%|[KMGT]iB|B)"
)
_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


@options.verb(
    "diff",
    click.Argument(["old"], required=False, shell_complete=completion.files),
    click.Argument(["new"], required=False, shell_complete=completion.files),
    options.NAMED,
    options.TARGET,
    STEP,
    *BASIS,
    options.ARRAYS,
    options.ONLY,
    *options.FINDINGS,
    options.format_option("text", "md", "json"),
    options.option(
        "--between",
        nargs=2,
        metavar="A B",
        help="Two sides of one spec: a target, a phase, or `phase@target`.",
    ),
    options.repeated(
        "--fail-on",
        "limits",
        metavar="WHAT",
        help="Exit 1 only for this: memory+5%, memory+64MiB, reshard, or change; of a step,"
        " traffic+5% or time+5%.",
    ),
    example="shardspec diff spec.lock spec.yaml",
    page="ci.md",
)
def command(
    request: Request,
    *,
    old: str | None,
    new: str | None,
    between: tuple[str, str] | None,
    limits: Sequence[str],
) -> None:
    """Show what moved, the line that moved it, and what a restore would have to reshard.

    OLD and NEW are specs, folders with one, locks (`spec.lock`), or `git:REV` for the other side's
    file at a revision (`git:REV:PATH` for another). NEW left out is the spec of this project, as
    the other verbs find it; which one that is is said.

    `--between A B` compares two targets or phases of one spec: what moves when live arrays go from
    one to the other, as from a trainer to what serves.

    With `--step`, also what the change does to a step of your own code, which is traced under both
    specs: memory, time, what is sent over each mesh axis, and the rules that did it. The exit code
    is by the model's figures, so that it is the same on every machine; `--basis compiler` has it
    judged by the compiler's.

    OLD and NEW may be two captured runs, folders of `jax.profiler.trace` or files: it shows by rule
    and line of the code what became slower. With `--step`, rules of activations are known, too.
    """
    if old is not None and new is not None and is_run(old) and is_run(new):
        parsed = [_limit(text, has_step=True) for text in limits]
        raise SystemExit(_print_runs((old, new), parsed, request))
    has_step = request.step_name is not None
    parsed = [_limit(text, has_step=has_step) for text in limits]
    before, after = _sides(old, new, between, request)
    plans = (before.plans, after.plans)
    _need_arrays(parsed, before, after, request, has_step=has_step)
    diffs = layout_diff.diff_layouts(before.layout, after.layout, before.reasons, after.reasons)
    if between:
        (here,), (there,) = plans
        diffs = tuple(replace(diff, held_by=held_by(here, there)) for diff in diffs)
    else:
        diffs = _of_target(diffs, request.target)
    costs: tuple[CostDiff, ...] = ()
    if has_step and (before.errors or after.errors):
        request.undone("no step is traced under a spec with errors")
    elif has_step:
        costs = tuple(cost_diffs(plans, diffs, lambda pair: step_costs(pair, request)))
    judged = costs if request.basis == "compiler" else [each.by_model for each in costs]
    failed = list(_failed(parsed or [_limit("change")], diffs, judged))
    if after.errors:
        failed.append(f"errors: {after.name} has {counted(len(after.errors), 'error')}")
    _print(diffs, costs, before, after, request.form, failed, "reshard" if between else "restore")
    request.report(after.errors)
    if before.errors:
        request.remark(f"{before.name} has {counted(len(before.errors), 'error')} of its own")
    for said in failed:
        request.remark(f"exit {FINDINGS} for {said}")
    raise SystemExit(FINDINGS if failed else FINE)


def _need_arrays(
    limits: Sequence[Limit], before: Side, after: Side, request: Request, *, has_step: bool
) -> None:
    """Say that a side lists no arrays; fail where a limit needs them: a step has its own memory."""
    sides = [
        side.name for side in (before, after) if not any(t.arrays for t in side.layout.targets)
    ]
    if not sides:
        return
    empty = f"{' and '.join(dict.fromkeys(sides))} {'list' if len(sides) > 1 else 'lists'} none"
    needing = ("reshard",) if has_step else ("memory", "reshard")
    limit = next((each for each in limits if each.kind in needing), None)
    if limit is not None:
        fail(f"--fail-on {limit.text} compares arrays, and {empty}", NO_ARRAYS)
    if not has_step:
        said = f"no arrays are compared: {empty}"
        if len(sides) == 1:
            shown = "gone" if sides == [after.name] else "new"
            said = f"{sides[0]} lists no arrays, so all are {shown}"
        request.remark(f"{said}; {NO_ARRAYS}")


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a diff.

    Attributes:
      reasons: None for a lock, which keeps none.
      plans: none for a lock.
      errors: what is wrong with its plans; a lock was free of errors when it was made.
    """

    name: str
    layout: Layout = field(repr=False)
    reasons: layout_diff.Reasons | None = field(default=None, repr=False)
    plans: tuple[ShardingPlan, ...] = field(default=(), repr=False)
    errors: tuple[Diagnostic, ...] = ()


def _sides(
    old: str | None, new: str | None, between: tuple[str, str] | None, request: Request
) -> tuple[Side, Side]:
    if between:
        sides = _two_sides(_only_spec(old, new, request), between, request)
    else:
        sides = _old_and_new(old, new, request)
    if request.only is None:
        return sides
    before, after = _only(request.only, *sides)
    return before, after


def cost_diffs(
    sides: Iterable[Sequence[ShardingPlan]],
    diffs: Iterable[TargetDiff],
    costs_of: Callable[[Sequence[ShardingPlan]], Sequence[Cost]],
) -> Iterator[CostDiff]:
    """Yield what a step costs on both sides of each target that both have; fail for a lock."""
    from shardspec.analysis.comparison import CostDiff

    by_name = [{plan.name: plan for plan in plans} for plans in sides]
    if not all(by_name):
        fail("--step runs under two specs, and a lock is none", "name the specs, or `git:REV`")
    for diff in diffs:
        if diff.before is not None and diff.after is not None:
            names = (diff.before.name, diff.after.name)
            costs = costs_of([plans[name] for plans, name in zip(by_name, names, strict=True)])
            if all(cost.step is not None for cost in costs):
                yield CostDiff.of(diff.name, *costs)


def _print_runs(runs: tuple[str, str], limits: Sequence[Limit], request: Request) -> int:
    """Print what became slower from one captured run to another; return the exit code."""
    from shardspec.analysis.comparison import run_diff
    from shardspec.analysis.spec_step import stated_cost
    from shardspec.report.comparison import run_diff_lines
    from shardspec.report.cost_json import run_diff_text

    plan, _ = request.plan()
    found, at_model = stated_cost(plan), replace(request, basis="model")
    if request.step_name is not None:
        (found,) = step_costs((plan,), at_model)
    else:
        request.remark("rules of activations are known with `--step MODULE:FUNCTION`")
    before, after = (comparison(run, found, at_model) for run in runs)
    rows = run_diff(before, after)
    if request.form == "json":
        echo(run_diff_text(before, after, rows).rstrip("\n"))
    else:
        show(run_diff_lines(before, after, rows))
    for each in limits:
        if each.kind != "time":
            fail(f"--fail-on {each.text} is of no captured run", "as in `--fail-on time+5%`")
    failed = [each for each in limits if not each.allows(before.seconds, after.seconds)]
    for each in failed:
        request.remark(f"exit {FINDINGS} for {each.text}")
    return FINDINGS if failed else FINE


def _old_and_new(old: str | None, new: str | None, request: Request) -> tuple[Side, Side]:
    """Return both sides of two files, or of two states of one."""
    if old is None:
        help = "as in `shardspec diff git:HEAD`, or `shardspec diff --between TARGET TARGET`"
        fail("diff compares two sides, and none is named", help)
    if new is None:
        new = request.spec_file()
        _tell_of_found(old, new, request)
    old, new = (find_spec(name) if os.path.isdir(name) else name for name in (old, new))
    return side_of(at_revision(old, new), request), side_of(at_revision(new, old), request)


def _only_spec(old: str | None, new: str | None, request: Request) -> str:
    """Return the spec of `--between`; fail where there are two, or a target as well."""
    if new is not None:
        fail(f"--between is about one spec, and these are {old} and {new}", "name one of them")
    if request.target is not None:
        help = f"as in `--between {request.target} OTHER`"
        fail("--between names both targets itself; take --target out", help)
    if old is None:
        return request.spec_file()
    if old.endswith(".lock"):
        fail(f"{old} is a lock, and --between asks a spec", "name the spec that it was made from")
    return find_spec(old) if os.path.isdir(old) else old


def _two_sides(file: str, names: tuple[str, str], request: Request) -> tuple[Side, Side]:
    """Return two targets or phases of one spec."""
    spec, plans, diagnostics = _plans(file, request)
    pair = request.need(pipeline.two_of(plans, names))
    for plan in pair:
        request.require_sound(plan.target, diagnostics)
    errors = pipeline.findings(spec, list(dict.fromkeys(pair))).errors
    first, second = (
        Side(plan.name, layout_of(plan.spec, [plan]), reasons_of([plan]), (plan,)) for plan in pair
    )
    return first, replace(second, errors=errors)


def _tell_of_found(old: str, new: str, request: Request) -> None:
    """Say what a single name is compared with; a lock or a revision has its own spec."""
    if request.named or old.startswith(_GIT):
        return
    if os.path.realpath(old) == os.path.realpath(new):
        help = f"name what to compare it with, as in `shardspec diff git:HEAD {new}`"
        fail(f"{old} is the spec of this project, so both sides are one", help)
    other = f"`shardspec diff {old} OTHER` names another"
    request.remark(f"compared with {new}, the spec found here: {other}")


def _only(glob: str, *sides: Side) -> Iterator[Side]:
    """Yield both sides with the arrays of one path or glob alone; fail where neither has one."""
    paths = dict.fromkeys(
        array.path for side in sides for target in side.layout.targets for array in target.arrays
    )
    kept = matching(glob, paths) or unknown_path(glob, list(paths))
    for side in sides:
        targets = tuple(
            replace(target, arrays=tuple(each for each in target.arrays if each.path in kept))
            for target in side.layout.targets
        )
        yield replace(side, layout=replace(side.layout, targets=targets))


def at_revision(name: str, other: str) -> str:
    """Return `git:REV` with the path of the other side."""
    if not name.startswith(_GIT) or ":" in name.removeprefix(_GIT):
        return name
    if other.startswith(_GIT):
        fail(f"`{name}` names no file, and nor does `{other}`", f"as in `{name}:spec.yaml`")
    return f"{name}:./{os.path.relpath(other)}"


def _plans(
    name: str, request: Request
) -> tuple[Spec, tuple[ShardingPlan, ...], tuple[Diagnostic, ...]]:
    """Return a spec, its plans, and what loading found; exit with 2 where it has errors."""
    spec, diagnostics = request.load(name)
    faults = [diagnostic for diagnostic in diagnostics if diagnostic.is_error]
    if faults:
        request.refuse(faults)
    plans = pipeline.plans_of_phases(spec, request.params(spec))
    if not plans:
        fail(f"{name} has no target", "add `mesh: {data: 8}`, or `targets:` with a mesh each")
    return spec, plans, diagnostics


def side_of(name: str, request: Request) -> Side:
    """Return the side that a spec, a revision of one, or a lock is; exit where it has faults."""
    if name.endswith(".lock"):
        return _locked(name, request)
    spec, plans, diagnostics = _plans(name, request)
    for plan in plans:
        request.require_sound(plan.target, diagnostics)
    errors = pipeline.findings(spec, plans).errors
    return Side(name, layout_of(spec, plans), reasons_of(plans), plans, errors)


def _locked(name: str, request: Request) -> Side:
    from shardspec.lock.lock_file import read_lock

    return Side(name, request.need(read_lock(*request.sources([name]))))


def _of_target(diffs: tuple[TargetDiff, ...], name: str | None) -> tuple[TargetDiff, ...]:
    if name is None:
        return diffs
    found = tuple(diff for diff in diffs if diff.name == name)
    if not found:
        fail(f"no target is called `{name}`", f"targets: {', '.join(diff.name for diff in diffs)}")
    return found


def _print(
    diffs: tuple[TargetDiff, ...],
    costs: Sequence[CostDiff],
    before: Side,
    after: Side,
    form: str,
    failed: Sequence[str],
    moving: str = "restore",
) -> None:
    if form == "json":
        from shardspec.report.cost import cost_diff_data

        steps = {each.target: cost_diff_data(each) for each in costs}
        echo(diff_text(diffs, before.name, after.name, failed, steps).rstrip("\n"))
        return
    if form == "md":
        lines = list(markdown_lines(diffs, before.name, after.name))
        lines += ["", "```", *_step_lines(costs), "```"] if costs else []
    else:
        lines = list(diff_lines(diffs, moving))
        if lines:
            lines = [f"{before.name} -> {after.name}", "", *lines]
        else:
            lines = [unchanged(diffs, before.name, after.name)]
        lines += ["", *_step_lines(costs)] if costs else []
    show(lines)


def _step_lines(costs: Sequence[CostDiff]) -> Iterator[str]:
    from shardspec.report.cost import cost_diff_lines

    for number, each in enumerate(costs):
        if number:
            yield ""
        yield from cost_diff_lines(each)


# --fail-on: how much may move

Kind = Literal["memory", "traffic", "time", "reshard", "change"]


@dataclass(frozen=True, slots=True)
class Limit:
    """One condition that fails a diff.

    Attributes:
      text: as it was asked for.
      share: growth of the bytes per device, 0.05 for 5 %.
      bytes: growth in bytes, where it is stated so.
    """

    kind: Kind
    text: str
    share: float | None = None
    bytes: float | None = None

    def allows(self, before: float, after: float) -> bool:
        """Say whether a figure may be what it has become."""
        if self.share is not None:
            return after <= before * (1 + self.share)
        return after <= before + (self.bytes or 0)


def _limit(text: str, *, has_step: bool = False) -> Limit:
    """Return the limit that `text` states."""
    if text in ("reshard", "change"):
        return Limit(cast("Kind", text), text)
    found = _GROWTH.fullmatch(text)
    if found is None or (found["kind"] == "time" and found["unit"] != "%"):
        help = "as in memory+5%, memory+64MiB, reshard, change; of a step, traffic+5%, time+5%"
        fail(f"--fail-on {text}: no such limit", help)
    kind = cast("Kind", found["kind"])
    if kind != "memory" and not has_step:
        fail(f"--fail-on {text} is about a step", "name it: `--step train:step`")
    number = float(found["number"])
    if found["unit"] == "%":
        return Limit(kind, text, share=number / 100)
    return Limit(kind, text, bytes=number * _UNITS[found["unit"]])


def _failed(
    limits: Sequence[Limit], diffs: Sequence[TargetDiff], costs: Sequence[CostDiff]
) -> Iterator[str]:
    """Yield what moved beyond each limit that something did move beyond."""
    for limit in limits:
        over = [(diff.name, _over(limit, diff)) for diff in diffs]
        over += [(cost.target, _step_over(limit, cost)) for cost in costs]
        told = "; ".join(f"{name}: {said}" for name, said in over if said is not None)
        if told:
            yield f"{limit.text}: {told}"


def _step_over(limit: Limit, cost: CostDiff) -> str | None:
    """Return what of a step went beyond the limit on one target; None where nothing did."""
    from shardspec.report.cost import change_text

    if limit.kind == "change":
        return None if cost.is_same else "the step costs otherwise"
    change = {"traffic": cost.sent, "time": cost.seconds}.get(limit.kind)
    if change is None or limit.allows(change.before, change.after):
        return None
    return change_text(change, seconds_text if limit.kind == "time" else binary_bytes)


def _over(limit: Limit, diff: TargetDiff) -> str | None:
    """Return what moved beyond the limit on one target; None where nothing did."""
    if limit.kind == "change":
        return None if diff.is_same else _changed(diff)
    if limit.kind == "reshard":
        still = {Mark.SAME, Mark.NEW, Mark.GONE, Mark.MEMORY}
        count = sum(move.mark not in still for move in diff.moves)
        return f"{counted(count, 'array')} to reshard" if count else None
    return _grown(limit, diff) if limit.kind == "memory" else None


def _changed(diff: TargetDiff) -> str:
    if diff.before is None or diff.after is None:
        return "new" if diff.before is None else "gone"
    marks = Counter(move.mark for move in diff.moves)
    moved = len(diff.moves) - marks[Mark.SAME] - marks[Mark.NEW] - marks[Mark.GONE]
    said = tallied((moved, "array"), (len(diff.activations), "activation"))
    found = [f"{said} moved"] if said else []
    found += [
        f"{counted(marks[mark], 'array')} {mark}" for mark in (Mark.NEW, Mark.GONE) if marks[mark]
    ]
    if found:
        return ", ".join(found)
    was, now = (each.mesh.heading for each in (diff.before, diff.after))
    if was != now:
        return f"mesh {was} -> {now}"
    if diff.machine_changed:
        return machine_change(diff.before, diff.after).partition("\n")[0]
    return f"{counted(marks[Mark.SAME], 'array')} placed the same by another rule"


def _grown(limit: Limit, diff: TargetDiff) -> str | None:
    if diff.before is None or diff.after is None:
        return None
    before, after = diff.before.per_device_bytes, diff.after.per_device_bytes
    if limit.allows(before, after):
        return None
    more = f", +{percent(after - before, before)}" if before else ""
    return f"{binary_bytes(before)} -> {binary_bytes(after)} per device{more}"
