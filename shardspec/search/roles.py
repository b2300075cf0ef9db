"""Roles of mesh axes, each with the rules of a preset.

A search that starts from roles asks first what devices should do (copy the model, shard its
weights, its heads, its sequences, its experts or its layers), and only then how many do it. A set
of roles is a mesh with an axis for each and the presets that shard over these axes. Nothing of the
rules is written here: a preset says them, a mesh axis that is not in the set is left out of them,
and `data` joins the axes of the batch.

The rules of the spec stay for logical axes that no preset names, as far as the mesh still has the
axes they ask for.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from typing import NamedTuple

from shardspec.diagnostics.words import grouped, listed, near_or_known
from shardspec.ir.spec import AxisRule, Mesh, MeshAxis, Spec
from shardspec.language import loader


class Role(NamedTuple):
    """What devices along one mesh axis do.

    Attributes:
      preset: whose rules shard over the axis.
      mesh_axis: as the preset calls it.
      is_added: whether the preset is added to another: `extends: [fsdp-tensor, context]`.
    """

    preset: str
    mesh_axis: str
    is_added: bool = False


#: The roles by name, in the order of their mesh axes: those that talk most come last.
ROLES: Mapping[str, Role] = {
    "stage": Role("pipeline", "stage", is_added=True),
    "data": Role("data-parallel", "data"),
    "fsdp": Role("fsdp", "fsdp"),
    "expert": Role("expert", "expert", is_added=True),
    "context": Role("context", "context", is_added=True),
    "tensor": Role("fsdp-tensor", "tensor"),
    "sequence": Role("sequence", "tensor", is_added=True),
}
#: Serving gathers no weights and has no backward pass.
_OF_SERVING = ("data", "expert", "context", "tensor")
_SERVING = "serving"


class RoleSet(NamedTuple):
    """A mesh by the roles of its axes, with the rules that shard over them.

    Attributes:
      names: of the roles, in the order of `ROLES`.
      is_own: whether they are added to the mesh and rules of the spec.
      extends: the presets that it is made of; none where the spec's own rules come before theirs.
      rules: what differs from these presets, as a spec writes it.
      covered: logical axes whose rules are those of the presets, or `rules`.
      mesh_axes: of its mesh, major to minor.
      new: those that are larger than 1; the others may have any size.
    """

    names: tuple[str, ...]
    is_own: bool
    extends: tuple[str, ...]
    rules: tuple[str, ...]
    covered: frozenset[str]
    mesh_axes: tuple[str, ...]
    new: frozenset[str]

    def __str__(self) -> str:
        """Return `fsdp+tensor`, or `own+context`."""
        return "+".join(("own", *self.names) if self.is_own else self.names)

    def mesh(self, today: Mesh) -> Mesh:
        """Return a mesh of these axes, of the sizes of today's where that has them."""
        own = {axis.name: axis for axis in today.axes}
        axes = (own.get(name, MeshAxis(name, 1)) for name in self.mesh_axes)
        return Mesh(tuple(axes), today.wholes if self.is_own else ())


def role_sets(
    spec: Spec, today: Mesh, names: Sequence[str]
) -> dict[str, tuple[Spec, RoleSet]] | tuple[str, str]:
    """Return the sets of roles that a model can have, each with the spec under its rules.

    Args:
      names: of the roles that are searched; empty for all.

    Returns:
      What is wrong with the names, and the way out, where they cannot be searched.
    """
    unknown = next((name for name in names if name not in ROLES), None)
    if unknown is not None:
        near = near_or_known(unknown, ROLES, "roles")
        return f"`roles={unknown}` is no role", near
    serves = spec.step is not None and spec.step.mode == "serve"
    model = _names(spec)
    wanted = names or (_OF_SERVING if serves else tuple(ROLES))
    fit = [name for name in ROLES if name in wanted and not model.isdisjoint(_alone(ROLES[name]))]
    missing = [name for name in names if name not in fit]
    if missing or not fit:
        axes = sorted(_alone(ROLES[(missing or list(ROLES))[0]]))
        what = f"no array has an axis that `{missing[0]}` shards" if missing else "no role fits"
        return f"{what}: the names of the spec are others", f"its preset shards {listed(axes)}"
    found: dict[str, tuple[Spec, RoleSet]] = {}
    known = {(frozenset(today.names), spec.placed_rules)}
    for own, chosen in _chosen(fit):
        made = _own_set(spec, today, chosen) if own else _preset_set(spec, chosen, serves=serves)
        if made is None:
            continue
        key = (frozenset(made[1].mesh_axes), made[0].placed_rules)
        if key not in known:
            known.add(key)
            found[str(made[1])] = made
    return found


def _names(spec: Spec) -> set[str]:
    """Return the logical axes of a model: of its arrays, and those that it gives sizes."""
    found = {axis.name for axis in spec.logical_axes}
    found.update(name for rule in spec.path_rules for name in rule.logical_axes if name)
    found.update(name for scan in spec.scans for name, _ in scan.axes)
    found.update(name for each in spec.params for name in each.logical_axes or () if name)
    return found


@cache
def _preset(names: tuple[str, ...]) -> tuple[AxisRule, ...]:
    """Return the rules of several presets in the order that a spec which extends them has."""
    spec, _ = loader.load_text(f"extends: [{', '.join(names)}]\n")
    assert spec is not None, "presets load"
    return spec.placed_rules


def _alone(role: Role) -> set[str]:
    """Return the logical axes that a preset shards over the axis of its role and no other."""
    rules = _preset((role.preset,))
    return {each.logical_axis for each in rules if each.mesh_axes == (role.mesh_axis,)}


