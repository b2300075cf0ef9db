"""A phase replicates what another phase shards, because its meshes lack the axis.

Give the phase a rule for the logical axis, or `embed -> none` if every device should have a copy. A
rule drops out on a mesh without its axis, which is right for a smaller machine. Between phases it
is usually a mistake: the rules for training name `fsdp`, decoding runs on a mesh with `tensor`
only, and every device holds the full model.

Bad:
    shardspec: 1
    mesh: {fsdp: 8}
    rules:
      - embed -> fsdp
    arrays:
      mlp/wi/kernel: bf16[embed=1024 _=4096]
    phases:
      decode:
        mesh: {tensor: 4}
        rules:
          - mlp -> tensor
        activations: {hidden: _ mlp}

Good:
    -      - mlp -> tensor
    -    activations: {hidden: _ mlp}
    +      - embed -> tensor
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import listed, named
from shardspec.ir.plan import Attempt, DimSharding, Outcome
from shardspec.ir.spec import Spec, target_text
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import Affected, subjects, with_cost


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each logical axis that is whole for want of a mesh axis, with a rule."""
    spec = context.spec
    if not spec.mesh_axes_elsewhere:
        return
    affected: dict[str, Affected] = defaultdict(Affected)
    causes: dict[str, tuple[DimSharding, Attempt]] = {}
    for plan in context.plans:
        for subject in subjects(plan):
            for dim in subject.dims:
                attempt = _lost(dim, spec)
                if attempt is not None and dim.logical_axis is not None:
                    causes.setdefault(dim.logical_axis, (dim, attempt))
                    affected[dim.logical_axis].add(subject, plan)
    for axis, (_, attempt) in causes.items():
        finding = _finding(axis, attempt, spec)
        found = affected[axis]
        if found.activations:
            note = f"replicated: {named('activation', found.activations)}"
            finding = replace(finding, notes=(note,))
        yield with_cost(finding, context, found.arrays, "replicated: ")


def _lost(dim: DimSharding, spec: Spec) -> Attempt | None:
    """Return the rule that would have split a dimension, had the phase one of its mesh axes."""
    if dim.taken is not None or dim.size == 1:
        return None
    return next(
        (
            attempt
            for attempt in dim.attempts
            if attempt.outcome is Outcome.ABSENT
            and spec.mesh_axes_elsewhere.issuperset(attempt.asked)
        ),
        None,
    )


def _finding(axis: str, attempt: Attempt, spec: Spec) -> Diagnostic:
    where = f"phase `{spec.phase}`" if spec.phase else "the spec itself"
    asked = target_text(attempt.asked)
    target = spec.targets[0]
    own = sorted(spec.own_mesh_axes)
    rules = "its `rules`" if spec.phase else "`rules`"
    return Diagnostic(
        codes.LOST_IN_PHASE,
        f"`{axis}` is replicated in {where}: no mesh there has `{asked}`",
        labels_at(
            (attempt.span, "splits it elsewhere"),
            (target.span, f"has {listed(target.mesh.names)}"),
        ),
        help=f"add to {rules} `{axis} -> AXIS` (of {listed(own)}), or `{axis} -> none` if every"
        " device should hold a copy",
        subject=axis,
    )
