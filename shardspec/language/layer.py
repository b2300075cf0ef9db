"""One document, lowered on its own, and layers -> one: what `extends:` means.

A child that has rules for a logical axis replaces the parent's rules for that axis at the
parent's first position of it; new axes go to the end; `at:` places by hand; `drop:` removes.
Nothing is ever appended below a rule that shadows it. Elsewhere the child's entries come
first (first match wins) or replace the parent's of the same name.

Merged layer -> Spec: priorities applied, sizes worked out, arrays expanded.

What no machine can count is said (SHD305), of arrays, activations and meshes; and arrays that stand
twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from shardspec.diagnostics import Diagnostic, Excerpt, Label, SourceFile, Span, codes, point, quote
from shardspec.diagnostics.words import described, did_you_mean, grouped, listed, near_or_known
from shardspec.ir import spec as ir
from shardspec.ir.program import StepSpec
from shardspec.ir.spec import MOST_ELEMENTS, Activation, AxisRule, Param, Params, Spec, Target
from shardspec.language.grammar.syntax import ArrayDim, ArrayType, Name, SizeExpr, SyntaxFault
from shardspec.language.meshes import Numbers, TargetDecl, solved
from shardspec.language.sections import RULES


class Place(NamedTuple):
    """Where a rule wants to stand among inherited ones."""

    kind: Literal["start", "end", "before", "after"]
    axis: str | None
    span: Span


class PlacedRule(NamedTuple):
    """A rule, and its place where it asks for one."""

    rule: AxisRule
    place: Place | None = None


class AxisDecl(NamedTuple):
    """A logical axis whose size and unit may still be made of the sizes of others.

    Attributes:
      stated: what a `LogicalAxis` has as it stands.
      is_let: whether it is a number with a name, and no axis at all.
    """

    name: str
    size: SizeExpr | None
    unit: SizeExpr | None
    span: Span
    stated: Mapping[str, Any] = MappingProxyType({})
    parts: tuple[tuple[str, SizeExpr], ...] = ()
    is_interleaved: bool = False
    is_let: bool = False


class ArrayDecl(NamedTuple):
    """An entry of `arrays:`.

    Attributes:
      written: the type as it stands, and where.
      is_cache: whether it stands under `caches:`.
    """

    path: Excerpt
    written: Excerpt
    type: ArrayType
    is_cache: bool = False


class Layer(NamedTuple):
    """What one document says itself.

    Attributes:
      lets: names for numbers.
      drops: logical axes whose inherited rules go.
      matched: what sections of patterns say, by section: of these, the first match wins.
      policy: the keys it sets, and no more.
      state: the same, and the spans.
      step: the same; a program replaces the parent's.
      arrays: inline ones, whose sizes may need the axes of every layer.
      params: those of its manifests.
      inherited_axes: logical axes that what it extends has rules for, replaced or not.
      phases: by name, what each phase of it says itself; a name may stand several times.
    """

    source: SourceFile
    doc: str = ""
    lets: tuple[AxisDecl, ...] = ()
    axes: tuple[AxisDecl, ...] = ()
    rules: tuple[PlacedRule, ...] = ()
    drops: tuple[Excerpt, ...] = ()
    targets: tuple[TargetDecl, ...] = ()
    overrides: tuple[ir.Override, ...] = ()
    matched: Mapping[str, tuple[Any, ...]] = MappingProxyType({})
    activations: tuple[Activation, ...] = ()
    policy: tuple[tuple[str, Any], ...] = ()
    state: tuple[tuple[str, Any], ...] = ()
    coverage: ir.CoverageGate | None = None
    step: tuple[tuple[str, Any], ...] = ()
    replicate: tuple[ir.Replicate, ...] = ()
    lint_levels: tuple[codes.LintLevel, ...] = ()
    arrays: tuple[ArrayDecl, ...] = ()
    params: Params = ()
    inherited_axes: tuple[str, ...] = ()
    phases: tuple[tuple[str, Layer], ...] = ()

    def of(self, section: str) -> tuple[Any, ...]:
        """Return what a section of patterns says, in order."""
        return self.matched.get(section, ())


#: Sections that a spec has as a layer does.
_AS_STATED = ("source", "doc", "activations", "coverage", "lint_levels", "overrides", "replicate")
#: Sections of settings: a child sets some, and the others stay.
_SETTINGS = ("policy", "state", "step")

T = TypeVar("T")
_Decls = dict[str, AxisDecl]
#: By name, None where it is not known.
_Sizes = dict[str, int | None]


def merge(layers: Iterable[Layer]) -> tuple[Layer, tuple[Diagnostic, ...]]:
    """Return parents and child as one layer: the last one wins, and gives source and doc."""
    diagnostics: list[Diagnostic] = []
    layers = tuple(layers)
    merged = Layer(layers[0].source)
    for layer in layers:
        merged = _merge(merged, layer, diagnostics)
    return merged, tuple(diagnostics)


def _merge(parent: Layer, child: Layer, diagnostics: list[Diagnostic]) -> Layer:
    return Layer(
        source=child.source,
        doc=child.doc,
        lets=_by_name(parent.lets, child.lets, lambda let: let.name),
        axes=_by_name(parent.axes, child.axes, lambda axis: axis.name),
        rules=tuple(PlacedRule(rule) for rule in _rules(parent, child, diagnostics)),
        targets=_targets(parent, child),
        activations=_activations(parent.activations, child.activations),
        coverage=child.coverage or parent.coverage,
        lint_levels=_by_name(parent.lint_levels, child.lint_levels, lambda level: level.finding),
        arrays=_declared(parent, child),
        params=tuple(dict.fromkeys(parent.params + child.params)),
        inherited_axes=tuple(dict.fromkeys(_known_axes(parent) + child.inherited_axes)),
        phases=parent.phases + child.phases,
        overrides=child.overrides + parent.overrides,
        replicate=child.replicate + parent.replicate,
        matched={name: child.of(name) + parent.of(name) for name in RULES},
        **{name: _set(getattr(parent, name), getattr(child, name)) for name in _SETTINGS},
    )


def _set(parent: tuple[tuple[str, Any], ...], child: tuple[tuple[str, Any], ...]) -> Any:
    return tuple((dict(parent) | dict(child)).items())


def _declared(parent: Layer, child: Layer) -> tuple[ArrayDecl, ...]:
    """Return the inline arrays of both; a cache that the child states anew is the child's."""
    if not parent.arrays:
        return child.arrays
    anew = {decl.path.text for decl in child.arrays if decl.is_cache}
    kept = (d for d in parent.arrays if not (d.is_cache and d.path.text in anew))
    return tuple(dict.fromkeys((*kept, *child.arrays)))


