"""A computation that is being rewritten: instructions in their order, and who reads what.

Passes replace instructions and insert new ones in front of others or behind them. A new instruction
need not be one that XLA would print; it has the type, the operands and the devices that a reader of
the program counts bytes by.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from shardspec.ir.operations import IN_HLO
from shardspec.ir.spec import Target
from shardspec.programs import hlo
from shardspec.programs.calls import calls_of
from shardspec.programs.hlo import Computation, Instruction, Program
from shardspec.programs.members import Members, Slices, members_of, together
from shardspec.programs.reading import SENDS

#: Operations that show one value in another form.
FORMS = frozenset(("bitcast", "copy", "reshape", "transpose"))
#: Operations that pass a partial sum on as it is, so that it can be summed over devices later.
PASSES = frozenset((*FORMS, "convert", "negate"))
SUM, SCATTER, GATHER = "all-reduce", "reduce-scatter", "all-gather"
#: What marks a collective in whose place a ring passes on an operand or a sum of a product.
TURNS = "in_turns"
#: How many operations a value is followed through.
FAR = 64

_DEVICES = re.compile(
    r"(?:, )?(?:replica_groups|source_target_pairs)=.*?(?=, (?!device_ids)\w+=|$)", re.DOTALL
)


class Edit:
    """A computation of a program for a target, while passes rewrite it."""

    def __init__(self, body: Computation, target: Target, devices: int) -> None:
        """Take the instructions of a computation.

        Args:
          devices: among how many the program is partitioned.
        """
        self.name, self.target, self.parameters = body.name, target, body.parameters
        self.by_name = dict(body.instructions)
        #: The collectives that only pass on what they are given: another one does what they did.
        self.stopped: set[str] = set()
        self._slices = Slices(tuple(range(devices)), (0,))
        self._readers: dict[str, dict[str, None]] = {}
        names = [*self.by_name]
        self._next = dict(pairwise(names))
        self._before = {behind: name for name, behind in self._next.items()}
        self._first = names[0] if names else ""
        self.root = body.root.name if body.root is not None else ""
        for each in self.by_name.values():
            self._read(each)

    def __iter__(self) -> Iterator[Instruction]:
        """Yield the instructions there are now, in their order."""
        names, at = [], self._first
        while at:
            names.append(at)
            at = self._next.get(at, "")
        yield from (self.by_name[name] for name in names)

    def done(self) -> Computation:
        """Return the computation as it is now."""
        return Computation(self.name, {each.name: each for each in self})

    def readers(self, name: str) -> list[Instruction]:
        """Return what reads a value."""
        return [self.by_name[each] for each in self._readers.get(name, ())]

    def only_reader(self, each: Instruction) -> Instruction | None:
        """Return what reads a value, where one instruction alone does."""
        found = self._readers.get(each.name, {})
        return self.by_name[next(iter(found))] if len(found) == 1 and not each.is_root else None

    def source(self, each: Instruction) -> Instruction:
        """Return what makes the first operand."""
        return self.by_name[each.operands[0]]

    def shown(self, name: str, through: Container[str]) -> Instruction:
        """Return what makes a value, looking through operations that show it in another form."""
        found = self.by_name[name]
        for _ in range(FAR):
            if found.operation not in through or not found.operands:
                break
            found = self.source(found)
        return found

    # devices

    def members(self, each: Instruction) -> Members | None:
        """Return who takes part in a collective; None where that cannot be read."""
        return members_of(each, self._slices)

    def together(self, each: Instruction) -> Hashable:
        """Return what collectives over the same devices have in common."""
        return together(each, len(self._slices.devices))

    def ways(self, each: Instruction) -> int:
        """Return how many devices are in a group of a collective; 0 where that is not known."""
        members = self.members(each)
        return 0 if members is None else members.ways

    def axes(self, each: Instruction) -> tuple[str, ...]:
        """Return the mesh axes that a collective goes over."""
        members = self.members(each)
        return () if members is None else members.axes(self.target.mesh)

    def over(self, each: Instruction, axes: tuple[str, ...]) -> Instruction:
        """Return a collective that goes over other mesh axes."""
        sizes = ",".join(f"'{name}'={size}" for name, size in self.target.mesh.sizes.items())
        devices = f", replica_groups=mesh[{sizes}] {{{','.join(map(repr, axes))}}}"
        return replace(each, attributes=devices + _DEVICES.sub("", each.attributes))

    def folded(self, each: Instruction, operation: str) -> Instruction | None:
        """Return two collectives, one right behind the other, as one over the axes of both.

        None where they are not of this kind, share an axis, or something else reads the first.
        """
        first = self.source(each) if each.operation == operation and is_alone(each) else None
        if first is None or first.operation != operation or not is_alone(first):
            return None
        axes = (*self.axes(first), *self.axes(each))
        is_other = self.ways(first) * self.ways(each) == self.target.mesh.ways(axes) > 1
        if not is_other or len({*axes}) != len(axes) or self.only_reader(first) is None:
            return None
        return replace(self.over(each, axes), operands=first.operands)

    # changes

    def put(self, each: Instruction) -> None:
        """Put an instruction in place of the one of its name."""
        for name in self.by_name[each.name].operands:
            self._readers[name].pop(each.name, None)
        self.by_name[each.name] = each
        self._read(each)

    def stop(self, each: Instruction) -> None:
        """Let a collective only pass on what it is given."""
        self.stopped.add(each.name)
        self.put(replace(each, operation="copy", attributes=""))

    def sends(self, each: Instruction, wire_bytes: int, *, in_turns: bool = False) -> None:
        """Let a collective send other bytes than a ring of its kind does."""
        more = f", {TURNS}=1" if in_turns else ""
        self.put(replace(each, attributes=f"{each.attributes}, {SENDS}={wire_bytes}{more}"))

    def ahead(self, name: str, made: Iterable[Instruction]) -> None:
        """Insert instructions in front of one."""
        for each in made:
            self._insert(each, self._before.get(name, ""), name)

    def behind(self, name: str, made: Sequence[Instruction]) -> None:
        """Insert instructions behind one; whatever read it reads the last of them instead."""
        last, at = made[-1].name, name
        readers = self.readers(name)
        for each in made:
            self._insert(each, at, self._next.get(at, ""))
            at = each.name
        for each in readers:
            self.put(replace(each, operands=tuple(last if o == name else o for o in each.operands)))
        if self.root == name:
            self.root = last
            self.by_name[name] = replace(self.by_name[name], is_root=False)
            self.by_name[last] = replace(self.by_name[last], is_root=True)

    def _insert(self, each: Instruction, before: str, behind: str) -> None:
        self.by_name[each.name] = replace(each, is_root=False)
        self._read(each)
        for one, other in ((before, each.name), (each.name, behind)):
            if one and other:
                self._next[one], self._before[other] = other, one
        self._first = self._first if before else each.name

    def _read(self, each: Instruction) -> None:
        for name in each.operands:
            self._readers.setdefault(name, {})[each.name] = None


def devices_of(each: Instruction) -> str:
    """Return who takes part in a collective, as it is printed."""
    found = _DEVICES.search(each.bare)
    return found.group() if found else ""


def typed(dtype: str, shape: Sequence[int]) -> str:
    """Return the type of an array, as it is printed."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def elements(array: hlo.HloArray) -> int:
    """Return how many elements an array has."""
    return math.prod(array.shape)


