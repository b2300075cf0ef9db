"""Constraints under every kind of axis, context and transformation: none is dropped.

A constraint is looked for in the lowered module, by the mesh axes it names, and in the sharding of
the executed result.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from shardspec.diagnostics import ShardspecError
from shardspec.ir.spec import Mesh, MeshAxis, Target
from shardspec.jax_backend.constrain import constrained
from shardspec.jax_backend.resolver import Resolver
from tests.jax_backend.specs import make_spec

X = np.arange(32, dtype=np.float32).reshape(4, 8)
KINDS = list(itertools.product(("auto", "explicit"), repeat=2))
CONTEXTS = ("none", "set_mesh", "legacy")

pytestmark = pytest.mark.filterwarnings("ignore:.with mesh:DeprecationWarning")


def resolver(data: str = "auto", model: str = "auto", **more: Any) -> Resolver:
    axes = (MeshAxis("data", 2, axis_type=data), MeshAxis("model", 4, axis_type=model))
    return Resolver(replace(make_spec(**more), targets=(Target("here", Mesh(axes)),)))


def around(name: str, found: Resolver) -> Any:
    managers: dict[str, Callable[[], Any]] = {
        "none": contextlib.nullcontext,
        "set_mesh": lambda: jax.set_mesh(found.mesh),
        "legacy": lambda: found.mesh,
    }
    return managers[name]()


def constraints(function: Any, *args: Any) -> list[str]:
    """Return the shardings that constrain something in the lowered module."""
    text = jax.jit(function).lower(*args).as_text()
    return re.findall(r"sdy\.sharding_constraint \S+ <@\w+, (\[.*?\])", text)


def ours(function: Any, *args: Any) -> int:
    """Return how many constraints split over both mesh axes, as the plan does."""
    found = constraints(function, *args)
    return sum('"data"' in text and '"model"' in text for text in found)


def stacked(x: Any) -> Any:
    return np.stack([x, x])


def scanned(function: Any) -> Any:
    return lambda x: jax.lax.scan(lambda h, _: (function(h), None), x, None, length=3)[0]


def loss(function: Any) -> Any:
    return lambda x: jnp.sum(jnp.sin(function(x)))


def rematerialized(function: Any) -> Any:
    return jax.grad(lambda x: jnp.sum(jax.checkpoint(lambda h: jnp.sin(function(h)))(x)))


#: What is done to a function of one array, and to the array.
WRAPPERS: dict[str, tuple[Any, Any]] = {
    "jit": (lambda function: function, X),
    "vmap": (jax.vmap, stacked(X)),
    "scan": (scanned, X),
    "grad": (lambda function: jax.grad(loss(function)), X),
    "remat": (rematerialized, X),
    "vmap of grad": (lambda function: jax.vmap(jax.grad(loss(function))), stacked(X)),
}


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_it_stands_in_the_lowered_module(
    kinds: tuple[str, str], context: str, wrapper: str
) -> None:
    found = resolver(*kinds)
    wrap, x = WRAPPERS[wrapper]
    with around(context, found):
        assert ours(wrap(lambda x: found.constrain(x * 2, "batch mlp")), x) >= 1
        assert ours(wrap(lambda x: x * 2), x) == 0


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("context", CONTEXTS)
def test_the_result_lies_as_planned(kinds: tuple[str, str], context: str) -> None:
    found = resolver(*kinds)
    planned = NamedSharding(found.mesh, P("data", "model"))
    with around(context, found):
        eager = found.constrain(jnp.asarray(X), "batch mlp")
        jitted = jax.jit(lambda x: found.constrain(x * 2, "batch mlp"))(X)
        mapped = jax.jit(jax.vmap(lambda x: found.constrain(x, "batch mlp")))(stacked(X))
        looped = jax.jit(scanned(lambda x: found.constrain(x * 2, "batch mlp")))(X)
    for result, expected in ((eager, X), (jitted, X * 2), (looped, X * 8)):
        assert result.sharding.is_equivalent_to(planned, 2), result.sharding
        np.testing.assert_array_equal(result, expected)
    mapped_as_planned = NamedSharding(found.mesh, P(None, "data", "model"))
    assert mapped.sharding.is_equivalent_to(mapped_as_planned, 3), mapped.sharding


@pytest.mark.parametrize("context", CONTEXTS)
def test_as_many_as_were_asked_for(context: str) -> None:
    found = resolver()

    def layers(x: Any) -> Any:
        for _ in range(5):
            x = found.constrain(jnp.sin(x), "batch mlp")
        return x

    with around(context, found):
        assert constraints(layers, X) == ['[{"data"}, {"model"}]'] * 5


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_a_mapped_dimension_that_is_split_stays_split(kinds: tuple[str, str]) -> None:
    found = resolver(*kinds)
    x = jax.device_put(stacked(X), NamedSharding(found.mesh, P("data")))
    mapped = jax.vmap(lambda x: found.constrain(x * 2, "_ mlp"), spmd_axis_name="data")
    with jax.set_mesh(found.mesh):
        result = jax.jit(mapped)(x)
    assert result.sharding.is_equivalent_to(NamedSharding(found.mesh, P("data", None, "model")), 3)


def test_a_split_mapped_dimension_in_the_lowered_module() -> None:
    found = resolver()
    mapped = jax.vmap(lambda x: found.constrain(x, "_ mlp"), spmd_axis_name="data")
    assert constraints(mapped, stacked(X)) == ['[{"data"}, {}, {"model"}]']


# Flax


def test_flax_drops_what_stays_here() -> None:
    """Under `with mesh:` Flax's constraint is gone without a word; ours does not need it."""
    from flax import linen as nn

    found = resolver()

    def by_flax(x: Any) -> Any:
        return nn.with_logical_constraint(x, ("batch", "mlp"))

    with found.mesh, nn.logical_axis_rules((("batch", "data"), ("mlp", "model"))):
        assert constraints(by_flax, X) == []
        assert constraints(lambda x: found.constrain(x, "batch mlp"), X) == [
            '[{"data"}, {"model"}]'
        ]


