"""A decoder of plain functions that call `linears`; its layers are scanned, or written out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from linears import dense, norm

LAYERS, EMBED, MLP, HEADS = 4, 1024, 4096, 8
SHAPES = {
    **dict.fromkeys("qkvo", (EMBED, EMBED)),
    "gate": (EMBED, MLP),
    "up": (EMBED, MLP),
    "down": (MLP, EMBED),
}


def heads(x: Any) -> Any:
    return x.reshape(*x.shape[:2], HEADS, -1)


def attention(x: Any, p: Any) -> Any:
    q = dense(x, p["q"])
    k = dense(x, p["k"])
    v = dense(x, p["v"])
    scores = jnp.einsum("bthd,bshd->bhts", heads(q), heads(k))
    out = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), heads(v))
    return dense(out.reshape(x.shape), p["o"])


def mlp(x: Any, p: Any) -> Any:
    gate = dense(x, p["gate"])
    up = dense(x, p["up"])
    return dense(jax.nn.silu(gate) * up, p["down"])


def block(x: Any, p: Any) -> Any:
    x = x + attention(norm(x), p)
    return x + mlp(norm(x), p)


def loss(params: Any, tokens: Any) -> Any:
    x = params["table"][tokens].astype(jnp.bfloat16)
    if isinstance(params["layers"], list):
        for p in params["layers"]:
            x = block(x, p)
    else:
        x, _ = jax.lax.scan(lambda x, p: (block(x, p), None), x, params["layers"])
    logits = dense(norm(x), params["table"].T)
    return -jnp.mean(jax.nn.log_softmax(logits.astype(jnp.float32))[..., 0])


@jax.jit
def update(params: Any, tokens: Any) -> Any:
    grads = jax.grad(loss)(params, tokens)
    return jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads)


def struct(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def arguments(layers: Any) -> tuple[Any, Any]:
    params = {"table": struct(32768, EMBED), "layers": layers}
    return params, jax.ShapeDtypeStruct((64, 1024), jnp.int32)


def unrolled(resolver: Any) -> Any:
    layer = {name: struct(*shape) for name, shape in SHAPES.items()}
    return update, arguments([layer] * LAYERS)


def scanned(resolver: Any) -> Any:
    return update, arguments({name: struct(LAYERS, *shape) for name, shape in SHAPES.items()})
