"""Optimizer state that is not laid out as its parameter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from shardspec.analysis.coverage import allowed_paths, is_large
from shardspec.analysis.memory import Held, memory
from shardspec.diagnostics import Diagnostic, codes, point, quote
from shardspec.diagnostics.words import (
    as_one,
    binary_bytes,
    by_key,
    counted,
    described,
    grouped,
    template,
)
from shardspec.ir.plan import Dims, DimSharding, ParamSharding, ShardingPlan
from shardspec.ir.spec import (
    Mesh,
    Param,
    PartitionSpec,
    Spec,
    StatePolicy,
    Target,
    array_bytes,
    override_text,
)
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import largest
from shardspec.resolve.state import (
    BATCH,
    Reading,
    Relation,
    Split,
    StateSharding,
    extra_axes,
    of_state,
    read_dims,
    split_further,
    state_axes,
)

# state-not-split


class Unsplit(NamedTuple):
    """State that ZeRO could not split, of arrays that are alike.

    Attributes:
      bytes: of all of it, on one device.
    """

    paths: tuple[str, ...]
    first: Param
    split: Split
    bytes: int


def state_not_split(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for ZeRO without mesh axes, and for each large array it cannot split."""
    policy = context.spec.state
    if policy is None or policy.optimizer == "same" or not context.plans:
        return
    targets = [plan.target for plan in context.plans]
    if not policy.over and not any(state_axes(context.spec, t.mesh) for t in targets):
        yield _without_axes(context.spec, policy)
        return
    for plan in context.plans:
        held = sum(each.bytes for each in memory(plan).figures if each.held is Held.MOMENTS)
        yield from _findings(_of_plan(plan, policy), plan.target, policy, held)


def unsplit_findings(plan: ShardingPlan) -> Iterator[Diagnostic]:
    """Yield the same for the arrays of a live state."""
    policy = plan.spec.state
    if policy is None or policy.optimizer == "same":
        return
    if not policy.over and plan.arrays and not state_axes(plan.spec, plan.mesh):
        yield _without_axes(plan.spec, policy)
        return
    failed = by_key(
        ((each.dims, each.param.dtype, each.split), each)
        for each in of_state(plan)
        if each.relation is Relation.SAME and each.split and each.split.has_failed
    )
    unsplit = (
        Unsplit(
            tuple(each.path for each in group),
            group[0].param,
            split,
            group[0].per_device_bytes * len(group),
        )
        for (_, _, split), group in failed.items()
    )
    held = plan.held_bytes
    yield from _findings(unsplit, plan.target, policy, held)


def _of_plan(plan: ShardingPlan, policy: StatePolicy) -> Iterator[Unsplit]:
    over = state_axes(plan.spec, plan.mesh)
    for group in plan.alike:
        split = split_further(group.dims, plan.mesh, over)
        if split.has_failed and group.dims:
            paths = tuple(sharding.param.path for sharding in group.shardings)
            size = array_bytes(group.shard_shape, policy.dtype) * policy.moments * len(paths)
            yield Unsplit(paths, group.first.param, split, size)


