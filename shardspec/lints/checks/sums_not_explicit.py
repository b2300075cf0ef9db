"""A sum over mesh axes on a mesh whose axes are not explicit.

`unreduced` and `reduced` are part of an array's type in JAX: it says over which mesh axes each
device holds a partial sum. Types know of explicit mesh axes alone, so JAX refuses a sum over one
that is `auto`, and cannot compute with it where another axis of the mesh is. An axis that a target
lacks drops out of the sums there, as it does from rules.

Bad:
    shardspec: 1
    mesh: {data: 2, model: 4}
    rules:
      - embed -> data
      - mlp -> model
    arrays:
      mlp/wi: f32[embed=64 mlp=128]
    activations:
      partial: {spec: "(data, none) unreduced model"}

Good:
    -mesh: {data: 2, model: 4}
    +mesh: {data: 2 explicit, model: 4 explicit}
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, codes, labels_at, quote
from shardspec.diagnostics.words import listed
from shardspec.ir.spec import Target
from shardspec.lints.context import Context
from shardspec.resolve.match import Stating


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each sum, on the first target that cannot have it."""
    entries: tuple[Stating, ...] = (*context.spec.overrides, *context.spec.activations)
    for entry in entries:
        targets = [plan.target for plan in context.plans] or list(context.spec.targets)
        bad = [target for target in targets if _auto_axes(entry, target)]
        if bad:
            yield _finding(entry, bad)


def _auto_axes(entry: Stating, target: Target) -> list[str]:
    """Return the mesh axes of a target that are left to the compiler, if it has one of a sum."""
    if not entry.sums.on(target.mesh).mesh_axes:
        return []
    return [axis.name for axis in target.mesh.axes if axis.axis_type == "auto"]


def _finding(entry: Stating, targets: list[Target]) -> Diagnostic:
    first = targets[0]
    auto = _auto_axes(entry, first)
    verb = "is" if len(auto) == 1 else "are"
    names = listed(target.name for target in targets)
    sums = entry.sums.on(first.mesh).mesh_axes
    axis = next(each for each in first.mesh.axes if each.name == auto[0])
    return Diagnostic(
        codes.SUMS_NOT_EXPLICIT,
        f"a sum over {listed(sums)} on target {names}, where {listed(auto)} {verb} `auto`",
        labels_at((entry.span, "JAX has sums on explicit meshes alone"), (axis.span, "")),
        help=f"make all mesh axes explicit, as in {quote.size(auto[0], f'{axis.size} explicit')}",
        target=first.name,
    )
