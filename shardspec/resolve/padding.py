"""Sizes that are padded until mesh axes divide them: `policy: {indivisible: pad}`.

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
from dataclasses import dataclass, replace

from shardspec.ir import spec as ir
from shardspec.ir.plan import ParamSharding, stacked_names
from shardspec.ir.spec import LogicalAxis, Param, Params, Spec, Target, axis_of
from shardspec.resolve.assign import assign_axes
from shardspec.resolve.resolver import ArrayResolver, array_resolver

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
        kept = frozenset[str]().union(*map(stacked_names, specs))
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
