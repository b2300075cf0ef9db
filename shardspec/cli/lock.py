"""`shardspec lock`: what every device holds on every target, kept in git."""

from __future__ import annotations

import os
from collections.abc import Sequence

from shardspec.analysis.layouts import Layout
from shardspec.cli import options
from shardspec.cli.request import NO_ARRAYS, Request, for_each, has_errors, plans_and_findings
from shardspec.cli.streams import FINDINGS, FINE, echo, fail, show, write_file
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.words import counted
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Params, Spec


@options.verb(
    "lock",
    *options.SPECS,
    options.ARRAYS,
    *options.FINDINGS,
    options.flag("--check", "Write nothing; exit 1, with what moved, if stale."),
    options.OUTPUT,
)
def command(request: Request, *, check: bool) -> None:
    """Write what every device holds on every target, one line for each group of arrays.

    The lock of `model/spec.yaml` is `model/spec.lock`. It is made for git: a review shows what a
    change of the spec, of a preset or of shardspec itself moves.
    """
    files = request.spec_files()
    _require_own_locks(files)
    for_each(files, lambda file: _lock(file, request, check=check))


def _require_own_locks(files: Sequence[str]) -> None:
    """Fail where two specs have one lock, as `spec.yaml` and `spec.shard` beside each other."""
    from shardspec.lock.lock_file import lock_path

    taken: dict[str, str] = {}
    for file in files:
        other = taken.setdefault(lock_path(file), file)
        if other != file:
            help = "lock one of them, or give it another name"
            fail(f"{other} and {file} have one lock, {lock_path(file)}", help)


def _lock(file: str, request: Request, *, check: bool) -> int:
    """Write or check the lock of one spec; return the exit code."""
    from shardspec.analysis.layouts import layout_of
    from shardspec.lock.lock_file import lock_path

    path = request.output or (lock_path(file) if file != "-" else "-")
    spec, diagnostics = request.load(file)
    params = request.params(spec)
    has_targets = any(each.targets for each in spec.in_phases)
    is_bare = not ((params and has_targets) or has_errors(diagnostics))
    if is_bare and file not in (request.named or [file]):
        request.remark(f"{file} is passed over: it has no arrays, or no targets, of its own")
        return FINE
    plans = _plans(spec, diagnostics, params, request)
    if not plans:
        request.remark(f"{path} is not {'compared' if check else 'written'}: the plan has errors")
        return FINDINGS
    if check:
        return _check(path, plans, request)
    _write(path, layout_of(plans[0].spec, plans))
    return FINE


def _plans(
    spec: Spec, diagnostics: Sequence[Diagnostic], params: Params, request: Request
) -> tuple[ShardingPlan, ...]:
    """Return the plans of a spec on all its targets; none, after a report, if it has errors."""
    request.choose_target(spec.in_phases[0], diagnostics)
    plans, found = plans_and_findings(spec, diagnostics, params)
    request.report(found)
    if has_errors(found):
        return ()
    if not params:
        fail(f"{spec.source.name} lists no arrays to lock", NO_ARRAYS)
    return plans


def _write(path: str, layout: Layout) -> None:
    from shardspec.lock.lock_file import lock_text

    text = lock_text(layout)
    write_file(path, text)
    if path != "-":
        arrays = counted(len(layout.targets[0].arrays), "array")
        echo(f"{path}: {arrays} on {counted(len(layout.targets), 'target')}, {len(text):,} bytes")


def _check(path: str, plans: Sequence[ShardingPlan], request: Request) -> int:
    """Say what moved since the lock was written; return the exit code."""
    from shardspec.analysis.layouts import layout_of
    from shardspec.lock.lock_file import lock_text, read_lock

    if path == "-" or not os.path.exists(path):
        request.error(f"there is no {path}", "`shardspec lock` writes it")
        return FINDINGS
    layout = layout_of(plans[0].spec, plans)
    (source,) = request.sources([path])
    if source.text.replace("\r\n", "\n") == lock_text(layout):
        echo(f"{path} is what the spec says.")
        return FINE
    locked = read_lock(source)
    if isinstance(locked, Diagnostic):
        request.report([locked])
        return FINDINGS
    from shardspec.analysis.layout_diff import diff_layouts, reasons_of
    from shardspec.lock.diff_forms import diff_lines

    moved = list(diff_lines(diff_layouts(locked, layout, why_after=reasons_of(plans))))
    show(moved or ["no array moved; the files it was made from, or its text, did change"])
    request.error(f"{path} is stale", "`shardspec lock` writes it anew")
    return FINDINGS
