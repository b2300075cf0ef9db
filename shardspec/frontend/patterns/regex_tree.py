r"""Python's reading of a regular expression, as a small tree of our own.

Two regex dialects agree on most patterns and differ where nobody looks: what `\w` holds, where
`$` stands, what `(?i)` folds. So a pattern is read by Python's own parser, and every set of
characters keeps its Python source: whether a character belongs is asked of `re` itself, one
character at a time, which cannot hang. Only the structure around those sets (sequence, choice,
repetition, anchors) is handed to RE2, and there the dialects agree.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any, Literal

from shardspec.frontend.grammar.syntax import SyntaxFault
from shardspec.frontend.patterns.limits import KEPT, MAX_LENGTH

MAX_DEPTH = 50
MAX_REPEAT = 1_000  # RE2 refuses more, since it unrolls them
_TEMPLATE = 1  # undocumented, gone in Python 3.13

AnchorKind = Literal[
    "start", "end", "end_or_break", "line_start", "line_end", "boundary", "not_boundary"
]


@dataclass(frozen=True, slots=True)
class Exactly:
    """One character that stands for itself."""

    char: str


@dataclass(frozen=True, slots=True)
class CharSet:
    """One character out of a set, as Python source that matches exactly one character."""

    source: str
    flags: int


@dataclass(frozen=True, slots=True)
class Anchor:
    """A place between two characters.

    Attributes:
      ascii: for a word boundary: only ASCII letters, digits and `_` make words.
    """

    kind: AnchorKind
    ascii: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """Items one after another."""

    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several; of none, it never matches."""

    options: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """An item several times; `most` is None where there is no limit."""

    item: Tree
    least: int
    most: int | None


Tree = Exactly | CharSet | Anchor | Run | Choice | Repeat


@dataclass(frozen=True, slots=True)
class Beyond:
    """A valid pattern that RE2 cannot express, and the part that it lacks."""

    reason: str


