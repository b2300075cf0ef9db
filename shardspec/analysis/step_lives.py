"""When the values of a step are made and read, and so how long they are alive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from shardspec.analysis.step_layout import StepLayout, place_of, stacked_array
from shardspec.analysis.step_values import Loop, Op, Value, Weight
from shardspec.ir.step import Phase, Place, StageTag, StepTensor


@dataclass(slots=True)
class Life:
    """When a value is made and read.

    Attributes:
      again: when it is made again.
      needed: the last tick of the backward pass that reads it.
      is_each_kept: whether a loop reads it there, so that every round has its own.
    """

    born: int
    read: int
    again: int | None = None
    needed: int | None = None
    is_each_kept: bool = False
    gradient: tuple[int, int] | None = None


@dataclass(slots=True, eq=False)
class Lives:
    """The values of a program, as passes over it make and read them; `at` is the tick of a pass."""

    layout: StepLayout
    _found: dict[int, tuple[Value, Life]] = field(default_factory=dict)

    def live(self, value: Value, at: int) -> Life:
        """Return the life of a value, which is born where nobody has seen it."""
        found = self._found.get(id(value))
        if found is None:
            found = self._found[id(value)] = (value, Life(at, at))
        return found[1]

    def read(self, op: Op, phase: Phase, at: int) -> None:
        """Note that an operation reads its operands."""
        for read in op.reads:
            if isinstance(read.source, Value):
                life = self.live(read.source, at)
                if phase == "forward":
                    life.read = at
                else:
                    self.need(read.source, op, at)

    def need(self, source: Value | Weight, op: Op, at: int) -> None:
        """Note that the backward pass of an operation reads a value."""
        if isinstance(source, Value):
            life = self.live(source, at)
            life.needed = at
            life.is_each_kept |= op.loop is not None and self._is_of_round(source, op.loop)

    def end_gradient(self, value: Value, at: int) -> None:
        """Note the last that reads the gradient of a value."""
        life = self.live(value, at)
        if life.gradient is not None:
            life.gradient = (life.gradient[0], at)

    def tensors(self) -> Iterator[StepTensor]:
        """Yield the tensors of all values."""
        for value, life in self._found.values():
            yield from self._value_tensors(value, life)

    def _value_tensors(self, value: Value, life: Life) -> Iterator[StepTensor]:
        place = place_of(value.maker.line.span if value.maker else self.layout.flow.step.span)
        array = self.layout.array(value)
        carry = next((loop for loop in self._carried_by(value)), None)
        keeps, tag = self.layout.flow.keeps(value), self.layout.tag(value.maker)
        is_kept = life.needed is not None and (keeps or life.again is None)
        if value.maker is not None or (carry is not None and life.is_each_kept):
            if is_kept and life.needed is not None:
                loop = (value.loop or carry) if life.is_each_kept else None
                kept_by: StageTag = "layers" if loop is not None and tag else tag
                for each in self._kept(value, loop, life, place):
                    yield replace(each, stage=kept_by) if kept_by else each
            else:
                lives = (array, array.bytes, life.born, life.read, place)
                yield StepTensor(*lives, "forward", stage=tag)
            if life.again is not None and life.needed is not None and not keeps:
                last = max(life.again, life.needed)
                for _ in range(branches(value)):
                    lives = (array, array.bytes, life.again, last, place)
                    yield StepTensor(*lives, "remat", stage=tag)
        if life.gradient is not None:
            lives = (array, array.bytes, *life.gradient, place)
            yield StepTensor(*lives, "backward", stage=tag)

    def _kept(
        self, value: Value, loop: Loop | None, life: Life, place: Place
    ) -> Iterator[StepTensor]:
        """Yield what is kept of a value: one, or one of each round, or of each turn of stages."""
        array, last = self.layout.array(value), life.needed or life.read
        counts = [(1, life.born)]
        if loop is not None:
            counts = [(self.layout.rounds(loop), life.born)]
            if self.layout.flow.remats_stages:
                turns = self.layout.turns(loop)
                counts = [(turns, life.born)] if value.loop is None else []
                counts.append((self.layout.rounds(loop) // turns, life.again or last))
        for count, born in counts:
            kept = array if loop is None else stacked_array(array, count)
            for _ in range(branches(value)):
                yield StepTensor(kept, kept.bytes, born, last, place, "forward")

    def _is_of_round(self, value: Value, loop: Loop) -> bool:
        """Say whether every round of a loop has its own, and not one that all of them read."""
        return value.loop is loop or loop in self._carried_by(value)

    def _carried_by(self, value: Value) -> Iterator[Loop]:
        """Yield the loop that a value comes into, and that makes one of its name every round."""
        for op in self.layout.flow.ops:
            if op.result.base is value and op.loop is not None and value.loop is not op.loop:
                yield op.loop


def branches(value: Value) -> int:
    """Return how many arrays a value is to the backward pass.

    Branches that are multiplied, as in a gated MLP, are each kept, and so is their product.
    """
    count, one = 0, value
    while one.maker is not None and one.maker.weight is not None:
        count += one.maker.copies
        if one.base is None or one.base.read_in or one.base.loop is not value.loop:
            break
        one = one.base
    return count + 1 if count > 1 else 1
