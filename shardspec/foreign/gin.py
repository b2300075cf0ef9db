"""A gin file -> its bindings, without importing or calling anything.

Gin's text is made of Python's tokens: `scope/module.function.argument = value`, blocks under
`module.function:`, macros (`NAME = value`, used as `%NAME`), references (`@function`,
`@function()`), `include "file"` and imports. Values are Python literals with references in them.
Source: google/gin-config, `gin/config_parser.py` and its documentation of the syntax. That parser
itself is no help: it reads strings that stand in a row anew for each of them (8,000, in a file of
32 KB, take it 22 s; gin-config 0.5.0), and its values do not say where they stand.

Files make one configuration: includes followed, macros resolved, the last binding counts.
"""

from __future__ import annotations

import ast
import io
import os.path
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, SourceFile, Span
from shardspec.foreign.formats import bad, lost
from shardspec.foreign.values import DEEPEST, MOST_VALUES, Node, constant, group, unreadable
from shardspec.language.files import leads_out, read_source

_SKIPPED = frozenset((tokenize.COMMENT, tokenize.NL, tokenize.ENCODING))
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class GinBinding(NamedTuple):
    """`scope/selector.argument = value`.

    Attributes:
      selector: `partitioning.PjitPartitioner`; the macro's name where there is no argument.
      argument: "" for a macro.
      span: the left side.
    """

    scope: str
    selector: str
    argument: str
    value: Node
    span: Span

    @property
    def function(self) -> str:
        """Return the last part of the selector."""
        return self.selector.rpartition(".")[2]


class GinInclude(NamedTuple):
    """`include "path"`."""

    path: str
    span: Span


Statement = GinBinding | GinInclude


class GinFaultError(Exception):
    """A text that gin would not read; never leaves this module's functions."""

    def __init__(self, message: str, span: Span) -> None:
        """Take the message and its place."""
        super().__init__(message)
        self.span = span


class _Token(NamedTuple):
    kind: int
    text: str
    span: Span


def read_gin(source: SourceFile) -> tuple[Statement, ...] | Diagnostic:
    """Return the bindings and includes of a file, in order, or what is no gin in it."""
    try:
        return tuple(_Parser(_tokens(source)).statements())
    except GinFaultError as fault:
        message = f"`{source.name}` is no gin: {fault}"
        by_name = f"`shardspec import flax {source.name}` reads a list of rules in Python"
        in_gin = "write bindings as `module.function.argument = value`"
        help = by_name if source.name.endswith(".py") else in_gin
        return bad(message, fault.span, help=help)


def _tokens(source: SourceFile) -> list[_Token]:
    size = len(source.text)
    starts = [*(span.start for _, span in source.lines()), size]

    def offset(place: tuple[int, int]) -> int:
        return min(starts[min(place[0], len(starts)) - 1] + place[1], size)

    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
            if token.type not in _SKIPPED:
                span = Span(source, offset(token.start), offset(token.end))
                found.append(_Token(token.type, token.string, span))
    except tokenize.TokenError as fault:
        at = offset(fault.args[1]) if len(fault.args) > 1 else size
        start = min(at, size)
        raise GinFaultError(str(fault.args[0]).lower(), Span(source, start, start)) from None
    except SyntaxError as fault:
        raise GinFaultError(str(fault.msg), source.whole) from None
    except UnicodeDecodeError:  # since Python 3.12 of a character behind a `\r` alone
        alone = re.search(r"\r(?!\n)", source.text)
        place = Span(source, alone.start(), alone.end()) if alone else source.whole
        raise GinFaultError("a carriage return ends no line", place) from None
    return found


