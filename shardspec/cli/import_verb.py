"""`shardspec import`: rules of other tools as a spec, with the proof that it says the same."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardspec import pipeline
from shardspec.cli import completion
from shardspec.cli import options as shared
from shardspec.cli.request import Request, begins_a_spec, has_errors
from shardspec.cli.streams import FAILED, FINDINGS, FINE, fail, progress, unbroken
from shardspec.diagnostics import Diagnostic, ShardspecError, SourceFile
from shardspec.diagnostics.words import counted, listed
from shardspec.foreign.formats import FORMATS, Format, Imported, Options, format_named, module_of

if TYPE_CHECKING:
    from shardspec.foreign.layout import Layout
    from shardspec.ir.plan import ShardingPlan
    from shardspec.ir.spec import LogicalAxes, Params

_DEVICES = "--mesh 'fsdp=4 tp=2', or --hardware 'tpu v5e 4x4', says which devices there are"
#: A setting as MaxText takes it on its command line.
_SETTING = re.compile(r"[^\W\d]\w*=")
_AXIS = re.compile(r"(?:^|(?<=[\s,;]))([^\W\d][\w.-]*+)\s*+=\s*+")


def _mesh(
    ctx: click.Context, param: click.Parameter, text: str | None
) -> tuple[tuple[str, str], ...]:
    """Return `data=4 model=2` as pairs."""
    if text is None:
        return ()
    pieces = _AXIS.split(text)
    pairs = tuple(
        (axis, size.strip(" \t\n,;")) for axis, size in zip(pieces[1::2], pieces[2::2], strict=True)
    )
    if pieces[0].strip() or not pairs or not all(size for _, size in pairs):
        fail(f"--mesh `{text}` is no mesh", "as in `--mesh 'data=4 model=2'`")
    if len(dict(pairs)) < len(pairs):
        fail(f"--mesh `{text}` has a mesh axis twice", "say the size of each axis once")
    return pairs


_ARRAYS = frozenset(("arrays", "manifest"))
#: What every import says, by its options.
_SAID = frozenset(("shardspec", "hardware", "mesh", "targets"))
#: What a person adds to an imported spec, and files of other tools do not say.
_OWN = _ARRAYS | frozenset(
    ("caches", "coverage", "derive", "let", "replicate", "scan", "state", "step", "training")
)

#: What a person or a search may have changed in an imported spec, and files of other tools say.
_REWRITTEN = _OWN | {"mesh", "policy"}

_FORMATS = {each.name: each.title for each in FORMATS}


@shared.verb(
    "import",
    shared.format_argument(_FORMATS),
    click.Argument(
        ["files"], nargs=-1, required=True, metavar="FILE...", shell_complete=completion.files
    ),
    *shared.OUTPUT,
    shared.option("--mesh", callback=_mesh, metavar="SIZES", help="The mesh: `data=4 model=2`."),
    shared.option(
        "--hardware",
        metavar="HW",
        shell_complete=completion.machines,
        help="The machine: `tpu v4 4x4x8`, `4 * h100`.",
    ),
    shared.file_option(
        "--against",
        metavar="ARRAYS",
        help="Prove, array by array, that the spec gives the same layout.",
    ),
    shared.option(
        "--name",
        "names",
        multiple=True,
        metavar="NAME",
        help="The list in the file, or the gin scope. A plan of hf-tp-plan: NAME=MODULE.",
    ),
    shared.option(
        "--semantics",
        type=click.Choice(["linen", "nnx"]),
        help="Which of the two reads a Flax list.",
    ),
    shared.option(
        "--merge",
        type=click.Choice(["maxtext", "in-place"]),
        help="How MaxText's files are joined.",
    ),
    shared.option(
        "--match", type=click.Choice(["search", "fullmatch"]), help="How the tool applies regexes."
    ),
    shared.option(
        "--separator", metavar="TEXT", help="What joins the parts of a path in the tool."
    ),
    shared.option(
        "--strict", is_flag=True, default=None, help="The tool refuses unmatched arrays."
    ),
    shared.option(
        "-I",
        "--include",
        multiple=True,
        metavar="FOLDER",
        shell_complete=completion.folders,
        help="Where to look for included files.",
    ),
    *shared.FINDINGS,
    epilog=shared.format_page(_FORMATS),
    example="shardspec import flax rules.json",
    page="migrating.md",
)
def command(
    request: Request, *, tool: str, files: tuple[str, ...], against: str | None, **rest: Any
) -> None:
    """Make a spec of the rules of another tool. Files are parsed, and nothing in them is run.

    Comments in the spec say where each line came from, findings say what could not be carried
    over. ARRAYS is a manifest, a checkpoint, a spec with `arrays:` or `manifest:`, or
    `package.module:function`. After files of MaxText, settings may stand: `model_name=llama3.1-8b`.

    The format `layout` takes PACKAGE.MODULE:FUNCTION in place of files, and imports and calls it:
    this runs its code. It gives a tree of arrays with shardings, or a model of Flax.
    """
    from shardspec.language.regex import forget_unanswered

    forget_unanswered()
    entry = format_named(tool)
    assert entry is not None
    options = _options(entry, against, request, rest)
    if entry.runs_code:
        sources, options, imported, faults = _running(files, options, request)
    else:
        sources = _sources(files, entry, request)
        imported, faults = module_of(entry).read(sources, options)
    diagnostics = request.heard(faults)
    name = "<imported>" if request.output in (None, "-") else request.output
    text: str | None = None
    plans: list[ShardingPlan] = []
    if imported is not None and not has_errors(diagnostics):
        of = against or files[0]
        is_asked = against is not None
        text, plans, faults = _made(imported, options, sources, name, of, is_asked=is_asked)
        diagnostics += request.heard(faults)
    request.report(diagnostics)
    if imported is None or text is None:
        request.undone("nothing is written")
        raise SystemExit(FAILED)
    text = _with_own(text, name, request)
    request.write(text)
    if not plans and request.output not in (None, "-"):
        _tell_written(text, name, request)
    own = {each.path: each.logical_axes for each in options.params or ()}
    arrays_of = against or (files[0] if entry.runs_code else name)
    codes = [_prove(entry, imported, plan, own, arrays_of, request) for plan in plans]
    raise SystemExit(max(codes, default=FINE))


def _made(
    imported: Imported,
    options: Options,
    sources: Sequence[SourceFile],
    name: str,
    of: str,
    *,
    is_asked: bool,
) -> tuple[str | None, list[ShardingPlan], tuple[Diagnostic, ...]]:
    """Return the text of a spec, its plans where arrays are known, and what could not be said.

    Args:
      of: what the arrays are from.
      is_asked: whether the command line names it.
    """
    from shardspec.foreign.formats import (
        spec_text,
        unruled,
        with_named,
        with_whole,
        without_step,
    )

    imported, options = with_named(imported, options, of)
    text, faults = spec_text(imported, options, sources, name)
    if text is None or options.params is None:
        return text, [], faults
    plans = _plans(text, name, options, imported, is_asked=is_asked)
    names = unruled(imported, plans[0]) if plans else ()
    wrong = _faults_of_step(plans)
    if wrong:
        imported, faults = without_step(imported), (*faults, *wrong)
    if names or wrong:
        text, _ = spec_text(with_whole(imported, names), options, sources, name)
        plans = _plans(text or "", name, options, imported, is_asked=is_asked)
    return text, plans, faults


def _faults_of_step(plans: Sequence[ShardingPlan]) -> tuple[Diagnostic, ...]:
    """Return why the arrays have other lines than those that a step was written for."""
    if not plans or plans[0].spec.step is None:
        return ()
    from shardspec.analysis.step_flow import flow_of
    from shardspec.foreign.formats import no_step

    return tuple(
        no_step(each.message) for each in flow_of(plans[0].spec, plans[0].arrays).faults[:1]
    )


def _with_own(text: str, name: str, request: Request) -> str:
    """Return a spec with what the one that it replaces says beside the other tool's rules.

    Sections that files of other tools have are made anew; that one of them is gone is said.
    """
    before = _reading(SourceFile(name, _text_of(name)))
    after = _reading(SourceFile(name, text))
    if before is None or after is None:
        return text
    has_arrays = not _ARRAYS.isdisjoint(after.data)
    new = {key for key in before.data if key not in after.data and key not in _SAID}
    own = {key for key in new & _OWN if not (has_arrays and key in _ARRAYS)}
    if new - own:
        request.remark(
            f"{name}: no longer has {listed(sorted(new - own))};"
            f" `shardspec --undo {name}` brings the file back"
        )
    anew = [key for key in after.data if key in _REWRITTEN and _differs(before, after, key)]
    if anew:
        request.remark(
            f"{name}: wrote {listed(anew)} anew; a spec that `extends` this one keeps changes of"
            f" yours, and `shardspec --undo {name}` brings the file back"
        )
    if not own:
        return text
    kept = {key: value for key, value in before.data.items() if key in own}
    request.remark(f"{name}: kept {listed(kept)} of the spec that it replaces")
    comments = {at: each for at, each in before.comments.items() if at[:1] and at[0] in own}
    from shardspec.language.formatting import formatted
    from shardspec.language.yaml_text.printer import print_yaml

    made = print_yaml({**after.data, **kept}, {**comments, **after.comments})
    return formatted(SourceFile(name, made), "yaml")[0] or text


def _differs(before: Any, after: Any, key: str) -> bool:
    return key in before.data and before.data[key] != after.data[key]


def _text_of(name: str) -> str:
    """Return the text of a file that is replaced: no input, which would not be overwritten."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _reading(source: SourceFile) -> Any:
    """Return the data of a spec with its comments; None of another text."""
    from shardspec.language.grammar.print_expressions import canonical
    from shardspec.language.loader import File, read
    from shardspec.language.reading import is_dsl

    if not begins_a_spec(source.text):
        return None
    found, _ = read(File(source, "", source.name, is_dsl(source)), with_comments=True)
    data = canonical(None if found is None else found.data)
    return replace(found, data=data) if found is not None and isinstance(data, dict) else None


