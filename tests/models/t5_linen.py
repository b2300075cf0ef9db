"""A small T5 in Flax Linen: encoder, decoder, gated MLPs, biases by distance, stacked layers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from tests.models import layers
from tests.models.layers import HIDDEN, LOGITS, PLAIN, QUERY, RESIDUAL, Wiring

Batch = dict[str, Any]

#: The spec that lists this model.
EXAMPLE = "tiny-t5"


def boxed(*names: str, stddev: float = 0.2) -> Any:
    """Return an initializer of arrays with these logical axes."""
    return nn.with_logical_partitioning(nn.initializers.normal(stddev), names)


def norm(name: str) -> nn.RMSNorm:
    """Return a norm; its scale is called `embed`, as in T5X."""
    scale = nn.with_logical_partitioning(nn.initializers.ones, ("embed",))
    return nn.RMSNorm(scale_init=scale, name=name)


class Attention(nn.Module):
    wiring: Wiring

    @nn.compact
    def __call__(self, x: Any, seen: Any, bias: Any) -> Any:
        def heads(name: str) -> nn.DenseGeneral:
            kernel = boxed("embed", "heads", "kv")
            shape = layers.HEADS, layers.KV
            return nn.DenseGeneral(shape, use_bias=False, kernel_init=kernel, name=name)

        constrain = self.wiring.constrain
        query = constrain(heads("query")(x), QUERY)
        key, value = (
            constrain(heads(name)(seen), "batch kv_length heads kv") for name in ("key", "value")
        )
        mixed = layers.attention(query, key, value, bias, constrain)
        kernel = boxed("heads", "kv", "embed")
        out = nn.DenseGeneral(
            layers.EMBED, (-2, -1), use_bias=False, kernel_init=kernel, name="out"
        )
        return out(mixed)


class Mlp(nn.Module):
    wiring: Wiring

    @nn.compact
    def __call__(self, x: Any) -> Any:
        def dense(size: int, name: str, *names: str) -> nn.Dense:
            return nn.Dense(size, use_bias=False, kernel_init=boxed(*names), name=name)

        gate, up = (dense(layers.MLP, name, "embed", "mlp")(x) for name in ("wi_0", "wi_1"))
        hidden = self.wiring.constrain(jax.nn.gelu(gate) * up, HIDDEN)
        return dense(layers.EMBED, "wo", "mlp", "embed")(hidden)


class EncoderBlock(nn.Module):
    wiring: Wiring

    @nn.compact
    def __call__(self, x: Any, bias: Any) -> tuple[Any, None]:
        constrain = self.wiring.constrain
        h = norm("pre_attention_norm")(constrain(x, RESIDUAL))
        x = constrain(x + Attention(self.wiring, name="attention")(h, h, bias), RESIDUAL)
        h = norm("pre_mlp_norm")(x)
        return constrain(x + Mlp(self.wiring, name="mlp")(h), RESIDUAL), None


class DecoderBlock(nn.Module):
    wiring: Wiring

    @nn.compact
    def __call__(self, x: Any, encoded: Any, bias: Any) -> tuple[Any, None]:
        constrain = self.wiring.constrain
        h = norm("pre_self_attention_norm")(constrain(x, RESIDUAL))
        x = constrain(x + Attention(self.wiring, name="self_attention")(h, h, bias), RESIDUAL)
        h = norm("pre_cross_attention_norm")(x)
        cross = Attention(self.wiring, name="cross_attention")(h, encoded, 0.0)
        x = constrain(x + cross, RESIDUAL)
        h = norm("pre_mlp_norm")(x)
        return constrain(x + Mlp(self.wiring, name="mlp")(h), RESIDUAL), None


def stacked(block: type[nn.Module], wiring: Wiring, travelling: tuple[Any, ...], bias: Any) -> Any:
    """Return the first of `travelling` after all layers, whose arrays are stacked at position 0.

    Args:
      travelling: what is cut with the batch.
    """
    arrays: dict[str, Any] = {
        "variable_axes": {"params": 0},
        "split_rngs": {"params": True},
        "metadata_params": {nn.PARTITION_NAME: "layers"},
    }
    if not wiring.is_pipeline:
        given = (nn.broadcast,) * len(travelling)
        run = nn.scan(block, in_axes=given, length=layers.LAYERS, **arrays)
        return run(wiring, name="layers")(*travelling, bias)[0]
    axes = (*(0 for _ in travelling), None)
    stage = nn.vmap(block, in_axes=axes, spmd_axis_name="stage", **arrays)(wiring, name="layers")
    return layers.pipelined(lambda buffer: stage(*buffer, bias)[0], travelling, wiring.constrain)


class RelativeBias(nn.Module):
    wiring: Wiring

    @nn.compact
    def __call__(self) -> Any:
        shape = layers.HEADS, layers.RELPOS_BUCKETS
        table = self.param("embedding", boxed("heads", "relpos_buckets"), shape)
        bias = layers.lookup(table.T, layers.distance_buckets())
        return self.wiring.constrain(bias.transpose(2, 0, 1), "heads length kv_length")


class Encoder(nn.Module):
    wiring: Wiring

    @nn.compact
    def __call__(self, x: Any) -> Any:
        bias = RelativeBias(self.wiring, name="relpos_bias")()
        x = stacked(EncoderBlock, self.wiring, (x,), bias)
        return self.wiring.outside(norm("norm")(x), RESIDUAL)


class Decoder(nn.Module):
    wiring: Wiring

    @nn.compact
    def __call__(self, x: Any, encoded: Any) -> Any:
        bias = RelativeBias(self.wiring, name="relpos_bias")() + layers.causal()
        x = stacked(DecoderBlock, self.wiring, (x, encoded), bias)
        x = self.wiring.outside(norm("norm")(x), RESIDUAL)
        kernel = boxed("embed", "vocab")
        logits = nn.Dense(layers.VOCAB, use_bias=False, kernel_init=kernel, name="logits")(x)
        return self.wiring.outside(logits, LOGITS)


class T5(nn.Module):
    wiring: Wiring = PLAIN

    @nn.compact
    def __call__(self, inputs: Any, targets: Any) -> Any:
        table = boxed("vocab", "embed", stddev=1.0)
        embedder = nn.Embed(layers.VOCAB, layers.EMBED, embedding_init=table, name="token_embedder")

        def embedded(tokens: Any) -> Any:
            return self.wiring.outside(layers.lookup(embedder.embedding, tokens), RESIDUAL)

        encoded = Encoder(self.wiring, name="encoder")(embedded(inputs))
        return Decoder(self.wiring, name="decoder")(embedded(layers.shifted(targets)), encoded)


def init(rng: Any) -> Any:
    """Return the parameters, in Flax's boxes."""
    tokens = jnp.zeros((layers.BATCH, layers.LENGTH), jnp.int32)
    return T5().init(rng, tokens, tokens)["params"]


def loss(params: Any, batch: Batch, wiring: Wiring = PLAIN) -> Any:
    """Return the loss of one batch."""
    logits = T5(wiring).apply({"params": params}, batch["inputs"], batch["targets"])
    return layers.cross_entropy(logits, batch["targets"])
