"""What a partitioned program holds, as the values of a step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.ir.spec import PartitionSpec, Target
from shardspec.ir.step import MadePart, Phase, Place, StepArgument, StepArray, StepTensor
from shardspec.programs.hlo import Program
from shardspec.programs.op_names import phase_of, place_of
from shardspec.programs.peak import FAST_BYTES, Held, Peak, peak_of
from shardspec.programs.peak_kernels import Platform
from shardspec.programs.products import kind_of

#: Smaller values are left out.
_LEAST_BYTES = 4096


def held_values(
    program: Program, target: Target, arguments: Sequence[StepArgument]
) -> tuple[StepTensor, ...]:
    """Return the values that a partitioned program holds on one device, by the clock of its peak.

    Args:
      program: as XLA's partitioner leaves it.
      arguments: of the step, in the order of the program's parameters.
    """
    donated = [number for number, each in enumerate(arguments) if each.is_donated]
    chip = None if target.hardware is None else target.hardware.chip
    platform: Platform = "gpu" if chip is not None and chip.platform == "gpu" else "tpu"
    fast = 0 if chip is None else FAST_BYTES.get(chip.name, 0)
    peak = peak_of(program, platform, donated, fast)
    return tuple(_tensors(peak, program, arguments))


def _tensors(
    peak: Peak, program: Program, arguments: Sequence[StepArgument]
) -> Iterator[StepTensor]:
    values = [each for each in peak.values if each.bytes >= _LEAST_BYTES]
    phases = _phases(values)
    pairs = list(zip(values, phases, strict=True))
    products = (each for each, phase in pairs if phase in _BACK and _is_product(each))
    turn = min((each.born for each in products), default=peak.end + 1)
    given = [each.array for each in arguments if each.role == "parameter"]
    weights = {(each.dtype, each.shard_shape) for each in given}
    for each, phase in pairs:
        is_kept = phase == "forward" and each.dies >= turn
        is_weight = (each.dtype, each.shape) in weights
        part: MadePart = "activations" if is_kept else "temporaries"
        if is_weight:
            part = "gradients" if phase in ("backward", "update") else "temporaries"
        whole = PartitionSpec(((),) * len(each.shape))
        array = StepArray(each.dtype, each.shape, whole, each.shape)
        place = _place(each, program)
        yield StepTensor(
            array, each.bytes, each.born, each.dies, place, phase, part=part, why=each.why
        )


_BACK = ("backward", "remat")


def _is_product(each: Held) -> bool:
    return each.instruction is not None and kind_of(each.instruction) is not None


def _phases(values: Sequence[Held]) -> list[Phase]:
    """Return the phase of each value; what has no name of its own comes with what is before it."""
    found: list[Phase] = []
    before: Phase = "forward"
    for each in values:
        name = "" if each.instruction is None else each.instruction.op_name
        told = phase_of(name)
        was_backward = "backward" in found
        before = told or ("update" if was_backward and before == "update" else before)
        found.append(before)
    return found


def _place(each: Held, program: Program) -> Place:
    if each.instruction is None:
        return Place()
    return place_of(program.frames_of(each.instruction), each.instruction.op_name)
