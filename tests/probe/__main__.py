"""Print how many mutants of the package's code its tests notice: `python -m tests.probe`.

The lower bound is for the code of cost, verify, search, init, lsp and report. Maintained tools were
tried and do not fit. mutmut 3 mutates no function with a decorator (here every property), nothing
that runs on import, and drops no statement; cosmic-ray runs the same command for every mutant, in
a fresh process. Neither draws a sample.
"""

from __future__ import annotations

import argparse
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.probe.covering import covered
from tests.probe.mutants import ROOT, Mutant, mutants, sample
from tests.probe.running import is_noticed, workers

#: The folders of each area. What needs a process of XLA for each answer is left to the tests of
#: `jax_backend`, which cost minutes for each mutant.
AREAS = {
    "cost": ("analysis",),
    "verify": ("programs", "programs/rewrites", "jax_backend/numbers"),
    "search": ("search", "cure"),
    "init": ("drafting",),
    "lsp": ("lsp",),
    "report": ("report",),
}

UNCHANGED = Path(__file__).parent / "unchanged.toml"

#: How many seconds the tests of a mutant may take in each round, before it counts as noticed.
LIMIT_S = 180.0


def modules(area: str) -> list[str]:
    """Return the modules of an area."""
    found = (each for folder in AREAS[area] for each in (ROOT / "shardspec" / folder).glob("*.py"))
    return sorted(str(each.relative_to(ROOT)) for each in found)


def files_of_tests(area: str) -> Iterator[str]:
    """Yield the files of tests of an area: those of its folders, and the examples in docstrings."""
    for folder in AREAS[area]:
        for each in sorted((ROOT / "tests" / folder).glob("test_*.py")):
            yield str(each.relative_to(ROOT))
    for path in modules(area):
        if ">>>" in (ROOT / path).read_text(encoding="utf-8"):
            yield path


def unchanged() -> dict[tuple[str, str, str, str], str]:
    """Return the reason of each mutant that is known to change nothing."""
    rows = tomllib.loads(UNCHANGED.read_text(encoding="utf-8"))["mutant"]
    return {(r["path"], r["function"], r["before"], r["after"]): r["why"] for r in rows}


def stale() -> list[tuple[str, str, str, str]]:
    """Return what the list names that is no mutant any more."""
    known = unchanged()
    there = {each.key for path in {key[0] for key in known} for each in mutants(path)}
    return [key for key in known if key not in there]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a sample of mutants, print what no test notices, and return 1 below the lower bound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mutants", type=int, default=200, help="how many (200)")
    parser.add_argument("--seed", type=int, default=0, help="which (0)")
    parser.add_argument("--areas", nargs="+", default=list(AREAS), choices=list(AREAS))
    parser.add_argument("--at-least", type=float, default=0, help="lower bound, in percent")
    parser.add_argument("--budget", type=float, default=40, help="seconds of tests for each (40)")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a file that keeps which tests run which lines")
    options = parser.parse_args(arguments)
    area_of = {path: area for area in options.areas for path in modules(area)}
    known = unchanged()
    drawn = sample(list(area_of), options.seed, options.mutants)
    judged = [each for each in drawn if each.key not in known]
    files = sorted({file for area in options.areas for file in files_of_tests(area)})
    started = time.monotonic()
    lines = covered(files, list(area_of), options.workers, options.keep)
    print(f"{len(files)} files of tests, {time.monotonic() - started:.0f} s", flush=True)
    with workers(options.workers) as pool:
        rounds = [lines.rounds(each, options.budget) for each in judged]
        ends = pool.map(is_noticed, judged, rounds, [LIMIT_S] * len(judged))
        verdicts = list(_shown(judged, rounds, ends))
    print(f"\n{time.monotonic() - started:.0f} s in all")
    share = _table(options.areas, area_of, drawn, dict(zip(judged, verdicts, strict=True)))
    return int(share < options.at_least)


def _shown(
    judged: Sequence[Mutant],
    rounds: Sequence[tuple[list[str], list[str]]],
    ends: Iterator[str],
) -> Iterator[str]:
    for mutant, (first, rest), end in zip(judged, rounds, ends, strict=True):
        if not end:
            print(f"{mutant}\n    of {len(first) + len(rest)} tests", flush=True)
        yield end


def _table(
    areas: Sequence[str],
    area_of: dict[str, str],
    drawn: Sequence[Mutant],
    verdicts: dict[Mutant, str],
) -> float:
    """Print what became of the mutants of each area, and return the share noticed, in percent."""
    every = Counter(area_of[each.path] for each in drawn)
    judged = Counter(area_of[each.path] for each in verdicts)
    noticed = Counter(area_of[each.path] for each, end in verdicts.items() if end)
    print(f"{'':8} {'mutants':>8} {'unchanged':>10} {'noticed':>8} {'share':>7}")
    for area in (*areas, "all"):
        counts = [c.total() if area == "all" else c[area] for c in (every, judged, noticed)]
        share = 100 * counts[2] / counts[1] if counts[1] else 100.0
        left_out = counts[0] - counts[1]
        print(f"{area:8} {counts[0]:8} {left_out:10} {counts[2]:8} {share:6.1f}%")
    return share


if __name__ == "__main__":
    raise SystemExit(main())
