"""Merged layer -> Spec: priorities applied, sizes worked out, arrays expanded.

What no machine can count is said (SHD305), of arrays, activations and meshes; and arrays that stand
twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from shardspec.diagnostics import Diagnostic, Excerpt, Label, SourceFile, Span, codes, point
from shardspec.diagnostics.words import described, did_you_mean, listed
from shardspec.ir.spec import (
    MOST_ELEMENTS,
    Activation,
    LogicalAxis,
    Mesh,
    Param,
    Params,
    Policy,
    Spec,
    StatePolicy,
    Target,
    dtype_name,
)
from shardspec.language.grammar.syntax import ArrayDim, Name, SizeExpr, SyntaxFault
from shardspec.language.layer import ArrayDecl, AxisDecl, Layer


def countable(params: Sequence[Param]) -> tuple[tuple[Param, ...], tuple[Diagnostic, ...]]:
    """Return the arrays of fewer than 2^63 elements, and a finding for each entry of others."""
    beyond: dict[object, list[Param]] = {}
    for param in params:
        if param.element_count > MOST_ELEMENTS:
            beyond.setdefault(param.span or param.path, []).append(param)
    if not beyond:
        return tuple(params), ()
    kept = tuple(param for param in params if param.element_count <= MOST_ELEMENTS)
    return kept, tuple(map(too_large, beyond.values()))


def too_large(group: Sequence[Param]) -> Diagnostic:
    """Return the finding for arrays of one place and shape that cannot be counted."""
    first = group[0]
    longest = f"{max(first.shape):,}"
    label = f"{first.rank} dimensions, the longest of {longest}" if first.rank > 1 else longest
    unit = "elements" if first.element_count > MOST_ELEMENTS else "bytes"
    message = f"{described(param.path for param in group)}: 2^63 {unit} or more, {label}"
    return _beyond(message, first.span, label)


def _beyond(message: str, span: Span | None, label: str) -> Diagnostic:
    return point(
        codes.BEYOND_COUNT, message, span, label, help="no machine counts them: a size is wrong"
    )


def too_wide(
    activations: Sequence[Activation], sizes: Mapping[str, int | None]
) -> tuple[Diagnostic, ...]:
    """Return a finding for each activation of 2^63 elements or more.

    Nothing adds activations up, so they stay: what else they lack is told as well.

    Args:
      sizes: of the logical axes, as far as `axes` states them; others count as 1.
    """
    found = []
    for activation in activations:
        known = [sizes.get(name or "") or 1 for name in activation.logical_axes]
        # one that is beyond by itself is told of where it stands
        if math.prod(known) > MOST_ELEMENTS >= max(known):
            found.append(_activation(activation, sizes))
    return tuple(found)


def _activation(activation: Activation, sizes: Mapping[str, int | None]) -> Diagnostic:
    names = dict.fromkeys(filter(None, activation.logical_axes))
    said = ", ".join(f"{name}={size:,}" for name in names if (size := sizes.get(name)))
    message = f"activation `{activation.name}`: 2^63 elements or more, {said}"
    return _beyond(message, activation.span, said)


def countable_targets(
    targets: Sequence[Target],
) -> tuple[tuple[Target, ...], tuple[Diagnostic, ...]]:
    """Return the targets, unsound where a mesh has 2^63 devices or more; and a finding for each."""
    found = []
    checked = []
    for target in targets:
        if target.mesh.device_count > MOST_ELEMENTS:
            found.append(_mesh(target))
            ones = Mesh(tuple(replace(axis, size=1) for axis in target.mesh.axes))
            target = replace(target, mesh=ones, is_sound=False)
        checked.append(target)
    return tuple(checked), tuple(found)


def _mesh(target: Target) -> Diagnostic:
    sizes = listed(f"{axis.name}={axis.size}" for axis in target.mesh.axes)
    spans = (target.span, *(axis.span for axis in target.mesh.axes))
    message = f"target `{target.name}` has a mesh of 2^63 devices or more: {sizes}"
    return _beyond(message, next(filter(None, spans), None), "2^63 devices or more")


def distinct(params: Sequence[Param], of: str = "") -> tuple[Params, tuple[Diagnostic, ...]]:
    """Return the first of the arrays that share a path, and a finding for each other one.

    Args:
      of: words for messages: whose arrays they are.
    """
    by_path: dict[str, Param] = {}
    found = []
    for param in params:
        first = by_path.setdefault(param.path, param)
        if first is not param:
            found.append(_twice(first, param, of))
    return tuple(by_path.values()), tuple(found)


def _twice(first: Param, second: Param, of: str) -> Diagnostic:
    labels = [Label(second.span, "stands for it again")] if second.span else []
    if first.span and second.span and first.span != second.span:
        labels.append(Label(first.span, "stands for it first", primary=False))
    message = f"two arrays{of} have the path `{second.path}`: {first} and {second}"
    help = "take one of the two out; the first counts"
    return Diagnostic(codes.DUPLICATE_ARRAY, message, tuple(labels), help=help)


#: What a size that no array can have counts as: a dimension of JAX has fewer elements.
BEYOND = 1 << 63

#: Ranges multiply: a line or two could ask for more arrays than there is memory.
MOST_ARRAYS = 250_000

#: Axes shown of a circle of them.
_CIRCLE_SHOWN = 8


def spec_of(layer: Layer, sources: tuple[SourceFile, ...]) -> tuple[Spec, tuple[Diagnostic, ...]]:
    """Return the spec that `layer` means, with arrays from manifests after the inline ones."""
    diagnostics: list[Diagnostic] = []
    axes = _axes(layer.axes, diagnostics)
    stated = {decl.name for decl in layer.axes if decl.size is not None}
    sizes = {axis.name: axis.size for axis in axes if axis.name in stated}
    inline = _arrays(layer.arrays, sizes, diagnostics)
    params, twice = distinct(inline + list(layer.params))
    diagnostics += twice
    # An inline array with a dimension that is too long alone stays: that size is told of already.
    told = {param.path for param in inline if BEYOND in param.shape}
    kept, too_large = countable([param for param in params if param.path not in told])
    sound = {param.path for param in kept} | told
    params = tuple(param for param in params if param.path in sound)
    targets, too_many = countable_targets(layer.targets)
    diagnostics += (*too_large, *too_many, *too_wide(layer.activations, sizes))
    rules = sorted((placed.rule for placed in layer.rules), key=lambda rule: rule.priority)
    policy: dict[str, Any] = dict(layer.policy)
    spec = Spec(
        source=layer.source,
        logical_axes=axes,
        axis_rules=tuple(rules),
        placed_rules=tuple(placed.rule for placed in layer.rules),
        path_rules=layer.path_rules,
        overrides=layer.overrides,
        scans=layer.scans,
        activations=layer.activations,
        policy=Policy(**policy),
        state=StatePolicy(**dict(layer.state)) if layer.state else None,
        coverage=layer.coverage,
        replicate=layer.replicate,
        targets=targets,
        params=params,
        lint_levels=layer.lint_levels,
        inherited_axes=layer.inherited_axes,
        sources=sources,
        doc=layer.doc,
    )
    return spec, tuple(diagnostics)


def _axes(decls: tuple[AxisDecl, ...], diagnostics: list[Diagnostic]) -> tuple[LogicalAxis, ...]:
    """Return the axes with sizes as numbers; products may name other axes in any order."""
    sizes = _sizes({decl.name: decl for decl in decls}, diagnostics)
    return tuple(
        LogicalAxis(decl.name, sizes[decl.name], decl.unit, decl.doc, decl.span, decl.min_shard)
        for decl in decls
    )


def _sizes(by_name: dict[str, AxisDecl], diagnostics: list[Diagnostic]) -> dict[str, int | None]:
    """Return the size of every axis, None where it is not known; and say why it is not.

    Each axis is worked out once, after those it names; a stack of our own, since a chain of them
    may be as long as the file.
    """
    sizes: dict[str, int | None] = {}
    names = frozenset(by_name)
    for start in by_name:
        path = {start: _named_in(by_name[start])}
        while path:
            name, rest = next(reversed(path.items()))
            inner = next((each for each in rest if each not in sizes and each in by_name), None)
            if inner is None:
                del path[name]
                _add_size(by_name[name], by_name, names, sizes, diagnostics)
            elif inner in path:
                sizes[inner] = None
                diagnostics.append(_circle(by_name[inner], list(path)))
            else:
                path[inner] = _named_in(by_name[inner])
    return sizes


def _named_in(decl: AxisDecl) -> Iterator[str]:
    """Yield the axes that the size of an axis names."""
    factors = decl.size.factors if decl.size else ()
    return (factor.text for factor in factors if not isinstance(factor, int))


def _add_size(
    decl: AxisDecl,
    by_name: dict[str, AxisDecl],
    names: frozenset[str],
    sizes: dict[str, int | None],
    diagnostics: list[Diagnostic],
) -> None:
    """Add the size of an axis to `sizes`, which hold those of all the axes that it names."""
    if decl.name in sizes:
        return
    size = None if decl.size is None else _product(decl.size, sizes.get)
    sizes[decl.name] = size
    if size is None:
        diagnostics.extend(_unknown_factor(decl, by_name, names))
    elif size >= BEYOND and all(sizes[name] != BEYOND for name in _named_in(decl)):
        message = f"the size of `{decl.name}` is beyond any array: 2^63 or more"
        diagnostics.append(point(codes.UNKNOWN_SIZE, message, decl.span, help="take a factor out"))


def _circle(decl: AxisDecl, path: list[str]) -> Diagnostic:
    """Return the finding for an axis whose size leads back to it."""
    names = [*path[path.index(decl.name) :], decl.name]
    if len(names) > _CIRCLE_SHOWN:
        half = _CIRCLE_SHOWN // 2
        names = [*names[:half], f"... {len(names) - 2 * half} more ...", *names[-half:]]
    message = f"the size of `{decl.name}` depends on itself: {' -> '.join(names)}"
    help = f"give one of them a number: `{decl.name}: 64`"
    return point(codes.UNKNOWN_SIZE, message, decl.span, help=help)


def _product(size: SizeExpr, lookup: Callable[[str], int | None]) -> int | None:
    """Return a product of sizes, at most `BEYOND`; None where one of them is not known."""
    product = 1
    for factor in size.factors:
        value = factor if isinstance(factor, int) else lookup(factor.text)
        if value is None:
            return None
        product = min(product * value, BEYOND)
    return product


def _unknown_factor(
    decl: AxisDecl, known: dict[str, AxisDecl], names: frozenset[str]
) -> Iterator[Diagnostic]:
    """Yield why a size is not known, unless a factor has that fault and it is reported there."""
    unknown = next(
        (name for name in _named_in(decl) if name not in known or known[name].size is None), None
    )
    if unknown is not None:
        yield point(
            codes.UNKNOWN_SIZE,
            f"the size of `{decl.name}` needs that of `{unknown}`, which no entry of `axes` states",
            decl.span,
            help=did_you_mean(unknown, names, without=(unknown, decl.name))
            or f"add `{unknown}: SIZE` to `axes`",
            subject=decl.name,
        )


def _arrays(
    decls: tuple[ArrayDecl, ...], sizes: Mapping[str, int | None], diagnostics: list[Diagnostic]
) -> list[Param]:
    """Return the arrays of every entry, ranges expanded.

    Args:
      sizes: of the axes that state one, None where it does not work out.
    """
    from shardspec.language.patterns.glob import expand

    params: list[Param] = []
    sized = frozenset(name for name, size in sizes.items() if size is not None)
    for decl in decls:
        template = _param(decl, sizes, sized, diagnostics)
        paths = expand(decl.path.text)
        if isinstance(paths, SyntaxFault):
            diagnostics.append(paths.diagnostic(decl.path))
        elif len(params) + len(paths) > MOST_ARRAYS:
            message = f"this entry makes it {len(params) + len(paths):,} arrays"
            help = f"`arrays` may list {MOST_ARRAYS:,}; a model of more belongs in a manifest"
            diagnostics.append(point(codes.SYNTAX, message, decl.path.span, help=help))
        elif template is not None:
            shape, dtype, names = template.shape, template.dtype, template.logical_axes
            params += [Param(path, shape, dtype, names, template.span) for path in paths]
    return params


def _param(
    decl: ArrayDecl,
    sizes: Mapping[str, int | None],
    sized: frozenset[str],
    diagnostics: list[Diagnostic],
) -> Param | None:
    stated, dims = decl.type
    dtype = dtype_name(stated.text)
    if dtype is None:
        span = decl.written.at(stated.start, stated.end)
        diagnostics.append(unknown_dtype(stated.text, span))
        return None
    shape: list[int] = []
    for dim in dims:
        size = _dim_size(dim, sizes)
        if size is None:
            diagnostics.append(_unknown_size(dim, decl.written, sizes, sized))
            return None
        if size >= BEYOND and not any(_is_beyond(name.text, sizes) for name in _names_in(dim)):
            message = "a dimension is too large: 2^63 or more"
            diagnostics.append(
                point(codes.UNKNOWN_SIZE, message, decl.written.at(dim.start, dim.end))
            )
        shape.append(size)
    names = tuple(dim.name.text if dim.name else None for dim in dims)
    own = names if any(names) else None
    return Param(decl.path.text, tuple(shape), dtype, own, decl.path.span)


def unknown_dtype(name: str, span: Any) -> Diagnostic:
    """Return the finding for a dtype that is not known."""
    from shardspec.ir.spec import DTYPE_ALIASES, DTYPE_BITS

    help = did_you_mean(name, [*DTYPE_BITS, *DTYPE_ALIASES]) or "as in bf16, f32, s8, bool"
    return point(codes.SYNTAX, f"unknown dtype `{name}`", span, help=help)


def _dim_size(dim: ArrayDim, sizes: Mapping[str, int | None]) -> int | None:
    if dim.size is not None:
        return _product(dim.size, sizes.get)
    return sizes.get(dim.name.text) if dim.name else None


def _names_in(dim: ArrayDim) -> list[Name]:
    """Return the axes whose sizes make that of a dimension."""
    if dim.size is not None:
        return [factor for factor in dim.size.factors if not isinstance(factor, int)]
    return [dim.name] if dim.name else []


def _is_beyond(name: str, sizes: Mapping[str, int | None]) -> bool:
    """Say whether an axis has a size that no array can have, which is said of the axis."""
    return (sizes.get(name) or 0) >= BEYOND


def _unknown_size(
    dim: ArrayDim, excerpt: Excerpt, sizes: Mapping[str, int | None], sized: frozenset[str]
) -> Diagnostic:
    unknown = next(name for name in _names_in(dim) if name.text not in sized)
    place = excerpt.at(unknown.start, unknown.end)
    message = f"the size of `{unknown.text}` is not known"
    if unknown.text in sizes:
        help = f"mend `{unknown.text}` in `axes`, or write `{unknown.text}=SIZE` here"
        return point(
            codes.UNKNOWN_SIZE,
            message,
            place,
            "its entry of `axes` gives none",
            help=help,
            subject=unknown.text,
        )
    help = did_you_mean(unknown.text, sized) or _size_help(unknown.text, dim)
    return point(
        codes.UNKNOWN_SIZE,
        message,
        place,
        "no entry of `axes` states it",
        help=help,
        subject=unknown.text,
    )


def _size_help(name: str, dim: ArrayDim) -> str:
    inline = f"write `{name}=SIZE` here, or " if dim.size is None else ""
    return f"{inline}add `{name}: SIZE` to `axes`"