class _Parser:
    """Walks the tokens of one file."""

    def __init__(self, tokens: list[_Token]) -> None:
        self.tokens = tokens
        self.at = 0

    def statements(self) -> Iterator[Statement]:
        while self.peek.kind != tokenize.ENDMARKER:
            if self.peek.kind in (tokenize.NEWLINE, tokenize.DEDENT):
                self.at += 1
            elif self.peek.text in ("import", "from") and self.next_kind() == tokenize.NAME:
                while self.peek.kind not in (tokenize.NEWLINE, tokenize.ENDMARKER):
                    self.at += 1
            elif self.peek.text == "include" and self.next_kind() == tokenize.STRING:
                yield self.include()
            else:
                yield from self.binding_or_block()

    @property
    def peek(self) -> _Token:
        return self.tokens[min(self.at, len(self.tokens) - 1)]

    def next_kind(self) -> int:
        return self.tokens[min(self.at + 1, len(self.tokens) - 1)].kind

    def take(self, text: str | None = None) -> _Token:
        token = self.peek
        if text is not None and token.text != text:
            raise GinFaultError(f"expected `{text}`, and here is {_shown(token)}", token.span)
        self.at += 1
        return token

    def end_line(self) -> None:
        if self.peek.kind not in (tokenize.NEWLINE, tokenize.ENDMARKER):
            message = f"the line goes on after its value: {_shown(self.peek)}"
            raise GinFaultError(message, self.peek.span)
        self.at += 1

    def include(self) -> GinInclude:
        self.at += 1
        value = self.value(0)
        self.end_line()
        if value.kind != "text":
            raise GinFaultError("`include` needs the path of a file", value.span)
        return GinInclude(value.text, value.span)

    def binding_or_block(self) -> Iterator[GinBinding]:
        name, span = self.selector()
        if self.peek.text != ":":
            yield self.binding(name, span, "")
            return
        self.take(":")
        self.take_kind(tokenize.NEWLINE, "the end of the line")
        self.take_kind(tokenize.INDENT, "an indented binding")
        while self.peek.kind not in (tokenize.DEDENT, tokenize.ENDMARKER):
            argument, inner = self.selector()
            yield self.binding(name, inner, argument)

    def binding(self, name: str, span: Span, argument: str) -> GinBinding:
        self.take("=")
        value = self.value(0)
        self.end_line()
        scope, _, selector = name.rpartition("/")
        if not argument:
            selector, _, argument = selector.rpartition(".")
            if not selector:
                selector, argument = argument, ""
        return GinBinding(scope, selector, argument, value, span)

    def take_kind(self, kind: int, what: str) -> None:
        if self.peek.kind != kind:
            raise GinFaultError(f"expected {what}, and here is {_shown(self.peek)}", self.peek.span)
        self.at += 1

    def selector(self) -> tuple[str, Span]:
        """Return `scope/module.function` and its place."""
        first = self.peek
        text = ""
        while True:
            token = self.take()
            if token.kind != tokenize.NAME:
                raise GinFaultError(f"expected a name, and here is {_shown(token)}", token.span)
            text += token.text
            if self.peek.text not in (".", "/"):
                return text, Span(first.span.source, first.span.start, token.span.end)
            text += self.take().text

    def value(self, depth: int) -> Node:
        token = self.peek
        if depth > DEEPEST:
            raise GinFaultError(f"values are nested more than {DEEPEST} levels deep", token.span)
        if token.text in _CLOSING and token.kind == tokenize.OP:
            return self.collection(depth)
        if token.text in ("@", "%"):
            return self.reference()
        if token.kind == tokenize.STRING:
            return self.strings()
        self.at += 1
        if token.text in ("-", "+") and self.peek.kind == tokenize.NUMBER:
            number = self.take()
            return _literal(token.text + number.text, _over(token, number))
        if token.kind == tokenize.NUMBER or token.text in ("True", "False", "None"):
            return _literal(token.text, token.span)
        raise GinFaultError(f"expected a value, and here is {_shown(token)}", token.span)

    def strings(self) -> Node:
        first = last = self.take()
        texts = [first.text]
        while self.peek.kind == tokenize.STRING:
            last = self.take()
            texts.append(last.text)
        return _literal(" ".join(texts), _over(first, last))

    def reference(self) -> Node:
        mark = self.take()
        name, span = self.selector()
        whole = Span(span.source, mark.span.start, span.end)
        if mark.text == "@" and self.peek.text == "(":
            self.take("(")
            end = self.take(")")
            return Node("call", Span(span.source, mark.span.start, end.span.end), f"@{name}")
        return Node("name", whole, mark.text + name)

    def collection(self, depth: int) -> Node:
        """Return a list, a tuple, a mapping, or a value in parentheses."""
        opening = self.take()
        keys: list[Node] = []
        items: list[Node] = []
        has_comma = False
        while self.peek.text != _CLOSING[opening.text]:
            items.append(self.value(depth + 1))
            if opening.text == "{":
                keys.append(items.pop())
                self.take(":")
                items.append(self.value(depth + 1))
            if self.peek.text != ",":
                break
            has_comma = bool(self.take())
        closing = self.take(_CLOSING[opening.text])
        span = _over(opening, closing)
        if opening.text == "{":
            return group("mapping", span, tuple(items), keys=tuple(keys))
        if opening.text == "(" and len(items) == 1 and not has_comma:
            return items[0]
        return group("list", span, tuple(items))


def _over(first: _Token, last: _Token) -> Span:
    return Span(first.span.source, first.span.start, last.span.end)


