"""Text -> a file: the one place that writes, and what it refuses to write over.

A file that was read is what the user has: a spec, a base, a list of arrays, a saved cost, code. No
verb writes over it, nor over a spec with another one, nor over a spec, a list of arrays, a lock or
a project with something of another kind. The exception is a file that it is the verb's purpose to
write anew: `fmt` its spec, `lock` its lock, `import` what it made before. Whether a file was read
is asked of the file and not of its name: links, hard links and other spellings of a path lead to
the same one.
"""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import suppress
from typing import NamedTuple

from shardspec.diagnostics import SourceFile
from shardspec.language import files
from shardspec.language.calibration import HEAD
from shardspec.language.loader import Kind, kind_of

#: Of a file that is written over, what is looked at to tell what it is.
_LOOKED_AT_BYTES = 2**20
#: How a spec begins that was made from another tool's rules; it replaces no other spec.
IMPORTED = "imported from "
_WAY_OUT = "name another file with -o, or overwrite it with --force"


class Refusal(NamedTuple):
    """Why a file is not written, and the way out."""

    message: str
    help: str


def refusal(path: str, text: str, own: Kind | None = None) -> Refusal | None:
    """Return why a text may not take the place of what `path` leads to; None where it may.

    Args:
      own: of what kind the file is that the verb is there to write anew, though it was read.
    """
    real = os.path.realpath(path)  # what is written: `there/is/no/such/../../../spec.yaml` too
    try:
        about = os.stat(real)
    except (OSError, ValueError):
        return None
    if not os.path.isfile(real):
        return None
    old, there = _kind_there(real, about)
    is_kept = text == there or (is_imported(text) and is_imported(there))
    is_lost = old == "spec" != own and not is_kept
    if is_lost or old not in (None, own, _kind(real, text)):
        return Refusal(f"{path} is a {old}, so it is not overwritten", _WAY_OUT)
    if (old is None or old != own) and about.st_size and (files.was_read(about) or _is_code(about)):
        return Refusal(f"{path} is an input, so it is not overwritten", _WAY_OUT)
    return None


def _kind_there(path: str, about: os.stat_result) -> tuple[Kind | None, str]:
    """Return what the file at a path is, and how it starts."""
    start = ""
    with suppress(OSError), open(path, "rb", opener=files.open_unnoted) as stream:
        start = stream.read(_LOOKED_AT_BYTES).decode("utf-8-sig", errors="replace")
    if os.path.basename(path) == "pyproject.toml":
        return "project file", start
    is_called_so = path.endswith(".shard") or os.path.basename(path) in files.SPEC_NAMES
    return _kind(path, start) or ("spec" if is_called_so and about.st_size else None), start


def is_imported(text: str) -> bool:
    """Say whether `shardspec import` wrote a text."""
    return text.startswith(f"# {IMPORTED}")


def _kind(path: str, text: str) -> Kind | None:
    if text.startswith(f"{HEAD}:"):
        return "calibration"
    return kind_of(SourceFile(path, text))


def _is_code(about: os.stat_result) -> bool:
    """Say whether a file is a module that was imported."""
    names = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    for name in filter(None, names):
        with suppress(OSError, ValueError, TypeError):
            if os.path.samestat(about, os.stat(name)):
                return True
    return False


def replace_file(path: str, text: str) -> None:
    """Write a file whole or not at all: to a temporary name beside it, then rename.

    Raises:
      OSError: it cannot be written.
    """
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
        os.chmod(temporary, _mode(path))
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_device(path: str, text: str) -> None:
    """Write to a device, a pipe or the end of an open file; a pipe that nobody reads is an error.

    Raises:
      OSError: it cannot be written.
    """
    with open(path, "a", encoding="utf-8", opener=_open_at_once) as stream:
        stream.write(text)


def _open_at_once(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    os.set_blocking(descriptor, True)
    return descriptor


def _mode(path: str) -> int:
    """Return the mode of the file that is replaced, or that of a new one."""
    try:
        return os.stat(path).st_mode & 0o777
    except OSError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