def _tell_written(text: str, name: str, request: Request) -> None:
    """Say what was written, and what it lacks: a mesh, and a proof of its layouts."""
    spec, _ = pipeline.load_text(text, name)
    has_mesh = spec is not None and bool(spec.targets)
    more = "" if has_mesh else " without a mesh, which `--mesh 'data=4 model=2'` adds"
    proves = "proves that layouts are equal"
    if spec is not None and spec.step is not None:
        proves += ", and writes `step:` with the names of your arrays"
    request.wrote(name, f"wrote {name}{more}; `--against ARRAYS` {proves}")


def _sources(files: Sequence[str], entry: Format, request: Request) -> tuple[SourceFile, ...]:
    """Return the files, and the settings among them as one more; fail where one is a spec."""
    settings = [
        each
        for each in files
        if entry.has_settings and _SETTING.match(each) and not os.path.exists(each)
    ]
    sources = request.sources([each for each in files if each not in settings], inside=True)
    for source in sources:
        if begins_a_spec(source.text):
            help = "`extends:` builds on it, and `shardspec fmt --to` spells it otherwise"
            fail(f"`{source.name}` is a spec already, and no file of another tool", help)
    lines = (": ".join(each.split("=", 1)) for each in settings)
    own = (SourceFile(name, f"{line}\n") for name, line in zip(settings, lines, strict=True))
    return (*sources, *own)


