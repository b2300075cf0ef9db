"""Live state and state under `jax.eval_shape` get one answer, for every optimizer optax has.

A live state may hold the parameters themselves, as the same objects; under `jax.eval_shape` it
never does. Inside the state a copy is state.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import linen as nn
from flax import nnx
from flax.training.train_state import TrainState
from jax.sharding import PartitionSpec as P
from optax import contrib

from shardspec.diagnostics import ShardspecError
from shardspec.resolve.state import Relation
from tests.jax_backend.test_train_state import SPLIT, ZERO, names, resolver

PARAMS = {"mlp": {"kernel": jnp.ones((8, 16))}, "out": {"kernel": jnp.ones((16, 32))}}

#: What an optimizer or a wrapper may be made of, by the name of its argument.
ARGUMENTS: dict[str, Callable[[], Any]] = {
    "learning_rate": lambda: 1e-2,
    "inner": lambda: optax.adam(1e-2),
    "opt": lambda: optax.adam(1e-2),
    "optimizer": lambda: optax.adam(1e-2),
    "base_optimizer": lambda: optax.adam(1e-2),
    "adversarial_optimizer": lambda: optax.sgd(1e-2),
    "fast_optimizer": lambda: optax.adam(1e-2),
    "inner_opt": lambda: optax.adam(1e-2),
    "decay": lambda: 0.9,
    "decay_rate": lambda: 0.9,
    "b1": lambda: 0.9,
    "eta": lambda: 0.1,
    "gamma": lambda: 0.5,
    "seed": lambda: 0,
    "key": lambda: jax.random.key(0),
    "noise_multiplier": lambda: 0.1,
    "l2_norm_clip": lambda: 1.0,
    "max_norm": lambda: 1.0,
    "max_delta": lambda: 1.0,
    "clipping": lambda: 1.0,
    "threshold": lambda: 1.0,
    "num_microbatches": lambda: 2,
    "k": lambda: 2,
    "every_k_schedule": lambda: 2,
    "max_consecutive_errors": lambda: 2,
    "mask": lambda: True,
    "step_size": lambda: 0.1,
    "step_size_fn": lambda: lambda count: 0.1,
    "should_transform_fn": lambda: lambda count: True,
    "should_update_fn": lambda: lambda count: True,
    "weight_decay": lambda: 0.1,
    "memory_size": lambda: 3,
    "max_linesearch_steps": lambda: 3,
    "max_backtracking_steps": lambda: 3,
    "metrics": lambda: {"kernel": lambda updates: updates["mlp"]["kernel"]},
    "measure_name": lambda: "seen",
    "debug": lambda: False,
    "adv_optimizer": lambda: optax.sgd(1e-2),
    "tx": lambda: optax.adam(1e-2),
    "transforms": lambda: {"a": contrib.prodigy(), "b": optax.sgd(1e-2, momentum=0.9)},
    "param_labels": lambda: {"mlp": "a", "out": "b"},
    "freeze_mask": lambda: {"mlp": False, "out": True},
    "measure": lambda: lambda updates, *rest, **more: updates["mlp"]["kernel"],
}


def found_optimizers() -> Iterator[tuple[str, Any]]:
    """Yield what optax offers that is, or makes, a gradient transformation."""
    for module in (optax, contrib):
        for name, make in sorted(vars(module).items()):
            if name.startswith("_") or not callable(make) or inspect.isclass(make):
                continue
            built = _built(make)
            if built is not None:
                yield f"{module.__name__}.{name}", built
    yield "optax.MultiSteps", optax.MultiSteps(contrib.prodigy(), 2)
    hyperparameters = optax.inject_hyperparams(optax.adamw)(learning_rate=1e-2)
    yield "optax.inject_hyperparams", hyperparameters
    yield "optax.chain", optax.chain(contrib.dog(), optax.adam(1e-2))


_REST = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def _built(make: Any) -> Any:
    """Return the transformation that a function makes of generic arguments, None if it does not."""
    try:
        wanted = [
            each.name
            for each in inspect.signature(make).parameters.values()
            if each.default is each.empty
            and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
        ]
        built = make(**{name: ARGUMENTS[name]() for name in wanted})
    except (KeyError, TypeError, ValueError):
        return None
    is_one = hasattr(built, "init") and hasattr(built, "update")
    try:
        if is_one:
            jax.eval_shape(built.init, PARAMS)
    except Exception:  # for parameters that are no tree of these, or in another protocol
        return None
    return built if is_one else None


OPTIMIZERS = dict(found_optimizers())


def test_most_of_optax_is_here() -> None:
    """The list makes itself, so something has to say that it is not empty."""
    known = {"adam", "adafactor", "adamw", "lamb", "lion", "sm3", "lbfgs", "novograd", "adan"}
    assert {f"optax.{name}" for name in known} <= OPTIMIZERS.keys()
    contribs = {"prodigy", "dog", "dowg", "muon", "mechanize", "schedule_free", "momo", "sam"}
    assert {f"optax.contrib.{name}" for name in contribs} <= OPTIMIZERS.keys()
    wrappers = {"chain", "inject_hyperparams", "masked", "multi_transform", "selective_transform"}
    assert {f"optax.{name}" for name in wrappers} <= OPTIMIZERS.keys()
    assert len(OPTIMIZERS) > 110


def answers(found: Any, state: Any, params: Any) -> list[tuple[str, str, str]]:
    """Return path, answer and relation of each array, the same from plan and shardings."""
    plan = found.state_plan(state, params)
    placed = jax.tree.leaves(found.state_shardings(state, params))
    for sharding, planned in zip(placed, plan.arrays, strict=True):
        shape = sharding.shard_shape(planned.param.shape)
        assert shape == planned.shard_shape, planned.path
    return [(each.path, str(each.partition_spec), each.relation) for each in plan.arrays]


def test_one_vector_of_all_is_refused_either_way() -> None:
    tx, found = OPTIMIZERS["optax.flatten"], resolver()
    for state in (tx.init(PARAMS), jax.eval_shape(tx.init, PARAMS)):
        with pytest.raises(ShardspecError, match="SHD205"):
            found.state_shardings(state, PARAMS)


def test_lookahead() -> None:
    tx, found = optax.lookahead(contrib.prodigy(), 5, 0.5), resolver()
    both = optax.LookaheadParams.init_synced(PARAMS)
    live, shapes = tx.init(both), jax.eval_shape(tx.init, both)
    assert answers(found, live, PARAMS) == answers(found, shapes, PARAMS)


@pytest.mark.parametrize("name", sorted(OPTIMIZERS.keys() - {"optax.flatten"}))
def test_a_live_state_has_the_answers_of_its_shapes(name: str) -> None:
    tx, found = OPTIMIZERS[name], resolver()
    live, shapes = tx.init(PARAMS), jax.eval_shape(tx.init, PARAMS)
    said = answers(found, live, PARAMS)
    assert said == answers(found, shapes, PARAMS)
    assert said == answers(found, shapes, jax.eval_shape(lambda: PARAMS))
    assert Relation.PARAMETER not in {relation for _, _, relation in said}
    whole = {"params": PARAMS, "opt_state": live}
    assert found.verify_placement(found.put(whole)) == ()


class Model(nnx.Module):
    def __init__(self) -> None:
        init = nnx.with_partitioning(
            nnx.initializers.ones_init(), (None, "mlp"), eager_sharding=False
        )
        self.mlp = nnx.Linear(8, 16, use_bias=False, kernel_init=init, rngs=nnx.Rngs(0))


class Averaged(TrainState):  # type: ignore[misc]
    """A train state that starts with its parameters as their own average."""

    ema: Any = None


def linen(tx: Any) -> Any:
    params = names(nn.LogicallyPartitioned)
    return Averaged.create(apply_fn=None, params=params, tx=tx, ema=params)


def of_nnx(tx: Any) -> Any:
    model = Model()
    return {"model": nnx.state(model), "rest": nnx.state(nnx.Optimizer(model, tx, wrt=nnx.Param))}


def equinox(tx: Any) -> Any:
    eqx = pytest.importorskip("equinox")

    class Layer(eqx.Module):
        kernel: Any
        activation: Any

    params = {"mlp": eqx.filter(Layer(jnp.ones((8, 16)), jnp.tanh), eqx.is_array)}
    return (params, tx.init(params))


def haiku(tx: Any) -> Any:
    hk = pytest.importorskip("haiku")

    def forward(x: Any) -> Any:
        return x @ hk.get_parameter("kernel", (8, 16), init=jnp.ones)

    init = hk.transform(lambda x: hk.to_module(forward)("mlp")(x)).init
    params = init(jax.random.key(0), jnp.ones((2, 8)))
    return {"params": params, "opt_state": tx.init(params), "average": params}


def plain(tx: Any) -> Any:
    params = names()
    return {"params": params, "opt_state": tx.init(params), "ema": {"copy": params}}


KEEPERS = {
    "prodigy": contrib.prodigy,
    "dog": contrib.dog,
    "sam": lambda: contrib.sam(optax.adam(1e-2), optax.sgd(1e-2)),
    "adam": lambda: optax.adam(1e-2),
}


@pytest.mark.parametrize("tx", KEEPERS)
@pytest.mark.parametrize("form", [linen, of_nnx, equinox, haiku, plain])
def test_every_framework_and_every_verb(form: Any, tx: str) -> None:
    found = resolver(ZERO)
    tree = form(KEEPERS[tx]())
    shapes = jax.eval_shape(lambda: jax.tree.map(jnp.asarray, tree))
    placed = jax.tree.leaves(found.shardings(tree))
    assert placed == jax.tree.leaves(found.shardings(shapes))
    specs = [sharding.spec for sharding in placed if sharding.spec]
    assert specs.count(P(None, "model")) == 1
    assert specs.count(SPLIT) == len(specs) - 1 > 0
    planned = found.plan(tree)
    assert list(planned) == list(found.plan(shapes))
    assert len(set(planned)) == len(planned)
    moved = found.put(tree)
    assert found.verify_placement(moved) == ()
    assert jax.tree.leaves(found.shardings(moved)) == placed


def test_the_path_of_a_copy_says_where_it_is() -> None:
    found, params = resolver(ZERO), names()
    state = {"mu": params, "ema": {"slow": params}}
    assert list(found.state_plan(state, params)) == ["ema/slow/mlp/kernel", "mu/mlp/kernel"]
    whole = linen(optax.adam(1e-2))
    assert "ema/mlp/kernel" in list(found.plan(whole))
    assert found.plan(whole)["mlp/kernel"].param.path == "mlp/kernel"
