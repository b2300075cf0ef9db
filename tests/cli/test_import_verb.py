"""`shardspec import`: what is written, what is said, and the exit codes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli
from shardspec.foreign.formats import FORMATS, module_of

RULES = "RULES = [('embed', 'data'), ('mlp', 'model'), ('heads', 'model')]\n"
ARRAYS = "a/wi: 'bf16[embed=64 mlp=32]'\nlayers_{0..3}/q: 'bf16[embed=64 heads=8]'\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rules.py").write_text(RULES)
    (tmp_path / "arrays.yaml").write_text(ARRAYS)
    return tmp_path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["import", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_what_a_person_added_outlives_a_new_import(folder: Path) -> None:
    call = ("flax", "rules.py", "--mesh", "data=4 model=2", "-o", "specs/spec.yaml")
    (folder / "specs").mkdir()
    run(*call)
    first = (folder / "specs/spec.yaml").read_text()
    own = "# ours\nmanifest: ../arrays.yaml\nstate: {optimizer: zero1}  # and this\n"
    (folder / "specs/spec.yaml").write_text(first + own + "params: {a/wi: embed mlp}\n")
    result = run(*call)
    text = (folder / "specs/spec.yaml").read_text()
    assert "# ours\nmanifest: ../arrays.yaml\n" in text
    assert "state: {optimizer: zero1}  # and this\n" in text
    assert "specs/spec.yaml: kept `manifest`, `state`" in result.stderr
    assert "specs/spec.yaml: no longer has `params`; `shardspec --undo" in result.stderr
    again = run(*call, "--against", "arrays.yaml")
    assert (folder / "specs/spec.yaml").read_text() == text
    assert "no longer" not in again.stderr
    assert "places every array as Flax Linen does" in again.stderr


def test_the_spec_is_data_on_stdout() -> None:
    result = run("flax", "rules.py", "--mesh", "data=4 model=2")
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "  - embed -> data  # from rules.py:1\n" in result.stdout
    assert "mesh: {data: 4, model: 2}\n" in result.stdout


@pytest.mark.parametrize("text", ["shardspec: 1\nrules: []\n", "# ours\n\nshardspec 1\n"])
def test_a_spec_is_no_file_of_another_tool(text: str) -> None:
    Path("own.yaml").write_text(text, encoding="utf-8")
    result = run("regex", "own.yaml")
    assert result.exit_code == 2
    assert "`own.yaml` is a spec already, and no file of another tool" in result.stderr


@pytest.mark.parametrize("name", ["t5x", "T5X", "gin", "T5X-gin"])
def test_a_format_is_known_by_a_part_of_its_name(name: str) -> None:
    Path("base.gin").write_text("partitioning.PjitPartitioner.num_partitions = 2\n")
    result = run(name, "base.gin", "--mesh", "data=4 model=2")
    assert result.exit_code == 0, result.output
    assert "# imported from base.gin" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message", "help"),
    [
        (["huggingface", "x"], "no format is called `huggingface`", "did you mean `hf-tp-plan`?"),
        (["pytorch", "x"], "no format is called `pytorch`", "did you mean `dtensor`?"),
        (["falx", "x"], "no format is called `falx`", "did you mean `flax`?"),
        (["foo", "x"], "no format is called `foo`", "formats: t5x-gin, flax, nnx"),
        (["base.gin"], "no format is given before `base.gin`", "import t5x-gin base.gin`;"),
        (["rules.py"], "no format is given before `rules.py`", "import FORMAT rules.py`; formats"),
        (
            ["t5x", "own.py"],
            "no call of `override_params_axes_names`",
            "`shardspec import flax own.py` reads",
        ),
    ],
)
def test_a_wrong_format_is_answered_with_the_right_one(
    arguments: list[str], message: str, help: str
) -> None:
    Path("base.gin").write_text("partitioning.PjitPartitioner.num_partitions = 2\n")
    Path("own.py").write_text("def rules(): return [('embed', 'data')]\n")
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert help in result.stderr


def test_a_proof_that_holds() -> None:
    result = run(
        "flax", "rules.py", "-o", "spec.yaml", "--mesh", "data=4, model=2", "--against",
        "arrays.yaml",
    )  # fmt: skip
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr == (
        "5 arrays of arrays.yaml on data=4 model=2:"
        " the spec places every array as Flax Linen does\n"
    )
    assert Path("spec.yaml").exists()
    checked = CliRunner().invoke(cli, ["check", "spec.yaml", "--arrays", "arrays.yaml"])
    assert checked.exit_code == 0
    assert CliRunner().invoke(cli, ["fmt", "--check", "spec.yaml"]).exit_code == 0


def test_a_proof_that_fails_lists_what_differs_and_the_spec_is_written() -> None:
    Path("arrays.yaml").write_text("l_{0..3}/q: 'bf16[mlp=64 heads=8]'\nb: 'bf16[embed=64]'\n")
    result = run(
        "nnx", "rules.py", "-o", "spec.yaml", "--mesh", "data=4 model=2", "--against",
        "arrays.yaml",
    )  # fmt: skip
    assert result.exit_code == 1
    assert "error[SHD602]: `l_{0..3}/q` x4: shardspec gives P('model', None), Flax NNX refuses" in (
        result.stderr
    )
    assert result.stderr.endswith(
        "5 arrays of arrays.yaml on data=4 model=2: 4 differ from Flax NNX"
        "; wrote spec.yaml nevertheless\n"
    )
    assert Path("spec.yaml").exists()


def test_uneven_arrays_are_no_difference_and_said() -> None:
    Path("arrays.yaml").write_text("a: 'bf16[embed=6]'\n")
    result = run("flax", "rules.py", "--mesh", "data=4 model=2", "--against", "arrays.yaml")
    assert result.exit_code == 0
    assert result.stderr.startswith("dimensions that do not divide: 1; ")


@pytest.mark.parametrize(
    "text", ["RULES = [", "RULES = make()", "RULES = [('embed', 'a'), ('embed', 'b')]", "\x00"]
)
def test_nothing_is_written_where_reading_fails(text: str, folder: Path) -> None:
    (folder / "rules.py").write_text(text)
    (folder / "spec.yaml").write_text("old")
    result = run("flax", "rules.py", "-o", "spec.yaml")
    assert result.exit_code == 2
    assert result.stderr.endswith("nothing is written\n") or "SHD001" in result.stderr
    assert (folder / "spec.yaml").read_text() == "old"
    assert sorted(os.listdir(folder)) == ["arrays.yaml", "rules.py", "spec.yaml"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["flax", "gone.py"], "there is no file `gone.py`"),
        (["flax"], "FILE"),
        (["flux", "rules.py"], "flux"),
        (["flax", "rules.py", "--merge", "maxtext"], "--merge means nothing for `flax`"),
        (["flax", "rules.py", "--mesh", "data"], "`data` is no mesh"),
        (["flax", "rules.py", "--mesh", "data=2 data=4"], "a mesh axis twice"),
        (["flax", "rules.py", "--against", "gone.yaml", "--mesh", "data=2"], "gone.yaml"),
        (["flax", "rules.py", "--mesh", "data=2", "--hardware", "8 toasters"], "no hardware"),
        (["flax", "rules.py", "--mesh", "data=rest"], "needs hardware"),
    ],
)
def test_what_cannot_be_done_is_said(arguments: list[str], message: str) -> None:
    Path("own.py").write_text("def rules(): return [('embed', 'data')]\n")
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_a_proof_needs_a_mesh() -> None:
    result = run("flax", "rules.py", "--against", "arrays.yaml", "-o", "spec.yaml")
    assert result.exit_code != 0
    assert "--against needs a mesh" in result.stderr
    assert not Path("spec.yaml").exists()


def test_a_mesh_may_be_anything_the_language_says() -> None:
    result = run(
        "flax", "rules.py", "--hardware", "2 * tpu v4 4x4x4", "--mesh",
        "data = rest, replica=2 @ dcn; model = submesh 2x2x1x1",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert "hardware: 2 * tpu v4 4x4x4\n" in result.stdout
    assert "replica: 2 @ dcn" in result.stdout


def test_files_may_come_from_standard_input() -> None:
    result = CliRunner().invoke(cli, ["import", "flax", "-"], input='[["embed", "data"]]')
    assert result.exit_code == 0
    assert "embed -> data" in result.stdout


@pytest.mark.parametrize("entry", FORMATS, ids=lambda entry: entry.name)
def test_every_format_has_its_two_functions(entry: object) -> None:
    module = module_of(entry)  # type: ignore[arg-type]
    assert callable(module.read)
    assert callable(module.answer)


MAXTEXT_SIZES = """
mesh_axes: [fsdp, tensor]
logical_axis_rules: [[embed, fsdp], [mlp, tensor]]
ici_fsdp_parallelism: -1
ici_tensor_parallelism: 1
"""
#: A tree that its code can make on 16 devices alone.
SIXTEEN = """
import jax
def arrays():
    assert jax.device_count() == 16
    return {"wi": jax.ShapeDtypeStruct((64, 128), "bfloat16")}
