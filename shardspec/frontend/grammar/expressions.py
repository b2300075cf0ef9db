"""The small expressions of the language: text -> node, or the fault with its exact place.

A document repeats itself, and presets repeat each other, so every answer is kept by its text.
Nodes hold offsets into that text; `Excerpt.at` makes them places in a file.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from shardspec.frontend.grammar import plain_forms, refusals, transform
from shardspec.frontend.grammar.parser import parser
from shardspec.frontend.grammar.syntax import (
    ArrayType,
    AxisTarget,
    HardwareExpr,
    MeshSize,
    NamesExpr,
    PartitionExpr,
    PlaceExpr,
    RuleExpr,
    ScanExpr,
    SizeExpr,
    SyntaxFault,
)
from shardspec.frontend.grammar.syntax_glob import Glob

if TYPE_CHECKING:
    from lark import Token, Tree

T = TypeVar("T")

#: Answers of each kind: those of a file of a megabyte.
_KEPT = 16_384


@lru_cache(_KEPT)
def parse_axis_rule(text: str) -> RuleExpr | SyntaxFault:
    """Return the rule in `text`: `mlp, heads -> model | (replica, data) | none @ 5`."""
    plain = plain_forms.plain_rule(text)
    if plain is not None:
        return plain
    return _parse("axis_rule", "axis_rule", text, transform.axis_rule, refusals.in_rule)


@lru_cache(_KEPT)
def parse_partition(text: str) -> PartitionExpr | SyntaxFault:
    """Return the partition in `text`: `((replica, data), none)`."""
    return _parse("axis_rule", "partition", text, transform.partition, refusals.in_partition)


@lru_cache(_KEPT)
def parse_mesh_axes(text: str) -> AxisTarget | SyntaxFault:
    """Return the mesh axes in `text`: `data`, `(replica, data)`."""
    return _parse("axis_rule", "mesh_axes", text, transform.mesh_axes, refusals.in_mesh_axes)


@lru_cache(_KEPT)
def parse_place(text: str) -> PlaceExpr | SyntaxFault:
    """Return the place in `text`: `before mlp`."""
    return _parse("names", "place", text, transform.place)


@lru_cache(_KEPT)
def parse_names(text: str) -> NamesExpr | SyntaxFault:
    """Return the logical axes in `text`: `batch length embed`."""
    plain = plain_forms.plain_names(text)
    if plain is not None:
        return plain
    return _parse("names", "names", text, transform.names, refusals.in_names)


@lru_cache(_KEPT)
def parse_scan(text: str) -> ScanExpr | SyntaxFault:
    """Return the stacked axes in `text`: `layers@0`."""
    return _parse("names", "scan", text, transform.scan, refusals.in_scan)


@lru_cache(_KEPT)
def parse_size(text: str) -> SizeExpr | SyntaxFault:
    """Return the product in `text`: `heads * kv`."""
    plain = plain_forms.plain_size(text)
    if plain is not None:
        return plain
    return _parse("array_type", "size", text, transform.size)


@lru_cache(_KEPT)
def parse_array_type(text: str) -> ArrayType | SyntaxFault:
    """Return the type in `text`: `bf16[embed mlp]`."""
    plain = plain_forms.plain_array_type(text)
    if plain is not None:
        return plain
    return _parse("array_type", "array_type", text, transform.array_type, refusals.in_array_type)


@lru_cache(_KEPT)
def parse_mesh_size(text: str) -> MeshSize | SyntaxFault:
    """Return the size in `text`: `submesh 4x2x2x1`."""
    plain = plain_forms.plain_mesh_size(text)
    if plain is not None:
        return plain
    return _parse("mesh_axis", "mesh_size", text, transform.mesh_size, refusals.in_mesh_size)


@lru_cache(_KEPT)
def parse_hardware(text: str) -> HardwareExpr | SyntaxFault:
    """Return the machine in `text`: `2 * tpu v5p 4x4x8`."""
    return _parse("hardware", "hardware", text, transform.hardware)


@lru_cache(_KEPT)
def parse_glob(text: str) -> Glob | SyntaxFault:
    """Return the glob in `text`: `**/mlp/wi_{0,1}/kernel`."""
    plain = plain_forms.plain_glob(text)
    if plain is not None:
        return plain
    too_deep = refusals.before_glob(text)
    if too_deep is not None:
        return too_deep
    return _parse("path_pattern", "path_pattern", text, transform.path_pattern, refusals.in_glob)


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
        from shardspec.frontend.grammar.parse_faults import explain_fault

        return explain_fault(machine, start, text)
    huge = refusals.huge_number(tree)
    if huge is not None:
        return huge
    node = make(tree)
    return refuse(node) or node
