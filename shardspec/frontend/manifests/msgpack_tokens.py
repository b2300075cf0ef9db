"""MessagePack, one token at a time, so that what is not wanted is skipped and never read.

Source: the format's description, msgpack/msgpack, spec.md.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from shardspec.frontend.manifests.frugal_file import DamageError, FrugalFile

Kind = Literal["map", "array", "text", "bytes", "ext", "int", "float", "bool", "nil"]

#: What is read at once: the head of an array and a few keys.
_WINDOW = 512


class Token(NamedTuple):
    """The head of a value.

    Attributes:
      number: entries of a map or array, bytes of text, bytes and ext, the value of an int.
      code: the type that an ext says it has.
    """

    kind: Kind
    number: int = 0
    code: int = 0


_FIXED: tuple[tuple[range, Kind, int], ...] = (
    (range(0x80), "int", 0x00),
    (range(0x80, 0x90), "map", 0x80),
    (range(0x90, 0xA0), "array", 0x90),
    (range(0xA0, 0xC0), "text", 0xA0),
    (range(0xE0, 0x100), "int", 0x100),
)

#: First byte -> what follows, and the width in bytes of its count.
_COUNTED: dict[int, tuple[Kind, int]] = {
    **{0xC4 + step: ("bytes", 1 << step) for step in range(3)},
    **{0xC7 + step: ("ext", 1 << step) for step in range(3)},
    **{0xCC + step: ("int", 1 << step) for step in range(4)},
    **{0xD0 + step: ("int", 1 << step) for step in range(4)},
    **{0xD9 + step: ("text", 1 << step) for step in range(3)},
    **{0xDC + step: ("array", 2 << step) for step in range(2)},
    **{0xDE + step: ("map", 2 << step) for step in range(2)},
}
_FLOATS = {0xCA: 4, 0xCB: 8}
_EXTS = {0xD4 + step: 1 << step for step in range(5)}
_NEGATIVE = range(0xD0, 0xD4)


class Tokens:
    """The tokens of a file from where it stands on.

    Attributes:
      at: the byte after the last token, or after what was skipped.
    """

    def __init__(self, file: FrugalFile) -> None:
        """Start at the first byte."""
        self.at = 0
        self._file = file
        self._buffer = b""
        self._start = 0

    @property
    def left(self) -> int:
        """Return how many bytes there still are."""
        return self._file.size - self.at

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        if size > self.left:
            raise self._cut_off(size)
        offset = self.at - self._start
        if offset < 0 or offset + size > len(self._buffer):
            self._file.seek(self.at)
            self._start, offset = self.at, 0
            self._buffer = self._file.read(max(size, _WINDOW))
        self.at += size
        return self._buffer[offset : offset + size]

    def skip(self, size: int) -> None:
        """Pass over the next bytes, which must be there."""
        if size > self.left:
            self.take(size)
        self.at += size

    def number(self, size: int, *, signed: bool = False) -> int:
        """Return the next bytes as a number."""
        return int.from_bytes(self.take(size), "big", signed=signed)

    def token(self) -> Token:
        """Return the head of the next value; text, bytes and ext are then still to come."""
        first = self.take(1)[0]
        for values, kind, zero in _FIXED:
            if first in values:
                return self._room(Token(kind, first - zero))
        if first in _COUNTED:
            return self._counted(first, *_COUNTED[first])
        if first in _EXTS:
            return self._room(Token("ext", _EXTS[first], self.number(1, signed=True)))
        if first in _FLOATS:
            self.skip(_FLOATS[first])
            return Token("float")
        if first in {0xC2, 0xC3}:
            return Token("bool")
        if first != 0xC0:
            raise DamageError(f"is no msgpack at byte {self.at - 1:,}: no value starts with 0xc1")
        return Token("nil")

    def _counted(self, first: int, kind: Kind, width: int) -> Token:
        count = self.number(width, signed=first in _NEGATIVE)
        code = self.number(1, signed=True) if kind == "ext" else 0
        return self._room(Token(kind, count, code))

    def _room(self, token: Token) -> Token:
        """Return the token, if what it announces can be in the rest of the file."""
        least = {"map": 2, "array": 1, "text": 1, "bytes": 1, "ext": 1}.get(token.kind, 0)
        if token.number * least > self.left:
            raise self._cut_off(token.number * least)
        return token

    def _cut_off(self, needed: int) -> DamageError:
        where = f"byte {self.at:,}: {needed:,} more are needed and {self.left:,} are left"
        return DamageError(f"is cut off at {where}")
