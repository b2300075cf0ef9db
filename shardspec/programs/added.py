"""What a compiler added to a step that neither the code nor the sharding asks for.

Two things cost memory traffic or FLOPs and have no line in the code: copies that lay an array out
anew, since two readers want different tiles, and operations that XLA does again to save memory.
Full rematerializations of a reshard are in the compiler's log, and become notes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from shardspec.analysis.cost import Added
from shardspec.diagnostics.words import grouped
from shardspec.ir.step import Phase, Place
from shardspec.programs.calls import Calls, Ref
from shardspec.programs.hlo import Instruction
from shardspec.programs.op_names import split_name
from shardspec.programs.products import kind_of

#: How XLA names what it does again to save memory.
_AGAIN = ".remat"
#: Where libtpu lays what is not in the memory of the device but on the chip.
_ON_CHIP = "S("
_MOVES = frozenset(("copy", "transpose"))
_VIEWS = frozenset(("parameter", "bitcast", "reshape", "tuple", "get-tuple-element"))
#: Of one device in a step, what is too little to be told of.
_LEAST_BYTES = 2**20


def added_by(calls: Calls, made: Callable[[Ref], tuple[Place, Phase]]) -> tuple[Added, ...]:
    """Return what a compiler added to a program, alike ones as one, the most bytes first.

    Args:
      made: says of an instruction its line and its phase.
    """
    found = grouped(_added(calls, made), lambda each: each._replace(runs=0))
    rows = (same[0]._replace(runs=sum(each.runs for each in same)) for same in found.values())
    large = (each for each in rows if each.step_bytes >= _LEAST_BYTES)
    return tuple(sorted(large, key=lambda each: (-each.step_bytes, each.array, str(each.place))))


def _added(calls: Calls, made: Callable[[Ref], tuple[Place, Phase]]) -> Iterator[Added]:
    fused = {
        name
        for computation in calls.program.computations.values()
        for each in computation.instructions.values()
        if each.operation == "fusion"
        for name in each.called
    }
    for name, times in calls.times.items():
        body = calls.program.computations.get(name)
        if body is None or name in fused:
            continue
        for each in body.instructions.values():
            what = _what(each, calls)
            array = each.arrays[0] if each.arrays else None
            if what and array is not None and _ON_CHIP not in each.type:
                shape = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
                yield Added(what, shape, array.bytes, times, *made(Ref(name, each.name)))


def _what(each: Instruction, calls: Calls) -> str:
    """Return what an instruction is, where the compiler added it."""
    if each.operation in ("copy", "transpose", "fusion") and _only_moves(each, calls):
        return "" if split_name(each.op_name)[-1:] == ["transpose"] else "copy"
    is_again = _AGAIN in each.name and (kind_of(each) is not None or each.operation == "fusion")
    return "computed again" if is_again else ""


def _only_moves(each: Instruction, calls: Calls) -> bool:
    """Say whether an instruction does no more than lay its operand out anew."""
    if each.operation != "fusion":
        return True
    bodies = (calls.program.computations.get(name) for name in each.called)
    inner = [
        op.operation for body in bodies if body is not None for op in body.instructions.values()
    ]
    return not _MOVES.isdisjoint(inner) and set(inner) <= _MOVES | _VIEWS
