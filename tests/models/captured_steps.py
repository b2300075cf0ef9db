"""Steps that are run and captured: plain JAX, Flax Linen, NNX, `shard_map`, optax with a scan.

Each takes a resolver and returns `(function, args)`, as `--step` wants it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.training.train_state import TrainState
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

SPEC = """\
shardspec: 1
targets:
  here: {hardware: 8 cpu, mesh: {data: 4, model: 2}}
rules:
  - batch -> data
  - mlp -> model
  - heads -> model
  - embed -> data
  - layers -> none
params:
  "**/{up,wi,Dense_0}{,/kernel}": embed mlp
  "**/{down,wo,Dense_1}{,/kernel}": mlp embed
  "**/blocks/up": layers embed mlp
  "**/blocks/down": layers mlp embed
activations:
  hidden: batch mlp
  residual: batch embed_act
lints: {SHD1: allow, SHD2: allow, SHD3: allow, SHD4: allow, SHD5: allow}
"""
EMBED, MLP, BATCH, LAYERS = 256, 1024, 128, 3
Step = tuple[Callable[..., Any], tuple[Any, ...]]


def struct(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def weights() -> Any:
    return {"up": struct(EMBED, MLP), "down": struct(MLP, EMBED)}


def plain(resolver: Any) -> Step:
    """`jax.jit` of arrays that the caller places himself, by `NamedSharding`."""

    def placed(each: Any, *axes: Any) -> Any:
        spec = NamedSharding(resolver.mesh, PartitionSpec(*axes))
        return jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=spec)

    def step(params: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            hidden = jnp.tanh(x @ params["up"])
            out = hidden @ params["down"]
            return jnp.mean(out * out)

        grads = jax.grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    own = weights()
    given = {"up": placed(own["up"], "data", "model"), "down": placed(own["down"], "model", "data")}
    return step, (given, placed(struct(BATCH, EMBED), "data"))


class Mlp(nn.Module):
    """Two layers of Flax Linen."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = x + nn.Dense(EMBED, name="Dense_1", use_bias=False)(
            nn.gelu(nn.Dense(MLP, name="Dense_0", use_bias=False)(x))
        )
        return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def linen(resolver: Any) -> Step:
    """A train state of Flax Linen, with Adam."""
    model = Mlp()
    x = struct(BATCH, EMBED)

    def created(key: Any, x: Any) -> Any:
        params = model.init(key, x)["params"]
        return TrainState.create(apply_fn=model.apply, params=params, tx=optax.adam(1e-3))

    def step(state: Any, x: Any) -> Any:
        def loss(params: Any) -> Any:
            return jnp.mean(state.apply_fn({"params": params}, x) ** 2)

        value, grads = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=grads), value

    return step, (jax.eval_shape(created, jax.random.key(0), x), x)


class Block(nnx.Module):
    """Two layers of NNX."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.wi = nnx.Linear(EMBED, MLP, use_bias=False, rngs=rngs)
        self.wo = nnx.Linear(MLP, EMBED, use_bias=False, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + self.wo(nnx.silu(self.wi(x)))


def of_nnx(resolver: Any) -> Step:
    """A model of NNX, split into its graph and its state."""
    graph, state = nnx.split(nnx.eval_shape(lambda: Block(nnx.Rngs(0))))

    def step(state: Any, x: Any) -> Any:
        def loss(state: Any) -> Any:
            return jnp.mean(nnx.merge(graph, state)(x) ** 2)

        grads = jax.grad(loss)(state)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, grads)

    return step, (state, struct(BATCH, EMBED))


def mapped(resolver: Any) -> Step:
    """Collectives that the user writes, under `shard_map`."""
    spec = PartitionSpec

    @partial(
        jax.shard_map,
        mesh=resolver.mesh,
        in_specs=({"up": spec("data", "model"), "down": spec("model", "data")}, spec("data")),
        out_specs=spec("data"),
    )
    def block(params: Any, x: Any) -> Any:
        up = lax.all_gather(params["up"], "data", axis=0, tiled=True)
        down = lax.all_gather(params["down"], "data", axis=1, tiled=True)
        return lax.psum(jnp.tanh(x @ up) @ down, "model")

    return block, (weights(), struct(BATCH, EMBED))


def scanned(resolver: Any) -> Step:
    """Layers in a scan, constrained activations, and AdamW of optax."""
    params = {"blocks": {"up": struct(LAYERS, EMBED, MLP), "down": struct(LAYERS, MLP, EMBED)}}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))

    def step(state: Any, x: Any) -> Any:
        params, moments = state

        def layer(x: Any, p: Any) -> Any:
            hidden = jax.nn.relu(jnp.einsum("be,em->bm", x, p["up"]))
            hidden = resolver.constrain(hidden, activation="hidden")
            x = x + jnp.einsum("bm,me->be", hidden, p["down"])
            return resolver.constrain(x, activation="residual"), None

        def loss(params: Any) -> Any:
            return jnp.mean(lax.scan(layer, x, params["blocks"])[0] ** 2)

        value, grads = jax.value_and_grad(loss)(params)
        updates, moments = optimizer.update(grads, moments, params)
        return (optax.apply_updates(params, updates), moments), value

    return step, ((params, jax.eval_shape(optimizer.init, params)), struct(BATCH, EMBED))


STEPS: dict[str, Callable[[Any], Step]] = {
    "plain": plain,
    "linen": linen,
    "of_nnx": of_nnx,
    "mapped": mapped,
    "scanned": scanned,
}


def capture_all(folder: Path) -> None:
    """Run and capture each step in a folder of its name, in a process of its own.

    Where libtpu is loaded, as by a test before, a capture ends the process: libtpu's profiler is of
    another version than JAX's.
    """
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-m", __name__], cwd=folder, env=env, check=True)


def captured(resolver: Any, step: Callable[[Any], Step], folder: str, steps: int = 3) -> None:
    """Run a step on the devices of a resolver and capture it, as `jax.profiler.trace` does."""
    from shardspec.jax_backend.step.trace import Call, lowered_here

    function, args = step(resolver)
    compiled = lowered_here(resolver, Call(function, args)).compile()
    kept, _ = compiled.input_shardings

    def here(each: Any, sharding: Any) -> Any:
        return jax.device_put(jnp.full(each.shape, 0.01, each.dtype), sharding)

    placed = jax.tree.map(
        here, args, jax.tree.unflatten(jax.tree.structure(args), jax.tree.leaves(kept))
    )
    jax.block_until_ready(compiled(*placed))
    with jax.profiler.trace(folder, create_perfetto_trace=True):
        for _ in range(steps):
            found = compiled(*placed)
            jax.block_until_ready(found)


def _main() -> None:
    import shardspec

    read = shardspec.loads(SPEC, "spec.yaml")
    resolver = shardspec.Resolver(read, "here", agree_within_s=None)
    for name, step in STEPS.items():
        captured(resolver, step, name, steps=2)


if __name__ == "__main__":
    _main()
