"""Two texts that differ in a few lines -> a unified diff, in time that grows with their length."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any

#: How many lines may differ in a row before the rest of the texts is one change.
_WINDOW = 60

_Opcode = tuple[str, int, int, int, int]


def unified(path: str, old: str, new: str) -> Iterator[str]:
    r"""Yield the lines of a diff that `git apply` and `patch -p1` take.

    A line ends at `\n` alone, as it does for both tools.
    """
    yield f"--- {_header(f'a/{path}')}\n"
    yield f"+++ {_header(f'b/{path}')}\n"
    yield from _hunks(_split(old), _split(new))


def _split(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _header(path: str) -> str:
    """Return a path as git writes it: quoted where it has to be, a tab behind one with spaces."""
    if re.search(r'["\\\x00-\x1f\x7f]', path):
        return '"' + re.sub(r'["\\\x00-\x1f\x7f]', lambda at: f"\\{ord(at[0]):03o}", path) + '"'
    return f"{path}\t" if " " in path else path


def _hunks(old: list[str], new: list[str]) -> Iterator[str]:
    for group in _Matched(list(_opcodes(old, new))).get_grouped_opcodes(3):
        (_, old_from, _, new_from, _), (_, _, old_to, _, new_to) = group[0], group[-1]
        yield f"@@ -{_range(old_from, old_to)} +{_range(new_from, new_to)} @@\n"
        for kind, a, b, c, d in group:
            if kind == "equal":
                yield from (_marked(" ", line) for line in old[a:b])
            else:
                yield from (_marked("-", line) for line in old[a:b])
                yield from (_marked("+", line) for line in new[c:d])


def _range(start: int, end: int) -> str:
    return f"{start + (end > start)},{end - start}"


def _marked(mark: str, line: str) -> str:
    return (
        f"{mark}{line}" if line.endswith("\n") else f"{mark}{line}\n\\ No newline at end of file\n"
    )


class _Matched(difflib.SequenceMatcher[str]):
    """Opcodes that are known, for `difflib` to group."""

    def __init__(self, opcodes: list[_Opcode]) -> None:
        """Keep them."""
        super().__init__()
        self._opcodes: list[Any] = opcodes

    def get_opcodes(self) -> list[Any]:
        """Return them."""
        return self._opcodes


def _opcodes(old: list[str], new: list[str]) -> Iterator[_Opcode]:
    """Yield what is equal and what differs in two texts that differ in a few lines.

    `difflib` takes quadratic time for a file that repeats its lines, so it only gets the places
    where the texts differ.
    """
    at = to = 0
    while at < len(old) or to < len(new):
        start = at
        while at < len(old) and to < len(new) and old[at] == new[to]:
            at, to = at + 1, to + 1
        if at > start:
            yield "equal", start, at, to - at + start, to
        less, more = _resumed(old, new, at, to)
        if less + more > 2 * _WINDOW:
            yield "replace", at, at + less, to, to + more
        else:
            here, there = old[at : at + less], new[to : to + more]
            for kind, a, b, c, d in difflib.SequenceMatcher(None, here, there).get_opcodes():
                yield kind, at + a, at + b, to + c, to + d
        at, to = at + less, to + more


def _resumed(old: Sequence[str], new: Sequence[str], at: int, to: int) -> tuple[int, int]:
    """Return after how few lines of both texts two lines in a row are the same again."""
    for distance in range(_WINDOW):
        for less in range(distance + 1):
            here, there = at + less, to + distance - less
            if (
                here <= len(old)
                and there <= len(new)
                and old[here : here + 2] == new[there : there + 2]
            ):
                return less, distance - less
    return len(old) - at, len(new) - to
