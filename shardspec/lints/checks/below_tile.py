"""A TPU pads the tiles of a shard, which loses most of what the sharding saves.

Memory of a TPU is handed out in tiles of 8 rows of 128 elements. The compiler lays two dimensions
of an array along them, those that waste least, and fills up the rest; an array with one dimension
of 128 and another of 8 loses nothing. Shard another dimension, or over fewer devices. Reported for
arrays of at least 64 KiB if the padding is half of a shard's bytes or more and is large; vectors
such as scales of norms are padded too, but cost little. Sizes are those of the compiler's own
layouts (v5e, v5p).

Bad:
    shardspec: 1
    hardware: tpu v5e 8x8
    mesh: {data: rest}
    axes: {embed: 4096}
    rules:
      - embed -> data
    arrays:
      "layers_{0..99}/expert_{0..15}/lora_a": f32[embed _=16 _=4]

Good:
    -mesh: {data: rest}
    +mesh: {data: 8, model: 8}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardspec.analysis.memory import LANES, SUBLANES, tiled_bytes
from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.words import binary_bytes, described, three_figures
from shardspec.ir.plan import Alike, ShardingPlan
from shardspec.ir.spec import Shape, array_bytes
from shardspec.lints.context import Context
from shardspec.lints.evidence.sizes import axis_sizes

_LEAST_ARRAY_BYTES = 1 << 16


class _Padded(NamedTuple):
    arrays: Alike
    tiled: int

    @property
    def waste(self) -> int:
        return (self.tiled - self.arrays.shard_bytes) * self.arrays.count


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for the arrays of one layout whose shards do not fill their tiles."""
    for plan in context.plans:
        hardware = plan.target.hardware
        if hardware is None or hardware.chip.platform != "tpu":
            continue
        for arrays in plan.alike:
            found = _padded(arrays)
            if found is not None and context.is_large(found.waste, plan.target.name):
                yield _finding(plan, found)


def _padded(arrays: Alike) -> _Padded | None:
    """Return how a shard is filled up, where that is by half or more and splitting did it."""
    if arrays.is_replicated or arrays.bytes < _LEAST_ARRAY_BYTES:
        return None
    if not _is_lossy(arrays, arrays.shard_shape):
        return None
    tiled = tiled_bytes(arrays.shard_shape, arrays.dtype)
    return None if tiled is None else _Padded(arrays, tiled)


def _is_lossy(arrays: Alike, shape: Shape) -> bool:
    """Say whether a shard of this shape is filled up by half more than the whole array is."""
    whole, shard = tiled_bytes(arrays.shape, arrays.dtype), tiled_bytes(shape, arrays.dtype)
    if not whole or not shard:
        return False
    return 2 * shard * arrays.bytes >= 3 * array_bytes(shape, arrays.dtype) * whole


def _finding(plan: ShardingPlan, found: _Padded) -> Diagnostic:
    arrays = found.arrays
    shard, dtype = arrays.shard_shape, arrays.dtype
    sharding = arrays.first
    times = three_figures(found.tiled / arrays.shard_bytes)
    return point(
        codes.BELOW_TILE,
        f"`{sharding.param.path}`: a shard {dtype}[{', '.join(map(str, shard))}] takes"
        f" {binary_bytes(found.tiled)} on target `{plan.target.name}`, {times} times its bytes",
        sharding.named_at,
        "named here" if sharding.matched else "this array",
        notes=(
            f"{described(arrays.paths)}; {binary_bytes(found.waste)} of padding per device in all",
            f"no two dimensions fill tiles of {SUBLANES} x {LANES}",
        ),
        help=_help(plan, found),
        target=plan.target.name,
    )


def _help(plan: ShardingPlan, found: _Padded) -> str:
    """Return sizes of a mesh axis at which the tiles are full enough, or else a general way."""
    sizes = plan.mesh.sizes
    for index, dim in enumerate(found.arrays.dims):
        for axis in dim.mesh_axes:
            others = dim.ways // sizes[axis]
            fitting = [
                size
                for size in axis_sizes(dim.size or 0, dim.unit, others)
                if size < sizes[axis]
                and sizes[axis] % size == 0
                and _fills(found.arrays, index, size * others)
            ]
            if fitting:
                return f"split dim {index} less: `{axis}` of {fitting[-1]} or less fills the tiles"
    return "split another dimension, or fewer ways: `AXIS -> none` for small arrays"


def _fills(arrays: Alike, index: int, ways: int) -> bool:
    """Say whether the shards would be full enough, with one dimension split so."""
    shape = arrays.shard_shape
    length = -(-arrays.shape[index] // ways)
    return not _is_lossy(arrays, (*shape[:index], length, *shape[index + 1 :]))
