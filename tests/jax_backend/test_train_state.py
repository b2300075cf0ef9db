"""Trees that hold parameters beside their optimizer state, whatever they call the two."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flax
import jax
import jax.numpy as jnp
import optax
import pytest
from click.testing import CliRunner
from flax import linen as nn
from flax import nnx
from flax.linen.partitioning import AxisMetadata
from flax.training.train_state import TrainState
from jax.sharding import PartitionSpec as P

import shardspec
from shardspec.cli.main import cli
from shardspec.diagnostics import ShardspecError
from shardspec.ir.spec import StatePolicy
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.train_state import contents_of
from shardspec.jax_backend.trees import leaves_of
from tests.jax_backend.specs import make_spec

NAMES = {"**/kernel": "_ mlp", "**/{scale,bias,mean,var}": "_"}
SPLIT = P("data", "model")
ZERO = StatePolicy("zero1", over=("data",))


def resolver(policy: StatePolicy | None = ZERO, **more: Any) -> Resolver:
    return Resolver(dataclasses.replace(make_spec(params=NAMES, **more), state=policy))


def names(box: Any = None) -> dict[str, Any]:
    kernel = jnp.ones((8, 16))
    return {"mlp": {"kernel": kernel if box is None else box(kernel, (None, "mlp"))}}


class Model(nnx.Module):
    def __init__(self) -> None:
        init = nnx.with_partitioning(
            nnx.initializers.ones_init(), (None, "mlp"), eager_sharding=False
        )
        self.mlp = nnx.Linear(8, 16, use_bias=False, kernel_init=init, rngs=nnx.Rngs(0))
        self.norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
        self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))


class Both(nnx.Module):
    def __init__(self, model: Any, optimizer: Any) -> None:
        self.net, self.training = model, optimizer


class Training(NamedTuple):
    weights: Any
    moments: Any
    rng: Any


TX = optax.adam(1e-3)


def pair() -> tuple[Any, Any]:
    model = Model()
    return model, nnx.Optimizer(model, TX, wrt=nnx.Param)


def states() -> tuple[Any, Any]:
    model, optimizer = pair()
    return nnx.state(model), nnx.state(optimizer)


def plain() -> Any:
    return names()


def boxes() -> Any:
    return names(nn.LogicallyPartitioned)


def of_dicts(first: str, second: str) -> Any:
    return dict(zip((first, second), states(), strict=True))


def with_moments(tree: Any) -> Any:
    return tree, TX.init(tree)


def train_state() -> Any:
    return TrainState.create(apply_fn=print, params=boxes(), tx=TX)


#: Name -> what makes a tree of both.
FORMS: dict[str, Callable[[], Any]] = {
    "nnx, other names": lambda: of_dicts("model", "optimizer"),
    "nnx, no names": lambda: of_dicts("a", "b"),
    "nnx, pair": states,
    "nnx, state alone, its optax part": lambda: (states()[0], states()[1]["opt_state"]),
    "nnx, split pair": lambda: nnx.split(pair())[1],
    "nnx, split pair and graph": lambda: nnx.split(pair()),
    "nnx, objects": pair,
    "nnx, module of both": lambda: Both(*pair()),
    "nnx, state of a module of both": lambda: nnx.state(Both(*pair())),
    "nnx, groups": lambda: nnx.split(Both(*pair()), nnx.OptState, ...)[1:],
    "nnx, as dicts": lambda: nnx.to_pure_dict(nnx.state(Both(*pair()))),
    "nnx, wrapped": lambda: nnx.state(nnx.ModelAndOptimizer(Model(), TX, wrt=nnx.Param)),
    "plain pair": lambda: with_moments(plain()),
    "boxed pair": lambda: with_moments(boxes()),
    "variables": lambda: {
        "variables": {"params": boxes(), "stats": {"mean": jnp.ones(3)}},
        "opt": TX.init(boxes()),
    },
    "dict, other names": lambda: {"net": plain(), "optimizer": TX.init(plain()), "step": 3},
    "dict, named": lambda: {
        "params": plain(),
        "optimizer": {"momentum": plain()},
        "ema": plain(),
    },
    "named tuple": lambda: Training(*with_moments(plain()), jax.random.key(0)),
    "train state": train_state,
    "train state, one below": lambda: {"train": train_state()},
    "train state and key": lambda: (train_state(), jax.random.key(0)),
}


def kernels(tree: Any) -> dict[str, Any]:
    return {each.path: each.value for each in leaves_of(tree) if each.path.endswith("kernel")}


@pytest.mark.parametrize("form", FORMS)
def test_moments_are_split_and_parameters_are_not(form: str) -> None:
    tree, found = FORMS[form](), resolver()
    placed = found.shardings(tree)
    assert jax.tree.structure(placed) == jax.tree.structure(tree)
    specs = [sharding.spec for sharding in kernels(placed).values()]
    assert len(specs) > 1
    assert specs.count(P(None, "model")) == 1
    assert specs.count(SPLIT) == len(specs) - 1
    plan = found.plan(tree)
    assert str(plan["mlp/kernel"].partition_spec) == "P(None, 'model')"
    assert len(set(plan)) == len(plan)


@pytest.mark.parametrize("form", FORMS)
def test_every_verb_says_the_same(form: str) -> None:
    tree, found = FORMS[form](), resolver()
    placed = jax.tree.leaves(found.shardings(tree))
    moved = found.put(tree)
    assert jax.tree.leaves(found.shardings(moved)) == placed
    assert jax.tree.leaves(found.shardings(jax.eval_shape(lambda: arrays_of(tree)))) == placed
    assert found.verify_placement(moved) == ()
    abstract = [leaf for leaf in jax.tree.leaves(found.abstract(tree)) if hasattr(leaf, "sharding")]
    numbers = [type(leaf) is int for leaf in jax.tree.leaves(tree)]
    assert [leaf.sharding for leaf in abstract] == [
        sharding for sharding, is_number in zip(placed, numbers, strict=True) if not is_number
    ]
    planned = [str(each.partition_spec) for each in found.plan(tree).arrays]
    held = contents_of(tree).held
    assert held is not None
    state_plan = found.state_plan(tree, held.params)
    assert len(planned) == len(placed) == len(state_plan)


@pytest.mark.parametrize("form", FORMS)
def test_check_sees_moments_that_lie_as_their_parameters(form: str) -> None:
    (said,) = resolver().verify_placement(resolver(None).put(FORMS[form]()))
    assert said.code.id == "SHD901"
    assert "planned P('data', 'model'), found P(None, 'model')" in "\n".join(said.notes)


def arrays_of(tree: Any) -> Any:
    """Return a tree with an array for each number, as `jax.eval_shape` wants it."""
    return jax.tree.map(lambda leaf: leaf, tree)


ZERO_TEXT = """
shardspec: 1
mesh: {data: 2, model: 4}
rules:
  - mlp -> model
