"""The small T5 in Flax NNX: the paths, shapes and names of the Linen one."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from tests.models import layers
from tests.models.layers import HIDDEN, LOGITS, PLAIN, QUERY, RESIDUAL, Wiring

Batch = dict[str, Any]

#: The spec that lists this model.
EXAMPLE = "tiny-t5"
STACKED = {nnx.PARTITION_NAME: "layers"}


def named(*names: str, stddev: float = 0.2) -> Any:
    """Return an initializer of Variables with these logical axes."""
    init = nnx.initializers.normal(stddev)
    return nnx.with_partitioning(init, names, eager_sharding=False)


def norm(rngs: nnx.Rngs) -> nnx.RMSNorm:
    """Return a norm; its scale is called `embed`, as in T5X."""
    scale = nnx.with_partitioning(nnx.initializers.ones, ("embed",), eager_sharding=False)
    return nnx.RMSNorm(layers.EMBED, scale_init=scale, rngs=rngs)


def dense(ins: Any, outs: Any, *names: str, axis: Any = -1, rngs: nnx.Rngs) -> nnx.LinearGeneral:
    """Return a product with a kernel of these logical axes."""
    kernel = named(*names)
    return nnx.LinearGeneral(ins, outs, axis=axis, use_bias=False, kernel_init=kernel, rngs=rngs)


class Attention(nnx.Module):
    def __init__(self, wiring: Wiring, rngs: nnx.Rngs) -> None:
        heads = layers.HEADS, layers.KV
        self.wiring = wiring
        self.query = dense(layers.EMBED, heads, "embed", "heads", "kv", rngs=rngs)
        self.key = dense(layers.EMBED, heads, "embed", "heads", "kv", rngs=rngs)
        self.value = dense(layers.EMBED, heads, "embed", "heads", "kv", rngs=rngs)
        self.out = dense(heads, layers.EMBED, "heads", "kv", "embed", axis=(-2, -1), rngs=rngs)

    def __call__(self, x: Any, seen: Any, bias: Any) -> Any:
        constrain = self.wiring.constrain
        query = constrain(self.query(x), QUERY)
        key, value = (
            constrain(each(seen), "batch kv_length heads kv") for each in (self.key, self.value)
        )
        return self.out(layers.attention(query, key, value, bias, constrain))


class Mlp(nnx.Module):
    def __init__(self, wiring: Wiring, rngs: nnx.Rngs) -> None:
        self.wiring = wiring
        self.wi_0 = dense(layers.EMBED, layers.MLP, "embed", "mlp", rngs=rngs)
        self.wi_1 = dense(layers.EMBED, layers.MLP, "embed", "mlp", rngs=rngs)
        self.wo = dense(layers.MLP, layers.EMBED, "mlp", "embed", rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.wo(self.wiring.constrain(jax.nn.gelu(self.wi_0(x)) * self.wi_1(x), HIDDEN))


class EncoderBlock(nnx.Module):
    def __init__(self, wiring: Wiring, rngs: nnx.Rngs) -> None:
        self.wiring = wiring
        self.pre_attention_norm = norm(rngs)
        self.attention = Attention(wiring, rngs)
        self.pre_mlp_norm = norm(rngs)
        self.mlp = Mlp(wiring, rngs)

    def __call__(self, x: Any, bias: Any) -> Any:
        constrain = self.wiring.constrain
        h = self.pre_attention_norm(constrain(x, RESIDUAL))
        x = constrain(x + self.attention(h, h, bias), RESIDUAL)
        return constrain(x + self.mlp(self.pre_mlp_norm(x)), RESIDUAL)


class DecoderBlock(nnx.Module):
    def __init__(self, wiring: Wiring, rngs: nnx.Rngs) -> None:
        self.wiring = wiring
        self.pre_self_attention_norm = norm(rngs)
        self.self_attention = Attention(wiring, rngs)
        self.pre_cross_attention_norm = norm(rngs)
        self.cross_attention = Attention(wiring, rngs)
        self.pre_mlp_norm = norm(rngs)
        self.mlp = Mlp(wiring, rngs)

    def __call__(self, x: Any, encoded: Any, bias: Any) -> Any:
        constrain = self.wiring.constrain
        h = self.pre_self_attention_norm(constrain(x, RESIDUAL))
        x = constrain(x + self.self_attention(h, h, bias), RESIDUAL)
        x = constrain(
            x + self.cross_attention(self.pre_cross_attention_norm(x), encoded, 0.0), RESIDUAL
        )
        return constrain(x + self.mlp(self.pre_mlp_norm(x)), RESIDUAL)


def stacked(block: type[nnx.Module], wiring: Wiring, rngs: nnx.Rngs) -> Any:
    """Return all layers in one module, their arrays stacked at position 0."""

    @nnx.split_rngs(splits=layers.LAYERS)
    @nnx.vmap(transform_metadata=STACKED)
    def build(rngs: nnx.Rngs) -> Any:
        return block(wiring, rngs)

    return build(rngs)


def through(blocks: Any, travelling: tuple[Any, ...], bias: Any) -> Any:
    """Return the first of `travelling` after all layers.

    Args:
      travelling: what is cut with the batch.
    """
    if not blocks.wiring.is_pipeline:
        x, *rest = travelling
        run = nnx.scan(
            lambda x, block: block(x, *rest, bias),
            in_axes=(nnx.Carry, 0),
            out_axes=nnx.Carry,
            transform_metadata=STACKED,
        )
        return run(x, blocks)

    stages = nnx.vmap(
        lambda block, buffer: block(*buffer, bias),
        spmd_axis_name="stage",
        transform_metadata=STACKED,
    )
    return layers.pipelined(
        lambda buffer: stages(blocks, buffer), travelling, blocks.wiring.constrain
    )


class RelativeBias(nnx.Module):
    def __init__(self, wiring: Wiring, rngs: nnx.Rngs) -> None:
        shape = layers.HEADS, layers.RELPOS_BUCKETS
        self.wiring = wiring
        self.embedding = nnx.Param(
            nnx.initializers.normal(0.2)(rngs.params(), shape),
            out_sharding=("heads", "relpos_buckets"),
            eager_sharding=False,
        )

    def __call__(self) -> Any:
        bias = layers.lookup(self.embedding[...].T, layers.distance_buckets())
        return self.wiring.constrain(bias.transpose(2, 0, 1), "heads length kv_length")


class Encoder(nnx.Module):
    def __init__(self, wiring: Wiring, rngs: nnx.Rngs) -> None:
        self.wiring = wiring
        self.relpos_bias = RelativeBias(wiring, rngs)
        self.layers = stacked(EncoderBlock, wiring, rngs)
        self.norm = norm(rngs)

    def __call__(self, x: Any) -> Any:
        x = through(self.layers, (x,), self.relpos_bias())
        return self.wiring.outside(self.norm(x), RESIDUAL)


class Decoder(nnx.Module):
    def __init__(self, wiring: Wiring, rngs: nnx.Rngs) -> None:
        self.wiring = wiring
        self.relpos_bias = RelativeBias(wiring, rngs)
        self.layers = stacked(DecoderBlock, wiring, rngs)
        self.norm = norm(rngs)
        self.logits = dense(layers.EMBED, layers.VOCAB, "embed", "vocab", rngs=rngs)

    def __call__(self, x: Any, encoded: Any) -> Any:
        x = through(self.layers, (x, encoded), self.relpos_bias() + layers.causal())
        x = self.wiring.outside(self.norm(x), RESIDUAL)
        return self.wiring.outside(self.logits(x), LOGITS)


class T5(nnx.Module):
    def __init__(self, wiring: Wiring, rngs: nnx.Rngs) -> None:
        self.wiring = wiring
        table = named("vocab", "embed", stddev=1.0)
        self.token_embedder = nnx.Embed(layers.VOCAB, layers.EMBED, embedding_init=table, rngs=rngs)
        self.encoder = Encoder(wiring, rngs)
        self.decoder = Decoder(wiring, rngs)

    def __call__(self, inputs: Any, targets: Any) -> Any:
        def embedded(tokens: Any) -> Any:
            table = self.token_embedder.embedding[...]
            return self.wiring.outside(layers.lookup(table, tokens), RESIDUAL)

        return self.decoder(embedded(layers.shifted(targets)), self.encoder(embedded(inputs)))


def init(rng: Any) -> Any:
    """Return the parameters, a State of Variables."""
    return nnx.state(T5(PLAIN, nnx.Rngs(params=rng)), nnx.Param)


def loss(params: Any, batch: Batch, wiring: Wiring = PLAIN) -> Any:
    """Return the loss of one batch."""
    graph, _, rest = nnx.split(
        nnx.eval_shape(lambda: T5(wiring, nnx.Rngs(params=0))), nnx.Param, ...
    )
    logits = nnx.merge(graph, params, rest)(batch["inputs"], batch["targets"])
    return layers.cross_entropy(logits, batch["targets"])
