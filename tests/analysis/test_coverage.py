from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.analysis.coverage import Coverage, coverage, limit_bytes
from shardspec.ir.spec import CoverageGate

TEXT = """\
mesh: {data: 4, model: 1}
lints: {size-one-axis: allow}
rules: [embed -> data, mlp -> model, norm -> none]
replicate: [{path: "**/scale", because: small}, {path: "re:other/.*", because: small}]
arrays:
  a/kernel: f32[embed=8 mlp=4]
  a/scale: f32[norm=8]
  b/bias: f32[mlp=4]
  b/step: s32[]
"""


def covered() -> Coverage:
    spec, faults = pipeline.load_text(TEXT)
    assert spec is not None
    assert faults == ()
    return coverage(pipeline.compile_plans(spec)[0])


def test_an_array_on_axes_of_size_one_is_whole() -> None:
    paths = [sharding.param.path for sharding in covered().replicated]
    assert paths == ["a/scale", "b/bias", "b/step"]


def test_what_is_allowed_is_not_counted() -> None:
    found = covered()
    assert [sharding.param.path for sharding in found.allowed] == ["a/scale"]
    assert [sharding.param.path for sharding in found.counted] == ["b/bias", "b/step"]
    assert found.replicated_bytes == 32 + 16 + 4
    assert found.allowed_bytes == 32
    assert found.counted_bytes == 20 == sum(s.param.bytes for s in found.counted)


@pytest.mark.parametrize(
    ("gate", "limit"),
    [
        (CoverageGate(max_share=0.02), 20),
        (CoverageGate(max_share=0.0), 0),
        (CoverageGate(max_share=0.29), 290),
        (CoverageGate(max_bytes=7), 7),
        (CoverageGate(), 1000),
    ],
)
def test_the_limit(gate: CoverageGate, limit: int) -> None:
    assert limit_bytes(gate, 1000) == limit
