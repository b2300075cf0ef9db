r"""Regular expressions from a spec: Python's meaning, in linear time wherever RE2 means the same.

A pattern in a file must not hang the compiler: `(\w+/?)+kernel` takes Python's `re` most of a
minute on a path of 34 characters. So RE2 is asked, and given the text itself. The two dialects
agree on most patterns and differ where nobody looks: what `\w` and `\s` hold beyond ASCII, where
`$` stands before a line break, what `(?i)` folds, what `{,3}` repeats. So RE2 is asked only where
it says what `re` says: about patterns that are not among the few of `_misread`, and about paths
whose characters mean the same to both (`is_alike`). Everything else runs under `re`
within a budget, and says why. Either way the answer is that of `re.fullmatch`.

A set of patterns is one automaton: a path is read once for all of them. A set that runs out of
memory answers "no match", so a last pattern that always matches says that it did not.

`re` runs in a process of its own: nothing within a process stops it from outside in every thread.
The process has `re` and nothing else; it starts with the first question (about 20 ms) and answers
10,000 to 20,000 a second, with exactly the answers of `re` here. It counts its own processor time,
so a loaded machine does not make a pattern slow. A pattern that runs out of its budget is not asked
again: it matches nothing, and a finding says so (SHD231).
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shardspec.language.grammar.syntax import SyntaxFault

if TYPE_CHECKING:
    import subprocess

Engine = Literal["re2", "re"]

#: Characters, of a glob and of a regex: more than any that was written by hand.
MAX_LENGTH = 10_000

#: Patterns that are kept compiled: those of a file of a megabyte. With room for fewer than a spec
#: has, each would be compiled anew for each array.
KEPT = 16_384

MAX_DEPTH = 50
MAX_REPEAT = 1_000  # RE2 refuses more, since it unrolls them
MEMORY_BYTES = 64 << 20

_ALWAYS = r"(?s:.*)"
_TOO_LARGE = "its size: RE2 would need too much memory"
_FOLDS = re.compile(r"\(\?[a-z]*i")

#: What RE2 takes for something else, as it stands in the text, and why it is not asked.
_OTHER_MEANING = (
    (re.compile(r"\[:"), "`[:`, which RE2 takes for the name of a set"),
    (re.compile(r"\{,|[{,]0[0-9]"), "`{,n}` or `{0n}`, which RE2 takes for text"),
    (re.compile("[\ud800-\udfff]"), "half of a surrogate pair"),
)

#: What RE2 lacks, by the names that Python's parser has for it.
_LACKING = {
    "GROUPREF": "a backreference",
    "GROUPREF_EXISTS": "a conditional group",
    "ATOMIC_GROUP": "an atomic group",
    "POSSESSIVE_REPEAT": "a possessive repeat",
}


class Regex(NamedTuple):
    r"""A pattern that is ready to match.

    Attributes:
      text: the pattern as Python spells it.
      engine: `re2` is linear in the path; `re` may backtrack until its budget is spent.
      reason: for `re`: what keeps RE2 from it, e.g. "a backreference".
      is_for_ascii: for `re2`: it has `\w`, `\b`, `(?i)` or the like, where RE2 has ASCII in mind.

    Invariants:
      same_answers: `matches(path)` is `re.fullmatch(text, path) is not None`, within the budget.
    """

    text: str
    engine: Engine
    reason: str = ""
    is_for_ascii: bool = False

    def matches(self, path: str) -> bool:
        """Say whether the pattern matches the whole path."""
        if self.engine == "re2":
            beyond = f"RE2 does not read {path!a} as Python does"
            pattern = re2_pattern(self.text) if is_alike(path, self.is_for_ascii) else beyond
            if not isinstance(pattern, str):
                return pattern.fullmatch(path) is not None
            note_fallback(self.text, pattern)
        return backtracking_matches(self.text, path)


def is_alike(path: str, is_for_ascii: bool) -> bool:
    """Say whether a path means the same to RE2 and to `re`: nearly all are printable ASCII.

    Args:
      is_for_ascii: whether the patterns in question are for ASCII (`Regex.is_for_ascii`).
    """
    return path.isprintable() and path != "" and (not is_for_ascii or path.isascii())


@lru_cache(maxsize=KEPT)
def compile_regex(text: str) -> Regex | SyntaxFault:
    r"""Return a Python regex ready to match whole paths, or what is wrong with it.

    >>> compile_regex(r"(.*)/(query|key)/kernel").engine
    're2'
    >>> compile_regex(r"(a+)/\1").reason
    'a backreference'
    """
    if len(text) > MAX_LENGTH:
        message = f"a regex of {len(text):,} characters is too long"
        return SyntaxFault(message, 0, len(text), f"at most {MAX_LENGTH:,} characters")
    try:
        parts = tuple(_parts(parsed(text), MAX_DEPTH))
        reason = _misread(text, parts) or _refused(text)
        if reason:
            python_regex(text)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        return _fault(text, error)
    is_for_ascii = _FOLDS.search(text) is not None or any(part.is_for_ascii for part in parts)
    return Regex(text, "re", reason) if reason else Regex(text, "re2", "", is_for_ascii)


@lru_cache(maxsize=KEPT)
def parsed(text: str) -> Any:
    """Return what Python's own parser makes of a regex: pairs of an operation and its arguments."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_module("re._parser").parse(text)


