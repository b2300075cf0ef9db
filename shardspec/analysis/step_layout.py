"""How the values and arrays of a program lie on one mesh, each worked out once.

What an array is split by comes from the plan, what a value is split by from the rules for its
names; a gradient may be split further, by ZeRO. Arrays that are alike may be one of them here, with
how many it stands for: a search looks at many meshes, and none of them tells such arrays apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from shardspec.analysis.memory import Gradients, gradients_of
from shardspec.analysis.step_partition import Laid, Partition, Seat, laid
from shardspec.analysis.step_stages import turns
from shardspec.analysis.step_values import Flow, Loop, Op, Value, View, Weight
from shardspec.diagnostics import Span
from shardspec.ir.plan import DimSharding, ParamSharding, ShardingPlan
from shardspec.ir.program import USUAL
from shardspec.ir.spec import DTYPE_BITS, PartitionSpec, Shape
from shardspec.ir.step import Place, Stages, StageTag, StepArray
from shardspec.resolve.resolver import ArrayResolver


@dataclass(slots=True, eq=False)
class StepLayout:
    """How everything in a program lies.

    Attributes:
      flow: the program, which does not depend on the mesh.
      counts: by path, how many arrays of the program one of the plan stands for; empty where the
        plan has all of them.
    """

    plan: ShardingPlan
    flow: Flow
    resolver: ArrayResolver
    counts: Mapping[str, int] = field(default_factory=dict)
    gradients: Gradients = field(init=False)
    _dims: dict[object, tuple[DimSharding, ...]] = field(default_factory=dict)
    _laid: dict[object, Laid] = field(default_factory=dict)
    _arrays: dict[object, StepArray] = field(default_factory=dict)
    _alike: dict[Weight, tuple[tuple[ParamSharding, int], ...]] = field(default_factory=dict)
    _stages: dict[Loop, tuple[str, ...]] = field(default_factory=dict)
    _rounds: dict[Loop, int] = field(default_factory=dict)
    pipeline: Stages | None = field(init=False)
    _tags: dict[Op, StageTag] = field(default_factory=dict)
    _path_tags: dict[str, StageTag] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.gradients = gradients_of(self.plan.spec, self.plan.mesh)
        self.pipeline = self._pipeline()
        if self.pipeline is not None:
            self._tag()

    # arrays of the plan

    def count_of(self, path: str) -> int:
        """Return how many arrays one of the plan stands for, itself one of them."""
        return self.counts.get(path, 1)

    def arrays_of(self, weight: Weight) -> tuple[tuple[ParamSharding, int], ...]:
        """Return the arrays of a weight as they lie, and how many each stands for."""
        found = self._alike.get(weight)
        if found is None:
            paths = [each.path for each in weight.arrays]
            kept = [path for path in paths if not self.counts or path in self.counts]
            found = tuple((self.plan[path], self.count_of(path)) for path in kept)
            self._alike[weight] = found
        return found

    def trained_of(self, weight: Weight) -> Iterator[tuple[ParamSharding, int]]:
        """Yield the arrays of a weight that have gradients, and how many each stands for."""
        return (pair for pair in self.arrays_of(weight) if pair[0].is_trained)

    # stages

    def _pipeline(self) -> Stages | None:
        """Return the stages of the program, where each of them is a program of its own.

        A mesh axis that splits activations as well makes no stages: all have all layers in turn.
        """
        step, ways, layers = self.flow.step, 1, 0
        for loop in () if step.is_buffered else self._loops():
            axes = self.stages(loop)
            inside = (op.result for op in self.flow.ops if op.loop is loop)
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

    def stages(self, loop: Loop | None) -> tuple[str, ...]:
        """Return the mesh axes that split the stacked axis of a loop: each has a part of it."""
        if loop is None:
            return ()
        if loop not in self._stages:
            found = {
                axis: None
                for op in self.flow.ops
                if op.loop is loop and op.weight is not None and op.weight.is_stacked
                for dim, lies in enumerate(self.plan[op.weight.first.path].dims)
                if dim not in op.weight.kept
                for axis in lies.mesh_axes
            }
            self._stages[loop] = tuple(found)
        return self._stages[loop]

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

    def rounds(self, loop: Loop) -> int:
        """Return how many rounds of a loop a device runs in a pass, the most of any stage.

        Those of a buffered pipeline in all turns.
        """
        if loop not in self._rounds:
            ways = self.plan.mesh.ways(self.stages(loop))
            whole = -(-loop.rounds // ways) if self.pipeline else max(1, loop.rounds // ways)
            self._rounds[loop] = whole * self.turns(loop)
        return self._rounds[loop]

    def turns(self, loop: Loop | None) -> int:
        """Return how often the stages of a loop run in a buffer, each its rounds; else 1."""
        if loop is None or not self.flow.step.is_buffered:
            return 1
        return turns(self.flow.microbatches, self.plan.mesh.ways(self.stages(loop)))

    def runs(self, op: Op) -> float:
        """Return how often a device runs an operation in a pass, on the mean of all stages."""
        if op.loop is None:
            return self.mean(self.tag(op))
        ways = self.plan.mesh.ways(self.stages(op.loop))
        if self.pipeline is None or op.loop.rounds % ways == 0:
            return self.rounds(op.loop)
        return op.loop.rounds / ways

    # how things lie

    def dims(self, source: Value | Weight) -> tuple[DimSharding, ...]:
        """Return how the dimensions of what a round uses are split."""
        found = self._dims.get(source)
        if found is None:
            if isinstance(source, Value):
                found = self.resolver.dims(source.shape, source.names)
            else:
                dims = self.plan[source.first.path].dims
                found = tuple(dims[dim] for dim in source.kept)
            self._dims[source] = found
        return found

    def lies(self, source: Value | Weight, view: View, kind: str = "") -> Laid:
        """Return how something lies by the indices of an operation.

        Args:
          kind: `gradient` for that of a weight as it is held, `update` for what the update takes.
        """
        key = (source, view, "" if isinstance(source, Value) else kind)
        found = self._laid.get(key)
        if found is None:
            found = self._laid[key] = self._lying(source, view, kind)
        return found

    def _lying(self, source: Value | Weight, view: View, kind: str) -> Laid:
        mesh = self.plan.mesh
        if isinstance(source, Value):
            return laid(view, self.dims(source), source.dtype, mesh)
        dtype = self.wire_dtype(source.first.param.dtype)
        dims: Sequence[DimSharding] = self.dims(source)
        if kind:
            laid_by = self.gradients.held if kind == "gradient" else self.gradients.updated
            whole = laid_by(self.plan[source.first.path].dims)
            dims = tuple(whole[dim] for dim in source.kept)
            dtype = self.gradient_dtype(source.first.param.dtype)
        return laid(view, dims, dtype, mesh, source.first.path)

    def wire_dtype(self, dtype: str) -> str:
        """Return the dtype that a weight is sent in: that of products, unless its own is less."""
        own = self.flow.step.dtype
        return own if DTYPE_BITS.get(dtype, 32) > DTYPE_BITS.get(own, 32) else dtype

    def gradient_dtype(self, dtype: str) -> str:
        """Return the dtype that a gradient is summed in."""
        return self.gradients.dtype or self.flow.step.gradients or self.wire_dtype(dtype)

    def gradient(self, each: ParamSharding) -> StepArray:
        """Return the gradient of an array as it is held."""
        param, held = each.param, self.gradients
        return step_array(held.held(each.dims), param.shape, held.dtype or param.dtype, each.path)

    # as a step shows it

    def array(self, source: Value | Weight, dtype: str | None = None) -> StepArray:
        """Return what a round uses of something."""
        key = (source, dtype)
        found = self._arrays.get(key)
        if found is None:
            if isinstance(source, Value):
                name, own = source.name, source.dtype
            else:
                name, own = source.first.path, source.first.param.dtype
            found = step_array(self.dims(source), source.shape, dtype or own, name)
            self._arrays[key] = found
        return found

    def at_work(self, source: Value | Weight, view: View, part: Partition) -> StepArray:
        """Return something as a device holds it while an operation runs."""
        axes = tuple(part.along.items())
        key = (source, view, axes)
        found = self._arrays.get(key)
        if found is None:
            array, mesh = self.array(source), self.plan.mesh
            inner = [{index.name for index in dim} for dim in view]
            split = tuple(tuple(axis for axis, name in axes if name in names) for names in inner)
            ways = [mesh.ways(each) for each in split]
            shard = tuple(-(-size // by) for size, by in zip(array.shape, ways, strict=True))
            dtype = self.wire_dtype(array.dtype) if isinstance(source, Weight) else array.dtype
            found = StepArray(dtype, array.shape, PartitionSpec(split), shard, array.name)
            self._arrays[key] = found
        return found


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


@lru_cache(maxsize=1 << 10)
def place_of(span: Span | None) -> Place:
    """Return the line of a program."""
    if span is None:
        return Place()
    return Place(span.source.name, span.line)
