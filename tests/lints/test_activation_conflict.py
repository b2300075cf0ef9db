from __future__ import annotations

from pathlib import Path

import pytest

from shardspec import assets
from tests.lints.findings_of import findings_of, marked

TEXT = """\
targets: {{pod: {{mesh: {{fsdp: 8, tensor: 4}}}}{more}}}
axes: {{batch: 64, length: 128, embed: 4096, mlp: {size}}}
rules: {rules}
arrays: {{'l_{{0..3}}/wo': 'bf16[mlp embed]', 'l_{{0..3}}/bias': 'f32[mlp]'}}
activations: {{hidden: batch length mlp, residual: batch length embed}}
lints: {{rule-without-array: allow, indivisible: allow}}
"""
SWAPPED = "[batch -> fsdp, mlp -> fsdp | tensor, 'embed, length -> none']"


def conflicts(rules: str = SWAPPED, size: int = 16384, tail: str = "", more: str = "") -> list[str]:
    text = TEXT.format(rules=rules, size=size, more=more) + tail
    return [d.message for d in findings_of(text, only="activation-conflict")]


def test_rule_order() -> None:
    (found,) = findings_of(TEXT.format(rules=SWAPPED, size=16384, more=""))
    assert found.message == (
        "`mlp` is on `tensor` in activation `hidden` and on `fsdp` in parameters, on target `pod`"
    )
    assert marked(found)[0] == "hidden: batch length mlp"
    assert "+48.0 MiB per device" in found.notes[0]


@pytest.mark.parametrize(
    "rules",
    [
        "[batch -> fsdp, mlp -> tensor | fsdp, 'embed, length -> none']",
        "[batch -> fsdp, 'mlp -> (fsdp, tensor) | tensor', 'embed, length -> none']",
    ],
)
def test_both_ways_of_the_help_work(rules: str) -> None:
    (found,) = findings_of(TEXT.format(rules=SWAPPED, size=16384, more=""))
    assert found.help == (
        "in the rules of `mlp`, put `tensor` before `fsdp`, or take `(fsdp, tensor) | tensor`"
    )
    assert conflicts(rules) == []


@pytest.mark.parametrize(
    "rules",
    [
        "[batch -> fsdp, mlp -> tensor, embed -> fsdp]",  # fsdp and tensor
        "[batch -> fsdp, embed -> fsdp, mlp -> none]",  # FSDP alone
        "['batch -> (fsdp, tensor)', 'embed -> (fsdp, tensor)', 'mlp -> none']",
        "[batch -> fsdp, mlp -> tensor, embed -> tensor | fsdp]",  # 2-D, as in T5X
        "[batch -> fsdp, length -> tensor, mlp -> tensor, embed -> none]",  # sequence
        "[batch -> fsdp, 'mlp -> (tensor, fsdp) | tensor', embed -> none]",  # 2-D FSDP
        "[mlp -> none, embed -> none, batch -> fsdp]",
    ],
)
def test_usual_layouts_are_no_conflict(rules: str) -> None:
    assert conflicts(rules) == []


def test_small_arrays_are_not_worth_it() -> None:
    assert conflicts(size=64) == []


def test_what_does_not_divide_has_a_finding_of_its_own() -> None:
    rules = "[batch -> fsdp, mlp -> tensor, 'embed, length -> none']"
    assert conflicts(rules, size=16382) == []


def test_a_stated_partition_has_no_logical_axes_to_compare() -> None:
    rules = "[batch -> fsdp, mlp -> tensor, 'embed, length -> none']"
    override = "overrides: [{path: '**/wo', spec: '(none, none)'}]\n"
    assert conflicts(rules, tail=override) == []


def test_weights_that_are_whole_since_a_tuple_was_skipped() -> None:
    rules = "[embed -> fsdp, 'mlp -> (fsdp, tensor)', 'batch, length -> none']"
    (message,) = conflicts(rules)
    assert message == (
        "`mlp` is on `(fsdp, tensor)` in activation `hidden` and whole in parameters, on target"
        " `pod`"
    )
    assert conflicts(rules.replace("(fsdp, tensor)", "tensor")) == []


def test_replicate_allows_it() -> None:
    whole = "[batch -> fsdp, 'mlp -> fsdp | tensor @ 9', 'embed, length -> none']"
    assert len(conflicts(whole)) == 1
    allow = "replicate: [{path: '**/wo', because: it is}]\n"
    assert conflicts(whole, tail=allow) == []


def test_targets_that_agree_are_one_finding() -> None:
    (message,) = conflicts(more=", big: {mesh: {fsdp: 16, tensor: 4}}, flat: {mesh: {fsdp: 8}}")
    assert message.endswith("on targets `pod`, `big`")


PRESETS = sorted((assets.data_folder() / "specs" / "presets").rglob("*.yaml"))
MODEL = """\
extends: [{preset}]
targets: {{t: {{mesh: {{{mesh}}}}}}}
lints: {{SHD1: allow, SHD2: allow}}
arrays:
  'l_{{0..3}}/wi': bf16[embed=4096 mlp=16384]
  'l_{{0..3}}/wo': bf16[mlp=16384 embed=4096]
  'l_{{0..3}}/q': bf16[embed=4096 heads=32 kv=128]
  'l_{{0..3}}/k': bf16[embed=4096 joined_kv=4096]
  'l_{{0..3}}/scale': bf16[embed=4096]
  'l_{{0..3}}/expert': bf16[expert=8 embed=4096 mlp=16384]
  embedding: bf16[vocab=32768 embed=4096]
axes: {{batch: 4096, length: 4096, embed: 4096, mlp: 16384, heads: 32, kv: 128, vocab: 32768,
  expert: 8, joined_kv: 4096}}
activations:
  residual: batch length embed
  hidden: batch length mlp
  query: batch length heads kv
  joined: batch length joined_kv
  logits: batch length vocab
  dispatched: expert batch embed
  expert_hidden: expert batch mlp
"""


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_presets_are_no_conflict(path: Path) -> None:
    from shardspec import pipeline

    preset = path.relative_to(assets.data_folder() / "specs" / "presets").with_suffix("").as_posix()
    spec, _ = pipeline.load_text(MODEL.format(preset=preset, mesh="any: 2"))
    assert spec is not None
    names = dict.fromkeys(axis for rule in spec.axis_rules for axis in rule.mesh_axes)
    for size in (2, 4):
        mesh = ", ".join(f"{name}: {size}" for name in names)
        spec, _ = pipeline.load_text(MODEL.format(preset=preset, mesh=mesh))
        assert spec is not None
        found = pipeline.findings(spec, pipeline.compile_plans(spec)).shown
        assert [d.message for d in found if d.code.name == "activation-conflict"] == []
