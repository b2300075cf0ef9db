"""The small expressions of the language: text -> node, or the fault with its exact place.

A document repeats itself, and presets repeat each other, so every answer is kept by its text.
Nodes hold offsets into that text; `Excerpt.at` makes them places in a file.

The commonest spellings are read without a parser (`plain_...`): start-up and long manifests pay
for each. The grammars define the language; these read a part of it in the same way, which a
property test holds them to, and leave everything else to the parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from shardspec.language.grammar import refusals, syntax
from shardspec.language.grammar.parser import parser
from shardspec.language.grammar.refusals import NOTHING
from shardspec.language.grammar.syntax import SyntaxFault

if TYPE_CHECKING:
    from lark import Token, Tree

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


def plain_array_type(text: str) -> syntax.ArrayType | None:
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
            dims.append(syntax.ArrayDim(None, syntax.product(int(word)), start, end))
        else:
            dims.append(syntax.ArrayDim(syntax.Name(word, start, end), None, start, end))
    return syntax.ArrayType(syntax.Name(found[1], 0, found.end(1)), tuple(dims))


def plain_rule(text: str) -> syntax.RuleExpr | None:
    """Return the rule of one name and one mesh axis, or `none`: `mlp -> model`."""
    found = _RULE.fullmatch(text)
    if found is None or len(text) > _LONGEST or found[1] == "none" or found[2] in NOTHING:
        return None
    start, end = found.span(2)
    axes = () if found[2] == "none" else (syntax.Name(found[2], start, end),)
    return syntax.RuleExpr(
        (syntax.Name(found[1], 0, found.end(1)),), (syntax.AxisTarget(axes, start, end),)
    )


def plain_glob(text: str) -> syntax.Glob | None:
    """Return the glob of text and stars: `**/block_0/*/kernel`."""
    if not 0 < len(text) <= _LONGEST or _NOT_PLAIN.search(text):
        return None
    parts: list[syntax.Part] = []
    start = 0
    for piece in _STARS.split(text):
        end = start + len(piece)
        if piece == "**":
            parts.append(syntax.DoubleStar(start, end))
        elif piece == "*":
            parts.append(syntax.Star(start, end))
        elif piece:
            parts.append(syntax.GlobText(piece, start, end))
        start = end
    return syntax.Glob(tuple(parts))


def plain_names(text: str) -> syntax.NamesExpr | None:
    """Return words with one space between them: `embed mlp`."""
    if _WORDS.fullmatch(text) is None:
        return None
    names = []
    start = 0
    for word in text.split(" "):
        if word == "none" or word in NOTHING:
            return None
        names.append(syntax.Name(word, start, start + len(word)))
        start += len(word) + 1
    return syntax.NamesExpr(tuple(names))


def plain_size(text: str) -> syntax.SizeExpr | None:
    """Return a number: `4096`."""
    return syntax.product(int(text)) if _NUMBER.fullmatch(text) else None


def plain_mesh_size(text: str) -> syntax.MeshSize | None:
    """Return a number above 0, or `rest`."""
    if text == "rest":
        return syntax.MeshSize("rest")
    count = int(text) if _NUMBER.fullmatch(text) else 0
    return syntax.MeshSize("integer", count) if count else None


T = TypeVar("T")

#: Answers of each kind: those of a file of a megabyte.
_KEPT = 16_384


def _parse(
    grammar: str,
    start: str,
    text: str,
    make: Callable[[Tree[Token]], T],
    refuse: Callable[[T], SyntaxFault | None] = lambda node: None,
) -> T | SyntaxFault:
    """Return what `make` makes of the tree, unless lark or `refuse` has something against it."""
    from lark.exceptions import UnexpectedInput

    long = refusals.too_long(text)
    if long is not None:
        return long
    machine = parser(grammar)
    try:
        tree = machine.parse(text, start=start)
    except UnexpectedInput:
        from shardspec.language.grammar.parse_faults import explain_fault

        return explain_fault(machine, start, text)
    huge = refusals.huge_number(tree)
    if huge is not None:
        return huge
    node = make(tree)
    return refuse(node) or node


def reader(
    grammar: str,
    start: str,
    make: Callable[[Tree[Token]], T],
    refuse: Callable[[T], SyntaxFault | None] = lambda node: None,
    plain: Callable[[str], T | SyntaxFault | None] = lambda text: None,
) -> Callable[[str], T | SyntaxFault]:
    """Return the function that reads one kind of expression, and keeps its answers.

    Args:
      grammar, start, make, refuse: as `_parse` takes them.
      plain: what reads the commonest spellings, and None for others.
    """

    @lru_cache(_KEPT)
    def read(text: str) -> T | SyntaxFault:
        found = plain(text)
        if found is not None:
            return found
        return _parse(grammar, start, text, make, refuse)

    return read


#: `mlp, heads -> model | (replica, data) | none @ 5`.
parse_axis_rule = reader("axis_rule", "axis_rule", syntax.axis_rule, refusals.in_rule, plain_rule)

#: `((replica, data), none)`.
parse_partition = reader("axis_rule", "partition", syntax.partition, refusals.in_partition)

#: `data`, `(replica, data)`.
parse_mesh_axes = reader("axis_rule", "mesh_axes", syntax.mesh_axes, refusals.in_mesh_axes)

#: `before mlp`.
parse_place = reader("names", "place", syntax.place)

#: `batch length embed`.
parse_names = reader("names", "names", syntax.names, refusals.in_names, plain_names)

#: `layers@0`.
parse_scan = reader("names", "scan", syntax.scan, refusals.in_scan)

#: `from **/kernel dims 0 _`.
parse_derived = reader("derived", "derived", syntax.derived, refusals.in_derived)

#: `heads * kv`, `inner + 2 * state`.
parse_size = reader(
    "array_type",
    "size",
    syntax.size,
    plain=lambda text: plain_size(text) or refusals.before_size(text),
)

#: `bf16[embed mlp]`.
parse_array_type = reader(
    "array_type",
    "array_type",
    syntax.array_type,
    refusals.in_array_type,
    lambda text: plain_array_type(text) or refusals.before_size(text),
)

#: `submesh 4x2x2x1`, `tp`.
parse_mesh_size = reader(
    "mesh_axis",
    "mesh_size",
    syntax.mesh_size,
    refusals.in_mesh_size,
    lambda text: plain_mesh_size(text) or refusals.before_mesh_size(text),
)

#: `2 * tpu v5p 4x4x8`.
parse_hardware = reader("hardware", "hardware", syntax.hardware)

#: `**/mlp/wi_{0,1}/kernel`.
parse_glob = reader(
    "path_pattern",
    "path_pattern",
    syntax.path_pattern,
    refusals.in_glob,
    lambda text: plain_glob(text) or refusals.before_glob(text),
)
