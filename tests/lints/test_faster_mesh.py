"""SHD511: said where it is asked for, and only of meshes that the rules serve."""

from __future__ import annotations

import pytest

from shardspec.diagnostics import codes
from tests.lints.findings_of import findings_of
from tests.test_docs import example

BAD = example(codes.FASTER_MESH, "Bad")
ASKED = "lints: {faster-mesh: warn}\n"


def test_it_is_silent_unless_asked() -> None:
    assert findings_of(BAD, only="faster-mesh") == ()
    assert len(findings_of(BAD + ASKED, only="faster-mesh")) == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("hardware: tpu v5e 4x4\n", ""),  # no machine
        ("hardware: tpu v5e 4x4", "hardware: 16 cpu"),  # no speeds
        ("fsdp: 2, tensor: 8", "fsdp: 4, tensor: 4"),  # as good as any
    ],
)
def test_it_is_silent_where_there_is_nothing_to_say(old: str, new: str) -> None:
    assert old in BAD
    assert findings_of(BAD.replace(old, new) + ASKED, only="faster-mesh") == ()


def test_the_mesh_that_is_named_is_faster() -> None:
    (found,) = findings_of(BAD + ASKED, only="faster-mesh")
    assert "% slower than on `fsdp=4 tensor=submesh 1x4x1x1`" in found.message
    better = BAD.replace("fsdp: 2, tensor: 8", "fsdp: 4, tensor: submesh 1x4x1x1")
    assert findings_of(better + ASKED, only="faster-mesh") == ()
