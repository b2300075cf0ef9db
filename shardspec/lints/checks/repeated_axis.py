"""Two dimensions of one array have the same logical axis.

Flax refuses such an array. Here the first of the two takes what the rules give, and the second
what is left; which one that is depends on their order, so it should not be left to chance. Where
both are meant, one of them is `embed'`, or they are `in:embed` and `out:embed`: a rule for `embed`
then serves the plain name first, and a rule for `embed'` is for that alone.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - embed -> tensor
    arrays:
      dense/kernel: bf16[embed=64 embed=64]

Good:
       - embed -> tensor
    +  - embed_out -> none
    -  dense/kernel: bf16[embed=64 embed=64]
    +  dense/kernel: bf16[embed=64 embed_out=64]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

from shardspec.diagnostics import Diagnostic, Span, codes, point
from shardspec.diagnostics.words import described, grouped, listed
from shardspec.ir.spec import LogicalAxes
from shardspec.lints.context import Context


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each entry that names an axis twice."""
    wrong = context.having(lambda dims: bool(repeated(dims.logical_axes)))
    for (place, names), group in grouped(wrong, lambda s: (s.named_at, s.logical_axes)).items():
        param = group[0].param
        notes = (described([member.param.path for member in group]),)
        yield _finding(names, f"`{param.path}` {param}", place, notes)
    for activation in context.spec.activations:
        if repeated(activation.logical_axes):
            what = f"activation `{activation.name}`"
            yield _finding(activation.logical_axes, what, activation.span, ())


def _finding(
    names: LogicalAxes, what: str, place: Span | None, notes: tuple[str, ...]
) -> Diagnostic:
    first = repeated(names)[0]
    return point(
        codes.REPEATED_AXIS,
        f"{listed(repeated(names))} names more than one dimension of {what}",
        place,
        notes=notes,
        help=f"give one of them another name, with its own rule; or write that both are intended:"
        f" `{first} {first}'`",
    )


@cache
def repeated(names: LogicalAxes) -> tuple[str, ...]:
    """Return the names that stand more than once, in order."""
    if len(set(names)) == len(names):
        return ()
    return tuple(name for name, count in Counter(names).items() if name and count > 1)
