"""Which devices have the same value, in a program that XLA has partitioned.

A parameter is the same on the devices that hold one shard of it. What is computed of values is the
same where all of them are; a gather or a sum is the same for all devices of a group; a permute
hands values on. So a product whose operands several devices have is one that they compute alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shardspec.ir.operations import IN_HLO
from shardspec.programs.calls import Ref
from shardspec.programs.hlo import Computation, Instruction, Program, number
from shardspec.programs.members import Members

#: For each device, the first one that has the same value.
Alike = tuple[int, ...]
#: Of a tuple, the devices that have the same of each element.
Value = tuple[Alike, ...]
#: How often a loop is gone round until its values are those of every round.
_MOST_ROUNDS = 6
_DEEPEST = 40


class Differs(NamedTuple):
    """How a value differs from device to device.

    Attributes:
      axes: the mesh axes along which some device has another value than its neighbour.
      is_everywhere: whether no two devices have the same.
    """

    axes: frozenset[str]
    is_everywhere: bool


def of_shards(axes: Collection[str], sizes: Mapping[str, int]) -> Alike:
    """Return which devices of a mesh hold the same shard of an array that axes split."""
    devices = [0]
    for name, size in sizes.items():
        is_split = name in axes
        devices = [size * at + step * is_split for at in devices for step in range(size)]
    return _first(devices)


def differing(alike: Alike, sizes: Mapping[str, int]) -> Differs:
    """Return how a value differs along the axes of a mesh."""
    axes, below = set(), len(alike)
    for name, size in sizes.items():
        below //= size
        firsts = (at - at // below % size * below for at in range(len(alike)))
        if any(alike[at] != alike[first] for at, first in enumerate(firsts)):
            axes.add(name)
    return Differs(frozenset(axes), len({*alike}) == len(alike))


def alike(
    program: Program,
    given: Sequence[Alike],
    members_of: Callable[[Instruction], Members | None],
    devices: int,
) -> dict[Ref, Value]:
    """Return for each instruction which devices have the same value.

    Invariants:
      sound: devices that are said to have the same value have it.

    Args:
      given: for each parameter of the program.
      members_of: who takes part in a collective.
    """
    walk = _Walk(program, members_of, tuple(range(devices)))
    if program.entry is not None:
        walk.run(program.entry, {at: (each,) for at, each in enumerate(given)}, 0)
    return walk.found


@dataclass(slots=True)
class _Walk:
    program: Program
    members_of: Callable[[Instruction], Members | None]
    everyone: Alike
    found: dict[Ref, Value] = field(default_factory=dict)
    joins: dict[tuple[int, int], Alike] = field(default_factory=dict)
    known: dict[Alike, Alike] = field(default_factory=dict)

    def run(self, body: Computation, given: dict[int, Value], depth: int) -> Value:
        """Work out a computation; return what it gives."""
        last: Value = ((0,) * len(self.everyone),)
        for each in body.instructions.values():
            value = tuple(map(self._kept, self._value(body, each, given, depth)))
            self.found[Ref(body.name, each.name)] = value
            if each.is_root:
                last = value
        return last

    def _kept(self, alike: Alike) -> Alike:
        """Return one tuple for all equal ones: joins are looked up by its identity."""
        return self.known.setdefault(alike, alike)

    def _value(
        self, body: Computation, each: Instruction, given: dict[int, Value], depth: int
    ) -> Value:
        read = [self.found.get(Ref(body.name, name), ()) for name in each.operands]
        match each.operation:
            case "parameter":
                return given.get(number(each.stated), (self.everyone,))
            case "partition-id":
                return (self.everyone,)
            case "tuple":
                return tuple(map(self._all, read))
            case "get-tuple-element":
                at = each.index
                return (read[0][at],) if read and at < len(read[0]) else (self._all(*read),)
            case "while" if depth < _DEEPEST:
                return self._loop(each, read[0] if read else (), depth)
            case "opt-barrier" if len(read) == 1:
                return read[0]
            case "dynamic-slice" if len(read) == 2 and read[1] == (self.everyone,):
                return (self._looked_up(body.instructions[each.operands[0]], read[0]),)
        joined = self._all(*read)
        return (joined if each.operation not in IN_HLO else self._sent(each, joined),)

    def _looked_up(self, table: Instruction, value: Value) -> Alike:
        """Return which devices find the same in a table by their numbers."""
        rows = re.findall(r"-?\d+", table.stated) if table.operation == "constant" else []
        found = len(rows) == len(self.everyone) and len(table.arrays[0].shape) == 1
        return _first(rows) if found else self._all(value, (self.everyone,))

    def _sent(self, each: Instruction, value: Alike) -> Alike:
        """Return which devices have the same of what a collective gives them."""
        members, traits = self.members_of(each), IN_HLO[each.operation].traits
        if members is None:
            return self.everyone
        labels: list[Hashable] = [None] * len(value)
        for group in members.groups:
            if each.operation == "collective-permute":
                labels[group[1]] = value[group[0]]
                continue
            whole = tuple(value[at] for at in group)
            is_shared = traits.grows or traits.turns > 1
            for place, at in enumerate(group):
                labels[at] = whole if is_shared else (whole, place)
        return _first(labels)

    def _loop(self, each: Instruction, value: Value, depth: int) -> Value:
        body = self.program.computations.get(each.attribute("body"))
        for _ in range(_MOST_ROUNDS if body is not None else 0):
            assert body is not None
            made = self.run(body, {0: value}, depth + 1)
            joined = tuple(map(self._join, value, made))
            if len(joined) < len(value) or joined == value:
                break
            value = joined
        return value

    def _all(self, *values: Value) -> Alike:
        joined = self._kept((0,) * len(self.everyone))
        for value in values:
            for each in value:
                joined = self._join(joined, each)
        return joined

    def _join(self, one: Alike, other: Alike) -> Alike:
        one, other = self._kept(one), self._kept(other)
        key = (id(one), id(other))
        if key not in self.joins:
            self.joins[key] = self._kept(_first([*zip(one, other, strict=True)]))
        return self.joins[key]


def _first(labels: Sequence[Hashable]) -> Alike:
    """Return for each device the first one of its label."""
    firsts: dict[Hashable, int] = {}
    return tuple(firsts.setdefault(label, at) for at, label in enumerate(labels))
