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

What decides the sharding of an array, short of its path, is its *key*: shape and names, and what
else a box of Linen is made of, so that equal keys can share one box around the answer. How to read
the key of a node is told by its type.

Optimizer state, known by its types and by the names of its fields.

It is what optax keeps, the Variables of an `nnx.Optimizer`, and mappings that have the fields of a
state of optax, which is what NNX, and whatever writes checkpoints as dicts, makes of one.

What callers pass, checked at the door: a wrong value is told as itself, not by what it breaks.

A value of the wrong type is a `TypeError`, as everywhere in Python; a tree or an array that is of
the right type and cannot be used is a finding, since it comes out of data.
"""

from __future__ import annotations

import inspect
import math
import operator
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from operator import attrgetter
from typing import Any, TypeVar

import jax

from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.diagnostics.words import listed
from shardspec.ir import spec as ir
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec
from shardspec.language.layer import too_large

#: The metadata key in which NNX keeps names, and its own older spellings of it.
NNX_NAMES = "out_sharding"
_OLDER_NAMES = ("sharding_names", "sharding")

_LINEN = (("flax.core.meta", "AxisMetadata"),)
_VARIABLES = (("flax.nnx", "Variable"), ("flax.nnx", "VariableState"))
#: What a Variable keeps, as far as it differs from one to the next.
_VARIABLE_STATE = {"_raw_value", "_var_metadata"}
_OF_OPTIMIZERS = (("flax.nnx.training.optimizer", "OptState"),)
_NNX = (*_VARIABLES, ("flax.nnx.variablelib", "HijaxVariable"))


Found = TypeVar("Found")


def remembered(find_out: Callable[[type], Found]) -> Callable[[type], Found]:
    """Return `functools.cache` of a function of a type, with the types of that function."""
    return cache(find_out)


@remembered
def is_linen(kind: type) -> bool:
    """Say whether `kind` is a box of Linen.

    What a type derives from was imported before it was made, so the answer stays the same.
    """
    return issubclass(kind, _loaded(_LINEN))


@remembered
def is_nnx(kind: type) -> bool:
    """Say whether `kind` is a box of NNX."""
    return issubclass(kind, _loaded(_NNX))


@remembered
def is_optimizer_variable(kind: type) -> bool:
    """Say whether `kind` is a box that an `nnx.Optimizer` keeps its state in."""
    return issubclass(kind, _loaded(_OF_OPTIMIZERS))


@remembered
def is_box(kind: type) -> bool:
    """Say whether `kind` is a box."""
    return is_linen(kind) or is_nnx(kind)


def _loaded(places: tuple[tuple[str, str], ...]) -> tuple[type, ...]:
    found = (vars(sys.modules[name]).get(kind) for name, kind in places if name in sys.modules)
    return tuple(kind for kind in found if isinstance(kind, type))


def is_initializing() -> bool:
    """Say whether Flax Linen or Haiku runs a model now to make its parameters."""
    linen, haiku = sys.modules.get("flax.linen.module"), sys.modules.get("haiku")
    if linen is not None:
        module = linen._context.module_stack[-1]
        if module is not None and module.is_initializing():
            return True
    try:
        return haiku is not None and bool(haiku.running_init())
    except ValueError:  # outside of a transformed function
        return False


def box_test() -> Callable[[Any], bool]:
    """Return the `is_leaf` that stops at boxes."""
    return lambda node: is_box(type(node))


def box_value(box: Any) -> Any:
    """Return what a box holds, without the constraint that Linen's `unbox` would apply."""
    if is_nnx(type(box)):
        return nnx_value(box)
    return box.value if hasattr(box, "value") else box.unbox()


def unboxed(tree: Any) -> Any:
    """Return a tree with what its boxes hold in their place."""
    structure: Any
    nodes, structure = jax.tree_util.tree_flatten(tree, is_leaf=box_test())
    return structure.unflatten(box_value(node) if is_box(type(node)) else node for node in nodes)


def box_names(box: Any) -> Any:
    """Return the names a box carries, as its author wrote them; None where it has none."""
    return nnx_names(box.get_metadata()) if is_nnx(type(box)) else getattr(box, "names", None)


def nnx_value(box: Any) -> Any:
    """Return what a box of NNX holds."""
    return box.get_raw_value() if hasattr(box, "get_raw_value") else box.value


