from __future__ import annotations

import pytest

from tests.lints.findings_of import findings_of, marked

HEAD = "mesh: {x: 2}\nrules: [a -> x, b -> none]\n"
ARRAYS = "\narrays: {'l_{0..11}/k': 'f32[8]', 'm_{0..11}/k': 'f32[8]', other: 'f32[8]'}"


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        (r"params: {'re:l_\d/k': a, '**': b}", [r"\d"]),
        (r"params: {'re:l_[0-9]/k': a, '**': b}", ["[0-9]"]),
        (r"params: {'re:[lm]_\d/k': a}", [r"\d"]),
        (r"params: {'re:l_\d+/k': a, '**': b}", []),
        (r"params: {'re:l_\d.*': a, '**': b}", []),
        (r"params: {'re:l_\d/k': a, '**': a}", []),  # the same answer
        (r"params: {'re:l_\d/k': a, 're:l_\d\d/k': b, '**': b}", []),  # a partner for the rest
        (r"params: {'re:l_1\d/k': a, '**': b}", []),
        (r"params: {'l_{0..9}/k': a, '**': b}", []),
        (r"params: {'re:(?=l)l_\d/k': a, '**': b}", []),  # might run without end
        (r"params: {'re:l_\d/j': a, '**': b}", []),  # matches nothing: another finding
        (r"params: {'**': b}" + "\n" + r"overrides: [{match: 'l_\d/k', axes: a}]", [r"\d"]),
        (r'params: {"re:l_\\d/k": a, "**": b}', [r'"re:l_\\d/k"']),
    ],
)
def test_marks(text: str, marks: list[str]) -> None:
    found = findings_of(HEAD + text + ARRAYS, only="single-digit")
    assert [mark for each in found for mark in marked(each)] == marks


def test_the_message_and_its_help() -> None:
    text = r"params: {'re:(l|m)_\d/k': a, '**': b}"
    (found,) = findings_of(HEAD + text + ARRAYS, only="single-digit")
    assert found.message == (
        r"params pattern `re:(l|m)_\d/k` matches 20 arrays, and misses 4 whose number has more"
        " digits"
    )
    assert found.notes == ("missed: 4 arrays, first l_10/k",)
    assert r"`(l|m)_\d+/k` matches them all" in (found.help or "")
    assert findings_of(HEAD + text.replace(r"\d", r"\d+") + ARRAYS, only="single-digit") == ()


def test_a_number_that_needs_no_room_keeps_its_place() -> None:
    text = r"params: {'re:l_\d/w_\d': a, '**': b}" + "\narrays: {'l_{0..11}/w_{0,1}': 'f32[8]'}"
    (found,) = findings_of(HEAD + text, only="single-digit")
    assert r"`l_\d+/w_\d`" in (found.help or "")


def test_ten_layers_are_fine() -> None:
    text = r"params: {'re:l_\d/k': a}" + "\narrays: {'l_{0..9}/k': 'f32[8]'}"
    assert findings_of(HEAD + text, only="single-digit") == ()
