r"""What a path must hold for a pattern to match it, and which patterns a path may match.

A pattern that has `block_17` between two slashes can only match paths with that component. So of
thousands of patterns a path needs to be asked of those alone whose text it holds: they are found
by looking its components up, and the work for one path does not grow with the patterns. Each
pattern is filed under the rarest of the pieces of text that it cannot do without.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from shardspec.language.patterns.regex import parsed

#: Alternatives under which one pattern is filed at most.
_MOST_CHOICES = 64


class Piece(NamedTuple):
    """Text that lies within one component of every path that matches.

    Attributes:
      opens, closes: whether the component begins and ends with it.
    """

    text: str
    opens: bool
    closes: bool


#: One of these pieces is in every path that matches.
Need = frozenset[Piece]


class _Item(NamedTuple):
    """What a regex asks for at one place: a character, one of several sequences, or anything.

    Attributes:
      options: of a choice, and the one sequence of what stands there several times.
      least: how often it stands there at the least.
    """

    char: str = ""
    options: tuple[tuple[_Item, ...], ...] = ()
    least: int = 1


_Items = tuple[_Item, ...]


class RequiredText:
    """Patterns filed by the text that they need.

    Attributes:
      everywhere: the patterns that need no text; they may match any path.

    Invariants:
      sound: a pattern that matches a path is in `candidates(path)` or in `everywhere`.
    """

    def __init__(self, regexes: Sequence[str]) -> None:
        """File each regex by its position."""
        needs = [tuple(dict.fromkeys(required(regex))) for regex in regexes]
        uses = Counter(piece for need in needs for pieces in need for piece in pieces)
        self._by_piece: dict[Piece, list[int]] = defaultdict(list)
        everywhere = []
        for position, found in enumerate(needs):
            best = min(found, key=lambda need: sum(uses[piece] for piece in need), default=None)
            if best is None:
                everywhere.append(position)
            for piece in best or ():
                self._by_piece[piece].append(position)
        self.everywhere = tuple(everywhere)
        self._lengths: dict[tuple[bool, bool], tuple[int, ...]] = {
            ends: tuple(sorted({len(p.text) for p in self._by_piece if p[1:] == ends}))
            for ends in ((True, False), (False, True), (False, False))
        }
        self._of_component: dict[str, tuple[int, ...]] = {}

    def candidates(self, path: str) -> list[int]:
        """Return the patterns that `path` has the text of, in order."""
        found: set[int] = set()
        for component in set(path.split("/")):
            known = self._of_component.get(component)
            if known is None:
                pieces = _pieces_of(component, self._lengths)
                known = tuple({at for piece in pieces for at in self._by_piece.get(piece, ())})
                self._of_component[component] = known
            found.update(known)
        return sorted(found)


def _pieces_of(text: str, lengths: dict[tuple[bool, bool], tuple[int, ...]]) -> Iterator[Piece]:
    """Yield the pieces of one component that have a length that is asked for."""
    yield Piece(text, True, True)
    for length in lengths[True, False]:
        yield Piece(text[:length], True, False)
    for length in lengths[False, True]:
        yield Piece(text[-length:], False, True)
    for length in lengths[False, False]:
        for start in range(len(text) - length + 1):
            yield Piece(text[start : start + length], False, False)


def required(regex: str) -> Iterator[Need]:
    """Yield what every path that a regex matches holds: of each need, at least one piece."""
    found = parsed(regex)
    items = tuple(_items(found, bool(found.state.flags & re.IGNORECASE)))
    yield from _needs(items, opens=True, closes=True)


def _items(sequence: Any, folds: bool) -> Iterator[_Item]:
    """Yield the items of a parsed regex, groups made flat and places between characters left out.

    A place (`$`, a word boundary) takes no character, so the text around it is next to each other.

    Args:
      folds: whether upper and lower case are alike here, so that no character is sure.
    """
    for operation, given in sequence:
        match operation.name:
            case "LITERAL" if not folds:
                yield _Item(chr(given))
            case "SUBPATTERN":
                _, added, removed, inner = given
                case_folds = bool((folds or added & re.IGNORECASE) and not removed & re.IGNORECASE)
                yield from _items(inner, case_folds)
            case "BRANCH":
                yield _Item(options=tuple(tuple(_items(option, folds)) for option in given[1]))
            case "MAX_REPEAT" | "MIN_REPEAT":
                yield _Item(options=(tuple(_items(given[2], folds)),), least=given[0])
            case name if name != "AT":
                yield _Item()


def _needs(items: _Items, *, opens: bool, closes: bool) -> Iterator[Need]:
    """Yield the needs of a sequence that begins, and ends, where a component does."""
    at = 0
    while at < len(items):
        end = at
        while end < len(items) and items[end].char not in ("", "/"):
            end += 1
        before = _is_cut(reversed(items[:at]), opens, last=True)
        if end > at:
            text = "".join(item.char for item in items[at:end])
            yield frozenset((Piece(text, before, _is_cut(items[end:], closes, last=False)),))
            at = end
            continue
        options = items[at].options
        if len(options) > 1:
            after = _is_cut(items[at + 1 :], closes, last=False)
            yield from _of_choice(options, before, after)
        elif options and items[at].least:
            yield from _needs(options[0], opens=False, closes=False)
        at += 1


def _of_choice(options: Iterable[_Items], before: bool, after: bool) -> Iterator[Need]:
    """Yield the one need of a choice: the longest text of each option, where all have one."""
    longest: list[Piece] = []
    for option in options:
        needs = tuple(_needs(option, opens=before, closes=after))
        best = max(needs, key=lambda need: min(len(piece.text) for piece in need), default=None)
        if best is None or len(longest) + len(best) > _MOST_CHOICES:
            return
        longest += best
    yield frozenset(longest)


def _is_cut(items: Iterable[_Item], edge: bool, *, last: bool) -> bool:
    """Say whether a component always ends at the nearest of these items.

    Args:
      items: the nearest first.
      edge: whether one ends behind them all.
      last: whether the items stand before the place that is asked about.
    """
    for item in items:
        passed = _leaves_slash(item, last=last)
        if passed is not None:
            return passed
    return edge


def _leaves_slash(item: _Item, *, last: bool) -> bool | None:
    """Say whether the last (or first) character of an item is a slash.

    None: it is, or the item is empty, and then what stands beside the item decides.
    """
    ends = [_is_cut(each[::-1] if last else each, False, last=last) for each in item.options]
    if item.char or len(ends) != 1:
        return item.char == "/" or (ends != [] and all(ends))
    return None if ends[0] and not item.least else ends[0]
