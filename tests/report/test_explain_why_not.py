from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.report.explain import why_not

SPEC = """\
shardspec: 1
targets:
  a: {mesh: {data: 2, fsdp: 4, tensor: 16}}
  b: {mesh: {data: 2, expert: 4, tensor: 16}}
rules:
  - kv_heads -> tensor | none
  - mlp -> tensor
  - embed -> fsdp
  - embed -> data
overrides:
  - path: stated
    spec: "(fsdp, none)"
arrays:
  w: bf16[embed=64 mlp=128]
  kv: bf16[kv_heads=8 _=64]
  square: bf16[embed=64 embed=64]
  stated: f32[64, 128]
  odd: f32[embed=66]
"""


def _asked(path: str, dim: int, *wanted: str) -> str:
    spec, diagnostics = pipeline.load_text(SPEC, "spec.yaml")
    assert spec is not None, diagnostics
    plan = pipeline.compile_plans(spec)[0]
    return "\n".join(why_not(plan[path], dim, wanted, plan))


def test_a_mesh_axis_that_only_another_target_has() -> None:
    text = _asked("w", 0, "expert")
    assert "target a has no mesh axis `expert`; it has data=2 fsdp=4 tensor=16" in text
    assert "it: b" in text
    assert "help" not in text


def test_a_mesh_axis_that_no_target_has() -> None:
    text = _asked("w", 0, "tenosr")
    assert "no target has it; did you mean `tensor`?" in text
    assert "help" not in text


def test_taking_the_axis_from_another_dimension() -> None:
    text = _asked("w", 0, "tensor")
    assert text.count("`tensor` is in use by dim 1 (mlp)") == 1
    assert "help: put `embed -> tensor` before `mlp -> tensor` (spec.yaml:7)" in text
    assert "dim 1 (mlp) is then on none" in text
    assert "1.00 KiB per device, 768 B more" in text


def test_a_later_rule_is_moved_up() -> None:
    text = _asked("w", 0, "data")
    assert "help: move `embed -> data` before `embed -> fsdp` (spec.yaml:8)" in text


@pytest.mark.parametrize(("path", "axis"), [("kv", "tensor"), ("odd", "tensor")])
def test_no_advice_where_the_axis_does_not_divide(path: str, axis: str) -> None:
    text = _asked(path, 0, axis)
    assert text.count("not divisible by 16") == 1
    assert "SHD301" not in text
    assert "help" not in text


def test_no_advice_where_the_other_dimension_has_the_same_name() -> None:
    text = _asked("square", 1, "fsdp")
    assert "of two dimensions called `embed` the first is served first" in text
    assert "help" not in text


def test_the_spec_of_an_override_is_no_rule() -> None:
    text = _asked("stated", 0, "tensor")
    assert "the spec of the override (spec.yaml:12) says `fsdp` here, and no rule is asked" in text
    assert "0 ->" not in text


def test_a_dimension_without_a_name() -> None:
    assert "the dimension has no name" in _asked("kv", 1, "data")


def test_a_dimension_that_is_there_already() -> None:
    assert _asked("w", 1, "tensor") == "w   dim 1 (mlp=128) is on tensor"


REFUSED = """\
shardspec: 1
mesh: {data: 2, fsdp: 4, tensor: 8}
rules: [embed -> fsdp, mlp -> tensor]
params: {"**": embed mlp}
overrides:
  - {path: odd, spec: "(tensor, fsdp)"}
  - {path: rank, spec: "(tensor)"}
arrays: {odd: "f32[66, 128]", rank: "f32[64, 128]"}
"""


def _refused(path: str, dim: int, *wanted: str) -> str:
    spec, _ = pipeline.load_text(REFUSED, "spec.yaml")
    assert spec is not None
    plan = pipeline.compile_plans(spec)[0]
    return "\n".join(why_not(plan[path], dim, wanted, plan))


def test_an_override_that_cannot_be_followed_says_why() -> None:
    assert _refused("odd", 0, "tensor").count("66 is not divisible by 8") == 1
    text = _refused("odd", 0, "fsdp")
    assert "66 is not divisible by 8" in text
    assert "`fsdp` is in use by dim 1" in text
    assert "is not divisible" not in _refused("odd", 1, "data")
    assert "has another number of dimensions" in _refused("rank", 1, "fsdp")
