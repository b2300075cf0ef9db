"""The values in a Python file of another tool, those inside classes and functions too.

Lists of rules often stand in a class (`base_model_tp_plan`), in what a method returns, or are built
entry by entry (`layout_map["dense.*"] = ...`). Each is a `Binding` here, called by a dotted name:
`LlamaConfig.base_model_tp_plan`, `Model.get_layout_map.layout_map`; what a function returns is
called as the function. Nothing is run: an entry that depends on what runs is unreadable, and a
parameter has its default.

So do configurations that are filled by attributes, as `ml_collections` has them:
`config.rules = [...]` in `get_config` is `get_config.config.rules`.
"""

from __future__ import annotations

import ast
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from shardspec.diagnostics import Diagnostic, SourceFile, Span
from shardspec.formats.foreign.node import Node, group, unreadable
from shardspec.formats.foreign.python_text import (
    Binding,
    Module,
    Places,
    dotted_name,
    parse_python,
)

_MAPPINGS = ("LayoutMap", "dict", "OrderedDict")
_OWN = ("self.", "cls.")
_LASTING = (ast.With, ast.AsyncWith)
_GROWING = ("append", "extend", "insert", "update", "pop", "remove", "clear", "setdefault")
_DEPENDS = "it depends on what runs"
_DEEPEST = 20

Function = ast.FunctionDef | ast.AsyncFunctionDef


def read_scopes(source: SourceFile) -> tuple[Binding, ...] | Diagnostic:
    """Return what a module, its classes and its functions bind, or why it is no Python."""
    return parse_python(source, lambda tree: tuple(_Scope(Module(Places(source))).read(tree.body)))


@dataclass(slots=True)
class _Scope:
    """One module, class or function.

    Attributes:
      is_class: the functions in a class do not see its names.
      entries: what `name[key] = value` adds, by name.
      attributes: what `name.attribute = value` binds, by the whole dotted name.
      returned: what a function returns.
    """

    names: Module
    prefix: str = ""
    depth: int = 0
    is_class: bool = False
    entries: dict[str, list[tuple[Node, Node]]] = field(default_factory=dict)
    returned: list[Node] = field(default_factory=list)
    attributes: dict[str, Binding] = field(default_factory=dict)

    def read(self, body: list[ast.stmt]) -> Iterator[Binding]:
        """Yield what statements bind, and what the scopes in them do."""
        inner: list[ast.ClassDef | Function] = []
        for statement in body:
            self._take(statement)
            if isinstance(statement, ast.ClassDef | Function):
                inner.append(statement)
        yield from self._own()
        for scope in inner:
            if self.depth < _DEEPEST:
                yield from self._inside(scope)

    def _take(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Return):
            if statement.value is not None:
                self.returned.append(self.names.value(statement.value))
            return
        self._set_attributes(statement, None)
        if self._adds(statement, certain=True):
            return
        if not isinstance(statement, ast.ClassDef | Function):
            for nested in _nested(statement):
                if isinstance(nested, ast.Return) and nested.value is not None:
                    self.returned.append(self.names.value(nested.value))
                self._adds(nested, certain=False)
        self.names.take(statement)

    def _set_attributes(self, statement: ast.stmt, under: Span | None) -> None:
        """Note the attributes that a statement sets, and those in it that may be set."""
        if isinstance(statement, ast.ClassDef | Function):
            return
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                self._set_attribute(target, self.names.value(statement.value), under)
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
            self._set_attribute(statement.target, self.names.value(statement.value), under)
        elif isinstance(statement, ast.AugAssign):
            self._change_attribute(statement.target)
        elif isinstance(statement, ast.Delete):
            for target in statement.targets:
                self._change_attribute(target)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            called = statement.value.func
            if isinstance(called, ast.Attribute) and called.attr in _GROWING:
                self._change_attribute(called.value)
        if not isinstance(statement, _LASTING):
            under = under or _condition(statement, self.names.places)
        for inner in ast.iter_child_nodes(statement):
            nested = (
                inner.body if isinstance(inner, ast.ExceptHandler | ast.match_case) else [inner]
            )
            for each in nested:
                if isinstance(each, ast.stmt):
                    self._set_attributes(each, under)

    def _set_attribute(self, target: ast.expr, value: Node, under: Span | None) -> None:
        name = dotted_name(target) if isinstance(target, ast.Attribute) else None
        if name is None:
            if isinstance(target, ast.Subscript):
                self._change_attribute(target.value)
            return
        if name.startswith(_OWN):
            return
        span = self.names.places.span(target)
        if under is not None and name in self.attributes:
            value, under = unreadable(span, _DEPENDS), None
        self.attributes[name] = Binding(name, value, span, under)

    def _change_attribute(self, target: ast.expr) -> None:
        """Note that what an attribute holds, or what is below it, is changed in place."""
        name = dotted_name(target)
        for known in list(self.attributes):
            if name is not None and (known == name or known.startswith(f"{name}.")):
                span = self.names.places.span(target)
                self.attributes[known] = Binding(known, unreadable(span, _DEPENDS), span)

    def _adds(self, statement: ast.stmt, *, certain: bool) -> bool:
        """Note an entry that a statement adds to a list or mapping; say whether it does."""
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                    value = self.names.value(statement.value) if certain else None
                    self._enter(target.value.id, self.names.value(target.slice), value, target)
                    return True
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            called = statement.value.func
            if (
                isinstance(called, ast.Attribute)
                and isinstance(called.value, ast.Name)
                and called.attr in _GROWING
            ):
                self._enter(called.value.id, None, None, statement)
                return True
        return False

    def _enter(
        self, name: str, key: Node | None, value: Node | None, at: ast.expr | ast.stmt
    ) -> None:
        if name in self.names.bound:
            span = self.names.places.span(at)
            key = key or unreadable(span, _DEPENDS)
            value = value or unreadable(span, _DEPENDS)
            self.entries.setdefault(name, []).append((key, replace(value, span=span)))

    def _own(self) -> Iterator[Binding]:
        for name, binding in _own_names(self.names.bound).items():
            grown = self._grown(binding)
            yield grown._replace(name=self.prefix + name)
        for binding in self.attributes.values():
            yield binding._replace(name=self.prefix + binding.name)
        for node in self.returned:
            if node.kind != "name":
                name = self.prefix.rstrip(".")
                several = f":{node.span.line}" if len(self.returned) > 1 else ""
                yield Binding(name + several, node, node.span)

    def _grown(self, binding: Binding) -> Binding:
        """Return a binding with the entries that were added to it."""
        added = self.entries.get(binding.name, [])
        value = binding.value
        if value.kind == "call" and value.last_name in _MAPPINGS:
            value = group("mapping", value.span, ())
        if not added or value.kind == "unreadable":
            return binding._replace(value=value)
        if value.kind != "mapping":
            first = added[0][1]
            return binding._replace(value=unreadable(first.span, _DEPENDS))
        keys = (*value.keys, *(key for key, _ in added))
        items = (*value.items, *(item for _, item in added))
        return binding._replace(value=group("mapping", value.span, items, keys=keys))

    def _inside(self, scope: ast.ClassDef | Function) -> Iterator[Binding]:
        maps = _maps(self.names.bound)
        if self.is_class:
            maps = maps[1:]
        names = Module(self.names.places, ChainMap({}, *maps))
        is_class = isinstance(scope, ast.ClassDef)
        if not isinstance(scope, ast.ClassDef):
            _bind_parameters(scope.args, names)
        inner = _Scope(names, f"{self.prefix}{scope.name}.", self.depth + 1, is_class)
        yield from inner.read(scope.body)


