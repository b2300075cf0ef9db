"""Findings that many arrays or targets share are said once."""

from __future__ import annotations

import pytest

from tests.lints.findings_of import findings_of, marked

HEAD = "mesh: {tensor: 4}\nrules: [embed -> none, mlp -> tensor]\n"

STACKED = """\
params:
  "**/wi": embed mlp
  "**/wo": mlp embed
arrays:
  blocks/mlp/wi: bf16[24, 64, 128]
  blocks/mlp/wo: bf16[24, 128, 64]
"""


def test_stacked_layers_that_nothing_says_are_stacked() -> None:
    (found,) = findings_of(HEAD + STACKED)
    assert found.message == (
        "2 entries of `params` have one name less than their arrays have dimensions,"
        " and the first dimension of all is 24"
    )
    assert '"blocks/mlp/**": layers@0' in (found.help or "")
    head = HEAD.replace("]", ", layers -> none]")
    assert findings_of(head + STACKED + 'scan: {"blocks/mlp/**": layers@0}\n') == ()


def test_entries_with_other_first_sizes_are_not_one() -> None:
    assert len(findings_of(HEAD + STACKED.replace("[24, 128", "[12, 128"))) == 2


def test_the_entry_is_called_by_its_pattern() -> None:
    text = "params: {'**/wi': embed}\narrays: {a/wi: 'bf16[64, 8, 8]'}\n"
    (found,) = findings_of(HEAD + text, only="rank-mismatch")
    assert found.message.startswith("params entry `**/wi`: 1 name for 3 dimensions of `a/wi`")
    assert found.help == "name every dimension, `_` where it has none"


SIZES = """\
axes: {{embed: {embed}, mlp: 128}}
params: {{'**/wi': {wi}, '**/wo': mlp embed}}
arrays:
  a/wi: bf16[64, 128]
  a/wo: bf16[128, 64]
"""


def test_a_size_that_every_array_contradicts() -> None:
    (found,) = findings_of(HEAD + SIZES.format(embed=46, wi="embed mlp"), only="size-mismatch")
    assert found.message == "`embed` is 46 under `axes`, and 64 in every array that has it"
    assert marked(found)[0] == "embed: 46"
    assert findings_of(HEAD + SIZES.format(embed=64, wi="embed mlp")) == ()


def test_swapped_names_are_about_the_entry() -> None:
    (found,) = findings_of(HEAD + SIZES.format(embed=64, wi="mlp embed"), only="size-mismatch")
    assert found.help == "by size, the names are `embed mlp`"


def test_both_entries_swapped_are_about_the_entries() -> None:
    text = SIZES.format(embed=64, wi="mlp embed").replace(
        "'**/wo': mlp embed", "'**/wo': embed mlp"
    )
    assert len(findings_of(HEAD + text, only="size-mismatch")) == 2


UNNAMED = """\
mesh: {data: 4}
rules: [batch -> data]
activations: {x: batch _}
arrays:
  "blocks_{0..3}/{q,k,v}/kernel": f32[4096, 32, 128]
  head: f32[4096, 4096]
"""


def test_an_entry_that_nothing_names_is_one_finding() -> None:
    first, second = findings_of(UNNAMED, only="unnamed-array")
    assert "`blocks_{0..3}/{q,k,v}/kernel`" in first.message
    assert "`head`" in second.message


def test_half_an_entry_is_shown_as_such() -> None:
    text = UNNAMED + "params: {'**/q/kernel': _ _ _, head: _ _}\n"
    found = findings_of(text, only="unnamed-array")
    assert sorted(each.message.split("`")[1] for each in found) == [
        "blocks_{0..3}/k/kernel",
        "blocks_{0..3}/v/kernel",
    ]


def test_what_may_be_whole_needs_no_names() -> None:
    assert findings_of(UNNAMED + "replicate: [{path: '**', because: data parallel}]\n") == ()


def test_a_slip_in_a_pattern_is_told_without_what_follows() -> None:
    whole = "replicate: [{path: 'blocks_*/**', because: small}]\n"
    found = findings_of(UNNAMED + whole + "params: {haed: _ _}\n")
    by_name = {each.code.name: each for each in found}
    assert by_name.keys() == {"unmatched-pattern", "unnamed-array"}
    assert by_name["unmatched-pattern"].arrays == ("head",)


def test_a_pattern_that_is_allowed_hides_nothing() -> None:
    text = UNNAMED + "params: {haed: _ _}\nlints: {unmatched-pattern: allow, SHD205: allow}\n"
    messages = [each.message for each in findings_of(text, only="replicated-large")]
    assert any("`head`" in message for message in messages)