# manual axes


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_nothing_is_left_inside_a_full_shard_map(kinds: tuple[str, str]) -> None:
    """Names and rank are checked all the same; the sizes are those of one shard."""
    found = resolver(*kinds)
    specs = P("data", "model")

    mapped = jax.shard_map(mesh=found.mesh, in_specs=specs, out_specs=specs)

    @mapped
    def function(x: Any) -> Any:
        assert x.shape == (2, 2)
        return found.constrain(x * 2, "batch mlp")

    @mapped
    def bare(x: Any) -> Any:
        return x * 2

    with jax.set_mesh(found.mesh):
        x = jax.device_put(X, NamedSharding(found.mesh, specs))
        assert ours(function, x) == ours(bare, x)  # JAX 0.12 constrains explicit arguments
        np.testing.assert_array_equal(jax.jit(function)(x), X * 2)
    with pytest.raises(ShardspecError, match="unknown logical axis `mpl`"):
        jax.shard_map(
            lambda x: found.constrain(x, "batch mpl"), mesh=found.mesh, in_specs=P(), out_specs=P()
        )(X)


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize(("manual", "left"), [("data", "model"), ("model", "data")])
def test_the_other_axes_count_inside_a_partial_shard_map(
    kinds: tuple[str, str], manual: str, left: str
) -> None:
    found = resolver(*kinds)
    specs = P("data") if manual == "data" else P(None, "model")

    seen = []

    def inside(x: Any) -> Any:
        x = found.constrain(x * 2, "batch mlp")
        seen.append(jax.typeof(x).sharding.spec)
        return x

    function = jax.shard_map(
        inside, mesh=found.mesh, in_specs=specs, out_specs=specs, axis_names={manual}
    )
    wanted = '[{"data"}, {}]' if left == "data" else '[{}, {"model"}]'
    with jax.set_mesh(found.mesh):
        x = jax.device_put(X, NamedSharding(found.mesh, specs))  # explicit axes must match
        assert wanted in [text.replace(", ?", "") for text in constraints(function, x)]
        result = jax.jit(function)(x)
    np.testing.assert_array_equal(result, X * 2)
    if kinds[("data", "model").index(left)] == "explicit":
        # On a mesh of both kinds JAX itself loses this axis on the way out of `shard_map`.
        assert set(seen) == {P("data", None) if left == "data" else P(None, "model")}
    else:
        planned = NamedSharding(found.mesh, P("data", "model"))
        assert result.sharding.is_equivalent_to(planned, 2), result.sharding


def test_an_indivisible_shard_says_that_it_is_one() -> None:
    found = resolver()

    def inside(x: Any) -> Any:
        return found.constrain(x, "mlp batch", name="decoder/residual")

    function = jax.shard_map(
        inside, mesh=found.mesh, in_specs=P(None, "data"), out_specs=P(), axis_names={"data"}
    )
    with pytest.raises(ShardspecError) as error:
        jax.eval_shape(function, np.ones((6, 2), np.float32))
    assert "`mlp` = 6 does not divide over `model` = 4" in str(error.value)
    assert "decoder/residual" in str(error.value)
    assert "inside `shard_map` over `data`: sizes are those of one shard" in str(error.value)


def test_a_size_that_only_the_whole_array_has_is_no_fault_inside() -> None:
    """A shard of 2 does not divide by 4; the array of 8 did, and `shard_map` has done it."""
    found = resolver()
    function = jax.shard_map(
        lambda x: found.constrain(x, "_ mlp"),
        mesh=found.mesh,
        in_specs=P("data", "model"),
        out_specs=P("data", "model"),
    )
    np.testing.assert_array_equal(jax.jit(function)(X), X)


def test_a_shard_map_over_another_mesh_is_refused_with_both() -> None:
    found = resolver()
    other = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    function = jax.shard_map(
        lambda x: found.constrain(x, "batch mlp"), mesh=other, in_specs=P(), out_specs=P()
    )
    with pytest.raises(ValueError, match="mesh data=2 model=4 inside shard_map over x=8"):
        function(X)


