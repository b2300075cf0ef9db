"""A submesh does not tile the slice.

One copy of the model takes a tile of (x, y, z, core). Unless every number divides the slice in
that dimension, some chips belong to no tile, or a tile wraps around and its collectives cross
chips of another. Several submeshes share the slice: along each dimension, the product of theirs
has to divide it. The tiles of the same size that do fit are listed.

Bad:
    shardspec: 1
    hardware: tpu v4 4x4x8
    mesh: {data: rest, model: submesh 3x2x2x1}
    rules:
      - mlp -> model
    arrays:
      mlp/kernel: bf16[_=64 mlp=96]

Good:
    -mesh: {data: rest, model: submesh 3x2x2x1}
    +mesh: {data: rest, model: submesh 2x2x2x1}
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic
from shardspec.lints.context import Context


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield why a mesh whose sizes are right cannot be laid on its hardware.

    What a submesh gets wrong by itself is said where sizes are read; this is about the mesh as
    a whole.
    """
    for target in (plan.target for plan in context.all_plans):
        asks = any(axis.submesh is not None or axis.auto for axis in target.mesh.axes)
        if target.hardware is None or not target.is_sound or not asks:
            continue
        from shardspec.topology.placement import place

        fault = place(target)
        if isinstance(fault, Diagnostic):
            yield fault