def _known_axes(layer: Layer) -> tuple[str, ...]:
    return layer.inherited_axes + tuple(placed.rule.logical_axis for placed in layer.rules)


def _by_name(
    parent: tuple[T, ...], child: tuple[T, ...], key: Callable[[T], object]
) -> tuple[T, ...]:
    merged = {key(entry): entry for entry in parent}
    merged.update((key(entry), entry) for entry in child)
    return tuple(merged.values())


def _activations(
    parent: tuple[Activation, ...], child: tuple[Activation, ...]
) -> tuple[Activation, ...]:
    """Return those of one name, the child's in place of the parent's; then patterns, its first."""
    merged = _by_name(parent, child, lambda entry: (entry.name, entry.pattern is None))
    own = {entry.name for entry in child}
    patterns = [entry for entry in merged if entry.pattern is not None]
    patterns.sort(key=lambda entry: entry.name not in own)
    return (*(entry for entry in merged if entry.pattern is None), *patterns)


def _targets(parent: Layer, child: Layer) -> tuple[TargetDecl, ...]:
    """Return targets by name; one of the child replaces all counts of slices of its name."""
    own = {target.name for target in child.targets}
    families = {ir.family(name) for name in own}
    kept = (t for t in parent.targets if t.name in own or ir.family(t.name) not in families)
    return _by_name(tuple(kept), child.targets, lambda target: target.name)


