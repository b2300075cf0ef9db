"""Parse trees -> the nodes of `syntax`: one function for each start symbol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from shardspec.ir.spec import Network
from shardspec.language.grammar import syntax

if TYPE_CHECKING:
    from lark import Token, Tree

    Node: TypeAlias = Tree[Token]


def axis_rule(tree: Node) -> syntax.RuleExpr:
    """Return the rule of an `axis_rule` tree."""
    names, targets, *priority = tree.children
    return syntax.RuleExpr(
        tuple(map(_name, _tokens(names))),
        tuple(map(_target, _trees(targets))),
        int(_token(priority[0])) if priority else 0,
    )


def partition(tree: Node) -> syntax.PartitionExpr:
    """Return the partition of a `partition` tree."""
    return syntax.PartitionExpr(tuple(map(_target, _trees(tree))))


def mesh_axes(tree: Node) -> syntax.AxisTarget:
    """Return the mesh axes of a `mesh_axes` tree."""
    return _target(next(_trees(tree)))


def place(tree: Node) -> syntax.PlaceExpr:
    """Return the place of a `place` tree."""
    kind, *axis = _tokens(tree)
    return syntax.PlaceExpr(kind.value, _name(axis[0]) if axis else None)


def names(tree: Node) -> syntax.NamesExpr:
    """Return the names of a `names` tree."""
    return syntax.NamesExpr(tuple(_name_or_blank(token) for token in _tokens(tree)))


def scan(tree: Node) -> syntax.ScanExpr:
    """Return the stacked axes of a `scan` tree."""
    pairs = (tuple(_tokens(stacked)) for stacked in _trees(tree))
    return syntax.ScanExpr(tuple((_name(name), int(position)) for name, position in pairs))


def size(tree: Node) -> syntax.SizeExpr:
    """Return the product of a `size` tree."""
    return syntax.SizeExpr(tuple(_factor(token) for token in _tokens(tree)))


def array_type(tree: Node) -> syntax.ArrayType:
    """Return the type of an `array_type` tree."""
    dtype, *dims = tree.children
    return syntax.ArrayType(_name(_token(dtype)), tuple(_array_dim(dim) for dim in dims))  # type: ignore[arg-type]


def mesh_size(tree: Node) -> syntax.MeshSize:
    """Return the size of a `mesh_size` tree."""
    stated = next(_trees(tree))
    tokens = tuple(_tokens(stated))
    network: Network = "dcn" if any(token == "dcn" for token in _tokens(tree)) else "ici"
    match str(stated.data):
        case "integer":
            size = syntax.MeshSize("integer", count=int(tokens[0]), network=network)
        case "submesh":
            size = syntax.MeshSize("submesh", tile=_tile(tokens[1]), network=network)
        case "auto":
            size = syntax.MeshSize("auto", count=int(tokens[1]), network=network)
        case _:
            size = syntax.MeshSize("rest", network=network)
    types = [next(_tokens(node)) for node in _trees(tree) if node.data == "type"]
    return replace(size, axis_type=types[0].value) if types else size


def hardware(tree: Node) -> syntax.HardwareExpr:
    """Return the machine of a `hardware` tree."""
    numbers = {node.data: int(next(_tokens(node))) for node in _trees(tree)}
    tokens = {token.type: token for token in _tokens(tree)}
    platform = tokens.get("PLATFORM") if "CHIP" in tokens else None
    return syntax.HardwareExpr(
        chip=_name(tokens.get("CHIP") or tokens["PLATFORM"]),
        slices=numbers.get("slices", 1),
        platform=None if platform is None else platform.value,
        count=numbers.get("count"),
        topology=_tile(tokens["TILE"]) if "TILE" in tokens else (),
    )


def path_pattern(tree: Node) -> syntax.Glob:
    """Return the glob of a `path_pattern` tree."""
    return syntax.Glob(_parts(tree))


def _parts(tree: Node) -> tuple[syntax.Part, ...]:
    """Return the parts of a tree, neighbouring literals joined."""
    parts: list[syntax.Part] = []
    for is_text, group in groupby(
        map(_part, tree.children), lambda part: isinstance(part, syntax.GlobText)
    ):
        members = tuple(group)
        parts += (_joined(members),) if is_text else members
    return tuple(parts)


def _joined(parts: tuple[syntax.Part, ...]) -> syntax.GlobText:
    """Return neighbouring literals as one."""
    text = "".join(part.text for part in parts if isinstance(part, syntax.GlobText))
    return syntax.GlobText(text, parts[0].start, parts[-1].end)


def _part(child: Node | Token) -> syntax.Part:
    if not _is_token(child):
        assert not isinstance(child, str)
        opening, *inner, closing = child.children
        alternatives = tuple(_parts(node) for node in inner if not _is_token(node))  # type: ignore[arg-type]
        return syntax.Braces(
            alternatives, _token(opening).start_pos or 0, _token(closing).end_pos or 0
        )
    token = _token(child)
    start, end = token.start_pos or 0, token.end_pos or 0
    match token.type:
        case "STAR":
            return syntax.Star(start, end)
        case "DOUBLE_STAR":
            return syntax.DoubleStar(start, end)
        case "ANY_CHAR":
            return syntax.AnyChar(start, end)
        case "RANGE":
            return _int_range(token.value, start, end)
    return syntax.GlobText(unescaped(token.value), start, end)


def _int_range(text: str, start: int, end: int) -> syntax.IntRange:
    first, last = text[1:-1].split("..")
    padded = any(len(number) > 1 and number.startswith("0") for number in (first, last))
    width = max(len(first), len(last)) if padded else 0
    return syntax.IntRange(int(first), int(last), width, start, end)


def unescaped(text: str) -> str:
    r"""Return `text` without the backslashes that escape.

    >>> unescaped(r"a\*\\")
    'a*\\'
    """
    if "\\" not in text:
        return text
    chars = iter(text)
    return "".join(next(chars, "") if char == "\\" else char for char in chars)


def _target(tree: Node) -> syntax.AxisTarget:
    tokens = tuple(_tokens(tree))
    axes = tuple(_name(token) for token in tokens if token.type == "MESH_AXIS")
    return syntax.AxisTarget(axes, tokens[0].start_pos or 0, tokens[-1].end_pos or 0)


def _array_dim(tree: Node) -> syntax.ArrayDim:
    tokens = tuple(tree.scan_values(_is_token))
    start, end = tokens[0].start_pos or 0, tokens[-1].end_pos or 0
    match tree.data:
        case "named":
            return syntax.ArrayDim(_name(tokens[0]), None, start, end)
        case "sized":
            stated = syntax.SizeExpr(tuple(map(_factor, tokens[1:])))
            return syntax.ArrayDim(_name_or_blank(tokens[0]), stated, start, end)
    return syntax.ArrayDim(None, syntax.SizeExpr(tuple(map(_factor, tokens))), start, end)


def _tile(token: Token) -> tuple[int, ...]:
    return tuple(map(int, token.split("x")))


def _factor(token: Token) -> int | syntax.Name:
    return int(token) if token.type == "SIZE" else _name(token)


def _name_or_blank(token: Token) -> syntax.Name | None:
    return None if token.type == "BLANK" else _name(token)


def _name(token: Token) -> syntax.Name:
    return syntax.Name(token.value, token.start_pos or 0, token.end_pos or 0)


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
