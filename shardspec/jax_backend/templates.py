"""Layers that differ in a number only, and patterns that cannot tell them apart.

`decoder/layers_7/mlp/wi/kernel` and `decoder/layers_8/mlp/wi/kernel` get the same answer from
`**/mlp/wi/kernel`, and from every pattern that says nothing about the 7. So each number in a
path is replaced by a mark, unless a pattern names it, and one array stands for all that share
the result: the *template*.

This holds only for patterns whose answer cannot depend on a number they do not name. `*1`
does (it takes 21 and not 20), and so does `layer_.` (7 and not 10). Where one pattern is of
that kind there are no templates, and every path is matched.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from shardspec.ir.spec import Pattern
from shardspec.jax_backend.boxes import box_test
from shardspec.jax_backend.paths import PARAMS, component

#: Stands for a number; no path has it in a component that JAX or Flax made.
MARK = "\x00"

_NUMBER = re.compile(r"[0-9]+")

#: A glob's component that names numbers: plain text, and braces of plain texts or a range,
#: no digit next to a brace, where two numbers would become one.
_PLAIN = r"[^{}*?\[\]\\,]*"
_NUMBERED = re.compile(rf"{_PLAIN}(?:(?<![0-9}}])\{{[^{{}}*?\[\]\\/]*\}}(?![0-9{{]){_PLAIN})*")
_RANGE = re.compile(r"\{(0|[1-9][0-9]{0,4})\.\.(0|[1-9][0-9]{0,4})\}")

#: A regex between two of its `/`: text without digits, alternatives of such text, anything
#: that may be empty, and at most one piece that takes one character or more.
_TEXT = r"[A-Za-z_\-~]|\\[.\-_]|\(\?:|\(|\)\??|\||\.\*|\\w\*|\\d\*|\[0-9\]\*"
_RUN = r"\.\+|\\w\+|\\d\+|\[0-9\]\+"
_BLIND = re.compile(rf"\^?(?:{_TEXT})*(?:(?:{_RUN})(?:{_TEXT})*)?\$?")


def template_maker(patterns: Iterable[Pattern]) -> Callable[[str], str] | None:
    """Return the function that makes a path's template, or None where paths must be matched.

    Invariants:
      same_template: paths with one template match the same of `patterns`.
    """
    kept: set[str] = set()
    for pattern in patterns:
        named = numbers_named(pattern)
        if named is None:
            return None
        kept |= named

    def replaced(number: re.Match[str]) -> str:
        return number.group() if number.group() in kept else MARK

    return lambda path: _NUMBER.sub(replaced, path)


def numbers_named(pattern: Pattern) -> frozenset[str] | None:
    """Return the numbers a pattern names; None where others may change its answer as well.

    >>> sorted(numbers_named(Pattern("**/mlp/wi_{0,1}/kernel")))
    ['0', '1']
    >>> numbers_named(Pattern("layers_*1/kernel")) is None
    True
    """
    if pattern.dialect == "regex":
        parts = pattern.text.replace("[^/]", r"\w").split("/")
        return frozenset() if all(map(_is_blind, parts)) else None
    named: set[str] = set()
    for part in pattern.text.split("/"):
        if "\\" in part or "?" in part or "[" in part:
            return None
        if not _NUMBER.search(part):
            continue
        if not _NUMBERED.fullmatch(part):
            return None
        for low, high in _RANGE.findall(part):
            named.update(map(str, range(int(low), int(high) + 1)))
        if ".." in _RANGE.sub("", part):
            return None
        named.update(_NUMBER.findall(part))
    return frozenset(named)


def _is_blind(part: str) -> bool:
    """Say whether a regex between two `/` outside of groups takes any number for any other."""
    return part.count("(") == part.count(")") and _BLIND.fullmatch(part) is not None


@dataclass(frozen=True, slots=True)
class Templates:
    """The templates of a tree.

    Attributes:
      nodes: its leaves and boxes, in the order in which JAX flattens it.
      of_nodes: the template of each.
      samples: template -> the first path that has it.
    """

    nodes: list[Any]
    of_nodes: list[str]
    samples: dict[str, str]


def templates_of(tree: Any, make: Callable[[str], str]) -> Templates:
    """Return the templates of a tree's nodes, made once for all layers of one structure."""
    walk = _Walk(Templates([], [], {}), make, box_test(), {})
    walk.take(tree, "", at_root=True)
    return walk.found


@dataclass(frozen=True, slots=True)
class _Walk:
    """The walk over one tree, down to the nodes whose key has a number."""

    found: Templates
    make: Callable[[str], str]
    stop: Callable[[Any], bool]
    known: dict[tuple[str, Any], list[str]]

    def take(self, node: Any, path: str, *, at_root: bool = False) -> None:
        """Note everything below `node`, whose path is `path` (with a `/` at its end)."""
        for key, child in _children(node):
            text = component(key)
            inside = not self.stop(child) and not _is_leaf(child)
            if not inside or _NUMBER.search(text):
                self._take_all(child, path + text)
            else:
                self.take(child, "" if at_root and text == PARAMS else f"{path}{text}/")

    def _take_all(self, node: Any, path: str) -> None:
        import jax

        leaves, treedef = jax.tree_util.tree_flatten(node, is_leaf=self.stop)
        key = (self.make(path), treedef)
        templates = self.known.get(key)
        if templates is None:
            templates = self.known[key] = self._made(node, path)
        self.found.nodes.extend(leaves)
        self.found.of_nodes.extend(templates)

    def _made(self, node: Any, path: str) -> list[str]:
        import jax

        flat, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=self.stop)
        paths = ["/".join((path, *map(component, keys))) for keys, _ in flat]
        templates = list(map(self.make, paths))
        for template, whole in zip(templates, paths, strict=True):
            self.found.samples.setdefault(template, whole)
        return templates


def _children(node: Any) -> list[tuple[Any, Any]]:
    """Return the children of a node with their keys, in JAX's order."""
    import jax

    flat, _ = jax.tree_util.tree_flatten_with_path(node, is_leaf=lambda other: other is not node)
    return [(keys[0], child) for keys, child in flat if keys]


def _is_leaf(node: Any) -> bool:
    if type(node) is dict:
        return False
    import jax

    structure = jax.tree_util.tree_structure(node, is_leaf=lambda other: other is not node)
    return jax.tree_util.treedef_is_leaf(structure)
