"""The picture of a mesh: a square for each chip, a line for each link."""

from __future__ import annotations

import itertools
import math
import xml.etree.ElementTree as ET

import pytest

from shardspec.ir.spec import Target
from shardspec.report.mesh import mesh_svg
from shardspec.topology.placement import Placement, place
from tests.topology.machines import hardware, sized


def svg(wanted: Target) -> ET.Element:
    placement = place(wanted)
    assert isinstance(placement, Placement)
    return ET.fromstring(mesh_svg(wanted, placement))


def test_every_chip_of_a_slice_is_a_square() -> None:
    root = svg(sized(hardware("tpu_v4", (4, 4, 4), slices=2), data=16, model=8))
    assert len(root.findall("{*}rect")) == 64


def test_nodes_are_rows() -> None:
    root = svg(sized(hardware("h100", (8,), 2), data=2, model=8))
    squares = root.findall("{*}rect")
    assert len(squares) == 16
    assert len({square.get("y") for square in squares}) == 2
    assert len({square.get("fill") for square in squares}) == 2
    # a switch for each node in the colour of its group, and the network with a way to each node
    assert [("stroke" in (line.get("style") or "")) for line in root.findall("{*}line")] == [
        *(True, True),
        *(False, False, False),
    ]


@pytest.mark.parametrize(
    ("topology", "lines"),
    [
        ((2, 2), 4),  # two neighbours have one link
        ((4, 4), 24),  # a line of four has three, and does not wrap
        ((4, 16), 3 * 16 + 4 * 15 + 4 * 2),  # a wrapped row has a stub at either end
    ],
)
def test_every_link_is_a_line(topology: tuple[int, int], lines: int) -> None:
    root = svg(sized(hardware("tpu_v5e", topology), data=1, model=topology[0] * topology[1]))
    found = root.findall("{*}line")
    assert len(found) == lines
    assert all("stroke" in (line.get("style") or "") for line in found)


def test_links_between_groups_have_no_colour() -> None:
    root = svg(sized(hardware("tpu_v5e", (4, 4)), data=4, model=4))
    inside = [line.get("style") for line in root.findall("{*}line")]
    assert inside.count(None) == 8  # the groups are squares of 2x2
    assert len(inside) == 24


def test_links_along_z_are_ticks() -> None:
    flat = svg(sized(hardware("tpu_v4", (4, 4, 4)), data=1, model=64)).findall("{*}line")
    # 3 links and two stubs along 16 rows of x and of y, a tick of each chip along z
    assert len(flat) == 2 * 16 * 5 + 64


def test_both_devices_of_a_chip_are_named() -> None:
    root = svg(sized(hardware("tpu_v3", (2, 2)), data=4, model=2))
    texts = [text.text for text in root.findall("{*}text")]
    assert "A0+1" in texts


@pytest.mark.parametrize("topology", [(16, 16, 16), (4, 8, 8)])
def test_planes_go_on_in_another_row(topology: tuple[int, int, int]) -> None:
    wanted = sized(hardware("tpu_v5p", topology), data=topology[0], model=topology[1] * topology[2])
    root = svg(wanted)
    width, height = map(int, (root.get("viewBox") or "").split()[2:])
    assert width <= 1400
    for square in root.findall("{*}rect"):
        assert int(square.get("x") or 0) + 28 <= width
        assert int(square.get("y") or 0) + 28 <= height


@pytest.mark.parametrize(
    ("chip", "topology", "nodes"),
    [
        ("tpu_v4", (4, 4, 4), 1),
        ("tpu_v4", (8, 8, 16), 1),  # planes in several rows
        ("tpu_v4", (2, 3, 1), 1),
        ("h100", (8,), 4),
    ],
)
def test_squares_are_apart_and_in_the_picture(
    chip: str, topology: tuple[int, ...], nodes: int
) -> None:
    machine = hardware(chip, topology, nodes) if nodes > 1 else hardware(chip, topology)
    root = svg(sized(machine, data=math.prod(topology) * nodes))
    found = [
        tuple(float(square.get(name) or 0) for name in ("x", "y", "width", "height"))
        for square in root.findall("{*}rect")
    ]
    wide, high = float(root.get("width") or 0), float(root.get("height") or 0)
    for x, y, width, height in found:
        assert 0 <= x <= x + width <= wide
        assert 50 <= y <= y + height <= high  # below what the picture says
    for (x, y, width, height), (left, top, _, _) in itertools.combinations(found, 2):
        assert abs(x - left) > width or abs(y - top) > height


def test_a_long_text_in_a_square_is_small() -> None:
    """Five characters of 10 px are wider than a square of 28; four of them are not."""
    root = svg(sized(hardware("tpu_v4", (8, 8, 16)), data=1024))
    size = {
        len(t.text or ""): t.get("style") for t in root.findall("{*}text") if not t.get("class")
    }
    assert size
    assert all((style is None) == (length <= 4) for length, style in size.items())
