"""A Python file of another tool -> the values that its names are bound to, without running it.

The file is parsed by `ast`. Literals, names of earlier values, calls and lists joined by `+` or `*`
have a value; everything else is unreadable, with its place, and whoever needs it says so. A name
that is bound inside `if`, `for`, `with` or `try` has no certain value either.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from shardspec.diagnostics import Diagnostic, SourceFile, Span
from shardspec.formats.foreign.imported import bad
from shardspec.formats.foreign.node import DEEPEST, Node, group, unreadable

_TOO_DEEP = "it is nested too deep"
_MAPPINGS = ("dict", "OrderedDict", "ConfigDict", "FrozenConfigDict")

T = TypeVar("T")


class Binding(NamedTuple):
    """A name at the top of a module, and the last value it is bound to.

    Attributes:
      span: the name, where it is bound.
      under: the `if` or `for` that decides whether it is; None where it always is.
    """

    name: str
    value: Node
    span: Span
    under: Span | None = None


def read_python(source: SourceFile) -> tuple[Binding, ...] | Diagnostic:
    """Return the names that a module binds, in order, or why it is no Python."""
    return parse_python(source, lambda tree: _top(Module(Places(source)), tree))


def parse_python(source: SourceFile, read: Callable[[ast.Module], T]) -> T | Diagnostic:
    """Return what `read` makes of the syntax tree of a module, or why it is no Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return read(ast.parse(source.text))
    except SyntaxError as fault:
        return _no_python(source, fault.msg, fault.lineno)
    except (ValueError, RecursionError, MemoryError) as fault:
        return _no_python(source, str(fault) or _TOO_DEEP, None)


def _top(module: Module, tree: ast.Module) -> tuple[Binding, ...]:
    for statement in tree.body:
        module.take(statement)
    return tuple(module.bound.values())


def _no_python(source: SourceFile, reason: str, line: int | None) -> Diagnostic:
    starts = _line_starts(source.text)
    span = source.whole
    if line is not None and 1 <= line <= len(starts):
        start = starts[line - 1]
        text = source.text[start:].split("\n", 1)[0].rstrip("\r\x0c")
        indent = len(text) - len(text.lstrip())
        span = Span(source, start + indent, start + max(len(text), indent))
    message = f"`{source.name}` is no Python that can be parsed: {reason.splitlines()[0]}"
    return bad(message, span, help="is it whole, and written for Python 3?")


def _line_starts(text: str) -> list[int]:
    """Return where lines start, as Python counts them: a lone carriage return ends one too."""
    starts, at = [0], 0
    while at < len(text):
        if text[at] == "\n" or (text[at] == "\r" and text[at + 1 : at + 2] != "\n"):
            starts.append(at + 1)
        at += 1
    return starts


class Places:
    """Turns the lines and byte columns of `ast` into spans."""

    def __init__(self, source: SourceFile) -> None:
        """Find the lines of the source once."""
        self.source = source
        self.starts = _line_starts(source.text)
        self.is_ascii = source.text.isascii()

    def span(self, node: ast.expr | ast.stmt | ast.arg) -> Span:
        """Return the place of a node."""
        start = self._offset(node.lineno, node.col_offset)
        end = self._offset(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset)
        return Span(self.source, start, max(start, end))

    def _offset(self, line: int, column: int) -> int:
        start = self.starts[min(line, len(self.starts)) - 1]
        if not self.is_ascii:
            raw = self.source.text[start : start + column].encode("utf-8", "surrogatepass")
            column = len(raw[:column].decode("utf-8", "ignore"))
        return min(start + column, len(self.source.text))


