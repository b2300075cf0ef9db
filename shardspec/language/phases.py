"""Phases: small documents over a spec, each the same arrays laid out otherwise.

What stands under `phases: {decode: ...}` is read as a document of its own, whose routes begin at
the phase, so that every section means there what it means in a file. It is then merged over the
spec as a child is over what it extends, and the result is a whole `Spec`. Targets are the
exception: a phase that has any runs on those alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, NamedTuple

from shardspec.diagnostics import Diagnostic, Excerpt, Span, codes, labels_at, point, quote
from shardspec.diagnostics.words import by_key, described, listed
from shardspec.ir.spec import Spec, axis_of
from shardspec.language.document_to_layer import layer_of
from shardspec.language.grammar.syntax import Name, product
from shardspec.language.layer import AxisDecl, Layer, PlacedRule, merge, spec_of
from shardspec.language.reading import Data, Reading, Route, SourceMap
from shardspec.language.sections import SPEC_ALONE
from shardspec.language.validate import Validated, validate

#: Each is a spec, checked on all its targets.
MOST_PHASES = 32

_SECTION = "phases"


class Lowered(NamedTuple):
    """A file, its phases apart: the document that it is without them, and what each says.

    Attributes:
      layer: what the file says itself, its phases in it.
      valids: the file and each phase, without their faulty parts, and where what they say stands.
      shape: the faults of shape; `lost` are those of expressions.
    """

    layer: Layer
    valids: tuple[tuple[Validated, SourceMap], ...]
    shape: tuple[Diagnostic, ...]
    lost: tuple[Diagnostic, ...]


def lowered(reading: Reading) -> Lowered:
    """Return what a file says, and every fault of it and of its phases."""
    valids: list[tuple[Validated, SourceMap]] = []
    layers: list[tuple[str, Layer]] = []
    shape: list[Diagnostic] = []
    found: list[Diagnostic] = []
    for each in chain([reading], readings(reading, shape)):
        valid = validate(each)
        layer, lost = layer_of(valid, each.source_map)
        valids.append((valid, each.source_map))
        layers.append((each.phase, layer))
        shape += valid.diagnostics
        found += lost
    (_, layer), *phases = layers
    return Lowered(layer._replace(phases=tuple(phases)), tuple(valids), tuple(shape), tuple(found))


def readings(reading: Reading, faults: list[Diagnostic]) -> Iterator[Reading]:
    """Yield each phase of a file as a document of its own; add to `faults` what it may not hold."""
    stated = reading.data.get(_SECTION) if isinstance(reading.data, dict) else None
    if not isinstance(stated, dict):
        return
    if len(stated) > MOST_PHASES:
        message = f"{len(stated):,} phases; a spec has at most {MOST_PHASES}"
        span = reading.source_map.key((_SECTION,)).span
        faults.append(point(codes.TOO_DEEP, message, span, help="put some into another spec"))
        return
    places = reading.source_map
    keys, values = _by_phase(places.keys), _by_phase(places.values)
    for name, data in stated.items():
        if not isinstance(data, dict):
            continue  # which is a fault of shape, and told of
        inner = SourceMap(reading.source, keys.get(name, {}), values.get(name, {}))
        if name.strip() != name or not name or "@" in name:  # no `--phase` could say it
            help = "a name such as `decode`; behind `@` stands a target: `decode@pod`"
            message = f"`{name}` is no name for a phase"
            faults.append(point(codes.WRONG_TYPE, message, inner.key(()).span, help=help))
            continue
        faults += (_spec_alone(key, name, inner) for key in data if key in SPEC_ALONE)
        own: Data = {key: value for key, value in data.items() if key not in SPEC_ALONE}
        yield Reading(own, inner, phase=name)


def _by_phase(places: Mapping[Route, Excerpt]) -> dict[str, dict[Route, Excerpt]]:
    """Return the places in each phase, by routes that begin there; one walk over all of them."""
    found: dict[str, dict[Route, Excerpt]] = {}
    for route, excerpt in places.items():
        if len(route) > 1 and route[0] == _SECTION:
            found.setdefault(str(route[1]), {})[route[2:]] = excerpt
    return found


def _spec_alone(key: str, phase: str, places: SourceMap) -> Diagnostic:
    message = f"phase `{phase}` has `{key}`, which is the spec's alone"
    label, span = "means nothing in a phase", places.key((key,)).span
    help = f"{SPEC_ALONE[key]}: remove it, or move it out of {quote.section('phases')}"
    return point(codes.UNKNOWN_KEY, message, span, label, help=help)


def with_phases(spec: Spec, base: Layer) -> tuple[Spec, tuple[Diagnostic, ...]]:
    """Return a spec with its phases, each a whole spec, and what is wrong with them.

    Args:
      spec: what the spec means without them.
      base: its layer, with all that it extends.
    """
    if not base.phases:
        return spec, ()
    found: list[Spec] = []
    faults: list[Diagnostic] = []
    for name, layers in by_key(base.phases).items():
        merged, misplaced = merge((base, *layers))
        own = {target.name: target for layer in layers for target in layer.targets}
        targets = tuple(own.values()) or base.targets
        doc = merged.doc or base.doc
        merged = merged._replace(source=base.source, doc=doc, targets=targets)
        if not any(layer.axes or layer.lets or layer.arrays for layer in layers):  # those: caches
            merged = merged._replace(arrays=(), params=spec.params)
        phase, lost = spec_of(with_roles(merged), spec.sources)
        found.append(replace(phase, phase=name))
        faults += (*misplaced, *lost)
    faults += _shared_names(spec, found)
    for phase in found:
        faults += _resized(spec, phase)
    known = frozenset[str]().union(*(each.own_mesh_axes for each in (spec, *found)))
    used = {let.span for each in (spec, *found) for let in each.lets if let.is_used}
    whole = replace(spec, phases=tuple(found))
    return whole.everywhere(
        lambda each: replace(
            each,
            mesh_axes_elsewhere=known - each.own_mesh_axes,
            lets=tuple(let._replace(is_used=let.span in used) for let in each.lets),
        )
    ), tuple(faults)


def _resized(spec: Spec, phase: Spec) -> Iterator[Diagnostic]:
    """Yield a finding for each entry of `arrays` that a phase gives another shape.

    Caches are made anew in each phase.
    """
    if phase.params is spec.params:
        return
    there = {param.path: param for param in phase.params}
    pairs = ((param, there[param.path]) for param in spec.params if param.path in there)
    differing = (pair for pair in pairs if pair[0] != pair[1] and not pair[1].is_cache)
    for group in by_key((pair[0].span, pair) for pair in differing).values():
        here, other = group[0]
        paths = tuple(param.path for param, _ in group)
        labels = labels_at((here.span, str(here)), *_stated_in(phase, spec))
        message = f"`{here.path}` is {here} in the spec and {other} in phase `{phase.phase}`"
        note = f"{described(paths)}: values of one shape cannot be moved to another"
        way = "an array has one shape in all phases: state its sizes in its type, as in"
        help = f"{way} `{here}`; or take the size out of the phase"
        about: dict[str, Any] = {"notes": (note,), "help": help, "arrays": paths}
        yield Diagnostic(codes.RESIZED_IN_PHASE, message, labels, **about)


def _stated_in(phase: Spec, spec: Spec) -> Iterator[tuple[Span | None, str]]:
    """Yield where a phase states sizes that differ from those of the spec."""
    known = {axis.name: axis.size for axis in spec.logical_axes}
    for axis in phase.logical_axes:
        if axis.size != known.get(axis.name):
            yield axis.span, f"{axis.size} in phase `{phase.phase}`"


def _shared_names(spec: Spec, phases: Sequence[Spec]) -> Iterator[Diagnostic]:
    """Yield the fault of each target that has the name of a phase: which of them is meant?"""
    names = {phase.phase for phase in phases}
    targets = dict.fromkeys(target for each in (spec, *phases) for target in each.targets)
    for target in targets:
        if target.name in names:
            message = f"a phase and a target are called `{target.name}`"
            help = f"give one of them another name; phases: {listed(sorted(names))}"
            yield point(codes.DUPLICATE_KEY, message, target.span, "the target", help=help)


# One logical axis in several places of an array: `embed embed'`, or `in:embed out:embed`.
#
# Such a name is a role of the axis: it is as long as that, has its unit, and goes by its rules, so
# that `embed -> fsdp` reads as `embed, embed' -> fsdp` and serves the plain name first. A role with
# a rule of its own, `embed' -> tensor`, goes by its own rules alone.


def with_roles(layer: Layer) -> Layer:
    """Return a layer in which every role that it names is an axis, with rules.

    Invariants:
      plain: a layer without roles comes back as it is.
    """
    found = (name for name in _named(layer) if axis_of(name) != name)
    roles = {name: axis_of(name) for name in sorted(found, key=_in_turn)}
    if not roles:
        return layer
    return layer._replace(axes=tuple(_axes(layer, roles)), rules=tuple(_rules(layer.rules, roles)))


def _in_turn(role: str) -> tuple[bool, int, str]:
    """Return what sorts roles: `embed'`, `embed''`, then those with a word, by the alphabet."""
    return ":" in role, 0 if ":" in role else len(role), role


def _named(layer: Layer) -> dict[str, None]:
    """Return every logical axis that a layer names, in order."""
    named = [entry.logical_axes for entry in layer.of("params")]
    named += [entry.logical_axes for entry in layer.activations]
    named += [entry.logical_axes or () for entry in layer.overrides]
    named += [param.logical_axes or () for param in layer.params]
    named += [tuple(name for name, _ in scan.axes) for scan in layer.of("scan")]
    for kind in {array.written.text: array.type for array in layer.arrays}.values():
        named.append(tuple(dim.name.text if dim.name else None for dim in kind.dims))
    found = [axis.name for axis in layer.axes]
    found += [placed.rule.logical_axis for placed in layer.rules]
    return dict.fromkeys((*found, *(name for names in named for name in names if name)))


def _axes(layer: Layer, roles: dict[str, str]) -> Iterator[AxisDecl]:
    """Yield the axes, and roles as long as theirs that state no size of their own."""
    by_name = {axis.name: axis for axis in layer.axes}
    for axis in layer.axes:
        whole = by_name.get(roles.get(axis.name, ""))
        is_bare = axis.size is None and axis.unit is None
        yield axis if whole is None or not is_bare else _as_long(whole, axis.name)
    for role, name in roles.items():
        if role not in by_name and name in by_name:
            yield _as_long(by_name[name], role)


def _as_long(axis: AxisDecl, role: str) -> AxisDecl:
    """Return a role of an axis, whose size is that of the axis: what is wrong is told of that."""
    size = None if axis.size is None else product(Name(axis.name, 0, 0))
    return axis._replace(name=role, size=size)


def _rules(rules: tuple[PlacedRule, ...], roles: dict[str, str]) -> Iterator[PlacedRule]:
    """Yield the rules, each with one for every role of its axis that has none of its own behind."""
    own = {placed.rule.logical_axis for placed in rules}
    for placed in rules:
        yield placed
        for role, name in roles.items():
            if name == placed.rule.logical_axis and role not in own:
                yield placed._replace(rule=replace(placed.rule, logical_axis=role))
