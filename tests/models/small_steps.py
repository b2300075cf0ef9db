"""Small steps, each about one thing that a traced step may hold; `PROGRAMS` has them by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import shardspec

SPEC = """\
shardspec: 1
targets:
  pod: {hardware: tpu v5e 4x4, mesh: {fsdp: 8, tensor: 2}}
  typed: {hardware: tpu v5e 4x4, mesh: {fsdp: 8 explicit, tensor: 2 explicit}}
rules:
  - batch -> fsdp
  - mlp -> tensor
  - embed -> fsdp
params:
  "**/wi": embed mlp
  "**/wo": mlp embed
  "**/wi_{0,1}": embed mlp
  "**/whole": _ _
  "**/layers": _ embed mlp
activations:
  residual: batch _ _
  hidden: batch _ mlp
lints: {SHD1: allow, SHD2: allow, SHD3: allow, SHD4: allow, SHD5: allow}
"""
#: The same on two slices.
SLICED = SPEC.replace(
    "tpu v5e 4x4, mesh: {fsdp: 8,", "2 * tpu v6e 2x4, mesh: {replica: 2 @ dcn, fsdp: 4,", 1
).replace("batch -> fsdp", "batch -> (replica, fsdp)")

Program = Callable[[Any], tuple[Any, tuple[Any, ...]]]
PROGRAMS: dict[str, Program] = {}


def program(build: Program) -> Program:
    PROGRAMS[build.__name__.strip("_")] = build
    return build


def resolver(target: str = "pod", devices: Any = "abstract", spec: str = SPEC) -> Any:
    loaded = shardspec.loads(spec, "small.yaml")
    return shardspec.Resolver(loaded, target, devices=devices, agree_within_s=None)


def struct(*shape: int, dtype: Any = jnp.float32) -> Any:
    return jax.ShapeDtypeStruct(shape, dtype)


def weights() -> Any:
    return {"mlp": {"wi": struct(1024, 4096), "wo": struct(4096, 1024)}}


def activations() -> Any:
    return struct(64, 128, 1024, dtype=jnp.bfloat16)


def layer(r: Any, p: Any, x: Any) -> Any:
    hidden = r.constrain(jax.nn.relu(x @ p["wi"].astype(x.dtype)), activation="hidden")
    return r.constrain(hidden @ p["wo"].astype(x.dtype), activation="residual")


def loss(r: Any) -> Any:
    def of(p: Any, x: Any) -> Any:
        return jnp.sum(layer(r, p["mlp"], x).astype(jnp.float32) ** 2)

    return of


@program
def plain(r: Any) -> Any:
    return (lambda p, x: layer(r, p["mlp"], x)), (weights(), activations())


@program
def gradient(r: Any) -> Any:
    return jax.grad(loss(r)), (weights(), activations())


def optimised(r: Any, tx: Any) -> Any:
    state = jax.eval_shape(tx.init, weights())

    def step(params: Any, state: Any, x: Any) -> Any:
        grads = jax.grad(loss(r))(params, x)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    return jax.jit(step, donate_argnums=(0, 1)), (weights(), state, activations())


@program
def clipped_adam(r: Any) -> Any:
    return optimised(r, optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3)))


@program
def multi_steps(r: Any) -> Any:
    return optimised(r, optax.MultiSteps(optax.adam(1e-3), 4))


@program
def microbatches(r: Any) -> Any:
    def step(params: Any, x: Any) -> Any:
        x = r.constrain(x.reshape(4, 16, 128, 1024), "_ batch _ _")

        def one(grads: Any, x: Any) -> Any:
            return jax.tree.map(jnp.add, grads, jax.grad(loss(r))(params, x)), None

        grads, _ = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, params), x)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    return jax.jit(step, donate_argnums=0), (weights(), activations())


@program
def shard_mapped(r: Any) -> Any:
    def inner(wi: Any, x: Any) -> Any:
        whole = jax.lax.all_gather(wi, "fsdp", axis=0, tiled=True)
        y = jax.lax.psum(x @ whole.astype(x.dtype), "tensor")
        return jax.lax.ppermute(y, "fsdp", [(i, (i + 1) % 8) for i in range(8)])

    specs = (P("fsdp", None), P("fsdp", None, None))
    mapped = jax.shard_map(inner, mesh=r.mesh, in_specs=specs, out_specs=specs[1], check_vma=False)
    return (lambda p, x: mapped(p["mlp"]["wi"], x)), (weights(), activations())


@program
def half_mapped(r: Any) -> Any:
    """`shard_map` over one axis; the other is left to the compiler."""

    def inner(wo: Any, x: Any) -> Any:
        return jax.lax.psum(x @ wo.astype(x.dtype), "tensor")

    specs = (P("tensor", None), P(None, None, "tensor"))
    mapped = jax.shard_map(
        inner, mesh=r.mesh, in_specs=specs, out_specs=P(), axis_names={"tensor"}, check_vma=False
    )

    def step(p: Any, x: Any) -> Any:
        return mapped(p["mlp"]["wo"], x @ p["mlp"]["wi"].astype(x.dtype))

    return step, (weights(), activations())


@program
def kernel(r: Any) -> Any:
    """A Pallas kernel under `shard_map`."""
    from jax.experimental import pallas as pl

    def double(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = x_ref[...] * 2

    def call(x: Any) -> Any:
        block = pl.BlockSpec((1, 128, 1024), lambda i: (i, 0, 0))
        return pl.pallas_call(
            double,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(x.shape[0],),
            in_specs=[block],
            out_specs=block,
            cost_estimate=pl.CostEstimate(flops=123456, bytes_accessed=1, transcendentals=0),
        )(x)

    spec = P("fsdp", None, None)
    mapped = jax.shard_map(call, mesh=r.mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return (lambda p, x: layer(r, p["mlp"], mapped(x))), (weights(), activations())


@program
def branch(r: Any) -> Any:
    def step(p: Any, x: Any, n: Any) -> Any:
        return jax.lax.cond(n > 0, lambda x: layer(r, p["mlp"], x), lambda x: x, x)

    return step, (weights(), activations(), struct(dtype=jnp.int32))


@program
def endless(r: Any) -> Any:
    """A loop whose rounds only the data know."""

    def step(p: Any, x: Any, n: Any) -> Any:
        body = lambda c: (layer(r, p["mlp"], c[0]), c[1] + 1)  # noqa: E731
        return jax.lax.while_loop(lambda c: c[1] < n, body, (x, 0))[0]

    return step, (weights(), activations(), struct(dtype=jnp.int32))


@program
def eight_rounds(r: Any) -> Any:
    def step(p: Any, x: Any) -> Any:
        return jax.lax.fori_loop(2, 10, lambda _, x: layer(r, p["mlp"], x), x)

    return step, (weights(), activations())


@program
def custom_rule(r: Any) -> Any:
    @jax.custom_vjp
    def product(x: Any, w: Any) -> Any:
        return x @ w.astype(x.dtype)

    def backward(kept: Any, g: Any) -> Any:
        x, w = kept
        return g @ w.T.astype(g.dtype), jnp.einsum("btd,bte->de", x, g).astype(w.dtype)

    product.defvjp(lambda x, w: (product(x, w), (x, w)), backward)

    def of(p: Any, x: Any) -> Any:
        hidden = r.constrain(product(x, p["mlp"]["wi"]), activation="hidden")
        out = r.constrain(product(hidden, p["mlp"]["wo"]), activation="residual")
        return jnp.sum(out.astype(jnp.float32) ** 2)

    return jax.grad(of), (weights(), activations())


@program
def forced_result(r: Any) -> Any:
    whole = NamedSharding(r.mesh, P())
    return jax.jit(lambda p, x: layer(r, p["mlp"], x), out_shardings=whole), (
        weights(),
        activations(),
    )


@program
def own_constraints(r: Any) -> Any:
    """Constraints of JAX's own, which know no logical axes."""

    def keep(x: Any, *spec: str | None) -> Any:
        return jax.lax.with_sharding_constraint(x, NamedSharding(r.mesh, P(*spec)))

    def step(p: Any, x: Any) -> Any:
        hidden = keep(x @ p["mlp"]["wi"].astype(x.dtype), "fsdp", None, "tensor")
        return keep(hidden @ p["mlp"]["wo"].astype(x.dtype), "fsdp", None, None)

    return step, (weights(), activations())