@dataclass(slots=True)
class Module:
    """The names bound so far."""

    places: Places
    bound: MutableMapping[str, Binding] = field(default_factory=dict)

    def take(self, statement: ast.stmt) -> None:
        """Note what a statement at the top of the module binds."""
        if isinstance(statement, ast.Assign):
            self._assign(statement.targets, self.value(statement.value))
        elif isinstance(statement, ast.AnnAssign):
            if statement.value is not None:
                self._assign([statement.target], self.value(statement.value))
        elif isinstance(statement, ast.AugAssign):
            self._add(statement)
        elif not isinstance(statement, ast.Expr | ast.Pass):
            self._forget(statement)

    def _assign(self, targets: list[ast.expr], value: Node) -> None:
        for target in targets:
            if isinstance(target, ast.Name):
                span = self.places.span(target)
                self.bound[target.id] = Binding(target.id, value, span)
            else:
                self._forget(target)

    def _add(self, statement: ast.AugAssign) -> None:
        if isinstance(statement.target, ast.Name) and isinstance(statement.op, ast.Add):
            old = self.bound.get(statement.target.id)
            added = self.value(statement.value)
            span = self.places.span(statement)
            if old is not None and old.value.is_list and added.is_list:
                joined = group("list", span, old.value.items + added.items)
                self._assign([statement.target], joined)
                return
        self._forget(statement)

    def _forget(self, tree: ast.AST) -> None:
        """Note that the names which a statement binds have no certain value."""
        for name, node in _bound_names(tree):
            if name in self.bound or not isinstance(node, ast.ClassDef | ast.FunctionDef):
                span = self.places.span(node)
                reason = "it depends on what runs"
                self.bound[name] = Binding(name, unreadable(span, reason), span)

    def value(self, node: ast.expr, depth: int = 0) -> Node:
        """Return the value of an expression."""
        span = self.places.span(node)
        if depth > DEEPEST:
            return unreadable(span, _TOO_DEEP)
        if isinstance(node, ast.Constant):
            return _constant(node.value, span)
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return self._list(node.elts, span, depth)
        if isinstance(node, ast.Dict):
            return self._mapping(node, span, depth)
        if isinstance(node, ast.Call):
            return self._call(node, span, depth)
        if isinstance(node, ast.Name):
            found = self.bound.get(node.id)
            return found.value if found else Node("name", span, node.id)
        if isinstance(node, ast.Attribute):
            dotted = dotted_name(node)
            return Node("name", span, dotted) if dotted else unreadable(span, "it is worked out")
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            left, right = self.value(node.left, depth + 1), self.value(node.right, depth + 1)
            if left.is_list and right.is_list:
                return group("list", span, left.items + right.items)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = self.value(node.operand, depth + 1)
            if inner.kind == "number":
                return Node("number", span, f"-{inner.text}", -inner.number)
        return unreadable(span, "it is worked out when the file runs")

    def _list(self, elements: list[ast.expr], span: Span, depth: int) -> Node:
        items: list[Node] = []
        for element in elements:
            if isinstance(element, ast.Starred):
                inner = self.value(element.value, depth + 1)
                if not inner.is_list:
                    return unreadable(inner.span, "it is worked out when the file runs")
                items += inner.items
            else:
                items.append(self.value(element, depth + 1))
        return group("list", span, tuple(items))

    def _mapping(self, node: ast.Dict, span: Span, depth: int) -> Node:
        keys: list[Node] = []
        items: list[Node] = []
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.value(item, depth + 1)
            if key is not None:
                keys.append(self.value(key, depth + 1))
                items.append(value)
            elif value.kind == "mapping":
                keys += value.keys
                items += value.items
            else:
                return unreadable(value.span, "it is worked out when the file runs")
        return group("mapping", span, tuple(items), keys=tuple(keys))

    def _call(self, node: ast.Call, span: Span, depth: int) -> Node:
        name = dotted_name(node.func)
        if name is None or any(keyword.arg is None for keyword in node.keywords):
            return unreadable(span, "it is worked out when the file runs")
        arguments = self._list(node.args, span, depth)
        if not arguments.is_list:
            return arguments
        keywords = tuple(
            (each.arg or "", self.value(each.value, depth + 1)) for each in node.keywords
        )
        return group("call", span, arguments.items, text=name, keywords=keywords)


def as_mapping(call: Node) -> Node:
    """Return the mapping that `dict(a=1)` or `ConfigDict({"a": 1})` makes; the call where unclear.

    The keys have the place of their value: the tree knows no other of a keyword.
    """
    start = as_mapping(call.items[0]) if call.items else None
    if (
        call.kind != "call"
        or call.last_name not in _MAPPINGS
        or len(call.items) > 1
        or (start is not None and start.kind != "mapping")
    ):
        return call
    keys = () if start is None else start.keys
    items = () if start is None else start.items
    more = tuple(Node("text", value.span, name) for name, value in call.keywords)
    values = tuple(value for _, value in call.keywords)
    return group("mapping", call.span, (*items, *values), keys=(*keys, *more))


def _constant(value: object, span: Span) -> Node:
    if isinstance(value, str):
        return Node("text", span, value)
    if value is None:
        return Node("nothing", span)
    if isinstance(value, bool):
        return Node("boolean", span, str(value), value)
    if isinstance(value, int | float):
        return Node("number", span, str(value), value)
    return unreadable(span, "it is no text and no number")


def dotted_name(node: ast.expr) -> str | None:
    """Return `jax.sharding.PartitionSpec` of a chain of names."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute) and len(parts) < DEEPEST:
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else None


def _bound_names(tree: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    """Yield the names that a tree binds, without those of the functions and classes in it."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node
            continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.id, node
        pending.extend(ast.iter_child_nodes(node))


def bindings_by_name(bindings: tuple[Binding, ...]) -> Mapping[str, Binding]:
    """Return bindings by their name."""
    return {binding.name: binding for binding in bindings}