def _rules(parent: Layer, child: Layer, diagnostics: list[Diagnostic]) -> list[AxisRule]:
    """Return the parent's rules with the child's in their places."""
    inherited = [placed.rule for placed in parent.rules]
    known = {rule.logical_axis for rule in inherited}
    dropped = {drop.text for drop in child.drops}
    for drop in child.drops:
        if drop.text not in known:
            message = f"`drop` names `{drop.text}`, which has no inherited rule"
            diagnostics.append(_misplaced(message, drop.span, drop.text, known))
    merged = [rule for rule in inherited if rule.logical_axis not in dropped]
    unplaced = [placed.rule for placed in child.rules if placed.place is None]
    placed_by_hand = [placed for placed in child.rules if placed.place is not None]
    by_hand = {placed.rule.logical_axis for placed in placed_by_hand}
    merged = _replace(merged, unplaced, by_hand)
    return _place_all(merged, placed_by_hand, diagnostics)


def _replace(inherited: list[AxisRule], own: list[AxisRule], by_hand: set[str]) -> list[AxisRule]:
    """Return `inherited` with the rules of each own axis at that axis's first position."""
    own_axes = dict.fromkeys(rule.logical_axis for rule in own)
    merged: list[AxisRule] = []
    settled: set[str] = set()
    for rule in inherited:
        axis = rule.logical_axis
        if axis in own_axes:
            if axis not in settled:
                settled.add(axis)
                merged += [mine for mine in own if mine.logical_axis == axis]
        elif axis not in by_hand:
            merged.append(rule)
    return merged + [rule for rule in own if rule.logical_axis not in settled]


def _place_all(
    rules: list[AxisRule], placed: list[PlacedRule], diagnostics: list[Diagnostic]
) -> list[AxisRule]:
    """Return `rules` with those that ask for a place put there, in document order."""
    groups: dict[tuple[str, str | None], tuple[Place, list[AxisRule]]] = {}
    for entry in placed:
        if entry.place is not None:
            key = (entry.place.kind, entry.place.axis)
            groups.setdefault(key, (entry.place, []))[1].append(entry.rule)
    for place, group in groups.values():
        position = _position(rules, place)
        if position is None:
            axis, known = place.axis or "", {rule.logical_axis for rule in rules}
            message = (
                f"{quote.word('at', f'{place.kind} {axis}')}: no rule for `{axis}` stands here"
            )
            diagnostics.append(_misplaced(message, place.span, axis, known))
            position = len(rules)
        rules = [*rules[:position], *group, *rules[position:]]
    return rules


def _position(rules: list[AxisRule], place: Place) -> int | None:
    if place.kind == "start":
        return 0
    if place.kind == "end":
        return len(rules)
    found = [index for index, rule in enumerate(rules) if rule.logical_axis == place.axis]
    if not found:
        return None
    return found[0] if place.kind == "before" else found[-1] + 1


def _misplaced(message: str, span: Span, axis: str, known: set[str]) -> Diagnostic:
    """Return the finding for an axis that should have a rule, and has none."""
    axes = near_or_known(axis, sorted(known), "axes with rules")
    help = axes if known else "nothing is inherited"
    return point(codes.BAD_PLACE, message, span, help=help)


def countable(params: Sequence[Param]) -> tuple[tuple[Param, ...], tuple[Diagnostic, ...]]:
    """Return the arrays of fewer than 2^63 elements, and a finding for each entry of others."""
    beyond = [param for param in params if param.element_count > MOST_ELEMENTS]
    groups = grouped(beyond, lambda param: param.span or param.path)
    kept = (param for param in params if param.element_count <= MOST_ELEMENTS)
    return tuple(kept if beyond else params), tuple(map(too_large, groups.values()))


def too_large(group: Sequence[Param]) -> Diagnostic:
    """Return the finding for arrays of one place and shape that cannot be counted."""
    first = group[0]
    longest = f"{max(first.shape):,}"
    label = f"{first.rank} dimensions, the longest of {longest}" if first.rank > 1 else longest
    unit = "elements" if first.element_count > MOST_ELEMENTS else "bytes"
    message = f"{described(param.path for param in group)}: 2^63 {unit} or more, {label}"
    return _beyond(message, first.span, label)


def _beyond(message: str, span: Span | None, label: str) -> Diagnostic:
    help = "no machine counts them: a size is wrong"
    return point(codes.BEYOND_COUNT, message, span, label, help=help)


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
            names = dict.fromkeys(filter(None, activation.logical_axes))
            said = ", ".join(f"{name}={size:,}" for name in names if (size := sizes.get(name)))
            message = f"activation `{activation.name}`: 2^63 elements or more, {said}"
            found.append(_beyond(message, activation.span, said))
    return tuple(found)


