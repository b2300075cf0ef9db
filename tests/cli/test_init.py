"""`shardspec init`: eight real models, odd files, and that nothing is lost on the way."""

from __future__ import annotations

import cProfile
import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec import pipeline
from shardspec.cli.main import cli

MODELS = Path(__file__).parent.parent / "data" / "models"
NAMED = {
    "bert-base": {
        "bert.encoder.layer.3.attention.output.dense.weight": "embed joined_kv",
        "bert.encoder.layer.3.output.dense.weight": "embed mlp",
        "bert.embeddings.token_type_embeddings.weight": "segments embed",
        "bert.pooler.dense.weight": "embed embed'",
        "cls.predictions.bias": "vocab",
        "cls.seq_relationship.weight": "classes embed",
    },
    "big-vision-vit-l-16": {
        "embedding/kernel": "_ _ channels embed",
        "pos_embedding": "_ abspos_buckets embed",
        "Transformer/encoderblock_7/MultiHeadDotProductAttention_0/out/kernel": "heads kv embed",
        "Transformer/encoderblock_7/MlpBlock_0/Dense_0/kernel": "embed mlp",
        "Transformer/encoderblock_7/MlpBlock_0/Dense_1/kernel": "mlp embed",
        "MAPHead_0/probe": "_ _ embed",
        "head/kernel": "embed classes",
    },
    "clip-vit-l-14": {
        "text_model.encoder.layers.3.mlp.fc1.weight": "text_mlp text_embed",
        "vision_model.encoder.layers.3.mlp.fc1.weight": "mlp embed",
        "vision_model.embeddings.patch_embedding.weight": "embed channels _ _",
        "visual_projection.weight": "projection embed",
        "text_projection.weight": "projection text_embed",
    },
    "mamba2-2.7b": {
        "backbone.layers.9.mixer.in_proj.weight": "inner_parts embed",
        "backbone.layers.9.mixer.conv1d.weight": "inner_conv _ _",
        "backbone.layers.9.mixer.A_log": "ssm_heads",
        "backbone.layers.9.mixer.norm.weight": "inner",
        "backbone.layers.9.mixer.out_proj.weight": "embed inner",
        "backbone.layers.9.norm.weight": "norm",
    },
    "maxtext-gemma-2b": {
        "params/decoder/layers/self_attention/query/kernel": "embed layers heads kv",
        "params/decoder/layers/self_attention/key/kernel": "embed layers kv_heads kv",
        "params/decoder/layers/self_attention/out/kernel": "heads layers kv embed",
        "params/decoder/layers/mlp/wo/kernel": "mlp layers embed",
        "params/decoder/layers/pre_ffw_norm/scale": "norm layers",
        "params/decoder/decoder_norm/scale": "norm",
    },
    "mistral-7b": {
        "model.layers.3.self_attn.k_proj.weight": "joined_kv_heads embed",
        "model.layers.3.self_attn.o_proj.weight": "embed joined_kv",
        "lm_head.weight": "vocab embed",
    },
    "qwen3-8b": {
        "model.layers.3.self_attn.q_norm.weight": "kv",
        "model.layers.3.self_attn.q_proj.weight": "joined_kv embed",
        "model.layers.3.mlp.down_proj.weight": "embed mlp",
    },
    "sd3-medium": {
        "pos_embed.pos_embed": "_ abspos_buckets embed",
        "transformer_blocks.3.norm1.linear.weight": "modulation embed",
        "transformer_blocks.3.attn.add_k_proj.weight": "joined_kv embed",
        "transformer_blocks.3.ff_context.net.2.weight": "embed mlp",
        "transformer_blocks.3.attn.to_out.0.weight": "embed joined_kv",
        "time_text_embed.timestep_embedder.linear_2.weight": "embed embed'",
        "proj_out.weight": "channels embed",
    },
    "wav2vec2-base": {
        "wav2vec2.feature_extractor.conv_layers.0.conv.weight": ("conv_layers_embed _ _"),
        "wav2vec2.feature_projection.projection.weight": "embed conv_layers_embed",
        "wav2vec2.encoder.pos_conv_embed.conv.weight_v": "embed channels _",
        "wav2vec2.encoder.layers.3.feed_forward.output_dense.weight": "embed mlp",
    },
    "whisper-small": {
        "model.encoder.conv2.weight": "embed embed' _",
        "model.encoder.embed_positions.weight": "abspos_buckets embed",
        "model.decoder.embed_positions.weight": "decoder_abspos_buckets embed",
        "model.decoder.layers.3.encoder_attn.v_proj.bias": "joined_kv",
    },
}
#: What no row knows, of all these models.
QUESTIONS = {"wav2vec2-base": ["wav2vec2.encoder.pos_conv_embed.conv.weight_g"]}
TINY = "embed/embedding: f32[64, 32]\nmlp/wi/kernel: f32[32, 128]\nmlp/wo/kernel: f32[128, 32]\n"


