"""The step of a recipe: layers, loss, accumulation, optimizer, and decoding with a cache."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

import shardspec
from tests.generated.arrays import KV, PAGE, dtype_of, heads_of, spec_of, weights_of
from tests.generated.experts import experts
from tests.generated.layers import Context, attended, mixed, mlp, norm, projected, times
from tests.generated.recipe import Recipe

DTYPES = {"f32": jnp.float32, "bf16": jnp.bfloat16, "s8": jnp.int8}


def resolver_of(recipe: Recipe) -> Any:
    """Return the resolver of the recipe's spec on its machine."""
    return shardspec.Resolver(shardspec.loads(spec_of(recipe)), "machine", devices="abstract")


def step_of_recipe(recipe: Recipe, resolver: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a function, and the shapes that it is called with."""
    c = Context(recipe, resolver)
    params = shapes(recipe)
    if recipe.mode == "serve":
        return _decode(c, params)
    batch = _batch(recipe)
    if recipe.mode == "eval":
        return jax.jit(partial(_loss, c)), (params, batch)
    return _train(c, params, batch)


def shapes(recipe: Recipe) -> Any:
    """Return the parameters as a tree of shapes."""
    tree: dict[str, Any] = {}
    for path, weight in weights_of(recipe).items():
        *parents, name = path.split("/")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        dtype = DTYPES[weight.dtype or dtype_of(recipe)]
        place[name] = jax.ShapeDtypeStruct(weight.shape, dtype)
    return tree


def _batch(recipe: Recipe) -> Any:
    rows, length = recipe.batch_size, recipe.length
    wide = partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    tokens = jax.ShapeDtypeStruct((rows, length), jnp.int32)
    found: dict[str, Any] = {}
    found["x"] = wide((rows, length, recipe.width)) if recipe.embedding == "none" else tokens
    if recipe.head != "none":
        found["targets"] = tokens
    if recipe.mixer == "cross":
        found["memory"] = wide((rows, length // 2, recipe.width))
    return found


def _embedded(c: Context, params: Any, x: Any) -> Any:
    how = c.recipe.embedding
    if how == "take":
        x = jnp.take(params["embedding"].astype(jnp.bfloat16), x, axis=0)
    elif how == "onehot":
        chosen = jax.nn.one_hot(x, c.recipe.vocab, dtype=jnp.bfloat16)
        x = jnp.einsum("blv,ve->ble", chosen, params["embedding"].astype(jnp.bfloat16))
    return c.constrain(x, "residual")


def _layer(c: Context, x: Any, p: Any, memory: Any) -> Any:
    if c.recipe.mixer != "none":
        x = c.constrain(x + mixed(c, p, x, memory), "residual")
    x = x + (mlp if c.recipe.experts == "none" else experts)(c, p, x)
    return c.constrain(x, "residual")


def _kept(recipe: Recipe, layer: Any) -> Any:
    """Return a layer, rematerialised as the recipe says."""
    policies = jax.checkpoint_policies
    if recipe.remat == "full":
        return jax.checkpoint(layer)
    if recipe.remat == "dots":
        return jax.checkpoint(layer, policy=policies.dots_with_no_batch_dims_saveable)
    if recipe.remat == "names":
        saved = policies.save_only_these_names("context", "hidden")
        return jax.checkpoint(layer, policy=saved)
    return layer


def _through(c: Context, params: Any, x: Any, memory: Any) -> Any:
    """Return what the layers make of `x`."""
    recipe = c.recipe
    is_some = recipe.constraints == "some"
    if recipe.layers == "unrolled":
        for at in range(recipe.depth):
            here = replace(c, is_bare=is_some and at % 2 == 1)
            x = _kept(recipe, partial(_layer, here))(x, params[f"layers_{at}"], memory)
        return x
    layer = _kept(recipe, partial(_layer, replace(c, is_bare=is_some)))
    if recipe.layers == "pipeline":
        return _pipelined(c, layer, params["layers"], x)
    return jax.lax.scan(lambda x, p: (layer(x, p, memory), None), x, params["layers"])[0]


def _pipelined(c: Context, layer: Any, stacked: Any, x: Any) -> Any:
    """GPipe: as many microbatches as stages, which pass activations on."""
    stages = c.recipe.mesh["stage"]
    turns = [(at, (at + 1) % stages) for at in range(stages)]
    parts = min(2 * stages, x.shape[0])
    x = x.reshape(parts, -1, *x.shape[1:])

    def local(own: Any, x: Any) -> Any:
        at = jax.lax.axis_index("stage")

        def tick(carry: Any, now: Any) -> Any:
            held, done = carry
            new = jax.lax.dynamic_index_in_dim(x, jnp.minimum(now, parts - 1), keepdims=False)
            held = jnp.where(at == 0, new, held)
            held = jax.lax.scan(lambda h, p: (layer(h, p, None), None), held, own)[0]
            place = jnp.maximum(now - (stages - 1), 0)
            done = jax.lax.dynamic_update_index_in_dim(done, held, place, 0)
            return (jax.lax.ppermute(held, "stage", turns), done), None

        start = jnp.zeros_like(x[0]), jnp.zeros_like(x)
        (_, done), _ = jax.lax.scan(tick, start, jnp.arange(parts + stages - 1))
        is_last = at == stages - 1
        return jax.lax.psum(jnp.where(is_last, done, 0).astype(jnp.float32), "stage")

    run = jax.shard_map(
        local,
        mesh=c.resolver.mesh,
        axis_names={"stage"},
        in_specs=(P("stage"), P()),
        out_specs=P(),
        check_vma=False,
    )
    out = run(stacked, x).astype(x.dtype)
    return out.reshape(-1, *out.shape[2:])


def _loss(c: Context, params: Any, batch: Any) -> Any:
    recipe = c.recipe
    x = _through(c, params, _embedded(c, params, batch["x"]), batch.get("memory"))
    if recipe.head == "none":
        return (x.astype(jnp.float32) ** 2).mean()
    logits = _logits(c, params, x)
    targets = batch["targets"]
    if recipe.loss == "onehot":
        chances = jax.nn.log_softmax(logits)
        return -(chances * jax.nn.one_hot(targets, recipe.vocab)).sum(-1).mean()
    if recipe.loss == "along":
        chances = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(chances, targets[..., None], -1).mean()
    chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - chosen).mean()


def _logits(c: Context, params: Any, x: Any) -> Any:
    if c.recipe.head == "tied":
        logits = jnp.einsum("ble,ve->blv", x, params["embedding"].astype(x.dtype))
    else:
        logits = times(c, params, "logits", x)
    return c.constrain(logits, "logits").astype(jnp.float32)


def _train(c: Context, params: Any, batch: Any) -> tuple[Any, tuple[Any, ...]]:
    recipe = c.recipe
    gradients_of = _gradients(c)
    if recipe.optimizer == "none":
        return jax.jit(gradients_of), (params, batch)
    own = _trained(params) if recipe.weights == "lora" else params
    tx = _optimizer(recipe, own)
    state = jax.eval_shape(tx.init, own)

    def step(params: Any, state: Any, batch: Any) -> Any:
        value, gradients = gradients_of(params, batch)
        mine = _trained(params) if recipe.weights == "lora" else params
        updates, state = tx.update(gradients, state, mine)
        return _merged(params, optax.apply_updates(mine, updates)), state, value

    kept = {}
    if recipe.results == "placed":
        places = c.resolver.shardings(params), c.resolver.state_shardings(state, own)
        kept["out_shardings"] = (*places, None)
    return jax.jit(step, donate_argnums=(0, 1), **kept), (params, state, batch)


def _gradients(c: Context) -> Any:
    recipe = c.recipe

    def once(params: Any, batch: Any) -> Any:
        if recipe.weights != "lora":
            return jax.value_and_grad(partial(_loss, c))(params, batch)
        loss = lambda own: _loss(c, _merged(params, own), batch)  # noqa: E731
        return jax.value_and_grad(loss)(_trained(params))

    def accumulated(params: Any, batch: Any) -> Any:
        parts = recipe.microbatches
        split = jax.tree.map(lambda x: x.reshape(parts, -1, *x.shape[1:]), batch)
        if recipe.constraints in ("all", "sequence"):
            split = {
                name: c.constrain(each, "micro") if each.ndim == 3 else each
                for name, each in split.items()
            }

        def add(total: Any, batch: Any) -> Any:
            return jax.tree.map(jnp.add, total, once(params, batch)), None

        start = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype),
            jax.eval_shape(once, params, jax.tree.map(lambda x: x[0], split)),
        )
        total, _ = jax.lax.scan(add, start, split)
        return jax.tree.map(lambda x: x / parts, total)

    return once if recipe.microbatches == 1 else accumulated


def _trained(params: Any) -> Any:
    """Return the part of the parameters that LoRA trains."""
    found = {}
    for name, each in params.items():
        if isinstance(each, dict):
            found[name] = {key: x for key, x in each.items() if key.endswith(("_a", "_b"))}
    return found


def _merged(params: Any, own: Any) -> Any:
    """Return the parameters with a part of them replaced."""
    new = {name: dict(each) if isinstance(each, dict) else each for name, each in params.items()}
    for name, each in own.items():
        new[name] = {**new[name], **each} if isinstance(each, dict) else each
    return new


def _optimizer(recipe: Recipe, params: Any) -> Any:
    kind = recipe.optimizer
    if kind == "sgd":
        return optax.sgd(1e-3, momentum=0.9)
    if kind == "adam":
        return optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    if kind == "lion":
        return optax.lion(1e-4)
    if kind == "adafactor":
        return optax.adafactor(1e-3, min_dim_size_to_factor=128)
    return optax.contrib.muon(1e-3, muon_weight_dimension_numbers=jax.tree.map(_matrix, params))


def _matrix(x: Any) -> Any:
    """Return how Muon takes an array for a matrix: its last two dimensions; None for vectors."""
    if x.ndim < 2 or x.shape[-2] < 64:
        return None
    return optax.contrib.MuonDimensionNumbers(x.ndim - 2, x.ndim - 1)


def _decode(c: Context, params: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return a step that answers one token of each sequence."""
    recipe = c.recipe
    batch = _batch(replace(recipe, length=1, head="none"))
    at = jax.ShapeDtypeStruct((), jnp.int32)
    if recipe.mixer == "none":
        return jax.jit(partial(_answer, c)), (params, None, None, batch, at)
    cache, table = _caches(c)

    def step(params: Any, cache: Any, table: Any, batch: Any, at: Any) -> Any:
        return _answer(c, params, cache, table, batch, at)

    return jax.jit(step, donate_argnums=1), (params, cache, table, batch, at)


def _caches(c: Context) -> tuple[Any, Any]:
    recipe = c.recipe
    rows, kv_heads = recipe.batch_size, heads_of(recipe)[1]
    shape: tuple[int, ...] = (recipe.depth, rows, recipe.length, kv_heads, KV)
    table = None
    if recipe.cache == "paged":
        pages = recipe.length // PAGE
        shape = (recipe.depth, rows * pages, PAGE, kv_heads, KV)
        table = jax.ShapeDtypeStruct((rows, pages), jnp.int32)
    place = c.resolver.sharding("layers batch cache_length kv_heads kv", shape)
    one = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place)
    return {"key": one, "value": one}, table


