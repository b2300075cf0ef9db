"""Plan -> NamedShardings of a live tree, fast: one look-up per array.

The tree is flattened once, in C. What decides an array's sharding is its shape and its names,
and a model has a dozen such pairs however many layers it has. So every pair is resolved and
checked once, and every distinct spec has one `NamedSharding` object. Paths are made only
where the answer depends on them: overrides, and arrays that leave their names to `params:`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardspec.ir.param import Param
from shardspec.ir.plan import DimSharding
from shardspec.jax_backend.arrays import (
    SCALARS,
    Leaf,
    dtype_of,
    leaves_of,
    logical_axes,
    names_beside,
)
from shardspec.jax_backend.boxes import box_test, box_value, is_linen, is_nnx, nnx_names, nnx_value
from shardspec.jax_backend.faults import raise_faults
from shardspec.jax_backend.templates import Templates, template_maker, templates_of
from shardspec.resolve.resolver import ArrayResolver

if TYPE_CHECKING:
    import jax

#: The fields of the Linen boxes that many nodes can share.
_SHARED = {"value", "names", "mesh", "rules"}

#: The shape and the names of an array, and what else its box is made of. No shape: the box is
#: not known here.
Key = tuple[Any, ...]

#: What reading a key raises where the node is not one array, or a name cannot be hashed.
_UNREADABLE = (AttributeError, TypeError)


def partition_entries(dims: Sequence[DimSharding]) -> tuple[Any, ...]:
    """Return what `jax.sharding.PartitionSpec` takes, one entry for every dimension.

    One mesh axis is a string, several are a tuple, none is None. Trailing Nones stay, so the
    length is always the rank: JAX holds `P('a', None)` and `P('a')` for different.
    """
    entries = (dim.mesh_axes for dim in dims)
    return tuple(None if not axes else axes[0] if len(axes) == 1 else axes for axes in entries)


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Keep the garbage collector off while a tree is taken apart and put together.

    That makes many containers and no garbage, and the collector would walk the whole model
    several times for nothing.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(frozen=True, slots=True)
class TreePlacer:
    """The shardings of trees on one mesh, remembered by shape, names and template.

    Attributes:
      template: makes a path's template; None where the patterns of the spec allow none.
    """

    arrays: ArrayResolver
    mesh: jax.sharding.Mesh
    template: Callable[[str], str] | None = field(repr=False)
    _by_spec: dict[Any, jax.sharding.NamedSharding] = field(default_factory=dict, repr=False)
    _by_key: dict[Any, jax.sharding.NamedSharding] = field(default_factory=dict, repr=False)
    _boxed: dict[Any, Any] = field(default_factory=dict, repr=False)

    def named(self, dims: Sequence[DimSharding]) -> jax.sharding.NamedSharding:
        """Return the one sharding object for this answer."""
        import jax

        partition_spec: Any = jax.sharding.PartitionSpec
        spec = partition_spec(*partition_entries(dims))
        found = self._by_spec.get(spec)
        if found is None:
            found = self._by_spec[spec] = jax.sharding.NamedSharding(self.mesh, spec)
        return found

    def place(self, tree: Any, *, boxed: bool = True) -> Any:
        """Return `tree` with a sharding for every array, None for a leaf that is none.

        Args:
          boxed: whether the boxes of Flax stay around the shardings.
        """
        import jax

        treedef: Any
        with collector_at_rest():
            nodes, treedef = jax.tree_util.tree_flatten(tree, is_leaf=box_test())
            parts = None if names_beside(tree) else self._remembered(nodes, tree, boxed)
            if parts is None:
                parts = _parts_of(nodes, iter(self._by_path(leaves_of(tree), tree)), boxed)
            return treedef.unflatten(parts)

    def _remembered(self, nodes: list[Any], tree: Any, boxed: bool) -> list[Any] | None:
        """Return what stands in place of each node; None where only its whole path decides."""
        parts = self._parts(Templates(nodes, [], {}), tree, boxed)
        if parts is None and self.template is not None:
            return self._parts(templates_of(tree, self.template), tree, boxed)
        return parts

    def _parts(self, found: Templates, tree: Any, boxed: bool) -> list[Any] | None:
        """Return what stands in place of each node; None where its key does not decide."""
        answers = self._boxed if boxed else self._by_key
        try:
            parts = [answers[key] for key in _keys(found)]
        except (KeyError, *_UNREADABLE):
            return self._parts(found, tree, boxed) if self._learnt(found, tree) else None
        if boxed and any(map(is_nnx, set(map(type, found.nodes)))):
            flat = (self._by_key[key] for key in _keys(found))
            parts = list(map(_in_box, found.nodes, flat, parts))
        return parts

    def _by_path(
        self, leaves: Sequence[Leaf], tree: Any
    ) -> list[jax.sharding.NamedSharding | None]:
        """Return the sharding of each leaf by its path, None for one that is no array."""
        params = [leaf.param for leaf in leaves]
        resolved = [None if param is None else self.arrays.resolve(param) for param in params]
        # The resolver keeps equal dims as one object, which lives as long as it does.
        distinct = {
            (id(found.dims), found.origin, found.mismatch): found for found in resolved if found
        }
        raise_faults(self.arrays, tuple(distinct.values()), tree)
        known = {id(found.dims): self.named(found.dims) for found in distinct.values()}
        return [None if found is None else known[id(found.dims)] for found in resolved]

    def _learnt(self, found: Templates, tree: Any) -> bool:
        """Resolve what is new in a tree; False where keys do not decide."""
        fresh: dict[Any, Any] = {}
        try:
            for key, node in zip(_keys(found), found.nodes, strict=True):
                if key in self._by_key or key in fresh:
                    continue
                shape, names = (key[0] if found.of_nodes else key)[:2]
                if shape is None or (names_need_path(self.arrays, names) and not found.of_nodes):
                    return False
                fresh[key] = node
        except _UNREADABLE:
            return False
        self._learn(fresh, found, tree)
        return True

    def _learn(self, fresh: dict[Any, Any], found: Templates, tree: Any) -> None:
        """Resolve and check the first node of every new key."""
        resolved = {}
        for key, node in fresh.items():
            own, path = (key[0], found.samples[key[1]]) if found.of_nodes else (key, "")
            names = logical_axes(own[1], path)
            param = Param(path, tuple(own[0]), dtype_of(_content(node)), names)
            resolved[key] = self.arrays.resolve(param)
        raise_faults(self.arrays, tuple(resolved.values()), tree)
        for key, sharding in resolved.items():
            named = self.named(sharding.dims)
            self._by_key[key] = named
            self._boxed[key] = _shared_box(fresh[key], named)


def tree_placer(arrays: ArrayResolver, mesh: jax.sharding.Mesh) -> TreePlacer:
    """Return the shardings of trees on `mesh`, none of them known yet."""
    spec = arrays.spec
    patterns = [
        *(override.pattern for override in spec.overrides),
        *(rule.pattern for rule in spec.path_rules),
        *(scan.pattern for scan in spec.scans),
    ]
    return TreePlacer(arrays, mesh, template_maker(patterns))


def names_need_path(arrays: ArrayResolver, names: Any) -> bool:
    """Say whether an array that carries `names` is named, or named anew, by its path."""
    return arrays.names.needs_paths or (names is None and bool(arrays.spec.path_rules))


def _keys(found: Templates) -> Iterator[Any]:
    """Yield what decides the answer for each node: its key, and its template where they count."""
    readers = _Readers()
    if not found.of_nodes:
        return (readers[type(node)](node) for node in found.nodes)
    pairs = zip(found.nodes, found.of_nodes, strict=True)
    return ((readers[type(node)](node), template) for node, template in pairs)


def _content(node: Any) -> Any:
    return box_value(node) if box_test()(node) else node


def _shared_box(node: Any, sharding: Any) -> Any:
    """Return a box that every node like this one can share; None where each needs its own.

    Linen's boxes are frozen, so one will do. NNX's are not.
    """
    if is_nnx(type(node)):
        return None
    return node.replace_boxed(sharding) if is_linen(type(node)) else sharding


def _in_box(node: Any, sharding: Any, shared: Any) -> Any:
    """Return the box that is shared, or one like `node` that holds `sharding`."""
    import jax

    if shared is not None:
        return shared
    structure: Any = jax.tree_util.tree_structure(node)
    return structure.unflatten((sharding,))


def _parts_of(nodes: Sequence[Any], flat: Iterator[Any], boxed: bool) -> list[Any]:
    """Return what stands in place of each node, with its leaves taken from `flat`."""
    import jax

    parts = []
    for node in nodes:
        structure: Any = jax.tree_util.tree_structure(node if boxed else _content(node))
        parts.append(structure.unflatten([next(flat) for _ in range(structure.num_leaves)]))
    return parts


class _Readers(dict[type, Callable[[Any], Key]]):
    """Type of a node -> how to read its key; filled as types are met."""

    def __missing__(self, kind: type) -> Callable[[Any], Key]:
        """Return the reader of a type that was not met before."""
        reader = _reader(kind)
        self[kind] = reader
        return reader


def _reader(kind: type) -> Callable[[Any], Key]:
    if is_nnx(kind):
        return lambda box: (nnx_value(box).shape, nnx_names(box), kind)
    if is_linen(kind):
        fields = set(getattr(kind, "__dataclass_fields__", ()))
        if not {"value", "names", "mesh"} <= fields <= _SHARED:
            return _no_key
        return _logical_key if "rules" in fields else _linen_key
    return _number_key if kind in SCALARS else _array_key


def _array_key(node: Any) -> Key:
    return (node.shape, None)


def _number_key(node: Any) -> Key:
    return ((), None)


def _no_key(node: Any) -> Key:
    return (None, None)


# mesh and rules are part of a box's structure, which the result must share


def _linen_key(box: Any) -> Key:
    return (box.value.shape, box.names, type(box), box.mesh)


def _logical_key(box: Any) -> Key:
    return (box.value.shape, box.names, type(box), box.mesh, box.rules)
