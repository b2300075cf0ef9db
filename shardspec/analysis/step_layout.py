"""How the values and arrays of a program lie on one mesh, each worked out once.

What an array is split by comes from the plan, what a value is split by from the rules for its
names; a gradient may be split further, by ZeRO. Arrays that are alike may be one of them here, with
how many it stands for: a search looks at many meshes, and none of them tells such arrays apart.

The passes over a program note its operations, and what is sent and gathered for them. A value that
was moved to where an operation needs it stays there for those that follow. A gradient that every
device has whole is summed once a step; all else is sent in every microbatch.

A step is given arrays, what the optimizer keeps, and a batch; what no line reads is found, too.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, get_args

from shardspec.analysis import step_partition, step_values
from shardspec.analysis.memory import Gradients, Held, gradients_of, memory
from shardspec.analysis.step_partition import Laid, Move, Partition, Seat, laid, legs_of, sent_bytes
from shardspec.analysis.step_time import OpTimes
from shardspec.analysis.step_values import APART, Flow, Loop, Op, Read, Value, View, Weight, turns
from shardspec.diagnostics.words import binary_bytes, counted, percent
from shardspec.ir import step as steps
from shardspec.ir.plan import Dims, DimSharding, ParamSharding, ShardingPlan, stacked_names
from shardspec.ir.program import USUAL
from shardspec.ir.spec import DTYPE_BITS, Hardware, PartitionSpec, Shape, Spec, host_memory
from shardspec.ir.step import Place, Stages, StageTag, StepArgument, StepArray, Ticks, Unknown
from shardspec.kept import kept
from shardspec.resolve.resolver import ArrayResolver

#: What sums up a gradient, and whether it does so once a step.
Summed = tuple[Move, bool]


@dataclass(slots=True, eq=False)
class StepLayout:
    """How everything in a program lies.

    Attributes:
      flow: the program, which does not depend on the mesh.
      counts: by path, how many arrays of the program one of the plan stands for; empty where the
        plan has all of them.
      ops: what operations compute, by how their work is shared; `sums` what adds up gradients, and
        `sent` what is sent, where nobody asks when and why; `taken` what operations take; `passed`
        the forward pass.
      is_told: whether anybody asks what makes an operand, when it is sent, and why.
    """

    plan: ShardingPlan
    flow: Flow
    resolver: ArrayResolver
    counts: Mapping[str, int] = field(default_factory=dict)
    is_told: bool = True
    gradients: Gradients = field(init=False)
    _kept: dict[object, object] = field(default_factory=dict)
    pipeline: Stages | None = field(init=False)
    ops: dict[tuple[Partition, object, steps.Phase], steps.StepOp] = field(default_factory=dict)
    sums: dict[tuple[Weight, Partition], tuple[Summed, ...]] = field(default_factory=dict)
    sent: dict[Hashable, tuple[steps.Collective, ...]] = field(default_factory=dict)
    taken: OpTimes = field(default_factory=dict)
    passed: dict[Hashable, Any] = field(default_factory=dict)
    _tags: dict[Op, StageTag] = field(default_factory=dict)
    _path_tags: dict[str, StageTag] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gradients = gradients_of(self.plan.spec, self.plan.mesh)
        self.pipeline = self._pipeline()
        if self.pipeline is not None:
            self._tag()

    def under(self, spec: Spec) -> StepLayout:
        """Return that of a spec that differs in what is kept, and in how long weights are gathered.

        Both share what they have computed: every array has the same layout in both.
        """
        made = copy(self)
        made.plan = replace(self.plan, spec=spec)
        made.flow = replace(self.flow, step=spec.step or self.flow.step)
        return made

    # arrays of the plan

    def count_of(self, path: str) -> int:
        """Return how many arrays one of the plan stands for, itself one of them."""
        return self.counts.get(path, 1)

    @kept
    def arrays_of(self, weight: Weight) -> tuple[tuple[ParamSharding, int], ...]:
        """Return the arrays of a weight as they lie, and how many each stands for."""
        paths = [each.path for each in weight.arrays]
        known = [path for path in paths if not self.counts or path in self.counts]
        return tuple((self.plan[path], self.count_of(path)) for path in known)

    @kept
    def trained_of(self, weight: Weight) -> tuple[tuple[ParamSharding, int], ...]:
        """Return each trained array of a weight, with the number of arrays that it represents."""
        return tuple(pair for pair in self.arrays_of(weight) if pair[0].is_trained)

    def is_on_host(self, value: Value) -> bool:
        """Say whether a value is kept in the memory of the host: `activations:` says that."""
        named = (each for each in self.plan.spec.activations if each.name == value.name)
        return any(host_memory(each.memory) is not None for each in named)

    @kept
    def unread(self) -> Unread:
        """Return the matrices that no line of the step reads."""
        return unread(self.plan.spec, self.flow, self.plan.arrays, self.counts)

    # stages

    def _pipeline(self) -> Stages | None:
        """Return the stages of the program, where each of them is a program of its own.

        A mesh axis that splits activations as well makes no stages: all have all layers in turn.
        """
        step, ways, layers = self.flow.step, 1, 0
        for loop in () if step.is_buffered else self._loops():
            axes = self.stages(loop)
            inside = (op.result for op in self.flow.ops if axes and op.loop is loop)
            if any(set(axes) & self.lies(value, value.view).seats.keys() for value in inside):
                return None
            ways = max(ways, self.plan.mesh.ways(axes))
            layers += loop.rounds if axes else 0
        if ways == 1:
            return None
        schedule = step.pipeline or USUAL
        is_assumed = step.pipeline is None
        return Stages(schedule, ways, self.flow.microbatches, layers, is_assumed)

    def _loops(self) -> tuple[Loop, ...]:
        return tuple(dict.fromkeys(op.loop for op in self.flow.ops if op.loop is not None))

    def _tag(self) -> None:
        """Note which stages run each operation, and have each array."""
        ops = self.flow.ops
        inside = [at for at, op in enumerate(ops) if self.stages(op.loop)]
        for at, op in enumerate(ops):
            tag: StageTag = "first" if at < inside[0] else "last" if at > inside[-1] else ""
            self._tags[op] = "layers" if self.stages(op.loop) else tag if op.loop is None else ""
            for each in () if op.weight is None else op.weight.arrays:
                before = self._path_tags.get(each.path, self._tags[op])
                self._path_tags[each.path] = _joined(before, self._tags[op])

    def tag(self, op: Op | None) -> StageTag:
        """Return which stages run an operation."""
        return "" if op is None else self._tags.get(op, "")

    def tag_of(self, path: str) -> StageTag:
        """Return which stages have an array."""
        return self._path_tags.get(path, "")

    def stages_of(self, op: Op) -> tuple[str, ...]:
        """Return the mesh axes along which stages share an operation, or leave it to one."""
        is_of_one = self.tag(op) in ("first", "last")
        loops = self._loops() if is_of_one else (op.loop,)
        return tuple(dict.fromkeys(axis for loop in loops for axis in self.stages(loop)))

    def mean(self, tag: StageTag) -> float:
        """Return how often something runs on the mean of all stages, that runs once on its own."""
        return 1 if self.pipeline is None else self.pipeline.mean(tag)

    # rounds

    @kept
    def stages(self, loop: Loop | None) -> tuple[str, ...]:
        """Return the mesh axes that split the stacked axis of a loop: each has a part of it."""
        found = {
            axis: None
            for op in self.flow.ops
            if op.loop is loop is not None and op.weight is not None and op.weight.is_stacked
            for dim, lies in enumerate(self.plan[op.weight.first.path].dims)
            if dim not in op.weight.kept
            for axis in lies.mesh_axes
        }
        return tuple(found)

    def stage_seats(self, loop: Loop | None) -> dict[str, Seat]:
        """Return the mesh axes that split a loop, each with the array that it splits."""
        weights = (op.weight for op in self.flow.ops if op.loop is loop and op.weight is not None)
        first = next((weight.first for weight in weights if weight.is_stacked), None)
        if first is None:
            return {}
        dims = enumerate(self.plan[first.path].dims)
        found = {
            axis: Seat("", at, dim.logical_axis, dim.taken, first.path)
            for at, dim in dims
            for axis in dim.mesh_axes
        }
        ways = self.plan.mesh.sizes
        return {axis: found[axis] for axis in self.stages(loop) if ways[axis] > 1}

    @kept
    def rounds(self, loop: Loop) -> int:
        """Return how many rounds of a loop a device runs in a pass, the most of any stage.

        Those of a buffered pipeline in all turns.
        """
        ways = self.plan.mesh.ways(self.stages(loop))
        whole = -(-loop.rounds // ways) if self.pipeline else max(1, loop.rounds // ways)
        return whole * self.turns(loop)

    def turns(self, loop: Loop | None) -> int:
        """Return how often the stages of a loop run in a buffer, each its rounds; else 1."""
        if loop is None or not self.flow.step.is_buffered:
            return 1
        return turns(self.flow.microbatches, self.plan.mesh.ways(self.stages(loop)))

    @kept
    def runs(self, op: Op) -> float:
        """Return how often a device runs an operation in a pass, on the mean of all stages."""
        if op.loop is None:
            return self.mean(self.tag(op))
        ways = self.plan.mesh.ways(self.stages(op.loop))
        if self.pipeline is None or op.loop.rounds % ways == 0:
            return self.rounds(op.loop)
        return op.loop.rounds / ways

    # how things lie

    @kept
    def dims(self, source: Value | Weight) -> tuple[DimSharding, ...]:
        """Return how the dimensions of what a round uses are split."""
        if isinstance(source, Value):
            return self.resolver.dims(source.shape, source.names)
        dims = self.plan[source.first.path].dims
        return tuple(dims[dim] for dim in source.kept)

    @kept
    def lies(self, source: Value | Weight, view: View, kind: str = "") -> Laid:
        """Return how something lies by the indices of an operation.

        Args:
          kind: `gradient` for that of a weight as it is held, `update` for what the update takes.
        """
        mesh = self.plan.mesh
        if isinstance(source, Value):
            return laid(view, self.dims(source), source.dtype, mesh)
        dtype = self.wire_dtype(source.first.param.dtype)
        path = source.first.path
        if not kind:
            return laid(view, self.dims(source), dtype, mesh, path)
        whole = self.held(path) if kind == "gradient" else self.updated(path)
        dtype = self.gradients.dtype or self.flow.step.gradients or dtype
        if whole is self.plan[path].dims:
            return replace(self.lies(source, view), bits=DTYPE_BITS.get(dtype, 32))
        return laid(view, tuple(whole[dim] for dim in source.kept), dtype, mesh, path)

    @kept
    def partition(self, op: Op) -> Partition:
        """Return how the work of an operation is shared."""
        operands = [self.lies(read.source, read.view) for read in op.reads]
        result = self.lies(op.result, op.view)
        tables = [
            each
            for each, read in zip(operands, op.reads, strict=True)
            if op.kind == "gather" and isinstance(read.source, Weight)
        ]
        table = next(iter(tables), None)
        return step_partition.partition(operands, result, self.plan.mesh, op.whole, table=table)

    @kept
    def backward(self, op: Op, at: int) -> tuple[tuple[Read, ...], Laid, Partition]:
        """Return what makes the gradient of an operand, how that lies, and how it is shared."""
        read, made = op.reads[at], Read(op.result, op.view)
        others = [each for each in op.reads if each is not read and op.kind != "view"]
        if op.kind == "gather":
            others = [each for each in others if not isinstance(each.source, Weight)]
        reads = (*op.reads, made) if op.kind == "flash" else (made, *others)
        operands = [self.lies(each.source, each.view) for each in reads]
        result, mesh = self.lies(read.source, read.view, "gradient"), self.plan.mesh
        if op.kind == "flash":
            along = self.partition(op).along
            return reads, result, step_partition.shared(along, operands, result, mesh)
        table = result if op.kind == "gather" else None
        part = step_partition.partition(operands, result, mesh, op.whole, table=table)
        return reads, result, part

    def wire_dtype(self, dtype: str) -> str:
        """Return the dtype that a weight is sent in: that of products, unless its own is less."""
        own = self.flow.step.dtype
        return own if DTYPE_BITS.get(dtype, 32) > DTYPE_BITS.get(own, 32) else dtype

    @kept
    def gradient(self, path: str) -> StepArray:
        """Return the gradient of an array as it is held."""
        param = self.plan[path].param
        return step_array(self.held(path), param.shape, self.gradients.dtype or param.dtype, path)

    @kept
    def added(self, weight: Weight, op: Op, stage: StageTag, at: int) -> tuple[steps.StepOp, ...]:
        """Return what adds the gradient of a microbatch to those before, in memory."""
        arrays = ((self.gradient(each.path), count) for each, count in self.trained_of(weight))
        passes, turns = self.flow.passes * self.mean(stage), self.turns(op.loop)
        return tuple(
            steps.StepOp(
                *("scatter", "", (array,), array, 0, count * passes * turns, op.place, "backward"),
                *(tuple(axis for dim in array.split.dims for axis in dim), at),
                stage=stage,
            )
            for array, count in arrays
        )

    @kept
    def held(self, path: str) -> Dims:
        """Return how the gradient of an array is held."""
        return self.gradients.held(self.plan[path].dims)

    @kept
    def updated(self, path: str) -> Dims:
        """Return what the update takes of an array."""
        return self.gradients.updated(self.plan[path].dims)

    @kept
    def alone(self, path: str) -> Weight:
        """Return an array that no line reads, as one that does."""
        each = self.plan[path]
        return Weight((each,), tuple(range(each.param.rank)))

    @kept
    def arguments(self) -> tuple[StepArgument, ...]:
        """Return what the step is given."""
        return tuple(arguments(self))

    # as a step shows it

    @kept
    def array(self, source: Value | Weight, dtype: str | None = None) -> StepArray:
        """Return what a round uses of something."""
        if isinstance(source, Value):
            name, own = source.name, source.dtype
        else:
            name, own = source.first.path, source.first.param.dtype
        return step_array(self.dims(source), source.shape, dtype or own, name)

    def at_work(self, source: Value | Weight, view: View, part: Partition) -> StepArray:
        """Return something as a device holds it while an operation runs."""
        return self._along(source, view, tuple(part.along.items()))

    @kept
    def _along(
        self, source: Value | Weight, view: View, axes: tuple[tuple[str, str], ...]
    ) -> StepArray:
        array, mesh = self.array(source), self.plan.mesh
        inner = [{index.name for index in dim} for dim in view]
        split = tuple(tuple(axis for axis, name in axes if name in names) for names in inner)
        ways = [mesh.ways(each) for each in split]
        shard = tuple(-(-size // by) for size, by in zip(array.shape, ways, strict=True))
        dtype = self.wire_dtype(array.dtype) if isinstance(source, Weight) else array.dtype
        return StepArray(dtype, array.shape, PartitionSpec(split), shard, array.name)


def _joined(one: StageTag, other: StageTag) -> StageTag:
    """Return the stages that have an array which operations of some stages read, and of others."""
    return one if one == other else "ends" if {one, other} <= {"first", "last", "ends"} else ""


def step_array(dims: Sequence[DimSharding], shape: Shape, dtype: str, name: str) -> StepArray:
    """Return an array as a step shows it."""
    split = PartitionSpec(tuple([dim.mesh_axes for dim in dims]))
    shard = tuple([dim.shard_size or 0 for dim in dims])
    return StepArray(dtype, shape, split, shard, name)


def stacked_array(array: StepArray, rounds: int) -> StepArray:
    """Return an array of which every round keeps its own."""
    split = PartitionSpec(((), *array.split.dims))
    shape, shard = (rounds, *array.shape), (rounds, *array.shard_shape)
    return StepArray(array.dtype, shape, split, shard, array.name)


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
      turned: the tick of the first operation of the backward pass; None where there is none yet.
      again: the operations that the backward pass does again.
      gathered: the weights that stay so until the end.
    """

    layout: StepLayout
    ops: list[steps.StepOp] = field(default_factory=list)
    collectives: list[steps.Collective] = field(default_factory=list)
    tensors: list[steps.StepTensor] = field(default_factory=list)
    at: int = 0
    stage: steps.StageTag = ""
    turned: int | None = None
    flows: steps.Flows = field(default_factory=steps.Flows)
    again: set[Op] = field(default_factory=set)
    gathered: list[steps.StepTensor] = field(default_factory=list)
    _moved: set[_Moved] = field(default_factory=set)

    def under(self, layout: StepLayout) -> Record:
        """Return that of a forward pass, to go on with under a layout that is alike so far."""
        named = ("ops", "collectives", "tensors", "gathered", "_moved")
        own = {name: copy(getattr(self, name)) for name in named}
        return replace(self, layout=layout, again=set(), flows=steps.Flows(), **own)

    @property
    def when(self) -> int:
        """Return the tick of the pass, where anybody asks."""
        return self.at if self.layout.is_told else 0

    def op(
        self, op: Op, reads: Sequence[Read], result: Value | Weight, view: View,
        part: Partition, flops: int, phase: steps.Phase, share: float = 1,
    ) -> None:  # fmt: skip
        """Note an operation that computes, for a share of the arrays that it reads."""
        is_told = self.layout.is_told
        sources = self.passed_on(op, phase) if is_told else ()
        if op.kind in _VIEWS:
            return
        if self.turned is None and phase != "forward":
            self.turned = self.at
        known, key = self.layout.ops, (part, result, phase)
        if key not in known:
            before = known.get((part, result, "forward"))
            known[key] = (
                replace(before, phase=phase)  # done again
                if before is not None and phase == "remat"
                else self._op(op, reads, result, view, part, flops, phase, share)
            )
        made = known[key]
        if is_told:
            why = self._because(reads, part)
            made = replace(made, at=self.at, because=why, reads=tuple(sorted(sources)))
        self.ops.append(made)

    def _op(
        self, op: Op, reads: Sequence[Read], result: Value | Weight, view: View,
        part: Partition, flops: int, phase: steps.Phase, share: float,
    ) -> steps.StepOp:  # fmt: skip
        kind: steps.OpKind = _KINDS.get(op.kind, "einsum")
        if op.kind == "gather" and phase == "backward":
            kind = "scatter"
        ways = part.ways(self.layout.plan.mesh)
        copies = op.copies
        operands = tuple(self.layout.at_work(read.source, read.view, part) for read in reads)
        made, left = self.layout.at_work(result, view, part), None
        if isinstance(result, Value) and (own := self.layout.array(result).bytes) < made.bytes:
            left = own
        views = tuple([read.view for read in reads])
        padding = part.padding(self.layout.plan.mesh, step_values.indices_of(views))
        turns = self.layout.turns(op.loop)
        return steps.StepOp(
            kind,
            step_values.letters_of(views, view) if kind == "einsum" else "",
            operands,
            made,
            round(flops * padding) // copies // ways,
            self.layout.runs(op) * copies * self.layout.flow.passes * share,
            op.place,
            phase,
            (*part.along, *self.layout.stages_of(op)),
            self.at,
            self.layout.flow.microbatches / turns if turns > 1 else 1.0,
            self.stage,
            left,
            self._load(reads),
        )

    def _because(self, reads: Sequence[Read], part: Partition) -> tuple[steps.Cause, ...]:
        """Return why mesh axes split an operation: what it reads lies along them."""
        laid = [self.layout.lies(read.source, read.view).seats for read in reads]
        found = {axis: seat for seats in reversed(laid) for axis, seat in seats.items()}
        return tuple(_cause(axis, found[axis]) for axis in part.along if axis in found)

    def flops_in_turns(self, op: Op) -> int:
        """Return the FLOPs of the last product, where libtpu may compute it in turns of a ring."""
        is_product = op.kind == "einsum" and op.weight is not None and op.loop is not None
        return self.ops[-1].flops if is_product and self.ops else 0

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
        if not slots:
            return 1.0
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
            runs, place = self.layout.runs(op), op.place
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
        place = op.place
        lives = (array, array.bytes, self.at, self.at, place, phase)
        self.tensors.append(steps.StepTensor(*lives, stage=self.stage))

    def send_all(
        self, moves: Iterable[Move], op: Op, source: Value | Weight, phase: steps.Phase,
        copies: int = 1, carried: str = "",
    ) -> None:  # fmt: skip
        """Note the collectives of an operation, as often as it runs."""
        runs = self.layout.runs(op) * copies
        for move in moves:
            self.send(move, runs, source, phase, op.place, carried)

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
        key = *move[:3], source, count, phase, carried, is_turned, is_whole, is_once, self.stage
        found = None if self.layout.is_told else self.layout.sent.get(key)
        if found is None:
            target, is_once = self.layout.plan.target, is_once or phase == "update"
            legs, runs = legs_of(move, target), count * (1 if is_once else self.layout.flow.passes)
            is_turned &= len(legs) == 1
            found = self.layout.sent[key] = tuple(
                steps.Collective(
                    *(*leg[:3], sent, runs * share, array, place, phase, carries, because),
                    at=self.at,
                    is_once=is_once,
                    stage=self.stage,
                )
                for leg in legs
                if (sent := sent_bytes(leg, target, is_turned=is_turned, is_whole=is_whole))
                for because in [self._causes(leg)]
                for array, share, carries in self._carried(source, carried)
            )
        self.collectives += found

    def _causes(self, leg: Move) -> tuple[steps.Cause, ...]:
        return tuple(map(_cause, leg.mesh_axes, leg.seats)) if self.layout.is_told else ()

    def _carried(
        self, source: Value | Weight, carried: str
    ) -> Iterator[tuple[StepArray, float, steps.Carried]]:
        """Yield what is sent of something, and how often for each time that it is read."""
        array = self.layout.array(source)
        if isinstance(source, Value):
            yield array, 1, steps.Carried("activation", source.name)
            return
        is_gradient = carried == "gradient"
        alike = self.layout.trained_of(source) if is_gradient else self.layout.arrays_of(source)
        for each, count in alike:
            named = array if each.path == array.name else replace(array, name=each.path)
            share = count * (source.copies / len(source.arrays))
            yield named, share, steps.Carried("gradient" if is_gradient else "weight", each.path)