def countable_targets(
    targets: Sequence[Target],
) -> tuple[tuple[Target, ...], tuple[Diagnostic, ...]]:
    """Return the targets, unsound where a mesh has 2^63 devices or more; and a finding for each."""
    found = []
    checked = []
    for target in targets:
        if target.mesh.device_count > MOST_ELEMENTS:
            found.append(_mesh(target))
            ones = ir.Mesh(tuple(replace(axis, size=1) for axis in target.mesh.axes))
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
    help = f"remove one of the entries for `{second.path}`; the first counts"
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
    by_name = _by_own_name(layer, diagnostics)
    numbers = _sizes(by_name, diagnostics)
    axes = _axes(layer.axes, by_name, numbers, diagnostics)
    lets = {let.name: numbers[let.name] for let in layer.lets}
    stated = {decl.name for decl in layer.axes if decl.size is not None}
    sizes = {axis.name: axis.size for axis in axes if axis.name in stated}
    params = _params(layer, lets | sizes, diagnostics)
    known = Numbers(lets, {axis.name: axis for axis in axes})
    targets = tuple(solved(target, known, diagnostics) for target in layer.targets)
    targets, too_many = countable_targets(targets)
    diagnostics += (*too_many, *too_wide(layer.activations, sizes))
    rules = sorted((placed.rule for placed in layer.rules), key=lambda rule: rule.priority)
    return Spec(
        **{name: getattr(layer, name) for name in _AS_STATED},
        **dict[str, Any]({found: layer.of(name) for name, (found, _) in RULES.items()}),
        logical_axes=axes,
        axis_rules=_of_axes(rules),
        any_rules=tuple(rule for rule in rules if rule.logical_axis == ir.ANY),
        placed_rules=_of_axes(placed.rule for placed in layer.rules),
        policy=ir.Policy(**dict[str, Any](layer.policy)),
        state=ir.StatePolicy(**dict(layer.state)) if layer.state else None,
        step=_step(layer.step),
        targets=targets,
        params=params,
        inherited_axes=layer.inherited_axes,
        sources=sources,
        lets=tuple(_named_numbers(layer, lets)),
    ), tuple(diagnostics)


def _named_numbers(layer: Layer, numbers: Mapping[str, int | None]) -> Iterator[ir.NamedNumber]:
    """Yield the names of `let`, and whether anything of the layer names each.

    One that does not work out, which is reported, counts as used.
    """
    sizes = [size for axis in (*layer.lets, *layer.axes) for size in (axis.size, axis.unit)]
    sizes += [size for axis in layer.axes for _, size in axis.parts]
    sizes += [size.named for decl in layer.targets for size, _ in decl.sizes.values()]
    dims = [dim for array in layer.arrays for dim in array.type.dims] if layer.lets else []
    used = {name.text for size in (*sizes, *(d.size for d in dims)) if size for name in size.names}
    used |= {dim.name.text for dim in dims if dim.name is not None}
    for let in layer.lets:
        is_used = let.name in used or numbers[let.name] is None
        yield ir.NamedNumber(let.name, is_used, let.span)


def _step(stated: tuple[tuple[str, Any], ...]) -> StepSpec | None:
    if not stated:
        return None
    return StepSpec(**dict(stated))


def _of_axes(rules: Iterable[ir.AxisRule]) -> tuple[ir.AxisRule, ...]:
    """Return the rules without those for `*`."""
    return tuple(rule for rule in rules if rule.logical_axis != ir.ANY)


def _params(layer: Layer, sizes: _Sizes, diagnostics: list[Diagnostic]) -> tuple[Param, ...]:
    """Return the arrays of a layer, those of manifests after the inline ones, that count."""
    inline = _arrays(layer.arrays, sizes, diagnostics)
    params, twice = distinct(inline + list(layer.params))
    diagnostics += twice
    # An inline array with a dimension that is too long alone stays: that size is told of already.
    told = {param.path for param in inline if BEYOND in param.shape}
    kept, too_large = countable([param for param in params if param.path not in told])
    sound = {param.path for param in kept} | told
    diagnostics += too_large
    return tuple(param for param in params if param.path in sound)


