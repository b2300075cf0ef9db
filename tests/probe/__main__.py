"""Print how many mutants of the package's code its tests notice: `python -m tests.probe`.

The lower bound is for the code of cost, verify, search, init, lsp and report. The sources of
maintained tools were read, and they do not fit. mutmut 3 mutates no function with a decorator (here
every property), nothing that runs on import, and drops no statement; cosmic-ray runs the same
command for every mutant, in a fresh process. Neither draws a sample.
"""

from __future__ import annotations

import argparse
import signal
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import repeat
from pathlib import Path

from tests.probe.covering import covered
from tests.probe.mutants import ROOT, sample
from tests.probe.running import is_noticed, workers

#: The folders of each area. What needs a process of XLA for each answer is left to the tests of
#: `jax_backend`, which cost minutes for each mutant.
AREAS = {
    "cost": ("analysis",),
    "verify": ("programs", "jax_backend/numbers"),
    "search": ("search", "cure"),
    "init": ("drafting",),
    "lsp": ("lsp",),
    "report": ("report",),
}

#: Tests of an area that are elsewhere: those of its verbs, and the cases that show what they print.
ELSEWHERE = {
    "cost": (
        *("cli/test_cost.py", "cli/test_diff_step.py", "cli/test_lock_and_diff.py"),
        "jax_backend/test_measured_runs.py",
    ),
    "verify": (
        *("cli/test_verify.py", "cli/test_numbers.py", "cli/test_measured.py"),
        *("cli/test_calibrate.py", "jax_backend/test_measured_runs.py"),
        "jax_backend/test_measured_tpu.py",
    ),
    "search": ("cli/test_search.py", "cli/test_search_code.py"),
    "init": ("cli/test_init.py",),
    "lsp": (),
    "report": (
        *("cli/test_report.py", "cli/test_explain_draw.py", "cli/test_explain_words.py"),
        "resolve/test_state.py",
    ),
}
EVERYWHERE = ("test_cases.py", "test_guides.py")

UNCHANGED = Path(__file__).parent / "unchanged.toml"

#: How many seconds the tests of a mutant may take in each round, before it counts as noticed.
LIMIT_S = 180.0


def modules(area: str) -> list[str]:
    """Return the modules of an area."""
    found = (each for folder in AREAS[area] for each in (ROOT / "shardspec" / folder).glob("*.py"))
    return sorted(str(each.relative_to(ROOT)) for each in found)


def files_of_tests(area: str) -> Iterator[str]:
    """Yield the files of tests of an area, and its modules with examples in docstrings."""
    for folder in AREAS[area]:
        for each in sorted((ROOT / "tests" / folder).glob("test_*.py")):
            yield str(each.relative_to(ROOT))
    yield from (f"tests/{each}" for each in (*ELSEWHERE[area], *EVERYWHERE))
    for path in modules(area):
        if ">>>" in (ROOT / path).read_text(encoding="utf-8"):
            yield path


def unchanged() -> dict[tuple[str, str, str, str], str]:
    """Return the reason of each mutant that is known to change nothing."""
    rows = tomllib.loads(UNCHANGED.read_text(encoding="utf-8"))["mutant"]
    return {(r["path"], r["function"], r["before"], r["after"]): r["why"] for r in rows}


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
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    area_of = {path: area for area in options.areas for path in modules(area)}
    known = unchanged()
    drawn = sample(list(area_of), options.seed, options.mutants)
    judged = [each for each in drawn if each.key not in known]
    files = sorted({file for area in options.areas for file in files_of_tests(area)})
    started = time.monotonic()
    lines = covered(files, list(area_of), options.workers, options.keep)
    print(f"{len(files)} files of tests, {time.monotonic() - started:.0f} s", flush=True)
    noticed = Counter[str]()
    with workers(options.workers) as pool:
        rounds = [lines.rounds(each, options.budget) for each in judged]
        ends = pool.map(is_noticed, judged, rounds, repeat(LIMIT_S))
        for mutant, tests, end in zip(judged, rounds, ends, strict=True):
            noticed[area_of[mutant.path]] += bool(end)
            if not end:
                print(f"{mutant}\n    in {sum(map(len, tests))} tests", flush=True)
    print(f"\n{time.monotonic() - started:.0f} s in all")
    every, of_area = (Counter(area_of[m.path] for m in group) for group in (drawn, judged))
    return int(_table(every, of_area, noticed) < options.at_least)


def _table(*counts: Counter[str]) -> float:
    """Print what became of the mutants of each area, and return the share noticed, in percent."""
    print(f"{'':8} {'mutants':>8} {'judged':>8} {'noticed':>8} {'share':>7}")
    for area in (*counts[0], "all"):
        found = [each.total() if area == "all" else each[area] for each in counts]
        share = 100 * found[2] / found[1] if found[1] else 100.0
        print(f"{area:8} {found[0]:8} {found[1]:8} {found[2]:8} {share:6.1f}%")
    return share


if __name__ == "__main__":
    raise SystemExit(main())
