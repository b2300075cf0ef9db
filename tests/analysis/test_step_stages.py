"""Pipelines that `step:` states, against figures worked out by hand."""

from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.analysis.step_memory import step_memory
from shardspec.ir.step import CollectiveKind, Step
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
    assert step.notes == ("9 turns of 4 stages for 6 microbatches: each works for nothing in 33%",)


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
    alone = text.replace("  pipeline: gpipe\n", "").replace("batch: 2", "batch: 12")
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
