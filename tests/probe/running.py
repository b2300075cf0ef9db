"""Runs tests of a copy of the project in a forked process, so that no mutant imports JAX.

Each worker has a copy of the project, in which it puts a mutant into its file; what a test starts
in another process is the mutant, too. The parent has imported what is slow and never changes, and
nothing of the package.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.probe.mutants import ROOT, Mutant

#: What is slow to import, and is no code of the project.
HEAVY = ("hypothesis", "yaml", "lark", "pydantic", "numpy", "jax.numpy", "rich", "jsonschema")

_STATE: dict[str, Any] = {}


def copied(into: Path) -> None:
    """Copy the files that git knows of, and those that it does not ignore."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.check_output(listed, cwd=ROOT, text=True).split("\0")[:-1]:
        if (ROOT / name).is_file():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, into / name)


@contextlib.contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Give processes that have each a copy of the project to themselves."""
    for name in HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="probe-") as folder:
        copies = fork.SimpleQueue()
        for number in range(count):
            copied(Path(folder, str(number)))
            copies.put(str(Path(folder, str(number))))
        pool = ProcessPoolExecutor(count, fork, initializer=_begin, initargs=(copies,))
        try:
            yield pool
        finally:  # when a run is broken off, what is left of it is not begun
            pool.shutdown(cancel_futures=True)


def _begin(copies: Any) -> None:
    _STATE["copy"], _STATE["stamp"] = Path(copies.get()), 1_000_000_000


def in_copy(work: Callable[[], object], limit_s: float) -> object:
    """Return what `work` returns, in a fork inside the copy; None where it takes too long.

    All processes that it has started are ended.
    """
    copy: Path = _STATE["copy"]
    result = copy / ".result.json"
    result.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        try:
            _enter(copy)
            result.write_text(json.dumps(work()), encoding="utf-8")
        finally:
            os._exit(0)
    ends = time.monotonic() + limit_s
    while os.waitpid(child, os.WNOHANG) == (0, 0) and time.monotonic() < ends:
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child, 0)
    return json.loads(result.read_text(encoding="utf-8")) if result.is_file() else None


def _enter(copy: Path) -> None:
    os.setsid()
    said = os.open(copy / ".said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.chdir(copy)
    os.environ |= {"PYTHONPATH": str(copy), "HYPOTHESIS_PROFILE": "probe"}
    sys.path[:] = [str(copy), *(each for each in sys.path if each not in ("", str(ROOT)))]
    for name in list(sys.modules):
        if name == "tests" or name.startswith("tests."):
            del sys.modules[name]


class _Chosen:
    """Runs these tests of what pytest collects, in this order."""

    def __init__(self, tests: Iterable[str]) -> None:
        self.order = {test: number for number, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [each for each in items if each.nodeid in self.order]
        items.sort(key=lambda each: self.order[each.nodeid])


def run_tests(arguments: Sequence[str], plugin: object) -> int:
    """Run pytest here, and return how it ended."""
    quiet = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line"]
    return int(pytest.main([*quiet, *arguments], plugins=[plugin]))


def is_noticed(mutant: Mutant, rounds: Sequence[Sequence[str]], limit_s: float) -> str:
    """Return why tests notice a mutant (`failed`, `too long`), or `` where none of them does."""
    copy: Path = _STATE["copy"]
    file = copy / mutant.path
    original, at = file.read_bytes(), file.stat()
    _STATE["stamp"] += 1
    try:
        file.write_bytes(mutant.applied(original))
        # Python tells a compiled module's age in seconds, and by the length of its text.
        os.utime(file, (_STATE["stamp"], _STATE["stamp"]))
        for tests in filter(None, rounds):
            files = sorted({test.partition("::")[0] for test in tests})
            chosen = _Chosen(tests)
            ended = in_copy(lambda f=files, c=chosen: run_tests(["-x", *f], c), limit_s)
            if ended not in (0, 5):
                return "too long" if ended is None else "failed"
        return ""
    finally:
        file.write_bytes(original)
        os.utime(file, ns=(at.st_atime_ns, at.st_mtime_ns))
