from __future__ import annotations

import pytest

from shardspec.diagnostics.diagnostic import excerpt_of
from shardspec.lints.evidence.entries import first_word, last_word


@pytest.mark.parametrize(
    ("text", "word", "first", "last"),
    [
        ("(tensor_x, tensor)", "tensor", 11, 11),
        ("embed: embed mlp", "embed", 0, 7),
        ("a-b b a.b b", "b", 4, 10),
        ("rule: e -> x", "e", 6, 6),
        ("a->b", "a", 0, 0),
    ],
)
def test_whole_words_only(text: str, word: str, first: int, last: int) -> None:
    span = excerpt_of(text).span
    assert first_word(span, word).start == first
    assert last_word(span, word).start == last
    assert first_word(span, word).text == word


def test_nowhere_is_everywhere() -> None:
    span = excerpt_of("abc").span
    assert first_word(span, "b") == span
    assert last_word(span, "(") == span
