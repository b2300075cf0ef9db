"""`shardspec report`: one page about a spec, to look at in a browser."""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
import webbrowser
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from shardspec import pipeline
from shardspec.analysis.comparison import CostDiff
from shardspec.analysis.cost import Cost, cost_of
from shardspec.analysis.layout_diff import TargetDiff, diff_layouts
from shardspec.analysis.spec_step import stated_cost
from shardspec.cli import completion, options, streams
from shardspec.cli import steps as code_steps
from shardspec.cli.request import Request, find_spec, has_errors
from shardspec.cli.streams import FINDINGS, FINE, fail
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.words import binary_bytes, counted
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Params, Spec
from shardspec.language.files import is_revision
from shardspec.lock import diff_forms as forms
from shardspec.report.cost import cost_diff_lines
from shardspec.report.cost_json import cost_record, measured_run
from shardspec.report.html import Html, joined, table, tag
from shardspec.report.page import Shown, page_text, shown_name
from shardspec.report.page_pieces import bar
from shardspec.report.saved_cost import stale_because
from shardspec.report.search_pictures import read_search

if TYPE_CHECKING:
    from shardspec.report.saved_cost import SavedCost
    from shardspec.report.search_pictures import SavedSearch


#: What `--open` alone writes.
_NAME = "report.html"


@options.verb(
    "report",
    *options.ONE_SPEC,
    options.TARGETS,
    options.PHASE,
    code_steps.STEP,
    *code_steps.BASIS,
    code_steps.measured_option(
        "Compare the step with a run that `jax.profiler.trace` captured, a folder or a file.",
        metavar="[TARGET=]RUN",
    ),
    options.COST,
    options.file_option("--search", help="Draw the search that `search -o FILE` saved, too."),
    *options.GIVEN,
    *options.FINDINGS,
    options.option(
        "--diff",
        "sides",
        nargs=2,
        metavar="A B",
        shell_complete=completion.files,
        help="What changed from A to B as well: specs, a lock or `git:REV` for A.",
    ),
    *options.OUTPUT,
    options.flag(
        "--open", "Open it in the browser; without -o, from a folder for temporary files."
    ),
    options.flag(
        "--watch", "Write it again whenever a file that was read changes; Ctrl-C ends it."
    ),
    example="shardspec report spec.yaml -o report.html",
    page="report.md",
)
def command(
    request: Request,
    *,
    measured: code_steps.Measured | None,
    sides: tuple[str, str] | None,
    search: str | None,
    open: bool,
    watch: bool,
) -> None:
    """Write a page about a spec: targets, memory, arrays and why, machines, the step, findings.

    One HTML file that holds all it needs: it works from disk, fetches nothing, and can be mailed or
    kept by a build. A step is the one that `--step` names, that of a saved cost (`--cost FILE`), or
    the one that the spec states by `step:`.
    """
    if importlib.util.find_spec("jinja2") is None:
        fail("`shardspec report` needs jinja2", "pip install 'shardspec[report]'")
    path = _path(request, is_opened=open)
    if sides is not None and request.named:
        fail("--diff names both specs itself", f"take {request.named[0]} out")
    if watch and path == "-":
        fail("--watch writes a file again and again", "name it: `-o page.html`")
    named = (*request.named, *(each for each in sides or () if not is_revision(each)))
    if watch and (request.step_name is not None or measured or "-" in named):
        fail(*streams.NOT_AGAIN)

    def write() -> NoReturn:
        nonlocal open
        text, found = _page(request, measured, sides, search, is_watched=watch)
        request.write_to(path, text)
        if watch:
            request.report(found)
        _finish(path, request, is_opened=open)
        open = False
        raise SystemExit(FINDINGS if has_errors(found) else FINE)

    if watch:
        streams.watched(write, named, request.remark)
    write()


def _page(
    request: Request,
    measured: code_steps.Measured | None,
    sides: tuple[str, str] | None,
    search: str | None,
    *,
    is_watched: bool,
) -> tuple[str, tuple[Diagnostic, ...]]:
    """Return the text of the page, and the findings on it."""
    title, changes = None, None
    if sides is not None:
        request = replace(request, named=(_spec_of(sides[1]),))
        title = " -> ".join(map(shown_name, sides))
        changes = _changes(sides, request)
    spec, diagnostics = request.load()
    params = request.params(spec)
    plans = _plans(spec, params, diagnostics, request)
    names = {None, *(plan.target.name for plan in plans)}
    found = pipeline.check(spec, diagnostics, params).shown
    found = tuple(each for each in found if each.target in names)
    sound = [plan for plan in plans if plan.target.is_sound]

    run = None if measured is None else _run_on_target(measured, sound)
    shown = list(_shown(sound, run, found, request))
    if request.step_name is not None:
        traced = [each.drawn for each in shown if each.drawn is not None]
        found += tuple(each for each in pipeline.step_findings(traced) if each not in found)
    searched = None if search is None else _searched(search, request)
    text = page_text(
        spec, shown, found, title=title, changes=changes, search=searched, is_watched=is_watched
    )
    return text, found


