from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import shardspec
from shardspec.diagnostics import Severity, ShardspecError
from shardspec.jax_backend.resolver import Resolver
from tests.jax_backend.specs import make_spec
from tests.versions_of_jax import moves_to_host

X = np.arange(32, dtype=np.float32).reshape(4, 8)


@pytest.fixture(scope="module")
def found() -> Resolver:
    return Resolver(
        make_spec(activations={"residual": "batch mlp", "logits": "batch length vocab"})
    )


def constraints(function: Any, *args: Any) -> list[str]:
    """Return the shardings that constrain something in the lowered module."""
    text = jax.jit(function).lower(*args).as_text()
    return re.findall(r"sdy\.sharding_constraint \S+ <@mesh, (\[.*?\])>", text)


def test_it_lands_in_the_lowered_module(found: Resolver) -> None:
    def twice(x: Any) -> Any:
        return found.constrain(found.constrain(x * 2, "batch mlp") + 1, activation="residual")

    assert constraints(twice, X) == ['[{"data"}, {"model"}]'] * 2
    assert constraints(lambda x: x * 2, X) == []
    np.testing.assert_array_equal(jax.jit(twice)(X), X * 2 + 1)


@pytest.mark.filterwarnings("ignore:.with mesh:DeprecationWarning")
@pytest.mark.parametrize("context", ["none", "set_mesh", "legacy"])
def test_under_any_context(found: Resolver, context: str) -> None:
    import contextlib

    managers = {
        "none": contextlib.nullcontext,
        "set_mesh": lambda: jax.set_mesh(found.mesh),
        "legacy": lambda: found.mesh,
    }
    with managers[context]():
        assert constraints(lambda x: found.constrain(x, "batch mlp"), X) == [
            '[{"data"}, {"model"}]'
        ]
        placed = found.constrain(jnp.asarray(X), "batch mlp")
    assert placed.sharding.is_equivalent_to(found.sharding("batch mlp"), 2)


def test_grad_and_vmap(found: Resolver) -> None:
    def loss(x: Any) -> Any:
        return jnp.sum(found.constrain(x, "batch mlp") ** 2)

    np.testing.assert_allclose(jax.jit(jax.grad(loss))(X), 2 * X)
    stacked = jnp.stack([X, X])
    np.testing.assert_array_equal(
        jax.vmap(lambda x: found.constrain(x, "batch mlp"))(stacked), stacked
    )


def test_explicit_axes_are_resharded(found: Resolver) -> None:
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    seen = []

    def function(x: Any) -> Any:
        y = found.constrain(x, "batch mlp")
        seen.append(jax.typeof(y).sharding.spec)
        return y

    with jax.set_mesh(mesh):
        result = jax.jit(function)(X)
    assert seen == [P("data", "model")]
    assert result.sharding.spec == P("data", "model")
    lying = jax.device_put(X, NamedSharding(mesh, P()))
    assert jax.jit(function)(lying).sharding.spec == P("data", "model")
    assert found.constrain(lying, "batch mlp").sharding.spec == P("data", "model")


def test_mixed_axes_get_both(found: Resolver) -> None:
    kinds = (AxisType.Explicit, AxisType.Auto)
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=kinds)
    with jax.set_mesh(mesh):
        result = jax.jit(lambda x: found.constrain(x, "batch mlp"))(X)
    assert result.sharding.spec == P("data", "model")


def test_nothing_inside_shard_map(found: Resolver) -> None:
    @jax.shard_map(mesh=found.mesh, in_specs=P("data", "model"), out_specs=P("data", "model"))
    def function(x: Any) -> Any:
        assert x.shape == (2, 2)
        return found.constrain(x * 2, "_ _")

    assert constraints(function, X) == []
    np.testing.assert_array_equal(jax.jit(function)(X), X * 2)


