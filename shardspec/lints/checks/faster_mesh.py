"""Another mesh of the same devices is predicted more than 10 % faster than the spec's own.

The step that the spec states is timed on all sizes of the mesh axes that multiply to the devices,
as `shardspec search` times them, in the order of chips that the spec has. Only meshes count that
may fit in memory, and on which all rules fire that fire on the spec's own. It takes about a second
for each target, so it is reported only under `--pedantic` or `--select SHD511`.

`shardspec search` shows what the faster mesh gains and loses, and `--write` puts it into the spec.
The times are a model's: where a mesh was measured, the measurement counts, and
`lints: {faster-mesh: allow}` says so.

Bad:
    shardspec: 1
    axes: {batch: 64, length: 512, embed: 1024, mlp: 16384}
    hardware: tpu v5e 4x4
    mesh: {fsdp: 2, tensor: 8}
    rules: [batch -> fsdp, mlp -> tensor, embed -> fsdp, length -> none]
    params: {"**/up": embed mlp, "**/down": mlp embed}
    arrays:
      "layers_{0..3}/up": bf16[1024, 16384]
      "layers_{0..3}/down": bf16[16384, 1024]
    activations: {residual: batch length embed, hidden: batch length mlp}
    step:
      program:
        - residual, "**/up" -> hidden
        - hidden, "**/down" -> residual

Good:
    -mesh: {fsdp: 2, tensor: 8}
    +mesh: {fsdp: 4, tensor: 4}
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, Severity, codes, labels_at
from shardspec.diagnostics.words import percent, three_figures
from shardspec.ir.plan import Outcome, ShardingPlan
from shardspec.lints.context import Context

#: How much slower the spec's own mesh is before it is worth a word, as a share of the faster.
_SLOWER = 0.10
#: Meshes that are looked at, those most like the spec's own first.
_MOST = 400
#: Faster meshes that are held against the rules before the search ends.
_MOST_HELD = 20


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each target that has a faster mesh of the same devices."""
    spec = context.spec
    if spec.step is None or spec.levels.severity(codes.FASTER_MESH) is Severity.ALLOW:
        return
    for plan in context.plans:
        if plan.target.hardware is not None:
            yield from _findings(plan)


def _findings(plan: ShardingPlan) -> Iterator[Diagnostic]:
    from shardspec.search.ranking import Choice, Question, asked, search

    params = tuple(each.param for each in plan.arrays)
    question = asked(plan.spec, params, plan.target, Choice("mesh", most=_MOST))
    found = search(question) if isinstance(question, Question) else None
    today = found.today if found is not None else None
    if found is None or today is None or not today.seconds or today.unknown:
        return
    unfired = _unfired(plan)
    for row in found.rows[:_MOST_HELD]:
        slower = today.seconds / row.seconds - 1 if row.seconds else 0.0
        if row.fits is False or row.unknown or slower <= _SLOWER:
            return
        if _unfired(found.plan(row)) <= unfired:
            break
    else:
        return
    target, mesh = plan.target, row.candidate.mesh_text
    axes = [axis for axis in target.mesh.axes if axis.span is not None]
    more = percent(slower, 1)
    yield Diagnostic(
        codes.FASTER_MESH,
        f"a step on the mesh of target `{target.name}` is predicted {more} slower than on `{mesh}`",
        labels_at((axes[0].span, f"`{today.candidate.mesh_text}`")) if axes else (),
        notes=_notes(today.seconds, row.seconds, row.time.spread),
        help=f"`shardspec search --target {target.name}` says what it gains and loses; --write"
        " puts the best into the spec",
        target=target.name,
    )


def _notes(now: float, then: float, spread: float) -> tuple[str, ...]:
    unit, scale = ("s", 1.0) if then >= 1 else ("ms", 1e3)
    sides = (three_figures(seconds * scale) for seconds in (now, then))
    times = "~ {} {unit} a step now, and ~ {} {unit} then".format(*sides, unit=unit)
    return (f"{times}; a measured one may be off by {percent(spread, 1)} to either side",)


def _unfired(plan: ShardingPlan) -> set[tuple[str | None, tuple[str, ...]]]:
    """Return the axes with the mesh axes that do not divide them on a mesh."""
    return {
        (dim.logical_axis, attempt.asked)
        for each in (*plan.alike, *plan.activations)
        for dim in each.dims
        for attempt in dim.attempts
        if attempt.outcome is Outcome.INDIVISIBLE
    }
