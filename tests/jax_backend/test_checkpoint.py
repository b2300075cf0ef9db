from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import shardspec
from shardspec.diagnostics import ShardspecError
from shardspec.jax_backend import live
from shardspec.jax_backend.resolver import Resolver
from tests.jax_backend.many import run

optax = pytest.importorskip("optax")
ocp = pytest.importorskip("orbax.checkpoint")

RULES = """\
rules:
  - batch -> data
  - mlp -> model
  - embed -> data
params:
  "**/wi": embed mlp
  "**/wo": mlp embed
  "**/scale": embed
"""


def resolver(mesh: str = "{data: 4, model: 2}", rules: str = RULES) -> Resolver:
    return Resolver(shardspec.loads(f"shardspec: 1\nmesh: {mesh}\n{rules}", "spec.yaml"))


def weights(layers: int = 2, mlp: int = 32) -> dict[str, Any]:
    """Return arrays in which no two elements are the same."""

    def array(start: int, *sizes: int) -> np.ndarray[Any, Any]:
        return np.arange(start, start + np.prod(sizes), dtype=np.float32).reshape(sizes)

    return {
        f"layer_{n}": {
            "wi": array(n * 10_000, 16, mlp),
            "wo": array(n * 10_000 + 4000, mlp, 16),
            "scale": array(n * 10_000 + 8000, 16),
        }
        for n in range(layers)
    }


def save(path: Path, tree: Any) -> Path:
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, tree)
    return path


# abstract


def test_abstract_has_shapes_dtypes_and_shardings() -> None:
    tree = {
        "a": {"wi": np.ones((16, 32)), "wo": jnp.ones((32, 16), jnp.bfloat16)},
        "n": 3,
        "f": len,
    }
    made = resolver().abstract(tree)
    assert jax.tree.structure(made) == jax.tree.structure(tree)
    assert (made["n"], made["f"]) == (3, len)
    wi, wo = made["a"]["wi"], made["a"]["wo"]
    assert (wi.shape, wi.dtype, wi.sharding.spec) == ((16, 32), jnp.float32, P("data", "model"))
    assert (wo.dtype, wo.sharding.spec) == (jnp.bfloat16, P("model", "data"))


def test_abstract_serves_jit() -> None:
    found = resolver()
    made = found.abstract(weights())
    compiled = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree)).lower(made).compile()
    result = compiled(found.put(weights()))
    assert result["layer_0"]["wi"].sharding.spec == P("data", "model")


def test_abstract_of_weak_types_and_keys() -> None:
    tree = {"x": jnp.asarray(2.0), "key": jax.random.key(0)}
    made = resolver().abstract(tree)
    assert made["x"].weak_type
    assert made["key"].dtype == tree["key"].dtype


# restore

SAVED_ON = "{data: 4, model: 2}"
OTHERS = ["{data: 2, model: 4}", "{model: 8}", "{data: 4 explicit, model: 2}", SAVED_ON]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint of parameters and Adam's state, saved from the mesh `SAVED_ON`."""
    found = resolver(SAVED_ON)
    params = found.put(weights())
    return save(tmp_path_factory.mktemp("checkpoint") / "both", state_of(found, params))


def state_of(found: Resolver, params: Any) -> dict[str, Any]:
    tx = optax.adam(1e-3)
    places = found.state_shardings(jax.eval_shape(tx.init, params), params)
    opt_state = jax.jit(tx.init, out_shardings=places)(params)
    _, opt_state = jax.jit(tx.update, out_shardings=(None, places))(params, opt_state, params)
    return {"params": params, "opt_state": opt_state}


@pytest.mark.parametrize("mesh", OTHERS)
def test_restore_onto_another_mesh(saved: Path, mesh: str) -> None:
    found = resolver(mesh, RULES if "data" in mesh else RULES.replace("data", "model"))
    expected = state_of(resolver(SAVED_ON), resolver(SAVED_ON).put(weights()))
    tree = jax.eval_shape(lambda: expected)
    restored = found.restore(saved, tree)
    assert jax.tree.structure(restored) == jax.tree.structure(expected)
    wanted = found.abstract(tree)

    def same(array: Any, reference: Any, struct: Any) -> None:
        np.testing.assert_array_equal(array, reference)
        assert array.dtype == struct.dtype
        assert array.sharding == struct.sharding
        assert array.sharding.mesh.axis_types == found.mesh.axis_types
        assert {shard.device for shard in array.addressable_shards} == set(found.mesh.devices.flat)

    jax.tree.map(same, restored, expected, wanted)
    wi = restored["params"]["layer_0"]["wi"]
    assert wi.addressable_shards[0].data.size < wi.size
    assert restored["opt_state"][0].mu["layer_0"]["wi"].sharding == wi.sharding
    if "explicit" in mesh:
        assert jax.typeof(wi).sharding.spec == P("data", None)


