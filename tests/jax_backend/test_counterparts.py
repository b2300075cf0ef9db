"""Training without boxes: the names are read off the boxed shapes once, and told as `like`.

The flow is that of Flax's lm1b example: a boxed train state by `jax.eval_shape`, its shardings,
and an unboxed state that `jax.jit` makes under them and trains.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from flax.training import train_state

from shardspec import Resolver, ShardspecError, loads

SPEC = """\
shardspec: 1
mesh: {data: 2, model: 4}
rules:
  - batch, embed -> data
  - mlp, vocab -> model
"""
ZERO = SPEC.replace("embed -> data", "embed -> none").replace("batch, ", "batch -> data\n  - ")
ZERO += "state: {optimizer: zero1}\n"


def kernel(*names: str) -> Any:
    return nn.with_logical_partitioning(nn.initializers.lecun_normal(), names)


class Model(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        h = nn.Dense(32, use_bias=False, kernel_init=kernel("embed", "mlp"), name="wi")(x)
        return nn.Dense(16, use_bias=False, kernel_init=kernel("mlp", "embed"), name="wo")(h)


MODEL, X = Model(), jnp.ones((8, 16))
TX = optax.adam(1e-2)


def created(rng: Any) -> Any:
    variables = MODEL.init(rng, X)
    return train_state.TrainState.create(apply_fn=MODEL.apply, params=variables["params"], tx=TX)


def lm1b(found: Resolver) -> tuple[Any, Any]:
    """Return the boxed shapes and the unboxed, placed state, as lm1b makes them."""
    rng = jax.random.key(0)
    shapes = jax.eval_shape(created, rng)
    places = found.shardings(shapes, boxed=False)
    return shapes, jax.jit(lambda rng: nn.unbox(created(rng)), out_shardings=places)(rng)


@pytest.fixture(params=[SPEC, ZERO], ids=["fsdp", "zero1"])
def resolver(request: pytest.FixtureRequest) -> Resolver:
    return Resolver(loads(request.param))


def test_the_right_placement_is_called_right(resolver: Resolver) -> None:
    shapes, state = lm1b(resolver)
    assert not isinstance(state.params["wi"]["kernel"], nn.Partitioned)
    assert resolver.verify_placement(state, like=shapes) == ()
    assert resolver.verify_placement(state, like=resolver.plan(shapes)) == ()
    assert resolver.verify_placement(state.params, state.opt_state, like=shapes.params) == ()
    assert resolver.verify_placement(state, like=shapes.params) == ()
    assert resolver.verify_placement(state), "without names nothing is right"


def test_it_stays_right_through_a_step(resolver: Resolver) -> None:
    shapes, state = lm1b(resolver)
    places = resolver.shardings(shapes, boxed=False)

    @partial(jax.jit, out_shardings=places)
    def step(state: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean(state.apply_fn({"params": params}, x) ** 2)

        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    assert resolver.verify_placement(step(state, X), like=shapes) == ()


def test_a_wrong_placement_is_called_wrong(resolver: Resolver) -> None:
    shapes, state = lm1b(resolver)
    moved = jax.device_put(state.params["wi"]["kernel"], jax.devices()[0])
    params = {**state.params, "wi": {"kernel": moved}}
    (found,) = resolver.verify_placement(state.replace(params=params), like=shapes)
    assert found.code.id == "SHD901"
    assert found.message == "`wi/kernel` is on one device"
    mu = state.opt_state[0].mu
    mu = {**mu, "wi": {"kernel": jax.device_put(mu["wi"]["kernel"], jax.devices()[0])}}
    opt_state = (state.opt_state[0]._replace(mu=mu), *state.opt_state[1:])
    for like in (shapes, shapes.params):
        (found,) = resolver.verify_placement(state.replace(opt_state=opt_state), like=like)
        assert found.message == "`opt_state/0/mu/wi/kernel` is on one device"


def test_arrays_of_a_host_are_put_where_the_names_say(resolver: Resolver) -> None:
    shapes, state = lm1b(resolver)
    on_host = jax.tree.map(np.asarray, state)
    for like in (shapes, shapes.params, resolver.plan(shapes)):
        placed = resolver.put(on_host, like=like)
        assert resolver.verify_placement(placed, like=shapes) == ()
        jax.tree.map(np.testing.assert_array_equal, placed, state)


def test_abstract_with_and_without_boxes(resolver: Resolver) -> None:
    shapes, state = lm1b(resolver)
    plain = resolver.abstract(shapes, boxed=False)
    told = resolver.abstract(state, like=shapes)
    assert jax.tree.structure(plain) == jax.tree.structure(told)
    for one, other, array in zip(*map(jax.tree.leaves, (plain, told, state)), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype) == (array.shape, array.dtype)
        assert one.sharding == other.sharding
        assert one.sharding.is_equivalent_to(array.sharding, array.ndim)
    state_alone = resolver.abstract(shapes.opt_state, shapes.params, boxed=False)
    assert jax.tree.structure(state_alone) == jax.tree.structure(state.opt_state)
    with pytest.raises(TypeError, match="like"):
        resolver.abstract(state.opt_state, shapes.params, like=shapes)


def test_a_checkpoint_without_boxes_is_restored(resolver: Resolver, tmp_path: Path) -> None:
    checkpoint = pytest.importorskip("orbax.checkpoint")
    shapes, state = lm1b(resolver)
    tree = {"params": state.params, "opt_state": state.opt_state}
    boxed = {"params": shapes.params, "opt_state": shapes.opt_state}
    with checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "saved", tree)
    unboxed = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)
    assert resolver.checkpoint_findings(tmp_path / "saved", boxed, boxed=False) == ()
    assert resolver.checkpoint_findings(tmp_path / "saved", boxed), "boxes are not in it"
    for restored in (
        resolver.restore(tmp_path / "saved", boxed, boxed=False),
        resolver.restore(tmp_path / "saved", unboxed, like=boxed),
    ):
        assert resolver.verify_placement(restored, like=boxed) == ()
        jax.tree.map(np.testing.assert_array_equal, restored, tree)


def test_a_pure_dict_of_nnx() -> None:
    def annotated(*names: str) -> Any:
        init = nnx.initializers.lecun_normal()
        return nnx.with_partitioning(init, names, eager_sharding=False)

    class Block(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            init = annotated("embed", "mlp")
            self.layers = nnx.List(
                [nnx.Linear(16, 32, use_bias=False, kernel_init=init, rngs=rngs) for _ in range(2)]
            )

    found = Resolver(loads(SPEC))
    state = nnx.state(Block(nnx.Rngs(0)))
    pure = found.put(nnx.to_pure_dict(state), like=state)
    assert found.verify_placement(pure, like=state) == ()
    assert pure["layers"][1]["kernel"].sharding.spec == jax.P("data", "model")
    assert found.verify_placement(nnx.to_pure_dict(found.put(state)), like=found.plan(state)) == ()


def test_collections_and_bare_parameters_are_one() -> None:
    found = Resolver(loads(SPEC))
    boxed = jax.eval_shape(MODEL.init, jax.random.key(0), X)
    variables = nn.unbox(MODEL.init(jax.random.key(0), X))
    for tree in (variables, variables["params"]):
        for like in (boxed, boxed["params"]):
            assert found.verify_placement(found.put(tree, like=like), like=like) == ()


@pytest.mark.parametrize(
    ("tree", "code", "text"),
    [
        ({"wi": {"kernal": np.ones((16, 32))}}, "SHD205", "did you mean `wi/kernel`"),
        ({"other": np.ones(3)}, "SHD205", "`other` f32[3] has no counterpart in `like`, which"),
        ({"wi": {"kernel": np.ones((32, 16))}}, "SHD004", "counterpart in `like` is f32[16, 32]"),
    ],
)
def test_an_array_without_counterpart_is_refused(tree: Any, code: str, text: str) -> None:
    found = Resolver(loads(SPEC))
    boxed = jax.eval_shape(MODEL.init, jax.random.key(0), X)
    for verb in (found.put, found.verify_placement, found.abstract):
        with pytest.raises(ShardspecError) as error:
            verb(tree, like=boxed)
        assert error.value.diagnostics[0].code.id == code
        assert text in str(error.value)
