"""`shardspec check`: every finding over all targets of one or many specs, and the fixes of some.

Files are fixed in memory, and written once, at the end.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from shardspec import fixing, pipeline
from shardspec.cli import options, streams
from shardspec.cli.edits import diff_text, write
from shardspec.cli.request import MOST_IN_FULL, Request, has_errors, project_path
from shardspec.cli.steps import BASIS_OF_A_GATE, STEP, report_modelled, step_costs
from shardspec.cli.streams import FAILED, FINDINGS, FINE, echo, show
from shardspec.diagnostics import Diagnostic, Severity, codes
from shardspec.diagnostics.budget import SpentError, limited
from shardspec.diagnostics.render import render, render_concise
from shardspec.diagnostics.words import counted, tallied
from shardspec.fixing import fixes_within
from shardspec.ir.spec import Spec
from shardspec.language.files import decode, read_argument, read_stdin

if TYPE_CHECKING:
    from shardspec.report.findings_forms import Baseline

#: Entries of a baseline that are shown when they no longer occur.
_MOST_FIXED = 10
#: Findings that leave nothing to check.
_NO_JOB = (codes.UNREADABLE, codes.UNKNOWN_TARGET)


@options.verb(
    "check",
    *options.SPECS,
    options.TARGET,
    options.PHASE,
    STEP,
    *BASIS_OF_A_GATE,
    *options.GIVEN,
    options.COST,
    *options.FINDINGS,
    options.option("--pedantic", "is_pedantic", is_flag=True, help="Also report matters of taste."),
    options.file_option(
        "--baseline",
        help="Show only what is not in this baseline; else by `[tool.shardspec] baseline`.",
    ),
    options.file_option(
        "--write-baseline", "new_baseline", help="Write all findings of this run into a baseline."
    ),
    options.flag("--fix", "Apply the safe fixes, in place."),
    options.flag("--diff", "Show what --fix would change; write nothing."),
    options.flag("--watch", "Check again whenever a file that was read changes; Ctrl-C ends it."),
    options.flag("--unsafe-fixes", "With --fix or --diff: also fixes that may change the meaning."),
    options.format_option("full", "concise", "json", "github", "sarif"),
    example="shardspec check spec.yaml",
    page="checking.md",
)
def command(
    request: Request,
    *,
    baseline: str | None,
    new_baseline: str | None,
    fix: bool,
    diff: bool,
    unsafe_fixes: bool,
    watch: bool,
) -> None:
    """Report every mistake in a spec, on all targets; in a folder, in all specs.

    With `--step` it also traces a step of your own code and reports collectives and FLOPs that
    the step does not need (SHD503 to SHD523). Only then does it run code.
    """
    _refuse_pairs(request.step_name, new_baseline, fix=fix, diff=diff, unsafe_fixes=unsafe_fixes)

    def run() -> NoReturn:
        files = request.spec_files()
        if request.step_name is not None and len(files) > 1:
            streams.fail(f"--step for {len(files)} specs", "name the one spec that it runs under")
        if diff:
            raise SystemExit(_diff(Fixing(files, request, unsafe_fixes)))
        old = _old_baseline(baseline, new_baseline, request)
        if fix:
            checked, notes = _fix(Fixing(files, request, unsafe_fixes))
        else:
            checked, notes = [check_file(each, request) for each in files], []
        asked = _asked(request)
        if new_baseline:
            old = _write_baseline(new_baseline, checked, request, asked)
        if old is not None:
            checked = _compared(old, checked, asked, notes)
        _print_findings(checked, request, notes, has_fixed=fix)
        _tell_of_hidden(checked, request)
        raise SystemExit(_exit_code(_all(checked)))

    if watch:
        if request.step_name is not None or "-" in request.named:
            streams.fail(*streams.NOT_AGAIN)
        streams.watched(run, request.named, request.remark)
    run()


def _refuse_pairs(
    step_name: str | None, new_baseline: str | None, *, fix: bool, diff: bool, unsafe_fixes: bool
) -> None:
    """Refuse options that cannot go together."""
    if new_baseline and diff:
        streams.fail("--write-baseline with --diff", "--diff writes nothing: leave it out")
    if unsafe_fixes and not (fix or diff):
        streams.fail("--unsafe-fixes alone fixes nothing", "add --fix or --diff")
    if step_name is not None and (fix or diff):
        streams.fail(
            "--step with --fix or --diff", "fix first: no finding of a step can be fixed here"
        )


def _tell_of_hidden(checked: Sequence[Checked], request: Request) -> None:
    """Say that code which loads the spec does not know of this command's flags."""
    hidden = sum(each.hidden for each in checked)
    if hidden:
        request.remark(
            f"{counted(hidden, 'error')} not shown under --ignore or --select. `shardspec.load` and"
            " `Resolver` do not know of these flags and refuse the spec: `lints:` in it, or"
            " `[tool.shardspec.lints]`, counts for them, too."
        )


