"""One run of a verb in this process, and what must hold of it whatever the input.

No exception but the end of the program; 0, 1 or 2, and the right one for what was printed; output
within a bound and free of control characters; processor time within a bound; and no file left half
written: what could not be done leaves files as they were.
"""

from __future__ import annotations

import gc
import io
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from shardspec.cli.main import main
from tests.fuzz.steps import put_a_program_in_the_compilers_place

MOST_SECONDS = 5.0
MOST_CHARACTERS = 4_000_000
#: A carriage return stands in the diff of a file that holds one, or `patch` would not take it.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class Run(NamedTuple):
    """What a run of the command line left behind."""

    code: object
    out: str
    err: str
    trouble: str


class TooLongError(BaseException):
    """A run took more of the processor than it may."""


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def run(arguments: list[str], stdin: str = "") -> Run:
    """Return what `shardspec ARGUMENTS` does, in this process."""
    saved = sys.argv, sys.stdin, sys.stdout, sys.stderr
    out, err = io.BytesIO(), io.BytesIO()
    sys.argv = ["shardspec", *arguments]
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode("utf-8", "surrogatepass")), "utf-8")
    sys.stdout = io.TextIOWrapper(out, "utf-8", write_through=True)
    sys.stderr = io.TextIOWrapper(err, "utf-8", errors="backslashreplace", write_through=True)
    code: object = None
    trouble = ""
    if arguments[0] == "verify":
        put_a_program_in_the_compilers_place()
    try:
        with _within(MOST_SECONDS):
            main()
    except SystemExit as end:
        code = end.code
    except TooLongError:
        trouble = "".join(["too long\n", *traceback.format_exc().splitlines(keepends=True)[-12:]])
    except BaseException:
        trouble = traceback.format_exc()
    finally:
        kept = sys.stdout, sys.stderr  # not closed before they are read
        sys.argv, sys.stdin, sys.stdout, sys.stderr = saved
        gc.enable()
    for stream in kept:
        stream.flush()
    texts = (each.getvalue().decode("utf-8", "replace") for each in (out, err))
    return Run(code, *texts, trouble)


def broken_law(arguments: list[str], found: Run) -> str | None:
    """Return which law a run broke."""
    said = found.out + found.err
    if found.trouble:
        return found.trouble
    if found.code not in (0, 1, 2):
        return f"the exit code is {found.code!r}"
    if len(said) > MOST_CHARACTERS:
        return f"{len(said):,} characters of output"
    control = _CONTROL.search(found.err if _prints_the_file(arguments) else said)
    if control and arguments[0] != "schema":
        return f"the output holds {control[0]!r}: {said[max(0, control.start() - 60) :][:120]!r}"
    errors = bool(re.search(r"^error\[SHD", said, re.MULTILINE))
    if (
        found.code == 0
        and errors
        and arguments[0] in ("check", "compile", "cost", "verify", "lock", "mesh", "export")
    ):
        return "the exit code is 0, and an error is printed"
    if found.code != 0 and not said.strip():
        return f"the exit code is {found.code}, and nothing is said"
    return None


def _prints_the_file(arguments: list[str]) -> bool:
    """Say whether standard output is the user's own text, or a patch of it: byte for byte."""
    asked = set(arguments)
    fixes_a_pipe = "-" in asked and bool(asked & {"--fix", "--unsafe-fixes"})
    is_a_patch = arguments[0] == "check" and (fixes_a_pipe or "--diff" in asked)
    return arguments[0] == "fmt" or is_a_patch


def changed_files(before: dict[str, bytes], folder: Path) -> set[str]:
    """Return the names of files that are new, gone or changed, temporary ones included."""
    after = {each.name: each.read_bytes() for each in folder.iterdir() if each.is_file()}
    names = before.keys() | after.keys()
    return {name for name in names if before.get(name) != after.get(name)}


def half_written(arguments: list[str], code: object, changed: set[str], folder: Path) -> str | None:
    """Return which file a run should not have touched, or left not whole."""
    for name in changed:
        if code == 2 and arguments[0] != "check":
            return f"the exit code is 2, and {name} has changed"
        if not (folder / name).exists():
            return f"{name} is gone"
        if re.search(r"\.(tmp|partial|\d+)$", name):
            return f"{name} is left behind"
    if os.path.exists(folder / "out.json") and "out.json" in changed:
        import json

        try:
            json.loads((folder / "out.json").read_text("utf-8"))
        except ValueError as error:
            return f"out.json is not JSON: {error}"
    return None


def written_over(arguments: list[str], changed: set[str]) -> str | None:
    """Return which file that was there a run wrote over, though that is not what it is for.

    Args:
      changed: files that were there before the run and are otherwise now.
    """
    verb, *words = arguments
    if verb == "check" and "--fix" in words:
        return None
    own = {name for name in changed if verb == "lock" and name.endswith(".lock")}
    if verb == "fmt" and "--to" not in words:
        own.add(words[0])
    others = sorted(changed - own)
    return f"{others[0]} was there, and is written over" if others else None
