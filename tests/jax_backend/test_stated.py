"""The function that `step:` stands for: it computes and sends what the model of it counts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shardspec
from shardspec import pipeline
from shardspec.analysis.spec_step import stated_step
from shardspec.diagnostics import ShardspecError, codes
from shardspec.ir.step import Step
from shardspec.jax_backend.stated import call_of_step
from shardspec.jax_backend.step.reading import step_of
from shardspec.jax_backend.step.trace import Call

#: Two layers of attention and a gated MLP; four devices by two.
HEAD = """\
shardspec: 1
axes: {batch: 8, length: 512, embed: 128, mlp: 512, layers: 2, vocab: 256, heads: 8, kv_heads: 4,
  kv: 16, expert: 4, router: 4, one: 1}
targets: {cpu: {hardware: 8 cpu, mesh: {fsdp: 4, tensor: 2}}}
rules: [batch -> fsdp, "mlp, heads, kv_heads, vocab -> tensor", embed -> fsdp,
  "length, layers, kv, expert, norm, router, slot -> none"]
state: {optimizer: STATE}
params:
  "**/query": embed heads kv
  "**/{key,value}": embed kv_heads kv
  "**/out": heads kv embed
  "**/{gate,up}": embed mlp
  "**/down": mlp embed
  "**/router": embed router
  "**/wi_{0,1}": expert embed mlp
  "**/wo": expert mlp embed
  embedder: vocab embed
  lm_head: embed vocab
activations:
  residual: batch length embed
  query: batch length heads kv
  key: batch length kv_heads kv
  value: batch length kv_heads kv
  hidden: batch length mlp
  logits: batch length vocab
