"""Print how many mistakes are caught: `python -m tests.mutations [--examples N] [--missed]`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.mutations.census import Count, count
from tests.mutations.judging import Verdict
from tests.mutations.mutators.registry import MUTATORS, title

PAGE = Path(__file__).parents[2] / "docs" / "mutations.md"


def main() -> None:
    """Print the table, and on request each mistake that is not caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=200, help="mistakes of each mutator")
    parser.add_argument("--only", default="", help="part of a mutator's name")
    parser.add_argument("--missed", action="store_true", help="show what is not caught")
    parser.add_argument("--write", action="store_true", help="put the table into docs/mutations.md")
    options = parser.parse_args()
    rows = []
    for mutator in MUTATORS:
        if options.only in mutator.__name__:
            rows.append((title(mutator), count(mutator, options.examples)))
    print("\n".join(table(rows)))
    if options.write:
        head, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- table -->\n")
        _, _, rest = rest.partition("<!-- end -->\n")
        lines = "\n".join(table(rows))
        PAGE.write_text(f"{head}<!-- table -->\n{lines}\n<!-- end -->\n{rest}", encoding="utf-8")
    if options.missed:
        for name, result in rows:
            for verdict in result.missed:
                print(f"missed     {_place(name, verdict)}: {', '.join(verdict.worse)}")
            for verdict in result.caught:
                if not verdict.names_line:
                    said = "; ".join(f"{d.code.id} {d.message}" for d in verdict.found[:2])
                    print(f"elsewhere  {_place(name, verdict)}: {said}")


def _place(name: str, verdict: Verdict) -> str:
    return f"{name} [{verdict.subject}] {verdict.mistake.what}"


def table(rows: list[tuple[str, Count]]) -> list[str]:
    """Return the counts as a Markdown table with a line for all."""
    lines = [
        "| mistake | mutants | other answer | worse | caught | right line | pedantic only | |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    whole = Count()
    for name, result in rows:
        lines.append(_row(name, result))
        whole.verdicts += result.verdicts
    return [*lines, _row("**all**", whole)]


def _row(name: str, result: Count) -> str:
    numbers = (
        result.mutants,
        len(result.changes),
        len(result.worse),
        len(result.caught),
        len(result.on_line),
        len(result.pedantic),
    )
    share = f"{100 * result.fraction:.0f} %" if result.worse else ""
    return f"| {name} | {' | '.join(map(str, numbers))} | {share} |"


if __name__ == "__main__":
    main()