params:
  "**/kernel": _ mlp
state: {optimizer: zero1, over: data}
"""


@pytest.mark.parametrize("optimizer", [optax.adam(1.0), optax.adafactor(1.0), optax.sm3(1.0)])
def test_a_spec_that_is_compiled_refuses_state_that_zero_splits(optimizer: Any) -> None:
    params = names()
    state = optimizer.init(params)
    spec = shardspec.loads(ZERO_TEXT)
    train = TrainState.create(apply_fn=len, params=params, tx=optimizer)
    trees = (train, {"params": params, "opt_state": state}, (params, state), {"a": state})
    for tree in trees:
        with pytest.raises(ShardspecError, match=r"SHD004.*optimizer state.*`zero1`"):
            spec.compile(tree)
        assert [found.code.id for found in spec.findings(tree)] == ["SHD004"]
    assert spec.compile(params)["mlp/kernel"].partition_spec.dims == ((), ("model",))
    same = shardspec.loads(ZERO_TEXT.replace("zero1, over: data", "same"))
    assert len(same.compile((params, optax.adam(1.0).init(params)))) == 4


def test_a_function_that_gives_state_is_refused_by_a_spec_with_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("spec.yaml").write_text(ZERO_TEXT)
    Path("given_state.py").write_text(
        "import jax.numpy as jnp, optax\n"
        "def made():\n"
        "    params = {'mlp': {'kernel': jnp.ones((8, 16))}}\n"
        "    return {'params': params, 'opt_state': optax.adam(1.0).init(params)}\n"
        "def alone():\n"
        "    return made()['params']\n"
    )
    run = CliRunner().invoke(cli, ["check", "spec.yaml", "--arrays", "given_state:made"])
    assert run.exit_code == 2
    assert "give `params` alone" in run.output
    run = CliRunner().invoke(cli, ["check", "spec.yaml", "--arrays", "given_state:alone"])
    assert run.exit_code == 0, run.output


class StateOfT5x(TrainState):
    params_axes: Any = None


class Applied(flax.struct.PyTreeNode):
    step: Any
    params: Any
    params_axes: Any = None


@pytest.mark.parametrize("optimizer", [optax.adam(1.0), optax.adafactor(1.0, momentum=0.9)])
@pytest.mark.parametrize("is_dict", [False, True])
def test_a_train_state_with_params_axes_names_its_parameters(optimizer: Any, is_dict: bool) -> None:
    axes = {"mlp": {"kernel_axes": AxisMetadata(("embed", "mlp"))}}
    state: Any = StateOfT5x.create(apply_fn=len, params=names(), tx=optimizer, params_axes=axes)
    if is_dict:
        state = {"params": state.params, "opt_state": state.opt_state, "params_axes": axes}
    found = Resolver(make_spec())
    held = [each for each in found.plan(state).arrays if each.param.shape == (8, 16)]
    assert len(held) >= 2
    assert {str(each.partition_spec) for each in held} == {"P('data', 'model')"}
    assert found.findings(state) == ()
    placed = jax.tree_util.tree_leaves(found.shardings(state))
    assert [each.spec for each in placed].count(SPLIT) == len(held)
    kept = found.put(state)
    assert found.verify_placement(kept) == ()
    assert jax.tree.structure(kept) == jax.tree.structure(state)

    params = {"mlp": {"kernel": jnp.ones((8, 16))}}
    bare = Applied(jnp.array(0), params, axes)
    assert found.shardings(bare).params["mlp"]["kernel"].spec == SPLIT


def test_a_step_takes_names_from_params_axes_of_its_state() -> None:
    axes = {"mlp": {"kernel_axes": AxisMetadata(("embed", "mlp"))}}
    kernel = jax.ShapeDtypeStruct((512, 1024), jnp.float32)
    state = jax.eval_shape(
        lambda: StateOfT5x.create(
            apply_fn=len,
            params={"mlp": {"kernel": jnp.ones(kernel.shape)}},
            tx=optax.adam(1.0),
            params_axes=axes,
        )
    )

    def step(state: Any, x: Any) -> Any:
        loss = lambda params: (x @ params["mlp"]["kernel"]).sum()  # noqa: E731
        return state.apply_gradients(grads=jax.grad(loss)(state.params))

    found = Resolver(make_spec(), devices="abstract")
    cost = found.cost(step, state, jax.ShapeDtypeStruct((64, 512), jnp.float32))
    assert "SHD205" not in str(cost)
