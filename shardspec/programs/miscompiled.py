"""Known faults of compilers, looked for in a compiled program.

An entry of `miscompiles.json` is a chain of operations, the last first, that is wrong where the
devices which an all-reduce adds up have taken different slices: element by element it then adds
what does not belong together. Which slice a device takes is worked out from its number. Where that
cannot be done, nothing is reported; a sum over devices that took the same slice is right.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from shardspec.ir.spec import Mesh
from shardspec.ir.step import Place
from shardspec.programs.calls import Ref
from shardspec.programs.hlo import Computation, Instruction, Program, members_of, slices_of
from shardspec.programs.reading import ReadProgram
from shardspec.records import record_of

#: What gives an array another form and no other values.
_FORMS = frozenset(("bitcast", "copy", "reshape", "transpose", "convert"))
#: How far a value is followed through fusions and forms.
_FARTHEST = 40
#: How many operations behind one another a slice's place is worked out from.
_DEEPEST = 12


class KnownFault(NamedTuple):
    """An entry of `miscompiles.json`.

    Attributes:
      chain: operations, each made of the next; the first adds up over devices, the second slices.
      effect: what the program computes in place of what was asked for.
      compiler: that makes such programs, and the version that does not.
      source: the public report.
    """

    name: str
    chain: tuple[str, ...]
    effect: str
    compiler: str
    source: str


class Miscompiled(NamedTuple):
    """A known fault in a program.

    Attributes:
      place: the user's line of the operation.
    """

    fault: KnownFault
    place: Place

    def __str__(self) -> str:
        """Return what is wrong, with its line and source."""
        fault = self.fault
        where = f"{self.place}: " if self.place.is_known else ""
        return f"{where}the program {fault.effect} ({fault.compiler}: {fault.source})"


class _At(NamedTuple):
    """An instruction, and the fusions that it is in, with the computations that call them."""

    body: Computation
    instruction: Instruction
    outer: tuple[tuple[Computation, Instruction], ...] = ()


@cache
def known_faults() -> tuple[KnownFault, ...]:
    """Return the entries of `miscompiles.json`."""
    text = files("shardspec.programs").joinpath("miscompiles.json").read_text("utf-8")
    return tuple(record_of(KnownFault, each) for each in json.loads(text))


def miscompiled(program: ReadProgram, mesh: Mesh) -> tuple[Miscompiled, ...]:
    """Return the known faults that a compiled program has."""
    own = program.calls.program
    found = (
        Miscompiled(fault, program.made(Ref(body.name, each.name))[0])
        for body in own.computations.values()
        for each in body.instructions.values()
        for fault in known_faults()
        if each.operation == fault.chain[0] and _has(own, mesh, _At(body, each), fault)
    )
    return tuple(dict.fromkeys(found))


def _has(program: Program, mesh: Mesh, at: _At, fault: KnownFault) -> bool:
    """Say whether a chain of operations ends here, and other slices are added up."""
    chain = [at]
    for operation in fault.chain[1:]:
        source = _operand(program, chain[-1], 0)
        if source is None or source.instruction.operation != operation:
            return False
        chain.append(source)
    return _adds_other_slices(program, mesh, at.instruction, chain[1])


def _adds_other_slices(program: Program, mesh: Mesh, reduce: Instruction, cut: _At) -> bool:
    """Say whether devices that are added up take slices of several elements at other places."""
    slices = slices_of(mesh, program.partitions)
    members = None if slices is None or len(slices.firsts) > 1 else members_of(reduce, slices)
    if members is None:
        return False
    sizes = cut.instruction.numbers("dynamic_slice_sizes")
    for dim, size in enumerate(sizes):
        if size < 2:
            continue
        for group in members.groups:
            places = {_number(program, _operand(program, cut, 1 + dim), each) for each in group}
            if None not in places and len(places) > 1:
                return True
    return False


def _operand(program: Program, at: _At, number: int) -> _At | None:
    """Return what computes an operand, through fusions and what only gives it another form."""
    names = at.instruction.operands
    if number >= len(names):
        return None
    return _source(program, at.body, names[number], at.outer)


def _source(
    program: Program,
    body: Computation,
    name: str,
    outer: tuple[tuple[Computation, Instruction], ...],
) -> _At | None:
    for _ in range(_FARTHEST):
        found = body.instructions.get(name)
        if found is None:
            return None
        if found.operation == "parameter" and outer:
            body, site = outer[-1]
            outer, at = outer[:-1], int(found.stated) if found.stated.isdigit() else -1
            if not 0 <= at < len(site.operands):
                return None
            name = site.operands[at]
        elif found.operation == "fusion" and found.called:
            inner = program.computations.get(found.called[0])
            if inner is None or inner.root is None:
                return None
            outer, body, name = (*outer, (body, found)), inner, inner.root.name
        elif found.operation in _FORMS and found.operands:
            name = found.operands[0]
        else:
            return _At(body, found, outer)
    return None


def _number(program: Program, at: _At | None, device: int, depth: int = 0) -> int | None:
    """Return a whole number that a device works out of its own; None where that is not known."""
    if at is None or depth > _DEEPEST:
        return None
    each = at.instruction
    if each.operation == "partition-id":
        return device
    if each.operation == "constant":
        values = _constants(each.stated)
        return values[0] if len(values) == 1 else None
    if each.operation == "dynamic-slice":
        table = _operand(program, at, 0)
        place = _number(program, _operand(program, at, 1), device, depth + 1)
        is_table = table is not None and table.instruction.operation == "constant"
        values = _constants(table.instruction.stated) if table is not None and is_table else ()
        return values[place] if place is not None and 0 <= place < len(values) else None
    parts = [
        _number(program, _operand(program, at, number), device, depth + 1)
        for number in range(len(each.operands))
    ]
    return _worked_out(each.operation, [part for part in parts if part is not None], len(parts))


def _worked_out(operation: str, parts: Sequence[int], count: int) -> int | None:
    if operation == "clamp" and len(parts) == count == 3:
        return max(parts[0], min(parts[1], parts[2]))
    if len(parts) != count or count != 2:
        return None
    left, right = parts
    found = {
        "add": left + right,
        "subtract": left - right,
        "multiply": left * right,
        "and": left & right,
        "minimum": min(left, right),
        "maximum": max(left, right),
        "divide": left // right if right > 0 else None,
        "remainder": left % right if right > 0 else None,
    }
    return found.get(operation)


def _constants(stated: str) -> tuple[int, ...]:
    """Return the whole numbers that a constant is; none where it is something else."""
    parts = [each.strip() for each in stated.strip("{} ").split(",")]
    return tuple(map(int, parts)) if all(each.isdigit() for each in parts) else ()
