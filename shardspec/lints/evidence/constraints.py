"""Constraints that help proposes, in the words that code can use as they stand.

A partition such as `P('fsdp', None)` needs a mesh around it, and inside of `jax.vmap` it has a
dimension too many. The names of logical axes need neither. So help has names wherever the rules of
the spec give the layout that is wanted, and the partition only where they do not.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import islice, product

from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import AxisRule, PartitionSpec, Shape
from shardspec.ir.step import Step, rows_of
from shardspec.resolve.resolver import array_resolver

#: Combinations of names that are tried for one layout.
_MOST_NAMES = 64


def batch_rules(plan: ShardingPlan) -> list[AxisRule]:
    """Return the rules of a spec that place a batch."""
    return [rule for rule in plan.spec.axis_rules if "batch" in rule.logical_axis]


def constraint(
    plan: ShardingPlan, shape: Shape, split: PartitionSpec, vmaps: int = 0, value: str = "x"
) -> str:
    """Return the call that gives a value a layout: `shardspec.constrain(x, "batch _ _")`.

    Where no names have it, `jax.lax.with_sharding_constraint` with the partition.

    Args:
      vmaps: how many `jax.vmap` are around the line, each with its dimension in front.
    """
    names = names_of(plan, shape, split)
    if names is None:
        sharding = f"NamedSharding(resolver.mesh, {split})"
        return f"`jax.lax.with_sharding_constraint({value}, {sharding})`"
    seen, mapped = names[vmaps:], " ".join(names[:vmaps])
    outer = f', mapped="{mapped}"' if mapped else ""
    return f'`shardspec.constrain({value}, "{" ".join(seen) or "_"}"{outer})`'


def names_of(plan: ShardingPlan, shape: Shape, split: PartitionSpec) -> tuple[str, ...] | None:
    """Return the names, one a dimension, that rules give a layout; `_` where nothing shards it."""
    resolver = array_resolver(plan.spec, plan.target)
    known = _sizes_of(plan) if split.mesh_axes else {}
    options = [
        list(_options(plan, known, size, axes)) if axes else ["_"]
        for size, axes in zip(shape, split.dims, strict=True)
    ]
    for names in islice(product(*options), _MOST_NAMES):
        dims = resolver.dims(shape, tuple(None if name == "_" else name for name in names))
        own = [name for name in names if name != "_"]
        if len({*own}) == len(own) and tuple(dim.mesh_axes for dim in dims) == split.dims:
            return names
    return None


def _sizes_of(plan: ShardingPlan) -> dict[str, set[int]]:
    """Return how long each logical axis is: as stated, or in the arrays that have it."""
    known: dict[str, set[int]] = {}
    for alike in plan.alike:  # of ten thousand arrays there are few kinds
        for dim in alike.dims:
            if dim.logical_axis is not None and dim.size is not None:
                known.setdefault(dim.logical_axis, set()).add(dim.size)
    return known | {each.name: {each.size} for each in plan.spec.logical_axes if each.size}


def _options(
    plan: ShardingPlan, known: Mapping[str, set[int]], size: int, axes: tuple[str, ...]
) -> Iterator[str]:
    """Yield the names that rules shard over these mesh axes: first those of just this size."""
    rules = [rule for rule in plan.spec.axis_rules if {*axes} <= {*rule.mesh_axes}]
    names = dict.fromkeys(rule.logical_axis for rule in rules)
    fitting = [name for name in names if size in known.get(name, {size}) or "batch" in name]
    yield from sorted(fitting, key=lambda name: size not in known.get(name, ()))


def without(split: PartitionSpec, axes: Container[str]) -> PartitionSpec:
    """Return a layout without some mesh axes."""
    return PartitionSpec(
        tuple(tuple(axis for axis in own if axis not in axes) for own in split.dims)
    )


def with_rows(
    plan: ShardingPlan, step: Step, shape: Shape, split: PartitionSpec, axes: Iterable[str]
) -> PartitionSpec | None:
    """Return a layout whose rows of a batch are sharded as a rule says, which names mesh axes.

    None where no dimension has the rows, and where the rule's axes are taken or do not divide them.
    """
    counts = rows_of(each for each in step.arguments if not each.is_guess)
    at = next((at for at, size in enumerate(shape) if size in counts), None)
    return None if at is None else with_batch(plan, shape, split, at, axes)


def with_batch(
    plan: ShardingPlan, shape: Shape, split: PartitionSpec, at: int, axes: Iterable[str]
) -> PartitionSpec | None:
    """Return a layout with one dimension sharded as the rule of the batch that has mesh axes."""
    others = {axis for dim, own in enumerate(split.dims) if dim != at for axis in own}
    for rule in batch_rules(plan):
        own = tuple(axis for axis in rule.mesh_axes if axis in plan.mesh.sizes)
        is_free = {*axes, *split.dims[at]} <= {*own} and others.isdisjoint(own)
        if is_free and shape[at] % plan.mesh.ways(own) == 0:
            return PartitionSpec((*split.dims[:at], own, *split.dims[at + 1 :]))
    return None
