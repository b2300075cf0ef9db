"""What a compiler wastes: help about it is followed literally, and libtpu needs less memory."""

from __future__ import annotations

import re

import pytest

from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic
from tests.lints.step_examples import cost, findings

pytest.importorskip("libtpu")

HEAD = """\
shardspec: 1
hardware: tpu v5e 4x4
mesh: {data: 4, tensor: 4}
axes: {batch: 64, features: 1024, kv_heads: 8, layers: 8}
rules:
  - batch -> data
  - kv_heads, joined -> tensor
  - features, layers -> none
params:
  k: layers features joined
arrays:
  k: bf16[8, 1024, 1024]
activations:
  x: batch features
"""
MADE = """\
shape = (8, 64, 2048, 8, 128)
place = resolver.sharding("layers batch _ kv_heads _", shape)
FORMAT
cache = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place)
at = jax.ShapeDtypeStruct((), jnp.int32)
def attend(x, new, keys):
    scores = jnp.einsum("bhk,bthk->bht", new, keys)
    return x + jnp.einsum("bht,bthk->bhk", jax.nn.softmax(scores), keys).reshape(64, 1024)
"""
SCANNED = """\
def decode(params, x, cache, at):
    def layer(x, given):
        weight, keys = given
        new = (x @ weight).reshape(64, 8, 128)
        keys = jax.lax.dynamic_update_slice_in_dim(keys, new[:, None], at, 1)
        return attend(x, new, keys), keys
    return jax.lax.scan(layer, x, (params["k"], cache))
"""
CARRIED = """\
def decode(params, x, cache, at):
    def layer(carry, given):
        x, cache = carry
        weight, number = given
        new = (x @ weight).reshape(64, 8, 128)
        new_rows = new[None, :, None]
        cache = jax.lax.dynamic_update_slice(cache, new_rows, (number, 0, at, 0, 0))
        return (attend(x, new, cache[number]), cache), None
    return jax.lax.scan(layer, (x, cache), (params["k"], jnp.arange(8)))[0]
"""
STEP = 'step = jax.jit(decode, donate_argnames="cache", out_shardings=(None, place))\n'


def _example(loop: str, stated: str = "", step: str = STEP) -> str:
    code = MADE.replace("FORMAT", stated) + loop + step
    return "".join(f"# {line}\n" for line in code.splitlines()) + HEAD


def _found(text: str) -> tuple[Cost, list[Diagnostic]]:
    found = [each for each in findings(text, is_compiled=True) if each.code.id == "SHD522"]
    return cost(text, is_compiled=True), found


def test_a_loop_that_carries_a_cache_in_the_stated_order_copies_nothing() -> None:
    """Help is followed twice: carry the cache, then state the order in which the loop wants it."""
    before, (beside,) = _found(_example(SCANNED))
    assert "let the loop carry `cache` and write into it" in (beside.help or "")
    _, (turned,) = _found(_example(CARRIED))
    said = re.search(
        r"`Format\(Layout\((\([\d, ]+\))\), sharding\)` for `cache`", turned.help or ""
    )
    assert said, turned.help
    stated = "from jax.experimental.layout import Format, Layout\n"
    stated += f"place = Format(Layout({said[1]}), place)"
    after, none = _found(_example(CARRIED, stated))
    assert not none
    saved = before.memory.total.bytes - after.memory.total.bytes
    cache = 8 * 64 * 2048 * 8 * 128 * 2 // 16
    assert saved == pytest.approx(cache, rel=0.1), "the memory of one cache"


def test_what_a_loop_changes_is_donated_as_help_says() -> None:
    lent = STEP.replace('donate_argnames="cache", ', "")
    stated = "from jax.experimental.layout import Format, Layout\n"
    stated += "place = Format(Layout((0, 2, 1, 3, 4)), place)"
    before, found = _found(_example(CARRIED, stated, lent))
    assert ["donate `cache`" in (each.help or "") for each in found] == [True]
    after, none = _found(_example(CARRIED, stated))
    assert not none
    assert after.memory.total.bytes < before.memory.total.bytes


def test_an_order_is_moot_where_the_placing_or_the_type_is_to_be_changed_first() -> None:
    """It proposed a `Format` of a sharding that nothing states."""
    guessed = _example(CARRIED).replace(", sharding=place)", ")")
    guessed = guessed.replace(", out_shardings=(None, place)", "")
    assert {each.code.id for each in findings(guessed, is_compiled=True)} == {"SHD517", "SHD518"}


