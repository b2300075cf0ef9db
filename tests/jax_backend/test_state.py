"""Optimizer state of real optimizers: laid out by its parameters, with the same numbers."""

from __future__ import annotations

import dataclasses
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx
from flax.core import freeze
from flax.training.train_state import TrainState
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from optax import contrib

from shardspec.diagnostics import Severity, ShardspecError
from shardspec.ir.spec import Override, Pattern, StatePolicy
from shardspec.jax_backend.resolver import Resolver
from shardspec.public import loads
from shardspec.resolve.state import Relation
from tests.jax_backend.specs import make_spec

NAMES = {
    "wi/kernel": "embed mlp",
    "wi/bias": "mlp",
    "wo/kernel": "mlp embed",
    "mix/kernel": "embed heads",
}
SIZES = {"wi/kernel": (16, 32), "wi/bias": (32,), "wo/kernel": (32, 16), "mix/kernel": (16, 16)}


def resolver(policy: StatePolicy | None = None, **more: Any) -> Resolver:
    spec = make_spec(**{"params": {f"**/{path}": n for path, n in NAMES.items()}, **more})
    return Resolver(dataclasses.replace(spec, state=policy))


def nested(make: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, sizes in SIZES.items():
        above, last = path.split("/")
        tree.setdefault(above, {})[last] = make(path, sizes)
    return tree


def init(rng: jax.Array) -> dict[str, Any]:
    keys = dict(zip(SIZES, jax.random.split(rng, len(SIZES)), strict=True))
    return nested(lambda path, sizes: jax.random.normal(keys[path], sizes) * 0.3)


def loss_of(params: Any, x: Any) -> Any:
    h = jax.nn.relu(x @ params["mix"]["kernel"] @ params["wi"]["kernel"] + params["wi"]["bias"])
    return jnp.mean((h @ params["wo"]["kernel"] - jnp.roll(x, 1)) ** 2)


def step(tx: Any, params: Any, state: Any, x: Any) -> tuple[Any, Any]:
    gradients = jax.grad(loss_of)(params, x)
    updates, state = tx.update(gradients, state, params)
    return optax.apply_updates(params, updates), state


LABELS = {"wi": "adam", "wo": "sgd", "mix": "adam"}
OPTIMIZERS = {
    "adam": lambda: optax.adam(1e-2),
    "adamw": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-2)),
    "adafactor": lambda: optax.adafactor(1e-2, min_dim_size_to_factor=4),
    "adafactor, momentum": lambda: optax.adafactor(
        1e-2, min_dim_size_to_factor=4, multiply_by_parameter_scale=False, momentum=0.9
    ),
    "adafactor, not factored": lambda: optax.adafactor(1e-2),
    "sm3": lambda: optax.sm3(1e-2),
    "lion": lambda: optax.lion(1e-2),
    "lamb": lambda: optax.lamb(1e-2),
    "momentum": lambda: optax.sgd(1e-2, momentum=0.9),
    "novograd": lambda: optax.novograd(1e-2),
    "several steps": lambda: optax.MultiSteps(optax.adam(1e-2), 2),
    "hyperparameters": lambda: optax.inject_hyperparams(optax.adamw)(learning_rate=1e-2),
    "several optimizers": lambda: optax.multi_transform(
        {"adam": optax.adam(1e-2), "sgd": optax.sgd(1e-2, momentum=0.9)}, LABELS
    ),
    "masked": lambda: optax.masked(
        optax.adam(1e-2), {"wi": {"kernel": True, "bias": False}, "wo": True, "mix": True}
    ),
    "averages": lambda: optax.chain(optax.adam(1e-2), optax.ema(0.9)),
    "muon": lambda: contrib.muon(1e-2),
    "schedule free": lambda: contrib.schedule_free(optax.sgd(1e-2), 1e-2, 0.9),
    "if finite": lambda: optax.apply_if_finite(optax.adam(1e-2), 3),
}


