"""What a step costs by the compiler's own program: the same noun as the model's, every figure `x`.

Bytes come from the collectives of the final program, memory from the buffer assignment. The model's
cost stays beside it: findings read what only a traced step knows, such as which reshard a
constraint forces.

What the compiler added has no line in the code: copies that lay an array out anew, since two
readers want different tiles, and operations that XLA does again to save memory. Full
rematerializations of a reshard are in its log, and become notes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from shardspec.analysis.accuracy import SURE
from shardspec.analysis.cost import Added, Compiler, Cost
from shardspec.analysis.memory import limit, share_of
from shardspec.analysis.step_memory import Amount, StepMemory
from shardspec.analysis.step_time import StepTime
from shardspec.diagnostics.words import grouped
from shardspec.ir.spec import PartitionSpec
from shardspec.ir.step import Role, Step, StepArray, StepTensor
from shardspec.programs.calls import Ref
from shardspec.programs.hlo import Instruction, arrays_of
from shardspec.programs.memory import NO_ROOM, CompiledMemory
from shardspec.programs.op_names import split_name
from shardspec.programs.products import kind_of
from shardspec.programs.proof import with_causes
from shardspec.programs.reading import ReadProgram
from shardspec.programs.schedule import schedule_time

#: Where `StepMemory` holds arguments of a role.
_PARTS: Mapping[Role, str] = {
    "parameter": "parameters",
    "optimizer": "optimizer",
    "batch": "batch",
    "cache": "caches",
    "other": "other",
}

#: How XLA names what it does again to save memory.
_AGAIN = ".remat"
#: How libtpu marks an array in on-chip memory.
_ON_CHIP = "S("
_MOVES = frozenset(("copy", "transpose"))
_VIEWS = frozenset(("parameter", "bitcast", "reshape", "tuple", "get-tuple-element"))
#: Additions smaller than this, on one device in a step, are not reported.
_LEAST_BYTES = 2**20


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
    return replace(
        predicted,
        step=step,
        memory=held,
        schedule=_schedule(predicted, program),
        compiler=by,
        added=added_by(program),
        predicted=predicted,
    )


def _schedule(predicted: Cost, program: ReadProgram) -> StepTime | None:
    """Return what the schedule takes; the MFU counts what several devices do alike once.

    A program does not say what that is. The traced step does, and has the same FLOPs of its own.
    Of a step that a spec states, attention is compiled as another program than a kernel is.
    """
    model = predicted.time
    if model is None or predicted.step is None or predicted.step.source == "spec":
        return None
    found = schedule_time(program, predicted.plan)
    if found is None or not found.step_seconds:
        return None
    return replace(found, mfu=model.mfu * model.step_seconds / found.step_seconds)


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
        interval=None,
        fits_probability=None,
        decided_at=SURE,
        pipeline="",
        **{name: Amount(size, "compiled") for name, size in parts.items()},
    )


def _arguments(step: Step, memory: CompiledMemory) -> Iterator[tuple[Role, int]]:
    """Yield the role and the bytes of each parameter of the program."""
    for number, size in memory.arguments.items():
        is_known = number < len(step.arguments)
        yield step.arguments[number].role if is_known else "other", size


def _peak(program: ReadProgram, memory: CompiledMemory) -> Iterator[StepTensor]:
    """Yield the largest values that are alive at the peak, each with its line or its argument."""
    for each, where in zip(memory.largest, program.makers(memory.largest), strict=True):
        array = next(arrays_of(each.shape), None)
        if array is not None:
            whole = PartitionSpec(((),) * len(array.shape))
            held = StepArray(array.dtype, array.shape, whole, array.shape, where.argument)
            yield StepTensor(held, each.bytes, 0, 0, where.place, where.phase)


def added_by(program: ReadProgram) -> tuple[Added, ...]:
    """Return what a compiler added to a program, alike ones as one, the most bytes first."""
    found = grouped(_added(program), lambda each: each._replace(runs=0))
    rows = (same[0]._replace(runs=sum(each.runs for each in same)) for same in found.values())
    large = (each for each in rows if each.step_bytes >= _LEAST_BYTES)
    return tuple(sorted(large, key=lambda each: (-each.step_bytes, each.array, str(each.place))))


def _added(program: ReadProgram) -> Iterator[Added]:
    for body, times in program.calls.unfused():
        for each in body.instructions.values():
            what = _what(each, program)
            array = each.arrays[0] if each.arrays else None
            if what and array is not None and _ON_CHIP not in each.type:
                shape = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
                yield Added(
                    what, shape, array.bytes, times, *program.made(Ref(body.name, each.name))
                )


def _what(each: Instruction, program: ReadProgram) -> str:
    """Return what an instruction is, where the compiler added it."""
    if each.operation in ("copy", "transpose", "fusion") and _only_moves(each, program):
        return "" if split_name(each.op_name)[-1:] == ["transpose"] else "copy"
    is_again = _AGAIN in each.name and (kind_of(each) is not None or each.operation == "fusion")
    return "computed again" if is_again else ""


def _only_moves(each: Instruction, program: ReadProgram) -> bool:
    """Say whether an instruction does no more than lay its operand out anew."""
    if each.operation != "fusion":
        return True
    bodies = (program.calls.program.computations.get(name) for name in each.called)
    inner = [
        op.operation for body in bodies if body is not None for op in body.instructions.values()
    ]
    return not _MOVES.isdisjoint(inner) and set(inner) <= _MOVES | _VIEWS