def _path(request: Request, *, is_opened: bool) -> str:
    """Return where the page goes; a terminal is no place for one."""
    if request.output is None and is_opened:
        return str(Path(tempfile.mkdtemp(prefix="shardspec-")) / _NAME)
    if request.output is None and sys.stdout.isatty():
        fail(
            "a page is for a browser, not for a terminal", f"`-o {_NAME}` writes it, `--open` shows"
        )
    if request.output == "-" and is_opened:
        fail("--open opens a file, and `-o -` names none", f"name one, as in `-o {_NAME} --open`")
    request.require_place()
    return request.output or "-"


def _plans(
    spec: Spec, params: Params, diagnostics: Sequence[Diagnostic], request: Request
) -> list[ShardingPlan]:
    """Return a plan for each target that is meant, of phases too; exit where one is not there."""
    names = request.target_names
    plans = pipeline.plans_of_phases(spec, None if params is spec.params else params)
    for name in names:
        if not any(plan.target.is_called(name) for plan in plans):
            request_of_one = Request(table=request.table, target=name, color=request.color)
            request_of_one.choose_target(spec, diagnostics)
    if not plans:
        request.choose_target(spec, diagnostics)
    return [
        plan for plan in plans if not names or any(plan.target.is_called(name) for name in names)
    ]


def _shown(
    plans: Sequence[ShardingPlan],
    run: code_steps.Measured | None,
    found: Sequence[Diagnostic],
    request: Request,
) -> Iterator[Shown]:
    """Yield each target with its cost: without a step where a part of the spec is left out."""
    saved = request.saved_cost(is_asked=False)
    whole = pipeline.without_faults(plans, found)
    for plan in plans:
        if plan in whole:
            is_run = run is not None and run.target == plan.name
            yield _cost(plan, run if is_run else None, saved, request)
        else:
            bare = cost_of(plan)
            bare = replace(bare, memory=replace(bare.memory, is_partial=True))
            note = "no step is counted: a part of the spec cannot be read"
            yield Shown(plan, cost_record(bare), note)


def _run_on_target(
    measured: code_steps.Measured, plans: Sequence[ShardingPlan]
) -> code_steps.Measured:
    """Return a run with the target that it is on; exit where that is not clear."""
    names = [each.name for each in plans if measured.target in (None, each.name)]
    if not measured.run:
        fail("--measured of a report is a run, and not a time", code_steps.RUNS)
    if len(names) != 1:
        which = "several targets" if names else f"no target `{measured.target}`"
        help = f"name one of them: `--measured {plans[0].name if plans else 'TARGET'}=RUN`"
        fail(f"--measured is a run on one target, and the page has {which}", help)
    return measured._replace(target=names[0])


def _cost(
    plan: ShardingPlan,
    run: code_steps.Measured | None,
    saved: SavedCost | None,
    request: Request,
) -> Shown:
    """Return a target with its cost: that of code, a saved cost, or the spec."""
    is_free = request.step_name is None and run is None
    if is_free and saved is not None and saved.is_of(plan.spec):
        stale = stale_because(saved, plan.spec, plan.target)
        if saved.cost.target == plan.target.name:
            note = f"from {saved.title}{f', which is STALE: {stale}' if stale else ''}"
            return Shown(plan, saved.cost, note)
    cost = _step_costs((plan,), request)[0]
    record = cost_record(cost)
    if run is not None:
        compared = code_steps.comparison(run.run, cost, request)
        record = replace(record, measured=measured_run(compared))
    return Shown(plan, record, drawn=cost)


def _searched(name: str, request: Request) -> SavedSearch:
    """Return the search that a file holds; exit with 2 where it is none."""
    return request.need(read_search(*request.sources([name])))


def _step_costs(plans: Sequence[ShardingPlan], request: Request) -> tuple[Cost, ...]:
    """Return the costs of targets, of the step that is named or that the spec states."""
    if request.step_name is not None:
        return code_steps.step_costs(plans, request)
    return tuple(map(stated_cost, plans))


# what changed


def _spec_of(name: str) -> str:
    """Return the file that the page is about."""
    if name.endswith(".lock"):
        fail(f"{name} is a lock, and a page shows a spec", "name the spec that it was made from")
    return find_spec(name) if os.path.isdir(name) else name


