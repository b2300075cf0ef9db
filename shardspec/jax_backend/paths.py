"""One path for one array, whatever holds it: a dict, a module, a Linen or an NNX model.

A path is the `/`-joined components from the root of the tree down to the array. A dict gives
its key, a list or tuple the index, a class the name of the field, a custom node without names
the index of the child. Boxes that hold an array and its metadata (Flax Linen's `Partitioned`,
NNX's `Variable`) are part of the array and add no component.

The collection `params` of a Linen variables dict adds none either, as in T5X, so one spec
serves Linen, NNX and plain trees. Other collections keep their name: `batch_stats/bn/mean`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

#: The one component that is dropped, at the root only.
PARAMS = "params"

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
            return str(value)
    return str(key).strip(".[]'\"")


def path_of(key_path: Sequence[Any]) -> str:
    """Return the path of the array at `key_path`, a key path of `jax.tree_util`."""
    components = [component(key) for key in key_path]
    if len(components) > 1 and components[0] == PARAMS:
        del components[0]
    return "/".join(components)
