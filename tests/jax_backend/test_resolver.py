from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from flax import linen as nn
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from shardspec.diagnostics import Severity, ShardspecError
from shardspec.ir.spec import LogicalAxis, Override, Pattern
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.trees import params_of
from tests.jax_backend.specs import make_spec


def shape(*sizes: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, jnp.float32)


def boxed(names: tuple[str | None, ...], *sizes: int) -> nn.LogicallyPartitioned:
    return nn.LogicallyPartitioned(shape(*sizes), names)


def codes(error: pytest.ExceptionInfo[ShardspecError]) -> list[str]:
    return [diagnostic.code.id for diagnostic in error.value.diagnostics if diagnostic.is_error]


def test_mesh_and_target() -> None:
    found = Resolver(make_spec())
    assert found.target.name == "here"
    assert dict(found.mesh.shape) == {"data": 2, "model": 4}
    assert set(found.mesh.axis_types) == {jax.sharding.AxisType.Auto}
    assert repr(found) == "Resolver(spec.yaml, target here: data=2 model=4)"


def test_target_by_name_and_unknown_target() -> None:
    assert Resolver(make_spec(), target="here").target.name == "here"
    with pytest.raises(ShardspecError, match="did you mean `here`"):
        Resolver(make_spec(), target="hera")


def test_devices_that_fit_no_target() -> None:
    with pytest.raises(ShardspecError, match="no target fits"):
        Resolver(make_spec(mesh={"data": 3}))
    with pytest.raises(ShardspecError, match="has no target"):
        Resolver(make_spec(mesh={}).__class__(make_spec().source))


def test_some_of_the_devices() -> None:
    found = Resolver(make_spec(mesh={"data": 2, "model": 2}), devices=jax.devices()[:4])
    assert found.mesh.devices.size == 4


def test_a_rule_with_an_unknown_mesh_axis_is_an_error_at_once() -> None:
    with pytest.raises(ShardspecError) as error:
        Resolver(make_spec([("embed", "modle")]))
    assert codes(error) == ["SHD201"]


def test_what_is_no_spec_is_refused() -> None:
    with pytest.raises(TypeError, match=r"what `shardspec\.load` returns; this is `int`"):
        Resolver(3)  # type: ignore[arg-type]
    with pytest.raises(ShardspecError, match=r"this is its text\n.*shardspec\.loads\(text\)"):
        Resolver("shardspec: 1\nmesh: {data: 8}\n")


def test_a_lone_array_has_no_path_and_is_called_the_array() -> None:
    lone = jax.ShapeDtypeStruct((), "float32")
    with pytest.raises(ShardspecError, match="the array is a ShapeDtypeStruct, which has no val"):
        Resolver(make_spec()).put(lone)
    with pytest.raises(ShardspecError, match="the array is a ShapeDtypeStruct without a sharding"):
        Resolver(make_spec()).verify_placement(lone)


def test_a_missing_file() -> None:
    with pytest.raises(ShardspecError):
        Resolver(Path("no") / "such.yaml")


def test_specs_are_of_full_rank() -> None:
    found = Resolver(make_spec())
    assert found.partition_spec("batch length embed") == P("data", None, None)
    assert found.partition_spec("vocab embed") == P("model", "data")
    assert found.partition_spec("batch, length, heads, kv") == P("data", None, "model", None)
    assert found.partition_spec(("embed", None)) == P("data", None)
    assert found.partition_spec("_ _") == P(None, None)
    assert found.partition_spec("") == P()


def test_several_mesh_axes_on_one_dimension_are_a_tuple() -> None:
    found = Resolver(make_spec([("batch", ("data", "model"))]))
    assert found.partition_spec("batch _") == P(("data", "model"), None)


def test_one_object_for_one_spec() -> None:
    found = Resolver(make_spec())
    tree = {f"l{n}": {"a": boxed(("embed", "mlp"), 4 * n + 4, 8)} for n in range(5)}
    flat = jax.tree.leaves(found.shardings(tree))
    assert len(flat) == 5
    assert {id(sharding) for sharding in flat} == {id(found.sharding("embed mlp"))}