def value_reader(kind: type) -> Callable[[Any], Any]:
    """Return what takes out of boxes of NNX of one type what they hold."""
    reader: Callable[[Any], Any] = getattr(kind, "get_raw_value", attrgetter("value"))
    return reader


def nnx_names(metadata: Mapping[str, Any]) -> Any:
    """Return the names in the metadata of a box; NNX takes an empty annotation for none at all."""
    for key in (NNX_NAMES, *_OLDER_NAMES):
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

    def __call__(self, box: Any, content: Any, metadata: dict[str, Any]) -> Any:
        """Return a Variable like `box`, with its metadata, that holds `content`."""
        if self._state is None:
            made = box.from_metadata(content, metadata)
            state = made.__getstate__()
            self._state = state if state.keys() >= _VARIABLE_STATE else None
            return made
        self._state["_raw_value"], self._state["_var_metadata"] = content, metadata
        made = object.__new__(self._kind)
        made.__setstate__(self._state)
        return made


def box_maker(kind: type) -> Callable[[Any, Any, dict[str, Any]], Any]:
    """Return what makes a box of `kind` from another one, new content and its metadata."""
    has_protocol = all(hasattr(kind, name) for name in ("from_metadata", "__setstate__"))
    is_variable = issubclass(kind, _loaded(_VARIABLES))
    return VariableMaker(kind) if is_variable and has_protocol else _from_structure


def _from_structure(box: Any, content: Any, metadata: dict[str, Any]) -> Any:
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
            return value if type(value) is str else key_text(value)
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
    return ir.tree_path(tuple(map(component, key_path)))


