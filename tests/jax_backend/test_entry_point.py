from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec.cli.main import cli
from shardspec.jax_backend.entry_point import call_entry_point

MODULE = """
import flax.linen as nn
import jax
import jax.numpy as jnp
from flax import nnx

print("a word at import")


def linen():
    init = nn.with_partitioning(nn.initializers.zeros_init(), ("embed", "mlp"))
    return nn.Dense(128, kernel_init=init).init(jax.random.key(0), jnp.ones((1, 64)))


def module():
    return nnx.Linear(64, 128, rngs=nnx.Rngs(0))


def structs():
    return {"a": {"k": jax.ShapeDtypeStruct((4, 8), jnp.bfloat16)}}


class Model:
    tree = structs()


def huge():
    return {"k": jnp.zeros((1 << 20, 1 << 20))}


def wrong():
    return inner()


def inner():
    return jnp.ones((2, 3)) @ jnp.ones((4, 5))


def needs(rng):
    return rng


def leaves():
    raise SystemExit(3)


def empty():
    return {}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_model.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "broken_model.py").write_text("x = (\n", encoding="utf-8")
    (tmp_path / "needy_model.py").write_text("import not_there_at_all\n", encoding="utf-8")
    before = list(sys.path)
    yield tmp_path
    assert sys.path == before
    for name in ("own_model", "broken_model", "needy_model"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        ("linen", {"kernel": "f32[64, 128]", "bias": "f32[128]"}),
        ("module", {"kernel": "f32[64, 128]", "bias": "f32[128]"}),
        ("structs", {"a/k": "bf16[4, 8]"}),
        ("Model.tree", {"a/k": "bf16[4, 8]"}),
        ("huge", {"k": f"f32[{1 << 20}, {1 << 20}]"}),
    ],
)
def test_arrays_of_a_function(route: str, expected: dict[str, str]) -> None:
    params, faults = call_entry_point(f"own_model:{route}")
    assert faults == ()
    assert {param.path: str(param) for param in params} == expected


def test_the_current_folder_comes_before_any_other(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "own_model.py").write_text("def structs():\n    return {}\n", encoding="utf-8")
    with monkeypatch.context() as paths:
        paths.syspath_prepend(other)
        params, faults = call_entry_point("own_model:structs")
    assert faults == ()
    assert [param.path for param in params] == ["a/k"]


def test_the_names_that_boxes_carry_are_kept() -> None:
    params, _ = call_entry_point("own_model:linen")
    assert {param.path: param.logical_axes for param in params} == {
        "kernel": ("embed", "mlp"),
        "bias": None,
    }


@pytest.mark.parametrize(
    ("name", "message", "shown"),
    [
        ("own_model:wrong", "raised TypeError: dot_general", "return jnp.ones((2, 3)) @"),
        ("own_model:needs", "missing 1 required positional argument", None),
        ("own_model:leaves", "raised SystemExit: 3", "raise SystemExit(3)"),
        ("own_model:empty", "gives no arrays", None),
        ("own_model:lnien", "`own_model` has no `lnien`", None),
        ("own_model:Model.tre", "`own_model.Model` has no `tre`", None),
        ("broken_model:x", "raised SyntaxError", "x = ("),
        ("needy_model:x", "No module named 'not_there_at_all'", "import not_there_at_all"),
        ("no_such_model.at_all:x", "there is no module `no_such_model`", None),
    ],
)
def test_faults_point_at_the_users_own_line(name: str, message: str, shown: str | None) -> None:
    params, (fault,) = call_entry_point(name)
    assert params == ()
    assert message in fault.message
    assert "\n" not in fault.message
    if shown is None:
        assert fault.labels == ()
        assert fault.help
    else:
        assert fault.primary is not None
        assert fault.primary.span.text.startswith(shown)


SPEC = "mesh: {t: 4}\nrules: [mlp -> t, embed -> none]\nparams: {bias: mlp}\n"


def test_the_command_line_says_that_it_imports(folder: Path) -> None:
    (folder / "spec.yaml").write_text(SPEC, encoding="utf-8")
    result = CliRunner().invoke(cli, ["compile", "spec.yaml", "--arrays", "own_model:linen"])
    assert result.exit_code == 0
    assert "own_model:linen: importing it, which runs its code" in result.stderr
    assert "a word at import" in result.stderr
    assert "a word at import" not in result.stdout
    assert "kernel  f32[64, 128]" in result.stdout


def test_faults_end_with_2_and_no_output(folder: Path) -> None:
    (folder / "spec.yaml").write_text(SPEC, encoding="utf-8")
    result = CliRunner().invoke(cli, ["compile", "spec.yaml", "--arrays", "own_model:wrong"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--> own_model.py:" in result.stderr


REFUSED = """
import jax
import jax.numpy as jnp
import shardspec


def helper(x):
    return shardspec.constrain(x, "batch embed")


def train(x):
    return helper(x[:1])


def step(resolver):
    return train, (jax.ShapeDtypeStruct((64, 8), jnp.float32),)
"""
REFUSING = """
shardspec: 1
hardware: tpu v5e 2x4
mesh: {fsdp: 8}
rules: [batch -> fsdp, embed -> none]
"""


def test_a_refusal_of_a_step_points_at_the_line_and_its_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "refused.py").write_text(REFUSED)
    (tmp_path / "spec.yaml").write_text(REFUSING)
    result = CliRunner().invoke(cli, ["cost", "spec.yaml", "--step", "refused:step", "-q"])
    assert "`batch` = 1 does not divide over `fsdp` = 8" in result.stderr
    assert "--> spec.yaml:5:" in result.stderr
    assert "refused.py:8:5" in result.stderr
    assert "------- raised here" in result.stderr
    assert "------- called here" in result.stderr
