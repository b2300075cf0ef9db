from __future__ import annotations

import json

from shardspec.ir.spec import MeshAxis
from shardspec.report.mesh import mesh_json
from shardspec.topology.placement import Placement, place
from tests.topology.machines import hardware, sized, target


def test_devices_are_rows_of_the_physical_axes() -> None:
    wanted = sized(hardware("tpu_v3", (2, 2)), data=2, model=4)
    placement = place(wanted)
    assert isinstance(placement, Placement)
    data = json.loads(mesh_json(wanted, placement))
    assert data["schema"] == "shardspec.mesh/1"
    assert data["mesh"] == {"data": 2, "model": 4}
    assert [axis["name"] for axis in data["physical_axes"]] == ["slice", "x", "y", "z", "core"]
    assert len(data["devices"]) == 8
    assert data["hardware"]["chips"] == 4
    assert [axis["name"] for axis in data["axes"]] == ["data", "model"]
    assert "core" in data


def test_the_same_placement_is_the_same_text() -> None:
    wanted = sized(hardware("h100", (8,), 2), data=2, model=8)
    first, second = place(wanted), place(wanted)
    assert isinstance(first, Placement)
    assert isinstance(second, Placement)
    assert mesh_json(wanted, first) == mesh_json(wanted, second)


def test_types_are_recorded_where_an_axis_has_one() -> None:
    plain = sized(hardware("h100", (8,), 2), data=2, model=8)
    axes = (MeshAxis("data", 2), MeshAxis("model", 8, axis_type="explicit"))
    typed = target(hardware("h100", (8,), 2), *axes)
    for wanted, types in ((plain, None), (typed, {"model": "explicit"})):
        placement = place(wanted)
        assert isinstance(placement, Placement)
        assert json.loads(mesh_json(wanted, placement)).get("axis_types") == types
