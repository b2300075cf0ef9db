"""A shard is smaller than its logical axis allows.

`min_shard` of an axis says below which length a shard is not worth having: the matrix unit runs
half empty, or the collectives cost more than the split saves. The rule is applied anyway, since
an answer that changes with the size of the machine would be a surprise; this says where.

Bad:
    shardspec: 1
    mesh: {tensor: 16}
    axes:
      mlp: {size: 1024, min_shard: 128}
    rules:
      - mlp -> tensor
    arrays:
      mlp/wi/kernel: bf16[_=64 mlp]

Good:
    -mesh: {tensor: 16}
    +mesh: {tensor: 8}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.diagnostics import Diagnostic, codes, labels_at, quote
from shardspec.ir.plan import DimSharding
from shardspec.lints.context import Context
from shardspec.lints.evidence.sizes import AxisCase, Judged, axis_cases, set_text

#: Sizes of a mesh axis to offer, the largest that would do.
_SHOWN = 6


def check(context: Context) -> Iterator[Diagnostic]:
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
        yield _finding(context, case, least[case.axis])


def _finding(context: Context, case: AxisCase, minimum: int) -> Diagnostic:
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
        help=_help(case, minimum),
        target=case.affected.target,
    )


def _help(case: AxisCase, minimum: int) -> str:
    options = []
    for axis, fitting, others in case.axis_sizes():
        sizes = [size for size in fitting if size * others * minimum <= case.size]
        if sizes:
            options.append(f"`{axis}` in {set_text(sizes[-_SHOWN:])}")
    options.append(f"{quote.word('min_shard', case.size // case.ways)} if that is enough")
    return "; or ".join(options)
