"""A dimension has no name, and a declared axis of its length would be sharded.

`_` says that a dimension has no name, so no rule is asked and it is replicated. Here exactly that
length is stated under `axes`, for an axis that the array does not have yet; with its name, the
rules would split the array, and what that saves on a device is large. Two axes can have the same
size by coincidence. So an axis that only one module of a layer has (`experts`, in `moe`) is not
suggested for arrays of another module, and one that no array has (`batch`) is not suggested at all.

Bad:
    shardspec: 1
    mesh: {data: 4, model: 8}
    axes: {embed: 4096, mlp: 16384}
    rules:
      - mlp -> model
      - embed -> data
    params:
      "**/wi/kernel": _ mlp
      "**/wo/kernel": mlp embed
    arrays:
      "layers_{0..3}/mlp/wi/kernel": bf16[4096, 16384]
      "layers_{0..3}/mlp/wo/kernel": bf16[16384, 4096]

Good:
    -  "**/wi/kernel": _ mlp
    +  "**/wi/kernel": embed mlp
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, Span, codes, point
from shardspec.diagnostics.words import binary_bytes, by_key, described, template
from shardspec.ir.plan import Alike, Origin, ParamSharding, ShardingPlan, alike
from shardspec.ir.spec import Spec
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import shared_folder
from shardspec.lints.evidence.entries import first_word
from shardspec.resolve.resolver import ArrayResolver, array_resolver


class _Place(NamedTuple):
    """One dimension of the arrays that one entry names."""

    span: Span | None
    dim: int
    size: int


class _Gain(NamedTuple):
    """What a name would save on one target."""

    saved: int
    axis: str
    target: str = ""
    paths: tuple[str, ...] = ()


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each dimension that a name would split."""
    best: dict[_Place, _Gain] = {}
    for plan in context.plans:
        for place, gain in _gains(context, plan):
            if gain.saved > best.get(place, (0,))[0]:
                best[place] = gain
    for place, gain in best.items():
        yield _finding(place, gain)


def _gains(context: Context, plan: ShardingPlan) -> Iterator[tuple[_Place, _Gain]]:
    """Yield each dimension and the name that would save most, where that is enough."""
    spec = context.spec
    nameless = _nameless(spec, plan.alike)
    if not nameless:
        return
    resolver = array_resolver(spec, plan.target)
    homes = _homes(plan)
    known = {name for each in plan.arrays for name in each.logical_axes}
    for place, members in nameless.items():
        paths = tuple(member.param.path for member in members)
        names = [each.name for each in spec.logical_axes if each.size == place.size]
        gains = (
            _Gain(sum(_saved(resolver, each, place.dim, name) for each in alike(members)), name)
            for name in names
            if name in known
            and name not in members[0].logical_axes
            and not _is_next_door(members[0].param.path, homes.get(name, ()))
        )
        best = max(gains, key=lambda gain: gain.saved, default=None)
        if best is not None and context.is_large(best.saved, plan.target.name):
            yield place, best._replace(target=plan.target.name, paths=paths)


def _homes(plan: ShardingPlan) -> dict[str, tuple[str, ...]]:
    """Return the module that all arrays with a logical axis are in, as components, by axis."""
    paths: dict[str, set[tuple[str, ...]]] = {}
    for sharding in plan.arrays:
        for axis in filter(None, sharding.logical_axes):
            paths.setdefault(axis, set()).add(_components(sharding.param.path))
    found = ((axis, each) for axis, each in paths.items() if len(each) > 1)
    return {axis: shared_folder(path[:-1] for path in each) for axis, each in found}


def _is_next_door(path: str, home: tuple[str, ...]) -> bool:
    """Say whether an array is in the same layer as all that have the axis, in another module."""
    depth = len(home)
    parts = _components(path)
    return depth > 1 and parts[: depth - 1] == home[:-1] and parts[:depth] != home


def _components(path: str) -> tuple[str, ...]:
    return tuple(re.split(r"[/.]", template(path)))


def _nameless(spec: Spec, groups: Sequence[Alike]) -> dict[_Place, list[ParamSharding]]:
    """Return the dimensions without a name that are as long as some axis, with their arrays."""
    sizes = {axis.size for axis in spec.logical_axes if axis.size}
    return by_key(
        (_Place(sharding.named_at, index, dim.size or 0), sharding)
        for group in groups
        for index, dim in enumerate(group.dims)
        if dim.logical_axis is None and dim.size in sizes
        for sharding in filter(_is_named, group.shardings)
    )


def _is_named(sharding: ParamSharding) -> bool:
    """Say whether an entry gives this array names, and says `_` among them."""
    is_named = sharding.origin is not Origin.NONE and sharding.mismatch is None
    return is_named and not sharding.is_stated


def _saved(resolver: ArrayResolver, arrays: Alike, dim: int, name: str) -> int:
    """Return the bytes per device that arrays would save under another name."""
    names = arrays.first.logical_axes
    dims = resolver.dims(arrays.shape, (*names[:dim], name, *names[dim + 1 :]))
    return arrays.device_bytes - arrays.laid_out(dims).device_bytes


def _finding(place: _Place, gain: _Gain) -> Diagnostic:
    return point(
        codes.NAMELESS_DIMENSION,
        f"dim {place.dim} of `{gain.paths[0]}` has no name, and is as long as `{gain.axis}`"
        f" = {place.size}",
        None if place.span is None else first_word(place.span, "_"),
        "replicated on every device",
        notes=(
            f"{described(gain.paths)}; named `{gain.axis}`, they take"
            f" {binary_bytes(gain.saved)} less per device on target `{gain.target}`",
        ),
        help=f"write `{gain.axis}` for `_`; or give the dimension its own axis: `AXIS -> none`",
    )
