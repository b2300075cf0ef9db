"""The arrays of a live tree as `Param`s: path, shape, dtype, and the names they carry.

A path is the `/`-joined components from the root of the tree down to the array, the same whatever
holds it: a dict gives its key, a list or tuple the index, a class the name of the field, a custom
node without names the index of the child. A key that is a tuple, as in a flattened dict, gives its
parts. What adds no component is said in `ir/tree_path`.

Names come from *boxes*, nodes that hold one array and what its author said about it, or from a
collection beside the arrays as `param_with_axes` of Linen writes it: `params_axes` holds
`AxisMetadata` under the path of the array and `_axes`. Flax has two families of boxes, Linen's
`AxisMetadata` (`Partitioned`, `LogicallyPartitioned`) and NNX's `Variable`. Neither is imported
here: a tree can hold a box only where its module has been imported already. Boxes are part of their
array and add no component to its path.

What decides the sharding of a node, short of its path, is its *key*: shape and names, and what else
a box of Linen is made of, so that equal keys can share one box around the answer. Reading a key is
what the fast way over a tree spends its time on, so the reader is chosen once per type of node.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.ir.spec import (
    DTYPE_BITS,
    MOST_ELEMENTS,
    PARAMS,
    LogicalAxes,
    Param,
    Params,
    Shape,
    dtype_name,
    rooted,
)
from shardspec.language.layer import too_large

#: Metadata keys in which NNX keeps names; the last two are its own older spellings.
_NNX_NAMES = ("out_sharding", "sharding_names", "sharding")

_LINEN = (("flax.core.meta", "AxisMetadata"),)
_VARIABLES = (("flax.nnx", "Variable"), ("flax.nnx", "VariableState"))
#: What a Variable keeps, as far as it differs from one to the next.
_VARIABLE_STATE = {"_raw_value", "_var_metadata"}
_OF_OPTIMIZERS = (("flax.nnx.training.optimizer", "OptState"),)
_NNX = (*_VARIABLES, ("flax.nnx.variablelib", "HijaxVariable"))


class _Derived(dict[type, bool]):
    """A type -> whether it derives from one of these, asked once for each.

    A type that does not when it is first met never will: what it derives from was imported before
    it was made.
    """

    def __init__(self, places: tuple[tuple[str, str], ...]) -> None:
        """Start without having met any type."""
        super().__init__()
        self._places = places

    def __missing__(self, kind: type) -> bool:
        """Return the answer for a type that was not met before."""
        self[kind] = answer = issubclass(kind, _loaded(self._places))
        return answer


_IS_LINEN, _IS_NNX, _IS_BOX = _Derived(_LINEN), _Derived(_NNX), _Derived((*_LINEN, *_NNX))
_IS_OF_OPTIMIZER = _Derived(_OF_OPTIMIZERS)


def is_linen(kind: type) -> bool:
    """Say whether `kind` is a box of Linen."""
    return _IS_LINEN[kind]


def is_nnx(kind: type) -> bool:
    """Say whether `kind` is a box of NNX."""
    return _IS_NNX[kind]


def is_optimizer_variable(kind: type) -> bool:
    """Say whether `kind` is a box that an `nnx.Optimizer` keeps its state in."""
    return _IS_OF_OPTIMIZER[kind]


def is_box(kind: type) -> bool:
    """Say whether `kind` is a box."""
    return _IS_BOX[kind]


def _loaded(places: tuple[tuple[str, str], ...]) -> tuple[type, ...]:
    found = (vars(sys.modules[name]).get(kind) for name, kind in places if name in sys.modules)
    return tuple(kind for kind in found if isinstance(kind, type))


def box_test() -> Callable[[Any], bool]:
    """Return the `is_leaf` that stops at boxes."""
    return lambda node: _IS_BOX[type(node)]


def box_value(box: Any) -> Any:
    """Return what a box holds, without the constraint that Linen's `unbox` would apply."""
    if is_nnx(type(box)):
        return nnx_value(box)
    return box.value if hasattr(box, "value") else box.unbox()


def unboxed(tree: Any) -> Any:
    """Return a tree with what its boxes hold in their place."""
    import jax

    structure: Any
    nodes, structure = jax.tree_util.tree_flatten(tree, is_leaf=box_test())
    return structure.unflatten(box_value(node) if is_box(type(node)) else node for node in nodes)


