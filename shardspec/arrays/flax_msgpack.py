"""Flax's msgpack (`flax.serialization.to_bytes`): nested maps with arrays as leaves.

An array is an extension value that holds shape, dtype and bytes; one above a gigabyte is a map
of such chunks. Shapes and dtypes are read, the bytes are passed over. Numbers are arrays of
rank 0 with the dtype that JAX gives them; text and None are left out, as in a live tree.

MessagePack is taken apart here, one token at a time, so that what is not wanted is passed over and
never read; the `msgpack` package has to be fed every byte of what it skips.
Source: flax/serialization.py; the format's description, msgpack/msgpack, spec.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple, TypeAlias

from shardspec.arrays import reading
from shardspec.arrays.reading import LARGEST_SIZE, MOST_DIMS, DamageError, FrugalFile
from shardspec.ir.spec import Arrays, Shape, array_bytes, dtype_name

_CHUNKED = "__msgpack_chunked_array__"
_NDARRAY, _COMPLEX, _NUMPY_SCALAR = 1, 2, 3

#: What JAX makes of a Python number.
_SCALARS = {"bool": "bool", "int": "int32", "float": "float32"}

_DEEPEST = 100
_LONGEST_KEY = 4096


class _Array(NamedTuple):
    """What is known of an array without its bytes."""

    shape: Shape
    dtype: str


#: A value of the tree; a number may be a size of an array in chunks.
_Node: TypeAlias = "dict[str, _Node] | _Array | int | None"


def read(path: str, name: str) -> reading.Outcome:
    """Return the arrays of a Flax msgpack file."""
    with FrugalFile(path) as file:
        tokens = Tokens(file)
        tree = _node(tokens, 0)
        if tokens.left:
            raise DamageError(f"has {reading.in_bytes(tokens.left)} after the end of its tree")
    leaves = []
    for keys, array in _leaves(tree, ()):
        dtype = dtype_name(array.dtype)
        if dtype is None:
            return reading.refused(reading.no_dtype("/".join(keys), array.dtype, name))
        leaves.append(reading.Leaf(keys, array.shape, dtype))
    return Arrays(reading.params_of_leaves(leaves)), ()


def _node(tokens: Tokens, depth: int) -> _Node:
    """Return the next value, arrays without their bytes."""
    token = tokens.token()
    if depth > _DEEPEST:
        raise DamageError(f"is nested deeper than {_DEEPEST} levels")
    if token.kind == "map":
        return _map(tokens, token.number, depth)
    if token.kind == "array":
        return {str(index): _node(tokens, depth + 1) for index in range(_few(token.number))}
    if token.kind == "ext":
        return _extension(tokens, token)
    if token.kind in {"text", "bytes"}:
        tokens.skip(token.number)
    if token.kind in _SCALARS:
        return token.number if token.kind == "int" else _Array((), _SCALARS[token.kind])
    return None


def _few(count: int) -> int:
    if count > reading.MOST_ARRAYS:
        raise DamageError(f"has a node of {count:,} children")
    return count


def _map(tokens: Tokens, count: int, depth: int) -> _Node:
    children: dict[str, _Node] = {}
    for _ in range(_few(count)):
        key = _key(tokens)
        if key in children:
            raise DamageError(f"has the key `{key}` twice in one node")
        children[key] = _node(tokens, depth + 1)
    return _whole(children) if _CHUNKED in children else children


def _key(tokens: Tokens) -> str:
    at, token = tokens.at, tokens.token()
    if token.kind == "int":
        return str(token.number)
    if token.kind != "text" or token.number > _LONGEST_KEY:
        raise DamageError(f"is no tree of arrays: the key at byte {at:,} is no name")
    return _text(tokens, token.number)


def _text(tokens: Tokens, size: int) -> str:
    try:
        return tokens.take(size).decode("utf-8")
    except UnicodeDecodeError:
        raise DamageError(f"has a name that is not UTF-8 before byte {tokens.at:,}") from None


def _extension(tokens: Tokens, token: Token) -> _Array | None:
    """Return the array that an extension value is."""
    end = tokens.at + token.number
    if token.code not in {_NDARRAY, _NUMPY_SCALAR}:
        tokens.skip(token.number)
        return _Array((), "complex64") if token.code == _COMPLEX else None
    found = _ndarray(tokens)
    if tokens.at != end:
        raise DamageError(f"has an array that does not end at byte {end:,}, where it should")
    return found


def _ndarray(tokens: Tokens) -> _Array:
    at = tokens.at
    parts, rank = tokens.token(), tokens.token()
    if parts != Token("array", 3) or rank.kind != "array" or rank.number > MOST_DIMS:
        raise DamageError(f"has an array without shape, dtype and bytes at byte {at:,}")
    sizes = [tokens.token() for _ in range(rank.number)]
    if not all(size.kind == "int" and 0 <= size.number < LARGEST_SIZE for size in sizes):
        raise DamageError(f"has an array at byte {at:,} whose shape is no list of sizes")
    shape = tuple(size.number for size in sizes)
    word = tokens.token()
    if word.kind not in {"text", "bytes"} or word.number > _LONGEST_KEY:
        raise DamageError(f"has an array at byte {at:,} without a dtype")
    dtype = _text(tokens, word.number)
    data = tokens.token()
    known = dtype_name(dtype)
    # In numpy, elements of less than a byte take one.
    known = "u8" if known in {"s2", "s4", "u2", "u4", "f4_e2m1fn"} else known
    fits = known is None or data.number == array_bytes(shape, known)
    if data.kind not in {"text", "bytes"} or not fits:
        raise DamageError(f"has an array at byte {at:,} whose bytes do not fit its shape")
    tokens.skip(data.number)
    return _Array(shape, dtype)


def _whole(chunked: dict[str, _Node]) -> _Array:
    """Return the array that a map of chunks is."""
    sizes, chunks = chunked.get("shape"), chunked.get("chunks")
    pieces = list(chunks.values()) if isinstance(chunks, dict) else []
    arrays = [piece for piece in pieces if isinstance(piece, _Array)]
    shape = tuple(sizes.values()) if isinstance(sizes, dict) else (None,)
    ints = tuple(size for size in shape if type(size) is int and 0 <= size < LARGEST_SIZE)
    whole = len(ints) == len(shape) <= MOST_DIMS and len(arrays) == len(pieces) > 0
    if not whole or len({array.dtype for array in arrays}) > 1:
        raise DamageError("has an array in chunks that do not fit together")
    if sum(math.prod(array.shape) for array in arrays) != math.prod(ints):
        raise DamageError("has an array in chunks that are not as many as its shape needs")
    return _Array(ints, arrays[0].dtype)


def _leaves(node: _Node, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], _Array]]:
    """Yield the arrays of a tree with the keys that lead to them."""
    if isinstance(node, dict):
        for key, child in node.items():
            yield from _leaves(child, (*keys, key))
    elif isinstance(node, _Array):
        yield keys, node
    elif node is not None:
        yield keys, _Array((), _SCALARS["int"])


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
            raise reading.cut_off(self.at, size, self.left)
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
            raise reading.cut_off(self.at, token.number * least, self.left)
        return token
