"""Which of many patterns match a path, in one walk over it.

Plain texts are looked up; all other patterns that RE2 can express are one automaton, so a
hundred patterns cost about what one costs. Of thousands, the automaton would cost as much as all
of them, so many patterns are first looked up by the text that they need. What only `re` can
express is tried one by one.

Globs cannot tell apart the digits that none of them names. Paths that differ in such digits only,
as those of layers mostly do, are asked about once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from shardspec.frontend.grammar.syntax import SyntaxFault
from shardspec.frontend.patterns.glob import compile_glob, glob_literal
from shardspec.frontend.patterns.re2_engine import Re2Set, re2_set
from shardspec.frontend.patterns.regex import Regex, compile_regex, is_plain, regex_literal
from shardspec.ir.spec import Pattern

if TYPE_CHECKING:
    from shardspec.frontend.patterns.regex_tree import Tree
    from shardspec.frontend.patterns.required_text import RequiredText
    from shardspec.frontend.patterns.wide_paths import WideMatcher

Placed = tuple[tuple[int, Regex], ...]

#: As many patterns as one automaton is fast for.
MOST_TOGETHER = 64


@lru_cache(maxsize=16)
def path_matcher(patterns: tuple[Pattern, ...]) -> PathMatcher:
    """Return the matcher of these patterns; those who ask about equal ones share it."""
    return PathMatcher(patterns)


class PathMatcher:
    """Patterns made ready to match; one that cannot be read matches nothing.

    Nothing is compiled before the first question.

    Invariants:
      one_by_one: the answers are those of each pattern on its own.
    """

    def __init__(self, patterns: tuple[Pattern, ...]) -> None:
        """Take the patterns, in order of priority."""
        self._patterns = patterns
        self._alike = _digits_alike(patterns)
        self._first: dict[str, int | None] = {}
        self._all: dict[str, tuple[int, ...]] = {}

    def first_match(self, path: str) -> int | None:
        """Return the position of the first pattern that matches the whole path."""
        if self._alike is None:
            return self._first_match(path)
        path = path.translate(self._alike)
        if path not in self._first:
            self._first[path] = self._first_match(path)
        return self._first[path]

    def all_matches(self, path: str) -> tuple[int, ...]:
        """Return the positions of all patterns that match the whole path, in order."""
        if self._alike is None:
            return self._all_matches(path)
        path = path.translate(self._alike)
        found = self._all.get(path)
        if found is None:
            found = self._all[path] = self._all_matches(path)
        return found

    def _first_match(self, path: str) -> int | None:
        none = len(self._patterns)
        best = self._first_linear(path)
        if path in self._literals:
            best = min(best, self._literals[path][0])
        for position, regex in self._backtracking:
            if position > best:
                break
            if regex.matches(path):
                return position
        return None if best == none else best

    def _all_matches(self, path: str) -> tuple[int, ...]:
        slow = (position for position, regex in self._backtracking if regex.matches(path))
        return tuple(sorted((*self._literals.get(path, ()), *self._linear_matches(path), *slow)))

    @cached_property
    def _literals(self) -> Mapping[str, tuple[int, ...]]:
        """Return the positions of the patterns that are a path, by the path."""
        positions: dict[str, list[int]] = defaultdict(list)
        for position, pattern in enumerate(self._patterns):
            literal = _literal(pattern)
            if literal is not None:
                positions[literal].append(position)
        return {path: tuple(found) for path, found in positions.items()}

    @cached_property
    def _linear(self) -> Placed:
        return tuple(placed for placed in self._regexes() if placed[1].engine == "re2")

    @cached_property
    def _filed(self) -> RequiredText | None:
        """Return the patterns of `_linear` by the text they need, where they are many."""
        from shardspec.frontend.patterns.required_text import RequiredText

        if len(self._linear) <= MOST_TOGETHER:
            return None
        return RequiredText([_tree(regex) for _, regex in self._linear])

    @cached_property
    def _together(self) -> Placed:
        """Return the patterns of `_linear` that are one automaton."""
        if self._filed is None:
            return self._linear
        return tuple(self._linear[index] for index in self._filed.everywhere)

    def _filed_matches(self, path: str) -> Iterator[int]:
        """Yield the positions of the other patterns of `_linear` that match, in order."""
        if self._filed is not None:
            for index in self._filed.candidates(path):
                position, regex = self._linear[index]
                if regex.matches(path):
                    yield position

    @cached_property
    def _backtracking(self) -> Placed:
        return tuple(placed for placed in self._regexes() if placed[1].engine == "re")

    def _regexes(self) -> Iterator[tuple[int, Regex]]:
        for position, pattern in enumerate(self._patterns):
            if _literal(pattern) is None:
                regex = _compiled(pattern)
                if not isinstance(regex, SyntaxFault):
                    yield position, regex

    def _first_linear(self, path: str) -> int:
        """Return the first matching position of `_linear`, or the count of all patterns."""
        none = len(self._patterns)
        filed = next(self._filed_matches(path), none)
        if self._plain_set is not None and is_plain(path):
            first = self._plain_set.first(path)
            if first is not None:
                return min(filed, self._positions_together[first])
        return min(filed, min(self._matches_together(path), default=none))

    @cached_property
    def _positions_together(self) -> tuple[int, ...]:
        """Return the position of each pattern of `_together`, and of none of them."""
        return (*(position for position, _ in self._together), len(self._patterns))

    def _linear_matches(self, path: str) -> Iterator[int]:
        """Yield the positions of the matching patterns of `_linear`, in any order."""
        yield from self._filed_matches(path)
        yield from self._matches_together(path)

    def _matches_together(self, path: str) -> list[int]:
        """Return the positions of the matching patterns of `_together`, in any order."""
        together = self._together
        if not together:
            return []
        if is_plain(path):
            found = None if self._plain_set is None else self._plain_set.indices(path)
            if found is not None:
                return [together[index][0] for index in found]
            return [position for position, regex in together if regex.matches(path)]
        return self._wide_matches(path)

    @cached_property
    def _plain_set(self) -> Re2Set | None:
        if not self._together:
            return None
        return re2_set(regex.plain for _, regex in self._together)

    @cached_property
    def _trees(self) -> tuple[tuple[Tree, ...], Placed, Placed]:
        """Return the patterns that share a matcher of wide paths (trees too), and the others."""
        from shardspec.frontend.patterns.wide_paths import needs_own_matcher

        trees = [_tree(regex) for _, regex in self._together]
        alone = [needs_own_matcher(tree) for tree in trees]
        split = tuple(zip(self._together, alone, strict=True))
        shared = tuple(placed for placed, is_alone in split if not is_alone)
        others = tuple(placed for placed, is_alone in split if is_alone)
        kept = (tree for tree, is_alone in zip(trees, alone, strict=True) if not is_alone)
        return tuple(kept), shared, others

    @cached_property
    def _wide_matcher(self) -> WideMatcher:
        from shardspec.frontend.patterns.wide_paths import WideMatcher

        return WideMatcher(self._trees[0])

    def _wide_matches(self, path: str) -> list[int]:
        """Return the same as `_matches_together`, for a path that is not plain."""
        _, shared, others = self._trees
        found = self._wide_matcher.indices(path)
        if found is None:
            others, matching = self._together, []
        else:
            matching = [shared[index][0] for index in found]
        return matching + [position for position, regex in others if regex.matches(path)]


def _digits_alike(patterns: tuple[Pattern, ...]) -> dict[int, int] | None:
    """Return one digit for all that no pattern can tell apart; None where it can tell each."""
    if any(pattern.dialect == "regex" or ".." in pattern.text for pattern in patterns):
        return None
    named = {char for pattern in patterns for char in pattern.text}
    others = [digit for digit in "0123456789" if digit not in named]
    return {ord(digit): ord(others[0]) for digit in others} if len(others) > 1 else None


def _literal(pattern: Pattern) -> str | None:
    """Return the one path that a pattern matches, where it is a path itself."""
    if pattern.dialect == "glob":
        return glob_literal(pattern.text)
    return regex_literal(pattern.text)


def _compiled(pattern: Pattern) -> Regex | SyntaxFault:
    if pattern.dialect == "glob":
        return compile_glob(pattern.text)
    return compile_regex(pattern.text)


def _tree(regex: Regex) -> Tree:
    from shardspec.frontend.patterns.regex_tree import Beyond, read_regex

    tree = read_regex(regex.text)
    assert not isinstance(tree, Beyond | SyntaxFault), "only what RE2 can express comes here"
    return tree
