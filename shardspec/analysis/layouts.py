"""Plans -> a layout: what they say, without why."""

from __future__ import annotations

import hashlib
import os.path
from collections.abc import Iterable, Sequence

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.ir.layout import (
    ActivationLayout,
    ArrayLayout,
    AxisLayout,
    Input,
    Layout,
    TargetLayout,
)
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Param, Spec
from shardspec.topology.explanation import explain_axes
from shardspec.topology.placement import Placement, place
from shardspec.versions import LANGUAGE

_BUNDLED = ("preset:", "arrays:")


def layout_of(spec: Spec, plans: Sequence[ShardingPlan]) -> Layout:
    """Return what the plans of a spec say, all of them over the same arrays."""
    params = [sharding.param for sharding in plans[0].arrays] if plans else []
    targets = tuple(target_layout(plan) for plan in plans)
    return Layout(LANGUAGE, inputs(spec), arrays_digest(params), targets)


def inputs(spec: Spec) -> tuple[Input, ...]:
    """Return every file that was read for the spec, itself first, by names relative to it."""
    folder = os.path.dirname(spec.source.name) or "."
    found = {_relative(source, folder): source for source in (spec.source, *spec.sources)}
    own, *rest = found.items()
    return tuple(Input(name, text_digest(source.text)) for name, source in (own, *sorted(rest)))


def target_layout(plan: ShardingPlan) -> TargetLayout:
    """Return what one plan says."""
    target = plan.target
    placement = None if target.hardware is None else place(target, plan.spec.policy.order)
    placed = None if isinstance(placement, Diagnostic) else placement
    return TargetLayout(
        name=target.name,
        hardware="" if target.hardware is None else str(target.hardware),
        axes=_axes(plan, placed),
        order="" if placed is None else plan.spec.policy.order,
        devices="" if placed is None else _devices_digest(placed),
        arrays=tuple(
            ArrayLayout(
                sharding.param.path,
                sharding.param.shape,
                sharding.param.dtype,
                sharding.logical_axes,
                sharding.partition_spec,
            )
            for sharding in plan.arrays
        ),
        activations=tuple(
            ActivationLayout(
                sharding.activation.name,
                sharding.activation.logical_axes,
                tuple(dim.size for dim in sharding.dims),
                sharding.partition_spec,
            )
            for sharding in plan.activations
        ),
    )


def text_digest(text: str) -> str:
    """Return a digest of `text` that line endings do not change."""
    return _digest(text.replace("\r\n", "\n"))


def arrays_digest(params: Iterable[Param]) -> str:
    """Return a digest of what is placed: paths, shapes, dtypes and names, in any order."""
    lines = (f"{param.path}\t{param}\t{param.logical_axes}" for param in params)
    return _digest("\n".join(sorted(lines)))


def _axes(plan: ShardingPlan, placement: Placement | None) -> tuple[AxisLayout, ...]:
    if placement is None:
        return tuple(AxisLayout(axis) for axis in plan.mesh.axes)
    explained = {found.name: found for found in explain_axes(placement)}
    return tuple(
        AxisLayout(axis, "; ".join(map(str, explained[axis.name].runs))) for axis in plan.mesh.axes
    )


def _devices_digest(placement: Placement) -> str:
    return _digest("\n".join(" ".join(map(str, each)) for each in placement.coordinates()))


def _digest(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _relative(source: SourceFile, folder: str) -> str:
    """Return the name of a file as seen from `folder`; a bundled one keeps its own."""
    if source.name.startswith(_BUNDLED) or source.name in {"-", "<string>"}:
        return source.name
    return os.path.relpath(source.name, folder).replace(os.sep, "/")
