"""Two of Flax's own examples, with the rules that they publish.

Losses are written as in their `train.py`, which also imports TensorFlow.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from benchmarks.public_steps import Built, Public
from benchmarks.public_steps._training import key, weights
from shardspec import Resolver

COMMIT = "18f8f311c275d57f46d95e41b15aa97b454754c0"


def lm1b(resolver: Resolver) -> Built:
    """Return a train step of the language model, by the default config: 32 sequences a device."""
    import models
    from flax import linen as nn

    config = models.TransformerConfig(
        vocab_size=30_000, output_vocab_size=30_000, dtype=jnp.bfloat16, max_len=512
    )
    model = models.TransformerLM(config)
    batch, length = 32 * resolver.mesh.size, 128
    shape = jax.ShapeDtypeStruct((batch, length), jnp.int32)
    optimizer = optax.adamw(0.0016, b1=0.9, b2=0.98, eps=1e-9, weight_decay=0.1)
    boxed = jax.eval_shape(
        lambda x: models.TransformerLM(config.replace(deterministic=True)).init(
            jax.random.key(0), x
        )["params"],
        shape,
    )
    places, (params, state) = weights(resolver, boxed, optimizer)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def step(params: Any, state: Any, inputs: Any, rng: Any) -> Any:
        weights = jnp.where(inputs > 0, 1, 0).astype(jnp.float32)

        def loss(params: Any) -> Any:
            logits = model.apply({"params": params}, inputs, rngs={"dropout": rng})
            targets = jax.nn.one_hot(inputs, 30_000)
            each = -jnp.sum(targets * nn.log_softmax(logits), axis=-1) * weights
            return each.sum() / weights.sum(), logits

        (value, logits), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        accuracy = jnp.sum(jnp.equal(jnp.argmax(logits, -1), inputs) * weights)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, (value, accuracy)

    inputs = jax.ShapeDtypeStruct(
        shape.shape, shape.dtype, sharding=jax.NamedSharding(resolver.mesh, P("data"))
    )
    return step, (params, state, inputs, key())


def gemma(resolver: Resolver) -> Built:
    """Return a train step of Gemma 3 1B, by the default config: 32 sequences of 128 a device."""
    import transformer
    from flax import nnx
    from transformer_cfg import ShardingConfig

    config = transformer.TransformerConfig.from_version_name(
        "gemma3_1b",
        num_embed=35_008,
        dtype=jnp.bfloat16,
        shd_config=ShardingConfig.fsdp_tp_sharding(tensor_parallel_axis_name="tensor"),
    )
    with nnx.use_eager_sharding(False):
        model = nnx.eval_shape(
            lambda: transformer.Transformer(config, rngs=nnx.Rngs(params=0, dropout=0))
        )
    graph, params, rest = nnx.split(model, nnx.Param, ...)
    params, rest = nnx.to_pure_dict(params), nnx.to_pure_dict(rest)
    optimizer = optax.adamw(0.0016, b1=0.9, b2=0.98, eps=1e-9, weight_decay=0.1)
    places, given = weights(resolver, params, optimizer)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def step(params: Any, state: Any, rest: Any, inputs: Any, targets: Any) -> Any:
        mask = inputs > 0
        positions = jnp.broadcast_to(jnp.arange(inputs.shape[1]), inputs.shape)

        def loss(params: Any) -> Any:
            module = nnx.merge(graph, params, rest)
            causal = transformer.make_causal_attn_mask(mask)
            logits, _ = module(inputs, positions, None, causal, rngs=nnx.Rngs(dropout=1))
            chosen = jax.nn.one_hot(targets, 35_008)
            each = -jnp.sum(chosen * nnx.log_softmax(logits), axis=-1) * mask
            return (each.sum(axis=1) * len(each) / mask.sum()).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    at = jax.NamedSharding(resolver.mesh, P("fsdp"))
    tokens = jax.ShapeDtypeStruct((32 * resolver.mesh.size, 128), jnp.int32, sharding=at)

    def inside(*args: Any) -> Any:
        with resolver:  # its mesh is that of `jax.set_mesh`
            return step(*args)

    return inside, (*given, rest, tokens, tokens)


def wmt(resolver: Resolver) -> Built:
    """Return a train step of the translation model: 32 pairs a device, gradients by `pmean`."""
    import models

    config = models.TransformerConfig(
        vocab_size=32_000,
        output_vocab_size=32_000,
        share_embeddings=True,
        logits_via_embedding=True,
        dtype=jnp.bfloat16,
        emb_dim=1024,
        num_heads=16,
        num_layers=6,
        qkv_dim=1024,
        mlp_dim=4096,
        max_len=256,
    )
    model = models.Transformer(config)
    pair = [jax.ShapeDtypeStruct((32 * resolver.mesh.size, 256), jnp.int32)] * 2
    params = jax.eval_shape(
        lambda *x: models.Transformer(config.replace(deterministic=True)).init(
            jax.random.key(0), *x
        )["params"],
        *pair,
    )
    optimizer = optax.adamw(0.002, b1=0.9, b2=0.98, eps=1e-9)

    def local(params: Any, state: Any, inputs: Any, targets: Any, rng: Any) -> Any:
        weights = (targets > 0).astype(jnp.float32)

        def loss(params: Any) -> Any:
            rngs = {"dropout": rng}
            logits = model.apply({"params": params}, inputs, targets, rngs=rngs)
            soft = jax.nn.one_hot(targets, 32_000) * 0.9 + 0.1 / 31_999
            each = -jnp.sum(soft * jax.nn.log_softmax(logits), axis=-1) * weights
            return each.sum() / weights.sum()

        value, gradients = jax.value_and_grad(loss)(params)
        gradients = jax.lax.pmean(gradients, "batch")
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, jax.lax.psum(value, "batch")

    return _by_device(resolver, local, params, optimizer, pair)


def imagenet(resolver: Resolver) -> Built:
    """Return a train step of ResNet-50: 128 images a device, gradients by `pmean`."""
    import models

    model = models.ResNet50(num_classes=1000, dtype=jnp.bfloat16)
    size = 128 * resolver.mesh.size
    images = jax.ShapeDtypeStruct((size, 224, 224, 3), jnp.bfloat16)
    labels = jax.ShapeDtypeStruct((size,), jnp.int32)
    variables = jax.eval_shape(
        lambda x: model.init(jax.random.key(0), x, train=False),
        jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.bfloat16),
    )
    optimizer = optax.sgd(0.1, momentum=0.9, nesterov=True)

    def local(variables: Any, state: Any, images: Any, labels: Any, rng: Any) -> Any:
        def loss(params: Any) -> Any:
            given = {"params": params, "batch_stats": variables["batch_stats"]}
            logits, changed = model.apply(given, images, mutable=["batch_stats"])
            chosen = jax.nn.one_hot(labels, 1000)
            each = optax.softmax_cross_entropy(logits.astype(jnp.float32), chosen)
            weights = jax.tree.leaves(params)
            decay = sum(jnp.sum(x**2) for x in weights if x.ndim > 1)
            return each.mean() + 0.5e-4 * decay, changed["batch_stats"]

        (value, stats), gradients = jax.value_and_grad(loss, has_aux=True)(variables["params"])
        gradients = jax.lax.pmean(gradients, "batch")
        updates, state = optimizer.update(gradients, state, variables["params"])
        params = optax.apply_updates(variables["params"], updates)
        return {"params": params, "batch_stats": stats}, state, jax.lax.pmean(value, "batch")

    return _by_device(resolver, local, variables, optimizer, [images, labels])


def _by_device(
    resolver: Resolver, local: Any, params: Any, optimizer: Any, batch: list[Any]
) -> Built:
    """Return a step that each device takes with its part of the batch, as `pmap` takes it."""
    state = jax.eval_shape(optimizer.init, params.get("params", params))
    whole, part = (
        jax.NamedSharding(resolver.mesh, P()),
        jax.NamedSharding(resolver.mesh, P("batch")),
    )
    specs = (P(), P(), P("batch"), P("batch"), P())
    step = jax.shard_map(
        local, mesh=resolver.mesh, in_specs=specs, out_specs=(P(), P(), P()), check_vma=False
    )
    arrays = [
        jax.tree.map(
            lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=whole), tree
        )
        for tree in (params, state)
    ]
    parts = [jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=part) for each in batch]
    return jax.jit(step, donate_argnums=(0, 1)), (*arrays, *parts, key())


_DATA_PARALLEL = """
shardspec: 1
replicate: [{path: "**", because: data parallel}]
targets:
  v4-16: {hardware: tpu v4 2x2x2, mesh: {batch: 8}}
  node: {hardware: a100, mesh: {batch: 8}}
