"""Which respellings are beyond doubt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import SourceFile, Span
from shardspec.diagnostics.words import distance, is_slip, respelt

words = st.text("ab-_1", max_size=6)


def fix(name: str, *known: str, text: str | None = None) -> tuple[str, bool] | None:
    source = SourceFile("s.yaml", name if text is None else text)
    found = respelt([Span(source, 0, len(source.text))], name, known)
    return None if found is None else (found.edits[0].text, found.is_sure)


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("tenosr", ["data", "tensor"], ("tensor", True)),
        ("Tensor", ["data", "tensor"], ("tensor", True)),
        ("kv_heads", ["kv-heads", "heads"], ("kv-heads", True)),
        ("kvheads", ["kv_heads", "kv-heads"], ("kv_heads", False)),
        ("embd", ["embed"], ("embed", True)),
        ("emd", ["embed"], ("embed", False)),
        ("wi_0", ["wi_1"], ("wi_1", False)),
        ("t5x/1d", ["t5x/2d"], ("t5x/2d", False)),
        ("layrs", ["layers", "lairs"], ("layers", False)),
        ("mpl", ["mlp"], ("mlp", False)),
        ("indivisable", ["indivisible"], ("indivisible", True)),
        ("stage", ["data"], None),
        ("x", [], None),
    ],
)
def test_sure(name: str, known: list[str], expected: tuple[str, bool] | None) -> None:
    assert fix(name, *known) == expected


def test_places() -> None:
    source = SourceFile("s.yaml", "tenosr 'tenosr' x")
    spans = [Span(source, 0, 6), Span(source, 7, 15), Span(source, 16, 17), None]
    found = respelt(spans, "tenosr", ["tensor"])
    assert found is not None
    assert [(edit.span.start, edit.span.end) for edit in found.edits] == [(0, 6), (8, 14)]
    assert respelt(spans[2:], "tenosr", ["tensor"]) is None


@given(words, words)
def test_distance_is_symmetric_and_bounded(one: str, other: str) -> None:
    assert distance(one, other) == distance(other, one) <= 3
    assert (distance(one, other) == 0) == (one == other)


@given(words, st.integers(0, 5), st.sampled_from("ab1"))
def test_one_slip_is_one(word: str, at: int, letter: str) -> None:
    at = min(at, len(word))
    assert distance(word, word[:at] + letter + word[at:]) == 1
    assert distance(word, word[:at] + word[at + 1 :]) == (1 if at < len(word) else 0)
    swapped = word[:at] + word[at : at + 2][::-1] + word[at + 2 :]
    assert distance(word, swapped) == (0 if swapped == word else 1)


_ROOT = Path(__file__).parents[2]
_RULE = re.compile(
    r"""^\s*-?\s*\[?\s*['"]?([a-z][\w']{2,})['"]?\s*(?:->|,\s*[\['])""", re.MULTILINE
)
_FILES = (*_ROOT.glob("tests/data/maxtext/**/*.yml"), *_ROOT.glob("specs/presets/**/*.yaml"))
#: Real logical axes: of MaxText's rules, and of the presets.
_REAL = sorted(
    {name.strip("'") for each in _FILES for name in _RULE.findall(each.read_text("utf-8"))}
)


def test_no_real_name_is_a_slip_for_another() -> None:
    assert len(_REAL) > 60
    slips = [(a, b) for a in _REAL for b in _REAL if a < b and is_slip(a, b)]
    assert slips == [("head", "heads")]  # both real; whoever means the other is right to be asked


@given(st.text("abcdefgh_", min_size=12, max_size=40), st.text("ijklmnop_", min_size=12))
def test_long_names_of_other_letters_are_no_slips(one: str, other: str) -> None:
    assert not is_slip(one, other) or distance(one, other) < 3
    assert fix(one, other) is None or distance(one, other) < 3


def test_a_longer_name_is_not_respelt_as_its_beginning() -> None:
    assert fix("kv_lora_up_proj", "kv_lora", "dense_layers") is None