def _literal(text: str, span: Span) -> Node:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return constant(ast.literal_eval(text), span)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise GinFaultError("a value cannot be read", span) from None


def _shown(token: _Token) -> str:
    if token.kind in (tokenize.NEWLINE, tokenize.ENDMARKER, tokenize.DEDENT):
        return "the end of the line"
    return f"`{token.text[:40]}`" if token.text.strip() else "more indentation"


MOST_INCLUDES = 200
_OUT = "give the file itself as another FILE, before this one"


@dataclass(slots=True)
class GinConfig:
    """All bindings, in the order gin applies them.

    Attributes:
      folders: where included files are looked for, after the folders of the files that lead there:
        T5X's files name one another from the root of its repository.
      faults: errors of the files, and includes that were not read.
    """

    folders: tuple[str, ...] = ()
    bindings: list[GinBinding] = field(default_factory=list)
    faults: list[Diagnostic] = field(default_factory=list)
    included: int = 0

    def add(self, source: SourceFile, above: tuple[str, ...] = ()) -> None:
        """Add what a file binds, and what the files that it includes do."""
        statements = read_gin(source)
        if isinstance(statements, Diagnostic):
            self.faults.append(statements)
            return
        for statement in statements:
            if isinstance(statement, GinBinding):
                self.bindings.append(statement)
            else:
                self._include(statement, (*above, source.name))

    def _include(self, include: GinInclude, above: tuple[str, ...]) -> None:
        """Add the file that a line includes.

        Args:
          above: the files that lead there, the one with the line last.
        """
        path = os.path.normpath(include.path)
        if os.path.isabs(path) or path.split(os.sep)[0] in ("..", ""):
            message = f"`{include.path}` is not included: it leads out of the folder"
            self.faults.append(lost(message, include.span, help=_OUT))
            return
        folders = (*map(os.path.dirname, reversed(above)), *self.folders)
        places = [os.path.join(folder, path) for folder in folders]
        found = next((each for each in places if os.path.isfile(each)), None)
        self.included += 1
        if found is None:
            message = f"`{include.path}` is not there, so what it binds is not seen"
            help = "say where included files are: --include FOLDER"
            self.faults.append(lost(message, include.span, help=help))
        elif self.included > MOST_INCLUDES or os.path.realpath(found) in map(
            os.path.realpath, above
        ):
            self.faults.append(bad(f"`{include.path}` includes itself", include.span))
        else:
            read = read_source(Path(found), name=found)
            if leads_out(found):
                message = f"`{include.path}` is not included: a link leads out of the project"
                self.faults.append(lost(message, include.span, help=_OUT))
            elif isinstance(read, Diagnostic):
                self.faults.append(bad(read.message, include.span, help=read.help))
            else:
                self.add(replace(read, included_from=include.span), above)

    def of(
        self, function: str, argument: str, scope: str = "", word: str = ""
    ) -> GinBinding | None:
        """Return the binding that counts, its macros resolved; the scope's beats that of none.

        Args:
          word: what the module of the function is called by, where several have one.
        """
        named = (each for each in self.bindings if word in each.selector)
        asked = (argument, function)
        found = [each for each in named if (each.argument, each.function) == asked]
        scoped = [each for each in found if each.scope == scope]
        last = scoped or [each for each in found if not each.scope]
        return self.resolved(last[-1]) if last else None

    def resolved(self, binding: GinBinding) -> GinBinding:
        """Return a binding with values in place of macros."""
        macros = {each.selector: each.value for each in self.bindings if not each.argument}
        return binding._replace(value=_Resolver(macros).value(binding.value, 0))


@dataclass(slots=True)
class _Resolver:
    """Puts values in place of macros; what stands for itself, or for too much, is unreadable."""

    macros: dict[str, Node]
    spent: int = 0

    def value(self, node: Node, depth: int) -> Node:
        self.spent += 1
        if depth > DEEPEST or self.spent > MOST_VALUES:
            return unreadable(node.span, "a macro stands for too much, or for itself")
        if node.kind == "name" and node.text.startswith("%"):
            name = node.text[1:]
            if name not in self.macros:
                return unreadable(node.span, f"nothing binds the macro `{name}`")
            return self.value(self.macros[name], depth + 1)
        if not node.items:
            return node
        items = tuple(self.value(item, depth + 1) for item in node.items)
        keys = tuple(self.value(key, depth + 1) for key in node.keys)
        return replace(node, items=items, keys=keys)


def read_config(sources: Sequence[SourceFile], folders: tuple[str, ...]) -> GinConfig:
    """Return the configuration that gin files make together, later ones winning."""
    config = GinConfig(folders)
    for source in sources:
        config.add(source)
    return config
