from __future__ import annotations

import base64
import builtins
import json
import os
import shutil
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from flax import nnx

from shardspec.arrays import read_arrays
from shardspec.jax_backend.trees import params_of


def found_in(path: str) -> dict[str, str]:
    arrays, faults = read_arrays(path)
    assert faults == ()
    return {param.path: str(param) for param in arrays.params}


def live(tree: Any) -> dict[str, str]:
    return {param.path: str(param) for param in params_of(tree)}


def save(path: Path, tree: Any, **how: bool) -> str:
    with ocp.PyTreeCheckpointer(**how) as checkpointer:
        checkpointer.save(path, tree)
    return str(path)


@pytest.fixture(scope="module")
def tree() -> dict[str, Any]:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spec = jax.sharding.PartitionSpec("data", "model")
    sharding = jax.sharding.NamedSharding(mesh, spec)
    params = {
        "layers": [{"k": jax.device_put(jnp.zeros((16, 32), jnp.bfloat16), sharding)}, {}],
        "a.b": jnp.zeros((), bool),
        "np": np.zeros(3, np.int8),
    }
    opt = optax.adam(1e-3).init({"k": jnp.zeros(4)})
    return {"params": params, "opt": opt, "none": None, "step": jnp.int32(1)}


@pytest.fixture(scope="module", params=["ocdbt", "ocdbt-zarr3", "zarr", "zarr3"])
def saved(request: Any, tree: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    how = {"use_ocdbt": "ocdbt" in request.param, "use_zarr3": "zarr3" in request.param}
    return save(tmp_path_factory.mktemp("orbax") / "ckpt", tree, **how)


def test_every_way_to_save(saved: str, tree: Any) -> None:
    assert found_in(saved) == live(tree)


def test_the_layout_it_was_saved_in(saved: str) -> None:
    arrays, _ = read_arrays(saved)
    assert [(path, str(spec)) for path, spec in arrays.partitions] == [
        ("layers/0/k", "P('data', 'model')")
    ]


@pytest.mark.parametrize("how", ["linen", "nnx"])
def test_boxes_add_no_component(tmp_path: Path, how: str) -> None:
    if how == "nnx":
        model: Any = nnx.state(nnx.Linear(4, 8, rngs=nnx.Rngs(0)))
    else:
        init = nn.with_partitioning(nn.initializers.zeros_init(), ("embed", "mlp"))
        model = nn.Dense(8, kernel_init=init).init(jax.random.key(0), jnp.ones((1, 4)))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "ckpt", model)
    assert found_in(str(tmp_path / "ckpt")) == live(model)
    assert set(live(model)) == {"kernel", "bias"}


def test_names_with_slashes_and_none(tmp_path: Path) -> None:
    flat = {"a/b": jnp.zeros(2), "c.d": jnp.zeros(3), "value": jnp.zeros(1)}
    path = save(tmp_path / "ckpt", flat, use_ocdbt=False)
    assert found_in(path) == live(flat)


