"""What lies in the memory of the host, in bytes and in time, against figures worked out by hand."""

from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.analysis.cost import Cost
from shardspec.analysis.spec_step import stated_cost
from shardspec.analysis.step_time import FITTED, HOST, AxisTime
from shardspec.language.catalogue import catalogue_entry
from shardspec.search.ranking import Choice, Question, asked, search
from shardspec.search.rewriting import differs, rewritten
from tests.analysis.test_spec_step import plan_of

TEXT = """\
axes: {batch: 64, length: 1024, layers: 4, embed: 1024, mlp: 4096}
hardware: tpu v5e 2x4
mesh: {data: 8}
rules: [batch -> data, "length, layers, embed, mlp -> none"]
params: {layers/up: embed mlp, layers/down: mlp embed, table: embed}
scan: {"layers/**": layers@0}
arrays: {layers/up: "f32[4, 1024, 4096]", layers/down: "f32[4, 4096, 1024]", table: "f32[1024]"}
activations:
  residual: batch length embed
  hidden: batch length mlp
state: {optimizer: same}
step:
  remat: full
  microbatches: 2
  program:
    - op(tokens[batch length embed]) -> residual, flops 0
    - residual, "layers/up" -> hidden
    - hidden, "layers/down" -> residual
"""
STATE = 'memory: {"opt_state/**": pinned_host}\n'
KEPT = ("residual: batch length embed", "residual: {axes: batch length embed, memory: pinned_host}")
SPEED = 15e9  # of v5e, each way
MOMENTS = 2 * (2 * 4 * 1024 * 4096 + 1024) * 4
#: Of a microbatch: four sequences on a device, one for each of four layers.
RESIDUALS = 4 * (4 * 1024 * 1024 * 2)


def cost_of(text: str) -> Cost:
    return stated_cost(plan_of(text))


def link(cost: Cost) -> AxisTime:
    assert cost.time is not None
    return next(each for each in cost.time.axes if each.mesh_axis == HOST)


def test_state_on_the_host_is_read_while_other_state_is_written_and_shows() -> None:
    cost, before = cost_of(STATE + TEXT), cost_of(TEXT)
    assert cost.memory.host is not None
    assert cost.memory.host.bytes == MOMENTS
    assert before.memory.total.bytes - cost.memory.total.bytes == MOMENTS
    assert link(cost).seconds == link(cost).exposed_seconds == pytest.approx(MOMENTS / SPEED)
    assert cost.step is not None
    assert not cost.step.unknown


def test_activations_on_the_host_go_there_and_back_in_every_microbatch() -> None:
    cost, before = cost_of(TEXT.replace(*KEPT)), cost_of(TEXT)
    assert cost.memory.host is not None
    held = cost.memory.host.bytes
    assert RESIDUALS <= held <= RESIDUALS * 5 // 4  # and what comes out of the last layer
    assert before.memory.total.bytes - cost.memory.total.bytes >= RESIDUALS // 2
    found = link(cost)
    assert found.seconds == pytest.approx(2 * 2 * held / SPEED)
    assert found.exposed_seconds == pytest.approx(FITTED.shown * found.seconds)


def test_the_time_is_unknown_where_the_speed_is() -> None:
    assert catalogue_entry("tpu_v7x").chip.host_bytes_per_s is None
    cost = cost_of((STATE + TEXT).replace("tpu v5e 2x4", "tpu v7x 2x2x1"))
    assert cost.step is not None
    assert [each.what for each in cost.step.unknown] == ["transfers to and from the host"]


@pytest.mark.parametrize("value", ["state", "activations", "both"])
def test_a_search_offloads_and_writes_it(value: str) -> None:
    spec, _ = pipeline.load_text(TEXT)
    assert spec is not None
    question = asked(spec, spec.params, spec.targets[0], Choice(f"offload={value}", by="memory"))
    assert isinstance(question, Question)
    found = search(question)
    best = found.rows[0]
    assert dict(best.candidate.variant.changes) == {"offload": value}
    assert found.today is not None
    assert best.memory.bytes < found.today.memory.bytes
    assert best.seconds > found.today.seconds
    text = rewritten(spec, spec.targets[0], best.candidate)
    assert isinstance(text, str)
    read, faults = pipeline.load_text(text)
    assert read is not None, faults
    assert differs(read, read.targets[0], best.candidate) is None
    again = stated_cost(pipeline.compile_plans(read, read.params)[0])
    assert again.time is not None
    assert again.time.step_seconds == pytest.approx(best.seconds)
    assert again.memory.total.bytes == best.memory.bytes


def test_what_the_spec_does_not_state_is_not_offloaded() -> None:
    spec, _ = pipeline.load_text(TEXT.replace("state: {optimizer: same}\n", ""))
    assert spec is not None
    refusal = asked(spec, spec.params, spec.targets[0], Choice("offload=state"))
    assert not isinstance(refusal, Question)
    assert "does not state" in refusal.message
