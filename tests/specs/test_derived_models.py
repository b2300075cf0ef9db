"""Adapters and quantized weights of real models lie as their weights, by the shapes of tools.

Sources of names and shapes: the comments of `specs/presets/derive`. Sizes of models:
`config.json` of Llama 3 8B, DeepSeek-V3 and gpt-oss-20b.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from shardspec import pipeline
from shardspec.ir.plan import ShardingPlan

#: An array: dtype, sizes, and for each dimension what it goes with, `out` or `in`; `-` is whole.
Array = tuple[str, tuple[int, ...], str]

LAYER = "model.layers.31"
#: The linear layers of Llama 3 8B, as [out, in].
LLAMA = {
    **{f"self_attn.{name}_proj": (4096, 4096) for name in "qo"},
    **{f"self_attn.{name}_proj": (1024, 4096) for name in "kv"},
    **{f"mlp.{name}_proj": (14336, 4096) for name in ("gate", "up")},
    "mlp.down_proj": (4096, 14336),
}


def gptq(out: int, into: int) -> dict[str, Array]:
    return {
        "qweight": ("s32", (into // 8, out), "in out"),
        "scales": ("f16", (into // 128, out), "in out"),
        "qzeros": ("s32", (into // 128, out // 8), "in out"),
        "g_idx": ("s32", (into,), "in"),
    }


def awq(out: int, into: int) -> dict[str, Array]:
    return {
        "qweight": ("s32", (into, out // 8), "in out"),
        "scales": ("f16", (into // 128, out), "in out"),
        "qzeros": ("s32", (into // 128, out // 8), "in out"),
    }


def packed(out: int, into: int) -> dict[str, Array]:
    """Return int4 of compressed-tensors, asymmetric, in groups of 128, ordered by activations."""
    return {
        "weight_packed": ("s32", (out, into // 8), "out in"),
        "weight_scale": ("bf16", (out, into // 128), "out in"),
        "weight_zero_point": ("s32", (out // 8, into // 128), "out in"),
        "weight_g_idx": ("s32", (into,), "in"),
        "weight_shape": ("s64", (2,), "-"),
    }


def channel(out: int, into: int) -> dict[str, Array]:
    return {
        "weight": ("f8_e4m3fn", (out, into), "out in"),
        "weight_scale": ("bf16", (out, 1), "out -"),
        "input_scale": ("bf16", (1,), "-"),
    }


def block(out: int, into: int) -> dict[str, Array]:
    return {
        "weight": ("f8_e4m3fn", (out, into), "out in"),
        "weight_scale": ("bf16", (out // 128, into // 128), "out in"),
    }


def inverse(out: int, into: int) -> dict[str, Array]:
    return {
        "weight": ("f8_e4m3fn", (out, into), "out in"),
        "weight_scale_inv": ("f32", (-(-out // 128), -(-into // 128)), "out in"),
    }


def nvfp4(out: int, into: int) -> dict[str, Array]:
    return {
        "weight_packed": ("u8", (out, into // 2), "out in"),
        "weight_scale": ("f8_e4m3fn", (out, into // 16), "out in"),
        "weight_global_scale": ("f32", (1,), "-"),
        "input_global_scale": ("f32", (1,), "-"),
    }


def modelopt(out: int, into: int) -> dict[str, Array]:
    return {
        "weight": ("u8", (out, into // 2), "out in"),
        "weight_scale": ("f8_e4m3fn", (out, into // 16), "out in"),
        "weight_scale_2": ("f32", (), ""),
        "input_scale": ("f32", (), ""),
    }


def nf4(out: int, into: int) -> dict[str, Array]:
    """Return 4 bits of bitsandbytes, the constants quantized as well: rows of one column."""
    blocks = out * into // 64
    return {
        "weight": ("u8", (out * into // 2, 1), "out -"),
        "weight.absmax": ("u8", (blocks,), "out"),
        "weight.nested_absmax": ("f32", (blocks // 256,), "out"),
        "weight.quant_map": ("f32", (16,), "-"),
        "weight.nested_quant_map": ("f32", (256,), "-"),
        "weight.quant_state.bitsandbytes__nf4": ("u8", (115,), "-"),
    }


def int8(out: int, into: int) -> dict[str, Array]:
    return {"weight": ("s8", (out, into), "out in"), "SCB": ("f32", (out,), "out")}


def lora(out: int, into: int) -> dict[str, Array]:
    """Return a linear layer of PEFT with DoRA while the adapter is on it, rank 16."""
    return {
        "base_layer.weight": ("bf16", (out, into), "out in"),
        "lora_A.default.weight": ("f32", (16, into), "- in"),
        "lora_B.default.weight": ("f32", (out, 16), "out -"),
        "lora_magnitude_vector.default.weight": ("f32", (out,), "out"),
    }


#: How each format is made, and what `params` say of its weights.
FORMATS = {
    **dict.fromkeys((packed, nvfp4), '"*.weight_packed": out in'),
    **dict.fromkeys((channel, block, inverse, modelopt, int8), '"*.weight": out in'),
    **dict.fromkeys((gptq, awq), '"*.qweight": in out'),
    nf4: '"*.weight": out _',
}
PLACES = {"out": "model", "in": "data", "-": None}


def plan_of(preset: str, arrays: dict[str, Array], named: str) -> ShardingPlan:
    """Return the plan of arrays, of which only weights have names, on 2 by 4 devices."""
    lines = [f'  "{path}": {dtype}{list(shape)}' for path, (dtype, shape, _) in arrays.items()]
    rules = [f"{name} -> {axis}" for name, axis in PLACES.items() if axis and f" {name}" in named]
    text = (
        f"extends: {preset}\nmesh: {{data: 2, model: 4}}\nrules: [{', '.join(rules)}]\n"
        f"params: {{{named}}}\narrays:\n" + "\n".join(lines)
    )
    spec, faults = pipeline.load_text(text)
    assert spec is not None
    assert faults == ()
    (plan,) = pipeline.compile_plans(spec)
    assert pipeline.findings(spec, (plan,)).shown == ()
    return plan


def as_parents(plan: ShardingPlan, arrays: dict[str, Array]) -> Iterator[str]:
    """Yield each array that lies otherwise than the dimensions of its weight that it goes with."""
    for path, (_, _, dims) in arrays.items():
        expected = tuple((axis,) if axis else () for axis in (PLACES[dim] for dim in dims.split()))
        if plan[path].partition_spec.dims != expected:
            yield f"{path}: {plan[path].partition_spec}"


@pytest.mark.parametrize(
    ("form", "named"), FORMATS.items(), ids=[form.__name__ for form in FORMATS]
)
def test_scales_of_llama_lie_as_its_weights(
    form: Callable[[int, int], dict[str, Array]], named: str
) -> None:
    arrays = {
        f"{LAYER}.{module}.{name}": array
        for module, (out, into) in LLAMA.items()
        for name, array in form(out, into).items()
    }
    assert [*as_parents(plan_of("derive/quantized", arrays, named), arrays)] == []


def test_experts_in_one_array_lie_as_their_blocks() -> None:
    """gpt-oss-20b: 32 experts, 2880 wide."""
    arrays: dict[str, Array] = {}
    for name, out in (("gate_up_proj", 5760), ("down_proj", 2880)):
        path = f"{LAYER}.mlp.experts.{name}"
        arrays[f"{path}_blocks"] = ("u8", (32, out, 90, 16), "- out in -")
        arrays[f"{path}_scales"] = ("u8", (32, out, 90), "- out in")
    named = '"*_blocks": _ out in _'
    assert [*as_parents(plan_of("derive/quantized", arrays, named), arrays)] == []


def test_a_last_block_may_be_less_than_whole() -> None:
    """`kv_a_proj_with_mqa` of DeepSeek-V3 is 576 out: four blocks of 128, and half of one."""
    arrays: dict[str, Array] = {}
    for name, shape in (("kv_a_proj_with_mqa", (576, 7168)), ("o_proj", (7168, 16384))):
        for suffix, array in inverse(*shape).items():
            arrays[f"{LAYER}.self_attn.{name}.{suffix}"] = array
    path = f"{LAYER}.self_attn.kv_a_proj_with_mqa"
    assert arrays[f"{path}.weight_scale_inv"][1] == (5, 56)
    for suffix in ("weight", "weight_scale_inv"):
        dtype, shape, _ = arrays[f"{path}.{suffix}"]
        arrays[f"{path}.{suffix}"] = (dtype, shape, "- in")
    named = '"*.kv_a_proj_with_mqa.weight": _ in, "*.o_proj.weight": out in'
    assert [*as_parents(plan_of("derive/quantized", arrays, named), arrays)] == []


@pytest.mark.parametrize("is_saved", [False, True])
def test_adapters_of_llama_lie_as_its_weights(is_saved: bool) -> None:
    """A saved adapter has no name in its paths, and the base model none of PEFT's."""
    arrays: dict[str, Array] = {}
    for module, (out, into) in LLAMA.items():
        for name, array in lora(out, into).items():
            path = f"base_model.model.{LAYER}.{module}.{name}"
            if is_saved:
                path = path.replace(".default.weight", "" if "magnitude" in name else ".weight")
                path = path.replace(".default", "")
            if is_saved and name.startswith("base"):
                path = f"{LAYER}.{module}.weight"
            arrays[path] = array
    head = "" if is_saved else "base_model.model."
    embed = f"{head}model.embed_tokens"
    default = "" if is_saved else ".default"
    arrays[f"{embed}{'' if is_saved else '.base_layer'}.weight"] = (
        "bf16",
        (128256, 4096),
        "out in",
    )
    adapter = "base_model.model.model.embed_tokens.lora_embedding"
    arrays[f"{adapter}_A{default}"] = ("f32", (16, 128256), "- out")
    arrays[f"{adapter}_B{default}"] = ("f32", (4096, 16), "in -")
    named = '"*{_proj,embed_tokens}{,.base_layer}.weight": out in'
    assert [*as_parents(plan_of("derive/peft", arrays, named), arrays)] == []
