from __future__ import annotations

import pytest

from shardspec.ir.spec import Param
from shardspec.lints.checks.checkpoint_differs import finding

NAMES = "abcdefghijk"


def arrays(below: str, count: int, size: int = 8) -> list[Param]:
    """Return arrays of which no two are layers of one."""
    return [Param(f"{name}/{below}", (size,), "f32") for name in NAMES[:count]]


@pytest.mark.parametrize(
    ("count", "rest"),
    [
        (1, ()),
        (8, ()),
        (9, ("and 1 more like these",)),
        (11, ("and 3 more like these",)),
    ],
)
def test_eight_of_each_kind_are_named_and_the_rest_counted(
    count: int, rest: tuple[str, ...]
) -> None:
    def notes(kind: str, words: str) -> tuple[str, ...]:
        return (*(f"{kind}`{name}/{words}" for name in NAMES[: min(count, 8)]), *rest)

    saved = [*arrays("old", count), *arrays("same", count)]
    wanted = [*arrays("new", count), *arrays("same", count, size=4)]
    found = finding("step_3", saved, wanted)
    assert found is not None
    assert found.notes == (
        *notes("missing: ", "new` f32[8]"),
        *notes("extra: ", "old` f32[8]"),
        *notes("", "same` f32[8] there, f32[4] in the tree"),
    )
