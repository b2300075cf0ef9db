"""Train and serve steps of the sizes people run, in plain JAX, on arrays that are not there.

Every builder takes a resolver and returns `(function, args)`: the function is jitted, arguments are
shapes that the spec of `SPECS` places, and activations are constrained by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from tests.models.linen_steps import linen_decoder

RULES = """\
shardspec: 1
targets:
  pod: {{hardware: {hardware}, mesh: {{{mesh}}}}}
rules:
{rules}
params:
  "**/{{table,embedding}}": vocab embed
  "**/head{{,/kernel}}": embed vocab
  "**/{{q,k,v}}{{,/kernel}}": layers embed heads kv
  "**/o{{,/kernel}}": layers heads kv embed
  "**/{{wi,wg}}{{,/kernel}}": layers embed mlp
  "**/wo{{,/kernel}}": layers mlp embed
  "**/router": layers embed _
  "**/experts_{{in,gate}}": layers expert embed mlp
  "**/experts_out": layers expert mlp embed
  "**/norm*": layers norm
  "**/norm*/scale": layers norm
  "**/final*": norm
  "**/final*/scale": norm
activations:
  residual: batch length embed_act
  hidden: batch length mlp
  query: batch length heads kv
  logits: batch length vocab
policy: {{indivisible: next}}
lints: {{SHD1: allow, SHD2: allow, SHD3: allow, SHD4: allow, SHD5: allow}}
"""

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """What a model is made of; T5 has `layers` in each of its two stacks."""

    layers: int
    embed: int
    heads: int
    kv_heads: int
    kv: int
    mlp: int
    vocab: int
    batch: int
    length: int
    experts: int = 0
    remat: bool = True


def attention_shapes(s: Sizes, prefix: str = "") -> Arrays:
    wide, narrow = (s.embed, s.heads, s.kv), (s.embed, s.kv_heads, s.kv)
    out = (s.heads, s.kv, s.embed)
    shapes = {"q": wide, "k": narrow, "v": narrow, "o": out, "norm": (s.embed,)}
    return {prefix + name: (s.layers, *shape) for name, shape in shapes.items()}


def mlp_shapes(s: Sizes) -> Arrays:
    shapes: Arrays = {"norm_mlp": (s.embed,)}
    if s.experts:
        shapes["router"] = (s.embed, s.experts)
        shapes |= dict.fromkeys(("experts_in", "experts_gate"), (s.experts, s.embed, s.mlp))
        shapes["experts_out"] = (s.experts, s.mlp, s.embed)
    else:
        shapes |= {"wi": (s.embed, s.mlp), "wg": (s.embed, s.mlp), "wo": (s.mlp, s.embed)}
    return {name: (s.layers, *shape) for name, shape in shapes.items()}


def structs(tree: Arrays, dtype: Any = jnp.float32) -> Arrays:
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    return jax.tree.map(lambda shape: jax.ShapeDtypeStruct(shape, dtype), tree, is_leaf=is_shape)


def rms_norm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide * wide, -1, keepdims=True)
    return (wide * jax.lax.rsqrt(mean + 1e-5) * scale).astype(x.dtype)


def attend(q: Any, k: Any, v: Any, mask: Any) -> Any:
    batch, length, heads, kv = q.shape
    groups = k.shape[2]
    q = q.reshape(batch, length, groups, heads // groups, kv)
    scores = jnp.einsum("btkgd,bskd->bkgts", q, k) / math.sqrt(kv)
    if mask is not None:
        scores = jnp.where(mask, scores, -1e9)
    weights = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(q.dtype)
    return jnp.einsum("bkgts,bskd->btkgd", weights, v).reshape(batch, length, heads, kv)


def attention(resolver: Any, p: Arrays, x: Any, memory: Any, mask: Any, prefix: str = "") -> Any:
    h = rms_norm(x, p[prefix + "norm"])
    source = h if memory is None else memory
    q = jnp.einsum("bte,ehd->bthd", h, p[prefix + "q"])
    k = jnp.einsum("bte,ehd->bthd", source, p[prefix + "k"])
    v = jnp.einsum("bte,ehd->bthd", source, p[prefix + "v"])
    q = resolver.constrain(q, activation="query")
    out = jnp.einsum("bthd,hde->bte", attend(q, k, v, mask), p[prefix + "o"])
    return resolver.constrain(x + out, activation="residual")


def mlp(resolver: Any, p: Arrays, x: Any) -> Any:
    h = rms_norm(x, p["norm_mlp"])
    gate = jax.nn.silu(jnp.einsum("bte,ef->btf", h, p["wi"]))
    hidden = gate * jnp.einsum("bte,ef->btf", h, p["wg"])
    hidden = checkpoint_name(resolver.constrain(hidden, activation="hidden"), "hidden")
    return resolver.constrain(x + jnp.einsum("btf,fe->bte", hidden, p["wo"]), activation="residual")


def experts(resolver: Any, p: Arrays, x: Any) -> Any:
    """A mixture of experts as GShard dispatches it: groups of tokens, two choices, capacity."""
    length = x.shape[1]
    count = p["router"].shape[-1]
    capacity = 2 * length // count
    h = rms_norm(x, p["norm_mlp"])
    gates = jax.nn.softmax(jnp.einsum("gse,ex->gsx", h, p["router"]).astype(jnp.float32))
    first = jax.nn.one_hot(jnp.argmax(gates, -1), count)
    place = (jnp.cumsum(first, 1) * first).astype(jnp.int32)
    slots = jax.nn.one_hot(place - 1, capacity, dtype=jnp.bfloat16)
    combine = (gates * first).astype(jnp.bfloat16)[..., None] * slots
    inputs = jnp.einsum("gsxc,gse->xgce", slots * first.astype(jnp.bfloat16)[..., None], h)
    inputs = resolver.constrain(inputs, "_ batch _ _")
    inputs = resolver.constrain(inputs, "expert batch_moe _ _")
    gate = jax.nn.silu(jnp.einsum("xgce,xef->xgcf", inputs, p["experts_in"]))
    hidden = gate * jnp.einsum("xgce,xef->xgcf", inputs, p["experts_gate"])
    hidden = resolver.constrain(hidden, "expert batch_moe _ mlp")
    outputs = jnp.einsum("xgcf,xfe->xgce", hidden, p["experts_out"])
    outputs = resolver.constrain(outputs, "expert batch_moe _ _")
    outputs = resolver.constrain(outputs, "_ batch _ _")
    out = jnp.einsum("gsxc,xgce->gse", combine, outputs)
    return resolver.constrain(x + out, activation="residual")


def narrow(params: Arrays) -> Arrays:
    return jax.tree.map(lambda array: array.astype(jnp.bfloat16), params)


def stack(layer: Callable[..., Any], params: Arrays, x: Any, remat: bool) -> Any:
    body = jax.checkpoint(layer) if remat else layer
    return jax.lax.scan(lambda x, p: (body(x, p), None), x, params)[0]


def cross_entropy(resolver: Any, x: Any, head: Any, targets: Any) -> Any:
    logits = jnp.einsum("bte,ev->btv", x, head.astype(jnp.bfloat16)).astype(jnp.float32)
    logits = resolver.constrain(logits, activation="logits")
    hot = jax.nn.one_hot(targets, head.shape[-1], dtype=jnp.float32)
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * hot, -1))


def embedded(resolver: Any, table: Any, tokens: Any) -> Any:
    return resolver.constrain(table.astype(jnp.bfloat16)[tokens], activation="residual")


def adam_step(resolver: Any, loss: Callable[..., Any], params: Arrays, batch: Any) -> Any:
    """Return a train step with Adam in f32, its state donated."""
    params = resolver.abstract(params)
    state = {"params": params, "mu": params, "nu": params}
    whole = resolver.sharding("")

    def step(state: Arrays, batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(state["params"], batch)
        each = jax.tree.map
        mu = each(lambda m, g: 0.9 * m + 0.1 * g, state["mu"], grads)
        nu = each(lambda n, g: 0.99 * n + 0.01 * g * g, state["nu"], grads)
        update = lambda p, m, n: p - 1e-4 * m / (jnp.sqrt(n) + 1e-8)  # noqa: E731
        return {"params": each(update, state["params"], mu, nu), "mu": mu, "nu": nu}, value

    shardings = jax.tree.map(lambda array: array.sharding, state)
    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, whole)), (state, batch)


def tokens_of(resolver: Any, s: Sizes) -> Any:
    sharding = resolver.sharding("batch length", (s.batch, s.length))
    return jax.ShapeDtypeStruct((s.batch, s.length), jnp.int32, sharding=sharding)


def decoder(resolver: Any, s: Sizes) -> Any:
    """Return a Llama's or a Mixtral's train step: one stack, scanned."""
    layers = {**attention_shapes(s), **mlp_shapes(s)}
    params = structs(
        {
            "table": (s.vocab, s.embed),
            "head": (s.embed, s.vocab),
            "final": (s.embed,),
            "layers": layers,
        }
    )
    feed = experts if s.experts else mlp

    def layer(x: Any, p: Arrays) -> Any:
        mask = jnp.tril(jnp.ones((s.length, s.length), bool))
        p = narrow(p)
        return feed(resolver, p, attention(resolver, p, x, None, mask))

    def loss(params: Arrays, tokens: Any) -> Any:
        x = embedded(resolver, params["table"], tokens)
        x = rms_norm(stack(layer, params["layers"], x, s.remat), params["final"])
        return cross_entropy(resolver, x, params["head"], tokens)

    return adam_step(resolver, loss, params, tokens_of(resolver, s))


def encoder_decoder(resolver: Any, s: Sizes) -> Any:
    """Return a T5's train step: two stacks, cross attention."""
    encoder = {**attention_shapes(s), **mlp_shapes(s)}
    shapes = {
        "table": (s.vocab, s.embed),
        "head": (s.embed, s.vocab),
        "final_encoder": (s.embed,),
        "final": (s.embed,),
        "encoder": encoder,
        "decoder": {"own": encoder, "cross": attention_shapes(s)},
    }

    def encode(x: Any, p: Arrays) -> Any:
        p = narrow(p)
        return mlp(resolver, p, attention(resolver, p, x, None, None))

    def loss(params: Arrays, batch: Arrays) -> Any:
        memory = stack(
            encode, params["encoder"], embedded(resolver, params["table"], batch["in"]), s.remat
        )
        memory = rms_norm(memory, params["final_encoder"])

        def decode(x: Any, p: Arrays) -> Any:
            p = narrow(p)
            mask = jnp.tril(jnp.ones((s.length, s.length), bool))
            x = attention(resolver, p["own"], x, None, mask)
            x = attention(resolver, p["cross"], x, memory, None)
            return mlp(resolver, p["own"], x)

        x = embedded(resolver, params["table"], batch["out"])
        x = rms_norm(stack(decode, params["decoder"], x, s.remat), params["final"])
        return cross_entropy(resolver, x, params["head"], batch["out"])

    tokens = tokens_of(resolver, s)
    return adam_step(resolver, loss, structs(shapes), {"in": tokens, "out": tokens})


