"""The link between the two devices of a chip joins an axis that no layer waits for.

A TPU v7x chip shows two devices, and the link between them is several times as fast as ICI. The
last axis of a mesh chooses first, and takes it. Under `{fsdp: rest, dp: 2}` that is `dp`, which
sends gradients once a step, while `fsdp`, which gathers weights in every layer, has two rings on
the links of each chip. Written the other way around, the same sizes give `fsdp` the chip and all
of its links. A `submesh` whose fourth number is 2 has the chip wherever it stands.

An axis is waited for where it splits a dimension of an array that is not one of stacked layers.

Bad:
    shardspec: 1
    hardware: tpu v7x 4x4x4
    mesh: {fsdp: rest, dp: 2}
    rules:
      - batch -> (dp, fsdp)
      - embed -> fsdp
      - mlp -> none
    arrays:
      mlp/wi: bf16[embed=8192 mlp=28672]
    activations:
      residual: batch embed

Good:
    -mesh: {fsdp: rest, dp: 2}
    +mesh: {dp: 2, fsdp: rest}
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import three_figures
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Mesh, MeshAxis, Target
from shardspec.lints.context import Context
from shardspec.lints.evidence import rules

if TYPE_CHECKING:
    from shardspec.topology.placement import AxisExplanation

Speeds = dict[str, "AxisExplanation"]


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each target where another order gives the fast link to who needs it."""
    stacked = rules.stacked_axes(context.spec)
    for plan in context.plans:
        hardware = plan.target.hardware
        if hardware is None or hardware.chip.pair_bytes_per_s is None:
            continue
        waited = {
            mesh_axis
            for group in plan.alike
            for dim in group.dims
            for mesh_axis in dim.mesh_axes
            if not rules.is_stacked(dim.logical_axis or "", stacked)
        }
        finding = _finding(plan, waited)
        if finding is not None:
            yield finding


def _finding(plan: ShardingPlan, waited: set[str]) -> Diagnostic | None:
    """Return the finding of one target; None where no other order is better."""
    target = plan.target
    now = _speeds(target)
    own = next((a for a in target.mesh.axes if _has_chip(now, a) and a.name not in waited), None)
    mesh = Mesh(tuple(sorted(target.mesh.axes, key=lambda axis: axis.name in waited)))
    then = _speeds(replace(target, mesh=mesh)) if own is not None else {}
    faster = [axis for axis in mesh.axes if axis.name in waited and _gain(axis, now, then) > 0]
    slower = [axis for axis in mesh.axes if axis.name in waited and _gain(axis, now, then) < 0]
    if own is None or not faster or slower:
        return None
    gains = ", ".join(
        f"`{axis.name}` {_speed(now, axis)} now, and {_speed(then, axis)} then" for axis in faster
    )
    order = ", ".join(mesh.names)
    return Diagnostic(
        codes.FAST_LINK,
        f"`{own.name}` on target `{target.name}` has the link inside the chips,"
        f" {_speed(now, own)}, and no layer waits for it; `{faster[0].name}` has ICI,"
        f" {_speed(now, faster[0])}",
        labels_at(
            (own.span, "has the fast link"), *((a.span, "is waited for in layers") for a in faster)
        ),
        notes=(f"a ring all-gather on each device, one way: {gains}",),
        help=f"give the mesh axes in this order: {order}; the last chooses first",
        target=target.name,
    )


def _speeds(target: Target) -> Speeds:
    """Return what each mesh axis runs over; nothing where the mesh does not lie on its machine."""
    placement = rules.placed(target)
    if placement is None:
        return {}
    from shardspec.topology.placement import explain_axes

    return {axis.name: axis for axis in explain_axes(placement)}


def _has_chip(speeds: Speeds, axis: MeshAxis) -> bool:
    found = speeds.get(axis.name)
    return found is not None and any(run.shape == "chip" for run in found.runs)


def _gain(axis: MeshAxis, now: Speeds, then: Speeds) -> float:
    """Return how many bytes/s an axis gathers more."""
    if axis.name not in now or axis.name not in then:
        return 0
    return (then[axis.name].bytes_per_s or 0) - (now[axis.name].bytes_per_s or 0)


def _speed(speeds: Speeds, axis: MeshAxis) -> str:
    return f"{three_figures((speeds[axis.name].bytes_per_s or 0) / 1e9)} GB/s"
