"""State that belongs to no parameter is told, and state taken for parameters refused."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn
from flax import nnx, serialization

from shardspec.diagnostics import Severity, ShardspecError
from shardspec.ir.spec import Pattern, Replicate, StatePolicy
from shardspec.jax_backend.resolver import Resolver
from tests.jax_backend.specs import make_spec

NAMES = {"**/kernel": "embed mlp"}


def resolver(params: dict[str, str] = NAMES, **more: Any) -> Resolver:
    return Resolver(make_spec(params=params, **more))


def zero1() -> Resolver:
    spec = make_spec(params=NAMES)
    return Resolver(dataclasses.replace(spec, state=StatePolicy("zero1", over=("data",))))


def model(name: str = "mlp", rows: int = 8) -> dict[str, Any]:
    return {name: {"kernel": jax.ShapeDtypeStruct((rows, 16), "float32")}}


def state_of(params: Any, tx: Any) -> Any:
    return jax.eval_shape(tx.init, params)


def test_one_vector_of_all_moments_is_an_error() -> None:
    state = state_of(model(), optax.flatten(optax.adam(1e-3)))
    with pytest.raises(ShardspecError) as caught:
        resolver().state_shardings(state, model())
    (found,) = caught.value.diagnostics
    assert found.code.id == "SHD205"
    assert "`0/mu` f32[128] and 1 more array are replicated on every device" in found.message
    assert found.notes[0] == "1.00 KiB on each"


def test_the_parameters_of_another_model_are_an_error() -> None:
    state = state_of(model("encoder"), optax.adam(1e-3))
    plan = resolver().state_plan(state, model("decoder"))
    (found,) = plan.diagnostics
    assert "nothing in the state belongs to a parameter" in found.message
    assert found.notes[1].endswith("`decoder/kernel` f32[8, 16]")


def test_the_spec_may_name_or_allow_it() -> None:
    state = state_of(model(), optax.flatten(optax.adam(1e-3)))
    named = resolver(NAMES | {"0/{mu,nu}": "_"})
    assert named.state_plan(state, model()).diagnostics == ()
    allowed = Replicate(Pattern("0/*"), "a small model")
    spec = dataclasses.replace(make_spec(params=NAMES), replicate=(allowed,))
    assert Resolver(spec).state_plan(state, model()).diagnostics == ()


@pytest.mark.parametrize("tx", [optax.add_noise(0.1, 0.5, 1), optax.sgd(0.1)])
def test_keys_and_counters_alone_are_fine(tx: Any) -> None:
    state = state_of(model(), tx)
    assert resolver().state_plan(state, model()).diagnostics == ()
    resolver().state_shardings(state, model())


def test_something_large_beside_what_belongs_is_a_warning() -> None:
    state = {
        "moments": state_of(model(), optax.adam(1e-3)),
        "table": jax.ShapeDtypeStruct((1 << 22,), "float32"),
    }
    found = resolver()
    (warning,) = found.state_plan(state, model()).diagnostics
    assert (warning.code.id, warning.severity) == ("SHD401", Severity.WARNING)
    found.state_shardings(state, model())
    strict = resolver(lints={"replicated-large": Severity.ERROR})
    with pytest.raises(ShardspecError, match="SHD401"):
        strict.state_shardings(state, model())


def boxed() -> dict[str, Any]:
    box = nn.LogicallyPartitioned(jnp.ones((8, 16)), (None, "mlp"))
    return {"mlp": {"kernel": box}}


def variables() -> nnx.Module:
    init = nnx.with_partitioning(nnx.initializers.ones_init(), (None, "mlp"), eager_sharding=False)
    return nnx.Linear(8, 16, use_bias=False, kernel_init=init, rngs=nnx.Rngs(0))


class Mine(NamedTuple):
    """The state of an optimizer of one's own, in a chain with those of optax."""

    mean: Any


def lone_states() -> dict[str, Any]:
    optimizer = nnx.Optimizer(variables(), optax.adam(1e-3), wrt=nnx.Param)
    state = nnx.state(optimizer)
    moments = optax.adam(1e-3).init(boxed())
    return {
        "optax": moments,
        "optimizer": optimizer,
        "state": state,
        "state below its name": state["opt_state"],
        "moments alone": state["opt_state"][0],
        "state as a dict": nnx.to_pure_dict(state["opt_state"]),
        "state as in a checkpoint": serialization.to_state_dict(moments),
        "a chain with one's own": (Mine(boxed()), moments),
        "a named chain with one's own": {"mine": Mine(boxed()), "adam": moments},
        "of two models": {
            "one": {"params": boxed(), "opt_state": moments},
            "two": {"params": boxed(), "opt_state": moments},
        },
        "beside two alike": {"net": boxed(), "copy": boxed(), "optimizer": moments},
    }


@pytest.mark.parametrize("kind", lone_states())
@pytest.mark.parametrize(
    "verb", ["shardings", "put", "plan", "findings", "verify_placement", "abstract"]
)
def test_state_taken_for_parameters_is_refused_under_zero(kind: str, verb: str) -> None:
    """Its boxes name its dimensions, and so it would be laid out, without ZeRO."""
    with pytest.raises(ShardspecError, match=r"SHD004.*\n.*state_shardings\(state, params\)"):
        getattr(zero1(), verb)(lone_states()[kind])


@pytest.mark.parametrize("kind", ["optax", "state", "beside two alike", "state below its name"])
def test_without_zero_names_are_enough(kind: str) -> None:
    resolver().shardings(lone_states()[kind])


@pytest.mark.parametrize("kind", ["optax", "optimizer", "state", "state below its name"])
@pytest.mark.parametrize("verb", ["state_shardings", "state_plan"])
def test_swapped_arguments_are_refused(kind: str, verb: str) -> None:
    with pytest.raises(ShardspecError, match="`params` is optimizer state"):
        getattr(resolver(), verb)(boxed(), lone_states()[kind])


def test_trees_that_hold_both_and_wrapped_parameters_are_taken() -> None:
    params = boxed()
    zero1().shardings({"params": params, "opt_state": optax.adam(1e-3).init(params)})
    zero1().shardings(optax.LookaheadParams.init_synced(params))
    model = variables()
    zero1().shardings(nnx.state(nnx.ModelAndOptimizer(model, optax.adam(1e-3), wrt=nnx.Param)))


@pytest.mark.parametrize("tx", [optax.sgd(0.1), optax.sgd(optax.constant_schedule(0.1))])
def test_state_without_dimensions_is_let_pass_under_zero(tx: Any) -> None:
    """ZeRO has nothing to split in it, and it stands beside its parameters under any name."""
    found = zero1()
    for params in (boxed(), {"mlp": {"kernel": jnp.ones((8, 16))}}):
        for tree in ((params, tx.init(params)), {"net": params, "rest": tx.init(params)}):
            assert "mlp/kernel" in set(found.plan(tree))
            assert found.verify_placement(found.put(tree)) == ()
    with pytest.raises(ShardspecError, match="`params` is optimizer state"):
        found.state_shardings(boxed(), tx.init(boxed()))


def test_a_level_of_any_finding_does_not_slow_the_state_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only one that makes an error of a warning asks for the whole plan."""
    spec = make_spec(params=NAMES, lints={"below-tile": Severity.ALLOW})
    found = Resolver(dataclasses.replace(spec, state=StatePolicy("zero1", over=("data",))))
    state = state_of(model(), optax.adam(1e-3))

    def planned(*_: Any) -> None:
        raise AssertionError("the state was planned array by array")

    monkeypatch.setattr(type(found._state), "plan", planned)
    found.state_shardings(state, model())
