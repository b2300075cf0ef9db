from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.diagnostics.words import (
    binary_bytes,
    element_count,
    near_or_known,
    percent,
    three_figures,
)
from shardspec.ir.spec import Param
from shardspec.report.table import table


@pytest.mark.parametrize("count", [2**63, 10**30, 10**375, 2**5000])
def test_any_whole_number_is_said(count: int) -> None:
    for said in (binary_bytes(count), element_count(count), percent(count, count)):
        assert len(said) < 20


def test_figures_stay_three_where_they_are_many() -> None:
    assert three_figures(1e20) == "1e+20"
    assert three_figures(123456.0) == "123456"


def test_a_table_of_arrays_beyond_any_machine() -> None:
    shape = ", ".join(["999999999999999"] * 25)
    spec, faults = pipeline.load_text(f"mesh: {{data: 8}}\narrays: {{w: 'f32[{shape}]'}}\n")
    assert spec is not None
    assert [fault.code.id for fault in faults] == ["SHD305"]
    plans = pipeline.compile_plans(spec, (Param("w", (999_999_999_999_999,) * 25, "f32"),))
    assert pipeline.findings(spec, plans).shown
    assert "EiB" in "\n".join(table(plans[0]))


def test_a_long_list_begins_with_the_nearest_names_and_says_where_the_rest_is() -> None:
    known = ["axes", "rules", "params", "arrays", "mesh", "targets", "policy", "state"]
    assert near_or_known("ruls", known) == "did you mean `rules`?"
    said = near_or_known("sttepolicyrulesxx", known, "keys", "docs/language.md lists all")
    assert said.startswith("keys: `policy`, ")
    assert said.endswith(" and 2 more; docs/language.md lists all")
    assert near_or_known("zz", known[:6], more="not shown") == (
        "known here: `axes`, `rules`, `params`, `arrays`, `mesh`, `targets`"
    )
