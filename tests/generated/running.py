"""Cases in processes of their own: a limit of time, bounded memory, and a file to go on from."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.generated.recipe import Recipe
from tests.generated.rows import Row, empty

ROOT = Path(__file__).parents[2]
#: Seconds that a case may take beyond its compile: tracing, Shardy, starting JAX.
_BESIDE_S = 60.0
#: Cases after which a process is replaced, so that what JAX keeps does not add up.
_MOST_CASES = 25


@dataclass
class Worker:
    """One process, started when it is needed and again after each that ended early."""

    timeout_s: float
    process: subprocess.Popen[str] | None = None
    answered: int = 0

    def row(self, recipe: Recipe, seed: int | None) -> Row:
        """Return the row of a case."""
        if self.process is None or self.answered >= _MOST_CASES:
            self.end()
            self.process = _started()
        process = self.process
        assert process.stdin is not None
        assert process.stdout is not None
        asked = {"recipe": recipe.text, "seed": seed, "timeout_s": self.timeout_s}
        most = self.timeout_s + _BESIDE_S
        line = ""
        try:
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            is_there = select.select([process.stdout], [], [], most)[0]
            line = process.stdout.readline() if is_there else ""
        except BrokenPipeError:
            is_there = [process.stdout]
        if line.endswith("\n"):
            self.answered += 1
            found: Row = json.loads(line)
            return found
        self.end()
        status = process.returncode
        told = ("died", f"its process ended with {status}") if is_there else ("late", f"{most:g} s")
        return {**empty(recipe, seed), "error": told[1], "fault": told[0]}

    def end(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()  # the compiler that it may have started ends with it
            self.process.communicate()
        self.process, self.answered = None, 0


def _started() -> subprocess.Popen[str]:
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    env.pop("XLA_FLAGS", None)
    return subprocess.Popen(
        [sys.executable, "-m", "tests.generated.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env=env,
        start_new_session=True,
    )


@dataclass
class Rows:
    """Rows by recipe, kept in a file that a later run goes on from."""

    path: Path | None = None
    found: dict[str, Row] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            rows = json.loads(self.path.read_text("utf-8"))["rows"]
            self.found = {row["recipe"]: row for row in rows}

    def add(self, row: Row) -> None:
        """Keep a row; the file is never seen half written."""
        with self.lock:
            self.found[row["recipe"]] = row
            if self.path is not None:
                part = self.path.with_suffix(".part")
                part.write_text(text_of(self.found.values()), "utf-8")
                part.replace(self.path)


def text_of(rows: Iterable[Row]) -> str:
    """Return rows as JSON, one a line, in the order of their seeds."""
    ordered = sorted(rows, key=lambda row: (row["seed"] is None, row["seed"] or 0, row["recipe"]))
    about = json.dumps(_versions())
    lines = ",\n".join(json.dumps(row) for row in ordered)
    return f'{{"about": {about},\n"rows": [\n{lines}\n]}}\n'


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("jax", "jaxlib", "libtpu", "optax"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return {"made_by": "python -m tests.generated", **found}


def run(
    cases: Iterable[tuple[int | None, Recipe]],
    rows: Rows,
    *,
    jobs: int = 1,
    timeout_s: float = 120.0,
    tell: Callable[[Row], Any] = lambda row: None,
) -> list[Row]:
    """Return the row of each case, in the order of the cases; those that `rows` has are not run."""
    cases = list(cases)
    new = {recipe.text: (seed, recipe) for seed, recipe in cases if recipe.text not in rows.found}
    waiting = iter(list(new.values()))
    workers = [Worker(timeout_s) for _ in range(jobs)]

    def work(worker: Worker) -> None:
        for seed, recipe in waiting:
            row = worker.row(recipe, seed)
            rows.add(row)
            tell(row)

    try:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(work, workers))
    finally:
        for worker in workers:
            worker.end()
    return [rows.found[recipe.text] for _, recipe in cases]
