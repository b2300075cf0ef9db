"""A pattern that matches a path is among those that the path's text leads to."""

from hypothesis import assume, given
from hypothesis import strategies as st

from shardspec.language.regex import Regex, compile_regex, python_regex
from shardspec.resolve.match import RequiredText
from tests.strategies import regexes

_PIECES = ["a", "b", "/", "kernel", r"\d", "[^/]*", "(?:[^/]*/)*", "(?:a|b/)", "(?:/b)?", "(?i:a)"]
_ENDS = ["", "$", ".*", "+", "{0,2}", r"\b"]
repeated = st.tuples(st.sampled_from(_PIECES), st.sampled_from(_ENDS))
sequences = st.lists(
    repeated.map(lambda pair: f"(?:{pair[0]}){pair[1]}"), min_size=1, max_size=5
).map("".join)
paths = st.lists(st.sampled_from(["a", "b", "/", "kernel", "A", "7"]), max_size=8).map("".join)


@given(st.one_of(sequences, regexes), st.lists(paths, min_size=1, max_size=8))
def test_sound(regex, asked):
    compiled = compile_regex(regex)
    assume(isinstance(compiled, Regex) and compiled.engine == "re2")
    filed = RequiredText([regex])
    for path in asked:
        if python_regex(regex).fullmatch(path):
            assert filed.everywhere or filed.candidates(path)