"""

STEPS = [
    Public(
        "lm1b",
        "google/flax",
        COMMIT,
        "examples/lm1b",
        "lm1b, Linen, FSDP of weights alone",
        """
shardspec: 1
axes: {mlp: 2048, vocab: 30000, embed: 512, heads: 8}
rules: [mlp -> tensor, vocab -> tensor, embed -> fsdp, heads -> tensor]
overrides:  # `DenseGeneral` names two dimensions of three
  - {path: "**/{query,key,value}/kernel", axes: embed _ _}
  - {path: "**/MultiHeadDotProductAttention_*/out/kernel", axes: _ _ embed}
lints: {size-one-axis: allow}
targets:
  v5e-16: {hardware: tpu v5e 4x4, mesh: {data: 1, fsdp: 16, tensor: 1}}
  two-nodes: {hardware: 2 * h100, mesh: {data: 2 @ dcn, fsdp: 8, tensor: 1}}
""",
        lm1b,
    ),
    Public(
        "gemma",
        "google/flax",
        COMMIT,
        "examples/gemma",
        "gemma3_1b, NNX, explicit axes",
        """
shardspec: 1
axes: {vocab: 35008, embed: 1152, heads: 4, kv: 256, mlp: 6912, norm: 1152}
rules: [vocab -> tensor, heads -> tensor, mlp -> tensor, norm -> tensor, embed -> fsdp, kv -> none]
params:
  embedder/embedding: vocab embed
  "**/q_einsum/kernel": heads embed kv
  "**/kv_einsum/kernel": _ _ embed kv
  "**/attn_vec_einsum/kernel": heads kv embed
  "**/{gate_proj,up_proj}/kernel": embed mlp
  "**/down_proj/kernel": mlp embed
  "**/_{query,key}_norm/scale": kv
  "{final_norm,**/{pre,post}_*_norm}/scale": norm
targets:
  v5p-32: {hardware: tpu v5p 2x2x4, mesh: {fsdp: 8 explicit, tensor: 2 explicit}}
  node: {hardware: h100, mesh: {fsdp: 4 explicit, tensor: 2 explicit}}
""",
        gemma,
    ),
    Public(
        "wmt",
        "google/flax",
        COMMIT,
        "examples/wmt",
        "wmt, Linen, data parallel by `shard_map`",
        _DATA_PARALLEL,
        wmt,
    ),
    Public(
        "imagenet",
        "google/flax",
        COMMIT,
        "examples/imagenet",
        "imagenet ResNet-50, Linen, data parallel by `shard_map`",
        _DATA_PARALLEL,
        imagenet,
    ),
]
