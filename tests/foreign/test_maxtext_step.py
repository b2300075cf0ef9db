"""The step of a MaxText import: lines that `cost` prices, of the arrays or of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec.cli.main import cli
from shardspec.diagnostics import SourceFile
from shardspec.foreign import maxtext
from shardspec.foreign.formats import Imported, Options, spec_text
from shardspec.ir.spec import Param

BASE = """
mesh_axes: [data, fsdp, tensor, expert]
logical_axis_rules: [
  [activation_batch, [data, fsdp, expert]], [activation_norm_length, []],
  [activation_heads, [tensor]], [activation_kv_heads, [tensor]], [activation_kv_head_dim, [tensor]],
  [activation_embed, [tensor]], [activation_mlp, [tensor]], [activation_vocab, [tensor]],
  [activation_exp, [expert]], [exp, [expert]], [vocab, [tensor]], [embed_vocab, [fsdp, expert]],
  [mlp, [tensor]], [mlp_moe, [tensor]], [heads, [tensor]], [q_heads, [tensor]],
  [kv_heads, [tensor]], [kv, []], [embed, [fsdp, expert]], [embed_moe, [fsdp]], [norm, []],
  [layers, []],
]
decoder_block: llama2
remat_policy: full
dtype: bfloat16
opt_type: adamw
base_emb_dim: 64
base_num_query_heads: 8
base_num_kv_heads: 4
head_dim: 16
base_mlp_dim: 128
vocab_size: 512
per_device_batch_size: 2.0
max_target_length: 32
"""
MOE = "num_experts: 4\nnum_experts_per_tok: 2\ncapacity_factor: -1.0\n"
DECODER = {
    "token_embedder/embedding": "vocab=512 embed_vocab=64",
    "decoder/decoder_norm/scale": "norm=64",
    "decoder/layers/self_attention/query/kernel": "embed=64 layers=3 q_heads=8 kv=16",
    "decoder/layers/self_attention/key/kernel": "embed=64 layers=3 kv_heads=4 kv=16",
    "decoder/layers/self_attention/value/kernel": "embed=64 layers=3 kv_heads=4 kv=16",
    "decoder/layers/self_attention/out/kernel": "heads=8 layers=3 kv=16 embed=64",
}
MLP = {
    "decoder/layers/mlp/wi_0/kernel": "embed=64 layers=3 mlp=128",
    "decoder/layers/mlp/wi_1/kernel": "embed=64 layers=3 mlp=128",
    "decoder/layers/mlp/wo/kernel": "mlp=128 layers=3 embed=64",
}
EXPERTS = {
    "decoder/layers/MoeBlock_0/gate/kernel": "embed_moe=64 layers=3 _=4",
    "decoder/layers/MoeBlock_0/wi_0": "exp=4 layers=3 embed_moe=64 mlp_moe=128",
    "decoder/layers/MoeBlock_0/wi_1": "exp=4 layers=3 embed_moe=64 mlp_moe=128",
    "decoder/layers/MoeBlock_0/wo": "exp=4 layers=3 mlp_moe=128 embed_moe=64",
}
LOGITS = {"decoder/logits_dense/kernel": "embed_vocab=64 vocab=512"}
MODELS = [
    pytest.param(BASE, DECODER | MLP | LOGITS, id="decoder"),
    pytest.param(BASE + "logits_via_embedding: true\n", DECODER | MLP, id="tied"),
    pytest.param(BASE + MOE, DECODER | EXPERTS | LOGITS, id="moe"),
    pytest.param(
        BASE + MOE + "first_num_dense_layers: 1\n", DECODER | MLP | EXPERTS | LOGITS, id="mixed"
    ),
]


def param(path: str, dims: str) -> Param:
    pairs = [each.split("=") for each in dims.split()]
    names = tuple(None if name == "_" else name for name, _ in pairs)
    return Param(f"params/{path}", tuple(int(size) for _, size in pairs), "f32", names)


def imported(text: str, arrays: dict[str, str] | None = None) -> tuple[Imported, list[str]]:
    params = None if arrays is None else tuple(param(*each) for each in arrays.items())
    options = Options(mesh=(("fsdp", "2"), ("expert", "2")), params=params)
    found, faults = maxtext.read([SourceFile("base.yml", text)], options)
    assert found is not None, faults
    return found, [fault.message for fault in faults]


@pytest.mark.parametrize(("text", "arrays"), MODELS)
@pytest.mark.parametrize("is_given", [True, False], ids=["arrays", "config"])
def test_cost_prices_the_step(
    text: str, arrays: dict[str, str], is_given: bool, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    found, _ = imported(text, arrays if is_given else None)
    options = Options(mesh=(("fsdp", "2"), ("expert", "2")), hardware="tpu v5e 2x2")
    written, faults = spec_text(found, options, [SourceFile("base.yml", text)], "spec.yaml")
    assert written is not None, faults
    (tmp_path / "spec.yaml").write_text(written)
    lines = (f"params/{path}: f32[{dims}]\n" for path, dims in arrays.items())
    (tmp_path / "arrays.yaml").write_text("".join(lines))
    result = CliRunner().invoke(cli, ["cost", "spec.yaml", "--arrays", "arrays.yaml", "-q"])
    assert result.exit_code == 0, result.output
    assert "SHD243" not in result.output
    assert "tokens/s" in result.output
    axes = found.data["axes"]
    assert isinstance(axes, dict)
    assert axes["batch"] == 8
    assert axes["embed"] == 64
    assert ("expert" in axes) == ("num_experts" in text)


def test_where_arrays_are_others_no_step_is_written() -> None:
    found, faults = imported(BASE, {"decoder/wq_a": "embed=64 kv=16"})
    assert "step" not in found.data
    assert faults == ["no `step:` is written: these arrays have no known lines"]
    found, faults = imported(BASE + "attention_type: mla\n")
    assert "step" not in found.data
    assert faults == [
        "no `step:` is written: the attention of this configuration has no known lines"
    ]


def test_rules_alone_say_no_model() -> None:
    found, faults = imported(BASE.partition("decoder_block")[0])
    assert "step" not in found.data
    assert "axes" not in found.data
    assert not faults
