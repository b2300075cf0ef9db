"""YAML with the axis mapping of Haliax.

Haliax compares names and nothing else: a name has the same mesh axes in every array. Levanter takes
it as `trainer.axis_resources`, over defaults of its own.
"""

from __future__ import annotations

import json

from shardspec.formats.export.by_name import MeshAxes, by_name
from shardspec.formats.export.exported import Request, Written
from shardspec.formats.export.losses import losses
from shardspec.formats.lock import PLAIN_NAME

_TRAPS = frozenset(("y", "n", "yes", "no", "on", "off", "true", "false", "null"))


def write(request: Request) -> Written:
    """Return the mapping under which Haliax gives the plan's answers."""
    mapping, faults = by_name(request, "Haliax")
    lines = [f"  {_word(name)}: {_value(axes)}" for name, axes in mapping.items() if axes]
    head = f"# Exported by shardspec from {request.title}"
    section = "axis_mapping:" if lines else "axis_mapping: {}"
    text = "\n".join((head, section, *lines)) + "\n"
    return text, (*faults, *losses(request, "an axis mapping"))


def _value(axes: MeshAxes) -> str:
    words = ", ".join(map(_word, axes))
    return words if len(axes) == 1 else f"[{words}]"


def _word(name: str) -> str:
    """Return a name as YAML, quoted where YAML 1.1 reads something else."""
    return name if PLAIN_NAME.fullmatch(name) and name.lower() not in _TRAPS else json.dumps(name)