def test_shardings_have_the_structure_of_the_tree() -> None:
    found = Resolver(make_spec(params={"a/**": "embed"}))
    tree = {"a": [shape(4), None, (shape(6),)], "b": boxed(("embed", "mlp"), 4, 8), "c": 1.0}
    shardings = found.shardings(tree)
    assert jax.tree.structure(shardings) == jax.tree.structure(tree)
    assert shardings["a"][0] == NamedSharding(found.mesh, P("data"))
    assert shardings["b"].value.spec == P("data", "model")
    assert shardings["c"].spec == P()
    unboxed = found.shardings(tree, boxed=False)
    assert unboxed["b"] == shardings["b"].value
    assert jax.tree.structure(unboxed) == jax.tree.structure(nn.unbox(tree))


def test_boxes_that_hold_trees_or_boxes() -> None:
    found = Resolver(make_spec())
    tree = {"a": nn.LogicallyPartitioned({"x": shape(4), "y": shape(8)}, ("embed",))}
    shardings = found.shardings(tree)
    assert jax.tree.structure(shardings) == jax.tree.structure(tree)
    assert [s.spec for s in jax.tree.leaves(shardings)] == [P("data"), P("data")]
    assert found.shardings(tree, boxed=False)["a"].keys() == {"x", "y"}


def test_boxes_with_their_own_rules_keep_them() -> None:
    found = Resolver(make_spec())
    rules = (("embed", "x"),)
    tree = {
        "a": nn.LogicallyPartitioned(shape(4), ("embed",), rules=rules),
        "b": nn.LogicallyPartitioned(shape(4), ("embed",), rules=[["embed", "y"]]),
        "c": nn.Partitioned(shape(4), ("embed",)),
    }
    shardings = found.shardings(tree)
    assert jax.tree.structure(shardings) == jax.tree.structure(tree)


def test_nnx_state_keeps_variables_and_does_not_share_them() -> None:
    found = Resolver(make_spec())
    variables = [nnx.Param(shape(4), out_sharding=("embed",), eager_sharding=False) for _ in "ab"]
    state = nnx.State(dict(zip("ab", variables, strict=True)))
    shardings = found.shardings(state)
    assert jax.tree.structure(shardings) == jax.tree.structure(state)
    assert shardings["a"] is not shardings["b"]
    assert shardings["a"].get_raw_value() is shardings["b"].get_raw_value()


def test_an_override_needs_the_path_and_beats_the_box() -> None:
    overrides = [
        Override(Pattern("a/*"), partition=((), ("data",)), because="test"),
        Override(Pattern("b/.*", "regex"), logical_axes=("mlp", "embed"), because="test"),
    ]
    found = Resolver(make_spec(overrides=overrides))
    tree = {key: {"w": boxed(("embed", "mlp"), 8, 8)} for key in "abc"}
    specs = jax.tree.map(lambda sharding: sharding.spec, found.shardings(tree, boxed=False))
    assert specs == {
        "a": {"w": P(None, "data")},
        "b": {"w": P("model", "data")},
        "c": {"w": P("data", "model")},
    }


def test_the_plan_is_what_shardings_say() -> None:
    found = Resolver(make_spec(params={"**/bias": "mlp"}))
    tree = {"wi": {"kernel": boxed(("embed", "mlp"), 8, 8), "bias": shape(8)}}
    plan = found.plan(tree)
    assert str(plan["wi/kernel"].partition_spec) == "P('data', 'model')"
    assert str(plan["wi/bias"].partition_spec) == "P('model')"
    assert found.findings(tree) == ()


