"""The plan of a live tree: printed, asked, drawn, and handed back."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import shardspec
from shardspec.jax_backend.resolver import Resolver
from tests.jax_backend.specs import make_spec


def resolver(**more: Any) -> Resolver:
    return Resolver(make_spec(params={"**/kernel": "embed mlp"}, **more))


def tree() -> dict[str, Any]:
    return {f"layers_{n}": {"kernel": jax.ShapeDtypeStruct((8, 16), "float32")} for n in range(3)}


def test_it_prints_as_the_table_of_compile() -> None:
    text = " ".join(str(resolver().plan(tree())).split())
    assert "layers_{0..2}/kernel x3 f32[8, 16] data, model [4, 4] 192 B" in text
    assert "target here: 8 devices" in text


def test_its_repr_is_one_short_line() -> None:
    plan = resolver().plan(tree())
    assert repr(plan) == "Plan(3 arrays, target here: data=2 model=4)"


def test_it_is_asked_by_path() -> None:
    plan = resolver().plan(tree())
    assert list(plan) == [f"layers_{n}/kernel" for n in range(3)]
    assert len(plan) == 3
    assert str(plan["layers_1/kernel"].partition_spec) == "P('data', 'model')"
    with pytest.raises(KeyError, match="did you mean `layers_1/kernel`"):
        plan["layers_1/kernle"]


def test_it_explains_and_draws() -> None:
    plan = resolver().plan(tree())
    assert plan.explain("layers_2/kernel").startswith("layers_2/kernel   f32[8, 16]   ->   P(")
    assert isinstance(plan.visualize("layers_2/kernel"), shardspec.Drawing)
    assert plan._repr_html_().count("<tr>") == 2


def test_it_stands_for_the_parameters() -> None:
    found = resolver()
    params = {"mlp": {"kernel": jnp.ones((8, 16))}}
    state = jax.eval_shape(optax.adam(1e-3).init, params)
    by_plan = found.state_shardings(state, found.plan(params))
    assert by_plan == found.state_shardings(state, params)


def test_a_train_state_has_one_plan() -> None:
    params = {"kernel": jnp.ones((8, 16))}
    whole = {"params": params, "opt_state": optax.adam(1e-3).init(params)}
    plan = resolver().plan(whole)
    assert plan.explain("opt_state/0/mu/kernel")
    assert repr(plan).startswith("Plan(4 arrays")
