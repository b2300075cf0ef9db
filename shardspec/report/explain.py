"""Why one array is laid out as it is: its trace, read aloud."""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Span
from shardspec.ir.mesh import Mesh
from shardspec.ir.plan import (
    ActivationSharding,
    Attempt,
    DimSharding,
    Kind,
    Origin,
    Outcome,
    ParamSharding,
    Sharding,
    ShardingPlan,
)
from shardspec.ir.spec import Override, PathRule, target_text
from shardspec.ir.units import binary_bytes
from shardspec.report.table import columns


def explain(sharding: ParamSharding, plan: ShardingPlan) -> Iterator[str]:
    """Yield the lines of the explanation: the answer, where names came from, every rule tried."""
    param = sharding.param
    shard = list(sharding.shard_shape)
    size = binary_bytes(sharding.per_device_bytes)
    answer = f"{sharding.partition_spec}   shard {shard}, {size} per device"
    yield f"{param.path}   {param}   ->   {answer}"
    yield ""
    yield f"names   {_names(sharding, plan)}"
    if sharding.scan is not None:
        stacked = ", ".join(f"{name}@{position}" for name, position in sharding.scan.axes)
        yield f'scan    {stacked}     {_place(sharding.scan.span)}  scan "{sharding.scan.pattern}"'
    if not sharding.dims:
        yield "dims    none: a scalar is replicated"
        return
    yield from _dims(sharding, plan)


def explain_activation(sharding: ActivationSharding, plan: ShardingPlan) -> Iterator[str]:
    """Yield the lines of the explanation of a named activation; `?` is a size no axis states."""
    activation = sharding.activation
    yield f"activation {activation.name}   ->   {sharding.partition_spec}"
    yield ""
    names = " ".join(name or "_" for name in activation.logical_axes)
    yield f"names   {names}     {_place(activation.span)}".rstrip()
    if sharding.dims:
        yield from _dims(sharding, plan)


def _dims(sharding: Sharding, plan: ShardingPlan) -> Iterator[str]:
    yield "dims"
    dims = enumerate(sharding.dims)
    rows = [row for index, dim in dims for row in _rows(index, dim, sharding, plan)]
    yield from columns(rows, right=(0, 2))


def _names(sharding: ParamSharding, plan: ShardingPlan) -> str:
    names = " ".join(axis or "_" for axis in sharding.logical_axes)
    matched = sharding.matched
    alike = sum(other.matched is matched for other in plan.params) if matched else 0
    count = f"    ({alike} array{'s' if alike != 1 else ''})"
    if sharding.mismatch is not None:
        given = " ".join(name or "_" for name in sharding.mismatch)
        place = f" from {_place(matched.span)}" if matched else ""
        count = f"{len(sharding.mismatch)} names for {sharding.param.rank} dimensions"
        return f"none: `{given}`{place} is {count}"
    if isinstance(matched, Override):
        because = f"  because {matched.because}" if matched.because else ""
        what = (
            f"spec ({', '.join(map(target_text, matched.partition))})"
            if matched.partition is not None
            else names
        )
        return f'{what}     {_place(matched.span)}  override "{matched.pattern}"{because}{count}'
    if isinstance(matched, PathRule):
        return f'{names}     {_place(matched.span)}  params "{matched.pattern}"{count}'
    if sharding.origin is Origin.ARRAY:
        place = f"     {_place(sharding.param.span)}" if sharding.param.span else ""
        return f"{names}{place}  the array's own"
    return "none: no override and no entry of `params` matches this path"


Row = tuple[str, str, str, str, str, str]


def _rows(index: int, dim: DimSharding, sharding: Sharding, plan: ShardingPlan) -> Iterator[Row]:
    """Yield a row for each rule tried: dim, name, size, target, outcome, place."""
    size = "?" if dim.size is None else str(dim.size)
    head = (str(index), dim.logical_axis or "_", size)
    if not dim.attempts:
        yield (*head, "", f"replicated: {_without_rule(dim, sharding)}", "")
        return
    for attempt in dim.attempts:
        said = outcome_text(attempt, dim, sharding, plan.mesh)
        yield (*head, target_text(attempt.mesh_axes), said, _short(attempt.span, plan))
        head = ("", "", "")
    if dim.taken is None:
        yield ("", "", "", "", "replicated: no rule is left", "")


