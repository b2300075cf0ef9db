"""A regex tree written for RE2, over a small alphabet.

RE2 never sees Python's sets of characters. Over an alphabet that is known, a set is the list of
its members: over ASCII for nearly every path, and for the others over the *kinds* of characters
that the patterns can tell apart, each kind standing in as one character (`wide_paths`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from shardspec.frontend.patterns.limits import KEPT
from shardspec.frontend.patterns.regex_tree import (
    Anchor,
    AnchorKind,
    CharSet,
    Choice,
    Exactly,
    Repeat,
    Run,
    Tree,
)

#: The characters of a plain path: ASCII without the line break.
PLAIN = "".join(map(chr, range(128))).replace("\n", "")

#: RE2's way to say "no match".
NEVER = r"[^\x00-\x{10FFFF}]"

_PLAIN_ANCHORS: Mapping[AnchorKind, str] = {
    "start": r"\A",
    "line_start": r"\A",
    "end": r"\z",
    "line_end": r"\z",
    "end_or_break": r"\z",
    "boundary": r"\b",
    "not_boundary": r"\B",
}


@dataclass(frozen=True, slots=True)
class Alphabet:
    """How to write the leaves of a tree for RE2.

    Attributes:
      kinds: for each character that stands for a kind, one real character of that kind.
      anchors: what each kind of anchor becomes.
    """

    kinds: tuple[tuple[str, str], ...] | None = None
    anchors: Mapping[AnchorKind, str] = field(default_factory=lambda: _PLAIN_ANCHORS)

    def one(self, char: str) -> str:
        """Return the source of a single character."""
        if self.kinds is None:
            return escaped(char) if char in PLAIN else NEVER
        return set_source(token for token, sample in self.kinds if sample == char)

    def one_of(self, chars: CharSet) -> str:
        """Return the source of a set of characters."""
        if self.kinds is None:
            return _plain_set(chars)
        return set_source(token for token, sample in self.kinds if holds(chars, sample))


def re2_source(tree: Tree, alphabet: Alphabet) -> str:
    """Return RE2 source that matches the same whole texts, over the alphabet."""
    match tree:
        case Exactly(char=char):
            return alphabet.one(char)
        case CharSet():
            return alphabet.one_of(tree)
        case Anchor(kind=kind):
            return alphabet.anchors[kind]
        case Run(items=items):
            return "".join(re2_source(item, alphabet) for item in items)
        case Choice(options=options):
            branches = "|".join(re2_source(option, alphabet) for option in options)
            return f"(?:{branches})" if options else NEVER
        case Repeat(item=item, least=least, most=most):
            return f"(?:{re2_source(item, alphabet)}){_count(least, most)}"


def _count(least: int, most: int | None) -> str:
    short = {(0, None): "*", (1, None): "+", (0, 1): "?"}
    return short.get((least, most)) or f"{{{least},{'' if most is None else most}}}"


def escaped(char: str) -> str:
    """Return RE2 source for one character."""
    if char.isalnum() or char in "_/":
        return char
    return f"\\x{{{ord(char):x}}}"


def set_source(chars: Iterable[str]) -> str:
    """Return RE2 source for one of `chars`."""
    codes = sorted(map(ord, chars))
    if not codes:
        return NEVER
    ranges: list[list[int]] = []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    parts = (_range_source(low, high) for low, high in ranges)
    return f"[{''.join(parts)}]"


def _range_source(low: int, high: int) -> str:
    return f"\\x{{{low:x}}}" if low == high else f"\\x{{{low:x}}}-\\x{{{high:x}}}"


@lru_cache(maxsize=KEPT)
def holds(chars: CharSet, char: str) -> bool:
    """Say whether Python counts a character in."""
    return re.compile(chars.source, chars.flags).fullmatch(char) is not None


@lru_cache(maxsize=KEPT)
def _plain_set(chars: CharSet) -> str:
    return set_source(re.compile(chars.source, chars.flags).findall(PLAIN))
