"""Sizes that do not divide, or leave a shard too small, uneven or half a unit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from shardspec.analysis.memory import LANES, SUBLANES, tiled_bytes
from shardspec.diagnostics import Diagnostic, Span, codes, labels_at, point, quote
from shardspec.diagnostics.words import binary_bytes, by_key, counted, described, three_figures
from shardspec.ir.plan import Alike, Dims, DimSharding, ParamSharding, ShardingPlan, uneven_axes
from shardspec.ir.spec import LogicalAxis, Parts, Shape, array_bytes, axis_of, divisors
from shardspec.lints.context import Context
from shardspec.lints.evidence.sizes import (
    AxisCase,
    Judged,
    axis_cases,
    axis_sizes,
    finding,
    near_multiples,
    set_text,
    uneven,
)

# broken-unit


def broken_unit(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each axis whose size its unit does not divide."""
    for axis in context.spec.logical_axes:
        whole = context.axes.get(axis_of(axis.name), axis)
        if whole is not axis and whole.span == axis.span:
            continue
        parts = axis.parts
        broken = [each for each in parts.sizes if each[1] % parts.unit] if parts else []
        if parts is not None and broken:
            name, size = broken[0]
            yield point(
                codes.BROKEN_UNIT,
                f"the part `{name}` of `{axis.name}` is {size}: {size / parts.unit:.4g} units of"
                f" {parts.unit}",
                axis.span,
                "declared here",
                help=f"a unit that divides {math.gcd(*(each for _, each in parts.sizes))}, as every"
                " part is a multiple of it",
            )
            continue
        if axis.size and axis.size % axis.unit:
            units = sorted(divisors(axis.size), key=lambda unit: abs(unit - axis.unit))
            sizes = near_multiples(axis.size, axis.unit)
            yield point(
                codes.BROKEN_UNIT,
                f"`{axis.name}` = {axis.size} is {axis.size / axis.unit:.4g} units of {axis.unit}",
                axis.span,
                "declared here",
                help=f"a unit of {units[0]}, or {axis.name} = {' or '.join(map(str, sizes))}",
            )


# indivisible


