"""The program of `step:` on a mesh -> the same `Step` that a traced function gives.

The forward pass is the program in order. The backward pass runs it from the end: the gradient of an
einsum by each of its operands is an einsum of the others. Parts of a gradient that several
operations add to are summed over a mesh axis once. In a loop whose results are not kept, what the
backward pass needs is computed again first. A weight that is gathered is gathered once for the
forward pass and once for the rest of its round.

Unless `reduce:` says when, gradients of weights are summed once a step where every device then has
all of them, unless layers are a scan, and in every microbatch and for every use where each has a
part, since the whole would take the memory that splitting it saves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple, cast

from shardspec.analysis import step_layout, step_partition
from shardspec.analysis.cost import Cost, Loaded, Uneven, cost_of
from shardspec.analysis.step_flow import flow_of
from shardspec.analysis.step_layout import Record, StepLayout, Summed, notes, unknown
from shardspec.analysis.step_partition import Laid, Move, Partition, Seat, laid, summed
from shardspec.analysis.step_values import Flow, Loop, Op, Read, Value, Weight, is_whole, place_of
from shardspec.diagnostics.words import listed
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.program import Balance
from shardspec.ir.spec import DTYPE_BITS, Spec
from shardspec.ir.step import CollectiveKind, Phase, Place, StageTag, Step, StepTensor
from shardspec.resolve.resolver import array_resolver

#: FLOPs of a kernel of attention in its backward pass, which makes the scores again, by forward.
#: Source: FlashAttention-2 (arXiv 2307.08691), section 3.1: five products in place of two.
_KERNEL_BACKWARD = 2.5
_SCATTER, _PERMUTE = CollectiveKind.REDUCE_SCATTER, CollectiveKind.COLLECTIVE_PERMUTE


class Stated(NamedTuple):
    """A step that a spec states.

    Attributes:
      tokens: what it goes through on all devices; None where sizes are not known.
    """

    step: Step
    tokens: int | None


def stated_cost(plan: ShardingPlan, *, tokens: int | None = None) -> Cost:
    """Return what a plan costs, with the step that its spec states where it states one.

    Args:
      tokens: of a step on all devices; else those that the spec says.
    """
    balance = balance_of(plan.spec)
    spread = None if balance is None else spread_on(_layout(plan), balance)
    if spread is not None:
        expected, p99 = (stated_step(plan, _layout(plan, load)) for load in spread.balance)
        if expected is not None and p99 is not None:
            sides = (
                cost_of(plan, each.step, tokens=tokens or each.tokens) for each in (expected, p99)
            )
            return unevenly(spread, *sides)
    stated = stated_step(plan)
    if stated is None:
        return cost_of(plan)
    return cost_of(plan, stated.step, tokens=tokens or stated.tokens)


class Spread(NamedTuple):
    """How uneven the load of devices is on a mesh.

    Attributes:
      held: experts of a device, of how many there are.
      balance: of the busiest device.
    """

    held: int
    experts: int
    balance: Balance


def balance_of(spec: Spec) -> Balance | None:
    """Return how uneven the experts of a spec are, where it says so."""
    step = spec.step
    return step.experts.balance if step is not None and step.experts is not None else None


def spread_on(layout: StepLayout, balance: Balance) -> Spread | None:
    """Return how uneven devices are on a mesh; None where no tokens go to experts."""
    flow = layout.flow
    found = [
        (value.shape[at], layout.dims(value)[at].ways)
        for value in (op.result for op in flow.ops)
        for at, name in enumerate(value.names)
        if name in flow.experts
    ]
    if not found:
        return None
    experts, ways = max(found, key=lambda each: each[1])
    held = max(1, experts // ways)
    return Spread(held, experts, balance.on(held, experts))


def unevenly(spread: Spread, expected: Cost, p99: Cost) -> Cost:
    """Return the cost of a step whose experts are uneven, of what two loads of them take."""
    sides = (
        Loaded(
            load,
            None if each.time is None else each.time.step_seconds,
            each.memory.total.bytes,
        )
        for load, each in zip(spread.balance, (expected, p99), strict=True)
    )
    return replace(expected, memory=p99.memory, uneven=Uneven(spread.held, spread.experts, *sides))


def evenly(plan: ShardingPlan) -> ShardingPlan:
    """Return a plan whose experts are even, as every program is that is compiled of it."""
    step = plan.spec.step
    if step is None or step.experts is None:
        return plan
    even = replace(step, experts=step.experts._replace(balance=None))
    return replace(plan, spec=replace(plan.spec, step=even))


def _layout(plan: ShardingPlan, load: float = 1.0) -> StepLayout:
    """Return the layout of the program of a spec on its mesh.

    Args:
      load: of the experts of a device, as even shares.
    """
    resolver = array_resolver(plan.spec, plan.target)
    return StepLayout(plan, flow_of(plan.spec, plan.arrays, load), resolver)


def stated_step(plan: ShardingPlan, layout: StepLayout | None = None) -> Stated | None:
    """Return the step that a spec states, on the mesh of a plan; None where it states none.

    Args:
      layout: how the program lies on that mesh, where that is known.
    """
    if plan.spec.step is None:
        return None
    layout = layout or _layout(plan)
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
      stage: the stages that make them.
      turned: the FLOPs of the largest product of a part that may be computed in turns of a ring.
      is_again: whether what it reads was gathered anew for the backward pass.
      part: of a weight, how the work is shared that makes it.
    """

    seats: dict[str, Seat]
    along: set[str]
    born: int
    place: Place
    loop: Loop | None = None
    stage: StageTag = ""
    turned: int = 0
    is_again: bool = False
    part: Partition | None = None


