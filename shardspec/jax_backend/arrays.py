"""The arrays of a live tree as `Param`s: path, shape, dtype, and the names they carry.

Names come from Flax's boxes, or from a collection beside the arrays as `param_with_axes` of
Linen writes it: `params_axes` holds `AxisMetadata` under the path of the array and `_axes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shardspec.diagnostics import Diagnostic, ShardspecError
from shardspec.diagnostics.codes import WRONG_TYPE
from shardspec.frontend.countable import too_large
from shardspec.ir.param import (
    DTYPE_BITS,
    MOST_ELEMENTS,
    LogicalAxes,
    Param,
    Params,
    Shape,
    dtype_name,
)
from shardspec.ir.tree_path import PARAMS
from shardspec.jax_backend.boxes import box_names, box_test, box_value
from shardspec.jax_backend.paths import Place, component, path_of

IsBox = Callable[[Any], bool]

_AXES = "_axes"
#: The Python numbers that JAX takes for arrays, with the widest dtype it gives them.
SCALARS = {bool: "bool", int: "s64", float: "f64", complex: "c128"}
#: The kinds of NumPy's dtypes that no device takes: objects, text, dates.
_NOT_NUMERIC = frozenset("OSUTMm")
#: What JAX makes of arrays that are not its own, unless `jax_enable_x64` is set.
_NARROWED = {"s64": "s32", "u64": "u32", "f64": "f32", "c128": "c64"}


@dataclass(frozen=True, slots=True)
class Leaf:
    """One leaf of a tree.

    Attributes:
      value: an array, something that has its shape and dtype, or anything else.
      names: what the tree says about its dimensions, as written there.
    """

    path: str
    value: Any
    names: Any = None

    @property
    def shape(self) -> Shape | None:
        """Return the sizes, or None for what is no array."""
        return shape_of(self.value)

    @property
    def components(self) -> Place:
        """Return the components of the path."""
        return tuple(self.path.split("/")) if self.path else ()

    @property
    def param(self) -> Param | None:
        """Return the leaf as the compiler sees it, or None for what is no array."""
        shape = self.shape
        if shape is None:
            _refuse_spec(self.path, self.value)
            return None
        return array_param(self.path, shape, self.value, self.names)


def params_of(tree: Any) -> Params:
    """Return the arrays of any pytree, in the order in which JAX flattens it.

    Python numbers are arrays of rank 0. Leaves that are no arrays (functions, strings) and
    None are left out.
    """
    params = (leaf.param for leaf in leaves_of(tree))
    return tuple(param for param in params if param is not None)


def array_param(path: str, shape: Shape, value: Any, names: Any) -> Param:
    """Return an array as the compiler sees it.

    Raises:
      ShardspecError: it cannot be counted, and XLA would end the process over it; or a dimension
        has several names.
    """
    param = Param(path, shape, dtype_of(value), logical_axes(names, path))
    refuse_uncountable(param)
    return param


def refuse_uncountable(param: Param) -> None:
    """Raise for an array of 2^63 bytes or more, at which XLA ends the process.

    It counts the sizes beside one of 0 as well. What is a symbol, as in `jax.export`, counts as 1.

    Raises:
      ShardspecError: it is one.
    """
    sizes = [size for size in param.shape if isinstance(size, int) and size]
    bits = DTYPE_BITS.get(param.dtype, 32)
    if math.prod(sizes) * max(bits, 8) // 8 > MOST_ELEMENTS:
        counted = Param(param.path, tuple(sizes), param.dtype)
        raise ShardspecError((too_large([counted]),))


def leaves_of(tree: Any) -> list[Leaf]:
    """Return every leaf of a pytree with path and names, in the order of `jax.tree.leaves`."""
    import jax

    stop = box_test()
    if stop(tree):
        return list(_boxed_leaves((), tree, stop))
    if jax.tree_util.all_leaves([tree]):
        return [Leaf("", tree)]
    nodes, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=stop)
    leaves: list[Leaf] = []
    for key_path, node in nodes:
        if stop(node):
            leaves.extend(_boxed_leaves(key_path, node, stop))
        else:
            leaves.append(Leaf(path_of(key_path), node))
    beside = names_beside(tree)
    if not beside:
        return leaves
    return [
        leaf if leaf.names is not None else Leaf(leaf.path, leaf.value, beside.get(leaf.path))
        for leaf in leaves
    ]


def _boxed_leaves(key_path: tuple[Any, ...], box: Any, stop: IsBox) -> Iterator[Leaf]:
    """Yield the leaves in a box; a box inside another one has the last word on names."""
    import jax

    names, content = box_names(box), box_value(box)
    if shape_of(content) is not None and not stop(content):
        yield Leaf(path_of(key_path), content, names)
        return
    inner, _ = jax.tree_util.tree_flatten_with_path(content, is_leaf=stop)
    for rest, value in inner:
        whole = (*key_path, *rest)
        found = _boxed_leaves(whole, value, stop) if stop(value) else [Leaf(path_of(whole), value)]
        for leaf in found:
            yield leaf if leaf.names is not None else Leaf(leaf.path, leaf.value, names)


def names_beside(tree: Any) -> dict[str, Any]:
    """Return path -> names from the collections that end in `_axes`, empty where none does."""
    import jax

    found: dict[str, Any] = {}
    for collection, owner in axes_collections(tree).items():
        flat, _ = jax.tree_util.tree_flatten_with_path(tree[collection], is_leaf=_has_names)
        for key_path, entry in flat:
            place = "/".join(map(component, key_path)).removesuffix(_AXES)
            path = place if owner == PARAMS else f"{owner}/{place}"
            found.update(_names_under(path, getattr(entry, "names", None)))
    return found


def axes_collections(tree: Any) -> dict[str, str]:
    """Return the collections of names in Linen's variables -> the collections they are for."""
    if not isinstance(tree, Mapping):
        return {}
    owners = {str(collection): str(collection).removesuffix(_AXES) for collection in tree}
    return {
        collection: owner
        for collection, owner in owners.items()
        if owner != collection and owner in tree
    }


