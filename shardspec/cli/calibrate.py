"""`shardspec calibrate`: how fast a kind of chip is, by its compiler or measured, as a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardspec.cli import options
from shardspec.cli.request import Request
from shardspec.cli.streams import FAILED, fail, progress, require_folder, show, write_file
from shardspec.diagnostics import ShardspecError

if TYPE_CHECKING:
    from shardspec.ir.spec import Hardware
    from shardspec.jax_backend.estimating import Grid

#: Where a calibration is written, unless `-o` says otherwise.
LOCAL = "hardware.local.yaml"


@options.verb(
    "calibrate",
    *options.ONE_SPEC,
    options.TARGET,
    options.PHASE,
    options.SET,
    options.option(
        "--hardware",
        metavar="MACHINE",
        help="The machine, in place of a spec's: `tpu v5e 4x4`, `v5p-128`.",
    ),
    options.flag(
        "--compiler",
        "Ask the compiler of the chips for its own estimates of matmuls; no device is needed.",
    ),
    options.option(
        "--dtype",
        "dtypes",
        metavar="DTYPE",
        multiple=True,
        help="Of the operands: `bf16`; several by saying it again, all that there are else.",
    ),
    options.flag("--quick", "Fewer sizes: 175 in place of 567 for bf16."),
    options.OUTPUT,
)
def command(
    request: Request, *, hardware: str | None, compiler: bool, dtypes: tuple[str, ...], quick: bool
) -> None:
    """Find out how fast a kind of chip is, and write it to a file.

    With --compiler by libtpu's own estimate of how long matmuls take on a TPU, over a grid of
    sizes, for chips that need not be here; minutes for each dtype. It is what shardspec's own
    catalogue holds of each chip.
    """
    if not compiler:
        fail("what is on this machine cannot be measured yet", "ask the compiler: `--compiler`")
    output = request.output or LOCAL
    require_folder(output)
    machine = _machine(request, hardware)
    try:
        with progress(is_quiet=request.is_quiet) as tell:
            from shardspec.jax_backend import estimating

            grids = _grids(machine, dtypes, is_quick=quick)
            made = estimating.estimated(machine, grids, tell)
    except ShardspecError as error:
        request.report(error.diagnostics)
        raise SystemExit(FAILED) from None
    from shardspec.language.calibration import calibration_text

    write_file(output, calibration_text(made))
    if output != "-":
        from shardspec.report.calibration import calibration_lines

        show(calibration_lines(made))
        request.remark(f"{output}: written")


def _machine(request: Request, named: str | None) -> Hardware:
    """Return the machine of `--hardware`, else of the target that is meant."""
    if named is not None:
        if request.named:
            fail("--hardware and a spec: two machines", "name one of them")
        from shardspec.foreign.formats import machine_named

        found = machine_named(_sliced(named))
        if isinstance(found, tuple):
            request.report(found)
            raise SystemExit(FAILED)
        return found
    spec, diagnostics = request.load()
    target = request.choose_target(spec, diagnostics)
    if target.hardware is None:
        help = "write `hardware:` there, or `--hardware 'tpu v5e 4x4'`"
        fail(f"target `{target.name}` of {spec.source.name} names no hardware", help)
    return target.hardware


def _sliced(named: str) -> str:
    """Return a machine for the name of a TPU chip alone: its smallest slice."""
    from shardspec.ir.spec import shape_text
    from shardspec.language.catalogue import catalogue_entry, hardware_names

    chip = named.strip().lower().removeprefix("tpu ")
    file = hardware_names().get(chip)
    shapes = () if file is None else catalogue_entry(file).shapes.listed
    return f"tpu {chip} {shape_text(shapes[0])}" if shapes else named


def _grids(machine: Hardware, dtypes: tuple[str, ...], *, is_quick: bool) -> dict[str, Grid]:
    """Return the sizes that are estimated, by dtype."""
    from shardspec.jax_backend import estimating

    known = estimating.dtypes_of(machine.chip)
    for dtype in dtypes:
        if dtype not in known:
            fail(f"{machine.chip.title} multiplies no `{dtype}`", f"it does {', '.join(known)}")
    coarse = dict.fromkeys(dtypes or known, estimating.COARSE)
    return coarse if is_quick or "bf16" not in coarse else {**coarse, "bf16": estimating.FINE}
