"""What a step costs by the compiler's own program: the same noun as the model's, every figure `x`.

Bytes come from the collectives of the final program, memory from the buffer assignment. The model's
cost stays beside it: findings read what only a traced step knows, such as which reshard a
constraint forces.

What the compiler added has no line in the code (`added`). Full rematerializations of a reshard are
in its log, and become notes.

How long a step takes by the schedule of its compiled program.

XLA prints instructions in the order in which a device runs them. Each takes as long as its FLOPs or
as its traffic with memory, whichever is longer. A collective takes the time of its walk over the
links. A synchronous one stops the device for that time; of an asynchronous one only that part is
exposed for which its `-done` waits. Collectives over the same links queue. A copy that runs beside
the computation takes the bandwidth that the computation leaves.

A loop takes one round in its steady state, times its rounds; what a round starts it also ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from shardspec.analysis import step_time
from shardspec.analysis.accuracy import SURE
from shardspec.analysis.cost import Added, Compiler, Cost
from shardspec.analysis.memory import limit, share_of
from shardspec.analysis.step_memory import Amount, StepMemory
from shardspec.analysis.step_time import FITTED, SPREAD, Constants, Links, StepTime, op_seconds
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Chip, PartitionSpec
from shardspec.ir.step import (
    OF_RANDOM_BITS,
    CollectiveKind,
    Role,
    Step,
    StepArray,
    StepOp,
    StepTensor,
)
from shardspec.programs.added import added_by
from shardspec.programs.calls import Ref, Site, called_by, rounds_of
from shardspec.programs.hlo import Computation, Instruction, arrays_of
from shardspec.programs.memory import NO_ROOM, CompiledMemory
from shardspec.programs.op_names import KERNEL
from shardspec.programs.operations import Traffic, target_of
from shardspec.programs.proof import with_causes
from shardspec.programs.reading import STARTS, Parts, ReadProgram

#: A matmul that reads weights and computes little: the share of the roofline that it reaches is
#: the share of the memory's bandwidth that products reach.
STREAMED = (8, 16384, 16384)
#: The share of that which other operations reach on a TPU.
#: Source: libtpu 0.0.52's estimates (`shardspec verify --whole`): copies reach 0.52 on v4, 0.56 on
#: v5e and v5p, 0.46 on v6e; all operations of Llama 3 70B on v5p that are no products, 0.61.
OTHERS = 0.54


def schedule_time(
    program: ReadProgram,
    plan: ShardingPlan,
    constants: Constants = FITTED,
    kernel_flops: float | None = None,
) -> StepTime | None:
    """Return how long a compiled step takes; None where a speed it needs is not known.

    Args:
      plan: of the machine that the program was compiled for.
      constants: of them only those of matmuls and kernels count.
      kernel_flops: of all kernels in a step, where operations in a scope `KERNEL` stand for them;
        None counts the FLOPs of these.
    """
    hardware, links = plan.target.hardware, step_time.links_of(plan)
    if hardware is None or links is None or not step_time.is_timed(hardware.chip):
        return None
    timer = _Timer(program, links, hardware.chip, constants, kernel_flops)
    spent = timer.spent()
    if spent is None:
        return None
    step = program.step
    names = dict.fromkeys("+".join(each.axes) for each in step.collectives)
    axes = tuple(
        step_time.AxisTime(
            name, spent.sent[name], min(spent.sent[name], spent.exposed.get(name, 0.0))
        )
        for name in names
        if name in spent.sent
    )
    whole = spent.compute + sum(axis.exposed_seconds for axis in axes)
    own = sum(step_time.own_seconds(op, step, hardware.chip) for op in step.ops)
    spread = SPREAD[hardware.chip.platform]
    notes = (*step_time.silent_kernels(step), *links.notes(step), *_untimed(step, timer.traffic))
    mfu = own / whole if whole else 0.0
    return StepTime(spent.compute, spent.memory, axes, spread, mfu, notes, basis="compiled")


def _untimed(step: Step, traffic: Traffic) -> Iterator[str]:
    for each in step.unknown:
        if "time" in each.figures:
            yield f"the time of {each.what} at {each.place} is not known: {each.reason}"
    if traffic.to_host:
        yield "transfers to the memory of the host and back are counted at the speed of HBM"


@dataclass(slots=True)
class _Spent:
    """The seconds of a computation, each time it runs.

    Attributes:
      memory: of `compute`, what waits for memory.
      moved: of traffic with memory, what is hidden behind FLOPs too.
      sent: by mesh axes.
      exposed: likewise.
      busy: by lane: links that collectives share.
    """

    compute: float = 0.0
    memory: float = 0.0
    moved: float = 0.0
    sent: dict[str, float] = field(default_factory=dict)
    exposed: dict[str, float] = field(default_factory=dict)
    busy: dict[str, float] = field(default_factory=dict)

    @property
    def elapsed(self) -> float:
        return self.compute + sum(self.exposed.values())

    def add(self, other: _Spent, times: float) -> None:
        self.compute += other.compute * times
        self.memory += other.memory * times
        self.moved += other.moved * times
        _add(self.sent, other.sent, times)
        _add(self.exposed, other.exposed, times)
        _add(self.busy, other.busy, times)


def _add(into: dict[str, float], other: dict[str, float], times: float) -> None:
    for name, seconds in other.items():
        into[name] = into.get(name, 0.0) + seconds * times


@dataclass(slots=True, eq=False)
class _Flight:
    """A collective under way.

    Attributes:
      behind: the one whose links it waits for.
    """

    axes: str
    lanes: frozenset[str]
    seconds: float
    begin: float
    behind: _Flight | None

    @property
    def end(self) -> float:
        return self.begin + self.seconds


@dataclass(slots=True)
class _Run:
    """One run of a computation, from its first instruction to its last.

    Attributes:
      flights: under way, by the name of their start or by their channel.
      last: the flight that every lane carries last.
      queued: seconds of memory traffic that copies beside the computation have asked for so far.
      served: of these, what is over.
      copies: by the name of their start, how much has to be served until they are over.
    """

    now: float = 0.0
    spent: _Spent = field(default_factory=_Spent)
    flights: dict[str, tuple[_Flight, ...]] = field(default_factory=dict)
    last: dict[str, _Flight] = field(default_factory=dict)
    queued: float = 0.0
    served: float = 0.0
    copies: dict[str, float] = field(default_factory=dict)

    def compute(self, flops: float, memory: float) -> None:
        """Take the longer of both; copies get what is left of the memory's time."""
        took = max(flops, memory)
        self.now += took
        self.spent.compute += took
        self.spent.memory += took if memory > flops else 0.0
        self.spent.moved += memory
        self._serve(took - memory)

    def _serve(self, idle: float) -> None:
        before, self.served = self.served, min(self.queued, self.served + idle)
        self.spent.moved += self.served - before

    def send(self, name: str, axes: str, lanes: frozenset[str], seconds: float) -> None:
        """Start a collective behind those that its links carry already."""
        ahead = (self.last[lane] for lane in sorted(lanes) if lane in self.last)
        behind = max(ahead, key=lambda each: each.end, default=None)
        begin = self.now if behind is None else max(self.now, behind.end)
        flight = _Flight(axes, lanes, seconds, begin, behind)
        self.flights[name] = (*self.flights.get(name, ()), flight)
        self.last.update(dict.fromkeys(lanes, flight))
        _add(self.spent.sent, {axes: seconds}, 1)
        _add(self.spent.busy, dict.fromkeys(lanes, seconds), 1)

    def copy(self, name: str, seconds: float) -> None:
        """Start a copy behind those that the memory serves already."""
        self.queued += seconds
        self.copies[name] = self.queued

    def wait(self, name: str) -> None:
        """Wait until what was started is over; each flight ahead of it exposes its own part."""
        left = self.copies.pop(name, 0.0) - self.served
        if left > 0:
            self.served += left
            self.compute(0.0, left)
        for flight in self.flights.pop(name, ()):
            self._land(flight)

    def _land(self, last: _Flight) -> None:
        waited: list[_Flight] = []
        flight: _Flight | None = last
        while flight is not None and flight.end > self.now:
            waited.append(flight)
            flight = flight.behind
        for each in reversed(waited):
            took = max(0.0, each.end - self.now)
            self.now += took
            _add(self.spent.exposed, {each.axes: took}, 1)
            self._serve(took)

    def take(self, inner: _Spent, times: float) -> None:
        """Run another computation; what it sends holds up what is under way on the same links."""
        before, self.now = self.now, self.now + inner.elapsed * times
        self.spent.add(inner, times)
        self._serve(max(0.0, inner.elapsed - inner.moved) * times)
        for each in chain.from_iterable(self.flights.values()):
            if each.end > before:
                each.begin += times * max(
                    (inner.busy.get(lane, 0.0) for lane in each.lanes), default=0.0
                )
                if each.behind is not None:
                    each.begin = max(each.begin, each.behind.end)


