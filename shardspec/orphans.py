"""Processes that end when the one that started them has ended, also where that one was killed."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import NoReturn

#: How often it is looked whether the other process is there.
_POLL_S = 1.0


def end_with(parent: int, first: Callable[[], None] = lambda: None) -> None:
    """End this process when another one has ended that started it, and may have ended already.

    Args:
      parent: the number of the other process.
      first: what is done before.
    """
    if os.getppid() == parent:
        threading.Thread(target=_watch, args=(parent, first), daemon=True).start()
    else:
        _end(first)


def end_group(leader: int) -> None:
    """End the process of a number, which leads a session of its own, and what it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def forked() -> int:
    """Fork this process; return the number of the child, which ends with this one, and 0 in it."""
    parent = os.getpid()
    child = os.fork()
    if not child:
        end_with(parent)
    return child


def _watch(parent: int, first: Callable[[], None]) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    _end(first)


def _end(first: Callable[[], None]) -> NoReturn:
    first()
    os._exit(1)