def _has_names(node: Any) -> bool:
    return hasattr(node, "names") and not isinstance(node, Mapping)


def _names_under(path: str, names: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names of the array at `path`, or of each array of the tree there."""
    if _is_names(names):
        yield path, names
        return
    import jax

    flat, _ = jax.tree_util.tree_flatten_with_path(names, is_leaf=_is_names)
    for rest, leaf in flat:
        yield "/".join((path, *map(component, rest))), leaf


def _is_names(node: Any) -> bool:
    return isinstance(node, (tuple, list)) and all(
        name is None or isinstance(name, str) for name in node
    )


def shape_of(value: Any) -> Shape | None:
    """Return the sizes of an array or a number, or None for what is neither."""
    if type(value) in SCALARS:
        return ()
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if not isinstance(shape, (tuple, list)) or dtype is None:
        return None
    return None if getattr(dtype, "kind", "") in _NOT_NUMERIC else tuple(shape)


def dtype_of(value: Any) -> str:
    """Return the short name of an array's dtype; one we do not know, as JAX spells it.

    Numbers and NumPy's arrays have the dtype that they get on a device.
    """
    import jax

    config: Any = jax.config
    dtype = getattr(value, "dtype", None)
    name = SCALARS.get(type(value), "f32") if dtype is None else _short(dtype)
    if isinstance(value, (jax.Array, jax.ShapeDtypeStruct)) or config.jax_enable_x64:
        return name
    return _NARROWED.get(name, name)


@lru_cache(maxsize=256)
def _short(dtype: Any) -> str:
    spelt = str(getattr(dtype, "name", dtype))
    return dtype_name(spelt) or spelt


def logical_axes(names: Any, path: str) -> LogicalAxes | None:
    """Return names as the compiler wants them: one per dimension, a string or None.

    Args:
      names: a tuple, list, `PartitionSpec`, or a sharding that has one.
      path: for the error that a dimension with several names is.
    """
    import jax

    names = getattr(names, "sharding", names)  # a Format holds a sharding
    names = getattr(names, "spec", names)  # and a sharding holds a spec
    if names is None:
        return None
    unconstrained = jax.sharding.PartitionSpec.UNCONSTRAINED
    entries = (names,) if isinstance(names, str) else tuple(names)
    wrong = [entry for entry in entries if not _is_name(entry) and entry is not unconstrained]
    if wrong:
        raise ShardspecError((_several_names(path, wrong[0]),))
    return tuple(entry if isinstance(entry, str) else None for entry in entries)


def _refuse_spec(path: str, value: Any) -> None:
    """Raise for a leaf that is a `PartitionSpec`, which a tree for Flax's functions has."""
    import jax

    if isinstance(value, jax.sharding.PartitionSpec):
        message = f"`{path}` is a PartitionSpec, which has no shape"
        help = "pass the arrays or `ShapeDtypeStruct`s that carry the names, boxes and all"
        raise ShardspecError((Diagnostic(WRONG_TYPE, message, help=help),))


def _is_name(entry: Any) -> bool:
    return entry is None or isinstance(entry, str)


def _several_names(path: str, entry: Any) -> Diagnostic:
    return Diagnostic(
        WRONG_TYPE,
        f"`{path}` names a dimension {entry!r}; a dimension has one logical axis",
        help="give it one name, and place that on several mesh axes by a rule: `name -> (a, b)`",
    )