@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *((name, None) for name in OPTIMIZERS),
        *((name, StatePolicy("zero1")) for name in ("adam", "adafactor", "sm3", "masked")),
    ],
)
def test_init_and_steps(name: str, policy: StatePolicy | None) -> None:
    tx, found, rng = OPTIMIZERS[name](), resolver(policy), jax.random.key(0)
    abstract = jax.eval_shape(init, rng)
    state = jax.eval_shape(tx.init, abstract)
    places, state_places = found.shardings(abstract), found.state_shardings(state, abstract)
    assert jax.tree.structure(state_places) == jax.tree.structure(state)
    plan = found.state_plan(state, abstract)
    assert plan.diagnostics == ()

    x = jax.random.normal(jax.random.key(1), (8, 16))
    params = jax.jit(init, out_shardings=places)(rng)
    live = jax.jit(tx.init, out_shardings=state_places)(params)
    run = jax.jit(
        lambda p, s, x: step(tx, p, s, x),
        in_shardings=(places, state_places, found.sharding("batch _", x.shape)),
        out_shardings=(places, state_places),
    )
    run_plain = jax.jit(lambda p, s: step(tx, p, s, x))
    plain_params = init(rng)
    plain = tx.init(plain_params)
    for _ in range(2):
        params, live = run(params, live, x)
        plain_params, plain = run_plain(plain_params, plain)
    for array, planned in zip(jax.tree.leaves(live), plan.arrays, strict=True):
        shapes = {shard.data.shape for shard in array.addressable_shards}
        assert shapes == {planned.shard_shape}, planned.path
    compared = zip(
        jax.tree.leaves((params, live)), jax.tree.leaves((plain_params, plain)), strict=True
    )
    for one, other in compared:
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=2e-3, atol=2e-5)


def specs_of(found: Resolver, tx: Any, params: Any) -> dict[str, Any]:
    """Return path -> partition spec, the same from the plan and from the shardings."""
    state = jax.eval_shape(tx.init, params)
    plan = found.state_plan(state, params)
    flat = jax.tree.leaves(found.state_shardings(state, params))
    assert len(flat) == len(plan)
    for sharding, planned in zip(flat, plan.arrays, strict=True):
        assert sharding.spec == P(
            *(
                dim.mesh_axes if len(dim.mesh_axes) > 1 else "".join(dim.mesh_axes) or None
                for dim in planned.dims
            )
        ), planned.path
    return dict(zip(plan, (sharding.spec for sharding in flat), strict=True))


def abstract() -> Any:
    return nested(lambda path, sizes: jax.ShapeDtypeStruct(sizes, jnp.float32))


def boxed(path: str, sizes: tuple[int, ...], kind: Any = nn.Partitioned) -> Any:
    return kind(jax.ShapeDtypeStruct(sizes, jnp.float32), tuple(NAMES[path].split()))


def nnx_state() -> Any:
    def variable(path: str, sizes: tuple[int, ...]) -> nnx.Param:
        array = jax.ShapeDtypeStruct(sizes, jnp.float32)
        names = tuple(NAMES[path].split())
        return nnx.Param(array, out_sharding=names, eager_sharding=False)

    return nnx.State(nested(variable))


FORMS = {
    "boxed": lambda: nested(boxed),
    "logical boxes": lambda: nested(lambda p, s: boxed(p, s, nn.LogicallyPartitioned)),
    "with a collection": lambda: {"params": nested(boxed)},
    "frozen": lambda: freeze({"params": nested(boxed)}),
    "nnx": nnx_state,
    "by path, with a collection": lambda: {"params": abstract()},
}


