"""Merged layer -> Spec: priorities applied, sizes worked out, arrays expanded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardspec.diagnostics import Diagnostic, Excerpt, Label, SourceFile
from shardspec.diagnostics.codes import DUPLICATE_ARRAY, SYNTAX, UNKNOWN_SIZE
from shardspec.diagnostics.diagnostic import point
from shardspec.diagnostics.suggest import did_you_mean
from shardspec.frontend.grammar import expressions
from shardspec.frontend.grammar.syntax import ArrayDim, ArrayType, SizeExpr, SyntaxFault
from shardspec.frontend.layer import ArrayDecl, AxisDecl, Layer
from shardspec.ir.param import Param, Params, dtype_name
from shardspec.ir.spec import LogicalAxis, Policy, Spec, StatePolicy

#: A product of sizes stops here, far above any array.
_LARGEST = 1 << 62

#: Ranges multiply: a line or two could ask for more arrays than there is memory.
MOST_ARRAYS = 250_000

#: Axes whose sizes name each other, one behind the other.
_DEEPEST = 64


def finish(layer: Layer, sources: tuple[SourceFile, ...]) -> tuple[Spec, tuple[Diagnostic, ...]]:
    """Return the spec that `layer` means, with arrays from manifests after the inline ones."""
    diagnostics: list[Diagnostic] = []
    axes = _axes(layer.axes, diagnostics)
    inline = _arrays(layer.arrays, {axis.name: axis for axis in axes}, diagnostics)
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
        targets=layer.targets,
        params=_distinct(inline + list(layer.params), diagnostics),
        lint_levels=layer.lint_levels,
        inherited_axes=layer.inherited_axes,
        sources=sources,
        doc=layer.doc,
    )
    return spec, tuple(diagnostics)


def _axes(decls: tuple[AxisDecl, ...], diagnostics: list[Diagnostic]) -> tuple[LogicalAxis, ...]:
    """Return the axes with sizes as numbers; products may name other axes in any order."""
    by_name = {decl.name: decl for decl in decls}
    sizes: dict[str, int | None] = {}

    def size_of(name: str, seen: tuple[str, ...]) -> int | None:
        decl = by_name.get(name)
        if decl is None or decl.size is None:
            return None
        if name not in sizes:
            if name in seen:
                message = f"the size of `{name}` depends on itself: {' -> '.join((*seen, name))}"
                diagnostics.append(point(UNKNOWN_SIZE, message, decl.span))
                return None
            if len(seen) > _DEEPEST:
                message = f"the size of `{name}` stands behind {len(seen)} other axes"
                diagnostics.append(point(UNKNOWN_SIZE, message, decl.span))
                return None
            sizes[name] = _product(decl.size, lambda inner: size_of(inner, (*seen, name)))
            if sizes[name] is None:
                diagnostics.extend(_unknown_factor(decl, by_name, sizes))
        return sizes[name]

    return tuple(
        LogicalAxis(
            decl.name, size_of(decl.name, ()), decl.unit, decl.doc, decl.span, decl.min_shard
        )
        for decl in decls
    )


def _product(size: SizeExpr, lookup: Any) -> int | None:
    product = 1
    for factor in size.factors:
        value = factor if isinstance(factor, int) else lookup(factor.text)
        if value is None:
            return None
        product *= value
        if product > _LARGEST:
            return None
    return product


def _unknown_factor(
    decl: AxisDecl, known: dict[str, AxisDecl], sizes: dict[str, int | None]
) -> Iterator[Diagnostic]:
    """Yield why a size is not known, unless a factor has that fault and it is reported there."""
    factors = decl.size.factors if decl.size else ()
    names = [factor.text for factor in factors if not isinstance(factor, int)]
    unknown = next((name for name in names if name not in known or known[name].size is None), None)
    if unknown is not None:
        yield point(
            UNKNOWN_SIZE,
            f"the size of `{decl.name}` needs that of `{unknown}`, which no entry of `axes` states",
            decl.span,
            help=did_you_mean(unknown, set(known) - {unknown, decl.name})
            or f"add `{unknown}: SIZE` to `axes`",
        )
    elif all(sizes.get(name) is not None for name in names):
        yield point(UNKNOWN_SIZE, f"the size of `{decl.name}` is beyond any array", decl.span)


def _arrays(
    decls: tuple[ArrayDecl, ...], axes: dict[str, LogicalAxis], diagnostics: list[Diagnostic]
) -> list[Param]:
    """Return the arrays of every entry, ranges expanded."""
    from shardspec.frontend.patterns.glob import expand

    params: list[Param] = []
    for decl in decls:
        parsed = expressions.parse_array_type(decl.type.text)
        if isinstance(parsed, SyntaxFault):
            diagnostics.append(parsed.diagnostic(decl.type))
            continue
        template = _param(decl, parsed, axes, diagnostics)
        paths = expand(decl.path.text)
        if isinstance(paths, SyntaxFault):
            diagnostics.append(paths.diagnostic(decl.path))
        elif len(params) + len(paths) > MOST_ARRAYS:
            message = f"this entry makes it {len(params) + len(paths):,} arrays"
            help = f"`arrays` may list {MOST_ARRAYS:,}; a model of more belongs in a manifest"
            diagnostics.append(point(SYNTAX, message, decl.path.span, help=help))
        elif template is not None:
            shape, dtype, names = template.shape, template.dtype, template.logical_axes
            params += [Param(path, shape, dtype, names, template.span) for path in paths]
    return params


def _param(
    decl: ArrayDecl,
    parsed: ArrayType,
    axes: dict[str, LogicalAxis],
    diagnostics: list[Diagnostic],
) -> Param | None:
    dtype = dtype_name(parsed.dtype.text)
    if dtype is None:
        span = decl.type.at(parsed.dtype.start, parsed.dtype.end)
        diagnostics.append(unknown_dtype(parsed.dtype.text, span))
        return None
    shape: list[int] = []
    for dim in parsed.dims:
        size = _dim_size(dim, axes)
        if size is None:
            diagnostics.append(_unknown_size(dim, decl.type, axes))
            return None
        shape.append(size)
    names = tuple(dim.name.text if dim.name else None for dim in parsed.dims)
    own = names if any(names) else None
    return Param(decl.path.text, tuple(shape), dtype, own, decl.path.span)


def unknown_dtype(name: str, span: Any) -> Diagnostic:
    """Return the finding for a dtype that is not known."""
    from shardspec.ir.param import DTYPE_ALIASES, DTYPE_BITS

    help = did_you_mean(name, [*DTYPE_BITS, *DTYPE_ALIASES]) or "as in bf16, f32, s8, bool"
    return point(SYNTAX, f"unknown dtype `{name}`", span, help=help)


def _dim_size(dim: ArrayDim, axes: dict[str, LogicalAxis]) -> int | None:
    def lookup(name: str) -> int | None:
        return axes[name].size if name in axes else None

    if dim.size is not None:
        return _product(dim.size, lookup)
    return lookup(dim.name.text) if dim.name else None


def _unknown_size(dim: ArrayDim, excerpt: Excerpt, axes: dict[str, LogicalAxis]) -> Diagnostic:
    sized = {axis.name for axis in axes.values() if axis.size is not None}
    used = (
        [dim.name] if dim.size is None else [f for f in dim.size.factors if not isinstance(f, int)]
    )
    unknown = next((axis for axis in used if axis and axis.text not in sized), None)
    if unknown is None:
        return point(UNKNOWN_SIZE, "a dimension is too large", excerpt.at(dim.start, dim.end))
    return point(
        UNKNOWN_SIZE,
        f"the size of `{unknown.text}` is not known",
        excerpt.at(unknown.start, unknown.end),
        "no entry of `axes` states it",
        help=did_you_mean(unknown.text, sized) or _size_help(unknown.text, dim),
    )


def _size_help(name: str, dim: ArrayDim) -> str:
    inline = f"write `{name}=SIZE` here, or " if dim.size is None else ""
    return f"{inline}add `{name}: SIZE` to `axes`"


def _distinct(params: list[Param], diagnostics: list[Diagnostic]) -> Params:
    """Return the arrays, the first of those that share a path."""
    found: dict[str, Param] = {}
    for param in params:
        first = found.setdefault(param.path, param)
        if first is not param:
            diagnostics.append(_twice(first, param))
    return tuple(found.values())


def _twice(first: Param, second: Param) -> Diagnostic:
    labels = [Label(second.span, "stands for it again")] if second.span else []
    if first.span and second.span and first.span != second.span:
        labels.append(Label(first.span, "stands for it first", primary=False))
    return Diagnostic(
        DUPLICATE_ARRAY,
        f"two arrays have the path `{second.path}`: {first} and {second}",
        tuple(labels),
        help="take one of the two out; the first counts",
    )
