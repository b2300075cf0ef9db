"""An entry of arrays has fewer layers than its neighbours.

`layers_{0..3}` among entries of `layers_{0..31}`: a digit was lost, and the arrays of the other
layers are in no plan and in no total. Only hand-written ranges with the same start, in path and
number, are compared. Models may have layers of several kinds, as `{0..2}` and `{3..60}`: a range
that ends where another one continues is not reported.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - embed -> none
      - mlp -> tensor
    arrays:
      "layers_{0..31}/wi": bf16[embed=64 mlp=128]
      "layers_{0..3}/wo": bf16[mlp=128 embed=64]

Good:
    -  "layers_{0..3}/wo": bf16[mlp=128 embed=64]
    +  "layers_{0..31}/wo": bf16[mlp=128 embed=64]
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, Label, Span, codes
from shardspec.diagnostics.words import counted
from shardspec.lints.context import Context

_NUMBER = re.compile(r"(?<![0-9])(?<!\.\.)\{?([0-9]{1,9})")
_RANGE = re.compile(r"\{([0-9]{1,9})\.\.([0-9]{1,9})\}")


class _Entry(NamedTuple):
    """One entry with a range.

    Attributes:
      last: of the range.
      place: of the range, in the source.
    """

    first: int
    last: int
    place: Span


class _Family(NamedTuple):
    """Entries that begin alike.

    Attributes:
      entries: those with a range.
      begun: the numbers at which a range or a single layer begins.
    """

    entries: list[_Entry]
    begun: set[int]


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each range that ends elsewhere than most beside it."""
    for stem, family in _families(context).items():
        firsts = dict.fromkeys(entry.first for entry in family.entries)
        for first in firsts:
            entries = [
                entry
                for entry in family.entries
                if entry.first == first and (len(firsts) == 1 or entry.last + 1 not in family.begun)
            ]
            if len(entries) > 1:
                yield from _odd_ones(stem[1], entries)


def _families(context: Context) -> dict[tuple[str, str], _Family]:
    """Return the entries that begin alike, by their file and the text up to the number."""
    families: dict[tuple[str, str], _Family] = {}
    sources = {param.span.source.name: param.span.source for param in context.params if param.span}
    if not any(_RANGE.search(source.text) for source in sources.values()):
        return families
    spans = dict.fromkeys(param.span for param in context.params if param.span is not None)
    ranged = {span.source.name for span in spans if _RANGE.search(span.text)}
    for span in spans:
        if span.source.name not in ranged:
            continue
        for number in _NUMBER.finditer(span.text):
            stem = span.text[: number.start()].lstrip("\"'")
            family = families.setdefault((span.source.name, stem), _Family([], set()))
            family.begun.add(int(number[1]))
            found = _RANGE.match(span.text, number.start())
            if found is not None and "{" not in stem:
                place = Span(span.source, span.start + found.start(), span.start + found.end())
                family.entries.append(_Entry(int(found[1]), int(found[2]), place))
    return families


def _odd_ones(stem: str, entries: Sequence[_Entry]) -> Iterator[Diagnostic]:
    ends = Counter(entry.last for entry in entries)
    usual, often = max(ends.items(), key=lambda item: (item[1], item[0]))
    example = next(entry for entry in entries if entry.last == usual)
    for entry in entries:
        if entry.last != usual:
            yield Diagnostic(
                codes.SHORT_RANGE,
                f"`{stem}{entry.place.text}` ends at {entry.last}, and {often} other"
                f" {'entry' if often == 1 else 'entries'} of `{stem}` at {usual}",
                (
                    Label(entry.place, counted(entry.last - entry.first + 1, "layer")),
                    Label(example.place, counted(usual - entry.first + 1, "layer"), primary=False),
                ),
                help=f"write `{example.place.text}`; if the layers differ, give the others an"
                " entry of their own",
            )
