"""Haiku's ResNet-50 on ImageNet, data parallel, with the losses and optimizer of its example.

The example trains under `pmap`, and each device normalizes by its own images. Under `jit`, batch
norm is over all images.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.public_steps import Built, Public, placed
from benchmarks.public_steps._training import shaped
from shardspec import Resolver

COMMIT = "f4d858a5cbb29140855d68f81f5fd625e078a5ae"


def resnet(resolver: Resolver) -> Built:
    """Return a train step for 128 images a device."""
    import haiku as hk

    @hk.transform_with_state
    def forward(images: Any) -> Any:
        net = hk.nets.ResNet50(1000, resnet_v2=True, bn_config={"decay_rate": 0.9})
        return net(images, is_training=True)

    schedule = optax.warmup_cosine_decay_schedule(0.0, 0.8, 3_000, 56_000)
    optimizer = optax.chain(
        optax.trace(decay=0.9, nesterov=True), optax.scale_by_schedule(schedule), optax.scale(-1.0)
    )
    batch = 128 * resolver.mesh.size
    images = shaped(resolver, "batch _ _ _", (batch, 224, 224, 3), jnp.float32)
    labels = shaped(resolver, "batch", (batch,), jnp.int32)
    params, state = jax.eval_shape(forward.init, jax.random.key(0), images)
    momenta = jax.eval_shape(optimizer.init, params)
    at = jax.tree.map(lambda _: resolver.sharding("", ()), (params, state, momenta))

    @partial(jax.jit, donate_argnums=(0, 1, 2), out_shardings=(*at, None))
    def step(params: Any, state: Any, momenta: Any, images: Any, labels: Any) -> Any:
        def loss(params: Any) -> Any:
            logits, after = forward.apply(params, state, None, images)
            smooth = optax.smooth_labels(jax.nn.one_hot(labels, 1000), 0.1)
            mean = optax.softmax_cross_entropy(logits=logits, labels=smooth).mean()
            decayed = [
                x for name, each in params.items() if "batchnorm" not in name for x in each.values()
            ]
            norm = 0.5 * sum(jnp.sum(jnp.square(each)) for each in decayed)
            return mean + 1e-4 * norm, after

        (value, after), gradients = jax.value_and_grad(loss, has_aux=True)(params)
        updates, kept = optimizer.update(gradients, momenta)
        return optax.apply_updates(params, updates), after, kept, value

    weights = (
        placed(each, where) for each, where in zip((params, state, momenta), at, strict=True)
    )
    return step, (*weights, images, labels)


STEPS = [
    Public(
        "resnet-50",
        "google-deepmind/dm-haiku",
        COMMIT,
        "",
        "ResNet-50, Haiku, data parallel",
        """
shardspec: 1
axes: {batch: {doc: 128 images a device}}
rules: [batch -> data]
targets:
  v5e-8: {hardware: tpu v5e 2x4, mesh: {data: 8}}
  two-nodes: {hardware: 2 * a100, mesh: {data: 16}}
""",
        resnet,
    )
]
