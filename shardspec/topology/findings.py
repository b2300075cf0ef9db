"""What is worth saying about a placement: plain facts, for the findings that report them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from shardspec.ir.hardware import Hardware
from shardspec.ir.mesh import Mesh, MeshAxis
from shardspec.topology.explanation import AxisExplanation, explain_axes
from shardspec.topology.placement import Placement
from shardspec.topology.submesh import SubmeshChoice, choose_submesh


@dataclass(frozen=True, slots=True)
class ProductFact:
    """The mesh sizes do not multiply to the devices.

    Attributes:
      product, devices: the two numbers that differ.
      unused: devices left over where the mesh is smaller.
      fitting: mesh axis -> the size it would need, the others as they are.
    """

    product: int
    devices: int
    unused: int
    fitting: tuple[tuple[str, int], ...]

    @property
    def arithmetic(self) -> str:
        """Return `24 of 32 devices` or `64 devices wanted, 32 there`."""
        if self.unused:
            return f"{self.product} of {self.devices} devices used, {self.unused} left over"
        return f"{self.product} devices wanted, {self.devices} there"


@dataclass(frozen=True, slots=True)
class CoreFact:
    """A submesh asks for more devices of a chip than JAX shows.

    Attributes:
      asked, there: core of the submesh, and devices a chip has.
    """

    axis: MeshAxis
    asked: int
    there: int


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
    """The heaviest mesh axis inside a slice lies badly, and a better tile exists.

    Attributes:
      better: a tile of the same size with a better score.
    """

    axis: MeshAxis
    explanation: AxisExplanation
    better: SubmeshChoice


def product_fact(mesh: Mesh, hardware: Hardware) -> ProductFact | None:
    """Return how the mesh misses the device count; None where it does not."""
    product, devices = mesh.device_count, hardware.device_count
    if product == devices:
        return None
    fitting = tuple(
        (axis.name, devices // (product // axis.size))
        for axis in mesh.axes
        if product and devices % (product // axis.size) == 0
    )
    return ProductFact(product, devices, max(0, devices - product), fitting)


def core_fact(axis: MeshAxis, hardware: Hardware) -> CoreFact | None:
    """Return that a submesh wants more cores than a chip shows, e.g. 2 on megacore."""
    there = hardware.chip.devices_per_chip
    if axis.submesh is None or len(axis.submesh) < 4 or axis.submesh[3] <= there:
        return None
    return CoreFact(axis, axis.submesh[3], there)


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
    """Yield every mesh axis that crosses slices though it does not say `@ dcn`."""
    for placed in placement.axes:
        if placed.axis.network == "dcn":
            continue
        across = math.prod(
            digit.size for digit in placed.digits if placement.machine[digit.axis].link == "dcn"
        )
        if across > 1:
            yield DcnFact(placed.axis, placed.axis.size // across, across)


def ring_fact(placement: Placement) -> RingFact | None:
    """Return that the last mesh axis inside a slice could lie on better rings."""
    explained = zip(placement.axes, explain_axes(placement), strict=True)
    inside = [
        (placed.axis, explanation)
        for placed, explanation in explained
        if placed.axis.network == "ici" and placed.axis.size > 1
    ]
    if not inside or placement.hardware.chip.torus_rank == 0:
        return None
    axis, explanation = inside[-1]
    better = choose_submesh(placement.hardware, axis.size)
    if better is None or better.score >= explanation.score:
        return None
    gains = (better.score.chip_groups, better.score.open_runs, better.score.minus_links)
    ours = (
        explanation.score.chip_groups,
        explanation.score.open_runs,
        explanation.score.minus_links,
    )
    return RingFact(axis, explanation, better) if gains < ours else None
