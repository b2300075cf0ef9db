from __future__ import annotations

from shardspec import pipeline
from shardspec.ir.plan import ShardingPlan
from shardspec.report.explain import explain, explain_activation

SPEC = """\
shardspec: 1
axes: {embed: 64}
mesh: {data: 2, fsdp: 4, tensor: 16}
rules:
  - kv_heads -> tensor | none
  - heads -> tensor
  - batch -> data
  - embed -> fsdp
overrides:
  - path: stated
    spec: "(fsdp, none)"
activations:
  residual: batch embed _
arrays:
  soft: bf16[kv_heads=8]
  hard: bf16[heads=8]
  stated: f32[64, 128]
"""


def _plan(text: str = SPEC) -> ShardingPlan:
    spec, diagnostics = pipeline.load_text(text, "spec.yaml")
    assert spec is not None, diagnostics
    return pipeline.compile_plans(spec)[0]


def _explained(path: str, text: str = SPEC) -> str:
    plan = _plan(text)
    return "\n".join(explain(plan[path], plan))


def test_a_refusal_that_none_takes_over_is_not_marked_as_a_finding() -> None:
    text = _explained("soft")
    assert "8 is not divisible by 16" in text
    assert "SHD301" not in text


def test_a_refusal_that_leaves_the_dimension_whole_is_marked() -> None:
    assert "8 is not divisible by 16  <- SHD301" in _explained("hard")


def test_a_rule_that_fires_all_the_same_is_marked() -> None:
    kept = SPEC.replace("axes:", "policy: {indivisible: keep}\naxes:")
    assert "is uneven; JAX will refuse  <- SHD301" in _explained("soft", kept)


def test_only_the_first_refusal_is_marked_as_check_reports_it() -> None:
    text = SPEC.replace("heads -> tensor\n", "heads -> tensor | (fsdp, tensor)\n")
    assert _explained("hard", text).count("SHD301") == 1


def test_a_stated_none_is_said_by_the_override() -> None:
    text = _explained("stated")
    assert "replicated, as the spec of the override says" in text
    assert "as the rule says" not in text


def test_an_activation_shows_names_sizes_and_attempts() -> None:
    plan = _plan()
    text = "\n".join(explain_activation(plan.activations[0], plan))
    assert text.startswith("activation residual   ->   P('data', 'fsdp', None)")
    assert "names   batch embed _     spec.yaml:13" in text
    assert "0  batch   ?  data  TAKEN   2 ways" in text
    assert "1  embed  64  fsdp  TAKEN   64 / 4 = 16" in text
    assert "replicated: the dimension has no name" in text
