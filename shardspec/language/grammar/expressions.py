"""The small expressions of the language: text -> node, or the fault with its exact place.

A document repeats itself, and presets repeat each other, so every answer is kept by its text.
Nodes hold offsets into that text; `Excerpt.at` makes them places in a file.

The commonest spellings are read without a parser, by `plain_forms`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from shardspec.language.grammar import plain_forms, refusals, syntax
from shardspec.language.grammar.parser import parser
from shardspec.language.grammar.syntax import SyntaxFault

if TYPE_CHECKING:
    from lark import Token, Tree

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
parse_axis_rule = reader(
    "axis_rule", "axis_rule", syntax.axis_rule, refusals.in_rule, plain_forms.plain_rule
)

#: `((replica, data), none)`.
parse_partition = reader("axis_rule", "partition", syntax.partition, refusals.in_partition)

#: `data`, `(replica, data)`.
parse_mesh_axes = reader("axis_rule", "mesh_axes", syntax.mesh_axes, refusals.in_mesh_axes)

#: `before mlp`.
parse_place = reader("names", "place", syntax.place)

#: `batch length embed`.
parse_names = reader("names", "names", syntax.names, refusals.in_names, plain_forms.plain_names)

#: `layers@0`.
parse_scan = reader("names", "scan", syntax.scan, refusals.in_scan, plain_forms.plain_scan)

#: `from **/kernel dims 0 _`.
parse_derived = reader("derived", "derived", syntax.derived, refusals.in_derived)

#: `heads * kv`, `inner + 2 * state`.
parse_size = reader(
    "array_type",
    "size",
    syntax.size,
    plain=lambda text: plain_forms.plain_size(text) or refusals.before_size(text),
)

#: `bf16[embed mlp]`.
parse_array_type = reader(
    "array_type",
    "array_type",
    syntax.array_type,
    refusals.in_array_type,
    lambda text: plain_forms.plain_array_type(text) or refusals.before_size(text),
)

#: `submesh 4x2x2x1`, `tp`.
parse_mesh_size = reader(
    "mesh_axis",
    "mesh_size",
    syntax.mesh_size,
    refusals.in_mesh_size,
    lambda text: plain_forms.plain_mesh_size(text) or refusals.before_mesh_size(text),
)

#: `2 * tpu v5p 4x4x8`.
parse_hardware = reader("hardware", "hardware", syntax.hardware, plain=plain_forms.plain_hardware)

#: `**/mlp/wi_{0,1}/kernel`.
parse_glob = reader(
    "path_pattern",
    "path_pattern",
    syntax.path_pattern,
    refusals.in_glob,
    lambda text: plain_forms.plain_glob(text) or refusals.before_glob(text),
)
