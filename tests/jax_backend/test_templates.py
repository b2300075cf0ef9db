from __future__ import annotations

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from shardspec.ir.spec import Pattern
from shardspec.jax_backend.shardings import numbers_named, template_maker
from shardspec.resolve.match import PathMatcher

numbers = st.sampled_from(["0", "1", "2", "7", "10", "11", "21", "100", "007"])
words = st.sampled_from(["layers", "mlp", "wi", "kernel", "a", "b"])
components = st.one_of(
    words,
    numbers,
    st.builds("{}_{}".format, words, numbers),
    st.builds("{}{}".format, words, numbers),
    st.builds("{}_{}{}".format, numbers, words, numbers),
)
paths = st.lists(components, min_size=1, max_size=4).map("/".join)
glob_parts = st.one_of(
    components,
    st.sampled_from(
        ["*", "**", "layers_*", "*_1", "wi_{0,1}", "{a,b}", "w*", "{0..11}", "l*s_{1,2}"]
    ),
    st.sampled_from(["layers_{0..7}", "wi_{1}{0}", "wi_1{0,1}", "{wi,mlp}_{7,10}", "{a,wi_{0,1}}"]),
)
globs = st.lists(glob_parts, min_size=1, max_size=4).map("/".join).map(Pattern)
ATOMS = r"\d+ \d* .* .+ \w+ \w* [^/]+ . \d [01] \w \d{2}"
TEXTS = "layers _ / ( ) | a (?: )? wi kernel 1 + ?"
regex_pieces = st.sampled_from([*ATOMS.split(" "), *TEXTS.split(" ")])
regexes = st.lists(regex_pieces, min_size=1, max_size=8).map("".join)
patterns = st.one_of(globs, regexes.map(lambda text: Pattern(text, "regex")))


@given(st.lists(patterns, min_size=1, max_size=3), paths, st.lists(numbers, min_size=8, max_size=8))
@example([Pattern(r"layers_.", "regex")], "layers_7", ["10"] * 8)
@example([Pattern(r"layers_\d+\d+", "regex")], "layers_7", ["10"] * 8)
def test_same_template(found: list[Pattern], path: str, others: list[str]) -> None:
    make = template_maker(found)
    assume(make is not None)
    import re

    supply = iter(others * 3)
    other = re.sub(r"[0-9]+", lambda number: next(supply), path)
    assume(make(path) == make(other))
    matcher = PathMatcher(tuple(found))
    assert matcher.all_matches(path) == matcher.all_matches(other)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("**/mlp/wi_{0,1}/kernel", {"0", "1"}),
        ("layers_*/wi/kernel", set()),
        ("layers_{0..3}/*", {"0", "1", "2", "3"}),
        ("layers_*1/w", None),
        ("layers_{0*,1}/w", None),
        ("w_1{2,3}", None),
        (r"re:decoder/layers_\d+/mlp/(wi|wo)/kernel", set()),
        ("re:.*/attention/(query|key|value)/kernel", set()),
        ("re:layers_.", None),
        (r"re:[^/]+/layers_\d+/w", set()),
        (r"re:(x.+|y/)\d+", None),
        (r"re:layers_\d", None),
        (r"re:\d+\d+", None),
        ("re:wi_[01]", None),
        ("re:wi_0", None),
    ],
)
def test_numbers_named(text: str, named: set[str] | None) -> None:
    dialect = "regex" if text.startswith("re:") else "glob"
    assert numbers_named(Pattern(text.removeprefix("re:"), dialect)) == named
