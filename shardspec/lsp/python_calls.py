"""Names of a spec in Python: `constrain(x, "batch length embed")`, `Resolver("spec.yaml", "pod")`.

They are found in the syntax tree; nothing is imported or run. A text that is bound to a name of the
module once counts where the name is used. What is put together while code runs has no place here,
and its call is kept as one whose names are unknown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, SourceFile, Span
from shardspec.foreign.python_text import Places, parse_python
from shardspec.ir.spec import axis_of
from shardspec.lsp.types import Kind

#: Calls that take logical axes -> the position of that argument; all take `names=` too.
_ANYWHERE = {"constrain": 1, "with_logical_constraint": 1, "with_logical_partitioning": 1}
_OF_RESOLVERS = {"partition_spec": 0, "spec": 0, "sharding": 0, "batch": 0, "size": 0}
_AXES = _ANYWHERE | _OF_RESOLVERS
_RESOLVER, _LOADS = "Resolver", ("Resolver", "load", "load_spec")
#: A literal of one piece whose characters are those of the text.
_PLAIN = re.compile(r"[rRuU]?(\"{3}|'{3}|\"|')([^\\]*)\1", re.DOTALL)
_WORD = re.compile(r"(?<![\w.'-])(?:(?:in|out):)?[^\W\d][\w.-]*'?")
_IS_NAMES = re.compile(r"[\w\s.:'-]*")
_LINE_END = re.compile(r"\r\n?")
_SUFFIXES = (".yaml", ".yml", ".shard")


class Called(NamedTuple):
    """A name in code.

    Attributes:
      is_plain: whether the characters of the span are the name: no escape, no pieces.
      specs: the specs that it is of, of a target or a phase.
      is_sure: whether the call is known to be one of shardspec.
    """

    kind: Kind
    name: str
    span: Span
    is_plain: bool = True
    specs: tuple[str, ...] = ()
    is_sure: bool = True


class Calls(NamedTuple):
    """What a module says to shardspec.

    Attributes:
      uses: the names, in order of their places.
      specs: the specs that it names, as it writes them.
      unknown: calls whose names are worked out while code runs.
    """

    source: SourceFile
    uses: tuple[Called, ...]
    specs: tuple[str, ...]
    unknown: tuple[Span, ...]


def is_named(real: str, specs: Iterable[str]) -> bool:
    """Say whether the file of a real path is one of specs that code names, as far as names tell."""
    return any(f"/{real}".endswith(f"/{_tail(name)}") for name in specs)


def _tail(name: str) -> str:
    return re.sub(r"^(?:\.{0,2}/)+", "", name.replace("\\", "/"))


def calls(source: SourceFile) -> Calls | Diagnostic:
    """Return what a module says to shardspec, or why it is no Python."""
    return parse_python(source, lambda tree: _Reader(source, tree).found())


class _Reader:
    """The walk over one module."""

    def __init__(self, source: SourceFile, tree: ast.Module) -> None:
        self.source = source
        self.places = Places(source)
        self.nodes = [*ast.walk(tree)]
        self.texts = _bound_texts(self.nodes)
        self.aliases = _aliases(self.nodes)
        self.resolvers = frozenset(self._resolvers())
        self.uses: dict[tuple[Span, str], Called] = {}
        self.specs: dict[str, None] = {}
        self.unknown: dict[Span, None] = {}

    def found(self) -> Calls:
        for node in self.nodes:
            if isinstance(node, ast.Call):
                self._call(node, node.func, node.args)
        uses = sorted(self.uses.values(), key=lambda each: each.span.start)
        return Calls(self.source, tuple(uses), tuple(self.specs), tuple(self.unknown))

    def _called(self, node: ast.AST) -> str:
        """Return what a function is called, whatever the module calls it."""
        name = _last_name(node)
        return self.aliases.get(name, name)

    def _call(self, call: ast.Call, function: ast.expr, args: list[ast.expr]) -> None:
        name = self._called(function)
        keywords = {each.arg: each.value for each in call.keywords if each.arg}
        if name == "partial" and args:
            self._call(call, args[0], args[1:])
        if name in _AXES:
            is_sure = name in _ANYWHERE or self._is_resolver(function)
            given = args[: _AXES[name] + 1]
            starred = [each for each in given if isinstance(each, ast.Starred)]
            stated = [*starred, *given[_AXES[name] :], keywords.get("names")][0]
            self._names(call, stated, Kind.LOGICAL_AXIS, is_sure=is_sure)
            if is_sure:
                self._names(call, keywords.get("activation"), Kind.ACTIVATION)
        of: tuple[str, ...] = ()
        if name in _LOADS and (args or "spec" in keywords):
            spec = args[0] if args else keywords["spec"]
            paths = [*self._paths(spec)]
            self.specs.update(dict.fromkeys(paths))
            of = tuple(paths)
        if name == _RESOLVER:
            target = args[1] if len(args) > 1 else keywords.get("target")
            self._names(call, target, Kind.TARGET, of)
            self._names(call, keywords.get("phase"), Kind.PHASE, of)

    def _paths(self, node: ast.expr) -> Iterator[str]:
        """Yield the specs that an expression names: `Path("specs") / "a.yaml"`."""
        for each in ast.walk(node):
            text = self.texts.get(each.id) if isinstance(each, ast.Name) else each
            if isinstance(text, ast.Constant) and str(text.value).endswith(_SUFFIXES):
                yield str(text.value)

    def _is_resolver(self, function: ast.expr) -> bool:
        receiver = function.value if isinstance(function, ast.Attribute) else None
        name = "" if receiver is None else _last_name(receiver)
        return name in self.resolvers or "resolver" in name.lower()

    def _resolvers(self) -> Iterator[str]:
        """Yield the names that a `Resolver(...)` is bound to, or that are annotated as one."""
        for node in self.nodes:
            targets: list[ast.AST | None] = []
            parts: list[ast.AST] = []
            if isinstance(node, ast.Assign):
                targets, parts = [*node.targets], [*_branches(node.value)]
            elif isinstance(node, ast.withitem):
                targets, parts = [node.optional_vars], [node.context_expr]
            elif isinstance(node, (ast.AnnAssign, ast.arg)) and node.annotation is not None:
                targets = [node if isinstance(node, ast.arg) else node.target]
                parts = [*ast.walk(node.annotation)]
            is_called = isinstance(node, (ast.Assign, ast.withitem))
            made = (each for each in parts if isinstance(each, ast.Call) or not is_called)
            if any(self._called(each) == _RESOLVER for each in made):
                yield from map(_last_name, targets)

    def _names(
        self,
        call: ast.Call,
        argument: ast.expr | None,
        kind: Kind,
        specs: tuple[str, ...] = (),
        *,
        is_sure: bool = True,
    ) -> None:
        """Note the names in an argument; of one that is no text, that they are unknown."""
        found = [] if argument is None else [*self._pieces(argument)]
        if is_sure and None in found:
            self.unknown[self.places.span(call)] = None
        for node in filter(None, found):
            for use in self._in_text(str(node.value), self.places.span(node), kind):
                stated = use._replace(specs=specs, is_sure=is_sure)
                if is_sure or (use.span, use.name) not in self.uses:
                    self.uses[use.span, use.name] = stated

    def _pieces(self, node: ast.expr) -> Iterator[ast.Constant | None]:
        """Yield the texts that an expression may be, and None for each that code works out."""
        inner: list[ast.expr] = []
        match node:
            case ast.Constant(value=str()):
                yield node
            case ast.Constant(value=None):
                pass
            case ast.Name(id=name) if name in self.texts:
                yield self.texts[name]
            case ast.Dict(values=inner) | ast.Tuple(elts=inner) | ast.List(elts=inner):
                pass
            case ast.JoinedStr(values=inner):
                yield None
            case ast.IfExp(body=one, orelse=other):
                inner = [one, other]
            case ast.BinOp(left=one, op=ast.Add(), right=other) if self._is_apart(one, other):
                inner = [one, other]
            case ast.NamedExpr(value=one) | ast.Starred(value=one):
                inner = [one]
            case ast.Call(func=ast.Attribute(value=one, attr="split"), args=[]):
                inner = [one]
            case ast.Call(func=ast.Attribute(value=ast.Constant(value=" "), attr="join")):
                inner = node.args
            case _:
                yield None
        for each in inner:
            yield from self._pieces(each)

    def _is_apart(self, one: ast.expr, other: ast.expr) -> bool:
        """Say whether a sum joins tuples, or texts at a blank, so that all words stay."""
        sides = [self.texts.get(_last_name(each), each) for each in (one, other)]
        if any(isinstance(each, (ast.Tuple, ast.List)) for each in sides):
            return True
        left, right = (str(getattr(each, "value", "?")) for each in sides)
        return left[-1:].isspace() or right[:1].isspace()

    def _in_text(self, text: str, span: Span, kind: Kind) -> Iterator[Called]:
        plain = _PLAIN.fullmatch(span.text)
        is_plain = plain is not None and _LINE_END.sub("\n", plain[2]) == text
        text = plain[2] if plain is not None and is_plain else text
        at = span.start + (plain.start(2) if plain is not None else 0)
        words = [(0, text)]
        if kind is Kind.LOGICAL_AXIS:
            words = [(word.start(), word[0]) for word in _WORD.finditer(text)]
            words = words if _IS_NAMES.fullmatch(text) else []
        for start, word in words:
            name = axis_of(word) if kind is Kind.LOGICAL_AXIS else word
            inner = at + start + word.rstrip("'").rfind(name)
            place = Span(self.source, inner, inner + len(name)) if is_plain else span
            yield Called(kind, name, place, is_plain)


def _last_name(node: ast.AST | None) -> str:
    match node:
        case ast.Call(func=function):
            return _last_name(function)
        case ast.Attribute(attr=name) | ast.Name(id=name) | ast.arg(arg=name):
            return name
        case ast.Constant(value=str(name)):  # an annotation
            return name.rpartition(".")[2]
    return ""


def _bound_texts(nodes: list[ast.AST]) -> Mapping[str, ast.Constant]:
    """Return the texts that names are bound to, of names that are bound once."""
    bound: dict[str, list[ast.expr | None]] = {}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.setdefault(node.id, []).append(None)
        elif isinstance(node, ast.arg):
            bound.setdefault(node.arg, []).extend((None, None))
    for node in nodes:
        target: ast.AST | None = None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        elif isinstance(node, ast.AnnAssign):
            target = node.target
        if isinstance(target, ast.Name) and bound.get(target.id) == [None]:
            bound[target.id] = [getattr(node, "value", None)]
    texts = ((name, values[0]) for name, values in bound.items() if len(values) == 1)
    return {
        name: value
        for name, value in texts
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
    }


def _branches(node: ast.expr) -> list[ast.expr]:
    return [node.body, node.orelse] if isinstance(node, ast.IfExp) else [node]


def _aliases(nodes: list[ast.AST]) -> Mapping[str, str]:
    """Return the other names that a module gives to functions and classes of shardspec."""
    known = {*_ANYWHERE, *_LOADS}
    found: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            found |= {each.asname: each.name for each in node.names if each.asname}
        elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Attribute, ast.Name)):
            found |= {_last_name(target): _last_name(node.value) for target in node.targets}
    return {name: other for name, other in found.items() if other in known}
