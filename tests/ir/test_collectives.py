"""The table of collectives: what each is called, and that each has its bytes."""

from __future__ import annotations

import pytest

from shardspec.ir.collectives import (
    IN_HLO,
    IN_MEGASCALE,
    IN_SHARDY,
    IN_STABLEHLO,
    MOVES,
    SUMS,
    CollectiveKind,
    ring_bytes,
)

EVERY = set(CollectiveKind)


@pytest.mark.parametrize(
    ("names", "one"),
    [
        (IN_HLO, "all-to-all"),
        (IN_STABLEHLO, "stablehlo.all_to_all"),
        (IN_SHARDY, "sdy.all_to_all"),
        (IN_MEGASCALE, "ALL_TO_ALL"),
    ],
)
def test_every_language_names_every_kind(names: dict[str, CollectiveKind], one: str) -> None:
    assert set(names.values()) == EVERY
    assert names[one] is CollectiveKind.ALL_TO_ALL


def test_a_kind_sums_or_moves() -> None:
    assert set(SUMS) | set(MOVES) == EVERY
    assert not set(SUMS) & set(MOVES)


@pytest.mark.parametrize("kind", CollectiveKind)
def test_ring_bytes(kind: CollectiveKind) -> None:
    assert ring_bytes(kind, 80, 1) == 0
    assert 0 < ring_bytes(kind, 80, 8) <= 2 * 80


def test_a_sum_is_a_scatter_and_a_gather() -> None:
    parts = (CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER)
    both = sum(ring_bytes(kind, 80, 8) for kind in parts)
    assert ring_bytes(CollectiveKind.ALL_REDUCE, 80, 8) == both == 140
