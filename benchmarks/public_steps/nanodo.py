"""NanoDO's own train step by its default config, metrics included, with the FSDP of its `fsdp.py`.

Readers of data, the tokenizer and writers of metrics are mocks: the step calls none of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from benchmarks.public_steps import Built, Public, placed
from benchmarks.public_steps._training import absent, shaped
from shardspec import Resolver

COMMIT = "10aefdeed40a63293daf112b91a5538cd24fa3a4"


def default(resolver: Resolver) -> Built:
    """Return the step of `train.py`, for 256 sequences."""
    readers = ("grain", "grain.python", "tensorflow_datasets", "sentencepiece")
    with absent("clu", "clu.metric_writers", "clu.periodic_actions", *readers):
        from flax.training.train_state import TrainState
        from nanodo import loss, model_factory, optimizer, train
        from nanodo.configs import default

    c = default.get_config()
    model, _ = model_factory.get_model_and_loss(c, 32_000)

    def init(inputs: Any) -> Any:
        params = model.init(jax.random.key(c.seed), inputs)["params"]
        return TrainState.create(
            apply_fn=model.apply, params=params, tx=optimizer.get_optimizer(c.opt)
        )

    boxed = jax.eval_shape(init, jax.ShapeDtypeStruct((1, c.model.L), jnp.int32))
    at = resolver.shardings(boxed, boxed=False)
    step = jax.jit(
        partial(train._train_step, c=c, get_loss_fn=loss.get_default_loss_fn, mesh=resolver.mesh),
        out_shardings=(at, None),
        donate_argnums=(0, 1),
    )
    inputs = shaped(resolver, "_ _", (c.batch_size, c.model.L), jnp.int32)
    return step, (placed(nn.unbox(boxed), at), inputs)


STEPS = [
    Public(
        "nanodo",
        "google-deepmind/nanodo",
        COMMIT,
        "",
        "NanoDO, its train step and its FSDP",
        """
shardspec: 1
axes: {data: {doc: boxes have the name of the mesh axis}}
rules: [data -> data]
params: {"**/scale": _}
targets:
  v6e-8: {hardware: tpu v6e 2x4, mesh: {data: 8}}
  node: {hardware: h100, mesh: {data: 8}}
""",
        default,
    )
]