@dataclass(slots=True, eq=False)
class _Assembly:
    """The step as it grows, pass by pass."""

    layout: StepLayout
    record: Record = field(init=False)
    plan: ShardingPlan = field(init=False)
    flow: Flow = field(init=False)
    arrays: tuple[ParamSharding, ...] = field(init=False)
    _pending: dict[int, tuple[Value, _Sum]] = field(default_factory=dict)
    lives: Lives = field(init=False)
    _weights: dict[int, tuple[Weight, _Sum]] = field(default_factory=dict)
    _outside: dict[tuple[str, bool], list[tuple[Weight, _Sum]]] = field(default_factory=dict)
    _left: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plan, self.flow = self.layout.plan, self.layout.flow
        self.record, self.lives = Record(self.layout), Lives(self.layout)
        self.arrays = tuple(each for each in self.plan.arrays if not each.param.is_cache)

    def step(self) -> Step:
        """Return the whole step."""
        self._forwards()
        if self.flow.step.mode == "train":
            self._train()
        end = self.record.at + 1
        self.record.tensors += self.lives.tensors()
        found: dict[object, StepTensor] = {}
        for weight, sums in self._weights.values():
            for each in self._gradient_tensors(weight, sums, end):  # all uses add to the one held
                key = each.array.name if self.flow.passes > 1 else len(found)
                found.setdefault(key, each)
        self.record.tensors += found.values()
        self.record.tensors += (replace(each, dies=end) for each in self.record.gathered)
        span, given = self.flow.step.span, self.layout.arguments()
        return Step(
            "spec",
            self.plan.mesh,
            tuple(self.record.ops),
            tuple(self.record.collectives),
            tuple(self.record.tensors),
            given,
            end,
            place_of(span),
            (*notes(self.layout), *_mixed(self.layout)),
            tuple(unknown(self.layout, given)),
            stages=self.layout.pipeline,
            turned=self.record.turned,
        )

    # passes

    def _forwards(self) -> None:
        """Run the forward pass, or take it from another step that lies and gathers alike."""
        layout, passed = self.layout, self.layout.passed
        by = self.flow.step.gather, self.flow.step.remat == ("none",)
        if by in passed:
            self.record, self.lives = (each.under(layout) for each in passed[by])
            return
        for value in self.flow.inputs:
            self.lives.live(value, self.record.at)
        for op in self.flow.ops:
            self._forward(op, "forward")
        for loop in dict.fromkeys(op.loop for op in self.flow.ops):
            self._hand_on(loop, "forward")
        if not layout.is_told:
            passed[by] = self.record.under(layout), self.lives.under(layout)

    def _forward(self, op: Op, phase: Phase) -> None:
        self.record.stage = self.layout.tag(op)
        if op.kind == "stage":
            self.record.at += 1
            self.lives.read(op, phase, self.record.at)
            self.record.passed_on(op, phase)
            self.lives.live(op.result, self.record.at)
            self._pass_on(op, phase)
            return
        part = self.layout.partition(op)
        self.record.at += 1
        self.lives.read(op, phase, self.record.at)
        self.record.moves(op, op.reads, part, phase)
        self.record.op(op, op.reads, op.result, op.view, part, op.flops, phase)
        result = self.layout.lies(op.result, op.view)
        split = [axis for axis, name in part.along.items() if name in result.indices]
        turned = self.record.flops_in_turns(op)
        for move in summed(result, part.sums, split, self.plan.mesh):
            is_turned = step_partition.is_turned(move, turned, self.plan.target)
            runs, place = self.layout.runs(op) * op.copies, op.place
            self.record.send(move, runs, op.result, phase, place, is_turned=is_turned)
        self.record.send_all(_of_result(part), op, op.result, phase, op.copies)
        life = self.lives.live(op.result, self.record.at)
        if phase == "remat":
            life.again = self.record.at

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
                self.record.again.update(again)
                for op in again:
                    self._forward(op, "remat")
            for op in ops:
                self._flush(op.result, self.layout.runs(op))
                self._backward(op)
                self.lives.end_gradient(op.result, self.record.at)
            if loop is not None:
                self._leave(loop, ops)
                self._left[id(loop)] = self.record.at
                self._hand_on(loop, "backward")
        for weight, sums in [pair for found in self._outside.values() for pair in _merged(found)]:
            self._sum_weight(weight, sums, self.layout.mean(sums.stage))
        self._sum_ends()
        self._unread()
        self._gather_updated()

    def _hand_on(self, loop: Loop | None, phase: Phase) -> None:
        """Send what a stage makes of a microbatch, or its gradient, to the next stage."""
        stages, seats = self.layout.pipeline, self.layout.stage_seats(loop)
        if stages is None or not seats:
            return
        ops = [op for op in self.flow.ops if op.loop is loop]
        read = [each.source for op in ops for each in op.reads if isinstance(each.source, Value)]
        read = [each for each in read if each.maker is not None]
        read += [op.result.base for op in ops if op.result.base is not None]
        given = {each.name: each for each in read if each.loop is not loop}
        self.record.stage = "between"
        hops = (stages.count * stages.schedule.chunks - 1) / stages.count
        for value in given.values():
            payload, place = self.layout.array(value).bytes, ops[0].place
            move = Move(_PERMUTE, tuple(seats), payload, tuple(seats.values()))
            self.record.send(move, hops, value, phase, place)

    def _sum_ends(self) -> None:
        """Add up the gradients of arrays that the first and the last stage both have."""
        loop = next((op.loop for op in self.flow.ops if self.layout.stages(op.loop)), None)
        seats = self.layout.stage_seats(loop)
        self.record.stage = "ends"
        for weight, sums in self._weights.values():
            if self.layout.tag_of(weight.first.path) == "ends" and sums.stage == "last":
                payload = self.layout.gradient(weight.first.path).bytes
                move = Move(_PERMUTE, tuple(seats), payload, tuple(seats.values()))
                count, place = self.layout.mean("ends"), sums.place
                self.record.send(
                    *(move, count, weight, "backward", place, "gradient"), is_once=True
                )

    def _redo_stages(self, loop: Loop, ops: Sequence[Op]) -> None:
        """Run the rounds of a turn again, from what comes into its stages."""
        for op in reversed(ops):
            self._forward(op, "remat")
        self.record.forget(loop)

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
        self.record.stage = self.layout.tag(op)
        if op.kind == "route" or not op.result.is_trained:
            return
        if op.kind == "stage":
            self.record.at += 1
            self.record.passed_on(op, "backward")
            self._pass_on(op, "backward")
            life = self.lives.live(cast(Value, op.reads[0].source), self.record.at)
            life.gradient = life.gradient or (self.record.at, self.record.at)
            return
        self.record.at += 1
        flops = 2 * op.flops // len(op.reads) if op.kind == "op" else op.flops
        is_kernel = op.kind == "flash"  # one makes the gradients of all that attention reads
        flops = round(op.flops * _KERNEL_BACKWARD) if is_kernel else flops
        for at, read in enumerate(op.reads):
            if not (is_kernel or read.source.is_trained):
                continue
            reads, result, part = self.layout.backward(op, at)
            for each in op.reads if op.kind in ("flash", "op") else reads[1:]:
                self.lives.need(each.source, op, self.record.at)
            if at == 0 or not is_kernel:
                self.record.moves(op, reads, part, "backward", of_gradient=not is_kernel)
                share = read.source.trained_share if isinstance(read.source, Weight) else 1
                self.record.op(op, reads, read.source, read.view, part, flops, "backward", share)
            if read.source.is_trained:
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
            runs = turns * (2 if is_split else 1)
            move = Move(_PERMUTE, axes, payload, tuple(seats.values()))
            self.record.send(move, runs, source, phase, op.place)
        if not is_split and is_entering == (phase == "backward"):
            runs = self.flow.microbatches if is_entering else turns
            move = Move(CollectiveKind.ALL_REDUCE, axes, payload, tuple(seats.values()))
            self.record.send(move, runs, source, phase, op.place)

    def _collect(self, op: Op, read: Read, part: Partition, result: Laid) -> None:
        """Take in one part of the gradient of what is read."""
        source = read.source
        along = {axis for axis, name in part.along.items() if name in result.indices}
        if isinstance(source, Value):
            self.record.send_all(_of_result(part), op, source, "backward")
            _, sums = self._pending.setdefault(id(source), (source, self._sum_of({}, set(), op)))
            sums.seats.update(part.sums)
            sums.along |= along
            sums.turned = max(sums.turned, self.record.flops_in_turns(op))
            sums.is_again |= op.loop is not None and self.layout.flow.keeps(op.result) is False
            life = self.lives.live(source, self.record.at)
            life.gradient = life.gradient or (self.record.at, self.record.at)
            return
        found = self._sum_of(part.sums, along, op, part)
        self.record.send_all(_of_result(part), op, source, "backward", 1, "gradient")
        if op.loop is None:
            by = source.first.path, op.kind == "gather"  # it adds rows to the sum of the others
            self._outside.setdefault(by, []).append((source, found))
        else:
            self._sum_weight(source, found, self.layout.runs(op))
        self._weights.setdefault(id(source), (source, found))
        if self.flow.passes * self.layout.turns(op.loop) > 1:
            self.record.ops += self.layout.added(source, op, self.record.stage, self.record.when)

    def _sum_of(
        self, seats: dict[str, Seat], along: set[str], op: Op, part: Partition | None = None
    ) -> _Sum:
        stage = self.layout.tag(op)
        return _Sum(seats, along, self.record.at, op.place, op.loop, stage, part=part)

    def _flush(self, value: Value, count: float) -> None:
        """Add up the parts of the gradient of a value."""
        found = self._pending.pop(id(value), None)
        if found is None:
            return
        sums = found[1]
        if count == 1:
            count = self.layout.mean(sums.stage)
        own = self.layout.lies(value, value.view)
        for move in summed(own, sums.seats, sums.along, self.plan.mesh):
            is_turned = step_partition.is_turned(move, sums.turned, self.plan.target)
            place = sums.place
            self.record.send(move, count, value, "backward", place, is_turned=is_turned)
            if is_turned and sums.is_again:  # for the gradients of weights, gathered once more
                again = move._replace(kind=CollectiveKind.ALL_GATHER)
                self.record.send(again, count, value, "backward", place)

    def _sum_weight(self, weight: Weight, sums: _Sum, count: float) -> None:
        self.record.stage = sums.stage
        if sums.part is None or not sums.seats:
            return
        own = self.layout.lies(weight, weight.view, "gradient")
        dtype, uses = weight.first.param.dtype, sums.loop.uses if sums.loop is not None else 1
        known, key = self.layout.sums, (weight, sums.part)
        if key not in known:
            known[key] = tuple(self._summed(weight, sums.seats, sums.along))
        moves = known[key]
        if self._is_scanned(sums.loop):
            held = summed(own, sums.seats, sums.along, self.plan.mesh)
            moves = tuple((each, False) for each in held)
        for move, is_once in moves:
            place, is_turned, runs = sums.place, not is_once, count
            if is_turned:  # in every microbatch and use, ahead of what adds them up
                dtype = self.layout.wire_dtype(dtype)
            else:  # added up over the turns of a pipeline, and summed behind them
                runs = count / self.layout.turns(sums.loop)
            if not is_turned and uses > 1:  # added up first, as the array itself is
                runs, dtype = runs / uses, self.flow.step.gradients or dtype
            if is_turned or uses > 1:
                bits = DTYPE_BITS.get(dtype, 32)
                move = move._replace(payload_bytes=move.payload_bytes * bits // own.bits)
            is_cut = is_turned and move.kind is _SCATTER
            is_whole = is_cut and step_partition.slices_lanes(
                move, own, weight.shape, dtype, self.plan.target
            )
            self.record.send(
                *(move, runs, weight, "backward", place, "gradient"),
                is_turned=is_cut and len(moves) == 1,  # else it is one sum, sliced after
                is_whole=is_whole,
                is_once=is_once,
            )

    def _is_scanned(self, loop: Loop | None) -> bool:
        """Say whether layers are a scan in that of microbatches, out of which XLA moves no sum.

        So are layers that the backward pass makes again, in a program that somebody would write.
        """
        if loop is None or self.flow.passes == 1 or self.layout.gradients.is_once:
            return False
        stated = self.flow.step.reduce
        if stated is not None or self.layout.pipeline is not None:
            return stated == "microbatch"
        return not loop.is_unrolled or self.flow.step.remat != ("none",)

    def _summed(
        self, weight: Weight, seats: dict[str, Seat], along: Iterable[str]
    ) -> Iterator[Summed]:
        """Yield what sums up a gradient, and whether it does so once a step.

        Of what a device holds a part of, every microbatch is summed. What it holds whole is summed
        at the end, to what the update takes.
        """
        view, mesh = weight.view, self.plan.mesh
        held, taken = (self.layout.lies(weight, view, kind) for kind in ("gradient", "update"))
        for move in summed(held, seats, along, mesh):
            if move.kind is _SCATTER:
                yield move, False
                continue
            rest = {axis: seats[axis] for axis in move.mesh_axes}
            yield from ((each, True) for each in summed(taken, rest, along, mesh))

    def _unread(self) -> None:
        """Add the gradients of arrays that no line reads, such as the scales of norms."""
        self.record.stage, axes = "", self._batch_seats()
        at, place = self.record.at, place_of(self.flow.step.span)
        for each in self.arrays:
            if each.path in self.flow.used or each.is_state or not each.is_trained:
                continue
            weight = self.layout.alone(each.path)
            tensor, count = self.layout.gradient(each.path), self.layout.count_of(each.path)
            bits = DTYPE_BITS.get(tensor.dtype, 32)  # no product makes it, so it has its own dtype
            own = self.layout.lies(weight, weight.view, "gradient").bits
            for move, is_once in self._summed(weight, axes, ()):
                move = move._replace(payload_bytes=move.payload_bytes * bits // own)
                self.record.send(move, 1, weight, "backward", place, "gradient", is_once=is_once)
            born = 0 if self.flow.passes > 1 else at
            lives = StepTensor(tensor, tensor.bytes, born, at + 1, place, "backward", count)
            self.record.tensors.append(lives)

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
        self.record.at += 1
        state = self.plan.spec.state
        place = place_of(state.span if state is not None else None)
        for each in self.arrays:
            further = self.layout.updated(each.path)
            if further == each.dims or not each.is_trained:
                continue
            weight = self.layout.alone(each.path)
            view = weight.view
            own = laid(view, further, each.param.dtype, self.plan.mesh, each.path)
            before = laid(view, each.dims, each.param.dtype, self.plan.mesh)
            axes = tuple(axis for axis in own.seats if axis not in before.seats)
            if axes:
                payload = own.bytes(self.plan.mesh.ways(before.seats))
                seats = tuple(own.seats[axis] for axis in axes)
                move = Move(CollectiveKind.ALL_GATHER, axes, payload, seats, 0)
                stage = self.record.stage = self.layout.tag_of(each.path)
                mean = self.layout.mean(stage)
                self.record.send(move, mean, weight, "update", place, "weight")

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
        for each, count in self.layout.trained_of(weight):
            array, tag = self.layout.gradient(each.path), self.layout.tag_of(each.path)
            lives = array, array.bytes, born, end, sums.place
            yield StepTensor(*lives, "backward", count, stage=tag)


def _mixed(layout: StepLayout) -> Iterator[str]:
    """Yield which layers of a line are sharded otherwise than the first, which it is priced by."""
    for weight in dict.fromkeys(op.weight for op in layout.flow.ops if op.weight is not None):
        split = {
            tuple([dim.mesh_axes for dim in each.dims]): each.path
            for each, _ in reversed(layout.arrays_of(weight))
        }
        if len(split) > 1:
            first, *others = reversed(split.values())
            are = "is" if len(others) == 1 else "are"
            yield (
                f"one line reads `{first}` and {listed(others)}, which {are} sharded in another"
                f" way: all layers are counted as `{first}`; write a line for each group of layers"
            )


def _of_result(part: Partition) -> tuple[Move, ...]:
    return tuple(move for move in part.moves if move.of is None)


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


# When the values of a step are made and read, and so how long they are alive.


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

    def under(self, layout: StepLayout) -> Lives:
        """Return those of a forward pass, to go on with under a layout that is alike so far."""
        pairs = self._found.values()
        return Lives(layout, {id(each): (each, Life(life.born, life.read)) for each, life in pairs})

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
            if op.loop is not None:  # else one that all rounds read
                life.is_each_kept |= source.loop is op.loop or op.loop in self._carried_by(source)

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
        place = value.maker.place if value.maker else place_of(self.layout.flow.step.span)
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
            kept = array if loop is None else step_layout.stacked_array(array, count)
            moves = self.layout.flow.passes if self.layout.is_on_host(value) else 0
            for _ in range(branches(value)):
                yield StepTensor(kept, kept.bytes, born, last, place, "forward", moves=moves)
            for at in (born, last) if moves else ():
                yield StepTensor(array, array.bytes, at, at, place, "forward")

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
