"""`--watch`: a verb again, whenever a file that it read has changed.

Files are looked at by size and time, a few times a second: that works on every file system, and a
spec with its presets, manifests and checkpoints is few files.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import NoReturn

from shardspec.cli.request import Request
from shardspec.cli.streams import Failure, show_failure
from shardspec.diagnostics.words import counted
from shardspec.language.files import forget_what_was_read, paths_read

_POLL_SECONDS = 0.3
_CLEAR = "\x1b[2J\x1b[H"


def watched(work: Callable[[], NoReturn], request: Request) -> NoReturn:
    """Do some work now, and after each change of a file that it read; only Ctrl-C ends it."""
    while True:
        if sys.stdout.isatty():
            sys.stdout.write(_CLEAR)
        forget_what_was_read()
        try:
            work()
        except SystemExit:
            pass
        except Failure as failure:
            show_failure(failure)
        sys.stdout.flush()
        files = {*paths_read(), *map(os.path.abspath, request.named)}
        request.remark(f"watching {counted(len(files), 'file')}; Ctrl-C ends it")
        wait_for_change(files)


def wait_for_change(files: Iterable[str]) -> None:
    """Return once one of the files has changed, is gone or has come."""
    before = {file: _stamp(file) for file in files}
    while all(_stamp(file) == stamp for file, stamp in before.items()):
        time.sleep(_POLL_SECONDS)


def _stamp(file: str) -> tuple[int, int, int] | None:
    try:
        about = os.stat(file)
    except OSError:
        return None
    return about.st_ino, about.st_size, about.st_mtime_ns