def decode(resolver: Any, s: Sizes) -> Any:
    """Return one token's step of a Llama with a cache of `length` keys and values."""
    shapes = {
        "table": (s.vocab, s.embed),
        "head": (s.embed, s.vocab),
        "final": (s.embed,),
        "layers": {**attention_shapes(s), **mlp_shapes(s)},
    }
    params = resolver.abstract(structs(shapes, jnp.bfloat16))
    shape = (s.layers, s.batch, s.length, s.kv_heads, s.kv)
    placed = resolver.sharding("layers batch length heads kv", shape)
    cache = dict.fromkeys("kv", jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=placed))
    placed = resolver.sharding("batch _", (s.batch, 1))
    tokens = jax.ShapeDtypeStruct((s.batch, 1), jnp.int32, sharding=placed)

    def layer(carry: Any, inputs: Any) -> Any:
        x, at = carry
        p, keys, values = inputs
        h = rms_norm(x, p["norm"])
        q = jnp.einsum("bte,ehd->bthd", h, p["q"])
        k = jnp.einsum("bte,ehd->bthd", h, p["k"])
        v = jnp.einsum("bte,ehd->bthd", h, p["v"])
        keys = jax.lax.dynamic_update_slice_in_dim(keys, k, at, 1)
        values = jax.lax.dynamic_update_slice_in_dim(values, v, at, 1)
        mask = jnp.arange(s.length) <= at
        out = jnp.einsum("bthd,hde->bte", attend(q, keys, values, mask), p["o"])
        x = mlp(resolver, p, resolver.constrain(x + out, activation="residual"))
        return (x, at), (keys, values)

    def step(params: Arrays, cache: Arrays, tokens: Any, at: Any) -> Any:
        x = embedded(resolver, params["table"], tokens)
        inputs = (params["layers"], cache["k"], cache["v"])
        (x, _), (keys, values) = jax.lax.scan(layer, (x, at), inputs)
        x = rms_norm(x, params["final"])
        logits = jnp.einsum("bte,ev->btv", x, params["head"])
        best = jnp.argmax(resolver.constrain(logits, activation="logits"), -1)
        return {"k": keys, "v": values}, best

    at = jax.ShapeDtypeStruct((), jnp.int32)
    out = ({name: array.sharding for name, array in cache.items()}, tokens.sharding)
    return jax.jit(step, donate_argnums=1, out_shardings=out), (params, cache, tokens, at)


