"""What a traced function is given, told apart however it is called and wrapped."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from shardspec.diagnostics import ShardspecError
from shardspec.ir.step import Step
from shardspec.jax_backend.step.reading import step_of
from tests.models import small_steps
from tests.models.small_steps import activations, layer, loss, struct, weights


def traced(function: Any, *args: Any, **kwargs: Any) -> Step:
    return step_of(small_steps.resolver(), function, *args, **kwargs)


def told(found: Step) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {each.path: (each.role, each.array.shape) for each in found.arguments}


def test_keywords_are_told_apart_in_whatever_order_they_come() -> None:
    def step(p: Any, *, x: Any, scale: Any) -> Any:
        return layer(small_steps.resolver(), p["mlp"], x * scale)

    found = traced(jax.jit(step), weights(), x=activations(), scale=struct(1024))
    assert told(found)["x"] == ("batch", (64, 128, 1024))
    assert told(found)["scale"] == ("batch", (1024,))


def test_a_static_argument_is_none() -> None:
    def step(p: Any, times: int, x: Any, factor: Any) -> Any:
        return layer(small_steps.resolver(), p["mlp"], x * times * factor)

    step = jax.jit(step, static_argnums=1, donate_argnums=2)
    found = traced(step, weights(), 3, activations(), 2.0)
    assert told(found)["x"] == ("batch", (64, 128, 1024))
    assert told(found)["factor"] == ("batch", ())
    assert [each.path for each in found.arguments if each.is_donated] == ["x"]


@pytest.mark.parametrize("name", ["opt", "opt_state"])
def test_a_dict_of_parameters_and_what_follows_them(name: str) -> None:
    optimizer = optax.adam(1e-3)
    params = weights()
    state = {"params": params, name: jax.eval_shape(optimizer.init, params), "ema": params}

    def step(state: Any, x: Any) -> Any:
        grads = jax.grad(loss(small_steps.resolver()))(state["params"], x)
        updates, new = optimizer.update(grads, state[name], state["params"])
        params = optax.apply_updates(state["params"], updates)
        ema = jax.tree.map(lambda old, now: 0.9 * old + 0.1 * now, state["ema"], params)
        return {"params": params, name: new, "ema": ema}

    found = traced(step, state, activations())
    roles = [each.role for each in found.arguments if each.array.shape]
    assert (roles.count("parameter"), roles.count("optimizer")) == (2, 6)
    assert {str(each.carries) for each in found.collectives} >= {"weight mlp/wi", "weight mlp/wo"}


def test_nnx_jit_is_read_as_jax_jit_is() -> None:
    from flax import nnx

    class Layer(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.wi = nnx.Param(jax.random.normal(rngs(), (1024, 4096)))
            self.wo = nnx.Param(jax.random.normal(rngs(), (4096, 1024)))

        def __call__(self, x: Any) -> Any:
            return jax.nn.relu(x @ self.wi[...]) @ self.wo[...]

    def made() -> Any:
        model = Layer(nnx.Rngs(0))
        return model, nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)

    @nnx.jit
    def train(model: Any, optimizer: Any, x: Any) -> Any:
        value, grads = nnx.value_and_grad(lambda model: jnp.sum(model(x) ** 2))(model)
        optimizer.update(model, grads)
        return value

    found = traced(train, *nnx.eval_shape(made), struct(64, 128, 1024))
    roles = [each.role for each in found.arguments if each.array.shape]
    assert roles == ["parameter"] * 2 + ["optimizer"] * 4 + ["batch"]
    carried = {str(each.carries) for each in found.collectives}
    assert {"weight wi", "gradient of wi", "gradient of wo"} <= carried
    assert found.place.file == "tests/jax_backend/step/test_step_trace.py"

    def calls(*args: Any) -> Any:
        return train(*args)

    def returns(*args: Any) -> Any:
        return train(*args), nnx.state(args[:2])

    with pytest.raises(ShardspecError, match=r"updates \d arrays of an NNX optimizer"):
        traced(calls, *nnx.eval_shape(made), struct(64, 128, 1024))
    assert traced(returns, *nnx.eval_shape(made), struct(64, 128, 1024)).collectives


def test_a_filter_jit_may_return_functions_and_donate() -> None:
    import equinox as eqx

    class Layer(eqx.Module):
        wi: Any
        wo: Any
        activation: Any = jax.nn.relu

        def __call__(self, x: Any) -> Any:
            return self.activation(x @ self.wi) @ self.wo

    def train(model: Any, x: Any) -> Any:
        grads = eqx.filter_grad(lambda model: jnp.sum(model(x) ** 2))(model)
        return eqx.apply_updates(model, grads)

    model = Layer(struct(1024, 4096), struct(4096, 1024))
    for donate, count in (("none", 0), ("all", 3), ("all-except-first", 1)):
        found = traced(eqx.filter_jit(train, donate=donate), model, struct(64, 128, 1024))
        assert [each.role for each in found.arguments] == ["parameter", "parameter", "batch"]
        assert sum(each.is_donated for each in found.arguments) == count
    # by keyword, in another order than the function has them
    jitted = eqx.filter_jit(train, donate="all-except-first")
    found = traced(jitted, x=struct(64, 128, 1024), model=model)
    assert [each.is_donated for each in found.arguments] == [False, False, True]


def test_a_loop_whose_test_sends() -> None:
    """The maximum over the mesh is another in every round, and the loop says not how many."""
    r = small_steps.resolver()

    def step(p: Any, x: Any) -> Any:
        return jax.lax.while_loop(lambda x: jnp.max(x) > 1, lambda x: layer(r, p["mlp"], x), x)

    found = traced(step, weights(), activations())
    (sent,) = (each for each in found.collectives if each.payload_bytes < 64)
    assert (sent.kind, sent.is_invariant) == ("all-reduce", False)
    assert any("no fixed number of iterations" in note for note in found.notes)


def test_a_step_that_the_spec_names_nothing_of_says_so() -> None:
    def step(p: Any, x: Any) -> Any:
        return x @ p["dense"]

    arguments = {"dense": struct(1024, 64)}, struct(64, 1024)
    (note,) = traced(step, *arguments).notes
    assert note.startswith("no pattern of `params` matches")
    assert not traced(lambda p, x: x @ p["mlp"]["wi"], weights(), arguments[1]).notes


def test_a_gathered_weight_has_the_line_that_reads_it() -> None:
    def step(p: Any, x: Any) -> Any:
        return x @ p["mlp"]["wi"]

    found = traced(step, weights(), struct(64, 128, 1024))
    lines = {each.place.line for each in found.collectives if each.carries.name == "mlp/wi"}
    assert lines == {step.__code__.co_firstlineno + 1}