def box_names(box: Any) -> Any:
    """Return the names a box carries, as its author wrote them; None where it has none."""
    return nnx_names(box) if is_nnx(type(box)) else getattr(box, "names", None)


def nnx_value(box: Any) -> Any:
    """Return what a box of NNX holds."""
    return box.get_raw_value() if hasattr(box, "get_raw_value") else box.value


def nnx_names(box: Any) -> Any:
    """Return the names a box of NNX carries; it takes an empty annotation for none at all."""
    metadata = box.get_metadata()
    for key in _NNX_NAMES:
        names = metadata.get(key)
        if names:
            return names
    return None


class VariableMaker:
    """Makes Variables of one type like given ones, faster than JAX does from a structure.

    The first is made as NNX makes its own. The others take what it knows of the trace around
    it, by the protocol that pickling uses, and each the metadata of the Variable it is like.
    """

    def __init__(self, kind: type) -> None:
        """Start without a first one."""
        self._kind = kind
        self._state: dict[str, Any] | None = None

    def __call__(self, box: Any, content: Any) -> Any:
        """Return a Variable like `box` that holds `content`."""
        metadata = box.get_metadata()
        if self._state is None:
            made = box.from_metadata(content, metadata)
            state = made.__getstate__()
            self._state = state if state.keys() >= _VARIABLE_STATE else None
            return made
        made = object.__new__(self._kind)
        made.__setstate__({**self._state, "_raw_value": content, "_var_metadata": metadata})
        return made


def box_maker(kind: type) -> Callable[[Any, Any], Any]:
    """Return what makes a box of `kind` from another one and new content, alike to JAX."""
    has_protocol = all(hasattr(kind, name) for name in ("from_metadata", "__setstate__"))
    is_variable = issubclass(kind, _loaded(_VARIABLES))
    return VariableMaker(kind) if is_variable and has_protocol else _from_structure


def _from_structure(box: Any, content: Any) -> Any:
    import jax

    structure: Any = jax.tree_util.tree_structure(box)
    return structure.unflatten((content,))


#: The components of a path.
Place = tuple[str, ...]

#: The fields in which JAX's kinds of key keep their name or index.
_FIELDS = ("key", "idx", "name")


def component(key: Any) -> str:
    """Return one key of a JAX key path as it stands in a path.

    Args:
      key: a `DictKey`, `SequenceKey`, `GetAttrKey`, `FlattenedIndexKey` or any other object
        that a custom node gives, which then stands as it prints.
    """
    for field in _FIELDS:
        value = getattr(key, field, None)
        if value is not None:
            return key_text(value)
    return str(key).strip(".[]'\"")


def key_text(key: Any) -> str:
    """Return the key of a dict, or an index, as it stands in a path.

    >>> key_text(("decoder", "layers", 0))
    'decoder/layers/0'
    """
    if type(key) is str:
        return key
    return "/".join(map(str, key)) if type(key) is tuple else str(key)


def path_of(key_path: Iterable[Any]) -> str:
    """Return the path of the array at `key_path`, a key path of `jax.tree_util`."""
    return rooted("/".join(map(component, key_path)))


def joined(*paths: str) -> str:
    """Return the path of what lies below one another; `""` adds no component."""
    return "/".join(path for path in paths if path)


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
        raise ShardspecError((Diagnostic(codes.WRONG_TYPE, message, help=help),))


def _is_name(entry: Any) -> bool:
    return entry is None or isinstance(entry, str)


def _several_names(path: str, entry: Any) -> Diagnostic:
    return Diagnostic(
        codes.WRONG_TYPE,
        f"`{path}` names a dimension {entry!r}; a dimension has one logical axis",
        help="give it one name, and place that on several mesh axes by a rule: `name -> (a, b)`",
    )


#: Shape, names, and what else a box is made of. A shape of None: the node is no array.
Key = tuple[Any, ...]

#: What reading a key raises where a node holds more or less than one array, and what hashing
#: or comparing one does where the names, or what a class keeps beside its arrays, allow neither.
UNREADABLE = (AttributeError, TypeError, ValueError)

#: The key of a node without any leaf.
HOLE = ("hole", None)

#: The fields of the Linen boxes that many nodes can share.
_SHARED = {"value", "names", "mesh", "rules"}


