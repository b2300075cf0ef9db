from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from flax.linen import partitioning as legacy
from jax.sharding import PartitionSpec as P

import shardspec
from shardspec.diagnostics import ShardspecError
from shardspec.ir.spec import Param
from shardspec.jax_backend.trees import params_of

X = jax.ShapeDtypeStruct((4, 8), jnp.bfloat16)


def one(tree: object) -> Param:
    (param,) = params_of(tree)
    return param


@pytest.mark.parametrize(
    ("leaf", "text"),
    [
        (X, "bf16[4, 8]"),
        (jnp.ones((2,), jnp.int8), "s8[2]"),
        (np.ones((2, 3), np.float32), "f32[2, 3]"),
        (np.float32(1), "f32[]"),
        (jax.ShapeDtypeStruct((3,), jnp.int4), "s4[3]"),
        (jax.ShapeDtypeStruct((3,), jnp.float8_e4m3fn), "f8_e4m3fn[3]"),
        (np.ones(2, bool), "bool[2]"),
        (1.5, "f32[]"),
        (True, "bool[]"),
        (3, "s32[]"),
        (2j, "c64[]"),
        (jax.random.key(0), "key<fry>[]"),
    ],
)
def test_shape_and_dtype(leaf: object, text: str) -> None:
    assert str(one({"x": leaf})) == text


def test_what_is_no_array_is_left_out() -> None:
    assert params_of({"f": len, "n": None, "s": "text", "x": X}) == (Param("x", (4, 8), "bf16"),)


@pytest.mark.parametrize(
    ("box", "axes"),
    [
        (nn.Partitioned(X, ("embed", "mlp")), ("embed", "mlp")),
        (nn.LogicallyPartitioned(X, ("embed", None)), ("embed", None)),
        (nn.LogicallyPartitioned(X, ["embed", "mlp"]), ("embed", "mlp")),
        (nnx.Param(X, out_sharding=("embed", "mlp"), eager_sharding=False), ("embed", "mlp")),
        (nnx.Param(X, out_sharding=P("embed"), eager_sharding=False), ("embed",)),
        (nnx.Param(X, out_sharding=(), eager_sharding=False), None),
        (nnx.Param(X), None),
        (
            nnx.BatchStat(X, out_sharding=(P.UNCONSTRAINED, "mlp"), eager_sharding=False),
            (None, "mlp"),
        ),
    ],
)
def test_names_of_boxes(box: object, axes: object) -> None:
    assert one({"w": box}).logical_axes == axes


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("key", ["sharding", "sharding_names"])
def test_older_metadata_keys_of_nnx(key: str) -> None:
    variable = nnx.Param(X, eager_sharding=False, **{key: ("embed", "mlp")})
    assert one({"w": variable}).logical_axes == ("embed", "mlp")