@program
def two_weights(r: Any) -> Any:
    """The gradient of what two weights read is the sum of two partial sums."""
    params = {"wi_0": struct(1024, 4096), "wi_1": struct(1024, 4096)}

    def of(p: Any, x: Any) -> Any:
        x = r.constrain(x * x, activation="residual")
        hidden = jnp.tanh(x @ p["wi_0"].astype(x.dtype)) * (x @ p["wi_1"].astype(x.dtype))
        return jnp.sum(r.constrain(hidden, activation="hidden").astype(jnp.float32))

    return jax.grad(of, argnums=1), (params, activations())


@program
def sharded_moments(r: Any) -> Any:
    """A gradient that is summed whole, of which each device needs a slice (ZeRO)."""
    params = {"a": {"whole": struct(1024, 4096)}}
    split = NamedSharding(r.mesh, P("fsdp", None))
    moments = jax.ShapeDtypeStruct((1024, 4096), jnp.float32, sharding=split)

    def step(p: Any, m: Any, x: Any) -> Any:
        def of(w: Any) -> Any:
            y = r.constrain(x @ w.astype(x.dtype), activation="residual")
            return jnp.sum(y.astype(jnp.float32) ** 2)

        whole = NamedSharding(r.mesh, P())
        grad = jax.grad(of)(p["a"]["whole"])
        return 0.9 * m + jax.lax.with_sharding_constraint(
            jax.lax.with_sharding_constraint(grad, whole), split
        )

    return jax.jit(step, out_shardings=split), (params, moments, activations())


