"""Two dimensions of an array have rules for one mesh axis, and the order of rules decides.

The first rule wins, and the other dimension takes its next alternative or is replicated. Most specs
rely on this order. To require explicit rules for every such case, write `lints: {contested-axis:
error}`. A dimension that loses and has no alternative is SHD226, which is reported by default.

Bad:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
      - embed -> tensor | data
    arrays:
      mlp/kernel: bf16[embed=64 mlp=128]

Good:
    -  - embed -> tensor | data
    +  - embed -> data
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import named
from shardspec.ir.plan import Attempt, DimSharding, Outcome
from shardspec.ir.spec import target_text
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import Affected, subjects


@dataclass(slots=True)
class _Contest:
    """Two rules that met, in the first array or activation where they did."""

    name: str
    loser: DimSharding
    lost: Attempt
    winner: DimSharding
    affected: Affected = field(default_factory=Affected)


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each pair of rules that meet in an array or activation."""
    found: dict[object, _Contest] = {}
    for plan in context.plans:
        for subject in subjects(plan):
            for dim in subject.dims:
                for lost in dim.attempts:
                    if lost.outcome is not Outcome.BUSY or lost.blocked_by is None:
                        continue
                    winner = subject.dims[lost.blocked_by]
                    if winner.logical_axis == dim.logical_axis:  # SHD209
                        continue
                    key = (lost.rule, lost.span, winner.rule, winner.taken and winner.taken.span)
                    own = Affected()
                    own.add(subject, plan)
                    name = next(iter(own.arrays or own.activations))
                    contest = found.setdefault(key, _Contest(name, dim, lost, winner))
                    contest.affected.add(subject, plan)
    for contest in found.values():
        yield _finding(context, contest)


def _finding(context: Context, contest: _Contest) -> Diagnostic:
    loser, lost, winner = contest.loser, contest.lost, contest.winner
    won = winner.taken
    shared = [axis for axis in lost.mesh_axes if axis in winner.mesh_axes]
    one, other = winner.logical_axis or "_", loser.logical_axis or "_"
    then = f"on `{target_text(loser.mesh_axes)}`" if loser.mesh_axes else "whole"
    return Diagnostic(
        codes.CONTESTED_AXIS,
        f"`{one}` and `{other}` of `{contest.name}` both want `{target_text(tuple(shared))}`:"
        f" `{one}` has it, and `{other}` is {then}",
        labels_at(
            *context.own_first(
                (lost.span, f"`{other}` finds it taken"),
                (won.span if won is not None else None, f"`{one}` takes it first"),
            )
        ),
        notes=(*contest.affected.notes(), named("target", contest.affected.targets)),
        help=f"give one of them another mesh axis; or, in such arrays, another name than `{other}`,"
        " with a rule of its own",
        target=contest.affected.target,
        arrays=tuple(contest.affected.arrays),
    )