def test_restore_state_alone(tmp_path: Path) -> None:
    found = resolver()
    params = found.put(weights())
    state = state_of(found, params)["opt_state"]
    path = save(tmp_path / "state", state)
    other = resolver("{data: 2, model: 4}")
    restored = other.restore(path, state, params)
    assert restored[0].count == 1
    assert restored[0].mu["layer_0"]["wi"].sharding == other.shardings(params)["layer_0"]["wi"]


def test_restore_from_a_relative_path(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved.parent)
    found = resolver()
    state = state_of(found, found.put(weights()))
    assert found.checkpoint_findings("both", state) == ()
    assert found.restore("both", state)["opt_state"][0].count == 1


def test_numbers_keys_and_boxes(tmp_path: Path) -> None:
    linen = pytest.importorskip("flax.linen")
    nnx = pytest.importorskip("flax.nnx")
    box = linen.LogicallyPartitioned(jnp.ones((16, 32)), ("embed", "mlp"))
    model = nnx.Linear(16, 8, rngs=nnx.Rngs(0))
    tree = {
        "box": box,
        "nnx": nnx.state(model),
        "key": jax.random.key(7),
        "list": [jnp.arange(16, dtype=jnp.int32), 2, None],
    }
    rules = (
        "rules: [embed -> data, mlp -> model]\n"
        'params: {"list/0": embed, "**/kernel": embed _, "**/bias": _}\n'
    )
    path = save(tmp_path / "tree", tree)
    found = resolver("{data: 2, model: 4}", rules)
    assert found.checkpoint_findings(path, tree) == ()
    restored = found.restore(path, tree)
    assert jax.tree.structure(restored) == jax.tree.structure(tree)
    assert restored["box"].value.sharding.spec == P("data", "model")
    assert restored["nnx"]["kernel"].get_value().sharding.spec == P("data", None)
    assert restored["list"][1] == 2
    assert jnp.array_equal(jax.random.key_data(restored["key"]), jax.random.key_data(tree["key"]))


def test_processes_restore_what_one_process_saved(tmp_path: Path) -> None:
    program = f"""
import numpy as np
import orbax.checkpoint as ocp
import shardspec

def resolver(mesh):
    text = "shardspec: 1\\nmesh: " + mesh + "\\n" + {RULES!r}
    return shardspec.Resolver(shardspec.loads(text))

whole = {{"a": {{"wi": np.arange(512, dtype=np.float32).reshape(16, 32)}}}}
path = arguments[0]
params = resolver("{{data: 2, model: 4}}").put(whole)
with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(path, params)
found = resolver("{{data: 4, model: 2}}").restore(path, whole)["a"]["wi"]
for shard in found.addressable_shards:
    np.testing.assert_array_equal(shard.data, whole["a"]["wi"][shard.index])
try:
    resolver("{{data: 8, model: 1}}").restore(path, {{"b": whole["a"]}})
except shardspec.ShardspecError as error:
    report([[str(each) for each in found.sharding.spec], error.diagnostics[0].code.id])
"""
    path = tmp_path / "two"
    assert run(program, 2, str(path)) == [[["data", "model"], "SHD903"]] * 2
    whole = {"a": {"wi": np.arange(512, dtype=np.float32).reshape(16, 32)}}
    restored = resolver("{data: 8, model: 1}", RULES).restore(path, whole)
    np.testing.assert_array_equal(restored["a"]["wi"], whole["a"]["wi"])


# what does not fit


def refusal(
    found: Resolver, path: Path, tree: Any, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, tuple[str, ...], str | None]:
    """Return message, notes and help of the one finding, and check that nothing was read."""

    def read(*_: Any) -> None:
        raise AssertionError("an array was read")

    monkeypatch.setattr("shardspec.jax_backend.live.restored", read)
    with pytest.raises(ShardspecError) as error:
        found.restore(path, tree)
    (finding,) = error.value.diagnostics
    assert finding.code.id == "SHD903"
    assert found.checkpoint_findings(path, tree) == (finding,)
    return finding.message, finding.notes, finding.help