@pytest.mark.parametrize("name", ["adam", "adafactor", "sm3", "muon", "masked", "novograd"])
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_the_parameters_has_the_same_answers(name: str, form: str) -> None:
    params = FORMS[form]()
    if name == "masked":
        mask = jax.tree.map(lambda leaf: leaf.ndim > 1, params)
        plain_mask = jax.tree.map(lambda leaf: leaf.ndim > 1, abstract())
        pair = optax.masked(optax.adam(1e-2), mask), optax.masked(optax.adam(1e-2), plain_mask)
    elif name == "muon":
        pair = (OPTIMIZERS["lion"](),) * 2 if form == "nnx" else (OPTIMIZERS[name](),) * 2
    else:
        pair = (OPTIMIZERS[name](),) * 2
    expected = specs_of(resolver(), pair[1], abstract())
    assert any(spec for spec in expected.values())
    more = {} if form.startswith("by path") else {"params": {}}
    assert specs_of(resolver(**more), pair[0], params) == expected


def test_a_plan_of_the_parameters_serves_as_well() -> None:
    found, tx = resolver(), OPTIMIZERS["adafactor"]()
    state = jax.eval_shape(tx.init, abstract())
    plan = found.plan(abstract())
    assert found.state_shardings(state, plan) == found.state_shardings(state, abstract())
    assert found.state_plan(state, plan).arrays == found.state_plan(state, abstract()).arrays
    with pytest.raises(TypeError, match="plan has none"):
        found.grad_shardings(plan)


def test_adafactor_lacks_the_dimension_that_the_plan_says() -> None:
    """A square matrix: what is in `v_row` tells which dimension optax took the mean over."""
    tx = optax.scale_by_factored_rms(min_dim_size_to_factor=4)
    params = abstract()
    plan = resolver().state_plan(jax.eval_shape(tx.init, params), params)
    gradients = nested(lambda path, sizes: jnp.arange(np.prod(sizes)).reshape(sizes) + 1.0)
    live = jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), params)
    _, after = tx.update(gradients, tx.init(live), live)
    for path in ("mix/kernel", "wi/kernel"):
        above, last = path.split("/")
        for field in ("v_row", "v_col"):
            (dropped,) = plan[f"{field}/{path}"].dropped
            mean = jnp.mean(gradients[above][last] ** 2, axis=dropped)
            rows = getattr(after, field)[above][last]
            np.testing.assert_allclose(rows / rows[0], mean / mean[0], rtol=1e-4)
    assert plan["v_row/mix/kernel"].partition_spec.dims == (("data",),)
    assert plan["v_col/mix/kernel"].partition_spec.dims == (("model",),)


class Kept(NamedTuple):
    """The state of an optimizer of one's own."""

    mean: Any


def of_means(axis: int = 0) -> Any:
    return optax.GradientTransformation(
        lambda params: Kept(jax.tree.map(lambda p: jnp.mean(p, axis), params)), lambda *a: a
    )


def test_an_unknown_optimizer_with_a_square_matrix_is_refused_until_the_spec_says_which() -> None:
    params = abstract()
    state = jax.eval_shape(of_means().init, params)
    with pytest.raises(ShardspecError) as error:
        resolver().state_shardings(state, params)
    (found,) = error.value.diagnostics
    assert found.code.id == "SHD408"
    assert "`mean/mix/kernel` f32[16] may be `mix/kernel` f32[16, 16]" in found.message
    assert "without dim 1 (heads) or without dim 0 (embed)" in found.message
    assert '`{path: "mean/mix/kernel", axes: heads, because: ...}`' in (found.help or "")
    override = Override(Pattern("mean/mix/kernel"), ("heads",), because="the mean over dim 0")
    spec = {"overrides": [override]}
    assert specs_of(resolver(**spec), of_means(), params)["mean/mix/kernel"] == P("model")
    plan = resolver(**spec).state_plan(state, params)
    assert plan["mean/mix/kernel"].relation is Relation.OWN
    assert "override `mean/mix/kernel`" in plan.explain("mean/mix/kernel")
    assert plan["mean/wi/kernel"].relation is Relation.REDUCED
    allowed = resolver(lints={"ambiguous-state": Severity.ALLOW})
    assert allowed.state_shardings(state, params).mean["mix"]["kernel"].spec == P(None)