def _cause(axis: str, seat: Seat | None) -> steps.Cause:
    if seat is None:
        return steps.Cause(axis, steps.CauseKind.UNKNOWN)
    kind = steps.CauseKind.ARGUMENT if seat.path else steps.CauseKind.CONSTRAINT
    dim = seat.dim if seat.path else None
    return steps.Cause(axis, kind, seat.path, dim, steps.Place(), seat.logical_axis, seat.attempt)


#: Dimensions of an array that products read, beside those of stacked layers.
_MATRIX = 2


def arguments(layout: StepLayout) -> Iterator[StepArgument]:
    """Yield what a step is given: what of it is on the host, and what it may overwrite."""
    plan, flow = layout.plan, layout.flow
    is_training = flow.step.mode == "train"
    for each in plan.arrays:
        array = step_array(each.dims, each.param.shape, each.param.dtype, each.path)
        is_cache, count = each.param.is_cache, layout.count_of(each.path)
        role: steps.Role = "optimizer" if each.is_state else "cache" if is_cache else "parameter"
        is_frozen = each.training is not None and not each.is_trained
        is_donated = (is_training and not is_frozen) or is_cache
        is_on_host = each.memory_kind is not None
        yield StepArgument(
            *(each.path, role, array, is_donated, True, is_on_host, count),
            stage=layout.tag_of(each.path),
        )
    if is_training and plan.spec.state is not None:
        yield from _moments(layout)
    for value in flow.inputs:
        dtype = "s32" if flow.is_index(value) else None
        role = "batch" if is_training or dtype is not None else "cache"
        if role == "cache" and flow.is_one_of(plan.spec.caches, value):
            continue
        array = layout.array(value, dtype)
        array = stacked_array(array, value.rounds) if value.rounds > 1 else array
        yield StepArgument(value.name, role, array, role == "cache", True)


