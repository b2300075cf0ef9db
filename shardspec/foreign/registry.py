"""Every foreign format that rules are read from and written to, in two hand-written tuples."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class Format(NamedTuple):
    """A format of another tool.

    Attributes:
      module: in `shardspec.foreign`; it has `read(sources, options)` and
        `answer(reading, params, mesh)`.
      title: what it reads, for help.
      options: the fields of `Options` that it takes besides mesh, hardware and params.
      runs_code: whether it is no file but a function, which is imported and called.
      has_settings: whether `key=value` is a setting, as on the command line of the tool.
    """

    name: str
    module: str
    title: str
    options: tuple[str, ...] = ()
    runs_code: bool = False
    has_settings: bool = False


_REGEX = ("name", "match", "separator", "strict")

FORMATS: tuple[Format, ...] = (
    Format("t5x-gin", "t5x", "gin files of T5X", ("name", "include")),
    Format("flax", "flax", "a rule list of Flax, in Python or JSON", ("name", "semantics")),
    Format("nnx", "nnx", "a rule list of Flax, as NNX reads it", ("name",)),
    Format(
        "maxtext",
        "maxtext",
        "MaxText's base.yml, model and custom mesh files",
        ("merge", "include"),
        has_settings=True,
    ),
    Format("regex", "regex", "a list of (regex, PartitionSpec)", _REGEX),
    Format("haliax", "haliax", "a mapping of Haliax, a config of Levanter", ("name",)),
    Format("hf-tp-plan", "hf", "tensor-parallel plans of Hugging Face", ("name", "names")),
    Format("dtensor", "dtensor", "plans of PyTorch's parallelize_module"),
    Format("keras", "keras", "a LayoutMap of Keras", ("name", "match")),
    Format("layout", "layout", "a running tree, PACKAGE.MODULE:FUNCTION", (), True),
)


def format_named(name: str) -> Format | None:
    """Return the format of this name."""
    return next((each for each in FORMATS if each.name == name), None)


class Export(NamedTuple):
    """A format to write.

    Attributes:
      module: in `shardspec.foreign`; it has `write(request)`.
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
    Export("t5x-gin", "t5x", "gin for T5X's partitioner", False),
    Export("maxtext", "maxtext", "mesh and rules for MaxText", False),
    Export("haliax", "haliax", "an axis mapping for Haliax"),
    Export("regex", "regex", "a list of (regex, PartitionSpec) in Python"),
    Export("keras", "keras", "the entries of a Keras LayoutMap"),
    Export("hf-tp-plan", "hf", "a tp_plan for Hugging Face", True, ("axis",)),
    Export("python", "python_plan", "a Python module of literal NamedShardings"),
    Export("json", "json_plan", "the plan as JSON"),
)


def export_named(name: str) -> Export:
    """Return the format of this name; KeyError where there is none."""
    return {each.name: each for each in EXPORTS}[name]


def module_of(entry: Format | Export) -> Any:
    """Return the module that reads or writes a format."""
    return import_module(f"shardspec.foreign.{entry.module}")
