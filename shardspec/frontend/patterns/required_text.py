r"""What a path must hold for a pattern to match it, and which patterns a path may match.

A pattern that has `block_17` between two slashes can only match paths with that component. So of
thousands of patterns a path needs to be asked of those alone whose text it holds: they are found
by looking its components up, and the work for one path does not grow with the patterns. Each
pattern is filed under the rarest of the pieces of text that it cannot do without.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardspec.frontend.patterns.regex_tree import Anchor, Choice, Exactly, Repeat, Run, Tree

#: Alternatives under which one pattern is filed at most.
_MOST_CHOICES = 64
_SLASH = Exactly("/")


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


class RequiredText:
    """Patterns filed by the text that they need.

    Attributes:
      everywhere: the patterns that need no text; they may match any path.

    Invariants:
      sound: a pattern that matches a path is in `candidates(path)` or in `everywhere`.
    """

    def __init__(self, trees: Sequence[Tree]) -> None:
        """File each tree by its position."""
        needs = [tuple(dict.fromkeys(required(tree))) for tree in trees]
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


def required(tree: Tree) -> Iterator[Need]:
    """Yield what every matching path holds: of each need, at least one piece."""
    yield from _needs(_items(tree), opens=True, closes=True)


def _items(tree: Tree) -> tuple[Tree, ...]:
    """Return a tree as one sequence, runs in runs made flat and places between characters left out.

    A place (`$`, a word boundary) takes no character, so the text around it is next to each other.
    """
    if isinstance(tree, Run):
        return tuple(item for inner in tree.items for item in _items(inner))
    return () if isinstance(tree, Anchor) else (tree,)


def _needs(items: Sequence[Tree], *, opens: bool, closes: bool) -> Iterator[Need]:
    """Yield the needs of a sequence that begins, and ends, where a component does."""
    at = 0
    while at < len(items):
        item = items[at]
        if isinstance(item, Exactly) and item != _SLASH:
            end = at
            while end < len(items) and isinstance(items[end], Exactly) and items[end] != _SLASH:
                end += 1
            text = "".join(each.char for each in items[at:end] if isinstance(each, Exactly))
            begins = _ends_component(items[:at], opens)
            yield frozenset((Piece(text, begins, _begins_component(items[end:], closes)),))
            at = end
            continue
        if isinstance(item, Choice):
            before = _ends_component(items[:at], opens)
            after = _begins_component(items[at + 1 :], closes)
            yield from _of_choice(item, before, after)
        elif isinstance(item, Repeat) and item.least:
            yield from _needs(_items(item.item), opens=False, closes=False)
        at += 1


def _of_choice(choice: Choice, before: bool, after: bool) -> Iterator[Need]:
    """Yield the one need of a choice: the longest text of each option, where all have one."""
    longest: list[Piece] = []
    for option in choice.options:
        needs = tuple(_needs(_items(option), opens=before, closes=after))
        best = max(needs, key=lambda need: min(len(piece.text) for piece in need), default=None)
        if best is None or len(longest) + len(best) > _MOST_CHOICES:
            return
        longest += best
    if longest:
        yield frozenset(longest)


def _ends_component(items: Sequence[Tree], opens: bool) -> bool:
    """Say whether a component always begins behind these items."""
    for item in reversed(items):
        passed = _leaves_slash(item, last=True)
        if passed is not None:
            return passed
    return opens


def _begins_component(items: Sequence[Tree], closes: bool) -> bool:
    """Say whether a component always ends before these items."""
    for item in items:
        passed = _leaves_slash(item, last=False)
        if passed is not None:
            return passed
    return closes


def _leaves_slash(item: Tree, *, last: bool) -> bool | None:
    """Say whether the last (or first) character of an item is a slash.

    None: it is, or the item is empty, and then what stands beside the item decides.
    """
    if isinstance(item, Exactly):
        return item == _SLASH
    if isinstance(item, Repeat):
        inner = _items(item.item)
        end = _ends_component(inner, False) if last else _begins_component(inner, False)
        return None if end and not item.least else end
    if isinstance(item, Choice):
        options = [_items(option) for option in item.options]
        ends = _ends_component if last else _begins_component
        return bool(options) and all(ends(option, False) for option in options)
    return False
