"""A prediction beside a program: what is held against what, and when a promise is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardspec import loads, pipeline
from shardspec.analysis.cost import Cost, cost_of
from shardspec.ir.spec import PartitionSpec
from shardspec.ir.step import (
    Carried,
    Cause,
    CauseKind,
    Collective,
    CollectiveKind,
    Place,
    Step,
    StepArray,
    StepOp,
    Unknown,
)
from shardspec.programs.memory import CompiledMemory, HeldValue
from shardspec.programs.proof import (
    Proof,
    WhatIf,
    proof_json,
    proof_lines,
    proof_markdown,
    unknown_lines,
    verdict,
    with_causes,
)

SPEC = """\
shardspec: 1
hardware: tpu v5e 4x4
mesh: {fsdp: 8, tensor: 2}
rules: [embed -> fsdp, mlp -> tensor]
arrays: {mlp/wi: "f32[embed=1024 mlp=4096]"}
"""
GIB = 1 << 30
(PLAN,) = pipeline.compile_plans(loads(SPEC).ir, None)
UNKNOWN = Carried()
ARRAY = StepArray("f32", (8,), PartitionSpec(((),)), (8,))


def sent(
    axes: tuple[str, ...], size: int, line: int = 1, carries: Carried = UNKNOWN, count: float = 1
) -> Collective:
    return Collective(
        CollectiveKind.ALL_GATHER,
        axes,
        size,
        size,
        count,
        ARRAY,
        Place("model.py", line),
        "forward",
        carries,
        tuple(Cause(axis, CauseKind.ARGUMENT, f"w{line}", 0) for axis in axes),
    )


def step(*collectives: Collective, source: str = "code") -> Step:
    return Step(source, PLAN.mesh, collectives=collectives)  # type: ignore[arg-type]


def proof(predicted: Step, compiled: Step, held: int = GIB, tolerance: float = 0.1) -> Proof:
    cost: Cost = cost_of(PLAN, predicted)
    memory = CompiledMemory({0: held}, 0, 0, largest=(HeldValue("fusion.1", "f32[8]", 32),))
    return Proof(cost, with_causes(compiled, cost), memory, "libtpu 1", 2.0, "", tolerance)


def test_each_byte_of_both_is_in_one_row() -> None:
    predicted = step(sent(("fsdp",), 100), sent(("tensor",), 50, count=3))
    compiled = step(sent(("fsdp",), 90), sent(("fsdp", "tensor"), 7))
    rows = proof(predicted, compiled).rows
    assert sum(row.predicted for row in rows) == 250
    assert sum(row.compiled for row in rows) == 97
    assert len({row.mesh_axes for row in rows}) == len(rows) == 3


def test_a_promise_that_is_kept() -> None:
    found = proof(step(sent(("fsdp",), 1000)), step(sent(("fsdp",), 1001)))
    assert found.faults == ()
    assert verdict(found) == "proved: it fits, and 0.1 % of the compiled bytes differ"


def test_where_nothing_is_sent_no_share_of_it_is_told() -> None:
    assert verdict(proof(step(), step())) == "proved: it fits, and nothing is sent, as predicted"


@pytest.mark.parametrize(
    ("compiled", "held", "fault"),
    [
        (step(sent(("fsdp",), 1000)), 17 * GIB, "it does not fit"),
        (
            step(sent(("fsdp",), 1500)),
            GIB,
            "33 % of the compiled bytes differ, more than the tolerance of 10 %",
        ),
        (
            step(sent(("fsdp",), 1000), sent(("tensor",), 20)),
            GIB,
            "2.0 % of the bytes go over tensor, which was not predicted",
        ),
    ],
)
def test_a_promise_that_is_broken_says_why(compiled: Step, held: int, fault: str) -> None:
    found = proof(step(sent(("fsdp",), 1000)), compiled, held)
    assert found.faults == (fault,)
    assert verdict(found) == f"not proved: {fault}"


def test_a_difference_in_bytes_alone_names_the_tolerance_that_accepts_it() -> None:
    """It works as typed; where something else is at fault, no tolerance is named."""
    differs = proof(step(sent(("fsdp",), 1000)), step(sent(("fsdp",), 1500)))
    help = "it fits; `--tolerance 34%` accepts the difference"
    assert str(differs).splitlines()[-1] == help
    assert replace(differs, tolerance=0.34).faults == ()
    full = proof(step(sent(("fsdp",), 1000)), step(sent(("fsdp",), 1500)), 17 * GIB)
    moved = proof(step(sent(("fsdp",), 1000)), step(sent(("tensor",), 1500)))
    assert all("accepts" not in str(each) for each in (full, moved))


def test_axes_in_another_order_are_one_row() -> None:
    """`fsdp + expert` and `expert + fsdp` are the same devices."""
    found = proof(step(sent(("fsdp", "tensor"), 1000)), step(sent(("tensor", "fsdp"), 1000)))
    assert [row.mesh_axes for row in found.rows] == [("fsdp", "tensor")]
    assert found.faults == ()


def test_little_over_unpredicted_axes_is_told_and_breaks_nothing() -> None:
    compiled = step(sent(("fsdp",), 1000), sent(("tensor",), 5, line=9))
    found = proof(step(sent(("fsdp",), 1000)), compiled)
    assert found.faults == ()
    assert [each.place.line for each in found.unpredicted] == [9]
    assert any(
        line.startswith("not predicted: all-gather over tensor, model.py:9")
        for line in proof_lines(found)
    )


def test_next_to_nothing_over_unpredicted_axes_is_for_json_alone() -> None:
    compiled = step(sent(("fsdp",), 10**6), sent(("tensor",), 7, line=9))
    found = proof(step(sent(("fsdp",), 10**6)), compiled)
    assert not any("not predicted" in line for line in proof_lines(found))
    assert '"wire_bytes": 7' in proof_json([found])


def test_equal_rows_that_nobody_predicted_are_told_once() -> None:
    compiled = step(sent(("fsdp",), 1000), *[sent(("tensor",), 5, line=9)] * 2)
    told = proof_lines(proof(step(sent(("fsdp",), 1000)), compiled))
    assert [line.rpartition(", ")[2] for line in told if "not predicted:" in line] == ["10 B (1 %)"]


def test_what_differs_is_told_by_line_where_the_promise_is_broken() -> None:
    predicted = step(sent(("fsdp",), 1000, line=3), sent(("fsdp",), 1000, line=4))
    compiled = step(sent(("fsdp",), 3048, line=3), sent(("fsdp",), 1000, line=4))
    told = [line for line in proof_lines(proof(predicted, compiled)) if "differs" in line]
    assert told == ["differs: over fsdp, model.py:3: ~ 1000 B predicted, x 2.98 KiB compiled"]
    kept = proof_lines(proof(predicted, compiled, tolerance=0.9))
    assert not any("differs" in line for line in kept)


def test_a_refusal_of_the_compiler_is_no_room() -> None:
    found = replace(proof(step(), step()), refusal="RESOURCE_EXHAUSTED: 20G of 16G")
    assert found.fits is False
    assert "libtpu 1: RESOURCE_EXHAUSTED: 20G of 16G" in list(proof_lines(found))


def test_what_is_held_alike_is_told_once() -> None:
    found = proof(step(sent(("fsdp",), 1000)), step(sent(("fsdp",), 1000)), held=17 * GIB)
    assert found.memory is not None
    held = tuple(HeldValue(name, "f32[8]", 32) for name in ("a", "b", "c"))
    many = replace(found, memory=replace(found.memory, largest=(HeldValue("d", "u8[9]", 9), *held)))
    told = [line for line in proof_lines(many) if line.startswith("held")]
    assert told == ["held at the peak: u8[9] 9 B", "held at the peak: f32[8] x3 96 B"]


def test_another_refusal_says_nothing_of_room() -> None:
    found = replace(proof(step(), step()), refusal="INVALID_ARGUMENT: no emitter")
    assert found.fits is True
    assert verdict(found) == "not proved: libtpu 1 refuses it"


def test_causes_come_from_the_prediction_at_the_same_line() -> None:
    weight = Carried("weight", "mlp/wi")
    predicted = step(sent(("fsdp",), 10, 4), sent(("fsdp",), 10, 7, weight))
    (at_line, of_size, of_plan) = with_causes(
        step(
            replace(sent(("fsdp",), 10, 7, weight), because=()),
            replace(sent(("fsdp",), 10, 99), because=()),
            replace(sent(("tensor",), 3, 1, weight), because=()),
        ),
        cost_of(PLAN, predicted),
    ).collectives
    assert at_line.because[0].array == "w7"
    assert of_size.because[0].array in ("w4", "w7")
    assert (of_plan.because[0].array, of_plan.because[0].dim) == ("mlp/wi", 1)
    assert str(of_plan.because[0].rule) == "mlp -> tensor"


def test_a_weight_gathered_over_another_axis_has_the_cause_of_its_gather() -> None:
    """XLA may move the shards to an axis with replicas, and gather them there."""
    weight = Carried("weight", "mlp/wi")
    predicted = step(sent(("fsdp",), 10, 7, weight), sent(("fsdp",), 10, 7))
    (found,) = with_causes(
        step(replace(sent(("expert",), 10, 7, weight), because=())), cost_of(PLAN, predicted)
    ).collectives
    assert [(each.mesh_axis, each.array) for each in found.because] == [("expert", "w7")]


def test_what_a_compiler_adds_has_the_cause_of_the_operation_at_its_line() -> None:
    cause = Cause("fsdp", CauseKind.PROPAGATED, "w9", 0)
    sort = StepOp(
        "sort", "", (ARRAY,), ARRAY, 0, 1, Place("model.py", 9), "forward", because=(cause,)
    )
    predicted = replace(step(), ops=(sort,))
    (found,) = with_causes(
        step(replace(sent(("fsdp",), 10, 9), because=())), cost_of(PLAN, predicted)
    ).collectives
    assert found.because == (cause,)


def test_what_nobody_knows_is_said_to_be_unknown() -> None:
    compiled = with_causes(step(sent(("tensor",), 3)), cost_of(PLAN, step()))
    assert compiled.collectives[0].because[0].kind is CauseKind.UNKNOWN


def test_what_is_unknown_in_the_same_way_is_one_line() -> None:
    ragged = Unknown("ragged-all-to-all", "it depends on the operands", place=Place("moe.py", 31))
    loop = Unknown("while", "how often it runs is not stated")
    program = replace(step(sent(("fsdp",), GIB)), unknown=(ragged, loop, ragged))
    told = list(unknown_lines(proof(step(sent(("fsdp",), GIB)), program)))
    assert told == [f"unknown: {ragged} (2 operations)", f"unknown: {loop}"]


def test_the_forms_say_the_same() -> None:
    import json

    found = proof(step(sent(("fsdp",), GIB)), step(sent(("fsdp",), GIB)))
    lines = list(proof_lines(found))
    assert lines[0].split() == ["default", "predicted", "compiled"]
    assert lines[1].split() == ["fsdp", "~", "1.00", "GiB", "x", "1.00", "GiB", "+0.0", "%"]
    assert "| default | fsdp | ~ 1.00 GiB | x 1.00 GiB | +0.0 % |" in proof_markdown([found])
    (data,) = json.loads(proof_json([found]))["targets"]
    assert data["axes"] == [{"mesh_axes": ["fsdp"], "predicted_bytes": GIB, "compiled_bytes": GIB}]
    assert data["proved"] is True
    assert data["memory"]["compiled_bytes"] == GIB


def test_a_difference_of_the_tolerance_is_within_it() -> None:
    held = proof(step(sent(("fsdp",), 90)), step(sent(("fsdp",), 100)), tolerance=0.1)
    assert held.difference == held.tolerance == 0.1
    assert held.faults == ()
    (fault,) = replace(held, tolerance=0.099).faults
    assert fault == "10 % of the compiled bytes differ, more than the tolerance of 9.9 %"
    assert str(held) == "\n".join(proof_lines(held))


def test_what_more_flags_change_is_told_by_axes() -> None:
    """Bytes over axes that only one of both programs has are new, or gone."""
    held = proof(step(sent(("fsdp",), 90)), step(sent(("fsdp",), 100)))
    other = WhatIf("--xla_flag", {("tensor",): 7, ("fsdp",): 100}, 2 * GIB)
    lines = list(proof_lines(replace(held, what_if=other)))
    found = lines[lines.index("with --xla_flag:") + 1 :]
    rows = {line.split()[0]: line for line in found if line.startswith("  ")}
    assert rows["tensor"].split() == ["tensor", "x", "0", "B", "x", "7", "B", "new"]
    assert rows["fsdp"].endswith("no change")
    assert "+100.0 %" in rows["memory"]
