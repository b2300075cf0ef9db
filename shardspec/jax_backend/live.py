"""What a program really holds, held against the plan: live arrays, and the lock beside the spec."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardspec import pipeline
from shardspec.analysis.layout_diff import diff_layouts
from shardspec.analysis.layouts import target_layout
from shardspec.diagnostics import Diagnostic, ShardspecError
from shardspec.diagnostics.codes import WRONG_TYPE
from shardspec.diagnostics.render import render_all
from shardspec.diagnostics.suggest import listed
from shardspec.ir.layout import Layout
from shardspec.ir.param import array_bytes
from shardspec.ir.partition import PartitionSpec
from shardspec.ir.plan import Dims, ParamSharding, ShardingPlan
from shardspec.ir.spec import Spec
from shardspec.jax_backend.answers import partition_entries
from shardspec.jax_backend.arguments import UNUSABLE, kind_of, refuse_unusable, unreduced_axes
from shardspec.jax_backend.arrays import leaves_of
from shardspec.lints import lock_differs, sharding_differs
from shardspec.lints.sharding_differs import Cause, Differing
from shardspec.lock.lock_file import LockFile, find_lock
from shardspec.versions import LANGUAGE

if TYPE_CHECKING:
    import jax


class LockWarning(UserWarning):
    """The lock beside a spec cannot be relied on: it is stale, or cannot be read."""


@dataclass(frozen=True, slots=True)
class LivePlan:
    """A plan on the devices where its arrays should be.

    Attributes:
      memory_kinds: the memories in which they may be, beside the one that the devices compute in.
    """

    plan: ShardingPlan
    mesh: jax.sharding.Mesh
    memory_kinds: frozenset[str] = frozenset()

    def differing(self, tree: Any) -> Iterator[Differing]:
        """Yield each live array of the tree that lies otherwise than planned.

        Args:
          tree: what the plan was made of. Numbers, NumPy's scalars, and scalars that nothing has
            placed go wherever they are needed, and are fine.

        Raises:
          ShardspecError: a leaf is an abstract array without a sharding, or is being traced.
        """
        leaves = [leaf for leaf in leaves_of(tree) if leaf.shape is not None]
        known: dict[Dims, Any] = {}
        for leaf, planned in zip(leaves, self.plan.params, strict=True):
            wanted = known.get(planned.dims)
            if wanted is None:
                wanted = known[planned.dims] = self._sharding(planned)
            found = _differing(leaf.value, planned, wanted, self.memory_kinds)
            if found is not None:
                yield found

    def _sharding(self, planned: ParamSharding) -> Any:
        import jax

        partition_spec: Any = jax.sharding.PartitionSpec
        spec = partition_spec(*partition_entries(planned.dims))
        return jax.sharding.NamedSharding(self.mesh, spec)

    def findings(self, tree: Any) -> tuple[Diagnostic, ...]:
        """Return what is wrong with where the arrays of the tree are, by cause."""
        found = tuple(self.differing(tree))
        said = sharding_differs.findings(found, str(self.plan.mesh))
        return pipeline.leveled(self.plan.spec, said)


def in_memory(sharding: Any, kind: str | None) -> Any:
    """Return a sharding in another memory of its devices, None for the one they compute in.

    Raises:
      ShardspecError: the devices have no such memory.
    """
    if kind is None:
        return sharding
    if not isinstance(kind, str):
        raise TypeError(f"a memory is named by a string, not by {kind_of(kind)}")
    device = next(iter(sharding.device_set))
    known = sorted(memory.kind for memory in device.addressable_memories())
    if kind not in known:
        message = f"{device.platform} devices have no memory `{kind}`"
        diagnostic = Diagnostic(WRONG_TYPE, message, help=f"they have {listed(known)}")
        raise ShardspecError((diagnostic,))
    return sharding.with_memory_kind(kind)


def moved_to(arrays: list[Any], shardings: list[Any]) -> list[Any]:
    """Return arrays on the devices of their shardings.

    Raises:
      ShardspecError: JAX takes one of them for no array.
    """
    import jax

    try:
        moved: list[Any] = jax.device_put(arrays, shardings)
    except UNUSABLE:
        for array, sharding in zip(arrays, shardings, strict=True):
            try:
                jax.device_put(array, sharding)
            except UNUSABLE as error:
                refuse_unusable(array, "", error, "put")
        raise
    return moved


def _differing(
    value: Any, planned: ParamSharding, wanted: Any, memory_kinds: frozenset[str]
) -> Differing | None:
    """Return how an array lies otherwise than planned, None if it does not."""
    import jax

    _refuse_without_place(value, planned)
    if not isinstance(value, (jax.Array, jax.ShapeDtypeStruct)):
        if not planned.param.shape:
            return None
        return _entry(planned, type(value).__name__, Cause.HOST, 0)
    found = value.sharding
    rank = len(planned.param.shape)
    kind = found.memory_kind
    if not rank and not getattr(value, "committed", True):
        return None
    if axes := unreduced_axes(found):
        return _entry(planned, f"partial sums over {', '.join(axes)}", Cause.UNREDUCED, 0)
    if wanted.is_equivalent_to(found, rank):
        return None
    if kind is not None and wanted.with_memory_kind(kind).is_equivalent_to(found, rank):
        if kind in {_own_memory(found), *memory_kinds}:
            return None
        return _entry(planned, f"its shards in `{kind}`", Cause.MEMORY, 0)
    more = _shard_bytes(found, planned) - planned.per_device_bytes
    return _entry(planned, _place_text(found, wanted, rank), _cause(value, found, wanted), more)


def _own_memory(sharding: Any) -> str:
    """Return the memory that the devices of a sharding compute in."""
    kind: str = next(iter(sharding.device_set)).default_memory().kind
    return kind


def _entry(planned: ParamSharding, found: str, cause: Cause, more: int) -> Differing:
    param = planned.param
    return Differing(param.path, str(param), str(planned.partition_spec), found, cause, more)


def _refuse_without_place(value: Any, planned: ParamSharding) -> None:
    import jax

    path = planned.param.path
    name = f"`{path}`" if path else "the array"
    if isinstance(value, jax.core.Tracer):
        message = f"{name} is being traced, and lies nowhere yet"
        help = "call `check` outside of `jax.jit`, on what comes out of it"
    elif isinstance(value, jax.ShapeDtypeStruct) and value.sharding is None:
        message = f"{name} is a ShapeDtypeStruct without a sharding, which lies nowhere"
        help = "`resolver.findings(tree)` checks the plan; `check` wants live arrays"
    else:
        return
    raise ShardspecError((Diagnostic(WRONG_TYPE, message, help=help),))


def _cause(value: Any, found: Any, wanted: Any) -> Cause:
    if len(found.device_set) == 1 and len(wanted.device_set) > 1:
        is_placed = getattr(value, "committed", True)
        return Cause.ONE_DEVICE if is_placed else Cause.UNCOMMITTED
    if found.device_set != wanted.device_set:
        return Cause.ELSEWHERE
    is_other = _is_split_otherwise(found, wanted, value.shape)
    return Cause.SPLIT if is_other else Cause.ORDER


def _is_split_otherwise(found: Any, wanted: Any, shape: tuple[int, ...]) -> bool:
    """Say whether two shardings differ in more than the order of their devices."""
    shards = [
        sorted(map(str, each.devices_indices_map(shape).values())) for each in (found, wanted)
    ]
    return shards[0] != shards[1]


def _shard_bytes(sharding: Any, planned: ParamSharding) -> int:
    """Return the bytes of the largest shard of an array under a sharding."""
    param = planned.param
    try:
        shape = sharding.shard_shape(param.shape)
    except ValueError:  # sizes that do not divide
        sizes = sharding.devices_indices_map(param.shape).values()
        return max(array_bytes(_lengths(index, param.shape), param.dtype) for index in sizes)
    return array_bytes(tuple(shape), param.dtype)


def _lengths(index: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(len(range(*each.indices(size))) for each, size in zip(index, shape, strict=True))


def _place_text(found: Any, wanted: Any, rank: int) -> str:
    """Return where an array is: its partition and mesh, or the one device."""
    spec, mesh = getattr(found, "spec", None), getattr(found, "mesh", None)
    if spec is not None and mesh is not None:
        entries = (*spec, *(None,) * (rank - len(spec)))
        dims = tuple((each,) if isinstance(each, str) else tuple(each or ()) for each in entries)
        sizes = " ".join(f"{name}={size}" for name, size in mesh.shape.items())
        is_ours = dict(mesh.shape) == dict(wanted.mesh.shape)
        return f"{PartitionSpec(dims)}{'' if is_ours else f' on mesh {sizes}'}"
    if len(found.device_set) == 1:
        (device,) = found.device_set
        return f"{device.platform}:{device.id}"
    return f"{type(found).__name__} on {len(found.device_set)} devices"


def fresh_lock(spec: Spec, stacklevel: int) -> LockFile | None:
    """Return the lock beside a spec, if there is one and it can be relied on.

    Else what is wrong with it is a Python warning.

    Args:
      stacklevel: that of `warnings.warn`, from here.
    """
    found = find_lock(spec)
    if found is None:
        return None
    fault = found if isinstance(found, Diagnostic) else found.stale
    if fault is not None:
        for diagnostic in pipeline.leveled(spec, [fault]):
            warnings.warn(render_all([diagnostic]), LockWarning, stacklevel=stacklevel + 1)
        return None
    assert isinstance(found, LockFile), "what is no fault is a lock"
    return found


def lock_findings(lock: LockFile, plan: ShardingPlan) -> tuple[Diagnostic, ...]:
    """Return what a plan of live arrays says otherwise than the lock."""
    now = target_layout(plan)
    locked: Sequence[Any] = [each for each in lock.layout.targets if each.name == now.name]
    sides = (replace(lock.layout, targets=tuple(locked)), Layout(LANGUAGE, (), "", (now,)))
    found = (
        each for diff in diff_layouts(*sides) for each in lock_differs.findings(diff, lock.path)
    )
    return pipeline.leveled(plan.spec, found)