def test_the_override_of_an_ambiguous_state_without_names_can_be_copied() -> None:
    """More than one dimension has a comma in its spec, which YAML wants quoted."""
    text = """
shardspec: 1
mesh: {data: 2, model: 4}
rules: []
overrides:
  - {path: w, spec: "(data, model, none)", because: stated}
"""
    params = {"w": jax.ShapeDtypeStruct((16, 16, 16), jnp.float32)}
    state = jax.eval_shape(of_means(1).init, params)
    (found,) = Resolver(loads(text)).state_plan(state, params).diagnostics
    entries = re.findall(r"`(\{path: .*?\})`", found.help or "")
    assert len(entries) == 3
    for entry in entries:
        says = text + f"  - {entry.replace('...', 'the mean')}\n"
        assert Resolver(loads(says)).state_plan(state, params).diagnostics == ()


def test_layers_of_an_ambiguous_state_are_one_finding() -> None:
    params = {f"layer_{n}": {"mix": {"kernel": boxed("mix/kernel", (16, 16))}} for n in range(12)}
    state = jax.eval_shape(of_means().init, jax.tree.map(lambda x: x, params))
    (found,) = resolver(params={}).state_plan(state, params).diagnostics
    assert "mean/layer_{0..11}/mix/kernel" in found.message
    assert found.notes[0] == "12 arrays, 768 B in all"


def test_equal_answers_are_no_ambiguity() -> None:
    params = {"w": jax.ShapeDtypeStruct((8, 16, 16), jnp.float32)}
    found = resolver(params={"w": "mlp _ _"})
    assert specs_of(found, of_means(-1), params) == {"mean/w": P("model", None)}


def test_entries_for_the_model_do_not_name_its_state() -> None:
    """`**/kernel` matches the rows of Adafactor too, and has too many names for them."""
    found = resolver(params={"**/kernel": "embed mlp", "**/bias": "mlp"})
    tx = optax.adafactor(1e-2, min_dim_size_to_factor=4)
    assert specs_of(found, tx, abstract())["0/v_row/wo/kernel"] == P("model")


def test_an_entry_for_state_with_too_many_names_is_an_error() -> None:
    found = resolver(params={f"**/{p}": n for p, n in NAMES.items()} | {"**/v_row/**": "_ embed"})
    tx = optax.adafactor(1e-2, min_dim_size_to_factor=4)
    state = jax.eval_shape(tx.init, abstract())
    with pytest.raises(ShardspecError) as error:
        found.state_shardings(state, abstract())
    assert {diagnostic.code.id for diagnostic in error.value.diagnostics} == {"SHD206"}


def test_a_fault_of_the_parameters_is_raised() -> None:
    params = {"w": jax.ShapeDtypeStruct((4, 4), jnp.float32)}
    with pytest.raises(ShardspecError, match="SHD205"):
        resolver().state_shardings(jax.eval_shape(optax.adam(1.0).init, params), params)


@pytest.mark.skipif(
    tuple(map(int, version("flax").split(".")[:3])) < (0, 12, 7),
    reason="Flax has `optimizer_sharding` from 0.12.7 on",
)
def test_names_of_the_state_alone() -> None:
    """`optimizer_sharding` of NNX names the moments otherwise than the parameter."""
    names = {"out_sharding": ("embed", "mlp"), "optimizer_sharding": ("mlp", "embed")}
    array = jax.ShapeDtypeStruct((16, 32), jnp.float32)
    params = nnx.State({"w": nnx.Param(array, eager_sharding=False, **names)})
    optimizer = nnx.eval_shape(
        lambda: nnx.Optimizer(
            nnx.Dict(w=nnx.Param(jnp.ones((16, 32)), eager_sharding=False, **names)),
            optax.adam(1.0),
            wrt=nnx.Param,
        )
    )
    plan = resolver(params={}).state_plan(nnx.state(optimizer), params)
    assert plan["opt_state/0/mu/w"].relation is Relation.OWN
    assert str(plan["opt_state/0/mu/w"].partition_spec) == "P('model', 'data')"
    assert str(plan["opt_state/0/mu/w"].owner.partition_spec) == "P('data', 'model')"


