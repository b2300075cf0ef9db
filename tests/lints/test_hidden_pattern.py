from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.ir.spec import Pattern
from shardspec.lints.checks.hidden_pattern import _hidden
from shardspec.lints.evidence.entries import Entry, Section
from shardspec.resolve.match import PathMatcher
from tests.lints.findings_of import findings_of, marked

patterns = st.sampled_from(
    [
        Pattern("**"),
        Pattern("a/*"),
        Pattern("a/b"),
        Pattern("**/b"),
        Pattern("{a,c}/b"),
        Pattern("c/**"),
        Pattern("a/.*", "regex"),
        Pattern(r"(?=a)a/b", "regex"),
        Pattern("none"),
    ]
)
paths = st.lists(st.sampled_from(["a/b", "a/c", "c/b", "c/d/b", "d"]), max_size=5, unique=True)


@given(st.lists(patterns, max_size=6), paths, st.sets(st.integers(0, 5)))
def test_hidden(chosen: list[Pattern], paths: list[str], own: set[int]) -> None:
    entries = tuple(Entry("params", pattern, ()) for pattern in chosen)
    own = {at for at in own if at < len(entries)}
    found, _ = _hidden(Section(entries, tuple(paths), frozenset(own)))
    alone = [PathMatcher((pattern,)) for pattern in chosen]
    for at in own:
        matched = [path for path in paths if alone[at].all_matches(path)]
        free = [path for path in matched if not any(b.all_matches(path) for b in alone[:at])]
        assert (at in found) == bool(matched and not free)
        if at in found:
            assert found[at].takers.total() == len(matched)
            assert found[at].first == matched[0]


HEAD = "mesh: {x: 2}\nrules: [a -> x, b -> none]\n"
ARRAYS = "\narrays: {k: 'f32[8]', j: 'f32[8]', 'l/i': 'f32[8]'}"


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("params: {k: a, '*': b, '**': b}", []),
        ("params: {'**': b, k: a}", ["k", "'**'"]),
        ("params: {'*': b, k: a, '**': a}", ["k", "'*'"]),
        ("params: {k: a, j: a, '{j,k}': b, '**': a}", ["'{j,k}'", "k", "j"]),
        ("params: {'**': b}\noverrides: [{path: k, axes: a}]", []),
        (
            "params: {'**': b}\noverrides: [{path: k, axes: a}, {match: k, spec: (x)}]",
            ["k", "k"],
        ),
    ],
)
def test_marks(text: str, marks: list[str]) -> None:
    found = findings_of(HEAD + text + ARRAYS, only="hidden-pattern")
    assert [mark for each in found for mark in marked(each)] == marks


def test_the_number_is_said() -> None:
    (found,) = findings_of(HEAD + "params: {'**': b, '*': a}" + ARRAYS, only="hidden-pattern")
    assert found.message == "params pattern `*` matches 2 arrays, and `**` before it takes all 2"
    assert found.notes == ("the first is k",)


@pytest.mark.parametrize(
    ("text", "help"),
    [
        ("{'**': b, k: a}", "put it before `**`, or remove it"),
        ("{'**': a, k: a}", "remove it: the arrays get the same answer already"),
        ("{k: a, '{k,}': b, '**': a}", "remove it, or put it in place of `k`"),
    ],
)
def test_help(text: str, help: str) -> None:
    (found,) = findings_of(f"{HEAD}params: {text}{ARRAYS}", only="hidden-pattern")
    assert found.help == help


def test_what_a_child_hides_in_a_preset_is_no_finding(tmp_path: object) -> None:
    text = "extends: t5x/2d\nmesh: {data: 2, model: 2}\nparams: {'**': embed}\n"
    assert findings_of(text + "arrays: {k: 'f32[8]'}") == ()


NAMED = "\narrays: {k: 'f32[a=8]', j: 'f32[b=8]', 'l/i': 'f32[8]'}"


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("params: {k: a, j: b}", []),
        ("params: {k: b, j: b}", ["k", "k"]),
        ("params: {'**': b}", []),
        ("params: {'{j,k}': b}", ["'{j,k}'", "k"]),
        ("params: {k: b}\noverrides: [{path: k, axes: b}]", []),
    ],
)
def test_arrays_that_name_themselves_otherwise(text: str, marks: list[str]) -> None:
    found = findings_of(HEAD + text + NAMED, only="hidden-pattern")
    assert [mark for each in found for mark in marked(each)] == marks


def test_how_many_are_named_otherwise_is_said() -> None:
    (found,) = findings_of(f"{HEAD}params: {{'{{j,k}}': b}}{NAMED}", only="hidden-pattern")
    assert found.message == (
        "params pattern `{j,k}` has no effect: all 2 arrays it matches carry names of their own,"
        " different ones in 1"
    )
