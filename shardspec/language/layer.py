"""One document, lowered on its own, and layers -> one: what `extends:` means.

A child that has rules for a logical axis replaces the parent's rules for that axis at the
parent's first position of it; new axes go to the end; `at:` places by hand; `drop:` removes.
Nothing is ever appended below a rule that shadows it. Elsewhere the child's entries come
first (first match wins) or replace the parent's of the same name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple, TypeVar

from shardspec.diagnostics import Diagnostic, Excerpt, SourceFile, Span, codes, point
from shardspec.diagnostics.words import did_you_mean, listed
from shardspec.ir.spec import (
    Activation,
    AxisRule,
    CoverageGate,
    LintLevel,
    Override,
    Params,
    PathRule,
    Replicate,
    ScanRule,
    Target,
)
from shardspec.language.grammar.syntax import ArrayType, SizeExpr


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
    """A logical axis whose size may still be a product of others."""

    name: str
    size: SizeExpr | None
    unit: int
    doc: str
    span: Span
    min_shard: int = 1


class ArrayDecl(NamedTuple):
    """An entry of `arrays:`.

    Attributes:
      written: the type as it stands, and where.
    """

    path: Excerpt
    written: Excerpt
    type: ArrayType


class Layer(NamedTuple):
    """What one document says itself.

    Attributes:
      drops: logical axes whose inherited rules go.
      policy: the keys it sets, and no more.
      state: the same, and the spans.
      arrays: inline ones, whose sizes may need the axes of every layer.
      params: those of its manifests.
      inherited_axes: logical axes that what it extends has rules for, replaced or not.
    """

    source: SourceFile
    doc: str = ""
    axes: tuple[AxisDecl, ...] = ()
    rules: tuple[PlacedRule, ...] = ()
    drops: tuple[Excerpt, ...] = ()
    targets: tuple[Target, ...] = ()
    path_rules: tuple[PathRule, ...] = ()
    overrides: tuple[Override, ...] = ()
    scans: tuple[ScanRule, ...] = ()
    activations: tuple[Activation, ...] = ()
    policy: tuple[tuple[str, str], ...] = ()
    state: tuple[tuple[str, Any], ...] = ()
    coverage: CoverageGate | None = None
    replicate: tuple[Replicate, ...] = ()
    lint_levels: tuple[LintLevel, ...] = ()
    arrays: tuple[ArrayDecl, ...] = ()
    params: Params = ()
    inherited_axes: tuple[str, ...] = ()


T = TypeVar("T")


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
        axes=_by_name(parent.axes, child.axes, lambda axis: axis.name),
        rules=tuple(PlacedRule(rule) for rule in _rules(parent, child, diagnostics)),
        targets=_by_name(parent.targets, child.targets, lambda target: target.name),
        path_rules=child.path_rules + parent.path_rules,
        overrides=child.overrides + parent.overrides,
        scans=child.scans + parent.scans,
        activations=_by_name(parent.activations, child.activations, lambda entry: entry.name),
        policy=tuple((dict(parent.policy) | dict(child.policy)).items()),
        state=tuple((dict(parent.state) | dict(child.state)).items()),
        coverage=child.coverage or parent.coverage,
        replicate=child.replicate + parent.replicate,
        lint_levels=_by_name(parent.lint_levels, child.lint_levels, lambda level: level.finding),
        arrays=tuple(dict.fromkeys(parent.arrays + child.arrays)),
        params=tuple(dict.fromkeys(parent.params + child.params)),
        inherited_axes=tuple(dict.fromkeys(_known_axes(parent) + child.inherited_axes)),
    )


def _known_axes(layer: Layer) -> tuple[str, ...]:
    return layer.inherited_axes + tuple(placed.rule.logical_axis for placed in layer.rules)


def _by_name(parent: tuple[T, ...], child: tuple[T, ...], key: Callable[[T], str]) -> tuple[T, ...]:
    merged = {key(entry): entry for entry in parent}
    merged.update((key(entry), entry) for entry in child)
    return tuple(merged.values())


def _rules(parent: Layer, child: Layer, diagnostics: list[Diagnostic]) -> list[AxisRule]:
    """Return the parent's rules with the child's in their places."""
    inherited = [placed.rule for placed in parent.rules]
    known = {rule.logical_axis for rule in inherited}
    for drop in child.drops:
        if drop.text not in known:
            diagnostics.append(
                point(
                    codes.BAD_PLACE,
                    f"`drop` names `{drop.text}`, which has no inherited rule",
                    drop.span,
                    help=did_you_mean(drop.text, known) or _known_help(known),
                )
            )
    dropped = {drop.text for drop in child.drops}
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
            diagnostics.append(_unknown_place(place, rules))
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


def _unknown_place(place: Place, rules: list[AxisRule]) -> Diagnostic:
    known = {rule.logical_axis for rule in rules}
    return point(
        codes.BAD_PLACE,
        f"`at: {place.kind} {place.axis}`: no rule for `{place.axis}` stands here",
        place.span,
        help=did_you_mean(place.axis or "", known) or _known_help(known),
    )


def _known_help(known: set[str]) -> str:
    return (
        f"axes with rules: {listed(sorted(known), limit=16)}" if known else "nothing is inherited"
    )
