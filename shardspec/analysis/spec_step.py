"""The program of `step:` on a mesh -> the same `Step` that a traced function gives.

The forward pass is the program in order. The backward pass runs it from the end: the gradient of an
einsum by each of its operands is an einsum of the others. Parts of a gradient that several
operations add to are summed over a mesh axis once. In a loop whose results are not kept, what the
backward pass needs is computed again first. A weight that is gathered is gathered once for the
forward pass and once for the rest of its round.

Gradients of weights are summed once a step where every device then has all of them, and in every
microbatch and for every use where each has a part, since the whole would take the memory that
splitting it saves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple, cast

from shardspec.analysis.memory import Held, memory
from shardspec.analysis.step_flow import flow_of
from shardspec.analysis.step_layout import StepLayout, place_of, stacked_array, step_array
from shardspec.analysis.step_lives import Lives
from shardspec.analysis.step_partition import (
    Laid,
    Move,
    Partition,
    Seat,
    laid,
    legs_of,
    partition,
    sent_bytes,
    shared,
    slices_lanes,
    summed,
)
from shardspec.analysis.step_stages import is_whole
from shardspec.analysis.step_values import Flow, Index, Loop, Op, Read, Value, View, Weight
from shardspec.diagnostics import Span
from shardspec.diagnostics.words import counted, percent
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.spec import DTYPE_BITS
from shardspec.ir.step import (
    Carried,
    Cause,
    CauseKind,
    Collective,
    CollectiveKind,
    OpKind,
    Phase,
    Place,
    Role,
    Step,
    StepArgument,
    StepArray,
    StepOp,
    StepTensor,
)
from shardspec.resolve.resolver import array_resolver

#: FLOPs of a kernel of attention in its backward pass, which makes the scores again, by forward.
#: Source: FlashAttention-2 (arXiv 2307.08691), section 3.1: five products in place of two.
_KERNEL_BACKWARD = 2.5
_SCATTER = CollectiveKind.REDUCE_SCATTER
_KINDS: dict[str, OpKind] = {"flash": "kernel", "gather": "gather", "op": "kernel"}


class Stated(NamedTuple):
    """A step that a spec states.

    Attributes:
      tokens: what it goes through on all devices; None where sizes are not known.
    """

    step: Step
    tokens: int | None


def stated_step(plan: ShardingPlan, layout: StepLayout | None = None) -> Stated | None:
    """Return the step that a spec states, on the mesh of a plan; None where it states none.

    Args:
      layout: how the program lies on that mesh, where that is known.
    """
    if plan.spec.step is None:
        return None
    if layout is None:
        resolver = array_resolver(plan.spec, plan.target)
        layout = StepLayout(plan, flow_of(plan.spec, plan.arrays), resolver)
    flow = layout.flow
    if not flow.ops or flow.faults:
        return None
    return Stated(_Assembly(layout).step(), flow.tokens)


@dataclass(slots=True)
class _Sum:
    """A gradient as parts of it come in, to be added up at once.

    Attributes:
      born: the tick of the first part.
      loop: that makes the parts.
    """

    seats: dict[str, Seat]
    along: set[str]
    born: int
    line: Span | None
    loop: Loop | None = None


class _Moved(NamedTuple):
    """A collective that has been sent, and need not be sent again."""

    source: int
    is_gradient: bool
    kind: CollectiveKind
    mesh_axes: frozenset[str]
    is_forward: bool
    loop: Loop | None


@dataclass(slots=True, eq=False)
class _Assembly:
    """The step as it grows, pass by pass."""

    layout: StepLayout
    ops: list[StepOp] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    tensors: list[StepTensor] = field(default_factory=list)
    at: int = 0
    plan: ShardingPlan = field(init=False)
    flow: Flow = field(init=False)
    arrays: tuple[ParamSharding, ...] = field(init=False)
    _parts: dict[object, Partition] = field(default_factory=dict)
    _again: set[Op] = field(default_factory=set)
    _moved: set[_Moved] = field(default_factory=set)
    _pending: dict[int, tuple[Value, _Sum]] = field(default_factory=dict)
    lives: Lives = field(init=False)
    _weights: dict[int, tuple[Weight, _Sum]] = field(default_factory=dict)
    _outside: dict[str, list[tuple[Weight, _Sum]]] = field(default_factory=dict)
    _left: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plan, self.flow = self.layout.plan, self.layout.flow
        self.lives = Lives(self.layout)
        self.arrays = tuple(each for each in self.plan.arrays if not each.param.is_cache)

    def step(self) -> Step:
        """Return the whole step."""
        for value in self.flow.inputs:
            self.lives.live(value, self.at)
        for op in self.flow.ops:
            self._forward(op, "forward")
        if self.flow.step.mode == "train":
            self._train()
        end = self.at + 1
        self.tensors += self.lives.tensors()
        for weight, sums in self._weights.values():
            self.tensors += self._gradient_tensors(weight, sums, end)
        span = self.flow.step.span
        return Step(
            "spec",
            self.plan.mesh,
            tuple(self.ops),
            tuple(self.collectives),
            tuple(self.tensors),
            tuple(self._arguments()),
            end,
            place_of(span),
            tuple(self._notes()),
        )

    # passes

    def _forward(self, op: Op, phase: Phase) -> None:
        if op.kind == "stage":
            self.at += 1
            self.lives.read(op, phase, self.at)
            self.lives.live(op.result, self.at)
            self._pass_on(op, phase)
            return
        part = self._partition(op)
        self.at += 1
        self.lives.read(op, phase, self.at)
        self._moves(op, op.reads, part, phase)
        self._op(op, op.reads, op.result, op.view, part, op.flops, phase)
        result = self.layout.lies(op.result, op.view)
        split = [axis for axis, name in part.along.items() if name in result.indices]
        moves = summed(result, part.sums, split, self.plan.mesh)
        self._send_all((*moves, *_of_result(part)), op, op.result, phase, op.copies)
        life = self.lives.live(op.result, self.at)
        if phase == "remat":
            life.again = self.at

    def _partition(self, op: Op) -> Partition:
        found = self._parts.get(op)
        if found is None:
            operands = [self.layout.lies(read.source, read.view) for read in op.reads]
            result = self.layout.lies(op.result, op.view)
            tables = [
                each
                for each, read in zip(operands, op.reads, strict=True)
                if op.kind == "gather" and isinstance(read.source, Weight)
            ]
            table = next(iter(tables), None)
            found = partition(operands, result, self.plan.mesh, op.whole, table=table)
            self._parts[op] = found
        return found

    def _train(self) -> None:
        """Add the backward pass, the sums of gradients and the update."""
        for loop, group in groupby(reversed(self.flow.ops), key=lambda op: op.loop):
            ops = list(group)
            for op in ops:
                self._flush(op.result, 1)  # what lines behind the loop add
            if loop is not None:
                if self.flow.remats_stages:
                    self._redo_stages(loop, ops)
                again = self._redone(ops)
                self._again.update(again)
                for op in again:
                    self._forward(op, "remat")
            for op in ops:
                self._flush(op.result, self.layout.runs(op))
                self._backward(op)
                self.lives.end_gradient(op.result, self.at)
            if loop is not None:
                self._leave(loop, ops)
                self._left[id(loop)] = self.at
        for weight, sums in [pair for found in self._outside.values() for pair in _merged(found)]:
            self._sum_weight(weight, sums, 1)
        self._unread()
        self._gather_updated()

    def _redo_stages(self, loop: Loop, ops: Sequence[Op]) -> None:
        """Run the rounds of a turn again, from what comes into its stages."""
        for op in reversed(ops):
            self._forward(op, "remat")
        self._moved = {key for key in self._moved if key.loop is not loop or key.is_forward}

    def _leave(self, loop: Loop, ops: Sequence[Op]) -> None:
        """Add up what a round adds to the gradients of what came into it."""
        carried = {id(op.result.base) for op in ops if op.result.base is not None}
        for value, _ in list(self._pending.values()):
            if value.loop is not loop and (id(value) in carried or not loop.is_unrolled):
                self._flush(value, self.layout.rounds(loop))

    def _redone(self, ops: Sequence[Op]) -> list[Op]:
        """Return the operations of a round that the backward pass does again, in their order."""
        made = {id(op.result): op for op in ops}
        wanted = [value for op in ops for value in _needed(op)]
        again: set[Op] = set()
        while wanted:
            value = wanted.pop()
            op = made.get(id(value))
            if op is None or op in again or self.flow.keeps(value):
                continue
            again.add(op)
            wanted += [read.source for read in op.reads if isinstance(read.source, Value)]
            wanted += [value.base] if value.base is not None else []
        return [op for op in reversed(ops) if op in again]

    def _backward(self, op: Op) -> None:
        if op.kind == "route" or not op.result.is_trained:
            return
        if op.kind == "stage":
            self.at += 1
            self._pass_on(op, "backward")
            life = self.lives.live(cast(Value, op.reads[0].source), self.at)
            life.gradient = life.gradient or (self.at, self.at)
            return
        if op.kind == "flash":
            self._kernel_backward(op)
            return
        self.at += 1
        made = Read(op.result, op.view)
        flops = 2 * op.flops // len(op.reads) if op.kind == "op" else op.flops
        for read in op.reads:
            if not read.source.is_trained:
                continue
            others = [each for each in op.reads if each is not read]
            if op.kind == "op":
                self.lives.need(read.source, op, self.at)
            if op.kind == "gather":
                others = [each for each in others if not isinstance(each.source, Weight)]
            if op.kind == "view":
                others = []
            reads = (made, *others)
            for each in others:
                self.lives.need(each.source, op, self.at)
            operands = [self.layout.lies(each.source, each.view) for each in reads]
            result = self.layout.lies(read.source, read.view, "gradient")
            table = result if op.kind == "gather" else None
            part = partition(operands, result, self.plan.mesh, op.whole, table=table)
            self._moves(op, reads, part, "backward", of_gradient=True)
            share = read.source.trained_share if isinstance(read.source, Weight) else 1
            self._op(op, reads, read.source, read.view, part, flops, "backward", share)
            self._collect(op, read, part, result)

    def _pass_on(self, op: Op, phase: Phase) -> None:
        """Send what stages of a pipeline pass on; and what comes in, or goes out, on the way."""
        source, whole = op.result, cast(Value, op.reads[0].source)
        is_entering = is_whole(whole)
        if not is_entering:
            source, whole = whole, source
        seats = self.layout.stage_seats(op.passes)
        if not seats:
            return
        axes, turns = tuple(seats), self.layout.turns(op.passes)
        is_split = set(axes) <= self.layout.lies(whole, whole.view).seats.keys()
        payload = self.layout.array(source).bytes
        if is_entering:
            kind, runs = CollectiveKind.COLLECTIVE_PERMUTE, turns * (2 if is_split else 1)
            move = Move(kind, axes, payload, -1, tuple(seats.values()))
            self._send(move, runs, source, phase, place_of(op.line.span))
        if not is_split and is_entering == (phase == "backward"):
            runs = self.flow.microbatches if is_entering else turns
            move = Move(CollectiveKind.ALL_REDUCE, axes, payload, -1, tuple(seats.values()))
            self._send(move, runs, source, phase, place_of(op.line.span))

    def _kernel_backward(self, op: Op) -> None:
        """Add the one kernel that makes the gradients of all that attention reads."""
        self.at += 1
        along = self._partition(op).along
        made = Read(op.result, op.view)
        reads = (*op.reads, made)
        operands = [self.layout.lies(each.source, each.view) for each in reads]
        flops = round(op.flops * _KERNEL_BACKWARD)
        for at, read in enumerate(op.reads):
            self.lives.need(read.source, op, self.at)
            result = self.layout.lies(read.source, read.view, "gradient")
            part = shared(along, operands, result, self.plan.mesh)
            if at == 0:
                self._moves(op, reads, part, "backward")
                self._op(op, reads, read.source, read.view, part, flops, "backward")
            if read.source.is_trained:
                self._collect(op, read, part, result)

    def _collect(self, op: Op, read: Read, part: Partition, result: Laid) -> None:
        """Take in one part of the gradient of what is read."""
        source = read.source
        along = {axis for axis, name in part.along.items() if name in result.indices}
        if isinstance(source, Value):
            self._send_all(_of_result(part), op, source, "backward")
            _, sums = self._pending.setdefault(
                id(source), (source, _Sum({}, set(), self.at, op.line.span))
            )
            sums.seats.update(part.sums)
            sums.along |= along
            life = self.lives.live(source, self.at)
            life.gradient = life.gradient or (self.at, self.at)
            return
        found = _Sum(dict(part.sums), along, self.at, op.line.span, op.loop)
        self._send_all(_of_result(part), op, source, "backward", 1, "gradient")
        if op.loop is None:
            self._outside.setdefault(source.first.path, []).append((source, found))
        else:
            self._sum_weight(source, found, self.layout.runs(op))
        self._weights.setdefault(id(source), (source, found))
        if self.flow.passes * self.layout.turns(op.loop) > 1:
            self._add_up(source, op)

    def _add_up(self, weight: Weight, op: Op) -> None:
        """Note that the gradient of a microbatch is added to those before, in memory."""
        for each, count in self._trained(weight):
            dims = self.layout.gradient_dims(each.dims)
            array = step_array(dims, each.param.shape, each.param.dtype, each.path)
            runs = count * self.flow.passes * self.layout.turns(op.loop)
            place, axes = place_of(op.line.span), tuple(a for dim in dims for a in dim.mesh_axes)
            self.ops.append(
                StepOp("scatter", "", (array,), array, 0, runs, place, "backward", axes, self.at)
            )

    def _trained(self, weight: Weight) -> Iterator[tuple[ParamSharding, int]]:
        """Yield the arrays of a weight that have gradients, and how many each stands for."""
        return (pair for pair in self.layout.arrays_of(weight) if pair[0].is_trained)

    def _flush(self, value: Value, count: int) -> None:
        """Add up the parts of the gradient of a value."""
        found = self._pending.pop(id(value), None)
        if found is None:
            return
        sums = found[1]
        own = self.layout.lies(value, value.view)
        for move in summed(own, sums.seats, sums.along, self.plan.mesh):
            self._send(move, count, value, "backward", place_of(sums.line))

    def _sum_weight(self, weight: Weight, sums: _Sum, count: int) -> None:
        view = tuple((index,) for index in _blank(weight))
        own = self.layout.lies(weight, view, "gradient")
        dtype, uses = weight.first.param.dtype, sums.loop.uses if sums.loop is not None else 1
        moves = summed(own, sums.seats, sums.along, self.plan.mesh)
        for move in moves:
            place, is_turned, runs = place_of(sums.line), move.kind is _SCATTER, count
            if is_turned:  # in every microbatch and use, ahead of what adds them up
                dtype = self.layout.wire_dtype(dtype)
            else:  # added up over the turns of a pipeline, and summed behind them
                runs = count // self.layout.turns(sums.loop)
            if not is_turned and uses > 1:  # added up first, as the array itself is
                runs, dtype = runs // uses, self.flow.step.gradients or dtype
            if is_turned or uses > 1:
                bits = DTYPE_BITS.get(dtype, 32)
                move = move._replace(payload_bytes=move.payload_bytes * bits // own.bits)
            is_whole = is_turned and slices_lanes(move, own, weight.shape, dtype, self.plan.target)
            self._send(
                *(move, runs, weight, "backward", place, "gradient"),
                is_turned=is_turned and len(moves) == 1,  # else it is one sum, sliced after
                is_whole=is_whole,
            )

    def _unread(self) -> None:
        """Add the gradients of arrays that no line reads, such as the scales of norms."""
        axes = self._batch_seats()
        at, place = self.at, place_of(self.flow.step.span)
        for each in self.arrays:
            if each.path in self.flow.used or each.is_state or not each.is_trained:
                continue
            weight = Weight((each,), tuple(range(each.param.rank)))
            view = tuple((index,) for index in _blank(weight))
            dims = self.layout.gradient_dims(each.dims)
            own = laid(view, dims, each.param.dtype, self.plan.mesh, each.path)
            for move in summed(own, axes, (), self.plan.mesh):
                self._send(move, 1, weight, "backward", place, "gradient")
            tensor, count = self.layout.array(weight), self.layout.count_of(each.path)
            lives = StepTensor(tensor, tensor.bytes, at, at + 1, place, "backward", count)
            self.tensors.append(lives)

    def _batch_seats(self) -> dict[str, Seat]:
        """Return the mesh axes that share the batch, and the positions in it."""
        sources = [read.source for op in self.flow.ops for read in op.reads]
        reads = Counter(each.name for each in sources if isinstance(each, Value))
        batched = [op.result for op in self.flow.ops if "batch" in op.result.names]
        value = max(batched, key=lambda value: reads[value.name], default=None)
        if value is None:
            return {}
        seats = self.layout.lies(value, value.view).seats
        return {axis: seat for axis, seat in seats.items() if seat.name in ("batch", "length")}

    def _gather_updated(self) -> None:
        """Gather the parameters that ZeRO updates in parts."""
        self.at += 1
        state = self.plan.spec.state
        place = place_of(state.span if state is not None else None)
        for each in self.arrays:
            further = self.layout.gradient_dims(each.dims)
            if further == each.dims or not each.is_trained:
                continue
            weight = Weight((each,), tuple(range(each.param.rank)))
            view = tuple((index,) for index in _blank(weight))
            own = laid(view, further, each.param.dtype, self.plan.mesh, each.path)
            before = laid(view, each.dims, each.param.dtype, self.plan.mesh)
            axes = tuple(axis for axis in own.seats if axis not in before.seats)
            if axes:
                payload = own.bytes(self.plan.mesh.ways(before.seats))
                seats = tuple(own.seats[axis] for axis in axes)
                move = Move(CollectiveKind.ALL_GATHER, axes, payload, 0, seats)
                self._send(move, 1, weight, "update", place, "weight")

    # what is noted down

    def _op(
        self, op: Op, reads: Sequence[Read], result: Value | Weight, view: View,
        part: Partition, flops: int, phase: Phase, share: float = 1,
    ) -> None:  # fmt: skip
        """Note an operation that computes, for a share of the arrays that it reads."""
        if op.kind in ("view", "route"):
            return
        kind: OpKind = _KINDS.get(op.kind, "einsum")
        if op.kind == "gather" and phase == "backward":
            kind = "scatter"
        ways = part.ways(self.plan.mesh)
        copies = op.copies
        operands = tuple(self.layout.at_work(read.source, read.view, part) for read in reads)
        self.ops.append(
            StepOp(
                kind,
                _letters(tuple([read.view for read in reads]), view) if kind == "einsum" else "",
                operands,
                self.layout.at_work(result, view, part),
                round(flops * part.padding(self.plan.mesh, _sizes(reads))) // copies // ways,
                self.layout.runs(op) * copies * self.flow.passes * share,
                place_of(op.line.span),
                phase,
                (*part.along, *self.layout.stages(op.loop)),
                self.at,
                self.flow.microbatches / turns
                if (turns := self.layout.turns(op.loop)) > 1
                else 1.0,
            )
        )

    def _moves(
        self, op: Op, reads: Sequence[Read], part: Partition, phase: Phase,
        *, of_gradient: bool = False,
    ) -> None:  # fmt: skip
        """Send what makes operands lie as the work is shared; a value that is there stays so."""
        for read in reads:
            if isinstance(read.source, Weight) and read.source.first.memory_kind is not None:
                self._temporary(self.layout.array(read.source), phase, op)
        for move in part.moves:
            if move.of < 0:
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
            is_lone &= op.loop is not None or self.flow.step.mode == "serve"
            is_turned = is_lone and (phase == "forward" or op not in self._again)
            runs, place = self.layout.runs(op), place_of(op.line.span)
            self._send(move, runs, source, phase, place, carried, is_turned=is_turned)
            if move.kind is CollectiveKind.ALL_GATHER:
                array = self.layout.at_work(source, reads[move.of].view, part)
                self._temporary(array, phase, op)

    def _is_gathered_again(self, loop: Loop | None) -> bool:
        """Say whether the backward pass of a loop gathers anew what its forward pass gathered.

        Layers that Python repeats, and that keep all they make, are one program: it gathers once.
        """
        return loop is not None and not (loop.is_unrolled and self.flow.step.remat == ("none",))

    def _temporary(self, array: StepArray, phase: Phase, op: Op) -> None:
        """Note what a device has while an operation runs: a gathered array, or one of its host."""
        place = place_of(op.line.span)
        self.tensors.append(StepTensor(array, array.bytes, self.at, self.at, place, phase))

    def _send_all(
        self, moves: Iterable[Move], op: Op, source: Value | Weight, phase: Phase,
        copies: int = 1, carried: str = "",
    ) -> None:  # fmt: skip
        runs, place = self.layout.runs(op) * copies, place_of(op.line.span)
        for move in moves:
            self._send(move, runs, source, phase, place, carried)

    def _send(
        self, move: Move, count: float, source: Value | Weight, phase: Phase, place: Place,
        carried: str = "", *, is_turned: bool = False, is_whole: bool = False,
    ) -> None:  # fmt: skip
        """Note a collective; of arrays that stand for layers, one for each.

        Args:
          is_turned: as `sent_bytes` takes it.
          is_whole: likewise.
        """
        legs = legs_of(move, self.plan.target)
        if len(legs) > 1:
            for leg in legs:
                self._send(leg, count, source, phase, place, carried, is_whole=is_whole)
            return
        sent = sent_bytes(move, self.plan.target, is_turned=is_turned, is_whole=is_whole)
        if not sent:
            return
        array = self.layout.array(source)
        microbatches = self.flow.passes
        is_once = carried == "gradient" and move.kind is CollectiveKind.ALL_REDUCE
        runs = count * (1 if is_once or phase == "update" else microbatches)
        causes = tuple(_cause(a, s) for a, s in zip(move.mesh_axes, move.seats, strict=True))
        paths: Iterable[tuple[str, float]] = [("", 1)]
        if isinstance(source, Weight):
            is_gradient = carried == "gradient"
            alike = self._trained(source) if is_gradient else self.layout.arrays_of(source)
            part = source.copies / len(source.arrays)
            paths = [(each.path, count * part) for each, count in alike]
        for path, share in paths:
            carries = _carried(source, carried, path)
            self.collectives.append(
                Collective(
                    *(move.kind, move.mesh_axes, move.payload_bytes, sent, runs * share),
                    *(replace(array, name=path) if path else array, place, phase),
                    carries=carries,
                    because=causes,
                    at=self.at,
                )
            )

    def _gradient_tensors(self, weight: Weight, sums: _Sum, end: int) -> Iterator[StepTensor]:
        """Yield the gradients of arrays, alive from when the first of them is made.

        Layers that stand one by one give up what they kept as their gradients are made; so these
        count where all of them are. Equal layers in one array have one gradient from the start.
        """
        born = sums.born
        if self.flow.passes > 1:
            born = 0
        elif sums.loop is not None and sums.loop.is_unrolled:
            born = min(end, self._left[id(sums.loop)] + 1)
        for each, count in self._trained(weight):
            dims = self.layout.gradient_dims(each.dims)
            array = step_array(dims, each.param.shape, each.param.dtype, each.path)
            yield StepTensor(array, array.bytes, born, end, place_of(sums.line), "backward", count)

    # the rest

    def _arguments(self) -> Iterator[StepArgument]:
        is_training = self.flow.step.mode == "train"
        for each in self.plan.arrays:
            array = step_array(each.dims, each.param.shape, each.param.dtype, each.path)
            is_cache, count = each.param.is_cache, self.layout.count_of(each.path)
            role: Role = "optimizer" if each.is_state else "cache" if is_cache else "parameter"
            is_frozen = each.training is not None and not each.is_trained
            is_donated = (is_training and not is_frozen) or is_cache
            is_on_host = each.memory_kind is not None
            yield StepArgument(each.path, role, array, is_donated, True, is_on_host, count)
        if is_training and self.plan.spec.state is not None:
            yield from self._moments()
        for value in self.flow.inputs:
            dtype = "s32" if self.flow.is_index(value) else None
            role = "batch" if is_training or dtype is not None else "cache"
            if role == "cache" and self.flow.is_one_of(self.plan.spec.caches, value):
                continue
            array = self.layout.array(value, dtype)
            array = stacked_array(array, value.rounds) if value.rounds > 1 else array
            yield StepArgument(value.name, role, array, role == "cache", True)

    def _moments(self) -> Iterator[StepArgument]:
        """Yield what the optimizer keeps, by `state:`, where the plan lists none of it."""
        for figure in memory(self.plan).figures:
            alike = figure.arrays
            if figure.held is not Held.MOMENTS or alike.first.is_state:
                continue
            is_on_host = alike.memory_kind is not None
            for each in alike.shardings * figure.copies:
                array = step_array(alike.dims, alike.shape, alike.dtype, each.path)
                path = f"opt_state/{each.path}" if is_on_host else each.path
                count = self.layout.count_of(each.path)
                yield StepArgument(path, "optimizer", array, True, True, is_on_host, count)

    def _notes(self) -> Iterator[str]:
        """Yield which arrays count by their gradients alone, where that is more than norms."""
        loops = dict.fromkeys(op.loop for op in self.flow.ops)
        stages = dict.fromkeys(axis for loop in loops for axis in self.layout.stages(loop))
        for axis in stages if self.flow.step.pipeline is None else ():
            yield (
                f"layers are split over `{axis}`: what stages pass on and wait for is not counted"
                " without `pipeline` in `step`"
            )
        for loop in loops:
            turns, microbatches = self.layout.turns(loop), self.flow.microbatches
            if self.layout.stages(loop) and turns > 1:
                yield (
                    f"{turns} turns of {turns - microbatches + 1} stages for {microbatches}"
                    f" microbatches: each works for nothing in {1 - microbatches / turns:.0%}"
                )
        count_of = self.layout.count_of
        sizes = {each.path: each.param.bytes * count_of(each.path) for each in self.arrays}
        left = [each for each in self.arrays if each.path not in self.flow.used]
        size, whole = sum(sizes[each.path] for each in left), sum(sizes.values())
        if 100 * size > whole:
            count = sum(count_of(each.path) for each in left)
            largest = max(left, key=lambda each: each.param.bytes)
            yield (
                f"no line of `step:` reads {counted(count, 'array')}, {percent(size, whole)} of"
                " the bytes,"
                f" {largest.path} the largest: what they compute is not counted"
            )


def _sizes(reads: Sequence[Read]) -> dict[str, int]:
    return {index.name: index.size for read in reads for index in read.indices}


def _of_result(part: Partition) -> tuple[Move, ...]:
    return tuple(move for move in part.moves if move.of < 0)


def _needed(op: Op) -> Iterator[Value]:
    """Yield the values that the backward pass of an operation reads."""
    if op.kind not in ("flash", "op", "einsum"):
        return
    for read in op.reads:
        others = any(other.source.is_trained for other in op.reads if other is not read)
        is_own = op.kind != "einsum" and read.source.is_trained
        if isinstance(read.source, Value) and (others or is_own):
            yield read.source


def _merged(found: Sequence[tuple[Weight, _Sum]]) -> Iterator[tuple[Weight, _Sum]]:
    """Yield the parts of a gradient that are summed over the same axes as one."""
    by_axes: dict[frozenset[str], tuple[Weight, _Sum]] = {}
    for weight, sums in found:
        by_axes.setdefault(frozenset(sums.seats), (weight, sums))
    yield from by_axes.values()


def _blank(weight: Weight) -> Iterator[Index]:
    for at, size in enumerate(weight.shape):
        yield Index(f"{at}", size)


def _carried(source: Value | Weight, carried: str, path: str) -> Carried:
    if isinstance(source, Weight):
        return Carried("gradient" if carried == "gradient" else "weight", path)
    return Carried("activation", source.name)


def _cause(axis: str, seat: Seat | None) -> Cause:
    if seat is None:
        return Cause(axis, CauseKind.UNKNOWN)
    kind = CauseKind.ARGUMENT if seat.path else CauseKind.CONSTRAINT
    dim = seat.dim if seat.path else None
    return Cause(axis, kind, seat.path, dim, Place(), seat.logical_axis, seat.attempt)


@lru_cache(maxsize=1 << 10)
def _letters(views: tuple[View, ...], view: View) -> str:
    """Return an einsum by letter: `abc,cd->abd`."""
    names: dict[str, str] = {}

    def spelt(one: View) -> str:
        found = (index.name for dim in one for index in dim)
        return "".join(names.setdefault(name, chr(97 + len(names) % 26)) for name in found)

    left = ",".join(map(spelt, views))
    return f"{left}->{spelt(view)}"
