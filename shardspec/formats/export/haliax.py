"""YAML with Haliax's axis mapping, as Levanter's `trainer:` takes it.

Haliax compares names and nothing else: a name has the same mesh axes in every array. Levanter's
`parameter_axis_resources` are those of parameters, over `axis_resources`.
"""

from __future__ import annotations

from shardspec.formats.export.by_name import MeshAxes, by_name
from shardspec.formats.export.exported import Request, Written
from shardspec.formats.export.losses import losses


def write(request: Request) -> Written:
    """Return the mapping under which Haliax gives the plan's answers."""
    mapping, faults = by_name(request, "Haliax")
    lines = [f"    {name}: {_value(axes)}" for name, axes in mapping.items() if axes]
    head = (f"# Exported by shardspec from {request.title}", "trainer:")
    section = "  axis_resources:" if lines else "  axis_resources: {}"
    text = "\n".join((*head, section, *lines)) + "\n"
    return text, (*faults, *losses(request, "an axis mapping"))


def _value(axes: MeshAxes) -> str:
    return axes[0] if len(axes) == 1 else f"[{', '.join(axes)}]"
