"""What a program really holds, held against the plan: live arrays, checkpoints, other processes.

Orbax reads each shard where it belongs if it is told the sharding of every array, so a restore onto
another mesh is one tree of `ShapeDtypeStruct`s away from the plan. What Orbax says where tree and
checkpoint do not fit is a dump of both, and some of it (dtypes) it does not say; so they are
compared first, from the metadata alone.

Every process makes its plan by itself, from its own files. One that reads another spec would join
collectives that the others do not, so the processes compare digests when they make their
`Resolver`: one gather of a few bytes over one device of each. Only where they differ is a second
one made, of the facts behind the digest, and then each process tells the same story. A process
whose spec does not load takes part as well, so that the others need not wait for it. Nothing here
blocks for ever: the gather runs in a thread of its own, which is given up after a while. JAX has no
public call for this that has a timeout.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardspec import pipeline
from shardspec.analysis.layout_diff import Layout, diff_layouts, inputs, target_layout, text_digest
from shardspec.diagnostics import Diagnostic, ShardspecError, SourceFile, codes
from shardspec.diagnostics.render import render_all
from shardspec.ir.plan import Dims, ParamSharding, ShardingPlan
from shardspec.ir.spec import Param, PartitionSpec, Spec, Sums, Target, array_bytes, jax_entries
from shardspec.jax_backend import trees
from shardspec.jax_backend.shardings import Bare, named_sharding, refuse_unknown_memory
from shardspec.jax_backend.trees import SCALARS, component, dtype_of, leaves_of, shape_of
from shardspec.lints.checks import checkpoint_differs, lock_differs, sharding_differs
from shardspec.lints.checks.processes_differ import FAILED, View, finding
from shardspec.lints.checks.sharding_differs import Cause, Differing
from shardspec.lock.lock_file import LockFile, LockWarning, find_lock
from shardspec.resolve.resolver import Pairs, dims_of
from shardspec.versions import LANGUAGE


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
        for leaf, planned in zip(leaves, self.plan.arrays, strict=True):
            wanted = known.get(planned.dims)
            if wanted is None:
                wanted = known[planned.dims] = named_sharding(self.mesh, Bare(planned.dims))
            found = _differing(leaf.value, planned, wanted, self.memory_kinds)
            if found is not None:
                yield found

    def findings(self, tree: Any) -> tuple[Diagnostic, ...]:
        """Return what is wrong with where the arrays of the tree are, by cause."""
        found = tuple(self.differing(tree))
        said = sharding_differs.findings(found, str(self.plan.mesh))
        return pipeline.report(self.plan.spec, said).shown


def in_memory(sharding: Any, kind: str | None) -> Any:
    """Return a sharding in another memory of its devices, None for the one they compute in.

    Raises:
      ShardspecError: the devices have no such memory.
    """
    if kind is None:
        return sharding
    if not isinstance(kind, str):
        raise TypeError(f"a memory is named by a string, not by {trees.kind_of(kind)}")
    refuse_unknown_memory(next(iter(sharding.device_set)), kind)
    return sharding.with_memory_kind(kind)


def moved_to(arrays: list[Any], shardings: list[Any]) -> list[Any]:
    """Return arrays on the devices of their shardings.

    Raises:
      ShardspecError: JAX takes one of them for no array.
    """
    arrays = [summed(array) for array in arrays]
    try:
        moved: list[Any] = jax.device_put(arrays, list(map(_bare, shardings)))
        moved = [_in_parts(array, to) for array, to in zip(moved, shardings, strict=True)]
    except trees.UNUSABLE:
        for array, sharding in zip(arrays, shardings, strict=True):
            try:
                jax.device_put(array, _bare(sharding))
            except trees.UNUSABLE as error:
                trees.refuse_unusable(array, "", error, "put")
        raise
    return moved


def _bare(sharding: Any) -> Any:
    """Return a sharding without sums, which `jax.device_put` knows nothing of."""
    spec = getattr(sharding, "spec", None)
    if not trees.mesh_axes_of_sums(sharding):
        return sharding
    plain: Any = jax.sharding.PartitionSpec
    return sharding.update(spec=plain(*jax_entries(spec)))


def summed(array: Any) -> Any:
    """Return an array as itself, where it was partial sums."""
    sharding = getattr(array, "sharding", None)
    return _laid_out(array, _bare(sharding)) if trees.unreduced_axes(sharding) else array


def _in_parts(array: Any, sharding: Any) -> Any:
    """Return an array as the partial sums, or with the gradients, that a sharding asks for."""
    if not trees.mesh_axes_of_sums(sharding):
        return array
    own = sharding.with_memory_kind(_own_memory(sharding))
    made = _laid_out(jax.device_put(array, _bare(own)), own)
    return jax.device_put(made, sharding)


def _laid_out(array: Any, sharding: Any) -> Any:
    """Return an array laid out by a program of its own: `reshard` refuses some meshes."""
    return jax.jit(_itself, out_shardings=sharding)(array)


def _itself(array: Any) -> Any:
    """Return an array: a function with a name, so that JAX compiles it once for each sharding."""
    return array


def _differing(
    value: Any, planned: ParamSharding, wanted: Any, memory_kinds: frozenset[str]
) -> Differing | None:
    """Return how an array lies otherwise than planned, None if it does not."""
    _refuse_without_place(value, planned)
    if not isinstance(value, (jax.Array, jax.ShapeDtypeStruct)):
        entry = _entry(planned, type(value).__name__, Cause.HOST, 0)
        return entry if planned.param.shape else None
    found = value.sharding
    rank = len(planned.param.shape)
    if not rank and not getattr(value, "committed", True):
        return None
    cause = _cause_of_sums(found, planned)
    if cause is not None:
        return _entry(planned, _sums_text(found), cause, 0)
    found = _bare(found)
    kind = found.memory_kind or _own_memory(found)
    if wanted.with_memory_kind(kind).is_equivalent_to(found.with_memory_kind(kind), rank):
        if kind in {planned.memory_kind or _own_memory(found), *memory_kinds}:
            return None
        return _entry(planned, f"its shards in `{kind}`", Cause.MEMORY, 0)
    more = _shard_bytes(found, planned) - planned.per_device_bytes
    return _entry(planned, _place_text(found, wanted, rank), _cause(value, found, wanted), more)


def _cause_of_sums(found: Any, planned: ParamSharding) -> Cause | None:
    """Return what is wrong with the sums of an array, None where nothing is."""
    if set(trees.unreduced_axes(found)) != set(planned.sums.unreduced):
        return Cause.NOT_PARTS if planned.sums.unreduced else Cause.UNREDUCED
    reduced = getattr(getattr(found, "spec", None), "reduced", None) or ()
    return None if set(reduced) == set(planned.sums.reduced) else Cause.REDUCED


def _sums_text(sharding: Any) -> str:
    spec = getattr(sharding, "spec", None)
    kinds = zip(("partial sums", "reduced"), Sums._fields, strict=True)
    found = [(text, sorted(getattr(spec, kind, None) or ())) for text, kind in kinds]
    said = [f"{text} over {', '.join(axes)}" for text, axes in found if axes]
    return " and ".join(said) or "no sums"


def _own_memory(sharding: Any) -> str:
    """Return the memory that the devices of a sharding compute in."""
    kind: str = next(iter(sharding.device_set)).default_memory().kind
    return kind


def _entry(planned: ParamSharding, found: str, cause: Cause, more: int) -> Differing:
    param = planned.param
    memory = f" in {planned.memory_kind}" if planned.memory_kind else ""
    wanted = f"{planned.partition_spec}{memory}"
    return Differing(param.path, str(param), wanted, found, cause, more)


def _refuse_without_place(value: Any, planned: ParamSharding) -> None:
    path = planned.param.path
    name = f"`{path}`" if path else "the array"
    if isinstance(value, jax.core.Tracer):
        message = f"{name} is being traced, and lies nowhere yet"
        help = "call `verify_placement` outside of `jax.jit`, on what comes out of it"
    elif isinstance(value, jax.ShapeDtypeStruct) and value.sharding is None:
        message = f"{name} is a ShapeDtypeStruct without a sharding, which lies nowhere"
        help = "`resolver.findings(tree)` checks the plan; `verify_placement` wants live arrays"
    else:
        return
    raise ShardspecError((Diagnostic(codes.WRONG_TYPE, message, help=help),))


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
        entries = jax_entries(spec, rank)
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
        for diagnostic in pipeline.report(spec, [fault]).shown:
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
    return pipeline.report(plan.spec, found).shown


#: The dtype of a Python number, which any dtype will do for.
_NUMBER = "number"

_MISSING = "reading checkpoints takes Orbax: pip install 'shardspec[orbax]'"


def resized(tree: Any, plan: ShardingPlan, *, is_padded: bool) -> Any:
    """Return a tree with its arrays padded by zeros; or cut, where they are padded.

    A dimension that is a product is padded in the factor that is: whole heads, one by one.
    """
    made: dict[str, tuple[Pairs, ...]] = {}
    for each in plan.arrays:
        dims = dims_of(plan.spec, each, is_padded=is_padded)
        if any(true != padded for pairs in dims for true, padded in pairs):
            made[each.param.path] = dims
    structure: Any
    leaves, structure = jax.tree_util.tree_flatten(tree)
    paths = (leaf.param.path if leaf.param else None for leaf in leaves_of(tree))
    pairs = zip(leaves, paths, strict=True)
    return structure.unflatten(
        [_resized(leaf, made[path], is_padded) if path in made else leaf for leaf, path in pairs]
    )


def _resized(array: Any, dims: tuple[Pairs, ...], is_padded: bool) -> Any:
    at = 0 if is_padded else 1
    shape = tuple(math.prod(pair[at] for pair in pairs) for pairs in dims)
    if isinstance(array, jax.ShapeDtypeStruct):
        return jax.ShapeDtypeStruct(shape, array.dtype)
    factors = [pair for pairs in dims for pair in pairs]
    numpy: Any = np if isinstance(array, np.ndarray) else jnp
    if is_padded:
        split = array.reshape([padded for _, padded in factors])
        return split[tuple(slice(true) for true, _ in factors)].reshape(shape)
    split = array.reshape([true for true, _ in factors])
    return numpy.pad(split, [(0, padded - true) for true, padded in factors]).reshape(shape)


def abstract(tree: Any, shardings: Any) -> Any:
    """Return `tree` with a `ShapeDtypeStruct` in place of every array, numbers as they are.

    Args:
      shardings: a tree with a sharding for every array of `tree`, None for other leaves.
    """
    structure: Any
    leaves, structure = jax.tree_util.tree_flatten(tree)
    places = iter(jax.tree_util.tree_leaves(shardings))
    found = []
    for leaf in leaves:
        sharding = next(places) if shape_of(leaf) is not None else None
        found.append(leaf if sharding is None or type(leaf) in SCALARS else _struct(leaf, sharding))
    return structure.unflatten(found)


def _struct(leaf: Any, sharding: Any) -> Any:
    """Return the shape and dtype that an array has on a device, with its sharding."""
    dtypes: Any = jax.dtypes
    dtype = leaf.dtype
    if not isinstance(leaf, jax.Array | jax.ShapeDtypeStruct):
        dtype = dtypes.canonicalize_dtype(dtype)
    weak = bool(getattr(leaf, "weak_type", False))
    struct: Any = jax.ShapeDtypeStruct
    return struct(tuple(leaf.shape), dtype, sharding=sharding, weak_type=weak)


def difference(path: str | os.PathLike[str], wanted: Any) -> Diagnostic | None:
    """Return what a checkpoint and a tree do not have in common, from the metadata alone.

    Raises:
      ShardspecError: there is no checkpoint at `path`.
      ModuleNotFoundError: Orbax is not installed.
    """
    path = trees.path_given(path)
    saved = _arrays(_metadata(path))
    asked = _arrays(wanted)
    for route in saved.keys() & asked.keys():
        if _NUMBER in {saved[route].dtype, asked[route].dtype}:
            saved[route] = asked[route] = Param(route, saved[route].shape, _NUMBER)
    return checkpoint_differs.finding(os.fspath(path), saved.values(), asked.values())


def restored(path: str | os.PathLike[str], wanted: Any) -> Any:
    """Return the arrays of a checkpoint, each laid out as the struct in its place says."""
    with _orbax().StandardCheckpointer() as checkpointer:
        return checkpointer.restore(_absolute(path), wanted)


def _metadata(path: str | os.PathLike[str]) -> Any:
    """Return the tree of what a checkpoint holds."""
    with _orbax().StandardCheckpointer() as checkpointer:
        found = checkpointer.metadata(_absolute(path)).item_metadata
    if found is None:
        raise ShardspecError((_no_checkpoint(os.fspath(path)),))
    return getattr(found, "tree", found)


def _arrays(tree: Any) -> dict[str, Param]:
    """Return the arrays of a tree by their route, boxes and all, as Orbax keeps them."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    routes = (("/".join(map(component, keys)), leaf) for keys, leaf in flat)
    return {route: _param(route, leaf) for route, leaf in routes if shape_of(leaf) is not None}