def _all(checked: Sequence[Checked]) -> tuple[Diagnostic, ...]:
    return tuple(chain.from_iterable(each.diagnostics for each in checked))


def _exit_code(found: Sequence[Diagnostic]) -> int:
    if any(diagnostic.code in _NO_JOB for diagnostic in found):
        return FAILED
    return FINDINGS if has_errors(found) else FINE


def _fix(run: Fixing) -> tuple[list[Checked], list[str]]:
    """Fix the files; return what is found afterwards, and what to say of the fixes."""
    run.run()
    write(run.changed)
    if "-" in run.files:
        streams.echo_bytes(run.stdin_text())
    notes = [f"not done, since the text could not be read then: {t}" for t in run.refused]
    return run.checked, [*notes, f"Fixed {run.counted}."]


def _diff(run: Fixing) -> int:
    """Show what fixing would change; return the exit code."""
    run.run()
    streams.echo_data(diff_text(run.changed))
    run.request.remark(f"Would fix {run.counted}.")
    if _exit_code(_all(run.checked)) == FAILED:
        return FAILED
    return FINDINGS if run.changed else FINE


# a baseline


def _old_baseline(name: str | None, new: str | None, request: Request) -> Baseline | None:
    """Return the baseline to compare with; None where there is none, or a new one is written."""
    if new:
        request.require_place(new, "baseline")
        return None
    name = name or project_path("baseline", is_needed=False)
    return _read_baseline(name) if name else None


def _read_baseline(name: str) -> Baseline:
    """Return a baseline; exit with 2 where it cannot be read."""
    from shardspec.report.findings_forms import read_baseline

    way_out = "`shardspec check --write-baseline FILE` writes a new one"
    source = read_argument(name)
    if isinstance(source, Diagnostic):
        streams.fail(f"cannot read the baseline {name}: {source.message}", source.help or way_out)
    found = read_baseline(source)
    if isinstance(found, str):
        streams.fail(f"{name} is no baseline: {found}", way_out)
    return found


def _write_baseline(
    name: str, checked: Sequence[Checked], request: Request, asked: tuple[str, ...]
) -> Baseline | None:
    """Write what was found into a baseline, and return it; None where a spec could not be read."""
    from shardspec.report.findings_forms import Baseline

    if name == "-":
        streams.fail(
            "--write-baseline - names no file", "name one: paths in it start from its folder"
        )
    if _exit_code(_all(checked)) == FAILED:
        request.undone(f"{name} is not written: not everything could be read")
        return None
    old = _read_baseline(name) if os.path.exists(name) else Baseline(name, {})
    new = old.rewritten({each.file: each.diagnostics for each in checked}, asked)
    request.write_to(name, new.text(), "baseline")
    request.remark(f"wrote {name}")
    return new


