"""A placement as JSON: `shardspec.mesh/1`."""

from __future__ import annotations

import json
from typing import Any

from shardspec.ir.spec import Target
from shardspec.topology.explanation import AxisExplanation, core_note, explain_axes
from shardspec.topology.machine import host_shape
from shardspec.topology.placement import Placement
from shardspec.versions import MESH_JSON


def mesh_json(target: Target, placement: Placement) -> str:
    """Return the placement with its explanation; devices are rows of `physical_axes`."""
    hardware = placement.hardware
    data: dict[str, Any] = {
        "schema": MESH_JSON,
        "target": target.name,
        "hardware": {
            "chip": hardware.chip.name,
            "title": hardware.chip.title,
            "accelerator_type": hardware.accelerator_type,
            "slices": hardware.slice_count,
            "topology": list(hardware.topology),
            "chips": hardware.chip_count,
            "devices": hardware.device_count,
            "host_shape": list(host_shape(hardware)),
        },
        "physical_axes": [
            {"name": axis.name, "extent": axis.extent, "link": axis.link, "wraps": axis.wraps}
            for axis in placement.machine
        ],
        "mesh": {axis.name: axis.size for axis in placement.mesh.axes},
        "order": placement.order,
        "path": placement.path,
        "axes": [_axis(explanation) for explanation in explain_axes(placement)],
        "devices": [list(place) for place in placement.coordinates()],
    }
    types = {axis.name: axis.axis_type for axis in target.mesh.axes if axis.axis_type != "auto"}
    if types:
        data["axis_types"] = types
    if hardware.chip.platform == "tpu":
        data["core"] = core_note(hardware)
    return json.dumps(data, sort_keys=True)


def _axis(explanation: AxisExplanation) -> dict[str, Any]:
    return {
        "name": explanation.name,
        "size": explanation.size,
        "runs": [
            {
                "physical_axis": run.physical_axis,
                "size": run.size,
                "stride": run.stride,
                "extent": run.extent,
                "shape": run.shape,
            }
            for run in explanation.runs
        ],
        "shape": explanation.shape,
        "wrapped": explanation.wrapped,
        "hops": list(explanation.hops),
        "hosts": explanation.hosts,
        "slices": explanation.slices,
        "bytes_per_s": explanation.bytes_per_s,
        "bottleneck": explanation.bottleneck,
    }
