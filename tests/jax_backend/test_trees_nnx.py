"""Flax NNX: modules, states, graph definitions, Variables of every kind, stacked layers."""

from __future__ import annotations

import pickle
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from shardspec import Resolver, loads
from shardspec.jax_backend.trees import params_of
from tests.jax_backend.verbs import TEXT, specs_by_every_verb

P = jax.sharding.PartitionSpec
SPECS = {"wi/kernel": "P('data', 'model')", "wo/kernel": "P('model', 'data')"}
LAYERS = {f"layers/{n}/{name}": spec for n in range(2) for name, spec in SPECS.items()}
PARAMS = 'params:\n  "**/wi/kernel": embed mlp\n  "**/wo/kernel": mlp embed\n'
NAMES = {"wi": ("embed", "mlp"), "wo": ("mlp", "embed")}


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, named: bool = True, eager: bool = False) -> None:
        def dense(name: str, ins: int, outs: int) -> nnx.Linear:
            init = nnx.initializers.lecun_normal()
            if named:
                init = nnx.with_partitioning(init, NAMES[name], eager_sharding=eager)
            return nnx.Linear(ins, outs, use_bias=False, kernel_init=init, rngs=rngs)

        self.wi, self.wo = dense("wi", 8, 16), dense("wo", 16, 8)
        self.act = jax.nn.relu

    def __call__(self, x: Any) -> Any:
        return x + self.wo(self.act(self.wi(x)))


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, **options: Any) -> None:
        self.layers = nnx.List([Block(rngs, **options) for _ in range(2)])

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def test_module_state_and_split() -> None:
    model = Model(nnx.Rngs(0))
    graph, state = nnx.split(model)
    assert specs_by_every_verb(model) == LAYERS
    assert specs_by_every_verb(state) == LAYERS
    assert specs_by_every_verb(nnx.to_pure_dict(state), TEXT + PARAMS) == LAYERS
    assert specs_by_every_verb((graph, state)) == {f"1/{path}": s for path, s in LAYERS.items()}
    shardings = Resolver(loads(TEXT)).shardings((graph, state))
    assert shardings[0] is graph or shardings[0] == graph


def test_variables_without_names() -> None:
    state = nnx.state(Model(nnx.Rngs(0), named=False))
    assert specs_by_every_verb(state, TEXT + PARAMS) == LAYERS


def test_abstract_states_serve_for_jit() -> None:
    found = Resolver(loads(TEXT))
    abstract = nnx.eval_shape(lambda: Model(nnx.Rngs(0)))
    assert specs_by_every_verb(abstract) == LAYERS
    graph, state = nnx.split(abstract)
    assert specs_by_every_verb(state) == LAYERS
    for boxed in (True, False):
        shardings = found.shardings(state, boxed=boxed)
        live = jax.jit(lambda: nnx.state(Model(nnx.Rngs(0))), out_shardings=shardings)()
        kernel = live["layers"][1]["wi"]["kernel"]
        assert kernel.get_value().sharding.spec == P("data", "model")
        model = nnx.merge(graph, live)
        step = jax.jit(lambda state, x: nnx.merge(graph, state)(x), in_shardings=(shardings, None))
        assert jnp.allclose(step(live, jnp.ones((2, 8))), model(jnp.ones((2, 8))), atol=1e-5)


def test_shardings_work_with_nnxs_own_functions() -> None:
    found = Resolver(loads(TEXT))
    model = Model(nnx.Rngs(0))
    state = nnx.state(model)
    shardings = found.shardings(state)
    nnx.update(model, jax.device_put(state, shardings))
    assert model.layers[0].wo.kernel.get_value().sharding.spec == P("model", "data")
    constrained = nnx.jit(lambda m: jax.lax.with_sharding_constraint(nnx.state(m), shardings))
    assert jax.tree.structure(constrained(model)) == jax.tree.structure(state)


def test_variables_of_the_result_are_whole_and_their_own() -> None:
    state = nnx.state(Model(nnx.Rngs(0)))
    shardings = Resolver(loads(TEXT)).shardings(state)
    first, second = (shardings["layers"][n]["wi"]["kernel"] for n in range(2))
    assert type(first) is nnx.Param
    assert first.get_metadata() == state["layers"][0]["wi"]["kernel"].get_metadata()
    assert first.get_raw_value() is second.get_raw_value()
    first.set_metadata(note="mine")
    assert not second.has_metadata("note")
    assert not state["layers"][0]["wi"]["kernel"].has_metadata("note")
    second.set_value(None)
    assert first.get_raw_value().spec == P("data", "model")


def test_variables_made_in_a_trace_belong_to_it() -> None:
    """One made inside `jax.jit` can be changed there, wherever its model was made."""
    found = Resolver(loads(TEXT))
    state = nnx.state(Model(nnx.Rngs(0)))

    @jax.jit
    def inside() -> None:
        for leaf in jax.tree.leaves(found.shardings(state), is_leaf=is_variable):
            leaf.set_metadata(note="from within")

    inside()