def joined(*paths: str) -> str:
    """Return the path of what lies below one another; `""` adds no component."""
    return "/".join(path for path in paths if path)


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
      box: that it is in; None where it is in none.
      is_beside: whether the names are in a collection beside the arrays.
    """

    path: str
    value: Any
    names: Any = None
    box: Any = None
    is_beside: bool = False

    @property
    def shape(self) -> ir.Shape | None:
        """Return the sizes, or None for what is no array."""
        return shape_of(self.value)

    @property
    def components(self) -> Place:
        """Return the components of the path."""
        return tuple(self.path.split("/")) if self.path else ()

    @property
    def param(self) -> ir.Param | None:
        """Return the leaf as the compiler sees it, or None for what is no array."""
        shape = self.shape
        if shape is None:
            _refuse_spec(self.path, self.value)
            return None
        param = array_param(self.path, shape, self.value, self.names)
        return replace(param, is_named_beside=True) if self.is_beside else param


def params_of(tree: Any) -> ir.Params:
    """Return the arrays of any pytree, in the order in which JAX flattens it.

    Python numbers are arrays of rank 0. Leaves that are no arrays (functions, strings) and
    None are left out.
    """
    params = (leaf.param for leaf in leaves_of(tree))
    return tuple(param for param in params if param is not None)


def array_param(path: str, shape: ir.Shape, value: Any, names: Any) -> ir.Param:
    """Return an array as the compiler sees it.

    Raises:
      ShardspecError: it cannot be counted, and XLA would end the process over it; or a dimension
        has several names.
    """
    found = param_or_fault(path, shape, value, names)
    if isinstance(found, Diagnostic):
        raise ShardspecError((found,))
    return found


def param_or_fault(path: str, shape: ir.Shape, value: Any, names: Any) -> ir.Param | Diagnostic:
    """Return an array as the compiler sees it, or what is wrong with it."""
    axes = logical_axes(names, path)
    if isinstance(axes, Diagnostic):
        return axes
    param = ir.Param(path, shape, dtype_of(value), axes)
    return uncountable(param) or param


def uncountable(param: ir.Param) -> Diagnostic | None:
    """Return the finding for an array of 2^63 bytes or more, at which XLA ends the process.

    It counts the sizes beside one of 0 as well. What is a symbol, as in `jax.export`, counts as 1.
    """
    sizes = [size for size in param.shape if isinstance(size, int) and size]
    bits = ir.DTYPE_BITS.get(param.dtype, 32)
    if math.prod(sizes) * max(bits, 8) // 8 <= ir.MOST_ELEMENTS:
        return None
    return too_large([ir.Param(param.path, tuple(sizes), param.dtype)])


def leaves_of(tree: Any) -> list[Leaf]:
    """Return every leaf of a pytree with path and names, in the order of `jax.tree.leaves`."""
    stop = box_test()
    nodes, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=stop)
    leaves: list[Leaf] = []
    for key_path, node in nodes:
        place = tuple(map(component, key_path))
        if stop(node):
            leaves.extend(
                Leaf(ir.tree_path((*place, *rest)), value, names, node)
                for rest, value, names in box_leaves(node)
            )
        else:
            leaves.append(Leaf(ir.tree_path(place), node))
    beside = names_beside(tree)
    if not beside:
        return leaves
    return [
        leaf
        if leaf.names is not None or leaf.path not in beside
        else replace(leaf, names=beside[leaf.path], is_beside=True)
        for leaf in leaves
    ]


def box_leaves(box: Any) -> Iterator[tuple[Place, Any, Any]]:
    """Yield the leaves in a box with their place in it, value and names.

    A box inside another one has the last word on names.
    """
    names, content = box_names(box), box_value(box)
    if shape_of(content) is not None and not is_box(type(content)):
        yield (), content, names
        return
    nodes, _ = jax.tree_util.tree_flatten_with_path(content, is_leaf=box_test())
    for key_path, node in nodes:
        above = tuple(map(component, key_path))
        inner = box_leaves(node) if is_box(type(node)) else [((), node, None)]
        for place, value, own in inner:
            yield (*above, *place), value, names if own is None else own


def names_beside(tree: Any) -> dict[str, Any]:
    """Return path -> names from the collections that end in `_axes`, empty where none does."""
    found: dict[str, Any] = {}
    for collection, owner in axes_collections(tree).items():
        names = tree[collection] if isinstance(tree, Mapping) else getattr(tree, collection)
        flat, _ = jax.tree_util.tree_flatten_with_path(names, is_leaf=_has_names)
        for key_path, entry in flat:
            place = "/".join(map(component, key_path)).removesuffix(_AXES)
            path = place if owner == ir.PARAMS else f"{owner}/{place}"
            found.update(_names_under(path, getattr(entry, "names", None)))
    return found


def axes_collections(tree: Any) -> dict[str, str]:
    """Return the collections of names in Linen's variables -> the collections they are for.

    A train state of T5X has them as fields.
    """
    own = tree if isinstance(tree, Mapping) else _fields(type(tree))
    owners = {str(collection): str(collection).removesuffix(_AXES) for collection in own}
    return {
        collection: owner
        for collection, owner in owners.items()
        if owner != collection and owner in own
    }


def _has_names(node: Any) -> bool:
    return hasattr(node, "names") and not isinstance(node, Mapping)


def _names_under(path: str, names: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names of the array at `path`, or of each array of the tree there."""
    if _is_names(names):
        yield path, names
        return
    flat, _ = jax.tree_util.tree_flatten_with_path(names, is_leaf=_is_names)
    for rest, leaf in flat:
        yield "/".join((path, *map(component, rest))), leaf


def _is_names(node: Any) -> bool:
    return isinstance(node, (tuple, list)) and all(map(_is_name, node))


def shape_of(value: Any) -> ir.Shape | None:
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
    config: Any = jax.config
    dtype = getattr(value, "dtype", None)
    name = SCALARS.get(type(value), "f32") if dtype is None else _short(dtype)
    if isinstance(value, (jax.Array, jax.ShapeDtypeStruct)) or config.jax_enable_x64:
        return name
    return _NARROWED.get(name, name)


@lru_cache(maxsize=256)
def _short(dtype: Any) -> str:
    spelt = str(getattr(dtype, "name", dtype))
    return ir.dtype_name(spelt) or spelt


def logical_axes(names: Any, path: str) -> ir.LogicalAxes | Diagnostic | None:
    """Return names as the compiler wants them: one per dimension, a string or None.

    A `Diagnostic` where a dimension has several names.

    Args:
      names: a tuple, list, `PartitionSpec`, or a sharding that has one.
      path: for the message.
    """
    names = getattr(names, "sharding", names)  # a Format holds a sharding
    names = getattr(names, "spec", names)  # and a sharding holds a spec
    if names is None:
        return None
    unconstrained = jax.sharding.PartitionSpec.UNCONSTRAINED
    entries = (names,) if isinstance(names, str) else tuple(names)
    wrong = [entry for entry in entries if not _is_name(entry) and entry is not unconstrained]
    if wrong:
        return _several_names(path, wrong[0])
    return tuple(entry if isinstance(entry, str) else None for entry in entries)


