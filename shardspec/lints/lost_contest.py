"""A dimension lost its mesh axis to another dimension, and no rule says what comes then.

Both dimensions have rules for one mesh axis, the rule that stands first wins, and the other
dimension has no alternative left: it is whole. Told where a mesh axis that splits other arrays of
the model splits nothing here, and what that costs on a device is large; and where Flax NNX, which
knows no first and second, would give both the mesh axis, which JAX refuses, and the arrays are
large. For parameters: activations often keep a dimension whole on purpose. `| none` says that it
is meant.

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
    shardspec: 1
    mesh: {fsdp: 4, tensor: 8}
    rules:
      - mlp -> tensor
      - heads -> tensor
      - embed -> fsdp
    arrays:
      "layers_{0..3}/mlp/kernel": bf16[embed=4096 mlp=65536]
      "layers_{0..3}/query/kernel": bf16[embed=4096 heads=32 _=128]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from shardspec.analysis.alike import Alike, alike
from shardspec.analysis.large import held_bytes, is_large
from shardspec.diagnostics import Diagnostic, Label
from shardspec.diagnostics.codes import LOST_CONTEST as CODE
from shardspec.diagnostics.suggest import listed
from shardspec.ir.grouping import described
from shardspec.ir.plan import Attempt, DimSharding, Outcome, ShardingPlan, divides
from shardspec.ir.spec import AxisRule, target_text
from shardspec.ir.units import binary_bytes
from shardspec.lints.context import Context
from shardspec.lints.damage import told
from shardspec.lints.nnx_differs import rules_of_nnx

_Sides = tuple[int, AxisRule | None]


class _Contest(NamedTuple):
    """One dimension that lost, on one target.

    Attributes:
      lost: the attempt that met a busy mesh axis.
      idle: the mesh axis that would split the dimension; None where NNX alone is at odds.
      saved: bytes per device that it would save; without one, those that a device holds.
    """

    arrays: Alike
    dim: DimSharding
    lost: Attempt
    winner: DimSharding
    idle: str | None
    saved: int
    target: str


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each pair of rules of which one leaves a dimension whole."""
    worst: dict[_Sides, _Contest] = {}
    paths: dict[_Sides, dict[str, None]] = {}
    for plan in context.plans:
        for contest in contests(plan):
            key = (contest.lost.position, contest.winner.rule)
            found = (sharding.param.path for sharding in contest.arrays.shardings)
            paths.setdefault(key, {}).update(dict.fromkeys(found))
            if key not in worst or contest.saved > worst[key].saved:
                worst[key] = contest
    for sides, contest in worst.items():
        yield _finding(context, contest, tuple(paths[sides]))


def contests(plan: ShardingPlan) -> Iterator[_Contest]:
    """Yield each dimension that lost a mesh axis and could have another one, or should say so.

    The rest of a tuple is no other one: SHD220 speaks of it.
    """
    groups = alike(plan)
    in_use = dict.fromkeys(axis for group in groups for axis in group.mesh_axes)
    everything = held_bytes(plan)
    nnx = rules_of_nnx(plan)
    for group in groups:
        held = group.shard_bytes * len(group.shardings)
        for dim in group.dims:
            lost = _lost(dim)
            if lost is None or lost.blocked_by is None:
                continue
            winner = group.dims[lost.blocked_by]
            if winner.logical_axis == dim.logical_axis:  # SHD209
                continue
            idle = _idle(plan, group, dim, lost, in_use)
            saved = held - held // plan.mesh.sizes[idle] if idle is not None else held
            if idle is None and (_is_of_preset(lost) or not _is_refused(winner, dim, lost, nnx)):
                continue
            if is_large(saved, everything):
                yield _Contest(group, dim, lost, winner, idle, saved, plan.target.name)


def _idle(
    plan: ShardingPlan, group: Alike, dim: DimSharding, lost: Attempt, in_use: Iterable[str]
) -> str | None:
    """Return the first mesh axis that splits other arrays, and would split the dimension."""
    held_back = (*group.mesh_axes, *lost.mesh_axes)
    fitting = (
        axis for axis in in_use if axis not in held_back and _splits(plan.mesh.sizes[axis], dim)
    )
    return next(fitting, None)


def _is_of_preset(lost: Attempt) -> bool:
    """Say whether a preset has the rule, which is a strategy with a name."""
    span = lost.span
    return span is not None and span.source.name.startswith("preset:")


def _is_refused(
    winner: DimSharding, dim: DimSharding, lost: Attempt, nnx: Mapping[str, AxisRule]
) -> bool:
    """Say whether NNX gives a mesh axis to both dimensions, all that was asked for being taken."""
    rules = [nnx.get(each.logical_axis or "") for each in (winner, dim)]
    wanted = [set(rule.mesh_axes) if rule is not None else set() for rule in rules]
    return set(lost.mesh_axes) <= set(winner.mesh_axes) and bool(wanted[0] & wanted[1])


def _splits(ways: int, dim: DimSharding) -> bool:
    return ways > 1 and dim.size is not None and divides(ways, dim.size, dim.unit)


def _lost(dim: DimSharding) -> Attempt | None:
    """Return the first attempt that met a busy mesh axis, where nothing else came of the rules."""
    outcomes = {attempt.outcome for attempt in dim.attempts}
    if not outcomes <= {Outcome.BUSY, Outcome.ABSENT} or Outcome.BUSY not in outcomes:
        return None
    return next(attempt for attempt in dim.attempts if attempt.outcome is Outcome.BUSY)


def _finding(context: Context, contest: _Contest, paths: tuple[str, ...]) -> Diagnostic:
    lost, won = contest.lost, contest.winner.taken
    axis = contest.dim.logical_axis
    sides = [(lost.span, f"`{axis}` finds it taken")]
    if won is not None:
        sides.append((won.span, f"`{contest.winner.logical_axis}` takes it first"))
    sides.sort(key=lambda side: not context.is_own(side[0]))
    labels = [
        Label(span, text, primary=index == 0)
        for index, (span, text) in enumerate((s, t) for s, t in sides if s is not None)
    ]
    taken = target_text(contest.lost.mesh_axes)
    path, winner = contest.arrays.first.param.path, contest.winner.logical_axis
    idle = contest.idle
    meant = f"say that it is meant: `{axis} -> {taken} | none`"
    if idle is None:
        then = "no rule says what comes then"
        notes = f"Flax NNX gives both `{taken}`: JAX refuses that"
        higher = f"put `{lost}` above `{won}`; or " if won is not None else ""
        help = f"{higher}{meant}"
    else:
        then = f"`{idle}` is idle"
        cost = f"up to {binary_bytes(contest.saved)} per device on target"
        notes = f"{described(paths)}; {cost} {listed([contest.target])}"
        help = (
            f"give one of them another mesh axis: `{axis} -> {taken} | {idle}`, or"
            f" `{winner} -> {idle}`; or {meant}"
        )
    finding = Diagnostic(
        CODE,
        f"`{axis}` is whole in `{path}`: `{winner}` has `{taken}`, and {then}",
        tuple(labels),
        notes=(notes,),
        help=help,
        arrays=paths,
        bytes=contest.saved,
    )
    return told(finding, context, paths) if idle is None else finding
