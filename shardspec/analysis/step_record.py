"""What the passes over a program note down: operations, and what is sent and gathered for them.

A value that was moved to where an operation needs it stays there for those that follow. A gradient
that every device has whole is summed once a step; all else is sent in every microbatch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

from shardspec.analysis.step_layout import StepLayout, place_of
from shardspec.analysis.step_partition import Move, Partition, Seat, legs_of, sent_bytes
from shardspec.analysis.step_values import Loop, Op, Read, Value, View, Weight
from shardspec.ir import step as steps
from shardspec.ir.step import Flows, Ticks

#: Kinds that compute nothing: another view of a value, or who passes it on to whom.
_VIEWS = ("view", "route", "stage")
_KINDS: dict[str, steps.OpKind] = {"flash": "kernel", "gather": "gather", "op": "kernel"}


class _Moved(NamedTuple):
    """A collective that has been sent, and need not be sent again."""

    source: int
    is_gradient: bool
    kind: steps.CollectiveKind
    mesh_axes: frozenset[str]
    is_forward: bool
    loop: Loop | None


@dataclass(slots=True, eq=False)
class Record:
    """The step as it grows.

    Attributes:
      at: the tick of the pass.
      stage: which stages do what is noted.
      again: the operations that the backward pass does again.
      gathered: the weights that stay so until the end.
    """

    layout: StepLayout
    ops: list[steps.StepOp] = field(default_factory=list)
    collectives: list[steps.Collective] = field(default_factory=list)
    tensors: list[steps.StepTensor] = field(default_factory=list)
    at: int = 0
    stage: steps.StageTag = ""
    flows: Flows = field(default_factory=Flows)
    again: set[Op] = field(default_factory=set)
    gathered: list[steps.StepTensor] = field(default_factory=list)
    _moved: set[_Moved] = field(default_factory=set)

    def op(
        self, op: Op, reads: Sequence[Read], result: Value | Weight, view: View,
        part: Partition, flops: int, phase: steps.Phase, share: float = 1,
    ) -> None:  # fmt: skip
        """Note an operation that computes, for a share of the arrays that it reads."""
        sources = self.passed_on(op, phase)
        if op.kind in _VIEWS:
            return
        kind: steps.OpKind = _KINDS.get(op.kind, "einsum")
        if op.kind == "gather" and phase == "backward":
            kind = "scatter"
        ways = part.ways(self.layout.plan.mesh)
        copies = op.copies
        operands = tuple(self.layout.at_work(read.source, read.view, part) for read in reads)
        made, left = self.layout.at_work(result, view, part), None
        if isinstance(result, Value) and (own := self.layout.array(result).bytes) < made.bytes:
            left = own
        self.ops.append(
            steps.StepOp(
                kind,
                _letters(tuple([read.view for read in reads]), view) if kind == "einsum" else "",
                operands,
                made,
                round(flops * part.padding(self.layout.plan.mesh, _sizes(reads))) // copies // ways,
                self.layout.runs(op) * copies * self.layout.flow.passes * share,
                place_of(op.line.span),
                phase,
                (*part.along, *self.layout.stages_of(op)),
                self.at,
                self.layout.flow.microbatches / turns
                if (turns := self.layout.turns(op.loop)) > 1
                else 1.0,
                self.stage,
                left,
                self._load(reads),
                reads=tuple(sorted(sources)),
            )
        )

    def passed_on(self, op: Op, phase: steps.Phase) -> Ticks:
        """Note what makes the result of an operation, or the gradients of what it reads."""
        is_back = phase == "backward"
        values = [(id(read.source), False) for read in op.reads]
        own = [*([] if op.result.base is None else [(id(op.result.base), False)])]
        gradients = [(id(op.result), True)]
        read = (*gradients, *([] if op.kind in _VIEWS else values)) if is_back else values
        if op.kind in _VIEWS:
            found = made = self.flows.makers(read)
        else:
            found, made = self.flows.compute(self.at, read), frozenset((self.at,))
        if not is_back:
            self.flows.make((id(op.result), False), self._with(made, own))
            return found
        for each, _ in values:
            self.flows.make((each, True), self._with(made, [(each, True)]))
        for each, _ in own:
            self.flows.make((each, True), self._with(self.flows.makers(gradients), [(each, True)]))
        return found

    def _with(self, made: Ticks, values: Sequence[tuple[int, bool]]) -> Ticks:
        """Return what makes a sum: an operation, and what makes the values that it is added to."""
        return self.flows.reduced(made | self.flows.makers(values))

    def _load(self, reads: Sequence[Read]) -> float:
        """Return how many even shares of tokens the busiest device has of what is computed."""
        slots = self.layout.flow.slots
        is_of_experts = any(index.name in slots for read in reads for index in read.indices)
        return self.layout.flow.load if is_of_experts else 1.0

    def moves(
        self, op: Op, reads: Sequence[Read], part: Partition, phase: steps.Phase,
        *, of_gradient: bool = False,
    ) -> None:  # fmt: skip
        """Send what makes operands lie as the work is shared; a value that is there stays so."""
        for read in reads:
            if isinstance(read.source, Weight) and read.source.first.memory_kind is not None:
                self.temporary(self.layout.array(read.source), phase, op)
        for move in part.moves:
            if move.of is None:
                continue
            source = reads[move.of].source
            is_gradient = of_gradient and move.of == 0
            is_first = phase == "forward" and self._is_gathered_again(op.loop)
            axes = frozenset(move.mesh_axes)
            key = _Moved(id(source), is_gradient, move.kind, axes, is_first, op.loop)
            if key in self._moved:
                continue
            self._moved.add(key)
            carried = "weight" if isinstance(source, Weight) else ""
            is_lone = carried == "weight" and op.kind == "einsum" and not part.sums
            is_lone &= op.loop is not None or self.layout.flow.step.mode == "serve"
            is_turned = is_lone and (phase == "forward" or op not in self.again)
            runs, place = self.layout.runs(op), place_of(op.line.span)
            stays = "layer" if not carried else self.layout.flow.step.gather
            self.send(
                *(move, runs, source, phase, place, carried),
                is_turned=is_turned,
                is_once=stays == "step",
            )
            if move.kind is steps.CollectiveKind.ALL_GATHER:
                array = self.layout.at_work(source, reads[move.of].view, part)
                if stays == "layer":
                    self.temporary(array, phase, op)
                    continue
                rounds = 1 if op.loop is None else self.layout.rounds(op.loop)
                born = 0 if stays == "step" else self.at
                held = steps.StepTensor(
                    array, array.bytes, born, born, place, phase, rounds * op.copies
                )
                self.gathered.append(replace(held, stage=self.stage))

    def _is_gathered_again(self, loop: Loop | None) -> bool:
        """Say whether the backward pass of a loop gathers anew what its forward pass gathered.

        Layers that Python repeats, and that keep all they make, are one program: it gathers once.
        """
        step = self.layout.flow.step
        keeps_all = step.remat == ("none",) and loop is not None and loop.is_unrolled
        return loop is not None and not keeps_all and step.gather == "layer"

    def forget(self, loop: Loop) -> None:
        """Let what the backward pass of a loop was sent be sent again."""
        self._moved = {key for key in self._moved if key.loop is not loop or key.is_forward}

    def temporary(self, array: steps.StepArray, phase: steps.Phase, op: Op) -> None:
        """Note what a device has while an operation runs: a gathered array, or one of its host."""
        place = place_of(op.line.span)
        lives = (array, array.bytes, self.at, self.at, place, phase)
        self.tensors.append(steps.StepTensor(*lives, stage=self.stage))

    def send_all(
        self, moves: Iterable[Move], op: Op, source: Value | Weight, phase: steps.Phase,
        copies: int = 1, carried: str = "",
    ) -> None:  # fmt: skip
        """Note the collectives of an operation, as often as it runs."""
        runs, place = self.layout.runs(op) * copies, place_of(op.line.span)
        for move in moves:
            self.send(move, runs, source, phase, place, carried)

    def send(
        self, move: Move, count: float, source: Value | Weight, phase: steps.Phase,
        place: steps.Place, carried: str = "", *, is_turned: bool = False,
        is_whole: bool = False, is_once: bool = False,
    ) -> None:  # fmt: skip
        """Note a collective; of arrays that stand for layers, one for each.

        Args:
          is_turned: as `sent_bytes` takes it.
          is_whole: likewise.
          is_once: whether it is sent once a step, and not in every microbatch.
        """
        legs = legs_of(move, self.layout.plan.target)
        if len(legs) > 1:
            for leg in legs:
                self.send(
                    *(leg, count, source, phase, place, carried), is_whole=is_whole, is_once=is_once
                )
            return
        sent = sent_bytes(move, self.layout.plan.target, is_turned=is_turned, is_whole=is_whole)
        if not sent:
            return
        array = self.layout.array(source)
        microbatches = self.layout.flow.passes
        runs = count * (1 if is_once or phase == "update" else microbatches)
        causes = tuple(_cause(a, s) for a, s in zip(move.mesh_axes, move.seats, strict=True))
        paths: Iterable[tuple[str, float]] = [("", 1)]
        if isinstance(source, Weight):
            is_gradient = carried == "gradient"
            alike = self.layout.trained_of(source) if is_gradient else self.layout.arrays_of(source)
            part = source.copies / len(source.arrays)
            paths = [(each.path, count * part) for each, count in alike]
        for path, share in paths:
            carries = _carried(source, carried, path)
            self.collectives.append(
                steps.Collective(
                    *(move.kind, move.mesh_axes, move.payload_bytes, sent, runs * share),
                    *(replace(array, name=path) if path else array, place, phase),
                    carries=carries,
                    because=causes,
                    at=self.at,
                    is_once=is_once or phase == "update",
                    stage=self.stage,
                )
            )


def _sizes(reads: Sequence[Read]) -> dict[str, int]:
    return {index.name: index.size for read in reads for index in read.indices}


def _carried(source: Value | Weight, carried: str, path: str) -> steps.Carried:
    if isinstance(source, Weight):
        return steps.Carried("gradient" if carried == "gradient" else "weight", path)
    return steps.Carried("activation", source.name)


def _cause(axis: str, seat: Seat | None) -> steps.Cause:
    if seat is None:
        return steps.Cause(axis, steps.CauseKind.UNKNOWN)
    kind = steps.CauseKind.ARGUMENT if seat.path else steps.CauseKind.CONSTRAINT
    dim = seat.dim if seat.path else None
    return steps.Cause(axis, kind, seat.path, dim, steps.Place(), seat.logical_axis, seat.attempt)


@lru_cache(maxsize=1 << 10)
def _letters(views: tuple[View, ...], view: View) -> str:
    """Return an einsum by letter: `abc,cd->abd`."""
    names: dict[str, str] = {}

    def spelt(one: View) -> str:
        found = (index.name for dim in one for index in dim)
        return "".join(names.setdefault(name, chr(97 + len(names) % 26)) for name in found)

    left = ",".join(map(spelt, views))
    return f"{left}->{spelt(view)}"