def _chosen(fit: Sequence[str]) -> Iterator[tuple[bool, tuple[str, ...]]]:
    """Yield sets of roles, the small ones first: on the spec's own mesh, and on one of theirs."""
    for count in range(1, len(fit) + 1):
        for chosen in itertools.combinations(fit, count):
            if all(ROLES[name].is_added for name in chosen):
                yield True, chosen
            if "sequence" not in chosen or "tensor" in chosen:
                yield False, chosen


def _own_set(spec: Spec, today: Mesh, chosen: tuple[str, ...]) -> tuple[Spec, RoleSet] | None:
    """Return roles added to the spec's own mesh; None where it lacks what they build on."""
    own = list(today.names)
    extends = tuple(ROLES[name].preset for name in chosen)
    new = [ROLES[name].mesh_axis for name in chosen if name != "sequence"]
    rules = _preset(extends)
    asked = {axis for rule in rules for axis in rule.mesh_axes}
    if not set(own).isdisjoint(new) or not asked <= {*own, *new}:
        return None
    last = own.index("tensor") if "tensor" in own else len(own)
    inner = [axis for axis in new if axis != "stage"]
    mesh_axes = (*(axis for axis in new if axis == "stage"), *own[:last], *inner, *own[last:])
    by_axis, texts = _by_axis(rules), tuple[str, ...]()
    stated = {
        rule.logical_axis: rule.span is not None and rule.span.source.name == spec.source.name
        for rule in spec.placed_rules
    }
    if any(stated.values()) and not all(stated.get(axis) is False for axis in by_axis):
        used = _names(spec).union(*(each.logical_axes for each in spec.activations))
        by_axis = {axis: each for axis, each in by_axis.items() if axis in used or _shards(each)}
        extends, texts = (), tuple(map(_text, by_axis.values()))  # what is extended comes first
    placed = merged(spec.placed_rules, by_axis)
    made = RoleSet(chosen, True, extends, texts, frozenset(by_axis), mesh_axes, frozenset(new))
    return with_rules(spec, placed, spec.any_rules), made


def _shards(rules: Iterable[AxisRule]) -> bool:
    return any(rule.mesh_axes for rule in rules)


def _preset_set(spec: Spec, chosen: tuple[str, ...], *, serves: bool) -> tuple[Spec, RoleSet]:
    """Return roles on a mesh of their own, under the rules of their presets."""
    mesh_axes = tuple(dict.fromkeys(ROLES[name].mesh_axis for name in chosen))
    base = next((ROLES[name].preset for name in ("tensor", "fsdp") if name in chosen), "")
    if serves and "fsdp" not in chosen:
        base = _SERVING
    added = (ROLES[name].preset for name in chosen if ROLES[name].is_added)
    extends = (base or ROLES["data"].preset, *added)
    rules = _by_axis(_preset(extends))
    own = {axis: each for axis, each in _by_axis(spec.placed_rules).items() if axis not in rules}
    placed: list[AxisRule] = []
    texts: list[str] = []
    for axis, each in (*rules.items(), *own.items()):
        kept = _on_axes(each, mesh_axes, has_data="data" in chosen and axis in rules)
        placed += kept
        if axis in own or kept != each:
            texts.append(_text(kept))
    every = tuple(rule for rule in spec.any_rules if set(rule.mesh_axes) <= set(mesh_axes))
    made = RoleSet(
        *(chosen, False, extends, tuple(texts), frozenset(rules), mesh_axes, frozenset(mesh_axes))
    )
    return with_rules(spec, tuple(placed), every), made


def _by_axis(rules: Iterable[AxisRule]) -> dict[str, list[AxisRule]]:
    return grouped(rules, attrgetter("logical_axis"))


def merged(
    parent: Iterable[AxisRule], child: Mapping[str, Sequence[AxisRule]]
) -> tuple[AxisRule, ...]:
    """Return rules with others in the place of those of the same axes, as `extends` merges them."""
    found: list[AxisRule] = []
    settled: set[str] = set()
    for rule in parent:
        if rule.logical_axis not in child:
            found.append(rule)
        elif rule.logical_axis not in settled:
            settled.add(rule.logical_axis)
            found += child[rule.logical_axis]
    return (*found, *(r for axis, rules in child.items() if axis not in settled for r in rules))


def _on_axes(
    rules: Sequence[AxisRule], mesh_axes: Collection[str], *, has_data: bool
) -> list[AxisRule]:
    """Return the rules of one axis on a mesh that lacks some of what they ask for."""
    found: list[AxisRule] = []
    for rule in rules:
        asked = rule.mesh_axes
        if has_data and rule.logical_axis == "batch" and "data" not in asked:
            asked = ("data", *asked)
        kept = tuple(axis for axis in asked if axis in mesh_axes)
        if (kept or not asked) and kept not in [each.mesh_axes for each in found]:
            found.append(replace(rule, mesh_axes=kept))
    return found or [replace(rules[0], mesh_axes=(), in_part=False)]


def _text(rules: Sequence[AxisRule]) -> str:
    """Return the rules of one axis as a line of `rules:`."""
    first = rules[0]
    right = " | ".join(rule.right for rule in rules)
    at = f" @ {first.priority}" if first.priority else ""
    return f"{first.logical_axis} -> {right}{at}"


def with_rules(spec: Spec, placed: tuple[AxisRule, ...], every: tuple[AxisRule, ...]) -> Spec:
    """Return a spec with other rules, in the order in which they are placed."""
    ordered = tuple(sorted(placed, key=lambda rule: rule.priority))
    return replace(spec, axis_rules=ordered, any_rules=every, placed_rules=placed)
