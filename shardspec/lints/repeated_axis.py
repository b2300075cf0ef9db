"""Two dimensions of one array have the same logical axis.

Flax refuses such an array. Here the first of the two takes what the rules give, and the second
what is left; which one that is depends on their order, so it should not be left to chance.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - embed -> tensor
    arrays:
      dense/kernel: bf16[embed=64 embed=64]

Good:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - embed -> tensor
      - embed_out -> none
    arrays:
      dense/kernel: bf16[embed=64 embed_out=64]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, Span
from shardspec.diagnostics.codes import REPEATED_AXIS as CODE
from shardspec.diagnostics.diagnostic import point
from shardspec.diagnostics.suggest import listed
from shardspec.ir.grouping import described
from shardspec.ir.plan import ParamSharding
from shardspec.lints.context import Context


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each entry that names an axis twice."""
    groups: dict[tuple[Span | None, tuple[str | None, ...]], list[ParamSharding]] = {}
    for sharding in context.first:
        names = sharding.logical_axes
        if len(set(names)) < len(names) and repeated(names):
            place = sharding.named_at
            groups.setdefault((place, names), []).append(sharding)
    for (place, names), group in groups.items():
        param = group[0].param
        yield point(
            CODE,
            f"{listed(repeated(names))} names more than one dimension of `{param.path}` {param}",
            place,
            notes=(described([member.param.path for member in group]),),
            help="give one of them a name of its own, with its own rule",
        )
    for activation in context.spec.activations:
        twice = repeated(activation.logical_axes)
        if twice:
            yield point(
                CODE,
                f"{listed(twice)} names more than one dimension of activation `{activation.name}`",
                activation.span,
                help="give one of them a name of its own, with its own rule",
            )


def repeated(names: tuple[str | None, ...]) -> tuple[str, ...]:
    """Return the names that stand more than once, in order."""
    return tuple(name for name, count in Counter(names).items() if name and count > 1)
