"""A step: what one call of a train or serve function computes, sends and holds, as layouts see it.

Three sources give the same noun: einsums that a spec states, a function that JAX traced, and the
program that a compiler made of it. So one table, one JSON, one set of findings and one model of
time serve all. There is no jax in it and there are no devices; sizes are those of one device.

Everything that happens has a tick (`at`) of one clock that runs through the program once: the body
of a loop once, at the place of the loop, and `count` says how often it runs in a step.

`Flows` tells which operations make what others read, where only what computes is an operation. A
view or arithmetic element by element passes on what it is made of. A way that leads over other
operations is not noted once more: `x + f(x)` comes from `f` alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal, NamedTuple

from shardspec.diagnostics import Span
from shardspec.diagnostics.words import binary_bytes, grouped
from shardspec.ir.operations import CollectiveKind as CollectiveKind
from shardspec.ir.operations import OpKind as OpKind
from shardspec.ir.operations import ring_bytes as ring_bytes
from shardspec.ir.plan import Attempt
from shardspec.ir.program import Schedule
from shardspec.ir.spec import DTYPE_BITS, AxisRule, Mesh, PartitionSpec, Shape, array_bytes

#: Where a step was read from: `step:` of a spec, a traced function, or a compiled program.
Source = Literal["spec", "code", "compiler"]
#: Which stages of a pipeline something is of, where each is a program of its own: all of them, as
#: much as they have layers, the first or the last alone, these two, or what goes between two of
#: them.
StageTag = Literal["", "layers", "first", "last", "ends", "between"]
#: `remat` is work of the forward pass that is done again in the backward pass.
Phase = Literal["forward", "backward", "remat", "update"]


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's code.

    Attributes:
      file: as the program names it; empty where no line is known.
      scope: names that code gave to what it was doing there, `/` between them: `layers/mlp`.
      via: file and line of a helper that this line calls, which does the work; None for none.
    """

    file: str = ""
    line: int = 0
    scope: str = ""
    via: tuple[str, int] | None = None

    @property
    def is_known(self) -> bool:
        """Say whether there is a line."""
        return bool(self.file)

    @property
    def shown(self) -> tuple[str, int, tuple[str, int] | None]:
        """Return what it shows: two places that show the same are the same to a reader."""
        return self.file, self.line, self.via

    @property
    def own(self) -> tuple[str, int]:
        """Return the innermost file and line: those of the helper where this line calls one."""
        return self.via or (self.file, self.line)

    def __str__(self) -> str:
        """Return `model.py:71`, `model.py:71 (in linears.py:9)`, or `unknown`."""
        if not self.file:
            return "unknown"
        via = "" if self.via is None else f" (in {self.via[0]}:{self.via[1]})"
        return f"{self.file}:{self.line}{via}"


@dataclass(frozen=True, slots=True)
class Added:
    """A line to add to a file.

    Attributes:
      text: as it is written, or empty where it is of several lines.
    """

    file: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Cure:
    """What a search found for a step.

    Attributes:
      lines: none where nothing earns its place.
      gain: what they do: `4.4 times as fast by the model`.
    """

    lines: tuple[Added, ...]
    gain: str


