"""A message-passing network over one large graph: edges, segment sums, and node updates; AdamW."""

from functools import partial

import jax
import jax.numpy as jnp
import optax

ROUNDS, NODES, EDGES, WIDTH, FEATURES, CLASSES = 6, 262144, 4194304, 256, 128, 64


def shapes():
    s = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    mlp = lambda fan_in: {"up": s(fan_in, 2 * WIDTH), "down": s(2 * WIDTH, WIDTH)}
    return {
        "encode": s(FEATURES, WIDTH),
        "encode_edges": s(FEATURES, WIDTH),
        "rounds": [{"edge": mlp(3 * WIDTH), "node": mlp(2 * WIDTH)} for _ in range(ROUNDS)],
        "classes": s(WIDTH, CLASSES),
    }


def mlp(x, p):
    hidden = jax.nn.silu(x @ p["up"].astype(x.dtype))
    return hidden @ p["down"].astype(x.dtype)


def step(resolver):
    @jax.checkpoint
    def round_of(nodes, edges, p, senders, receivers):
        sent = nodes[senders]
        sent = resolver.constrain(sent, "edges width")  # expert
        received = nodes[receivers]
        received = resolver.constrain(received, "edges width")  # expert
        edges = edges + mlp(jnp.concatenate([edges, sent, received], axis=-1), p["edge"])
        edges = resolver.constrain(edges, "edges width")  # expert
        pooled = jax.ops.segment_sum(edges, receivers, num_segments=NODES)
        pooled = resolver.constrain(pooled, "nodes width")  # expert
        nodes = nodes + mlp(jnp.concatenate([nodes, pooled], axis=-1), p["node"])
        nodes = resolver.constrain(nodes, "nodes width")  # expert
        return nodes, edges

    def loss_fn(params, graph):
        nodes = graph["features"].astype(jnp.bfloat16) @ params["encode"].astype(jnp.bfloat16)
        edges = graph["edges"].astype(jnp.bfloat16) @ params["encode_edges"].astype(jnp.bfloat16)
        for p in params["rounds"]:
            nodes, edges = round_of(nodes, edges, p, graph["senders"], graph["receivers"])
        logits = (nodes @ params["classes"].astype(nodes.dtype)).astype(jnp.float32)
        ce = optax.softmax_cross_entropy_with_integer_labels(logits, graph["labels"])
        return ce.mean()

    params = shapes()
    tx = optax.adamw(1e-3)
    opt_state = jax.eval_shape(tx.init, params)
    places = resolver.shardings(params), resolver.state_shardings(opt_state, params)

    @partial(jax.jit, donate_argnums=(0, 1), out_shardings=(*places, None))
    def train_step(params, opt_state, graph):
        loss, grads = jax.value_and_grad(loss_fn)(params, graph)
        updates, opt_state = tx.update(grads, opt_state, params)
        return optax.apply_updates(params, updates), opt_state, loss

    s = jax.ShapeDtypeStruct
    graph = {
        "features": s((NODES, FEATURES), jnp.float32),
        "edges": s((EDGES, FEATURES), jnp.float32),
        "senders": s((EDGES,), jnp.int32),
        "receivers": s((EDGES,), jnp.int32),
        "labels": s((NODES,), jnp.int32),
    }
    return train_step, (params, opt_state, graph)
