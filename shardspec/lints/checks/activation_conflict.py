"""An activation is sharded on a logical axis on which the parameters it meets are replicated.

`hidden: batch length mlp` has `mlp` on `tensor`, and the weights have `mlp` elsewhere, with no
dimension on `tensor` at all: every device of `tensor` then holds, or gathers, rows of the weight
that only another device of `tensor` needs. It comes from rule order (`mlp -> fsdp | tensor`
gives weights `fsdp`, and activations, whose batch has `fsdp`, `tensor`), or from an override.

Not reported: weights that are sharded more than the activation (FSDP gathers them on purpose),
weights with another dimension on that mesh axis (as in T5X's 2-D rules, where an activation is
gathered instead), parameters listed under `replicate:`, and arrays that are not large on a device.
SHD301 reports weights that are replicated because they do not divide.

Bad:
    shardspec: 1
    mesh: {fsdp: 8, tensor: 4}
    axes: {batch: 64, mlp: 16384}
    rules:
      - batch -> fsdp
      - mlp -> fsdp | tensor
    arrays:
      "layers_{0..3}/mlp/wo/kernel": bf16[mlp _=4096]
    activations:
      hidden: batch mlp

Good:
    -  - mlp -> fsdp | tensor
    +  - mlp -> tensor
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shardspec.analysis.coverage import allowed_paths
from shardspec.diagnostics import Diagnostic, codes, labels_at, quote
from shardspec.diagnostics.words import binary_bytes, described, named
from shardspec.ir.plan import ActivationSharding, Alike, DimSharding, ShardingPlan
from shardspec.ir.spec import target_text
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import only, would_divide

#: For logical axis and mesh axis, the first activation that is split so.
Splits = Mapping[tuple[str, str], ActivationSharding]


@dataclass(slots=True)
class _Conflict:
    """One logical axis that an activation splits over a mesh axis, and parameters do not.

    Attributes:
      dim: of the first of the parameters.
      lost: for each target, the bytes that a device holds in vain.
    """

    axis: str
    mesh_axis: str
    activation: ActivationSharding
    dim: DimSharding
    lost: dict[str, int] = field(default_factory=dict)
    paths: dict[str, None] = field(default_factory=dict)


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each logical axis that activations split and parameters do not."""
    spec = context.spec
    if not spec.activations:
        return
    allowed = allowed_paths(spec, context.paths)
    conflicts: dict[tuple[object, ...], _Conflict] = {}
    for plan in context.plans:
        splits = _splits(plan)
        for arrays in plan.alike:
            paths = [path for path in arrays.paths if path not in allowed]
            for dim, mesh_axis, size in _missing(plan, arrays, splits):
                axis = dim.logical_axis or ""
                activation = splits[axis, mesh_axis]
                key = (axis, mesh_axis, activation.activation.name, dim.mesh_axes)
                conflict = conflicts.setdefault(key, _Conflict(axis, mesh_axis, activation, dim))
                held = arrays.shard_bytes * len(paths)
                lost, target = conflict.lost, plan.target.name
                lost[target] = lost.get(target, 0) + held * (size - 1) // size
                conflict.paths.update(dict.fromkeys(paths))
    for conflict in conflicts.values():
        if any(context.is_large(lost, name) for name, lost in conflict.lost.items()):
            yield _finding(conflict)


def _splits(plan: ShardingPlan) -> Splits:
    splits: dict[tuple[str, str], ActivationSharding] = {}
    for activation in plan.activations:
        for dim in activation.dims:
            for mesh_axis in dim.mesh_axes:
                splits.setdefault((dim.logical_axis or "", mesh_axis), activation)
    return splits


def _missing(
    plan: ShardingPlan, arrays: Alike, splits: Splits
) -> Iterator[tuple[DimSharding, str, int]]:
    """Yield each dimension with a mesh axis that the array lacks and that would divide it."""
    for axis, size in plan.mesh.sizes.items():
        for dim in arrays.dims if axis not in arrays.mesh_axes else ():
            if (dim.logical_axis or "", axis) in splits and would_divide(size, dim):
                yield dim, axis, size


def _finding(conflict: _Conflict) -> Diagnostic:
    axis, mesh_axis, activation = conflict.axis, conflict.mesh_axis, conflict.activation.activation
    whole = not conflict.dim.mesh_axes
    where = "whole" if whole else f"on `{target_text(conflict.dim.mesh_axes)}`"
    of_activation = next(dim for dim in conflict.activation.dims if mesh_axis in dim.mesh_axes)
    taken, other = of_activation.taken, conflict.dim.taken
    return Diagnostic(
        codes.ACTIVATION_CONFLICT,
        f"`{axis}` is on `{target_text(of_activation.mesh_axes)}` in activation `{activation.name}`"
        f" and {where} in parameters, on {named('target', conflict.lost)}",
        labels_at(
            (activation.span, "this activation"),
            (taken.span if taken else None, "it takes this"),
            (other.span if other else None, "parameters take this"),
        ),
        notes=(
            f"{described(conflict.paths)}; replicated over `{mesh_axis}`:"
            f" +{binary_bytes(max(conflict.lost.values()))} per device",
        ),
        help=_help(conflict),
        target=only(conflict.lost),
    )


def _help(conflict: _Conflict) -> str:
    """Return how the parameters come to the mesh axis, by what took the dimension instead."""
    mesh_axis, now = conflict.mesh_axis, conflict.dim.mesh_axes
    if not now:
        return (
            f"put `{mesh_axis}` on `{conflict.axis}` of the parameters too; or say under"
            f" {quote.section('replicate:')} that they should be replicated"
        )
    both = f"`{target_text((*now, mesh_axis))} | {mesh_axis}`"
    return (
        f"in the rules of `{conflict.axis}`, put `{mesh_axis}` before `{target_text(now)}`, or take"
        f" {both}"
    )
