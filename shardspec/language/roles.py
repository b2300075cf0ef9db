"""One logical axis in several places of an array: `embed embed'`, or `in:embed out:embed`.

Such a name is a role of the axis: it is as long as that, has its unit, and goes by its rules, so
that `embed -> fsdp` reads as `embed, embed' -> fsdp` and serves the plain name first. A role with a
rule of its own, `embed' -> tensor`, goes by its own rules alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardspec.ir.spec import axis_of
from shardspec.language.grammar.syntax import Name, product
from shardspec.language.layer import AxisDecl, Layer, PlacedRule


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
    named = [entry.logical_axes for entry in layer.path_rules]
    named += [entry.logical_axes for entry in layer.activations]
    named += [entry.logical_axes or () for entry in layer.overrides]
    named += [param.logical_axes or () for param in layer.params]
    named += [tuple(name for name, _ in scan.axes) for scan in layer.scans]
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
