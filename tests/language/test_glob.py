"""Globs match what shells would, and stand for the paths they spell."""

import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from shardspec.language.glob import (
    compile_glob,
    expand,
    glob_literal,
    glob_regex,
    range_regex,
)
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.regex import Regex


def matches(glob: str, path: str) -> bool:
    compiled = compile_glob(glob)
    assert isinstance(compiled, Regex), compiled
    assert compiled.matches(path) == (re.fullmatch(compiled.text, path) is not None)
    return compiled.matches(path)


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("a/b", ["a/b"], ["a", "a/b/c", "xa/b", "a/b\n"]),
        ("a.b", ["a.b"], ["axb"]),
        ("a/*", ["a/b", "a/", "a/é", "a/\n"], ["a", "a/b/c"]),
        ("a*", ["a", "ab"], ["a/b"]),
        ("a?", ["ab", "aé", "a\ud800"], ["a", "a/", "abc"]),
        ("**", ["", "a", "a/b/c", "a\nb"], []),
        ("**/mlp", ["mlp", "a/mlp", "a/b/mlp"], ["amlp", "a/xmlp", "mlp/a"]),
        ("a/**", ["a", "a/b", "a/b/c"], ["ab", "ab/c", "b"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["ab", "a/xb", "a/b/c"]),
        ("a/**/**/b", ["a/b", "a/x/b"], ["ab"]),
        ("**/a/**", ["a", "x/a", "a/y", "x/a/y"], ["xa", "ay"]),
        ("**/**/a", ["a", "x/a", "x/y/a"], ["xa"]),
        ("**//a", ["/a", "x//a"], ["a", "x/a"]),
        ("{a,b}/c", ["a/c", "b/c"], ["ab/c", "a", "c"]),
        ("w{,_1}", ["w", "w_1"], ["w_"]),
        ("{a/**,b}/c", ["a/c", "a/x/c", "b/c"], ["b/x/c"]),
        ("x/{**/a,b}", ["x/a", "x/y/a", "x/b"], ["x/y/b", "xa"]),
        ("l_{0..23}", ["l_0", "l_9", "l_23"], ["l_00", "l_05", "l_24", "l_-1"]),
        ("l_{00..11}", ["l_00", "l_09", "l_11"], ["l_0", "l_9", "l_12"]),
        (r"a\*\{b\}", ["a*{b}"], ["ax{b}"]),
        ("é/*", ["é/x", "é/é"], ["e/x"]),
        ("[ab]", ["[ab]"], ["a"]),
        ("a b#c", ["a b#c"], []),
    ],
)
def test_what_globs_match(glob, yes, no):
    assert [path for path in yes if not matches(glob, path)] == []
    assert [path for path in no if matches(glob, path)] == []


@given(st.text(st.sampled_from("ab*?."), min_size=1, max_size=6), st.text("ab.", max_size=6))
@settings(deadline=None)
def test_one_component_matches_as_the_shell_does(glob, path):
    assume("**" not in glob)
    assert matches(glob, path) == fnmatchcase(path, glob)


@pytest.mark.parametrize(
    ("glob", "start"),
    [("a**", 1), ("**a", 0), ("a/b**/c", 3), ("{a,b}**", 5), ("x/{**,a}/b", 3), ("{**}", 1)],
)
def test_a_double_star_is_whole_components(glob, start):
    fault = glob_regex(glob)
    assert isinstance(fault, SyntaxFault)
    assert fault.start == start


@given(st.integers(0, 3000), st.integers(0, 3000), st.sampled_from([0, 2, 3, 5]))
@settings(deadline=None)
def test_a_range_is_its_numbers(first, last, width):
    first, last = sorted((first, last))
    pattern = re.compile(range_regex(first, last, width))
    for number in {*range(max(0, first - 12), first + 12), *range(max(0, last - 12), last + 12)}:
        written = str(number).zfill(width)
        assert (pattern.fullmatch(written) is not None) == (first <= number <= last)
        assert not pattern.fullmatch("0" + written)


def test_a_range_of_a_million_numbers_is_short():
    source = glob_regex("l{0..999999999}")
    assert isinstance(source, str)
    assert len(source) < 200


def test_expand_gives_natural_order():
    paths = expand("decoder/layers_{0..23}/mlp/wi_{0,1}/kernel")
    assert len(paths) == 48
    assert paths[0] == "decoder/layers_0/mlp/wi_0/kernel"
    assert paths[1] == "decoder/layers_0/mlp/wi_1/kernel"
    assert paths[5] == "decoder/layers_2/mlp/wi_1/kernel"
    assert paths[-1] == "decoder/layers_23/mlp/wi_1/kernel"
    assert expand("a/b") == ("a/b",)
    assert expand("l{08..10}{,x}") == ("l08", "l08x", "l09", "l09x", "l10", "l10x")
    assert expand("{a,{b,c}}") == ("a", "b", "c")


def test_a_long_list_of_alternatives_expands():
    names = ",".join(f"name_{i}" for i in range(900))
    paths = expand(f"{{{names}}}/{{0..23}}")
    assert len(paths) == 900 * 24


@pytest.mark.parametrize("glob", ["l{0..12}/w{a,b_{3..4}}", "{a,}{b,c}", "x{00..10}y"])
def test_expanded_paths_match_their_glob(glob):
    paths = expand(glob)
    assert not isinstance(paths, SyntaxFault)
    assert all(matches(glob, path) for path in paths)


@pytest.mark.parametrize(
    ("path", "start", "end"), [("a/*/b", 2, 3), ("**/b", 0, 2), ("{a,b?}", 4, 5)]
)
def test_an_array_needs_a_path(path, start, end):
    fault = expand(path)
    assert isinstance(fault, SyntaxFault)
    assert fault.message.startswith("an array needs a path, not a pattern: ")
    assert (fault.start, fault.end) == (start, end)


@pytest.mark.parametrize(
    ("glob", "message"),
    [
        ("a" + "{0..9}" * 7, "this stands for 10,000,000 paths, more than can be listed"),
        ("{0..99999999}" * 700, "this stands for more than a million million paths, more than"),
        ("x" * 5000 + "{0..99999}", "this stands for 100,000 paths, more than can be listed"),
        ("{0..9999999999999999}", "a number of 16 digits"),
        ("{" * 30 + "}" * 30, "braces nest more than"),
        ("x" * 100_000, "a glob of 100,000 characters is too long"),
    ],
)
def test_expand_refuses_before_memory_is_eaten(glob, message):
    fault = expand(glob)
    assert isinstance(fault, SyntaxFault)
    assert fault.message.startswith(message)


def test_literal_globs_are_known():
    assert glob_literal("a/b.c") == "a/b.c"
    assert glob_literal(r"a\*b") == "a*b"
    assert glob_literal("a/*") is None
    assert glob_literal("{") is None
    assert glob_literal("") is None


@given(st.text(st.sampled_from("ab/*?{},.019\\é\ud800\n["), max_size=12))
@settings(deadline=None)
def test_any_text_is_a_glob_or_a_fault(text):
    source = glob_regex(text)
    if isinstance(source, SyntaxFault):
        assert 0 <= source.start <= source.end <= len(text)
        assert isinstance(expand(text), SyntaxFault)
        return
    for path in ("", "a", "a/b", "a0é"):
        matches(text, path)
    paths = expand(text)
    if not isinstance(paths, SyntaxFault):
        assert all(matches(text, path) for path in paths[:20])