@pytest.mark.parametrize(
    ("tree", "code", "text"),
    [
        ({"layers_0": {"w": shape(4, 4)}}, "SHD205", "layers_0/w"),
        ({"w": boxed(("embed",), 4, 4)}, "SHD206", "`w`"),
        ({"w": boxed(("embed", "mlp"), 4, 6)}, "SHD301", "`mlp` = 6"),
        ({"w": boxed(("embed", "embed"), 4, 4)}, "SHD209", "embed"),
        ({"w": boxed(("embd", "mlp"), 4, 4)}, "SHD202", "did you mean `embed`"),
    ],
)
def test_faults_of_the_tree_are_raised(tree: object, code: str, text: str) -> None:
    found = Resolver(make_spec())
    for _ in range(2):  # a fault is not forgotten
        with pytest.raises(ShardspecError) as error:
            found.shardings({"good": boxed(("embed",), 4), **tree})
        assert codes(error) == [code]
        assert text in str(error.value)
    assert found.findings(tree)[0].code.id == code


def test_all_faults_at_once_with_every_array_counted() -> None:
    found = Resolver(make_spec())
    layer = {"a": shape(4), "b": boxed(("embed", "mlp"), 3, 8)}
    with pytest.raises(ShardspecError) as error:
        found.shardings({f"layers_{n}": layer for n in range(30)})
    assert codes(error) == ["SHD205", "SHD301"]
    assert "30 arrays" in str(error.value)


def test_a_fault_that_the_spec_allows_passes() -> None:
    found = Resolver(make_spec(lints={"unnamed-array": Severity.ALLOW}))
    assert found.shardings({"w": shape(4, 4)})["w"].spec == P(None, None)


def test_a_part_of_the_tree_is_fine_where_patterns_match_nothing_in_it() -> None:
    found = Resolver(make_spec(params={"a/*": "embed", "b/*": "mlp"}))
    assert found.shardings({"a": {"w": shape(4)}})["a"]["w"].spec == P("data")


def test_stated_sizes_count_where_no_shape_is_given() -> None:
    axes = [LogicalAxis("mlp", size=6)]
    found = Resolver(make_spec([("mlp", "model"), ("mlp", "data")], axes=axes))
    assert found.partition_spec("mlp") == P("data")
    assert found.sharding("mlp", (8,)).spec == P("model")


def test_param_with_axes_collections_are_placed() -> None:
    from flax.linen import partitioning as legacy

    tree = {
        "params": {"w": shape(8, 8)},
        "params_axes": {"w_axes": legacy.AxisMetadata(("embed", "mlp"))},
    }
    shardings = Resolver(make_spec()).shardings(tree)
    assert shardings["params"]["w"].spec == P("data", "model")
    assert jax.tree.structure(shardings) == jax.tree.structure(tree)


def test_an_nnx_module_as_the_tree() -> None:
    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            init = nnx.with_partitioning(
                nnx.initializers.ones, ("embed", "mlp"), eager_sharding=False
            )
            self.linear = nnx.Linear(4, 8, use_bias=False, kernel_init=init, rngs=rngs)
            self.dropout = nnx.Dropout(0.1, rngs=rngs)

    module = nnx.eval_shape(lambda: Model(nnx.Rngs(0)))
    shardings = Resolver(make_spec()).shardings(module)
    assert shardings.linear.kernel.get_raw_value().spec == P("data", "model")


NUMBERED = {
    "layers_*/wi_0/kernel": "embed mlp",
    "layers_{1,3}/wi_1/kernel": "mlp embed",
    "layers_*/wi_1/kernel": "_ mlp",
    "other/*/w": "embed",
}


@pytest.mark.parametrize("more", [{}, {"layers_*2/none": "embed"}])
def test_layers_that_share_an_answer_get_that_of_their_own_path(more: dict[str, str]) -> None:
    """With and without templates: the last pattern allows none."""
    found = Resolver(make_spec(params={**NUMBERED, **more}))
    tree = {
        "params": {
            **{
                f"layers_{n}": {f"wi_{k}": {"kernel": shape(8, 8)} for k in "01"} for n in range(12)
            },
            "other": [{"w": shape(8)}, {"w": shape(6)}, {"w": boxed(("mlp",), 8)}],
        },
        "step": 0,
    }
    shardings = found.shardings(tree)
    assert jax.tree.structure(shardings) == jax.tree.structure(tree)
    plan = found.plan(tree)
    leaves = params_of(shardings_as_arrays(shardings))
    assert [leaf.path for leaf in leaves] == [param.param.path for param in plan.arrays]
    placed = jax.tree.leaves(shardings)
    for sharding, planned in zip(placed, plan.arrays, strict=True):
        expected = P(*(dim.mesh_axes or None for dim in planned.dims))
        assert sharding.spec == expected, planned.param.path
    assert plan["layers_3/wi_1/kernel"].logical_axes == ("mlp", "embed")
    assert plan["layers_4/wi_1/kernel"].logical_axes == (None, "mlp")


