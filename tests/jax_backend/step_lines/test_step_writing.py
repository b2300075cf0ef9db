"""Lines of `step:` that are written of code, against what the code is and what it sends."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shardspec import pipeline
from shardspec.analysis.cost import Cost, cost_of
from shardspec.analysis.spec_step import stated_step
from shardspec.ir.spec import Spec
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.step.reading import traced_step
from shardspec.jax_backend.step_lines.writing import WrittenStep, written_step
from shardspec.language.yaml_text.printer import print_yaml

EXAMPLES = Path(__file__).parents[3] / "specs" / "examples"
#: Three layers of a decoder; sizes that a device really has, since small ones are sent otherwise.
SPEC = """\
shardspec: 1
axes:
  {batch: 256, length: 1024, embed: 2048, mlp: 8192, heads: 16, kv: 128, vocab: 32768, layers: 3}
targets: {pod: {hardware: tpu v5p 4x4x4, mesh: {fsdp: 16, tensor: 4}}}
rules: [batch -> fsdp, "mlp, heads, vocab -> tensor", embed -> fsdp, "length, kv, layers -> none"]
params:
  table: vocab embed
  head: embed vocab
  "**/{query,key,value}": embed heads kv
  "**/out": heads kv embed
  "**/{gate,up}": embed mlp
  "**/down": mlp embed
activations:
  residual: batch length embed
  query: batch length heads kv
  hidden: batch length mlp
  logits: batch length vocab