def _by_own_name(layer: Layer, diagnostics: list[Diagnostic]) -> dict[str, AxisDecl]:
    """Return the axes and the names of `let`, which share one room of names; the axis counts."""
    by_name = {let.name: let for let in layer.lets}
    for axis in layer.axes:
        let = by_name.get(axis.name)
        if let is not None:
            labels = (Label(let.span, "a number"), Label(axis.span, "an axis", primary=False))
            message = f"`{axis.name}` is a name of `let` and an axis: which a size means is open"
            help = f"call the number otherwise: `{axis.name}_size`"
            diagnostics.append(Diagnostic(codes.WRONG_TYPE, message, labels, help=help))
        by_name[axis.name] = axis
    return by_name


def _axes(
    decls: tuple[AxisDecl, ...], by_name: _Decls, sizes: _Sizes, diagnostics: list[Diagnostic]
) -> tuple[ir.LogicalAxis, ...]:
    """Return the axes with sizes and units as numbers; either may name other axes in any order."""
    axes = []
    own = {decl.name for decl in decls}
    for decl in decls:
        unit = _unit(decl, by_name, sizes, diagnostics)
        parts = _parts(decl, unit, sizes, diagnostics)
        unit = unit if parts is None else parts.group
        made = {"factors": _factors(decl, own), "fixes": _fixes(decl, own)}
        fixed = {"unit": unit, "parts": parts, **made, **decl.stated}
        axes.append(ir.LogicalAxis(decl.name, sizes[decl.name], span=decl.span, **fixed))
    return tuple(axes)


def _parts(
    decl: AxisDecl, unit: int, sizes: _Sizes, diagnostics: list[Diagnostic]
) -> ir.Parts | None:
    """Return the parts of a fused axis; None for others, and where the sizes do not work out."""
    found = [(name, size.value(sizes.get)) for name, size in decl.parts]
    small = next(((name, size) for name, size in found if size is not None and size < 1), None)
    if small is not None and sizes[decl.name] is not None:
        message = f"the part `{small[0]}` of `{decl.name}` is {small[1]:,}"
        help = "a part is 1 element or more: remove it, or correct the sizes that it names"
        diagnostics.append(_bad_size(message, decl.span, help))
    known = tuple((name, size) for name, size in found if size is not None)
    if not known or small is not None or len(known) < len(found) or sizes[decl.name] == BEYOND:
        return None
    return ir.Parts(known, unit, decl.is_interleaved)


def _factors(decl: AxisDecl, axes: Set[str]) -> tuple[str, ...]:
    """Return the axes that an axis is the product of; none where a number is among them."""
    terms = decl.size.terms if decl.size is not None else ()
    if len(terms) != 1 or terms[0].sign != 1:
        return ()
    names = tuple(each.text for each in terms[0].factors if isinstance(each, Name))
    return names if len(names) == len(terms[0].factors) and axes >= set(names) else ()


def _fixes(decl: AxisDecl, axes: Set[str]) -> frozenset[str]:
    """Return the axes that no padding may make longer because of this one.

    It can follow its factors; its unit and the terms of a sum it cannot follow. Then it is one of
    them itself.
    """
    found = {name.text for name in decl.unit.names} if decl.unit is not None else set()
    found |= {name.text for _, size in decl.parts for name in size.names}
    summed = set(_named_in(decl)) & axes if not _factors(decl, axes) else set()
    return frozenset((found & axes) | summed | ({decl.name} if decl.parts or summed else set()))


def _unit(decl: AxisDecl, by_name: _Decls, sizes: _Sizes, diagnostics: list[Diagnostic]) -> int:
    """Return the unit of an axis; 1, and a finding, where it does not work out."""
    unit = 1 if decl.unit is None else decl.unit.value(sizes.get)
    if unit is None and decl.unit is not None:
        diagnostics += _unknown_name(decl, decl.unit, by_name, "unit")
    elif unit is not None and unit < 1:
        message = f"the unit of `{decl.name}` is {unit}"
        diagnostics.append(_bad_size(message, decl.span, "a unit is 1 element or more"))
    return unit if unit is not None and 1 <= unit < BEYOND else 1