def _running(
    names: tuple[str, ...], options: Options, request: Request
) -> tuple[tuple[SourceFile, ...], Options, Imported | None, tuple[Diagnostic, ...]]:
    """Return what is made of the layout of a running tree; exit where its code has faults."""
    from shardspec.arrays.listing import is_entry_point

    name = names[0]
    if len(names) > 1 or not is_entry_point(name):
        several = f"`layout` takes one name, and here are {len(names)}"
        what = several if len(names) > 1 else f"`{name}` is not PACKAGE.MODULE:FUNCTION"
        fail(what, "as in `shardspec import layout train:layout`, `def layout(): return params`")
    layout = _layout(name, options, request)
    from shardspec.foreign.layout import read

    imported, faults = read(layout, options)
    arrays = {} if imported is None else imported.reading
    params = tuple(each.param for each in arrays.values())
    return (SourceFile(name, ""),), options._replace(params=params), imported, faults


def _layout(name: str, options: Options, request: Request) -> Layout:
    """Return the layout of a running tree, made for the machine and the mesh that are asked for."""
    from shardspec.foreign.formats import target_asked

    request.remark(f"{name}: importing it, which runs its code")
    target = target_asked(options)
    try:
        if isinstance(target, tuple):
            raise ShardspecError(target)
        with progress(is_quiet=request.is_quiet) as tell, contextlib.ExitStack() as stack:
            tell("loading jax")
            with unbroken():
                from shardspec.jax_backend.layout import read_layout
                from shardspec.jax_backend.on_target import on_target, start_on_cpu
                from shardspec.jax_backend.target_devices import device_mesh

            start_on_cpu()
            mesh = None
            if target is not None:
                found = stack.enter_context(on_target(target, has_imports=True))
                mesh = device_mesh(target, found.machine.devices()) if options.mesh else None
            return read_layout(name, mesh)
    except ShardspecError as error:
        request.refuse(
            _with_devices(each) if target is None else each for each in error.diagnostics
        )


def _with_devices(fault: Diagnostic) -> Diagnostic:
    """Return a fault of code that may miss devices with what gives it some."""
    is_told = fault.help is not None or "devices" not in fault.message
    return fault if is_told else replace(fault, help=_DEVICES)


