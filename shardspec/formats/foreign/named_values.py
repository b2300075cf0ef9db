"""The values in a foreign file, with the names they have there: of Python, JSON or YAML.

A file is Python by its name. Standard input has none: it is Python where it parses as such and has
a statement that JSON and YAML have not. `[["embed", "data"]]` and `embed: data` parse as well.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.formats.foreign.data_text import read_data
from shardspec.formats.foreign.imported import ambiguous
from shardspec.formats.foreign.node import Node, group, unreadable
from shardspec.formats.foreign.python_scopes import read_scopes
from shardspec.formats.foreign.python_text import Binding, parse_python


@dataclass(frozen=True, slots=True)
class NamedValues:
    """What a file holds.

    Attributes:
      named: what it binds, or the entries of its mapping whose key is a text.
      root: the whole of JSON or YAML; None for Python.
      rules: classes of Python whose name ends in `Rules`, their fields with defaults as a mapping.
    """

    named: tuple[tuple[str, Node], ...]
    root: Node | None = None
    rules: tuple[tuple[str, Node], ...] = ()


def read_named_values(source: SourceFile) -> NamedValues | tuple[Diagnostic, ...]:
    """Return the values of a file, or why it cannot be read."""
    if is_python(source):
        bindings = read_scopes(source)
        if isinstance(bindings, Diagnostic):
            return (bindings,)
        named = tuple((each.name, _certain(each)) for each in bindings)
        return NamedValues(named, rules=tuple(_classes(bindings)))
    root = read_data(source)
    if not isinstance(root, Node):
        return root
    pairs = zip(root.keys, root.items, strict=False)
    return NamedValues(tuple((key.text, value) for key, value in pairs if key.kind == "text"), root)


def _classes(bindings: Sequence[Binding]) -> Iterator[tuple[str, Node]]:
    """Yield the fields of classes of rules: `class ShardingRules` with `batch: Axis = "data"`."""
    fields: dict[str, list[Binding]] = {}
    for each in bindings:
        prefix, _, field = each.name.rpartition(".")
        name = prefix.rpartition(".")[2]
        is_returned = each.span == each.value.span
        if name.endswith("Rules") and name[:1].isupper() and field and not is_returned:
            fields.setdefault(prefix, []).append(each)
    for prefix, found in fields.items():
        keys = tuple(Node("text", each.span, each.name.rpartition(".")[2]) for each in found)
        items = tuple(_certain(each) for each in found)
        yield prefix, group("mapping", found[0].span, items, keys=keys)


def _certain(binding: Binding) -> Node:
    """Return what a name is bound to, where no condition decides that."""
    if binding.under is None:
        return binding.value
    return unreadable(binding.value.span, f"line {binding.under.line} decides whether it is set")


def likely(
    found: Sequence[tuple[str, Node]], axes: Sequence[str]
) -> tuple[tuple[str, Node], ...] | Diagnostic:
    """Return the values that name one of these mesh axes, or the finding that none does.

    Much in a file of code looks like rules: a value that nobody asked for by name, and that says
    nothing of the mesh, is not guessed at.
    """
    kept = tuple(each for each in found if not axes or _mentions(each[1], axes))
    if kept or not found:
        return kept
    name, node = found[0]
    message = f"`{name}` may be meant, and names no mesh axis of {', '.join(axes)}"
    return ambiguous(message, node.span, f"if it is, say so: --name {name}")


def _mentions(node: Node, axes: Sequence[str]) -> bool:
    if node.kind == "text":
        return any(re.search(rf"\b{re.escape(axis)}\b", node.text) for axis in axes)
    return any(_mentions(each, axes) for each in (*node.items, *(v for _, v in node.keywords)))


def is_python(source: SourceFile) -> bool:
    """Say whether a file is to be read as Python."""
    if source.name != "-":
        return source.name.endswith(".py")
    return parse_python(source, _has_statements) is True


def _has_statements(tree: ast.Module) -> bool:
    return not all(isinstance(statement, ast.Expr | ast.AnnAssign) for statement in tree.body)