def _refuse_spec(path: str, value: Any) -> None:
    """Raise for a leaf that is a `PartitionSpec`, which a tree for Flax's functions has."""
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


#: Shape, names, and what else a box is made of; or the same of each array in a node.
Key = tuple[Any, ...]

#: The fields of the Linen boxes that many nodes can share.
_SHARED = {"value", "names", "mesh", "rules"}


def key_of(node: Any) -> Key:
    """Return what decides the answers for the arrays of a node, beside whose they are."""
    kind = type(node)
    key = key_reader(kind)(node)
    if key is not None:
        return key
    if is_box(kind) and _is_plain(names := box_names(node)):
        return (kind, names, key_of(box_value(node)))
    leaves = leaves_of(node)
    return tuple((leaf.path, leaf.shape, logical_axes(leaf.names, leaf.path)) for leaf in leaves)


@remembered
def key_reader(kind: type) -> Callable[[Any], Key | None]:
    """Return what reads the key of a node of one array; None where it holds more, or less.

    Nor have boxes one whose names are more than a tuple of names, or that hold what others do not.
    """
    if is_nnx(kind):
        return _nnx_reader(kind)
    if is_linen(kind):
        return _linen_reader(kind)
    if kind in SCALARS:
        return _number_key
    if kind is type(None) or getattr(kind, "_fields", None) == ():
        return _hole_key
    if kind in (list, tuple):
        return _sequence_key
    return _array_key if is_jaxs(kind) else _any_key


@remembered
def is_jaxs(kind: type) -> bool:
    """Say whether a type is one of JAX's arrays, or of what stands for one."""
    of_jax = kind.__module__.partition(".")[0] in ("jax", "jaxlib")
    return of_jax and hasattr(kind, "shape") and hasattr(kind, "dtype")


def _array_key(node: Any) -> Key:
    return (node.shape, None)


def _number_key(node: Any) -> Key:
    return ((), None)


def _hole_key(node: Any) -> Key:
    return ()


def _sequence_key(node: Any) -> Key:
    return (type(node), *map(key_of, node))


def _no_key(node: Any) -> None:
    return None


def _any_key(node: Any) -> Key | None:
    shape = shape_of(node)
    return None if shape is None else (shape, None)


def _linen_reader(kind: type) -> Callable[[Any], Key | None]:
    """Return what reads mesh and rules, too: they are in the structure, which the result shares."""
    fields = set(getattr(kind, "__dataclass_fields__", ()))
    if not {"value", "names", "mesh"} <= fields <= _SHARED:
        return _no_key
    has_rules = "rules" in fields

    def read(box: Any) -> Key | None:
        value, names = box.value, box.names
        shape = _shape_reader(type(value))(value)
        rules = box.rules if has_rules else None
        if shape is None or not _is_plain(names) or not _is_plain_rules(rules):
            return None
        return (shape, names, kind, box.mesh, rules)

    return read


def _nnx_reader(kind: type) -> Callable[[Any], Key | None]:
    value_of = value_reader(kind)
    return lambda box: variable_key(kind, value_of(box), nnx_names(box.get_metadata()))


def variable_key(kind: type, value: Any, names: Any) -> Key | None:
    """Return the key of a box of NNX by what it holds."""
    shape: ir.Shape | None = _shape_reader(type(value))(value)
    return None if shape is None or not _is_plain(names) else (shape, names, kind)


@remembered
def _shape_reader(kind: type) -> Callable[[Any], ir.Shape | None]:
    """Return what reads the sizes of what a box holds; None for what is no array, or a box."""
    if is_box(kind) or key_reader(kind) is _hole_key:
        return _no_key
    return attrgetter("shape") if is_jaxs(kind) else shape_of


def _is_plain_rules(rules: Any) -> bool:
    """Say whether rules are texts in tuples, as most authors write them."""
    if rules is None or type(rules) is str:
        return True
    return type(rules) is tuple and all(map(_is_plain_rules, rules))