@pytest.mark.parametrize("kind", ["auto", "explicit"])
def test_an_axis_that_the_spec_calls_manual_is_left_alone(kind: str) -> None:
    """Outside of `shard_map` no code sees a shard of it: the rest is constrained."""
    found = resolver("manual", kind)
    assert found.mesh.axis_types[0] == AxisType.Manual
    result = jax.jit(lambda x: found.constrain(x * 2, "batch mlp"))(X)
    assert result.sharding.spec == P(None, "model")
    assert found.constrain(jnp.asarray(X), "batch mlp").sharding.spec == P(None, "model")
    both = resolver("manual", "manual")
    assert both.constrain(X, "batch mlp") is X


def test_inside_an_axis_that_the_spec_calls_manual() -> None:
    found = resolver("manual", "auto")
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    function = jax.shard_map(
        lambda x: found.constrain(x * 2, "batch mlp"),
        mesh=mesh,
        in_specs=P("data"),
        out_specs=P("data"),
        axis_names={"data"},
    )
    assert constraints(function, X).count('[{}, {"model"}]') == 1
    assert jax.jit(function)(X).sharding.spec == P("data", "model")


def test_the_mesh_of_a_sharding_may_be_that_of_the_surroundings() -> None:
    found = resolver()

    def inside(x: Any) -> Any:
        around = jax.sharding.get_abstract_mesh()
        return constrained(x * 2, NamedSharding(around, P("data", "model")))

    function = jax.shard_map(
        inside, mesh=found.mesh, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}
    )
    assert constraints(function, X).count('[{}, {"model"}]') == 1
    assert jax.jit(function)(X).sharding.spec == P("data", "model")


# sizes


def test_symbolic_sizes_are_taken_for_divisible() -> None:
    found = resolver()
    (rows,) = jax.export.symbolic_shape("rows")
    x = jax.ShapeDtypeStruct((4 * rows, 8), jnp.float32)
    exported = jax.export.export(jax.jit(lambda x: found.constrain(x * 2, "batch mlp")))(x)
    assert '{"data"}, {"model"}' in exported.mlir_module()
    x = jax.ShapeDtypeStruct((4 * rows, 6), jnp.float32)
    with pytest.raises(ShardspecError, match="`mlp` = 6 does not divide"):
        jax.export.export(jax.jit(lambda x: found.constrain(x, "batch mlp")))(x)


def test_another_size_than_the_spec_states_is_no_fault() -> None:
    """A batch of an evaluation, or one position of a decoding step."""
    from shardspec.ir.spec import LogicalAxis

    found = resolver(axes=[LogicalAxis("batch", size=512)])
    assert found.constrain(X, "batch mlp").sharding.spec == P("data", "model")


# names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("batch", "`batch` names 1 dimension, `decoder/residual` [4, 6] has 2"),
        ("batch mpl", "unknown logical axis `mpl` in `batch mpl` of `decoder/residual`"),
        ("batch mlp", "1 array, decoder/residual [batch mlp]; replicated instead: +18 B"),
    ],
)
def test_a_fault_has_the_name_of_the_array(names: str, text: str) -> None:
    found = resolver()
    x = jax.ShapeDtypeStruct((4, 6), jnp.bfloat16)
    for _ in range(2):  # a fault is not forgotten
        with pytest.raises(ShardspecError) as error:
            jax.eval_shape(lambda x: found.constrain(x, names, name="decoder/residual"), x)
        assert text in str(error.value)


def test_an_activation_is_the_name_of_its_array() -> None:
    found = resolver(activations={"residual": "batch mlp"})
    with pytest.raises(ShardspecError, match=r"residual \[batch mlp\]"):
        found.constrain(jnp.ones((4, 6)), activation="residual")


# trees


def test_trees() -> None:
    found = resolver(activations={"residual": "batch mlp"})
    tree = {"h": X, "cache": [X, (X, 3)], "step": 1, "none": None}
    result = found.constrain(tree, {"h": "batch mlp", "cache": "_ mlp", "step": None, "none": None})
    assert jax.tree.structure(result) == jax.tree.structure(tree)
    assert result["h"].sharding.spec == P("data", "model")
    assert result["cache"][0].sharding.spec == P(None, "model")
    assert result["cache"][1][0].sharding.spec == P(None, "model")
    assert result["step"] == 1
    both = found.constrain((X, [X]), activation="residual")
    assert [leaf.sharding.spec for leaf in jax.tree.leaves(both)] == [P("data", "model")] * 2
    carried = jax.jit(lambda tree: found.constrain(tree, "batch mlp"))({"a": X, "b": X})
    assert carried["b"].sharding.spec == P("data", "model")


def test_a_fault_in_a_tree_has_the_path() -> None:
    found = resolver()
    with pytest.raises(ShardspecError, match=r"carry/cache/1 \[batch mlp\]"):
        found.constrain({"cache": [X, jnp.ones((4, 6))]}, {"cache": "batch mlp"}, name="carry")