def shardings_as_arrays(shardings: object) -> object:
    return jax.tree.map(lambda _: shape(1), shardings)


def test_faults_of_layers_that_share_an_answer_name_them_all() -> None:
    found = Resolver(make_spec(params={"layers_*/w": "mlp"}))
    tree = {f"layers_{n}": {"w": shape(8 if n else 6)} for n in range(5)}
    with pytest.raises(ShardspecError, match="layers_0/w") as error:
        found.shardings(tree)
    assert codes(error) == ["SHD301"]


SPEC = """\
shardspec: 1
targets:
  big: {hardware: tpu v5e 4x4, mesh: {data: rest, model: 4}}
  small: {hardware: 8 cpu, mesh: {data: rest, model: 4}}
rules:
  - batch, embed -> data
  - mlp -> model
activations: {residual: batch _ mlp}
"""


def test_from_a_file_with_the_target_of_this_machine(tmp_path: Path) -> None:
    import shardspec

    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    for given in (path, str(path), shardspec.load(path), shardspec.load(path).ir):
        found = shardspec.Resolver(given)
        assert found.target.name == "small"
        assert found.constrain(jnp.ones((2, 3, 8)), activation="residual").sharding.spec == P(
            "data", None, "model"
        )
    tree = {"w": boxed(("embed", "mlp"), 8, 8)}
    plan = shardspec.load(path).compile(tree, target="big")
    assert str(plan["w"].partition_spec) == "P('data', 'model')"
    with pytest.raises(ShardspecError, match="no target is called"):
        shardspec.Resolver(path, target="huge")


def test_a_broken_file_is_refused_with_every_fault(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        SPEC.replace("mlp -> model", "mlp -> -> x").replace("activations:", "activatons:")
    )
    with pytest.raises(ShardspecError) as error:
        Resolver(path)
    assert len(error.value.diagnostics) == 2


@pytest.mark.parametrize(
    ("tree", "code", "said"),
    [
        (boxed(("embed",), 8, 8), "SHD206", "1 name for 2 dimensions of the array f32[8, 8]"),
        (boxed(("embed", "nope"), 8, 8), "SHD202", "the dimension is replicated: 1 array; "),
        (boxed(("embed", "embed"), 8, 8), "SHD209", "more than one dimension of the array f32[8"),
        (shape(8), "SHD205", "nothing names the dimensions of the array f32[8]"),
        (shape(8), "SHD205", 'add to `params`: `"**": AXIS`'),
    ],
)
def test_findings_about_a_lone_array_have_words_for_it(tree: object, code: str, said: str) -> None:
    with pytest.raises(ShardspecError) as error:
        Resolver(make_spec()).shardings(tree)
    text = str(error.value)
    assert codes(error) == [code]
    assert said in text
    assert "``" not in text
    assert "\x00" not in text
    assert all("\x00" not in path for found in error.value.diagnostics for path in found.arrays)


def test_a_wrong_rank_that_is_no_error_is_whole() -> None:
    found = Resolver(make_spec(), levels={"SHD2": "allow"})
    assert found.sharding("embed mlp", (8, 8, 8)).spec == P(None, None, None)
    assert found.sharding("embed mlp", (8,)).spec == P(None)
    x = jnp.ones((8, 8, 8))
    assert jax.jit(lambda x: found.constrain(x, "embed mlp"))(x).shape == x.shape
    assert found.constrain(x, "embed mlp").sharding.is_fully_replicated
