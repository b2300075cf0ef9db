"""An array's dimension is not as long as its logical axis says.

Either the size under `axes:` is not this model's, or, more often, the names stand in the wrong
order: `mlp embed` on a kernel that is [embed, mlp] shards the wrong dimension in silence.

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
    shardspec: 1
    mesh: {tensor: 4}
    axes: {embed: 64, mlp: 128}
    rules:
      - embed -> none
      - mlp -> tensor
    params:
      "**/wi/kernel": embed mlp
    arrays:
      mlp/wi/kernel: bf16[64, 128]
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, Label, Span
from shardspec.diagnostics.codes import SIZE_MISMATCH as CODE
from shardspec.ir.grouping import described
from shardspec.ir.plan import ParamSharding
from shardspec.lints.context import Context


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each entry whose names contradict the stated sizes."""
    sizes = {axis.name: axis.size for axis in context.spec.logical_axes if axis.size is not None}
    groups: dict[tuple[Span | None, tuple[int, ...]], list[ParamSharding]] = {}
    for sharding in context.first:
        wrong = tuple(
            index
            for index, dim in enumerate(sharding.dims)
            if dim.logical_axis in sizes and dim.size != sizes[dim.logical_axis]
        )
        if wrong:
            place = sharding.named_at
            groups.setdefault((place, wrong), []).append(sharding)
    for (place, wrong), group in groups.items():
        yield _finding(context, place, wrong, group)


def _finding(
    context: Context, place: Span | None, wrong: tuple[int, ...], group: list[ParamSharding]
) -> Diagnostic:
    sharding = group[0]
    axes = context.axes
    facts = []
    labels = [] if place is None else [Label(place, "named here")]
    for index in wrong:
        dim = sharding.dims[index]
        axis = axes[dim.logical_axis or ""]
        facts.append(f"dim {index} ({axis.name}) is {dim.size}, not {axis.size}")
        if axis.span is not None:
            labels.append(Label(axis.span, f"`{axis.name}` is {axis.size}", primary=place is None))
            place = place or axis.span
    by_size = {axis.size: axis.name for axis in axes.values() if axis.size is not None}
    fitting = [by_size.get(size) for size in sharding.param.shape]
    help = "correct the names, or the sizes under `axes`"
    if all(fitting) and len(set(fitting)) == len(fitting):
        help = f"by size, the names are `{' '.join(str(name) for name in fitting)}`"
    return Diagnostic(
        CODE,
        f"`{sharding.param.path}` {sharding.param}: {'; '.join(facts)}",
        tuple(labels),
        notes=(described([member.param.path for member in group]),),
        help=help,
    )
