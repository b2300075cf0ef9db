"""Which tests run which lines of the package: a file of tests at a time, each in a fresh process.

A value that is made once, by a fixture or a cache, is made in the first test that asks for it. So
the other tests of a file that runs a line are candidates as well, after those that run it.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from tests.probe.mutants import ROOT, Mutant
from tests.probe.running import in_copy, run_tests, workers

#: A file of tests takes less than this, or its tests are not used.
LIMIT_S = 900.0


class Covered:
    """The tests of the files that were run: how long each takes, and the lines that it runs."""

    def __init__(self, files: Mapping[str, Any]) -> None:
        self.seconds: dict[str, float] = {}
        self.lines: dict[str, dict[str, int]] = {}
        for tests in files.values():
            for name, (seconds, lines) in (tests or {}).items():
                self.seconds[name] = seconds
                for path, bits in lines.items():
                    self.lines.setdefault(path, {})[name] = int(bits, 16)

    def rounds(self, mutant: Mutant, budget_s: float) -> tuple[list[str], list[str]]:
        """Return the tests to run of a mutant: some to begin with, then the rest.

        Those that run its line come first, then those of their files, then those of its folder,
        which may run it in a process that they start; of each, the tests that are named after the
        module, and the cheapest. All that run any line of a module cover what it runs on import.
        """
        of_module = self.lines.get(mutant.path, {})
        wanted = sum(1 << line for line in mutant.lines) if mutant.function else -1
        runs = {name for name, bits in of_module.items() if bits & wanted}
        files = {name.partition("::")[0] for name in runs}
        own = f"/test_{Path(mutant.path).name}::"
        near = {
            name: (name not in runs, name.partition("::")[0] not in files, own not in name, seconds)
            for name, seconds in self.seconds.items()
            if name.partition("::")[0] in files or _mirrors(name, mutant.path)
        }
        spent, chosen = 0.0, []
        for name in sorted(near, key=near.__getitem__):
            spent += self.seconds[name] + 0.01
            if spent <= budget_s or not chosen:
                chosen.append(name)
        return chosen[:40], chosen[40:]


def _mirrors(test: str, path: str) -> bool:
    """Return whether a test is in the folder of tests that belongs to a module."""
    folder = path.removeprefix("shardspec/").rpartition("/")[0]
    return test.startswith((f"tests/{folder}/", path))


def covered(files: Sequence[str], sources: Sequence[str], count: int, keep: Path | None) -> Covered:
    """Return what these files of tests cover, measured now or kept of an earlier run."""
    importlib.import_module("coverage")  # fails here, and not in each fork
    state = _digest(sources)
    known = json.loads(keep.read_text()) if keep and keep.is_file() else {}
    keys = {f"{file} {_digest([file])} {state}": file for file in files}
    missing = [key for key in keys if key not in known]
    if missing:
        with workers(count) as pool:
            found = pool.map(_measured, [keys[key] for key in missing], repeat(sources))
            known |= dict(zip(missing, found, strict=True))
    if keep:
        kept = {key: tests for key, tests in known.items() if tests is not None}
        keep.write_text(json.dumps(kept), encoding="utf-8")
    for key, file in keys.items():
        if known[key] is None:
            print(f"not used, since it takes more than {LIMIT_S:.0f} s or fails: {file}")
    return Covered({keys[key]: known[key] for key in keys})


def _digest(paths: Sequence[str]) -> str:
    together = b"\0".join((ROOT / path).read_bytes() for path in sorted(paths))
    return hashlib.sha256(together).hexdigest()[:16]


def _measured(file: str, sources: Sequence[str]) -> object:
    return in_copy(lambda: _run(file, sources), LIMIT_S)


def _run(file: str, sources: Sequence[str]) -> object:
    import coverage

    here = Path.cwd()
    include = [str(here / each) for each in sources]
    measure = coverage.Coverage(data_file=None, include=include, config_file=False)
    recorder = _Recorder(measure)
    measure.start()
    run_tests([file], recorder)
    measure.stop()
    data = measure.get_data()
    tests: dict[str, tuple[float, dict[str, str]]] = {n: (s, {}) for n, s in recorder.passed()}
    for path in data.measured_files():
        bits: dict[str, int] = {}
        for line, names in data.contexts_by_lineno(path).items():
            for name in names:
                bits[name] = bits.get(name, 0) | 1 << line
        for name in bits.keys() & tests.keys():
            tests[name][1][str(Path(path).relative_to(here))] = f"{bits[name]:x}"
    return tests


class _Recorder:
    """Tells coverage which test runs, and notes how long it takes and whether it passes."""

    def __init__(self, measure: Any) -> None:
        self.measure = measure
        self.seconds: dict[str, float] = {}
        self.bad: set[str] = set()

    def passed(self) -> Iterator[tuple[str, float]]:
        return ((name, s) for name, s in self.seconds.items() if name not in self.bad)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.measure.switch_context(item.nodeid)
        started = time.perf_counter()
        result = yield
        self.seconds[item.nodeid] = time.perf_counter() - started
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.bad.add(report.nodeid)
