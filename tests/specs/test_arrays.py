"""The manifests of real models: every name and shape again from the figures of each config.

And the example specs over them, which have to compile without a finding.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardspec.arrays import read_manifest
from shardspec.diagnostics import SourceFile
from shardspec.ir.plan import Origin
from shardspec.pipeline import compile_plans, findings, load_path

FOLDER = Path(__file__).parents[2] / "specs" / "arrays"
NAMES = sorted(path.stem for path in FOLDER.glob("*.yaml"))
EXAMPLES = sorted((FOLDER.parent / "examples").glob("*.yaml"))
Shapes = dict[str, tuple[int, ...]]

# Parameters: the count that the model's page or its own training code prints. Arrays: entries of
# the checkpoint's index, without buffers. Bytes: `total_size` of the index, without buffers.
PUBLISHED = {
    "t5-1.1-xxl": (11_135_332_352, 558, None),
    "t5-1.0-11b": (11_307_321_344, 509, None),
    "llama-3-8b": (8_030_261_248, 291, 16_060_522_496),
    "llama-3-70b": (70_553_706_496, 723, 141_107_412_992),
    "mixtral-8x7b": (46_702_792_704, 995, 93_405_585_408),
    "mixtral-8x7b-scanned": (46_702_792_704, 13, None),
    "gemma-2-9b": (9_241_705_984, 464, 18_483_411_968),
    "gpt2": (124_439_808, 148, 548_090_880 - 12 * 1024 * 1024 * 4),
}
BITS = {"f32": 32, "bf16": 16}

# Axes that an example may declare for the sizes of others, for `scan` or for `step` alone.
FACTORS = {"heads", "kv_heads", "kv", "layers", "slot"}


def load(name: str) -> dict[str, Any]:
    data = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


def expand(path: str) -> Iterator[str]:
    braces = re.search(r"\{([^{}]*)\}", path)
    if braces is None:
        yield path
        return
    bounds = re.fullmatch(r"(\d+)\.\.(\d+)", braces[1])
    options = braces[1].split(",")
    if bounds:
        options = [str(number) for number in range(int(bounds[1]), int(bounds[2]) + 1)]
    for option in options:
        yield from expand(path[: braces.start()] + option + path[braces.end() :])


def listed(name: str) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    for path, kind in load(name)["arrays"].items():
        parsed = re.fullmatch(r"(\w+)\[([\d, ]+)\]", kind)
        assert parsed, kind
        shape = tuple(int(size) for size in parsed[2].split(","))
        for each in expand(path):
            yield each, parsed[1], shape


def shapes(name: str) -> Shapes:
    return {path: shape for path, _, shape in listed(name)}


def t5(*, embed: int, heads: int, kv: int, mlp: int, wi: tuple[str, ...], logits: bool) -> Shapes:
    found: Shapes = {"token_embedder/embedding": (32128, embed)}
    if logits:
        found["decoder/logits_dense/kernel"] = (embed, 32128)
    blocks = {"encoder": ["attention"], "decoder": ["self_attention", "encoder_decoder_attention"]}
    norms = {"encoder": ["attention"], "decoder": ["self_attention", "cross_attention"]}
    for side, attentions in blocks.items():
        found[f"{side}/relpos_bias/rel_embedding"] = (heads, 32)
        found[f"{side}/{side}_norm/scale"] = (embed,)
        for layer in range(24):
            at = f"{side}/layers_{layer}"
            for norm in (*norms[side], "mlp"):
                found[f"{at}/pre_{norm}_layer_norm/scale"] = (embed,)
            for attention in attentions:
                for each in ("query", "key", "value"):
                    found[f"{at}/{attention}/{each}/kernel"] = (embed, heads * kv)
                found[f"{at}/{attention}/out/kernel"] = (heads * kv, embed)
            for each in wi:
                found[f"{at}/mlp/{each}/kernel"] = (embed, mlp)
            found[f"{at}/mlp/wo/kernel"] = (mlp, embed)
    return found


def decoder(
    *,
    layers: int,
    vocab: int,
    hidden: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    mlp: int,
    experts: int = 0,
    norms: tuple[str, ...] = ("input", "post_attention"),
    tied: bool = False,
) -> Shapes:
    """Return what PyTorch code of this family holds; the arguments are those of config.json."""
    found: Shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    if not tied:
        found["lm_head.weight"] = (vocab, hidden)
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for norm in norms:
            found[f"{at}.{norm}_layernorm.weight"] = (hidden,)
        found[f"{at}.self_attn.q_proj.weight"] = (heads * head_dim, hidden)
        found[f"{at}.self_attn.k_proj.weight"] = (kv_heads * head_dim, hidden)
        found[f"{at}.self_attn.v_proj.weight"] = (kv_heads * head_dim, hidden)
        found[f"{at}.self_attn.o_proj.weight"] = (hidden, heads * head_dim)
        gates = {f"{at}.mlp": ("gate_proj", "up_proj", "down_proj")}
        if experts:
            found[f"{at}.block_sparse_moe.gate.weight"] = (experts, hidden)
            moe = f"{at}.block_sparse_moe.experts"
            gates = {f"{moe}.{expert}": ("w1", "w3", "w2") for expert in range(experts)}
        for block, (gate, up, down) in gates.items():
            found[f"{block}.{gate}.weight"] = found[f"{block}.{up}.weight"] = (mlp, hidden)
            found[f"{block}.{down}.weight"] = (hidden, mlp)
    return found


def gpt2(*, layers: int, vocab: int, positions: int, hidden: int) -> Shapes:
    found: Shapes = {"wte.weight": (vocab, hidden), "wpe.weight": (positions, hidden)}
    wide = {"attn.c_attn": (1, 3), "attn.c_proj": (1, 1), "mlp.c_fc": (1, 4), "mlp.c_proj": (4, 1)}
    blocks = [f"h.{layer}" for layer in range(layers)]
    for norm in ("ln_f", *(f"{block}.ln_{each}" for block in blocks for each in (1, 2))):
        found[f"{norm}.weight"] = found[f"{norm}.bias"] = (hidden,)
    for block in blocks:
        for name, (rows, columns) in wide.items():
            found[f"{block}.{name}.weight"] = (rows * hidden, columns * hidden)
            found[f"{block}.{name}.bias"] = (columns * hidden,)
    return found


def maxtext_mixtral() -> Shapes:
    at = "params/decoder/layers"
    return {
        "params/token_embedder/embedding": (32000, 4096),
        "params/decoder/decoder_norm/scale": (4096,),
        "params/decoder/logits_dense/kernel": (4096, 32000),
        f"{at}/pre_self_attention_layer_norm/scale": (4096, 32),
        f"{at}/post_self_attention_layer_norm/scale": (4096, 32),
        f"{at}/self_attention/query/kernel": (4096, 32, 32, 128),
        f"{at}/self_attention/key/kernel": (4096, 32, 8, 128),
        f"{at}/self_attention/value/kernel": (4096, 32, 8, 128),
        f"{at}/self_attention/out/kernel": (32, 32, 128, 4096),
        f"{at}/MoeBlock_0/gate/kernel": (4096, 32, 8),
        f"{at}/MoeBlock_0/wi_0": (8, 32, 4096, 14336),
        f"{at}/MoeBlock_0/wi_1": (8, 32, 4096, 14336),
        f"{at}/MoeBlock_0/wo": (8, 32, 14336, 4096),
    }


GATED = ("wi_0", "wi_1")
GEMMA_NORMS = ("input", "post_attention", "pre_feedforward", "post_feedforward")
FROM_CONFIG = {
    "t5-1.1-xxl": t5(embed=4096, heads=64, kv=64, mlp=10240, wi=GATED, logits=True),
    "t5-1.0-11b": t5(embed=1024, heads=128, kv=128, mlp=65536, wi=("wi",), logits=False),
    "llama-3-8b": decoder(
        layers=32, vocab=128256, hidden=4096, heads=32, kv_heads=8, head_dim=128, mlp=14336
    ),
    "llama-3-70b": decoder(
        layers=80, vocab=128256, hidden=8192, heads=64, kv_heads=8, head_dim=128, mlp=28672
    ),
    "mixtral-8x7b": decoder(
        layers=32,
        vocab=32000,
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        mlp=14336,
        experts=8,
    ),
    "mixtral-8x7b-scanned": maxtext_mixtral(),
    "gemma-2-9b": decoder(
        layers=42,
        vocab=256000,
        hidden=3584,
        heads=16,
        kv_heads=8,
        head_dim=256,
        mlp=14336,
        norms=GEMMA_NORMS,
        tied=True,
    ),
    "gpt2": gpt2(layers=12, vocab=50257, positions=1024, hidden=768),
}


def test_every_manifest_has_published_figures() -> None:
    assert set(PUBLISHED) == set(FROM_CONFIG) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_totals_are_the_published_ones(name: str) -> None:
    parameters, arrays, size = PUBLISHED[name]
    entries = list(listed(name))
    assert len(entries) == len({path for path, _, _ in entries}) == arrays
    assert sum(math.prod(shape) for _, _, shape in entries) == parameters
    assert load(name)["parameters"] == parameters
    if size is not None:
        assert sum(math.prod(s) * BITS[dtype] // 8 for _, dtype, s in entries) == size


@pytest.mark.parametrize("name", NAMES)
def test_names_and_shapes_follow_from_the_config(name: str) -> None:
    assert shapes(name) == FROM_CONFIG[name]


def test_scanned_mixtral_is_the_checkpoint_restacked() -> None:
    stacked, single = shapes("mixtral-8x7b-scanned"), shapes("mixtral-8x7b")
    up = single["model.layers.0.block_sparse_moe.experts.0.w1.weight"]
    assert stacked["params/decoder/layers/MoeBlock_0/wi_0"] == (8, 32, *reversed(up))


@pytest.mark.parametrize("name", NAMES)
def test_header_says_what_it_is_and_where_it_is_from(name: str) -> None:
    data = load(name)
    assert list(data) == ["shardspec-arrays", "doc", "source", "parameters", "arrays"]
    assert data["shardspec-arrays"] == 1
    assert "\n" not in data["doc"]
    assert 20 <= len(data["doc"]) <= 100
    assert data["source"]


@pytest.mark.parametrize("name", NAMES)
def test_compiler_reads_the_same_arrays_in_the_same_order(name: str) -> None:
    file = FOLDER / f"{name}.yaml"
    params, diagnostics = read_manifest(SourceFile(file.name, file.read_text(encoding="utf-8")))
    assert diagnostics == ()
    assert [(p.path, p.dtype, p.shape) for p in params] == list(listed(name))
    assert all(param.logical_axes is None for param in params)


def test_every_manifest_has_an_example() -> None:
    used = [yaml.safe_load(path.read_text(encoding="utf-8")).get("manifest") for path in EXAMPLES]
    assert {f"../arrays/{name}.yaml" for name in NAMES} <= set(used)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_compiles_on_every_target_without_a_finding(path: Path) -> None:
    spec, diagnostics = load_path(str(path))
    assert diagnostics == ()
    assert spec is not None
    assert spec.doc
    plans = compile_plans(spec)
    assert len(plans) >= 3
    assert findings(spec, plans).shown == ()
    for plan in plans:
        assert plan.target.hardware is not None
        assert plan.target.hardware.device_count == math.prod(plan.mesh.sizes.values())
        assert 1 not in plan.mesh.sizes.values()
        assert all(array.origin is not Origin.NONE for array in plan.arrays)
        assert all(dim.is_even for array in plan.arrays for dim in array.dims)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_declares_every_axis_in_use_and_has_a_rule_for_it(path: Path) -> None:
    spec, _ = load_path(str(path))
    assert spec is not None
    named = [rule.logical_axes for rule in (*spec.path_rules, *spec.activations)]
    named += [param.logical_axes or () for param in spec.params]
    used = {axis for axes in named for axis in axes if axis}
    declared = {axis.name: axis.size for axis in spec.logical_axes}
    assert used <= declared.keys()
    assert used <= {rule.logical_axis for rule in spec.axis_rules}
    assert [axis for axis in declared if axis not in used and axis not in FACTORS] == []


def test_stacked_llama_has_the_parameters_of_the_checkpoint() -> None:
    spec, _ = load_path(str(FOLDER.parent / "examples" / "llama-3-70b-pipeline.yaml"))
    assert spec is not None
    assert sum(param.element_count for param in spec.params) == PUBLISHED["llama-3-70b"][0]
