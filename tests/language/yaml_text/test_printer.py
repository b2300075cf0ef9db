"""The canonical YAML: equal data, comments kept, a fixed point."""

from __future__ import annotations

import yaml
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import SourceFile
from shardspec.language.reading import Comments, Data, Reading, Route
from shardspec.language.yaml_text.printer import WIDTH, is_plain, print_scalar, print_yaml
from shardspec.language.yaml_text.reader import read_yaml

words = st.one_of(
    st.sampled_from(
        ["", " ", "no", "8", "true", "null", "~", "012", "1.5", "12:30", "a: b", "a #b", "#", "- a",
         "[x]", "**/mlp/wi_{0,1}/kernel", "batch -> (replica, data)", "2 @ dcn", "re:.*/(q|k)",
         r"\d+", "it's", "x\ny", "x\n\ny\n", " x\ny", "\n", "x\n\n", "é", "\u2028", "\ufeff",
         "a,b", "---", "...", "=", "<<", "a:",
         ":a", "1e3", "k" * 1200, "\x7f", "\x85", "a\tb", "'", '"', "|", "y"]
    ),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)  # fmt: skip
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), words
)
data = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=15,
)
sections = st.sampled_from(
    [
        "shardspec",
        "axes",
        "mesh",
        "targets",
        "rules",
        "policy",
        "lints",
        "extends",
        "drop",
        "overrides",
    ]
)
documents = st.dictionaries(sections | words, data, max_size=5)
comment_texts = (
    st.text("ab #:-{'\"é", min_size=1, max_size=8)
    .map(str.rstrip)
    .filter(lambda text: text and not text.startswith(" "))
)


def routes_of(value: Data, route: Route = ()) -> list[Route]:
    steps = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [route, *(found for step, one in steps for found in routes_of(one, (*route, step)))]


@st.composite
def commented(draw: st.DrawFn) -> tuple[dict[str, Data], dict[Route, Comments]]:
    document = draw(documents)
    route = st.sampled_from([*routes_of(document), ("nowhere",), ("axes", "gone", 3)])
    before = st.lists(comment_texts | st.just("") | st.just(" "), max_size=3).map(tuple)
    some = st.builds(Comments, before, st.none() | comment_texts, before)
    return document, draw(st.dictionaries(route, some, max_size=5))


def read(text: str) -> Reading:
    reading, faults = read_yaml(SourceFile("printed.yaml", text))
    assert not faults
    assert reading is not None
    return reading


def texts_of(comments: dict[Route, Comments]) -> list[str]:
    found = [text for one in comments.values() for text in (*one.before, one.trailing, *one.after)]
    return sorted(text for text in found if text)


@given(documents)
def test_round_trip(document: dict[str, Data]) -> None:
    text = print_yaml(document)
    assert read(text).data == document
    assert repr(read(text).data) == repr(document)
    assert print_yaml(read(text).data) == text  # type: ignore[arg-type]


@given(documents)
def test_yaml_1_1_reads_the_same(document: dict[str, Data]) -> None:
    assert yaml.load(print_yaml(document), yaml.CSafeLoader) == document


@given(commented())
def test_comments_survive_and_printing_is_a_fixed_point(
    given_: tuple[dict[str, Data], dict[Route, Comments]],
) -> None:
    document, comments = given_
    text = print_yaml(document, comments)
    reading = read(text)
    assert reading.data == document
    assert texts_of(dict(reading.comments)) == texts_of(comments)
    assert print_yaml(document, reading.comments) == text


@given(words)
def test_plain_words_are_plain_everywhere(word: str) -> None:
    for in_flow in (False, True):
        shown = print_scalar(word, in_flow=in_flow)
        assert (shown == word) == is_plain(word, in_flow=in_flow)
        text = f"[{shown}, {shown}]" if in_flow else f"- {shown}"
        assert yaml.safe_load(text)[0] == word


MESSY = """\
# The model

# about the version
shardspec:   1
doc: >-
  some
  text
extends:
- t5x/2d      # the base
axes: {batch: 512, "embed": 4096}
mesh: {a: 1, b: 2, c: 3,
       d: rest}   # too many for one line
targets:
    v4:
        hardware: tpu v4 4x4x8
        mesh:
            data:   rest
            model: 2 @ dcn
            # over DCN

    # no other machines
# about the rules
rules:
- batch -> (replica, data)   # why

# the rest
- 'mlp -> model'
- rule: kv -> none
  at: end
  # no more rules
overrides:
- match: 'encoder/layer_\\d+/kernel'
  axes: "embed mlp"
  because: |
    two
    lines
params:
  "**/mlp/wi_{0,1}/kernel": embed mlp
policy:
  indivisible: next
lints: {a: warn}
# bye
"""
NEAT = """\
# The model

# about the version
shardspec: 1
doc: some text

extends:
  - t5x/2d  # the base

axes:
  batch: 512
  embed: 4096

mesh:  # too many for one line
  a: 1
  b: 2
  c: 3
  d: rest

targets:
  v4:
    hardware: tpu v4 4x4x8
    mesh:
      data: rest
      model: 2 @ dcn
      # over DCN

  # no other machines

# about the rules
rules:
  - batch -> (replica, data)  # why

  # the rest
  - mlp -> model
  - rule: kv -> none
    at: end
    # no more rules

overrides:
  - match: encoder/layer_\\d+/kernel
    axes: embed mlp
    because: |
      two
      lines

params:
  "**/mlp/wi_{0,1}/kernel": embed mlp

policy: {indivisible: next}
lints: {a: warn}

# bye
"""


def test_golden() -> None:
    reading = read(MESSY)
    assert print_yaml(reading.data, reading.comments) == NEAT  # type: ignore[arg-type]


def test_what_does_not_fit_stands_on_lines_of_its_own() -> None:
    text = print_yaml(
        {"axes": {"a": {"size": 8, "doc": "x" * 40}, "b": {"size": 8, "doc": "x" * 90}}}
    )
    assert f'  a: {{size: 8, doc: "{"x" * 40}"}}' in text
    assert "  b:\n    size: 8\n" in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_empty() -> None:
    assert print_yaml({}) == "{}\n"
    assert print_yaml({"axes": {}, "rules": []}) == "axes: {}\nrules: []\n"
