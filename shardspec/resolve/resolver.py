"""Spec x Target x Params -> ShardingPlan. Pure and total.

An array is named by the first source that says anything: overrides, its own names, `params:`. A
count of names that is not the array's rank is kept as a mismatch, and never falls through. Rules
for `*` are for arrays that no source names, and not for caches.

An array of `derive:` takes its mesh axes from its parent, which is found among the arrays that are
resolved together, and among those of the spec.

Models repeat themselves: ten thousand arrays have a dozen pairs of shape and names. Each pair
is resolved once, and the arrays share the result; arrays that match the same entries share all.

Sizes that are padded until mesh axes divide them: `policy: {indivisible: pad}`.

A model has one size of each logical axis, whatever it runs on. So an axis is padded to a multiple
of all the shards that rules split it into: in every array, on every target, in every phase. Which
rules fire is looked at as if all sizes divided, and then the sizes are made so. A size that is the
product of others grows with them: where `joined: heads * kv` does not divide, `heads` is padded.

Nothing else of the resolver knows of it: it is given longer axes and arrays, which divide.

Parameters alone are a reason to pad. What the axes of activations and caches share with them has
the padded size; a batch or a length is data, and keeps its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from shardspec.diagnostics.budget import spend
from shardspec.ir import plan
from shardspec.ir import spec as ir
from shardspec.ir.plan import ActivationSharding, Dims, Entry, Origin, ParamSharding, ShardingPlan
from shardspec.ir.spec import LogicalAxis, Param, Params, Spec, Target, axis_of
from shardspec.kept import kept
from shardspec.resolve import match
from shardspec.resolve.match import PathMatcher, assign_axes, path_matcher

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
    table: match.RuleTable = field(repr=False)
    arrays: Mapping[str, ir.Param] = field(default_factory=dict, compare=False, repr=False)
    _kept: dict[object, object] = field(default_factory=dict, compare=False, repr=False)
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
        return self._whole(param.shape, logical_axes)

    @kept
    def _whole(self, shape: ir.Shape, logical_axes: ir.LogicalAxes) -> Dims:
        return match.kept_whole(shape, logical_axes, self.table)

    @kept
    def _any(self, shape: tuple[int, ...]) -> Dims:
        """Return the dimensions of an array that nothing names, by the rules for `*`."""
        return match.assign_any(shape, self.table)

    @kept
    def dims(self, shape: tuple[int | None, ...], logical_axes: ir.LogicalAxes) -> Dims:
        """Return the sharding of an array of these sizes and names; remembered by value."""
        return match.assign_axes(shape, logical_axes, self.table)

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
        return ActivationSharding(
            activation, self._stated(shape, activation), self._sums(activation)
        )

    @kept
    def _stated(self, shape: tuple[int | None, ...], entry: ir.Override | ir.Activation) -> Dims:
        """Return the dimensions of a shape whose partition an entry states."""
        entries: tuple[object, ...] = self.spec.overrides
        entries = self.spec.activations if isinstance(entry, ir.Activation) else entries
        return match.assign_stated(shape, entry, entries.index(entry), self.table)

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
        dims, sums = self._stated(param.shape, override), self._sums(override)
        return ParamSharding(param, dims, Origin.OVERRIDE, override, sums=sums, placed=placed)


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


def _table(spec: ir.Spec, target: ir.Target) -> match.RuleTable:
    return match.rule_table(
        spec.axis_rules,
        target.mesh,
        known_mesh_axes=spec.mesh_axis_names,
        axes=spec.logical_axes,
        policy=spec.policy,
        any_rules=spec.any_rules,
        uneven=plan.uneven_axes(spec),
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


#: True and padded size of each factor of a dimension, major to minor.
Pairs = tuple[tuple[int, int], ...]
#: The shards of an axis have to hold a multiple of so many elements in all.
_Need = tuple[str, int]


def pads(spec: Spec) -> bool:
    """Say whether a spec, or a phase of it, pads what does not divide."""
    return any(each.policy.indivisible == "pad" for each in (spec, *spec.phases))


def padding(spec: Spec) -> Spec:
    """Return a spec that pads what does not divide, in every phase."""
    return spec.everywhere(
        lambda each: replace(each, policy=replace(each.policy, indivisible="pad"))
    )


def padded(
    spec: Spec, params: Params | None = None, targets: Sequence[Target] | None = None
) -> tuple[Spec, Params]:
    """Return a spec and arrays of the sizes that it pads them to; from true sizes, each time.

    Args:
      params: the arrays; None for those that the spec itself lists.
      targets: in place of those of the spec.

    Invariants:
      least: a padded size is the next multiple of what its axis is padded to, or the size itself.
      even: a dimension that a rule pads is split evenly.
      shared: arrays with an axis of one size have one padded size of it.
      unpadded: where every dimension divides, all comes back as it was.
      again: what is padded is not padded further.
    """
    if not pads(spec):
        return spec, spec.params if params is None else params
    true = spec.everywhere(_unpadded)
    axes = _Axes.of(true)
    needs: dict[_Need, None] = {}
    for each in true.in_phases if targets is None else (true,):
        arrays = each.params if params is None else tuple(map(_true, params))
        for target in each.targets if targets is None else targets:
            needs.update(dict.fromkeys(_needs(array_resolver(each, target), arrays, axes)))
    axes = axes.meeting(needs)
    made = true.everywhere(lambda each: _resized(each, axes))
    return made, made.params if params is None else tuple(_arrays(true, map(_true, params), axes))


def _unpadded(spec: Spec) -> Spec:
    axes = (replace(axis, size=axis.true_size, padding=0) for axis in spec.logical_axes)
    params = tuple(map(_true, spec.params))
    return replace(spec, logical_axes=tuple(axes), params=params, multiples=())


def _true(param: Param) -> Param:
    return replace(param, shape=param.true_shape, padding=()) if param.padding else param


@dataclass(frozen=True, slots=True)
class _Axes:
    """The logical axes of a spec, and what they are padded to.

    Attributes:
      kept: those that never cause padding, and are padded as products of others alone.
      multiples: what the sizes of axes that are no products become multiples of.
    """

    by_name: Mapping[str, LogicalAxis]
    kept: frozenset[str]
    multiples: Mapping[str, int]

    @classmethod
    def of(cls, spec: Spec) -> _Axes:
        """Return the axes of a spec, none of them padded yet."""
        specs = (spec, *spec.phases)
        kept = frozenset[str]().union(*map(plan.stacked_names, specs))
        kept = kept.union(*(axis.fixes for each in specs for axis in each.logical_axes))
        ways_out = (rule for each in specs for rule in each.axis_rules)
        kept |= {rule.logical_axis for rule in ways_out if rule.is_none or rule.in_part}
        return cls({axis.name: axis for axis in spec.logical_axes}, kept, {})

    def padded_by(self, name: str) -> str | None:
        """Return the axis that is padded to make this one longer; None where none may be."""
        axis = self.by_name.get(name)
        if name in self.kept or axis_of(name) in self.kept:
            return None
        if axis is None or not axis.factors:
            return axis_of(name)
        if axis.size is None:
            return None
        return next(filter(None, map(self.padded_by, axis.factors)), None)

    def meeting(self, needs: Iterable[_Need]) -> _Axes:
        """Return the axes with multiples that meet the needs.

        A need of a product is one of its first factor that may be padded, as far as the other
        factors do not meet it; these may grow meanwhile.
        """
        multiples: dict[str, int] = {}
        axes = replace(self, multiples=multiples)
        needs = sorted(needs, key=lambda need: self.padded_by(need[0]) != need[0])
        before: dict[str, int] | None = None
        while before != multiples:
            before = dict(multiples)
            for name, need in needs:
                grown = self.padded_by(name)
                if grown is None:
                    continue
                axis = self.by_name.get(name)
                if axis is not None and axis.factors:
                    size = axes.size(name, axis.size or 0)
                    if size % need == 0:
                        continue
                    base = self.by_name[grown]
                    need //= math.gcd(need, size // axes.size(grown, base.size or 0))
                multiples[grown] = math.lcm(multiples.get(grown, 1), need)
        return axes

    def size(self, name: str, size: int) -> int:
        """Return what a true size of an axis is padded to."""
        return math.prod(padded for _, padded in self.grown(name, size))

    def grown(self, name: str, size: int) -> Pairs:
        """Return a true size of an axis, of a product those of its factors, with the padded one."""
        axis = self.by_name.get(name)
        if axis is None or not axis.factors:
            multiple = self.multiples.get(axis_of(name), 1)
            return ((size, -(-size // multiple) * multiple),)
        if size != axis.size:
            return ((size, size),)
        made = (self.grown(each, self.by_name[each].size or 0) for each in axis.factors)
        return tuple(pair for pairs in made for pair in pairs)

    def shrunk(self, name: str, size: int) -> Pairs:
        """Return the same of the padded size of an axis whose true size is stated."""
        axis = self.by_name.get(name)
        if axis is None or axis.size is None or size != self.size(name, axis.size):
            return ((size, size),)
        return self.grown(name, axis.size)


def _needs(resolver: ArrayResolver, params: Params, axes: _Axes) -> Iterator[_Need]:
    """Yield of how many elements rules need a multiple, of each axis that may be padded.

    Without arrays, the names that the spec has for some count.
    """
    spec = resolver.spec
    weights = [each for each in params if not each.is_cache and not spec.policy.keeps_whole(each)]
    named = [(resolver.names.name(each).logical_axes, each.shape) for each in weights]
    if not weights:
        entries = [entry.logical_axes for entry in spec.path_rules]
        entries += [entry.logical_axes for entry in spec.overrides if entry.logical_axes]
        named = [(names, (1,) * len(names)) for names in entries]
    for names, shape in dict.fromkeys(named):
        if names is None:
            continue
        open_sizes = tuple(
            None if name is not None and axes.padded_by(name) else size
            for name, size in zip(names, shape, strict=True)
        )
        for dim in assign_axes(open_sizes, names, resolver.table):
            if dim.size is None and dim.ways > 1:
                yield dim.logical_axis or "", dim.ways * dim.unit


def _resized(spec: Spec, axes: _Axes) -> Spec:
    """Return a spec whose axes and arrays have their padded sizes."""
    longer = []
    for axis in spec.logical_axes:
        size = None if axis.size is None else axes.size(axis.name, axis.size)
        longer.append(replace(axis, size=size, padding=(size or 0) - (axis.size or 0)))
    return replace(
        spec,
        logical_axes=tuple(longer),
        params=tuple(_arrays(spec, spec.params, axes)),
        multiples=tuple(axes.multiples.items()),
    )


def _arrays(spec: Spec, params: Iterable[Param], axes: _Axes) -> Iterator[Param]:
    """Yield arrays with their padded shapes; those of `derive:` follow their parents."""
    params = tuple(params)
    resolver = array_resolver(spec, Target("", ir.Mesh())).among(params)
    for param in params:
        made = _pairs(resolver.resolve(param), axes.grown)
        shape = tuple(math.prod(padded for _, padded in pairs) for pairs in made)
        more = tuple(size - true for size, true in zip(shape, param.shape, strict=True))
        yield replace(param, shape=shape, padding=more) if any(more) else param


def dims_of(spec: Spec, sharding: ParamSharding, *, is_padded: bool) -> tuple[Pairs, ...]:
    """Return the true and the padded size of each dimension of an array, by the factors it is of.

    Args:
      spec: with the sizes that `padded` gives it.
      is_padded: whether the array has the padded sizes, and not the true ones.
    """
    axes = replace(_Axes.of(_unpadded(spec)), multiples=dict(spec.multiples))
    return _pairs(sharding, axes.shrunk if is_padded else axes.grown)


def _pairs(sharding: ParamSharding, known: Callable[[str, int], Pairs]) -> tuple[Pairs, ...]:
    derivation, param = sharding.derivation, sharding.param
    if derivation is None:
        named = zip(sharding.logical_axes, param.shape, strict=True)
        return tuple(((size, size),) if name is None else known(name, size) for name, size in named)
    parent = derivation.parent
    if parent is None or derivation.fault or not derivation.reading:
        return tuple(((size, size),) for size in param.shape)
    above = _pairs(parent, known)
    return tuple(
        _followed(size, dim, parent.param.shape, above, known)
        for size, dim in zip(param.shape, derivation.reading, strict=True)
    )


def _followed(
    size: int,
    dim: ir.ParentDim | str | None,
    shape: ir.Shape,
    above: tuple[Pairs, ...],
    known: Callable[[str, int], Pairs],
) -> Pairs:
    """Return the sizes of a dimension of a derived array, by those of its parent."""
    if isinstance(dim, str):
        return known(dim, size)
    if dim is None or dim.place is None or size == 1 or shape[dim.place] == 0:
        return ((size, size),)
    whole = above[dim.place]
    if dim.operator == "/":
        true, padded = (math.prod(sizes) for sizes in zip(*whole, strict=True))
        return ((size, size),) if dim.by is None else ((-(-true // dim.by), -(-padded // dim.by)),)
    times = size // shape[dim.place]
    return whole if times == 1 else (*whole, (times, times))
