"""The machine that `--hardware` names, for readers whose mesh depends on it."""

from __future__ import annotations

from shardspec.diagnostics import Diagnostic
from shardspec.frontend.yaml_text.printer import print_yaml
from shardspec.ir.hardware import Hardware
from shardspec.pipeline import load_text


def machine_named(hardware: str) -> Hardware | tuple[Diagnostic, ...]:
    """Return the machine of `tpu v4 4x4x8`, or why there is none such.

    >>> str(machine_named("8 cpu"))
    '8 cpu'
    """
    text = print_yaml({"hardware": hardware, "mesh": {"data": "rest"}})
    spec, faults = load_text(text, "--hardware")
    found = spec.targets[0].hardware if spec and spec.targets else None
    return faults if found is None else found
