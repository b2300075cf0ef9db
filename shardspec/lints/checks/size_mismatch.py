"""A dimension of an array has another size than its logical axis.

Either the size under `axes:` is not this model's, or, more often, the names stand in the wrong
order: `mlp embed` on a kernel that is [embed, mlp] shards the wrong dimension in silence. Where all
entries with an axis agree on another size, that is one finding, about the size.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    axes: {embed: 64, mlp: 128}
    rules:
      - embed -> none
      - mlp -> tensor
    params:
      "**/wi/kernel": mlp embed
    arrays:
      mlp/wi/kernel: bf16[64, 128]

Good:
    -  "**/wi/kernel": mlp embed
    +  "**/wi/kernel": embed mlp
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shardspec.diagnostics import Diagnostic, Span, codes, labels_at, quote
from shardspec.diagnostics.words import described
from shardspec.ir.plan import DimSharding, ParamSharding
from shardspec.ir.spec import LogicalAxis
from shardspec.lints.context import Context


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each size that all arrays contradict, then for each other entry."""
    sizes = {axis.name: axis.size for axis in context.spec.logical_axes if axis.size is not None}
    if not sizes:
        return
    outvoted = _outvoted(context, sizes)
    for axis, (size, group) in outvoted.items():
        yield _wrong_size(context.axes[axis], size, group)
    groups: dict[tuple[Span | None, tuple[int, ...]], list[ParamSharding]] = {}
    for sharding in context.first:
        wrong = tuple(
            index
            for index, dim in enumerate(sharding.dims)
            if dim.logical_axis not in outvoted and _is_wrong(dim, sizes)
        )
        if wrong and not sharding.param.is_cache:  # a live one may be shorter
            place = sharding.named_at
            groups.setdefault((place, wrong), []).append(sharding)
    for (place, wrong), group in groups.items():
        yield _finding(context, place, wrong, group)


def _outvoted(
    context: Context, sizes: Mapping[str, int]
) -> dict[str, tuple[int, list[ParamSharding]]]:
    """Return the axes whose size two entries or more contradict alike, and none confirms.

    Arrays with a second wrong dimension are left out: their names may stand in the wrong order.
    """
    uses: dict[str, dict[int | None, list[ParamSharding]]] = {}
    for sharding in context.first:
        for dim in () if sharding.param.is_cache else sharding.dims:
            if dim.logical_axis is not None and dim.logical_axis in sizes:
                by_size = uses.setdefault(dim.logical_axis, {})
                by_size.setdefault(dim.size, []).append(sharding)
    found = {}
    for axis, by_size in uses.items():
        (size, group), *others = by_size.items()
        entries = {(sharding.named_at, sharding.param.span) for sharding in group}
        if others or size is None or size == sizes[axis] or len(entries) == 1:
            continue
        if all(sum(_is_wrong(dim, sizes) for dim in each.dims) == 1 for each in group):
            found[axis] = (size, group)
    return found


def _is_wrong(dim: DimSharding, sizes: Mapping[str, int]) -> bool:
    name = dim.logical_axis
    return name is not None and name in sizes and dim.size != sizes[name]


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


def _finding(
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
