"""Every foreign format that rules are imported from, in one hand-written tuple."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class Format(NamedTuple):
    """A format of another tool.

    Attributes:
      module: in `shardspec.formats`; it has `read(sources, options)` and
        `answer(reading, params, mesh)`.
      title: what it reads, for help.
      options: the fields of `Options` that it takes besides mesh, hardware and params.
    """

    name: str
    module: str
    title: str
    options: tuple[str, ...] = ()


_REGEX = ("name", "match", "separator", "strict")

FORMATS: tuple[Format, ...] = (
    Format("t5x-gin", "t5x_gin", "gin files of T5X", ("name", "include")),
    Format("flax", "flax_rules", "a rule list of Flax, in Python or JSON", ("name", "semantics")),
    Format("nnx", "nnx_rules", "a rule list of Flax, as NNX reads it", ("name",)),
    Format(
        "maxtext",
        "maxtext",
        "MaxText's base.yml, model and custom mesh files",
        ("merge", "include"),
    ),
    Format("regex", "regex_rules", "a list of (regex, PartitionSpec)", _REGEX),
    Format("haliax", "haliax_mapping", "a mapping of Haliax, a config of Levanter", ("name",)),
    Format("hf-tp-plan", "hf_tp_plan", "tensor-parallel plans of Hugging Face", ("name", "names")),
    Format("keras", "keras_layout", "a LayoutMap of Keras", ("name", "match")),
)


def format_named(name: str) -> Format | None:
    """Return the format of this name."""
    return next((each for each in FORMATS if each.name == name), None)


def load(entry: Format) -> Any:
    """Return the module of a format."""
    return import_module(f"shardspec.formats.{entry.module}")
