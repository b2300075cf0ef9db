"""Python's `re` under a budget: in a process of its own, so that no pattern can hang this one.

Nothing within a process stops `re` from outside in every thread. So what RE2 cannot express is
asked of a small Python process that has `re` and nothing else; it starts with the first question
(about 20 ms) and answers 10,000 to 20,000 a second, with exactly the answers of `re` here. It
counts its own processor time, so a loaded machine does not make a pattern slow. A pattern that
runs out of its budget is not asked again: it matches nothing, and a finding says so (SHD231).
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from functools import lru_cache
from threading import Lock, Timer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

#: Processor time for one pattern on one path. Each pattern that takes longer halves what the
#: others get, so that a thousand such patterns take seconds and no hours.
BUDGET_SECONDS = 1.0
_LEAST_SECONDS = 0.002
#: The clock on the wall, for systems without timers of processor time and for what never ends.
_WALL_SECONDS = 20.0
_ANSWERS_KEPT = 65_536

_CHILD = r"""
import json, re, signal, sys, warnings
warnings.simplefilter("ignore")
class Out(Exception): pass
def out(*_): raise Out
timer = getattr(signal, "setitimer", None)
if timer: signal.signal(signal.SIGVTALRM, out)
def say(answer):
    sys.stdout.write(answer + "\n")
    sys.stdout.flush()
sys.stdin.reconfigure(encoding="utf-8", errors="surrogatepass")
for line in sys.stdin:
    text, path, seconds = json.loads(line)
    try:
        try:
            if timer: timer(signal.ITIMER_VIRTUAL, seconds)
            answer = "no" if re.compile(text).fullmatch(path) is None else "yes"
        finally:
            if timer: timer(signal.ITIMER_VIRTUAL, 0)
    except (Out, MemoryError, RecursionError):
        answer = "out"
    say(answer)
"""


class _Asker:
    """The other process, started when it is needed and again where it has ended."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.process: subprocess.Popen[str] | None = None
        self.owner = 0
        self.seconds = BUDGET_SECONDS
        #: Pattern -> the path on which it ran out.
        self.ran_out: dict[str, str] = {}
        #: The same, of those that a job asked for.
        self.unanswered: dict[str, str] = {}
        #: Pattern -> why it runs under `re`, for those of which this shows with a path only.
        self.fell_back: dict[str, str] = {}

    def ask(self, text: str, path: str) -> bool:
        """Return whether a pattern matches; False where it ran out, now or before."""
        with self.lock:
            if text in self.ran_out:
                return False
            answer = self._answer(text, path)
            if answer not in ("yes", "no"):
                self.ran_out[text] = self.unanswered[text] = path
                self.seconds = max(self.seconds / 2, _LEAST_SECONDS)
            return answer == "yes"

    def _answer(self, text: str, path: str) -> str:
        """Return `yes`, `no`, `out`, or "" where the process had to be ended or cannot start."""
        try:
            process = self._running()
        except (OSError, ValueError):
            return ""
        answer = ""
        with suppress(OSError, ValueError):
            answer = _said(process, [text, path, self.seconds])
        if not answer:
            self.close()
        return answer

    def _running(self) -> subprocess.Popen[str]:
        """Return the process; one that another process started is not ours to talk to."""
        import subprocess
        from atexit import register

        if self.process is None or self.owner != os.getpid():
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _CHILD],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
                errors="surrogatepass",
            )
            self.owner = os.getpid()
            register(self.close)
        return self.process

    def close(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is not None and self.owner == os.getpid():
            process.kill()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError, ValueError):
                    if stream is not None:
                        stream.close()
            process.wait()


def _said(process: subprocess.Popen[str], question: list[object]) -> str:
    """Return the answer to a question; "" where none came before the clock on the wall."""
    import json
    import select

    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(question, ensure_ascii=False) + "\n")
    process.stdin.flush()
    if os.name == "posix":
        ready, _, _ = select.select([process.stdout], [], [], _WALL_SECONDS)
        return process.stdout.readline().strip() if ready else ""
    timer = Timer(_WALL_SECONDS, process.kill)
    timer.start()
    try:
        return process.stdout.readline().strip()
    finally:
        timer.cancel()


@lru_cache(maxsize=1)
def _asker() -> _Asker:
    return _Asker()


def backtracking_matches(text: str, path: str) -> bool:
    r"""Return what `re.fullmatch` says, or False where the pattern ran out of its budget.

    >>> backtracking_matches(r"(a+)/\1", "aa/aa"), backtracking_matches("(a|a)*b", 40 * "a")
    (True, False)
    """
    asker = _asker()
    if text in asker.ran_out:
        asker.unanswered[text] = asker.ran_out[text]
        return False
    return _asked(text, path)


@lru_cache(maxsize=_ANSWERS_KEPT)
def _asked(text: str, path: str) -> bool:
    return _asker().ask(text, path)


def ran_out() -> dict[str, str]:
    """Return the patterns that ran out of their budget, each with the path on which it did."""
    return _asker().ran_out


def unanswered() -> dict[str, str]:
    """Return those of them that were asked for since `forget_unanswered`."""
    return _asker().unanswered


def forget_unanswered() -> None:
    """Begin a job that is to say which patterns it could not ask."""
    _asker().unanswered.clear()


def note_fallback(text: str, reason: str) -> None:
    """Note that a pattern runs under `re` for a path that RE2 has no room for."""
    _asker().fell_back.setdefault(text, reason)


def fallback_reason(text: str) -> str:
    """Return why a pattern that RE2 can express ran under `re` all the same; "" if it did not."""
    return _asker().fell_back.get(text, "")
