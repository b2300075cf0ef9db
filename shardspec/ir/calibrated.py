"""A chip by what a calibration states and measures of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardspec.ir.calibration import Calibration
from shardspec.ir.spec import Chip


def calibrated(chip: Chip, found: Calibration) -> Chip:
    """Return a chip with what was found of it in place of the catalogue's.

    Figures that were neither stated nor measured stay: a peak of the catalogue, the links.
    """
    stated = dict[str, Any](found.figures)
    if found.title:
        stated |= {"title": found.title, "device_kinds": (found.device_kind,)}
    if found.figures and not found.matmuls and chip.estimates is not None:
        found = replace(found, matmuls=chip.estimates().matmuls)
    chip = replace(chip, measured=found, **stated)
    devices, hbm = chip.devices_per_chip, found.hbm_bytes_per_s
    peaks = [per_s for _, per_s in found.flops_per_s]
    shares = [share for table in found.matmuls for share in table.shares]
    return replace(
        chip,
        bf16_flops_per_s=max(peaks) * devices if peaks else chip.bf16_flops_per_s,
        hbm_bytes_per_s=chip.hbm_bytes_per_s if hbm is None else hbm.median * devices,
        matmul_efficiency=chip.matmul_efficiency or max(shares, default=None),
    )
