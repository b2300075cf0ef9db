"""Every format that plans and rules are exported to, in one hand-written tuple."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class Export(NamedTuple):
    """A format to write.

    Attributes:
      module: in `shardspec.formats.export`; it has `write(request)`.
      title: what it writes, for help.
      needs_arrays: whether it says where arrays lie, and not how any are placed.
      options: the fields of `Request` that it takes besides the plan.
    """

    name: str
    module: str
    title: str
    needs_arrays: bool = True
    options: tuple[str, ...] = ()


EXPORTS: tuple[Export, ...] = (
    Export("flax", "flax", "a rule list for Flax Linen", False, ("resolved",)),
    Export("nnx", "nnx", "a rule list for Flax NNX"),
    Export("t5x-gin", "t5x_gin", "gin for T5X's partitioner", False),
    Export("maxtext", "maxtext", "mesh and rules for MaxText", False),
    Export("haliax", "haliax", "an axis mapping for Haliax"),
    Export("regex", "regex", "a list of (regex, PartitionSpec) in Python"),
    Export("keras", "keras", "the entries of a Keras LayoutMap"),
    Export("hf-tp-plan", "tp_plan", "a tp_plan for Hugging Face", True, ("axis",)),
    Export("python", "python_module", "a Python module of literal NamedShardings"),
    Export("json", "plan", "the plan as JSON"),
)


def export_named(name: str) -> Export:
    """Return the format of this name; KeyError where there is none."""
    return {each.name: each for each in EXPORTS}[name]


def load(entry: Export) -> Any:
    """Return the module of a format."""
    return import_module(f"shardspec.formats.export.{entry.module}")
