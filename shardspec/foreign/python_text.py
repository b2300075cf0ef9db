"""A foreign file -> the values in it by name, of Python, JSON or YAML, without running anything.

A Python file is parsed by `ast`. Literals, names of earlier values, calls and lists joined by `+`
or `*` have a value; everything else is unreadable, with its place, and whoever needs it says so. A
name that is bound inside `if`, `for`, `with` or `try` has no certain value either.

Lists of rules often stand in a class (`base_model_tp_plan`), in what a method returns, or are built
entry by entry (`layout_map["dense.*"] = ...`). Each is a `Binding` here, called by a dotted name:
`LlamaConfig.base_model_tp_plan`, `Model.get_layout_map.layout_map`; what a function returns is
called as the function. Nothing is run: an entry that depends on what runs is unreadable, and a
parameter has its default.

So do configurations that are filled by attributes, as `ml_collections` has them:
`config.rules = [...]` in `get_config` is `get_config.config.rules`.

A file is Python by its name. Standard input has none: it is Python where it parses as such and has
a statement that JSON and YAML have not. `[["embed", "data"]]` and `embed: data` parse as well.

Some tools have layouts that are code. Their files can be read and still say nothing: modules choose
the layout as they run. What to do instead is the same for all that run on JAX: `import layout`.
"""

from __future__ import annotations

import ast
import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from shardspec.diagnostics import Diagnostic, SourceFile, Span
from shardspec.foreign import values as foreign_values
from shardspec.foreign.formats import ambiguous, bad
from shardspec.foreign.values import DEEPEST, Node, constant, group, mapping_of, unreadable
from shardspec.python_syntax import parsed

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
    module = Module(Places(source))
    return parse_python(source, lambda tree: tuple(module.read(tree).bound.values()))


def parse_python(source: SourceFile, read: Callable[[ast.Module], T]) -> T | Diagnostic:
    """Return what `read` makes of the syntax tree of a module, or why it is no Python."""
    try:
        return read(parsed(source.text))
    except SyntaxError as fault:
        return _no_python(source, fault.msg, fault.lineno)
    except (ValueError, RecursionError, MemoryError) as fault:
        return _no_python(source, str(fault) or _TOO_DEEP, None)


def _no_python(source: SourceFile, reason: str, line: int | None) -> Diagnostic:
    starts = _line_starts(source.text)
    span = source.whole
    if line is not None and 1 <= line <= len(starts):
        start = starts[line - 1]
        text = source.text[start:].split("\n", 1)[0].rstrip("\r\x0c")
        indent = len(text) - len(text.lstrip())
        span = Span(source, start + indent, start + max(len(text), indent))
    message = f"`{source.name}` is no Python that can be parsed: {reason.splitlines()[0]}"
    return bad(message, span, help="the file may be cut off, or not be Python 3")