def _param(route: str, leaf: Any) -> Param:
    if type(leaf) in SCALARS or type(leaf).__name__ == "ScalarMetadata":
        return Param(route, (), _NUMBER)
    dtypes: Any = jax.dtypes
    if isinstance(leaf, jax.ShapeDtypeStruct) and dtypes.issubdtype(leaf.dtype, dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return Param(route, tuple(leaf.shape), dtype_of(leaf))


def _orbax() -> Any:
    try:
        import orbax.checkpoint
    except ModuleNotFoundError as missing:
        raise ModuleNotFoundError(_MISSING, name=missing.name) from None
    return orbax.checkpoint


def _absolute(path: str | os.PathLike[str]) -> str:
    """Return a path as Orbax wants it: from the root, or with a scheme such as `gs://`."""
    text = os.fspath(path)
    return text if "://" in text else os.path.abspath(text)


def _no_checkpoint(path: str) -> Diagnostic:
    """Return the diagnostic for a path that holds no tree of arrays, with the items below it."""
    below = sorted(os.listdir(path)) if os.path.isdir(path) else []
    items = [each for each in below if os.path.isfile(os.path.join(path, each, "_METADATA"))]
    help = "name the folder that `StandardCheckpointer.save` wrote, or one item of a manager's step"
    if items:
        help = "name the item: " + " or ".join(f"`{os.path.join(path, each)}`" for each in items)
    message = f"`{path}` holds no arrays that Orbax saved"
    return Diagnostic(codes.BAD_CHECKPOINT, message, help=help)


Facts = tuple[tuple[str, str], ...]

#: Bytes of a digest, and of the length of what it was made from.
_DIGEST, _LENGTH = 32, 8


def agree(spec: Spec, target: Target, mesh: jax.sharding.Mesh, within_s: float) -> None:
    """Compare what this process plans by with what the others of the mesh do.

    Args:
      within_s: how long to wait for them, in seconds.

    Raises:
      ShardspecError: they differ, one has no plan, or they did not come in time.
    """
    speakers = _speakers(list(mesh.devices.flat))
    if speakers:
        found = _difference(_facts(spec, target, mesh), speakers, within_s)
        if found is not None:
            raise ShardspecError((found,))


@contextmanager
def failure_told(devices: Sequence[jax.Device] | None, within_s: float | None) -> Iterator[None]:
    """Tell the other processes where this one fails to make a plan, so that none waits for it.

    Args:
      devices: those of the mesh to be; None for all.
      within_s: how long to wait for them, in seconds; None tells nobody.
    """
    try:
        yield
    except ShardspecError as error:
        if within_s is not None:
            _report(error, devices, within_s)
        raise


def _report(error: ShardspecError, devices: Sequence[jax.Device] | None, within_s: float) -> None:
    speakers = _speakers(jax.devices() if devices is None else devices)
    if speakers:
        first = next(found for found in error.diagnostics if found.is_error)
        _difference(((FAILED, f"{first.code.id}: {first.message}"),), speakers, within_s)


def _facts(spec: Spec, target: Target, mesh: jax.sharding.Mesh) -> Facts:
    """Return what a plan depends on, and little enough to send."""
    bare = replace(spec, source=SourceFile("", ""), sources=())
    order = [(device.process_index, device.id) for device in mesh.devices.flat]
    return (
        ("shardspec", import_module("shardspec").__version__),
        *((f"`{each.name}`", each.digest) for each in inputs(spec, has_lines=True)),
        ("the target", f"`{target.name}`"),
        ("the spec with its changes", text_digest(repr(bare))),
        ("the mesh", str(target.mesh)),
        ("the order of the devices", text_digest(repr(order))),
    )


def _speakers(devices: Sequence[jax.Device]) -> list[jax.Device]:
    """Return one device of each process, none where there is nobody to compare with."""
    if jax.process_count() == 1:
        return []
    ordered = sorted(devices, key=lambda device: device.id, reverse=True)
    lowest = {device.process_index: device for device in ordered}
    if len(lowest) == 1 or jax.process_index() not in lowest:
        return []
    return [lowest[process] for process in sorted(lowest)]


def _difference(facts: Facts, speakers: Sequence[jax.Device], within_s: float) -> Diagnostic | None:
    """Return what the processes do not have in common, None where that is nothing."""
    found: list[tuple[View, ...] | Exception] = []

    def gather() -> None:
        try:
            found.append(_views(facts, speakers))
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=gather, name="shardspec-agree", daemon=True)
    thread.start()
    thread.join(within_s)
    here = jax.process_index()
    if not found:
        return _alone(here, f"process {here} waited {within_s:g} s for the others to plan")
    if isinstance(found[0], Exception):
        reason = str(found[0]).strip().partition("\n")[0]
        return _alone(here, f"process {here} lost the others while comparing specs: {reason}")
    return finding(found[0]) if found[0] else None


