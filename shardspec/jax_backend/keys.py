"""What decides the sharding of one node, short of its path: its *key*.

Shape and names do, and a model has a dozen such pairs however many layers it has. A key also
holds what else a box of Linen is made of, so that equal keys can share one box around the
answer. Reading a key is what the fast way over a tree spends its time on, so the reader is
chosen once per type of node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from shardspec.jax_backend.arrays import SCALARS, shape_of
from shardspec.jax_backend.boxes import (
    box_maker,
    box_names,
    box_test,
    box_value,
    is_box,
    is_linen,
    is_nnx,
    nnx_names,
    nnx_value,
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