@program
def remembered(r: Any) -> Any:
    """What is made once is read in every round, so its gradient is added up in the loop."""

    def of(p: Any, x: Any) -> Any:
        memory = layer(r, p["mlp"], x)

        def one(total: Any, weight: Any) -> Any:
            product = jnp.tanh(memory @ weight.astype(memory.dtype))
            return r.constrain(total + product, activation="hidden"), None

        start = jnp.zeros((64, 128, 2048), jnp.bfloat16)
        total, _ = jax.lax.scan(one, start, p["stack"]["layers"])
        return jnp.sum(total.astype(jnp.float32) ** 2)

    return jax.grad(of), (weights() | {"stack": {"layers": struct(6, 1024, 2048)}}, activations())


def microbatched(r: Any, uses: int) -> Any:
    """Gradients of microbatches are added up where every device holds all of a weight."""
    params = {"a": {"whole": struct(1024, 4096)}}

    def step(p: Any, x: Any) -> Any:
        x = r.constrain(x.reshape(4, 16, 128, 1024), "_ batch _ _")

        def one(grads: Any, x: Any) -> Any:
            def of(w: Any) -> Any:
                inputs = (x, jnp.tanh(x))[:uses]
                ys = [r.constrain(y @ w.astype(x.dtype), activation="residual") for y in inputs]
                return jnp.sum(sum(ys).astype(jnp.float32) ** 2)

            return grads + jax.grad(of)(p["a"]["whole"]), None

        return jax.lax.scan(one, jnp.zeros((1024, 4096), jnp.float32), x)[0]

    return jax.jit(step), (params, activations())


@program
def accumulated(r: Any) -> Any:
    return microbatched(r, uses=1)


@program
def accumulated_twice(r: Any) -> Any:
    return microbatched(r, uses=2)


@program
def kept_activations(r: Any) -> Any:
    """A scan over layers that keeps its activations for the backward pass."""
    params = {"stack": {"layers": struct(6, 2048, 2048)}}
    x = struct(64, 256, 2048, dtype=jnp.bfloat16)

    def of(p: Any, x: Any) -> Any:
        def one(x: Any, w: Any) -> Any:
            h = jnp.tanh(x.astype(jnp.float32)).astype(x.dtype)
            return r.constrain(h @ w.astype(x.dtype), activation="hidden"), None

        return jnp.sum(jax.lax.scan(one, x, p["stack"]["layers"])[0].astype(jnp.float32) ** 2)

    return jax.jit(jax.grad(of), out_shardings=r.shardings(params)), (params, x)
