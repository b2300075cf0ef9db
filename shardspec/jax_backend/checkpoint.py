"""Checkpoints: straight onto the mesh that the plan is for, whatever mesh they were saved on.

Orbax reads each shard where it belongs if it is told the sharding of every array, so a restore is
one tree of `ShapeDtypeStruct`s away from the plan. What Orbax says where tree and checkpoint do not
fit is a dump of both, and some of it (dtypes) it does not say; so they are compared first,
from the metadata alone.
"""

from __future__ import annotations

import os
from typing import Any

from shardspec.diagnostics import Diagnostic, ShardspecError
from shardspec.diagnostics.codes import BAD_CHECKPOINT
from shardspec.ir.param import Param
from shardspec.jax_backend.arguments import path_given
from shardspec.jax_backend.arrays import SCALARS, dtype_of, shape_of
from shardspec.jax_backend.paths import component
from shardspec.lints import checkpoint_differs

#: The dtype of a Python number, which any dtype will do for.
_NUMBER = "number"

_MISSING = "reading checkpoints takes Orbax: pip install 'shardspec[orbax]'"


def abstract(tree: Any, shardings: Any) -> Any:
    """Return `tree` with a `ShapeDtypeStruct` in place of every array, numbers as they are.

    Args:
      shardings: a tree with a sharding for every array of `tree`, None for other leaves.
    """
    import jax

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
    import jax

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
    path = path_given(path)
    saved = _arrays(_metadata(path))
    asked = _arrays(wanted)
    for route in saved.keys() & asked.keys():
        if _NUMBER in {saved[route].dtype, asked[route].dtype}:
            saved[route] = asked[route] = Param(route, saved[route].shape, _NUMBER)
    return checkpoint_differs.finding(os.fspath(path), saved.values(), asked.values())


def restored(path: str | os.PathLike[str], wanted: Any) -> Any:
    """Return the arrays of a checkpoint, each laid out as the struct in its place says."""
    checkpoints = _orbax()
    with checkpoints.StandardCheckpointer() as checkpointer:
        return checkpointer.restore(_absolute(path), wanted)


def _metadata(path: str | os.PathLike[str]) -> Any:
    """Return the tree of what a checkpoint holds."""
    checkpoints = _orbax()
    with checkpoints.StandardCheckpointer() as checkpointer:
        found = checkpointer.metadata(_absolute(path)).item_metadata
    if found is None:
        raise ShardspecError((_no_checkpoint(os.fspath(path)),))
    return getattr(found, "tree", found)


def _arrays(tree: Any) -> dict[str, Param]:
    """Return the arrays of a tree by their route, boxes and all, as Orbax keeps them."""
    import jax

    flat, _ = jax.tree_util.tree_flatten_with_path(tree)
    routes = (("/".join(map(component, keys)), leaf) for keys, leaf in flat)
    return {route: _param(route, leaf) for route, leaf in routes if shape_of(leaf) is not None}


def _param(route: str, leaf: Any) -> Param:
    import jax

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
    return Diagnostic(BAD_CHECKPOINT, message, help=help)
