"""Pipelines that `step:` states, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.analysis.step_memory import step_memory
from shardspec.analysis.step_time import step_time
from shardspec.diagnostics import Diagnostic
from shardspec.ir.program import Schedule
from shardspec.ir.step import CollectiveKind, Stages, StageTag, Step
from tests.analysis.test_spec_step import plan_of, stated, step_of

#: Eight layers on four stages, six microbatches of two sequences.
TEXT = """
axes: {batch: 2, length: 16, embed: 32, mlp: 64, layers: 8, vocab: 128, microbatch: 6}
mesh: {stage: 4, data: 2}
rules: [batch -> data, layers -> stage, microbatch -> stage, "mlp, vocab, embed, length -> none"]
params: {"**/up": embed mlp, "**/down": mlp embed, head: embed vocab}
scan: {layers/**: layers@0}
arrays:
  layers/up: f32[8, 32, 64]
  layers/down: f32[8, 64, 32]
  head: f32[32, 128]
activations: {residual: batch length embed}
policy: {indivisible: keep}
step:
  mode: serve
  pipeline: gpipe
  program:
    - residual, "layers/up" -> hidden
    - hidden, "layers/down" -> residual
    - residual, "head" -> logits
"""
LAYER = 2 * 2 * 2 * 16 * 32 * 64  # both products of a layer, for one microbatch
LOGITS = 2 * 2 * 16 * 32 * 128
PERMUTE, REDUCE = CollectiveKind.COLLECTIVE_PERMUTE, CollectiveKind.ALL_REDUCE
RESIDUAL = 16 * 32 * 2  # of one sequence, as much as a device has


def sent(step: Step, kind: CollectiveKind) -> dict[str, int]:
    """Return the bytes that a device sends, by pass."""
    found: dict[str, int] = {}
    for each in step.collectives:
        if each.kind is kind and each.mesh_axes == ("stage",):
            found[each.phase] = found.get(each.phase, 0) + each.wire_bytes
    return found


def test_every_stage_runs_in_every_turn() -> None:
    """9 turns of two layers a stage; logits of two microbatches of six on each, filled up."""
    step = step_of(TEXT)
    inside, (outside,) = step.ops[:2], step.ops[2:]
    assert sum(op.flops * op.count for op in inside) == 9 * 2 * LAYER // 2
    assert {op.useful for op in inside} == {6 / 9}
    assert outside.flops * outside.count == 2 * LOGITS // 2
    assert outside.useful == 1
    assert step.notes == ("9 turns of 4 stages for 6 microbatches: each is idle in 33%",)


def test_stages_pass_on_activations_and_microbatches() -> None:
    assert sent(step_of(TEXT), PERMUTE) == {"forward": 2 * 9 * RESIDUAL}
    both = step_of(TEXT, step__mode="train")
    assert sent(both, PERMUTE) == {"forward": 2 * 9 * RESIDUAL, "backward": 2 * 9 * RESIDUAL}


def test_microbatches_that_are_everywhere_come_from_where_they_are() -> None:
    """Then what the last stage makes goes to all, and gradients of what the first is given."""
    text = TEXT.replace("microbatch -> stage", "microbatch -> none")
    step = step_of(text, step__mode="train")
    assert sent(step, PERMUTE) == {"forward": 9 * RESIDUAL, "backward": 9 * RESIDUAL}
    whole = 2 * 3 * RESIDUAL // 4
    sums = sent(step, REDUCE)
    assert sums == {"forward": 9 * whole, "backward": 6 * whole}


def test_one_stage_is_a_loop_over_microbatches() -> None:
    text = TEXT.replace("stage: 4, data: 2", "stage: 1, data: 2")
    alone = text.replace("  pipeline: gpipe\n", "").replace(", microbatch: 6", "")
    alone = alone.replace("batch: 2", "batch: 12").replace("microbatch -> stage, ", "")
    alone = alone.replace("  mode: serve", "  microbatches: 6\n  mode: serve")
    assert step_of(text).flops == step_of(alone).flops
    assert not any(each.mesh_axes == ("stage",) for each in step_of(text).collectives)
    assert stated(text).tokens == stated(alone).tokens == 12 * 16


@pytest.mark.parametrize("microbatches", [2, 3, 12])
def test_microbatches_share_what_the_axis_makes(microbatches: int) -> None:
    """Twelve sequences in all: as many as the axis `microbatch` has, of `batch` each."""
    count = f"{microbatches}"
    found = stated(TEXT, step__microbatches=count)
    assert found.tokens == 12 * 16
    turns = microbatches + 3
    filled = -(-12 // microbatches // 2) * 2  # over `data`
    inside = sum(op.flops * op.count for op in found.step.ops[:2])
    assert inside == turns * 2 * LAYER // 2 * filled // 2


@pytest.mark.parametrize(("remat", "kept"), [("full", 9 * 2), ("stages", 9 + 2)])
def test_what_is_kept_is_that_of_layers_or_of_stages(remat: str, kept: int) -> None:
    text = TEXT.replace("  mode: serve", f"  remat: {remat}")
    held = step_memory(plan_of(text), step_of(text)).activations
    assert held is not None
    assert held.bytes == kept * RESIDUAL


def test_stages_that_keep_nothing_run_once_more() -> None:
    full, stages = (
        step_of(TEXT.replace("  mode: serve", f"  remat: {remat}")) for remat in ("full", "stages")
    )
    assert stages.flops - full.flops == 9 * 2 * LAYER // 2


def test_stages_are_kept_in_a_pipeline_alone() -> None:
    spec, _ = pipeline.load_text(
        TEXT.replace("  mode: serve\n  pipeline: gpipe", "  remat: stages")
    )
    assert spec is not None
    (fault,) = pipeline.checked(spec, (), pipeline.compile_plans(spec)).shown
    assert str(fault.message) == "`remat: stages` without a pipeline"


# stages that are programs of their own

TRAIN = TEXT.replace("mode: serve\n  pipeline: gpipe", "pipeline: 1f1b").replace(
    ", microbatch -> stage", ""
)


@given(
    count=st.integers(2, 40),
    layers=st.integers(1, 200),
    microbatches=st.integers(1, 64),
    kind=st.sampled_from((Schedule("1f1b"), Schedule("interleaved", 3), Schedule("zero-bubble"))),
)
def test_laws_of_stages(count: int, layers: int, microbatches: int, kind: Schedule) -> None:
    """Stages have all layers; their work is 1 in the mean; none keeps more than the first."""
    stages = Stages(kind, count, microbatches, layers)
    every = range(count)
    assert sum(map(stages.layers_of, every)) == layers
    assert max(map(stages.layers_of, every)) == max(map(stages.layers_of, stages.extremes))
    tags: tuple[StageTag, ...] = ("", "layers", "first", "last", "ends")
    for tag in tags:
        assert sum(stages.work(tag, stage) for stage in every) == pytest.approx(count)
    kept = [stages.in_flight(stage) for stage in every]
    assert kept == sorted(kept, reverse=True)
    assert kept[0] <= microbatches


def test_a_step_is_the_mean_of_its_stages() -> None:
    """As many FLOPs as without stages, on four times the devices; logits on one of them."""
    step, alone = step_of(TRAIN), step_of(TRAIN.replace("stage: 4", "stage: 1"))
    assert step.flops * 4 == alone.flops
    head = next(op for op in step.ops if op.operands[-1].name == "head")
    assert (head.stage, head.count, "stage" in head.mesh_axes) == ("last", 6 / 4, True)
    assert not any("taken for a pipeline" in note for note in step.notes)


def test_stages_hand_on_one_activation_of_each_microbatch() -> None:
    """Three of four stages send it on, and three its gradient back; interleaved, seven times."""
    assert sent(step_of(TRAIN), PERMUTE) == {
        "forward": 6 * 3 * RESIDUAL // 4,
        "backward": 6 * 3 * RESIDUAL // 4,
    }
    turned = sent(step_of(TRAIN.replace("1f1b", "interleaved(2)")), PERMUTE)
    assert turned["forward"] == 6 * 7 * RESIDUAL // 4


@pytest.mark.parametrize(
    ("schedule", "kept"), [("1f1b", 4), ("interleaved(2)", 4 + 3 / 2), ("zero-bubble", 4)]
)
def test_a_stage_keeps_the_microbatches_in_flight(schedule: str, kept: float) -> None:
    text = TRAIN.replace("1f1b", schedule).replace("length: 16", "length: 4096")
    text = text.replace("  head: f32[32, 128]\n", "").replace(', "head: embed vocab"', "")
    text = text.replace('    - residual, "head" -> logits\n', "")
    held, one = (
        step_memory(plan_of(each), step_of(each)).activations
        for each in (text, text.replace("microbatch: 6", "microbatch: 1"))
    )
    assert held is not None
    assert one is not None
    assert held.bytes == round(one.bytes * kept)


def test_what_holds_most_is_named_with_its_schedule() -> None:
    """The last stage has the head, and keeps one microbatch; the first keeps four."""
    told = step_memory(plan_of(TRAIN), step_of(TRAIN)).pipeline
    assert told == "1f1b, stage 4 of 4, 1 microbatch in flight"
    small = TRAIN.replace("vocab: 128", "vocab: 2").replace("[32, 128]", "[32, 2]")
    told = step_memory(plan_of(small), step_of(small)).pipeline
    assert told == "1f1b, stage 1 of 4, 4 microbatches in flight"


def test_a_stage_waits_for_the_others() -> None:
    """Of equal stages and M microbatches: P - 1 turns of them, by a third of it with no bubble."""
    stages = Stages(Schedule("1f1b"), 4, 8, 16)
    assert stages.waits(8.0, 32.0, 2 / 3) == pytest.approx(3.0)
    for kind, share in (Schedule("interleaved", 2), 1 / 2), (Schedule("zero-bubble"), 1 / 3):
        waits = replace(stages, schedule=kind).waits(8.0, 32.0, 2 / 3)
        assert waits == pytest.approx(3.0 * share)


def test_time_is_that_of_the_busiest_stage_and_what_it_waits() -> None:
    text = TRAIN.replace("mesh:", "hardware: tpu v5p 2x2x2\nmesh:")
    time = step_time(plan_of(text), step_of(text))
    assert time is not None
    assert time.waits_seconds > 0
    parts = time.compute_seconds + sum(axis.exposed_seconds for axis in time.axes)
    assert time.step_seconds == pytest.approx(parts + time.waits_seconds)
    more = text.replace("microbatch: 6", "microbatch: 60")
    longer = step_time(plan_of(more), step_of(more))
    assert longer is not None
    assert longer.waits_seconds == pytest.approx(time.waits_seconds)


def test_layers_on_an_axis_are_a_pipeline_that_people_run() -> None:
    unsaid = TRAIN.replace("pipeline: 1f1b\n", "remat: none\n")
    step = step_of(unsaid)
    assert step.stages is not None
    assert step.stages.is_assumed
    assert any("runs as 1f1b" in note for note in step.notes)
    shared = unsaid.replace("batch -> data", "batch -> stage")
    assert step_of(shared).stages is None


def test_layers_that_do_not_divide_are_uneven_stages() -> None:
    """Ten layers on four stages: 3 on two of them, and 2 where head and input are."""
    text = TRAIN.replace("layers: 8", "layers: 10").replace("[8, ", "[10, ")
    text = text.replace("policy: {indivisible: keep}\n", "")
    assert not [each for each in findings(text) if each.code.id == "SHD301"]
    step = step_of(text)
    assert step.stages is not None
    assert [step.stages.layers_of(stage) for stage in range(4)] == [2, 3, 3, 2]
    assert step.ops[0].count == 6 * 10 / 4


def findings(text: str) -> tuple[Diagnostic, ...]:
    spec, _ = pipeline.load_text(text)
    assert spec is not None
    return pipeline.findings(spec, pipeline.compile_plans(spec)).shown


def test_the_ends_of_a_pipeline_have_one_neighbour() -> None:
    for count in (2, 4):
        stages = Stages(Schedule("1f1b"), count, 8, 16)
        shares = [stages.work("between", stage) for stage in range(count)]
        assert sum(shares) == pytest.approx(count)
        assert shares[0] == shares[-1] == max(shares) / (1 if count == 2 else 2)