def run(*arguments: str, text: str | None = None) -> Result:
    return CliRunner().invoke(cli, arguments, input=text)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arrays.yaml").write_text(TINY, encoding="utf-8")
    return tmp_path


def test_the_models_are_the_files() -> None:
    """Each list comes to the number of parameters that its source states."""
    assert set(NAMED) == {path.stem for path in MODELS.iterdir()}
    for path in MODELS.iterdir():
        stated = re.search(r"(?m)^parameters: (\d+)$", path.read_text(encoding="utf-8"))
        arrays, faults = pipeline.read_arrays(str(path))
        assert not faults
        assert stated is not None
        assert sum(param.element_count for param in arrays.params) == int(stated[1])


@pytest.mark.parametrize("model", NAMED)
def test_a_model_is_named_and_passes_check(model: str, folder: Path) -> None:
    made = run("init", "--arrays", str(MODELS / f"{model}.yaml"))
    assert made.exit_code == 0, made.output
    assert ", 100 % of their bytes" in made.stderr
    checked = run("check", "spec.yaml")
    assert checked.exit_code == 0, checked.output
    spec, _ = pipeline.load_path("spec.yaml")
    assert spec is not None
    (plan, *_) = pipeline.compile_plans(spec)
    found = {
        each.param.path: " ".join(name or "_" for name in each.logical_axes) for each in plan.arrays
    }
    assert {path: found[path] for path in NAMED[model]} == NAMED[model]
    unnamed = [each.param.path for each in plan.arrays if each.needs_names and each.param.rank]
    assert unnamed == QUESTIONS.get(model, [])
    lines = [line for line in (folder / "spec.yaml").read_text("utf-8").split("\n") if line]
    assert len(lines) < 80


def test_it_writes_a_spec_that_names_the_arrays(folder: Path) -> None:
    made = run("init", "--arrays", "arrays.yaml")
    assert made.exit_code == 0
    assert "wrote spec.yaml; next: `shardspec check spec.yaml`" in made.stderr
    assert made.stdout == ""
    text = (folder / "spec.yaml").read_text("utf-8")
    assert "manifest: ./arrays.yaml\n" in text
    assert run("fmt", "--check", "spec.yaml").exit_code == 0
    assert run("check").output.startswith("No findings in 1 file (3 arrays, 2 targets)")


def test_what_is_there_stays(folder: Path) -> None:
    (folder / "spec.yaml").write_text("mine", encoding="utf-8")
    refused = run("init", "--arrays", "arrays.yaml")
    assert refused.exit_code == 2
    assert "error: `spec.yaml` already exists" in refused.stderr
    assert (folder / "spec.yaml").read_text("utf-8") == "mine"
    assert run("init", "--arrays", "arrays.yaml", "--force").exit_code == 0
    assert (folder / "spec.yaml").read_text("utf-8") != "mine"


def test_stdout_and_the_dsl(folder: Path) -> None:
    first = run("init", "--arrays", "arrays.yaml", "-o", "-", "-q")
    assert first.exit_code == 0
    assert first.stderr == ""
    assert first.stdout == run("init", "--arrays", "arrays.yaml", "-o", "-", "-q").stdout
    assert sorted(path.name for path in folder.iterdir()) == ["arrays.yaml"]
    assert run("init", "--arrays", "arrays.yaml", "-o", "x.shard").exit_code == 0
    assert (folder / "x.shard").read_text("utf-8").count("guess: ") >= 4
    assert run("check", "x.shard").exit_code == 0