"""
LAYER = {
    **dict.fromkeys(("query", "key", "value"), (2048, 16, 128)),
    "out": (16, 128, 2048),
    **dict.fromkeys(("gate", "up"), (2048, 8192)),
    "down": (8192, 2048),
}
SCANNED = (
    "scan: {layers/**: layers@0}\narrays:\n  table: f32[32768, 2048]\n  head: f32[2048, 32768]\n"
    + "".join(
        f"  layers/{name}: f32[{', '.join(map(str, (3, *shape)))}]\n"
        for name, shape in LAYER.items()
    )
)
UNROLLED = "arrays:\n  table: f32[32768, 2048]\n  head: f32[2048, 32768]\n" + "".join(
    f"  layers_{{0..2}}/{name}: f32[{', '.join(map(str, shape))}]\n"
    for name, shape in LAYER.items()
)
LINES = [
    'gather(tokens[batch length], "table") -> residual',
    'residual, "{0}/query" -> query',
    'residual, "{0}/key" -> key',
    'residual, "{0}/value" -> value',
    "flash(query, key, value) -> context",
    'context, "{0}/out" -> residual',
    'residual, "{0}/{{gate,up}}" -> hidden',
    'hidden, "{0}/down" -> residual',
    'residual, "head" -> logits',
]

Layer = Callable[[Any, Any], Any]


def norm(x: Any) -> Any:
    return x / (1 + jnp.abs(x).mean(-1, keepdims=True))


def layer(resolver: Resolver, x: Any, p: Any) -> Any:
    """Attention and a gated MLP, in bf16."""
    p = jax.tree.map(lambda each: each.astype(jnp.bfloat16), p)
    constrain = resolver.constrain
    h = norm(x)
    query = constrain(jnp.einsum("ble,ehd->blhd", h, p["query"]), activation="query")
    key, value = (jnp.einsum("ble,ehd->blhd", h, p[name]) for name in ("key", "value"))
    scores = jax.nn.softmax(jnp.einsum("blhd,bmhd->bhlm", query, key))
    context = jnp.einsum("bhlm,bmhd->blhd", scores, value)
    x = constrain(x + jnp.einsum("blhd,hde->ble", context, p["out"]), activation="residual")
    h = norm(x)
    hidden = constrain(jax.nn.silu(h @ p["gate"]) * (h @ p["up"]), activation="hidden")
    return constrain(x + hidden @ p["down"], activation="residual")


def model(resolver: Resolver, params: Any, tokens: Any, through: Layer) -> Any:
    """Return a loss of the logits; layers in a scan, or one after the other."""
    x = resolver.constrain(params["table"].astype(jnp.bfloat16)[tokens], activation="residual")
    if "layers" in params:
        x, _ = jax.lax.scan(lambda x, p: (through(x, p), None), x, params["layers"])
    else:
        for number in range(3):
            x = through(x, params[f"layers_{number}"])
    logits = norm(x) @ params["head"].astype(jnp.bfloat16)
    logits = resolver.constrain(logits, activation="logits").astype(jnp.float32)
    return jax.nn.logsumexp(logits, axis=-1).mean()


def step_for(resolver: Resolver, wrap: Callable[[Layer], Layer], microbatches: int = 1) -> Any:
    loss = partial(model, resolver, through=wrap(partial(layer, resolver)))

    def step(params: Any, tokens: Any) -> Any:
        if microbatches == 1:
            gradients = jax.grad(loss)(params, tokens)
        else:

            def add(total: Any, part: Any) -> tuple[Any, None]:
                return jax.tree.map(jnp.add, total, jax.grad(loss)(params, part)), None

            parts = tokens.reshape(microbatches, -1, tokens.shape[-1])
            zeros = jax.tree.map(jnp.zeros_like, params)
            gradients, _ = jax.lax.scan(add, zeros, parts)
        return jax.tree.map(lambda p, g: p - g, params, gradients)

    return step


def params_of(*, is_scanned: bool) -> dict[str, Any]:
    f32 = partial(jax.ShapeDtypeStruct, dtype=jnp.float32)
    table = {"table": f32((32768, 2048)), "head": f32((2048, 32768))}
    if is_scanned:
        return table | {"layers": {name: f32((3, *shape)) for name, shape in LAYER.items()}}
    one = {name: f32(shape) for name, shape in LAYER.items()}
    return table | {f"layers_{number}": one for number in range(3)}


def written(
    spec: Spec, target: str, made: Callable[[Resolver], tuple[Any, tuple[Any, ...]]]
) -> tuple[WrittenStep, Cost]:
    """Return the lines of a function, and what it costs."""
    resolver = Resolver(spec, target, devices="abstract")
    function, args = made(resolver)
    found, step = traced_step(resolver, function, args, {})
    chosen = [each for each in spec.targets if each.name == target]
    (plan,) = pipeline.compile_plans(spec, targets=chosen)
    paths = [each.path for each in plan.arrays]
    return written_step(resolver, found, paths), cost_of(plan, step)


def stated(text: str, target: str, fields: dict[str, Any], file: str = "spec.yaml") -> Cost:
    """Return what a spec costs with these fields of `step:`, and no code."""
    whole = f"{text}\n{print_yaml({'step': fields})}"
    spec, faults = pipeline.load_path(file, texts={os.path.realpath(file): whole})
    assert spec is not None
    assert faults == ()
    chosen = [each for each in spec.targets if each.name == target]
    (plan,) = pipeline.compile_plans(spec, targets=chosen)
    found = stated_step(plan)
    assert found is not None
    return cost_of(plan, found.step)


def same(stated: Cost, traced: Cost, rel: float = 0.05) -> None:
    """Check FLOPs and what each mesh axis sends, but for a loss or a maximum."""
    assert stated.step is not None
    assert traced.step is not None
    assert stated.step.flops == pytest.approx(traced.step.flops, rel=rel)
    little = 0.01 * sum(traced.step.wire_bytes.values())
    found = {axes: sent for axes, sent in stated.step.wire_bytes.items() if sent > little}
    told = {axes: sent for axes, sent in traced.step.wire_bytes.items() if sent > little}
    assert found == pytest.approx(told, rel=rel)


def of_model(
    text: str, wrap: Callable[[Layer], Layer] = lambda through: through, microbatches: int = 1
) -> dict[str, Any]:
    """Return the fields of the small model, once their figures are known to be those traced."""
    spec, _ = pipeline.load_text(text)
    assert spec is not None
    tokens = jax.ShapeDtypeStruct((256, 1024), jnp.int32)
    params = params_of(is_scanned="scan:" in text)
    found, cost = written(
        spec, "pod", lambda r: (step_for(r, wrap, microbatches), (params, tokens))
    )
    assert found.unwritten == ()
    same(stated(text, "pod", found.fields), cost)
    return found.fields


@pytest.mark.parametrize(
    ("arrays", "name"), [(SCANNED, "layers"), (UNROLLED, "layers_*")], ids=["scan", "apart"]
)
def test_lines_are_those_that_a_person_writes(arrays: str, name: str) -> None:
    """Layers of their own are one line each, as those of a scan are."""
    fields = of_model(SPEC + arrays)
    assert fields == {"attention": "einsum", "program": [each.format(name) for each in LINES]}


def test_remat_is_what_the_backward_pass_does_again() -> None:
    assert of_model(SPEC + SCANNED, jax.checkpoint)["remat"] == "full"
    dots = partial(jax.checkpoint, policy=jax.checkpoint_policies.dots_saveable)
    assert of_model(SPEC + SCANNED, dots)["remat"] == "dots"


def test_a_loop_over_whole_passes_is_microbatches() -> None:
    fields = of_model(SPEC + SCANNED, jax.checkpoint, microbatches=4)
    assert fields["microbatches"] == 4
    assert "tokens" not in fields


def test_another_batch_than_the_axes_say_is_written_in_tokens() -> None:
    fields = of_model((SPEC + SCANNED).replace("batch: 256", "batch: 1024"))
    assert fields["tokens"] == 256 * 1024


def test_what_has_no_name_keeps_its_size() -> None:
    text = SPEC.replace("kv: 128, ", "").replace("heads kv", "heads _")
    fields = of_model(text.replace("length, kv,", "length,") + SCANNED)
    read, _, made = fields["program"][1].partition(" -> ")
    assert read == 'residual, "layers/query"[embed, heads, _ as d1]'
    assert made == "query[batch, length, heads, _ as d1=128]"


def of_function(text: str, function: Callable[[Resolver], Any], *args: Any) -> dict[str, Any]:
    """Return the fields of a function, once a spec that has them costs as many FLOPs."""
    spec, _ = pipeline.load_text(text)
    assert spec is not None
    found, cost = written(spec, "pod", lambda resolver: (function(resolver), args))
    told = stated(text, "pod", found.fields)
    assert told.step is not None
    assert cost.step is not None
    assert told.step.flops == pytest.approx(cost.step.flops, rel=0.01)
    return found.fields


def test_arguments_that_have_only_numbers_get_names() -> None:
    def numbered(resolver: Resolver) -> Any:
        step = step_for(resolver, lambda through: through)
        return lambda *args: step(*args)

    tokens = jax.ShapeDtypeStruct((256, 1024), jnp.int32)
    fields = of_function(SPEC + SCANNED, numbered, params_of(is_scanned=True), tokens)
    assert fields["program"][0] == 'gather(given_1[batch length], "table") -> residual'


def test_positions_whose_name_does_not_say_so_are_told_apart() -> None:
    text = (SPEC + SCANNED).replace("length", "frames")
    tokens = jax.ShapeDtypeStruct((256, 1024), jnp.int32)

    def step(resolver: Resolver) -> Any:
        return step_for(resolver, lambda through: through)

    fields = of_function(text, step, params_of(is_scanned=True), tokens)
    keys = "key[frames as frames_positions], value[frames as frames_positions]"
    assert fields["program"][4] == f"flash(query, {keys}) -> context"


def test_a_product_with_what_parameters_make_is_no_einsum_of_the_parameter() -> None:
    """A probe, made into a query by another array, asks of all tokens."""
    text = SPEC.replace("params:", "params:\n  probe: embed").replace('"**/{query', '"{query')
    text = text[: text.index("activations:")] + "activations: {residual: batch length embed}\n"
    shapes = {"probe": (2048,), "query": (2048, 16, 128), "key": (2048, 16, 128)}
    text += "arrays: {probe: 'f32[2048]', query: 'f32[2048, 16, 128]', key: 'f32[2048, 16, 128]'}\n"
    drop = ("table", "head", '"**/out"', '"**/{gate', '"**/down"')
    text = "\n".join(line for line in text.splitlines() if not line.strip().startswith(drop))
    f32 = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    f32["key"] = jax.ShapeDtypeStruct(shapes["key"], jnp.float32)

    def pooled(resolver: Resolver) -> Any:
        def loss(params: Any, residual: Any) -> Any:
            residual = resolver.constrain(residual, activation="residual")
            asked = jnp.einsum("e,ehd->hd", params["probe"], params["query"])
            keys = jnp.einsum("ble,ehd->blhd", residual, params["key"])
            return jax.nn.softmax(jnp.einsum("hd,blhd->bhl", asked, keys)).max()

        return jax.grad(loss)

    x = jax.ShapeDtypeStruct((256, 1024, 2048), jnp.float32)
    fields = of_function(text, pooled, f32, x)
    assert fields["program"][-1].startswith('op(key, "probe")')


def test_serving_has_no_backward_pass() -> None:
    spec, _ = pipeline.load_text(SPEC + SCANNED)
    assert spec is not None

    def made(resolver: Resolver) -> Any:
        loss = partial(model, resolver, through=partial(layer, resolver))
        return loss, (params_of(is_scanned=True), jax.ShapeDtypeStruct((256, 1024), jnp.int32))

    found, cost = written(spec, "pod", made)
    assert found.fields["mode"] == "serve"
    assert "remat" not in found.fields
    same(stated(SPEC + SCANNED, "pod", found.fields), cost)


REAL = [
    pytest.param("llama-3-8b-decode", "v5e-16", "decode:step"),
    pytest.param("llama-3-70b-scanned", "v5p-1024", "llama:train"),
    pytest.param("mixtral-8x7b", "v5p-256", "mixtral:train"),
    pytest.param("vit-b-16", "v5e-8", "vit:train", marks=pytest.mark.nightly),
    pytest.param("t5-1.1-xxl", "v4-512", "t5:train", marks=pytest.mark.nightly),
]


@pytest.mark.parametrize(("name", "target", "function"), REAL)
def test_examples_without_their_code_cost_what_they_do_with_it(
    name: str, target: str, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLOPs and bytes by mesh axis; memory, a floor, but for an optimizer that `state:` tells."""
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    file = EXAMPLES / f"{name}.yaml"
    spec, _ = pipeline.load_path(str(file))
    assert spec is not None
    module, _, called = function.partition(":")
    made = getattr(importlib.import_module(f"steps.{module}"), called)
    found, cost = written(spec, target, made)
    assert found.unwritten == ()
    assert len(found.fields["program"]) <= 30
    text = file.read_text(encoding="utf-8").partition("\nstep:")[0]
    alone = stated(text, target, found.fields, str(file))
    same(alone, cost)
    if name != "llama-3-8b-decode":
        assert 0.75 * _held(cost) <= _held(alone) <= 1.07 * _held(cost)