def indivisible(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each axis, size and rule that do not go together."""
    for found in uneven(context):
        is_of_stages = found.case.axis in uneven_axes(context.spec)
        if not found.cuts_unit and not is_of_stages:
            yield finding(context, codes.INDIVISIBLE, found, _indivisible_message(found.case))


def _indivisible_message(case: AxisCase) -> str:
    of_units = f" in whole {case.grain}s of {case.unit}" if case.unit > 1 else ""
    return (
        f"`{case.axis}` = {case.size} does not divide over {case.mesh_text}{of_units} on"
        f" {case.targets_text}"
    )


# size-mismatch


def size_mismatch(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each size that all arrays contradict, then for each other entry."""
    sizes = {axis.name: axis.size for axis in context.spec.logical_axes if axis.size is not None}
    if not sizes:
        return
    outvoted = _outvoted(context, sizes)
    for axis, (size, group) in outvoted.items():
        yield _wrong_size(context.axes[axis], size, group)
    others = {name: size for name, size in sizes.items() if name not in outvoted}
    groups = by_key(
        ((sharding.named_at, _wrong_in(sharding.dims, others)), sharding)
        for sharding in context.having(lambda dims: bool(_wrong_in(dims, others)))
        if not sharding.param.is_cache  # a live one may be shorter
    )
    for (place, wrong), group in groups.items():
        yield _size_mismatch_finding(context, place, wrong, group)


def _outvoted(
    context: Context, sizes: Mapping[str, int]
) -> dict[str, tuple[int, list[ParamSharding]]]:
    """Return the axes whose size two entries or more contradict alike, and none confirms.

    Arrays with a second wrong dimension are left out: their names may stand in the wrong order.
    """
    dims = dict.fromkeys(each.dims for each in context.first if not each.param.is_cache)
    uses = by_key((dim.logical_axis or "", (dim.size, each)) for each in dims for dim in each)
    found = {}
    for axis, seen in uses.items():
        (size, _), *others = seen
        is_alike = all(size == other for other, _ in others)
        if size is None or size == sizes.get(axis, size) or not is_alike:
            continue
        having = {each for _, each in seen}
        group = [each for each in context.having(having.__contains__) if not each.param.is_cache]
        entries = {(sharding.named_at, sharding.param.span) for sharding in group}
        if len(entries) > 1 and all(len(_wrong_in(each, sizes)) == 1 for each in having):
            found[axis] = (size, group)
    return found


def _wrong_in(dims: Dims, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the dimensions of another size than their axis has."""
    named = ((at, dim.size, sizes.get(dim.logical_axis or "")) for at, dim in enumerate(dims))
    return tuple(at for at, size, stated in named if stated is not None and size != stated)


def _wrong_size(axis: LogicalAxis, size: int, group: Sequence[ParamSharding]) -> Diagnostic:
    return Diagnostic(
        codes.SIZE_MISMATCH,
        f"`{axis.name}` is {axis.size} under {quote.section('axes')}, and {size} in every array"
        " that has it",
        labels_at(
            (axis.span, f"`{axis.name}` is {axis.size}"),
            (group[0].named_at, f"`{axis.name}` is {size} here"),
        ),
        notes=(described(dict.fromkeys(sharding.param.path for sharding in group)),),
        help=f"write {quote.size(axis.name, size)}, which fits them all; or correct their names",
    )


def _size_mismatch_finding(
    context: Context, place: Span | None, wrong: tuple[int, ...], group: list[ParamSharding]
) -> Diagnostic:
    sharding = group[0]
    axes = context.axes
    facts = []
    places = [(place, "named here")]
    for index in wrong:
        dim = sharding.dims[index]
        axis = axes[dim.logical_axis or ""]
        facts.append(f"dim {index} ({axis.name}) is {dim.size}, not {axis.size}")
        places.append((axis.span, f"`{axis.name}` is {axis.size}"))
    by_size = {axis.size: axis.name for axis in axes.values() if axis.size is not None}
    fitting = [by_size.get(size) for size in sharding.param.shape]
    help = f"correct the names, or the sizes under {quote.section('axes')}"
    if all(fitting) and len(set(fitting)) == len(fitting):
        help = f"by size, the names are `{' '.join(str(name) for name in fitting)}`"
    return Diagnostic(
        codes.SIZE_MISMATCH,
        f"`{sharding.param.path}` {sharding.param}: {'; '.join(facts)}",
        labels_at(*places),
        notes=(described([member.param.path for member in group]),),
        help=help,
    )


# below-tile


_LEAST_ARRAY_BYTES = 1 << 16


class _Padded(NamedTuple):
    arrays: Alike
    tiled: int

    @property
    def waste(self) -> int:
        return (self.tiled - self.arrays.shard_bytes) * self.arrays.count


def below_tile(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for the arrays of one layout whose shards do not fill their tiles."""
    for plan in context.plans:
        hardware = plan.target.hardware
        if hardware is None or hardware.chip.platform != "tpu":
            continue
        for arrays in plan.alike:
            found = _padded(arrays)
            if found is not None and context.is_large(found.waste, plan.target.name):
                yield _below_tile_finding(plan, found)


def _padded(arrays: Alike) -> _Padded | None:
    """Return how a shard is filled up, where that is by half or more and splitting did it."""
    if arrays.is_replicated or arrays.bytes < _LEAST_ARRAY_BYTES:
        return None
    if not _is_lossy(arrays, arrays.shard_shape):
        return None
    tiled = tiled_bytes(arrays.shard_shape, arrays.dtype)
    return None if tiled is None else _Padded(arrays, tiled)


def _is_lossy(arrays: Alike, shape: Shape) -> bool:
    """Say whether a shard of this shape is filled up by half more than the whole array is."""
    whole, shard = tiled_bytes(arrays.shape, arrays.dtype), tiled_bytes(shape, arrays.dtype)
    if not whole or not shard:
        return False
    return 2 * shard * arrays.bytes >= 3 * array_bytes(shape, arrays.dtype) * whole


def _below_tile_finding(plan: ShardingPlan, found: _Padded) -> Diagnostic:
    arrays = found.arrays
    shard, dtype = arrays.shard_shape, arrays.dtype
    sharding = arrays.first
    times = three_figures(found.tiled / arrays.shard_bytes)
    return point(
        codes.BELOW_TILE,
        f"`{sharding.param.path}`: a shard {dtype}[{', '.join(map(str, shard))}] takes"
        f" {binary_bytes(found.tiled)} on target `{plan.target.name}`, {times} times its bytes",
        sharding.named_at,
        "named here" if sharding.matched else "this array",
        notes=(
            f"{described(arrays.paths)}; {binary_bytes(found.waste)} of padding per device in all",
            f"no two dimensions fill tiles of {SUBLANES} x {LANES}",
        ),
        help=_below_tile_help(plan, found),
        target=plan.target.name,
    )


def _below_tile_help(plan: ShardingPlan, found: _Padded) -> str:
    """Return sizes of a mesh axis at which the tiles are full enough, or else a general way."""
    sizes = plan.mesh.sizes
    for index, dim in enumerate(found.arrays.dims):
        for axis in dim.mesh_axes:
            others = dim.ways // sizes[axis]
            fitting = [
                size
                for size in axis_sizes(dim.size or 0, dim.unit, others)
                if size < sizes[axis]
                and sizes[axis] % size == 0
                and _fills(found.arrays, index, size * others)
            ]
            if fitting:
                return f"split dim {index} less: `{axis}` of {fitting[-1]} or less fills the tiles"
    return "split another dimension, or fewer ways: `AXIS -> none` for small arrays"


def _fills(arrays: Alike, index: int, ways: int) -> bool:
    """Say whether the shards would be full enough, with one dimension split so."""
    shape = arrays.shard_shape
    length = -(-arrays.shape[index] // ways)
    return not _is_lossy(arrays, (*shape[:index], length, *shape[index + 1 :]))


# below-minimum


#: Sizes of a mesh axis to offer, the largest that would do.
_BELOW_MINIMUM_SHOWN = 6


def below_minimum(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each axis, size and rule that leave shards too small."""
    least = {axis.name: axis.min_shard for axis in context.spec.logical_axes if axis.min_shard > 1}
    if not least:
        return

    def small(dims: Sequence[DimSharding]) -> Iterator[Judged]:
        for dim in dims:
            minimum = least.get(dim.logical_axis or "")
            if minimum and dim.ways > 1 and dim.size and dim.size < minimum * dim.ways:
                yield Judged(dim, dim.attempts[-1])

    for case in axis_cases(context, small):
        yield _below_minimum_finding(context, case, least[case.axis])


def _below_minimum_finding(context: Context, case: AxisCase, minimum: int) -> Diagnostic:
    shard = case.size // case.ways
    return Diagnostic(
        codes.BELOW_MINIMUM,
        f"`{case.axis}` = {case.size} over {case.mesh_text} is {shard}, below its minimum of"
        f" {minimum}, on {case.targets_text}",
        labels_at(
            (case.attempt.span, f"splits {case.ways} ways"),
            (context.axes[case.axis].span, f"{minimum} at least"),
        ),
        notes=tuple(case.notes()),
        help=_below_minimum_help(case, minimum),
        target=case.affected.target,
    )


def _below_minimum_help(case: AxisCase, minimum: int) -> str:
    options = []
    for axis, fitting, others in case.axis_sizes():
        sizes = [size for size in fitting if size * others * minimum <= case.size]
        if sizes:
            options.append(f"`{axis}` in {set_text(sizes[-_BELOW_MINIMUM_SHOWN:])}")
    options.append(f"{quote.word('min_shard', case.size // case.ways)} if that is enough")
    return "; or ".join(options)


# cut-unit


def cut_unit(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each axis whose units a rule would cut."""
    for found in uneven(context):
        if found.cuts_unit and not found.cuts_parts:
            yield finding(context, codes.CUT_UNIT, found, _cut_unit_message(found.case))


def _cut_unit_message(case: AxisCase) -> str:
    shard = case.size // case.ways
    return (
        f"`{case.axis}` = {case.size} over {case.mesh_text} is {shard},"
        f" {_share(shard, case)} of {case.unit}, on {case.targets_text}"
    )


def _share(shard: int, case: AxisCase) -> str:
    """Return "half a unit", or "1.5 units"."""
    if shard * 2 == case.unit:
        return f"half a {case.grain}"
    share = shard / case.unit
    return f"{share:.3g} {case.grain}s" if share > 1 else f"{share:.3g} of a {case.grain}"


# cut-part


#: Shards that are named.
_CUT_PART_SHOWN = 3


def cut_part(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each fused axis whose parts a rule would cut across."""
    for found in uneven(context):
        if found.cuts_parts:
            axis = context.axes.get(found.case.axis)
            parts = None if axis is None else axis.parts
            yield finding(context, codes.CUT_PART, found, _cut_part_message(found.case, parts))


def _cut_part_message(case: AxisCase, parts: Parts | None) -> str:
    shard = case.size // case.ways
    head = f"`{case.axis}` = {case.size} over {case.mesh_text} is {shard}"
    cut = list(_cut(parts, shard)) if parts is not None and parts.size == case.size else []
    more = f" and {len(cut) - _CUT_PART_SHOWN} more" if len(cut) > _CUT_PART_SHOWN else ""
    shown = "; ".join(cut[:_CUT_PART_SHOWN])
    return f"{head}{': ' if cut else ''}{shown}{more}, on {case.targets_text}"


def _cut(parts: Parts, shard: int) -> Iterator[str]:
    """Yield each shard with pieces of two parts: "shard 5 has the end of `q` and of `k` ..."."""
    ends = accumulate(size for _, size in parts.sizes)
    for ((left, _), (right, _)), end in zip(pairwise(parts.sizes), ends, strict=False):
        if end % shard:
            yield f"shard {end // shard} has the end of `{left}` and the beginning of `{right}`"


# uneven-load


_NOTABLE = 10


def uneven_load(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each target whose first device holds notably more than its last."""
    if context.spec.policy.indivisible != "keep":
        return
    for plan in context.plans:
        groups = plan.alike
        most = sum(arrays.device_bytes for arrays in groups)
        least = sum(last_bytes(arrays) * arrays.count for arrays in groups)
        if _NOTABLE * (most - least) >= most > 0:
            yield _uneven_load_finding(plan, groups, most, least)


def last_bytes(arrays: Alike) -> int:
    """Return the bytes of the last shard: the first is the longest in every dimension."""
    return array_bytes(tuple(map(_last_size, arrays.dims)), arrays.dtype)


def _last_size(dim: DimSharding) -> int:
    size, longest = dim.size or 0, dim.shard_size or 0
    return max(0, size - longest * (dim.ways - 1))


def _uneven_load_finding(
    plan: ShardingPlan, groups: tuple[Alike, ...], most: int, least: int
) -> Diagnostic:
    worst = max(groups, key=lambda arrays: (arrays.shard_bytes - last_bytes(arrays)) * arrays.count)
    dim = max(worst.dims, key=lambda dim: (dim.shard_size or 0) - _last_size(dim))
    name = dim.logical_axis or "the dimension"
    return Diagnostic(
        codes.UNEVEN_LOAD,
        f"the first device of target `{plan.target.name}` holds {binary_bytes(most)}, the last"
        f" {binary_bytes(least)}",
        labels_at((dim.taken.span if dim.taken else None, "splits unevenly")),
        notes=(
            f"`{worst.first.param.path}` {worst.first.param}: {_lengths(dim)}",
            f"{counted(_uneven(groups), 'array')} of {len(plan.arrays)} uneven",
        ),
        help=f"{name} = {' or '.join(map(str, near_multiples(dim.size or 0, dim.ways * dim.unit)))}"
        " would be even; or split it over fewer devices",
        target=plan.target.name,
    )


def _uneven(groups: tuple[Alike, ...]) -> int:
    return sum(arrays.count for arrays in groups if not all(dim.is_even for dim in arrays.dims))


def _lengths(dim: DimSharding) -> str:
    """Return "9 over 8 is 2 on 4 devices in 8, and 3 have nothing"."""
    size, longest = dim.size or 0, dim.shard_size or 0
    full = size // longest if longest else 0
    empty = dim.ways - math.ceil(size / longest) if longest else dim.ways
    text = f"{size} over {dim.ways} is {longest} in each of the first {full}"
    return f"{text}, and nothing in the last {empty}" if empty else text
