"""Fields of a protobuf message, as they are on the wire: of a stranger's file, and bounded.

A message is read a level at a time, and only where somebody asks: nesting costs nothing, and what
is not asked for is passed over by its length. Nothing is copied but what is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator

#: A number has so many bytes at most.
_MOST_BYTES = 10
#: Bytes of what has a fixed width, by wire type.
_FIXED = {1: 8, 5: 4}
_NUMBER, _BYTES = 0, 2


class WireError(ValueError):
    """The bytes are no protobuf message."""


def fields(data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """Yield the number of each field and its value: a number, or bytes.

    Raises:
      WireError: the bytes are no message.

    Invariants:
      total: any bytes end, in fields or in a WireError, in time linear in their length.
    """
    at, end = 0, len(data)
    while at < end:
        key, at = _number(data, at, end)
        kind = key & 7
        if not key >> 3:
            raise WireError("a field has the number 0")
        if kind == _NUMBER:
            value, at = _number(data, at, end)
            yield key >> 3, value
            continue
        size = _FIXED.get(kind, 0)
        if kind == _BYTES:
            size, at = _number(data, at, end)
        elif not size:
            raise WireError(f"a field has the wire type {kind}")
        if at + size > end:
            raise WireError("a field goes beyond the end of its message")
        yield key >> 3, data[at : at + size]
        at += size


def _number(data: memoryview, at: int, end: int) -> tuple[int, int]:
    """Return a number of variable length, and where the next byte is."""
    value = shift = 0
    for here in range(at, min(end, at + _MOST_BYTES)):
        byte = data[here]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, here + 1
        shift += 7
    raise WireError("a number does not end")


def message(value: int | memoryview) -> memoryview:
    """Return the message that a field holds.

    Raises:
      WireError: it holds a number.
    """
    if isinstance(value, int):
        raise WireError("a field holds a number where a message is due")
    return value


def number(value: int | memoryview) -> int:
    """Return the number that a field holds, 0 where it holds none."""
    return value if isinstance(value, int) else 0


def text(value: int | memoryview) -> str:
    """Return the text that a field holds; what is no UTF-8 is replaced."""
    return "" if isinstance(value, int) else bytes(value).decode("utf-8", "replace")