class KeyReader:
    """Reads keys, and takes what Flax boxes apart and puts it together, type by type."""

    def __init__(self) -> None:
        """Start without having met any type."""
        self._readers = _ByKind(_reader)
        self._is_box = box_test()
        self._makers = _ByKind(lambda kind: box_maker(kind) if is_nnx(kind) else None)
        self._plain = _ByKind(lambda kinds: not any(map(is_box, kinds)))

    def keys(self, nodes: Sequence[Any]) -> Iterator[Key]:
        """Yield the key of each node."""
        readers = self._readers
        return (readers[type(node)](node) for node in nodes)

    def all_keys(self, nodes: Sequence[Any]) -> Iterator[Key]:
        """Yield the key of each node, of those too that hold more or less than one array."""
        readers = self._readers
        for node in nodes:
            try:
                key = readers[type(node)](node)
                hash(key)
            except UNREADABLE:
                key = (None,)
            yield key if key[0] is not None else self._key_of_many(node)

    def _key_of_many(self, node: Any) -> Key:
        """Return the keys of all leaves in a node; like no other, where they cannot be read."""
        import jax

        kind = type(node)
        has_box = is_box(kind)
        content = box_value(node) if has_box else node
        leaves, structure = jax.tree_util.tree_flatten(content, is_leaf=self._is_box)
        if not leaves:
            return HOLE
        if leaves[0] is node:
            return (kind, None)
        try:
            names = box_names(node) if has_box else None
            key = (kind, names, structure, *self.all_keys(leaves))
            hash(key)
        except UNREADABLE:
            return (object(),)
        return key

    def outline(self, nodes: Sequence[Any]) -> tuple[Any, ...]:
        """Return what tells these nodes from others as far as their keys would."""
        kinds = tuple(map(type, nodes))
        if self._plain[kinds]:
            try:
                return (kinds, *[node.shape for node in nodes])
            except AttributeError:
                pass
        return tuple(self.keys(nodes))

    def renewed(self, nodes: Sequence[Any], answers: Sequence[Any]) -> list[Any]:
        """Return the answers, those for NNX's nodes in a box of their own."""
        makers = self._makers
        return [
            make(node, answer) if (make := makers[type(node)]) else answer
            for node, answer in zip(nodes, answers, strict=True)
        ]


class _ByKind(dict[Any, Any]):
    """A type, or several -> what was found out about it, once."""

    def __init__(self, find_out: Callable[[Any], Any]) -> None:
        """Keep how to find out."""
        super().__init__()
        self._find_out = find_out

    def __missing__(self, kind: Any) -> Any:
        """Return what there is to know about a type that was not met before."""
        self[kind] = found = self._find_out(kind)
        return found


def _reader(kind: type) -> Callable[[Any], Key]:
    import jax

    if is_nnx(kind):
        return _nnx_reader(kind)
    if is_linen(kind):
        fields = set(getattr(kind, "__dataclass_fields__", ()))
        if not {"value", "names", "mesh"} <= fields <= _SHARED:
            return _no_key
        return _logical_key if "rules" in fields else _linen_key
    if kind in SCALARS:
        return _number_key
    if kind is type(None) or getattr(kind, "_fields", None) == ():
        return _hole_key
    if issubclass(kind, jax.sharding.PartitionSpec):
        return _no_key
    is_jaxs = kind.__module__.partition(".")[0] in ("jax", "jaxlib")
    return _array_key if is_jaxs and hasattr(kind, "shape") else _any_key


def _array_key(node: Any) -> Key:
    return (node.shape, None)


def _number_key(node: Any) -> Key:
    return ((), None)


def _hole_key(node: Any) -> Key:
    return HOLE


def _any_key(node: Any) -> Key:
    return (shape_of(node), None)


def _no_key(node: Any) -> Key:
    raise TypeError(f"the answer for a {type(node).__name__} is not decided by a key")


def _nnx_reader(kind: type) -> Callable[[Any], Key]:
    value_of = getattr(kind, "get_raw_value", nnx_value)

    def read(box: Any) -> Key:
        value = value_of(box)
        shape = () if type(value) in SCALARS else value.shape
        return (shape, nnx_names(box), kind)

    return read


# mesh and rules are part of a box's structure, which the result must share


def _linen_key(box: Any) -> Key:
    return (box.value.shape, box.names, type(box), box.mesh)


def _logical_key(box: Any) -> Key:
    return (box.value.shape, box.names, type(box), box.mesh, box.rules)
