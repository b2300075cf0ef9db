"""`shardspec verify --numbers`: exit codes, text and JSON, values and sizes of the user's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli

SPEC = """\
shardspec: 1
axes: {batch: 16384, embed: 2048, mlp: 8192, stages: 8}
targets:
  pod: {hardware: tpu v5e 4x4, mesh: {data: 8, tensor: 2}}
  flat: {hardware: tpu v5e 4x4, mesh: {data: rest}}
rules: [batch -> data, stages -> data, mlp -> tensor, embed -> none]
params: {up: embed mlp, down: mlp embed}
"""
STEP = """\
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P


def step(resolver):
    batch, embed, mlp = (resolver.size(each) for each in ("batch", "embed", "mlp"))
    tensor = "tensor" if "tensor" in resolver.mesh.axis_names else None

    def loss(params, x):
        out = jnp.tanh(x @ params["up"]) @ params["down"]
        out = out if tensor is None else jax.lax.psum(out, tensor)
        return jax.lax.WHAT(jnp.mean(out), "data")

    places = {"up": P(None, tensor), "down": P(tensor, None)}
    run = jax.shard_map(
        loss, mesh=resolver.mesh, in_specs=(places, P("data")), out_specs=P(), check_vma=False
    )
    f32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    return run, ({"up": f32(embed, mlp), "down": f32(mlp, embed)}, f32(batch, embed))


def values(params, x):
    return None and params, jnp.ones(x.shape)


def fewer(params, x):
    return (None,)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    sys.modules.pop("counted", None)
    Path("spec.yaml").write_text(SPEC)
    Path("counted.py").write_text(STEP.replace("WHAT", "pmean"))
    return tmp_path


def run(*words: str) -> Result:
    sys.modules.pop("counted", None)
    given = ("verify", "spec.yaml", "--step", "counted:step", "--numbers", *words)
    return CliRunner().invoke(cli, given)


def test_the_same(folder: Path) -> None:
    result = run("-t", "pod")
    assert result.exit_code == 0, result.output
    assert "the same: the output equals that of one device" in result.stdout
    assert "data=4 tensor=2" in result.stdout
    assert "8192 -> " in result.stdout


def test_another_number_exits_1_and_names_axis_line_and_ratio(folder: Path) -> None:
    Path("counted.py").write_text(STEP.replace("WHAT", "psum"))
    result = run("-t", "pod", "--format", "json")
    assert result.exit_code == 1, result.output
    (found,) = json.loads(result.stdout)["targets"]
    assert (found["verdict"], found["axes"]) == ("different", [["data"]])
    assert found["first"]["place"]["file"] == "counted.py"
    assert found["differences"][0]["ratio"] == pytest.approx(4, rel=1e-3)


def test_several_targets_and_a_file(folder: Path) -> None:
    result = run("-t", "pod", "-t", "flat", "-o", "numbers.txt")
    assert result.exit_code == 0, result.output
    text = Path("numbers.txt").read_text()
    assert "on pod" in text
    assert "on flat" in text


def test_values_of_the_user(folder: Path) -> None:
    assert run("-t", "pod", "--inputs", "counted:values").exit_code in (0, 2)
    result = run("-t", "pod", "--inputs", "counted:fewer")
    assert result.exit_code == 2
    assert "1 values for 3 arguments" in result.output


def test_a_size_may_stay(folder: Path) -> None:
    result = run("-t", "pod", "--keep-size", "batch")
    assert result.exit_code == 0, result.output
    assert "16384 ->" not in result.stdout
    assert run("-t", "pod", "--keep-size", "nothing").exit_code == 2


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("def step(resolver):", "def step(resolver):\n    raise OSError('no data')", "no data"),
        ('"data")', '"nothing")', "nothing"),
    ],
)
def test_what_cannot_be_traced_exits_2_with_a_line(
    folder: Path, old: str, new: str, told: str
) -> None:
    Path("counted.py").write_text(STEP.replace("WHAT", "pmean").replace(old, new, 1))
    result = run("-t", "pod")
    assert result.exit_code == 2
    assert told in result.output
    assert "counted.py:" in result.output
    assert "Traceback" not in result.output


def test_what_jax_refuses_is_no_fault_of_shardspec(folder: Path) -> None:
    """JAX removes its own frames from what it raises, and ours are the last that stay."""
    text = STEP.replace("WHAT", "pmean").replace("f32(batch, embed)", "f32(batch + 1, embed)")
    Path("counted.py").write_text(text)
    result = run("-t", "pod")
    assert result.exit_code == 2
    assert "not evenly divisible" in result.output
    assert "fault of shardspec" not in result.output


def test_one_slice_for_each_device_is_said(folder: Path) -> None:
    text = STEP.replace("WHAT", "pmean").replace('@ params["up"])', '@ params["up"][0])')
    text = text.replace('"up": P(None, tensor)', '"up": P("data", None, tensor)')
    text = text.replace('"up": f32(embed, mlp)', '"up": f32(8, embed, mlp)')
    Path("counted.py").write_text(text)
    Path("spec.yaml").write_text(SPEC.replace("up: embed mlp", "up: stages embed mlp"))
    result = run("-t", "pod")
    assert result.exit_code == 2, result.output
    assert "NOT COMPARED over `data`" in result.output
    assert "takes one slice for each device" in result.output


def test_what_cpus_cannot_run_exits_2(folder: Path) -> None:
    text = STEP.replace("WHAT", "pmean").replace(
        "out = jnp.tanh", "x = jax.ffi.ffi_call('not_there', x)(x)\n        out = jnp.tanh"
    )
    Path("counted.py").write_text(text)
    result = run("-t", "pod")
    assert result.exit_code == 2, result.output
    assert "does not run on one device" in result.output
    assert "Traceback" not in result.output


def test_numbers_needs_a_step(folder: Path) -> None:
    result = CliRunner().invoke(cli, ["verify", "spec.yaml", "--numbers"])
    assert result.exit_code == 2
    assert "name one: `--step train:step`" in result.output


def test_a_process_that_xla_ends_is_told_with_its_signal(folder: Path) -> None:
    Path("counted.py").write_text("import os\n\ndef step(resolver):\n    os.abort()\n")
    command = [sys.executable, "-m", "shardspec", "verify", "spec.yaml", "-t", "pod"]
    path = os.pathsep.join((str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")))
    made = subprocess.run(
        [*command, "--step", "counted:step", "--numbers"],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert made.returncode == 2
    assert "SIGABRT" in made.stderr
