"""Many patterns at once answer as each does on its own."""

import re
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardspec.ir.spec import Pattern
from shardspec.language.glob import compile_glob
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.regex import compile_regex, python_regex
from shardspec.resolve.match import PathMatcher, path_matcher
from tests.strategies import odd_paths, regexes

GLOBS = (
    "a", "a/b", "a/*", "**/b", "a/**", "**", "*", "{a,b}/c", "l{0..11}/?", "é/*", "a**", "{", "a/b",
    "*\ud800", r"\*", "l1/*", "l?/2", "l{1,2}/?", "**/9",
)  # fmt: skip
REGEXES = (
    "a", "a/b", "a/.*", r"\w+", r"(.)/\1", ".*b$", r"\bé.*", "(?m)^a$\n?.*", "(", "(?!a).*",
    "(?s).*", r"a\.b", r"[^/]+/\d", "(?i)A/B", r".*\B", "",
)  # fmt: skip
patterns = st.one_of(
    st.sampled_from(GLOBS).map(Pattern),
    st.sampled_from(REGEXES).map(lambda text: Pattern(text, "regex")),
)
paths = st.one_of(
    st.sampled_from(
        ["", "a", "a/b", "b", "é/b", "a\n", "a/b\n", "l3/x", "l11/é", "*", "a.b", "\ud800", "1/1"]
    ),
    st.text(st.sampled_from("abl0129/.é\n*AB"), max_size=6),
)


def _alone(pattern: Pattern, path: str) -> bool:
    compile_one = compile_glob if pattern.dialect == "glob" else compile_regex
    compiled = compile_one(pattern.text)
    if isinstance(compiled, SyntaxFault):
        return False
    return re.fullmatch(compiled.text, path) is not None


@given(st.lists(patterns, max_size=12).map(tuple), st.lists(paths, min_size=1, max_size=6))
@settings(deadline=None)
def test_one_by_one(chosen, asked):
    matcher = PathMatcher(chosen)
    for path in asked:
        expected = tuple(i for i, pattern in enumerate(chosen) if _alone(pattern, path))
        assert matcher.all_matches(path) == expected
        assert matcher.first_match(path) == (expected[0] if expected else None)


digits = st.lists(st.text("l/0129", max_size=5), min_size=1, max_size=8)


@given(st.lists(st.sampled_from([g for g in GLOBS if "." not in g]), max_size=6), digits)
@settings(deadline=None)
def test_digits_that_no_glob_names_are_alike(texts, asked):
    """Globs alone: paths are remembered with such digits made one."""
    matcher = PathMatcher(tuple(map(Pattern, texts)))
    for path in (*asked, *asked):
        expected = tuple(i for i, text in enumerate(texts) if _alone(Pattern(text), path))
        assert matcher.all_matches(path) == expected
        assert matcher.first_match(path) == (expected[0] if expected else None)


def agree(texts: list[str], asked: list[str]) -> None:
    matcher = PathMatcher(tuple(Pattern(text, "regex") for text in texts))
    compiled = [python_regex(text) for text in texts]
    for path in asked:
        expected = tuple(i for i, regex in enumerate(compiled) if regex.fullmatch(path))
        assert matcher.all_matches(path) == expected
        assert matcher.first_match(path) == (expected[0] if expected else None)


def _is_valid(text: str) -> bool:
    return not isinstance(compile_regex(text), SyntaxFault)


valid_regexes = st.lists(regexes.filter(_is_valid), min_size=1, max_size=6)


@given(valid_regexes, st.lists(odd_paths, min_size=1, max_size=6))
@settings(deadline=None)
def test_regexes_together_agree_with_re(texts, asked):
    agree(texts, ["", *asked])


@pytest.mark.nightly
@given(valid_regexes, st.lists(odd_paths, min_size=1, max_size=8))
@settings(deadline=None, max_examples=10_000)
def test_regexes_together_agree_with_re_at_length(texts, asked):
    agree(texts, ["", *asked])


def test_without_re2_everything_still_matches(monkeypatch):
    monkeypatch.setattr("shardspec.language.regex.has_re2", lambda: False)
    monkeypatch.setattr("shardspec.language.glob.has_re2", lambda: False)
    monkeypatch.setitem(sys.modules, "re2", None)
    compile_regex.cache_clear()
    compile_glob.cache_clear()
    try:
        matcher = PathMatcher((Pattern("a/*"), Pattern("a"), Pattern("(a|é)+", "regex")))
        assert [matcher.all_matches(path) for path in ("a/b", "a", "éa")] == [(0,), (1, 2), (2,)]
    finally:
        compile_regex.cache_clear()
        compile_glob.cache_clear()


