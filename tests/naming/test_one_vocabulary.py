"""The steps of the library read what `init` names: one vocabulary."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from shardspec import pipeline
from shardspec.analysis.step_flow import flow_of
from shardspec.analysis.step_layout import unread
from shardspec.naming.roles import roles

#: A decoder: for each array its role, what stands before its name, its dimensions and its shape.
PARTS = {
    "tokens": ("", "vocab embed", "512, 64"),
    "query": ("layers/{0..3}/self_attn/", "embed joined", "64, 64"),
    "key": ("layers/{0..3}/self_attn/", "embed joined", "64, 64"),
    "value": ("layers/{0..3}/self_attn/", "embed joined", "64, 64"),
    "output of attention": ("layers/{0..3}/self_attn/", "joined embed", "64, 64"),
    "up": ("layers/{0..3}/mlp/", "embed mlp", "64, 256"),
    "down": ("layers/{0..3}/mlp/", "mlp embed", "256, 64"),
    "output": ("", "embed vocab", "64, 512"),
    "query, key and value": ("layers/{0..3}/self_attn/", "embed qkv", "64, 192"),
    "gate and up": ("layers/{0..3}/mlp/", "embed gate_up", "64, 512"),
}
USUAL = {
    "tokens": "embed_tokens", "query": "q_proj", "key": "k_proj", "value": "v_proj",
    "output of attention": "o_proj", "up": "up_proj", "down": "down_proj", "output": "lm_head",
}  # fmt: skip
HEAD = """\
shardspec: 1
axes:
  batch: 8
  length: 16
  embed: 64
  heads: 4
  kv_heads: 4
  kv: 16
  mlp: 256
  vocab: 512
  joined: {size: heads * kv, unit: kv}
  qkv: 192
  gate_up: 512
  expert: 8
  router: 8
  own: 32
  shared: 48
mesh: {data: 2}
rules: [batch -> data]
activations: {residual: batch length embed}
"""
#: Of other kinds of models, or with dimensions that no line of a decoder has.
OTHERS = re.compile(
    r"add_|to_add|_einsum|lin_dense|linear|proj_mlp|net/|vocab_proj|predictions|attn_qkv.|embed_\d"
    r"|head$|^fc$|^qq$|proj_out|in_proj_|vocab_embed|classifier|score|qa_|seq_|intermediate|output/|out/0|posembed|_in_proj|embedd\w+_"
    r"|^ffn$|(?:mlp|ffn?|forward)/|lm_head/decoder|projection|query/dense"
)


def spelt(tree: Any) -> Iterator[str]:
    """Yield texts that a regular expression of the table stands for, the plainest of each."""
    texts = [""]
    for kind, given in tree:
        name = str(kind)
        if name == "LITERAL":
            some = [chr(given)]
        elif name == "IN":
            first = given[0]
            some = [chr(o) for k, o in given if str(k) == "LITERAL"]
            some = some or ["0" if "DIGIT" in str(first[1]) else ""]
            if str(first[0]) == "RANGE":
                some = [chr(first[1][0])]
        elif name == "BRANCH":
            some = [text for each in given[1] for text in spelt(each)]
        elif name == "SUBPATTERN":
            some = list(spelt(given[-1]))
        elif name == "MAX_REPEAT":
            low, _, inner = given
            some = [*spelt(inner)] if low else ["", *spelt(inner)]
        else:
            some = [""]
        texts = [one + other for one, other in product(texts, some)]
    yield from dict.fromkeys(texts)


def names_of(what: str) -> list[str]:
    """Return what the table calls arrays of a kind in decoders."""
    row = {"key": "key and value", "value": "key and value"}.get(what, what)
    found = [
        name
        for role in roles()
        if role.what == row and "time_mix" not in role.under and "ffn|feed" not in role.under
        for name in spelt(re._parser.parse(role.ends))  # type: ignore[attr-defined]
    ]
    letter = {"key": "k", "value": "v"}.get(what)
    if letter is not None:
        found = [n for n in found if re.search(rf"(^|_){letter}(_|$)|^w{letter}$|{what}", n)]
    return [name for name in found if name and not OTHERS.search(name)]


CASES = [(what, name) for what in PARTS for name in names_of(what)]


def text_of(what: str, name: str, mark: str, leaf: str) -> str:
    names = {**USUAL, what: name}
    if what == "query, key and value":
        names = {k: v for k, v in names.items() if k not in ("query", "key", "value")}
    if what == "gate and up":
        del names["up"]
    params, arrays = [], []
    for part, own in names.items():
        front, dims, shape = PARTS[part]
        path = f"{front}{own}{mark}{leaf}".replace("/", mark)
        params.append(f'  "{path}": {dims}\n')
        arrays.append(f'  "{path}": f32[{shape}]\n')
    return f"{HEAD}params:\n{''.join(params)}arrays:\n{''.join(arrays)}step: {{extends: decoder}}\n"


@pytest.mark.parametrize("what", PARTS)
def test_the_decoder_reads_what_init_names(what: str) -> None:
    cases = [name for kind, name in CASES if kind == what]
    assert len(cases) > 2
    lost = {}
    for name, (mark, leaf) in product(cases, (("/", "kernel"), (".", "weight"))):
        spec, faults = pipeline.load_text(text_of(what, name, mark, leaf))
        assert spec is not None, faults
        (plan,) = pipeline.compile_plans(spec)
        flow = flow_of(spec, plan.arrays)
        left = unread(spec, flow, plan.arrays)
        if flow.faults or left.arrays or "flash" not in {op.kind for op in flow.ops}:
            lost[name, mark] = str(flow.faults[:1]) or left.told
    assert not lost


MIXED = """
params:
  model.embed_tokens.weight: vocab embed
  "*.{q,k,v}_proj.weight": joined embed
  "*.o_proj.weight": embed joined
  "*.mlp.{gate,up}_proj.weight": mlp embed
  "*.mlp.down_proj.weight": embed mlp
  "*.mlp.gate.weight": router embed
  "*.experts.{gate,up}_proj": expert own embed
  "*.experts.down_proj": expert embed own
  "*.shared_experts.{gate,up}_proj.weight": shared embed
  "*.shared_experts.down_proj.weight": embed shared
  lm_head.weight: vocab embed
