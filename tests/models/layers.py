"""The mathematics that the small models share: functions of arrays, in no framework.

Every model takes a `Wiring`: where its activations are constrained, and whether its layers run one
after the other or as the stages of a pipeline. The same parameters serve both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

LAYERS, EMBED, HEADS, KV_HEADS, KV, MLP, VOCAB = 2, 32, 4, 2, 8, 64, 64
EXPERTS, CHOICES, CAPACITY = 4, 2, 10
BATCH, LENGTH, RELPOS_BUCKETS, MICROBATCHES = 16, 16, 8, 2

RESIDUAL = "batch length embed"
HIDDEN = "batch length mlp"
LOGITS = "batch length vocab"
QUERY = "batch length heads kv"
SCORES = "batch heads length kv_length"

Array = Any
Constrain = Callable[[Array, str], Array]


def unconstrained(x: Array, names: str) -> Array:
    """Return `x` as it is: the reference."""
    del names
    return x


@dataclass(frozen=True)
class Wiring:
    """How a model is run.

    Attributes:
      constrain: takes an activation and its logical axes.
      is_pipeline: whether each layer is a stage; batches then begin with `microbatch`.
    """

    constrain: Constrain = unconstrained
    is_pipeline: bool = False

    def outside(self, x: Array, names: str) -> Array:
        """Return an activation before the first layer or after the last, constrained."""
        return self.constrain(x, f"microbatch {names}" if self.is_pipeline else names)


#: No constraints, one layer after the other: the reference.
PLAIN = Wiring()


def lookup(table: Array, ids: Array) -> Array:
    """Return rows of `table` by a product with one-hot vectors, as T5X does in training.

    XLA splits a product however the table lies; a gather from a split table it may not.
    """
    return jax.nn.one_hot(ids, table.shape[0], dtype=table.dtype) @ table


def attention(query: Array, key: Array, value: Array, bias: Array, constrain: Constrain) -> Array:
    """Return `[batch length heads kv]`; `bias` is added to `[batch heads length kv_length]`."""
    groups = query.shape[2] // key.shape[2]
    key, value = (jnp.repeat(x, groups, 2) if groups > 1 else x for x in (key, value))
    scores = jnp.einsum("blhd,bmhd->bhlm", query, key) / query.shape[-1] ** 0.5
    weights = jax.nn.softmax(constrain(scores + bias, SCORES))
    return constrain(jnp.einsum("bhlm,bmhd->blhd", weights, value), QUERY)


def distance_buckets() -> Array:
    """Return, for each query and key, which of the learned biases by distance is theirs."""
    place = jnp.arange(LENGTH)
    return jnp.clip(place[None, :] - place[:, None] + RELPOS_BUCKETS // 2, 0, RELPOS_BUCKETS - 1)


def causal() -> Array:
    """Return the bias that hides what comes later, `[length kv_length]`."""
    return jnp.where(jnp.tri(LENGTH, dtype=bool), 0.0, -1e9)


def shifted(tokens: Array) -> Array:
    """Return what a decoder sees: each token one place later, 0 first."""
    width = [(0, 0)] * (tokens.ndim - 1) + [(1, 0)]
    return jnp.pad(tokens, width)[..., :-1]


def cross_entropy(logits: Array, tokens: Array) -> Array:
    """Return the mean loss; by one-hot vectors, so that `vocab` may be split."""
    chosen = jax.nn.one_hot(tokens, logits.shape[-1], dtype=logits.dtype)
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * chosen, -1))


def routes(scores: Array) -> tuple[Array, Array]:
    """Return where each token goes, and with what weight: two of `[batch length expert slot]`.

    Each token goes to `CHOICES` experts; each expert takes `CAPACITY` tokens of a sequence, the
    first ones. Sequences do not compete, so nothing depends on how a batch is cut. The choice is by
    `argmax`, one expert after the other: for `top_k`, XLA gathers the scores of the whole batch.
    """
    chances = jax.nn.softmax(scores)
    taken = jnp.zeros_like(chances)
    for _ in range(CHOICES):
        best = jnp.argmax(jnp.where(taken > 0, -1.0, chances), -1)
        taken += jax.nn.one_hot(best, EXPERTS, dtype=scores.dtype)
    weights = chances * taken
    weights /= weights.sum(-1, keepdims=True)
    slots = (jnp.cumsum(taken, 1) * taken).astype(jnp.int32) - 1
    dispatch = jax.nn.one_hot(slots, CAPACITY, dtype=scores.dtype)
    return dispatch, dispatch * weights[..., None]


def experts(
    x: Array, scores: Array, wi_0: Array, wi_1: Array, wo: Array, constrain: Constrain
) -> Array:
    """Return a mixture of gated MLPs over `[batch length embed]`, one set of weights per expert."""
    dispatch, combine = routes(constrain(scores, "batch length router"))
    sent = constrain(jnp.einsum("ble,blxc->xbce", x, dispatch), "_ batch _ embed")
    sent = constrain(sent, "expert batch _ embed")
    gate, up = (jnp.einsum("xbce,xem->xbcm", sent, wi) for wi in (wi_0, wi_1))
    hidden = constrain(jax.nn.silu(gate) * up, "expert batch _ mlp")
    back = constrain(jnp.einsum("xbcm,xme->xbce", hidden, wo), "expert batch _ embed")
    back = constrain(back, "_ batch _ embed")
    return constrain(jnp.einsum("xbce,blxc->ble", back, combine), RESIDUAL)


def pipelined(stages: Callable[[Any], Any], inputs: Any, constrain: Constrain) -> Any:
    """Return what comes out of the last stage, for inputs `[microbatch batch length embed]`.

    Args:
      stages: runs all stages at once, each on its entry of `[stage batch length embed]`.
      inputs: a tree of arrays that travel together; the first is what stages change.
    """
    names = "stage batch length embed"
    buffer = jax.tree.map(lambda x: jnp.zeros((LAYERS, *x.shape[1:]), x.dtype), inputs)
    results = []
    for tick in range(MICROBATCHES + LAYERS - 1):
        entering = jax.tree.map(partial(_microbatch, tick=tick), inputs)
        moved = jax.tree.map(_moved_on, buffer, entering)
        buffer = jax.tree.map(lambda x: constrain(x, names), moved)
        buffer = (constrain(stages(buffer), names), *buffer[1:])
        results.append(buffer[0][-1])
    return jnp.stack(results[LAYERS - 1 :])


def _microbatch(x: Array, tick: int) -> Array:
    """Return what enters the first stage; behind the last microbatch, that one again."""
    return x[min(tick, MICROBATCHES - 1)]


def _moved_on(buffer: Array, entering: Array) -> Array:
    """Return the buffer one stage further: between devices, a collective-permute."""
    moved = jnp.roll(buffer, 1, axis=0)
    first = jnp.arange(buffer.shape[0]).reshape(-1, *[1] * entering.ndim) == 0
    return jnp.where(first, entering[None], moved)
