"""ViT-B/16 in Equinox, its blocks stacked and scanned, and one train step of it.

shardspec cost vit-b-16.yaml --step steps.vit:train
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax

BLOCKS, EMBED, HEADS, MLP, PATCHES, PIXELS, CLASSES = 12, 768, 12, 3072, 196, 768, 1000
BATCH = 4096


class Block(eqx.Module):
    """Attention and an MLP, each behind a norm; on one image."""

    attention_norm: eqx.nn.LayerNorm
    attention: eqx.nn.MultiheadAttention
    mlp_norm: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 3)
        self.attention_norm, self.mlp_norm = eqx.nn.LayerNorm(EMBED), eqx.nn.LayerNorm(EMBED)
        self.attention = eqx.nn.MultiheadAttention(HEADS, EMBED, key=keys[0])
        self.up = eqx.nn.Linear(EMBED, MLP, key=keys[1])
        self.down = eqx.nn.Linear(MLP, EMBED, key=keys[2])

    def __call__(self, x):
        h = jax.vmap(self.attention_norm)(x)
        x = x + self.attention(h, h, h)
        h = jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.mlp_norm)(x)))
        return x + jax.vmap(self.down)(h)


class Vit(eqx.Module):
    """Patches, the blocks, and the class."""

    patches: eqx.nn.Linear
    class_token: jax.Array
    places: jax.Array
    blocks: Block
    norm: eqx.nn.LayerNorm
    head: eqx.nn.Linear

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.patches = eqx.nn.Linear(PIXELS, EMBED, key=keys[0])
        self.class_token = jnp.zeros((1, EMBED))
        self.places = jax.random.normal(keys[1], (PATCHES + 1, EMBED)) * 0.02
        self.blocks = eqx.filter_vmap(Block)(jax.random.split(keys[2], BLOCKS))
        self.norm = eqx.nn.LayerNorm(EMBED)
        self.head = eqx.nn.Linear(EMBED, CLASSES, key=keys[3])

    def __call__(self, images, constrain):
        x = jax.vmap(jax.vmap(self.patches))(images)
        token = jnp.broadcast_to(self.class_token, (len(images), 1, EMBED))
        x = jnp.concatenate([token, x], axis=1) + self.places
        x = constrain(x, activation="residual")
        arrays, rest = eqx.partition(self.blocks, eqx.is_array)

        @jax.checkpoint
        def through(x, block):
            return constrain(jax.vmap(eqx.combine(block, rest))(x), activation="residual"), None

        x, _ = jax.lax.scan(through, x, arrays)
        return constrain(jax.vmap(self.head)(jax.vmap(self.norm)(x[:, 0])), activation="logits")


def train(resolver):
    """Return one step of AdamW with ZeRO-1, and what it is given: shapes, placed by the spec."""
    model = eqx.filter_eval_shape(Vit, jax.random.key(0))
    params, rest = eqx.partition(model, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct))
    optimizer = optax.adamw(1e-3)
    state = jax.eval_shape(optimizer.init, params)
    places = resolver.shardings(params), resolver.state_shardings(state, params)

    def step(params, state, batch):
        def loss(params):
            narrow = jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), params)
            logits = eqx.combine(narrow, rest)(batch["images"], resolver.constrain)
            logits = logits.astype(jnp.float32)
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"]).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    images = jax.ShapeDtypeStruct((BATCH, PATCHES, PIXELS), jnp.bfloat16)
    labels = jax.ShapeDtypeStruct((BATCH,), jnp.int32)
    step = jax.jit(step, donate_argnums=(0, 1), out_shardings=(*places, None))
    return step, (params, state, {"images": images, "labels": labels})
