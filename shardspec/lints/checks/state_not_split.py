"""ZeRO is on, but cannot shard the optimizer state of a large array.

`state: {optimizer: zero1}` puts further mesh axes on state, along the first dimension whose shard
they divide in whole units. Where they divide none, every device that differs only in its share of
the batch keeps the same moments, which is the memory that ZeRO was to save. Reported if the saving
would be large. Without `over:` and without a mesh axis for `batch`, it is all state.

Bad:
    shardspec: 1
    axes: {batch: 512}
    mesh: {data: 16}
    rules:
      - batch -> data
      - vocab, embed -> none
    state: {optimizer: zero1}
    replicate: [{path: "**", because: data parallel}]
    arrays:
      embedding: bf16[vocab=50257 embed=1600]
      lm_head: bf16[embed=1608 vocab=50257]

Good:
    -  lm_head: bf16[embed=1608 vocab=50257]
    +  lm_head: bf16[embed=1600 vocab=50257]
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from shardspec.analysis.coverage import is_large
from shardspec.analysis.memory import Held, memory
from shardspec.diagnostics import Diagnostic, codes, point, quote
from shardspec.diagnostics.words import binary_bytes, by_key, described
from shardspec.ir.plan import DimSharding, ShardingPlan
from shardspec.ir.spec import Param, Spec, StatePolicy, Target, array_bytes
from shardspec.lints.context import Context
from shardspec.resolve.state import BATCH, Relation, Split, of_state, split_further, state_axes


class Unsplit(NamedTuple):
    """State that ZeRO could not split, of arrays that are alike.

    Attributes:
      bytes: of all of it, on one device.
    """

    paths: tuple[str, ...]
    first: Param
    split: Split
    bytes: int


def check(context: Context) -> Iterator[Diagnostic]:
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


def findings(plan: ShardingPlan) -> Iterator[Diagnostic]:
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
            yield _finding(found, target, policy, ways)


def _finding(found: Unsplit, target: Target, policy: StatePolicy, ways: int) -> Diagnostic:
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
