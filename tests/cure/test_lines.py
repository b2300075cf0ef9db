"""Sites: how near they are to what is sent, and lines that move a value."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardspec.cure.lines import Line, Site
from shardspec.cure.patching import Extent
from tests.cure.worlds import EXPERTS, ROWS, site

#: A value at lines 20 to 22.
LONG = Site((64, 128, 512), "bf16", Extent("model.py", 20, 4, 22, 8))


@pytest.mark.parametrize(
    ("line", "expected"),
    [(20, 1.0), (22, 1.0), (21, 0.875), (24, 0.75), (16, 0.5), (12, 0.0), (30, 0.0), (99, 0.0)],
)
def test_lines_are_nearer_the_fewer_are_between(line: int, expected: float) -> None:
    assert LONG.near([("model.py", line, 7.0)]) == expected


def test_it_is_a_share_of_all_that_is_sent() -> None:
    sent = [("model.py", 22, 6.0), ("model.py", 26, 4.0), ("model.py", 80, 5.0)]
    assert LONG.near([*sent, ("other.py", 20, 5.0)]) == (6.0 + 2.0) / 20.0


def test_nothing_is_near_where_nothing_is_sent() -> None:
    assert LONG.near([]) == 0.0
    assert LONG.near([("model.py", 20, 0.0)]) == 0.0


def test_an_argument_is_near_to_all() -> None:
    assert Site((64, 128), "f32", path="batch").near([("model.py", 20, 1.0)]) == 1.0


def test_files_are_compared_as_they_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    own = Site((64, 128), "f32", Extent(str(tmp_path / "lib" / "model.py"), 5, 0, 5, 9))
    assert own.near([("lib/model.py", 5, 1.0)]) == 1.0
    assert own.near([("model.py", 5, 1.0)]) == 0.0


def test_two_layouts_are_a_move() -> None:
    assert Line(site(1), (ROWS, EXPERTS)).is_move
    assert not Line(site(1), (ROWS,)).is_move