"""


def test_settings_stand_where_maxtext_takes_them(folder: Path) -> None:
    (folder / "base.yml").write_text(MAXTEXT_SIZES)
    result = run("maxtext", "base.yml", "ici_tensor_parallelism=4", "--hardware", "tpu v5e 4x4")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("# imported from base.yml, ici_tensor_parallelism=4\n")
    tensor = "  tensor: 4  # from ici_tensor_parallelism=4:1\n"
    assert f"mesh:\n  fsdp: 4  # from base.yml:4\n{tensor}" in result.stdout
    result = run("flax", "rules.py", "ici_tensor_parallelism=4")
    assert result.exit_code == 2
    assert "there is no file `ici_tensor_parallelism=4`" in result.stderr


def test_a_function_of_against_gets_the_devices_of_the_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    (folder / "on_sixteen.py").write_text(SIXTEEN)
    machine = ("--mesh", "data=4 model=4", "--hardware", "tpu v5e 4x4")
    result = run("flax", "rules.py", *machine, "--against", "on_sixteen:arrays", "-o", "spec.yaml")
    assert (
        "1 array of on_sixteen:arrays on data=4 model=4: the spec places every array"
        in result.stderr
    )
    assert result.exit_code == 0


def test_a_spec_serves_as_a_list_of_arrays(folder: Path) -> None:
    text = f"shardspec: 1\naxes: {{embed: 64}}\nmesh: {{data: 4}}\narrays:\n  {ARRAYS}"
    (folder / "other.yaml").write_text(text.replace("\nl", "\n  l"))
    against = ("--mesh", "data=4 model=2", "--against")
    assert run("flax", "rules.py", *against, "other.yaml", "-o", "spec.yaml").exit_code == 0
    without = run("flax", "rules.py", *against, "spec.yaml")
    assert without.exit_code == 2
    assert "the spec `spec.yaml` has no arrays" in without.stderr
    assert "add `arrays:` or `manifest: FILE` to it" in without.stderr
    (folder / "broken.yaml").write_text("shardspec: 1\nrules: [a -> b -> c]\n")
    assert "rules: [a -> b -> c]" in run("flax", "rules.py", *against, "broken.yaml").stderr


def test_nothing_heavy_is_loaded(folder: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys\nfrom shardspec.cli.main import main\n"
        "sys.argv = ['shardspec', 'import', 'flax', 'rules.py', '-o', 'spec.yaml',"
        " '--mesh', 'data=4 model=2', '--against', 'arrays.yaml']\n"
        "try:\n  main()\nexcept SystemExit as end:\n  assert end.code == 0, end.code\n"
        "assert not {'jax', 'numpy', 'flax', 'gin'} & set(sys.modules)\n"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


PLAN = '{"base_model_tp_plan": {"layers.*.up": "colwise"}}'
LAYERS = "model/layers/{0..1}/up/weight: 'f32[8, 16]'\nlm_head/weight: 'f32[64, 16]'\n"


def test_a_proof_never_says_all_of_what_it_did_not_compare(folder: Path) -> None:
    (folder / "config.json").write_text(PLAN)
    (folder / "arrays.yaml").write_text(LAYERS)
    arguments = ("hf-tp-plan", "config.json", "--mesh", "tp=4", "--against", "arrays.yaml")
    result = run(*arguments, "-o", "spec.yaml")
    assert result.exit_code == 1
    assert "warning[SHD608]: 1 array not compared with transformers: the `_tp_plan` of the" in (
        result.stderr
    )
    assert "= note: 1 array, lm_head/weight; 4.00 KiB" in result.stderr
    assert result.stderr.endswith(
        "3 arrays of arrays.yaml on tp=4: 1 not compared with transformers"
        "; wrote spec.yaml nevertheless\n"
    )
    (folder / "modeling.py").write_text("class A:\n    _tp_plan = {'lm_head': 'colwise'}\n")
    result = run(*arguments[:2], "modeling.py", *arguments[2:], "-o", "spec.yaml")
    assert result.exit_code == 0
    assert result.stderr.endswith("the spec places every array as transformers does\n")


def test_what_the_import_decided_is_no_finding_of_check(folder: Path) -> None:
    (folder / "plan.json").write_text('{"tp_plan": {"layers.*.gate_up": "packed_colwise"}}')
    (folder / "arrays.yaml").write_text("'layers.{0..3}.gate_up.weight': 'f32[8192, 8192]'\n")
    result = run(
        "hf-tp-plan", "plan.json", "--mesh", "tp=4", "--against", "arrays.yaml", "-o", "spec.yaml"
    )
    assert result.exit_code == 1
    assert "warning[SHD601]" in result.stderr
    assert "transformers splits it as no PartitionSpec can say" in result.stderr
    checked = CliRunner().invoke(cli, ["check", "spec.yaml", "--arrays", "arrays.yaml"])
    assert checked.stdout.startswith("No findings"), checked.stdout


def test_several_names_are_for_formats_that_have_several() -> None:
    result = run("flax", "rules.py", "--name", "A", "--name", "B")
    assert result.exit_code == 2
    assert "--name counts once for `flax`" in result.stderr


MAXTEXT = """\
mesh_axes: [data, fsdp]
ici_fsdp_parallelism: 4
logical_axis_rules: [[batch, data], [embed, fsdp]]
logical_axis_rules_for_eval: [[batch, [data, fsdp]], [embed, AXIS]]
"""


@pytest.mark.parametrize(("axis", "code"), [("data", 0), ("seq", 1)])
def test_rules_for_evaluation_are_proved_too(axis: str, code: int) -> None:
    """MaxText refuses arrays under a mesh axis that is not there; the spec leaves it out."""
    Path("base.yml").write_text(MAXTEXT.replace("AXIS", axis))
    result = run("maxtext", "base.yml", "-o", "spec.yaml", "--against", "arrays.yaml")
    assert result.exit_code == code
    first, last = (line for line in result.stderr.splitlines() if "arrays.yaml on" in line)
    assert first.endswith(" on fsdp=4: the spec places every array as MaxText does")
    head, _, told = last.partition(", phase `eval`: ")
    assert head.endswith("arrays of arrays.yaml on fsdp=4")
    assert told == (
        "5 differ from MaxText; wrote spec.yaml nevertheless"
        if code
        else "the spec places every array as MaxText does"
    )
    assert ("in phase `eval`" in result.stderr.replace(last, "")) == bool(code)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ((), "wrote spec.yaml without a mesh, which `--mesh 'data=4 model=2'` adds; `--against"),
        (
            ("--mesh", "data=4 model=2"),
            "wrote spec.yaml; `--against ARRAYS` proves that layouts are equal",
        ),
    ],
)
def test_what_is_written_says_how_it_is_proved(more: tuple[str, ...], told: str) -> None:
    result = run("flax", "rules.py", "-o", "spec.yaml", *more)
    assert result.exit_code == 0, result.output
    assert told in result.stderr


def test_a_second_import_takes_the_arrays_of_the_spec_that_it_replaces(folder: Path) -> None:
    call = ("flax", "rules.py", "-o", "specs/spec.yaml")
    mesh = ("--mesh", "data=4 model=2")
    (folder / "specs").mkdir()
    run(*call, *mesh)
    spec = folder / "specs/spec.yaml"
    spec.write_text(spec.read_text() + "manifest: ../arrays.yaml\n")
    result = run(*call, *mesh)
    assert result.exit_code == 0, result.output
    told = "5 arrays of specs/spec.yaml on data=4 model=2: the spec places every array as Flax"
    assert told in result.stderr
    without = run(*call)  # nothing to compare on, and nobody asked for it
    assert without.exit_code == 0, without.output
    assert "manifest: ../arrays.yaml\n" in spec.read_text()


def test_a_second_import_mends_a_spec_that_is_broken_meanwhile(folder: Path) -> None:
    call = ("flax", "rules.py", "--mesh", "data=4 model=2", "-o", "spec.yaml")
    run(*call)
    first = (folder / "spec.yaml").read_text()
    for more in ("manifest: gone.yaml\n", "arrays: {a: 5}\n"):
        (folder / "spec.yaml").write_text(first + more)
        result = run(*call)
        assert result.exit_code == 0, result.output
        assert "places every array" not in result.stderr


def test_arrays_of_a_spec_that_no_import_made_are_not_compared(folder: Path) -> None:
    text = f"shardspec: 1\nmesh: {{data: 4}}\narrays:\n  {ARRAYS}".replace("\nl", "\n  l")
    (folder / "spec.yaml").write_text(text)
    result = run("flax", "rules.py", "--mesh", "data=4 model=2", "-o", "spec.yaml", "--force")
    assert result.exit_code == 0, result.output
    assert "places every array" not in result.stderr


OURS = """\
decoder_block: llama2
base_emb_dim: 64
base_num_query_heads: 4
base_num_kv_heads: 4
base_mlp_dim: 128
base_num_decoder_layers: 2
head_dim: 16
vocab_size: 512
max_target_length: 32
per_device_batch_size: 1
mesh_axes: [fsdp]
ici_fsdp_parallelism: 4
logical_axis_rules:
  [[embed, [fsdp]], [embed_vocab, [fsdp]], [vocab, []], [mlp, []], [heads, []], [kv, []],
  [kv_heads, []]]
