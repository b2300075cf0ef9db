from __future__ import annotations

import re

import pytest

import shardspec
from shardspec.ir.spec import Param

SPEC = """\
shardspec: 1
mesh: {data: 2}
rules: [embed -> none, mlp -> none]
"""


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        ((24, 64), ("embed",)),
        ((64,), ("embed", "mlp")),
        ((2, 2, 64, 32), ("embed", "mlp")),
        ((64, 32), ("embed", None, "mlp")),
    ],
)
def test_the_way_out_for_names_of_an_array_is_an_override(
    shape: tuple[int, ...], names: tuple[str | None, ...]
) -> None:
    arrays = [Param("decoder/layers_0/scale", shape, "f32", names)]
    (found,) = (d for d in shardspec.loads(SPEC).findings(arrays) if d.code.name == "rank-mismatch")
    assert "come before `params` and `scan`" in (found.help or "")
    entry = re.search(r"`- (\{.*\})`", found.help or "")
    assert entry is not None
    mended = shardspec.loads(f"{SPEC}overrides:\n  - {entry[1]}\n")
    assert {d.code.name for d in mended.findings(arrays)} <= {"axis-without-array"}


def test_the_way_out_of_a_partition_names_parts() -> None:
    text = SPEC + "overrides: [{path: k, spec: (data)}]\narrays: {k: 'f32[8, 8]'}\n"
    (found,) = (d for d in shardspec.loads(text).findings() if d.code.name == "rank-mismatch")
    assert (
        found.help
        == "one part for every dimension, `none` for one that is replicated: `(none, model)`"
    )
    right = text.replace("(data)", '"(data, none)"')
    assert all(d.code.name != "rank-mismatch" for d in shardspec.loads(right).findings())
