"""One large array takes more than half of the memory that parameters and state use on a device.

Shard it over the mesh axis that the message names. The array is less than half of the model, but
the other arrays are sharded more, so it decides whether the model fits. Reported if a mesh axis
that it does not use would divide it, and if `replicate:` does not list it.

Bad:
    shardspec: 1
    mesh: {data: 8, model: 8}
    rules:
      - vocab -> model
      - mlp -> (model, data)
      - embed -> none
    arrays:
      embedding: bf16[vocab=32768 embed=4096]
      "layers_{0..7}/mlp/kernel": bf16[embed=4096 mlp=16384]

Good:
    -  - vocab -> model
    +  - vocab -> (model, data)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardspec.analysis.coverage import allowed_paths, is_large
from shardspec.diagnostics import Diagnostic, codes, point, quote
from shardspec.diagnostics.words import binary_bytes, listed, percent
from shardspec.ir.plan import Alike, ShardingPlan
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import one_axis_more


class _Heavy(NamedTuple):
    """One array on one target where it outweighs all others.

    Attributes:
      held: bytes that a device holds.
      total: bytes of the model.
      free: mesh axes that would divide it: axis, dimension, bytes of a shard then.
    """

    plan: ShardingPlan
    arrays: Alike
    held: int
    total: int
    free: tuple[tuple[str, int, int], ...]

    @property
    def share(self) -> float:
        """Return the share of a device's bytes."""
        return self.arrays.shard_bytes / self.held


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each array that outweighs all others, on the target where most."""
    found: dict[str, list[_Heavy]] = {}
    for plan in context.plans:
        groups = plan.alike
        held = sum(arrays.device_bytes for arrays in groups)
        total = sum(arrays.total_bytes for arrays in groups)
        for arrays in groups:
            is_most = 2 * arrays.shard_bytes > held and 2 * arrays.bytes < total
            if is_most and is_large(arrays.shard_bytes, held):
                free = tuple(one_axis_more(plan, arrays))
                if free and not _is_allowed(context, arrays):
                    heavy = _Heavy(plan, arrays, held, total, free)
                    found.setdefault(arrays.first.param.path, []).append(heavy)
    for targets in found.values():
        yield _finding(sorted(targets, key=lambda heavy: -heavy.share))


def _is_allowed(context: Context, arrays: Alike) -> bool:
    """Say whether the array is whole, and an entry of `replicate:` allows that."""
    path = arrays.first.param.path
    return arrays.is_replicated and path in allowed_paths(context.spec, [path])


def _finding(targets: Sequence[_Heavy]) -> Diagnostic:
    plan, arrays, held, total, free = targets[0]
    sharding = arrays.first
    axis, dim, then = min(free, key=lambda option: option[2])
    name = arrays.dims[dim].logical_axis or f"dim {dim}"
    return point(
        codes.DOMINANT_ARRAY,
        f"`{sharding.param.path}` {sharding.param} is {percent(arrays.bytes, total)} of the model,"
        f" and {percent(arrays.shard_bytes, held)} of what a device of target"
        f" `{plan.target.name}` holds",
        sharding.named_at,
        "named here" if sharding.matched else "this array",
        notes=(
            f"{binary_bytes(arrays.shard_bytes)} of {binary_bytes(held)} per device, as"
            f" {sharding.partition_spec}",
            f"not in use, and dividing it: {listed(option[0] for option in free)}",
            *_others(targets[1:]),
        ),
        help=f"split `{name}` over `{axis}` as well: {binary_bytes(then)} per device"
        + f"; or say under {quote.section('replicate:')} that it should be replicated"
        * arrays.is_replicated,
        target=plan.target.name if len(targets) == 1 else None,
        arrays=arrays.paths,
        bytes=arrays.device_bytes,
    )


def _others(targets: Sequence[_Heavy]) -> tuple[str, ...]:
    shares = (
        f"{percent(heavy.arrays.shard_bytes, heavy.held)} on `{heavy.plan.target.name}`"
        for heavy in targets
    )
    return (f"also {', '.join(shares)}",) if targets else ()