def _without_rule(dim: DimSharding, sharding: Sharding) -> str:
    if dim.logical_axis is not None:
        return f"no rule for `{dim.logical_axis}`"
    if isinstance(sharding, ParamSharding) and (sharding.matched is None or sharding.mismatch):
        return "no name"
    return "the dimension has no name"


def outcome_text(attempt: Attempt, dim: DimSharding, sharding: Sharding, mesh: Mesh) -> str:
    """Return what came of one attempt, with its numbers."""
    match attempt.outcome:
        case Outcome.TAKEN:
            if not attempt.mesh_axes and attempt.kind is Kind.STATED:
                return "TAKEN   replicated, as the spec of the override says"
            return _taken(attempt, dim, mesh)
        case Outcome.ADDED:
            return f"ADDED   {attempt.ways} ways, by ZeRO"
        case Outcome.BUSY:
            return _busy(attempt, sharding)
        case Outcome.INDIVISIBLE:
            return _indivisible(attempt, dim, mesh)
        case Outcome.ABSENT:
            return f"not on this target, which has {', '.join(mesh.names)}"
        case Outcome.UNKNOWN:
            return "UNKNOWN: no target has this mesh axis  <- SHD201"


def _taken(attempt: Attempt, dim: DimSharding, mesh: Mesh) -> str:
    if not attempt.mesh_axes:
        return "TAKEN   replicated, as the rule says"
    dropped = [axis for axis in attempt.asked if axis not in mesh.sizes]
    gone = f"   ({', '.join(dropped)} is not on this target)" if dropped else ""
    if dim.size is None:
        return f"TAKEN   {attempt.ways} ways{gone}"
    if attempt.ways == 1:
        return f"TAKEN   {dim.size} / 1 shards nothing: the mesh axis has size 1{gone}"
    if dim.size % attempt.ways:
        return f"TAKEN   {dim.size} / {attempt.ways} is uneven; JAX will refuse  <- SHD301{gone}"
    text = f"TAKEN   {dim.size} / {attempt.ways} = {dim.size // attempt.ways}"
    if dim.is_even:
        units = dim.size // attempt.ways // dim.unit
        return f"{text}{f' = {units} x unit {dim.unit}' if dim.unit > 1 else ''}{gone}"
    return f"{text} cuts a unit of {dim.unit}  <- SHD312{gone}"


def _busy(attempt: Attempt, sharding: Sharding) -> str:
    if attempt.blocked_by is None:
        return "never fires: it names a mesh axis twice"
    other = sharding.dims[attempt.blocked_by]
    winner = other.taken
    name = other.logical_axis or "_"
    comes_first = ""
    if winner is not None and winner.span is not None and winner.kind is Kind.RULE:
        comes_first = f", {_place(winner.span)} comes first"
    shared = [axis for axis in attempt.mesh_axes if axis in other.mesh_axes]
    which = f" {', '.join(shared)}" if len(attempt.mesh_axes) > 1 else " it"
    return f"busy: dim {attempt.blocked_by} ({name}) has{which}{comes_first}"


def _indivisible(attempt: Attempt, dim: DimSharding, mesh: Mesh) -> str:
    product = " x ".join(str(mesh.sizes[axis]) for axis in attempt.mesh_axes)
    by = f"{product} = {attempt.ways}" if len(attempt.mesh_axes) > 1 else product
    reported = _is_reported(attempt, dim)
    if dim.size is not None and dim.size % attempt.ways == 0:
        cut = f"would cut a unit of {dim.unit}{'  <- SHD312' if reported else ''}"
        return f"{dim.size} / {attempt.ways} = {dim.size // attempt.ways} {cut}"
    return f"{dim.size} is not divisible by {by}{'  <- SHD301' if reported else ''}"


def _is_reported(attempt: Attempt, dim: DimSharding) -> bool:
    """Say whether `check` reports this refusal: the first, where no rule takes the dimension."""
    refused = (a for a in dim.attempts if a.outcome is Outcome.INDIVISIBLE)
    return dim.taken is None and next(refused, None) is attempt


def _place(span: Span | None) -> str:
    return span.place if span else ""


def _short(span: Span | None, plan: ShardingPlan) -> str:
    """Return `:33` for a line of the spec itself, else the file as well."""
    if span is None:
        return ""
    return f":{span.line}" if span.source is plan.spec.source else _place(span)