def is_alone(each: Instruction) -> bool:
    """Say whether a collective sends one array."""
    return len(each.operands) == 1 == len(each.arrays)


def form(name: str, kind: str, of: str, operation: str = "reshape") -> Instruction:
    """Return an instruction that shows a value in another form."""
    return Instruction(name, kind, operation, (of,), f"%{of}", "")


# what can be rewritten

#: How many operands operations have at least, where that is more than one.
_LEAST_READ = {"add": 2, "subtract": 2, "multiply": 2, "dot": 2, "clamp": 3}
#: What passes read the arrays of, and those of the operands.
_ARRAYS = frozenset((*PASSES, *IN_HLO, *_LEAST_READ, "dynamic-slice"))


def is_sound(program: Program) -> bool:
    """Say whether operations read what is above them, and as much as they need."""
    return all(
        {*each.operands} <= above and _has_operands(each, body)
        for body in program.computations.values()
        for each, above in _with_above(body)
    )


def _with_above(body: Computation) -> Iterator[tuple[Instruction, set[str]]]:
    above: set[str] = set()
    for each in body.instructions.values():
        yield each, above
        above.add(each.name)


def _has_operands(each: Instruction, body: Computation) -> bool:
    kind, read = each.operation, each.operands
    if kind == "get-tuple-element":
        source = body.instructions[read[0]] if read else each
        most = len(source.operands) if source.operation == "tuple" else math.inf
        return len(read) == 1 and each.index < most
    if kind not in _ARRAYS:
        return True
    given = [body.instructions[name].arrays for name in read]
    if len(read) < _LEAST_READ.get(kind, 1) or not each.arrays or not all(given):
        return False
    if kind == "dynamic-slice":
        ranks = {len(each.arrays[0].shape), len(given[0][0].shape), len(read) - 1}
        return len(ranks) == 1 and all(each.arrays[0].shape)
    return True


