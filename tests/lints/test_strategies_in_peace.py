"""SHD225, SHD226 and SHD229 say nothing of the strategies that presets stand for."""

from __future__ import annotations

import pytest

from shardspec import assets
from shardspec.lints.checks import lost_contest, nameless_dimension, whole_batch
from tests.lints.findings_of import found_by

MODEL = """
axes:
  batch: 512
  length: 512
  embed: 4096
  mlp: 16384
  heads: 32
  kv: 128
  vocab: 32768
  joined_kv: {size: heads * kv, unit: kv_unit}
  expert: 8
  layers: 32
mesh: {data: 4, fsdp: 4, expert: 4, stage: 2, context: 2, model: 4, tensor: 4}
activations:
  tokens: batch length
  residual: batch length embed
  query: batch length heads kv
  hidden: batch length mlp
  logits: batch length vocab
  dispatched: expert batch _ embed
arrays:
  embedding: f32[vocab embed]
  "layers_{0..3}/query": f32[embed joined_kv]
  "layers_{0..3}/out": f32[heads kv embed]
  "layers_{0..3}/wi": f32[embed mlp]
  "layers_{0..3}/experts": f32[expert embed mlp]
  "stacked/wo": f32[layers mlp embed]
""".replace("kv_unit", "128")

PRESETS = assets.spec_names("presets")


@pytest.mark.parametrize("check", [lost_contest, nameless_dimension, whole_batch])
@pytest.mark.parametrize("preset", [*PRESETS, "fsdp-tensor, expert", "fsdp-tensor, context"])
def test_a_preset_is_a_strategy(preset: str, check: object) -> None:
    text = f"extends: [{preset}]\n{MODEL}"
    assert [d.message for d in found_by(check, text)] == []  # type: ignore[arg-type]