def _line_starts(text: str) -> list[int]:
    """Return where lines start, as Python counts them: a lone carriage return ends one too."""
    return [0, *(found.end() for found in re.finditer(r"\r\n?|\n", text))]


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
    """The names bound so far.

    Attributes:
      classes: what each class binds, and its bases.
    """

    places: Places
    bound: MutableMapping[str, Binding] = field(default_factory=dict)
    classes: dict[str, tuple[dict[str, Node], tuple[str, ...]]] = field(default_factory=dict)

    def read(self, tree: ast.Module) -> Module:
        """Note what the statements at the top of a module bind, and return this."""
        for statement in tree.body:
            self.take(statement)
        return self

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
        if isinstance(statement, ast.ClassDef):
            self._keep(statement)

    def _keep(self, statement: ast.ClassDef) -> None:
        """Note the constants of a class, and its bases."""
        inner = Module(self.places, ChainMap({}, self.bound), self.classes)
        for each in statement.body:
            if not isinstance(each, ast.ClassDef):
                inner.take(each)
        bases = tuple(filter(None, map(dotted_name, statement.bases)))
        own = {name: each.value for name, each in _maps(inner.bound)[0].items()}
        self.classes[statement.name] = own, bases

    def _constant(self, dotted: str) -> Node | None:
        """Return what a class or the nearest of its bases binds; None where that is not certain."""
        owner, _, name = dotted.partition(".")
        alias = self.bound.get(owner)
        if alias is not None:
            owner = alias.value.text if alias.value.kind == "name" else ""
        for _ in range(DEEPEST):
            own, bases = self.classes.get(owner, ({}, ()))
            if name in own:
                return None if own[name].kind == "unreadable" else own[name]
            if len(bases) != 1:
                return None
            owner = bases[0]
        return None

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
        for each in ast.walk(tree):
            if isinstance(each, ast.Attribute) and not isinstance(each.ctx, ast.Load):
                owner, _, name = (dotted_name(each) or "").partition(".")
                changed = unreadable(self.places.span(each), "it depends on what runs")
                self.classes.get(owner, ({}, ()))[0][name] = changed
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
            return constant(node.value, span)
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
            if dotted is None:
                return unreadable(span, "it is worked out")
            return self._constant(dotted) or Node("name", span, dotted)
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
        pairs: list[tuple[Node, Node]] = []
        for key, item in zip(node.keys, node.values, strict=True):
            value = self.value(item, depth + 1)
            if key is not None:
                pairs.append((self.value(key, depth + 1), value))
            elif value.kind == "mapping":
                pairs += value.pairs
            else:
                return unreadable(value.span, "it is worked out when the file runs")
        return mapping_of(span, pairs)

    def _call(self, node: ast.Call, span: Span, depth: int) -> Node:
        name = dotted_name(node.func)
        if name is None or any(keyword.arg is None for keyword in node.keywords):
            return unreadable(span, "it is worked out when the file runs")
        arguments = self._list(node.args, span, depth)
        if not arguments.is_list:
            return arguments
        values = ((each.arg or "", self.value(each.value, depth + 1)) for each in node.keywords)
        return group("call", span, arguments.items, text=name, keywords=tuple(values))


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
    more = ((Node("text", value.span, name), value) for name, value in call.keywords)
    return mapping_of(call.span, (*(() if start is None else start.pairs), *more))


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


_MAPPING_CALLS = ("LayoutMap", "dict", "OrderedDict")
_OWN = ("self.", "cls.")
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
        is_added = False
        for each, under in _within(statement, self.names.places):
            if isinstance(each, ast.Return) and each.value is not None:
                self.returned.append(self.names.value(each.value))
            self._set_attributes(each, under)
            is_added = self._adds(each, certain=each is statement)
        if not (is_added and each is statement) and not isinstance(statement, ast.Return):
            self.names.take(statement)

    def _set_attributes(self, statement: ast.stmt, under: Span | None) -> None:
        """Note the attributes that a statement sets."""
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
        elif (grown := _grown(statement)) is not None:
            self._change_attribute(grown)

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
        grown = _grown(statement)
        if isinstance(grown, ast.Name):
            self._enter(grown.id, None, None, statement)
        return isinstance(grown, ast.Name)

    def _enter(
        self, name: str, key: Node | None, value: Node | None, at: ast.expr | ast.stmt
    ) -> None:
        if name in self.names.bound:
            span = self.names.places.span(at)
            key = key or unreadable(span, _DEPENDS)
            value = value or unreadable(span, _DEPENDS)
            self.entries.setdefault(name, []).append((key, replace(value, span=span)))

    def _own(self) -> Iterator[Binding]:
        for name, binding in _maps(self.names.bound)[0].items():
            yield self._grown(binding)._replace(name=self.prefix + name)
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
        if value.kind == "call" and value.last_name in _MAPPING_CALLS:
            value = group("mapping", value.span, ())
        if not added or value.kind == "unreadable":
            return binding._replace(value=value)
        if value.kind != "mapping":
            return binding._replace(value=unreadable(added[0][1].span, _DEPENDS))
        return binding._replace(value=mapping_of(value.span, (*value.pairs, *added)))

    def _inside(self, scope: ast.ClassDef | Function) -> Iterator[Binding]:
        maps = _maps(self.names.bound)
        if self.is_class:
            maps = maps[1:]
        names = Module(self.names.places, ChainMap({}, *maps), self.names.classes)
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