@pytest.mark.parametrize("broken", ["re2_set", "memory"])
def test_a_set_that_re2_refuses_is_matched_one_by_one(monkeypatch, broken):
    if broken == "re2_set":
        monkeypatch.setattr("shardspec.language.regex.re2_set", lambda sources: None)
    else:
        monkeypatch.setattr("shardspec.language.regex.Re2Set.indices", lambda *_: None)
        monkeypatch.setattr("shardspec.language.regex.Re2Set.first", lambda *_: None)
    matcher = PathMatcher((Pattern("a/*"), Pattern("a|é", "regex"), Pattern("**")))
    assert matcher.all_matches("a/b") == (0, 2)
    assert matcher.all_matches("é") == (1, 2)
    assert matcher.first_match("x") == 2


def test_first_match_wins_over_kinds_of_patterns():
    matcher = PathMatcher(
        (Pattern(r"(.)/\1", "regex"), Pattern("a/a"), Pattern("a/*"), Pattern(r"(.)/\1", "regex"))
    )
    assert matcher.first_match("a/a") == 0
    assert matcher.first_match("a/b") == 2
    assert matcher.first_match("b/b") == 0
    assert matcher.all_matches("a/a") == (0, 1, 2, 3)


def test_no_patterns_match_nothing():
    assert PathMatcher(()).first_match("a") is None
    assert PathMatcher(()).all_matches("") == ()


def test_thousands_of_plain_paths_are_looked_up():
    matcher = PathMatcher(tuple(Pattern(f"layers_{i}/kernel") for i in range(5000)))
    assert matcher.first_match("layers_4999/kernel") == 4999
    assert matcher.first_match("layers_5000/kernel") is None


def test_a_catastrophic_pattern_among_others_stays_linear():
    matcher = PathMatcher((Pattern(r"(\w+/?)+kernel", "regex"), Pattern(r"(\w+/?)+\bk", "regex")))
    for path in ("a" * 3000, "é" * 3000, "a" * 3000 + "\n"):
        assert matcher.first_match(path) is None


@pytest.fixture
def always_filed(monkeypatch):
    monkeypatch.setattr("shardspec.resolve.match.MOST_TOGETHER", 0)


@given(st.lists(patterns, max_size=12).map(tuple), st.lists(paths, min_size=1, max_size=6))
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_one_by_one_where_patterns_are_filed_by_their_text(always_filed, chosen, asked):
    matcher = PathMatcher(chosen)
    for path in asked:
        expected = tuple(i for i, pattern in enumerate(chosen) if _alone(pattern, path))
        assert matcher.all_matches(path) == expected
        assert matcher.first_match(path) == (expected[0] if expected else None)


@given(st.lists(regexes.filter(_is_valid), min_size=1, max_size=5), st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_regexes_filed_by_their_text(always_filed, texts, data):
    agree(texts, data.draw(st.lists(odd_paths, min_size=1, max_size=5)))


#: Pieces of globs and of the paths that they match, so that most patterns meet most paths.
components = st.sampled_from(
    ["a", "b_1", "b_12", "*", "b_*", "*_1", "**", "{a,b_1}", "{a/b_1,c*}", "b_{0..12}", "?_1"]
)
words = st.sampled_from(["a", "b_1", "b_12", "b_2", "c", "cd", "x_1"])


@given(
    st.lists(st.lists(components, min_size=1, max_size=4).map("/".join), max_size=12),
    st.lists(st.lists(words, min_size=1, max_size=4).map("/".join), min_size=1, max_size=8),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_globs_filed_by_their_text(always_filed, texts, asked):
    chosen = tuple(map(Pattern, texts))
    matcher = PathMatcher(chosen)
    for path in asked:
        expected = tuple(i for i, pattern in enumerate(chosen) if _alone(pattern, path))
        assert matcher.all_matches(path) == expected
        assert matcher.first_match(path) == (expected[0] if expected else None)


def test_equal_patterns_share_a_matcher():
    assert path_matcher((Pattern("a/*"),)) is path_matcher((Pattern("a/*"),))


def test_a_path_of_many_patterns_is_asked_of_few():
    globs = tuple(Pattern(f"**/block_{n}/*/kernel") for n in range(1000))
    filed = PathMatcher(globs)._filed
    assert filed is not None
    assert filed.everywhere == ()
    assert filed.candidates("model/block_17/mlp/kernel") == [17]
