"""Regexes of paths: they match these and nothing else."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics.words import template
from shardspec.foreign.regex import escaped, path_regex
from tests.strategies import odd_paths

numbered = st.builds(
    lambda a, b, text: f"layers_{a}/{text}{b}/k",
    st.integers(0, 120),
    st.sampled_from(["0", "1", "2", "00", "01", "10", "007"]),
    st.sampled_from(["w", "w.", ""]),
)


def path_regexes(paths: Sequence[str]) -> tuple[str, ...]:
    """Return a regex for each template of the paths."""
    groups: dict[str, list[str]] = {}
    for path in paths:
        groups.setdefault(template(path), []).append(path)
    return tuple(path_regex(group) for group in groups.values())


def matched(regexes: tuple[str, ...], path: str) -> int:
    return sum(re.fullmatch(regex, path) is not None for regex in regexes)


@given(st.lists(numbered | odd_paths, min_size=1, max_size=30), st.lists(numbered, max_size=30))
def test_regexes_match_exactly_the_paths(paths: list[str], others: list[str]) -> None:
    regexes = path_regexes(paths)
    for path in (*paths, *others):
        assert matched(regexes, path) == (path in paths)


@given(odd_paths)
def test_escaped_text_matches_itself(text: str) -> None:
    assert re.fullmatch(escaped(text), text)


def test_numbers_that_do_not_combine_freely_are_alternatives() -> None:
    assert path_regexes(["a_0/w_0", "a_0/w_1", "a_3/w_0", "a_3/w_1", "a_4/w_7"]) == (
        "(?:a_(?:0|3)/w_(?:[0-1])|a_4/w_7)",
    )