def _changes(sides: tuple[str, str], request: Request) -> Html:
    """Return what `diff` says of two specs, and what became of a step where both have one."""
    from shardspec.cli.diff import at_revision, cost_diffs, side_of

    new = _spec_of(sides[1])
    old = find_spec(sides[0]) if os.path.isdir(sides[0]) else sides[0]
    before, after = side_of(at_revision(old, new), request), side_of(new, request)
    diffs = [
        diff
        for diff in diff_layouts(before.layout, after.layout, before.reasons, after.reasons)
        if not request.target_names or diff.name in request.target_names
    ]
    plans = (before.plans, after.plans)
    costs = cost_diffs(plans, diffs, lambda pair: _step_costs(pair, request))
    return diff_piece(diffs, list(costs) if all(plans) else [], *sides)


def _finish(path: str, request: Request, *, is_opened: bool) -> None:
    if path == "-" or streams.is_dry_run():
        return
    size = os.path.getsize(path)
    request.remark(f"{path}: {size / 1024:,.0f} KiB")
    if is_opened and not webbrowser.open(Path(path).resolve().as_uri()):
        request.remark(f"no browser was found: open {path} yourself")


# What moved between two layouts, as a piece of a page: before and after, and what moved it.


#: Rows of one cause.
_MOST_ROWS = 60


def diff_piece(
    diffs: Sequence[TargetDiff], costs: Sequence[CostDiff], before: str, after: str
) -> Html:
    """Return what changed from `before` to `after`: each target, then what moved and why.

    Args:
      costs: of a step, on the targets where both sides have one.
    """
    changed = [diff for diff in diffs if not diff.is_same]
    if not changed and all(cost.is_same for cost in costs):
        return tag("p", forms.unchanged(diffs, before, after))
    first = ("target", "arrays per device, before", "after")
    headings = (*first, "change", "arrays changed", "restore")
    rows = map(_row, diffs)
    steps = {cost.target: cost for cost in costs}
    details = (_details(diff, steps.get(diff.name)) for diff in diffs if diff in changed)
    lone = (_step(cost) for cost in costs if cost.target not in {diff.name for diff in changed})
    return joined((table(headings, rows, (1, 2, 4), class_="stack"), *details, *lone))


def _row(diff: TargetDiff) -> tuple[str, ...]:
    if diff.before is None or diff.after is None:
        size = binary_bytes(diff.present.per_device_bytes)
        sizes = (size, "") if diff.after is None else ("", size)
        return (diff.name, *sizes, "gone" if diff.after is None else "new", "", "")
    old, new = diff.before.per_device_bytes, diff.after.per_device_bytes
    kind = "up" if new > old else "down" if new < old else None
    change = tag("span", forms.bytes_change(old, new), class_=kind)
    moved = forms.restore_text(diff) if diff.moves else ""
    return diff.name, binary_bytes(old), binary_bytes(new), change, str(len(diff.moves)), moved


def _details(diff: TargetDiff, cost: CostDiff | None) -> Html:
    machine = tag("span", forms.machine(diff.present), class_="quiet")
    inner = [tag("summary", tag("b", diff.name), " ", machine)]
    if diff.before is not None and diff.after is not None:
        inner.append(_bars(diff.before.per_device_bytes, diff.after.per_device_bytes))
        if diff.machine_changed:
            inner.append(tag("pre", forms.machine_change(diff.before, diff.after), tabindex="0"))
    inner += [piece for cause in forms.causes(diff) for piece in _cause(cause)]
    for before, after in diff.activations:
        inner.append(tag("p", f"activation {forms.activation_change(before, after)}"))
    if cost is not None:
        inner.append(_step(cost))
    return tag("details", *inner, class_="change", open=True)


def _bars(before: int, after: int) -> Html:
    """Return two bars to one scale."""
    whole = max(before, after)
    rows = (
        tag("div", tag("span", name, class_="quiet"), bar((("part-parameters", "", size),), whole))
        for name, size in (("before", before), ("after", after))
    )
    return tag("div", *rows, class_="sides")


def _cause(cause: forms.Cause) -> Iterator[Html]:
    texts = "; ".join(forms.cause_texts(cause))
    mark = tag("span", str(cause.mark), class_="mark", title=forms.MEANING[cause.mark])
    count = counted(len(cause.moves), "array")
    yield tag("h3", mark, f" {count}, {forms.MEANING[cause.mark]}")
    if texts != forms.MEANING[cause.mark]:
        yield tag("p", tag("code", texts))
    rows = forms.move_rows(cause)
    cells = (
        (row.title, row.before, row.after, *map(binary_bytes, (row.bytes_before, row.bytes_after)))
        for row in rows[:_MOST_ROWS]
    )
    headings = ("array", "before", "after", "bytes before", "after")
    yield table(headings, cells, (3, 4), class_="moves")
    if len(rows) > _MOST_ROWS:
        yield tag("p", f"and {len(rows) - _MOST_ROWS} more groups", class_="quiet")


def _step(cost: CostDiff) -> Html:
    return tag("pre", "\n".join(cost_diff_lines(cost)), tabindex="0")