def _moments(layout: StepLayout) -> Iterator[StepArgument]:
    """Yield what the optimizer keeps, by `state:`, where the plan lists none of it."""
    plan = layout.plan
    for figure in memory(plan).figures:
        alike = figure.arrays
        if figure.held is not Held.MOMENTS or alike.first.is_state:
            continue
        is_on_host = alike.memory_kind is not None
        for each in alike.shardings * figure.copies:
            array = step_array(alike.dims, alike.shape, alike.dtype, each.path)
            path = f"opt_state/{each.path}" if is_on_host else each.path
            count = layout.count_of(each.path)
            yield StepArgument(
                *(path, "optimizer", array, True, True, is_on_host, count),
                stage=layout.tag_of(each.path),
            )


def notes(layout: StepLayout) -> Iterator[str]:
    """Yield what is not counted: optimizer state, sends of stages, arrays that no line reads."""
    flow = layout.flow
    if flow.step.mode == "train" and not _has_state(layout.plan):
        yield (
            "no optimizer state is counted, since the spec has no `state:`;"
            " `state: {optimizer: same}` counts Adam's moments in f32, `state: {moments: 0}` none"
        )
    loops = dict.fromkeys(op.loop for op in flow.ops)
    stages = dict.fromkeys(axis for loop in loops for axis in layout.stages(loop))
    for axis in stages if layout.pipeline is None and not flow.step.is_buffered else ():
        if layout.plan.mesh.sizes[axis] > 1:
            yield (
                f"layers are split over `{axis}`, and so are activations: how layers come to the"
                " devices that run them is not counted"
            )
    if layout.pipeline is not None and layout.pipeline.is_assumed:
        yield (
            f"{layout.pipeline.count} stages of layers are taken for a pipeline that runs as"
            f" {layout.pipeline.schedule}: `pipeline` in `step` says another schedule"
        )
    for loop in loops:
        turns, microbatches = layout.turns(loop), flow.microbatches
        if layout.stages(loop) and turns > 1:
            yield (
                f"{turns} turns of {turns - microbatches + 1} stages for {microbatches}"
                f" microbatches: each is idle in {1 - microbatches / turns:.0%}"
            )
    left = layout.unread()
    if left.arrays and not left.is_much:
        yield f"{left.told}: what they compute is not counted"


