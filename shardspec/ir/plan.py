"""The result, which is the trace: every rule that was tried, and how each ended.

Nothing here stores a partition spec. It is derived from the attempts, so an explanation
cannot drift from the answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

from shardspec.diagnostics import Span
from shardspec.diagnostics.words import binary_bytes
from shardspec.ir import spec as ir
from shardspec.versions import renamed

#: An entry of the spec that says what the dimensions of an array are.
Entry = ir.PathRule | ir.Override | ir.DeriveRule
#: What is written at one place of a spec, and found again in the reasons for an answer.
Written = Entry | ir.AxisRule | ir.ScanRule | ir.MemoryRule | ir.TrainingRule


def is_same(one: Written | None, other: Written | None) -> bool:
    """Say whether two are what the spec says at one place; a copy is the same."""
    return one == other and (one is None or other is None or one.span == other.span)


class Kind(StrEnum):
    """What asks for mesh axes in an attempt."""

    #: a rule of the spec
    RULE = "rule"
    #: an override that states the partition itself
    STATED = "stated"
    #: the dimension of a parent that a derived array has as well
    PARENT = "parent"
    #: ZeRO, on top of what placed the dimension
    ZERO = "zero"
    #: a rule for the arrays that nothing names
    ANY = "any"
    #: the policy that keeps small arrays whole
    SMALL = "small"
    #: a rule that cannot be read, which is reported: its axes ask no other
    UNREAD = "unread"


class Outcome(StrEnum):
    """How one attempt ended. `TAKEN` places a dimension, and `ADDED` splits it further."""

    TAKEN = "taken"
    #: the mesh axes come last on a dimension, whether something placed it or not
    ADDED = "added"
    #: another dimension of the array has one of the mesh axes
    BUSY = "busy"
    #: the mesh axes do not divide the dimension, in whole units
    INDIVISIBLE = "indivisible"
    #: this target has none of the mesh axes; another target has
    ABSENT = "absent"
    #: no target has one of the mesh axes
    UNKNOWN = "unknown"


class LeftOut(NamedTuple):
    """A mesh axis that a rule such as `mlp -> (model, fsdp)?` goes without.

    Attributes:
      outcome: `BUSY`, `ABSENT`, or `INDIVISIBLE`: with it, the dimension would no longer divide.
      ways: with it and with those that are taken before it, for `INDIVISIBLE`.
      blocked_by: the dimension that has it, for `BUSY`.
    """

    mesh_axis: str
    outcome: Outcome
    ways: int = 1
    blocked_by: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to split one dimension.

    Attributes:
      position: of what asks, in `Spec.axis_rules` or `Spec.any_rules`, or of an override in
        `Spec.overrides`; of a dimension of the parent, in that.
      asked: the mesh axes as they are written.
      mesh_axes: those of them that are asked for on this target, absent ones dropped.
      ways: product of the sizes of mesh_axes.
      blocked_by: the dimension that has the mesh axis, for `BUSY`.
      rule: what asks, where that is a rule.
      span: where it is written.
      left_out: what a rule that takes what fits goes without: first what is absent, then the
        others, major to minor.
    """

    kind: Kind
    position: int
    asked: tuple[str, ...]
    mesh_axes: tuple[str, ...]
    outcome: Outcome
    ways: int = 1
    blocked_by: int | None = None
    rule: ir.AxisRule | None = None
    span: Span | None = field(default=None, compare=False, repr=False)
    left_out: tuple[LeftOut, ...] = ()

    @property
    def is_none(self) -> bool:
        """Say whether it asks for replication."""
        return not self.asked

    @property
    def in_part(self) -> bool:
        """Say whether it takes those of the mesh axes that fit."""
        return self.rule is not None and self.rule.in_part

    @property
    def is_of_preset(self) -> bool:
        """Say whether a preset has the rule, which is a strategy with a name."""
        return self.span is not None and self.span.source.is_preset

    def __str__(self) -> str:
        """Return the rule; the mesh axes, where no rule asks for them."""
        if self.kind is Kind.SMALL:
            return "whole_below"
        return ir.target_text(self.asked) if self.rule is None else str(self.rule)


