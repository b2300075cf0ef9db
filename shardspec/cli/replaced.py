"""What files held before a verb wrote over them, for `shardspec --undo FILE`.

The user's cache folder keeps the text that was replaced last in each file, and a digest of the text
that took its place. It is put back only where the file still holds that text.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

_FOLDER = "replaced"
_MOST_BYTES = 2_000_000


@dataclass(frozen=True, slots=True)
class Replaced:
    """A text that was written over.

    Attributes:
      path: of the file, without links.
      old: what it held.
      new: a digest of what it was given.
    """

    path: str
    old: str
    new: str


def text_of(path: str) -> str | None:
    """Return the text of a file as it is stored; None where there is none of UTF-8."""
    try:
        with open(path, "rb") as stream:
            return stream.read(_MOST_BYTES).decode("utf-8")
    except (OSError, ValueError):
        return None


def keep_replaced(path: str, text: str) -> None:
    """Keep what a file holds, before `text` takes its place."""
    if not os.path.isfile(path) or os.path.getsize(path) >= _MOST_BYTES:
        return
    old = text_of(path)
    if old is not None and old != text:
        from shardspec.jax_backend.xla.cache import keep_entry

        keep_entry(_FOLDER, _digest(path), Replaced(path, old, _digest(text)))


def replaced(path: str) -> str | None:
    """Return the text that was last replaced in a file; None where another has changed it since."""
    from shardspec.jax_backend.xla.cache import entry

    found = entry(_FOLDER, _digest(path), Replaced)
    now = text_of(path)
    if found is None or now is None or (found.path, found.new) != (path, _digest(now)):
        return None
    return found.old


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