@lru_cache(maxsize=KEPT)
def python_regex(text: str) -> re.Pattern[str]:
    """Return a pattern compiled by `re`, without its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return re.compile(text)


def regex_literal(text: str) -> str | None:
    """Return the one text that a regex matches, where it spells it out."""
    if isinstance(compile_regex(text), SyntaxFault):
        return None
    found = parsed(text)
    if found.state.flags & re.IGNORECASE or any(part.name != "LITERAL" for part, _ in found):
        return None
    return "".join(chr(code) for _, code in found)


class _Part(NamedTuple):
    """One operation of a parsed regex, and what it is given."""

    name: str
    given: Any

    @property
    def is_for_ascii(self) -> bool:
        r"""Say whether RE2 has ASCII alone in mind: a class such as `\w`, or a word boundary."""
        return self.name == "CATEGORY" or (self.name == "AT" and "BOUNDARY" in self.given.name)


def _parts(sequence: Any, depth: int) -> Iterator[_Part]:
    """Yield all operations of a parsed regex."""
    if depth == 0:
        raise RecursionError
    for operation, given in sequence:
        part = _Part(operation.name, given)
        yield part
        for inner in _inside(part):
            yield from _parts(inner, depth - (part.name == "SUBPATTERN"))


def _inside(part: _Part) -> tuple[Any, ...]:
    """Return the sequences that an operation holds, where RE2 might know it."""
    match part.name:
        case "BRANCH":
            return tuple(part.given[1])
        case "SUBPATTERN":
            return (part.given[3],)
        case "MAX_REPEAT" | "MIN_REPEAT":
            return (part.given[2],)
        case "IN":
            return (part.given,)
    return ()


def _misread(text: str, parts: Iterable[_Part]) -> str:
    """Return what RE2 would lack or take for something else; "" where it reads what `re` reads."""
    for name, given in parts:
        if name in _LACKING:
            return _LACKING[name]
        if name in ("ASSERT", "ASSERT_NOT"):
            negative = "negative " if name == "ASSERT_NOT" else ""
            return f"a {negative}look{'ahead' if given[0] > 0 else 'behind'}"
        if name.endswith("REPEAT") and _is_beyond(given[0], given[1]):
            return f"a repetition of more than {MAX_REPEAT:,}"
    for sign, reason in _OTHER_MEANING:
        if sign.search(text):
            return reason
    folds = not text.isascii() and _FOLDS.search(text)
    return "`(?i)` beside letters that are not ASCII" if folds else ""


def _is_beyond(least: Any, most: Any) -> bool:
    unlimited = most is import_module("re._constants").MAXREPEAT
    return int(least if unlimited else most) > MAX_REPEAT


def _refused(text: str) -> str:
    """Return why RE2 does not take a pattern, or ""."""
    if not has_re2():
        return "google-re2, which is not installed"
    found = re2_pattern(text)
    return found if isinstance(found, str) else ""


def _fault(text: str, error: Exception) -> SyntaxFault:
    """Return what Python says is wrong with a pattern, and where."""
    if isinstance(error, RecursionError):
        help = f"at most {MAX_DEPTH} groups inside each other"
        return SyntaxFault("the regex nests too deeply", 0, len(text), help)
    position = getattr(error, "pos", None)
    said = str(getattr(error, "msg", None) or error)
    if said.startswith("Exceeds the limit"):
        said = "the repetition number is too large"
    message = f"not a regular expression: {said}"
    help = "write a regex of Python; a glob such as `**/kernel` is written without `re` or `match`"
    start = min(position or 0, max(len(text) - 1, 0))
    end = len(text) if position is None else min(start + 1, len(text))
    return SyntaxFault(message, start, end, help)


@lru_cache(maxsize=1)
def has_re2() -> bool:
    """Say whether google-re2 is installed; without it, patterns run under `re`."""
    return find_spec("re2") is not None


@lru_cache(maxsize=KEPT)
def re2_pattern(source: str) -> Any:
    """Return one compiled pattern, or the text that says why RE2 refuses it."""
    import re2

    try:
        return re2.compile(source, _options())
    except re2.error as error:
        said = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
        is_large = "too large" in said or "repetition size" in said
        return _TOO_LARGE if is_large else f"RE2 does not know it ({said})"


@dataclass(frozen=True, slots=True)
class Re2Set:
    """Patterns compiled together.

    Attributes:
      count: how many; the pattern that always matches comes after them.
    """

    count: int
    compiled: Any = field(compare=False, repr=False)

    def indices(self, text: str) -> list[int] | None:
        """Return which patterns match the whole of `text`, or None when memory ran out."""
        found: list[int] | None = self.compiled.Match(text)
        if found is None:
            return None
        found.remove(self.count)
        return found

    def first(self, text: str) -> int | None:
        """Return the first pattern that matches, `count` for none, None when memory ran out."""
        found = self.compiled.Match(text)
        return None if found is None else min(found)


def re2_set(sources: Iterable[str]) -> Re2Set | None:
    """Return patterns compiled together, or None where RE2 refuses them."""
    import re2

    compiled = re2.Set.FullMatchSet(_options())
    try:
        count = len([compiled.Add(source) for source in sources])
        compiled.Add(_ALWAYS)
        compiled.Compile()
    except re2.error:
        return None
    return Re2Set(count, compiled)


def re2_filters(sources: Sequence[str], start: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield what tells which patterns a text may match: the first one's number, and a filter.

    RE2 refuses to file too many together, so they are divided then.

    Args:
      sources: patterns that RE2 takes.
      start: the number of the first.
    """
    import re2

    filed = re2.Filter()
    for source in sources:
        filed.Add(source, _options())
    try:
        filed.Compile()
        yield start, filed
    except re2.error:
        half = len(sources) // 2
        parts = (sources[:half], sources[half:]) if half else ([_ALWAYS],)
        for at, part in enumerate(parts):
            yield from re2_filters(part, start + at * half)


def _options() -> Any:
    import re2

    options = re2.Options()
    options.max_mem = MEMORY_BYTES
    options.log_errors = False
    return options


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
