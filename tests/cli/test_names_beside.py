"""Names that `params_axes` of Linen keeps beside the arrays are written for steps without it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli

GIN = """
from t5x import partitioning

partitioning.PjitPartitioner:
  num_partitions = 4
  model_parallel_submesh = None
  logical_axis_rules = @partitioning.standard_logical_axis_rules()

partitioning.standard_logical_axis_rules:
  activation_partitioning_dims = 1
  parameter_partitioning_dims = 2
"""
MODEL = """
import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.linen.partitioning import param_with_axes
from flax.training.train_state import TrainState


class Block(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.initializers.normal()
        wi = param_with_axes("wi", init, (512, 2048), axes=("embed", "mlp"))
        wo = param_with_axes("wo", init, (2048, 512), axes=("mlp", "embed"))
        return x + nn.gelu(x @ wi) @ wo


class Model(nn.Module):
    @nn.compact
    def __call__(self, x):
        for at in range(3):
            x = Block(name=f"layers_{at}")(x)
        boxed = nn.with_partitioning(nn.initializers.ones, ("embed", "vocab"))
        return nn.Dense(1024, use_bias=False, kernel_init=boxed, name="head")(x)


def arrays():
    return Model().init(jax.random.key(0), jnp.ones((2, 512)))


def step(resolver):
    made = lambda: TrainState.create(  # noqa: E731
        apply_fn=Model().apply, params=nn.unbox(arrays())["params"], tx=optax.sgd(1.0)
    )

    def train(state, x):
        loss = lambda params: state.apply_fn({"params": params}, x).sum()  # noqa: E731
        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    return train, (jax.eval_shape(made), jax.ShapeDtypeStruct((64, 512), "float32"))
"""
HEAD = "  head/kernel: embed vocab\n"
LINES = "  layers_*/wi: embed mlp\n  layers_*/wo: mlp embed\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "base.gin").write_text(GIN)
    (tmp_path / "beside_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, [*arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def imported(*more: str) -> Result:
    return run("import", "t5x-gin", "base.gin", "--hardware", "tpu v4 4x4x4", *more)


def cost() -> str:
    return run("cost", "spec.yaml", "--step", "beside_model:step", "--basis", "model").output


def test_import_writes_them_and_proves_these_lines() -> None:
    done = imported("--against", "beside_model:arrays", "-o", "spec.yaml")
    assert done.exit_code == 0, done.output
    assert "the spec places every array as T5X does" in done.output
    text = Path("spec.yaml").read_text()
    why = "as the names beside the arrays of beside_model:arrays say"
    assert f"params:  # {why}\n{LINES}\n" in text
    assert "head" not in text  # whose box travels with it
    Path("spec.yaml").write_text(text.replace(LINES, HEAD + LINES))
    assert "SHD205" not in cost()
    assert run("check", "spec.yaml", "--arrays", "beside_model:arrays").exit_code == 0


def test_a_spec_without_them_says_what_writes_them() -> None:
    imported("-o", "spec.yaml")
    found = cost()
    assert "error[SHD205]: nothing names the dimensions of 6 arrays" in found
    assert "add a line for each kind to `params`" in found
    assert "`shardspec import ... --against MODULE:FUNCTION` write such lines" in found
    assert "like=" not in found


def test_init_writes_them() -> None:
    options = ("--hardware", "tpu v4 4x4x4", "-o", "spec.yaml")
    done = run("init", "--arrays", "beside_model:arrays", *options)
    assert done.exit_code == 0, done.output
    text = Path("spec.yaml").read_text()
    assert "  layers_*/wi: embed mlp  # the names beside the arrays; 3 arrays\n" in text
    assert "head/kernel: f32[embed=512, vocab=1024]\n" in text
    assert "layers_{0..2}/wi: f32[512, 2048]\n" in text
    assert run("check", "spec.yaml").exit_code == 0
    Path("spec.yaml").write_text(text.replace("params:\n", f"params:\n{HEAD}"))
    assert "SHD205" not in cost()
