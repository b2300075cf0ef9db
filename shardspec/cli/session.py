"""What every verb does alike: load, report on stderr, know whether to colour, exit."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

import click

from shardspec import pipeline
from shardspec.cli.discovery import find_spec
from shardspec.cli.streams import echo, echo_data
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.render import render
from shardspec.frontend.boundary import Boundary, boundary_of
from shardspec.ir.param import Params
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec, StatePolicy, Target

FINE, FINDINGS, FAILED = 0, 1, 2

#: Findings shown in full; a file broken from end to end has thousands.
MOST_IN_FULL = 100


def wants_color(when: str, stream: int = 1) -> bool:
    """Say whether to colour what goes to stdout (1) or stderr (2)."""
    if when != "auto":
        return when == "always"
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return (sys.stdout if stream == 1 else sys.stderr).isatty()


def report(diagnostics: Iterable[Diagnostic], color: str = "auto") -> None:
    """Print diagnostics on stderr."""
    paint = wants_color(color, stream=2)
    found = tuple(diagnostics)
    for diagnostic in found[:MOST_IN_FULL]:
        echo(render(diagnostic, color=paint) + "\n", err=True, is_painted=True)
    if len(found) > MOST_IN_FULL:
        echo(f"... and {len(found) - MOST_IN_FULL} more: shardspec check shows them", err=True)


def fail(message: str, help: str | None = None) -> NoReturn:
    """End with exit code 2 and a message on stderr."""
    raise click.ClickException(message if help is None else f"{message}\n  help: {help}")


def has_errors(diagnostics: Iterable[Diagnostic]) -> bool:
    """Say whether a run with these findings has failed."""
    return any(diagnostic.is_error for diagnostic in diagnostics)


def load_or_exit(
    name: str | None,
    settings: Mapping[str, str],
    color: str = "auto",
    *,
    with_manifests: bool = True,
) -> tuple[Spec, tuple[Diagnostic, ...]]:
    """Return the spec and its findings; exit where nothing can be made of the file."""
    path = find_spec(name)
    spec, diagnostics = pipeline.load_path(path, settings, with_manifests=with_manifests)
    if spec is None:
        report(diagnostics, color)
        unreadable = any(d.code.id == "SHD001" for d in diagnostics)
        raise SystemExit(FAILED if unreadable else FINDINGS)
    found = pipeline.leveled(spec, diagnostics)
    if not spec.is_whole:
        report(found, color)
        raise SystemExit(FINDINGS)
    return spec, found


def target_or_exit(spec: Spec, name: str | None, diagnostics: Sequence[Diagnostic] = ()) -> Target:
    """Return the target that is meant; exit where there is none: with 1 if faults took it."""
    found = pipeline.find_target(spec, name)
    if isinstance(found, Diagnostic):
        shown = pipeline.shown(spec, (*diagnostics, found))
        report(shown)
        raise SystemExit(FAILED if found in shown else FINDINGS)
    return found


def sound_or_exit(target: Target, found: Sequence[Diagnostic], color: str = "auto") -> None:
    """Exit with 1, after a report, where the mesh of the target is not known: no figure is true."""
    if target.is_sound:
        return
    report(why_unsound([target], found), color)
    echo(f"nothing is shown for target {target.name}", err=True)
    raise SystemExit(FINDINGS)


def why_unsound(targets: Iterable[Target], found: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return `found`, and for a target without a mesh an error, where none of these is one."""
    if has_errors(found):
        return tuple(found)
    faults = (pipeline.unsound(target) for target in targets)
    return (*found, *(fault for fault in faults if fault is not None))


def params_or_exit(spec: Spec, manifest: str | None) -> Params:
    """Return the arrays of a manifest, or those of the spec; exit with 2 on faults."""
    if manifest is None:
        return spec.params
    return arrays_or_exit(manifest, boundary_of(spec.source.name), spec.state)


def arrays_or_exit(
    manifest: str, boundary: Boundary | None = None, policy: StatePolicy | None = None
) -> Params:
    """Return the arrays of a manifest, checkpoint or function; exit with 2 on faults.

    Args:
      boundary: of the project whose texts may be quoted; None for that of the manifest.
      policy: on optimizer state, which a function may give beside the parameters.
    """
    from shardspec.frontend.manifests.reader import is_entry_point

    if is_entry_point(manifest):
        from shardspec.jax_backend.entry_point import call_entry_point

        echo(f"{manifest}: importing it, which runs its code", err=True)
        params, diagnostics = call_entry_point(manifest, policy)
    else:
        arrays, diagnostics = pipeline.read_arrays(manifest, boundary=boundary)
        params = arrays.params
    if diagnostics:
        report(diagnostics)
        raise SystemExit(FAILED)
    return params


def plans_and_findings(
    spec: Spec,
    diagnostics: Sequence[Diagnostic],
    params: Params,
    targets: Sequence[Target] | None = None,
) -> tuple[tuple[ShardingPlan, ...], tuple[Diagnostic, ...]]:
    """Return the plans on `targets`, None for all, and all there is to say of spec and plans.

    Args:
      diagnostics: what loading the spec found.
    """
    plans = pipeline.compile_plans(spec, params, targets)
    found = pipeline.leveled(spec, (*diagnostics, *pipeline.findings(spec, plans)))
    return plans, why_unsound((plan.target for plan in plans), found)


def quiet_spec(name: str | None) -> Spec | None:
    """Return the spec, or None and no word: for shell completion."""
    try:
        return pipeline.load_path(find_spec(name))[0]
    except (click.ClickException, OSError):
        return None


def write_file(path: str, text: str, *, is_painted: bool = False) -> None:
    """Write a file whole or not at all: to a temporary name beside it, then rename.

    `-` is stdout. A link is followed within its folder: one that leads out may be a stranger's, who
    says where to write. A device or a pipe is written to, not replaced.

    Args:
      is_painted: whether escape sequences in it are ours, as in `echo`.
    """
    if path == "-":
        if is_painted:
            echo(text.removesuffix("\n"), is_painted=True)
        else:
            echo_data(text)
        return
    import tempfile

    if path.startswith("git:"):
        fail(f"{path} is at a revision, which cannot be written", "-o says where to write")
    if _leads_out(path):
        help = f"remove it, or name the file itself: {os.path.realpath(path)}"
        fail(f"{path} is a link that leads out of its folder, and is not written", help)
    asked, path = path, os.path.realpath(path)
    folder = os.path.dirname(path)
    try:
        if os.path.exists(asked) and not os.path.isfile(asked):
            with open(asked, "w", encoding="utf-8", opener=_open_at_once) as stream:
                stream.write(text)
            return
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".", suffix=".tmp")
        try:
            with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
                stream.write(text)
            os.chmod(temporary, _mode(path))
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        fail(f"cannot write {path}: {(error.strerror or str(error)).lower()}")


def _open_at_once(path: str, flags: int) -> int:
    """Return a descriptor of a device or a pipe; a pipe that nobody reads is an error, no wait."""
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    os.set_blocking(descriptor, True)
    return descriptor


def _leads_out(path: str) -> bool:
    """Say whether a link takes a file out of its folder; the system's own, to streams, do not."""
    folder = os.path.realpath(os.path.dirname(os.path.abspath(path)))
    below = os.path.relpath(os.path.realpath(path), folder)
    is_system = os.path.abspath(path).startswith(os.path.dirname(os.devnull) + os.sep)
    return below.split(os.sep)[0] == os.pardir and not is_system


def _mode(path: str) -> int:
    """Return the mode of the file that is replaced, or that of a new one."""
    try:
        return os.stat(path).st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
