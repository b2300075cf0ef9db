"""Rules and partitions as other tools spell them -> the same in this language.

`("batch", ("replica", "fsdp"))`, `[a, b] -> x`, `P(None, "data")`, `batch: fsdp`. Whoever writes
one knows what it should say, so a message shows it in their own words. What comes back can be read.
"""

from __future__ import annotations

import ast

from shardspec.frontend.grammar.parser import parser

_LONGEST = 400
_SPECS = frozenset({"P", "PartitionSpec"})


def rule_meant(data: object) -> str | None:
    """Return the rule that a pair, a mapping of one name, or text in brackets was meant to be.

    >>> rule_meant(["batch", ["replica", "fsdp"]]), rule_meant({"batch": "fsdp"})
    ('batch -> (replica, fsdp)', 'batch -> fsdp')
    >>> rule_meant("('embed', None)"), rule_meant("[a, b] -> x")
    ('embed -> none', 'a, b -> x')
    """
    if isinstance(data, str):
        left, arrow, right = data.partition("->")
        if arrow:
            names = _nested(left) if left.strip()[:1] in {"(", "["} else left.strip()
            mesh_axes = _nested(right) if right.strip()[:1] == "[" else right
            return _rule(names, mesh_axes) if mesh_axes is not None else None
        data = _nested(data)
    if isinstance(data, dict) and len(data) == 1:
        (data,) = data.items()
    if isinstance(data, list | tuple) and len(data) == 2:
        return _rule(data[0], data[1])
    return None


def partition_meant(data: object) -> str | None:
    """Return the partition that a list, or text such as `P(None, "data")`, was meant to be.

    >>> partition_meant("P(None, ('replica', 'data'))"), partition_meant(["data", None])
    ('(none, (replica, data))', '(data, none)')
    """
    dims = _nested(data) if isinstance(data, str) else data
    if not isinstance(dims, list | tuple) or not dims:
        return None
    spelt = [_mesh_axes(dim) for dim in dims]
    if None in spelt:
        return None
    text = f"({', '.join(map(str, spelt))})"
    return text if _is_read("partition", text) else None


def _rule(left: object, right: object) -> str | None:
    names = left if isinstance(left, list | tuple) else (left,)
    target = _mesh_axes(right)
    if target is None or not names or not all(isinstance(name, str) for name in names):
        return None
    text = f"{', '.join(map(str, names))} -> {target}"
    return text if _is_read("axis_rule", text) else None


def _is_read(start: str, text: str) -> bool:
    from lark.exceptions import UnexpectedInput

    try:
        parser("axis_rule").parse(text, start=start)
    except UnexpectedInput:
        return False
    return True


def _mesh_axes(data: object) -> str | None:
    """Return one right side of a rule."""
    if data is None or data in ("None", "null", (), []):
        return "none"
    if isinstance(data, str):
        return data.strip()
    if not isinstance(data, list | tuple) or not all(isinstance(axis, str) for axis in data):
        return None
    if len(set(data)) < len(data):
        return None
    return str(data[0]) if len(data) == 1 else f"({', '.join(map(str, data))})"


def _nested(text: str) -> object:
    """Return the tuples and texts that Python, or YAML in brackets, would read; None for others."""
    text = text.strip()
    if len(text) > _LONGEST or "\\" in text:
        return None
    try:
        return _value(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> object:
    match node:
        case ast.Constant(value=str() | None):
            return node.value
        case ast.Name(id=name):
            return name
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            return tuple(map(_value, elements))
        case ast.Call(func=function, args=elements, keywords=[]) if _is_spec(function):
            return tuple(map(_value, elements))
    raise ValueError(node)


def _is_spec(function: ast.expr) -> bool:
    """Say whether this is `P`, `PartitionSpec` or one of a module."""
    name = function.attr if isinstance(function, ast.Attribute) else None
    return (function.id if isinstance(function, ast.Name) else name) in _SPECS
