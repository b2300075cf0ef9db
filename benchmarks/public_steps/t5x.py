"""T5 1.1 large of T5X: its network, loss and Adafactor, with its standard rules in two dimensions.

Packages of T5X around these three are mocks. Its constraints are by logical axes, under its rules.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util
from flax.linen import partitioning

from benchmarks.public_steps import Built, Public, placed
from benchmarks.public_steps._training import absent, bare, shaped
from shardspec import Resolver

COMMIT = "cc342d419ec3e3e9c4bf1df33c82330cafdc1e16"
#: `standard_logical_axis_rules(1, 2)`, of which constraints use these.
RULES = (
    ("batch", "data"),
    ("vocab", "model"),
    ("mlp", "model"),
    ("heads", "model"),
    ("joined_kv", "model"),
    ("embed", "data"),
    ("kv", None),
    ("length", None),
    ("relpos_buckets", None),
)


def large(resolver: Resolver) -> Built:
    """Return a train step of span corruption for 256 sequences of 512 and 114 tokens."""
    bare("t5x")
    with absent("t5x.utils", "jestimator"):
        from t5x import adafactor, losses
        from t5x.examples.t5 import network

        adafactor.utils.flatten_dict_string_keys = partial(traverse_util.flatten_dict, sep="/")
    config = network.T5Config(
        32_128, jnp.bfloat16, 1024, 16, 24, 24, 64, 2816, ("gelu", "linear"), dropout_rate=0.0
    )
    model = network.Transformer(config)
    optimizer = adafactor.Adafactor(
        learning_rate=0.01, logical_factor_rules=adafactor.standard_logical_factor_rules()
    )
    inputs = shaped(resolver, "batch _", (256, 512), jnp.int32)
    targets = shaped(resolver, "batch _", (256, 114), jnp.int32)
    known = jax.eval_shape(model.init, jax.random.key(0), inputs, targets, targets)
    optimizer.set_param_axes(partitioning.get_axis_names(known["params_axes"]))
    params = known["params"]
    state = jax.eval_shape(optimizer.init_state, params)
    at = resolver.shardings(params), resolver.state_shardings(state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*at, None))
    def step(params: Any, state: Any, inputs: Any, decoded: Any, targets: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = model.apply({"params": params}, inputs, decoded, targets)
            weights = jnp.where(targets > 0, 1, 0)
            total, *_ = losses.compute_weighted_cross_entropy(
                logits, targets, weights, z_loss=0.0001
            )
            return total

        with partitioning.axis_rules(RULES), jax.sharding.use_abstract_mesh(resolver.mesh):
            value, gradients = jax.value_and_grad(loss)(params)
        given = optimizer.hyper_params, params, state, gradients
        return *optimizer.apply_gradient(*given), value

    return step, (placed(params, at[0]), placed(state, at[1]), inputs, targets, targets)


STEPS = [
    Public(
        "t5x-large",
        "google-research/t5x",
        COMMIT,
        "",
        "T5 1.1 large, Linen, two-dimensional, Adafactor",
        """
shardspec: 1
axes:
  batch: 256
  vocab: 32128
  embed: 1024
  mlp: 2816
  heads: 16
  joined_kv: 1024
  relpos_buckets: 32
rules: [batch -> data, "vocab, mlp, heads, joined_kv -> model", embed -> data]
params:
  token_embedder/embedding: vocab embed
  decoder/logits_dense/kernel: embed vocab
  "**/rel_embedding": heads relpos_buckets
  "**/scale": embed
  "**/{query,key,value}/kernel": embed joined_kv
  "**/out/kernel": joined_kv embed
  "**/wi_*/kernel": embed mlp
  "**/wo/kernel": mlp embed
targets:
  v5p-16: {hardware: tpu v5p 2x2x4, mesh: {data: 8, model: 2}}
  node: {hardware: h100, mesh: {data: 4, model: 2}}
""",
        large,
    )
]