@dataclass(frozen=True, slots=True)
class StepArray:
    """An array as it lies at one point of the program.

    Attributes:
      shape: of the whole array.
      split: the mesh axes of each dimension.
      shard_shape: on one device; the last shard of an uneven split is filled up.
      name: the path of a parameter or the name of an activation, where it is known.

    Invariants:
      once: `split` uses no mesh axis twice.
    """

    dtype: str
    shape: Shape
    split: PartitionSpec
    shard_shape: Shape
    name: str = ""

    @property
    def bytes(self) -> int:
        """Return the bytes of the shard on one device."""
        return array_bytes(self.shard_shape, self.dtype)

    def __str__(self) -> str:
        """Return `bf16[4096, 512]`, the whole shape."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class StepOp:
    """One operation that computes: a contraction, or another that no compiler fuses away.

    Attributes:
      einsum: operands and result by letter, `bte,ef->btf`; empty where it is none.
      flops: on one device each time it runs: two for every multiplication and addition.
      count: how often it runs in a step; with a fraction where that is an average.
      mesh_axes: the axes that split it in some operand, or in what is contracted. The devices of
        the others all do the same work.
      useful: the share of its runs that are of use: stages of a buffered pipeline run before the
        first microbatch comes to them, and after the last, too.
      stage: the stages that run it; `count` is their mean.
      left_bytes: of a value as others read it, where it is a sum whose parts are scattered; None
        where they read the result as it is.
      load: where experts are uneven, how many even shares the busiest device computes: it is this.
      because: why mesh axes split it, as far as a trace says so.
      reads: the ticks of the operations that make what it reads, as `Flows` has them.
      vmaps: how many `jax.vmap` are around its line, as far as a trace says so.
    """

    kind: OpKind
    einsum: str
    operands: tuple[StepArray, ...]
    result: StepArray
    flops: int
    count: float
    place: Place
    phase: Phase
    mesh_axes: tuple[str, ...] = ()
    at: int = 0
    useful: float = 1.0
    stage: StageTag = ""
    left_bytes: int | None = None
    load: float = 1.0
    because: tuple[Cause, ...] = field(default=(), compare=False, repr=False)
    reads: tuple[int, ...] = field(default=(), compare=False, repr=False)
    vmaps: int = field(default=0, compare=False, repr=False)

    @property
    def dtype(self) -> str:
        """Return the dtype that is multiplied, that of the widest operand."""
        kinds = [operand.dtype for operand in self.operands] or [self.result.dtype]
        return max(kinds, key=lambda dtype: DTYPE_BITS.get(dtype, 32))

    @property
    def bytes(self) -> int:
        """Return the bytes it reads and writes each time it runs, on one device."""
        return self.result.bytes + sum(operand.bytes for operand in self.operands)


class CauseKind(StrEnum):
    """Who asked for a mesh axis on an array."""

    #: an argument of the function lies so
    ARGUMENT = "argument"
    #: a constraint in the code
    CONSTRAINT = "constraint"
    #: what the function gives back has to lie so
    RESULT = "result"
    #: a collective that the user wrote, under `shard_map`
    WRITTEN = "written"
    #: nobody stated it: it flowed in through operations
    PROPAGATED = "propagated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why one mesh axis is in a collective.

    Attributes:
      array: the path of the argument that has the axis.
      dim: which dimension of it.
      place: the constraint, or the collective that was written.
      logical_axis: the name of the dimension that has it.
      attempt: what gave the axis to the dimension, out of the plan: a rule, whose span may be in a
        preset, a stated partition, or ZeRO.
      through: names of what it flowed through, where nobody stated it.
    """

    mesh_axis: str
    kind: CauseKind
    array: str = ""
    dim: int | None = None
    place: Place = Place()
    logical_axis: str | None = None
    attempt: Attempt | None = None
    through: tuple[str, ...] = ()

    @property
    def span(self) -> Span | None:
        """Return where the spec says it."""
        return None if self.attempt is None else self.attempt.span

    @property
    def rule(self) -> AxisRule | None:
        """Return the rule that says it, where a rule does."""
        return None if self.attempt is None else self.attempt.rule


CarriedKind = Literal["weight", "gradient", "state", "activation", "einsum", "unknown"]


@dataclass(frozen=True, slots=True)
class Carried:
    """What a collective carries.

    Attributes:
      name: the path of the parameter, the name of the activation, or the einsum that makes it; of
        what is unknown, the operation that it is for.
    """

    kind: CarriedKind = "unknown"
    name: str = ""

    def __str__(self) -> str:
        """Return `weight layers/mlp/wi`, `gradient of layers/mlp/wi`, `bte,ef->btf`."""
        if self.kind == "einsum":
            return self.name
        said = {"gradient": "gradient of", "unknown": "array in"}.get(self.kind, self.kind)
        return f"{said} {self.name}" if self.name else self.kind


class Tear(NamedTuple):
    """A reshape that makes several dimensions of the first one, which mesh axes split."""

    before: Shape
    after: Shape
    place: Place


@dataclass(frozen=True, slots=True)
class Reshard:
    """An array made to lie otherwise, by one collective or by several in a row.

    Attributes:
      at: the tick of the first of them; it tells one reshard from another.
      before: the mesh axes of each dimension, as the array lay.
      after: those that it has then.
      readers: the ticks of the operations that read it then, its other forms looked through; of
        one that makes it lie otherwise again, the `at` of that.
      is_result: whether the function gives it back.
      split_again: mesh axes that it is split by once more before anything else reads it.
      works: the ticks of the operations that it comes to, those element by element looked through.
      shared_over: the mesh axes that share the work of these; None where that is not known.
      has_parts: whether parts of mesh axes split it, which `before` and `after` do not show.
      tear: the reshape that cut its first dimension, which these mesh axes split; None for none.
      array: as it lay; XLA may gather what makes it instead. None where that is not known.
      made_at: the line that made it.
    """

    at: int
    before: PartitionSpec
    after: PartitionSpec
    readers: tuple[int, ...] = ()
    is_result: bool = False
    split_again: tuple[str, ...] = ()
    works: tuple[int, ...] = ()
    shared_over: tuple[str, ...] | None = None
    has_parts: bool = False
    tear: Tear | None = None
    array: StepArray | None = None
    made_at: Place = Place()


