"""`shardspec import layout`: a function on the command line, run for devices that are not here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shardspec.cli.main import cli

CODE = """
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

print("said by the code")
def layout():
    mesh = jax.make_mesh((4, 2), ("fsdp", "tp"))
    def put(shape, *spec):
        return jax.device_put(jnp.zeros(shape), NamedSharding(mesh, P(*spec)))
    layer = {"wi": put((64, 256), "fsdp", "tp"), "wo": put((256, 64), "tp", "fsdp")}
    return {f"layers_{n}": {"mlp": layer} for n in range(100)} | {"embed": put((512, 64), "tp")}
def pairs(mesh):
    return {"w": (jnp.ones((8, 8)), P("tp")), "v": jnp.ones(3)}
def many():
    return {"w": (jnp.ones(8), NamedSharding(jax.make_mesh((64,), ("fsdp",)), P("fsdp")))}
def largest():
    mesh = jax.make_mesh((8,), ("fsdp",))
    def put(shape, *spec):
        return jax.device_put(jnp.zeros(shape), NamedSharding(mesh, P(*spec)))
    attention = {"query": {"kernel": put((1024, 8, 64), "fsdp")}}
    mlp = {"wi": {"kernel": put((1024, 4096), None, "fsdp")}}
    return {"embedding": put((32768, 1024), "fsdp"), "attention": attention, "mlp": mlp}, mesh
def fails():
    raise RuntimeError("it does not work")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_tree.py").write_text(CODE)
    yield tmp_path
    sys.modules.pop("own_tree", None)


def run(*arguments: str) -> Result:
    result = CliRunner().invoke(cli, ["import", "layout", *arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def test_all_arrays_in_one_command_without_devices() -> None:
    result = run("own_tree:layout", "--hardware", "tpu v5e 2x4", "-o", "spec.yaml")
    assert result.exit_code == 0, result.stderr
    assert "own_tree:layout: importing it, which runs its code" in result.stderr
    assert "201 arrays of own_tree:layout on fsdp=4 tp=2: the spec places every" in result.stderr
    text = Path("spec.yaml").read_text()
    assert "hardware: tpu v5e 2x4" in text
    assert "- embed -> fsdp" in text
    assert "- mlp -> tp" in text
    for arguments in (
        ["check", "spec.yaml"],
        ["check", "spec.yaml", "--arrays", "own_tree:layout"],
    ):
        checked = CliRunner().invoke(cli, arguments)
        assert checked.exit_code == 0, checked.output


def test_a_dimension_that_is_whole_because_another_is_sharded_is_no_finding_of_check() -> None:
    result = run("own_tree:largest", "--hardware", "tpu v6e 2x4", "-o", "spec.yaml")
    assert "3 arrays of own_tree:largest on fsdp=8: the spec places every array" in result.stderr
    assert "- embed -> fsdp | none" in Path("spec.yaml").read_text()
    checked = CliRunner().invoke(cli, ["check", "spec.yaml"])
    assert checked.stdout.startswith("No findings in 1 file"), checked.stdout


def test_the_order_of_devices_is_that_of_the_mesh_of_the_tree() -> None:
    run("own_tree:largest", "--hardware", "tpu v6e 2x4", "-o", "spec.yaml")
    assert "mesh: {fsdp: 8}\ndevices: 0 1 2 3 7 6 5 4\n" in Path("spec.yaml").read_text()
    run("own_tree:largest", "--hardware", "1 * h100", "-o", "other.yaml")
    assert "devices:" not in Path("other.yaml").read_text()  # the order is that of a spec


def test_arrays_without_a_layout_are_said() -> None:
    result = run("own_tree:pairs", "--mesh", "tp=2")
    assert result.exit_code == 1
    assert "SHD608" in result.stderr
    assert "2 arrays of own_tree:pairs on tp=2: 1 not compared with own_tree:pairs" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("own_tree:many",), "--mesh 'fsdp=4 tp=2', or --hardware 'tpu v5e 4x4', says which"),
        (("own_tree:pairs",), "takes `mesh`, and no mesh is given"),
        (("own_tree:fails", "--mesh", "tp=2"), "raised RuntimeError: it does not work"),
        (("own_tree:none",), "`own_tree` has no `none`"),
        (("own_tree.py",), "is not PACKAGE.MODULE:FUNCTION"),
        (("own_tree:pairs", "own_tree:layout"), "`layout` takes one name"),
        (("own_tree:pairs", "--against", "own_tree:pairs"), "--against means nothing"),
        (("own_tree:pairs", "--mesh", "tp=rest"), "`tp: rest` needs hardware"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_said(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert result.stdout == ""


def test_help_says_which_format_runs_code() -> None:
    text = " ".join(CliRunner().invoke(cli, ["import", "--help"]).output.split())
    assert "Nothing in the files is run." not in text
    assert (
        "`layout` takes PACKAGE.MODULE:FUNCTION in place of files, and imports and calls it" in text
    )


STEP = """
import jax
import jax.numpy as jnp
import shardspec
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

SHAPES = {"up": jax.ShapeDtypeStruct((512, 2048), "float32")}
def placed():
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
    return mesh, {"up": NamedSharding(mesh, P(None, "fsdp"))}
def layout():
    mesh, places = placed()
    return SHAPES, places, mesh
def step(resolver):
    mesh, places = placed()
    def loss(p, x):
        return shardspec.constrain(x @ p["up"], "batch mlp").sum()
    step = jax.jit(jax.grad(loss), in_shardings=(places, NamedSharding(mesh, P("fsdp"))))
    return step, (SHAPES, jax.ShapeDtypeStruct((64, 512), "float32"))
"""


def test_a_step_with_a_mesh_of_its_own_takes_constraints_by_the_spec_of_its_layout(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(folder)
    (folder / "own_mesh.py").write_text(STEP)
    run("own_mesh:layout", "--hardware", "tpu v6e 2x4", "-o", "spec.yaml")
    text = Path("spec.yaml").read_text().replace("rules:\n", "rules:\n  - batch -> fsdp\n")
    cost = ("cost", "spec.yaml", "--step", "own_mesh:step", "--basis", "model")
    Path("spec.yaml").write_text(text)
    assert CliRunner().invoke(cli, cost).exit_code == 0
    Path("spec.yaml").write_text(text.replace("devices: ", "# devices: "))
    told = CliRunner().invoke(cli, cost)
    assert told.exit_code == 2
    assert "`own_mesh:step` has meshes with their devices in different orders" in told.stderr
    assert "make the mesh by `resolver.mesh`" in told.stderr
