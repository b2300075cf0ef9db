"""Regexes answer as `re.fullmatch` does, and linear ones in linear time."""

import re
import time
import warnings

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardspec.language import regex as backtracking
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.regex import Regex, compile_regex, re2_set, regex_literal
from tests.strategies import odd_paths, regexes


def agree(pattern: str, paths: list[str]) -> None:
    compiled = compile_regex(pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = re.compile(pattern)
    except (re.error, ValueError, OverflowError):
        assert isinstance(compiled, SyntaxFault)
        assert 0 <= compiled.start <= compiled.end <= len(pattern)
        return
    assert isinstance(compiled, Regex), compiled
    assert (compiled.engine == "re") == bool(compiled.reason)
    for path in paths:
        assert compiled.matches(path) == (expected.fullmatch(path) is not None), ascii(path)


@given(regexes, st.lists(odd_paths, min_size=1, max_size=6))
@example(r"\B", [""])
@example("a$", ["a\n", "a", "a\n\n"])
@example("(?m)a$\n^b", ["a\nb", "a\nb\n"])
@example(r"\w+", ["é", "a\u0301", "\ud800", "٣"])
@example("(?i)ſtraße", ["STRAßE", "straße"])
@example(r"é\b.a", ["é a", "é/a", "éba"])
@settings(deadline=None)
def test_generated_patterns_agree_with_re(pattern, paths):
    agree(pattern, ["", *paths])


@pytest.mark.filterwarnings("ignore::FutureWarning")
@given(st.data())
@settings(deadline=None)
def test_texts_made_from_the_pattern_agree_with_re(data):
    pattern = data.draw(regexes)
    try:
        strategy = st.from_regex(pattern, fullmatch=True)
        paths = data.draw(st.lists(strategy, min_size=1, max_size=3))
    except Exception:  # hypothesis refuses some patterns, such as those no text can match
        paths = []
    short = [path for path in paths if len(path) <= 12]  # `re` itself hangs on some long ones
    agree(pattern, [*short, *(path + "\n" for path in short)])


@given(st.text(st.sampled_from("ab/.*+?()[]{}|\\^$-,:=<>!PimsxLuadDwWbBzZA01 \n#é"), max_size=14))
@settings(deadline=None)
def test_any_text_is_a_regex_or_a_fault(pattern):
    agree(pattern, ["", "a", "ab/a", "a/b\n", "éa", "aaaa"])


@pytest.mark.nightly
@given(regexes, st.lists(odd_paths, min_size=1, max_size=8))
@settings(deadline=None, max_examples=20_000)
def test_generated_patterns_agree_with_re_at_length(pattern, paths):
    agree(pattern, ["", *paths])


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(a)\1", "a backreference"),
        (r"(?P<x>a)(?P=x)", "a backreference"),
        ("(a)?(?(1)b|c)", "a conditional group"),
        ("(?=a).", "a lookahead"),
        ("(?!a).", "a negative lookahead"),
        ("(?<=a)b", "a lookbehind"),
        ("(?<!a)b", "a negative lookbehind"),
        ("(?>a)", "an atomic group"),
        ("a++", "a possessive repeat"),
        ("a{1001}", "a repetition of more than 1,000"),
        ("(?:a{100}){100}", "its size: RE2 would need too much memory"),
        (r"a\Z", r"RE2 does not know it (invalid escape sequence: \Z)"),
        ("(?x)a b", "RE2 does not know it (invalid perl operator: (?x)"),
        ("[[:alpha:]]", "`[:`, which RE2 takes for the name of a set"),
        ("a{,2}", "`{,n}` or `{0n}`, which RE2 takes for text"),
        ("a{02}", "`{,n}` or `{0n}`, which RE2 takes for text"),
        ("(?i)ſ", "`(?i)` beside letters that are not ASCII"),
        ("a|\ud800", "half of a surrogate pair"),
    ],
)
def test_what_re2_lacks_runs_under_re_and_says_why(pattern, reason):
    compiled = compile_regex(pattern)
    assert isinstance(compiled, Regex)
    assert (compiled.engine, compiled.reason) == ("re", reason)
    agree(pattern, ["", "a", "aa", "ab", "b", "a" * 1001, "a{,2}", "l]", "s", "\ud800"])