def test_everything_that_differs_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path / "old", weights(3))
    tree = weights(5, mlp=64)
    tree["layer_2"]["wi"] = tree["layer_2"]["wi"].astype(np.float16)
    for layer in ("layer_0", "layer_1"):
        tree[layer]["more"] = {"scale": tree[layer].pop("scale")}
    message, notes, help = refusal(resolver(), path, tree, monkeypatch)
    assert message == (
        f"the checkpoint `{path}` does not hold the tree:"
        " 8 arrays missing, 2 arrays extra, 6 arrays of another shape or dtype"
    )
    assert notes == (
        "missing: `layer_{0,1}/more/scale` f32[16]",
        "missing: `layer_{3,4}/scale` f32[16]",
        "missing: `layer_{3,4}/wi` f32[16, 64]",
        "missing: `layer_{3,4}/wo` f32[64, 16]",
        "extra: `layer_{0,1}/scale` f32[16]",
        "`layer_{0,1}/wi` f32[16, 32] there, f32[16, 64] in the tree",
        "`layer_{0..2}/wo` f32[32, 16] there, f32[64, 16] in the tree",
        "`layer_2/wi` f32[16, 32] there, f16[16, 64] in the tree",
    )
    assert help == "restore into a tree of what was saved, and make the rest by `init`"


def test_what_would_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def help_for(name: str, saved: Any, tree: Any) -> str | None:
        return refusal(resolver(), save(tmp_path / name, saved), tree, monkeypatch)[2]

    whole, cast = weights(), jax.tree.map(lambda x: x.astype(jnp.bfloat16), weights())
    assert help_for("extra", weights(3), whole) == (
        "restore into a tree that has these too, and drop them after"
    )
    assert help_for("shape", weights(mlp=64), whole) == (
        "make the model with the sizes that it was saved with"
    )
    assert help_for("dtype", whole, cast) == (
        "make the tree with the dtypes that were saved, and cast after restoring"
    )
    assert help_for("below", {"params": whole}, whole) == (
        "the checkpoint has the tree below `params`: restore {'params': tree}"
    )
    assert help_for("beside", {"params": whole, "step": 3}, whole) == (
        "the checkpoint has the tree below `params`: restore {'params': tree},"
        " with the rest of what was saved"
    )
    assert help_for("above", whole, {"model": whole}) == (
        "the checkpoint is what the tree has below `model`: restore tree['model']"
    )
    boxes = pytest.importorskip("flax.linen").LogicallyPartitioned
    boxed = {"wi": boxes(jnp.ones((16, 32)), ("embed", "mlp"))}
    assert help_for("unboxed", {"wi": jnp.ones((16, 32))}, boxed) == (
        "the tree is boxed by Flax, what was saved is not: `restore(..., boxed=False)`"
    )
    assert help_for("boxed", boxed, {"wi": jnp.ones((16, 32))}) == (
        "one of the two is boxed by Flax and the other is not: restore into the same"
    )


def test_a_level_of_the_spec_counts(tmp_path: Path) -> None:
    path = save(tmp_path / "f32", weights())
    rules = RULES + "lints: {checkpoint-differs: allow}\n"
    tree = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.bfloat16), weights())
    restored = resolver(rules=rules).restore(path, tree)
    assert restored["layer_0"]["wi"].dtype == jnp.bfloat16


def test_many_differences_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "one", {"wi": np.ones((16, 32), np.float32)})
    tree = {letter: {"wi": np.ones((16, 32), np.float32)} for letter in "abcdefghijklmn"}
    _, notes, _ = refusal(resolver(), path, tree, monkeypatch)
    assert len(notes) == 10
    assert notes[8:] == ("and 6 more like these", "extra: `wi` f32[16, 32]")


def test_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(ShardspecError, match="holds no arrays that Orbax saved") as error:
        resolver().restore(tmp_path / "nothing", weights())
    assert error.value.diagnostics[0].code.id == "SHD015"
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(3, args=ocp.args.StandardSave(weights()))
    with pytest.raises(ShardspecError, match=r"name the item: `.*/run/3/default`"):
        resolver().restore(tmp_path / "run" / "3", weights())
    restored = resolver().restore(tmp_path / "run" / "3" / "default", weights())
    assert restored["layer_0"]["wi"].sharding.spec == P("data", "model")


def test_with_a_manager(tmp_path: Path) -> None:
    found = resolver()
    with ocp.CheckpointManager(tmp_path / "run") as manager:
        manager.save(3, args=ocp.args.StandardSave(found.put(weights())))
        manager.wait_until_finished()
        other = resolver("{data: 2, model: 4}")
        wanted = other.abstract(weights())
        restored = manager.restore(3, args=ocp.args.StandardRestore(wanted))
    assert restored["layer_0"]["wi"].sharding == wanted["layer_0"]["wi"].sharding


def test_without_orbax(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'shardspec\[orbax\]'"):
        resolver().restore(tmp_path, weights())
    assert resolver().abstract(weights())["layer_0"]["wi"].shape == (16, 32)
    with pytest.raises(ModuleNotFoundError, match="orbax"):
        live.difference(tmp_path, {})


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "checkpoints.md"
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    program = next(body for language, body in blocks if language == "python")
    printed = next(body for language, body in blocks if language == "text")
    exec(compile(program, str(page), "exec"), {})
    assert capsys.readouterr().out == printed
