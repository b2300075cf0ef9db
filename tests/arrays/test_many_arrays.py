"""A manifest that asks for more arrays than any model has is told so, before they are made."""

from __future__ import annotations

import json

import pytest

from shardspec.arrays import listing, read_manifest
from shardspec.diagnostics import SourceFile, codes


@pytest.mark.parametrize("entry", ["w_{{0..9}}/part_{n}", "part_{n}"])
def test_entries_beyond_the_limit_are_not_read(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MOST_ARRAYS", 25)
    text = json.dumps({entry.format(n=n): "f32[8]" for n in range(40)})
    params, found = read_manifest(SourceFile("arrays.json", text))
    assert 20 <= len(params) <= 25
    (fault,) = found
    assert fault.code is codes.BAD_MANIFEST
    assert "makes it" in fault.message


def test_ranges_multiply_up_to_the_limit_and_no_further() -> None:
    text = json.dumps({f"part_{n}/w_{{0..9999999}}": "f32[8]" for n in range(3)})
    params, found = read_manifest(SourceFile("arrays.json", text))
    assert not params
    assert len(found) == 3
