"""Of many names, those that a slip of the fingers can have meant are still found."""

from __future__ import annotations

import pytest

from shardspec.diagnostics.words import MOST_COMPARED, index_of, nearest

MANY = frozenset(
    f"{first}_{second}{n}"
    for first in ("embed", "heads", "mlp", "vocab", "expert")
    for second in ("in", "out", "gate")
    for n in range(100)
)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("vocab_gaet77", "vocab_gate77"),
        ("ocab_gate77", "vocab_gate77"),
        ("mlp_otu3", "mlp_out3"),
        ("Heads-In5", "heads_in5"),
        ("expret_gate12", "expert_gate12"),
    ],
)
def test_a_slip_among_many(name: str, meant: str) -> None:
    assert len(MANY) > MOST_COMPARED
    assert nearest(name, MANY) == (meant,)


def test_what_is_compared_does_not_grow_with_the_names() -> None:
    counts = [
        len(index_of(f"axis_{n}" for n in range(size)).alike("axis")) for size in (10**3, 10**4)
    ]
    assert max(counts) <= 60


def test_all_of_few_are_compared_but_for_those_that_are_not_meant() -> None:
    index = index_of(["b", "a", "c"])
    assert index.alike("x", without=("b",)) == ["a", "c"]
    assert index.same("A", without=()) == ["a"]
