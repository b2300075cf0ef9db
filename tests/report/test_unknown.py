"""Something in a step that could not be counted: no form of its figures calls it zero, or best."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, get_args

import pytest

from shardspec.analysis import cost as analysis
from shardspec.analysis.comparison import CostDiff
from shardspec.analysis.cost import cost_of
from shardspec.analysis.spec_step import Stated, stated_step
from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.ir.step import Figure, Place, Step, Unknown
from shardspec.pipeline import compile_plans
from shardspec.records import data_of
from shardspec.report.cost import Cost, cost_diff_data, cost_diff_lines, cost_lines
from shardspec.report.cost_json import cost_record, cost_text, read_cost
from shardspec.report.page import Shown, cost_pieces, page_text
from shardspec.report.saved_cost import SavedCost, axis_lines
from shardspec.report.search import Search, checked, search_lines, search_text
from shardspec.search import ranking
from shardspec.search.ranking import search
from tests.search.specs import question, spec_of

SPEC = spec_of()
PLAN = compile_plans(SPEC)[0]
FIGURES: tuple[Figure, ...] = get_args(Figure)


def cost(*figures: Figure, is_alone: bool = False) -> analysis.Cost:
    stated = stated_step(PLAN)
    assert stated is not None
    return cost_of(PLAN, with_unknown(stated.step, *figures, is_alone=is_alone), tokens=64)


def with_unknown(step: Step, *figures: Figure, is_alone: bool = False) -> Step:
    found = Unknown("fft", "no rule splits it", figures, Place("model.py", 31), "forward", 2)
    kept = () if is_alone else step.collectives
    return replace(step, collectives=kept, unknown=(found,) if figures else ())


@pytest.mark.parametrize("figure", FIGURES)
def test_every_form_names_it_with_its_line(figure: Figure) -> None:
    made = cost(figure)
    page = page_text(SPEC, [Shown(PLAN, cost_record(made))], [])
    diff = CostDiff("slice", made, made)
    for text in (
        "\n".join(cost_lines(made)),
        str(Cost.of(made)),
        cost_pieces(made),
        page,
        "\n".join(cost_diff_lines(diff)),
    ):
        assert "unknown" in text
        assert "model.py:31" in text
        assert "no rule splits it" in text
    (found,) = cost_diff_data(diff)["unknown"]
    assert found == data_of(cost_record(made).unknown[0])
    assert found["place"] == {"file": "model.py", "line": 31}
    assert found["figures"] == [figure]


def test_nothing_is_no_figure() -> None:
    made = cost("sends", is_alone=True)
    saved = SavedCost("cost.json", cost_record(made))
    for text in (
        "\n".join(cost_lines(made)),
        cost_pieces(made),
        "\n".join(axis_lines(saved, "fsdp", PLAN)),
    ):
        assert "nothing" not in text
        assert "sends   unknown" in text or "sends unknown" in text


@pytest.mark.parametrize("figure", FIGURES)
def test_what_depends_on_it_is_not_said(figure: Figure) -> None:
    made = cost(figure)
    lines = list(cost_lines(made))
    memory, time, sends = (
        next(line for line in lines if line.startswith(name))
        for name in ("memory", "time", "sends")
    )
    assert (made.memory.fits is None) is (figure == "memory") is ("fits is unknown" in memory)
    is_timed = figure == "memory"
    assert ("at least" not in time and "bound by" in time and "MFU" in time) is is_timed
    assert ("at least" in sends) is (figure == "sends")
    data = data_of(cost_record(made))
    assert (data["mfu"] is not None and data["tokens_per_s"] is not None) is is_timed
    assert (data["time"]["bound"] != "unknown") is is_timed
    assert (data["memory"]["fits"] is None) is (figure == "memory")


def test_a_step_that_holds_too_much_does_not_fit_whatever_is_unknown() -> None:
    memory = replace(cost("memory").memory, hbm_bytes=1)
    assert memory.fits is False


def test_a_saved_cost_keeps_it() -> None:
    text = cost_text(cost("sends", "memory"))
    read = read_cost(SourceFile("cost.json", text))
    assert not isinstance(read, Diagnostic)
    data = data_of(read)
    assert data == json.loads(text)
    (line, *_) = axis_lines(SavedCost("cost.json", read), "fsdp", PLAN)
    assert "fsdp sends at least ~" in line
    older = {name: value for name, value in data.items() if name != "unknown"}
    found = read_cost(SourceFile("cost.json", json.dumps(older)))
    assert found == replace(read, unknown=())


def test_costs_with_it_are_not_the_same() -> None:
    assert CostDiff("slice", cost(), cost()).is_same
    assert not CostDiff("slice", cost("sends"), cost("sends")).is_same


# search


def searched(monkeypatch: pytest.MonkeyPatch, *sizes: int) -> Search:
    """Return a search in which meshes of these sizes of `fsdp` have an unknown."""
    stated = ranking.spec_step.stated_step

    def step(plan: Any, layout: Any = None) -> Stated | None:
        found = stated(plan, layout)
        if found is None or plan.mesh.sizes["fsdp"] not in sizes:
            return found
        return found._replace(step=with_unknown(found.step, "sends", "memory"))

    monkeypatch.setattr(ranking.spec_step, "stated_step", step)
    return checked(search(question(SPEC)), top=100)


def test_a_candidate_with_it_ranks_last(monkeypatch: pytest.MonkeyPatch) -> None:
    assert searched(monkeypatch).best is not None
    best = searched(monkeypatch).rows[0].candidate.mesh.sizes["fsdp"]
    table = searched(monkeypatch, best)
    flags = [bool(row.unknown) for row in table.rows]
    assert flags == sorted(flags)
    assert any(flags)
    assert table.best is not None
    assert not table.best.unknown
    lines = "\n".join(search_lines(table))
    assert "at least ~" in lines
    assert "unknown: `fft`" in lines
    rows = json.loads(search_text(table))["rows"]
    assert [bool(row["unknown"]) for row in rows] == flags
    assert all(row["mfu"] is None and not row["is_tie"] for row in rows if row["unknown"])
    assert all(row["fits"] is None for row in rows if row["unknown"])


def test_where_all_have_it_none_is_best(monkeypatch: pytest.MonkeyPatch) -> None:
    table = searched(monkeypatch, 1, 2, 4, 8, 16)
    assert table.best is None
    lines = "\n".join(search_lines(table))
    assert "no row is the best" in lines
    assert "times as fast" not in lines
