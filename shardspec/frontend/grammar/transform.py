"""Parse trees -> the nodes of `syntax`: one function for each start symbol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from shardspec.frontend.grammar.syntax import (
    AnyChar,
    ArrayDim,
    ArrayType,
    AxisTarget,
    Braces,
    DoubleStar,
    Glob,
    GlobText,
    HardwareExpr,
    IntRange,
    MeshSize,
    Name,
    NamesExpr,
    Part,
    PartitionExpr,
    PlaceExpr,
    RuleExpr,
    ScanExpr,
    SizeExpr,
    Star,
)
from shardspec.ir.mesh import Network

if TYPE_CHECKING:
    from lark import Token, Tree

    Node: TypeAlias = Tree[Token]


def axis_rule(tree: Node) -> RuleExpr:
    """Return the rule of an `axis_rule` tree."""
    names, targets, *priority = tree.children
    return RuleExpr(
        tuple(map(_name, _tokens(names))),
        tuple(map(_target, _trees(targets))),
        int(_token(priority[0])) if priority else 0,
    )


def partition(tree: Node) -> PartitionExpr:
    """Return the partition of a `partition` tree."""
    return PartitionExpr(tuple(map(_target, _trees(tree))))


def mesh_axes(tree: Node) -> AxisTarget:
    """Return the mesh axes of a `mesh_axes` tree."""
    return _target(next(_trees(tree)))


def place(tree: Node) -> PlaceExpr:
    """Return the place of a `place` tree."""
    kind, *axis = _tokens(tree)
    return PlaceExpr(kind.value, _name(axis[0]) if axis else None)


def names(tree: Node) -> NamesExpr:
    """Return the names of a `names` tree."""
    return NamesExpr(tuple(_name_or_blank(token) for token in _tokens(tree)))


def scan(tree: Node) -> ScanExpr:
    """Return the stacked axes of a `scan` tree."""
    pairs = (tuple(_tokens(stacked)) for stacked in _trees(tree))
    return ScanExpr(tuple((_name(name), int(position)) for name, position in pairs))


def size(tree: Node) -> SizeExpr:
    """Return the product of a `size` tree."""
    return SizeExpr(tuple(_factor(token) for token in _tokens(tree)))


def array_type(tree: Node) -> ArrayType:
    """Return the type of an `array_type` tree."""
    dtype, *dims = tree.children
    return ArrayType(_name(_token(dtype)), tuple(_array_dim(dim) for dim in dims))  # type: ignore[arg-type]


def mesh_size(tree: Node) -> MeshSize:
    """Return the size of a `mesh_size` tree."""
    stated = next(_trees(tree))
    tokens = tuple(_tokens(stated))
    network: Network = "dcn" if any(token == "dcn" for token in _tokens(tree)) else "ici"
    match str(stated.data):
        case "integer":
            size = MeshSize("integer", count=int(tokens[0]), network=network)
        case "submesh":
            size = MeshSize("submesh", tile=_tile(tokens[1]), network=network)
        case "auto":
            size = MeshSize("auto", count=int(tokens[1]), network=network)
        case _:
            size = MeshSize("rest", network=network)
    types = [next(_tokens(node)) for node in _trees(tree) if node.data == "type"]
    return replace(size, axis_type=types[0].value) if types else size


def hardware(tree: Node) -> HardwareExpr:
    """Return the machine of a `hardware` tree."""
    numbers = {node.data: int(next(_tokens(node))) for node in _trees(tree)}
    tokens = {token.type: token for token in _tokens(tree)}
    platform = tokens.get("PLATFORM") if "CHIP" in tokens else None
    return HardwareExpr(
        chip=_name(tokens.get("CHIP") or tokens["PLATFORM"]),
        slices=numbers.get("slices", 1),
        platform=None if platform is None else platform.value,
        count=numbers.get("count"),
        topology=_tile(tokens["TILE"]) if "TILE" in tokens else (),
    )


def path_pattern(tree: Node) -> Glob:
    """Return the glob of a `path_pattern` tree."""
    return Glob(_parts(tree))


def _parts(tree: Node) -> tuple[Part, ...]:
    """Return the parts of a tree, neighbouring literals joined."""
    parts: list[Part] = []
    for is_text, group in groupby(
        map(_part, tree.children), lambda part: isinstance(part, GlobText)
    ):
        members = tuple(group)
        parts += (_joined(members),) if is_text else members
    return tuple(parts)


def _joined(parts: tuple[Part, ...]) -> GlobText:
    """Return neighbouring literals as one."""
    text = "".join(part.text for part in parts if isinstance(part, GlobText))
    return GlobText(text, parts[0].start, parts[-1].end)


def _part(child: Node | Token) -> Part:
    if not _is_token(child):
        assert not isinstance(child, str)
        opening, *inner, closing = child.children
        alternatives = tuple(_parts(node) for node in inner if not _is_token(node))  # type: ignore[arg-type]
        return Braces(alternatives, _token(opening).start_pos or 0, _token(closing).end_pos or 0)
    token = _token(child)
    start, end = token.start_pos or 0, token.end_pos or 0
    match token.type:
        case "STAR":
            return Star(start, end)
        case "DOUBLE_STAR":
            return DoubleStar(start, end)
        case "ANY_CHAR":
            return AnyChar(start, end)
        case "RANGE":
            return _int_range(token.value, start, end)
    return GlobText(unescaped(token.value), start, end)


def _int_range(text: str, start: int, end: int) -> IntRange:
    first, last = text[1:-1].split("..")
    padded = any(len(number) > 1 and number.startswith("0") for number in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return IntRange(int(first), int(last), width, start, end)


def unescaped(text: str) -> str:
    r"""Return `text` without the backslashes that escape.

    >>> unescaped(r"a\*\\")
    'a*\\'
    """
    if "\\" not in text:
        return text
    chars = iter(text)
    return "".join(next(chars, "") if char == "\\" else char for char in chars)


def _target(tree: Node) -> AxisTarget:
    tokens = tuple(_tokens(tree))
    axes = tuple(_name(token) for token in tokens if token.type == "MESH_AXIS")
    return AxisTarget(axes, tokens[0].start_pos or 0, tokens[-1].end_pos or 0)


def _array_dim(tree: Node) -> ArrayDim:
    tokens = tuple(tree.scan_values(_is_token))
    start, end = tokens[0].start_pos or 0, tokens[-1].end_pos or 0
    match tree.data:
        case "named":
            return ArrayDim(_name(tokens[0]), None, start, end)
        case "sized":
            stated = SizeExpr(tuple(map(_factor, tokens[1:])))
            return ArrayDim(_name_or_blank(tokens[0]), stated, start, end)
    return ArrayDim(None, SizeExpr(tuple(map(_factor, tokens))), start, end)


def _tile(token: Token) -> tuple[int, ...]:
    return tuple(map(int, token.split("x")))


def _factor(token: Token) -> int | Name:
    return int(token) if token.type == "SIZE" else _name(token)


def _name_or_blank(token: Token) -> Name | None:
    return None if token.type == "BLANK" else _name(token)


def _name(token: Token) -> Name:
    return Name(token.value, token.start_pos or 0, token.end_pos or 0)


def _is_token(child: object) -> bool:
    return isinstance(child, str)


def _token(child: Node | Token) -> Token:
    assert isinstance(child, str)
    return child


def _tokens(tree: Node | Token) -> Iterator[Token]:
    assert not isinstance(tree, str)
    return (child for child in tree.children if isinstance(child, str))


def _trees(tree: Node | Token) -> Iterator[Node]:
    assert not isinstance(tree, str)
    return (child for child in tree.children if not isinstance(child, str))
