"""A target is named after hardware that it does not have.

For example, `v5e-64` has a slice of 32 chips, or v5p chips: one of the two was changed and the
other was not. Since `rest` fills any machine, no other finding reports it. Only names with a chip
followed by a number (of devices, chips, cores, slices or nodes) or a topology are compared.

Bad:
    shardspec: 1
    targets:
      v5e-64: {hardware: tpu v5e 4x8, mesh: {data: rest, model: 4}}
    rules:
      - batch -> data
      - mlp -> model
    activations:
      hidden: batch mlp

Good:
    -  v5e-64: {hardware: tpu v5e 4x8, mesh: {data: rest, model: 4}}
    +  v5e-64: {hardware: tpu v5e 8x8, mesh: {data: rest, model: 4}}
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import counted
from shardspec.ir.spec import Hardware, Target, shape_text
from shardspec.language.catalogue import catalogue_entry, hardware_names
from shardspec.lints.context import Context

_PART = re.compile(
    r"(?P<chip>(?<![a-z])[a-z]++[0-9]+[a-z]*|cpu)(?:[-_](?P<size>[0-9]+(?:x[0-9]+)*)(?![\w]))?"
)


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each target whose name and hardware disagree."""
    for plan in context.plans:
        target = plan.target
        if target.hardware is None:
            continue
        said = _said(target.name)
        if said is not None:
            chip, size = said
            if not _is_chip(chip, target.hardware) or not _is_size(size, target.hardware):
                yield _finding(target, target.hardware, f"{chip}-{size}" if size else chip)


def _said(name: str) -> tuple[str, str] | None:
    """Return the chip and size that a name says; None for none, and for several."""
    found = [
        (match["chip"], match["size"] or "")
        for match in _PART.finditer(name.lower())
        if match["chip"] in hardware_names()
        and not name[match.start() - 1 : match.start()].isalnum()
    ]
    return found[0] if len(found) == 1 else None


def _is_chip(name: str, hardware: Hardware) -> bool:
    meant = catalogue_entry(hardware_names()[name]).chip.name
    return meant.partition("-")[0] == hardware.chip.name.partition("-")[0]


def _is_size(size: str, hardware: Hardware) -> bool:
    """Say whether a number or topology is some count of what the machine has."""
    if not size:
        return True
    if "x" in size:
        return size == shape_text(hardware.topology)
    slice_chips = math.prod(hardware.topology)
    per_slice = {
        slice_chips,
        hardware.devices_per_slice,
        slice_chips * hardware.chip.cores_per_chip,
        slice_chips * hardware.chip.devices_per_chip,
    }
    return int(size) in {hardware.slice_count} | per_slice | {
        count * hardware.slice_count for count in per_slice
    }


def _finding(target: Target, hardware: Hardware, said: str) -> Diagnostic:
    return Diagnostic(
        codes.TARGET_NAME,
        f"target `{target.name}` has other hardware than its name says:"
        f" {hardware.chip.title}, {_counts(hardware)}",
        labels_at((hardware.span, _counts(hardware)), (target.span, f"says {said}")),
        help="correct the hardware, or call the target after what it has",
        target=target.name,
    )


def _counts(hardware: Hardware) -> str:
    """Return `32 chips`, `512 chips in 2 slices` or `32 GPUs in 4 nodes`."""
    platform = hardware.chip.platform
    what, unit = {
        "tpu": ("chip", "slice"),
        "gpu": ("GPU", "node"),
        "cpu": ("device", "host"),
    }[platform]
    text = counted(hardware.chip_count, what)
    cores = max(hardware.chip.cores_per_chip, hardware.chip.devices_per_chip)
    if platform == "tpu" and cores > 1:
        text += f" ({hardware.chip_count * cores} cores)"
    if hardware.slice_count > 1:
        text += f" in {counted(hardware.slice_count, unit)}"
    return text