def _held(cost: Cost) -> int:
    optimizer = cost.memory.optimizer
    return cost.memory.total.bytes - (optimizer.bytes if optimizer is not None else 0)


def test_rounding_to_int8_is_no_choice_of_experts() -> None:
    """What is rounded and scaled is read by the product as it is."""
    kinds = {"up": "s8[2048, 8192]", "down": "s8[8192, 2048]"}
    arrays = "".join(f"  layers_{{0..2}}/{name}: {kind}\n" for name, kind in kinds.items())
    text = f"{SPEC}arrays:\n{arrays}"
    spec, _ = pipeline.load_text(text)
    assert spec is not None
    s8 = partial(jax.ShapeDtypeStruct, dtype=jnp.int8)
    params = {f"layers_{n}": {"up": s8((2048, 8192)), "down": s8((8192, 2048))} for n in range(3)}
    x = jax.ShapeDtypeStruct((256, 1024, 2048), jnp.bfloat16)

    def product(x: Any, w: Any) -> Any:
        scale = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / 127
        made = jnp.einsum(
            "ble,ef->blf", jnp.round(x / scale).astype(jnp.int8), w,
            preferred_element_type=jnp.int32,
        )  # fmt: skip
        return made.astype(jnp.bfloat16) * scale

    def made(resolver: Resolver) -> tuple[Any, tuple[Any, ...]]:
        def serve(params: Any, x: Any) -> Any:
            for p in params.values():
                hidden = resolver.constrain(product(x, p["up"]), activation="hidden")
                x = resolver.constrain(x + product(hidden, p["down"]), activation="residual")
            return x

        return serve, (params, x)

    found, cost = written(spec, "pod", made)
    assert not any("route" in line or "None" in line for line in found.fields["program"])
    again = stated(text, "pod", found.fields)
    assert again.step is not None
    assert cost.step is not None
    assert again.step.flops == pytest.approx(cost.step.flops, rel=0.05)
