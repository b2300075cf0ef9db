"""Some devices hold notably more than others, because dimensions are padded.

A dimension of 9 over 8 devices is 2 on four of them, 1 on one, and nothing on three: all wait
for the first, and its memory is the limit. JAX refuses such arrays, and SHD301 says so as an
error; this is for those who fill up the arrays themselves, under `policy: {indivisible: keep}`
with SHD301 allowed or a warning. Notably is a tenth of the first device's bytes.

Bad:
    shardspec: 1
    mesh: {tensor: 8}
    policy: {indivisible: keep}
    lints: {indivisible: allow}
    rules:
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=4096 mlp=9]

Good:
    -  mlp/kernel: bf16[_=4096 mlp=9]
    +  mlp/kernel: bf16[_=4096 mlp=1023]
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import binary_bytes, counted
from shardspec.ir.plan import Alike, DimSharding, ShardingPlan
from shardspec.ir.spec import array_bytes
from shardspec.lints.context import Context
from shardspec.lints.evidence.sizes import near_multiples

_NOTABLE = 10


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each target whose first device holds notably more than its last."""
    if context.spec.policy.indivisible != "keep":
        return
    for plan in context.plans:
        groups = plan.alike
        most = sum(arrays.device_bytes for arrays in groups)
        least = sum(last_bytes(arrays) * arrays.count for arrays in groups)
        if _NOTABLE * (most - least) >= most > 0:
            yield _finding(plan, groups, most, least)


def last_bytes(arrays: Alike) -> int:
    """Return the bytes of the last shard: the first is the longest in every dimension."""
    return array_bytes(tuple(map(_last_size, arrays.dims)), arrays.dtype)


def _last_size(dim: DimSharding) -> int:
    size, longest = dim.size or 0, dim.shard_size or 0
    return max(0, size - longest * (dim.ways - 1))


def _finding(plan: ShardingPlan, groups: tuple[Alike, ...], most: int, least: int) -> Diagnostic:
    worst = max(groups, key=lambda arrays: (arrays.shard_bytes - last_bytes(arrays)) * arrays.count)
    dim = max(worst.dims, key=lambda dim: (dim.shard_size or 0) - _last_size(dim))
    name = dim.logical_axis or "the dimension"
    return Diagnostic(
        codes.UNEVEN_LOAD,
        f"the first device of target `{plan.target.name}` holds {binary_bytes(most)}, the last"
        f" {binary_bytes(least)}",
        labels_at((dim.taken.span if dim.taken else None, "splits unevenly")),
        notes=(
            f"`{worst.first.param.path}` {worst.first.param}: {_lengths(dim)}",
            f"{counted(_uneven(groups), 'array')} of {len(plan.arrays)} uneven",
        ),
        help=f"{name} = {' or '.join(map(str, near_multiples(dim.size or 0, dim.ways * dim.unit)))}"
        " would be even; or split it over fewer devices",
        target=plan.target.name,
    )


def _uneven(groups: tuple[Alike, ...]) -> int:
    return sum(arrays.count for arrays in groups if not all(dim.is_even for dim in arrays.dims))


def _lengths(dim: DimSharding) -> str:
    """Return "9 over 8 is 2 on 4 devices in 8, and 3 have nothing"."""
    size, longest = dim.size or 0, dim.shard_size or 0
    full = size // longest if longest else 0
    empty = dim.ways - math.ceil(size / longest) if longest else dim.ways
    text = f"{size} over {dim.ways} is {longest} in each of the first {full}"
    return f"{text}, and nothing in the last {empty}" if empty else text