arrays:
  model.embed_tokens.weight: f32[512, 64]
  "model.layers.{0..4}.self_attn.{q,k,v,o}_proj.weight": f32[64, 64]
  "model.layers.{0..1}.mlp.{gate,up}_proj.weight": f32[256, 64]
  "model.layers.{0..1}.mlp.down_proj.weight": f32[64, 256]
  "model.layers.{2..4}.mlp.gate.weight": f32[8, 64]
  "model.layers.{2..4}.mlp.experts.{gate,up}_proj": f32[8, 32, 64]
  "model.layers.{2..4}.mlp.experts.down_proj": f32[8, 64, 32]
  "model.layers.{2..4}.mlp.shared_experts.{gate,up}_proj.weight": f32[48, 64]
  "model.layers.{2..4}.mlp.shared_experts.down_proj.weight": f32[64, 48]
  lm_head.weight: f32[512, 64]
step: {extends: moe, experts: top 2 capacity 1}
"""


def test_dense_shared_and_expert_layers_stand_side_by_side() -> None:
    """As in DeepSeek: each kind with its own width, once for each of its layers."""
    spec, faults = pipeline.load_text(HEAD + MIXED)
    assert spec is not None, faults
    (plan,) = pipeline.compile_plans(spec)
    flow = flow_of(spec, plan.arrays)
    assert not flow.faults
    assert not unread(spec, flow, plan.arrays).arrays
    tokens, found = 8 * 16, 0
    for op in flow.ops:
        if op.weight is not None and "mlp" in op.weight.first.path and op.kind == "einsum":
            found += op.flops * op.count
    dense, experts, shared, router = 2 * 3 * 256, 3 * 2 * 3 * 32, 3 * 3 * 48, 3 * 8
    assert found == 2 * tokens * 64 * (dense + experts + shared + router)


@pytest.mark.parametrize(
    "router", ["router", "router/w", "router/kernel", "block_sparse_moe/gate", "gate/wg"]
)
def test_routers_that_init_names_route(router: str) -> None:
    text = f"""
