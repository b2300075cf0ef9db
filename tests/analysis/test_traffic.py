"""The rows of what a step sends: every byte once in each table, and who asked for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.analysis.comparison import BY, By, array_of, asker, group
from shardspec.diagnostics import SourceFile, Span
from shardspec.ir.plan import Attempt, Kind, Outcome
from shardspec.ir.spec import AxisRule, PartitionSpec
from shardspec.ir.step import (
    Carried,
    Cause,
    CauseKind,
    Collective,
    CollectiveKind,
    Place,
    StepArray,
    wire_bytes,
)

SPEC = SourceFile("spec.yaml", "shardspec: 1\n- embed -> fsdp\n- mlp -> tensor\n")
PRESET = SourceFile("preset:t5x/2d", "- mlp -> tensor\n")
ARRAY = StepArray("bf16", (64, 64), PartitionSpec(((), ())), (64, 64))
WEIGHT = Carried("weight", "wi")
PLACE = Place("model.py", 7)


def by_rule(mesh_axis: str, line: int, source: SourceFile = SPEC, **more: object) -> Cause:
    """Return what a rule on a line asked for."""
    start = source.text.index(source.line_text(line))
    span = Span(source, start, start + 1)
    logical = source.line_text(line).split()[1]
    rule = AxisRule(logical, (mesh_axis,), span)
    asked = (mesh_axis,)
    attempt = Attempt(Kind.RULE, line, asked, asked, Outcome.TAKEN, rule=rule, span=span)
    found = Cause(mesh_axis, CauseKind.ARGUMENT, "wi", 0, attempt=attempt)
    return replace(found, **more)  # type: ignore[arg-type]


EMBED, MLP = by_rule("fsdp", 2), by_rule("tensor", 3)
UNKNOWN = Cause("fsdp", CauseKind.UNKNOWN)
WRITTEN = Cause("fsdp", CauseKind.WRITTEN, place=Place("train.py", 3))
PROPAGATED = by_rule("tensor", 3, kind=CauseKind.PROPAGATED, through=("dot_general",))


def sent(
    wire_bytes: int = 10,
    *because: Cause,
    count: float = 1,
    kind: CollectiveKind = CollectiveKind.ALL_GATHER,
    carries: Carried = WEIGHT,
    place: Place = PLACE,
) -> Collective:
    axes = tuple(cause.mesh_axis for cause in because) or ("fsdp",)
    return Collective(
        kind, axes, wire_bytes, wire_bytes, count, ARRAY, place, "forward", carries, because
    )


@st.composite
def collectives(draw: st.DrawFn) -> Collective:
    causes = st.sampled_from([EMBED, MLP, UNKNOWN, WRITTEN, PROPAGATED])
    names = st.sampled_from(["layers_0/wi", "layers_1/wi", "layers_12/wo", "wi", ""])
    return sent(
        draw(st.integers(0, 1 << 40)),
        *draw(st.lists(causes, max_size=2)),
        count=draw(st.sampled_from([1, 2, 0.5, 80])),
        kind=draw(st.sampled_from(list(CollectiveKind))),
        carries=Carried(draw(st.sampled_from(["weight", "gradient", "activation"])), draw(names)),
        place=draw(st.sampled_from([Place(), Place("a.py", 1), Place("a.py", 2)])),
    )


@pytest.mark.parametrize("by", BY)
@given(found=st.lists(collectives(), max_size=12))
def test_whole(by: By, found: list[Collective]) -> None:
    """Every collective is in one row of each table."""
    rows = group(found, by)
    assert sorted(id(each) for row in rows for each in row.collectives) == sorted(map(id, found))
    assert sum(row.wire_bytes for row in rows) == sum(each.wire_bytes for each in found)
    assert [row.wire_bytes for row in rows] == sorted((r.wire_bytes for r in rows), reverse=True)
    names = [row.name for row in rows]
    assert by == "op" or len(set(names)) == len(names)


def test_layers_are_one_row() -> None:
    rows = group(sent(10, EMBED, carries=Carried("weight", f"layers_{n}/wi")) for n in (0, 10, 2))
    assert [(row.carries, row.count, row.wire_bytes) for row in rows] == [
        (("weight layers_{0,2,10}/wi",), 3, 30)
    ]


def test_forward_and_backward_are_one_row() -> None:
    forward = sent(10, EMBED, count=80)
    (row,) = group([forward, replace(forward, phase="remat", at=9)])
    assert (row.count, row.wire_bytes) == (160, 1600)


def test_what_a_rule_costs() -> None:
    rows = group([sent(10, EMBED), sent(5, MLP), sent(1, EMBED, MLP), sent(7, EMBED)], "rule")
    assert [(row.name, row.wire_bytes) for row in rows] == [
        ("embed -> fsdp spec.yaml:2", 17),
        ("mlp -> tensor spec.yaml:3", 5),
        ("embed -> fsdp spec.yaml:2 + mlp -> tensor spec.yaml:3", 1),
    ]


def test_two_rules_are_one_pair_in_any_order() -> None:
    (row,) = group([sent(10, EMBED, MLP), sent(5, MLP, EMBED)], "rule")
    assert row.wire_bytes == 15


def test_a_rule_of_a_preset_is_named_there() -> None:
    (row,) = group([sent(10, by_rule("tensor", 1, PRESET))], "rule")
    assert row.name == "mlp -> tensor preset:t5x/2d:1"


def test_what_flowed_in_counts_for_the_rule_it_started_from_and_is_told() -> None:
    (row,) = group([sent(10, PROPAGATED), sent(5, MLP)], "rule")
    assert (row.wire_bytes, row.propagated_bytes) == (15, 10)


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (EMBED, "embed -> fsdp spec.yaml:2"),
        (UNKNOWN, "unknown"),
        (WRITTEN, "written so train.py:3"),
        (
            Cause("x", CauseKind.PROPAGATED, "batch/x", 0),
            "chosen by XLA; no rule or constraint requires it: batch/x",
        ),
        (Cause("x", CauseKind.RESULT), "sharding of a result"),
        (Cause("x", CauseKind.CONSTRAINT, place=Place("m.py", 4)), "constraint m.py:4"),
        (
            Cause(
                "x",
                CauseKind.ARGUMENT,
                attempt=Attempt(Kind.ZERO, 0, ("x",), ("x",), Outcome.ADDED),
            ),
            "state -> x",
        ),
        (
            Cause(
                "x",
                CauseKind.ARGUMENT,
                attempt=Attempt(Kind.STATED, 0, ("x",), ("x",), Outcome.TAKEN),
            ),
            "override -> x",
        ),
    ],
)
def test_who_asked(cause: Cause, said: str) -> None:
    assert str(asker(cause)) == said


def test_without_a_cause_it_is_unknown() -> None:
    assert [row.name for row in group([sent(1)], "rule")] == ["unknown"]


@pytest.mark.parametrize(
    ("carried", "array"),
    [
        (Carried("weight", "wi"), "wi"),
        (Carried("gradient", "wi"), "wi"),
        (Carried("activation", "hidden"), "activation hidden"),
        (Carried("einsum", "ab,bc->ac"), "ab,bc->ac"),
        (Carried("gradient"), "gradient"),
        (Carried(), "unknown"),
    ],
)
def test_a_weight_and_its_gradient_are_one_array(carried: Carried, array: str) -> None:
    assert array_of(sent(carries=carried)) == array


@given(st.permutations(["data", "expert", "fsdp"]), st.permutations(["data", "expert", "fsdp"]))
def test_the_same_axes_are_one_row_in_whichever_order(one: list[str], other: list[str]) -> None:
    pair = [replace(sent(1), mesh_axes=tuple(axes), because=()) for axes in (one, other)]
    assert len({row.name for row in group(pair, "axis")}) == len(group(pair, "axis")) == 1
    assert len(group(pair, "op")) == 1
    assert list(wire_bytes(pair)) == [("data", "expert", "fsdp")]
