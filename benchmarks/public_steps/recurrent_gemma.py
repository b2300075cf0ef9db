"""RecurrentGemma 2B: the train step of its fine-tuning tutorial, with AdamW.

Recurrences are scans over time (`LINEAR_NATIVE`), which is what the model picks on this machine.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.public_steps import Built, Public
from benchmarks.public_steps._training import absent, key, shaped, trained
from shardspec import Resolver

COMMIT = "2efa84dac0e68e63547a27a18fa943c98f1c312e"


def is_decayed(path: Any, _: Any) -> bool:
    """Return whether the tutorial decays a parameter."""
    names = [each.key for each in path]
    return not {"rg_lru", "embedder"} & set(names) and names[-1] not in ("b", "scale")


def fine_tuning(resolver: Resolver) -> Built:
    """Return the step for 32 sequences of 2,049 tokens."""
    with absent("sentencepiece"):
        from recurrentgemma import common
        from recurrentgemma.jax import griffin

    preset = common.GriffinConfig.from_preset(common.Preset.RECURRENT_GEMMA_2B_V1)
    config = preset._replace(scan_type=common.ScanType.LINEAR_NATIVE)
    model = griffin.Griffin(config, dtype=jnp.bfloat16)
    tokens = shaped(resolver, "batch _", (32, 2049), jnp.int32)
    mask = shaped(resolver, "batch _", (32, 2049), jnp.bool_)
    short = jax.ShapeDtypeStruct((1, 32), jnp.int32)
    params = jax.eval_shape(model.init, key(), short, short)

    def loss(params: Any, tokens: Any, mask: Any) -> Any:
        positions = jnp.cumsum(tokens != 0, axis=-1)
        positions = positions - (positions >= 1)
        logits, _ = model.apply(
            {"params": params}, tokens=tokens[:, :-1], segment_pos=positions[:, :-1], cache=None
        )
        targets = jax.nn.one_hot(tokens[:, 1:], logits.shape[-1])
        targets = targets * mask[:, 1:].astype(targets.dtype)[..., None]
        counted = tokens.shape[0] * (jnp.sum(mask[:, 1:]) + 1e-8)
        return -jnp.sum(jax.nn.log_softmax(logits) * targets) / counted

    optimizer = optax.adamw(
        1e-4,
        b2=0.96,
        weight_decay=0.1,
        mask=lambda params: jax.tree_util.tree_map_with_path(is_decayed, params),
    )
    return trained(resolver, loss, params["params"], optimizer, tokens, mask)


STEPS = [
    Public(
        "recurrentgemma",
        "google-deepmind/recurrentgemma",
        COMMIT,
        "",
        "RecurrentGemma 2B, Linen, scans over time, FSDP and tensor",
        """
shardspec: 1
axes: {batch: 32, vocab: 256000, embed: 2560, mlp: 7680, lru: 2560, heads: {size: 2560, unit: 256}}
rules: ["batch, embed -> fsdp", "mlp, lru, heads, vocab -> tensor"]
params:
  embedder/input_embedding: vocab embed
  "**/proj_q/kernel": embed heads
  "**/proj_{k,v}/kernel": embed _
  "**/proj_final/kernel": heads embed
  "**/proj_final/bias": _
  "**/linear_{x,y}/kernel": embed lru
  "**/linear_{x,y}/bias": lru
  "**/linear_out/kernel": lru embed
  "**/linear_out/bias": _
  "**/conv_1d/w": _ lru
  "**/conv_1d/b": lru
  "**/rg_lru/a_param": lru
  "**/rg_lru/*_gate/w": _ _ _
  "**/rg_lru/*_gate/b": _ _
  "**/ffw_up/w": _ embed mlp
  "**/ffw_up/b": _ _ _ mlp
  "**/ffw_down/kernel": mlp embed
  "**/ffw_down/bias": _
  "**/scale": _
targets:
  v5p-32: {hardware: tpu v5p 2x4x4, mesh: {fsdp: 16, tensor: 2}}
  two-nodes: {hardware: 2 * h100, mesh: {fsdp: 16, tensor: 1}}
lints: {size-one-axis: allow}
""",
        fine_tuning,
    )
]