@dataclass(frozen=True, slots=True)
class _Fused:
    """What is inside of a fusion.

    Attributes:
      starts: collectives that it starts, by channel; without one, it sends them itself.
      ends: channels of collectives that it waits for.
    """

    ops: tuple[StepOp, ...]
    starts: tuple[tuple[str, Ref], ...]
    ends: tuple[str, ...]


@dataclass(slots=True)
class _Timer:
    """Times the computations of a program, those that are called first."""

    program: ReadProgram
    links: Links
    chip: Chip
    constants: Constants
    kernel_flops: float | None = None
    kernel_share: float | None = None
    parts: Parts = field(init=False)
    traffic: Traffic = field(init=False)
    rounds: dict[str, _Spent] = field(default_factory=dict)
    fused: dict[str, _Fused] = field(default_factory=dict)
    stream: float = field(init=False)

    def __post_init__(self) -> None:
        self.parts = self.program.parts()
        self.stream = step_time.memory_share(self.chip, *STREAMED)
        self.traffic = Traffic(self.parts.calls, self.chip.platform == "tpu")

    def spent(self) -> _Spent | None:
        """Return what the program takes; None where the speed of a link is not known."""
        calls, last = self.parts.calls, _Spent()
        try:
            for name in reversed(calls.times):
                site, body = calls.sites.get(name), calls.program.computations.get(name)
                if body is None:
                    continue
                if site is not None and site.caller.operation == "fusion":
                    self.fused[name] = self._fused(body)
                else:
                    last = self.rounds[name] = self._round(body)
        except _UnknownSpeedError:
            return None
        return last

    def _round(self, body: Computation) -> _Spent:
        run = _Run()
        for each in body.instructions.values():
            self._run(run, body, each)
        for name in [*run.copies, *run.flights]:
            run.wait(name)
        return run.spent

    def _run(self, run: _Run, body: Computation, each: Instruction) -> None:
        ref, kind = Ref(body.name, each.name), each.operation
        inner = [self.rounds[name] for name in called_by(each) if name in self.rounds]
        if kind == "while":
            rounds = rounds_of(self.parts.calls.program, Site(ref, each))
            for one in inner:
                run.take(one, 1 if rounds is None else rounds)
        elif kind == "conditional" and inner:
            run.take(max(inner, key=lambda one: one.elapsed), 1)
        elif kind == "async-start":
            for one in inner:
                run.copy(each.name, one.compute)
                for axes, seconds in one.sent.items():
                    run.send(each.name, axes, self._lanes(axes), seconds)
        elif kind.endswith(("-done", "-update")) and each.operands:
            self._finish(run, body, each)
        elif kind == "fusion" and each.called and each.called[0] in self.fused:
            self._run_fusion(run, body, each, self.fused[each.called[0]])
        elif ref in self.parts.sends:
            self._send(run, each.name, ref)
            if kind != "send" and not kind.endswith("-start"):
                run.wait(each.name)
        elif kind == "copy-start":
            run.copy(each.name, self._memory(self.traffic.of(body, each), is_product=True))
        else:
            for one in inner:
                run.take(one, 1)
            found = self.parts.ops.get(ref)
            ops = () if found is None or inner else (found,)
            run.compute(*self._seconds(each, ops, self.traffic.of(body, each)))

    def _finish(self, run: _Run, body: Computation, each: Instruction) -> None:
        """Wait at the end of what was started, and pass its name on before that."""
        started = each.operands[0]
        begun = body.instructions.get(started)
        if each.operation == "recv-done" and begun is not None:
            started = self.parts.other_end(Ref(body.name, started), begun).name
        if each.operation.endswith("-done"):
            run.wait(started)
            return
        if started in run.flights:
            run.flights[each.name] = run.flights.pop(started)
        if started in run.copies:
            run.copies[each.name] = run.copies.pop(started)

    def _run_fusion(self, run: _Run, body: Computation, each: Instruction, fused: _Fused) -> None:
        for channel in fused.ends:
            run.wait(channel)
        for channel, ref in fused.starts:
            self._send(run, channel or each.name, ref)
        run.compute(*self._seconds(each, fused.ops, self.traffic.of(body, each)))
        run.wait(each.name)

    def _fused(self, body: Computation) -> _Fused:
        ops: list[StepOp] = []
        starts: list[tuple[str, Ref]] = []
        ends: list[str] = []
        for each in body.instructions.values():
            ref = Ref(body.name, each.name)
            if each.operation == "fusion" and each.called and each.called[0] in self.fused:
                inner = self.fused[each.called[0]]
                ops, starts, ends = (
                    [*ops, *inner.ops],
                    [*starts, *inner.starts],
                    [*ends, *inner.ends],
                )
            elif ref in self.parts.sends:
                channel = each.attribute("channel_id") if STARTS in each.attributes else ""
                starts.append((f"channel {channel}" if channel else "", ref))
            elif ref in self.parts.ops:
                ops.append(self.parts.ops[ref])
            elif target_of(each) == "AsyncCollectiveDone":
                parts = (body.instructions.get(name) for name in each.operands)
                ends += (f"channel {one.attribute('channel_id')}" for one in parts if one)
        return _Fused(tuple(ops), tuple(starts), tuple(ends))

    def _send(self, run: _Run, name: str, ref: Ref) -> None:
        """Start all that one instruction sends, what goes the same way as one."""
        sizes: dict[tuple[CollectiveKind, tuple[str, ...]], int] = {}
        for each in self.parts.sends[ref]:
            key = each.kind, each.mesh_axes
            sizes[key] = sizes.get(key, 0) + each.payload_bytes
        for (kind, axes), payload_bytes in sizes.items():
            seconds = self.links.seconds(kind, axes, payload_bytes)
            if seconds is None:
                raise _UnknownSpeedError
            run.send(name, "+".join(sorted(axes)), self._lanes("+".join(axes)), seconds)

    def _lanes(self, axes: str) -> frozenset[str]:
        """Return the links of a collective: those of its mesh axes, or of one switch for all."""
        names = tuple(axes.split("+"))
        links = {leg.link for leg in self.links.legs(names) or ()}
        is_torus = "ici" in links or not links
        return frozenset((*(links - {"ici"}), *(names if is_torus else ())))

    def _seconds(
        self, each: Instruction, ops: Sequence[StepOp], moved: float
    ) -> tuple[float, float]:
        """Return what the FLOPs of an instruction take, and its traffic with memory.

        What stands for a kernel takes what that does, which keeps on the chip what it makes.
        """
        if KERNEL in each.op_name:
            kernels = (replace(op, kind="kernel") for op in ops)
            seconds = sum(op_seconds(op, self.chip, self.constants)[0] for op in kernels)
            return seconds * self._kernel_share(), 0.0
        products = (replace(op, kind="einsum") if op.kind == "convolution" else op for op in ops)
        flops = sum(op_seconds(op, self.chip, self.constants)[0] for op in products)
        return flops, self._memory(moved, is_product=flops > 0)

    def _kernel_share(self) -> float:
        """Return the FLOPs of kernels by those of the operations that stand for them."""
        if self.kernel_flops is None:
            return 1.0
        if self.kernel_share is None:
            instruction = self.parts.calls.instruction
            found = ((instruction(ref), op) for ref, op in self.parts.ops.items())
            made = sum(op.flops * op.count for at, op in found if at and KERNEL in at.op_name)
            self.kernel_share = self.kernel_flops / made if made else 1.0
        return self.kernel_share

    def _memory(self, moved: float, *, is_product: bool = False) -> float:
        full = step_time.per_device(self.chip.hbm_bytes_per_s, self.chip)
        is_less = self.chip.platform == "tpu" and not is_product
        return moved / (full * self.stream * (OTHERS if is_less else 1.0))


