"""What a layer of a recipe computes: what mixes tokens, and its MLP."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from tests.generated.arrays import KV, heads_of
from tests.generated.recipe import Recipe


@dataclass(frozen=True)
class Context:
    """A recipe, and the resolver whose constraints it uses as the recipe says.

    Attributes:
      is_bare: whether this layer has no constraints, while others have.
    """

    recipe: Recipe
    resolver: Any
    is_bare: bool = False

    def constrain(self, x: Any, activation: str) -> Any:
        """Return `x`, constrained or not."""
        how = self.recipe.constraints
        if how == "none" or self.is_bare:
            return x
        if activation == "residual":
            activation = how if how in ("sequence", "odd") else activation
        elif how not in ("all", "sequence"):
            return x
        return self.resolver.constrain(x, activation=activation)


def norm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    wide = wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-5)
    return (wide * scale).astype(x.dtype)


def times(c: Context, p: Any, name: str, x: Any) -> Any:
    """Return `x` times a weight, in the spelling of the recipe."""
    w = p[name]
    summed = 2 if name == "out" and w.ndim == 3 else 1
    if w.dtype == jnp.int8:
        return _int8(x, w, p[f"{name}_scale"], summed)
    out = _product(c.recipe.product, x, w.astype(x.dtype), summed)
    if f"{name}_a" in p:
        down = _product(c.recipe.product, x, p[f"{name}_a"].astype(x.dtype), 1)
        out = out + _product(c.recipe.product, down, p[f"{name}_b"].astype(x.dtype), 1)
    return out


def _product(how: str, x: Any, w: Any, summed: int, **kwargs: Any) -> Any:
    if how == "matmul" and w.ndim == 2:
        return jnp.matmul(x, w, **kwargs)
    if how == "dot_general":
        left = tuple(range(x.ndim - summed, x.ndim))
        dims = (left, tuple(range(summed))), ((), ())
        return jax.lax.dot_general(x, w, dims, **kwargs)
    left, right = "abcdefgh"[: x.ndim - summed], "uvwxyz"[: w.ndim]
    return jnp.einsum(f"{left}{right[:summed]},{right}->{left}{right[summed:]}", x, w, **kwargs)


def _int8(x: Any, w: Any, scale: Any, summed: int) -> Any:
    dims = tuple(range(x.ndim - summed, x.ndim))
    largest = jnp.abs(x).max(dims, keepdims=True).astype(jnp.float32) / 127 + 1e-6
    narrow = jnp.round(x / largest).astype(jnp.int8)
    out = _product("einsum", narrow, w, summed, preferred_element_type=jnp.int32)
    largest = largest.reshape(*x.shape[:-summed], *(1,) * (w.ndim - summed))
    return (out.astype(jnp.float32) * largest * scale.astype(jnp.float32)).astype(x.dtype)


def _heads(c: Context, p: Any, name: str, x: Any, count: int) -> Any:
    return times(c, p, name, x).reshape(*x.shape[:2], count, KV)


def mixed(c: Context, p: Any, x: Any, memory: Any) -> Any:
    """Return what the mixer of a layer adds to `x`."""
    kind = c.recipe.mixer
    x = norm(x, p["mixer_norm"])
    if kind == "scan":
        return _associative(c, p, x)
    if kind == "rnn":
        return _recurrent(c, p, x)
    if kind == "conv":
        dims = ("NWC", "WIO", "NWC")
        kernel = p["kernel"].astype(x.dtype)
        h = jax.lax.conv_general_dilated(x, kernel, (1,), "SAME", dimension_numbers=dims)
        return times(c, p, "state_out", c.constrain(jax.nn.gelu(h), "hidden"))
    heads, kv_heads = heads_of(c.recipe)
    source = memory if kind == "cross" else x
    query = c.constrain(_heads(c, p, "query", x, heads), "query")
    key = _heads(c, p, "key", source, kv_heads)
    value = _heads(c, p, "value", source, kv_heads)
    if kind == "ring":
        out = _ring(c, query, key, value)
    else:
        out = attended(c.recipe.attention, query, key, value, is_causal=kind == "attention")
    out = checkpoint_name(c.constrain(out, "query"), "context")
    return projected(c, p, out)


def projected(c: Context, p: Any, out: Any) -> Any:
    """Return heads, put together."""
    if p["out"].ndim == 2:
        out = out.reshape(*out.shape[:2], -1)
    return times(c, p, "out", out)


def attended(how: str, query: Any, key: Any, value: Any, *, is_causal: bool) -> Any:
    """Return what attention reads, in one of three spellings."""
    heads, kv_heads = query.shape[2], key.shape[2]
    if how == "library":
        return jax.nn.dot_product_attention(query, key, value, is_causal=is_causal)
    if how == "grouped":
        query = query.reshape(*query.shape[:2], kv_heads, heads // kv_heads, KV)
        scores = jnp.einsum("blkgd,bmkd->bkglm", query, key).astype(jnp.float32) / KV**0.5
        chances = jax.nn.softmax(_masked(scores) if is_causal else scores).astype(value.dtype)
        out = jnp.einsum("bkglm,bmkd->blkgd", chances, value)
        return out.reshape(*out.shape[:2], heads, KV)
    if kv_heads != heads:
        key, value = (jnp.repeat(each, heads // kv_heads, axis=2) for each in (key, value))
    scores = jnp.einsum("blhd,bmhd->bhlm", query, key).astype(jnp.float32) / KV**0.5
    chances = jax.nn.softmax(_masked(scores) if is_causal else scores).astype(value.dtype)
    return jnp.einsum("bhlm,bmhd->blhd", chances, value)


def _masked(scores: Any) -> Any:
    length, memory = scores.shape[-2:]
    return jnp.where(jnp.tril(jnp.ones((length, memory), bool)), scores, -1e9)


def _associative(c: Context, p: Any, x: Any) -> Any:
    """A gated linear recurrence, by a parallel prefix over the length."""
    h = c.constrain(times(c, p, "state_in", x), "hidden").astype(jnp.float32)
    gate = jax.nn.sigmoid(times(c, p, "state_gate", x).astype(jnp.float32))

    def combined(left: Any, right: Any) -> Any:
        return left[0] * right[0], left[1] * right[0] + right[1]

    _, states = jax.lax.associative_scan(combined, (gate, (1 - gate) * h), axis=1)
    return times(c, p, "state_out", c.constrain(states.astype(x.dtype), "hidden"))


def _recurrent(c: Context, p: Any, x: Any) -> Any:
    """A recurrence with a matmul in each round."""
    h = c.constrain(times(c, p, "state_in", x), "hidden").swapaxes(0, 1)

    def round_(state: Any, new: Any) -> Any:
        state = jnp.tanh(
            new + _product(c.recipe.product, state, p["state_again"].astype(x.dtype), 1)
        )
        return state, state

    _, states = jax.lax.scan(round_, jnp.zeros_like(h[0]), h)
    return times(c, p, "state_out", c.constrain(states.swapaxes(0, 1), "hidden"))


def _ring(c: Context, query: Any, key: Any, value: Any) -> Any:
    """Attention over sequences that `seq` splits: keys and values go round."""
    mesh = c.recipe.mesh
    place = P(c.recipe.batch_axes or None, "seq", "tensor" if "tensor" in mesh else None)
    size = mesh["seq"]
    turns = [(at, (at + 1) % size) for at in range(size)]

    def local(query: Any, key: Any, value: Any) -> Any:
        def turn(carry: Any, _: Any) -> Any:
            key, value, top, whole, out = carry
            scores = jnp.einsum("blhd,bmhd->bhlm", query, key).astype(jnp.float32) / KV**0.5
            new_top = jnp.maximum(top, scores.max(-1))
            chances, old = jnp.exp(scores - new_top[..., None]), jnp.exp(top - new_top)
            whole = whole * old + chances.sum(-1)
            added = jnp.einsum("bhlm,bmhd->bhld", chances.astype(value.dtype), value)
            out = out * old[..., None] + added
            key, value = (jax.lax.ppermute(each, "seq", turns) for each in (key, value))
            return (key, value, new_top, whole, out), None

        batch, length, heads, _ = query.shape
        start = jnp.full((batch, heads, length), -1e30), jnp.zeros((batch, heads, length))
        start = (key, value, *start, jnp.zeros((batch, heads, length, KV)))
        (_, _, _, whole, out), _ = jax.lax.scan(turn, start, None, length=size)
        return (out / whole[..., None]).swapaxes(1, 2).astype(query.dtype)

    run = partial(jax.shard_map, mesh=c.resolver.mesh, check_vma=False)
    return run(local, in_specs=(place,) * 3, out_specs=place)(query, key, value)


def mlp(c: Context, p: Any, x: Any) -> Any:
    """Return what the MLP of a layer adds to `x`."""
    x = norm(x, p["mlp_norm"])
    hidden = jax.nn.silu(times(c, p, "gate" if "gate" in p else "up", x))
    if "gate" in p:
        hidden = hidden * times(c, p, "up", x)
    hidden = checkpoint_name(c.constrain(hidden, "hidden"), "hidden")
    return times(c, p, "down", hidden)
