"""The commonest spellings, read without a parser: start-up and long manifests pay for each.

The grammars define the language. These read a part of it in the same way, which a property
test holds them to, and leave everything else to the parser.
"""

from __future__ import annotations

import re

from shardspec.frontend.grammar.refusals import NOTHING
from shardspec.frontend.grammar.syntax import (
    ArrayDim,
    ArrayType,
    MeshSize,
    Name,
    NamesExpr,
    SizeExpr,
)

_ARRAY_TYPE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\[([0-9]{1,15}(?:, [0-9]{1,15})*)\]")
_WORDS = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?: [A-Za-z][A-Za-z0-9_]*)*")
_NUMBER = re.compile(r"[0-9]{1,15}")


def plain_array_type(text: str) -> ArrayType | None:
    """Return the type of sizes alone: `bf16[4096, 512]`."""
    found = _ARRAY_TYPE.fullmatch(text)
    if found is None:
        return None
    start = found.start(2)
    dims = tuple(
        ArrayDim(None, SizeExpr((int(size[0]),)), start + size.start(), start + size.end())
        for size in _NUMBER.finditer(found[2])
    )
    return ArrayType(Name(found[1], 0, found.end(1)), dims)


def plain_names(text: str) -> NamesExpr | None:
    """Return words with one space between them: `embed mlp`."""
    if _WORDS.fullmatch(text) is None:
        return None
    names = []
    start = 0
    for word in text.split(" "):
        if word == "none" or word in NOTHING:
            return None
        names.append(Name(word, start, start + len(word)))
        start += len(word) + 1
    return NamesExpr(tuple(names))


def plain_size(text: str) -> SizeExpr | None:
    """Return a number: `4096`."""
    return SizeExpr((int(text),)) if _NUMBER.fullmatch(text) else None


def plain_mesh_size(text: str) -> MeshSize | None:
    """Return a number above 0, or `rest`."""
    if text == "rest":
        return MeshSize("rest")
    count = int(text) if _NUMBER.fullmatch(text) else 0
    return MeshSize("integer", count) if count else None
