"""A sharding constraint that does what the surroundings allow.

JAX has three kinds of mesh axis. Under automatic axes a constraint is a hint that XLA obeys,
under explicit ones the array is resharded, and along manual ones (inside `shard_map`) the code
already sees its own shard, and nothing is left to do. One mesh may mix all three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax


def constrained(x: jax.Array, sharding: jax.sharding.NamedSharding) -> jax.Array:
    """Return `x` laid out as `sharding` says, as far as its mesh axes are not manual.

    The mesh of the surroundings decides what kind each axis is, if it has the same axes:
    inside `shard_map` or `jax.set_mesh`, or where `x` lies on explicit axes. Else the mesh of
    `sharding` does, which needs no context.
    """
    import jax

    constraint: Any = jax.lax.with_sharding_constraint
    reshard: Any = jax.sharding.reshard
    mesh = _surroundings(x, sharding.mesh)
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    present = set(kinds.values())
    explicit, auto = jax.sharding.AxisType.Explicit, jax.sharding.AxisType.Auto
    if present == {auto}:
        return _placed(constraint, x, mesh, sharding.spec)
    if explicit in present:
        part = _along(sharding.spec, {axis for axis, kind in kinds.items() if kind == explicit})
        x = _placed(reshard, x, mesh, part)
    if auto in present:
        part = _along(sharding.spec, {axis for axis, kind in kinds.items() if kind == auto})
        x = _placed(constraint, x, mesh, part)
    return x


def _placed(verb: Any, x: jax.Array, mesh: Any, spec: Any) -> jax.Array:
    import jax

    result: jax.Array = verb(x, jax.sharding.NamedSharding(mesh, spec))
    return result


def _surroundings(x: Any, own: Any) -> Any:
    """Return the mesh in force around `x`, or `own` where none is, or one of other axes."""
    import jax

    for mesh in (jax.sharding.get_abstract_mesh(), jax.typeof(x).sharding.mesh):
        if not mesh.empty and dict(mesh.shape) == dict(own.shape):
            return own if mesh.axis_types == own.axis_types else mesh
    return own


def _along(spec: Any, axes: set[str]) -> Any:
    """Return `spec` with only the mesh axes in `axes`."""
    import jax

    kept = []
    for entry in spec:
        names = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
        kept.append(tuple(name for name in names if name in axes) or None)
    partition_spec: Any = jax.sharding.PartitionSpec
    return partition_spec(*kept)
