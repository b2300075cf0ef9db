"""The data of a DSL file as it grows, and the places of its pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from shardspec.diagnostics import Diagnostic, Excerpt, Label, SourceFile, Span, point
from shardspec.diagnostics.codes import DUPLICATE_KEY, SYNTAX
from shardspec.language.dsl_text.layout import Statement, unquoted
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.reading import Data, Route, number_or_text

if TYPE_CHECKING:
    from lark import Token, Tree

    Node: TypeAlias = Tree[Token]


class DslData:
    """Data, keys and values by route, and what is wrong with them.

    Attributes:
      text: the source with blanks for comments.
      entries: route, start and end of everything that a comment can belong to.
      blocks: the same of everything in braces.
    """

    def __init__(self, source: SourceFile, text: str) -> None:
        """Start with nothing."""
        self.source = source
        self.text = text
        self.data: dict[str, Data] = {}
        self.keys: dict[Route, Excerpt] = {}
        self.values: dict[Route, Excerpt] = {(): Excerpt("", Span(source, 0, len(source.text)))}
        self.entries: list[tuple[Route, int, int]] = []
        self.blocks: list[tuple[Route, int, int]] = []
        self.diagnostics: list[Diagnostic] = []

    def report(self, fault: SyntaxFault, at: int = 0) -> None:
        """Note a syntax fault; its offsets count from `at`."""
        span = Span(self.source, at + fault.start, at + fault.end)
        self.diagnostics.append(point(SYNTAX, fault.message, span, help=fault.help))

    def say(self, route: Route, stated: dict[str, Data], name: str, excerpt: Excerpt) -> None:
        """Put one field of an entry in its place."""
        self.values[(*route, name)] = excerpt
        stated[name] = excerpt.text

    def is_quoted(self, excerpt: Excerpt) -> bool:
        """Say whether the text stands in quotes in the file."""
        return self.text[excerpt.span.start] == '"'

    def pair(self, route: Route, tree: Node, entry: Statement, into: dict[str, Data]) -> None:
        """Take in one entry of name or pattern and expression."""
        left, right = tree.children
        assert not isinstance(left, str)
        assert not isinstance(right, str)
        key, value = self.tokens(left, entry)[0], self.whole(right, entry)
        inner: Route = (*route, key.text)
        if self.is_taken(inner, key):
            return
        self.keys[inner], self.values[inner] = key, value
        into[key.text] = number_or_text(value.text) if route[-1] == "mesh" else value.text
        self.entries.append((inner, entry.start, entry.end))

    def scalar(self, route: Route, statement: Statement, value: Excerpt) -> None:
        """Take in a statement that is one value, under its keyword."""
        end = statement.start + len(str(route[-1]))
        key = self.excerpt(statement.start, end)
        if self.is_taken(route, key):
            return
        self.keys[route], self.values[route] = key, value
        self.entries.append((route, statement.start, statement.end))
        self.data[str(route[-1])] = (
            number_or_text(value.text) if route == ("shardspec",) else value.text
        )

    def open(self, route: Route, statement: Statement) -> None:
        """Note where a section stands that several statements may add to."""
        end = statement.block_end if statement.entries is not None else statement.end
        if route not in self.values:
            word = self.text[statement.start : statement.end].split(None, 1)[0]
            self.keys[route] = self.excerpt(statement.start, statement.start + len(word))
            self.values[route] = Excerpt("", Span(self.source, statement.start, end))
        else:
            start = self.values[route].span.start
            self.values[route] = Excerpt("", Span(self.source, start, end))

    def entry(self, section: str, key: Excerpt, statement: Statement) -> Route | None:
        """Return the route of a named entry, or None where the name is taken."""
        route: Route = (section, key.text)
        if self.is_taken(route, key):
            return None
        self.open((section,), statement)
        end = statement.block_end if statement.entries is not None else statement.end
        self.keys[route] = key
        self.values[route] = Excerpt("", Span(self.source, statement.start, end))
        self.entries.append((route, statement.start, statement.end))
        return route

    def put(self, route: Route, value: Data) -> None:
        """Put a value into its section."""
        section, name = route
        into = self.data.setdefault(str(section), {})
        assert isinstance(into, dict)
        into[str(name)] = value

    def is_taken(self, route: Route, key: Excerpt) -> bool:
        """Say whether something stands at `route` already; report if so."""
        first = self.keys.get(route)
        if first is None:
            return False
        message = f"`{key.text}` stands twice"
        labels = (Label(key.span, "again here"), Label(first.span, "first here", primary=False))
        help = "keep one of the two"
        self.diagnostics.append(Diagnostic(DUPLICATE_KEY, message, labels, help=help))
        return True

    def excerpt(self, start: int, end: int) -> Excerpt:
        """Return a piece of the text."""
        return Excerpt(self.text[start:end], Span(self.source, start, end), start)

    def whole(self, tree: Node, statement: Statement) -> Excerpt:
        """Return the text under a tree."""
        at = statement.start
        return self.excerpt(at + tree.meta.start_pos, at + tree.meta.end_pos)

    def tokens(self, tree: Node, statement: Statement, *, deep: bool = False) -> list[Excerpt]:
        """Return the tokens of a tree as the text they stand for."""
        tokens = tree.scan_values(lambda token: True) if deep else tree.children
        return [self._token(token, statement.start) for token in tokens if isinstance(token, str)]

    def _token(self, token: Token, at: int) -> Excerpt:
        start, end = at + (token.start_pos or 0), at + (token.end_pos or 0)
        span = Span(self.source, start, end)
        match token.type:
            case "STRING":
                return Excerpt(unquoted(token), span, None if "\\" in token else start + 1)
            case "REGEX":
                return Excerpt(f"re:{token[3:-1]}", span, start)
            case "ESCAPED_REGEX":
                inner = unquoted(token[3:])
                return Excerpt(f"re:{inner}", span, None if "\\" in token else start + 1)
        return Excerpt(str(token), span, start)


def child_of(tree: Node, name: str) -> Node:
    """Return the child of this name."""
    found = maybe_child_of(tree, name)
    assert found is not None
    return found


def maybe_child_of(tree: Node, name: str) -> Node | None:
    """Return the child of this name, or None where it was left out."""
    return next((c for c in tree.children if not isinstance(c, str) and c.data == name), None)