LLAMA_8B = Sizes(32, 4096, 32, 8, 128, 14336, 128256, 16, 4096)
LLAMA_70B = Sizes(80, 8192, 64, 8, 128, 28672, 128256, 512, 4096)
MIXTRAL = Sizes(32, 4096, 32, 8, 128, 14336, 32000, 64, 2048, experts=8)
T5_XXL = Sizes(24, 4096, 64, 64, 64, 10240, 32128, 256, 512)

FSDP_TENSOR = """\
  - batch -> fsdp
  - vocab -> tensor
  - heads -> tensor
  - mlp -> tensor
  - embed -> fsdp
  - embed_act -> none
"""
EXPERTS = """\
  - batch -> (data, expert)
  - batch_moe -> data
  - expert -> expert
  - vocab -> tensor
  - heads -> tensor
  - mlp -> tensor
  - embed -> data
  - embed_act -> none
"""
SERVE = """\
  - batch -> data
  - vocab -> tensor
  - heads -> tensor
  - mlp -> tensor
  - embed -> none
  - embed_act -> none
"""


@dataclass(frozen=True)
class Case:
    """A step on a machine.

    Attributes:
      mesh: sizes by mesh axis.
    """

    build: Callable[[Any, Sizes], Any]
    sizes: Sizes
    hardware: str
    mesh: dict[str, int]
    rules: str = FSDP_TENSOR

    @property
    def spec(self) -> str:
        """Return the spec that places the step."""
        mesh = ", ".join(f"{axis}: {size}" for axis, size in self.mesh.items())
        return RULES.format(hardware=self.hardware, mesh=mesh, rules=self.rules)

    def step(self, resolver: Any) -> Any:
        """Return the function and its arguments."""
        return self.build(resolver, self.sizes)