def test_a_sharding_as_annotation_gives_its_entries() -> None:
    mesh = jax.make_mesh((8,), ("embed",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, P("embed", None))
    assert one({"w": nn.Partitioned(X, sharding)}).logical_axes == ("embed", None)


def test_two_names_on_one_dimension_are_refused() -> None:
    with pytest.raises(ShardspecError, match="a dimension has one logical axis"):
        params_of({"w": nn.Partitioned(X, (("a", "b"), None))})


class WithAxes(nn.Module):
    @nn.compact
    def __call__(self, x):
        init = nn.initializers.ones
        kernel = legacy.param_with_axes("kernel", init, (4, 8), axes=("embed", "mlp"))
        bias = legacy.param_with_axes("bias", init, (8,), axes=("mlp",))
        plain = self.param("plain", init, (8,))
        mean = legacy.variable_with_axes("stats", "mean", jnp.ones, (8,), axes=("mlp",))
        return x @ kernel + bias + plain + mean.value


def test_param_with_axes_collections() -> None:
    tree = jax.eval_shape(WithAxes().init, jax.random.key(0), jnp.ones((2, 4)))
    assert set(tree) == {"params", "params_axes", "stats", "stats_axes"}
    found = {param.path: param.logical_axes for param in params_of(tree)}
    assert found == {
        "kernel": ("embed", "mlp"),
        "bias": ("mlp",),
        "plain": None,
        "stats/mean": ("mlp",),
    }


def test_axes_of_a_parameter_that_is_a_tree() -> None:
    tree = {
        "params": {"m": {"w": {"a": X, "b": X}}},
        "params_axes": {"m": {"w_axes": legacy.AxisMetadata({"a": ("x", "y"), "b": ("y", "x")})}},
    }
    found = {param.path: param.logical_axes for param in params_of(tree)}
    assert found == {"m/w/a": ("x", "y"), "m/w/b": ("y", "x")}


def test_scanned_layers_carry_the_stacked_name() -> None:
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            init = nn.with_logical_partitioning(nn.initializers.ones, ("embed", "mlp"))
            return nn.Dense(4, use_bias=False, kernel_init=init)(x), None

    class Stack(nn.Module):
        @nn.compact
        def __call__(self, x):
            scanned = nn.scan(
                Layer,
                variable_axes={"params": 0},
                split_rngs={"params": True},
                length=3,
                metadata_params={nn.PARTITION_NAME: "layers"},
            )
            return scanned(name="layers")(x, None)[0]

    tree = jax.eval_shape(Stack().init, jax.random.key(0), jnp.ones((2, 4)))
    assert one(tree) == Param("layers/Dense_0/kernel", (3, 4, 4), "f32", ("layers", "embed", "mlp"))


def test_a_tree_of_partition_specs_is_refused() -> None:
    with pytest.raises(ShardspecError, match="`a/w` is a PartitionSpec"):
        params_of({"a": {"w": P("embed")}})


BIG = ((2**40, 2**40), (2**40, 2**40, 0), (2**62,))
COUNTED = """
shardspec: 1
mesh: {data: 1}
rules:
  - batch -> data
params:
  "**": batch
"""
SPEC = shardspec.loads(COUNTED)
FOUND = shardspec.Resolver(SPEC, devices=jax.devices()[:1])
SMALL = {"w": jax.ShapeDtypeStruct((8,), jnp.float32)}
VERBS: dict[str, Callable[[Any, str], Any]] = {
    "shardings": lambda w, names: FOUND.shardings({"w": w}),
    "plan": lambda w, names: FOUND.plan({"w": w}),
    "verify_placement": lambda w, names: FOUND.verify_placement({"w": w}),
    "findings": lambda w, names: FOUND.findings({"w": w}),
    "abstract": lambda w, names: FOUND.abstract({"w": w}),
    "grad_shardings": lambda w, names: FOUND.grad_shardings({"w": w}),
    "state_shardings": lambda w, names: FOUND.state_shardings({"mu": {"w": w}}, SMALL),
    "state_plan": lambda w, names: FOUND.state_plan({"mu": {"w": w}}, SMALL),
    "params of state": lambda w, names: FOUND.state_shardings({"mu": SMALL}, {"w": w}),
    "batch.sharding": lambda w, names: FOUND.batch(names).sharding(w),
    "constrain": lambda w, names: FOUND.constrain(w, names),
    "traced": lambda w, names: jax.jit(lambda x: FOUND.constrain(x, names)).lower(w),
    "compile": lambda w, names: SPEC.compile({"w": w}),
}


@pytest.mark.parametrize("shape", BIG)
@pytest.mark.parametrize("verb", VERBS)
def test_sizes_that_end_the_process_inside_xla_are_a_finding(
    verb: str, shape: tuple[int, ...]
) -> None:
    names = " ".join(["batch"] + ["_"] * (len(shape) - 1))
    big = jax.ShapeDtypeStruct(shape, jnp.float32)
    said = r"SHD305.*(w|batch.*): 2\^63 (elements|bytes) or more"
    with pytest.raises(ShardspecError, match=said):
        VERBS[verb](big, names)


def test_what_is_just_small_enough_is_laid_out() -> None:
    for shape, dtype in (((2**61 - 1,), jnp.float32), ((2**62,), jnp.int8)):
        assert FOUND.shardings({"w": jax.ShapeDtypeStruct(shape, dtype)})["w"].spec == P("data")
    assert [
        found.code.id for found in SPEC.findings({"w": jax.ShapeDtypeStruct(BIG[0], "f4")})
    ] == ["SHD305"]
