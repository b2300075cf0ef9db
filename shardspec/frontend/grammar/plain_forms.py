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
    AxisTarget,
    MeshSize,
    Name,
    NamesExpr,
    RuleExpr,
    SizeExpr,
)
from shardspec.frontend.grammar.syntax_glob import DoubleStar, Glob, Literal, Part, Star

#: Longer texts are for the parser, which has a limit of its own.
_LONGEST = 1_000

_DIM = r"(?:[A-Za-z][A-Za-z0-9_]*|[0-9]{1,15})"
_ARRAY_TYPE = re.compile(rf"([A-Za-z_][A-Za-z0-9_]*)\[({_DIM}(?:(?:, | ){_DIM})*)\]")
_DIMS = re.compile(_DIM)
_RULE = re.compile(r"([A-Za-z][A-Za-z0-9_]*) -> ([A-Za-z][A-Za-z0-9_]*)")
_STARS = re.compile(r"(\*\*?)")
#: Characters that mean something in a glob, other than the star; and stars in a row.
_NOT_PLAIN = re.compile(r"[?{}\\,]|\*\*\*|[^/]\*\*|\*\*[^/]")
_WORDS = re.compile(r"[A-Za-z][A-Za-z0-9_]*(?: [A-Za-z][A-Za-z0-9_]*)*")
_NUMBER = re.compile(r"[0-9]{1,15}")


def plain_array_type(text: str) -> ArrayType | None:
    """Return the type of sizes or names alone: `bf16[4096, 512]`, `bf16[embed mlp]`."""
    found = _ARRAY_TYPE.fullmatch(text)
    if found is None or len(text) > _LONGEST:
        return None
    dims = []
    for dim in _DIMS.finditer(text, found.start(2), found.end(2)):
        word, start, end = dim[0], dim.start(), dim.end()
        if word == "none" or word in NOTHING:
            return None
        if word.isdigit():
            dims.append(ArrayDim(None, SizeExpr((int(word),)), start, end))
        else:
            dims.append(ArrayDim(Name(word, start, end), None, start, end))
    return ArrayType(Name(found[1], 0, found.end(1)), tuple(dims))


def plain_rule(text: str) -> RuleExpr | None:
    """Return the rule of one name and one mesh axis, or `none`: `mlp -> model`."""
    found = _RULE.fullmatch(text)
    if found is None or len(text) > _LONGEST or found[1] == "none" or found[2] in NOTHING:
        return None
    start, end = found.span(2)
    axes = () if found[2] == "none" else (Name(found[2], start, end),)
    return RuleExpr((Name(found[1], 0, found.end(1)),), (AxisTarget(axes, start, end),))


def plain_glob(text: str) -> Glob | None:
    """Return the glob of text and stars: `**/block_0/*/kernel`."""
    if not 0 < len(text) <= _LONGEST or _NOT_PLAIN.search(text):
        return None
    parts: list[Part] = []
    start = 0
    for piece in _STARS.split(text):
        end = start + len(piece)
        if piece == "**":
            parts.append(DoubleStar(start, end))
        elif piece == "*":
            parts.append(Star(start, end))
        elif piece:
            parts.append(Literal(piece, start, end))
        start = end
    return Glob(tuple(parts))


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