def _grown(statement: ast.stmt) -> ast.expr | None:
    """Return the list or mapping that a statement changes in place by a call."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    called = call.func if isinstance(call, ast.Call) else None
    is_growing = isinstance(called, ast.Attribute) and called.attr in _GROWING
    return called.value if isinstance(called, ast.Attribute) and is_growing else None


def _within(
    statement: ast.stmt, places: Places, under: Span | None = None
) -> Iterator[tuple[ast.stmt, Span | None]]:
    """Yield a statement and those in its blocks, not in functions, and what decides if they run."""
    yield statement, under
    under = under or _condition(statement, places)
    is_scope = isinstance(statement, ast.ClassDef | Function)
    for inner in () if is_scope else ast.iter_child_nodes(statement):
        is_clause = isinstance(inner, ast.ExceptHandler | ast.match_case)
        for each in ast.iter_child_nodes(inner) if is_clause else (inner,):
            if isinstance(each, ast.stmt):
                yield from _within(each, places, under)


def _bind_parameters(arguments: ast.arguments, names: Module) -> None:
    plain = [*arguments.posonlyargs, *arguments.args]
    without = len(plain) - len(arguments.defaults)
    defaults = [*([None] * without), *arguments.defaults, *arguments.kw_defaults]
    for each, default in zip([*plain, *arguments.kwonlyargs], defaults, strict=True):
        span = names.places.span(each)
        given = unreadable(span, "the caller gives it")
        value = given if default is None else names.value(default)
        names.bound[each.arg] = Binding(each.arg, value, span)


def _maps(bound: Mapping[str, Binding]) -> list[dict[str, Binding]]:
    maps = bound.maps if isinstance(bound, ChainMap) else [bound]
    return [each for each in maps if isinstance(each, dict)]


Item = TypeVar("Item")

#: What classes of rules are called: `ShardingRules`, `ShardingAxisName2D`.
#: Names of values that a message lists.
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class NamedValues:
    """What a file holds.

    Attributes:
      bindings: what it binds, or the entries of its mapping whose key is a text.
      root: the whole of JSON or YAML; None for Python.
    """

    bindings: tuple[Binding, ...]
    root: Node | None = None

    @property
    def named(self) -> tuple[tuple[str, Node], ...]:
        """Return the names with their values."""
        return tuple((each.name, _certain(each)) for each in self.bindings)

    @property
    def rules(self) -> tuple[tuple[str, Node], ...]:
        """Return classes of Python called rules, or names of axes, their fields as a mapping."""
        return () if self.root is not None else tuple(_classes(self.bindings))


def read_named_values(source: SourceFile) -> NamedValues | tuple[Diagnostic, ...]:
    """Return the values of a file, or why it cannot be read."""
    if is_python(source):
        bindings = read_scopes(source)
        return (bindings,) if isinstance(bindings, Diagnostic) else NamedValues(bindings)
    root = foreign_values.read_data(source)
    if not isinstance(root, Node):
        return root
    pairs = (pair for pair in root.pairs if pair[0].kind == "text")
    return NamedValues(tuple(Binding(key.text, value, key.span) for key, value in pairs), root)


def _classes(bindings: Sequence[Binding]) -> Iterator[tuple[str, Node]]:
    """Yield the fields of classes of rules: `class ShardingRules` with `batch: Axis = "data"`.

    So are classes of constants for PartitionSpecs: `ShardingAxisName` with `ATTN_HEAD = "model"`.
    """
    fields: dict[str, list[Binding]] = {}
    for each in bindings:
        prefix, _, field = each.name.rpartition(".")
        name = prefix.rpartition(".")[2]
        is_returned = each.span == each.value.span
        if _is_of_rules(name) and field and not is_returned:
            fields.setdefault(prefix, []).append(each)
    for prefix, found in fields.items():
        names = (Node("text", each.span, each.name.rpartition(".")[2]) for each in found)
        yield prefix, mapping_of(found[0].span, zip(names, map(_certain, found), strict=True))


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


def by_name(
    known: Iterable[tuple[str, Item]], name: str, source: SourceFile, help: str | None
) -> Item | Diagnostic:
    """Return what a name is bound to last; the end of a dotted name will do where one has it.

    Args:
      help: what to say where nothing has the name.
    """
    found = dict(known)
    ending = [name] if name in found else [key for key in found if key.endswith(f".{name}")]
    if len(ending) == 1:
        return found[ending[0]]
    if not ending:
        return bad(f"`{source.name}` binds no `{name}`", source.whole, help=help)
    message = f"`{source.name}` binds {len(ending)} `{name}`"
    return ambiguous(message, None, f"say more of its name: {ticked(ending)}")


def several(source: SourceFile, names: Sequence[str], what: str, second: Span) -> Diagnostic:
    """Return the finding for a file with several values that may be meant.

    Args:
      what: they are: "lists of rules".
      second: where the second of them stands.
    """
    message = f"`{source.name}` has {len(names)} {what}: {ticked(names)}"
    return ambiguous(message, second, f"say which: --name {names[0]}")


def ticked(names: Sequence[str]) -> str:
    """Return the first names in backticks."""
    return ", ".join(f"`{name}`" for name in names[:_SHOWN])


def _mentions(node: Node, axes: Sequence[str]) -> bool:
    if node.kind == "text":
        return any(re.search(rf"\b{re.escape(axis)}\b", node.text) for axis in axes)
    return any(_mentions(each, axes) for each in (*node.items, *(v for _, v in node.keywords)))


def is_python(source: SourceFile) -> bool:
    """Say whether a file is to be read as Python."""
    if source.name != "-":
        return source.name.endswith(".py")
    data = (ast.Expr, ast.AnnAssign)
    return parse_python(source, lambda t: any(not isinstance(s, data) for s in t.body)) is True


_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+([\w.]+)", re.MULTILINE)
_CLASS = re.compile(r"^[ \t]*class[ \t]+(\w+)", re.MULTILINE)
_WRITE_DOWN = "`import layout MODULE:FUNCTION` runs it, see `A running tree` in docs/migrating.md"
_BY_HAND = "state it in `overrides:`, or as regexes: see `What is code` in docs/migrating.md"

_PLANS = "`import dtensor FILE` reads plans of `parallelize_module`, see docs/migrating.md"


class _Tool(NamedTuple):
    """A tool, and why its files are no data.

    Attributes:
      packages: it is imported by, in its own files and others.
      classes: that its files define.
    """

    name: str
    packages: tuple[str, ...]
    reason: str
    help: str = _WRITE_DOWN
    classes: tuple[str, ...] = ()


_TOOLS = (
    _Tool("a class of rules", (), "a class is a mapping", "import haliax FILE reads it",
          ("ShardingRules", "MeshRules")),
    _Tool("axlearn", ("axlearn",), "axlearn's layers set their partition specs as they are built"),
    _Tool("tunix", ("tunix",), "tunix's modules pick fields of a `ShardingConfig` made in code",
          classes=("ShardingConfig",)),
    _Tool("EasyDeL", ("easydel", "eformer"), "EasyDeL's modules make their layout in code"),
    _Tool("SGLang-JAX", ("sgl_jax",), "SGLang-JAX builds its weight mappings layer by layer"),
    _Tool("torchtitan", ("torchtitan", "spmd_types"), "torchtitan's functions place modules",
          _PLANS),
    _Tool("vLLM", ("vllm",), "vLLM's layers split themselves", _BY_HAND),
    _Tool("PyTorch", ("torch.distributed",), "`parallelize_module` and DTensor place modules",
          _PLANS),
)  # fmt: skip


def no_list(source: SourceFile, what: str, form: str) -> Diagnostic:
    """Return the finding for a file without what an import looks for.

    Args:
      what: is looked for: "list of rules".
      form: how it looks, for the help.
    """
    message = f"`{source.name}` has no {what}"
    tool = _tool_of(source)
    if tool is None:
        return bad(message, source.whole, help=form)
    return bad(f"{message}: {tool.reason}", source.whole, help=tool.help)


def _tool_of(source: SourceFile) -> _Tool | None:
    imported = set(_IMPORT.findall(source.text))
    defined = set(_CLASS.findall(source.text))
    for tool in _TOOLS:
        packages = tuple(f"{name}." for name in tool.packages)
        inside = any(f"{each}.".startswith(packages) for each in imported)
        if inside or not defined.isdisjoint(tool.classes):
            return tool
    return None


def _is_of_rules(name: str) -> bool:
    """Say whether a class is called after rules or names of axes: `MeshRules`, `ShardingAxisName`.

    >>> _is_of_rules("MeshRules"), _is_of_rules("ShardingAxisName2D"), _is_of_rules("Rules")
    (True, True, False)
    """
    rest = name[1:]
    is_called = rest.endswith("Rules") or "AxisName" in rest or name in ("AxisName", "AxisNames")
    return name[:1].isupper() and is_called
