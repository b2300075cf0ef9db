"""`shardspec calibrate`: how fast a kind of chip is, by its compiler or measured, as a file."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from shardspec import pipeline
from shardspec.cli import completion, options
from shardspec.cli.request import Request
from shardspec.cli.streams import fail, progress, show, unbroken
from shardspec.ir.spec import shape_text
from shardspec.language.catalogue import catalogue_entry, hardware_names

if TYPE_CHECKING:
    from shardspec.cli.steps import Tell
    from shardspec.ir.calibration import Calibration
    from shardspec.ir.spec import Chip, Hardware, Spec, Target

#: Where a calibration is written, unless `-o` says otherwise.
LOCAL = "hardware.local.yaml"


@options.verb(
    "calibrate",
    *options.ONE_PLAN,
    options.SET,
    options.option(
        "--hardware",
        metavar="MACHINE",
        shell_complete=completion.machines,
        help="The machine, in place of a spec's: `tpu v5e 4x4`, `v5p-128`.",
    ),
    options.option(
        "--from",
        "run",
        metavar="RUN",
        help="Take the figures from a run that `jax.profiler.trace` captured on the target: a"
        " folder, or an `.xplane.pb`. No device is needed.",
    ),
    options.flag(
        "--compiler",
        "Ask the compiler of the chips for its own estimates of matmuls; no device is needed.",
    ),
    options.repeated(
        "--dtype",
        "dtypes",
        metavar="DTYPE",
        help="A dtype of the operands, such as `bf16`; repeat it for several.  [default: all]",
    ),
    options.flag("--quick", "Fewer sizes; 175 in place of 567 for bf16 by the compiler."),
    *options.OUTPUT,
    example="shardspec calibrate spec.yaml --compiler -o v5e.local.yaml",
    page="calibrate.md",
)
def command(
    request: Request,
    *,
    hardware: str | None,
    run: str | None,
    compiler: bool,
    dtypes: tuple[str, ...],
    quick: bool,
) -> None:
    """Measure how fast a kind of chip is, and write the figures to a file.

    Without --from and --compiler, this measures the devices of this machine, which have to be those
    of the target: matmuls by size and dtype, memory, and collectives over each mesh axis. A spec
    with `hardware: tpu v5e 4x4 by hardware.local.yaml` uses the figures.

    --from RUN reads the figures from a captured run: how long products took by size, and
    collectives by mesh axis, and the part of them that computation did not hide. Each figure has
    the number of operations behind it.

    --compiler takes libtpu's own estimates for matmuls on a TPU, over a grid of sizes. It needs no
    chip, and minutes for each dtype. shardspec's own catalogue has such figures for each chip.
    """
    output = request.output or LOCAL
    request.require_place(output, "calibration")
    if hardware is not None and not compiler:
        help = "name a spec, whose target they are, or ask the compiler: `--compiler`"
        fail("--hardware is for --compiler: devices are measured on the mesh of a target", help)
    if run is not None and (compiler or hardware is not None):
        fail("--from reads a run, and takes neither --compiler nor --hardware", "leave them out")
    with request.refusing(), progress(is_quiet=request.is_quiet) as tell:
        if run is not None:
            made = _from_run(request, run, tell)
        elif compiler:
            made = _estimated(_machine(request, hardware), dtypes, quick, tell)
        else:
            made = _measured(request, dtypes, quick, tell)
    from shardspec.language.calibration import calibration_text

    request.write_to(output, calibration_text(made), "calibration")
    if output != "-":
        from shardspec.report.pages import calibration_lines

        show(calibration_lines(made))
        request.wrote(output, f"{output}: written")


def _machine(request: Request, named: str | None) -> Hardware:
    """Return the machine of `--hardware`, else of the target that is meant."""
    if named is not None:
        if request.named:
            fail("--hardware and a spec: two machines", "name one of them")
        return request.machine(_sliced(named))
    spec, diagnostics = request.load()
    return _hardware(request.choose_target(spec, diagnostics), spec)


def _hardware(target: Target, spec: Spec) -> Hardware:
    if target.hardware is None:
        help = "write `hardware:` there, or `--compiler --hardware 'tpu v5e 4x4'`"
        fail(f"target `{target.name}` of {spec.source.name} names no hardware", help)
    return target.hardware


def _sliced(named: str) -> str:
    """Return a machine for the name of a TPU chip alone: its smallest slice."""
    chip = named.strip().lower().removeprefix("tpu ")
    file = hardware_names().get(chip)
    shapes = () if file is None else catalogue_entry(file).shapes.listed
    return f"tpu {chip} {shape_text(shapes[0])}" if shapes else named


def _estimated(
    machine: Hardware, dtypes: tuple[str, ...], is_quick: bool, tell: Tell
) -> Calibration:
    """Return the compiler's estimates."""
    from shardspec.jax_backend import measuring

    _require_dtypes(machine.chip, dtypes, measuring.dtypes_of(machine.chip))
    grids = dict.fromkeys(dtypes or measuring.dtypes_of(machine.chip), measuring.COARSE)
    if "bf16" in grids and not is_quick:
        grids["bf16"] = measuring.FINE
    return measuring.estimated(machine, grids, tell)


