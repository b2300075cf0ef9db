"""ZeRO: optimizer state split further than its parameter, over mesh axes that only see data.

Devices that differ in their share of the batch alone hold the same parameters, and would all
keep the same moments. Each of them can keep a part instead. The extra mesh axes come last on
the dimension they split, the most minor ones, so a device's part of the state lies inside its
own shard of the parameter, and nothing but that shard has to move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from shardspec.ir.plan import Attempt, Dims, DimSharding, Kind, Outcome, divides
from shardspec.ir.spec import Mesh, Spec

#: The logical axis whose mesh axes see different data.
BATCH = "batch"


class Split(NamedTuple):
    """One array split further, or not.

    Attributes:
      mesh_axes: those that the array had left to use; `()` where it is split by all already.
      dim: the dimension that took them, None where none did.
    """

    dims: Dims
    mesh_axes: tuple[str, ...] = ()
    dim: int | None = None

    @property
    def has_failed(self) -> bool:
        """Say whether mesh axes were left and no dimension is divided by them."""
        return bool(self.mesh_axes) and self.dim is None


def extra_axes(dims: Dims, mesh: Mesh, over: Sequence[str]) -> Dims:
    """Return `dims` with the mesh axes `over` on the first dimension they divide.

    Mesh axes that the array uses already, that split nothing or that the mesh lacks are left
    out; the others go together or not at all. Where no dimension is divided by them, in whole
    units and on top of what splits it, `dims` come back as they were.

    Invariants:
      once, divides: as for parameters.
      inside: every shard lies in the shard of `dims` on the same device.
      idempotent: a second time changes nothing.
    """
    return split_further(dims, mesh, over).dims


def split_further(dims: Dims, mesh: Mesh, over: Sequence[str]) -> Split:
    """Return what `extra_axes` makes of `dims`, and why."""
    sizes = mesh.sizes
    used = {axis for dim in dims for axis in dim.mesh_axes}
    free = tuple(
        axis for axis in dict.fromkeys(over) if sizes.get(axis, 1) > 1 and axis not in used
    )
    if not free:
        return Split(dims)
    extra = math.prod(sizes[axis] for axis in free)
    for index, dim in enumerate(dims):
        if dim.size is None or divides(dim.ways * extra, dim.size, dim.unit):
            wider = _split(dim, free, extra)
            return Split(Dims((*dims[:index], wider, *dims[index + 1 :])), free, index)
    return Split(dims, free)


def _split(dim: DimSharding, extra: tuple[str, ...], ways: int) -> DimSharding:
    """Return `dim` with more mesh axes on it, behind those that were added before."""
    tried, before = dim.attempts, dim.added
    if before is not None:
        tried, extra, ways = tried[:-1], before.mesh_axes + extra, before.ways * ways
    added = Attempt(Kind.ZERO, 0, extra, extra, Outcome.ADDED, ways)
    return replace(dim, attempts=(*tried, added))


def state_axes(spec: Spec, mesh: Mesh) -> tuple[str, ...]:
    """Return the mesh axes over which the spec's `state:` splits further on this mesh.

    `()` where state is laid out as its parameter, or where the mesh has none of the axes. Without
    `over:` they are those of the first rule of `batch` that has any of this mesh.
    """
    policy = spec.state
    if policy is None or policy.optimizer == "same":
        return ()
    of_batch = (rule.mesh_axes for rule in spec.axis_rules if rule.logical_axis == BATCH)
    for wanted in (policy.over,) if policy.over else of_batch:
        present = tuple(axis for axis in wanted if axis in mesh.sizes)
        if present:
            return present
    return ()
