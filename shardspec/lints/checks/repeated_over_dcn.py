"""An activation crosses DCN several times in a step.

Each layer waits for it, forward and backward, and DCN is many times slower than the links inside a
slice. Not reported: weights, which can be gathered ahead, gradients, which can be summed later, and
the activations that pipeline stages pass on. SHD108 and SHD111 report that an axis crosses; this
finding reports what is sent over it, how often, and by which line of the code. Reported if the
traffic is large in a step.

Bad:
    # def step(params, x):
    #     def layer(x, w):
    #         hidden = resolver.constrain(x @ w["wi"], "batch mlp")
    #         return resolver.constrain(hidden @ w["wo"], activation="x"), None
    #     return jax.lax.scan(layer, x, params)[0]
    shardspec: 1
    hardware: 2 * tpu v5e 4x4
    mesh: {tensor: 2 @ dcn, data: 16}
    axes: {batch: 16384, features: 4096}
    rules:
      - batch -> data
      - mlp -> tensor
      - features, layers -> none
    params:
      wi: layers features mlp
      wo: layers mlp features
    arrays:
      wi: bf16[8, 4096, 16384]
      wo: bf16[8, 16384, 4096]
    activations:
      x: batch features

Good:
    -mesh: {tensor: 2 @ dcn, data: 16}
    +mesh: {data: 2 @ dcn, tensor: 16}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.analysis.comparison import TrafficRow, group
from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.ir.step import Collective, Step
from shardspec.lints.evidence.rules import Crossing, crossing_axes
from shardspec.lints.evidence.steps import guessed, is_large_traffic, per_step, sent_lines, times

_AHEAD = ("weight", "gradient", "state")


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each mesh axis over DCN that activations are sent over repeatedly."""
    for crossing in crossing_axes(cost.target):
        rows = tuple(_rows(step, crossing.axis.name))
        if is_large_traffic(sum(row.wire_bytes for row in rows), step):
            yield _finding(step, crossing, rows)


def _rows(step: Step, axis: str) -> Iterator[TrafficRow]:
    """Yield what is sent more than once over an axis, of what a product waits for."""
    sent = (each for each in step.collectives if axis in each.mesh_axes)
    sent = (each for each in sent if each.kind.traits.way != "shift")
    rows = group(each for each in sent if each.carries.kind not in _AHEAD)
    yield from (row for row in rows if row.count > 1)


def _finding(step: Step, crossing: Crossing, rows: Sequence[TrafficRow]) -> Diagnostic:
    axis = crossing.axis
    sent: list[Collective] = [each for row in rows for each in row.collectives]
    causes = [cause for each in sent for cause in each.because if cause.mesh_axis == axis.name]
    count = sum(row.count for row in rows)
    trains = any(op.phase == "backward" for op in step.ops)
    why = "its gradients are summed once a step" if trains else "its rows are computed apart"
    return Diagnostic(
        codes.REPEATED_OVER_DCN,
        f"activations cross DCN over `{axis.name}` {times(count)} times in a step:"
        f" {per_step(sum(row.wire_bytes for row in rows))}",
        labels_at(
            *((cause.span, f"`{axis.name}` comes from here") for cause in causes[:1]),
            (axis.span, "crosses DCN"),
        ),
        (*sent_lines(sent), *filter(None, (crossing.speed,))),
        f"keep `{axis.name}` within a slice or node, and let an axis cross that only the batch has:"
        f" {why}",
        arrays=guessed(sent, step),
    )