@lru_cache(maxsize=KEPT)
def read_regex(text: str) -> Tree | Beyond | SyntaxFault:
    """Return the structure of a Python regex, or what stands in the way."""
    if len(text) > MAX_LENGTH:
        message = f"a regex of {len(text):,} characters is too long"
        return SyntaxFault(message, 0, len(text), f"at most {MAX_LENGTH:,} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parsed = import_module("re._parser").parse(text)
        if parsed.state.flags & _TEMPLATE:
            return Beyond("the flag `t`")
        return _read(parsed, parsed.state.flags, MAX_DEPTH)
    except _BeyondRe2Error as beyond:
        return Beyond(str(beyond))
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        return regex_fault(text, error)


def regex_fault(text: str, error: Exception) -> SyntaxFault:
    """Return what Python says is wrong with a pattern, and where."""
    if isinstance(error, RecursionError):
        help = f"at most {MAX_DEPTH} groups inside each other"
        return SyntaxFault("the regex nests too deeply", 0, len(text), help)
    position = getattr(error, "pos", None)
    said = str(getattr(error, "msg", None) or error)
    if said.startswith("Exceeds the limit"):
        said = "the repetition number is too large"
    message = f"not a regular expression: {said}"
    help = "patterns here are Python's `re`; a plain path or a glob needs no `re:`"
    if position is None:
        return SyntaxFault(message, 0, len(text), help)
    start = min(position, max(len(text) - 1, 0))
    return SyntaxFault(message, start, min(start + 1, len(text)), help)


def nodes(tree: Tree) -> Iterator[Tree]:
    """Yield every node of a tree."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        match node:
            case Run(items=inner) | Choice(options=inner):
                waiting.extend(inner)
            case Repeat(item=item):
                waiting.append(item)


class _BeyondRe2Error(Exception):
    """Leaves the reader when a part cannot be expressed; the text names the part."""


_REASONS = {
    "GROUPREF": "a backreference",
    "GROUPREF_EXISTS": "a conditional group",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repeat",
}

_CATEGORIES = {
    "CATEGORY_DIGIT": r"\d",
    "CATEGORY_NOT_DIGIT": r"\D",
    "CATEGORY_SPACE": r"\s",
    "CATEGORY_NOT_SPACE": r"\S",
    "CATEGORY_WORD": r"\w",
    "CATEGORY_NOT_WORD": r"\W",
}

_ANCHORS: dict[str, AnchorKind] = {
    "AT_BEGINNING": "start",
    "AT_BEGINNING_STRING": "start",
    "AT_END": "end_or_break",
    "AT_END_STRING": "end",
    "AT_BOUNDARY": "boundary",
    "AT_NON_BOUNDARY": "not_boundary",
}

_LINE_ANCHORS: dict[str, AnchorKind] = {"AT_BEGINNING": "line_start", "AT_END": "line_end"}


def _read(parsed: Any, flags: int, depth: int) -> Tree:
    """Return a sequence of Python's parser as a tree."""
    if depth == 0:
        raise RecursionError
    items = tuple(_read_node(operation.name, given, flags, depth) for operation, given in parsed)
    return items[0] if len(items) == 1 else Run(items)


def _read_node(name: str, given: Any, flags: int, depth: int) -> Tree:
    match name:
        case "LITERAL" if not flags & re.IGNORECASE:
            return Exactly(chr(given))
        case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
            return CharSet(_set_source(name, given), flags & (re.I | re.A | re.S))
        case "AT":
            line = _LINE_ANCHORS.get(given.name) if flags & re.MULTILINE else None
            return Anchor(line or _ANCHORS[given.name], bool(flags & re.ASCII))
        case "BRANCH":
            return Choice(tuple(_read(option, flags, depth) for option in given[1]))
        case "SUBPATTERN":
            _, added, removed, inner = given
            return _read(inner, _scoped(flags, added, removed), depth - 1)
        case "MAX_REPEAT" | "MIN_REPEAT":
            return _read_repeat(given, flags, depth)
        case "FAILURE":
            return Choice(())
        case "ASSERT" | "ASSERT_NOT":
            return _read_assertion(name == "ASSERT_NOT", *given)
    raise _BeyondRe2Error(_REASONS.get(name, f"the construct {name.lower()}"))


def _read_repeat(given: Any, flags: int, depth: int) -> Tree:
    least, most, inner = int(given[0]), int(given[1]), given[2]
    unlimited = given[1] is import_module("re._constants").MAXREPEAT
    if max(least, 0 if unlimited else most) > MAX_REPEAT:
        raise _BeyondRe2Error(f"a repetition of more than {MAX_REPEAT:,}")
    return Repeat(_read(inner, flags, depth), least, None if unlimited else most)


def _read_assertion(negative: bool, direction: int, inner: Sequence[Any]) -> Tree:
    if negative and not inner:
        return Choice(())
    where = "lookahead" if direction > 0 else "lookbehind"
    raise _BeyondRe2Error(f"a negative {where}" if negative else f"a {where}")


def _scoped(flags: int, added: int, removed: int) -> int:
    """Return the flags inside `(?flags-flags:...)`; a, L and u replace each other."""
    kinds = re.ASCII | re.LOCALE | re.UNICODE
    kept = flags & ~kinds if added & kinds else flags
    return int((kept | added) & ~removed)


def _set_source(name: str, given: Any) -> str:
    match name:
        case "ANY":
            return "."
        case "LITERAL":
            return _escaped(given)
        case "NOT_LITERAL":
            return f"[^{_escaped(given)}]"
    return f"[{''.join(_item_source(operation.name, value) for operation, value in given)}]"


def _item_source(name: str, value: Any) -> str:
    match name:
        case "NEGATE":
            return "^"
        case "LITERAL":
            return _escaped(value)
        case "RANGE":
            return f"{_escaped(value[0])}-{_escaped(value[1])}"
        case "CATEGORY":
            return _CATEGORIES[value.name]
    raise _BeyondRe2Error(f"the set item {name.lower()}")


def _escaped(code_point: int) -> str:
    return f"\\U{code_point:08x}"
