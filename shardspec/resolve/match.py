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

from shardspec.diagnostics.budget import spend
from shardspec.ir.spec import Pattern
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.patterns.glob import compile_glob, glob_literal
from shardspec.language.patterns.regex import (
    Re2Set,
    Regex,
    compile_regex,
    is_alike,
    re2_set,
    regex_literal,
)

if TYPE_CHECKING:
    from shardspec.language.patterns.required_text import RequiredText

Placed = tuple[tuple[int, Regex], ...]

#: As many patterns as one automaton is fast for.
MOST_TOGETHER = 64


@lru_cache(maxsize=32)
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
        self._first: dict[bytes, int | None] = {}
        self._all: dict[bytes, tuple[int, ...]] = {}

    def first_match(self, path: str) -> int | None:
        """Return the position of the first pattern that matches the whole path."""
        if self._alike is None:
            return self._first_match(path)
        kind = path.encode("utf-8", "surrogatepass").translate(self._alike)
        if kind not in self._first:
            self._first[kind] = self._first_match(path)
        return self._first[kind]

    def all_matches(self, path: str) -> tuple[int, ...]:
        """Return the positions of all patterns that match the whole path, in order."""
        if self._alike is None:
            return self._all_matches(path)
        kind = path.encode("utf-8", "surrogatepass").translate(self._alike)
        if kind not in self._all:
            self._all[kind] = self._all_matches(path)
        return self._all[kind]

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
        found = (*self._literals.get(path, ()), *self._linear_matches(path), *slow)
        spend(20 + len(found))
        return tuple(sorted(found))

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
        from shardspec.language.patterns.required_text import RequiredText

        if len(self._linear) <= MOST_TOGETHER:
            return None
        return RequiredText([regex.text for _, regex in self._linear])

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
        automaton = self._automaton(path)
        if automaton is not None:
            first = automaton.first(path)
            if first is not None:
                return min(filed, self._positions_together[first])
        return min(filed, next(self._matches_together(path), none))

    @cached_property
    def _positions_together(self) -> tuple[int, ...]:
        """Return the position of each pattern of `_together`, and of none of them."""
        return (*(position for position, _ in self._together), len(self._patterns))

    def _linear_matches(self, path: str) -> Iterator[int]:
        """Yield the positions of the matching patterns of `_linear`, in any order."""
        yield from self._filed_matches(path)
        yield from self._matches_together(path)

    def _matches_together(self, path: str) -> Iterator[int]:
        """Yield the positions of the matching patterns of `_together`, in order."""
        automaton = self._automaton(path)
        found = None if automaton is None else automaton.indices(path)
        if found is not None:
            yield from (self._positions_together[index] for index in sorted(found))
        else:
            yield from (position for position, regex in self._together if regex.matches(path))

    def _automaton(self, path: str) -> Re2Set | None:
        """Return the patterns of `_together` compiled, where they can all be asked at once."""
        compiled, is_for_ascii = self._compiled_together
        return compiled if is_alike(path, is_for_ascii) else None

    @cached_property
    def _compiled_together(self) -> tuple[Re2Set | None, bool]:
        """Return `_together` as one automaton, and whether it is for ASCII."""
        regexes = [regex for _, regex in self._together]
        compiled = re2_set(regex.text for regex in regexes) if regexes else None
        return compiled, any(regex.is_for_ascii for regex in regexes)


def _digits_alike(patterns: tuple[Pattern, ...]) -> bytes | None:
    """Return one digit for all that no pattern can tell apart; None where it can tell each.

    As a table for `bytes.translate`, which is far faster than that of texts.
    """
    if any(pattern.dialect == "regex" or ".." in pattern.text for pattern in patterns):
        return None
    named = {char for pattern in patterns for char in pattern.text}
    others = b"".join(b"%c" % digit for digit in b"0123456789" if chr(digit) not in named)
    return bytes.maketrans(others, others[:1] * len(others)) if len(others) > 1 else None


def _literal(pattern: Pattern) -> str | None:
    """Return the one path that a pattern matches, where it is a path itself."""
    if pattern.dialect == "glob":
        return glob_literal(pattern.text)
    return regex_literal(pattern.text)


def _compiled(pattern: Pattern) -> Regex | SyntaxFault:
    if pattern.dialect == "glob":
        return compile_glob(pattern.text)
    return compile_regex(pattern.text)
