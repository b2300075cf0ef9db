"""The submesh T5X picks for a number of partitions: its table, as facts.

T5X does not check a pick against the slice. `(4, 2, 1, 1)` for 8 partitions of a v4 2x2x4
slice is one that does not tile it; and there is no entry after v4, or above 16 partitions.

Source: google-research/t5x, partitioning.default_mesh.
"""

from __future__ import annotations

from collections.abc import Sequence

Submesh = tuple[int, int, int, int]

_CORE_PAIRS: dict[int, Submesh] = {
    1: (1, 1, 1, 1),
    2: (1, 1, 1, 2),
    4: (2, 1, 1, 2),
    8: (2, 2, 1, 2),
    16: (4, 2, 1, 2),
}


def t5x_default_submesh(device_kind: str, bounds: Sequence[int], partitions: int) -> Submesh | None:
    """Return T5X's pick, valid or not; None where its table has no entry.

    Args:
      device_kind: as JAX reports it.
      bounds: (x, y, z, core) of the slice.
    """
    if device_kind in ("TPU v2", "TPU v3"):
        return _CORE_PAIRS.get(partitions)
    if device_kind in ("TPU v4", "TPU v4 lite") and bounds[3] == 1:
        return _for_v4(bounds, partitions)
    return None


def _for_v4(bounds: Sequence[int], partitions: int) -> Submesh | None:
    x, _, z, _ = bounds
    picks: dict[int, Submesh] = {
        1: (1, 1, 1, 1),
        2: (1, 2, 1, 1),
        4: (4, 1, 1, 1) if x >= 4 else (2, 2, 1, 1),
        8: (1, 1, 8, 1) if z >= 8 else (4, 2, 1, 1),
    }
    if z >= 16:
        picks[16] = (1, 1, 16, 1)
    elif x >= 8:
        picks[16] = (8, 2, 1, 1)
    else:
        picks[16] = (4, 4, 1, 1) if x >= 4 else (2, 2, 4, 1)
    return picks.get(partitions)