def _is_plain(names: Any) -> bool:
    """Say whether names are as most authors write them, and can be compared with others."""
    if type(names) is not tuple:
        return names is None
    for name in names:  # noqa: SIM110 (faster, and asked for every box)
        if name is not None and type(name) is not str:
            return False
    return True


#: Names that nothing but optimizer state has.
STATE_NAMES = frozenset(("opt_state", "optimizer_state", "param_states"))

#: The field by which a mapping may be a state of optax.
COUNT = "count"

#: States of optax that are not called so.
_STATES = frozenset(("ApplyEvery", "WeightDecaySchedule"))


def is_state(node: Any) -> bool:
    """Say whether a node is optimizer state, whatever it is called."""
    test = _state_test(type(node))
    return test is not None and test(node)


def is_spread_out(node: Any) -> bool:
    """Say whether a mapping has the fields of a state of optax."""
    return COUNT in node and frozenset(map(str, node)) in optax_fields()


def names_state(node: Any) -> bool:
    """Say whether a node calls one of its children optimizer state."""
    test = _names_test(type(node))
    return test is not None and test(node)


def may_be_state(kind: type) -> bool:
    """Say whether a node of a type is optimizer state, or might call a child so, by its fields."""
    is_state = is_optimizer_variable(kind) or is_of_optax(kind)
    return is_state or not STATE_NAMES.isdisjoint(_fields(kind))


def is_of_optax(kind: type) -> bool:
    """Say whether a type is one that optax keeps its state in."""
    if not issubclass(kind, tuple) or kind.__module__.partition(".")[0] != "optax":
        return False
    return kind.__name__.endswith("State") or kind.__name__ in _STATES


def optax_fields() -> frozenset[frozenset[str]]:
    """Return the fields of each state of optax that counts its steps beside other arrays."""
    if "optax" not in sys.modules:
        return frozenset()
    return _optax_fields(tuple(name for name in [*sys.modules] if name.startswith("optax.")))


@lru_cache(maxsize=1)
def _optax_fields(names: tuple[str, ...]) -> frozenset[frozenset[str]]:
    modules = [sys.modules[name] for name in names]
    kinds = {kind for each in modules for kind in vars(each).values() if isinstance(kind, type)}
    found = (frozenset(_fields(kind)) for kind in kinds if is_of_optax(kind))
    return frozenset(fields for fields in found if COUNT in fields and len(fields) > 1)


def _fields(kind: type) -> tuple[str, ...]:
    return (*getattr(kind, "__dataclass_fields__", ()), *getattr(kind, "_fields", ()))


@remembered
def _state_test(kind: type) -> Callable[[Any], bool] | None:
    """Return what says whether a node of a type is optimizer state; None where none is."""
    if is_box(kind):
        return _always if is_optimizer_variable(kind) else None
    if is_of_optax(kind):
        return _always
    return is_spread_out if issubclass(kind, Mapping) else None


def _always(_: Any) -> bool:
    return True


@remembered
def _names_test(kind: type) -> Callable[[Any], bool] | None:
    if issubclass(kind, Mapping):
        return lambda node: not STATE_NAMES.isdisjoint(node)
    return None if STATE_NAMES.isdisjoint(_fields(kind)) else _always


#: What JAX raises for a value it cannot use.
UNUSABLE = (TypeError, ValueError, RuntimeError, NotImplementedError)


#: Iterables that are no sequence of names or sizes.
_UNORDERED = (bytes, Mapping, Set)


def kind_of(value: Any) -> str:
    """Return what a message calls a value: itself where it is short, else its type.

    >>> kind_of(5.0), kind_of(None), kind_of([1, 2])
    ('5.0', 'None', 'a `list`')
    """
    if value is None or isinstance(value, bool | int | float):
        return f"{value}"
    return f"a `{type(value).__name__}`"


