"""What is worth saying about a placement: plain facts, for the findings that report them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardspec.ir.hardware import Hardware
from shardspec.ir.mesh import Mesh, MeshAxis
from shardspec.ir.spec import Target
from shardspec.topology.explanation import AxisExplanation, explain_axes
from shardspec.topology.placement import Placement, place
from shardspec.topology.submesh import Tile, better_submeshes


@dataclass(frozen=True, slots=True)
class DcnFact:
    """A mesh axis is split over DCN, or the network, without `@ dcn`.

    Attributes:
      inside: ways inside a slice; above 1 every ring of the axis leaves and enters slices.
      across: ways over DCN.
    """

    axis: MeshAxis
    inside: int
    across: int


@dataclass(frozen=True, slots=True)
class RingFact:
    """A mesh axis asks for a tile, and another tile of the same size has more links at work.

    Attributes:
      tile: the better one, as `submesh` spells it.
      now, then: the axis as it lies, and on that tile.
      slower: (before, after) of the other axes that would lose links by it.
    """

    axis: MeshAxis
    tile: Tile
    now: AxisExplanation
    then: AxisExplanation
    slower: tuple[tuple[AxisExplanation, AxisExplanation], ...] = ()


def core_note(hardware: Hardware) -> str:
    """Return what `core` of a submesh counts on this machine, and how large it may be."""
    chip = hardware.chip
    if chip.platform != "tpu":
        return f"{chip.title} has no core dimension"
    what = "`core` counts the JAX devices of one chip that a tile takes"
    if chip.devices_per_chip == 1:
        reason = (
            "its two cores work as one (megacore)" if chip.cores_per_chip > 1 else "it has one core"
        )
        return f"{what}; a {chip.title} chip is one device, since {reason}, so core is 1"
    parts = "two cores" if chip.pair_bytes_per_s is None else "two chiplets"
    return (
        f"{what}; a {chip.title} chip shows {chip.devices_per_chip} devices ({parts}), so core may "
        f"be up to {chip.devices_per_chip}. Raise it first: it needs no ICI"
    )


def dcn_facts(placement: Placement) -> Iterator[DcnFact]:
    """Yield every mesh axis that crosses slices though it does not say `@ dcn`.

    Between GPU nodes an axis with nothing inside a node has no other way to lie, and is left
    out.
    """
    for placed in placement.axes:
        if placed.axis.network == "dcn":
            continue
        across = math.prod(
            digit.size for digit in placed.digits if placement.machine[digit.axis].link == "dcn"
        )
        inside = placed.axis.size // across
        if across > 1 and (inside > 1 or placement.hardware.chip.platform == "tpu"):
            yield DcnFact(placed.axis, inside, across)


def ring_fact(target: Target, placement: Placement) -> RingFact | None:
    """Return that the tile a mesh axis asks for could lie on better rings, where it could.

    Plain sizes and `auto` are laid out best already, so only a `submesh` is looked at. Better
    is by the score and by links at work, both: no tile is called better that moves fewer bytes.
    """
    owner = next((axis for axis in target.mesh.axes if axis.submesh is not None), None)
    if owner is None:
        return None
    before = {explained.name: explained for explained in explain_axes(placement)}
    now = before[owner.name]
    for tile in better_submeshes(placement.hardware, owner.size, now.score):
        other = place(_turned(target, owner, tile), placement.order)
        if not isinstance(other, Placement):
            continue
        after = {explained.name: explained for explained in explain_axes(other)}
        then = after[owner.name]
        if then.score < now.score and then.score.links > now.score.links:
            slower = tuple(
                (before[name], after[name])
                for name in before
                if name != owner.name and after[name].score.links < before[name].score.links
            )
            return RingFact(owner, tile, now, then, slower)
    return None


def _turned(target: Target, owner: MeshAxis, tile: Tile) -> Target:
    axes = (replace(axis, submesh=tile) if axis is owner else axis for axis in target.mesh.axes)
    return replace(target, mesh=Mesh(tuple(axes)))
