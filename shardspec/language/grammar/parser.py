"""Text -> tree, by the table that lark has made of a grammar.

The grammars define the language. Lark works out a table of each before the package is built
(`make tables`), and this module goes by them: a table is read in a millisecond, where lark takes 15
to 300 ms to work one out. A table holds names, numbers and regular expressions, as JSON.

As in lark, what may follow decides how a word is read: only terminals that the parser accepts are
tried, in the table's order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple

from shardspec import assets

#: `terminals` in the order in which they are tried, `rules` with what they keep, `tokens` by name,
#: and for each of the `states` pairs of a token and a state to go to, or, below zero, a rule to
#: reduce by (-1 is the first).
Table = dict[str, Any]

_END = "$END"


class Token(str):
    """A word, and where it stands."""

    __slots__ = ("end", "start", "type")

    type: str
    start: int
    end: int

    @property
    def text(self) -> str:
        """Return the word alone."""
        return str(self)


class Node:
    """What a rule has made of words and of other nodes."""

    __slots__ = ("children", "end", "name", "start")

    def __init__(self, name: str, children: list[Node | Token], start: int, end: int) -> None:
        """Make the node of a rule."""
        self.name = name
        self.children = children
        self.start = start
        self.end = end

    @property
    def tokens(self) -> list[Token]:
        """Return its words, without those of nodes in it."""
        return [child for child in self.children if isinstance(child, Token)]

    @property
    def nodes(self) -> list[Node]:
        """Return the nodes in it."""
        return [child for child in self.children if isinstance(child, Node)]

    @property
    def all_tokens(self) -> Iterator[Token]:
        """Yield its words, and those of all nodes in it, in order."""
        for child in self.children:
            if isinstance(child, Token):
                yield child
            else:
                yield from child.all_tokens

    def child(self, name: str) -> Node | None:
        """Return the node of this name in it, or None where it was left out."""
        return next((node for node in self.nodes if node.name == name), None)

    def __getitem__(self, name: str) -> Node:
        """Return the node of this name in it, which is always there."""
        found = self.child(name)
        assert found is not None
        return found


class Stop(NamedTuple):
    """Where a text stops being readable, and the terminals that are possible there."""

    at: int
    accepted: tuple[str, ...]


class _Reader(NamedTuple):
    """A terminal as it is tried in one state.

    Attributes:
      type: empty where it only parts others.
      words: texts that mean a terminal of their own.
    """

    match: Callable[[str, int], re.Match[str] | None]
    type: str
    words: dict[str, str]


#: What is made of the parts that a rule puts together: the name that the parser goes on by, that of
#: the node, the number of parts, and the places of those that are kept and of those whose own parts
#: are; None where all are kept.
_Rule = tuple[str, str, int, tuple[tuple[int, bool], ...] | None]


class Parser:
    """The parser of one grammar."""

    def __init__(self, table: Table) -> None:
        """Make the parser of a table."""
        tokens = table["tokens"]
        self._terminals: dict[str, Any] = {each["name"]: each for each in table["terminals"]}
        self._ignored = frozenset(table["ignore"])
        self._rules = [_rule(*each) for each in table["rules"]]
        self._states = [{tokens[token]: to for token, to in each} for each in table["states"]]
        self._starts: dict[str, int] = table["starts"]
        self._ends: dict[str, int] = table["ends"]
        self._readers: dict[int, list[_Reader]] = {}

    def shown(self, terminal: str) -> str:
        """Return a terminal as the grammar writes it."""
        found: str = self._terminals[terminal]["shown"]
        return found

    def parse(self, text: str, start: str) -> Node | None:
        """Return the tree of a text; None for one that cannot be read."""
        states, end = [self._starts[start]], self._ends[start]
        made: list[Any] = []
        at = 0
        while True:
            token = self._next(text, at, states[-1])
            if not self._takes(token, states, end, made):
                return None
            if token.type == _END:
                node: Node = made[-1]
                return node
            at = token.end

    def stop(self, text: str, start: str) -> Stop:
        """Return where a text that cannot be read is wrong.

        With a word that does not fit, a parser may go on a few steps: those do not count.
        """
        states, end = [self._starts[start]], self._ends[start]
        token = self._next(text, 0, states[-1])
        while token.type != _END:
            after = [*states]
            if not self._takes(token, after, end):
                break
            states = after
            token = self._next(text, token.end, states[-1])
        at = len(text.rstrip()) if token.type == _END else token.start
        words = (each for each in self._states[states[-1]] if each.isupper())
        accepted = (each for each in words if self._takes(_token(each), [*states], end))
        return Stop(at, tuple(accepted))

    def _next(self, text: str, at: int, state: int) -> Token:
        """Return the next word; one of no type where no terminal fits."""
        readers = self._readers.get(state) or self._readers_of(state)
        while at < len(text):
            for reader in readers:
                found = reader[0](text, at)
                if found is not None:
                    break
            else:
                return _token("", "", at)
            _, kind, words = reader
            if kind:
                word = found[0]
                return _token(words.get(word, kind) if words else kind, word, at)
            at = found.end()
        return _token(_END, "", at)

    def _readers_of(self, state: int) -> list[_Reader]:
        """Return the terminals that a state takes, in the order in which they are tried.

        A word that a wider terminal reads too is not tried: its text says which it is.
        """
        taken = {**self._states[state], **dict.fromkeys(self._ignored)}
        readers = {
            name: _Reader(re.compile(each["regex"]).match, name * (name not in self._ignored), {})
            for name, each in self._terminals.items()
            if name in taken and taken.keys().isdisjoint(each.get("wider", ()))
        }
        for name in taken.keys() & self._terminals.keys():
            for wider in self._terminals[name].get("wider", ()):
                if wider in readers:
                    readers[wider].words[self.shown(name)] = name
        self._readers[state] = [*readers.values()]
        return self._readers[state]

    def _takes(
        self, token: Token, states: list[int], end: int, made: list[Any] | None = None
    ) -> bool:
        """Take in one word; say whether it fits.

        Args:
          made: takes what the words so far have become; None where only the states count.
        """
        kind, table = token.type, self._states
        while not (kind == _END and states[-1] == end):
            to = table[states[-1]].get(kind)
            if to is None:
                return False
            if to >= 0:
                states.append(to)
                if made is not None:
                    made.append(token)
                return True
            origin, name, count, kept = self._rules[-1 - to]
            if count:
                del states[-count:]
            states.append(table[states[-1]][origin])
            if made is not None:
                parts = made[len(made) - count :]
                del made[len(made) - count :]
                made.append(_node(name, parts, kept))
        return True


def _node(name: str, parts: list[Any], kept: tuple[tuple[int, bool], ...] | None) -> Node:
    """Return the node of some parts; one without words has no place."""
    children = parts
    if kept is not None:
        children = []
        for at, is_unpacked in kept:
            if is_unpacked:
                children += parts[at].children
            else:
                children.append(parts[at])
    placed = parts
    if not parts or parts[0].start < 0 or parts[-1].start < 0:
        placed = [part for part in parts if part.start >= 0] or [Node("", [], -1, -1)]
    return Node(name, children, placed[0].start, placed[-1].end)


def _token(kind: str, word: str = "", at: int = 0) -> Token:
    token = Token(word)
    token.type, token.start, token.end = kind, at, at + len(word)
    return token


def _rule(origin: str, name: str, parts: str) -> _Rule:
    """Return a rule of a table: `k` is kept, `u` unpacked, and `-` left out."""
    kept = tuple((at, part == "u") for at, part in enumerate(parts) if part != "-")
    return origin, name, len(parts), None if set(parts) <= {"k"} else kept


@cache
def parser(grammar: str) -> Parser:
    """Return the parser for the grammar of this name."""
    import json

    return Parser(json.loads(assets.table_path(grammar).read_text("utf-8")))
