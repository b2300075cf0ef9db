"""A shard would hold the end of one part of a fused axis and the beginning of the next.

Query, key and value in one array stand one behind the other: 4096, 1024 and 1024 over 8 is 768, so
the sixth shard ends in the first keys. Code that takes the parts apart then moves data between
devices on every step. A rule does not fire where it would cut across parts; under
`policy: {indivisible: keep}` it does.

Most checkpoints can be laid out group by group instead: each shard has the queries, keys and values
of its own heads. Where the array is, `interleaved: true` says so, and then each part has to divide.
A split at the borders of parts is none across them, and has no finding; but it puts gate and up of
an MLP on different devices, and what multiplies the two still moves one of them.

Bad:
    shardspec: 1
    mesh: {data: 2, tensor: 8}
    axes:
      qkv: {parts: {q: 32 * 64, k: 8 * 64, v: 8 * 64}, unit: 64}
    rules:
      - embed -> data
      - qkv -> tensor
    arrays:
      attention/qkv: bf16[embed=64 qkv]

Good:
    -  qkv: {parts: {q: 32 * 64, k: 8 * 64, v: 8 * 64}, unit: 64}
    +  qkv: {parts: {q: 32 * 64, k: 8 * 64, v: 8 * 64}, unit: 64, interleaved: true}
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise

from shardspec.diagnostics import Diagnostic, codes
from shardspec.ir.spec import Parts
from shardspec.lints.context import Context
from shardspec.lints.evidence.sizes import AxisCase, finding, uneven

#: Shards that are named.
_SHOWN = 3


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each fused axis whose parts a rule would cut across."""
    for found in uneven(context):
        if found.cuts_parts:
            axis = context.axes.get(found.case.axis)
            parts = None if axis is None else axis.parts
            yield finding(context, codes.CUT_PART, found, _message(found.case, parts))


def _message(case: AxisCase, parts: Parts | None) -> str:
    shard = case.size // case.ways
    head = f"`{case.axis}` = {case.size} over {case.mesh_text} is {shard}"
    cut = list(_cut(parts, shard)) if parts is not None and parts.size == case.size else []
    more = f" and {len(cut) - _SHOWN} more" if len(cut) > _SHOWN else ""
    shown = "; ".join(cut[:_SHOWN])
    return f"{head}{': ' if cut else ''}{shown}{more}, on {case.targets_text}"


def _cut(parts: Parts, shard: int) -> Iterator[str]:
    """Yield each shard with pieces of two parts: "shard 5 has the end of `q` and of `k` ..."."""
    ends = accumulate(size for _, size in parts.sizes)
    for ((left, _), (right, _)), end in zip(pairwise(parts.sizes), ends, strict=False):
        if end % shard:
            yield f"shard {end // shard} has the end of `{left}` and the beginning of `{right}`"
