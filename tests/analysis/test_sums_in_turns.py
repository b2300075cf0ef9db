"""Sums of activations over a split sequence, which libtpu passes around a ring beside a product."""

from __future__ import annotations

import pytest

from shardspec.ir.step import CollectiveKind, Step
from tests.analysis.test_spec_step import step_of

#: Four layers of an MLP, whose sequence is split over `tensor` between products.
TEXT = """
axes: {{batch: 16, length: 4096, layers: 4, embed: 4096, mlp: {mlp}}}
hardware: {hardware}
mesh: {{data: rest, tensor: 4}}
rules: [batch -> data, mlp -> tensor, length -> tensor, "layers, embed -> none"]
params: {{"layers/{{gate,up}}": embed mlp, layers/down: mlp embed}}
scan: {{"layers/**": layers@0}}
arrays:
  "layers/{{gate,up}}": bf16[4, 4096, {mlp}]
  layers/down: bf16[4, {mlp}, 4096]
activations: {{residual: batch length embed, hidden: batch length mlp}}
step:
  remat: full
  program:
    - op(tokens[batch length embed]) -> residual, flops 0
    - residual, "layers/{{gate,up}}" -> hidden
    - hidden, "layers/down" -> residual
"""
SCATTER, GATHER = CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER


def sent(step: Step, kind: CollectiveKind) -> dict[str, tuple[float, float]]:
    """Return the parts of the residual that are sent over `tensor`, and how often, by pass."""
    found = {}
    for each in step.collectives:
        if each.kind is kind and each.mesh_axes == ("tensor",):
            whole = 16 // (step.mesh.sizes["data"]) * 4096 * 4096 * 2
            times = found.get(each.phase, (0, 0))[1] + each.count
            found[each.phase] = (each.wire_bytes / each.count / whole, times)
    return found


@pytest.mark.parametrize("hardware", ["tpu v5e 4x4", "tpu v5p 2x2x4"])
def test_a_long_product_hides_the_ring_that_adds_up_its_parts(hardware: str) -> None:
    """Both ways round: five parts of four, where a ring one way moves three."""
    step = step_of(TEXT.format(mlp=16384, hardware=hardware))
    scattered, gathered = sent(step, SCATTER), sent(step, GATHER)
    assert scattered["forward"] == (5 / 4, 4)
    assert scattered["backward"] == (5 / 4, 4)
    assert gathered["forward"] == (3 / 4, 4)
    # of the sum's gradient, and once more for the gradients of weights
    assert gathered["backward"] == (3 / 4, 8)


@pytest.mark.parametrize(
    ("mlp", "hardware"), [(2048, "tpu v5e 4x4"), (16384, "2 * h100"), (16384, "tpu v5e 2x2")]
)
def test_a_short_product_a_gpu_and_a_short_row_have_the_plain_ring(mlp: int, hardware: str) -> None:
    step = step_of(TEXT.format(mlp=mlp, hardware=hardware))
    assert sent(step, SCATTER)["forward"] == (3 / 4, 4)
    assert sent(step, GATHER)["backward"] == (3 / 4, 4)
