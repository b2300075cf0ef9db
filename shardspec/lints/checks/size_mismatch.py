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
from shardspec.diagnostics.words import by_key, described, listed
from shardspec.ir.plan import Dims, ParamSharding
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
    others = {name: size for name, size in sizes.items() if name not in outvoted}
    groups = by_key(
        ((sharding.named_at, _wrong_in(sharding.dims, others)), sharding)
        for sharding in context.having(lambda dims: bool(_wrong_in(dims, others)))
        if not sharding.param.is_cache  # a live one may be shorter
    )
    for (place, wrong), group in groups.items():
        yield _finding(context, place, wrong, group)


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


def _size_text(axis: LogicalAxis) -> str:
    return f"`{axis.name}` is {'padded to ' * bool(axis.padding)}{axis.size}"


def _pad(axes: Sequence[LogicalAxis]) -> str:
    """Return how to give arrays of the true sizes the padded ones."""
    sizes = listed(f'resolver.size("{axis.name}")' for axis in axes)
    return f"build the model with {sizes}; or pad arrays that exist with `resolver.padded(tree)`"


def _wrong_size(axis: LogicalAxis, size: int, group: Sequence[ParamSharding]) -> Diagnostic:
    is_true = size == axis.true_size
    place = "" if is_true else f" under {quote.section('axes')}"
    fitting = f"write {quote.size(axis.name, size)}, which fits them all; or correct their names"
    return Diagnostic(
        codes.SIZE_MISMATCH,
        f"{_size_text(axis)}{place}, and {size} in every array that has it",
        labels_at(
            (axis.span, _size_text(axis)),
            (group[0].named_at, f"`{axis.name}` is {size} here"),
        ),
        notes=(described(dict.fromkeys(sharding.param.path for sharding in group)),),
        help=_pad([axis]) if is_true else fitting,
    )


def _finding(
    context: Context, place: Span | None, wrong: tuple[int, ...], group: list[ParamSharding]
) -> Diagnostic:
    sharding = group[0]
    axes = context.axes
    facts = []
    places = [(place, "named here")]
    dims = [sharding.dims[index] for index in wrong]
    found = [(axes[dim.logical_axis or ""], dim.size) for dim in dims]
    for index, (axis, size) in zip(wrong, found, strict=True):
        facts.append(f"dim {index} ({axis.name}) is {size}, not {axis.size}")
        places.append((axis.span, _size_text(axis)))
    by_size = {axis.size: axis.name for axis in axes.values() if axis.size is not None}
    fitting = [by_size.get(size) for size in sharding.param.shape]
    help = (
        f"correct the names, or the sizes under {quote.section('axes')};"
        " these are optional, so delete them for models of several sizes"
    )
    unpadded = [axis for axis, size in found if size == axis.true_size]
    if len(unpadded) == len(found):
        help = _pad(unpadded)
    elif all(fitting) and len(set(fitting)) == len(fitting):
        help = f"by size, the names are `{' '.join(str(name) for name in fitting)}`"
    return Diagnostic(
        codes.SIZE_MISMATCH,
        f"`{sharding.param.path}` {sharding.param}: {'; '.join(facts)}",
        labels_at(*places),
        notes=(described([member.param.path for member in group]),),
        help=help,
    )