def require_call(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Refuse arguments that do not fit a function of the user, by the names of its parameters.

    >>> require_call(lambda params, batch: batch, [0], {})
    Traceback (most recent call last):
    TypeError: `<lambda>(params, batch)` is given no `batch`: pass what one call of it takes

    Raises:
      TypeError: it is no function, a parameter has no value, or a value has no parameter.
    """
    if not callable(function):
        raise TypeError(f"a step is a function, not {kind_of(function)}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # of a builtin, which JAX will say
    inner = getattr(function, "func", function)  # of a `functools.partial`
    name = getattr(inner, "__name__", type(inner).__name__)
    called = f"`{name}({', '.join(signature.parameters)})`"
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError as error:
        raise TypeError(f"{called} cannot be called so: {error}") from None
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    missing = [
        each.name
        for each in signature.parameters.values()
        if each.name not in given and each.default is each.empty and each.kind not in optional
    ]
    if missing:
        raise TypeError(f"{called} is given no {listed(missing)}: pass what one call of it takes")


def names_given(names: Any) -> str | tuple[str | None, ...]:
    """Return logical axes as they may be asked for.

    Raises:
      TypeError: they are no string, and no sequence of strings and None.
    """
    if isinstance(names, str):
        return names
    if _is_partition(names):
        raise TypeError(
            'logical axes are a string such as "batch embed", not a PartitionSpec, which has mesh'
            " axes: `jax.lax.with_sharding_constraint` takes that"
        )
    is_array = hasattr(names, "dtype")
    if not is_array and isinstance(names, Iterable) and not isinstance(names, _UNORDERED):
        found = tuple(names)
        wrong = [each for each in found if each is not None and not isinstance(each, str)]
        if not wrong:
            return found
        raise TypeError(f"a logical axis is a string or None, not {wrong[0]!r}")
    raise TypeError(f'logical axes are a string such as "batch embed", not {kind_of(names)}')


def sizes_given(shape: Any) -> tuple[Any, ...]:
    """Return the sizes of a shape: numbers, or the symbols of `jax.export`.

    Raises:
      TypeError: it is no sequence, or has something else in it.
      ValueError: a size is negative.
    """
    if isinstance(shape, (str, *_UNORDERED)) or not isinstance(shape, Iterable):
        more = ": pass its `shape`" if hasattr(shape, "shape") else ""
        raise TypeError(f"a shape is a sequence of numbers, not {kind_of(shape)}{more}")
    dims, dtype = getattr(shape, "ndim", 1), getattr(shape, "dtype", None)
    if dims != 1 or getattr(dtype, "kind", "i") not in "iu":
        raise TypeError(f"a shape is a sequence of numbers, not {kind_of(shape)}: pass its `shape`")
    return tuple(map(_size, shape))


def _size(size: Any) -> Any:
    if type(size).__module__.partition(".")[0] == "jax" and not isinstance(size, jax.Array):
        return size  # a symbol
    found = _index(size)
    if found is None:
        raise TypeError(f"a size is a whole number, not {kind_of(size)}")
    if found < 0:
        raise ValueError(f"a size is not negative: {found}")
    return found


def _index(value: Any) -> int | None:
    """Return a whole number as Python's own, None for what is none."""
    try:
        return operator.index(value)
    except (TypeError, RuntimeError):  # an array that is traced, or deleted
        return None


def count_given(count: Any) -> int | None:
    """Return a number of rows, None where none is given.

    Raises:
      TypeError, ValueError: it is no number, or not positive.
    """
    if count is None:
        return None
    found = None if isinstance(count, bool) else _index(count)
    if found is None:
        raise TypeError(f"global_batch is a whole number, not {kind_of(count)}")
    if not 0 < found < 1 << 63:
        raise ValueError(f"global_batch is a number of rows, not {found}")
    return found


def process_given(process: Any, mesh: Any) -> int | None:
    """Return a process that has devices of a mesh, None for this one.

    Raises:
      TypeError, ValueError: it is no number, or has none.
    """
    if process is None:
        return None
    if isinstance(process, bool) or not isinstance(process, int):
        raise TypeError(f"a process is a number, not {kind_of(process)}")
    known = sorted({device.process_index for device in mesh.devices.flat})
    if process not in known:
        shown = ", ".join(map(str, known[:8])) + (", ..." if len(known) > 8 else "")
        raise ValueError(f"process {process} has no device in the mesh: it is of {shown}")
    return process


def path_given(path: Any) -> str:
    """Return the path of a file or folder.

    Raises:
      TypeError: it is none.
    """
    if isinstance(path, str | os.PathLike):
        found = os.fspath(path)
        if isinstance(found, str):
            return found
    raise TypeError(f"a path is a string or a `Path`, not {kind_of(path)}")


def kinds_given(kinds: Any) -> frozenset[str]:
    """Return the names of kinds of memory.

    Raises:
      TypeError: it is no collection of strings.
    """
    if isinstance(kinds, Iterable) and not isinstance(kinds, str | bytes):
        found = tuple(kinds)
        if all(isinstance(each, str) for each in found):
            return frozenset(found)
    shown = f'"{kinds}"' if isinstance(kinds, str) else kind_of(kinds)
    help = f": `({shown},)`" if isinstance(kinds, str) else ""
    raise TypeError(f"`memory_kinds` is a collection of strings, not {shown}{help}")


def devices_given(devices: Any) -> None:
    """Raise for what is neither a sequence of devices, nor None, nor `"abstract"`.

    Raises:
      TypeError: naming what it is.
    """
    if devices is None or (isinstance(devices, str) and devices == "abstract"):
        return
    if isinstance(devices, str):
        raise TypeError(f"`devices` is a sequence of devices, None or 'abstract', not {devices!r}")
    is_of_objects = getattr(getattr(devices, "dtype", None), "kind", "") == "O"
    if not isinstance(devices, Sequence) and not is_of_objects:
        raise TypeError(f"`devices` is a sequence such as `jax.devices()`, not {kind_of(devices)}")
    wrong = [each for each in devices if not hasattr(each, "device_kind")]
    if wrong:
        raise TypeError(f"`devices` has {kind_of(wrong[0])} in it, which is no device")


def refuse_no_tree(tree: Any) -> list[Any]:
    """Return the leaves; raise for what JAX cannot take apart, such as keys that do not sort.

    Raises:
      ShardspecError: saying why not.
    """
    try:
        return jax.tree_util.tree_leaves(tree)
    except (TypeError, ValueError) as error:
        first = str(error).partition("\n")[0].rstrip(".")
        help = "give all keys of one dict the same type"
        message = f"JAX cannot take the tree apart: {first}"
        diagnostic = Diagnostic(codes.WRONG_TYPE, message, help=help if "key" in first else None)
        raise ShardspecError((diagnostic,)) from None


def opened(node: Any) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the children of a node by their key paths, and its structure, one level deep.

    A leaf is its own only child, at no key.

    Raises:
      ShardspecError: JAX cannot take it apart, and why.
    """
    flat: Any
    structure: Any
    try:
        flat, structure = jax.tree_util.tree_flatten_with_path(
            node, is_leaf=lambda other: other is not node
        )
        return flat, structure
    except (TypeError, ValueError):
        refuse_no_tree(node)
        raise


def refuse_no_arrays(tree: Any, name: str) -> None:
    """Raise for what JAX cannot take apart, and for what has leaves and no array among them.

    An empty tree is fine, as the state of SGD is; so is what is no array beside arrays.

    Args:
      name: the argument that it is.

    Raises:
      TypeError: saying what to give instead.
      ShardspecError: JAX cannot take the tree apart.
    """
    leaves = refuse_no_tree(tree)
    if tree is not None and not leaves:
        return
    if any(shape_of(leaf) is not None or _is_partition(leaf) for leaf in leaves):
        return
    first = tree if tree is None else leaves[0]
    is_optimizer = hasattr(tree, "init") and hasattr(tree, "update")
    if first is not tree and callable(first) and not is_optimizer:
        return  # modules of Equinox hold functions, and some of them nothing else
    within = "" if first is tree else f" without any, whose first leaf is {_named_kind(first)}"
    found = f"{_named_kind(tree)}{within}"
    raise TypeError(f"`{name}` is a tree of arrays, not {found}: {_instead(first, name)}")


def _is_partition(leaf: Any) -> bool:
    """Say whether a leaf is a `PartitionSpec`, which has a finding of its own."""
    return isinstance(leaf, jax.sharding.PartitionSpec)


def _named_kind(value: Any) -> str:
    return repr(value) if isinstance(value, str) else kind_of(value)


def _instead(value: Any, name: str) -> str:
    """Return what to write instead of a leaf that is no array."""
    if isinstance(value, jax.sharding.Sharding):
        plan = ", or `resolver.plan` of those" if name in {"like", "params"} else ""
        return f"pass the arrays, boxed where they were, that the shardings are for{plan}"
    if isinstance(value, str):
        return 'for logical axes there is `resolver.sharding("batch embed")`'
    if isinstance(value, ShardingPlan):
        return "pass the arrays; `params` and `like=` take what `resolver.plan(arrays)` returns"
    if isinstance(value, Spec) or isinstance(getattr(value, "ir", None), Spec):
        return "a spec has rules; pass the arrays that they are for"
    if callable(value):
        return "pass what it returns, which is `jax.eval_shape(function, ...)` without a run"
    return "pass arrays or `ShapeDtypeStruct`s, in dicts, lists, tuples or classes of JAX"


def refuse_unmovable(tree: Any, verb: str, *, sums: bool = False) -> None:
    """Raise for the first array of a tree that has no values to move.

    Args:
      verb: what was to be done, for the message.
      sums: whether partial sums may be among them.

    Raises:
      ShardspecError: it is abstract, traced, deleted, or holds partial sums.
    """
    if not any(_unmovable(leaf, "", verb, sums) for leaf in jax.tree_util.tree_leaves(tree)):
        return
    for leaf in leaves_of(tree):
        if leaf.shape is not None:
            name = f"`{leaf.path}`" if leaf.path else "the array"
            found = _unmovable(leaf.value, name, verb, sums)
            if found is not None:
                raise ShardspecError((found,))


def _unmovable(value: Any, name: str, verb: str, sums: bool = False) -> Diagnostic | None:
    if isinstance(value, jax.ShapeDtypeStruct):
        message = f"{name} is a ShapeDtypeStruct, which has no values to put anywhere"
        help = "make the arrays first: `jax.jit(init, out_shardings=resolver.shardings(tree))`"
    elif isinstance(value, jax.core.Tracer):
        message = f"{name} is being traced: `{verb}` moves arrays that are there"
        help = (
            f"call `{verb}` outside of `jax.jit`; inside it,"
            " `jax.lax.with_sharding_constraint(tree, resolver.shardings(tree))`"
        )
    elif isinstance(value, jax.Array) and value.is_deleted():
        message = f"{name} has been deleted, or donated to a `jax.jit`, and has no values any more"
        help = "use what came out of the `jax.jit` that it was donated to"
    elif (axes := unreduced_axes(getattr(value, "sharding", None))) and not sums:
        message = f"{name} holds partial sums, one on each part of {', '.join(axes)}"
        help = "`jax.sharding.reshard(array, partition_spec)` in `jax.set_mesh` sums them up"
    else:
        return None
    return Diagnostic(codes.WRONG_TYPE, message, help=help)


def unreduced_axes(sharding: Any) -> tuple[str, ...]:
    """Return the mesh axes over which an array holds partial sums."""
    found = getattr(getattr(sharding, "spec", None), "unreduced", None)
    return tuple(sorted(map(str, found or ())))


def mesh_axes_of_sums(sharding: Any) -> tuple[str, ...]:
    """Return the mesh axes of all sums of a sharding, `unreduced` and `reduced`."""
    found = getattr(getattr(sharding, "spec", None), "reduced", None)
    return (*unreduced_axes(sharding), *sorted(map(str, found or ())))


def refuse_unusable(array: Any, name: str, error: Exception, verb: str) -> None:
    """Raise a finding for an array that JAX has refused, if that is about the array.

    Raises:
      ShardspecError: it has no values, or is of a kind that no device takes.
    """
    if isinstance(array, jax.core.Tracer):
        return
    shown = f"`{name}`" if name else "the array"
    found = _unmovable(array, shown, verb)
    if found is None and not isinstance(array, jax.Array):
        first = str(error).partition("\n")[0].rstrip(".")
        found = Diagnostic(codes.WRONG_TYPE, f"JAX cannot take {shown}, {kind_of(array)}: {first}")
    if found is not None:
        raise ShardspecError((found,)) from None


def argument_names(function: Callable[..., Any], count: int, keywords: Sequence[str]) -> list[str]:
    """Return what the function calls each of its arguments; by number where it does not say."""
    try:
        kinds = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        kinds = ()  # type: ignore[assignment]
    known = [each.name for each in kinds if each.kind is not inspect.Parameter.VAR_POSITIONAL]
    return [known[at] if at < len(known) else str(at) for at in range(count)] + list(keywords)