@dataclass(frozen=True, slots=True)
class Collective:
    """Something that devices send each other.

    Attributes:
      mesh_axes: over which it goes, major to minor.
      payload_bytes: as `ring_bytes` takes it: of one device, the larger side, each time it runs.
      wire_bytes_per_run: what one device sends each time it runs.
      count: how often it runs in a step; with a fraction where that is an average.
      array: what is sent, as it lies before.
      because: a cause for each mesh axis, in their order.
      forced_by: the constraint, or the result's sharding, that asks for it although no operation
        needs it.
      is_invariant: whether it stands in a loop, and sends the same in every round of it.
      is_written: whether the user wrote it.
      at: when it starts, by the clock of the step.
      reshard: what it is a part of, where it makes an array lie otherwise and computes nothing.
      rounds: of the innermost loop that it stands in.
      total_bytes: where loops around it do no more with what it sends than add it up: of all such
        totals in a step, on one device; else 0.
      total_axes: those of its mesh axes that do not split that total.
      is_kept: whether the step gives that total back, and the next call goes on with it.
      is_once: whether it is sent once a step, behind all microbatches.
      stage: the stages that send it; `count` is their mean.

    Invariants:
      ring: wire_bytes_per_run is never more than twice payload_bytes.
    """

    kind: CollectiveKind
    mesh_axes: tuple[str, ...]
    payload_bytes: int
    wire_bytes_per_run: int
    count: float
    array: StepArray
    place: Place
    phase: Phase
    carries: Carried = Carried()
    because: tuple[Cause, ...] = ()
    forced_by: Cause | None = None
    is_invariant: bool = False
    is_written: bool = False
    at: int = 0
    reshard: Reshard | None = None
    rounds: float = 1
    total_bytes: int = 0
    is_kept: bool = False
    total_axes: tuple[str, ...] = ()
    is_once: bool = False
    stage: StageTag = ""

    @property
    def axes(self) -> tuple[str, ...]:
        """Return the mesh axes by name: a table has one row of them, whichever is major."""
        return tuple(sorted(self.mesh_axes))

    @property
    def wire_bytes(self) -> int:
        """Return what one device sends in a step."""
        return round(self.wire_bytes_per_run * self.count)

    @property
    def is_added_up(self) -> bool:
        """Say whether loops only add up what it sends, to a total that none of its axes splits."""
        return bool(self.total_bytes) and set(self.mesh_axes) <= set(self.total_axes)


#: What a step makes: gradients of parameters, what the backward pass reads, and everything else.
MadePart = Literal["gradients", "activations", "temporaries"]


def host_bytes(given: Iterable[StepArgument]) -> tuple[int, int]:
    """Return what a step reads of the memory of the host, and writes back; of one device."""
    held = [each for each in given if each.is_on_host]
    read = sum(each.array.bytes * each.count for each in held)
    return read, sum(each.array.bytes * each.count for each in held if each.is_donated)


@dataclass(frozen=True, slots=True)
class StepTensor:
    """A value of the program, and how long it is alive.

    The values of one step have a clock of their own where a model of the compiler's order says when
    they are born and die.

    Attributes:
      bytes: on one device, without the padding of tiles; 0 for what shares another's memory.
      born: the tick it is made in.
      dies: the last tick that reads it.
      count: how many there are of it, each as large.
      part: of the memory of a step; empty where its phase and its shape say it.
      why: why it is in memory, and not inside of a kernel: `exponential, read by 3 kernels`.
      is_attended: whether it is of the scores of attention, which a flash kernel never holds whole.
      stage: the stages that hold it.
      moves: how often it goes to the memory of the host and back in a step, where it lies there.
    """

    array: StepArray
    bytes: int
    born: int
    dies: int
    place: Place
    phase: Phase
    count: int = 1
    part: MadePart | Literal[""] = ""
    why: str = ""
    is_attended: bool = False
    stage: StageTag = ""
    moves: float = 0.0

    @property
    def reason(self) -> str:
        """Return why it is in memory, with what would spare it."""
        return self.reason_of(self.bytes * self.count)

    def reason_of(self, size: int) -> str:
        """Return the same of several that are alike, and take `size` bytes together."""
        saved = f"a flash kernel saves {binary_bytes(size)}" if self.is_attended else ""
        return ": ".join(filter(None, (self.why, saved)))


