"""Processes that end when the one that started them has ended, also where that one was killed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

#: How often it is looked whether the other process is there.
_POLL_S = 1.0


def end_with(parent: int, first: Callable[[], None] = lambda: None) -> None:
    """End this process when another one has ended that started it, and may have ended already.

    Args:
      parent: the number of the other process.
      first: what is done before.
    """
    threading.Thread(target=_watch, args=(parent, first), daemon=True).start()


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
    first()
    os._exit(1)
