"""Print how many mistakes are caught: `python -m tests.mutations [--examples N] [--missed]`.

What takes time is compiling and checking each changed spec on all of its targets, half a second in
all for a large one; kinds of mistakes are spread over the processors.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.mutations.census import Count, count
from tests.mutations.judging import Verdict
from tests.mutations.mutators.registry import MUTATORS, Mutator, title
from tests.mutations.subjects import subjects

PAGE = Path(__file__).parents[2] / "docs" / "mutations.md"


class Row(NamedTuple):
    """One kind of mistake: how many there are of what, and those that are not caught."""

    name: str
    numbers: tuple[int, ...]
    missed: tuple[str, ...] = ()


def main() -> None:
    """Print the table, and on request each mistake that is not caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=200, help="mistakes of each mutator")
    parser.add_argument("--only", default="", help="part of a mutator's name")
    parser.add_argument("--missed", action="store_true", help="show what is not caught")
    parser.add_argument("--write", action="store_true", help="put the table into docs/mutations.md")
    options = parser.parse_args()
    subjects()  # once, for all processes
    chosen = [mutator for mutator in MUTATORS if options.only in mutator.__name__]
    with multiprocessing.get_context("fork").Pool() as pool:
        rows = pool.map(partial(_row, options.examples), chosen, chunksize=1)
    lines = [f"At most {options.examples} of each kind, the same each time.", "", *table(rows)]
    print("\n".join(lines))
    if options.write:
        head, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- table -->\n")
        _, _, rest = rest.partition("<!-- end -->\n")
        text = "\n".join(lines)
        PAGE.write_text(f"{head}<!-- table -->\n{text}\n<!-- end -->\n{rest}", encoding="utf-8")
    if options.missed:
        print("\n".join(line for row in rows for line in row.missed))


def _row(examples: int, mutator: Mutator) -> Row:
    name, found = title(mutator), count(mutator, examples)
    groups = (found.verdicts, found.changes, found.worse, found.caught, found.on_line)
    numbers = tuple(map(len, (*groups, found.pedantic)))
    return Row(name, numbers, tuple(_missed(name, found)))


def _missed(name: str, found: Count) -> Iterator[str]:
    for verdict in found.missed:
        yield f"missed     {_place(name, verdict)}: {', '.join(verdict.worse)}"
    for verdict in found.caught:
        if not verdict.names_line:
            said = "; ".join(f"{d.code.id} {d.message}" for d in verdict.found[:2])
            yield f"elsewhere  {_place(name, verdict)}: {said}"


def _place(name: str, verdict: Verdict) -> str:
    return f"{name} [{verdict.subject}] {verdict.mistake.what}"


def table(rows: Sequence[Row]) -> list[str]:
    """Return the counts as a Markdown table with a line for all."""
    whole = Row("**all**", tuple(map(sum, zip(*(row.numbers for row in rows), strict=True))))
    return [
        "| mistake | mutants | other answer | worse | caught | right line | pedantic only | |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *map(_line, (*rows, whole)),
    ]


def _line(row: Row) -> str:
    _, _, worse, caught, _, _ = row.numbers
    share = f"{100 * caught / worse:.0f} %" if worse else ""
    return f"| {row.name} | {' | '.join(map(str, row.numbers))} | {share} |"


if __name__ == "__main__":
    main()
