"""Every second of both sides is in one row of each table."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings

from shardspec.analysis.comparison import Comparison, Spent, SpentBy, run_diff
from tests.analysis.comparisons import comparisons

BY: tuple[SpentBy, ...] = ("axis", "line", "rule")


def named(each: Spent, by: SpentBy) -> str:
    """Return the row that an operation counts in."""
    if each.kind == "idle":
        return "nothing runs"
    if by == "axis":
        return "+".join(each.mesh_axes) if each.kind == "collective" else "compute"
    if by == "line":
        return f"{each.place.file}:{each.place.line}" if each.place.file else "no line"
    rules = " + ".join(sorted(str(one) for one in each.askers))
    return rules or ("no rule" if each.kind == "other" else "unknown")


@given(comparisons())
@settings(max_examples=30)
def test_a_table_has_every_second_once_and_the_longest_first(found: Comparison) -> None:
    for by in BY:
        measured: dict[str, float] = defaultdict(float)
        predicted: dict[str, float] = defaultdict(float)
        for each in found.measured:
            measured[named(each, by)] += each.shown
        for each in found.predicted:
            predicted[named(each, by)] += each.shown
        rows = found.rows(by)
        assert {row.name for row in rows} == {*measured, *predicted}
        assert len({row.name for row in rows}) == len(rows)
        for row in rows:
            assert row.measured == pytest.approx(measured.get(row.name, 0))
            guess = predicted.get(row.name, 0.0)
            if found.predicted_seconds is None:
                assert row.predicted is None
            else:
                assert row.predicted == pytest.approx(guess)
            assert row.off == pytest.approx(row.measured - guess)
            sent = [e for e in found.measured if named(e, by) == row.name]
            busy = sum(e.seconds for e in sent if e.kind == "collective")
            assert row.collectives == pytest.approx(busy)
        assert sum(row.measured for row in rows) == pytest.approx(found.seconds)
        sizes = [max(row.measured, row.predicted or 0) for row in rows]
        assert all(a >= b for a, b in pairwise(sizes))


@given(comparisons())
@settings(max_examples=30)
def test_what_is_wrong_is_each_row_of_a_line_and_the_worst_first(found: Comparison) -> None:
    rows = found.wrong
    assert all(abs(a.off) >= abs(b.off) for a, b in pairwise(rows))
    if found.predicted_seconds is None:
        assert rows == ()
        return
    assert sum(row.off for row in rows) == pytest.approx(found.seconds - found.predicted_seconds)
    kinds = set()
    for each in (*found.measured, *found.predicted):
        if each.kind == "idle" or not each.place.file:
            kinds.add((each.what,))
        elif each.kind == "collective":
            kinds.add((each.what, str(each.place), each.mesh_axes))
        else:
            kinds.add((each.kind == "matmul", str(each.place)))
    assert len(rows) == len(kinds)


@given(comparisons(), comparisons())
@settings(max_examples=30)
def test_what_changed_from_run_to_run_is_all_of_both(one: Comparison, other: Comparison) -> None:
    for by, rows in run_diff(one, other).items():
        assert sum(row.before for row in rows) == pytest.approx(one.seconds)
        assert sum(row.after for row in rows) == pytest.approx(other.seconds)
        assert len({row.name for row in rows}) == len(rows)
        changes = [abs(row.after - row.before) for row in rows]
        assert all(a >= b for a, b in pairwise(changes))
        before = {row.name: row.measured for row in one.rows(by)}
        assert all(row.before == before.get(row.name, 0) for row in rows)


@given(comparisons())
@settings(max_examples=30)
def test_the_share_that_is_named_is_of_its_kind(found: Comparison) -> None:
    for kind in ("collective", "matmul"):
        own = [each for each in found.measured if each.kind == kind]
        known = [each for each in own if each.place.file and each.askers]
        share = found.explained(kind)  # type: ignore[arg-type]
        assert share == (pytest.approx(len(known) / len(own)) if own else None)