# calls


def inlined(program: Program) -> Program:
    """Return a program with what is called in place of the calls, as XLA has it at last."""
    calls = calls_of(program)
    if calls is None or program.entry is None:
        return program
    bodies = dict(program.computations)
    for name in reversed(calls.times):
        body = bodies[name]
        if any(each.operation == "call" for each in body.instructions.values()):
            bodies[name] = _picked(_inlined(body, bodies))
    left = {name for name, site in calls.sites.items() if site.caller.operation == "call"}
    bodies = {name: body for name, body in bodies.items() if name not in left}
    bodies = {name: _respelled(body) for name, body in bodies.items()}
    return replace(program, computations=bodies, entry=bodies[program.entry.name])


def _respelled(body: Computation) -> Computation:
    """Spell a sum of one element as the reshape that it is, as XLA does."""
    found = {}
    for each in body.instructions.values():
        if each.operation == "reduce" and len(each.operands) == 2 and each.arrays:
            source = body.instructions.get(each.operands[0])
            if (
                source is not None
                and source.arrays[:1]
                and (elements(source.arrays[0]) == elements(each.arrays[0]))
            ):
                each = replace(each, operation="reshape", operands=each.operands[:1])
        found[each.name] = each
    return Computation(body.name, found)


def _inlined(body: Computation, bodies: dict[str, Computation]) -> Computation:
    found: dict[str, Instruction] = {}
    given: dict[str, str] = {}
    for each in body.instructions.values():
        operands = tuple(given.get(name, name) for name in each.operands)
        each = replace(each, operands=operands)
        inner = bodies.get(each.called[0]) if each.operation == "call" and each.called else None
        if inner is None or inner.root is None:
            found[each.name] = each
            continue
        if len(operands) <= max(inner.parameters, default=-1):
            found[each.name] = each
            continue
        own = {one.name: operands[at] for at, one in inner.parameters.items()}
        for one in inner.instructions.values():
            if one.operation != "parameter":
                own[one.name] = f"{each.name}.{one.name}"
                read = tuple(own[name] for name in one.operands)
                found[own[one.name]] = replace(
                    one, name=own[one.name], operands=read, is_root=each.is_root and one.is_root
                )
        given[each.name] = own[inner.root.name]
    return Computation(body.name, found)


def _picked(body: Computation) -> Computation:
    """Read the elements of tuples of the same computation from what makes them."""
    given: dict[str, str] = {}
    found: dict[str, Instruction] = {}
    for each in body.instructions.values():
        each = replace(each, operands=tuple(given.get(name, name) for name in each.operands))
        source = found.get(each.operands[0]) if each.operation == "get-tuple-element" else None
        if source is not None and source.operation == "tuple" and not each.is_root:
            given[each.name] = source.operands[each.index]
        else:
            found[each.name] = each
    read = {name for each in found.values() for name in each.operands}
    unread = {n for n, each in found.items() if each.operation == "tuple" and n not in read}
    return Computation(
        body.name, {n: each for n, each in found.items() if n not in unread or each.is_root}
    )