#: A figure of a step that something uncounted would change.
Figure = Literal["sends", "flops", "memory", "time"]


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something in a step that shardspec cannot count. It is never zero.

    A step that has one is not the best of several. It does not surely fit where that touches
    memory, and is not proved where it touches memory or what is sent, which a proof states.

    Attributes:
      what: the operation, as the program names it: `ragged-all-to-all`, `custom-call my_kernel`.
      reason: why it is not counted, a clause: "Shardy has no rule for a split dimension of it".
      figures: those that are lower bounds because of it.
      count: how often it runs in a step.
    """

    what: str
    reason: str
    figures: tuple[Figure, ...] = ("sends",)
    place: Place = Place()
    phase: Phase = "forward"
    count: float = 1

    def __str__(self) -> str:
        """Return `ragged-all-to-all at moe.py:31: reason`."""
        return f"{self.what} at {self.place}: {self.reason}"


def told_once(unknown: Iterable[Unknown]) -> tuple[Unknown, ...]:
    """Return what cannot be counted, with what reads alike as one that runs as often as all."""
    alike = grouped(unknown, lambda each: (str(each), each.figures))
    return tuple(replace(same[0], count=sum(e.count for e in same)) for same in alike.values())


Role = Literal["parameter", "optimizer", "batch", "cache", "other"]


@dataclass(frozen=True, slots=True)
class StepArgument:
    """One array that the function is given.

    Attributes:
      path: where it is in the arguments: of a parameter its path in the plan.
      is_donated: whether a result takes its memory.
      is_placed: whether the caller gave it a sharding; otherwise the spec did, or nobody.
      is_guess: whether nothing says how it is sharded: its first dimension was taken for the batch.
      is_on_host: whether it lies in the memory of the host when the step begins.
      count: how many there are of it, of other paths.
      stage: the stages that are given it.
    """

    path: str
    role: Role
    array: StepArray
    is_donated: bool = False
    is_placed: bool = False
    is_on_host: bool = False
    count: int = 1
    is_guess: bool = False
    stage: StageTag = ""


def rows_of(arguments: Iterable[StepArgument]) -> frozenset[int]:
    """Return how long the data of a step is: the first dimensions of its batches."""
    batches = (each.array for each in arguments if each.role == "batch")
    return frozenset(array.shape[0] for array in batches if array.shape)


#: Why what a compiler wrote out of random bits is in memory.
OF_RANDOM_BITS = "of random bits, written out"

#: How `Returned.kinds` says that an array is not in the memory of the device.
ON_HOST = "in the host's memory"


@dataclass(frozen=True, slots=True)
class Returned:
    """State that a step gives back otherwise than it was given: the next call compiles anew.

    Attributes:
      after: as it comes back.
      kinds: before and after, what the arrays do not show: `a Python number`, `weakly typed f32`,
        `f32 in the host's memory`.
    """

    argument: StepArgument
    after: StepArray
    kinds: tuple[str, str] = ("", "")

    @property
    def before(self) -> StepArray:
        """Return the array as the function was given it."""
        return self.argument.array


@dataclass(frozen=True, slots=True)
class Unreused:
    """A donated argument whose memory the result in its place does not take.

    Attributes:
      bytes: that the result takes on one device.
      is_filtered: whether the step is an `eqx.filter_jit`, which takes no shardings of results.
    """

    argument: StepArgument
    bytes: int
    is_filtered: bool = False


#: What devices may have parts of.
Part = Literal["sum", "maximum", "minimum"]
#: A part is used as the whole; the whole is summed again; what all devices have is summed with the
#: parts; a mean is taken of what JAX has summed.
SumFault = Literal["missing", "twice", "added", "mean"]


class WrongSum(NamedTuple):
    """A sum over the devices of a mesh axis that code leaves out, or takes too often.

    Attributes:
      first: what left each device with a part, summed it, or added what all devices have.
      second: what took the part for the whole, or summed again.
      ways: the number of devices along the axis.
      mapped: the `shard_map` that it is in.
      result: what that returns, where it differs from device to device because of it.
      is_implicit: whether JAX wrote the first sum.
    """

    fault: SumFault
    mesh_axis: str
    ways: int
    first: Place
    second: Place
    mapped: Place
    part: Part = "sum"
    result: str = ""
    is_implicit: bool = False


@dataclass(frozen=True, slots=True)
class Stages:
    """Stages of a pipeline, each a program of its own.

    Layers that do not divide leave stages with one less: the last and the first, which have
    something to do beside layers, and then others.

    Attributes:
      count: of stages.
      is_assumed: whether nothing says how they take turns.

    Invariants:
      layers: those of all stages are all layers.
      work: the mean of `work` over the stages is 1, for every tag.
    """

    schedule: Schedule
    count: int
    microbatches: int
    layers: int
    is_assumed: bool = False

    @property
    def extremes(self) -> tuple[int, ...]:
        """Return the stages of which one holds most, and one takes longest."""
        return tuple(dict.fromkeys((0, min(1, self.count - 1), self.count - 1)))

    def layers_of(self, stage: int) -> int:
        """Return the layers of a stage, the first of which is 0.

        >>> stages = Stages(Schedule("1f1b"), count=16, microbatches=32, layers=126)
        >>> [stages.layers_of(stage) for stage in (0, 1, 15)]
        [7, 8, 7]
        """
        least, more = divmod(self.layers, self.count)
        spared = {self.count - 1: 0, 0: 1}.get(stage, self.count - stage)
        return least + (more > 0 and spared >= self.count - more)

    def work(self, tag: StageTag, stage: int) -> float:
        """Return what a stage has of something, by the mean of all stages."""
        if tag == "layers":
            return self.layers_of(stage) * self.count / self.layers
        if tag == "between":  # the ends have one neighbour
            is_end = stage in (0, self.count - 1)
            return self.count / (self.count - 1) / (1 + is_end)
        owners = self._owners(tag)
        return self.count / len(owners) if stage in owners else 0

    def held(self, tag: StageTag, stage: int) -> float:
        """Return what a stage has of something, by the stage that has most of it."""
        if tag == "layers":
            return self.layers_of(stage) / -(-self.layers // self.count)
        return float(stage in self._owners(tag))

    def mean(self, tag: StageTag) -> float:
        """Return how often something runs that runs once on each stage that has it."""
        return len(self._owners(tag)) / self.count if tag != "layers" else 1

    def _owners(self, tag: StageTag) -> Collection[int]:
        ends = {"first": (0,), "last": (self.count - 1,), "ends": {0, self.count - 1}}
        return ends.get(tag, range(self.count))

    def in_flight(self, stage: int) -> float:
        """Return how many microbatches a stage keeps activations of.

        Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters
        (arXiv 2104.04473), section 2.2; warm-up of Megatron-Core's interleaved schedule; Qi et
        al., Zero Bubble Pipeline Parallelism (arXiv 2401.10241), table 1, ZB-H1.

        >>> stages = Stages(Schedule("interleaved", 2), count=8, microbatches=32, layers=80)
        >>> stages.in_flight(0), stages.in_flight(7)
        (11.5, 4.5)
        """
        chunks, behind = self.schedule.chunks, self.count - 1 - stage
        kept = {
            "interleaved": (2 * behind + (chunks - 1) * self.count + 1) / chunks,
            "zero-bubble": self.count,
        }
        return min(self.microbatches, kept.get(self.schedule.kind, behind + 1))

    def waits(self, busiest: float, whole: float, backward: float) -> float:
        """Return how long the busiest stage waits for others, in a step.

        Until the first microbatch comes to it, and after the last has left it, the others work on
        one: less by as many times as layers are cut into chunks, and not where gradients of
        weights, half of the backward pass, fill the gap.

        Args:
          busiest: the seconds that the busiest stage works.
          whole: the seconds of all stages together.
          backward: the share of the backward pass in them, what is computed again left out.
        """
        filled = backward if self.schedule.kind == "zero-bubble" else 0.0
        alone = max(0.0, whole - busiest) / self.microbatches
        return alone * (1 - filled) / self.schedule.chunks


@dataclass(frozen=True, slots=True)
class Step:
    """What one step computes, sends and holds on one device of a mesh.

    Attributes:
      ops: in the order of the program.
      collectives: likewise.
      tensors: values that take memory, for a floor of what is alive at once.
      end: the last tick of the clock; what dies then is a result.
      place: where the function is defined.
      notes: what was assumed: a loop whose rounds are not known, the dearer branch of a `cond`.
      unknown: what could not be counted; the figures it touches are lower bounds.
      returned: state that comes back with another type or layout than it was given with.
      unreused: donated state whose memory the compiler cannot use again.
      wrong_sums: sums that code under `shard_map` leaves out or takes too often.
      stages: of a pipeline of programs: what is computed and sent is the mean of them, and what is
        held that of the stage that has it.
      cure: what a search found for it; None where none ran, or its code changed since.
      called: what `--step` calls it, `train:step`; "" where no command traced it.
      turned: the tick at which the backward pass begins, where operations do not say their own.

    Invariants:
      ticks: every `at`, `born` and `dies` is from 0 to `end`, and `born` <= `dies`.
      axes: every mesh axis that is named is one of the mesh.
    """

    source: Source
    mesh: Mesh
    ops: tuple[StepOp, ...] = ()
    collectives: tuple[Collective, ...] = ()
    tensors: tuple[StepTensor, ...] = ()
    arguments: tuple[StepArgument, ...] = ()
    end: int = 0
    place: Place = Place()
    notes: tuple[str, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    returned: tuple[Returned, ...] = ()
    unreused: tuple[Unreused, ...] = ()
    wrong_sums: tuple[WrongSum, ...] = ()
    stages: Stages | None = None
    cure: Cure | None = None
    called: str = field(default="", compare=False)
    turned: int | None = field(default=None, compare=False, repr=False)

    @property
    def flops(self) -> int:
        """Return the FLOPs of one device in a step, the mean of devices where some have more."""
        return round(sum(op.flops * op.count / op.load for op in self.ops))

    def uncounted(self, figure: Figure) -> tuple[Unknown, ...]:
        """Return what makes a figure a lower bound; what sends or computes takes time, too."""
        touched = {figure} if figure != "time" else {"sends", "flops", "time"}
        return tuple(each for each in self.unknown if not touched.isdisjoint(each.figures))

    @property
    def wire_bytes(self) -> dict[tuple[str, ...], int]:
        """Return what one device sends in a step, by mesh axes, in the order of the program."""
        return wire_bytes(self.collectives)


def wire_bytes(collectives: Iterable[Collective]) -> dict[tuple[str, ...], int]:
    """Return what one device sends in a step, by the mesh axes that it goes over.

    Invariants:
      whole: the values sum to that of the collectives.
      once: no two keys are the same axes.
    """
    sent: dict[tuple[str, ...], int] = {}
    for each in collectives:
        sent[each.axes] = sent.get(each.axes, 0) + each.wire_bytes
    return sent


def idle_ways(op: StepOp, mesh: Mesh) -> int:
    """Return how many devices do the same work in an operation."""
    return math.prod(axis.size for axis in mesh.axes if axis.name not in op.mesh_axes)


Ticks = frozenset[int]


class Flows:
    """The makers of values, noted in the order of a program.

    Invariants:
      shortest: no maker of a value is reached from another maker of it.
    """

    def __init__(self) -> None:
        """Begin with arguments alone, which nothing makes."""
        self._made: dict[Hashable, Ticks] = {}
        #: By tick, a bit for each operation that leads to it, and for itself.
        self._before: dict[int, int] = {}

    def makers(self, values: Iterable[Hashable]) -> Ticks:
        """Return the ticks of the operations that make values; of arguments none."""
        return self.reduced({tick for value in values for tick in self._made.get(value, ())})

    def reduced(self, found: Collection[int]) -> Ticks:
        """Return operations without those that lead to another of them."""
        lead = 0
        for tick in found:
            lead |= self._before[tick] & ~(1 << tick)
        return frozenset(tick for tick in found if not lead >> tick & 1)

    def compute(self, tick: int, values: Iterable[Hashable]) -> Ticks:
        """Note an operation that reads values, and return the operations that make them."""
        found = self.makers(values) - {tick}
        self._before[tick] = self._before.get(tick, 0) | 1 << tick
        for each in found:
            self._before[tick] |= self._before[each]
        return found

    def make(self, value: Hashable, ticks: Iterable[int]) -> None:
        """Note what makes a value."""
        self._made[value] = frozenset(ticks)
