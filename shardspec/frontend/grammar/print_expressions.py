"""Expressions in their canonical spelling: one way to write each, whatever the user wrote."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from shardspec.frontend.grammar import expressions, syntax
from shardspec.frontend.grammar.bound import parse_bound, print_bound
from shardspec.frontend.reading import Data
from shardspec.ir.hardware import shape_text


def print_rule(rule: syntax.RuleExpr) -> str:
    """Return `mlp, heads -> model | (replica, data) @ 5`."""
    names = ", ".join(name.text for name in rule.names)
    targets = " | ".join(map(print_mesh_axes, rule.targets))
    return f"{names} -> {targets}" + (f" @ {rule.priority}" if rule.priority else "")


def print_partition(partition: syntax.PartitionExpr) -> str:
    """Return `((replica, data), none)`."""
    return f"({', '.join(map(print_mesh_axes, partition.dims))})"


def print_mesh_axes(target: syntax.AxisTarget) -> str:
    """Return `data`, `(replica, data)`."""
    axes = tuple(axis.text for axis in target.mesh_axes)
    if not axes:
        return "none"
    return axes[0] if len(axes) == 1 else f"({', '.join(axes)})"


def print_place(place: syntax.PlaceExpr) -> str:
    """Return `before mlp`."""
    return place.kind if place.axis is None else f"{place.kind} {place.axis.text}"


def print_names(names: syntax.NamesExpr) -> str:
    """Return `batch _ embed`."""
    return " ".join("_" if name is None else name.text for name in names.names)


def print_scan(scan: syntax.ScanExpr) -> str:
    """Return `stage@0 layers@1`."""
    return " ".join(f"{name.text}@{position}" for name, position in scan.axes)


def print_size(size: syntax.SizeExpr) -> str:
    """Return `3 * embed`."""
    return " * ".join(f.text if isinstance(f, syntax.Name) else str(f) for f in size.factors)


def print_array_type(array_type: syntax.ArrayType) -> str:
    """Return `bf16[embed mlp]`, or with commas where a dimension states its size."""
    only_names = all(dim.size is None for dim in array_type.dims)
    dims = (" " if only_names else ", ").join(map(_dim, array_type.dims))
    return f"{array_type.dtype.text}[{dims}]"


def print_mesh_size(size: syntax.MeshSize) -> str:
    """Return `submesh 4x2x2x1`, `2 @ dcn explicit`; `@ ici` and `auto` go without saying."""
    words = {
        "integer": str(size.count),
        "rest": "rest",
        "submesh": f"submesh {shape_text(size.tile)}",
        "auto": f"auto {size.count}",
    }
    network = " @ dcn" if size.network == "dcn" else ""
    return words[size.kind] + network + ("" if size.axis_type == "auto" else f" {size.axis_type}")


def print_hardware(hardware: syntax.HardwareExpr) -> str:
    """Return `2 * tpu v5p 4x4x8`."""
    words = (
        f"{hardware.slices} *" if hardware.slices != 1 else "",
        "" if hardware.count is None else str(hardware.count),
        hardware.platform or "",
        hardware.chip.text,
        shape_text(hardware.topology),
    )
    return " ".join(word for word in words if word)


_KINDS: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "axis_rule": (expressions.parse_axis_rule, print_rule),
    "partition": (expressions.parse_partition, print_partition),
    "mesh_axes": (expressions.parse_mesh_axes, print_mesh_axes),
    "bound": (parse_bound, print_bound),
    "place": (expressions.parse_place, print_place),
    "names": (expressions.parse_names, print_names),
    "scan": (expressions.parse_scan, print_scan),
    "size": (expressions.parse_size, print_size),
    "array_type": (expressions.parse_array_type, print_array_type),
    "mesh_size": (expressions.parse_mesh_size, print_mesh_size),
    "hardware": (expressions.parse_hardware, print_hardware),
}


def format_expression(kind: str, text: str) -> str:
    """Return `text` in its canonical spelling; as it is where it cannot be read.

    Args:
      kind: the start symbol of its grammar, such as `axis_rule`.

    Invariants:
      idempotent: what is canonical stays.

    >>> format_expression("axis_rule", "embed->model|data")
    'embed -> model | data'
    """
    parse, show = _KINDS[kind]
    parsed = parse(text)
    return text if isinstance(parsed, syntax.SyntaxFault) else show(parsed)


def canonical(data: Data) -> Data:
    """Return a document's data with every expression and short form in its canonical spelling.

    What is malformed stays as it is. Order stays too: it means something in most sections.

    Invariants:
      idempotent: canonical(canonical(data)) == canonical(data).
    """
    if not isinstance(data, dict):
        return data
    result = {key: _SECTIONS.get(key, _same)(value) for key, value in data.items()}
    return {key: value for key, value in result.items() if value not in _EMPTY or key == "mesh"}


_EMPTY: tuple[Data, ...] = ([], {}, None)


def _same(value: Data) -> Data:
    return value


def _expression(kind: str) -> Callable[[Data], Data]:
    """Return the function that spells one expression."""

    def spell(value: Data) -> Data:
        return format_expression(kind, value) if isinstance(value, str) else value

    return spell


def _number(kind: str) -> Callable[[Data], Data]:
    """Return the function that spells one expression, as an integer where it is one."""

    def spell(value: Data) -> Data:
        if not isinstance(value, str):
            return value
        text = format_expression(kind, value)
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= 15 else text

    return spell


def _each(spell: Callable[[Data], Data]) -> Callable[[Data], Data]:
    """Return the function that spells every value of a mapping, or item of a list."""

    def spell_all(value: Data) -> Data:
        if isinstance(value, dict):
            return {key: spell(inner) for key, inner in value.items()}
        return [spell(inner) for inner in value] if isinstance(value, list) else value

    return spell_all


def _fields(**spells: Callable[[Data], Data]) -> Callable[[Data], Data]:
    """Return the function that spells the fields of a mapping and drops empty ones."""

    def spell(value: Data) -> Data:
        if not isinstance(value, dict):
            return value
        kept = {key: inner for key, inner in value.items() if inner is not None}
        return {key: spells.get(key, _same)(inner) for key, inner in kept.items()}

    return spell


def _axis(value: Data) -> Data:
    """Return the entry of an axis; the size alone where there is no more."""
    spelt = _number("size")(value)
    if not isinstance(spelt, dict):
        return spelt
    fields = _fields(size=_number("size"))(spelt)
    assert isinstance(fields, dict)
    return fields.get("size") if fields.keys() <= {"size"} else fields


def _rule(value: Data) -> Data:
    """Return the entry of a rule; the rule alone where it has no place."""
    if not isinstance(value, dict):
        return _expression("axis_rule")(value)
    fields = _fields(rule=_expression("axis_rule"), at=_expression("place"))(value)
    assert isinstance(fields, dict)
    return fields["rule"] if fields.keys() == {"rule"} else fields


def _list(value: Data) -> Data:
    return [value] if isinstance(value, str) else value


def _one(value: Data) -> Data:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


_MESH = _each(_number("mesh_size"))
_SECTIONS: Mapping[str, Callable[[Data], Data]] = {
    "extends": _list,
    "drop": _list,
    "manifest": _one,
    "axes": _each(_axis),
    "hardware": _expression("hardware"),
    "mesh": _MESH,
    "targets": _each(_fields(hardware=_expression("hardware"), mesh=_MESH)),
    "rules": _each(_rule),
    "params": _each(_expression("names")),
    "overrides": _each(_fields(axes=_expression("names"), spec=_expression("partition"))),
    "replicate": _each(_fields()),
    "scan": _each(_expression("scan")),
    "activations": _each(_expression("names")),
    "arrays": _each(_expression("array_type")),
    "state": _fields(over=_expression("mesh_axes")),
    "coverage": _fields(max_replicated_bytes=_expression("bound")),
}


def _dim(dim: syntax.ArrayDim) -> str:
    if dim.size is None:
        return dim.name.text if dim.name else "_"
    size = print_size(dim.size)
    if dim.name is None:
        return size
    return f"{dim.name.text} = {size}" if len(dim.size.factors) > 1 else f"{dim.name.text}={size}"


def print_glob(glob: syntax.Glob) -> str:
    """Return the text of a glob.

    Invariants:
      round_trip: `parse_glob(print_glob(glob)) == glob`.
    """
    return "".join(_part(part, in_braces=False) for part in glob.parts)


def _part(part: syntax.Part, *, in_braces: bool) -> str:
    match part:
        case syntax.GlobText():
            return re.sub(r"[*?{}\\,]" if in_braces else r"[*?{}\\]", r"\\\g<0>", part.text)
        case syntax.Star():
            return "*"
        case syntax.DoubleStar():
            return "**"
        case syntax.AnyChar():
            return "?"
        case syntax.IntRange():
            first, last = (str(i).zfill(part.width) for i in (part.first, part.last))
            return f"{{{first}..{last}}}"
        case syntax.Braces():
            inner = (
                "".join(_part(p, in_braces=True) for p in parts) for parts in part.alternatives
            )
            return f"{{{','.join(inner)}}}"
