"""Weights split over the batch's mesh axis where that axis is explicit: what JAX allows of it.

docs/training.md says so, and SHD113 tells of it before anything runs. Where a JAX release changes
its mind, this is where it shows.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardspec import Resolver, loads
from shardspec.diagnostics.codes import EXPLICIT_FSDP
from tests.lints.findings_of import findings_of
from tests.test_docs import example

SPEC = "shardspec: 1\nmesh: {data: 8 explicit}\nrules: ['batch, embed -> data', 'mlp -> none']\n"


@pytest.fixture
def resolver() -> Resolver:
    return Resolver(loads(SPEC))


def placed(resolver: Resolver, names: str, *sizes: int) -> Any:
    return jax.device_put(jnp.ones(sizes), resolver.sharding(names, sizes))


def test_a_contracted_dimension_on_the_batchs_axis_is_gathered_unasked(resolver: Resolver) -> None:
    x, wi = placed(resolver, "batch _", 8, 16), placed(resolver, "embed mlp", 16, 32)
    with jax.set_mesh(resolver.mesh):
        y = jax.jit(lambda x, w: x @ w)(x, wi)
    assert jax.typeof(y).sharding.spec == jax.P("data", None)


def test_a_dimension_that_stays_on_the_batchs_axis_is_a_type_error(resolver: Resolver) -> None:
    h, wo = placed(resolver, "batch _", 8, 32), placed(resolver, "mlp embed", 32, 16)
    with (
        jax.set_mesh(resolver.mesh),
        pytest.raises(Exception, match="illegally sharded result") as error,
    ):
        jax.jit(lambda h, w: h @ w)(h, wo)
    assert type(error.value).__name__ == "ShardingTypeError"


def test_gathered_at_use_the_weight_and_its_gradient_stay_split(resolver: Resolver) -> None:
    h, wo = placed(resolver, "batch _", 8, 32), placed(resolver, "mlp embed", 32, 16)

    def loss(w: Any, h: Any) -> Any:
        return jnp.sum(h @ resolver.constrain(w, "mlp _"))

    with jax.set_mesh(resolver.mesh):
        value, gradient = jax.jit(jax.value_and_grad(loss))(wo, h)
    assert gradient.sharding.is_equivalent_to(wo.sharding, 2)
    np.testing.assert_allclose(value, 8 * 32 * 16)


SIZES = {"batch": 8, "length": 16, "embed": 32, "mlp": 64, "heads": 8, "kv": 24, "expert": 40}

#: What a weight is multiplied with, the weight, and the result.
PRODUCTS = [
    ("batch length embed", "embed mlp", "batch length mlp"),
    ("batch length mlp", "mlp embed", "batch length embed"),
    ("batch length embed", "embed heads kv", "batch length heads kv"),
    ("batch length heads kv", "heads kv embed", "batch length embed"),
    ("batch length embed", "embed expert", "batch length expert"),
    ("batch length embed", "embed", "batch length embed"),
    ("batch length embed", "length embed", "batch length embed"),
    ("batch length heads kv", "heads kv", "batch length heads kv"),
    ("expert batch embed", "expert embed mlp", "expert batch mlp"),
    ("expert batch mlp", "expert mlp embed", "expert batch embed"),
]

RULES = [
    "batch, embed -> data",
    "batch, mlp -> data",
    "batch, heads -> data",
    "batch, kv -> data",
    "batch, length -> data",
    "batch, expert -> data",
    "expert, batch -> data",
    "length, embed -> data",
    "embed -> data",
    "batch -> data",
]


def product(met: str, weight: str, result: str) -> str:
    """Return the product as einsum spells it."""
    letters = dict(zip(SIZES, "blemhkx", strict=True))
    sides = ("".join(letters[name] for name in side.split()) for side in (met, weight, result))
    return "{},{}->{}".format(*sides)


def shapes(resolver: Resolver, *sides: str) -> list[jax.ShapeDtypeStruct]:
    found = []
    for names in sides:
        sizes = tuple(SIZES[name] for name in names.split())
        lies = resolver.sharding(names, sizes)
        found.append(jax.ShapeDtypeStruct(sizes, jnp.float32, sharding=lies))
    return found


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("met", "weight", "result"), PRODUCTS)
def test_the_finding_is_there_where_jax_refuses_a_product(
    met: str, weight: str, result: str, rule: str
) -> None:
    others = ", ".join(name for name in SIZES if name not in rule)
    typed = " ".join(f"{name}={SIZES[name]}" for name in weight.split())
    text = (
        f"mesh: {{data: 8 explicit}}\nrules: ['{rule}', '{others} -> none']\n"
        f"arrays: {{w: 'f32[{typed}]'}}\nactivations: {{met: {met}, result: {result}}}\n"
    )
    resolver = Resolver(loads(text))
    refused = None
    with jax.set_mesh(resolver.mesh):
        try:
            jax.eval_shape(
                lambda x, w: (
                    jnp.einsum(product(met, weight, result), x, w) if met != result else x * w
                ),
                *shapes(resolver, met, weight),
            )
        except Exception as error:
            refused = str(error)
    told = findings_of(text, only="explicit-fsdp")
    assert bool(told) == ("illegally sharded result" in (refused or "")), refused


def step(resolver: Resolver, gather: str | None = None) -> None:
    """Run a block and its gradients.

    Args:
      gather: the activation that the second kernel is where it is used.
    """
    weights = {
        "wi": placed(resolver, "embed mlp", 32, 64),
        "wo": placed(resolver, "mlp embed", 64, 32),
    }
    x = placed(resolver, "batch embed", 64, 32)

    def loss(weights: Any, x: Any) -> Any:
        wo = weights["wo"]
        if gather is not None:
            wo = resolver.constrain(wo, activation=gather)
        return jnp.mean((x @ weights["wi"]) @ wo)

    with jax.set_mesh(resolver.mesh):
        gradients = jax.jit(jax.grad(loss))(weights, x)
    if gather is not None:
        for name, gradient in gradients.items():
            assert gradient.sharding.is_equivalent_to(weights[name].sharding, 2)


def test_the_bad_example_does_not_run_and_the_good_one_does() -> None:
    bad = example(EXPLICIT_FSDP, "Bad")
    with pytest.raises(Exception, match="illegally sharded result") as error:
        step(Resolver(loads(bad)))
    assert type(error.value).__name__ == "ShardingTypeError"
    good = Resolver(loads(example(EXPLICIT_FSDP, "Good")))
    step(good, "wo_where_used")


def test_the_bad_example_runs_without_explicit() -> None:
    automatic = example(EXPLICIT_FSDP, "Bad").replace(" explicit", "")
    assert findings_of(automatic, only="explicit-fsdp") == ()
    step(Resolver(loads(automatic)))


def test_a_table_is_looked_up_without_being_gathered() -> None:
    table = "mesh: {data: 8 explicit}\nrules: ['batch, embed -> data', vocab -> none]\n"
    table += "arrays: {t: 'f32[vocab=64 embed=16]'}\nactivations: {residual: batch embed}\n"
    assert findings_of(table, only="explicit-fsdp") == ()
    resolver = Resolver(loads(table))
    t = placed(resolver, "vocab embed", 64, 16)
    ids = jax.device_put(jnp.zeros(8, int), resolver.sharding("batch", (8,)))
    with jax.set_mesh(resolver.mesh):
        y = jax.jit(lambda t, ids: t.at[ids].get(out_sharding=jax.P("data")))(t, ids)
    assert jax.typeof(y).sharding.spec == jax.P("data", None)
