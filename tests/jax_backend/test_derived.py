"""Derived arrays in live trees and in optimizer state."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

from shardspec import Resolver, ShardspecError, loads

TEXT = """\
shardspec: 1
extends: derive/nnx-lora
mesh: {{data: 2, model: 4}}
rules:
  - batch -> data
  - mlp -> model
  - embed -> model | data
params: {{"**/kernel": embed mlp, "**/bias": mlp}}
{more}
"""


def resolver_of(more: str = "") -> Resolver:
    return Resolver(loads(TEXT.format(more=more)))


class Model(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        """Make two layers."""
        self.layers = nnx.List([nnx.LoRALinear(64, 128, lora_rank=4, rngs=rngs) for _ in range(2)])


@pytest.fixture(scope="module")
def state() -> Any:
    return nnx.state(nnx.eval_shape(lambda: Model(nnx.Rngs(0))))


class Wrapped(nnx.Module):
    """A gated MLP, each of its layers with `nnx.LoRA` around it."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        """Make the three layers."""

        def layer(into: int, out: int) -> nnx.LoRA:
            linear = nnx.Linear(into, out, use_bias=False, rngs=rngs)
            return nnx.LoRA(into, 16, out, base_module=linear, rngs=rngs)

        self.gate, self.up, self.down = layer(64, 224), layer(64, 224), layer(224, 64)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply them."""
        return self.down(jax.nn.silu(self.gate(x)) * self.up(x))


def specs_of(shardings: Any) -> dict[str, P]:
    flat, _ = jax.tree_util.tree_flatten_with_path(shardings)
    return {jax.tree_util.keystr(keys): leaf.spec for keys, leaf in flat}


def test_lora_around_layers_lies_as_their_kernels_and_computes_the_same() -> None:
    model = Wrapped(nnx.Rngs(0))
    own = '"down/**/kernel": mlp embed, "**/kernel"'
    resolver = Resolver(loads(TEXT.format(more="").replace('"**/kernel"', own)))
    graph, state = nnx.split(model)
    placed = resolver.put(state)
    assert not resolver.verify_placement(placed)
    plan = {each.path: str(each.partition_spec) for each in resolver.plan(state).arrays}
    assert plan == {
        **dict.fromkeys(("gate/base_module/kernel", "up/base_module/kernel"), "P('data', 'model')"),
        **dict.fromkeys(("gate/lora_a", "up/lora_a"), "P('data', None)"),
        **dict.fromkeys(("gate/lora_b", "up/lora_b"), "P(None, 'model')"),
        "down/base_module/kernel": "P('model', 'data')",
        "down/lora_a": "P('model', None)",
        "down/lora_b": "P(None, 'data')",
    }
    x = jnp.ones((8, 64))
    assert jnp.allclose(jax.jit(nnx.merge(graph, placed))(x), model(x), rtol=1e-5)


def test_lora_of_nnx_lies_as_its_kernel(state: Any) -> None:
    resolver = resolver_of()
    found = specs_of(resolver.shardings(state))
    plan = resolver.plan(state)
    for layer in (0, 1):
        assert found[f"['layers'][{layer}]['lora']['lora_a'].value"] == P("data", None)
        assert str(plan[f"layers/{layer}/lora/lora_a"].partition_spec) == "P('data', None)"
        assert str(plan[f"layers/{layer}/lora/lora_b"].partition_spec) == "P(None, 'model')"
    put = resolver.put(nnx.state(Model(nnx.Rngs(0))))
    resolver.verify_placement(put)


def test_lora_alone_needs_its_kernels(state: Any) -> None:
    lora = nnx.filter_state(state, nnx.LoRAParam)
    with pytest.raises(ShardspecError, match="SHD241"):
        resolver_of().shardings(lora)
    listed = resolver_of('arrays: {"layers/{0,1}/kernel": "f32[64, 128]"}')
    assert set(specs_of(listed.shardings(lora)).values()) == {
        P("data", None),
        P(None, "model"),
    }
    whole = resolver_of().plan(state)
    tx = optax.adam(1e-3)
    moments = resolver_of().state_plan(jax.eval_shape(tx.init, lora), whole)
    assert str(moments["0/mu/layers/0/lora/lora_a"].partition_spec) == "P('data', None)"


def test_another_tree_has_other_parents(state: Any) -> None:
    """What one tree says of its arrays is not remembered for another."""
    resolver = resolver_of('overrides: [{path: b/kernel, spec: "(none, none)", because: test}]')
    shape = {"kernel": jnp.zeros((64, 128)), "lora": {"lora_a": jnp.zeros((64, 4))}}
    first = resolver.shardings({"a": shape})
    second = resolver.shardings({"b": shape})
    assert first["a"]["lora"]["lora_a"].spec == P("data", None)
    assert second["b"]["lora"]["lora_a"].spec == P(None, None)
    with pytest.raises(ShardspecError, match="SHD241"):
        resolver.shardings({"a": {"lora": shape["lora"]}})


def test_a_copy_beside_the_parameters() -> None:
    resolver = resolver_of('derive: {"ema/**": from **}')
    tree = {"mlp": {"kernel": jnp.zeros((64, 128))}}
    found = resolver.shardings(tree | {"ema": tree})
    assert found["ema"]["mlp"]["kernel"] == found["mlp"]["kernel"]


SHAMPOO = """\
derive:
  "**/statistics/**/0": dims 0 _
  "**/statistics/**/1": dims 1 _
"""


def shampoo() -> tuple[Any, Any]:
    params = {"dense": {"kernel": jax.ShapeDtypeStruct((1024, 4096), "float32")}}
    squares = [jax.ShapeDtypeStruct((size, size), "float32") for size in (1024, 4096)]
    return {"statistics": {"dense": {"kernel": squares}}}, params


def test_squares_of_shampoo_are_split() -> None:
    squares, params = shampoo()
    assert [each.code.id for each in resolver_of().state_plan(squares, params).diagnostics] == [
        "SHD409"
    ]
    resolver = resolver_of(SHAMPOO)
    plan = resolver.state_plan(squares, params)
    assert plan.diagnostics == ()
    assert str(plan["statistics/dense/kernel/0"].partition_spec) == "P('data', None)"
    assert str(plan["statistics/dense/kernel/1"].partition_spec) == "P('model', None)"
    assert "as dense/kernel, dims 1 _" in plan.explain("statistics/dense/kernel/1")
    placed = resolver.state_shardings(squares, params)
    assert [each.spec for each in placed["statistics"]["dense"]["kernel"]] == [
        P("data", None),
        P("model", None),
    ]


def test_zero_splits_them_further() -> None:
    squares, params = shampoo()
    plan = resolver_of(f"{SHAMPOO}state: {{optimizer: zero1}}").state_plan(squares, params)
    assert str(plan["statistics/dense/kernel/1"].partition_spec) == "P(('model', 'data'), None)"


def test_what_does_not_fit_is_an_error() -> None:
    squares, params = shampoo()
    wrong = resolver_of('derive: {"**/statistics/**": dims 0 _}')
    (found,) = wrong.state_plan(squares, params).diagnostics
    assert found.code.id == "SHD242"
    with pytest.raises(ShardspecError, match="SHD242"):
        wrong.state_shardings(squares, params)
    nobodys = {"statistics": {"other": jax.ShapeDtypeStruct((512, 512), "float32")}}
    found, *_ = wrong.state_plan(nobodys, params).diagnostics
    assert found.code.id == "SHD241"