class Dense(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        def kernel(*names: str) -> Any:
            ones = nnx.initializers.normal(0.3)
            return nnx.with_partitioning(ones, names, eager_sharding=False)

        self.wi = nnx.Linear(16, 32, use_bias=False, kernel_init=kernel("embed", "mlp"), rngs=rngs)
        self.wo = nnx.Linear(32, 16, use_bias=False, kernel_init=kernel("mlp", "embed"), rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.wo(jax.nn.relu(self.wi(x)))


def nnx_step(model: Any, optimizer: Any, x: Any) -> Any:
    value, gradients = nnx.value_and_grad(lambda m: jnp.mean((m(x) - x) ** 2))(model)
    optimizer.update(model, gradients)
    return value


@pytest.mark.parametrize("name", ["adam", "adafactor", "momentum"])
def test_nnx_optimizer(name: str) -> None:
    found, x = resolver(StatePolicy("zero1"), params={}), jnp.ones((8, 16)) * 0.5

    def build() -> tuple[Any, Any]:
        model = Dense(nnx.Rngs(0))
        return model, nnx.Optimizer(model, OPTIMIZERS[name](), wrt=nnx.Param)

    model, optimizer = build()
    params, state = nnx.state(model, nnx.Param), nnx.state(optimizer)
    places = found.state_shardings(state, params)
    assert jax.tree.structure(places) == jax.tree.structure(state)
    nnx.update(model, found.put(params))
    nnx.update(optimizer, jax.device_put(state, places))
    plan = found.state_plan(state, params)
    for array, planned in zip(jax.tree.leaves(nnx.state(optimizer)), plan.arrays, strict=True):
        assert array.addressable_shards[0].data.shape == planned.shard_shape
    plain = build()
    for _ in range(2):
        value = nnx.jit(nnx_step)(model, optimizer, x)
        np.testing.assert_allclose(value, nnx.jit(nnx_step)(*plain, x), rtol=1e-5)


def test_nnx_objects_and_states_agree() -> None:
    found = resolver(params={})
    model = nnx.eval_shape(lambda: Dense(nnx.Rngs(0)))
    optimizer = nnx.eval_shape(lambda: nnx.Optimizer(model, optax.adam(1.0), wrt=nnx.Param))
    params = nnx.state(model, nnx.Param)
    as_object = found.state_shardings(optimizer.opt_state, params)
    as_state = found.state_shardings(nnx.state(optimizer), params)
    assert jax.tree.leaves(as_object) == jax.tree.leaves(as_state)[:-1]
    assert as_object[0].mu["wi"]["kernel"].get_raw_value().spec == P("data", "model")


ZERO = StatePolicy("zero1", over=("data",))


def test_zero_splits_the_state_and_not_the_parameters() -> None:
    found = resolver(ZERO, params={"w": "_ mlp"})
    params = {"w": jnp.ones((8, 16))}
    live = jax.jit(
        optax.adam(1.0).init,
        out_shardings=found.state_shardings(jax.eval_shape(optax.adam(1.0).init, params), params),
    )(params)
    assert live[0].mu["w"].sharding.spec == P("data", "model")
    assert {shard.data.shape for shard in live[0].nu["w"].addressable_shards} == {(4, 4)}
    assert found.put(params)["w"].addressable_shards[0].data.shape == (8, 4)
    plan = found.state_plan(live, params)
    assert "zero1: + data on dim 0" in plan.explain("0/mu/w")
    whole = resolver(params={"w": "_ mlp"}).state_plan(live, params)
    assert (whole.per_device_bytes, plan.per_device_bytes) == (4 + 2 * 128, 4 + 2 * 64)
    assert found.grad_shardings(params)["w"].spec == P(None, "model")


def test_zero2_splits_gradients_as_the_state() -> None:
    found, tx = resolver(StatePolicy("zero2"), params={"w": "_ mlp"}), optax.adam(1e-2)
    params = {"w": jnp.arange(128.0).reshape(8, 16) / 100, "f": jnp.tanh}
    places = found.grad_shardings(params)
    assert places["f"] is None
    assert places["w"].spec == P("data", "model")
    del params["f"]
    state = jax.eval_shape(tx.init, params)
    state_places = found.state_shardings(state, params)

    def update(params: Any, state: Any, constrained: bool) -> Any:
        gradients = jax.grad(lambda p: jnp.sum(jnp.sin(p["w"])))(params)
        if constrained:
            gradients = jax.lax.with_sharding_constraint(gradients, found.grad_shardings(params))
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    run = jax.jit(lambda p, s: update(p, s, True), out_shardings=(None, state_places))
    after, live = run(found.put(params), tx.init(params))
    assert live[0].mu["w"].addressable_shards[0].data.shape == (4, 4)
    plain, _ = update(params, tx.init(params), False)
    np.testing.assert_allclose(after["w"], plain["w"], rtol=1e-5, atol=1e-8)


def test_zero_that_cannot_is_a_warning_with_bytes() -> None:
    params = {"w": jax.ShapeDtypeStruct((4095, 4097), jnp.float32)}
    state = jax.eval_shape(optax.adam(1.0).init, params)
    found = resolver(ZERO, params={"w": "_ _"})
    (warning,) = found.state_plan(state, params).diagnostics
    assert warning.code.id == "SHD407"
    assert "`0/mu/w` f32[4095, 4097]" in warning.message
    assert warning.notes[0] == (
        "2 arrays, first 0/mu/w: 128 MiB of state per device, which could be 64.0 MiB"
    )
    assert found.state_shardings(state, params)[0].mu["w"].spec == P(None, None)
    strict = resolver(ZERO, params={"w": "_ _"}, lints={"state-not-split": Severity.ERROR})
    with pytest.raises(ShardspecError, match="SHD407"):
        strict.state_shardings(state, params)


def test_a_train_state_is_laid_out_as_a_whole() -> None:
    found = resolver(ZERO, params={}, rules=[("mlp", "model"), ("embed", ()), ("heads", ())])
    tx = OPTIMIZERS["adafactor"]()

    def create() -> TrainState:
        arrays = jax.tree.map(
            lambda box: box.replace_boxed(jnp.ones(box.value.shape)),
            nested(boxed),
            is_leaf=lambda node: isinstance(node, nn.Partitioned),
        )
        return TrainState.create(apply_fn=print, params=arrays, tx=tx)

    state = jax.eval_shape(create)
    places = found.shardings(state)
    assert jax.tree.structure(places) == jax.tree.structure(state)
    assert places.step.spec == P()
    assert places.params["wi"]["kernel"].value.spec == P(None, "model")
    assert places.opt_state[0].v_row["wi"]["kernel"].value.spec == P("data")
    live = jax.jit(create, out_shardings=places)()
    assert live.params["wi"]["kernel"].value.addressable_shards[0].data.shape == (16, 8)
    plan = found.plan(state)
    assert len(plan.arrays) == len(jax.tree.leaves(state))
    assert str(plan["wi/kernel"].partition_spec) == "P(None, 'model')"
    assert found.findings(state) == ()
    unboxed = found.shardings(state, boxed=False)
    assert jax.tree.leaves(unboxed) == jax.tree.leaves(places)
    assert unboxed.params["wi"]["kernel"].spec == P(None, "model")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class OptimizerState:
    step: Any
    param_states: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Optimizer:
    state: OptimizerState
    target: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class T5xTrainState:
    _optimizer: Optimizer
    flax_mutables: Any

    @property
    def params(self) -> Any:
        return self._optimizer.target


def test_a_train_state_of_t5x() -> None:
    """Its optimizers keep the fields below the path of the parameter."""

    def fields(path: str, sizes: tuple[int, ...]) -> dict[str, Any]:
        row = jax.ShapeDtypeStruct(sizes[:-1], jnp.float32)
        col = jax.ShapeDtypeStruct(sizes[1:], jnp.float32)
        m = jax.ShapeDtypeStruct(sizes, jnp.float32)
        return {"m": m, "v_row": row, "v_col": col} if len(sizes) > 1 else {"m": m}

    optimizer = Optimizer(OptimizerState(0, nested(fields)), abstract())
    whole = T5xTrainState(optimizer, {})
    found = resolver()
    places = found.shardings(whole)
    states = places._optimizer.state.param_states
    assert states["mix"]["kernel"]["m"].spec == P("data", "model")
    assert states["mix"]["kernel"]["v_row"].spec == P("data")
    assert states["mix"]["kernel"]["v_col"].spec == P("model")
    assert states["wi"]["bias"]["m"].spec == P("model")
    assert places.params["wi"]["kernel"].spec == P("data", "model")
    plan = found.plan(whole)
    assert "_optimizer/state/param_states/wi/kernel/v_row" in {p.param.path for p in plan.arrays}


def test_a_model_and_optimizer_of_nnx() -> None:
    found = resolver(ZERO, params={}, rules=[("mlp", "model"), ("embed", ())])
    state = nnx.eval_shape(
        lambda: nnx.state(nnx.ModelAndOptimizer(Dense(nnx.Rngs(0)), optax.adam(1.0), wrt=nnx.Param))
    )
    places = found.shardings(state)
    assert jax.tree.structure(places) == jax.tree.structure(state)
    assert places["model"]["wi"]["kernel"].get_raw_value().spec == P(None, "model")
    assert places["opt_state"][0]["mu"]["wi"]["kernel"].get_raw_value().spec == P("data", "model")


def test_lookahead_by_the_parameters_of_the_inner_optimizer() -> None:
    tx = optax.lookahead(optax.adam(1e-2), 5, 0.5)
    state = jax.eval_shape(tx.init, optax.LookaheadParams(abstract(), abstract()))
    places = resolver().state_shardings(state, abstract())
    assert places.fast_state[0].mu["wi"]["kernel"].spec == P("data", "model")


def test_equinox_modules() -> None:
    eqx = pytest.importorskip("equinox")

    class Layer(eqx.Module):
        kernel: Any
        activation: Any

    module = {"wi": Layer(jnp.ones((16, 32)), jnp.tanh)}
    params = eqx.filter(module, eqx.is_array)
    state = jax.eval_shape(optax.adam(1.0).init, params)
    for given in (params, module):
        places = resolver().state_shardings(state, given)
        assert places[0].mu["wi"].kernel.spec == P("data", "model")
        assert places[0].mu["wi"].activation is None


@pytest.mark.parametrize("form", ["list", "tuple", "array"])
def test_trees_whose_paths_are_numbers(form: str) -> None:
    """A chain is a tuple as well, and `0/1` could be anything by its path alone."""
    arrays = [jnp.ones((8, 16)), jnp.ones((16,))]
    box = nn.Partitioned(arrays[0], ("embed", "mlp"))
    params: Any = {"list": arrays, "tuple": tuple(arrays), "array": box}[form]
    found = resolver(params={"0": "embed mlp", "1": "mlp"})
    state = optax.chain(optax.clip(1.0), optax.adam(1.0)).init(params)
    places = found.state_shardings(state, params)
    assert jax.tree.structure(places) == jax.tree.structure(state)
    assert jax.tree.leaves(places[1][0].mu)[0].spec == P("data", "model")
    assert places[1][0].count.spec == P()


def test_boxes_that_hold_several_arrays_beside_holes() -> None:
    """SM3 keeps a list in each box, and masking leaves boxes empty: as many in all."""
    params = nested(boxed)
    mask = nested(lambda path, sizes: boxed(path, sizes).replace_boxed(path != "wi/kernel"))
    tx = optax.masked(optax.sm3(1.0), mask)
    state = jax.eval_shape(tx.init, params)
    places = resolver(params={}).state_shardings(state, params)
    assert jax.tree.structure(places) == jax.tree.structure(state)
    rows, columns = places.inner_state[0].mu["wo"]["kernel"].value
    assert (rows.spec, columns.spec) == (P("model"), P("data"))
    flat = resolver(params={}).state_shardings(state, params, boxed=False)
    assert flat.inner_state[0].mu["wo"]["kernel"] == [rows, columns]


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path(__file__).parents[2] / "docs" / "optimizer-state.md"
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    program = next(body for language, body in blocks if language == "python")
    printed = next(body for language, body in blocks if language == "text")
    exec(compile(program, str(page), "exec"), {})
    assert capsys.readouterr().out == printed


EXPLICIT = """
mesh: {data: 2 explicit, model: 4 explicit}
rules: [batch -> data, mlp -> model, rows -> data]
params: {w: _ mlp, rows: rows _}
state: {optimizer: zero2}
"""


def test_gradients_are_added_up_before_they_are_summed_up() -> None:
    found = Resolver(loads(EXPLICIT))
    params = {"w": jnp.arange(128.0).reshape(8, 16) / 100, "rows": jnp.ones((4, 3)), "f": jnp.tanh}
    places = found.accumulation_shardings(params)
    assert places.params["w"].spec == P(None, "model", reduced={"data"})
    assert places.sums["w"].spec == P(None, "model", unreduced={"data"})
    assert places.sums["rows"].spec == P("data", None)
    assert places.sums["f"] is None
    del params["f"]
    places = found.accumulation_shardings(params)
    batches = jnp.arange(3.0 * 4 * 8).reshape(3, 4, 8) / 50

    def loss(params: Any, x: Any) -> Any:
        return jnp.sum(jnp.sin(x @ params["w"]))

    @jax.jit
    def step(params: Any, batches: Any) -> Any:
        seen = jax.sharding.reshard(params, places.params)
        start = jax.sharding.reshard(jax.tree.map(jnp.zeros_like, params), places.sums)

        def add(total: Any, x: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(seen, x)), None

        total, _ = jax.lax.scan(add, start, batches)
        return jax.sharding.reshard(total, found.grad_shardings(params))

    with jax.set_mesh(found.mesh):
        split = jax.device_put(batches, NamedSharding(found.mesh, P(None, "data", None)))
        placed = found.put(params)
        after = step(placed, split)
        text = step.lower(placed, split).compile().as_text()
    assert after["w"].sharding.spec == P("data", "model")
    plain = sum(jax.grad(loss)(params, x)["w"] for x in batches)
    np.testing.assert_allclose(after["w"], plain, rtol=1e-5)
    over_data = re.findall(r"(all-reduce|reduce-scatter)\(.*replica_groups=\{\{0,4\}", text)
    assert len(over_data) == 1, "one sum over data, and none in the loop"


def test_sums_of_gradients_need_explicit_axes_and_a_batch() -> None:
    params = {"w": jnp.ones((8, 16))}
    with pytest.raises(ShardspecError, match=r"SHD116.*`data`, `model` are `auto`\n.*8 explicit"):
        Resolver(loads(EXPLICIT.replace(" explicit", ""))).accumulation_shardings(params)
    alone = EXPLICIT.replace("batch -> data, ", "").replace("state: {optimizer: zero2}", "")
    with pytest.raises(ShardspecError, match=r"no mesh axis.*other data\n.*give `batch` a rule"):
        Resolver(loads(alone)).accumulation_shardings(params)