@dataclass(frozen=True, slots=True)
class Unread:
    """Matrices that no line of `step:` reads, so that nothing of what they compute is counted.

    Attributes:
      count: how many, those that one stands for among them.
      bytes: of them that a token meets; `whole_bytes` of all matrices. An expert counts by the
        tokens that it takes.
    """

    arrays: tuple[ParamSharding, ...]
    count: int
    bytes: float
    whole_bytes: float

    @property
    def is_much(self) -> bool:
        """Say whether figures without them say nothing of the step."""
        return self.bytes > MOST_UNREAD * self.whole_bytes

    @property
    def told(self) -> str:
        """Return how many there are, and the largest."""
        return (
            f"no line of `step` reads {counted(self.count, 'array')},"
            f" {percent(self.bytes, self.whole_bytes)} of the bytes of all matrices,"
            f" {max(self.arrays, key=lambda each: each.param.bytes).path} the largest"
        )


#: The share of the bytes of matrices above which what no line reads makes figures lower bounds.
MOST_UNREAD = 0.05


def unread(
    spec: Spec, flow: Flow, arrays: Iterable[ParamSharding], counts: Mapping[str, int] = {}
) -> Unread:
    """Return the matrices that no line of a step reads.

    A matrix has two dimensions beside those of stacked layers. Vectors, such as norms and biases,
    multiply nothing that counts.

    Args:
      counts: how many arrays one of them stands for; one where it is not there.
    """
    stacked = stacked_names(spec)
    found = [
        (each, counts.get(each.path, 1))
        for each in arrays
        if not (each.is_state or each.param.is_cache)
        and sum(name not in stacked for name in each.logical_axes) >= _MATRIX
    ]
    left = [pair for pair in found if pair[0].path not in flow.used]
    shares = _shares(spec, flow, [each for each, _ in found])
    sizes = [
        sum(each.param.bytes * count * shares(each) for each, count in some)
        for some in (left, found)
    ]
    return Unread(tuple(each for each, _ in left), sum(count for _, count in left), *sizes)