def _alone(process: int, message: str) -> Diagnostic:
    return Diagnostic(
        codes.PROCESSES_DIFFER,
        message,
        help="make the same `Resolver` on every process of the mesh;"
        f" `agree_within_s=None` lets process {process} go on without them",
    )


def _views(facts: Facts, speakers: Sequence[jax.Device]) -> tuple[View, ...]:
    """Return the facts of every process, nothing where all have the same."""
    text = json.dumps(facts).encode()
    heads = _gathered(hashlib.sha256(text).digest() + len(text).to_bytes(_LENGTH, "big"), speakers)
    if len(set(heads)) == 1:
        return ()
    lengths = [int.from_bytes(head[_DIGEST:], "big") for head in heads]
    texts = _gathered(text.ljust(max(lengths), b"\0"), speakers)
    return tuple(
        View(device.process_index, tuple((name, what) for name, what in json.loads(body[:length])))
        for device, body, length in zip(speakers, texts, lengths, strict=True)
    )


def _gathered(row: bytes, speakers: Sequence[jax.Device]) -> list[bytes]:
    """Return the row of every process; all rows have the same length."""
    array = np.empty(len(speakers), dtype=object)
    array[:] = speakers
    axis = "process"
    mesh = jax.sharding.Mesh(array, (axis,), axis_types=(jax.sharding.AxisType.Auto,))
    spec: Any = jax.sharding.PartitionSpec
    own = np.frombuffer(row, np.uint8)[None]
    make: Any = jax.make_array_from_process_local_data
    rows = make(jax.sharding.NamedSharding(mesh, spec(axis)), own, (len(speakers), len(row)))
    everywhere = _laid_out(rows, jax.sharding.NamedSharding(mesh, spec()))
    return [bytes(each) for each in np.asarray(everywhere.addressable_data(0))]
