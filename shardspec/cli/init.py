"""`shardspec init`: a first spec for arrays that somebody has, every guess in it marked."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from shardspec import assets
from shardspec.arrays.listing import UNWRITABLE, array_entries, is_entry_point, manifest_yaml
from shardspec.cli import completion, options, streams
from shardspec.cli.curing import CURE, LINES_AND_MESH, cured
from shardspec.cli.request import Request
from shardspec.cli.steps import STEP, Tell, with_step
from shardspec.cli.streams import FAILED, fail
from shardspec.diagnostics.diagnostic import printable
from shardspec.diagnostics.words import did_you_mean
from shardspec.drafting.draft import Asked, Draft, draft
from shardspec.ir.spec import Hardware, Mesh, Params, Target
from shardspec.public import loads
from shardspec.search.ranking import Choice

if TYPE_CHECKING:
    from shardspec.jax_backend.entry_point import StepArrays
    from shardspec.jax_backend.resolver import Resolver
    from shardspec.jax_backend.step.trace import Call

#: Lines of arrays that a spec may hold itself; more stand in a manifest beside it.
_MOST_INSIDE = 60


@options.verb(
    "init",
    options.ARRAYS,
    options.repeated(
        "--hardware",
        "machines",
        metavar="HW",
        shell_complete=completion.machines,
        help="A machine: `tpu v5e 4x4`, `4 * h100`; several by saying it again.",
    ),
    options.repeated(
        "--like",
        "presets",
        metavar="PRESET",
        shell_complete=completion.presets,
        help="The rules to start from: `fsdp`, `fsdp-tensor`; several by saying it again.",
    ),
    STEP,
    *CURE,
    *options.OUTPUT,
    example="shardspec init --arrays model.safetensors --hardware 'tpu v5e 4x4'",
    page="init.md",
)
def command(
    request: Request,
    *,
    machines: tuple[str, ...],
    presets: tuple[str, ...],
) -> None:
    """Write a first spec for arrays: targets, rules, and names by what paths and sizes tell.

    Every guess says why it is one, and what could not be guessed is a QUESTION in the spec, which
    passes `check` as it is. It goes to `spec.yaml`, or where `-o` says: `x.shard` in the DSL, `-`
    to stdout. Without --hardware the targets are a laptop and a slice that has room for the
    model; without --like the preset suits the machines. Both are said.

    With --step and --hardware the arrays are the parameters of the step. Lines that its code lacks
    under the new spec are searched for, and then meshes, as `shardspec search --step` does it; the
    spec gets the best mesh.
    """
    if request.arrays is None and request.step_name is None:
        fail(
            "nothing says what the arrays are", "as in `shardspec init --arrays model.safetensors`"
        )
    output = request.output or "spec.yaml"
    if output != "-" and not request.is_forced and os.path.lexists(output):
        fail(f"`{output}` already exists", "--force overwrites it, -o names another file")
    request.require_place(output, "spec")
    hardware = tuple(_hardware(text, request) for text in machines)
    _require_presets(presets)
    on = Target("", Mesh(), hardware[0]) if hardware else None
    asked = Asked((), "", hardware, presets, has_step=request.arrays is None)
    if request.arrays is not None:
        params = request.read_arrays(request.arrays, target=on)
        if not params:
            fail(f"there are no arrays in {request.arrays}", "name a file that has some")
        asked = replace(asked, params=params)
    else:
        found = _of_step(request, hardware, output)
        asked = replace(asked, **found._asdict())
        request = replace(request, arrays=request.step_name)
    _write(request, replace(asked, source=_shown(str(request.arrays))), output)
    if request.step_name is not None and streams.is_dry_run():
        request.undone("no lines are searched for: the search needs the spec in its file")
    elif request.step_name is not None and hardware:
        again = replace(request, named=(output,), arrays=None, output=None)
        target = again.load()[0].targets[0].name
        again = replace(again, target=target)
        raise SystemExit(cured(again, LINES_AND_MESH, Choice(), write=True))


#: A spec under which a step can be made before it has one: all arrays are whole.
_BARE = """\
shardspec: 1
hardware: {machine}
mesh: {{data: rest}}
rules: [batch -> data]
replicate: [{{path: "**", because: nothing is decided}}]
"""


def _of_step(request: Request, hardware: tuple[Hardware, ...], output: str) -> StepArrays:
    """Return the parameters that a step is called with, and its caches."""
    if not hardware:
        fail("--step without --hardware", "name the machine: `--hardware 'tpu v5e 4x4'`")
    if output == "-":
        fail("--step needs a file for the spec", "name it: `-o spec.yaml`")

    def work(resolver: Resolver, call: Call, tell: Tell) -> StepArrays:
        from shardspec.jax_backend.entry_point import arrays_of

        tell("tracing")
        return arrays_of(call, resolver)

    spec = loads(_BARE.format(machine=hardware[0].machine)).ir
    return with_step(spec, spec.targets[0].name, request, work)


def _write(request: Request, asked: Asked, output: str) -> None:
    """Write the spec, and the list of its arrays where no file holds them."""
    params = asked.params
    manifest, listing = _manifest(str(request.arrays), params, output)
    if listing is not None and not request.is_forced and os.path.lexists(listing):
        fail(f"`{listing}` already exists", "--force overwrites it")
    asked = replace(asked, manifest=manifest)
    found = draft(asked, "dsl" if output.endswith(".shard") else "yaml")
    if not isinstance(found, Draft):
        request.report(found)
        request.undone("nothing is written")
        raise SystemExit(FAILED)
    if listing is not None:
        request.write_to(listing, manifest_yaml(params, asked.source))
        request.wrote(listing, f"wrote {listing}")
    request.write_to(output, found.text)
    for remark in found.remarks:
        request.remark(remark)
    onward = f"next: `shardspec check {shlex.quote(output)}`"
    if asked.has_step and asked.machines and not streams.is_dry_run():
        onward = "now the lines that the code lacks are searched for"
    request.wrote(output, f"wrote {output}; {onward}")


def _shown(source: str) -> str:
    return "standard input" if source == "-" else os.path.basename(os.path.normpath(source))


def _manifest(source: str, params: Params, output: str) -> tuple[str | None, str | None]:
    """Return what the spec says under `manifest:`, and the file that has to be written for it.

    What is no file stands in the spec itself, or in a list beside it where that would be long.
    """
    folder = os.path.dirname(output) if output != "-" else ""
    is_file = source != "-" and not is_entry_point(source) and os.path.exists(source)
    if is_file:
        below = os.path.relpath(source, folder or ".")
        slash = "/" if os.path.isdir(source) else ""
        return below + slash if below.startswith("..") else f"./{below}{slash}", None
    odd = next((each.path for each in params if set(each.path) & set(UNWRITABLE)), None)
    if odd is not None:
        help = "rename it; or save the arrays to a file and name that with --arrays"
        fail(f"`{printable(odd)}` has a brace, which is a range where arrays are listed", help)
    if output == "-" or len(list(array_entries(params))) <= _MOST_INSIDE:
        return None, None
    name = f"{os.path.splitext(os.path.basename(output))[0]}.arrays.yaml"
    return f"./{name}", os.path.join(folder, name)


def _hardware(text: str, request: Request) -> Hardware:
    """Return a machine; exit with 2 where there is none such."""
    for words, what in (("{", "is several machines"), (" by ", "names a calibration")):
        if words in text:
            fail(f"--hardware `{text}` {what}", "say a machine alone; the spec may say it later")
    return request.machine(text)


def _require_presets(names: tuple[str, ...]) -> None:
    """Fail with the nearest where no preset is called so."""
    known = assets.spec_names("presets")
    wrong = next((name for name in names if name not in known), None)
    if wrong is not None:
        near = did_you_mean(wrong, known) or "`shardspec explain --list presets`"
        fail(f"no preset is called `{wrong}`", near)