class _UnknownSpeedError(Exception):
    """The catalogue has no speed of a link that the program uses."""


#: Where `StepMemory` holds arguments of a role.
_PARTS: Mapping[Role, str] = {
    "parameter": "parameters",
    "optimizer": "optimizer",
    "batch": "batch",
    "cache": "caches",
    "other": "other",
}
#: Why what a compiler added is in memory.
_REASONS = {
    "copy": "a copy",
    "written out": "a constant, written out",
    "computed again": "computed again",
}


def _reason(each: Added) -> str:
    is_of_bits = each.what == "written out" and each.array.startswith("u32")
    return OF_RANDOM_BITS if is_of_bits else _REASONS[each.what]


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
    added = added_by(program)
    held = _memory(predicted, program, memory, added, is_refused=NO_ROOM in refusal)
    return replace(
        predicted,
        step=step,
        memory=held,
        schedule=_schedule(predicted, program),
        compiler=by,
        added=added,
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
    predicted: Cost,
    program: ReadProgram,
    memory: CompiledMemory | None,
    added: Sequence[Added],
    *,
    is_refused: bool,
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
        peak=() if memory is None else tuple(_peak(program, memory, added, predicted.memory.peak)),
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


def _peak(
    program: ReadProgram,
    memory: CompiledMemory,
    added: Sequence[Added],
    predicted: Sequence[StepTensor],
) -> Iterator[StepTensor]:
    """Yield the largest values that are alive at the peak, each with its line or its argument.

    The program says why what was added is in memory; of values of a predicted shape the model does.
    """
    reasons = {(each.array, each.place): _reason(each) for each in added}
    known = {each.array.shard_shape: each for each in predicted}
    for each, where in zip(memory.largest, program.makers(memory.largest), strict=True):
        array = next(arrays_of(each.shape), None)
        if array is not None:
            whole = PartitionSpec(((),) * len(array.shape))
            held = StepArray(array.dtype, array.shape, whole, array.shape, where.argument)
            made = StepTensor(held, each.bytes, 0, 0, where.place, where.phase)
            like = known.get(array.shape, made)
            why = reasons.get((str(held), where.place), like.why)
            yield replace(made, why=why, is_attended=like.is_attended)
