"""`shardspec import`: rules of other tools as a spec, with the proof that it says the same."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any

import click

from shardspec import pipeline
from shardspec.cli import options as shared
from shardspec.cli.session import (
    FAILED,
    FINDINGS,
    FINE,
    arrays_or_exit,
    fail,
    has_errors,
    report,
    write_file,
)
from shardspec.cli.streams import echo
from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.foreign.imported import Imported, Options
from shardspec.foreign.registry import FORMATS, Format, format_named, module_of
from shardspec.ir.grouping import counted

if TYPE_CHECKING:
    from shardspec.ir.plan import ShardingPlan

_AXIS = re.compile(r"(?:^|[\s,;])\s*([^\W\d][\w.-]*)\s*=\s*")
_NO_MESH = "no mesh: say one with --mesh 'data=4 model=2'"


def _mesh(
    ctx: click.Context, param: click.Parameter, text: str | None
) -> tuple[tuple[str, str], ...]:
    """Return `data=4 model=2` as pairs."""
    if text is None:
        return ()
    pieces = _AXIS.split(text)
    pairs = tuple(
        (axis, size.strip(" ,;")) for axis, size in zip(pieces[1::2], pieces[2::2], strict=True)
    )
    if pieces[0].strip() or not pairs or not all(size for _, size in pairs):
        raise click.BadParameter(f"`{text}` is not `data=4 model=2`", ctx, param)
    if len(dict(pairs)) < len(pairs):
        raise click.BadParameter(f"`{text}` has a mesh axis twice", ctx, param)
    return pairs


_FORMATS_PAGE = "\b\nFormats:\n" + "\n".join(f"  {f.name:<12} {f.title}" for f in FORMATS)


@click.command("import", epilog=_FORMATS_PAGE)
@click.argument("format_name", metavar="FORMAT", type=click.Choice([f.name for f in FORMATS]))
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-o", "--output", metavar="SPEC", default="-", help="Where to write the spec.")
@click.option("--mesh", callback=_mesh, metavar="SIZES", help="The mesh: `data=4 model=2`.")
@click.option("--hardware", metavar="HW", help="The machine: `tpu v4 4x4x8`, `4 * h100`.")
@click.option(
    "--against", metavar="ARRAYS", help="Prove, array by array, that the spec says the same."
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="NAME",
    help="Which list of the file, or which gin scope; NAME=MODULE, and several, for hf-tp-plan.",
)
@click.option("--semantics", type=click.Choice(["linen", "nnx"]), help="Who reads a Flax list.")
@click.option(
    "--merge", type=click.Choice(["maxtext", "in-place"]), help="How MaxText's files are joined."
)
@click.option("--match", type=click.Choice(["search", "fullmatch"]), help="How regexes are meant.")
@click.option("--separator", metavar="TEXT", help="What joins the parts of a path over there.")
@click.option("--strict", is_flag=True, default=None, help="The tool refuses unmatched arrays.")
@click.option("-I", "--include", multiple=True, metavar="FOLDER", help="Where includes are found.")
@shared.color_option
def command(
    format_name: str,
    files: tuple[str, ...],
    output: str,
    against: str | None,
    color: str,
    **rest: Any,
) -> None:
    """Make a spec of the rules of another tool. Nothing in the files is run.

    Comments in the spec say where each line came from, findings say what could not be carried
    over. ARRAYS is anything that has arrays: a manifest, a checkpoint, `package.module:function`.
    """
    from shardspec.frontend.patterns.backtracking import forget_unanswered

    forget_unanswered()
    entry = format_named(format_name)
    assert entry is not None
    options = _options(entry, against, rest)
    sources = _sources(files, color)
    imported, diagnostics = module_of(entry).read(sources, options)
    name = output if output != "-" else "<imported>"
    text = None
    if imported is not None and not has_errors(diagnostics):
        from shardspec.foreign.imported import spec_text

        text, faults = spec_text(imported, options, sources, name)
        diagnostics += faults
    report(diagnostics, color)
    if imported is None or text is None:
        echo("nothing is written", err=True)
        raise SystemExit(FAILED)
    if options.params is None:
        write_file(output, text)
        raise SystemExit(FINE)
    plan = _plan(text, name, options)
    write_file(output, text)
    raise SystemExit(_prove(entry, imported, plan, against or "", color))


def _options(entry: Format, against: str | None, given: dict[str, Any]) -> Options:
    """Return the options; those that the format does not take are an error."""
    takes = ("mesh", "hardware", *entry.options)
    names = given["names"]
    if len(names) > 1 and "names" not in takes and "name" in takes:
        raise click.UsageError(f"--name counts once for `{entry.name}`")
    given = {**given, "name": names[0] if names else None}
    given["names"] = names if "names" in takes else ()
    for name, value in given.items():
        if value not in (None, ()) and name not in takes:
            raise click.UsageError(f"--{name} means nothing for `{entry.name}`")
    if given["hardware"] is not None:
        from shardspec.foreign.imported import machine_named

        found = machine_named(given["hardware"])
        if isinstance(found, tuple):
            report(found)
            raise SystemExit(FAILED)
    params = None if against is None else arrays_or_exit(against)
    return Options(**given, params=params)


def _sources(files: tuple[str, ...], color: str) -> tuple[SourceFile, ...]:
    from shardspec.frontend.files import read_argument

    read = [read_argument(file) for file in files]
    faults = [found for found in read if isinstance(found, Diagnostic)]
    if faults:
        report(faults, color)
        raise SystemExit(FAILED)
    sources = tuple(found for found in read if isinstance(found, SourceFile))
    for each in sources:
        if each.is_outside:
            where = os.path.realpath(each.name)
            fail(f"{each.name} is a link that leads out of the project", f"name {where}")
    return sources


def _plan(text: str, name: str, options: Options) -> ShardingPlan:
    spec, _ = pipeline.load_text(text, name)
    assert spec is not None, "`spec_text` has loaded it"
    if not spec.targets:
        fail(f"--against needs a mesh, and the files state {_NO_MESH}")
    return pipeline.compile_plans(spec, options.params, spec.targets[:1])[0]


def _prove(entry: Format, imported: Imported, plan: ShardingPlan, against: str, color: str) -> int:
    """Say whether the plan is the other tool's answer; return the exit code."""
    from shardspec.foreign import proof
    from shardspec.lints.regex_budget import spent, spent_elsewhere

    params = tuple(sharding.param for sharding in plan.params)
    answers = module_of(entry).answer(imported.reading, params, plan.target.mesh)
    found = proof.differences(plan, answers)
    left_out = proof.not_compared(plan, answers)
    said = proof.findings(found, imported.tool)
    patterns = plan.spec.patterns
    unread = (*spent(patterns), *spent_elsewhere(patterns))
    report([*said, *proof.not_compared_findings(left_out, imported.tool), *unread], color)
    arrays = counted(len(params), "array")
    axes = " ".join(f"{axis.name}={axis.size}" for axis in plan.target.mesh.axes if axis.size > 1)
    where = f"{arrays} of {against} on {axes or 'one device'}"
    uneven = sum(not dim.is_even for sharding in plan.params for dim in sharding.dims)
    if uneven:
        why = "JAX refuses them either way, and `shardspec check` names them"
        echo(f"dimensions that do not divide: {uneven}; {why}", err=True)
    if unread:
        echo(f"{where}: nothing is proved while a regex runs out of its time", err=True)
        return FINDINGS
    differing = sum(len(each.paths) for each in found)
    unknown = sum(len(each.paths) for each in left_out)
    if not differing and not unknown:
        echo(f"{where}: the spec lays out all as {imported.tool} does", err=True)
        return FINE
    counts = [f"{differing} differ from {imported.tool}"] if differing else []
    counts += [f"{unknown} not compared with {imported.tool}"] if unknown else []
    echo(f"{where}: {', '.join(counts)}", err=True)
    return FINDINGS