def test_manual_axes_are_left_out_of_a_partly_manual_mesh(found: Resolver) -> None:
    function = jax.shard_map(
        lambda x: found.constrain(x * 2, "batch mlp"),
        mesh=found.mesh,
        in_specs=P("data"),
        out_specs=P("data"),
        axis_names={"data"},
    )
    np.testing.assert_array_equal(jax.jit(function)(X), X * 2)
    assert jax.jit(function)(X).sharding.spec == P("data", "model")


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize(
    ("sizes", "names"), [((8,), ("x",)), ((4, 2), ("data", "model")), ((2, 4), ("model", "data"))]
)
def test_a_context_of_another_mesh_is_refused_by_its_name(
    found: Resolver, sizes: tuple[int, ...], names: tuple[str, ...], kind: Any
) -> None:
    """XLA replicated what was on axes of the same names and other sizes, and JAX blamed itself."""
    other = jax.make_mesh(sizes, names, axis_types=(kind,) * len(sizes))
    shown = " ".join(map("{}={}".format, names, sizes))
    message = f"mesh data=2 model=4 inside jax.set_mesh of {shown}: .* give jax.set_mesh the"
    for function in (
        found.constrain,
        jax.jit(lambda x, names: found.constrain(x, names), static_argnums=1),
    ):
        with jax.set_mesh(other), pytest.raises(ValueError, match=message):
            function(X, "batch mlp")


def test_a_context_of_the_same_axes_on_other_devices_is_refused(found: Resolver) -> None:
    """JAX refused it with the numbers of devices, at a line of ours."""
    turned = jax.sharding.Mesh(found.mesh.devices[::-1], found.mesh.axis_names)
    message = "inside jax.set_mesh of one with the same axes, and other devices"
    for function in (
        found.constrain,
        jax.jit(lambda x, names: found.constrain(x, names), static_argnums=1),
    ):
        with jax.set_mesh(turned), pytest.raises(ValueError, match=message):
            function(X, "batch mlp")
        with jax.set_mesh(found.mesh):
            function(X, "batch mlp")


@pytest.mark.parametrize(
    ("names", "code", "text"),
    [
        ("batch", "SHD206", "names 1 dimension, the array [4, 8] has 2"),
        ("batch mlp kv", "SHD206", "names 3 dimensions"),
        ("batch mpl", "SHD202", "did you mean `mlp`"),
        ("batch zzz", "SHD202", "known here: `batch`"),
        ("mlp mlp", "SHD209", "mlp"),
    ],
)
def test_wrong_names_are_refused(found: Resolver, names: str, code: str, text: str) -> None:
    for _ in range(2):
        with pytest.raises(ShardspecError) as error:
            jax.jit(lambda x: found.constrain(x, names))(X)
        assert error.value.diagnostics[0].code.id == code
        assert text in str(error.value)


def test_an_activation_by_pattern() -> None:
    text = """
        mesh: {data: 2, model: 4}
        rules: [batch -> data, mlp -> model]
        activations: {"**/hidden": batch mlp, 're:l_[0-9]+/out': batch _, l_1/out: mlp batch}
        """
    resolver = Resolver(shardspec.loads(text))

    def step(x: jax.Array) -> tuple[jax.Array, ...]:
        asked = ("a/b/hidden", "hidden", "l_17/out", "l_1/out")
        return tuple(resolver.constrain(x, activation=name) for name in asked)

    found = [x.sharding.spec for x in jax.jit(step)(X)]
    assert found == [P("data", "model"), P("data", "model"), P("data"), P("model", "data")]
    with pytest.raises(ShardspecError, match="no activation is called `l_x/out`"):
        resolver.constrain(X, activation="l_x/out")


def test_an_unknown_activation(found: Resolver) -> None:
    with pytest.raises(ShardspecError, match="did you mean `residual`"):
        found.constrain(X, activation="residul")
    with pytest.raises(ShardspecError, match="names `residual`, `logits`"):
        found.constrain(X, activation="x")
    with pytest.raises(ShardspecError, match="the spec has no `activations`"):
        Resolver(make_spec()).constrain(X, activation="x")
    silent = Resolver(make_spec(lints={"SHD213": Severity.ALLOW}))
    with pytest.raises(ShardspecError, match="SHD213"):
        silent.constrain(X, activation="x")


def test_an_indivisible_size_is_an_error_unless_the_policy_keeps_it() -> None:
    with pytest.raises(ShardspecError, match="`mlp` = 6 does not divide over `model` = 4"):
        Resolver(make_spec()).constrain(jnp.ones((4, 6)), "batch mlp")
    keep = Resolver(make_spec(indivisible="keep"))
    assert constraints(lambda x: keep.constrain(x, "batch mlp"), jnp.ones((4, 6))) != []
    allowed = Resolver(make_spec(lints={"indivisible": Severity.ALLOW}))
    assert allowed.constrain(jnp.ones((4, 6)), "batch mlp").sharding.spec == P("data", None)


def test_the_next_alternative_is_taken() -> None:
    rules = [("mlp", "model"), ("mlp", "data")]
    assert Resolver(make_spec(rules)).constrain(jnp.ones((4, 6)), "_ mlp").sharding.spec == P(
        None, "data"
    )