def _asked(request: Request) -> tuple[str, ...]:
    """Return the options that decide what is found."""
    table = request.table
    asked: dict[str, list[str | None]] = {
        "--target": [request.target],
        "--phase": [request.phase],
        "--arrays": [request.arrays],
        "--step": [request.step_name],
        "--set": [f"{key}={value}" for key, value in sorted(request.settings.items())],
        "--select": [*sorted(table.select)],
        "--ignore": [*sorted(table.ignore)],
    }
    said = [f"{flag} {value}" for flag, values in asked.items() for value in values if value]
    return (*said, *(["--pedantic"] if table.is_pedantic else []))


def _compared(
    baseline: Baseline, checked: Sequence[Checked], asked: tuple[str, ...], notes: list[str]
) -> list[Checked]:
    """Return what of the findings is new; add what to say of the others to the notes."""
    parts = [baseline.compared(each.file, each.diagnostics, asked) for each in checked]
    new = [
        each._replace(diagnostics=part.new, known=len(part.known), fixed=len(part.fixed))
        for each, part in zip(checked, parts, strict=True)
    ]
    fixed = [entry for part in parts for entry in part.fixed]
    notes += (
        f"fixed: {each.code} in {each.file}: {each.message}" for each, _ in fixed[:_MOST_FIXED]
    )
    if fixed:
        count = counted(sum(count for _, count in fixed), "finding")
        notes.append(f"{count} of the baseline fixed: remove with --write-baseline {baseline.path}")
    known = [each for part in parts for each in part.known]
    if known:
        are = "finding of the baseline is" if len(known) == 1 else "findings of the baseline are"
        errors = sum(each.is_error for each in known)
        still = f"; `shardspec.load` still raises for {counted(errors, 'error')} among them"
        notes.append(f"{len(known)} {are} not shown{still if errors else ''}.")
    return new


# what is printed


def _print_findings(
    checked: Sequence[Checked], request: Request, notes: Sequence[str], *, has_fixed: bool
) -> None:
    """Print what was found, and what it was found in.

    Args:
      notes: what else is to be said before the last line.
      has_fixed: whether fixes were taken, and none is offered.
    """
    found = _all(checked)
    is_data = request.form != "full"
    err = has_fixed and any(each.file == "-" for each in checked)  # stdout holds the fixed text
    if is_data:
        for text in _texts(found, request.form, _scope(checked)):
            echo(text, err=err)
    else:
        _print_full(found, request.color, err=err)
    if request.is_quiet:
        return
    for note in notes:
        show([note], err=err or is_data)
    if request.form not in ("json", "sarif"):
        show(_closing(found, checked, has_fixed=has_fixed), err=err or is_data)


def _scope(checked: Sequence[Checked]) -> dict[str, int]:
    """Return how much was checked."""
    scope = {
        "files": len(checked),
        "arrays": sum(each.arrays for each in checked),
        "activations": sum(each.activations for each in checked),
        "targets": sum(each.targets for each in checked),
    }
    if any(each.known is None for each in checked):
        return scope
    known, fixed = (sum(each.known or 0 for each in checked), sum(each.fixed for each in checked))
    return {**scope, "known": known, "fixed": fixed}


def _texts(found: Sequence[Diagnostic], form: str, scope: Mapping[str, int]) -> list[str]:
    if form == "concise":
        return [render_concise(diagnostic) for diagnostic in found]
    from shardspec.report import findings_forms as forms

    if form == "github":
        return list(forms.commands(found))
    return [(forms.sarif_text if form == "sarif" else forms.findings_text)(found, scope)]


def _print_full(found: Sequence[Diagnostic], color: str, *, err: bool) -> None:
    stream = 2 if err else 1
    paint, width = streams.wants_color(color, stream), streams.width_of(stream)
    for diagnostic in found[:MOST_IN_FULL]:
        echo(render(diagnostic, color=paint, width=width) + "\n", err=err, is_painted=True)
    if len(found) > MOST_IN_FULL:
        rest = len(found) - MOST_IN_FULL
        echo(f"... and {rest} more: --format concise shows one a line\n", err=err)


