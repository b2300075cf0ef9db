"""The small decoder with experts in Flax NNX: the paths, shapes and names of the Linen one."""

from __future__ import annotations

from typing import Any

from flax import nnx

from tests.models import layers
from tests.models.layers import LOGITS, PLAIN, QUERY, RESIDUAL, Wiring

Batch = dict[str, Any]

#: The spec that lists this model.
EXAMPLE = "tiny-moe"
STACKED = {nnx.PARTITION_NAME: "layers"}


def named(*names: str, stddev: float = 0.2) -> Any:
    """Return an initializer of Variables with these logical axes."""
    init = nnx.initializers.normal(stddev)
    return nnx.with_partitioning(init, names, eager_sharding=False)


def param(rngs: nnx.Rngs, shape: tuple[int, ...], *names: str) -> nnx.Param:
    """Return one Variable with these logical axes."""
    value = nnx.initializers.normal(0.2)(rngs.params(), shape)
    return nnx.Param(value, out_sharding=names, eager_sharding=False)


def norm(rngs: nnx.Rngs) -> nnx.RMSNorm:
    """Return a norm; its scale has a name of its own and may be whole where `embed` is not."""
    scale = nnx.with_partitioning(nnx.initializers.ones, ("norm",), eager_sharding=False)
    return nnx.RMSNorm(layers.EMBED, scale_init=scale, rngs=rngs)


def dense(ins: Any, outs: Any, *names: str, axis: Any = -1, rngs: nnx.Rngs) -> nnx.LinearGeneral:
    """Return a product with a kernel of these logical axes."""
    kernel = named(*names)
    return nnx.LinearGeneral(ins, outs, axis=axis, use_bias=False, kernel_init=kernel, rngs=rngs)


class Attention(nnx.Module):
    def __init__(self, wiring: Wiring, rngs: nnx.Rngs) -> None:
        own, shared = (layers.HEADS, layers.KV), (layers.KV_HEADS, layers.KV)
        self.wiring = wiring
        self.query = dense(layers.EMBED, own, "embed", "heads", "kv", rngs=rngs)
        self.key = dense(layers.EMBED, shared, "embed", "kv_heads", "kv", rngs=rngs)
        self.value = dense(layers.EMBED, shared, "embed", "kv_heads", "kv", rngs=rngs)
        self.out = dense(own, layers.EMBED, "heads", "kv", "embed", axis=(-2, -1), rngs=rngs)

    def __call__(self, x: Any, bias: Any) -> Any:
        constrain = self.wiring.constrain
        query = constrain(self.query(x), QUERY)
        key, value = (
            constrain(each(x), "batch kv_length kv_heads kv") for each in (self.key, self.value)
        )
        return self.out(layers.attention(query, key, value, bias, constrain))


class Experts(nnx.Module):
    def __init__(self, wiring: Wiring, rngs: nnx.Rngs) -> None:
        up = layers.EXPERTS, layers.EMBED, layers.MLP
        down = layers.EXPERTS, layers.MLP, layers.EMBED
        self.wiring = wiring
        self.router = dense(layers.EMBED, layers.EXPERTS, "embed", "router", rngs=rngs)
        self.wi_0 = param(rngs, up, "expert", "embed", "mlp")
        self.wi_1 = param(rngs, up, "expert", "embed", "mlp")
        self.wo = param(rngs, down, "expert", "mlp", "embed")

    def __call__(self, x: Any) -> Any:
        weights = (each[...] for each in (self.wi_0, self.wi_1, self.wo))
        return layers.experts(x, self.router(x), *weights, self.wiring.constrain)


class Block(nnx.Module):
    def __init__(self, wiring: Wiring, rngs: nnx.Rngs) -> None:
        self.wiring = wiring
        self.pre_attention_norm = norm(rngs)
        self.attention = Attention(wiring, rngs)
        self.pre_experts_norm = norm(rngs)
        self.experts = Experts(wiring, rngs)

    def __call__(self, x: Any, bias: Any) -> Any:
        constrain = self.wiring.constrain
        h = self.pre_attention_norm(constrain(x, RESIDUAL))
        x = constrain(x + self.attention(h, bias), RESIDUAL)
        return constrain(x + self.experts(self.pre_experts_norm(x)), RESIDUAL)


class Moe(nnx.Module):
    def __init__(self, wiring: Wiring, rngs: nnx.Rngs) -> None:
        @nnx.split_rngs(splits=layers.LAYERS)
        @nnx.vmap(transform_metadata=STACKED)
        def stacked(rngs: nnx.Rngs) -> Block:
            return Block(wiring, rngs)

        self.wiring = wiring
        table = named("vocab", "embed", stddev=1.0)
        self.token_embedder = nnx.Embed(layers.VOCAB, layers.EMBED, embedding_init=table, rngs=rngs)
        self.positions = param(rngs, (layers.LENGTH, layers.EMBED), "abspos_buckets", "embed")
        self.layers = stacked(rngs)
        self.norm = norm(rngs)
        self.logits = dense(layers.EMBED, layers.VOCAB, "embed", "vocab", rngs=rngs)

    def __call__(self, tokens: Any) -> Any:
        outside = self.wiring.outside
        x = layers.lookup(self.token_embedder.embedding[...], tokens) + self.positions[...]
        x = outside(self.norm(self._through(outside(x, RESIDUAL))), RESIDUAL)
        return outside(self.logits(x), LOGITS)

    def _through(self, x: Any) -> Any:
        """Return `x` after all layers."""
        bias = layers.causal()
        if not self.wiring.is_pipeline:
            run = nnx.scan(
                lambda x, block: block(x, bias),
                in_axes=(nnx.Carry, 0),
                out_axes=nnx.Carry,
                transform_metadata=STACKED,
            )
            return run(x, self.layers)
        stages = nnx.vmap(
            lambda block, x: block(x, bias), spmd_axis_name="stage", transform_metadata=STACKED
        )
        return layers.pipelined(
            lambda buffer: stages(self.layers, *buffer), (x,), self.wiring.constrain
        )


def init(rng: Any) -> Any:
    """Return the parameters, a State of Variables."""
    return nnx.state(Moe(PLAIN, nnx.Rngs(params=rng)), nnx.Param)


def loss(params: Any, batch: Batch, wiring: Wiring = PLAIN) -> Any:
    """Return the loss of one batch: each token from those before it."""
    shapes = nnx.eval_shape(lambda: Moe(wiring, nnx.Rngs(params=0)))
    graph, _, rest = nnx.split(shapes, nnx.Param, ...)
    logits = nnx.merge(graph, params, rest)(layers.shifted(batch["targets"]))
    return layers.cross_entropy(logits, batch["targets"])
