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
from shardspec.lsp.kinds import Kind

#: Calls that take logical axes -> the position of that argument; all take `names=` too.
_AXES = {"constrain": 1, "partition_spec": 0, "spec": 0, "sharding": 0, "batch": 0, "size": 0}
_RESOLVER, _LOADS = "Resolver", ("Resolver", "load", "load_spec")
#: A literal of one piece whose characters are those of the text.
_PLAIN = re.compile(r"[rRuU]?(\"{3}|'{3}|\"|')([^\\]*)\1", re.DOTALL)
_WORD = re.compile(r"(?<![\w.'-])(?:(?:in|out):)?[^\W\d][\w.-]*'?")
_IS_NAMES = re.compile(r"[\w\s.:'-]*")
_SUFFIXES = (".yaml", ".yml", ".shard")


class Called(NamedTuple):
    """A name in code.

    Attributes:
      is_plain: whether the characters of the span are the name: no escape, no pieces.
      specs: the specs that it is of, of a target or a phase.
    """

    kind: Kind
    name: str
    span: Span
    is_plain: bool = True
    specs: tuple[str, ...] = ()


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
        self.resolvers = _resolvers(self.nodes)
        self.uses: dict[tuple[Span, str], Called] = {}
        self.specs: dict[str, None] = {}
        self.unknown: dict[Span, None] = {}

    def found(self) -> Calls:
        for node in self.nodes:
            if isinstance(node, ast.Call):
                self._call(node, _last_name(node.func))
        uses = sorted(self.uses.values(), key=lambda each: each.span.start)
        return Calls(self.source, tuple(uses), tuple(self.specs), tuple(self.unknown))

    def _call(self, call: ast.Call, name: str) -> None:
        keywords = {each.arg: each.value for each in call.keywords if each.arg}
        if name in _AXES and (name == "constrain" or self._is_resolver(call.func)):
            stated = dict(enumerate(call.args)).get(_AXES[name], keywords.get("names"))
            self._names(call, stated, Kind.LOGICAL_AXIS)
            self._names(call, keywords.get("activation"), Kind.ACTIVATION)
        of: tuple[str, ...] = ()
        if name in _LOADS and (call.args or "spec" in keywords):
            spec = call.args[0] if call.args else keywords["spec"]
            paths = [text for text, _ in self._literals(spec) if text.endswith(_SUFFIXES)]
            self.specs.update(dict.fromkeys(paths))
            of = tuple(paths)
        if name == _RESOLVER:
            target = call.args[1] if len(call.args) > 1 else keywords.get("target")
            self._names(call, target, Kind.TARGET, of)
            self._names(call, keywords.get("phase"), Kind.PHASE, of)

    def _is_resolver(self, function: ast.expr) -> bool:
        receiver = function.value if isinstance(function, ast.Attribute) else None
        name = "" if receiver is None else _last_name(receiver)
        return name in self.resolvers or "resolver" in name.lower()

    def _names(
        self,
        call: ast.Call,
        argument: ast.expr | None,
        kind: Kind,
        specs: tuple[str, ...] = (),
    ) -> None:
        """Note the names in an argument; of one that is no text, that they are unknown."""
        if argument is None or (isinstance(argument, ast.Constant) and argument.value is None):
            return
        found = [*self._literals(argument)]
        parts = (each for each in ast.walk(argument) if isinstance(each, (ast.Name, ast.Call)))
        is_known = found and not any(_last_name(each) not in self.texts for each in parts)
        if not is_known or any(isinstance(each, ast.JoinedStr) for each in ast.walk(argument)):
            self.unknown[self.places.span(call)] = None
        for text, node in found:
            for use in self._in_text(text, self.places.span(node), kind):
                self.uses.setdefault((use.span, use.name), use._replace(specs=specs))

    def _literals(self, node: ast.expr) -> Iterator[tuple[str, ast.Constant]]:
        """Yield the texts in an expression, those of names that are bound to one too."""
        mappings = (each for each in ast.walk(node) if isinstance(each, ast.Dict))
        keys = {id(key) for each in mappings for key in each.keys}
        for each in ast.walk(node):
            if isinstance(each, ast.Name):
                each = self.texts.get(each.id, each)
            if not isinstance(each, ast.Constant) or id(each) in keys:
                continue
            if isinstance(each.value, str):
                yield each.value, each

    def _in_text(self, text: str, span: Span, kind: Kind) -> Iterator[Called]:
        plain = _PLAIN.fullmatch(span.text)
        is_plain = plain is not None and plain[2] == text
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


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return _last_name(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _bound_texts(nodes: list[ast.AST]) -> Mapping[str, ast.Constant]:
    """Return the texts that names are bound to, of names that are bound once."""
    bound: dict[str, list[ast.expr | None]] = {}
    for node in nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.setdefault(node.id, []).append(None)
        elif isinstance(node, ast.arg):
            bound.setdefault(node.arg, []).extend((None, None))
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            name = _last_name(node.targets[0])
            if isinstance(node.targets[0], ast.Name) and bound.get(name) == [None]:
                bound[name] = [node.value]
    texts = ((name, values[0]) for name, values in bound.items() if len(values) == 1)
    return {
        name: value
        for name, value in texts
        if isinstance(value, ast.Constant) and isinstance(value.value, str)
    }


def _resolvers(nodes: list[ast.AST]) -> frozenset[str]:
    """Return the names that a `Resolver(...)` is bound to."""
    found = set[str]()
    for node in nodes:
        pairs: list[tuple[ast.expr, ast.expr | None]] = []
        if isinstance(node, ast.Assign):
            pairs = [(node.value, target) for target in node.targets]
        elif isinstance(node, ast.withitem):
            pairs = [(node.context_expr, node.optional_vars)]
        for value, target in pairs:
            if isinstance(value, ast.Call) and _last_name(value) == _RESOLVER and target:
                found.add(_last_name(target))
    return frozenset(found)