def _shares(
    spec: Spec, flow: Flow, arrays: Sequence[ParamSharding]
) -> Callable[[ParamSharding], float]:
    """Return what says which share of the tokens of a step an array multiplies."""
    experts = spec.step.experts if spec.step is not None else None
    apart = len({found[0] for each in arrays if (found := APART.search(each.path))})

    def share(each: ParamSharding) -> float:
        count = apart if APART.search(each.path) else 1
        for name, size in zip(each.logical_axes, each.param.shape, strict=True):
            count = size if name in flow.experts else count
        return 1 if experts is None or not count else min(1, experts.choices / count)

    return share


def unknown(layout: StepLayout, given: Iterable[StepArgument]) -> Iterator[Unknown]:
    """Yield what makes the figures of a step lower bounds: much that no line of it reads."""
    plan, flow = layout.plan, layout.flow
    left = layout.unread()
    if left.is_much:
        what = f"the work of {counted(left.count, 'array')}"
        yield Unknown(what, left.told, get_args(steps.Figure), step_values.place_of(flow.step.span))
    yield from transfers(given, step_values.place_of(flow.step.span), plan.target.hardware)


def transfers(
    given: Iterable[StepArgument], place: Place, hardware: Hardware | None
) -> Iterator[Unknown]:
    """Yield what a step moves between a device and its host, where the link's speed is unknown."""
    held = [each for each in given if each.is_on_host]
    if held and (hardware is None or hardware.chip.host_bytes_per_s is None):
        read, written = map(binary_bytes, steps.host_bytes(held))
        reason = (
            f"{read} are read from the host's memory and {written} written back per device, and the"
            " speed of the link to the host is not known"
        )
        yield Unknown("transfers to and from the host", reason, ("time",), place)


def _has_state(plan: ShardingPlan) -> bool:
    return plan.spec.state is not None or any(each.is_state for each in plan.arrays)
