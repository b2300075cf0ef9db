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


HELD = """\
shardspec: 1
mesh: {data: 2 explicit, model: 4 explicit}
rules: [mlp -> model]
memory: {"opt_state/**": pinned_host, "w*": unpinned_host}
arrays: {wi: "f32[8 mlp=16]", sum: "f32[8, 8]"}
overrides: [{path: sum, spec: "(data, none) unreduced model", memory: pinned_host}]
activations: {part: {spec: "(none, data) reduced model", memory: pinned_host}}
"""


def test_where_an_array_lies_and_what_it_is_a_sum_over() -> None:
    held = HELD.replace("f32[8 mlp", "f32[_=8 mlp")
    lines = _explained("wi", held).splitlines()
    assert lines[0].endswith("128 B per device in unpinned_host")
    assert 'memory  unpinned_host     spec.yaml:4  memory "w*"' in lines
    lines = _explained("sum", held).splitlines()
    assert "P('data', None, unreduced={'model'})" in lines[0]
    assert 'memory  pinned_host     spec.yaml:6  override "sum"' in lines
    assert "sums    unreduced over model: each part holds a partial sum" in lines
    plan = _plan(held)
    told = "\n".join(explain_activation(plan.activations[0], plan))
    assert "P(None, 'data', reduced={'model'}) in pinned_host" in told
    assert "names   spec (none, data) reduced model" in told
    assert "sums    reduced over model: whole on each part; its gradient comes unreduced" in told
    assert "TAKEN   replicated, as the spec of the activation says" in told


GROUPS = """\
axes:
  qkv: {parts: {q: 32 * 128, k: 8 * 128, v: 8 * 128}, unit: 128, interleaved: true}
mesh: {tensor: 8, wide: 16}
rules: [qkv -> RULE]
arrays: {a: 'bf16[_=64 qkv]'}
"""


def test_interleaved_parts_are_told_by_groups_and_not_as_the_unit() -> None:
    text = GROUPS.replace("RULE", "tensor")
    assert "TAKEN   6144 / 8 = 768 = 1 x group 768 (q 512, k 128, v 128)" in _explained("a", text)
    text = GROUPS.replace("RULE", "wide")
    cut = "6144 / 16 = 384 would cut a group of 768 (q 512, k 128, v 128)  <- SHD312"
    assert cut in _explained("a", text)
    found = [each.message for each in pipeline.findings(_plan(text).spec, (_plan(text),)).shown]
    about = "`qkv` = 6144 over `wide` = 16 is 384, half a group of 768, on target `default`"
    assert about in found


def test_parts_one_behind_the_other_keep_their_unit() -> None:
    text = GROUPS.replace("RULE", "tensor").replace("8 * 128", "32 * 128")
    text = text.replace(", interleaved: true", "").replace("tensor: 8", "tensor: 3")
    assert "TAKEN   12288 / 3 = 4096 = 32 x unit 128" in _explained("a", text)
