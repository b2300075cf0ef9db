from __future__ import annotations

from shardspec.ir.mesh import MeshAxis
from shardspec.topology.groups import Seat, drawn_axis, seats
from shardspec.topology.placement import Placement, place
from tests.topology.machines import hardware, sized, target


def test_letters_go_on_after_z() -> None:
    assert [Seat(number, 0).letters for number in (0, 25, 26, 701, 702)] == [
        "A",
        "Z",
        "AA",
        "ZZ",
        "AAA",
    ]
    assert str(Seat(1, 12)) == "B12"


def test_the_last_axis_inside_a_slice_is_drawn() -> None:
    machine = hardware("tpu_v5e", (4, 4), slices=2)
    wanted = target(machine, MeshAxis("data", 16), MeshAxis("model", 1), MeshAxis("r", 2, "dcn"))
    placement = place(wanted)
    assert isinstance(placement, Placement)
    assert drawn_axis(placement) == "data"


def test_a_group_differs_only_in_its_axis() -> None:
    placement = place(sized(hardware("cpu", (8,)), data=4, model=2))
    assert isinstance(placement, Placement)
    assert [str(seat) for seat in seats(placement).values()][:4] == ["A0", "A1", "B0", "B1"]
    assert [str(seat) for seat in seats(placement, "data").values()][:4] == ["A0", "B0", "A1", "B1"]