def _findings(
    unsplit: Iterable[Unsplit], target: Target, policy: StatePolicy, held: int
) -> Iterator[Diagnostic]:
    sizes = target.mesh.sizes
    for found in unsplit:
        ways = math.prod(sizes[axis] for axis in found.split.mesh_axes)
        if is_large(found.bytes * (ways - 1) // ways, held):
            yield _state_not_split_finding(found, target, policy, ways)


def _state_not_split_finding(
    found: Unsplit, target: Target, policy: StatePolicy, ways: int
) -> Diagnostic:
    sizes = target.mesh.sizes
    axes = " x ".join(f"{axis}={sizes[axis]}" for axis in found.split.mesh_axes)
    return point(
        codes.STATE_NOT_SPLIT,
        f"`{policy.optimizer}` cannot split the state of `{found.paths[0]}` {found.first} on target"
        f" `{target.name}`: {axes} divides no dimension",
        policy.span,
        "requested here",
        notes=(
            f"{described(found.paths)}: {binary_bytes(found.bytes)} of state per device, which"
            f" could be {binary_bytes(found.bytes / ways)}",
            f"a shard has {', '.join(map(_dim_text, found.split.dims))}; none splits {ways} ways",
        ),
        help=f"make one of them a multiple of {ways} (pad it), or name fewer mesh axes in"
        f" {quote.section('over:')}",
        target=target.name,
    )


def _dim_text(dim: DimSharding) -> str:
    unit = f" in units of {dim.unit}" if dim.unit > 1 else ""
    return f"{dim.logical_axis or '_'} {dim.shard_size}{unit}"


def _without_axes(spec: Spec, policy: StatePolicy) -> Diagnostic:
    has_rule = any(rule.logical_axis == BATCH for rule in spec.axis_rules)
    why = "no target has a mesh axis of its rules" if has_rule else "no rule places it"
    axis = spec.targets[0].mesh.names[0] if spec.targets and spec.targets[0].mesh.axes else "data"
    return point(
        codes.STATE_NOT_SPLIT,
        f"`{policy.optimizer}` shards nothing: it uses the mesh axes of `{BATCH}`, and {why}",
        policy.span,
        "requested here",
        notes=("all optimizer state is sharded like its parameters",),
        help=f"say which mesh axes see different data, as in {quote.word('over', axis, 'state ')}",
    )


# ambiguous-state


def ambiguous_state(plan: ShardingPlan) -> Iterator[Diagnostic]:
    """Yield a finding for each array of state with several readings, layers taken together."""
    groups: dict[object, tuple[ParamSharding, list[StateSharding]]] = {}
    for found in of_state(plan):
        if found.relation is Relation.AMBIGUOUS and found.owner is not None:
            key = (template(found.path), found.param.shape, found.owner.dims)
            groups.setdefault(key, (found.owner, []))[1].append(found)
    for owner, group in groups.values():
        yield _ambiguous_state_finding(group, owner)


def _ambiguous_state_finding(group: list[StateSharding], owner: ParamSharding) -> Diagnostic:
    first = group[0]
    shown = as_one(found.path for found in group)
    ways = " or ".join(_dropped(reading, owner) for reading in first.readings)
    size = sum(found.param.bytes for found in group)
    return point(
        codes.AMBIGUOUS_STATE,
        f"`{shown}` {first.param} may be `{owner.param.path}` {owner.param} {ways}",
        owner.named_at,
        "the parameter is named here" if owner.matched else "the parameter",
        notes=(
            f"{counted(len(group), 'array')}, {binary_bytes(size)} in all",
            *(_answer(reading, first, owner) for reading in first.readings),
        ),
        help=f"say which{quote.either(' in `overrides`', '')}: "
        + " or ".join(_entry(shown, reading, first, owner) for reading in first.readings),
    )


def _dropped(reading: Reading, owner: ParamSharding) -> str:
    gone = [dim for dim in range(owner.param.rank) if dim not in reading]
    return "without " + " and ".join(
        f"dim {dim} ({owner.dims[dim].logical_axis or '_'})" for dim in gone
    )


def _answer(reading: Reading, found: StateSharding, owner: ParamSharding) -> str:
    dims = read_dims(owner, found.param.shape, reading)
    spec = PartitionSpec(tuple(dim.mesh_axes for dim in dims))
    return f"{_dropped(reading, owner)}: {spec}"


def _entry(path: str, reading: Reading, found: StateSharding, owner: ParamSharding) -> str:
    """Return the override that would say that this reading is meant."""
    dims = read_dims(owner, found.param.shape, reading)
    if any(dim.logical_axis for dim in dims):
        return quote.override(path, " ".join(dim.logical_axis or "_" for dim in dims))
    return quote.override(path, spec=override_text(dim.mesh_axes for dim in dims))


# unrelated-state


def unrelated_state(plan: ShardingPlan) -> Iterator[Diagnostic]:
    """Yield one finding for all such state, if it is large."""
    found = [each for each in of_state(plan) if each.relation is Relation.UNRELATED]
    if not found or plan.mesh.device_count == 1:
        return
    allowed = allowed_paths(plan.spec, (each.path for each in found))
    found = [each for each in found if each.path not in allowed]
    if is_large(_bytes(found), plan.held_bytes):
        yield _unrelated_state_finding(found, plan.mesh)


def _unrelated_state_finding(found: Sequence[StateSharding], mesh: Mesh) -> Diagnostic:
    groups = grouped(found, lambda each: (template(each.path), str(each.param)))
    most = max(groups.values(), key=_bytes)
    first, owner = most[0], most[0].owner
    assert owner is not None, "state is unrelated to a parameter that it has"
    shown = as_one(each.path for each in most)
    size = _bytes(found)
    return point(
        codes.UNRELATED_STATE,
        f"`{shown}` {first.param} has no dimension of `{owner.param.path}` {owner.param},"
        " and is replicated on every device",
        owner.named_at,
        "the parameter is named here" if owner.matched else "the parameter",
        notes=(
            f"{counted(len(found), 'array')} of such state, {binary_bytes(size)} on each device",
            *largest((each.path, each.per_device_bytes) for each in found),
        ),
        help="; else ".join(
            filter(None, (_derivation(shown, first), _help(shown, first.dims, mesh)))
        ),
    )


def _derivation(path: str, state: StateSharding) -> str | None:
    """Return the entry of `derive:` for state with one dimension as long as one that is split."""
    owner = state.owner.dims if state.owner is not None else Dims()
    alike = [
        (at, place)
        for at, size in enumerate(state.param.shape)
        for place, dim in enumerate(owner)
        if dim.size == size and dim.mesh_axes
    ]
    if not alike or len({place for _, place in alike}) > 1:
        return None
    at, place = alike[0]
    dims = " ".join(str(place) if each == at else "_" for each in range(state.param.rank))
    entry = quote.pattern(path, f"dims {dims}")
    return f"if it goes with dim {place} of the parameter, add to `derive`: {entry}"


def _help(path: str, dims: Dims, mesh: Mesh) -> str:
    meant = f"allow what should be replicated under {quote.section('replicate:')}, with a reason"
    split = _split(dims, mesh)
    if split == dims:
        return f"no mesh axis divides it: {meant}"
    says = override_text(dim.mesh_axes for dim in split)
    entry = quote.override(path, spec=says)
    return f"say how it is sharded{quote.either(' in `overrides`', '')}, {entry}; {meant}"


def _split(dims: Dims, mesh: Mesh) -> Dims:
    """Return the dimensions split over all mesh axes, else over the largest that divides one."""
    by_size = sorted(mesh.axes, key=lambda axis: -axis.size)
    for axes in (mesh.names, *((axis.name,) for axis in by_size)):
        split = extra_axes(dims, mesh, axes)
        if split != dims:
            return split
    return dims


def _bytes(found: Sequence[StateSharding]) -> int:
    return sum(each.per_device_bytes for each in found)