params:
  blocks/*/{router}: embed router
  blocks/*/experts/up: expert embed own
  blocks/*/experts/down: expert own embed
  blocks/*/ffn/up: embed mlp
  blocks/*/ffn/down: mlp embed
arrays:
  blocks/1/{router}: f32[64, 8]
  blocks/1/experts/up: f32[8, 64, 32]
  blocks/1/experts/down: f32[8, 32, 64]
  blocks/0/ffn/up: f32[64, 256]
  blocks/0/ffn/down: f32[256, 64]
step: {{extends: moe, experts: top 2 capacity 1}}
"""
    spec, faults = pipeline.load_text(HEAD + text)
    assert spec is not None, faults
    (plan,) = pipeline.compile_plans(spec)
    flow = flow_of(spec, plan.arrays)
    assert not flow.faults
    assert not unread(spec, flow, plan.arrays).arrays


def test_experts_without_a_router_that_is_known_are_left_out() -> None:
    """A line of dense layers does not read them for want of one that is theirs."""
    text = """
params:
  experts/up: expert embed own
  blocks/ffn/up: embed mlp
  blocks/ffn/down: mlp embed
arrays:
  experts/up: f32[8, 64, 32]
  blocks/ffn/up: f32[64, 256]
  blocks/ffn/down: f32[256, 64]
step: {extends: moe, experts: top 2 capacity 1}
"""
    spec, faults = pipeline.load_text(HEAD + text)
    assert spec is not None, faults
    (plan,) = pipeline.compile_plans(spec)
    flow = flow_of(spec, plan.arrays)
    assert not flow.faults
    assert [each.path for each in unread(spec, flow, plan.arrays).arrays] == ["experts/up"]


def test_experts_with_arrays_of_their_own_are_not_taken_for_dense_layers() -> None:
    text = (HEAD + MIXED).replace("extends: moe, experts: top 2 capacity 1", "extends: decoder")
    for part, one in (("experts.{", "experts.{0..7}.{"), ("experts.down", "experts.{0..7}.down")):
        text = text.replace(f".mlp.{part}", f".mlp.{one}")
    text = text.replace("f32[8, 32, 64]", "f32[32, 64]").replace("f32[8, 64, 32]", "f32[64, 32]")
    text = text.replace('"*.experts.', '"*.experts.*.').replace("expert own", "own")
    text = text.replace("expert embed", "embed").replace(
        ".mlp.shared_experts.{0..7}", ".mlp.shared"
    )
    spec, faults = pipeline.load_text(text)
    assert spec is not None, faults
    (plan,) = pipeline.compile_plans(spec)
    flow = flow_of(spec, plan.arrays)
    assert any("experts.0" in each.path for each in plan.arrays)
    assert not any("experts.0" in path for path in flow.used)


def expert_flops(text: str) -> tuple[int, int]:
    """Return the FLOPs of experts, and of all, with no array unread."""
    spec, faults = pipeline.load_text(text)
    assert spec is not None, faults
    (plan,) = pipeline.compile_plans(spec)
    flow = flow_of(spec, plan.arrays)
    assert not flow.faults
    assert not unread(spec, flow, plan.arrays).arrays
    found = [(op.flops * op.count, op.weight) for op in flow.ops if op.kind == "einsum"]
    experts = sum(flops for flops, each in found if each and ".experts" in each.first.path)
    return experts, sum(flops for flops, _ in found)


def test_experts_apart_compute_what_stacked_ones_do() -> None:
    """Each expert multiplies its own tokens, whether it has arrays of its own or a slice."""
    text = (HEAD + MIXED).replace("  expert: 8\n", "")
    for part in ("{gate,up}_proj", "down_proj"):
        text = text.replace(f".experts.{part}", f".experts.{{0..7}}.{part}.weight")
    text = text.replace("f32[8, 32, 64]", "f32[32, 64]").replace("f32[8, 64, 32]", "f32[64, 32]")
    text = text.replace("expert own", "own").replace("expert embed", "embed")
    assert text.count("experts.{0..7}.") == 4
    assert expert_flops(text) == expert_flops(HEAD + MIXED)


LATENT = """
params:
  "*.q_a_proj.weight": q_lora embed
  "*.q_b_proj.weight": queries q_lora
  "*.q_proj.weight": queries embed
  "*.kv_a_proj_with_mqa.weight": kv_lora_rope embed
  "*.kv_b_proj.weight": keys_values kv_lora
  "*.o_proj.weight": embed joined_kv
arrays:
QUERY
  "model.layers.{0..2}.self_attn.kv_a_proj_with_mqa.weight": f32[28, 64]
  "model.layers.{0..2}.self_attn.kv_b_proj.weight": f32[128, 20]
  "model.layers.{0..2}.self_attn.o_proj.weight": f32[64, 64]
step: {extends: decoder}
"""
ONE = '  "model.layers.{0..2}.self_attn.q_proj.weight": f32[96, 64]'
TWO = """\
  "model.layers.{0..2}.self_attn.q_a_proj.weight": f32[24, 64]
  "model.layers.{0..2}.self_attn.q_b_proj.weight": f32[96, 24]"""


@pytest.mark.parametrize(("query", "products"), [(ONE, 96 * 64), (TWO, 24 * 64 + 96 * 24)])
@pytest.mark.parametrize("attention", ["flash", "einsum"])
def test_latent_attention_is_counted_exactly(query: str, products: int, attention: str) -> None:
    """As in DeepSeek: 4 heads of 24 for queries, 16 for values, 8 of a key by its position."""
    head = HEAD.replace(
        "  own: 32\n",
        "  q_lora: 24\n  kv_lora: 20\n  kv_lora_rope: 28\n  joined_kv: {size: 64, unit: 16}\n"
        "  queries: {size: 96, unit: 24}\n  keys_values: {size: 128, unit: 32}\n",
    )
    text = (head + LATENT).replace("QUERY", query)
    text = text.replace("{extends: decoder}", f"{{extends: decoder, attention: {attention}}}")
    spec, faults = pipeline.load_text(text)
    assert spec is not None, faults
    (plan,) = pipeline.compile_plans(spec)
    flow = flow_of(spec, plan.arrays)
    assert not flow.faults
    assert not unread(spec, flow, plan.arrays).arrays
    matrices = products + 28 * 64 + 128 * 20 + 64 * 64
    scores = 16 * (96 + 64)
    assert sum(op.flops * op.count for op in flow.ops) == 3 * 2 * 8 * 16 * (matrices + scores)
