"""Flax's msgpack (`flax.serialization.to_bytes`): nested maps with arrays as leaves.

An array is an extension value that holds shape, dtype and bytes; one above a gigabyte is a map
of such chunks. Shapes and dtypes are read, the bytes are passed over. Numbers are arrays of
rank 0 with the dtype that JAX gives them; text and None are left out, as in a live tree.
Source: flax/serialization.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from shardspec.frontend.manifests.arrays import (
    MOST_ARRAYS,
    Arrays,
    Outcome,
    in_bytes,
    no_dtype,
    refused,
)
from shardspec.frontend.manifests.frugal_file import DamageError, FrugalFile
from shardspec.frontend.manifests.json_text import LARGEST_SIZE, MOST_DIMS
from shardspec.frontend.manifests.msgpack_tokens import Token, Tokens
from shardspec.frontend.manifests.tree_leaves import Leaf, params_of_leaves
from shardspec.ir.param import Shape, array_bytes, dtype_name

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


def read(path: str, name: str) -> Outcome:
    """Return the arrays of a Flax msgpack file."""
    with FrugalFile(path) as file:
        tokens = Tokens(file)
        tree = _node(tokens, 0)
        if tokens.left:
            raise DamageError(f"has {in_bytes(tokens.left)} after the end of its tree")
    leaves = []
    for keys, array in _leaves(tree, ()):
        dtype = dtype_name(array.dtype)
        if dtype is None:
            return refused(no_dtype("/".join(keys), array.dtype, name))
        leaves.append(Leaf(keys, array.shape, dtype))
    return Arrays(params_of_leaves(leaves)), ()


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
    if count > MOST_ARRAYS:
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
    found = None
    if token.code in {_NDARRAY, _NUMPY_SCALAR}:
        found = _ndarray(tokens)
        if tokens.at != end:
            raise DamageError(f"has an array that does not end at byte {end:,}, where it should")
    else:
        tokens.skip(token.number)
    return _Array((), "complex64") if token.code == _COMPLEX else found


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
    if data.kind not in {"text", "bytes"} or (
        known is not None and data.number != array_bytes(shape, _in_memory(known))
    ):
        raise DamageError(f"has an array at byte {at:,} whose bytes do not fit its shape")
    tokens.skip(data.number)
    return _Array(shape, dtype)


def _in_memory(dtype: str) -> str:
    """Return a dtype whose elements take as many bytes as those of `dtype` in numpy."""
    return "u8" if dtype in {"s2", "s4", "u2", "u4", "f4_e2m1fn"} else dtype


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