def is_variable(node: Any) -> bool:
    return isinstance(node, nnx.Variable)


def test_eager_sharding_by_the_mesh_of_the_resolver() -> None:
    """Where no two dimensions contend, NNX places eagerly what the plan says."""
    found = Resolver(loads(TEXT))
    rules = (("mlp", "model"), ("embed", "data"))
    with jax.set_mesh(found.mesh), nnx.logical_axis_rules(rules):
        model = Model(nnx.Rngs(0), eager=True)
    assert specs_by_every_verb(model) == LAYERS
    state = nnx.state(model)
    wanted = jax.tree.leaves(found.shardings(state))
    live = [leaf.sharding for leaf in jax.tree.leaves(state)]
    assert [sharding.spec for sharding in live] == [sharding.spec for sharding in wanted]


class Noisy(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.block = Block(rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.rngs = nnx.Rngs(params=0, dropout=1)
        self.count = nnx.Variable(0)
        self.table = nnx.Cache({"k": jnp.ones((8, 2)), "v": jnp.ones((8, 2))})


def test_random_streams_counts_and_variables_that_hold_trees() -> None:
    specs = specs_by_every_verb(Noisy(nnx.Rngs(0)), f'{TEXT}params: {{"norm/*": embed}}\n')
    assert {path: specs[path] for path in specs if path.startswith("block")} == {
        f"block/{name}": spec for name, spec in SPECS.items()
    }
    assert specs["rngs/params/key"] == specs["dropout/rngs/count"] == specs["count"] == "P()"
    assert specs["table/k"] == "P(None, None)"
    assert specs["norm/mean"] == specs["norm/scale"] == "P('data')"


def test_several_groups_of_a_split() -> None:
    _, params, rest = nnx.split(Noisy(nnx.Rngs(0)), nnx.Param, ...)
    assert set(specs_by_every_verb(params)) == {
        *(f"block/{name}" for name in SPECS),
        "norm/bias",
        "norm/scale",
    }
    assert "rngs/dropout/key" in specs_by_every_verb(rest)


@pytest.mark.parametrize("axis", [0, 1])
def test_vmapped_and_scanned_layers(axis: int) -> None:
    metadata = {nnx.PARTITION_NAME: "layers"}

    @nnx.split_rngs(splits=3)
    @nnx.vmap(in_axes=0, out_axes=axis, transform_metadata=metadata)
    def stack(rngs: nnx.Rngs) -> Block:
        return Block(rngs)

    model = stack(nnx.Rngs(0))
    expected = ["'data'", "'model'"]
    expected.insert(axis, "None")
    assert specs_by_every_verb(model)["wi/kernel"] == f"P({', '.join(expected)})"

    @nnx.scan(in_axes=(axis, nnx.Carry), out_axes=nnx.Carry, transform_metadata=metadata)
    def forward(block: Block, x: Any) -> Any:
        assert block.wi.kernel.get_metadata()["out_sharding"] == ("embed", "mlp")
        return block(x)

    moved = Resolver(loads(TEXT)).put(model)
    x = jnp.ones((2, 8))
    assert jnp.allclose(forward(moved, x), forward(model, x), atol=1e-5)


def test_variables_of_ones_own_kind() -> None:
    class Lora(nnx.Param):
        pass

    tree = nnx.State({"a": Lora(jnp.ones((8, 16)), out_sharding=("embed", "mlp"), scale=2.0,
                                eager_sharding=False)})  # fmt: skip
    assert specs_by_every_verb(tree) == {"a": "P('data', 'model')"}
    found = Resolver(loads(TEXT)).shardings(tree)["a"]
    assert type(found) is Lora
    assert found.scale == 2.0


def test_hijax_variables_carry_their_names() -> None:
    with nnx.var_defaults(hijax=True):
        model = Block(nnx.Rngs(0))
    assert {p.path: p.logical_axes for p in params_of(model)} == {
        f"{name}/kernel": axes for name, axes in NAMES.items()
    }
    shardings = Resolver(loads(TEXT)).shardings(model)
    assert [s.spec for s in jax.tree.leaves(shardings)] == [P("data", "model"), P("model", "data")]


def test_a_state_of_shardings_can_be_pickled_as_nnx_pickles() -> None:
    variable = nnx.Param(jnp.ones(8), out_sharding=("embed",), eager_sharding=False)
    found = Resolver(loads(TEXT)).shardings({"a": variable, "b": variable})
    for name in "ab":
        state = found[name].__getstate__()
        assert state.keys() == variable.__getstate__().keys()
    assert pickle.loads(pickle.dumps(variable)).get_metadata() == found["b"].get_metadata()
