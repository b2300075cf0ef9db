"""A target replicates a large array that others shard over the same mesh axes.

Its sizes do not divide on this target, and the `none` of the rule allows that. A `none` that was
written for one machine can hide the cost on another. Not reported if the mesh lacks the axes.
SHD301 and SHD401 report other reasons.

Bad:
    shardspec: 1
    targets:
      small: {mesh: {data: 4, tensor: 8}}
      large: {mesh: {data: 4, tensor: 16}}
    rules:
      - embed, kv -> none
      - kv_heads -> tensor | none
    arrays:
      attention/key: bf16[embed=16384 kv_heads=8 kv=128]

Good:
    -  - kv_heads -> tensor | none
    +  - kv_heads -> tensor | data | none
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, codes, labels_at, quote
from shardspec.diagnostics.words import binary_bytes, described, percent
from shardspec.ir.plan import Alike, Attempt, DimSharding, Outcome, ShardingPlan
from shardspec.ir.spec import target_text
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import would_divide


class _Split(NamedTuple):
    """Arrays on a target that splits them."""

    target: str
    arrays: Alike


class _Why(NamedTuple):
    """The dimension that its mesh axes do not divide, and the `none` behind them."""

    dim: DimSharding
    refused: Attempt
    ended: Attempt


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each large array that is whole on this target, for its size alone."""
    split = {
        (arrays.first.param.path, arrays.first.param.shape): _Split(plan.target.name, arrays)
        for plan in reversed(context.plans)
        for arrays in plan.alike
        if not arrays.is_replicated
    }
    for plan in context.plans:
        for arrays in plan.alike:
            other = split.get((arrays.first.param.path, arrays.first.param.shape))
            is_large = context.is_large(arrays.total_bytes, plan.target.name)
            if other and is_large and arrays.is_replicated:
                why = _why(arrays, other.arrays)
                if why is not None:
                    yield _finding(plan, arrays, why, other)


def _why(here: Alike, there: Alike) -> _Why | None:
    """Return why arrays are whole that the same mesh axes split elsewhere, if by `none`."""
    for dim, other in zip(here.dims, there.dims, strict=True):
        refused, ended = dim.first_of(Outcome.INDIVISIBLE), dim.taken
        if refused is None or ended is None or not ended.is_none:
            continue
        if set(other.mesh_axes) & set(refused.mesh_axes):
            return _Why(dim, refused, ended)
    return None


def _finding(plan: ShardingPlan, arrays: Alike, why: _Why, other: _Split) -> Diagnostic:
    here, there = arrays.total_bytes, other.arrays.device_bytes
    total = sum(group.total_bytes for group in plan.alike)
    refused, ended = why.refused, why.ended
    return Diagnostic(
        codes.REPLICATED_HERE,
        f"`{arrays.paths[0]}` {arrays.first.param} is replicated on target `{plan.target.name}`"
        f" and sharded {other.arrays.first.shard_count} ways on `{other.target}`",
        labels_at(
            (ended.span, "so it is replicated"),
            (refused.span, f"{refused.ways} does not divide {why.dim.size}"),
        ),
        notes=(
            f"{described(arrays.paths)}; {binary_bytes(here)} per device, {percent(here, total)}"
            f" of the model, and {binary_bytes(there)} on `{other.target}`",
        ),
        help=_help(plan, why),
        target=plan.target.name,
    )


def _help(plan: ShardingPlan, why: _Why) -> str:
    sizes = plan.mesh.sizes
    fitting = next((axis for axis in sizes if would_divide(sizes[axis], why.dim)), None)
    if fitting is None:
        return f"if that is intended, {quote.setting('lints', ('replicated-here', 'allow'))}"
    wider = f"{target_text(why.refused.mesh_axes)} | {fitting} | none"
    return f"`{why.dim.logical_axis} -> {wider}` splits it here as well"
