"""Two trainers of big_vision, with its own models, losses, optimizers and constraints.

Its shardings are given by strategies: everything replicated, or `fsdp(axis="data")`, which splits
the longest dimension of arrays over 4 MiB. TensorFlow's files are a mock: the steps read none.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.training import checkpoints  # noqa: F401  asks for TensorFlow's spec, which a mock has not
from jax.sharding import PartitionSpec as P

from benchmarks.public_steps import Built, Public, placed
from benchmarks.public_steps._training import absent, key, shaped
from shardspec import Resolver

COMMIT = "0127fb6b337ee2a27bf4e54dea79cff176527356"
TENSORFLOW = ("tensorflow", "tensorflow.io", "tensorflow.io.gfile")


def updating(resolver: Resolver, config: Any, loss: Any, params: Any, *data: Any) -> Built:
    """Return an update of a trainer, with the norms that it measures.

    A loss gets parameters, data and a key.
    """
    with absent(*TENSORFLOW):
        from big_vision import optax as bv_optax
    known = {"total_steps": 100_000, "batch_size": data[0].shape[0], "data_size": 1_000_000}
    tx, _ = bv_optax.make(config, params, sched_kw=known)
    opt = jax.eval_shape(tx.init, params)
    at = {"params": resolver.shardings(params), "opt": resolver.state_shardings(opt, params)}

    @partial(jax.jit, donate_argnums=(0,), out_shardings=(at, None))
    def update(train_state: Any, rng: Any, *data: Any) -> Any:
        rng = jax.random.fold_in(rng, bv_optax.get_count(train_state["opt"], jittable=True))
        params, opt = train_state["params"], train_state["opt"]
        rules = nn.logical_axis_rules([("act_batch", "data")])
        with rules, jax.sharding.use_abstract_mesh(resolver.mesh):
            value, grads = jax.value_and_grad(loss)(params, *data, rng)
        updates, opt = tx.update(grads, opt, params)
        params = optax.apply_updates(params, updates)
        norms = [
            jnp.sqrt(sum(jnp.sum(x * x) for x in jax.tree.leaves(tree)))
            for tree in (grads, params, updates)
        ]
        return {"params": params, "opt": opt}, (value, norms)

    return update, (placed({"params": params, "opt": opt}, at), key(), *data)


def vit(resolver: Resolver) -> Built:
    """Return the update of `vit_i1k`, ViT-B/16 of 4,096 images with mixup."""
    with absent(*TENSORFLOW):
        from big_vision import utils
        from big_vision.configs import vit_i1k
        from big_vision.models import vit

    config = vit_i1k.get_config()
    model = vit.Model(config.num_classes, **config.model)
    images = shaped(resolver, "batch _ _ _", (4096, 224, 224, 3), jnp.float32)
    labels = shaped(resolver, "batch _", (4096, 1000), jnp.float32)
    params = jax.eval_shape(model.init, key(), images)["params"]

    def loss(params: Any, images: Any, labels: Any, rng: Any) -> Any:
        mixed = jax.shard_map(
            utils.get_mixup(rng, config.mixup.p),
            mesh=resolver.mesh,
            in_specs=P("data"),
            out_specs=(P(), P("data"), P("data")),
            check_vma=False,
        )
        rng, (images, labels), _ = mixed(images, labels)
        logits, _ = model.apply({"params": params}, images, train=True, rngs={"dropout": rng})
        return utils.sigmoid_xent(logits=logits, labels=labels)

    return updating(resolver, config, loss, params, images, labels)


def siglip(resolver: Resolver) -> Built:
    """Return the update of two towers, B/16 and B, of 4,096 pairs."""
    with absent(*TENSORFLOW):
        import ml_collections
        from big_vision.models.proj.image_text import text_transformer, two_towers

    config = ml_collections.ConfigDict(
        {
            "optax_name": "scale_by_adam",
            "optax": {"mu_dtype": "bfloat16", "b2": 0.95},
            "schedule": {"decay_type": "cosine", "warmup_steps": 10_000},
            "grad_clip_norm": 1.0,
            "lr": 0.001,
            "wd": 0.0001,
        }
    )
    model = two_towers.Model(
        image={"variant": "B/16", "pool_type": "map", "scan": True},
        text={"variant": "B", "vocab_size": 32_000, "scan": True},
        text_model=text_transformer.__name__.removeprefix("big_vision.models."),
        out_dim=(None, 768),
        temperature_init=10.0,
        bias_init=-10.0,
    )
    images = shaped(resolver, "batch _ _ _", (4096, 224, 224, 3), jnp.float32)
    texts = shaped(resolver, "batch _", (4096, 64), jnp.int32)
    params = jax.eval_shape(model.init, key(), images, texts)["params"]

    def loss(params: Any, images: Any, texts: Any, rng: Any) -> Any:
        rngs = {"dropout": rng}
        zimg, ztxt, about = model.apply({"params": params}, images, texts, train=True, rngs=rngs)
        logits = jnp.dot(zimg, ztxt.T) * about["t"] + about["b"]
        signs = 2 * jnp.eye(zimg.shape[0]) - jnp.ones_like(logits)
        return -jnp.mean(jnp.sum(jax.nn.log_sigmoid(signs * logits), axis=-1))

    return updating(resolver, config, loss, params, images, texts)


STEPS = [
    Public(
        "vit",
        "google-research/big_vision",
        COMMIT,
        "",
        "ViT-B/16 with mixup, Linen, data parallel",
        """
shardspec: 1
axes: {batch: 4096}
rules: [batch -> data]
replicate: [{path: "**", because: the strategy of vit_i1k}]
targets:
  v6e-32: {hardware: tpu v6e 4x8, mesh: {data: 32}}
  four-nodes: {hardware: 4 * a100, mesh: {data: 32}}
""",
        vit,
    ),
    Public(
        "siglip",
        "google-research/big_vision",
        COMMIT,
        "",
        "SigLIP B/16, Linen, scanned, FSDP of arrays over 4 MiB",
        """
shardspec: 1
axes: {batch: 4096, vocab: 32000, embed: 768, mlp: 3072}
rules: [batch -> data, vocab -> data, mlp -> data, embed -> data]
params:
  txt/Embed_0/embedding: vocab _
  "**/encoderblock/MultiHeadDotProductAttention_0/{query,key,value}/kernel": _ embed _ _
  "**/encoderblock/MultiHeadDotProductAttention_0/out/kernel": _ _ _ embed
  "**/encoderblock/MlpBlock_0/Dense_0/kernel": _ _ mlp
  "**/encoderblock/MlpBlock_0/Dense_1/kernel": _ mlp _
  "**/MAPHead_0/MlpBlock_0/Dense_0/kernel": _ mlp
  "**/MAPHead_0/MlpBlock_0/Dense_1/kernel": mlp _
replicate: [{path: "**", because: up to 4 MiB}]
targets:
  v5e-16: {hardware: tpu v5e 4x4, mesh: {data: 16}}
  two-nodes: {hardware: 2 * h100, mesh: {data: 16}}
""",
        siglip,
    ),
]
