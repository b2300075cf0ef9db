"""One step in every wrapper that JAX and its frameworks have: the same arrays by the same names."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shardspec.ir.step import Step
from shardspec.jax_backend.step.reading import step_of
from tests.models import small_steps

SHAPES = {
    "bias": (1024,),
    "left/wi": (1024, 1024),
    "left/wo": (1024, 1024),
    "wi": (1024, 4096),
    "unused": (1024, 4096),
    "wo": (4096, 1024),
}
SPEC = small_steps.SPEC.replace("params:\n", 'params:\n  "{unused,**/unused}": _ mlp\n')
RATE = 0.1


def struct(shape: tuple[int, ...]) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def plain() -> Any:
    made: dict[str, Any] = {name: struct(SHAPES[name]) for name in SHAPES if "/" not in name}
    made["left"] = {name: struct(SHAPES[f"left/{name}"]) for name in ("wi", "wo")}
    return made


X = struct((65536, 1024))


def loss(p: Any, x: Any) -> Any:
    hidden = jax.nn.relu(x @ p["left"]["wi"]) @ p["left"]["wo"] + p["bias"]
    return jnp.sum((jax.nn.relu(hidden @ p["wi"]) @ p["wo"]) ** 2)


def update(p: Any, x: Any, rate: float = RATE) -> Any:
    grads = jax.grad(loss)(p, x)
    return jax.tree.map(lambda w, g: w - rate * g, p, grads)


def named(p: Any, *, x: Any, rate: float = RATE) -> Any:
    return update(p, x, rate)


def last(rate: float, x: Any, mode: str, p: Any) -> Any:
    return update(p, x, rate) if mode == "train" else p


def filtered(p: Any, x: Any) -> Any:
    import equinox as eqx

    return step_of(resolver(), eqx.filter_jit(update, donate="all"), p, x)


class Trainer:
    """A loop as a class: `self` is static in one method, and holds no arrays."""

    @functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
    def train(self, p: Any, x: Any) -> Any:
        return update(p, x)


def by_method(p: Any, x: Any) -> Any:
    """A model whose method is jitted: the arrays are those of `self`."""
    import equinox as eqx

    class Model(eqx.Module):
        bias: Any
        left: Any
        unused: Any
        wi: Any
        wo: Any

        @eqx.filter_jit
        def train(self, x: Any) -> Any:
            return update(vars(self), x)

    return step_of(resolver(), Model(**p).train, x)


def resolver() -> Any:
    return small_steps.resolver(spec=SPEC)


def placed(p: Any, x: Any) -> Any:
    own = resolver()
    both = (own.shardings(p), own.sharding("batch _"))
    return step_of(own, jax.jit(update, in_shardings=both, out_shardings=both[0]), p, x)


def of(function: Any, order: Callable[[Any, Any], tuple[tuple[Any, ...], dict[str, Any]]]) -> Any:
    def run(p: Any, x: Any) -> Step:
        args, kwargs = order(p, x)
        return step_of(resolver(), function, *args, **kwargs)

    return run


WRAPPERS: dict[str, Callable[[Any, Any], Step]] = {
    "no jit": of(update, lambda p, x: ((p, x), {})),
    "donated": of(jax.jit(update, donate_argnums=0), lambda p, x: ((p, x), {})),
    "donated by name": of(jax.jit(named, donate_argnames="p"), lambda p, x: ((), {"x": x, "p": p})),
    "keyword": of(jax.jit(named), lambda p, x: ((p,), {"x": x})),
    "static number": of(jax.jit(update, static_argnums=2), lambda p, x: ((p, x, RATE), {})),
    "static by name": of(
        jax.jit(named, static_argnames="rate"), lambda p, x: ((p,), {"rate": RATE, "x": x})
    ),
    "static first and between": of(
        jax.jit(last, static_argnums=(0, 2)), lambda p, x: ((RATE, x, "train", p), {})
    ),
    "a number": of(jax.jit(update), lambda p, x: ((p, x, RATE), {})),
    "kept unused": of(jax.jit(update, keep_unused=True), lambda p, x: ((p, x), {})),
    "partial": of(
        functools.partial(jax.jit(last, static_argnums=(0, 2)), RATE),
        lambda p, x: ((x, "train", p), {}),
    ),
    "partial with arrays": lambda p, x: step_of(
        resolver(), functools.partial(jax.jit(named, static_argnames="rate"), p, rate=RATE), x=x
    ),
    "partial without jit": lambda p, x: step_of(resolver(), functools.partial(update, p), x),
    "jit of a partial": of(
        jax.jit(functools.partial(named, rate=RATE)), lambda p, x: ((p,), {"x": x})
    ),
    "jit in jit": of(
        jax.jit(lambda x, unused, p: jax.jit(update, donate_argnums=0)(p, x)),
        lambda p, x: ((x, X, p), {}),
    ),
    "method": of(Trainer().train, lambda p, x: ((p, x), {})),
    "method of a model": by_method,
    "with shardings": placed,
    "filter_jit": filtered,
}


def rows(step: Step) -> list[tuple[Any, ...]]:
    found = (
        (str(each.kind), each.mesh_axes, each.wire_bytes, str(each.carries), each.array.shape)
        for each in step.collectives
        if each.wire_bytes > 1000
    )
    return sorted(found)


def check_names(step: Step) -> None:
    """Hold every argument to the plan, and every collective to the array that it names."""
    plan = {each.param.path: each for each in resolver().plan(plain()).arrays}
    for argument in step.arguments:
        if argument.path in plan:
            planned = plan[argument.path]
            assert argument.array.shape == planned.param.shape
            assert argument.array.split == planned.partition_spec
    for each in step.collectives:
        if each.carries.kind in ("weight", "gradient"):
            assert sorted(each.array.shape) == sorted(SHAPES[each.carries.name])
            assert each.payload_bytes <= 4 * math.prod(SHAPES[each.carries.name])


@functools.cache
def expected() -> list[tuple[Any, ...]]:
    return rows(WRAPPERS["no jit"](plain(), X))


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapper_changes_no_name(name: str) -> None:
    step = WRAPPERS[name](plain(), X)
    check_names(step)
    assert rows(step) == expected()


def test_nnx_may_group_the_arrays_of_a_module() -> None:
    import optax
    from flax import nnx

    class Part(nnx.Module):
        def __init__(self, **shapes: tuple[int, ...]) -> None:
            for name, shape in shapes.items():
                setattr(self, name, nnx.Param(jnp.zeros(shape)))

    class Model(Part):
        def __init__(self) -> None:
            super().__init__(**{name: SHAPES[name] for name in SHAPES if "/" not in name})
            self.left = Part(wi=SHAPES["left/wi"], wo=SHAPES["left/wo"])
            self.count = nnx.BatchStat(jnp.zeros(3))

    def made() -> Any:
        model = Model()
        return model, nnx.Optimizer(model, optax.adam(RATE), wrt=nnx.Param)

    def train(model: Any, optimizer: Any, x: Any) -> Any:
        def of_model(model: Any) -> Any:
            arrays = nnx.to_pure_dict(nnx.state(model, nnx.Param))
            return loss(arrays, x)

        optimizer.update(model, nnx.grad(of_model)(model))

    model, optimizer = nnx.eval_shape(made)
    params, moments = nnx.state(model), nnx.state(optimizer)
    own = resolver()
    places = (
        nnx.StateSharding(own.shardings(params)),
        nnx.StateSharding(own.state_shardings(moments, params)),
    )
    grouped = nnx.jit(train, in_shardings=(*places, None))
    steps = [step_of(own, each, model, optimizer, X) for each in (grouped, nnx.jit(train))]
    for step in steps:
        check_names(step)
        assert {each.path for each in step.arguments if each.role == "parameter"} >= set(SHAPES)
    assert rows(steps[0]) == rows(steps[1])


def test_a_norm_of_all_gradients_is_none_of_them() -> None:
    import optax

    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(RATE))

    def train(p: Any, state: Any, x: Any) -> Any:
        updates, state = tx.update(jax.grad(loss)(p, x), state, p)
        return optax.apply_updates(p, updates), state

    step = step_of(resolver(), train, plain(), jax.eval_shape(tx.init, plain()), X)
    scalars = [each for each in step.collectives if not each.array.shape]
    assert scalars
    assert {each.carries.kind for each in scalars}.isdisjoint({"gradient", "weight"})
    check_names(step)


def test_arrays_that_only_the_list_names_are_said_to_be_a_batch() -> None:
    named = SPEC.partition("params:")[0] + "arrays: {wi: 'f32[embed=1024 mlp=4096]'}\n"
    own = small_steps.resolver(spec=named + "axes: {batch: 64}\n")
    step = step_of(own, lambda p, x: x @ p["wi"], {"wi": struct((1024, 4096))}, X)
    (note,) = step.notes
    assert note.startswith("1 array of the spec, first `p/wi`, taken for a batch")


def test_an_array_of_the_batch_may_have_the_path_of_a_parameter() -> None:
    p = {"wi": struct((1024, 4096))}
    batch = {"wi": struct((64, 16, 1024)), "mask": struct((64, 16))}
    step = step_of(resolver(), lambda p, b: (b["wi"] @ p["wi"]) * b["mask"][..., None], p, batch)
    roles = {each.path: each.role for each in step.arguments}
    assert roles == {"wi": "parameter", "b/mask": "batch", "b/wi": "batch"}


def test_a_copy_of_the_parameters_is_named_as_they_are() -> None:
    p = {"wi": struct((1024, 4096))}
    step = step_of(resolver(), lambda p, frozen, x: x @ p["wi"] + x @ frozen["wi"], p, p, X)
    assert [each.role for each in step.arguments] == ["parameter", "parameter", "batch"]


def test_a_part_of_the_model_is_no_state_of_another() -> None:
    names = ("block", "model", "lm_head")
    p: dict[str, Any] = {name: {"wi": struct((1024, 1024))} for name in names}
    p["wi"] = struct((1024, 1024))
    p["model"] |= {"wo": struct((1024, 1024)), "whole": struct((1024, 1024))}

    def train(p: Any, x: Any) -> Any:
        def of(p: Any) -> Any:
            for weight in jax.tree.leaves(p):
                x_ = jnp.tanh(x @ weight)
            return jnp.sum(functools.reduce(jnp.matmul, jax.tree.leaves(p), x_))

        return jax.tree.map(lambda w, g: w - RATE * g, p, jax.grad(of)(p))

    step = step_of(resolver(), train, p, X)
    paths = {"block/wi", "lm_head/wi", "model/wi", "model/wo", "model/whole", "wi"}
    assert {each.path for each in step.arguments if each.role == "parameter"} == paths
    moments = {"weights": p["model"], "a": p["model"], "b": p["model"]}
    step = step_of(resolver(), lambda s, x: train(s, x)["weights"], moments, X)
    paths = {f"weights/{name}" for name in p["model"]}
    assert {each.path for each in step.arguments if each.role == "parameter"} == paths


def test_nnx_passes_a_shared_array_on_once() -> None:
    import optax
    from flax import nnx

    class Part(nnx.Module):
        def __init__(self) -> None:
            self.wi = nnx.Param(jnp.zeros(SHAPES["wi"]))
            self.wo = nnx.Param(jnp.zeros(SHAPES["wo"]))

    class Tied(nnx.Module):
        def __init__(self) -> None:
            self.first = Part()
            self.second = self.first
            self.wo = self.first.wo

    def made() -> Any:
        model = Tied()
        return model, nnx.ModelAndOptimizer(model, optax.adam(RATE))

    def train(model: Any, optimizer: Any, x: Any) -> Any:
        def of_model(model: Any) -> Any:
            return jnp.sum((jax.nn.relu(x @ model.second.wi[...]) @ model.wo[...]) ** 2)

        optimizer.update(nnx.grad(of_model)(model))

    step = step_of(resolver(), nnx.jit(train), *nnx.eval_shape(made), X)
    params = [each.path for each in step.arguments if each.role == "parameter"]
    assert params == ["first/wi", "first/wo"]
    assert {each.carries.name for each in step.collectives} >= set(params)
