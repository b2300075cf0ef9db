"""A dimension lost its mesh axis to another dimension and has no alternative.

Add an alternative, or `| none` if this is intended. Both dimensions have rules for one mesh axis,
the first rule wins, and the other dimension is replicated. Flax NNX knows no first and second and
gives both the mesh axis, which JAX refuses with a `DuplicateSpecError`: reported whatever the size,
except for rules of a preset. Also reported where a mesh axis that splits other arrays of the model
splits nothing here, and what that costs on a device is large. Activations do not count: they often
keep a dimension whole on purpose. A `none` in the rule silences this.

Bad:
    shardspec: 1
    mesh: {fsdp: 4, tensor: 8}
    rules:
      - mlp -> tensor
      - heads -> fsdp
      - embed -> fsdp
    arrays:
      "layers_{0..3}/mlp/kernel": bf16[embed=4096 mlp=65536]
      "layers_{0..3}/query/kernel": bf16[embed=4096 heads=32 _=128]

Good:
    -  - heads -> fsdp
    +  - heads -> tensor
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import binary_bytes, described
from shardspec.ir.plan import Alike, Attempt, DimSharding, Outcome, ShardingPlan
from shardspec.ir.spec import target_text
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import with_cost, would_divide
from shardspec.lints.evidence.rules import nnx_refuses, rules_of_nnx

_Sides = tuple[str | None, str | None]


class _Loss(NamedTuple):
    """One dimension that lost, on one target.

    Attributes:
      lost: the attempt that met a busy mesh axis.
      idle: the mesh axis that would split the dimension; None where NNX alone is at odds.
      saved: bytes per device that it would save; without one, those that a device holds.
      is_refused: whether NNX gives the mesh axis to both.
    """

    arrays: Alike
    dim: DimSharding
    lost: Attempt
    winner: DimSharding
    idle: str | None
    saved: int
    target: str
    is_refused: bool


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each pair of logical axes of which one leaves the other whole."""
    worst: dict[_Sides, _Loss] = {}
    paths: dict[_Sides, dict[str, None]] = {}
    for plan in context.plans:
        for loss in losses(context, plan):
            key = (loss.dim.logical_axis, loss.winner.logical_axis)
            paths.setdefault(key, {}).update(dict.fromkeys(loss.arrays.paths))
            if key not in worst or loss.saved > worst[key].saved:
                worst[key] = loss
    for sides, loss in worst.items():
        yield _finding(context, loss, tuple(paths[sides]))


def losses(context: Context, plan: ShardingPlan) -> Iterator[_Loss]:
    """Yield each dimension that lost a mesh axis and could have another one, or should say so.

    The rest of a tuple is no other one: SHD220 reports it.
    """
    groups = plan.alike
    in_use = dict.fromkeys(axis for group in groups for axis in group.mesh_axes)
    nnx, sizes = rules_of_nnx(plan), plan.mesh.sizes
    for group in groups:
        held = group.device_bytes
        for dim in group.dims:
            lost = _lost(dim)
            if lost is None or lost.blocked_by is None:
                continue
            winner = group.dims[lost.blocked_by]
            if winner.logical_axis == dim.logical_axis:  # SHD209
                continue
            busy = (*group.mesh_axes, *lost.mesh_axes)
            free = (axis for axis in in_use if axis not in busy)
            idle = next((axis for axis in free if would_divide(sizes[axis], dim)), None)
            saved = held - held // sizes[idle] if idle is not None else held
            refused = (
                not lost.is_of_preset
                and set(lost.mesh_axes) <= set(winner.mesh_axes)
                and nnx_refuses(nnx, winner.logical_axis, dim.logical_axis)
            )
            if refused or (idle is not None and context.is_large(saved, plan.target.name)):
                yield _Loss(group, dim, lost, winner, idle, saved, plan.target.name, refused)


def _lost(dim: DimSharding) -> Attempt | None:
    """Return the first attempt that met a busy mesh axis, where no rule ended otherwise."""
    outcomes = {attempt.outcome for attempt in dim.attempts}
    return dim.first_of(Outcome.BUSY) if outcomes <= {Outcome.BUSY, Outcome.ABSENT} else None


def _finding(context: Context, loss: _Loss, paths: tuple[str, ...]) -> Diagnostic:
    lost, won, idle = loss.lost, loss.winner.taken, loss.idle
    axis, winner = loss.dim.logical_axis, loss.winner.logical_axis
    taken = target_text(lost.mesh_axes)
    meant = f"say that this is intended: `{axis} -> {taken} | none`"
    if idle is None:
        then, notes = "no rule says what comes then", []
        help = f"give one of them another mesh axis; or {meant}"
    else:
        then = f"`{idle}` is idle"
        saved = f"up to {binary_bytes(loss.saved)} per device on target `{loss.target}`"
        notes = [f"{described(paths)}; {saved}"]
        help = (
            f"give one of them another mesh axis: `{axis} -> {taken} | {idle}`, or"
            f" `{winner} -> {idle}`; or {meant}"
        )
    if loss.is_refused:
        notes.append(f"Flax NNX gives both `{taken}`: JAX refuses that")
    finding = Diagnostic(
        codes.LOST_CONTEST,
        f"`{axis}` is replicated in `{loss.arrays.paths[0]}`: `{winner}` has `{taken}`, and {then}",
        labels_at(
            *context.own_first(
                (lost.span, f"`{axis}` finds it taken"),
                (won.span if won is not None else None, f"`{winner}` takes it first"),
            )
        ),
        notes=tuple(notes),
        help=help,
        arrays=paths,
        bytes=loss.saved,
    )
    return with_cost(finding, context, paths) if idle is None else finding
