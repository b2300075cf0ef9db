"""Paths of parents: the wildcards of a pattern, put into another."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardspec.language.glob import MOST_CHARACTERS, Template, compile_glob, template_of
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.regex import Regex


def made(pattern: str, wanted: str) -> Template:
    found = template_of(pattern, wanted)
    assert isinstance(found, Template)
    return found


@pytest.mark.parametrize(
    ("pattern", "wanted", "path", "paths"),
    [
        ("**/lora_a", "**/kernel", "mlp/wi/lora_a", ["mlp/wi/kernel"]),
        ("**/lora_a", "**/kernel", "lora_a", ["kernel"]),
        ("a/**/b", "x/**/y", "a/b", ["x/y"]),
        ("ema/**", "**", "ema/a/b", ["a/b"]),
        ("ema/**", "copy/**", "ema", ["copy"]),
        ("ema/**", "**", "ema", []),
        ("**", "model/**", "a/b", ["model/a/b"]),
        ("*_a_*", "*.*", "x_a_a_b", ["x.a_b"]),
        ("**/{q,k}_{a,b}", "**/{a,b}/{q,k}", "m/k_a", ["m/a/k"]),
        ("**/lora_{a,b}", "**/{kernel,w/{x,y}}", "m/lora_b", ["m/kernel", "m/w/x", "m/w/y"]),
        ("**/*_a", "**/*{,/array/qvalue}", "m/k_a", ["m/k", "m/k/array/qvalue"]),
        ("l_{0..11}/?", "m_{0..11}/?", "l_10/b", ["m_10/b"]),
        ("l{00..11}", "m{00..11}", "l07", ["m07"]),
        ("l{00..11}", "m{00..11}", "l7", []),
        ("a\\*/*", "b\\*/*", "a*/c", ["b*/c"]),
        ("a/*", "b/*", "c/d", []),
        ("*", "a*", "x" * (MOST_CHARACTERS + 1), []),
    ],
)
def test_paths(pattern: str, wanted: str, path: str, paths: list[str]) -> None:
    assert made(pattern, wanted).paths(path) == tuple(paths)


@pytest.mark.parametrize(
    ("pattern", "wanted", "message"),
    [
        ("a/*", "**/b", "fewer `**`"),
        ("*", "*/*", "fewer `*`"),
        ("**/{a*,b}", "**/c", "within braces"),
        ("**/a", "**/{b,c/{*,d}}", "within braces"),
        ("/".join("?" * 17), "a", "more than 16 wildcards"),
        ("**/a", "**/{0..64}", "65 texts"),
        ("**/{a,b}{{0..40},{50..90}}", "**", "82 texts"),
        ("**/a", "**/{b", "not closed"),
    ],
)
def test_faults(pattern: str, wanted: str, message: str) -> None:
    found = template_of(pattern, wanted)
    assert isinstance(found, SyntaxFault)
    assert message in found.message


_pieces = st.sampled_from(("a", "b", "*", "?", "**", "{a,b}", "{0..12}", "a*b", "*{a,}"))


_paths = st.lists(st.text(st.sampled_from("ab01"), min_size=1, max_size=3), min_size=1, max_size=4)


@given(st.lists(_pieces, min_size=1, max_size=5), _paths)
def test_what_matches_has_its_own_path(pieces: list[str], components: list[str]) -> None:
    """A pattern in its own wildcards gives back each path that it matches, and no other."""
    pattern, path = "/".join(pieces), "/".join(components)
    assume("**/**" not in pattern)
    regex = compile_glob(pattern)
    assert isinstance(regex, Regex)
    assert made(pattern, pattern).paths(path) == ((path,) if regex.matches(path) else ())