@dataclass(frozen=True, slots=True)
class DimSharding:
    """One dimension of one array.

    Attributes:
      size: None where it is not known (activations).
      logical_axis: None for a dimension without a name.
      attempts: in the order in which they were made.

    Invariants:
      complete: attempts by rule are that axis's rules in order, up to the one taken; at most one
        attempt is taken; what ZeRO adds comes last.
      unit: unit and segments are what the spec states for the logical axis, 1 without a name.
    """

    size: int | None
    logical_axis: str | None
    attempts: tuple[Attempt, ...] = ()
    unit: int = 1
    segments: int = 1

    @property
    def taken(self) -> Attempt | None:
        """Return the attempt that placed the dimension."""
        for attempt in reversed(self.attempts):
            if attempt.outcome is Outcome.TAKEN:
                return attempt
        return None

    def first_of(self, outcome: Outcome) -> Attempt | None:
        """Return the first attempt that ended so."""
        return next((attempt for attempt in self.attempts if attempt.outcome is outcome), None)

    @property
    def rule(self) -> ir.AxisRule | None:
        """Return the rule that placed the dimension; None where none did."""
        taken = self.taken
        return None if taken is None else taken.rule

    @property
    def added(self) -> Attempt | None:
        """Return the attempt of ZeRO that splits the dimension further."""
        last = self.attempts[-1] if self.attempts else None
        return last if last is not None and last.outcome is Outcome.ADDED else None

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """Return the mesh axes that split the dimension, major to minor."""
        if not self.attempts:
            return ()
        taken, added = self.taken, self.added
        mesh_axes = taken.mesh_axes if taken else ()
        return mesh_axes + added.mesh_axes if added else mesh_axes

    @property
    def ways(self) -> int:
        """Return into how many shards the dimension is split."""
        taken, added = self.taken, self.added
        return (taken.ways if taken else 1) * (added.ways if added else 1)

    @property
    def is_even(self) -> bool:
        """Say whether every shard is equally long and holds whole units."""
        return self.fits(self.ways)

    def fits(self, ways: int) -> bool:
        """Say whether it splits into so many equal shards of whole units, as far as is known."""
        return self.size is None or divides(ways, self.size, self.unit, self.segments)

    def cuts_parts(self, ways: int) -> bool:
        """Say whether so many equal shards would hold the end of a part and the next."""
        return bool(self.size) and (self.size or 0) % ways == 0 and ways % self.segments != 0

    @property
    def shard_size(self) -> int | None:
        """Return the length of the longest shard."""
        return None if self.size is None else -(-self.size // self.ways)


class Dims(tuple[DimSharding, ...]):
    """The dimensions of one array, which count their hash, and list their names, once.

    Ten thousand arrays have a dozen of these, and are grouped by them again and again.
    """

    _hash: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = super().__hash__()
            return self._hash

    @cached_property
    def logical_axes(self) -> tuple[str | None, ...]:
        """Return the name of each dimension."""
        return tuple(dim.logical_axis for dim in self)

    @cached_property
    def named(self) -> tuple[str, ...]:
        """Return the names that dimensions have, each once."""
        return tuple(dict.fromkeys(filter(None, self.logical_axes)))

    @property
    def is_kept_whole(self) -> bool:
        """Say whether the policy keeps the array whole, since it is small."""
        return self._is_asked_by(Kind.SMALL)

    @property
    def is_of_any(self) -> bool:
        """Say whether rules for `*` decide, since nothing names the array."""
        return self._is_asked_by(Kind.ANY)

    @property
    def not_split_by_any(self) -> DimSharding | None:
        """Return the largest dimension, where rules for `*` divide none; the first of equals."""
        if not self.is_of_any or any(dim.taken is not None for dim in self):
            return None
        return max(self, key=lambda dim: dim.size or 0)

    def _is_asked_by(self, kind: Kind) -> bool:
        return any(attempt.kind is kind for dim in self for attempt in dim.attempts)

    def __reduce__(self) -> tuple[type[Dims], tuple[tuple[DimSharding, ...]]]:
        """Leave the hash behind: that of a text is another in every process."""
        return Dims, (tuple(self),)


def divides(ways: int, size: int, unit: int = 1, segments: int = 1) -> bool:
    """Say whether `size` splits `ways` times into equal shards of whole units.

    Splitting once, or into shards of nothing (size 0), always works.

    Args:
      segments: of a fused axis; a number of shards that is no multiple of it cuts its parts.
    """
    return ways == 1 or size == 0 or (size % (ways * unit) == 0 and ways % segments == 0)


class Origin(StrEnum):
    """Where an array's logical axes came from."""

    OVERRIDE = "override"
    ARRAY = "array"
    CACHES = "caches"
    DERIVE = "derive"
    PARAMS = "params"
    NONE = "none"


class _Answer:
    """What the dimensions of an array, or of arrays that are alike, say together."""

    __slots__ = ()
    dims: Dims
    #: The mesh axes of this mesh over which it is a sum.
    sums: ir.Sums

    @property
    def logical_axes(self) -> tuple[str | None, ...]:
        """Return the name of each dimension."""
        return self.dims.logical_axes

    @property
    def partition_spec(self) -> ir.PartitionSpec:
        """Return the mesh axes of each dimension."""
        return ir.PartitionSpec(tuple(dim.mesh_axes for dim in self.dims), self.sums)

    @property
    def shard_shape(self) -> ir.Shape:
        """Return the shape of the largest shard."""
        return tuple(dim.shard_size or 0 for dim in self.dims)

    @property
    def shard_count(self) -> int:
        """Return the number of distinct shards."""
        return math.prod(dim.ways for dim in self.dims)

    @property
    def is_replicated(self) -> bool:
        """Say whether every device holds the whole array, and no partial sum of it."""
        return self.shard_count == 1 and not self.sums.unreduced

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """Return every mesh axis in use."""
        return tuple(axis for dim in self.dims for axis in dim.mesh_axes)


class Derivation(NamedTuple):
    """How an array follows from another, or why it does not.

    Attributes:
      parent: None where none of the paths in `wanted` is an array.
      reading: for each dimension what it is, as far as ranks go together; `()` for an array of one
        element.
      wanted: where the parent was looked for.
      fault: what does not fit; "" where all does.
    """

    parent: ParamSharding | None
    reading: ir.DerivedDims = ()
    wanted: tuple[str, ...] = ()
    fault: str = ""

    def __str__(self) -> str:
        """Return `decoder/mlp/kernel, dims 0 _`."""
        if self.parent is None:
            return f"{' or '.join(self.wanted) or 'a parameter'}, which is not there"
        what = f"dims {ir.derived_text(self.reading)}" if self.reading else "one element, whole"
        return f"{self.parent.path}, {self.fault or what}"


@dataclass(frozen=True, slots=True)
class ParamSharding(_Answer):
    """One array with its answer and the reasons for it.

    `print(sharding)` is how its explanation begins: the answer, and where the names came from.

    Attributes:
      origin: which of the three sources named the dimensions.
      matched: the entry of `overrides:`, `derive:` or `params:` that did.
      scan: the entry of `scan:` that added stacked axes.
      mismatch: the names that were given, where their count is not the array's rank; the
        dimensions are then without names.
      sums: those that an override states, of this mesh.
      placed: the entry of `memory:`, or the override, that says in which memory it lies.
      training: the entry of `training:` that says whether it is trained.
      derivation: from which array, where `derive:` lays it out.
    """

    param: ir.Param
    dims: Dims
    origin: Origin = Origin.NONE
    matched: Entry | None = None
    scan: ir.ScanRule | None = None
    mismatch: tuple[str | None, ...] | None = None
    sums: ir.Sums = ir.NO_SUMS
    placed: ir.MemoryRule | ir.Override | None = None
    derivation: Derivation | None = None
    training: ir.TrainingRule | None = None

    def of(self, param: ir.Param) -> ParamSharding:
        """Return the same answer for another array that all of it is true of."""
        names = (self.origin, self.matched, self.scan, self.mismatch)
        return ParamSharding(
            param, self.dims, *names, self.sums, self.placed, self.derivation, self.training
        )

    @property
    def path(self) -> str:
        """Return the path of the array."""
        return self.param.path

    @property
    def memory_kind(self) -> ir.HostMemory | None:
        """Return the memory of its host that it lies in; None for that of the device."""
        return ir.host_memory(None if self.placed is None else self.placed.memory)

    @property
    def is_trained(self) -> bool:
        """Say whether it has a gradient: it holds no integers, and nothing says `frozen`."""
        is_frozen = self.training is not None and self.training.training == "frozen"
        return self.param.dtype.startswith(("f", "bf", "c")) and not is_frozen

    @property
    def is_state(self) -> bool:
        """Say whether it is optimizer state, so that what it is to its parameter is the reason."""
        return False

    @property
    def needs_names(self) -> bool:
        """Say whether nothing names the dimensions, and nothing else says how they lie."""
        is_without = self.origin is Origin.NONE and self.param.rank > 0
        return is_without and not (self.dims.is_kept_whole or self.dims.is_of_any)

    @property
    def named_at(self) -> Span | None:
        """Return where the names were given: the entry that matched, or the array itself."""
        return self.matched.span if self.matched else self.param.span

    @property
    def is_stated(self) -> bool:
        """Say whether an override states the partition itself, so that no rule is asked."""
        return isinstance(self.matched, ir.Override) and self.matched.partition is not None

    @property
    def per_device_bytes(self) -> int:
        """Return the bytes of the largest shard."""
        return ir.Param(self.param.path, self.shard_shape, self.param.dtype).bytes

    @property
    def padding_bytes(self) -> int:
        """Return the bytes of the whole array that are padding."""
        return self.param.bytes - ir.array_bytes(self.param.true_shape, self.param.dtype)

    @property
    def answer_text(self) -> str:
        """Return the first line of the explanation: the array, its layout, its bytes."""
        shard, size = list(self.shard_shape), binary_bytes(self.per_device_bytes)
        where = f" in {self.memory_kind}" if self.memory_kind else ""
        answer = f"{self.partition_spec}   shard {shard}, {size} per device{where}"
        return f"{self.path}   {self.param}   ->   {answer}"

    @property
    def names_text(self) -> str:
        """Return the names of the dimensions, and who gave them."""
        names = " ".join(axis or "_" for axis in self.logical_axes)
        matched = self.matched
        place = matched.span.place if matched and matched.span else ""
        if self.mismatch is not None:
            given = " ".join(name or "_" for name in self.mismatch)
            count = f"{len(self.mismatch)} names for {self.param.rank} dimensions"
            return f"none: `{given}`{f' from {place}' if matched else ''} is {count}"
        if isinstance(matched, ir.DeriveRule):
            return f'as {self.derivation}     {place}  derive "{matched.pattern}"'
        if isinstance(matched, ir.Override):
            if matched.partition is not None:
                names = f"spec {ir.override_text(matched.partition, matched.sums)}"
            because = f"  because {matched.because}" if matched.because else ""
            return f'{names}     {place}  override "{matched.pattern}"{because}'
        if isinstance(matched, ir.PathRule):
            return f'{names}     {place}  params "{matched.pattern}"'
        if self.origin is Origin.CACHES:
            return f"{names}     an entry of `caches`"
        if self.origin is Origin.ARRAY:
            span = self.param.span
            return f"{names}{f'     {span.place}' if span else ''}  the array's own"
        without = "none: no override and no entry of `params` matches this path"
        return f"{without}, so rules for `*` decide" if self.dims.is_of_any else without

    def __str__(self) -> str:
        """Return how the explanation begins: the answer, and where the names came from."""
        return f"{self.answer_text}\n\nnames   {self.names_text}"


@dataclass(frozen=True, slots=True)
class ActivationSharding(_Answer):
    """One named activation with its answer; sizes are known where `axes:` states them."""

    activation: ir.Activation
    dims: Dims
    sums: ir.Sums = ir.NO_SUMS

    @property
    def memory_kind(self) -> ir.MemoryKind | None:
        """Return the memory that a constraint moves it to; None where it stays where it is."""
        return self.activation.memory


Sharding = ParamSharding | ActivationSharding


@dataclass(frozen=True, slots=True)
class Alike(_Answer):
    """Arrays of one shape, layout, memory and dtype on one target."""

    dims: Dims
    dtype: str
    shardings: tuple[ParamSharding, ...] = field(repr=False)
    sums: ir.Sums = ir.NO_SUMS
    memory_kind: ir.HostMemory | None = None

    @property
    def first(self) -> ParamSharding:
        """Return the first of the arrays."""
        return self.shardings[0]

    @property
    def shape(self) -> ir.Shape:
        """Return the global shape."""
        return tuple(dim.size or 0 for dim in self.dims)

    @property
    def bytes(self) -> int:
        """Return the bytes of one whole array."""
        return ir.array_bytes(self.shape, self.dtype)

    @property
    def shard_bytes(self) -> int:
        """Return the bytes of the largest shard of one array."""
        return ir.array_bytes(self.shard_shape, self.dtype)

    @property
    def count(self) -> int:
        """Return how many they are."""
        return len(self.shardings)

    @property
    def device_bytes(self) -> int:
        """Return the bytes that a device holds of all of them."""
        return self.shard_bytes * self.count

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all of them, whole."""
        return self.bytes * self.count

    @property
    def paths(self) -> tuple[str, ...]:
        """Return their paths."""
        return tuple(sharding.param.path for sharding in self.shardings)

    def laid_out(self, dims: Dims, dtype: str | None = None) -> Alike:
        """Return the same arrays as they would be with other dimensions, or in another dtype."""
        return replace(self, dims=dims, dtype=dtype or self.dtype)


def alike(shardings: Iterable[ParamSharding]) -> tuple[Alike, ...]:
    """Return groups of one trace, memory and dtype; state, and caches, apart; in order."""
    groups: dict[tuple[Any, ...], list[ParamSharding]] = {}
    for each in shardings:  # of which there are ten thousand
        param, kind = each.param, None if each.placed is None else each.memory_kind
        state = (each.is_state, param.is_cache, each.is_trained)
        groups.setdefault((each.dims, param.dtype, each.sums, kind, *state), []).append(each)
    return tuple(
        Alike(dims, dtype, tuple(found), sums, kind)
        for (dims, dtype, sums, kind, *_), found in groups.items()
    )


@dataclass(frozen=True)
class ShardingPlan:
    """The layout of every array on one target.

    Invariants:
      once: no array uses a mesh axis twice.
      order: arrays stand in the order they were given.
    """

    spec: ir.Spec
    target: ir.Target
    arrays: tuple[ParamSharding, ...]
    activations: tuple[ActivationSharding, ...] = ()

    def __getitem__(self, path: str) -> ParamSharding:
        """Return the array at `path`; KeyError where there is none."""
        if not isinstance(path, str):
            raise TypeError(f"an array is found by its path, not by a `{type(path).__name__}`")
        return self._by_path[path]

    def having(self, is_wanted: Callable[[Dims], bool]) -> tuple[ParamSharding, ...]:
        """Return the arrays whose dimensions are wanted, in order."""
        wanted = set(filter(is_wanted, self._all_dims))
        return tuple(each for each in self.arrays if each.dims in wanted) if wanted else ()

    @cached_property
    def _all_dims(self) -> tuple[Dims, ...]:
        return tuple(dict.fromkeys(each.dims for each in self.arrays))

    @cached_property
    def _by_path(self) -> dict[str, ParamSharding]:
        return {sharding.param.path: sharding for sharding in self.arrays}

    def served(self, entry: Entry) -> int:
        """Return how many arrays an entry of the spec names."""
        return self._served.get((entry, entry.span), 0)

    @cached_property
    def _served(self) -> dict[tuple[Entry, Span | None], int]:
        found = (each.matched for each in self.arrays if each.matched is not None)
        return Counter((entry, entry.span) for entry in found)

    @property
    def name(self) -> str:
        """Return the name of the target, behind that of the phase: `pod`, `decode@pod`."""
        phase = self.spec.phase
        return f"{phase}@{self.target.name}" if phase else self.target.name

    @cached_property
    def alike(self) -> tuple[Alike, ...]:
        """Return the arrays in groups of one trace and dtype, in order of the first of each."""
        return alike(self.arrays)

    def alike_among(self, paths: Set[str]) -> Iterator[Alike]:
        """Yield the same groups of some of the arrays."""
        for group in self.alike:
            found = tuple(each for each in group.shardings if each.param.path in paths)
            if found:
                yield replace(group, shardings=found)

    @property
    def params(self) -> tuple[ParamSharding, ...]:
        """Return the arrays, by the word of the version before."""
        renamed("plan.params", "plan.arrays")
        return self.arrays

    @property
    def mesh(self) -> ir.Mesh:
        """Return the mesh of the target."""
        return self.target.mesh

    @property
    def per_device_bytes(self) -> int:
        """Return the bytes one device holds of all arrays in its own memory."""
        return sum(each.device_bytes for each in self.alike if each.memory_kind is None)

    @cached_property
    def held_bytes(self) -> int:
        """Return the bytes of all arrays that one device holds, in its host's memory too."""
        return sum(each.device_bytes for each in self.alike)

    @property
    def padded(self) -> tuple[ParamSharding, ...]:
        """Return the arrays that are padded."""
        return tuple(each for each in self.arrays if each.param.padding)

    @property
    def host_bytes(self) -> int:
        """Return the bytes of all arrays that lie in host memory, for one device."""
        return sum(each.device_bytes for each in self.alike if each.memory_kind is not None)


#: Names of stacked axes that need no `scan:`.
STACKED = frozenset({"layers", "layer", "stage"})


def stacked_names(spec: ir.Spec) -> frozenset[str]:
    """Return the names of the dimensions along which a spec stacks arrays."""
    return STACKED | {name for scan in spec.scans for name, _ in scan.axes}


def uneven_axes(spec: ir.Spec) -> frozenset[str]:
    """Return the stacked axes that need not divide: stages are stated to be programs apart."""
    step = spec.step
    is_apart = step is not None and step.pipeline is not None and not step.is_buffered
    return stacked_names(spec) if is_apart else frozenset()
