"""Leaves of a saved tree -> `Param`s, under the paths that the live tree has.

A checkpoint of a Linen or NNX model holds one component more than the tree it was saved from:
a box (`Partitioned`, `Param`) is saved as a node whose only child is called `value`. That
component is left out, as the box is in a live tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from shardspec.ir.param import Param, Params, Shape
from shardspec.ir.tree_path import tree_path

_BOXED = "value"


class Leaf(NamedTuple):
    """An array of a saved tree: the keys from the root down, and what it is."""

    keys: tuple[str, ...]
    shape: Shape
    dtype: str


def params_of_leaves(leaves: Sequence[Leaf]) -> Params:
    """Return the arrays of a saved tree."""
    paths = paths_of([leaf.keys for leaf in leaves])
    return tuple(
        Param(path, leaf.shape, leaf.dtype) for path, leaf in zip(paths, leaves, strict=True)
    )


def paths_of(routes: Sequence[tuple[str, ...]]) -> list[str]:
    """Return the path of each leaf, the components that boxes add left out.

    >>> paths_of([("params", "kernel", "value"), ("params", "bias")])
    ['kernel', 'bias']
    """
    children = Counter(keys[:-1] for keys in routes)
    below = {keys[:depth] for keys in routes for depth in range(1, len(keys) - 1)}
    return [tree_path(keys[:-1] if _is_boxed(keys, children, below) else keys) for keys in routes]


def _is_boxed(
    keys: tuple[str, ...], children: Counter[tuple[str, ...]], below: set[tuple[str, ...]]
) -> bool:
    """Say whether the last key is the only one of its node, and a box's."""
    parent = keys[:-1]
    return len(keys) > 1 and keys[-1] == _BOXED and children[parent] == 1 and parent not in below
