"""What a step costs by the compiler's own program: the same noun as the model's, every figure `x`.

Bytes come from the collectives of the final program, memory from the buffer assignment. The model's
cost stays beside it: findings read what only a traced step knows, such as which reshard a
constraint forces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from shardspec.analysis.cost import Compiler, Cost
from shardspec.analysis.memory import limit, share_of
from shardspec.analysis.step_memory import Amount, StepMemory
from shardspec.ir.spec import PartitionSpec
from shardspec.ir.step import Role, Step, StepArray, StepTensor
from shardspec.programs.hlo import arrays_of
from shardspec.programs.memory import NO_ROOM, CompiledMemory
from shardspec.programs.proof import with_causes
from shardspec.programs.reading import UNKNOWN_MAKER, ReadProgram

#: Where `StepMemory` holds arguments of a role.
_PARTS: Mapping[Role, str] = {
    "parameter": "parameters",
    "optimizer": "optimizer",
    "batch": "batch",
    "cache": "caches",
    "other": "other",
}


def compiled_cost(
    predicted: Cost,
    program: ReadProgram,
    memory: CompiledMemory | None,
    by: Compiler,
    *,
    refusal: str = "",
    warnings: tuple[str, ...] = (),
) -> Cost:
    """Return what a step costs by its compiled program.

    Args:
      predicted: the model's cost of the same step.
      memory: None where the compiler did not get as far; the memory is then unknown.
      refusal: the compiler's words where it gave up.
      warnings: of its log.
    """
    own = () if predicted.step is None else predicted.step.notes
    notes = tuple(dict.fromkeys((*program.step.notes, *warnings, *own)))
    place = program.step.place if predicted.step is None else predicted.step.place
    step = replace(with_causes(program.step, predicted), notes=notes, place=place)
    held = _memory(predicted, program, memory, is_refused=NO_ROOM in refusal)
    added = program.added()
    return replace(predicted, step=step, memory=held, compiler=by, added=added, predicted=predicted)


def _memory(
    predicted: Cost, program: ReadProgram, memory: CompiledMemory | None, *, is_refused: bool
) -> StepMemory:
    """Return what a device holds, in the parts that a compiler knows."""
    target, step = predicted.target, program.step
    parts = {"parameters": 0}
    if memory is not None:
        parts["other"] = memory.output_bytes + memory.other_bytes
        parts["temporaries"] = memory.temporary_bytes
        for role, size in _arguments(step, memory):
            parts[_PARTS[role]] = parts.get(_PARTS[role], 0) + size
    return StepMemory(
        host=predicted.memory.host,
        hbm_bytes=limit(target),
        hbm_share=share_of(target),
        peak=() if memory is None else tuple(_peak(program, memory)),
        peak_at=0,
        is_partial=memory is None or bool(step.uncounted("memory")),
        is_refused=is_refused,
        **{name: Amount(size, "compiled") for name, size in parts.items()},
    )


def _arguments(step: Step, memory: CompiledMemory) -> Iterator[tuple[Role, int]]:
    """Yield the role and the bytes of each parameter of the program."""
    for number, size in memory.arguments.items():
        is_known = number < len(step.arguments)
        yield step.arguments[number].role if is_known else "other", size


def _peak(program: ReadProgram, memory: CompiledMemory) -> Iterator[StepTensor]:
    """Yield the largest values that are alive at the peak, each with its line or its argument."""
    made = program.makers({name for each in memory.largest for name in each.names})
    for each in memory.largest:
        found = [made[name] for name in each.names if name in made]
        where = min(found, key=lambda maker: not maker.place.is_known, default=UNKNOWN_MAKER)
        array = next(arrays_of(each.shape), None)
        if array is not None:
            whole = PartitionSpec(((),) * len(array.shape))
            held = StepArray(array.dtype, array.shape, whole, array.shape, where.argument)
            yield StepTensor(held, each.bytes, 0, 0, where.place, where.phase)