"""
LAYER = {"query": (128, 8, 16), "key": (128, 4, 16), "value": (128, 4, 16), "out": (8, 16, 128)}
MLP = {"gate": (128, 512), "up": (128, 512), "down": (512, 128)}
MOE = {"router": (128, 4), "wi_0": (4, 128, 512), "wi_1": (4, 128, 512), "wo": (4, 512, 128)}
ENDS = {"embedder": (256, 128), "lm_head": (128, 256)}


def text_of(
    step: str, layer: dict[str, Any], *, unrolled: bool = False, state: str = "same"
) -> str:
    arrays = dict(ENDS)
    for name, shape in layer.items():
        if unrolled:
            arrays |= {f"layers_{at}/{name}": shape for at in range(2)}
        else:
            arrays[f"layers/{name}"] = (2, *shape)
    lines = [f'  "{path}": f32[{", ".join(map(str, shape))}]' for path, shape in arrays.items()]
    scan = "" if unrolled else "scan: {layers/**: layers@0}\n"
    head = HEAD.replace("STATE", state)
    return f"{head}{scan}arrays:\n" + "\n".join(lines) + f"\nstep: {{{step}}}\n"


DENSE = {**LAYER, **MLP}
CASES = {
    "dense": text_of("extends: decoder", DENSE),
    "unrolled": text_of("extends: decoder", DENSE, unrolled=True),
    "kept": text_of("extends: decoder, remat: none", DENSE),
    "named": text_of("extends: decoder, remat: [query, key]", DENSE),
    "dots": text_of("extends: decoder, remat: dots", DENSE),
    "scores": text_of("extends: decoder, attention: einsum", DENSE),
    "microbatches": text_of("extends: decoder, microbatches: 2", DENSE),
    "zero2": text_of("extends: decoder", DENSE, state="zero2"),
    "tied": text_of("extends: decoder-tied", DENSE).replace('  "lm_head": f32[128, 256]\n', ""),
    "experts": text_of("extends: moe, experts: top 2 capacity 1.0", {**LAYER, **MOE}),
    "dropless": text_of("extends: moe, experts: top 2 dropless", {**LAYER, **MOE}),
}


def called(text: str) -> tuple[Any, Call]:
    resolver = shardspec.Resolver(shardspec.loads(text, "spec.yaml"), devices="abstract")
    return resolver, call_of_step(resolver)


def both(text: str) -> tuple[Step, Step]:
    """Return the step by its function, traced, and by the model of it."""
    resolver, call = called(text)
    spec = resolver._arrays.spec
    stated = stated_step(pipeline.compile_plans(spec)[0])
    assert stated is not None
    return step_of(resolver, call.function, *call.args), stated.step


def sent(step: Step) -> dict[str, float]:
    found: dict[str, float] = {}
    for each in step.collectives:
        axes = "+".join(each.mesh_axes)
        found[axes] = found.get(axes, 0) + each.wire_bytes
    return found


#: What lookups in a table of this size may send otherwise than is counted, over one mesh axis:
#: XLA's partitioner exchanges rows, and the count is for tables that are large beside them.
LOOKUPS = 330_000


@pytest.mark.parametrize("name", CASES)
def test_it_computes_and_sends_what_is_counted(name: str) -> None:
    traced, stated = both(CASES[name])
    assert traced.flops == pytest.approx(stated.flops, rel=0.01)
    made, counted = sent(traced), sent(stated)
    own = {axes: made.get(axes, 0) for axes in counted}
    assert own == pytest.approx(counted, rel=0.02, abs=LOOKUPS)
    assert sum(made.values()) == pytest.approx(sum(counted.values()), rel=0.02, abs=2 * LOOKUPS)


def alone(text: str) -> Any:
    """Return a resolver of the same spec with one device."""
    one = text.replace("8 cpu", "1 cpu").replace("fsdp: 4, tensor: 2", "fsdp: 1, tensor: 1")
    spec = shardspec.loads(one, "spec.yaml", levels={"SHD": "allow"})
    return shardspec.Resolver(spec, devices=jax.devices()[:1])


def filled(call: Call) -> list[Any]:
    rng = np.random.default_rng(0)

    def array(x: Any) -> Any:
        if jnp.issubdtype(x.dtype, jnp.integer):
            return jnp.asarray(rng.integers(0, 4, x.shape), x.dtype)
        return jnp.asarray(rng.normal(size=x.shape) * 0.05, x.dtype)

    return [jax.tree.map(array, each) for each in call.args]


@pytest.mark.parametrize("name", ["dense", "dots", "microbatches", "experts", "dropless"])
def test_it_trains(name: str) -> None:
    resolver = alone(CASES[name].replace("length: 512", "length: 16"))
    call = call_of_step(resolver)
    state, batch = filled(call)
    state["opt_state"] = jax.tree.map(jnp.zeros_like, state["opt_state"])
    before = {path: np.asarray(x) for path, x in state["params"].items()}
    after = call.function(state, batch)
    for path, x in after["params"].items():
        assert np.isfinite(np.asarray(x)).all(), path
        assert (np.asarray(x) != before[path]).any(), path


DECODE = """mode: serve, program: [
  'gather(tokens[batch one], "embedder") -> residual[batch one embed]',
  'residual, "**/query" -> query[batch one heads kv]',
  'residual, "**/key" -> key[batch one kv_heads kv]',
  'residual, "**/value" -> value[batch one kv_heads kv]',
  'flash(query, keys[layers batch length kv_heads kv], values[layers batch length kv_heads kv])
    -> context',
  'context, "**/out" -> residual', 'residual, "lm_head" -> logits[batch one vocab]']"""


def test_a_cache_gets_the_token() -> None:
    text = text_of(DECODE, LAYER)
    head, _, rest = text.partition("activations:")
    text = head + rest[rest.index("scan:") :]
    call = call_of_step(alone(text.replace("length: 512", "length: 16")))
    params, cache, batch = filled(call)
    before = {name: np.asarray(x, np.float32) for name, x in cache.items()}
    after, ends = call.function(params, cache, batch)
    for name, x in after.items():
        changed = (np.asarray(x, np.float32) != before[name]).any(axis=(1, 3, 4))
        assert changed.tolist() == [[True] + [False] * 15] * 2
    assert [x.shape for x in ends] == [(8, 1, 256)]


PICKED = """\
shardspec: 1
axes: {batch: 8, length: 512, slot: 128, embed: 128, mlp: 512, router: 4, vocab: 256}
targets: {cpu: {hardware: 8 cpu, mesh: {fsdp: 4, tensor: 2}}}
rules: [batch -> fsdp, "mlp, vocab -> tensor", "length, slot, embed, router -> none"]
params: {embedder: vocab embed, router: embed router, up: embed mlp, down: mlp embed}
arrays:
  embedder: f32[256, 128]
  router: f32[128, 4]
  up: f32[128, 512]
  down: f32[512, 128]
