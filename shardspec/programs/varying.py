"""Along which mesh axes the values of a partitioned program differ from device to device.

A parameter differs along the axes that split it. What is computed of values differs along all of
theirs; a gather or a sum over devices makes its axes alike. So a product whose result does not
differ along an axis is one that all devices along it compute alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from shardspec.ir.collectives import IN_HLO
from shardspec.programs.calls import Ref
from shardspec.programs.hlo import Computation, Instruction, Program, number

#: Mesh axes; of a tuple, those of each element.
Axes = frozenset[str]
Value = tuple[Axes, ...]
#: How often a loop is gone round until its values are those of every round.
_MOST_ROUNDS = 6
_DEEPEST = 40


def varying(
    program: Program,
    given: Sequence[Axes],
    axes_of: Callable[[Instruction], Axes],
    everywhere: Axes,
) -> dict[Ref, Axes]:
    """Return for each instruction the mesh axes along which its value differs.

    Args:
      given: for each parameter of the program.
      axes_of: those that a collective goes over.
      everywhere: all axes: along those a number of the device differs.
    """
    walk = _Walk(program, axes_of, everywhere)
    if program.entry is not None:
        walk.run(program.entry, {at: (axes,) for at, axes in enumerate(given)}, 0)
    return {ref: frozenset().union(*value) for ref, value in walk.found.items()}


@dataclass(slots=True)
class _Walk:
    program: Program
    axes_of: Callable[[Instruction], Axes]
    everywhere: Axes
    found: dict[Ref, Value] = field(default_factory=dict)

    def run(self, body: Computation, given: dict[int, Value], depth: int) -> Value:
        """Work out a computation; return what it gives."""
        last: Value = (frozenset(),)
        for each in body.instructions.values():
            value = self._value(body, each, given, depth)
            self.found[Ref(body.name, each.name)] = value
            if each.is_root:
                last = value
        return last

    def _value(
        self, body: Computation, each: Instruction, given: dict[int, Value], depth: int
    ) -> Value:
        read = [self.found.get(Ref(body.name, name), (frozenset(),)) for name in each.operands]
        if each.operation == "parameter":
            return given.get(number(each.stated), (self.everywhere,))
        if each.operation == "partition-id":
            return (self.everywhere,)
        if each.operation == "tuple":
            return tuple(_all(value) for value in read)
        if each.operation == "get-tuple-element":
            at = number(each.attribute("index"))
            return (read[0][at],) if read and at < len(read[0]) else (_all(*read),)
        if each.operation == "while" and depth < _DEEPEST:
            return self._loop(each, read[0] if read else (), depth)
        if each.operation == "opt-barrier" and len(read) == 1:
            return read[0]
        kind = IN_HLO.get(each.operation)
        if kind is None:
            return (_all(*read),)
        over = self.axes_of(each)
        is_alike = kind.traits.grows or kind.traits.turns > 1
        return (_all(*read) - over if is_alike else _all(*read) | over,)

    def _loop(self, each: Instruction, value: Value, depth: int) -> Value:
        body = self.program.computations.get(each.attribute("body"))
        for _ in range(_MOST_ROUNDS if body is not None else 0):
            assert body is not None
            made = self.run(body, {0: value}, depth + 1)
            joined = tuple(a | b for a, b in zip(value, made, strict=False))
            if len(joined) < len(value) or joined == value:
                break
            value = joined
        return value


def _all(*values: Value) -> Axes:
    return frozenset().union(*(axes for value in values for axes in value))