def _condition(statement: ast.stmt, places: Places) -> Span | None:
    """Return the place of what decides whether the statements in this one run; None if nothing."""
    if isinstance(statement, ast.If | ast.While):
        return places.span(statement.test)
    if isinstance(statement, ast.For | ast.AsyncFor):
        return places.span(statement.iter)
    return places.span(statement) if isinstance(statement, ast.Try | ast.Match) else None


def _nested(statement: ast.stmt) -> Iterator[ast.stmt]:
    """Yield the statements inside `if`, `for`, `with` and `try`, not those of functions."""
    pending: list[ast.AST] = list(ast.iter_child_nodes(statement))
    while pending:
        node = pending.pop(0)
        if isinstance(node, ast.ClassDef | Function | ast.expr):
            continue
        if isinstance(node, ast.stmt):
            yield node
        pending[:0] = ast.iter_child_nodes(node)


def _bind_parameters(arguments: ast.arguments, names: Module) -> None:
    plain = [*arguments.posonlyargs, *arguments.args]
    without = len(plain) - len(arguments.defaults)
    defaults = [*([None] * without), *arguments.defaults, *arguments.kw_defaults]
    for each, default in zip([*plain, *arguments.kwonlyargs], defaults, strict=True):
        span = names.places.span(each)
        value = unreadable(span, "the caller gives it") if default is None else None
        names.bound[each.arg] = Binding(
            each.arg, value or names.value(default or ast.Constant(None)), span
        )


def _maps(bound: Mapping[str, Binding]) -> list[dict[str, Binding]]:
    maps = bound.maps if isinstance(bound, ChainMap) else [bound]
    return [each for each in maps if isinstance(each, dict)]


def _own_names(bound: Mapping[str, Binding]) -> Mapping[str, Binding]:
    return _maps(bound)[0]