"""
NAMED = """\
token_embedder/embedding: f32[vocab=512 embed=64]
decoder/layers/attention/query/kernel: f32[embed=64 heads=4 kv=16]
decoder/layers/attention/key/kernel: f32[embed=64 kv_heads=4 kv=16]
decoder/layers/attention/value/kernel: f32[embed=64 kv_heads=4 kv=16]
decoder/layers/attention/out/kernel: f32[heads=4 kv=16 embed=64]
decoder/layers/mlp/wi/kernel: f32[embed=64 mlp=128]
decoder/layers/mlp/wo/kernel: f32[mlp=128 embed=64]
decoder/logits_dense/kernel: f32[embed=64 vocab=512]
"""


def test_a_second_import_of_maxtext_writes_the_same_step(folder: Path) -> None:
    (folder / "base.yml").write_text(OURS)
    (folder / "arrays.yaml").write_text(NAMED)
    call = ("maxtext", "base.yml", "-o", "spec.yaml")
    alone = run(*call)
    assert "writes `step:` with the names of your arrays" in alone.stderr
    assert "embed_vocab as embed" in (folder / "spec.yaml").read_text()
    run(*call, "--against", "arrays.yaml")
    first = (folder / "spec.yaml").read_text() + "\nmanifest: ./arrays.yaml\n"
    (folder / "spec.yaml").write_text(first)
    run(*call)
    second = (folder / "spec.yaml").read_text()
    assert "embed_vocab as" not in second
    assert "manifest: ./arrays.yaml\n" in second
    run(*call)
    assert (folder / "spec.yaml").read_text() == second
