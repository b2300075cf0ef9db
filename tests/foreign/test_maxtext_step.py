"""The step of a MaxText import: lines that `cost` prices, of the arrays or of the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec import pipeline
from shardspec.analysis.spec_step import Stated, stated_step
from shardspec.cli.main import cli
from shardspec.diagnostics import SourceFile
from shardspec.foreign import maxtext
from shardspec.foreign.formats import Imported, Options, spec_text
from shardspec.ir.spec import Param
from shardspec.ir.step import CollectiveKind

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
    pytest.param(BASE.replace("2.0", "2"), DECODER | MLP | LOGITS, id="whole-batch"),
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


def in_folder(arrays: dict[str, str], folder: str, *, count: int = 0) -> dict[str, str]:
    """Return arrays of layers in another folder: `count` of them unrolled, else scanned."""
    layers = {path: dims for path, dims in arrays.items() if "/layers/" in path}
    if not count:
        return {path.replace("layers", folder, 1): dims for path, dims in layers.items()}
    return {
        path.replace("layers", f"{folder}_{at}", 1): dims.replace(" layers=3", "")
        for at in range(count)
        for path, dims in layers.items()
    }


BLOCK = DECODER | MLP
TABLE = {path: dims for path, dims in DECODER.items() if "/layers/" not in path}


@pytest.mark.parametrize(
    ("arrays", "loops"),
    [
        pytest.param(
            in_folder(BLOCK, "layers/layers_0")
            | in_folder(BLOCK, "layers/layers_1")
            | in_folder(BLOCK, "layers_remainder/layers", count=2),
            [
                "decoder/layers/layers_0",
                "decoder/layers/layers_1",
                "decoder/layers_remainder/layers_*",
            ],
            id="remainder",
        ),
        pytest.param(
            in_folder(BLOCK, "dense_layers", count=1)
            | in_folder(DECODER | EXPERTS, "moe_layers", count=2),
            ["decoder/dense_layers_*", "decoder/moe_layers_*"],
            id="dense-and-moe",
        ),
        pytest.param(in_folder(BLOCK, "layers", count=4), [], id="one-loop"),
    ],
)
def test_layers_of_several_loops_have_lines_for_each(
    arrays: dict[str, str], loops: list[str]
) -> None:
    text = BASE + MOE if any("gate" in path for path in arrays) else BASE
    lines = imported(text, TABLE | arrays | LOGITS)[0].data["step"]["program"]  # type: ignore[index, call-overload]
    attention = [line for line in lines if "query/kernel" in line]
    pairs = zip(loops, attention, strict=bool(loops))
    assert all(f'"**/{loop}/**/query/kernel"' in line for loop, line in pairs)
    assert len(attention) == max(len(loops), 1)
    step = cost_of(text, TABLE | arrays)
    assert step.step.ops


def test_each_layer_of_a_scanned_block_attends_in_each_round() -> None:
    """One line for all layers of a block would attend once for all of them."""
    blocks = in_folder(BLOCK, "layers/layers_0") | in_folder(BLOCK, "layers/layers_1")
    step = cost_of(BASE, TABLE | blocks)
    attends = [op for op in step.step.ops if op.kind == "kernel" and op.phase == "forward"]
    assert sum(op.count for op in attends) == 2 * 3


def test_sizes_of_another_model_are_reported() -> None:
    _, faults = imported(BASE.replace("base_mlp_dim: 128", "base_mlp_dim: 96"), BLOCK | LOGITS)
    assert faults == ["`base_mlp_dim` is 96, and the arrays have mlp=128"]
    scaled = BASE.replace("base_mlp_dim: 128", "base_mlp_dim: 96\nglobal_parameter_scale: 2")
    assert imported(scaled, BLOCK | LOGITS)[1] == []


def test_layers_of_no_decoder_are_named_as_left_out() -> None:
    vision = {
        path.replace("decoder", "vision_encoder"): dims
        for path, dims in in_folder(BLOCK, "layers", count=2).items()
    }
    found, faults = imported(BASE, BLOCK | vision | LOGITS)
    lines = found.data["step"]["program"]  # type: ignore[index, call-overload]
    assert sum("query/kernel" in line for line in lines) == 1
    assert faults == [
        "the step leaves out `vision_encoder/layers_*`: no decoder, so the lines are not known"
    ]


def imported_over(tmp_path: Path, arrays: dict[str, str]) -> Result:
    """Import the files of a folder with arrays, over the spec that is there."""
    lines = (f"{path}: f32[{dims}]\n" for path, dims in arrays.items())
    (tmp_path / "arrays.yaml").write_text("".join(lines))
    call = ["import", "maxtext", "base.yml", "--mesh", "fsdp=2 expert=2", "-o", "spec.yaml"]
    return CliRunner().invoke(cli, [*call, "--against", "arrays.yaml"])


def test_lines_that_do_not_fit_the_arrays_are_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yml").write_text(BASE)
    queries = {
        path: dims.replace("layers=3", "turns=3") if "query" in path else dims
        for path, dims in (BLOCK | LOGITS).items()
    }
    result = imported_over(tmp_path, queries)
    assert "no `step:` is written: " in result.output
    assert "step:" not in (tmp_path / "spec.yaml").read_text()
    call = ["check", "spec.yaml", "--arrays", "arrays.yaml", "-q"]
    assert CliRunner().invoke(cli, call).exit_code == 0


def test_an_import_says_which_lines_of_yours_it_replaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yml").write_text(BASE)
    first = imported_over(tmp_path, BLOCK | LOGITS)
    assert "anew" not in first.output
    assert "anew" not in imported_over(tmp_path, BLOCK | LOGITS).output
    spec = tmp_path / "spec.yaml"
    spec.write_text(spec.read_text().replace("remat: full", "remat: [context]"))
    again = imported_over(tmp_path, BLOCK | LOGITS)
    assert "spec.yaml: wrote `step` anew; a spec that `extends` this one keeps" in again.output


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


MESH = "fsdp=2 expert=2 tensor=2"
QKV = ["query", "key", "value"]


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        ("full", "full"),
        ("none", "full"),
        ("save_qkv_proj", QKV),
        ("save_out_proj", ["residual"]),
        ("save_dot_except_mlp", [*QKV, "residual"]),
        ("save_dot_except_mlpwi", [*QKV, "residual", "made"]),
        ("save_dot_with_context_except_mlp", [*QKV, "context", "residual"]),
        ("minimal", [*QKV, "residual", "inside", "made"]),
        ("minimal_with_context", [*QKV, "residual", "inside", "made", "context"]),
    ],
)
def test_what_a_policy_keeps(policy: str, kept: list[str] | str) -> None:
    found, faults = imported(BASE.replace("policy: full", f"policy: {policy}") + MOE)
    assert found.data["step"]["remat"] == kept  # type: ignore[index, call-overload]
    assert not faults
    assert cost_of(BASE.replace("policy: full", f"policy: {policy}") + MOE, DECODER | EXPERTS)


def test_a_policy_that_cannot_be_said_is_named_in_the_spec() -> None:
    text = BASE.replace("policy: full", "policy: minimal_offloaded")
    found, (fault,) = imported(text)
    assert found.data["step"]["remat"] == [*QKV, "residual", "hidden"]  # type: ignore[index, call-overload]
    assert found.comments["step", "remat"].before == (fault,)
    assert "upper bound" in fault
    custom = "policy: custom\nquery_proj: device\ncontext: offload\nmlpwo: remat"
    found, (fault,) = imported(BASE.replace("policy: full", custom))
    assert found.data["step"]["remat"] == ["query", "context"]  # type: ignore[index, call-overload]
    assert "`context` in the host's memory" in fault
    found, (fault,) = imported(BASE.replace("policy: full", "policy: newest"))
    assert found.data["step"]["remat"] == "full"  # type: ignore[index, call-overload]
    assert "`remat_policy: newest` is not known" in fault


@pytest.mark.parametrize(
    ("more", "experts"),
    [
        ("", "top 2 dropless"),
        ("sparse_matmul: false\n", "top 2 capacity 2"),
        ("sparse_matmul: false\ncapacity_factor: 1.5\n", "top 2 capacity 1.5"),
    ],
)
def test_how_many_tokens_experts_take(more: str, experts: str) -> None:
    text = BASE + MOE.replace("capacity_factor: -1.0\n", "") + more
    assert imported(text)[0].data["step"]["experts"] == experts  # type: ignore[index, call-overload]


def cost_of(text: str, arrays: dict[str, str]) -> Stated:
    """Return the step of an import over arrays."""
    sizes = tuple((name, size) for name, _, size in (each.partition("=") for each in MESH.split()))
    params = tuple(param(*each) for each in (arrays | LOGITS).items())
    source = SourceFile("base.yml", text)
    options = Options(mesh=sizes, params=params, hardware="tpu v5e 2x4")
    found, _ = maxtext.read([source], options)
    assert found is not None
    written, faults = spec_text(found, options, [source], "spec.yaml")
    assert written is not None, faults
    spec, _ = pipeline.load_text(written, "spec.yaml")
    assert spec is not None
    step = stated_step(pipeline.compile_plans(spec, params)[0])
    assert step is not None
    return step


def test_what_experts_get_is_split_by_its_width_as_in_maxtext() -> None:
    made = cost_of(BASE + MOE, DECODER | EXPERTS).step
    splits = {
        (op.result.name, len(op.result.shape)): str(op.result.split)
        for op in made.ops
        if op.phase == "forward"
    }
    assert splits["residual", 3] == "P(('fsdp', 'expert'), None, 'tensor')"
    assert splits["leaving", 4] == "P(None, ('fsdp', 'expert'), None, 'tensor')"
    assert splits["inside", 4] == "P('expert', 'fsdp', None, 'tensor')"
    sums = {
        each.carries.name: each.kind
        for each in made.collectives
        if each.mesh_axes == ("tensor",) and each.phase == "forward"
    }
    assert sums["made"] is CollectiveKind.REDUCE_SCATTER
    assert sums["arrived"] is CollectiveKind.ALL_GATHER


def test_tokens_that_are_sorted_cost_as_many_flops_as_their_products() -> None:
    """Six FLOPs a token and parameter that it goes through; attention and the lookup beside it."""
    text = BASE.replace("policy: full", "policy: minimal_with_context") + MOE
    step = cost_of(text, DECODER | EXPERTS)
    tokens, layers, width, mlp = 16 * 32, 3, 64, 128
    through = layers * width * (2 * 8 * 16 + 2 * 4 * 16 + 4 + 2 * 3 * mlp) + width * 512
    products = [op for op in step.step.ops if op.kind == "einsum" and op.phase != "remat"]
    flops = sum(op.flops * op.count for op in products) * 8
    assert flops == pytest.approx(6 * through * tokens, rel=1e-6)