def _options(
    entry: Format, against: str | None, request: Request, given: dict[str, Any]
) -> Options:
    """Return the options; those that the format does not take are an error."""
    takes = ("mesh", "hardware", *entry.options)
    names = given["names"]
    if len(names) > 1 and "names" not in takes and "name" in takes:
        fail(f"--name counts once for `{entry.name}`", "say it once")
    given = {**given, "name": names[0] if names else None}
    given["names"] = names if "names" in takes else ()
    for name, value in given.items():
        if value not in (None, ()) and name not in takes:
            fail(f"--{name} means nothing for `{entry.name}`", "leave it out")
    if given["hardware"] is not None:
        request.machine(given["hardware"])
    if entry.runs_code and against is not None:
        fail(f"--against means nothing for `{entry.name}`", "its own arrays are the proof")
    options = Options(**given)
    if against is None:
        return options if entry.runs_code else options._replace(params=_arrays_before(request))
    from shardspec.foreign.formats import target_asked

    target = target_asked(options)
    params = request.read_arrays(against, target=None if isinstance(target, tuple) else target)
    return options._replace(params=params)


def _arrays_before(request: Request) -> Params | None:
    """Return the arrays of an imported spec that is replaced, which keeps them; or None."""
    from shardspec.language.writing import is_imported

    name = request.output
    if name is None or name == "-" or not is_imported(text := _text_of(name)):
        return None
    spec, _ = pipeline.load_path(name, texts={os.path.realpath(name): text})
    return None if spec is None else spec.params or None


def _plans(
    text: str, name: str, options: Options, imported: Imported, *, is_asked: bool
) -> list[ShardingPlan]:
    """Return the plan of the spec, and of each phase that there is a reading for.

    Args:
      is_asked: whether --against asks for the proof, and a spec without a mesh is an error.
    """
    spec, _ = pipeline.load_text(text, name)
    assert spec is not None, "`spec_text` has loaded it"
    if not spec.targets and not is_asked:
        return []
    if not spec.targets:
        fail("--against needs a mesh, and the files state none", "say one: --mesh 'data=4 model=2'")
    phases = {each.phase: each for each in spec.phases}
    return [
        pipeline.compile_plans(each, options.params, each.targets[:1])[0]
        for each in (spec, *(phases[phase] for phase in imported.of_phases))
    ]


def _prove(
    entry: Format,
    imported: Imported,
    plan: ShardingPlan,
    own: Mapping[str, LogicalAxes | None],
    against: str,
    request: Request,
) -> int:
    """Say whether the plan is the other tool's answer; return the exit code.

    Args:
      own: the names that the arrays carry, which the other tool reads.
    """
    from shardspec.foreign import proof
    from shardspec.lints.checks.regex_budget import spent, spent_elsewhere

    of_plan = (sharding.param for sharding in plan.arrays)
    params = tuple(replace(each, logical_axes=own[each.path]) for each in of_plan)
    readings = {"": imported.reading, **imported.of_phases}
    answers = module_of(entry).answer(readings[plan.spec.phase], params, plan.target.mesh)
    tool = imported.tool
    found = proof.differences(plan, answers)
    left_out = proof.not_compared(plan, answers)
    said: Sequence[Diagnostic] = proof.findings(found, tool)
    if plan.spec.phase:
        note = f"in phase `{plan.spec.phase}`"
        said = [replace(each, notes=(*each.notes, note)) for each in said]
    unread = (*spent(plan.spec.patterns), *spent_elsewhere(plan.spec.patterns))
    not_compared = proof.not_compared_findings(left_out, tool)
    request.report(request.heard([*said, *not_compared, *unread]))
    arrays = counted(len(params), "array")
    axes = " ".join(f"{axis.name}={axis.size}" for axis in plan.target.mesh.axes if axis.size > 1)
    phase = f", phase `{plan.spec.phase}`" if plan.spec.phase else ""
    where = f"{arrays} of {against} on {axes or 'one device'}{phase}"
    uneven = sum(not dim.is_even for sharding in plan.arrays for dim in sharding.dims)
    if uneven:
        why = "JAX refuses them either way, and `shardspec check` names them"
        request.remark(f"dimensions that do not divide: {uneven}; {why}")
    if unread:
        request.remark(f"{where}: nothing is proved while a regex runs out of its time")
        return FINDINGS
    differing = sum(len(each.paths) for each in found)
    unknown = sum(len(each.paths) for each in left_out)
    return _sum_up(where, tool, differing, unknown, request)


def _sum_up(where: str, tool: str, differing: int, unknown: int, request: Request) -> int:
    """Say how many arrays differ and how many are not compared; return the exit code."""
    if not differing and not unknown:
        request.remark(f"{where}: the spec places every array as {tool} does")
        return FINE
    counts = [f"{differing} differ from {tool}"] if differing else []
    counts += [f"{unknown} not compared with {tool}"] if unknown else []
    written = "" if request.output in (None, "-") else f"; wrote {request.output} nevertheless"
    request.remark(f"{where}: {', '.join(counts)}{written}")
    return FINDINGS
