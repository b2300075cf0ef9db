"""A reshape splits a sharded batch so that each microbatch is on only a few devices.

`x.reshape(microbatches, rows, ...)` puts neighbouring rows into one microbatch, and neighbouring
rows are on one device. So that all devices have a part of each microbatch, rows have to move: an
all-to-all, for each round of the loop or before it. `x.reshape(rows, microbatches, ...)` and
`swapaxes(0, 1)` put every n-th row into a microbatch, and each device cuts its own rows. A total
over all microbatches is the same. Reported where what moves is large in a step.

Bad:
    # def step(params, x):
    #     x = resolver.constrain(x.reshape(8, 8192, 4096), "_ batch _")
    #     return jax.lax.map(lambda x: jnp.tanh(x @ params["w"]), x)
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: 16}
    axes: {batch: 65536, features: 4096}
    rules:
      - batch -> data
      - embed, features -> none
    params:
      w: embed features
    arrays:
      w: bf16[4096, 4096]
    activations:
      x: batch features
    lints: {pinned-large: allow}

Good:
    -#     x = resolver.constrain(x.reshape(8, 8192, 4096), "_ batch _")
    +#     x = resolver.constrain(x.reshape(8192, 8, 4096).swapaxes(0, 1), "_ batch _")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import grouped, listed
from shardspec.ir.step import Collective, Step, Tear
from shardspec.lints.evidence import steps


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each line that cuts a sharded batch."""
    by_place = grouped(_torn(step), lambda pair: str(pair[0].place))
    for pairs in by_place.values():
        tear, first = pairs[0]
        found = [each for _, each in pairs]
        if len(by_place) == 1:
            found += _in_parts(step, first)
        if steps.is_large_traffic(sum(each.wire_bytes for each in found), step):
            yield _finding(cost, tear, found)


def _torn(step: Step) -> Iterator[tuple[Tear, Collective]]:
    for each in step.collectives:
        if each.reshard is not None and each.reshard.tear is not None:
            yield each.reshard.tear, each


def _in_parts(step: Step, first: Collective) -> Iterator[Collective]:
    """Yield what else moves since parts of the same mesh axes lie in another order."""
    for each in step.collectives:
        reshard = each.reshard
        is_whole = reshard is None or reshard.tear is not None or not reshard.has_parts
        if not is_whole and set(each.mesh_axes) <= set(first.mesh_axes):
            yield each


def _finding(cost: Cost, tear: Tear, found: Sequence[Collective]) -> Diagnostic:
    first = found[0]
    shapes = [f"[{', '.join(map(str, shape))}]" for shape in (tear.before, tear.after)]
    rest = ", ..." if len(tear.after) > len(tear.after[:2]) else ""
    rows, parts = tear.after[1], tear.after[0]
    return Diagnostic(
        codes.TORN_BATCH,
        f"the reshape at {tear.place} cuts {shapes[0]}, whose first dimension"
        f" {listed(first.axes)} shards, into {shapes[1]}: its rows move to other devices,"
        f" {steps.per_step(sum(each.wire_bytes for each in found))}",
        labels_at(
            *steps.spans_of(found),
            (cost.target.span, f"{listed(first.axes)} is an axis of this mesh"),
        ),
        steps.sent_lines(found),
        f"write `.reshape({rows}, {parts}{rest}).swapaxes(0, 1)` at {tear.place}: each device then"
        " cuts its own rows, and a microbatch has every n-th row",
    )
