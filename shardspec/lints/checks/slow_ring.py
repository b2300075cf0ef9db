"""Another submesh of the same size would use more links.

A collective over a tile is as fast as the links it can use: a whole ring of chips sends both
ways, a line only one way, and every direction of the tile adds to the others. Turning a tile
costs nothing but the edit. `shardspec mesh --set 'mesh.model=submesh 4x2x2x1' --compare` shows
both side by side. Plain sizes and `auto N` take the best tile by themselves.

Bad:
    shardspec: 1
    hardware: tpu v4 4x8x8
    mesh: {data: rest, model: submesh 2x2x4x1}
    rules:
      - batch -> data
      - mlp -> model
    activations:
      hidden: batch mlp

Good:
    -mesh: {data: rest, model: submesh 2x2x4x1}
    +mesh: {data: rest, model: submesh 4x2x2x1}
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.words import three_figures
from shardspec.ir.spec import Target, shape_text
from shardspec.lints.context import Context
from shardspec.lints.evidence.rules import placed

if TYPE_CHECKING:
    from shardspec.topology.placement import AxisExplanation, RingFact


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each submesh that could be turned to lie better."""
    for plan in context.plans:
        target = plan.target
        if all(axis.submesh is None for axis in target.mesh.axes):
            continue
        from shardspec.topology.placement import ring_fact

        placement = placed(target)
        fact = ring_fact(target, placement) if placement is not None else None
        if fact is not None:
            yield _finding(fact, target)


def _finding(fact: RingFact, target: Target) -> Diagnostic:
    tile = shape_text(fact.axis.submesh or ())
    better = f"submesh {shape_text(fact.tile)}"
    return point(
        codes.SLOW_RING,
        f"`{fact.axis.name}` on target `{target.name}` has {_links(fact.now)} at work as"
        f" submesh {tile}, and {_links(fact.then)} as {better}",
        fact.axis.span,
        "; ".join(map(str, fact.now.runs)),
        notes=tuple(
            f"`{before.name}` then has {_links(after)} instead of {_links(before)}"
            for before, after in fact.slower
        ),
        help=f"write `{better}`: {'; '.join(map(str, fact.then.runs))}",
        target=target.name,
    )


def _links(explained: AxisExplanation) -> str:
    """Return `3 links (~ 135 GB/s)`."""
    if explained.bottleneck == "chip":
        return "the chip's own link"
    count = explained.score.links
    links = f"{three_figures(count).removesuffix('.00')} link{'' if count == 1 else 's'}"
    if explained.bytes_per_s is None:
        return links
    return f"{links} (~ {three_figures(explained.bytes_per_s / 1e9)} GB/s)"
