"""What no machine can count is said (SHD305): arrays, activations, meshes; and arrays twice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardspec.diagnostics import Diagnostic, Label, Span
from shardspec.diagnostics.codes import BEYOND_COUNT, DUPLICATE_ARRAY
from shardspec.diagnostics.suggest import listed
from shardspec.ir.grouping import described
from shardspec.ir.mesh import Mesh
from shardspec.ir.param import MOST_ELEMENTS, Param, Params
from shardspec.ir.spec import Activation, Target


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
    labels = () if first.span is None else (Label(first.span, label),)
    message = f"{described(param.path for param in group)}: 2^63 {unit} or more, {label}"
    return Diagnostic(BEYOND_COUNT, message, labels, help="no machine counts them: a size is wrong")


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
    labels = () if activation.span is None else (Label(activation.span, said),)
    message = f"activation `{activation.name}`: 2^63 elements or more, {said}"
    return Diagnostic(BEYOND_COUNT, message, labels, help="no machine counts them: a size is wrong")


def countable_targets(
    targets: Sequence[Target],
) -> tuple[tuple[Target, ...], tuple[Diagnostic, ...]]:
    """Return the targets, unsound where a mesh has 2^63 devices or more; and a finding for each."""
    found = []
    checked = []
    for target in targets:
        if target.mesh.device_count <= MOST_ELEMENTS:
            checked.append(target)
            continue
        checked.append(replace(target, mesh=_within(target.mesh), is_sound=False))
        found.append(_mesh(target))
    return tuple(checked), tuple(found)


def _within(mesh: Mesh) -> Mesh:
    """Return a mesh of the same names that can be counted."""
    return Mesh(tuple(replace(axis, size=1) for axis in mesh.axes))


def _mesh(target: Target) -> Diagnostic:
    sizes = [f"{axis.name}={axis.size}" for axis in target.mesh.axes]
    spans: list[Span] = [axis.span for axis in target.mesh.axes if axis.span is not None]
    place = target.span or next(iter(spans), None)
    labels = () if place is None else (Label(place, "2^63 devices or more"),)
    message = f"target `{target.name}` has a mesh of 2^63 devices or more: {listed(sizes)}"
    return Diagnostic(BEYOND_COUNT, message, labels, help="no machine counts them: a size is wrong")


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
    return Diagnostic(DUPLICATE_ARRAY, message, tuple(labels), help=help)