def test_arrays_of_no_file_stand_in_the_spec_or_beside_it(folder: Path) -> None:
    piped = run("init", "--arrays", "-", text=TINY)
    assert piped.exit_code == 0, piped.output
    assert "mlp/wi/kernel: f32[32, 128]" in (folder / "spec.yaml").read_text("utf-8")
    assert run("check", "spec.yaml").exit_code == 0
    many = "".join(f"x{'y' * at}/wi/kernel: f32[32, 128]\n" for at in range(100))
    piped = run("init", "--arrays", "-", "-o", "many.yaml", text=many)
    assert piped.exit_code == 0, piped.output
    assert "wrote many.arrays.yaml" in piped.stderr
    assert run("check", "many.yaml").exit_code == 0
    again = run("init", "--arrays", "-", "-o", "many.yaml", text=many)
    assert again.exit_code == 2


def test_a_function_is_called(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import jax, jax.numpy as jnp\n"
        "def shapes():\n"
        "    s = lambda *n: jax.ShapeDtypeStruct(n, jnp.bfloat16)\n"
        "    return {'norm': {'scale': s(64)}, 'mlp': {'wi': {'kernel': s(64, 256)}}}\n"
    )
    (folder / "tiny_model_for_init.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(folder))
    made = run("init", "--arrays", "tiny_model_for_init:shapes", "-o", "spec.yaml")
    assert made.exit_code == 0, made.output
    assert "mlp/wi/kernel: bf16[64, 256]" in (folder / "spec.yaml").read_text("utf-8")
    assert run("check", "spec.yaml").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--like", "fsdpp"), "did you mean `fsdp`?"),
        (("--hardware", "tpu v9 4x4"), "error[SHD101]"),
        (("--hardware", "{1..8} * tpu v5e 16x16"), "is several machines"),
        (("--hardware", "tpu v5e 4x4 by local.yaml"), "names a calibration"),
        (("-o", "no/such/spec.yaml"), "cannot write no/such/spec.yaml"),
    ],
)
def test_the_way_out(arguments: tuple[str, ...], said: str, folder: Path) -> None:
    result = run("init", "--arrays", "arrays.yaml", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["arrays.yaml"]


def test_nothing_to_name_is_said(folder: Path) -> None:
    (folder / "none.yaml").write_text("{}", encoding="utf-8")
    result = run("init", "--arrays", "none.yaml")
    assert result.exit_code == 2
    assert "there are no arrays in none.yaml" in result.stderr
    assert run("init", "--arrays", "gone.yaml").exit_code == 2
    assert run("init").exit_code == 2
    assert sorted(path.name for path in folder.iterdir()) == ["arrays.yaml", "none.yaml"]


def test_scalars_alone(folder: Path) -> None:
    (folder / "scalars.yaml").write_text("step: s32[]\nlogit_scale: f32[]\n", encoding="utf-8")
    assert run("init", "--arrays", "scalars.yaml").exit_code == 0
    assert run("check", "spec.yaml").exit_code == 0


HOSTILE = [
    'a "quoted" name/wi/kernel',
    "it's/wi/kernel",
    "line\nbreak/wi/kernel",
    "colon: here/wi/kernel",
    "# no comment/wi/kernel",
    "back\\slash/wi/kernel",
    "re:.*/wi/kernel",
    "* star ?/wi/kernel",
    "é🙂/wi/kernel",
    " space /wi/kernel",
    "\x1b[31mred/wi/kernel",
    "&anchor !tag %x/wi/kernel",
]


def test_hostile_paths(folder: Path) -> None:
    arrays = {path: {"shape": [32, 128], "dtype": "f32"} for path in HOSTILE}
    arrays |= {f"{path}/odd": {"shape": [77, 13], "dtype": "f32"} for path in HOSTILE}
    (folder / "odd\n# name.json").write_text(json.dumps(arrays), encoding="utf-8")
    made = run("init", "--arrays", "odd\n# name.json")
    assert made.exit_code == 0, made.output
    assert "\x1b" not in made.output
    checked = run("check", "spec.yaml")
    assert checked.exit_code == 0, checked.output
    spec, _ = pipeline.load_path("spec.yaml")
    assert spec is not None
    assert {param.path for param in spec.params} == set(arrays)
    (plan, *_) = pipeline.compile_plans(spec)
    found = {each.param.path: each.logical_axes for each in plan.arrays if not each.needs_names}
    assert found == dict.fromkeys(HOSTILE, ("embed", "mlp"))
    assert len(spec.replicate) >= 1


def test_many_arrays_are_few_lines_and_work_grows_with_their_number(folder: Path) -> None:
    def calls(layers: int) -> int:
        """Return how many functions `init` calls for the experts of so many layers."""
        lines = [
            f"layers.{at}.experts.{to}.{name}.weight: bf16[{shape}]"
            for at in range(layers)
            for to in range(56)
            for name, shape in (("w1", "256, 64"), ("w2", "64, 256"), ("w3", "256, 64"))
        ]
        (folder / "many.yaml").write_text("\n".join(lines), encoding="utf-8")
        profile = cProfile.Profile()
        made = profile.runcall(run, "init", "--arrays", "many.yaml", "--force")
        assert made.exit_code == 0, made.output
        text = (folder / "spec.yaml").read_text("utf-8")
        assert '"*.w{1,3}.weight": mlp embed' in text
        assert len(text.split("\n")) < 45
        return sum(each.callcount for each in profile.getstats())

    calls(1)  # loads what is read once
    few, many = calls(2), calls(8)
    assert many < 4 * few


def test_arrays_of_no_family_are_questions(folder: Path) -> None:
    lines = [f"m{at * 7919:x}q/t{at}z: f32[{at % 90 + 9}, {at % 70 + 9}]" for at in range(1000)]
    (folder / "many.yaml").write_text("\n".join(lines), encoding="utf-8")
    made = run("init", "--arrays", "many.yaml")
    assert made.exit_code == 0, made.output
    assert "1000 arrays not guessed" in made.stderr
    assert (folder / "spec.yaml").read_text("utf-8").count("# QUESTION: what are the dim") > 600


def test_a_checkpoint_folder_is_named(folder: Path) -> None:
    numpy = pytest.importorskip("numpy")
    pytest.importorskip("safetensors")
    from safetensors.numpy import save_file

    os.mkdir("model")
    save_file({"mlp.up_proj.weight": numpy.zeros((128, 32), "float32")}, "model/model.safetensors")
    assert run("init", "--arrays", "model").exit_code == 0
    assert "manifest: ./model/\n" in (folder / "spec.yaml").read_text("utf-8")
    assert run("check", "spec.yaml").exit_code == 0


def test_a_function_that_asks_for_devices_gets_those_of_the_machine(folder: Path) -> None:
    pytest.importorskip("jax")
    (folder / "asking_arrays.py").write_text(
        """
import jax
from jax.sharding import NamedSharding, PartitionSpec

MESH = jax.make_mesh((2, jax.device_count() // 2), ("data", "model"))
PLACE = NamedSharding(MESH, PartitionSpec("data", "model"))

def params():
    make = jax.jit(lambda key: jax.random.normal(key, (64, 16)), out_shardings=PLACE)
    return {"mlp": {"wi": {"kernel": make(jax.random.key(0))}}}
""",
        encoding="utf-8",
    )
    call = ["--arrays", "asking_arrays:params"]
    made = run("init", *call, "--hardware", "tpu v5e 2x4")
    assert made.exit_code == 0, made.stderr
    spec = (folder / "spec.yaml").read_text("utf-8")
    (folder / "spec.yaml").write_text(spec.partition("\narrays:")[0], encoding="utf-8")
    shown = run("compile", "spec.yaml", *call)
    assert shown.exit_code == 0, shown.stderr
    assert "mlp/wi/kernel" in shown.stdout
