"""What a search says of answers that were tried: which is best, and why nothing is added."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import shardspec
from shardspec.analysis.cost import Compiler, Cost
from shardspec.analysis.spec_step import stated_cost
from shardspec.cure.lines import Line
from shardspec.cure.patching import Patched, Refused
from shardspec.cure.searching import Found
from shardspec.cure.telling import (
    OtherMeshes,
    OtherNames,
    Report,
    Tried,
    ordered,
    report_lines,
    report_text,
)
from shardspec.diagnostics.words import binary_bytes
from shardspec.ir.spec import PartitionSpec
from shardspec.ir.step import StepArgument, StepArray
from shardspec.search.variants import Candidate, Variant
from tests.cure.worlds import BASE, EXPERTS, ROWS, site
from tests.search.specs import TEXT

LINE = Line(site(7), (ROWS,))
FOUND = Found(BASE, (), None, (), 8, 24)


@pytest.fixture(scope="module")
def cost() -> Cost:
    return stated_cost(shardspec.loads(TEXT).compile(target="slice"))


def tried(cost: Cost | None, seconds: float, size: float = 1e6, **more: Any) -> Tried:
    figures = BASE._replace(seconds=seconds, sent=(("fsdp", size),))
    patches = (Patched("model.py", "", "", ('x = resolver.constrain(x, "batch _ embed")',)),)
    return Tried(**{"lines": (LINE,), "figures": figures, "patches": patches, "cost": cost} | more)


def report(cost: Cost, *answers: Tried, found: Found | None = FOUND, **more: int) -> Report:
    numbers = {"beyond": 0, "trials": 9, "late": 0} | more
    base = Tried((), BASE, cost=cost)
    return Report(base, ordered(answers), found, seconds=1.5, within_s=300.0, **numbers)


def text(of: Report) -> str:
    return "\n".join(report_lines(of))


def test_the_best_is_that_of_the_best_figures_once_tried(cost: Cost) -> None:
    slow, fast = tried(cost, 80.0), tried(cost, 50.0, 5e5)
    found = report(cost, slow, fast)
    assert found.best is fast
    assert json.loads(report_text(found, "diff"))["best"] == 0
    told = text(found)
    assert "add 1 line: 2.0 times as fast, sends 2.0 times less (fsdp 977 KiB -> 488 KiB)" in told
    assert '    model.py:7\n        x = resolver.constrain(x, "batch _ embed")' in told


def test_a_move_counts_as_the_two_lines_that_it_adds(cost: Cost) -> None:
    move = Line(site(7), (ROWS, EXPERTS))
    assert "add 3 lines: " in text(report(cost, tried(cost, 50.0, lines=(LINE, move))))


def test_what_cannot_be_traced_is_not_the_best_and_comes_last(cost: Cost) -> None:
    lost, sound = tried(None, 10.0, why="it has 2 dimensions"), tried(cost, 80.0)
    found = report(cost, lost, sound)
    assert found.answers == (sound, lost)
    assert found.best is sound
    alone = report(cost, lost)
    assert alone.best is None
    assert text(alone).endswith("nothing to add: it has 2 dimensions")
    assert "not tried: it has 2 dimensions" in text(alone)


def test_what_earns_too_little_once_it_is_tried_is_not_added(cost: Cost) -> None:
    found = report(cost, tried(cost, 95.0))
    assert found.best is None
    told = "1 refuted: it saves less than 6 %"
    assert f"nothing to add: 1 answer traced again; {told}" in text(found)
    assert json.loads(report_text(found, ""))["refuted"] == 1
    assert json.loads(report_text(found, ""))["best"] is None


def test_how_many_answers_were_tried_and_refuted_is_said(cost: Cost) -> None:
    found = report(cost, tried(cost, 50.0), tried(cost, 99.0), tried(None, 9.0))
    assert "2 answers traced again; 1 refuted: it saves less than 6 %" in text(found)
    assert "refuted" not in text(report(cost, tried(cost, 50.0)))


@pytest.mark.parametrize(
    ("rows", "size", "told"),
    [
        ((None, None, None), 1024, "guess: batch; the code does not tell it from length of 1024"),
        ((True, False, False), 1024, ""),
        ((None, None, None), 64, ""),
        ((), 1024, ""),
    ],
)
def test_a_batch_that_could_be_another_dimension_is_a_guess(
    cost: Cost, rows: tuple[bool | None, ...], size: int, told: str
) -> None:
    spec = cost.plan.spec
    length = replace(spec.logical_axes[0], name="length", size=1024)
    batch = replace(length, name="batch", size=size)
    known = replace(cost, plan=replace(cost.plan, spec=replace(spec, logical_axes=(batch, length))))
    own = Line(replace(site(7, shape=(size, 128, 512)), rows=rows), (ROWS,))
    found = report(known, tried(known, 50.0, lines=(own,)))
    assert (told in text(found)) if told else ("guess: " not in text(found))


def test_the_only_dimension_as_long_as_the_data_is_its_batch(cost: Cost) -> None:
    spec = cost.plan.spec
    assert cost.step is not None
    array = StepArray("f32", (96, 8), PartitionSpec(((), ())), (96, 8))
    step = replace(cost.step, arguments=(StepArgument("x", "batch", array),))
    bare = replace(cost, step=step, plan=replace(cost.plan, spec=replace(spec, logical_axes=())))
    for shape, is_guess in (((96, 128, 512), False), ((96, 96, 512), True), ((97, 5, 512), True)):
        own = Line(replace(site(7, shape=shape), rows=(None,) * 3), (ROWS,))
        found = report(bare, tried(bare, 50.0, lines=(own,)))
        assert ("guess: batch" in text(found)) == is_guess


def test_what_fits_is_said(cost: Cost) -> None:
    base = Tried((), BASE._replace(fits=False), cost=cost)
    found = replace(report(cost, tried(cost, 120.0)), base=base)
    assert found.best is not None
    told = text(found)
    assert ", does not fit" in told
    assert "add 1 line: takes 1.2 times as long, fits" in told
    same = replace(found, answers=(tried(cost, 100.0),))
    assert "add 1 line: as fast, fits" in text(same)


def test_code_of_another_folder_alone_is_said(cost: Cost) -> None:
    way_out = "files outside of this folder are not changed, so start in that of the code"
    none = replace(FOUND, sites=0, layouts=0)
    assert way_out in text(report(cost, found=none, beyond=51))
    assert way_out not in text(report(cost, found=none, beyond=1, mapped=1))
    assert way_out not in text(report(cost, beyond=51))


def test_what_was_not_searched_is_said(cost: Cost) -> None:
    told = text(report(cost, late=3, beyond=2, mapped=1))
    assert "searched 8 values and 24 layouts: 9 trials in 1.50 s" in told
    inside = "1 of them inside of `jax.vmap`, where they have no batch"
    assert f"no line can constrain 2 other values, {inside}" in told
    assert "no line that was tried saves 6 % of the time or of the bytes sent" in told
    assert told.endswith(
        "stopped by `--within 300`: 3 layouts were not tried in the part of it that trials have;"
        " `--within 600`, or a step with fewer layers, tries more"
    )
    none = text(report(cost, found=None))
    assert "the step cannot be priced: nothing was searched" in none
    assert none.endswith("nothing to add is known")


def test_where_few_layouts_were_tried_it_is_unknown_whether_a_line_helps(cost: Cost) -> None:
    told = text(report(cost, trials=2, late=100))
    assert "unknown whether a line helps: 2 of 102 layouts tried" in told
    other = replace(report(cost), meshes=OtherMeshes((), 4))
    assert "\nunknown whether another mesh is better\n" in text(other)
    assert "4 meshes were not tried" in text(other)
    none = text(report(cost, found=None, trials=0, late=2))
    assert "the time ended: nothing was searched" in none
    assert "\nunknown whether a line helps\n" in none
    assert "nothing to add" not in told


def test_a_compiled_step_is_compared_by_the_model_with_meshes_that_are_modelled(cost: Cost) -> None:
    compiled = replace(cost, compiler=Compiler("libtpu 1"), predicted=cost)
    now = Tried((), BASE._replace(memory=50 << 30), cost=compiled)
    of = replace(report(cost), base=now)
    ring = Candidate(cost.target, "ring", Variant(cost.plan.spec))
    other = tried(cost, 1.0, candidate=ring)
    assert "x 50.0 GiB" in text(of)
    (row,) = (
        line
        for line in text(replace(of, meshes=OtherMeshes((other,))))
        .split("other mesh")[1]
        .splitlines()
        if line.startswith("  now")
    )
    assert "x " not in row
    assert f"~ {binary_bytes(cost.memory.total.bytes)}" in row
    both = OtherMeshes((replace(other, cost=compiled),))
    assert "x 50.0 GiB" in text(replace(of, meshes=both)).split("other mesh")[1]


def test_lines_that_cannot_be_written_are_shown_by_place(cost: Cost) -> None:
    refused = tried(None, 50.0, patches=Refused("it is a generator"), why="it is a generator")
    assert "model.py:7   not tried: it is a generator" in text(report(cost, refused))


def test_a_move_names_both_of_its_layouts(cost: Cost) -> None:
    move = Line(site(7), (ROWS, EXPERTS))
    data = json.loads(report_text(report(cost, tried(cost, 50.0, lines=(move,))), ""))
    (line,) = data["answers"][0]["lines"]
    assert line["names"] == ["batch _ embed", "_ expert _"]
    assert line["partition"] == [[["fsdp"], [], []], [[], ["fsdp"], []]]


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (1e6, "the same"),
        (1.5e6, "50 % more sent"),
        (0.25e6, "75 % less sent"),
        (3e6, "200 % more"),
        (3e7, "30 times as much sent"),
    ],
)
def test_the_runner_up_says_how_much_more_it_sends(cost: Cost, size: float, said: str) -> None:
    best, other = tried(cost, 1.0), tried(cost, 1.5, size)
    assert said in text(report(cost, best, other))


@pytest.mark.parametrize(
    ("late", "said"), [(0, "no other names save"), (3, "that were tried save")]
)
def test_names_that_earn_too_little_are_not_proposed(cost: Cost, late: int, said: str) -> None:
    names = OtherNames(1, ("hidden",), (tried(cost, 99.0),), late)
    told = text(replace(report(cost), names=names))
    assert f"{said} 6 %" in told
    assert "save hidden" not in told


def test_todays_mesh_with_its_tile_written_out_is_no_other_mesh(cost: Cost) -> None:
    axes = tuple(replace(axis, auto=True) for axis in cost.target.mesh.axes)
    same = replace(cost.target, mesh=replace(cost.target.mesh, axes=axes))
    order = cost.plan.spec.policy.order
    now = tried(cost, 1e4, candidate=Candidate(same, order, Variant(cost.plan.spec)))
    told = text(replace(report(cost), meshes=OtherMeshes((now,))))
    assert "0 other meshes" in told
    assert told.endswith("no other mesh goes with these devices")
    ring = tried(cost, 1e4, candidate=Candidate(same, "ring", Variant(cost.plan.spec)))
    assert "1 other mesh" in text(replace(report(cost), meshes=OtherMeshes((ring,))))
