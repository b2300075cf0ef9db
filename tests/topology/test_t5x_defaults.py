from __future__ import annotations

import pytest

from shardspec.topology.t5x_defaults import t5x_default_submesh


@pytest.mark.parametrize(
    ("kind", "bounds", "size", "tile"),
    [
        ("TPU v3", (4, 4, 1, 2), 8, (2, 2, 1, 2)),
        ("TPU v3", (4, 4, 1, 2), 3, None),
        ("TPU v4", (4, 4, 8, 1), 8, (1, 1, 8, 1)),
        ("TPU v4", (1, 1, 1, 1), 8, (4, 2, 1, 1)),
        ("TPU v4", (4, 4, 8, 2), 8, None),
        ("TPU v4 lite", (2, 4, 1, 1), 16, (2, 2, 4, 1)),
        ("TPU v4", (8, 8, 8, 1), 16, (8, 2, 1, 1)),
        ("TPU v4", (4, 4, 16, 1), 16, (1, 1, 16, 1)),
        ("TPU v5 lite", (4, 4, 1, 1), 1, None),
    ],
)
def test_the_table(
    kind: str, bounds: tuple[int, ...], size: int, tile: tuple[int, ...] | None
) -> None:
    assert t5x_default_submesh(kind, bounds, size) == tile
