"""One path for one array, whatever holds it: a dict, a module, a Linen or an NNX model.

A path is the `/`-joined components from the root of the tree down to the array. A dict gives
its key, a list or tuple the index, a class the name of the field, a custom node without names
the index of the child. A key that is a tuple, as in a flattened dict, gives its parts. Boxes
that hold an array and its metadata (Flax Linen's `Partitioned`, NNX's `Variable`) are part of
the array and add no component.

What else adds none is said in `ir/tree_path`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from shardspec.ir.tree_path import rooted

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