def _sizes(by_name: _Decls, diagnostics: list[Diagnostic]) -> _Sizes:
    """Return the size of every axis, None where it is not known; and say why it is not.

    Each axis is worked out once, after those it names; a stack of our own, since a chain of them
    may be as long as the file.
    """
    sizes: _Sizes = {}
    for start in by_name:
        path = {start: _named_in(by_name[start])}
        while path:
            name, rest = next(reversed(path.items()))
            inner = next((each for each in rest if each not in sizes and each in by_name), None)
            if inner is None:
                del path[name]
                _add_size(by_name[name], by_name, sizes, diagnostics)
            elif inner in path:
                sizes[inner] = None
                diagnostics.append(_circle(by_name[inner], list(path)))
            else:
                path[inner] = _named_in(by_name[inner])
    return sizes


def _named_in(decl: AxisDecl) -> Iterator[str]:
    """Yield the axes that the size of an axis names."""
    return (name.text for name in decl.size.names) if decl.size else iter(())


def _add_size(
    decl: AxisDecl, by_name: _Decls, sizes: _Sizes, diagnostics: list[Diagnostic]
) -> None:
    """Add the size of an axis to `sizes`, which hold those of all the axes that it names."""
    if decl.name in sizes:
        return
    size = sizes[decl.name] = None if decl.size is None else _bounded(decl.size, sizes.get)
    if decl.size is None:
        return
    if size is None:
        diagnostics += _unknown_name(decl, decl.size, by_name, "size")
    elif size < 0:
        sizes[decl.name] = None
        diagnostics.append(_negative(f"the size of `{decl.name}`", size, decl.span))
    elif size >= BEYOND and all(sizes[name] != BEYOND for name in _named_in(decl)):
        message = f"the size of `{decl.name}` is beyond any array: 2^63 or more"
        diagnostics.append(_bad_size(message, decl.span, "take a factor out"))


def _circle(decl: AxisDecl, path: list[str]) -> Diagnostic:
    """Return the finding for an axis whose size leads back to it."""
    names = [*path[path.index(decl.name) :], decl.name]
    if len(names) > _CIRCLE_SHOWN:
        half = _CIRCLE_SHOWN // 2
        names = [*names[:half], f"... {len(names) - 2 * half} more ...", *names[-half:]]
    message = f"the size of `{decl.name}` depends on itself: {' -> '.join(names)}"
    return _bad_size(message, decl.span, f"give one of them a number: {quote.size(decl.name, 64)}")


def _bounded(size: SizeExpr, lookup: Callable[[str], int | None]) -> int | None:
    """Return what a size comes to, at most `BEYOND`; None where an axis of it is not known."""
    value = size.value(lookup)
    is_beyond = any((lookup(name.text) or 0) >= BEYOND for name in size.names)
    return value if value is None else BEYOND if is_beyond else min(value, BEYOND)


def _negative(what: str, size: int, span: Span) -> Diagnostic:
    """Return the finding for a size below 0."""
    help = "more is taken off than there is: mend the sizes that it names"
    return _bad_size(f"{what} is {size:,}, less than nothing", span, help)


def _bad_size(message: str, span: Span, help: str | None = None) -> Diagnostic:
    return point(codes.UNKNOWN_SIZE, message, span, help=help)


def _unknown_name(
    decl: AxisDecl, stated: SizeExpr, known: dict[str, AxisDecl], field: str
) -> Iterator[Diagnostic]:
    """Yield why a size or unit is not known, unless an axis of it has that fault, told there."""
    names = (name.text for name in stated.names)
    unknown = next((each for each in names if each not in known or _is_open(known[each])), None)
    if unknown is None:
        return
    that = "that" if field == "size" else "the size"
    what = f"the {field} of `{decl.name}` needs {that} of"
    section, form = "axes", "SIZE"
    if decl.is_let:
        what, section, form = f"`{decl.name}` needs", "let", "NUMBER"
    yield point(
        codes.UNKNOWN_SIZE,
        f"{what} `{unknown}`, which no {quote.entry_in(section)} states",
        decl.span,
        help=_difference(unknown, known)
        or did_you_mean(unknown, known, without=(unknown, decl.name))
        or f"add {quote.added(section, unknown, form)}",
        subject=decl.name,
    )


