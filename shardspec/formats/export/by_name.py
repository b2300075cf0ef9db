"""A plan as a dictionary from logical axis to mesh axes, where it is one.

NNX and Haliax know no contest: a name has the same mesh axes in every array. A plan in which
contests are decided array by array is no dictionary; the names that differ are found.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from shardspec.diagnostics import Diagnostic, Label
from shardspec.diagnostics.codes import CANNOT_HOLD
from shardspec.formats.export.exported import Request
from shardspec.ir.partition import PartitionSpec
from shardspec.ir.spec import AxisRule

MeshAxes = tuple[str, ...]


def by_name(request: Request, tool: str) -> tuple[Mapping[str, MeshAxes], tuple[Diagnostic, ...]]:
    """Return the mesh axes of each name, in the order of the rules, and the names that have none.

    Names that no array has take what a rule would give them alone.
    """
    seen: dict[str, Counter[MeshAxes]] = {}
    for sharding in request.plan.params:
        for dim in sharding.dims:
            if dim.logical_axis is not None:
                seen.setdefault(dim.logical_axis, Counter())[dim.mesh_axes] += 1
    alone = _alone(request)
    mapping: dict[str, MeshAxes] = {}
    faults = []
    for name in dict.fromkeys((*alone, *seen)):
        answers = seen.get(name, Counter({alone.get(name, ()): 1}))
        if len(answers) > 1:
            faults.append(_several(name, answers, request, tool))
        mapping[name] = answers.most_common(1)[0][0]
    return mapping, tuple(faults)


def _alone(request: Request) -> dict[str, MeshAxes]:
    """Return what the first rule of each name gives on the target."""
    here = request.plan.mesh.sizes
    found: dict[str, MeshAxes] = {}
    for rule in request.spec.axis_rules:
        present = tuple(axis for axis in rule.mesh_axes if axis in here)
        if present or rule.is_none:
            found.setdefault(rule.logical_axis, present)
    return found


def _several(name: str, answers: Counter[MeshAxes], request: Request, tool: str) -> Diagnostic:
    shown = " and ".join(f"{PartitionSpec((axes,))} {count}x" for axes, count in answers.items())
    message = f"`{name}` is {shown}, and {tool} gives a name one answer"
    rule = next((r for r in request.spec.axis_rules if r.logical_axis == name), None)
    labels = () if rule is None or rule.span is None else (Label(rule.span),)
    help = "two names for the two kinds of dimension, or a format that holds rules (flax) or paths"
    return Diagnostic(CANNOT_HOLD, message, labels, help=help)


def as_rules(mapping: Mapping[str, MeshAxes]) -> tuple[AxisRule, ...]:
    """Return the dictionary as rules."""
    return tuple(AxisRule(name, axes) for name, axes in mapping.items())