def _answer(c: Context, params: Any, cache: Any, table: Any, batch: Any, at: Any) -> Any:
    recipe = c.recipe
    x = _embedded(c, params, batch["x"])

    def layer(x: Any, given: Any) -> Any:
        p, cache = given
        if cache is not None:
            added, cache = _cached(c, p, norm(x, p["mixer_norm"]), cache, table, at)
            x = c.constrain(x + added, "residual")
        x = x + (mlp if recipe.experts == "none" else experts)(c, p, x)
        return c.constrain(x, "residual"), cache

    if recipe.layers == "scan":
        x, cache = jax.lax.scan(layer, x, (params["layers"], cache))
    else:
        made = []
        for number in range(recipe.depth):
            own = jax.tree.map(lambda each, number=number: each[number], cache)
            x, own = layer(x, (params[f"layers_{number}"], own))
            made.append(own)
        cache = None if cache is None else jax.tree.map(lambda *each: jnp.stack(each), *made)
    if recipe.head == "none":
        return cache, x
    return cache, jnp.argmax(_logits(c, params, x), -1)


def _cached(c: Context, p: Any, x: Any, cache: Any, table: Any, at: Any) -> Any:
    """Return what attention over a cache adds, and the cache with the new token."""
    heads, kv_heads = heads_of(c.recipe)
    query, key, value = (
        times(c, p, name, x).reshape(*x.shape[:2], count, KV)
        for name, count in (("query", heads), ("key", kv_heads), ("value", kv_heads))
    )
    query = c.constrain(query, "query")
    new = {"key": key, "value": value}
    write = {"update": _updated, "rolling": _rolled, "paged": partial(_paged, table=table)}
    cache = {name: write[c.recipe.cache](cache[name], new[name], at=at) for name in new}
    read = cache
    if table is not None:
        shape = (x.shape[0], -1, kv_heads, KV)
        read = {name: each[table].reshape(shape) for name, each in cache.items()}
    out = attended(c.recipe.attention, query, read["key"], read["value"], is_causal=False)
    return projected(c, p, out), cache


def _updated(cache: Any, new: Any, *, at: Any) -> Any:
    return jax.lax.dynamic_update_slice(cache, new, (0, at, 0, 0))


def _rolled(cache: Any, new: Any, *, at: Any) -> Any:
    return jnp.concatenate([cache[:, 1:], new], axis=1)


def _paged(cache: Any, new: Any, *, table: Any, at: Any) -> Any:
    page = jnp.take(table, at // PAGE, axis=1)
    return cache.at[page, at % PAGE].set(new[:, 0])
