"""What the surroundings of an array allow, and a sharding constraint that does that.

JAX has three kinds of mesh axis. Under automatic axes a constraint is a hint that XLA obeys,
under explicit ones the array is resharded, and along manual ones (inside `shard_map`) the code
already sees its own shard, and nothing is left to do. One mesh may mix all three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardspec.jax_backend.mesh import is_abstract, need_devices

if TYPE_CHECKING:
    import jax

NOTHING: frozenset[str] = frozenset()


def surroundings(x: Any, own: Any) -> Any:
    """Return the mesh in force around `x`: `own`, or one of the same axes and other types.

    Inside `jax.shard_map`, `jax.set_mesh`, or where `x` lies on explicit axes, that mesh decides
    what kind each axis is. A mesh of other axes around us is not ours, and counts for nothing.

    Raises:
      ValueError: code runs inside `shard_map` over a mesh of other axes, where ours means nothing.
    """
    import jax

    mesh: Any = jax.sharding.get_abstract_mesh()
    if not mesh.empty:
        if _same_axes(mesh, own):
            return own if mesh.axis_types == own.axis_types and not mesh.manual_axes else mesh
        if mesh.manual_axes:
            raise ValueError(
                f"constrain() for the mesh {_sizes(own)} inside shard_map over {_sizes(mesh)}: "
                "call it outside, or give shard_map the resolver's mesh"
            )
    mesh = jax.typeof(x).sharding.mesh
    if mesh.empty or mesh.axis_types == own.axis_types or not _same_axes(mesh, own):
        return own
    return mesh


def context(x: Any) -> Any:
    """Return the mesh of `jax.set_mesh` around us, with its devices where nothing is traced."""
    import jax

    mesh: Any = jax.sharding.get_abstract_mesh()
    if mesh.empty or _is_traced(x):
        return mesh
    devices: Any = jax.sharding.get_mesh()
    return mesh if devices.empty else devices


def _is_traced(x: Any) -> bool:
    """Say whether a constraint on `x` is traced; under jit, one on a constant is, too."""
    import jax

    if isinstance(x, jax.core.Tracer):
        return True
    try:
        jax.sharding.get_mesh()
    except ValueError:  # refused wherever something is traced
        return True
    return False


def manual_axes(mesh: Any, own: Any) -> frozenset[str]:
    """Return the axes of the surroundings along which code sees one shard only."""
    return NOTHING if mesh is own else frozenset(mesh.manual_axes)


def constrained(x: jax.Array, sharding: jax.sharding.NamedSharding, mesh: Any = None) -> jax.Array:
    """Return `x` laid out as `sharding` says, as far as its mesh axes are not manual.

    Args:
      mesh: the surroundings; None to look for them.
    """
    import jax

    if mesh is None:
        mesh = surroundings(x, sharding.mesh)
    types: Any = jax.sharding.AxisType
    kinds: tuple[Any, ...] = mesh.axis_types
    if is_abstract(sharding.mesh) and not _is_traced(x):
        need_devices(sharding.mesh, "constrain() outside of jit")
    if kinds.count(types.Auto) == len(kinds):
        return _constraint(x, sharding if mesh is sharding.mesh else _named(mesh, sharding.spec))
    if kinds.count(types.Manual) == len(kinds):
        return x
    is_outside = mesh is sharding.mesh and not _is_manual_here(mesh)
    if is_outside and types.Manual in kinds:
        return constrained(x, _without_manual(sharding))
    if types.Explicit in kinds:
        return _explicit(x, sharding, mesh)
    return _constraint(x, _along(mesh, sharding.spec, types.Auto))


def _explicit(x: jax.Array, sharding: jax.sharding.NamedSharding, mesh: Any) -> jax.Array:
    """Return `x` resharded along explicit axes, and constrained along those that are automatic."""
    import jax

    types: Any = jax.sharding.AxisType
    reshard: Any = jax.sharding.reshard
    is_mixed = types.Auto in mesh.axis_types
    part = _along(mesh, sharding.spec, types.Explicit)
    if not is_mixed and mesh is sharding.mesh and _has_no_mesh(x):
        # What is typed with a mesh does not say on which devices; a constraint does.
        x = _constraint(x, _named(_automatic(mesh), sharding.spec))
    resharded: jax.Array = reshard(x, part)
    if not is_mixed:
        return resharded
    if not isinstance(resharded, jax.core.Tracer):
        # In eager code a constraint forgets what the array's type says.
        spec: Any = jax.sharding.PartitionSpec
        closed = spec(*(None if _is_open(entry) else entry for entry in sharding.spec))
        placed: jax.Array = jax.device_put(x, _named(sharding.mesh, closed))
        return placed
    return _constraint(resharded, _along(mesh, sharding.spec, types.Auto))


def _constraint(x: jax.Array, sharding: Any) -> jax.Array:
    import jax

    constraint: Any = jax.lax.with_sharding_constraint
    result: jax.Array = constraint(x, sharding)
    return result


def _has_no_mesh(x: Any) -> bool:
    """Say whether neither the type of a traced array nor the surroundings have a mesh."""
    import jax

    around: Any = jax.sharding.get_abstract_mesh()
    traced = isinstance(x, jax.core.Tracer)
    return traced and bool(around.empty) and bool(jax.typeof(x).sharding.mesh.empty)


def _automatic(mesh: Any) -> Any:
    """Return the same mesh with all axes automatic."""
    import jax

    return retyped(mesh, (jax.sharding.AxisType.Auto,) * len(mesh.axis_names))


def retyped(mesh: Any, types: tuple[Any, ...]) -> Any:
    """Return the same mesh, of devices or abstract, with other axis types."""
    import jax

    if isinstance(mesh, jax.sharding.AbstractMesh):
        return jax.sharding.AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=types)
    return jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=types)


def _is_manual_here(mesh: Any) -> bool:
    """Say whether this is the mesh that code inside `shard_map` sees."""
    import jax

    around: Any = jax.sharding.get_abstract_mesh()
    return not around.empty and bool(around.manual_axes) and _same_axes(around, mesh)


def _without_manual(sharding: jax.sharding.NamedSharding) -> Any:
    """Return a sharding for code outside of `shard_map`, where no axis is manual yet.

    A dimension that only manual axes split is left to whoever splits it.
    """
    import jax

    types: Any = jax.sharding.AxisType
    mesh: Any = sharding.mesh
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    entries = []
    for entry in sharding.spec:
        names = _names(entry)
        kept = tuple(name for name in names if kinds[name] != types.Manual)
        is_open = bool(names) and not kept
        entries.append(jax.sharding.PartitionSpec.UNCONSTRAINED if is_open else kept or None)
    usual = tuple(types.Auto if kind == types.Manual else kind for kind in mesh.axis_types)
    spec: Any = jax.sharding.PartitionSpec
    return _named(retyped(mesh, usual), spec(*entries))


def _along(mesh: Any, spec: Any, kind: Any) -> Any:
    """Return the part of a sharding that is along mesh axes of one kind."""
    import jax

    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    axes = {name for name, found in kinds if found == kind}
    is_auto = kind == jax.sharding.AxisType.Auto
    kept = [
        entry
        if _is_open(entry) and is_auto
        else tuple(n for n in _names(entry) if n in axes) or None
        for entry in spec
    ]
    partition_spec: Any = jax.sharding.PartitionSpec
    return _named(mesh, partition_spec(*kept))


def _is_open(entry: Any) -> bool:
    import jax

    return entry is jax.sharding.PartitionSpec.UNCONSTRAINED


def _named(mesh: Any, spec: Any) -> Any:
    import jax

    return jax.sharding.NamedSharding(mesh, spec)


def _names(entry: Any) -> tuple[str, ...]:
    """Return the mesh axes in one entry of a `PartitionSpec`."""
    if isinstance(entry, str):
        return (entry,)
    return entry if isinstance(entry, tuple) else ()


def _same_axes(mesh: Any, own: Any) -> bool:
    return bool(mesh.axis_names == own.axis_names and mesh.axis_sizes == own.axis_sizes)


def _sizes(mesh: Any) -> str:
    return " ".join(f"{name}={size}" for name, size in dict(mesh.shape).items())