def _closing(
    found: Sequence[Diagnostic], checked: Sequence[Checked], *, has_fixed: bool
) -> list[str]:
    """Return `Found 2 errors in 1 file (723 arrays, 3 targets).   Details: ...`."""
    count = _scope(checked)
    named = [counted(count["arrays"], "array"), counted(count["targets"], "target")]
    if not count["arrays"] and count["activations"]:
        named.insert(1, counted(count["activations"], "activation"))
    scope = f"{counted(len(checked), 'file')} ({', '.join(named)})"
    if not found:
        return [_without_findings(scope, checked)]
    worst = next((diagnostic for diagnostic in found if diagnostic.is_error), found[0])
    errors = sum(diagnostic.is_error for diagnostic in found)
    warnings = sum(diagnostic.severity is Severity.WARNING for diagnostic in found)
    parts = tallied((errors, "error"), (warnings, "warning"))
    said = f"Found {parts} in {scope}.   Details: shardspec explain {worst.code.id}"
    return [said] if has_fixed else [said, *_fixable(found, [each.file for each in checked])]


def _without_findings(scope: str, checked: Sequence[Checked]) -> str:
    """Return that there are no findings; of what lists no arrays, that its text alone was read."""
    bare = sum(each.is_bare for each in checked)
    none = "No new findings" if any(each.known for each in checked) else "No findings"
    if not bare:
        return f"{none} in {scope}."
    if bare == len(checked):
        help = "`arrays:`, `manifest:` or --arrays says what to check"
        return f"{none} in the text of {scope}; nothing else was checked: {help}."
    verb = "lists" if bare == 1 else "list"
    return f"{none} in {scope}; {bare} of them {verb} no arrays: only the text was checked."


def _fixable(found: Sequence[Diagnostic], files: Sequence[str]) -> list[str]:
    """Return how many findings `--fix` would mend, where it would any."""
    if not any(diagnostic.fix for diagnostic in found):
        return []
    fixes = tuple(dict.fromkeys(fixes_within(found, files)))
    sure = sum(fix.is_sure for fix in fixes)
    unsure = len(fixes) - sure
    parts = [f"{sure} with --fix"] if sure else []
    if unsure:
        parts.append(f"{unsure} {'more ' if sure else ''}with --fix --unsafe-fixes")
    return [f"Fixable: {', '.join(parts)}."] if parts else []


# fixing

_BOM = "\ufeff"


class Checked(NamedTuple):
    """What was found in a file, in how much.

    Attributes:
      hidden: how many errors the command line alone does not want to hear of.
      known: how many findings are in the baseline, and not among these; None without one.
      fixed: how many findings of the baseline no longer occur.
      is_traced: whether a step was checked under it.
    """

    file: str
    diagnostics: tuple[Diagnostic, ...]
    arrays: int = 0
    targets: int = 0
    hidden: int = 0
    activations: int = 0
    known: int | None = None
    fixed: int = 0
    is_traced: bool = False

    @property
    def is_bare(self) -> bool:
        """Say whether there was nothing to lay out, so that only the text was checked."""
        return not (self.arrays or self.activations or self.is_traced)


def check_file(
    file: str,
    request: Request,
    texts: Mapping[str, str] | None = None,
) -> Checked:
    """Return all findings of one spec.

    Args:
      texts: by real path, edits that are not yet written.
    """
    try:
        with limited():
            return _found_in(file, request, texts)
    except SpentError as spent:
        return Checked(file, (spent.finding(file),))


def _found_in(file: str, request: Request, texts: Mapping[str, str] | None) -> Checked:
    spec, faults = pipeline.load_path(
        file,
        request.settings,
        with_manifests=request.arrays is None,
        texts=texts,
        asked=request.table,
    )
    if spec is None:
        return Checked(file, faults)
    return _checked(request.of_phase(spec, faults), faults, request)


