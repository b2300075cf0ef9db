from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics.diagnostic import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("decoder/wi", "decoder/wi"),
        ("é 層", "é 層"),
        ("a\x1b[31m", "a\\x1b[31m"),
        ("a\x00\n", "a\\x00\\n"),
        ("\u202ea", "\\u202ea"),
        ("\ud800", "\\ud800"),
    ],
)
def test_what_does_not_print_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


@given(st.text())
def test_anything_prints(text: str) -> None:
    assert printable(text).isprintable()
