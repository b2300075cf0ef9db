"""Flax Linen's partitioning functions by their own names, answered by our own stages.

One changed import moves a code base over: `from shardspec.compat import flax as partitioning`
for `from flax.linen import partitioning`. What resolves names is ours and needs no Flax. What
belongs to Flax's modules and scopes (`param_with_axes`, `scan_with_axes`, `AxisMetadata`, the
context `axis_rules`, ...) is handed on from Flax itself.
"""

from __future__ import annotations

from typing import Any

from shardspec.compat.flax.constraint import RulesFallback, with_logical_constraint
from shardspec.compat.flax.resolver import (
    UNASSIGNED,
    Unassigned,
    logical_to_mesh,
    logical_to_mesh_axes,
    logical_to_mesh_sharding,
    logical_to_mesh_values,
)
from shardspec.jax_backend.extras import required

with_sharding_constraint = with_logical_constraint
_logical_to_mesh_axes = logical_to_mesh_values

__all__ = [
    "UNASSIGNED",
    "RulesFallback",
    "Unassigned",
    "_logical_to_mesh_axes",
    "logical_to_mesh",
    "logical_to_mesh_axes",
    "logical_to_mesh_sharding",
    "logical_to_mesh_values",
    "with_logical_constraint",
    "with_sharding_constraint",
]

#: Where Flax keeps the names that are handed on.
_HOMES = ("flax.linen.partitioning", "flax.linen.spmd", "flax.linen")


def __getattr__(name: str) -> Any:
    """Return a name of Flax's that has nothing to resolve."""
    if not name.startswith("_"):
        for home in _HOMES:
            module = required(home, extra="flax", for_what=f"`shardspec.compat.flax.{name}`")
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'shardspec.compat.flax' has no attribute '{name}'")
