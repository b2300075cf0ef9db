"""The tables of a measured step: all of its rows, what is cut in one, figures at the right."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec.analysis.comparison import Comparison, run_diff
from shardspec.diagnostics.lines import Table, TableLine
from shardspec.diagnostics.words import percent, seconds_text
from shardspec.report.comparison import comparison_lines, run_diff_lines
from tests.analysis.comparisons import comparisons

BY = {"by mesh axis": "axis", "by line": "line", "by rule": "rule"}


def tables(lines: Iterable[str]) -> list[Table]:
    found = [line.table for line in lines if isinstance(line, TableLine)]
    return list({id(each): each for each in found}.values())


@given(comparisons(), st.integers(1, 4))
@settings(max_examples=30)
def test_a_table_shows_the_first_rows_and_the_sum_of_the_others(
    found: Comparison, top: int
) -> None:
    shown = [each for each in tables(comparison_lines(found, top=top)) if each.rows[0][0] in BY]
    assert [each.rows[0][0] for each in shown] == [*BY]
    for table in shown:
        (words, *_), *cells = table.rows
        rows = found.rows(BY[words])  # type: ignore[arg-type]
        names = [row.name for row in rows[:top]]
        left = len(rows) - len(names)
        assert [each[0] for each in cells] == names + (
            [f"{left} row{'s' * (left > 1)} more"] if left else []
        )
        is_timed = any(row.predicted is not None for row in rows)
        assert table.rows[0][1:] == (
            ("predicted", "measured", "of the step", "off", "")
            if is_timed
            else ("measured", "of the step", "")
        )
        at = 2 if is_timed else 1
        for cell, row in zip(cells, rows[:top], strict=False):
            share = percent(row.measured, found.seconds)
            assert cell[at : at + 2] == (seconds_text(row.measured), share)
            signed = ("-" if row.off < 0 else "+") + seconds_text(abs(row.off))
            timed = f"~ {seconds_text(row.predicted or 0)}", signed
            assert not is_timed or (cell[1], cell[4]) == timed
            is_hidden = row.collectives - row.measured > 0.01 * row.collectives > 0
            assert bool(cell[-1]) == is_hidden
        if left:
            rest = seconds_text(sum(row.measured for row in rows[top:]))
            assert cells[-1][at] == rest
        assert {at for at in range(6) if at in table.right} == set(range(1, 5 if is_timed else 3))


@given(comparisons())
@settings(max_examples=30)
def test_what_is_most_wrong_is_more_than_a_hundredth_of_the_step(found: Comparison) -> None:
    lines = [*comparison_lines(found, top=5)]
    said = "what the model gets most wrong:" in lines
    wrong = [row for row in found.wrong if abs(row.off) > 0.01 * found.seconds][:5]
    assert said == bool(wrong)
    others = [each for each in tables(lines) if each.rows[0][0] not in BY]
    assert [row[0] for each in others for row in each.rows] == [row.name for row in wrong]
    for each in others:
        assert {at for at in range(6) if at in each.right} == {1, 2, 3, 4}
    missing = [line for line in lines if line.startswith("not predicted: ")]
    assert len(missing) == min(5, len(found.unpredicted))
    assert "note      a note" in lines
    assert any(line.startswith("exposed ") for line in lines) == any(
        each.kind == "collective" for each in found.measured
    )
    assert ("not predicted: no speeds" in lines[1]) == (not found.predicted_seconds)
    assert not any(one == other == "" for one, other in pairwise(lines))


@given(comparisons().filter(lambda each: each.seconds > 0), comparisons())
@settings(max_examples=30)
def test_a_diff_shows_what_changed_by_more_than_a_hundredth(
    before: Comparison, after: Comparison
) -> None:
    rows = run_diff(before, after)
    lines = [*run_diff_lines(before, after, rows)]
    (change,) = re.findall(r"([+-]\d+) %$", lines[1])
    assert abs(int(change) - (after.seconds / before.seconds - 1) * 100) <= 0.51
    shown = {each.rows[0][0]: each.rows[1:] for each in tables(lines)}
    for words, by in BY.items():
        own = rows[by]  # type: ignore[index]
        kept = [row for row in own if abs(row.after - row.before) > 0.01 * after.seconds]
        assert [each[0] for each in shown.get(words, ())] == [row.name for row in kept]
        for cell, row in zip(shown.get(words, ()), kept, strict=True):
            sign = "-" if row.after < row.before else "+"
            off = sign + seconds_text(abs(row.after - row.before))
            assert cell[1:] == (seconds_text(row.before), seconds_text(row.after), off)
    for each in tables(lines):
        assert {at for at in range(4) if at in each.right} == {1, 2, 3}
        assert each.indent == 0
    assert lines[-2:] == [f"note  {each.run}: a note" for each in (before, after)]
