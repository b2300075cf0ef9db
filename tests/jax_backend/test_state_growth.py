"""The state of every optimizer costs the same for each of its nodes, however many there are.

A node is an array, or a hole where another optimizer has one (`optax.MaskedNode`). What is counted
are calls, as in `tests/properties/test_growth.py`, so that any machine agrees.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import optax
import pytest
from flax import linen as nn
from flax import nnx
from optax import contrib

from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.state import each_owner
from tests.jax_backend.specs import make_spec
from tests.properties.test_growth import work

ADAM = "adam"
OPTIMIZERS: dict[str, Any] = {
    ADAM: optax.adam(1e-3),
    "adafactor": optax.adafactor(1e-3, min_dim_size_to_factor=4),
    "sm3": optax.sm3(1e-3),
    "muon": contrib.muon(1e-3),
}
#: The arrays of one layer: a component of the path, sizes, names.
LAYER = {
    "wi": ((8, 16), ("embed", "mlp")),
    "wo": ((16, 8), ("mlp", "embed")),
    "square": ((16, 16), ("embed", "mlp")),
    "scale": ((16,), ("mlp",)),
}
Make = Callable[[Any, tuple[str, ...]], Any]
FORMS: dict[str, Make] = {
    "plain": lambda array, _: array,
    "linen": nn.LogicallyPartitioned,
    "nnx": lambda array, names: nnx.Param(array, out_sharding=names, eager_sharding=False),
}
BY_PATH = {f"**/{name}/kernel": " ".join(axes) for name, (_, axes) in LAYER.items()}


def model(layers: int, form: str) -> Any:
    tree = {
        f"layer_{number}": {
            name: {"kernel": FORMS[form](jax.ShapeDtypeStruct(sizes, "float32"), axes)}
            for name, (sizes, axes) in LAYER.items()
        }
        for number in range(layers)
    }
    return nnx.State(tree) if form == "nnx" else tree


def is_hole(node: Any) -> bool:
    return isinstance(node, optax.MaskedNode)


@cache
def calls(form: str, optimizer: str, verb: str, layers: int) -> tuple[int, int]:
    """Return how many calls a verb makes for a state, and the nodes of that."""
    params = model(layers, form)
    state = jax.eval_shape(OPTIMIZERS[optimizer].init, params)
    found = Resolver(make_spec(params=BY_PATH if form == "plain" else {}))
    plan = getattr(found, verb)
    plan(state, params)
    gc.disable()
    try:
        count = work(lambda _: plan(state, params), 0)
    finally:  # callbacks of the collector are calls as well
        gc.enable()
    return count, len(jax.tree.leaves(state, is_leaf=is_hole))


@pytest.mark.parametrize("verb", ["state_shardings", "state_plan"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_work_grows_with_the_state(optimizer: str, form: str, verb: str) -> None:
    (few, nodes), (many, more) = (calls(form, optimizer, verb, n) for n in (24, 96))
    assert many / few < 1.05 * more / nodes, f"{few:,} calls for {nodes}, {many:,} for {more}"


@pytest.mark.parametrize("verb", ["state_shardings", "state_plan"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS.keys() - {ADAM}))
def test_no_optimizer_costs_more_for_a_node_than_adam(optimizer: str, form: str, verb: str) -> None:
    (count, nodes), (of_adam, nodes_of_adam) = (
        calls(form, name, verb, 96) for name in (optimizer, ADAM)
    )
    assert count / nodes <= 1.15 * of_adam / nodes_of_adam


def test_only_mappings_as_wide_as_the_parameters_are_compared_with_them() -> None:
    """For each of the others JAX would print all keys: a square that no count of calls sees."""
    params = model(8, "plain")
    owners = each_owner(Resolver(make_spec(params=BY_PATH))._arrays, params)
    assert owners.structure(params) is not None
    assert owners.structure(params["layer_0"]) is None
    assert owners.structure({"mu": params}) is None
