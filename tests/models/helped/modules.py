"""The same decoder of NNX modules, whose layers are scanned, or written out."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from linears import dense, norm

LAYERS, EMBED, MLP, HEADS = 4, 1024, 4096, 8


def weight(rngs: nnx.Rngs, *shape: int) -> Any:
    return nnx.Param(nnx.initializers.lecun_normal()(rngs.params(), shape))


class Attention(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.q = weight(rngs, EMBED, EMBED)
        self.k = weight(rngs, EMBED, EMBED)
        self.v = weight(rngs, EMBED, EMBED)
        self.o = weight(rngs, EMBED, EMBED)

    def __call__(self, x: Any) -> Any:
        q, k, v = dense(x, self.q[...]), dense(x, self.k[...]), dense(x, self.v[...])
        q, k, v = (each.reshape(*x.shape[:2], HEADS, -1) for each in (q, k, v))
        scores = jnp.einsum("bthd,bshd->bhts", q, k)
        out = jnp.einsum("bhts,bshd->bthd", jax.nn.softmax(scores), v)
        return dense(out.reshape(x.shape), self.o[...])


class Mlp(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.gate = weight(rngs, EMBED, MLP)
        self.up = weight(rngs, EMBED, MLP)
        self.down = weight(rngs, MLP, EMBED)

    def __call__(self, x: Any) -> Any:
        gate = dense(x, self.gate[...])
        up = dense(x, self.up[...])
        return dense(jax.nn.silu(gate) * up, self.down[...])


class Block(nnx.Module):
    def __init__(self, rngs: nnx.Rngs) -> None:
        self.attention, self.mlp = Attention(rngs), Mlp(rngs)

    def __call__(self, x: Any) -> Any:
        x = x + self.attention(norm(x))
        return x + self.mlp(norm(x))


class Decoder(nnx.Module):
    def __init__(self, rngs: nnx.Rngs, *, is_scanned: bool) -> None:
        self.is_scanned = is_scanned
        self.table = weight(rngs, 32768, EMBED)
        if is_scanned:
            self.layers = nnx.split_rngs(splits=LAYERS)(nnx.vmap(Block))(rngs)
        else:
            self.layers = nnx.List([Block(rngs) for _ in range(LAYERS)])

    def __call__(self, tokens: Any) -> Any:
        x = self.table[...][tokens].astype(jnp.bfloat16)
        if self.is_scanned:
            x = nnx.scan(lambda x, layer: layer(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)(
                x, self.layers
            )
        else:
            for layer in self.layers:
                x = layer(x)
        return dense(norm(x), self.table[...].T)


@nnx.jit
def update(model: Decoder, tokens: Any) -> None:
    def loss(model: Decoder) -> Any:
        logits = model(tokens).astype(jnp.float32)
        return -jnp.mean(jax.nn.log_softmax(logits)[..., 0])

    grads = nnx.grad(loss)(model)
    params = nnx.state(model, nnx.Param)
    nnx.update(model, jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads))


def made(*, is_scanned: bool) -> Any:
    model = nnx.eval_shape(lambda: Decoder(nnx.Rngs(0), is_scanned=is_scanned))
    return update, (model, jax.ShapeDtypeStruct((64, 1024), jnp.int32))


def unrolled(resolver: Any) -> Any:
    return made(is_scanned=False)


def scanned(resolver: Any) -> Any:
    return made(is_scanned=True)
