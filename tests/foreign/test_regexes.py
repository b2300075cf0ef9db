"""A regex for part of a path, or for dotted paths, means the same as one for the whole of ours."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from shardspec.foreign.path_entries import fault, naive, slashed, whole_path_regex

PIECES = (
    *("a", "b", "/", ".", ".*", ".*?", "a+", "(a|b)", "(?:a|b/)", "|", "^", "$", r"\.", r"\$"),
    *(
        "[ab]",
        "[^/]",
        "[|]",
        "[]a]",
        r"\d",
        "0",
        "(b)?",
        "a{2}",
        r"\b",
        "(?i)",
        "(?x)",
        "#a",
        "(",
        ")",
    ),
)
patterns = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
paths = st.text("ab/0.$|A", max_size=7)


def compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except re.error:
        return False
    return True


@given(patterns, paths)
@example(".*+a", "a")
@example("(?x)a #b", "ba")
@example("^a|b$", "ab")
@example(".*?", "a")
@example("", "a")
@example("^$", "")
@example(r"a\.*", "a")
def test_same(pattern: str, path: str) -> None:
    assume(compiles(pattern))
    whole = whole_path_regex(pattern, "search")
    found = re.search(pattern, path) is not None
    assert (re.fullmatch(whole, path) is not None) == found
    assert (re.fullmatch(naive(pattern, "search"), path) is not None) == found


@given(patterns, paths)
def test_dotted_paths(pattern: str, path: str) -> None:
    assume(compiles(pattern))
    there = path.translate({ord("/"): ".", ord("."): "/"})
    ours = slashed(pattern, ".")
    assert (re.fullmatch(ours, path) is not None) == (re.fullmatch(pattern, there) is not None)


@pytest.mark.parametrize(
    ("pattern", "whole"),
    [
        ("wte/embedding", ".*wte/embedding.*"),
        ("^wte/embedding$", "wte/embedding"),
        (".*/kernel$", ".*/kernel"),
        ("(q|k)/kernel", ".*(q|k)/kernel.*"),
        ("wte|lm_head", ".*(?:wte|lm_head).*"),
        ("(?i)wte", "(?i).*wte.*"),
        (".*", ".*"),
        ("", ".*"),
    ],
)
def test_short_where_it_can_be(pattern: str, whole: str) -> None:
    assert whole_path_regex(pattern, "search") == whole
    assert whole_path_regex(pattern, "fullmatch") == pattern


def test_faults() -> None:
    assert fault("a/(b|c)") is None
    assert fault("a(") is not None
    assert fault("a" * 10_001) is not None
