"""Shardings of a tree whose arrays are named by their paths: layer by layer.

The walk goes down to the first key that has a number, and takes what lies under it as one
*layer*. Layers whose paths have one template, and that are alike in structure, shapes and
names, share their answers, so only the first of them has its paths made. Every layer still
gets containers of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from shardspec.ir.tree_path import rooted
from shardspec.jax_backend.answers import Answers, param_of
from shardspec.jax_backend.boxes import box_test
from shardspec.jax_backend.keys import UNREADABLE, KeyReader
from shardspec.jax_backend.paths import component, key_text
from shardspec.jax_backend.templates import has_number


class PathDecides(Exception):  # noqa: N818
    """Raised where a layer's answer is not decided by its keys and templates."""


class LayerWalk:
    """The walk over one tree."""

    def __init__(
        self, tree: Any, answers: Answers, template: Callable[[str], str], *, boxed: bool
    ) -> None:
        """Start with nothing known.

        Args:
          template: makes a path's template.
          boxed: whether the boxes of Flax stay around the shardings.
        """
        import jax

        self._flatten = jax.tree_util.tree_flatten
        self._tree = tree
        self._answers = answers
        self._template = template
        self._boxed = boxed
        self._known = answers.boxed if boxed else answers.by_key
        self._reader = KeyReader()
        self._is_box = box_test()
        self._has_boxes = False
        self._leaf_kinds: dict[type, bool] = {}
        self._layers: dict[Any, list[Any]] = {}

    def placed(self) -> Any:
        """Return the tree with a sharding for every array, None for a leaf that is none.

        Raises:
          PathDecides: an array's answer depends on the whole of its path.
        """
        tree = self._tree
        return self._layer(tree, "") if self._is_whole(tree, "") else self._walk(tree, "")

    def _walk(self, node: Any, above: str) -> Any:
        """Return what is below `node`, whose path is `above`, a `/` at its end."""
        texts, children, structure = _opened(node)
        return structure.unflatten(
            [
                self._layer(child, above + text)
                if self._is_whole(child, text)
                else self._walk(child, f"{above}{text}/")
                for text, child in zip(texts, children, strict=True)
            ]
        )

    def _is_whole(self, node: Any, text: str) -> bool:
        """Say whether a node is taken as one layer; whether it is a leaf is told by its type."""
        if has_number(text) or self._is_box(node):
            return True
        kind = type(node)
        if kind not in self._leaf_kinds:
            self._leaf_kinds[kind] = _is_leaf(node)
        return self._leaf_kinds[kind]

    def _layer(self, layer: Any, path: str) -> Any:
        """Return one layer with its answers, those of the one before it that is alike."""
        # JAX asks about boxes only from the first that was found
        stop = self._is_box if self._has_boxes else None
        structure: Any
        nodes, structure = self._flatten(layer, is_leaf=stop)
        try:
            outline = (self._template(path), structure, self._reader.outline(nodes))
            found = self._layers.get(outline)
        except UNREADABLE:
            raise PathDecides from None
        if found is None:
            if stop is None and any(map(self._is_box, self._flatten(layer, self._is_box)[0])):
                self._has_boxes = True
                return self._layer(layer, path)
            found = self._layers[outline] = self._answered(layer, nodes, path)
        if self._boxed and self._has_boxes:
            found = self._reader.renewed(nodes, found)
        return structure.unflatten(found)

    def _answered(self, layer: Any, nodes: Sequence[Any], path: str) -> list[Any]:
        """Return the answers for the nodes of a layer that is like no other so far."""
        paths = self._paths(layer, path)
        try:
            keys = list(zip(self._reader.keys(nodes), map(self._template, paths), strict=True))
            places = {key: place for place, key in enumerate(keys) if key not in self._known}
            params = [param_of(key[0], nodes[at], paths[at]) for key, at in places.items()]
        except UNREADABLE:
            raise PathDecides from None
        self._answers.learn({key: nodes[at] for key, at in places.items()}, params, self._tree)
        return [self._known[key] for key in keys]

    def _paths(self, layer: Any, above: str) -> list[str]:
        import jax

        flat, _ = jax.tree_util.tree_flatten_with_path(layer, is_leaf=self._is_box)
        return [rooted("/".join((above, *map(component, keys)))) for keys, _ in flat]


def _opened(node: Any) -> tuple[Sequence[str], Sequence[Any], Any]:
    """Return the components of a node's children, the children, and the node's own structure."""
    import jax

    structure: Any
    children, structure = jax.tree_util.tree_flatten(node, is_leaf=lambda other: other is not node)
    if type(node) is dict:
        return list(map(key_text, structure.node_data()[1])), children, structure
    flat, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda other: other is not node)
    return [component(keys[0]) for keys, _ in flat], children, structure


def _is_leaf(node: Any) -> bool:
    """Say whether a node is one that JAX does not look into."""
    import jax

    structure: Any = jax.tree_util.tree_structure(node, is_leaf=lambda other: other is not node)
    return bool(structure.num_nodes == structure.num_leaves)
