"""A small decoder with experts in Flax Linen: shared key and value heads, two experts a token."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from tests.models import layers
from tests.models.layers import LOGITS, PLAIN, QUERY, RESIDUAL, Wiring

Batch = dict[str, Any]

#: The spec that lists this model.
EXAMPLE = "tiny-moe"


def boxed(*names: str, stddev: float = 0.2) -> Any:
    """Return an initializer of arrays with these logical axes."""
    return nn.with_logical_partitioning(nn.initializers.normal(stddev), names)


def norm(name: str) -> nn.RMSNorm:
    """Return a norm; its scale has a name of its own and may be whole where `embed` is not."""
    scale = nn.with_logical_partitioning(nn.initializers.ones, ("norm",))
    return nn.RMSNorm(scale_init=scale, name=name)


class Attention(nn.Module):
    wiring: Wiring

    @nn.compact
    def __call__(self, x: Any, bias: Any) -> Any:
        def heads(name: str, count: int, axis: str) -> Any:
            kernel = boxed("embed", axis, "kv")
            shape = count, layers.KV
            return nn.DenseGeneral(shape, use_bias=False, kernel_init=kernel, name=name)(x)

        constrain = self.wiring.constrain
        query = constrain(heads("query", layers.HEADS, "heads"), QUERY)
        key, value = (
            constrain(heads(name, layers.KV_HEADS, "kv_heads"), "batch kv_length kv_heads kv")
            for name in ("key", "value")
        )
        mixed = layers.attention(query, key, value, bias, constrain)
        kernel = boxed("heads", "kv", "embed")
        out = nn.DenseGeneral(
            layers.EMBED, (-2, -1), use_bias=False, kernel_init=kernel, name="out"
        )
        return out(mixed)


class Experts(nn.Module):
    wiring: Wiring

    @nn.compact
    def __call__(self, x: Any) -> Any:
        router = boxed("embed", "router")
        scores = nn.Dense(layers.EXPERTS, use_bias=False, kernel_init=router, name="router")(x)

        def weights(name: str, *names: str) -> Any:
            sizes = {"expert": layers.EXPERTS, "embed": layers.EMBED, "mlp": layers.MLP}
            return self.param(name, boxed(*names), [sizes[each] for each in names])

        wi_0, wi_1 = (weights(name, "expert", "embed", "mlp") for name in ("wi_0", "wi_1"))
        wo = weights("wo", "expert", "mlp", "embed")
        return layers.experts(x, scores, wi_0, wi_1, wo, self.wiring.constrain)


class Block(nn.Module):
    wiring: Wiring

    @nn.compact
    def __call__(self, x: Any, bias: Any) -> tuple[Any, None]:
        constrain = self.wiring.constrain
        h = norm("pre_attention_norm")(constrain(x, RESIDUAL))
        x = constrain(x + Attention(self.wiring, name="attention")(h, bias), RESIDUAL)
        h = norm("pre_experts_norm")(x)
        return constrain(x + Experts(self.wiring, name="experts")(h), RESIDUAL), None


class Moe(nn.Module):
    wiring: Wiring = PLAIN

    @nn.compact
    def __call__(self, tokens: Any) -> Any:
        outside = self.wiring.outside
        table = boxed("vocab", "embed", stddev=1.0)
        embedder = nn.Embed(layers.VOCAB, layers.EMBED, embedding_init=table, name="token_embedder")
        shape = layers.LENGTH, layers.EMBED
        places = self.param("positions", boxed("abspos_buckets", "embed"), shape)
        x = outside(layers.lookup(embedder.embedding, tokens) + places, RESIDUAL)
        x = outside(norm("norm")(self._blocks(x)), RESIDUAL)
        kernel = boxed("embed", "vocab")
        logits = nn.Dense(layers.VOCAB, use_bias=False, kernel_init=kernel, name="logits")(x)
        return outside(logits, LOGITS)

    def _blocks(self, x: Any) -> Any:
        """Return `x` after all layers, whose arrays are stacked at position 0."""
        arrays: dict[str, Any] = {
            "variable_axes": {"params": 0},
            "split_rngs": {"params": True},
            "metadata_params": {nn.PARTITION_NAME: "layers"},
        }
        bias = layers.causal()
        if not self.wiring.is_pipeline:
            run = nn.scan(Block, in_axes=nn.broadcast, length=layers.LAYERS, **arrays)
            return run(self.wiring, name="layers")(x, bias)[0]
        stages = nn.vmap(Block, in_axes=(0, None), spmd_axis_name="stage", **arrays)
        stage = stages(self.wiring, name="layers")
        return layers.pipelined(lambda buffer: stage(*buffer, bias)[0], (x,), self.wiring.constrain)


def init(rng: Any) -> Any:
    """Return the parameters, in Flax's boxes."""
    return Moe().init(rng, jnp.zeros((layers.BATCH, layers.LENGTH), jnp.int32))["params"]


def loss(params: Any, batch: Batch, wiring: Wiring = PLAIN) -> Any:
    """Return the loss of one batch: each token from those before it."""
    logits = Moe(wiring).apply({"params": params}, layers.shifted(batch["targets"]))
    return layers.cross_entropy(logits, batch["targets"])
