"""Expressions in their canonical spelling: one way to write each, whatever the user wrote."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from shardspec.ir import spec as ir
from shardspec.ir.spec import derive_text, shape_text, target_text
from shardspec.language.grammar import expressions, syntax
from shardspec.language.grammar.step_lines import LineDim, LineExpr, LineTerm, parse_step_line
from shardspec.language.grammar.syntax import quoted
from shardspec.language.reading import Data, Route, number_or_text, parts_text
from shardspec.language.sections import SECTIONS, Section, expression_at


def print_rule(rule: syntax.RuleExpr) -> str:
    """Return `mlp, heads -> model | (replica, data) @ 5`."""
    names = ", ".join(name.text for name in rule.names)
    targets = " | ".join(map(print_mesh_axes, rule.targets))
    return f"{names} -> {targets}" + (f" @ {rule.priority}" if rule.priority else "")


def print_partition(partition: syntax.PartitionExpr) -> str:
    """Return `((replica, data), none)`."""
    sums = ir.Sums(*(tuple(axis.text for axis in axes) for axes in partition.sums))
    return f"({', '.join(map(print_mesh_axes, partition.dims))}){sums}"


def print_mesh_axes(target: syntax.AxisTarget) -> str:
    """Return `data`, `(replica, data)`, `(replica, data)?`."""
    return target_text(tuple(axis.text for axis in target.mesh_axes), in_part=target.in_part)


def print_place(place: syntax.PlaceExpr) -> str:
    """Return `before mlp`."""
    return place.kind if place.axis is None else f"{place.kind} {place.axis.text}"


def print_names(names: syntax.NamesExpr) -> str:
    """Return `batch _ embed`."""
    return " ".join("_" if name is None else name.text for name in names.names)


def print_scan(scan: syntax.ScanExpr) -> str:
    """Return `stage@0 layers@1`."""
    return " ".join(f"{name.text}@{position}" for name, position in scan.axes)


def print_derived(derived: syntax.DerivedExpr) -> str:
    """Return `from **/kernel dims 0 _`; `dims ...` goes without saying behind a parent."""
    text = "" if derived.parent is None else derived.parent.text
    if derived.parent is not None and not _PLAIN_PARENT.fullmatch(text):
        text = '"' + re.sub(r'(["\\])', r"\\\1", text) + '"'
    return derive_text(text, derived.own, derived.dims, derived.factors)


_PLAIN_PARENT = re.compile(r'[^\s"|;#]+')


def print_size(size: syntax.SizeExpr) -> str:
    """Return `3 * embed`, `inner + 2 * (groups - 1)`."""
    words = []
    for term in size.terms:
        words.append("-" if term.sign < 0 else "+")
        words.append(" * ".join(map(_factor, term.factors)))
    return " ".join(words[1:])


def _factor(factor: int | syntax.Name | syntax.SizeExpr) -> str:
    if isinstance(factor, syntax.SizeExpr):
        return f"({print_size(factor)})"
    return factor.text if isinstance(factor, syntax.Name) else str(factor)


def print_array_type(array_type: syntax.ArrayType) -> str:
    """Return `bf16[embed mlp]`, or with commas where a dimension states its size."""
    only_names = all(dim.size is None for dim in array_type.dims)
    dims = (" " if only_names else ", ").join(map(_dim, array_type.dims))
    return f"{array_type.dtype.text}[{dims}]"


def print_mesh_size(size: syntax.MeshSize) -> str:
    """Return `submesh 4x2x2x1`, `2 @ dcn explicit`; `@ ici` and `auto` go without saying."""
    if size.parts:
        parts = (f"{name.text} = {print_mesh_size(part)}" for name, part in size.parts)
        return f"({', '.join(parts)})"
    count = str(size.count) if size.named is None else print_size(size.named)
    words = {
        "fit": f"fit {size.fits.text}" if size.fits else "",
        "integer": count,
        "rest": "rest",
        "submesh": f"submesh {shape_text(size.tile)}",
        "auto": f"auto {count}",
        "over": f"over {' '.join(str(syntax.stretch(each.text)) for each in size.over)}",
    }
    network = " @ dcn" if size.network == "dcn" else ""
    return words[size.kind] + network + ("" if size.axis_type == "auto" else f" {size.axis_type}")


def print_hardware(hardware: syntax.HardwareExpr) -> str:
    """Return `2 * tpu v5p 4x4x8`."""
    words = (
        f"{hardware.slices} *" if hardware.slices != 1 and not hardware.counts else "",
        f"{_counts(hardware.counts)} *" if hardware.counts else "",
        "" if hardware.count is None else str(hardware.count),
        hardware.platform or "",
        hardware.chip.text,
        shape_text(hardware.topology),
        f"memory {hardware.share.text}" if hardware.share else "",
        f"by {hardware.by.text}" if hardware.by else "",
    )
    return " ".join(word for word in words if word)


def print_step_line(line: LineExpr) -> str:
    """Return `residual, "**/query/kernel" -> query x 24`: patterns in quotes."""
    left = ", ".join(map(_print_term, line.operands))
    if line.call:
        left = f"{line.call}({left})"
    text = f"{left} -> {', '.join(map(_print_term, line.results))}"
    if line.flops is not None:
        text += f", flops {print_size(line.flops)}"
    if line.times is not None:
        text += f" x {line.times}"
    return text if line.per is None else f"{text} per {_print_term(line.per)}"


def _print_term(term: LineTerm) -> str:
    shown = {"value": term.text, "regex": f're"{term.text}"'}.get(term.kind) or quoted(term.text)
    if term.dims is None:
        return shown
    joint = " " if all(dim.alias is None and dim.size is None for dim in term.dims) else ", "
    return f"{shown}[{joint.join(map(_print_dim, term.dims))}]"


def _print_dim(dim: LineDim) -> str:
    name = "_" if dim.name is None else dim.name.text
    if dim.alias is not None:
        name = f"{name} as {dim.alias.text}"
    return name if dim.size is None else f"{name}={dim.size}"


def _counts(counts: tuple[int, ...]) -> str:
    """Return `{1..8}`, or `{1,2,4}` where some are left out."""
    if len(counts) > 1 and counts == tuple(range(counts[0], counts[-1] + 1)):
        return f"{{{counts[0]}..{counts[-1]}}}"
    return f"{{{','.join(map(str, counts))}}}"


_KINDS: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    "axis_rule": (expressions.parse_axis_rule, print_rule),
    "partition": (expressions.parse_partition, print_partition),
    "mesh_axes": (expressions.parse_mesh_axes, print_mesh_axes),
    "bound": (expressions.parse_bound, expressions.print_bound),
    "place": (expressions.parse_place, print_place),
    "names": (expressions.parse_names, print_names),
    "scan": (expressions.parse_scan, print_scan),
    "derived": (expressions.parse_derived, print_derived),
    "size": (expressions.parse_size, print_size),
    "array_type": (expressions.parse_array_type, print_array_type),
    "mesh_size": (expressions.parse_mesh_size, print_mesh_size),
    "hardware": (expressions.parse_hardware, print_hardware),
    "devices": (expressions.parse_devices, expressions.print_devices),
    "step_line": (parse_step_line, print_step_line),
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
    result = {key: _spelt(value, (key,)) for key, value in data.items()}
    return {key: value for key, value in result.items() if value not in _EMPTY or key == "mesh"}


_EMPTY: tuple[Data, ...] = ([], {}, None)
#: An entry that has only this field may be written as its value.
_ALONE = {"axes": "size", "rules": "rule", "activations": "axes"}


def _spelt(value: Data, route: Route) -> Data:
    """Return what stands at a route, counted from a file or a phase, in its canonical spelling."""
    section = SECTIONS.get(str(route[0]))
    if section is None:
        return value
    if section.form == "words":
        listed: Data = [value] if isinstance(value, str) else value
        return _one(listed) if section.name == "manifest" else listed
    if section.name == "phases" and len(route) == 2:
        return canonical(value)
    kind = expression_at(route)
    if kind == "mesh_size" and len(route) % 2 == 0 and isinstance(value, dict):
        value = parts_text(value)
    elif kind == "devices" and isinstance(value, list | int):
        value = " ".join(map(str, value)) if isinstance(value, list) else str(value)
    if isinstance(value, str):
        text = format_expression(kind, value) if kind in _KINDS else value
        return number_or_text(text) if kind in ("size", "mesh_size") else text
    if isinstance(value, list):
        items = [_spelt(each, (*route, at)) for at, each in enumerate(value)]
        return _one(items) if route == ("step", "remat") else items
    if not isinstance(value, dict):
        return value
    made = {key: _spelt(inner, (*route, key)) for key, inner in value.items()}
    return _entry(made, section) if len(route) == section.depth else made


def _one(value: Any) -> Data:
    """Return the item of a list that has no other, all else as it is."""
    only: Data = value[0] if isinstance(value, list) and len(value) == 1 else value
    return only


def _entry(fields: dict[str, Data], section: Section) -> Data:
    """Return an entry without fields that say nothing; one field alone where it has no more."""
    empty = _EMPTY if section.name == "step" else (None,)
    kept = {key: value for key, value in fields.items() if value not in empty}
    if section.name == "axes":
        kept = {key: value for key, value in kept.items() if value is not False} or {"size": None}
    alone = _ALONE.get(section.name, "")
    return kept[alone] if kept.keys() == {alone} else kept


def _dim(dim: syntax.ArrayDim) -> str:
    if dim.size is None:
        return dim.name.text if dim.name else "_"
    size = print_size(dim.size)
    if dim.name is not None:
        return f"{dim.name.text} = {size}" if " " in size else f"{dim.name.text}={size}"
    match dim.size.terms:
        case (syntax.SizeTerm(factors=(syntax.Name(),)),):
            return f"_={size}"  # alone it would name a logical axis
    return size