@pytest.mark.parametrize(
    "pattern",
    ["(.*)/attention/(query|key|value)/kernel", r"layers_\d+/(?P<n>x)", "a{1000}", "(?i)kernel$"],
)
def test_common_patterns_are_linear(pattern):
    compiled = compile_regex(pattern)
    assert isinstance(compiled, Regex)
    assert compiled.engine == "re2"


@pytest.mark.parametrize("path", ["a" * 5000, "a/b" * 2000])
@pytest.mark.parametrize("pattern", [r"(\w+/?)+kernel", r"(\w+/?)+\bkernel$", "(?:a|é|[^b])*x"])
def test_catastrophic_patterns_stay_linear(pattern, path):
    compiled = compile_regex(pattern)
    assert isinstance(compiled, Regex)
    assert compiled.engine == "re2"
    start = time.perf_counter()
    assert not compiled.matches(path)
    assert time.perf_counter() - start < 20


def test_a_pattern_without_words_is_linear_beyond_ascii_too():
    assert not compile_regex("(?:a|é|[^b])*x").matches("é" * 5000)


@pytest.mark.parametrize("path", ["é" * 60, "a" * 60 + "\n", "\ud800" + "a" * 60])
def test_where_re2_means_something_else_a_catastrophe_has_its_budget(monkeypatch, path):
    asker = backtracking._Asker()
    asker.seconds = 0.05
    monkeypatch.setattr(backtracking, "_asker", lambda: asker)
    pattern = r"(\w|\w)+kernel\s" if path[-1] != "\n" else r"(\w|\w)+\sx"
    assert not compile_regex(pattern).matches(path)
    assert "does not read" in backtracking.fallback_reason(pattern)
    asker.close()


@pytest.mark.parametrize(
    ("pattern", "start", "message"),
    [
        ("a(b", 1, "not a regular expression: missing ), unterminated subpattern"),
        ("a**", 2, "not a regular expression: multiple repeat"),
        ("(?<=a*)b", 0, "not a regular expression: look-behind requires fixed-width pattern"),
        ("x" * 100_000, 0, "a regex of 100,000 characters is too long"),
        ("(" * 5000 + ")" * 5000, 0, "the regex nests too deeply"),
        (
            "a{" + "1" * 5000 + "}",
            0,
            "not a regular expression: the repetition number is too large",
        ),
        ("a{99999999999}", 0, "not a regular expression: the repetition number is too large"),
        ("(?L)a", 3, None),
        ("(?a)(?u)b", 0, None),
    ],
)
def test_faults_say_what_python_says_and_where(pattern, start, message):
    fault = compile_regex(pattern)
    assert isinstance(fault, SyntaxFault)
    assert fault.start == start
    assert message is None or fault.message == message


def test_no_warning_leaks():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for pattern in ("[[a]x]", "[ --b]", "[a||b]", "[[:alpha:]]", r"(a)\1[[b]"):
            compiled = compile_regex(pattern)
            assert isinstance(compiled, Regex)
            compiled.matches("a:]")


def test_without_re2_everything_runs_under_re(monkeypatch):
    monkeypatch.setattr("shardspec.language.regex.has_re2", lambda: False)
    compile_regex.cache_clear()
    try:
        compiled = compile_regex("a+/(b|c)")
        assert isinstance(compiled, Regex)
        assert (compiled.engine, compiled.reason) == ("re", "google-re2, which is not installed")
        assert compiled.matches("aa/c")
    finally:
        compile_regex.cache_clear()


def test_a_set_that_fails_says_so(monkeypatch):
    monkeypatch.setattr("shardspec.language.regex.MEMORY_BYTES", 3000)
    tight = re2_set(["(a|b)*a(a|b){8}"])
    assert tight is None or tight.indices("ab" * 50) is None


def test_literal_regexes_are_known():
    assert regex_literal(r"a/b\.c") == "a/b.c"
    assert regex_literal("a.c") is None
    assert regex_literal("(?i)ac") is None
    assert regex_literal("") == ""