def test_the_newest_step_of_a_manager(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as manager:
        for step in (3, 10):
            state = ocp.args.StandardSave({"w": jnp.zeros(step)})
            items = ocp.args.Composite(state=state, meta=ocp.args.JsonSave({"a": 1}))
            manager.save(step, args=items)
    assert found_in(str(tmp_path)) == {"w": "f32[10]"}
    assert found_in(str(tmp_path / "3")) == {"w": "f32[3]"}


@pytest.mark.parametrize("ocdbt", [True, False])
def test_names_alone_where_there_is_no_tree(tmp_path: Path, ocdbt: bool) -> None:
    tree = {"target": {"mlp": {"kernel": jnp.zeros((2, 3))}}}
    path = save(tmp_path / "ckpt", tree, use_ocdbt=ocdbt)
    os.unlink(tmp_path / "ckpt" / "_METADATA")
    assert found_in(path) == {"target/mlp/kernel": "f32[2, 3]"}


def test_weights_are_not_needed(tmp_path: Path) -> None:
    path = save(tmp_path / "ckpt", {"w": jnp.zeros((64, 64))}, use_ocdbt=False)
    for chunk in (tmp_path / "ckpt" / "w").glob("[0-9]*"):
        chunk.write_bytes(b"")
    assert found_in(path) == {"w": "f32[64, 64]"}


def test_without_tensorstore(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "ckpt", {"w": jnp.zeros(2)}, use_ocdbt=True)
    own = builtins.__import__

    def without(name: str, *rest: Any) -> Any:
        if name == "tensorstore":
            raise ImportError(name)
        return own(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    _, (fault,) = read_arrays(path)
    assert "takes TensorStore to read" in fault.message
    assert "shardspec[orbax]" in (fault.help or "")


def leaf(*keys: Any, kind: Any = "jax.Array") -> dict[str, Any]:
    parts = [{"key": key, "key_type": 2} for key in keys]
    return {"key_metadata": parts, "value_metadata": {"value_type": kind}}


GOOD = '{"shape": [2], "dtype": "<f4", "zarr_format": 2}'


def checkpoint(folder: Path, tree: Any, **zarr: str) -> str:
    (folder / "_METADATA").write_text(tree if isinstance(tree, str) else json.dumps(tree))
    for name, text in zarr.items():
        (folder / name).mkdir()
        (folder / name / ".zarray").write_text(text)
    return str(folder)


def test_the_least_checkpoint(tmp_path: Path) -> None:
    path = checkpoint(tmp_path, {"tree_metadata": {"('w',)": leaf("w")}}, w=GOOD)
    assert found_in(path) == {"w": "f32[2]"}


@pytest.mark.parametrize(
    ("tree", "zarr", "message"),
    [
        ("", GOOD, "is not JSON"),
        ("[" * 100_000, GOOD, "nested too deep"),
        ("[]", GOOD, "holds no tree"),
        ({"tree_metadata": []}, GOOD, "holds no tree"),
        ({"tree_metadata": {"x": 5}}, GOOD, "has no keys for the leaf `x`"),
        ({"tree_metadata": {"x": leaf(5)}}, GOOD, "has no keys for the leaf `x`"),
        ({"tree_metadata": {"x": leaf("w", kind=[])}}, GOOD, "has no keys for the leaf `x`"),
        ({"tree_metadata": {"x": leaf("w"), "y": leaf("v")}}, GOOD, "names `v` in its tree"),
        ({"tree_metadata": {"x": leaf("v")}}, GOOD, "has a tree and no arrays"),
        ({"tree_metadata": {"x": leaf("../w")}}, GOOD, "leads out of the folder"),
        ({"tree_metadata": {"x": leaf("/w")}}, GOOD, "leads out of the folder"),
        ({"tree_metadata": {"x": leaf("w\0")}}, GOOD, "leads out of the folder"),
        ({"tree_metadata": {"x": leaf("w")}}, "{", "is not JSON"),
        ({"tree_metadata": {"x": leaf("w")}}, "[]", "has no shape of sizes"),
        ({"tree_metadata": {"x": leaf("w")}}, '{"shape": [-1]}', "has no shape of sizes"),
        ({"tree_metadata": {"x": leaf("w")}}, '{"shape": [1]}', "has no dtype"),
        ({"tree_metadata": {"x": leaf("w")}}, '{"shape": [1], "dtype": "|O"}', "dtype `|O`"),
        ({"tree_metadata": {"x": leaf("w"), "y": leaf("w")}}, GOOD, "have the path `w`"),
    ],
    ids=range(18),
)
def test_hostile_folders(tmp_path: Path, tree: Any, zarr: str, message: str) -> None:
    _, faults = read_arrays(checkpoint(tmp_path, tree, w=zarr))
    assert [message in fault.message for fault in faults] == [True]


@pytest.mark.parametrize("damage", [b"", b"\0" * 200, b"{}"])
def test_a_damaged_database(tmp_path: Path, damage: bytes) -> None:
    path = save(tmp_path / "ckpt", {"w": jnp.zeros(2)}, use_ocdbt=True)
    (tmp_path / "ckpt" / "manifest.ocdbt").write_bytes(damage)
    arrays, (fault,) = read_arrays(path)
    assert arrays.params == ()
    assert fault.code.name == "bad-checkpoint"


def test_a_database_without_its_data(tmp_path: Path) -> None:
    path = save(tmp_path / "ckpt", {"w": jnp.zeros(2)}, use_ocdbt=True)
    shutil.rmtree(tmp_path / "ckpt" / "ocdbt.process_0")
    shutil.rmtree(tmp_path / "ckpt" / "d")
    arrays, faults = read_arrays(path)
    assert arrays.params == ()
    assert [fault.code.name for fault in faults] == ["bad-checkpoint"]


@pytest.mark.parametrize(
    "entry",
    [
        *("", "{}", "[", '{"partition_spec": 5}', '{"partition_spec": ["a", "b", "c"]}'),
        *('{"partition_spec": [5]}', '{"partition_spec": [["a", 5]]}'),
    ],
)
def test_a_damaged_sharding_is_no_fault_of_the_arrays(tmp_path: Path, entry: str) -> None:
    key = base64.b64encode(b"w").decode()
    (tmp_path / "_sharding").write_text(json.dumps({key: entry}))
    path = checkpoint(tmp_path, {"tree_metadata": {"('w',)": leaf("w")}}, w=GOOD)
    arrays, faults = read_arrays(path)
    assert (len(arrays.params), arrays.partitions, faults) == (1, (), ())
