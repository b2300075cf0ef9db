"""What code makes on a target while its step is traced has shapes and shardings, and no values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from shardspec import Resolver, loads
from shardspec.jax_backend.on_target import on_target
from shardspec.jax_backend.step.trace import Call, traced
from shardspec.jax_backend.target_devices import TargetArray

SPEC = """
shardspec: 1
targets: {tpu: {hardware: tpu v5e 2x4, mesh: {data: 2, model: 4}}}
rules: ["batch -> data"]
"""
P = PartitionSpec


@pytest.fixture
def mesh() -> Iterator[Mesh]:
    """The mesh that code makes for itself, with its devices in the order that JAX chooses."""
    with on_target(Resolver(loads(SPEC), "tpu", devices="abstract").target):
        yield jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)


def init(key: Any) -> Any:
    return {"w": jax.random.normal(key, (16, 32)), "b": jnp.zeros(32)}


def made(mesh: Mesh) -> Any:
    places = {"w": NamedSharding(mesh, P("data", "model")), "b": NamedSharding(mesh, P())}
    return jax.jit(init, out_shardings=places)(jax.random.key(0))


def split(array: Any) -> Any:
    assert isinstance(array, TargetArray)
    return array.sharding.spec


def test_a_jitted_init_gives_arrays_of_the_target(mesh: Mesh) -> None:
    params = made(mesh)
    assert {name: each.shape for name, each in params.items()} == {"w": (16, 32), "b": (32,)}
    assert split(params["w"]) == P("data", "model")
    assert isinstance(params["w"], jax.Array)
    state = optax.adam(1e-3).init(params)
    assert split(state[0].mu["w"]) == P("data", "model"), "made eagerly, like its parameter"
    assert float(jnp.ones(3).sum()) == 3, "what is not for the target is made here"


def test_arrays_are_put_there_whole_by_shard_and_by_callback(mesh: Mesh) -> None:
    rows = NamedSharding(mesh, P("data"))
    value = np.ones((8, 4), np.float32)
    parts = rows.addressable_devices_indices_map(value.shape).items()
    shards = [jax.device_put(value[index], device) for device, index in parts]
    for array in (
        jax.device_put(value, rows),
        jax.make_array_from_single_device_arrays((8, 4), rows, shards),
        jax.make_array_from_callback((8, 4), rows, lambda index: value[index]),
    ):
        assert (array.shape, array.dtype, split(array)) == ((8, 4), jnp.float32, P("data"))


def test_code_computes_with_them_and_reads_no_value(mesh: Mesh) -> None:
    w = made(mesh)["w"]
    assert (w.T @ w + 1).astype("bfloat16").shape == (32, 32)
    assert (w[0].shape, w.reshape(-1).shape, jnp.stack([w, w]).shape) == (
        (32,),
        (512,),
        (2, 16, 32),
    )
    assert jax.block_until_ready(w) is w
    for read in (bool, float, int, list, np.asarray, jax.device_get):
        with pytest.raises(TypeError, match=r"float32\[16,32\] has no values: it is on the target"):
            read(w)


def test_a_module_sharded_by_its_own_constraint_is_there(mesh: Mesh) -> None:
    @nnx.jit
    def create() -> nnx.Linear:
        names = nnx.with_partitioning(
            nnx.initializers.lecun_normal(), ("data", "model"), eager_sharding=False
        )
        module = nnx.Linear(16, 32, kernel_init=names, use_bias=False, rngs=nnx.Rngs(0))
        state = nnx.state(module)
        wanted = jax.lax.with_sharding_constraint(state, nnx.get_partition_spec(state))
        nnx.update(module, wanted)
        return module

    with mesh:
        module = create()
        optimizer = nnx.Optimizer(module, optax.adam(1e-3), wrt=nnx.Param)
    assert split(module.kernel[...]) == P("data", "model")
    moments = jax.tree.leaves(nnx.state(optimizer, nnx.optimizer.OptState))
    assert {split(each) for each in moments if each.ndim} == {P("data", "model")}


def test_under_a_mesh_that_code_sets_small_values_are_known(mesh: Mesh) -> None:
    with jax.set_mesh(mesh):
        assert jnp.arange(3).tolist() == [0, 1, 2]
        assert jax.random.split(jax.random.key(1)).shape == (2,)
        assert split(jax.device_put(np.ones((8, 4)), P("model"))) == P("model")


def test_modules_are_made_eagerly_under_a_mesh_with_explicit_axes(mesh: Mesh) -> None:
    explicit = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)
    names = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("data", "model"))
    with jax.set_mesh(explicit):
        module = nnx.Linear(1024, 4096, kernel_init=names, rngs=nnx.Rngs(params=0, dropout=1))
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), 1), 3)
    assert split(module.kernel[...]) == P("data", "model")
    assert keys.shape == (3,)


def module_of(function: Callable[..., Any], *args: Any) -> tuple[str, tuple[str, ...]]:
    found = traced(Resolver(loads(SPEC), "tpu"), Call(function, args))
    return str(found.module), found.notes


def test_a_step_is_traced_on_the_mesh_that_its_arguments_are_on(mesh: Mesh) -> None:
    here = Resolver(loads(SPEC), "tpu").mesh
    turned = Mesh(here.devices[::-1], here.axis_names)

    @jax.jit
    def step(params: Any, x: Any) -> Any:
        return jax.lax.with_sharding_constraint(x @ params["w"], P("data", "model"))

    text, notes = module_of(step, made(turned), jax.ShapeDtypeStruct((8, 16), "float32"))
    assert '[{"data"}, {}]' in text.partition("->")[0], "the batch, which carries no sharding"
    assert len(notes) == 1
    assert "devices in another order" in notes[0]


def test_state_with_shardings_of_its_own_needs_no_names_for_its_scalars(mesh: Mesh) -> None:
    """The names that code gives are mesh axes; the spec, which places nothing of it, has none."""
    names = nnx.with_partitioning(nnx.initializers.lecun_normal(), ("data", "model"))
    with jax.set_mesh(mesh):
        module = nnx.Linear(256, 4096, kernel_init=names, use_bias=False, rngs=nnx.Rngs(0))
        optimizer = nnx.Optimizer(module, optax.adam(1e-3), wrt=nnx.Param)

    @jax.jit
    def step(module: Any, optimizer: Any, x: Any) -> Any:
        optimizer.update(module, nnx.grad(lambda module: module(x).sum())(module))
        return nnx.state((module, optimizer))

    found = traced(Resolver(loads(SPEC), "tpu"), Call(step, (module, optimizer, _rows())))
    roles = [each.role for each in found.arguments if each is not None]
    assert roles == ["parameter", "optimizer", "optimizer", "optimizer", "optimizer", "batch"]


def _rows() -> Any:
    return jax.ShapeDtypeStruct((8, 256), "float32")


def test_explicit_axes_of_the_code_are_taken_for_the_batch_too(mesh: Mesh) -> None:
    explicit = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Explicit,) * 2)

    def step(params: Any, x: Any) -> Any:
        return jnp.einsum("bi,io->bo", x, params["w"], out_sharding=P("data", "model"))

    w = jax.ShapeDtypeStruct((16, 32), "float32", sharding=NamedSharding(explicit, P()))
    text, _ = module_of(step, {"w": w}, jax.ShapeDtypeStruct((8, 16), "float32"))
    assert '[{"data"}, {}]' in text.partition("->")[0]


def test_shardings_of_jit_go_before_the_specs_for_a_batch(mesh: Mesh) -> None:
    whole = NamedSharding(mesh, P())

    def step(scale: float, params: Any, batch: Any) -> Any:
        return batch["x"] @ params["w"] * scale + batch["y"]

    params, x = made(mesh), jax.ShapeDtypeStruct((8, 16), "float32")
    own = jax.tree.map(lambda leaf: leaf.sharding, params)
    jitted = jax.jit(step, in_shardings=(own, {"x": whole, "y": None}), static_argnums=0)
    text, _ = module_of(jitted, 2.0, params, {"x": x, "y": jax.ShapeDtypeStruct((8, 1), "float32")})
    arguments = text.partition("->")[0].rpartition("@main")[2]
    assert arguments.count('[{"data"}, {}]') == 1, "`y` alone lies as the spec says"


def test_what_a_jitted_function_inside_donates_is_donated(mesh: Mesh) -> None:
    @functools.partial(jax.jit, donate_argnames="state")
    def update(state: Any, batch: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf + batch["x"].mean(), state)

    def step(batch: Any, state: Any) -> Any:
        with jax.set_mesh(mesh):  # as around a training step, where JAX allows it
            return update(state, batch)

    batch = {"x": jax.ShapeDtypeStruct((8, 16), "float32")}
    found = traced(Resolver(loads(SPEC), "tpu"), Call(step, (batch, made(mesh))))
    assert [each and each.is_donated for each in found.arguments] == [False, True, True]


def test_what_fails_with_a_mesh_and_without_is_said_of_the_run_that_had_one() -> None:
    def step(x: Any) -> Any:
        y = jax.lax.with_sharding_constraint(x, P("data"))
        return y.reshape(3, 3)

    with on_target(Resolver(loads(SPEC), "tpu", devices="abstract").target):  # noqa: SIM117
        with pytest.raises(TypeError, match="cannot reshape"):
            module_of(step, jax.ShapeDtypeStruct((8, 16), "float32"))
