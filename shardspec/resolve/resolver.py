"""Spec x Target x Params -> ShardingPlan. Pure and total.

An array is named by the first source that says anything: overrides, its own names, `params:`. A
count of names that is not the array's rank is kept as a mismatch, and never falls through. Rules
for `*` are for arrays that no source names, and not for caches.

An array of `derive:` takes its mesh axes from its parent, which is found among the arrays that are
resolved together, and among those of the spec.

Models repeat themselves: ten thousand arrays have a dozen pairs of shape and names. Each pair
is resolved once, and the arrays share the result; arrays that match the same entries share all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from shardspec.diagnostics.budget import spend
from shardspec.ir import spec as ir
from shardspec.ir.plan import (
    ActivationSharding,
    Dims,
    Entry,
    Origin,
    ParamSharding,
    ShardingPlan,
    uneven_axes,
)
from shardspec.resolve import assign
from shardspec.resolve.match import PathMatcher, path_matcher

Named = TypeVar("Named", ir.Activation, ActivationSharding)


class Naming(NamedTuple):
    """The names of one array, and who gave them.

    Attributes:
      logical_axes: one per dimension, or None where nothing names the array or names it wrongly.
      mismatch: the names that were given, where their count is not the array's rank.
    """

    logical_axes: ir.LogicalAxes | None
    origin: Origin = Origin.NONE
    matched: Entry | None = None
    scan: ir.ScanRule | None = None
    mismatch: ir.LogicalAxes | None = None


@dataclass(frozen=True, slots=True)
class NameSource:
    """The path patterns of a spec, made ready to match."""

    spec: ir.Spec
    overrides: PathMatcher = field(repr=False)
    derives: PathMatcher = field(repr=False)
    path_rules: PathMatcher = field(repr=False)
    scans: PathMatcher = field(repr=False)
    memory: PathMatcher = field(repr=False)
    training: PathMatcher = field(repr=False)
    caches: Mapping[str, ir.Param] = field(default_factory=dict, repr=False)
    by_path: tuple[PathMatcher, ...] = field(default=(), repr=False)
    _known: dict[tuple[int, int], Naming] = field(default_factory=dict, compare=False, repr=False)

    def name(self, param: ir.Param) -> Naming:
        """Return the names of one array."""
        index = self.overrides.first_match(param.path) if self.spec.overrides else None
        if index is not None:
            return self.given_by(self.spec.overrides[index], param)
        if param.logical_axes is not None:
            return _checked(param, param.logical_axes, Origin.ARRAY)
        cache = self.caches.get(param.path)
        if cache is not None and cache.logical_axes is not None:
            return _checked(param, cache.logical_axes, Origin.CACHES)
        index = self.derives.first_match(param.path) if self.spec.derives else None
        if index is not None:
            return self.given_by(self.spec.derives[index], param)
        index = self.path_rules.first_match(param.path) if self.spec.path_rules else None
        if index is None:
            return Naming((), Origin.NONE) if param.rank == 0 else Naming(None)
        if self.spec.scans:  # which go by the path
            return self.given_by(self.spec.path_rules[index], param)
        key = (index, param.rank)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.given_by(self.spec.path_rules[index], param)
        return found

    def given_by(self, entry: Entry, param: ir.Param) -> Naming:
        """Return the names that one entry of the spec gives an array."""
        if isinstance(entry, ir.DeriveRule):
            return Naming(None, Origin.DERIVE, entry)
        origin = Origin.OVERRIDE if isinstance(entry, ir.Override) else Origin.PARAMS
        if entry.logical_axes is None:
            return Naming(None, origin, entry)
        return self._fitted(param, entry.logical_axes, origin, entry)

    def kind(self, param: ir.Param) -> object:
        """Return what decides on an array: equal for one answer; None where its path does."""
        if self.spec.derives or self.caches:
            return None
        matched = [each.first_match(param.path) for each in self.by_path]
        if param.logical_axes is None:
            matched.append(self.path_rules.first_match(param.path))
        return (*matched, param.logical_axes, param.shape, param.dtype, param.is_cache)

    @property
    def needs_paths(self) -> bool:
        """Say whether an array that carries its own names still depends on its path."""
        spec = self.spec
        return bool(spec.overrides or spec.derives or spec.memory or spec.training or self.caches)

    def placed(self, path: str, matched: Entry | None = None) -> ir.MemoryRule | ir.Override | None:
        """Return the entry that says in which memory an array lies, None where nothing does.

        Args:
          matched: what names the array: an override may say it as well, and then it does.
        """
        if isinstance(matched, ir.Override) and matched.memory is not None:
            return matched
        index = self.memory.first_match(path) if self.spec.memory else None
        return None if index is None else self.spec.memory[index]

    def trained(self, path: str) -> ir.TrainingRule | None:
        """Return the entry that says whether an array is trained, None where nothing does."""
        index = self.training.first_match(path) if self.spec.training else None
        return None if index is None else self.spec.training[index]

    def _fitted(
        self, param: ir.Param, names: ir.LogicalAxes, origin: Origin, matched: Entry
    ) -> Naming:
        """Return `names` with the stacked axes of a scanned array put in."""
        if len(names) == param.rank or not self.spec.scans:
            return _checked(param, names, origin, matched)
        index = self.scans.first_match(param.path)
        if index is None:
            return _checked(param, names, origin, matched)
        scan = self.spec.scans[index]
        whole = stacked(names, scan.axes)
        if whole is None:
            given = (*names, *(axis for axis, _ in scan.axes))
            return Naming(None, origin, matched, scan, mismatch=given)
        return _checked(param, whole, origin, matched, scan)


def name_source(spec: ir.Spec) -> NameSource:
    """Return the patterns of `spec`, compiled."""
    stated = (spec.overrides, spec.derives, spec.path_rules, spec.scans, spec.memory, spec.training)
    overrides, derives, path_rules, *others = (
        path_matcher(tuple(entry.pattern for entry in entries)) for entries in stated
    )
    scans, memory, training = others
    caches = {param.path: param for param in spec.caches}
    pairs = zip((overrides, *others), (stated[0], *stated[3:]), strict=True)
    by_path = tuple(matcher for matcher, entries in pairs if entries)
    return NameSource(
        spec, overrides, derives, path_rules, scans, memory, training, caches, by_path
    )


def stacked(names: ir.LogicalAxes, axes: tuple[tuple[str, int], ...]) -> ir.LogicalAxes | None:
    """Return `names` with each scan axis at its position in the whole array, None if it has none.

    Negative positions count from the end of the stacked array, as in `jax.vmap`.

    >>> stacked(("embed", "mlp"), (("layers", 0),))
    ('layers', 'embed', 'mlp')
    >>> stacked(("embed", "mlp"), (("layers", -1),))
    ('embed', 'mlp', 'layers')
    """
    rank = len(names) + len(axes)
    if not all(-rank <= position < rank for _, position in axes):
        return None
    placed = sorted((position % rank, axis) for axis, position in axes)
    result = list(names)
    for position, axis in placed:
        result.insert(position, axis)
    return tuple(result)


def _checked(
    param: ir.Param,
    names: ir.LogicalAxes,
    origin: Origin,
    matched: Entry | None = None,
    scan: ir.ScanRule | None = None,
) -> Naming:
    if len(names) == param.rank:
        return Naming(names, origin, matched, scan)
    return Naming(None, origin, matched, scan, mismatch=names)


@dataclass(frozen=True, slots=True)
class ArrayResolver:
    """A spec made ready for one target.

    Attributes:
      arrays: by path, among which the parents of derived arrays are looked for.
    """

    spec: ir.Spec
    target: ir.Target
    names: NameSource = field(repr=False)
    table: assign.RuleTable = field(repr=False)
    arrays: Mapping[str, ir.Param] = field(default_factory=dict, compare=False, repr=False)
    _known: dict[object, Dims] = field(default_factory=dict, compare=False, repr=False)
    _alike: dict[object, ParamSharding] = field(default_factory=dict, compare=False, repr=False)

    def on(self, target: ir.Target) -> ArrayResolver:
        """Return the same spec made ready for another target."""
        return ArrayResolver(self.spec, target, self.names, _table(self.spec, target), self.arrays)

    def among(self, params: Iterable[ir.Param]) -> ArrayResolver:
        """Return the same for arrays that are resolved together, so that parents are found."""
        if not self.spec.derives:
            return self
        return replace(self, arrays={**self.arrays, **{param.path: param for param in params}})

    def resolve_all(self, params: Iterable[ir.Param]) -> tuple[ParamSharding, ...]:
        """Return the answers for arrays that belong together, in order."""
        found = tuple(params)
        return tuple(map(self.among(found).resolve, found))

    def resolve(self, param: ir.Param, entry: Entry | None = None, depth: int = 0) -> ParamSharding:
        """Return the answer for one array, with its trace.

        Args:
          entry: of the spec, that names the array; None for whatever names it by its path.
          depth: how many arrays derive from this one, one from the other.
        """
        spend(50)
        kind = self.names.kind(param) if entry is None else None
        if kind is None:
            return self._answer(param, entry, depth)
        found = self._alike.get(kind)
        if found is None:
            found = self._alike[kind] = self._answer(param, None, depth)
        return found.of(param)

    def _answer(self, param: ir.Param, entry: Entry | None, depth: int) -> ParamSharding:
        found = self._resolve(param, entry, depth)
        training = self.names.trained(param.path)
        return found if training is None else replace(found, training=training)

    def _resolve(self, param: ir.Param, entry: Entry | None, depth: int) -> ParamSharding:
        naming = self.names.name(param) if entry is None else self.names.given_by(entry, param)
        matched = naming.matched
        placed = self.names.placed(param.path, matched)
        if isinstance(matched, ir.DeriveRule):
            from shardspec.resolve.derive import derived  # few specs have such arrays

            return replace(derived(self, param, matched, depth), placed=placed)
        if isinstance(matched, ir.Override) and matched.partition is not None:
            return self._as_stated(param, matched, matched.partition, placed)
        if naming.origin is Origin.CACHES:
            param = replace(param, is_cache=True)
        axes, scan, mismatch = naming.logical_axes, naming.scan, naming.mismatch
        is_unnamed = naming.origin is Origin.NONE and mismatch is None
        is_of_any = is_unnamed and bool(self.table.any) and param.path not in self.names.caches
        axes = axes if axes is not None else (None,) * param.rank
        dims = self._small(param, axes)
        if dims is None:
            dims = self._any(param.shape) if is_of_any else self.dims(param.shape, axes)
        return ParamSharding(
            param, dims, naming.origin, matched, scan, mismatch, ir.NO_SUMS, placed
        )

    def _small(self, param: ir.Param, logical_axes: ir.LogicalAxes) -> Dims | None:
        """Return the dimensions of an array that the policy keeps whole; None for others."""
        if not self.spec.policy.keeps_whole(param):
            return None
        key = ("whole", param.shape, logical_axes)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = assign.kept_whole(param.shape, logical_axes, self.table)
        return found

    def _any(self, shape: tuple[int, ...]) -> Dims:
        """Return the dimensions of an array that nothing names, by the rules for `*`."""
        key = ("any", shape)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = assign.assign_any(shape, self.table)
        return found

    def dims(self, shape: tuple[int | None, ...], logical_axes: ir.LogicalAxes) -> Dims:
        """Return the sharding of an array of these sizes and names; remembered by value."""
        key = (shape, logical_axes)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = assign.assign_axes(shape, logical_axes, self.table)
        return found

    def activation(self, activation: ir.Activation) -> ActivationSharding:
        """Return the sharding of a named activation, with the sizes that axes state."""
        sizes = {axis.name: axis.size for axis in self.spec.logical_axes}
        shape = tuple(sizes.get(name) if name else None for name in activation.logical_axes)
        return self.constrained(activation, shape)

    def constrained(
        self, activation: ir.Activation, shape: tuple[int | None, ...]
    ) -> ActivationSharding:
        """Return the sharding of a named activation of these sizes."""
        if activation.partition is None:
            return ActivationSharding(activation, self.dims(shape, activation.logical_axes))
        key = (shape, activation)
        dims = self._known.get(key)
        if dims is None:
            position = self.spec.activations.index(activation)
            dims = self._known[key] = assign.assign_stated(shape, activation, position, self.table)
        return ActivationSharding(activation, dims, self._sums(activation))

    def _sums(self, entry: ir.Override | ir.Activation) -> ir.Sums:
        """Return the mesh axes of sums that this target has, and those that no target has."""
        here, known = self.table.sizes, self.table.known
        asked = map(self.target.mesh.in_parts, entry.sums)
        kept = [tuple(a for a in axes if a in here or a not in known) for axes in asked]
        return ir.Sums(*kept) if entry.sums.mesh_axes else ir.NO_SUMS

    def _as_stated(
        self,
        param: ir.Param,
        override: ir.Override,
        partition: tuple[tuple[str, ...], ...],
        placed: ir.MemoryRule | ir.Override | None,
    ) -> ParamSharding:
        """Return the partition an override states, tried as one rule a dimension."""
        if len(partition) != param.rank:
            unnamed = self.dims(param.shape, (None,) * param.rank)
            given = tuple("none" if not axes else " ".join(axes) for axes in partition)
            return ParamSharding(
                param, unnamed, Origin.OVERRIDE, override, mismatch=given, placed=placed
            )
        key = (param.shape, override)
        found = self._known.get(key)
        if found is None:
            position = self.spec.overrides.index(override)
            found = assign.assign_stated(param.shape, override, position, self.table)
            self._known[key] = found
        sums = self._sums(override)
        return ParamSharding(param, found, Origin.OVERRIDE, override, sums=sums, placed=placed)


def activation_for(activations: Sequence[Named], name: str) -> Named | None:
    """Return what serves the constraint of this name: the entry of the name, else a pattern's.

    Args:
      activations: those of a spec, in order, or their answers.
    """
    entries = [
        each.activation if isinstance(each, ActivationSharding) else each for each in activations
    ]
    of_name = [at for at, entry in enumerate(entries) if entry.name == name]
    if of_name:
        return activations[min(of_name, key=lambda at: entries[at].pattern is not None)]
    general = [at for at, entry in enumerate(entries) if entry.pattern is not None]
    patterns = tuple(entry.pattern for entry in entries if entry.pattern is not None)
    index = path_matcher(patterns).first_match(name) if patterns else None
    return None if index is None else activations[general[index]]


def array_resolver(spec: ir.Spec, target: ir.Target) -> ArrayResolver:
    """Return `spec` made ready for `target`."""
    listed = {param.path: param for param in spec.params} if spec.derives else {}
    return ArrayResolver(spec, target, name_source(spec), _table(spec, target), listed)


def _table(spec: ir.Spec, target: ir.Target) -> assign.RuleTable:
    return assign.rule_table(
        spec.axis_rules,
        target.mesh,
        known_mesh_axes=spec.mesh_axis_names,
        axes=spec.logical_axes,
        policy=spec.policy,
        any_rules=spec.any_rules,
        uneven=uneven_axes(spec),
    )


def resolve(spec: ir.Spec, target: ir.Target, params: Iterable[ir.Param]) -> ShardingPlan:
    """Return the layout of every array on `target`. Never raises on what users wrote."""
    resolver = array_resolver(spec, target)
    return ShardingPlan(
        spec,
        target,
        resolver.resolve_all(params),
        tuple(resolver.activation(activation) for activation in spec.activations),
    )