def _of(sizes: Sizes, **changes: Any) -> Sizes:
    return replace(sizes, **changes)


CASES = {
    "llama-8b-v5p": Case(decoder, LLAMA_8B, "tpu v5p 2x2x2", {"fsdp": 4, "tensor": 2}),
    "llama-8b-v5e": Case(
        decoder, _of(LLAMA_8B, batch=256), "tpu v5e 16x16", {"fsdp": 64, "tensor": 4}
    ),
    "llama-70b-v5p-512": Case(decoder, LLAMA_70B, "tpu v5p 8x8x8", {"fsdp": 128, "tensor": 4}),
    "llama-70b-v5p-4096": Case(
        decoder,
        _of(LLAMA_70B, batch=1024),
        "tpu v5p 16x16x16",
        {"fsdp": 512, "tensor": 8},
    ),
    "moe-47b-v5p": Case(
        decoder,
        MIXTRAL,
        "tpu v5p 4x4x4",
        {"data": 4, "expert": 8, "tensor": 2},
        EXPERTS,
    ),
    "decode-8b-v5e": Case(
        decode,
        _of(LLAMA_8B, batch=64, length=2048),
        "tpu v5e 4x4",
        {"data": 4, "tensor": 4},
        SERVE,
    ),
    "t5-xxl-v5e": Case(encoder_decoder, T5_XXL, "tpu v5e 16x16", {"fsdp": 64, "tensor": 4}),
    "t5-xxl-v4": Case(
        encoder_decoder,
        _of(T5_XXL, remat=False),
        "tpu v4 4x4x4",
        {"fsdp": 16, "tensor": 4},
    ),
    "llama-8b-tpu7x": Case(decoder, LLAMA_8B, "tpu v7x 2x2x2", {"fsdp": 8, "tensor": 2}),
    "llama-8b-v6e": Case(decoder, LLAMA_8B, "tpu v6e 4x4", {"fsdp": 8, "tensor": 2}),
    "llama-4-layers-v5p": Case(
        decoder,
        _of(LLAMA_8B, layers=4, batch=64),
        "tpu v5p 4x4x4",
        {"fsdp": 32, "tensor": 2},
    ),
    "llama-4-layers-fsdp-v5e": Case(
        decoder, _of(LLAMA_8B, layers=4, batch=64), "tpu v5e 8x8", {"fsdp": 64}
    ),
    "llama-4-layers-fsdp-v5p": Case(
        decoder, _of(LLAMA_8B, layers=4, batch=64), "tpu v5p 4x4x4", {"fsdp": 64}
    ),
    "linen-1b-v5e": Case(
        linen_decoder,
        Sizes(16, 2048, 32, 32, 64, 8192, 32000, 64, 2048),
        "tpu v5e 8x8",
        {"fsdp": 16, "tensor": 4},
    ),
}


def _on_h100(name: str) -> Case:
    """Return a case on nodes of eight H100s in place of a slice of as many chips."""
    case = CASES[name]
    nodes = math.prod(case.mesh.values()) // 8
    hardware = f"{nodes} * h100" if nodes > 1 else "h100"
    return replace(case, hardware=hardware)


CASES |= {
    "llama-8b-h100": _on_h100("llama-8b-v5p"),
    "llama-8b-h100-256": _on_h100("llama-8b-v5e"),
    "llama-70b-h100-512": _on_h100("llama-70b-v5p-512"),
    "moe-47b-h100-64": _on_h100("moe-47b-v5p"),
    "decode-8b-h100-16": _on_h100("decode-8b-v5e"),
    "t5-xxl-h100-256": _on_h100("t5-xxl-v5e"),
    "t5-xxl-h100-64": _on_h100("t5-xxl-v4"),
    "llama-4-layers-h100-64": _on_h100("llama-4-layers-v5p"),
    "llama-4-layers-fsdp-h100-64": _on_h100("llama-4-layers-fsdp-v5p"),
    "linen-1b-h100-64": _on_h100("linen-1b-v5e"),
}