def test_a_number_is_an_array_without_dimensions(found: Resolver) -> None:
    assert found.constrain(3.0, "") == 3.0
    with pytest.raises(ShardspecError, match="`batch` names 1 dimension, `step` \\[\\] has 0"):
        found.constrain(3, "batch", name="step")


def test_misuse(found: Resolver) -> None:
    with pytest.raises(TypeError, match="either names or activation"):
        found.constrain(X)
    with pytest.raises(TypeError, match="either names or activation"):
        found.constrain(X, "batch mlp", activation="residual")
    with pytest.raises(TypeError, match="a string or None"):
        found.constrain(X, (3, "mlp"))


def test_a_size_of_code_that_differs_from_axes_is_told_apart() -> None:
    text = "mesh: {data: 8}\naxes: {batch: 16, embed: 64}\nrules: [batch -> data, embed -> none]\n"
    resolver = shardspec.Resolver(shardspec.loads(text))
    with pytest.raises(shardspec.ShardspecError) as raised:
        resolver.constrain(jnp.ones((15, 64)), "batch embed")
    labels = [label.text for label in raised.value.diagnostics[0].labels]
    assert "`batch` is 16 here, and 15 in what is refused" in labels
    assert "`batch` is 15" not in labels


MEMORIES = """
mesh: {data: 2 KIND, model: 4 KIND}
rules: [batch -> data, mlp -> model]
activations:
  saved: {axes: batch mlp, memory: pinned_host}
  back: {axes: batch mlp, memory: device}
  stated: {spec: "(none, data)"}
"""


@moves_to_host
@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_an_activation_is_moved_to_its_memory_and_back(kind: str) -> None:
    found = Resolver(shardspec.loads(MEMORIES.replace("KIND", kind)))

    def loss(x: Any) -> Any:
        kept = found.constrain(2 * x, activation="saved")
        return jnp.sum(found.constrain(kept, activation="back") ** 2)

    with jax.set_mesh(found.mesh):
        x = jax.device_put(X, found.sharding("batch mlp"))
        np.testing.assert_allclose(jax.jit(jax.grad(loss))(x), 8 * X)
        for run in (jax.jit, lambda function: function):
            result = run(lambda x: found.constrain(x, activation="saved"))(x)
            assert result.sharding.memory_kind == "pinned_host"
            assert result.sharding.spec == P("data", "model")
        tree = found.constrain({"a": x, "n": 3}, activation="saved")
        assert tree["a"].sharding.memory_kind == "pinned_host"
        assert found.constrain(x, activation="stated").sharding.spec == P(None, "data")
    with pytest.raises(ShardspecError, match="does not divide over `data` = 2"):
        found.constrain(jnp.ones((4, 3)), activation="stated")
    with pytest.raises(ShardspecError, match="names 2 dimensions"):
        found.constrain(jnp.ones(4), activation="stated")


def test_partial_sums_come_and_go() -> None:
    text = MEMORIES.replace("KIND", "explicit")
    text += '  partial: {spec: "(data, none) unreduced model"}\n'
    text += '  whole: {spec: "(data, none) reduced model"}\n'
    found = Resolver(shardspec.loads(text))
    sums = P("data", None, unreduced={"model"})
    with jax.set_mesh(found.mesh):
        x = jax.device_put(X, found.sharding("batch _"))
        for run in (jax.jit, lambda function: function):
            partial = run(lambda x: found.constrain(x, activation="partial"))(x)
            assert partial.sharding.spec == sums
            back = run(lambda x: found.constrain(x, "batch mlp"))(partial)
            assert back.sharding.spec == P("data", "model")
            np.testing.assert_array_equal(back, X)
            whole = run(lambda x: found.constrain(x, activation="whole"))(x)
            assert whole.sharding.spec == P("data", None, reduced={"model"})
        w = jnp.ones((X.shape[1], X.shape[1]))

        def gradient(w: Any) -> Any:
            w = found.constrain(w, activation="whole")
            return jax.grad(lambda w: jnp.sum(jnp.sin(w)))(w)

        assert jax.jit(gradient)(w).sharding.spec == sums

    auto = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with (
        jax.set_mesh(auto),
        pytest.raises(ShardspecError, match="sums over `model`, where `data`, `model` are left"),
    ):
        jax.jit(lambda x: found.constrain(x, activation="partial"))(X)