DECLARED = """\
mesh: {x: 2}
axes: {mlp: 1024, kv: 64}
rules: [mpl -> x]
arrays: {k: 'f32[mlp kv]'}
"""


def test_a_slip_in_a_rule_is_told_without_the_axis_that_it_leaves_alone() -> None:
    """The axis that the slip was for is a label of it; another without a rule is told."""
    slip, other = sorted(findings_of(DECLARED), key=lambda each: each.code.id)
    assert marked(slip) == ["mpl", "mlp: 1024"]
    assert other.message == "no rule names `kv`, so it is replicated"
    allowed = findings_of(DECLARED + "lints: {SHD202: allow}\n", only="axis-without-rule")
    assert len(allowed) == 2


TARGETS = """\
targets:
  a: {{hardware: 8 cpu, mesh: {{data: 4, model: 2}}}}
  b: {{hardware: 16 cpu, mesh: {{data: 4, model: 4}}}}
  c: {{mesh: {{data: 8, {axis}: 2}}}}
rules: ['vocab -> {vocab}', 'mlp -> (model, data)', 'mlp -> data', embed -> none]
arrays:
  embedding: bf16[vocab=32768 embed=4096]
  'l_{{0..7}}/k': bf16[embed=4096 mlp=16384]
"""


def test_targets_share_a_finding_of_whole_arrays() -> None:
    text = TARGETS.format(vocab="expert", axis="expert")
    (found,) = findings_of(text, only="replicated-large")
    assert "is replicated on targets `a`, `b`" in found.message
    assert found.target is None


def test_targets_share_a_finding_of_heavy_arrays() -> None:
    text = TARGETS.format(vocab="none", axis="model") + "lints: {pinned-large: allow}\n"
    (found,) = findings_of(text, only="dominant-array")
    assert found.notes[-1].startswith("also ")
    assert found.notes[-1].count("%") == 2


@pytest.mark.parametrize("size", [32768, 32767])
def test_an_array_with_a_finding_of_its_own_is_not_heavy(size: int) -> None:
    text = TARGETS.format(vocab="model", axis="model").replace("32768", str(size))
    kinds = {each.code.name for each in findings_of(text)}
    assert ("indivisible" in kinds) == (size == 32767)
    assert "dominant-array" not in kinds or size == 32768


def test_memory_that_names_would_save_is_no_finding() -> None:
    text = """\
hardware: tpu v5e 2x2
mesh: {model: 4}
rules: [mlp -> model, embed -> none]
params: {"**/ki": embed mlp}
arrays:
  "l_{0..63}/k": bf16[8192, 32768]
"""
    only = [each.code.name for each in findings_of(text)]
    assert "unnamed-array" in only
    assert "exceeds-memory" not in only
    right = text.replace("**/ki", "**/k").replace("0..63", "0..255")
    assert [each.code.name for each in findings_of(right)] == ["exceeds-memory"]


def test_a_mesh_axis_that_is_nearly_that_of_the_rules() -> None:
    text = """\
targets:
  a: {mesh: {data: 2, tensor: 4}}
  b: {mesh: {data: 2, tesnor: 4}}
rules: [batch -> data, mlp -> tensor, embed -> none]
activations: {x: batch embed}
arrays: {k: 'bf16[embed=64 mlp=128]'}
"""
    found = findings_of(text, only="unused-mesh-axis")
    assert found[0].help == "did you mean `tensor`? else write a rule for `tesnor`"


CHANCE = """\
mesh: {{data: 4, expert: 8}}
axes: {{experts: 256, embed: 4096}}
rules: [experts -> expert, embed -> data]
params:
  "**/kv": embed _ _
  "**/{{gate,up}}": experts embed _
arrays:
  "layers_{{0..7}}/{module}/kv": bf16[4096, 512, 256]
  "layers_{{0..7}}/moe/{{gate,up}}": bf16[256, 4096, 16]
"""


@pytest.mark.parametrize(("module", "count"), [("attn", 0), ("moe", 1)])
def test_an_axis_of_the_module_beside_is_no_name(module: str, count: int) -> None:
    found = findings_of(CHANCE.format(module=module), only="nameless-dimension")
    assert len(found) == count


def test_a_new_axis_may_have_a_rule() -> None:
    text = HEAD + "axes: {embed: 64}\narrays: {k: 'bf16[embed zzz=8]'}\n"
    found = findings_of(text, only="unknown-logical-axis")[-1]
    assert (found.help or "").endswith("or give it a rule: `zzz -> none`")
