from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import (
    Diagnostic,
    Label,
    Severity,
    SourceFile,
    Span,
    codes,
    point,
    sort_key,
)
from shardspec.diagnostics.words import did_you_mean, listed, nearest


def test_a_level_beats_the_code() -> None:
    diagnostic = Diagnostic(codes.AXIS_WITHOUT_RULE, "m")
    assert not diagnostic.is_error
    assert diagnostic.with_level(Severity.ERROR).is_error
    assert diagnostic.with_level(Severity.ALLOW).severity is Severity.ALLOW


@given(st.lists(st.booleans(), max_size=4))
def test_one_primary(primary: list[bool]) -> None:
    """Labels hold one primary label, or are empty."""
    span = SourceFile("s", "x").whole
    labels = tuple(Label(span, "", each) for each in primary)
    if sum(primary) == bool(primary):
        assert Diagnostic(codes.SYNTAX, "m", labels).labels == labels
    else:
        with pytest.raises(AssertionError, match="primary labels"):
            Diagnostic(codes.SYNTAX, "m", labels)


def test_point_without_a_place_has_no_label() -> None:
    assert point(codes.SYNTAX, "m", None).labels == ()
    assert point(codes.SYNTAX, "m", SourceFile("s", "x").whole, help="h").primary is not None


def test_reading_order() -> None:
    a, b = SourceFile("a", "xy"), SourceFile("b", "xy")
    order = [
        Diagnostic(codes.SYNTAX, "no place"),
        point(codes.SYNTAX, "m", Span(a, 0, 1)),
        point(codes.AXIS_WITHOUT_RULE, "m", Span(a, 0, 1)),
        point(codes.SYNTAX, "m", Span(a, 1, 2)),
        point(codes.SYNTAX, "m", Span(b, 0, 1)),
    ]
    shuffled = [order[i] for i in (3, 0, 4, 2, 1)]
    assert sorted(shuffled, key=sort_key) == order


def test_nearest() -> None:
    assert nearest("tenosr", ["data", "tensor"]) == ("tensor",)
    assert nearest("EMBED", ["embed"]) == ("embed",)
    assert did_you_mean("xyz", ["embed"]) is None
    assert did_you_mean("x", []) is None


def test_listed_is_cut() -> None:
    assert listed(["a", "b"]) == "`a`, `b`"
    assert listed("abcdefghij", limit=2) == "`a`, `b` and 8 more"


def test_lines_of_help_stay_lines() -> None:
    found = point(codes.SYNTAX, "a\nb", None, notes=("c\x1b",), help="d\ne")
    assert str(found).splitlines() == [
        r"error[SHD002]: a\nb",
        r"  = note: c\x1b",
        "  = help: d",
        "          e",
    ]