def _checked(spec: Spec, faults: tuple[Diagnostic, ...], request: Request) -> Checked:
    params = request.params(spec)
    asked = (request.target, request.phase, request.arrays)
    is_whole = not any(each is not None for each in asked) and not request.settings
    told = pipeline.check(spec, faults, params, request.target, is_whole=is_whole)
    shown = told.shown
    is_traced = request.step_name is not None and not told.errors
    if request.step_name is not None and told.errors:
        request.undone(f"no step is traced: {spec.source.name} has errors")
    elif request.step_name is not None:
        name = request.target
        targets = [each for each in spec.targets if name is None or each.is_called(name)]
        plans = pipeline.compile_plans(spec, params, targets)
        costs = step_costs(plans, request)
        report_modelled(costs, request)
        told = pipeline.check(spec, faults, params, request.target, costs=costs, is_whole=is_whole)
        shown = pipeline.without_axes_of_code(plans[0], told.shown) if plans else told.shown
    shown = _with_cost(shown, spec, request)
    for found in told.found:
        if found.code is codes.PADDED_AXIS and found.code not in {each.code for each in shown}:
            request.remark(f"{spec.source.name}: {found.message}")
    count = (len(params), told.targets, len(told.hidden), len(spec.activations))
    return Checked(spec.source.name, shown, *count, is_traced=is_traced)


def _with_cost(
    shown: tuple[Diagnostic, ...], spec: Spec, request: Request
) -> tuple[Diagnostic, ...]:
    """Return findings with what their lines cost in saved figures, and whether these are stale."""
    saved = request.saved_cost(is_asked=False)
    if saved is None or not saved.is_of(spec):
        return shown
    from shardspec.report.saved_cost import stale_finding, with_cost

    stale = stale_finding(saved, spec)
    told = () if stale is None else pipeline.report(spec, [stale]).shown
    return (*(with_cost(found, saved, spec) for found in shown), *told)


class Fixing(fixing.Fixing):
    """A run over the files of a command line, of which standard input may be one."""

    def __init__(self, files: Sequence[str], request: Request, is_unsafe: bool) -> None:
        """Start with the files as they are on disk."""
        super().__init__(files, is_unsafe=is_unsafe)
        self.request = request
        self.by_file: dict[str, Checked] = {}
        self.has_mark = False

    @property
    def checked(self) -> list[Checked]:
        """Return what is found once the fixes are taken, file by file."""
        return [self.by_file[file] for file in self.files]

    @property
    def counted(self) -> str:
        """Return `3 (1 more with --unsafe-fixes)`."""
        return (
            f"{len(self.fixed)}{f' ({self.unsure} more with --unsafe-fixes)' * bool(self.unsure)}"
        )

    def look(self, file: str) -> Sequence[Diagnostic]:
        """Return all findings of one spec."""
        self.by_file[file] = check_file(file, self.request, self.texts)
        return self.by_file[file].diagnostics

    def run(self) -> None:
        """Check and fix until nothing is left to fix, or for long enough."""
        if "-" in self.files:
            self._take_in_stdin()
        super().run()

    def stdin_text(self) -> str:
        """Return what standard input has become, byte order mark included."""
        text = self.texts.get(os.path.realpath("-"), "")
        return _BOM + text if self.has_mark else text

    def _take_in_stdin(self) -> None:
        raw = read_stdin()
        source = raw if isinstance(raw, Diagnostic) else decode(raw, "-")
        if isinstance(raw, Diagnostic) or isinstance(source, Diagnostic):
            faults = [each for each in (raw, source) if isinstance(each, Diagnostic)]
            self.request.refuse(faults[:1])
        self.has_mark = raw.startswith(_BOM.encode())
        real = os.path.realpath("-")
        self.texts[real] = self.olds[real] = source.text
