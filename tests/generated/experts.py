"""Experts in four spellings: GShard's products, sorted, all-to-all by hand, and ragged products."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from tests.generated.arrays import EXPERTS
from tests.generated.layers import Context, norm


def experts(c: Context, p: Any, x: Any) -> Any:
    """Return what the experts of a layer add to `x`."""
    x = norm(x, p["mlp_norm"])
    up, down = (p[name].astype(x.dtype) for name in ("up_experts", "down_experts"))
    spell = {"gshard": _gshard, "sorted": _sorted, "alltoall": _all_to_all, "ragged": _ragged}
    return spell[c.recipe.experts](c, p["router"].astype(x.dtype), up, down, x)


def _routes(scores: Any, capacity: int) -> tuple[Any, Any]:
    """Return where each token goes, and with what weight: `[..., length expert slot]`."""
    chances = jax.nn.softmax(scores.astype(jnp.float32))
    taken = jax.nn.one_hot(jnp.argmax(chances, -1), EXPERTS)
    slots = (jnp.cumsum(taken, axis=-2) * taken).astype(jnp.int32) - 1
    dispatch = jax.nn.one_hot(slots, capacity, dtype=scores.dtype)
    return dispatch, dispatch * (chances * taken).astype(scores.dtype)[..., None]


def _gshard(c: Context, router: Any, up: Any, down: Any, x: Any) -> Any:
    scores = jnp.einsum("ble,ex->blx", x, router)
    dispatch, combine = _routes(scores, max(x.shape[1] // EXPERTS, 4))
    sent = c.constrain(jnp.einsum("ble,blxc->xbce", x, dispatch), "dispatched")
    hidden = jax.nn.silu(jnp.einsum("xbce,xem->xbcm", sent, up))
    back = jnp.einsum("xbcm,xme->xbce", c.constrain(hidden, "expert_hidden"), down)
    return jnp.einsum("xbce,blxc->ble", c.constrain(back, "dispatched"), combine)


def _ordered(router: Any, x: Any) -> tuple[Any, Any, Any, Any]:
    """Return the tokens by expert, their chances, the order, and the expert of each before it."""
    tokens = x.reshape(-1, x.shape[-1])
    chances = jax.nn.softmax((tokens @ router).astype(jnp.float32))
    chosen = jnp.argmax(chances, -1)
    order = jnp.argsort(chosen)
    return tokens[order], chances.max(-1)[:, None].astype(x.dtype), order, chosen


def _sorted(c: Context, router: Any, up: Any, down: Any, x: Any) -> Any:
    tokens, chances, order, _ = _ordered(router, x)
    count = tokens.shape[0]
    if count % EXPERTS:
        tokens = jnp.pad(tokens, ((0, -count % EXPERTS), (0, 0)))
    parts = c.constrain(tokens.reshape(EXPERTS, -1, x.shape[-1]), "sorted")
    hidden = jax.nn.silu(jnp.einsum("xne,xem->xnm", parts, up))
    back = c.constrain(jnp.einsum("xnm,xme->xne", hidden, down), "sorted")
    back = back.reshape(-1, x.shape[-1])[:count]
    return (back[jnp.argsort(order)] * chances).reshape(x.shape)


def _ragged(c: Context, router: Any, up: Any, down: Any, x: Any) -> Any:
    tokens, chances, order, chosen = _ordered(router, x)
    sizes = jnp.bincount(chosen, length=EXPERTS).astype(jnp.int32)
    hidden = jax.nn.silu(jax.lax.ragged_dot(tokens, up, sizes))
    back = jax.lax.ragged_dot(hidden, down, sizes)
    return (back[jnp.argsort(order)] * chances).reshape(x.shape)


def _all_to_all(c: Context, router: Any, up: Any, down: Any, x: Any) -> Any:
    mesh = c.recipe.mesh
    tensor = "tensor" if "tensor" in mesh else None
    tokens, routes = P(c.recipe.batch_axes), P()

    def local(router: Any, up: Any, down: Any, x: Any) -> Any:
        flat = x.reshape(-1, x.shape[-1])
        dispatch, combine = _routes(flat @ router, max(flat.shape[0] // EXPERTS, 4))
        sent = jnp.einsum("te,txc->xce", flat, dispatch)
        sent = jax.lax.all_to_all(sent, "expert", 0, 1, tiled=True)
        hidden = jax.nn.silu(jnp.einsum("xce,xem->xcm", sent, up))
        back = jnp.einsum("xcm,xme->xce", hidden, down)
        if tensor:
            back = jax.lax.psum(back, tensor)
        back = jax.lax.all_to_all(back, "expert", 1, 0, tiled=True)
        return jnp.einsum("xce,txc->te", back, combine).reshape(x.shape)

    places = (routes, P("expert", None, tensor), P("expert", tensor), tokens)
    run = jax.shard_map(
        local, mesh=c.resolver.mesh, in_specs=places, out_specs=tokens, check_vma=False
    )
    return run(router, up, down, x)
