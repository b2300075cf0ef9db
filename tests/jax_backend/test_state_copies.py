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
    "dim_nums": lambda: None,
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
    yield "optax.MultiSteps", optax.MultiSteps(optax.adam(1e-2), 2)


def _built(make: Any) -> Any:
    """Return the transformation that a function makes of generic arguments, None if it does not."""
    try:
        wanted = [
            each.name
            for each in inspect.signature(make).parameters.values()
            if each.default is each.empty and each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
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
    assert len(OPTIMIZERS) > 90


def answers(found: Any, state: Any, params: Any) -> list[tuple[str, str, str]]:
    """Return path, answer and relation of each array, the same from plan and shardings."""
    plan = found.state_plan(state, params)
    placed = jax.tree.leaves(found.state_shardings(state, params))
    for sharding, planned in zip(placed, plan.arrays, strict=True):
        shape = sharding.shard_shape(planned.sharding.param.shape)
        assert shape == planned.sharding.shard_shape, planned.path
    return [(each.path, str(each.partition_spec), each.relation) for each in plan.arrays]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_live_state_has_the_answers_of_its_shapes(name: str) -> None:
    tx, found = OPTIMIZERS[name], resolver()
    live, shapes = tx.init(PARAMS), jax.eval_shape(tx.init, PARAMS)
    said = answers(found, live, PARAMS)
    assert said == answers(found, shapes, PARAMS)
    assert said == answers(found, shapes, jax.eval_shape(lambda: PARAMS))
    assert Relation.PARAMETER not in {relation for _, _, relation in said}
    whole = {"params": PARAMS, "opt_state": live}
    assert found.check(found.put(whole)) == ()
