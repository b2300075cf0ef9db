"""What stands out of a table in colours is what its cells say."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardspec import pipeline
from shardspec.diagnostics.lines import Table, TableLine
from shardspec.report.table import memory_lines, table

EXAMPLES = sorted((Path(__file__).parents[2] / "specs/examples").glob("*.yaml"))[::3]


def painted(lines: list[str]) -> list[tuple[Table, int, int, str]]:
    """Return each cell that has a tone: its table, its row, its column and the tone."""
    tables = {id(each.table): each.table for each in lines if isinstance(each, TableLine)}
    return [
        (found, row, at, tone)
        for found in tables.values()
        for row, tones in enumerate(found.tones)
        for at, tone in tones.items()
    ]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_partition_is_whole_where_no_mesh_axis_splits_it(path: Path) -> None:
    spec, findings = pipeline.load_path(str(path))
    assert spec is not None
    plans = pipeline.compile_plans(spec, None)
    for found, row, at, tone in painted([*table(plans[0], findings=findings)]):
        cell = found.rows[row][at]
        if tone in ("whole", "split"):
            assert (tone == "whole") == (cell == "replicated")
            assert found.rows[0][at] == "spec"
        else:
            assert at == 0, "a finding paints the name"
    for found, row, at, tone in painted([*memory_lines(plans)]):
        assert (tone == "no") == ("NOT" in found.rows[row][at])
