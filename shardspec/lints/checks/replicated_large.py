"""A large array is replicated on every device, and no rule says so.

Add a rule that fits, or an entry under `replicate:` with a reason. No rule for the array fits on
this target, or its mesh lacks the axes. Where rules say `none` for all of it, that is SHD410. Where
another finding about the same arrays gives the cause (such as SHD203, SHD205, SHD301 or SHD313),
only that one is shown.

Bad:
    shardspec: 1
    targets:
      pod: {mesh: {data: 4, model: 2}}
      laptop: {mesh: {data: 8}}
    rules:
      - embed -> none
      - vocab -> model
    arrays:
      embedding: bf16[vocab=32128 embed=4096]

Good:
    -  - vocab -> model
    +  - vocab -> model | data
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.diagnostics import Diagnostic, codes, point, quote
from shardspec.diagnostics.words import as_one, binary_bytes, counted, named, natural, percent
from shardspec.ir.plan import (
    Attempt,
    Derivation,
    DimSharding,
    Kind,
    Outcome,
    ParamSharding,
    ShardingPlan,
)
from shardspec.ir.spec import ParentDim, target_text
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import Layers, only, whole_layers


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each large array that is whole on a target without being meant to."""
    found: dict[tuple[str, ...], list[tuple[ShardingPlan, Layers]]] = {}
    for plan in context.shared_plans:
        for layers in whole_layers(context, plan, lambda sharding: not is_settled(sharding)):
            paths = tuple(sorted((sharding.param.path for sharding in layers), key=natural))
            found.setdefault(paths, []).append((plan, layers))
    for paths, targets in found.items():
        yield _finding(paths, targets[0][1], [plan for plan, _ in targets])


def is_settled(sharding: ParamSharding) -> bool:
    """Say whether rules that fired left the array whole: by `none`, or a mesh axis of size 1.

    What the policy keeps whole is small, each by itself; many of them are not.
    """
    if sharding.dims.is_kept_whole:
        return False
    return all(dim.taken is not None for dim in sharding.dims if dim.size != 1)


def _finding(paths: tuple[str, ...], layers: Layers, plans: Sequence[ShardingPlan]) -> Diagnostic:
    first = layers[0]
    size = sum(sharding.param.bytes for sharding in layers)
    total = sum(sharding.param.bytes for sharding in plans[0].arrays)
    names = [plan.target.name for plan in plans]
    where = "this target" if len(names) == 1 else "these targets"
    axes = dict.fromkeys(axis for plan in plans for axis in plan.mesh.names)
    return point(
        codes.REPLICATED_LARGE,
        f"`{as_one(paths)}` {first.param} is replicated on {named('target', names)}",
        first.named_at,
        "named here" if first.matched else "this array",
        notes=(
            f"{counted(len(paths), 'array')}, {binary_bytes(size)} per device,"
            f" {percent(size, total)} of the model",
            *(_why(index, dim, first.derivation) for index, dim in enumerate(first.dims)),
        ),
        help=_way_out(first, f"mesh axes of {where} ({', '.join(axes)})"),
        target=only(names),
        arrays=paths,
        bytes=size,
    )


def _way_out(sharding: ParamSharding, mesh_axes: str) -> str:
    derivation = sharding.derivation
    if derivation is None or derivation.parent is None:
        return (
            f"add an alternative for {mesh_axes}, or say that this is intended: `AXIS -> none`, or"
            f" {quote.section('replicate:')} with a reason"
        )
    dims = [
        each
        for each in zip(sharding.dims, derivation.reading, strict=False)
        if each[0].size not in (None, 1)
    ]
    shared = [str(of.place) for _, of in dims if isinstance(of, ParentDim)]
    names = [f"give `{of}` a rule that fits" for _, of in dims if isinstance(of, str)]
    ways = [f"split dim {' or '.join(shared)} of it over {mesh_axes}"] if shared else []
    ways += names
    if any(of is None for _, of in dims):
        ways.append("write an axis that rules place for `_` in `dims`")
    whole = f"say that this is intended: {quote.section('replicate:')} with a reason"
    return f"it is sharded like `{derivation.parent.path}`: {'; or '.join((*ways, whole))}"


def _why(index: int, dim: DimSharding, derivation: Derivation | None) -> str:
    name = f"dim {index} ({dim.logical_axis or '_'}={dim.size})"
    if derivation is not None and derivation.parent is not None and not dim.attempts:
        of_parent = derivation.reading[index] if derivation.reading else None
        if isinstance(of_parent, ParentDim):
            return f"{name}: dim {of_parent.place} of `{derivation.parent.path}` is replicated"
        if dim.logical_axis is None:
            return f"{name} is not a dimension of `{derivation.parent.path}`"
    if dim.taken is not None and dim.taken.kind is Kind.SMALL:
        return f"{name}: the array is below `whole_below`"
    if dim.taken is not None:
        return f"{name}: a rule says `{target_text(dim.mesh_axes)}`"
    if dim.logical_axis is None:
        return f"{name} has no name"
    reasons = ", ".join(_outcome(attempt, dim) for attempt in dim.attempts)
    return f"{name}: {reasons or 'no rule is for it'}"


def _outcome(attempt: Attempt, dim: DimSharding) -> str:
    axes = f"`{target_text(attempt.mesh_axes or attempt.asked)}`"
    if attempt.outcome is Outcome.INDIVISIBLE:
        if dim.size is not None and dim.size % attempt.ways == 0:
            whole = "parts" if dim.cuts_parts(attempt.ways) else f"a unit of {dim.unit}"
            return f"{axes} = {attempt.ways} would cut {whole}"
        return f"{axes} = {attempt.ways} does not divide it"
    where = "no target" if attempt.outcome is Outcome.UNKNOWN else "other targets only"
    return f"{axes} is on {where}"