def test_the_model_alone_says_nothing_of_copies() -> None:
    assert not [each for each in findings(_example(SCANNED)) if each.code.id == "SHD522"]


SCORES = """\
shardspec: 1
hardware: tpu v5e 4x4
mesh: {data: 4, tensor: 4}
axes: {batch: 32, length: 4096, features: 1024}
rules:
  - batch -> data
  - joined -> tensor
  - length, features -> none
params:
  q: features joined
arrays:
  q: bf16[1024, 1024]
activations:
  x: batch length features
"""
STORED = """\
def mix(q):
    scores = jnp.einsum("bhqk,bhtk->bhqt", q, q, preferred_element_type="float32")
    scores += jnp.where(jnp.tril(jnp.ones((4096, 4096), bool)), 0, -1e9)
    return jnp.einsum("bhqt,bhtk->bhqk", jax.nn.softmax(scores).astype("bfloat16"), q)
"""
FLASH = """\
from jax.experimental.pallas.ops.tpu.flash_attention import flash_attention
split = P("data", "tensor")
def mix(q):
    def kernel(q):
        return flash_attention(q, q, q, causal=True)
    args = dict(mesh=resolver.mesh, in_specs=split, out_specs=split, check_vma=False)
    return jax.shard_map(kernel, **args)(q)
"""
ATTEND = """\
def loss(params, x):
    def layer(params, x):
        q = (x @ params["q"]).reshape(32, 4096, 8, 128).swapaxes(1, 2)
        return x + mix(q).swapaxes(1, 2).reshape(32, 4096, 1024)
    return jnp.mean(jax.checkpoint(layer)(params, x) ** 2)
step = jax.grad(loss)
"""


def _attention(mix: str) -> Cost:
    text = "".join(f"# {line}\n" for line in (mix + ATTEND).splitlines()) + SCORES
    return cost(text, is_compiled=True)


def test_a_flash_kernel_saves_what_is_said() -> None:
    before, after = _attention(STORED), _attention(FLASH)
    told = [each for each in before.memory.peak if "a flash kernel saves" in each.reason]
    saved = before.memory.total.bytes - after.memory.total.bytes
    assert sum(each.bytes * each.count for each in told) == pytest.approx(saved, rel=0.15)
    assert not [each for each in after.memory.peak if each.is_attended]


DROPPED = """\
@jax.checkpoint
def attend(params, x, key):
    q, k, v = (jnp.einsum("bne,ehk->bnhk", x, params[name]) for name in "qkv")
    scores = jnp.einsum("bqhk,bthk->bhqt", q, k).astype("float32")
    weights = jax.nn.softmax(scores).astype("bfloat16")
    weights = jnp.where(jax.random.bernoulli(key, 0.9, SHAPE), weights / 0.9, 0)
    mixed = jnp.einsum("bhqt,bthk->bqhk", weights, v)
    return jnp.einsum("bqhk,ehk->bqe", mixed, params["o"])
def loss(params, x):
    key = jax.random.key(x[0, 0, 0].astype("uint32"))
    return jnp.mean(attend(params, x, key) ** 2)
step = jax.grad(loss)
"""
DROPPED_SPEC = """\
shardspec: 1
hardware: tpu v5e 4x4
mesh: {data: 4, tensor: 4}
axes: {batch: 16, length: 1024, features: 256, heads: 8, kv: 32}
rules:
  - batch -> data
  - heads -> tensor
  - length, features, kv -> none
params:
  "{q,k,v,o}": features heads kv
arrays:
  "{q,k,v,o}": bf16[256, 8, 32]
activations:
  x: batch length features
"""


def test_a_mask_for_all_heads_keeps_random_bits_out_of_memory() -> None:
    """What may be written out is unknown without the compiler, and named with it."""

    def example(shape: str) -> str:
        code = DROPPED.replace("SHAPE", shape)
        return "".join(f"# {line}\n" for line in code.splitlines()) + DROPPED_SPEC

    wide, shared = example("weights.shape"), example("(16, 1, 1024, 1024)")
    modelled, held = cost(wide).memory, cost(wide, is_compiled=True).memory.total.bytes
    assert modelled.fits is None
    assert modelled.total.bytes < 0.3 * held
    told = [each for each in findings(wide, is_compiled=True) if each.code.id == "SHD523"]
    assert ["one mask for all heads" in (each.help or "") for each in told] == [True]
    assert cost(shared).memory.fits
    assert cost(shared, is_compiled=True).memory.total.bytes < 0.3 * held