def _from_run(request: Request, run: str, tell: Tell) -> Calibration:
    """Return what a captured run says of the machine of the target that is meant."""
    from shardspec.cli.steps import program_of_run, refuse_run
    from shardspec.programs.captures import capture_of
    from shardspec.programs.measured import calibration_of_run

    plan, _ = request.plan()
    machine = _as_in_catalogue(_hardware(plan.target, plan.spec))
    plan = replace(plan, target=replace(plan.target, hardware=machine))
    tell("reading the run")
    try:
        capture = capture_of(run)
        module, program = program_of_run(capture, plan.target.mesh)
        if program is None:
            fail(f"--from {run} carries no compiled program", "name an `.xplane.pb`, or its folder")
        made = calibration_of_run(capture, module, program, plan, time.strftime("%Y-%m-%d"))
        return _as_stated(made, machine)
    except ValueError as error:
        refuse_run(run, error)


def _measured(request: Request, dtypes: tuple[str, ...], is_quick: bool, tell: Tell) -> Calibration:
    """Return what the devices here reach, on the mesh of the target that is meant."""
    spec, diagnostics = request.load()
    target = request.choose_target(spec, diagnostics)
    request.require_sound(target, pipeline.about(diagnostics, target.name))
    machine = _as_in_catalogue(_hardware(target, spec))
    tell("loading jax")
    if machine.chip.platform == "cpu":
        os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with unbroken():
        from shardspec.jax_backend import measuring
        from shardspec.jax_backend.resolver import Resolver

    _require_dtypes(machine.chip, dtypes, measuring.multiplied(machine.chip))
    resolver = Resolver(spec, target.name, agree_within_s=None)
    plan = measuring.plan_for(machine.chip, dtypes, is_quick=is_quick)
    target = replace(target, hardware=machine)
    return _as_stated(measuring.measured(target, resolver.mesh, plan, tell), machine)


def _as_stated(made: Calibration, machine: Hardware) -> Calibration:
    """Return what was measured, with what the file before states of the chip."""
    before = machine.chip.measured
    return made if before is None else replace(made, title=before.title, figures=before.figures)


def _as_in_catalogue(machine: Hardware) -> Hardware:
    """Return a machine without what was measured of it before; what a file states of it stays."""
    chip, before = catalogue_entry(hardware_names()[machine.chip.name]).chip, machine.chip.measured
    if before is not None and before.is_stated:
        from shardspec.language.calibration import calibrated_chip

        chip = calibrated_chip(chip, before.described)
    return replace(machine, chip=chip)


def _require_dtypes(chip: Chip, dtypes: tuple[str, ...], known: tuple[str, ...]) -> None:
    for dtype in dtypes:
        if dtype not in known:
            fail(f"{chip.title} multiplies no `{dtype}`", f"it does {', '.join(known)}")