activations: {residual: batch length embed, hidden: batch slot mlp}
step:
  mode: serve
  program:
    - 'gather(tokens[batch length], "embedder") -> residual'
    - 'residual, "router" -> scores[batch length router]'
    - 'gather(residual, scores) -> chosen[batch slot embed]'
    - 'chosen, "up" -> hidden'
    - 'hidden, "down" -> made[batch slot embed]'
    - 'gather(made, scores) -> back[batch length embed]'
"""


def test_rows_that_are_looked_up_by_computed_numbers_send_what_is_counted() -> None:
    traced, model = both(PICKED)
    assert sent(model).keys() == {"tensor"}
    assert sent(traced).get("fsdp", 0) < LOOKUPS
    assert sent(traced)["tensor"] == pytest.approx(sent(model)["tensor"], abs=LOOKUPS)
    assert traced.flops == pytest.approx(model.flops, rel=0.01)


def test_rows_are_looked_up_in_each_example_by_its_own_numbers() -> None:
    call = call_of_step(alone(PICKED))
    params, cache, batch = filled(call)
    before = jax.tree.leaves(call.function(params, cache, batch))
    other = {name: x.at[0].set((x[0] + 7) % 256) for name, x in batch.items()}
    after = jax.tree.leaves(call.function(params, cache, other))
    for one, two in zip(before, after, strict=True):
        changed = (np.asarray(one) != np.asarray(two)).any(axis=(1, 2))
        assert changed.tolist() == [True] + [False] * 7


def test_what_has_no_function_is_told() -> None:
    for step, message in (
        ("extends: decoder, pipeline: gpipe, microbatches: 2", "a pipeline of `step:` has no"),
        ("program: ['residual -> pooled[batch embed other]']", "the size of `other`"),
    ):
        with pytest.raises(ShardspecError) as caught:
            called(text_of(step, DENSE))
        (found, *_) = caught.value.diagnostics
        assert found.code in (codes.NOT_COMPILED, codes.STEP_LINE)
        assert message in found.message


def test_what_jax_refuses_is_told() -> None:
    text = text_of("extends: decoder", DENSE).replace("fsdp: 4, tensor: 2", "fsdp: 8 explicit")
    resolver, call = called(text.replace("-> tensor", "-> none"))
    with pytest.raises(ShardspecError) as caught:
        step_of(resolver, call.function, *call.args)
    (found,) = caught.value.diagnostics
    assert (found.code, found.labels[0].span.line > 1) == (codes.NOT_COMPILED, True)


LINES = (
    'gather(tokens[batch length], "embedder") -> residual[batch length embed]',
    'residual, "**/{gate,up}" -> hidden',
    'hidden, "**/down" -> residual',
    'residual, "**/query" -> query',
    'residual, "**/key" -> key',
    "flash(query, key, key) -> context",
    "flash(query, query) -> context",
    'context, "**/out" -> residual',
    "residual -> pooled[batch embed]",
    "residual -> wide[batch length embed twice=2]",
    "split(hidden) -> left[batch length half=256], right[batch length half=256]",
    "op(residual, hidden) -> residual, flops 2 * batch",
    "route(residual) -> chosen[batch length embed]",
    'residual, "lm_head" -> logits',
    "residual, hidden -> mixed[batch embed mlp]",
)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(LINES), min_size=1, max_size=6),
    st.sampled_from(("none", "full", "dots", "[query]")),
    st.booleans(),
    st.sampled_from(("train", "serve")),
)
def test_any_lines_are_a_function_or_a_finding(
    lines: list[str], remat: str, unrolled: bool, mode: str
) -> None:
    program = ", ".join(f"'{line}'" for line in lines)
    step = f"mode: {mode}, remat: {remat}, program: [{program}]"
    text = text_of(step, DENSE, unrolled=unrolled).replace("length: 512", "length: 4")
    found: tuple[Any, ...] = ()
    try:
        call = call_of_step(alone(text))
        made = jax.eval_shape(call.function, *call.args)
    except ShardspecError as error:
        found = error.diagnostics
    if found:
        assert {each.code for each in found} <= {codes.NOT_COMPILED, codes.STEP_LINE}
        return
    given_ = made if mode == "train" else made[0]
    assert jax.tree.structure(given_) == jax.tree.structure(call.args[0 if mode == "train" else 1])
