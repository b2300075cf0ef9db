"""SHD205: a part without names has a finding, all that is small has one; SHD235 below 2 %."""

from __future__ import annotations

import re

import pytest

from tests.lints.findings_of import findings_of, marked

HEAD = """\
mesh: {data: 4}
rules: [embed -> data]
axes: {embed: 4096}
params: {"**/wi": embed _}
arrays:
  "layers_{0..3}/wi": bf16[4096, 64]
"""
SMALL = """\
  "layers_{0..3}/norm/scale": f32[4096]
  "layers_{0..3}/bias": f32[16384]
  final_norm/scale: f32[4096]
"""


def test_small_arrays_are_one_finding_with_their_bytes() -> None:
    (found,) = findings_of(HEAD + SMALL)
    assert found.message == ("nothing names the dimensions of 9 small arrays, 336 KiB together")
    assert found.bytes == (4 * 4096 + 4 * 16384 + 4096) * 4
    assert marked(found)[0] == '"layers_{0..3}/bias"'
    assert found.notes[1:] == (
        "256 KiB  layers_{0..3}/bias x4",
        "64.0 KiB  layers_{0..3}/norm/scale x4",
        "16.0 KiB  final_norm/scale",
    )


def test_a_whole_embedding_does_not_read_like_a_norm() -> None:
    text = f"{HEAD}  embedding: bf16[32000, 4096]\n{SMALL}"
    (large,) = findings_of(text, only=NAME)
    (small,) = findings_of(text + "lints: {unnamed-small: warn}", only="unnamed-small")
    assert large.message == "nothing names the dimensions of `embedding` bf16[32000, 4096]"
    assert large.bytes == 32000 * 4096 * 2
    assert large.notes[0].startswith(
        "1 array, embedding; replicated: 250 MiB on every device, 100 %"
    )
    assert "9 small arrays" in small.message


NAME = "unnamed-array"
DOTTED = """\
  "model.layers.{0..3}.{input,post}_norm.weight": f32[4096]
  "model.layers.{0..3}.mlp.bias": f32[16384]
  model.norm.weight: f32[4096]
"""
AMBIGUOUS = """\
  "layers_{0..3}/attn/scale": f32[4096]
  "layers_{0..3}/norm/scale": f32[4096]
  "layers_{0..3}/mlp/wi/scale": f32[4096]
"""


@pytest.mark.parametrize(
    ("small", "glob"),
    [
        (SMALL, "{**/bias,**/scale}"),
        (DOTTED, "{*.bias,*.weight}"),
        (AMBIGUOUS, "**/scale"),
    ],
)
def test_the_way_out_works(small: str, glob: str) -> None:
    (found,) = findings_of(HEAD + small, only=NAME)
    entry = re.search(r"`(\{path: .*\})`", found.help or "")
    assert entry
    assert f'"{glob}"' in entry[1]
    assert findings_of(f"{HEAD}{small}replicate: [{entry[1]}]\n") == ()


def test_a_pattern_is_offered_for_exactly_these() -> None:
    named = HEAD.replace('"**/wi": embed _', '"**/wi": embed _, "head/scale": embed')
    (found,) = findings_of(f"{named}{SMALL}  head/scale: f32[4096]\n", only=NAME)
    assert '"{**/final_norm/scale,**/layers_*/bias,**/norm/scale}"' not in (found.help or "")
    entry = re.search(r"`(\{path: .*\})`", found.help or "")
    assert entry
    text = f"{named}{SMALL}  head/scale: f32[4096]\nreplicate: [{entry[1]}]\n"
    assert findings_of(text) == ()


def test_what_small_is_goes_by_the_target_that_holds_least() -> None:
    """Norms are 10 % of a device of four, and 1 % of the only one of a laptop."""
    norms = '  "layers_{0..3}/norm/scale": f32[1024]\n'
    both = HEAD.replace(
        "mesh: {data: 4}", "targets: {one: {mesh: {data: 1}}, four: {mesh: {data: 4}}}"
    )
    assert len(findings_of(both + norms, only=NAME)) == 1
    assert not findings_of(HEAD.replace("data: 4", "data: 1") + norms, only=NAME)


TOWER = """\
  "tower/layers_{0..3}/attn/{q,k}": bf16[4096, 1024]
  "tower/layers_{0..3}/mlp/up": bf16[4096, 4096]
  "tower/norm": bf16[4096]
"""


def test_a_part_without_any_name_is_one_finding() -> None:
    (found,) = findings_of(HEAD + TOWER, only=NAME)
    assert found.message == "nothing names the dimensions of 13 arrays in `tower`"
    assert found.bytes == 4 * 2 * 2 * 4096 * 1024 + 4 * 2 * 4096 * 4096 + 2 * 4096
    assert len(found.arrays) == 13


def test_a_part_with_some_names_is_several_findings() -> None:
    text = (HEAD + TOWER).replace("params: {", 'params: {"tower/*/attn/q": embed _, ')
    key, up = findings_of(text, only=NAME)
    assert key.message.startswith("nothing names the dimensions of `tower/layers_{0..3}/attn/k`")
    assert up.message.startswith("nothing names the dimensions of `tower/layers_{0..3}/mlp/up`")


@pytest.mark.parametrize(
    "caches", ["{c/key: 'bf16[8, 64]'}", "{'c/{key,value}': 'bf16[8, 64]', d/k: 'bf16[8, 32]'}"]
)
def test_a_cache_is_named_where_it_is_listed(caches: str) -> None:
    text = f"mesh: {{data: 2}}\naxes: {{batch: 8}}\nrules: [batch -> data]\ncaches: {caches}\n"
    found = findings_of(text, only="unnamed-array")
    assert found
    assert all("under `caches`" in (each.help or "") for each in found)
    named = text.replace("8, ", "batch _=")
    assert not findings_of(named, only="unnamed-array")


@pytest.mark.parametrize("path", ["a b/c", 'a"b', "a#b"])
def test_the_entry_that_the_help_says_can_be_read(path: str) -> None:
    text = f"mesh: {{x: 2}}\nrules: [e -> x]\naxes: {{e: 8}}\narrays:\n  '{path}': f32[8]\n"
    (found,) = findings_of(text, only="unnamed-array")
    entry = (found.help or "").split("`")[3].replace("AXIS", "e")
    assert not findings_of(f"{text}params:\n  {entry}\n", only="unnamed-array")