def _is_open(decl: AxisDecl) -> bool:
    """Say whether an axis states no size; a name of `let` without one could not be read."""
    return decl.size is None and not decl.is_let


def _difference(unknown: str, known: Iterable[str]) -> str | None:
    """Return how to write a difference, where an unknown name is one without spaces."""
    left, _, right = unknown.partition("-")
    if right and (left in known or right in known or right.isdigit()):
        return f"a name may hold `-`: the difference is `{left} - {right}`, with spaces"
    return None


def _arrays(
    decls: tuple[ArrayDecl, ...], sizes: _Sizes, diagnostics: list[Diagnostic]
) -> list[Param]:
    """Return the arrays of every entry, ranges expanded.

    Args:
      sizes: of the axes that state one, None where it does not work out.
    """
    from shardspec.language.glob import expand

    params: list[Param] = []
    sized = frozenset(name for name, size in sizes.items() if size is not None)
    sound: dict[str, Param] = {}
    for decl in decls:
        template = sound.get(decl.written.text)  # layers say the same, over and over
        if template is None:
            before = len(diagnostics)
            template = _param(decl, sizes, sized, diagnostics)
            if template is not None and len(diagnostics) == before:
                sound[decl.written.text] = template
        paths = expand(decl.path.text)
        if isinstance(paths, SyntaxFault):
            diagnostics.append(paths.diagnostic(decl.path))
        elif len(params) + len(paths) > MOST_ARRAYS:
            message = f"this entry makes it {len(params) + len(paths):,} arrays"
            help = f"`arrays` may list {MOST_ARRAYS:,}; a model of more belongs in a manifest"
            diagnostics.append(point(codes.SYNTAX, message, decl.path.span, help=help))
        elif template is not None:
            each = (template.shape, template.dtype, template.logical_axes, decl.path.span)
            params += [Param(path, *each, decl.is_cache) for path in paths]
    return params


def _param(
    decl: ArrayDecl, sizes: _Sizes, sized: frozenset[str], diagnostics: list[Diagnostic]
) -> Param | None:
    stated, dims = decl.type
    dtype = ir.dtype_name(stated.text)
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
        if size < 0:
            place = decl.written.at(dim.start, dim.end)
            diagnostics.append(_negative("a dimension", size, place))
            return None
        if size >= BEYOND and all((sizes.get(n.text) or 0) < BEYOND for n in dim.stated.names):
            place = decl.written.at(dim.start, dim.end)
            diagnostics.append(_bad_size("a dimension is too large: 2^63 or more", place))
        shape.append(size)
    names = tuple(dim.name.text if dim.name else None for dim in dims)
    own = names if any(names) else None
    return Param(decl.path.text, tuple(shape), dtype, own, decl.path.span)


def unknown_dtype(name: str, span: Span) -> Diagnostic:
    """Return the finding for a dtype that is not known."""
    help = did_you_mean(name, [*ir.DTYPE_BITS, *ir.DTYPE_ALIASES]) or "as in bf16, f32, s8, bool"
    return point(codes.SYNTAX, f"unknown dtype `{name}`", span, help=help)


def _dim_size(dim: ArrayDim, sizes: _Sizes) -> int | None:
    if dim.name is not None and dim.size is None:
        return sizes.get(dim.name.text)
    return _bounded(dim.stated, sizes.get)


def _unknown_size(
    dim: ArrayDim, excerpt: Excerpt, sizes: _Sizes, sized: frozenset[str]
) -> Diagnostic:
    unknown = next(name for name in dim.stated.names if name.text not in sized)
    name, place = unknown.text, excerpt.at(unknown.start, unknown.end)
    if name in sizes:
        axes = quote.section("axes")
        label = f"its entry of {axes} gives none"
        help = f"mend `{name}` in {axes}, or write `{name}=SIZE` here"
    else:
        label = f"no {quote.entry_in('axes')} states it"
        inline = f"write `{name}=SIZE` here, or " if dim.size is None else ""
        add = f"{inline}add {quote.added('axes', name, 'SIZE')}"
        help = _difference(name, sized) or did_you_mean(name, sized) or add
    message = f"the size of `{name}` is not known"
    return point(codes.UNKNOWN_SIZE, message, place, label, help=help, subject=name)
