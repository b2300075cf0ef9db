from __future__ import annotations

import xml.etree.ElementTree as ET

from shardspec.ir.spec import Target
from shardspec.report.mesh import mesh_svg
from shardspec.topology.placement import Placement, place
from tests.topology.machines import hardware, sized


def _svg(wanted: Target) -> ET.Element:
    placement = place(wanted)
    assert isinstance(placement, Placement)
    return ET.fromstring(mesh_svg(wanted, placement))


def test_every_chip_of_a_slice_is_a_square() -> None:
    root = _svg(sized(hardware("tpu_v4", (4, 4, 4), slices=2), data=16, model=8))
    assert len(root.findall("{*}rect")) == 64


def test_nodes_are_rows() -> None:
    root = _svg(sized(hardware("h100", (8,), 2), data=2, model=8))
    squares = root.findall("{*}rect")
    assert len(squares) == 16
    assert len({square.get("y") for square in squares}) == 2
    assert len({square.get("fill") for square in squares}) == 2
