"""DiT-B in JAX: the update of its `train_diffusion.py`, which keeps averaged weights, too.

The repository trains under `pmap`. Here the step is under `jit`, with the batch over all devices
and the weights split as a user of more than a few devices would.
"""

from __future__ import annotations

import contextlib
import io
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.public_steps import Built, Public, placed
from benchmarks.public_steps._training import key, shaped
from shardspec import Resolver

COMMIT = "94ea6076bd934ba687ac23a165e57ed8110619af"


def base(resolver: Resolver) -> Built:
    """Return the update of DiT-B of the README, for 512 latents of images of 256 pixels."""
    from diffusion_transformer import DiT
    from schedulers import GaussianDiffusion

    model = DiT(2, 768, 12, 16, 4, 0.1, 1000)
    optimizer, scheduler = optax.adam(1e-4, b1=0.9, b2=0.99), GaussianDiffusion(500)
    images = shaped(resolver, "batch _ _ _", (512, 32, 32, 4), jnp.float32)
    labels = shaped(resolver, "batch", (512,), jnp.int32)
    keys = {"params": jax.random.key(0), "label_dropout": jax.random.key(1)}
    with contextlib.redirect_stdout(io.StringIO()):
        params = jax.eval_shape(partial(model.init, keys), images, labels, labels)["params"]
    state = jax.eval_shape(optimizer.init, params)
    at = resolver.shardings(params), resolver.state_shardings(state, params)

    @partial(jax.jit, donate_argnums=(0, 1, 2), out_shardings=(at[0], at[0], at[1], None))
    def update(params: Any, average: Any, state: Any, images: Any, labels: Any, key: Any) -> Any:
        label_key, time_key, noise_key = jax.random.split(key, 3)

        def loss(params: Any) -> Any:
            times = jax.random.randint(time_key, (images.shape[0],), 0, 500)
            noise = jax.random.normal(noise_key, images.shape)
            noisy = scheduler.q_sample(images, times, noise)
            rngs = {"label_dropout": label_key}
            with contextlib.redirect_stdout(io.StringIO()):
                found = model.apply({"params": params}, noisy, times, labels, train=True, rngs=rngs)
            return jnp.mean((found - noise) ** 2), jnp.abs(found).mean()

        gradients, about = jax.grad(loss, has_aux=True)(params)
        updates, state = optimizer.update(gradients, state, params)
        average = optax.incremental_update(params, average, 1 - 0.9999)
        params = optax.apply_updates(params, updates)
        norms = [optax.global_norm(each) for each in (gradients, updates, params)]
        return params, average, state, (about, norms)

    weights = placed(params, at[0])
    return update, (weights, weights, placed(state, at[1]), images, labels, key())


STEPS = [
    Public(
        "dit",
        "kvfrans/jax-diffusion-transformer",
        COMMIT,
        "",
        "DiT-B/2, Linen, FSDP",
        """
shardspec: 1
axes: {batch: 512, embed: 768, mlp: 3072, heads: 16}
rules: ["batch -> (data, fsdp)", embed -> fsdp]
params:
  pos_embed: _ _ _
  PatchEmbed_0/Conv_0/kernel: _ _ _ embed
  "{TimestepEmbedder_0,FinalLayer_0}/Dense_*/kernel": _ _
  LabelEmbedder_0/Embed_0/embedding: _ embed
  DiTBlock_*/Dense_0/kernel: embed _
  "**/MultiHeadDotProductAttention_0/{query,key,value}/kernel": embed heads _
  "**/MultiHeadDotProductAttention_0/{query,key,value}/bias": heads _
  "**/MultiHeadDotProductAttention_0/out/kernel": heads _ embed
  "**/MlpBlock_0/Dense_0/kernel": embed mlp
  "**/MlpBlock_0/Dense_1/kernel": mlp embed
  "**/bias": _
targets:
  v4-16: {hardware: tpu v4 2x2x4, mesh: {fsdp: 16}}
  two-nodes: {hardware: 2 * a100, mesh: {data: 2 @ dcn, fsdp: 8}}
""",
        base,
    )
]
