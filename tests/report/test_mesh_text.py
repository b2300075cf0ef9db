from __future__ import annotations

import re
from dataclasses import replace

from shardspec.ir.spec import MeshAxis, Target
from shardspec.report.mesh import _COLOURS, compare_lines, drawing, mesh_lines, verdict_lines
from shardspec.topology.placement import Placement, explain_axes, place
from tests.topology.machines import hardware, sized, target


def _placed(wanted: Target) -> tuple[Target, Placement]:
    placement = place(wanted)
    assert isinstance(placement, Placement)
    return wanted, placement


def _v4(*tile: int) -> Target:
    machine = hardware("tpu_v4", (4, 8, 8))
    return target(machine, MeshAxis("data", 16), MeshAxis("model", 16, submesh=tile))


def test_the_report_says_rings_hops_and_speed() -> None:
    text = "\n".join(mesh_lines(*_placed(_v4(4, 2, 2, 1))))
    assert "TPU v4 4x8x8, 256 chips" in text
    assert "the torus wraps around in x, y, z" in text
    assert "x 4, ring; y 2 of 8, line; z 2 of 8, line" in text
    assert "~ 180 GB/s ICI" in text
    assert "order t5x: hops 1 to 3, 3 back (28 around); order ring: hops 1 (16 around)" in text
    assert "`core` counts the JAX devices of one chip" in text


def test_two_tiles_side_by_side() -> None:
    lines = list(compare_lines(_placed(_v4(4, 2, 2, 1)), _placed(_v4(2, 2, 4, 1))))
    assert lines[-1] == "  model: A is 1.33 times as fast (~)"
    assert lines[0].startswith("A  target t: TPU v4 4x8x8")


def test_every_device_is_drawn_once() -> None:
    _, placement = _placed(sized(hardware("tpu_v3", (4, 4)), data=4, model=8))
    text = "\n".join(drawing(placement))
    cells = re.findall(r"\b([A-Z])(\d)\+(\d)", text)
    assert len(cells) == 16
    assert len({(letter, index) for letter, *pair in cells for index in pair}) == 32


def test_devices_of_a_chip_in_two_groups_are_both_drawn() -> None:
    wanted = sized(hardware("tpu_v3", (2, 2)), a=8, b=1)
    _, placement = _placed(wanted)
    assert "A0+1" in "\n".join(drawing(placement))


def test_a_large_slice_is_cut() -> None:
    wanted = sized(hardware("tpu_v5p", (16, 20, 28)), data=560, model=16)
    lines = list(drawing(_placed(wanted)[1]))
    assert lines[-1] == "  (24 more planes along z)"
    assert len(lines) < 80


def test_colour_only_where_it_is_asked_for() -> None:
    _, placement = _placed(_v4(4, 2, 2, 1))
    assert "\x1b" not in "\n".join(drawing(placement))
    painted = "\n".join(drawing(placement, color=True))
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted).count("A0") == 1


def test_nodes_and_cpus_are_rows() -> None:
    text = "\n".join(mesh_lines(*_placed(sized(hardware("h100", (8,), 2), data=2, model=8))))
    assert "node 1  B0 B1 B2 B3 B4 B5 B6 B7" in text
    assert "~ 450 GB/s NVLink" in text


def test_auto_says_how_it_compares() -> None:
    machine = hardware("tpu_v4", (2, 2, 4))
    wanted = target(machine, MeshAxis("data", 2), MeshAxis("model", 8, auto=True))
    text = "\n".join(mesh_lines(*_placed(wanted)))
    assert "auto 8 takes 2x2x2x1; T5X's default 4x2x1x1 does not tile this slice" in text


def test_one_device_has_nothing_to_draw() -> None:
    text = "\n".join(mesh_lines(*_placed(sized(hardware("cpu", (1,)), data=1))))
    assert "one device" in text


def test_types_stand_in_the_heading() -> None:
    axes = (MeshAxis("data", 16), MeshAxis("model", 16, axis_type="explicit"))
    lines = list(mesh_lines(*_placed(target(hardware("tpu_v4", (4, 8, 8)), *axes))))
    assert "mesh data=16 model=16   (model explicit, order t5x" in "\n".join(lines)


def test_colours_of_groups_are_readable_on_white_and_on_black() -> None:
    """Of 16 + 36 r + 6 g + b, each of 6 levels; 3.5 is the least contrast with either ground."""
    levels = [((level / 255 + 0.055) / 1.055) ** 2.4 for level in (0, 95, 135, 175, 215, 255)]
    levels[0] = 0.0
    assert len(set(_COLOURS)) == len(_COLOURS) == 16
    for colour in _COLOURS:
        red, green, blue = (levels[(colour - 16) // step % 6] for step in (36, 6, 1))
        light = 0.2126 * red + 0.7152 * green + 0.0722 * blue
        assert min(1.05 / (light + 0.05), (light + 0.05) / 0.05) >= 3.5


def test_the_verdict_of_two_meshes_is_the_ratio_of_their_speeds() -> None:
    (axis, *_) = explain_axes(_placed(_v4(4, 2, 2, 1))[1])

    def said(ours: float | None, theirs: float | None) -> str:
        one, other = replace(axis, bytes_per_s=ours), replace(axis, bytes_per_s=theirs)
        return "".join(verdict_lines({"a": one, "only": one}, {"a": other})).strip()

    assert said(2e11, 2e11) == "a: the same speed"
    assert said(1e11, 4e11) == "a: B is 4.00 times as fast (~)"
    assert said(3e11, 2e11) == "a: A is 1.50 times as fast (~)"
    assert said(None, 1e11) == said(1e11, None) == ""
