"""A value of a foreign file with its place: one shape for Python, gin, JSON and YAML."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from shardspec.diagnostics import Span

Kind = Literal[
    "text", "number", "boolean", "nothing", "list", "mapping", "call", "name", "unreadable"
]

MOST_VALUES = 200_000
"""Values in one; names that stand for lists of names can ask for billions."""

DEEPEST = 50
"""Levels of lists in one another."""


@dataclass(frozen=True, slots=True)
class Node:
    """A value.

    Attributes:
      text: of text; the name of a call (`PartitionSpec`, `jax.sharding.PartitionSpec`) or of a
        name; the reason, of what cannot be read without running it.
      number: of a number or boolean.
      items: of a list or tuple; values of a mapping; positional arguments of a call.
      keys: of a mapping, beside `items`.
      keywords: arguments of a call by name.
      size: values in it, itself included.
    """

    kind: Kind
    span: Span = field(compare=False, repr=False)
    text: str = ""
    number: float | int = 0
    items: tuple[Node, ...] = ()
    keys: tuple[Node, ...] = ()
    keywords: tuple[tuple[str, Node], ...] = ()
    size: int = field(default=1, compare=False, repr=False)

    @property
    def is_list(self) -> bool:
        """Say whether it is a list or tuple."""
        return self.kind == "list"

    @property
    def last_name(self) -> str:
        """Return the last part of a dotted name."""
        return self.text.rpartition(".")[2]

    def get(self, key: str) -> Node | None:
        """Return the value of a mapping at a text key."""
        pairs = zip(self.keys, self.items, strict=False)
        found = [value for name, value in pairs if name.kind == "text" and name.text == key]
        return found[-1] if found else None

    def described(self) -> str:
        """Return what it is, for messages: "a list of 3", "`data`"."""
        if self.kind == "text":
            return f"`{self.text[:40]}`"
        if self.kind == "list":
            return f"a list of {len(self.items)}"
        if self.kind == "nothing":
            return "nothing"
        if self.kind == "unreadable":
            return f"a value that is not known ({self.text})"
        return f"a {self.kind}"


def group(
    kind: Kind,
    span: Span,
    items: tuple[Node, ...],
    *,
    keys: tuple[Node, ...] = (),
    text: str = "",
    keywords: tuple[tuple[str, Node], ...] = (),
) -> Node:
    """Return a list, mapping or call; unreadable where it would hold too many values."""
    inner = (*items, *keys, *(value for _, value in keywords))
    size = 1 + sum(node.size for node in inner)
    if size > MOST_VALUES:
        return unreadable(span, f"it stands for more than {MOST_VALUES:,} values")
    return Node(kind, span, text, 0, items, keys, keywords, size)


def unreadable(span: Span, reason: str) -> Node:
    """Return the node of what has no value without running code."""
    return Node("unreadable", span, reason)
