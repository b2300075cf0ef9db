"""Names that are guessed: by path, by size, and by what other arrays say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.ir.spec import Param, Params
from shardspec.naming.guessing import Guesses, guess
from shardspec.naming.proposing import names_by_size
from tests.naming.odd_arrays import arrays


def named(**sizes: tuple[int, ...]) -> dict[str, str]:
    """Return the names of arrays by path; `__` stands for `.` and `_S_` for `/`."""
    params = tuple(
        Param(path.replace("_S_", "/").replace("__", "."), shape) for path, shape in sizes.items()
    )
    return by_path(guess(params))


def by_path(guesses: Guesses) -> dict[str, str]:
    return {
        param.path: "?" if each.names is None else " ".join(name or "_" for name in each.names)
        for each in guesses.arrays
        for param in each.params
    }


def test_torch_holds_outputs_first_and_flax_inputs() -> None:
    """The width is what the embedding and both sides of the block have in common."""
    torch = named(
        embed__weight=(1000, 64), mlp__up_proj__weight=(256, 64), mlp__down_proj__weight=(64, 256)
    )
    assert torch["mlp.up_proj.weight"] == "mlp embed"
    assert torch["mlp.down_proj.weight"] == "embed mlp"
    flax = named(
        embed_S_embedding=(1000, 64), mlp_S_wi_S_kernel=(64, 256), mlp_S_wo_S_kernel=(256, 64)
    )
    assert flax["mlp/wi/kernel"] == "embed mlp"
    assert flax["mlp/wo/kernel"] == "mlp embed"


def test_weights_of_conv1d_turn_square_ones_too() -> None:
    """GPT-2 stores `[in, out]` under `weight`: the sizes of others say so for a square one."""
    found = named(
        wte__weight=(1000, 64),
        h__0__attn__c_attn__weight=(64, 192),
        h__0__mlp__c_fc__weight=(64, 256),
        h__0__mlp__c_proj__weight=(256, 64),
        h__0__attn__c_proj__weight=(64, 64),
    )
    assert found["h.0.attn.c_proj.weight"] == "joined_kv embed"


@pytest.mark.parametrize(("size", "name"), [(64, "joined_kv"), (16, "joined_kv_heads")])
def test_as_many_heads_of_keys_as_of_queries_are_heads(size: int, name: str) -> None:
    found = named(
        norm__weight=(48,),
        attn__q_proj__weight=(64, 48),
        attn__k_proj__weight=(size, 48),
        attn__k_proj__bias=(size,),
        attn__o_proj__weight=(48, 64),
    )
    assert found["attn.k_proj.weight"] == f"{name} embed"
    assert found["attn.k_proj.bias"] == name


def test_stacked_layers_are_what_all_norms_have() -> None:
    at_one = named(
        decoder_S_layers_S_norm_S_scale=(64, 6),
        decoder_S_layers_S_mlp_S_wi_S_kernel=(64, 6, 256),
        decoder_S_layers_S_attn_S_query_S_kernel=(64, 6, 4, 16),
        decoder_S_layers_S_attn_S_query_S_bias=(4, 6, 16),
    )
    assert list(at_one.values()) == [
        "norm layers",
        "embed layers mlp",
        "embed layers heads kv",
        "heads layers kv",
    ]
    at_zero = named(
        layers_S_norm_S_scale=(6, 64),
        layers_S_up_S_kernel=(6, 64, 256),
        layers_S_up_S_bias=(6, 256),
    )
    assert list(at_zero.values()) == ["layers norm", "layers embed mlp", "layers mlp"]


def test_experts_stack_before_inputs_and_behind_layers() -> None:
    found = named(
        layers_S_norm_S_scale=(6, 64),
        layers_S_moe_S_experts_S_w1=(6, 8, 64, 256),
        layers_S_moe_S_experts_S_w2=(6, 8, 256, 64),
        layers_S_moe_S_router_S_kernel=(6, 64, 8),
    )
    assert found["layers/moe/experts/w1"] == "layers expert embed mlp"
    assert found["layers/moe/experts/w2"] == "layers expert mlp embed"
    assert found["layers/moe/router/kernel"] == "layers embed router"


def test_experts_are_known_by_their_number() -> None:
    """No path says `expert`: as many as the router tells apart are stacked."""
    found = named(
        layers__0__ffn_norm__weight=(2048,),
        layers__0__attention__wq__weight=(2048, 2048),
        layers__0__ffn__router__weight=(8, 2048),
        layers__0__ffn__w1=(8, 2048, 5632),
        layers__0__ffn__w2=(8, 5632, 2048),
        layers__0__ffn__shared__w1__weight=(5632, 2048),
        layers__0__ffn__unknown=(8, 5632),
        layers__1__ffn__router__weight=(8, 2048),
        layers__1__ffn__w1=(8, 11264, 2048),
        layers__1__ffn__w2=(8, 2048, 5632),
    )
    assert found["layers.0.ffn.w1"] == "expert embed mlp"
    assert found["layers.0.ffn.w2"] == "expert mlp embed"
    assert found["layers.0.ffn.router.weight"] == "router embed"
    assert found["layers.0.ffn.unknown"] == "?"
    assert found["layers.1.ffn.w1"] == "expert gate_up embed"


@pytest.mark.parametrize("count", [4, 64])
def test_a_gate_beside_so_many_separate_experts_is_a_router(count: int) -> None:
    experts = {f"mlp__experts__{at}__up_proj__weight": (64, 32) for at in range(count)}
    found = named(norm__weight=(32,), mlp__gate__weight=(64, 32), **experts)
    assert found["mlp.gate.weight"] == ("router embed" if count == 64 else "mlp embed")


#: What libraries call arrays: shape and names of one of each kind, by family.
FAMILIES: dict[str, dict[str, tuple[tuple[int, ...], str]]] = {
    # Names of transformers 5.24 (squeezebert, poolformer, detr, hifigan, swin, conditional_detr,
    # encodec, dac) and of diffusers 0.42 (Flux2Transformer2DModel); sizes made small.
    "convolutions of one place": {
        "layers.0.attention.query.weight": ((64, 16, 1), "joined_kv attention_embed _"),
        "layers.0.attention.query.bias": ((64,), "joined_kv"),
        "layers.0.output.layernorm.weight": ((64,), "norm"),
        "layers.0.output.conv1.weight": ((256, 64, 1, 1), "mlp embed _ _"),
        "layers.0.output.conv2.weight": ((64, 256, 1, 1), "embed mlp _ _"),
    },
    "convolutions that no row knows": {
        "layer1.0.branch.0.weight": ((256, 96, 1, 1), "embed layer1_channels _ _"),
        "resblocks.1.first.0.weight": ((256, 128, 3), "embed channels _"),
        "resblocks.1.first.0.bias": ((256,), "embed"),
    },
    "stages of other widths": {
        "stages.0.mlp.fc1.weight": ((384, 96), "mlp_384 embed_96"),
        "stages.0.mlp.fc2.bias": ((96,), "embed_96"),
        "stages.0.norm.weight": ((96,), "norm_96"),
        "stages.0.mlp.fc1.bias": ((384,), "mlp_384"),
        "stages.1.mlp.fc1.weight": ((1536, 384), "mlp embed"),
        "stages.1.norm.weight": ((384,), "norm"),
    },
    "detection": {
        "decoder.layers.0.norm1.weight": ((64,), "norm"),
        "decoder.layers.0.fc1.weight": ((256, 64), "mlp embed"),
        "decoder.layers.0.cross_attn.q_content_proj.weight": ((64, 64), "joined_kv embed"),
        "decoder.layers.0.cross_attn.sampling_offsets.weight": ((96, 64), "points embed"),
        "decoder.class_embed.weight": ((91, 64), "classes embed"),
        "decoder.query_embed.weight": ((100, 64), "entries embed"),
    },
    "recurrences and codes": {
        "encoder.lstm.weight_ih_l0": ((256, 64), "gates embed"),
        "encoder.lstm.bias_ih_l0": ((256,), "gates"),
        "encoder.norm.weight": ((64,), "norm"),
        "quantizer.layers.0.codebook.weight": ((1024, 8), "entries code"),
        "quantizer.layers.0.out_proj.weight": ((64, 8, 1), "embed code _"),
    },
    "fused blocks of diffusion": {
        "blocks.0.norm.weight": ((64,), "norm"),
        "blocks.0.attn.to_qkv_mlp_proj.weight": ((576, 64), "mlp_qkv embed"),
        "blocks.0.ff.linear_in.weight": ((384, 64), "gate_up embed"),
        "blocks.0.ff.linear_out.weight": ((64, 192), "embed mlp"),
        "modulation_img.linear.weight": ((320, 64), "modulation embed"),
    },
    "Llama as Meta stores it": {
        "tok_embeddings.weight": ((1000, 64), "vocab embed"),
        "layers.0.attention.wq.weight": ((96, 64), "joined_kv embed"),
        "layers.0.attention.wk.weight": ((16, 64), "joined_kv_heads embed"),
        "layers.0.attention.wo.weight": ((64, 96), "embed joined_kv"),
        "layers.0.feed_forward.w1.weight": ((256, 64), "mlp embed"),
        "layers.0.feed_forward.w2.weight": ((64, 256), "embed mlp"),
        "layers.0.attention_norm.weight": ((64,), "norm"),
        "output.weight": ((1000, 64), "vocab embed"),
    },
    "GPT-NeoX": {
        "gpt_neox.embed_in.weight": ((1000, 64), "vocab embed"),
        "gpt_neox.layers.0.attention.query_key_value.weight": ((192, 64), "joined_qkv embed"),
        "gpt_neox.layers.0.attention.dense.weight": ((64, 64), "embed joined_kv"),
        "gpt_neox.layers.0.mlp.dense_h_to_4h.weight": ((256, 64), "mlp embed"),
        "gpt_neox.layers.0.mlp.dense_4h_to_h.bias": ((64,), "embed"),
        "gpt_neox.final_layer_norm.bias": ((64,), "norm"),
        "embed_out.weight": ((1000, 64), "vocab embed"),
    },
    "T5 of transformers": {
        "shared.weight": ((1000, 64), "vocab embed"),
        "encoder.block.0.layer.0.SelfAttention.q.weight": ((96, 64), "joined_kv embed"),
        "encoder.block.0.layer.0.SelfAttention.o.weight": ((64, 96), "embed joined_kv"),
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": (
            (32, 12),
            "relpos_buckets heads",
        ),
        "encoder.block.0.layer.1.DenseReluDense.wi_0.weight": ((256, 64), "mlp embed"),
        "encoder.block.0.layer.1.DenseReluDense.wo.weight": ((64, 256), "embed mlp"),
        "encoder.final_layer_norm.weight": ((64,), "norm"),
    },
    "ViT of timm": {
        "cls_token": ((1, 1, 64), "_ _ embed"),
        "pos_embed": ((1, 197, 64), "_ abspos_buckets embed"),
        "patch_embed.proj.weight": ((64, 3, 16, 16), "embed channels _ _"),
        "blocks.0.attn.qkv.weight": ((192, 64), "joined_qkv embed"),
        "blocks.0.attn.proj.weight": ((64, 64), "embed joined_kv"),
        "blocks.0.mlp.fc1.weight": ((256, 64), "mlp embed"),
        "blocks.0.norm1.weight": ((64,), "norm"),
        "head.weight": ((10, 64), "classes embed"),
    },
    "Mamba": {
        "backbone.embeddings.weight": ((1000, 64), "vocab embed"),
        "backbone.layers.0.mixer.A_log": ((128, 16), "inner state"),
        "backbone.layers.0.mixer.D": ((128,), "inner"),
        "backbone.layers.0.mixer.conv1d.weight": ((128, 1, 4), "inner _ _"),
        "backbone.layers.0.mixer.in_proj.weight": ((256, 64), "inner_parts embed"),
        "backbone.layers.0.mixer.out_proj.weight": ((64, 128), "embed inner"),
        "backbone.layers.0.norm.weight": ((64,), "norm"),
    },
    "RWKV": {
        "rwkv.embeddings.weight": ((1000, 64), "vocab embed"),
        "rwkv.blocks.0.attention.time_mix_key": ((1, 1, 64), "_ _ embed"),
        "rwkv.blocks.0.attention.receptance.weight": ((64, 64), "joined_kv embed"),
        "rwkv.blocks.0.attention.output.weight": ((64, 64), "embed joined_kv"),
        "rwkv.blocks.0.feed_forward.key.weight": ((256, 64), "mlp embed"),
        "rwkv.blocks.0.feed_forward.value.weight": ((64, 256), "embed mlp"),
        "rwkv.ln_out.weight": ((64,), "norm"),
        "head.weight": ((1000, 64), "vocab embed"),
    },
    "Gemma of DeepMind, in NNX": {
        "embedder/input_embedding/value": ((1000, 64), "vocab embed"),
        "layers/0/attn/q_einsum/w/value": ((4, 64, 32), "heads embed kv"),
        "layers/0/attn/kv_einsum/w/value": ((2, 1, 64, 32), "_ kv_heads embed kv"),
        "layers/0/attn/attn_vec_einsum/w/value": ((4, 32, 64), "heads kv embed"),
        "layers/0/attn/_query_norm/scale/value": ((32,), "kv"),
        "layers/0/mlp/gate_proj/kernel/value": ((64, 256), "embed mlp"),
        "final_norm/scale/value": ((64,), "norm"),
    },
    "Qwen MoE with fused experts": {
        "model.embed_tokens.weight": ((1000, 64), "vocab embed"),
        "model.layers.0.mlp.gate.weight": ((16, 64), "router embed"),
        "model.layers.0.mlp.experts.gate_up_proj": ((16, 64, 96), "expert embed gate_up"),
        "model.layers.0.mlp.experts.down_proj": ((16, 48, 64), "expert mlp embed"),
        "model.layers.0.input_layernorm.weight": ((64,), "norm"),
    },
    "Flux, single blocks": {
        "x_embedder.weight": ((96, 64), "embed channels"),
        "single_transformer_blocks.0.norm.linear.weight": ((288, 96), "modulation embed"),
        "single_transformer_blocks.0.proj_mlp.weight": ((384, 96), "mlp embed"),
        "single_transformer_blocks.0.proj_out.weight": ((96, 480), "embed mlp_joined_kv"),
        "single_transformer_blocks.0.attn.to_q.weight": ((96, 96), "joined_kv embed"),
        "single_transformer_blocks.0.attn.norm_q.weight": ((24,), "kv"),
        "proj_out.weight": ((64, 96), "channels embed"),
    },
    # Names: llama.cpp, gguf-py/gguf/constants.py; shapes of a small Mixtral and DeepSeek, as GGUF's
    # reader has them.
    "GGUF": {
        "token_embd.weight": ((1000, 64), "vocab embed"),
        "blk.0.attn_norm.weight": ((64,), "norm"),
        "blk.0.attn_q.weight": ((96, 64), "joined_kv embed"),
        "blk.0.attn_k.weight": ((16, 64), "joined_kv_heads embed"),
        "blk.0.attn_output.weight": ((64, 96), "embed joined_kv"),
        "blk.0.attn_q_norm.weight": ((16,), "kv"),
        "blk.0.ffn_gate.weight": ((160, 64), "mlp_160 embed"),
        "blk.0.ffn_down.weight": ((64, 160), "embed mlp_160"),
        "blk.1.attn_kv_a_mqa.weight": ((24, 64), "kv_lora_rope embed"),
        "blk.1.attn_kv_b.weight": ((96, 24), "joined_kv kv_lora"),
        "blk.1.ffn_gate_inp.weight": ((40, 64), "router embed"),
        "blk.1.ffn_gate_exps.weight": ((40, 40, 64), "expert mlp embed"),
        "blk.1.ffn_up_exps.weight": ((40, 40, 64), "expert mlp embed"),
        "blk.1.ffn_down_exps.weight": ((40, 64, 40), "expert embed mlp"),
        "blk.1.ffn_down_shexp.weight": ((64, 80), "embed shared_expert_mlp"),
        "output_norm.weight": ((64,), "norm"),
        "output.weight": ((1000, 64), "vocab embed"),
    },
    # Names: NVIDIA-NeMo/Megatron-Bridge, qwen3_moe_bridge.py; a dense layer has gate and up in
    # `linear_fc1`, experts of Transformer Engine have a number behind the leaf.
    "Megatron-Core": {
        "embedding.word_embeddings.weight": ((1000, 64), "vocab embed"),
        "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight": ((64,), "norm"),
        "decoder.layers.0.self_attention.linear_qkv.weight": ((128, 64), "joined_qkv embed"),
        "decoder.layers.0.self_attention.linear_proj.weight": ((64, 96), "embed joined_kv"),
        "decoder.layers.0.mlp.linear_fc1.layer_norm_weight": ((64,), "norm"),
        "decoder.layers.0.mlp.linear_fc1.weight": ((320, 64), "gate_up embed"),
        "decoder.layers.0.mlp.linear_fc2.weight": ((64, 160), "embed mlp"),
        "decoder.layers.1.pre_mlp_layernorm.weight": ((64,), "norm"),
        "decoder.layers.1.mlp.router.weight": ((2, 64), "router embed"),
        "decoder.layers.1.mlp.experts.linear_fc1.weight0": ((96, 64), "experts_gate_up embed"),
        "decoder.layers.1.mlp.experts.linear_fc1.weight1": ((96, 64), "experts_gate_up embed"),
        "decoder.layers.1.mlp.experts.linear_fc2.weight0": ((64, 48), "embed experts_mlp"),
        "decoder.layers.1.mlp.experts.linear_fc2.weight1": ((64, 48), "embed experts_mlp"),
        "output_layer.weight": ((1000, 64), "vocab embed"),
    },
    # Names: keras-hub 0.32, `weight.path` of MixtralBackbone, GemmaBackbone, BertBackbone.
    "KerasHub": {
        "token_embedding/embeddings": ((1000, 64), "vocab embed"),
        "token_embedding/reverse_embeddings": ((64, 1000), "embed vocab"),
        "transformer_layer_0/self_attention/query/kernel": ((64, 4, 24), "embed heads kv"),
        "transformer_layer_0/self_attention/attention_output/kernel": (
            (4, 24, 64),
            "heads kv embed",
        ),
        "transformer_layer_0/self_attention_layernorm/scale": ((64,), "norm"),
        "transformer_layer_0/feedforward_gate_dense/kernel": ((64, 160), "embed mlp"),
        "transformer_layer_0/feedforward_intermediate_dense/kernel": ((64, 160), "embed mlp"),
        "transformer_layer_0/feedforward_output_dense/kernel": ((160, 64), "mlp embed"),
        "transformer_layer_0/feedforward_layernorm/scale": ((64,), "norm"),
    },
    "KerasHub Gemma": {
        "token_embedding/embeddings": ((1000, 64), "vocab embed"),
        "decoder_block_0/pre_attention_norm/scale": ((64,), "norm"),
        "decoder_block_0/attention/query/kernel": ((4, 64, 32), "heads embed kv"),
        "decoder_block_0/attention/attention_output/kernel": ((4, 32, 64), "heads kv embed"),
        "decoder_block_0/ffw_gating/kernel": ((64, 256), "embed mlp"),
        "decoder_block_0/ffw_gating_2/kernel": ((64, 256), "embed mlp"),
        "decoder_block_0/ffw_linear/kernel": ((256, 64), "mlp embed"),
    },
    # OLMo 2 has norms of all heads at once; one head of keys is as wide as one of queries.
    "OLMo 2": {
        "model.embed_tokens.weight": ((1000, 64), "vocab embed"),
        "model.norm.weight": ((64,), "norm"),
        "model.layers.0.self_attn.q_proj.weight": ((96, 64), "joined_kv embed"),
        "model.layers.0.self_attn.k_proj.weight": ((96, 64), "joined_kv embed"),
        "model.layers.0.self_attn.q_norm.weight": ((96,), "joined_kv"),
        "model.layers.0.self_attn.k_norm.weight": ((96,), "joined_kv"),
    },
    # Sizes of the defaults of transformers 5.24, config classes of the same names.
    "ModernBERT: gate and up in one matrix": {
        "model.embeddings.tok_embeddings.weight": ((50368, 768), "vocab embed"),
        "model.layers.0.attn.Wqkv.weight": ((2304, 768), "joined_qkv embed"),
        "model.layers.0.attn.Wo.weight": ((768, 768), "embed joined_kv"),
        "model.layers.0.mlp.Wi.weight": ((2304, 768), "gate_up embed"),
        "model.layers.0.mlp.Wo.weight": ((768, 1152), "embed mlp"),
        "model.layers.0.mlp_norm.weight": ((768,), "norm"),
    },
    "Qwen3-Next: as many experts as they are wide": {
        "model.embed_tokens.weight": ((151936, 2048), "vocab embed"),
        "model.layers.0.mlp.gate.weight": ((512, 2048), "router embed"),
        "model.layers.0.mlp.experts.gate_up_proj": ((512, 1024, 2048), "expert gate_up embed"),
        "model.layers.0.mlp.experts.down_proj": ((512, 2048, 512), "expert embed mlp"),
        "model.layers.0.mlp.shared_expert.up_proj.weight": ((512, 2048), "mlp embed"),
        "model.layers.0.linear_attn.in_proj_qkvz.weight": ((12288, 2048), "inner_parts embed"),
        "model.layers.0.input_layernorm.weight": ((2048,), "norm"),
    },
    "Kosmos-2: a norm inside the feed-forward block": {
        "text_model.model.embed_tokens.weight": ((65037, 2048), "vocab embed"),
        "text_model.model.layers.0.self_attn.q_proj.weight": ((2048, 2048), "joined_kv embed"),
        "text_model.model.layers.0.self_attn_layer_norm.weight": ((2048,), "self_attn_norm"),
        "text_model.model.layers.0.ffn.fc1.weight": ((8192, 2048), "mlp embed"),
        "text_model.model.layers.0.ffn.fc2.weight": ((2048, 8192), "embed mlp"),
        "text_model.model.layers.0.ffn.ffn_layernorm.weight": ((8192,), "norm"),
    },
    "BERT by hand": {
        "word_embeddings/embedding": ((30592, 1024), "vocab embed"),
        "type_embeddings/embedding": ((2, 1024), "segments embed"),
        "layer_0/attention/query/kernel": ((1024, 16, 64), "embed heads kv"),
        "layer_0/attention/out/kernel": ((16, 64, 1024), "heads kv embed"),
        "layer_0/intermediate/kernel": ((1024, 4096), "embed mlp"),
        "layer_0/intermediate/bias": ((4096,), "mlp"),
        "layer_0/output/kernel": ((4096, 1024), "mlp embed"),
        "layer_0/output_norm/scale": ((1024,), "norm"),
        "nsp/kernel": ((1024, 2), "embed classes"),
    },
    "short names, as people write them": {
        "tok/embedding": ((50304, 2048), "vocab embed"),
        "blocks/0/n1/scale": ((2048,), "norm"),
        "blocks/0/n2/scale": ((2048,), "norm"),
        "blocks/0/attn/wq/kernel": ((2048, 2048), "embed joined_kv"),
        "blocks/0/attn/wk/kernel": ((2048, 512), "embed joined_kv_heads"),
        "blocks/0/attn/wo/kernel": ((2048, 2048), "joined_kv embed"),
        "blocks/0/w1/kernel": ((2048, 5632), "embed mlp"),
        "blocks/0/w2/kernel": ((5632, 2048), "mlp embed"),
        "norm/scale": ((2048,), "norm"),
        "head/kernel": ((2048, 50304), "embed vocab"),
    },
    "Haiku": {
        "transformer/embed/embeddings": ((1000, 64), "vocab embed"),
        "transformer/layer_0/attn/query/w": ((64, 64), "embed joined_kv"),
        "transformer/layer_0/attn/linear/w": ((64, 64), "joined_kv embed"),
        "transformer/layer_0/mlp/linear/w": ((64, 256), "embed mlp"),
        "transformer/layer_0/mlp/linear_1/w": ((256, 64), "mlp embed"),
        "transformer/layer_0/layer_norm/offset": ((64,), "norm"),
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_what_libraries_call_arrays(family: str) -> None:
    arrays = FAMILIES[family]
    found = guess(tuple(Param(path, shape) for path, (shape, _) in arrays.items()))
    assert by_path(found) == {path: names for path, (_, names) in arrays.items()}


def test_towers_of_two_widths_have_two_axes() -> None:
    guesses = guess(
        (
            Param("vision_model/up/kernel", (96, 384)),
            Param("vision_model/down/kernel", (384, 96)),
            Param("vision_model/norm/scale", (96,)),
            Param("text_model/up/kernel", (64, 256)),
            Param("text_model/down/kernel", (256, 64)),
            Param("text_model/norm/scale", (64,)),
        )
    )
    assert by_path(guesses)["vision_model/up/kernel"] == "embed mlp"
    assert by_path(guesses)["text_model/up/kernel"] == "text_embed text_mlp"
    assert {axis.name: axis.size for axis in guesses.axes}["text_embed"] == 64
    assert {axis.name: axis.kind for axis in guesses.axes}["text_embed"] == "embed"


def test_one_axis_twice_is_marked() -> None:
    found = named(norm__weight=(64,), pooler__dense__weight=(64, 64))
    assert found["pooler.dense.weight"] == "embed embed'"


def test_what_no_row_knows_goes_by_size_where_one_axis_fits() -> None:
    sizes = {"norm__weight": (64,), "up__weight": (256, 64), "down__weight": (64, 256)}
    found = named(**sizes, odd__thing=(256, 3), other__thing=(77, 256), vector=(64,))
    assert found["odd.thing"] == "mlp _"
    assert found["vector"] == "norm"


def test_a_dimension_that_is_unknown_beside_one_that_is_known_is_named_by_its_size() -> None:
    sizes = {"norm__weight": (64,), "up__weight": (256, 64), "down__weight": (64, 256)}
    found = named(**sizes, other__thing=(77, 256), odd__thing=(99, 77), both__thing=(77, 99, 256))
    assert found["other.thing"] == "dim_77 mlp"
    assert found["both.thing"] == "dim_77 dim_99 mlp"
    assert found["odd.thing"] == "?", "nothing of it is known"


def test_a_dimension_that_two_names_fit_is_unknown_beside_one_that_is_known() -> None:
    sizes = {"norm__weight": (64,), "mlp__up__weight": (256, 64), "mlp__down__weight": (64, 256)}
    found = named(**sizes, embedding__weight=(256, 64), odd__thing=(256, 64))
    assert found["odd.thing"] == "dim_256 embed", "256 is mlp or vocab"


def test_a_size_of_two_axes_is_a_question() -> None:
    assert names_by_size((64, 256), {64: ["embed", "joined_kv"], 256: ["mlp"]}) is None
    assert names_by_size((256, 256), {256: ["mlp"]}) is None


def test_names_of_arrays_stay() -> None:
    own = Param("a/kernel", (64, 32), "f32", ("embed", None))
    (found,) = guess((own, Param("scalar", ()))).arrays
    assert found.names == ("embed", None)
    assert found.is_own


def test_names_of_arrays_may_have_several_sizes() -> None:
    guesses = guess(
        (
            Param("a/kernel", (64,), "f32", ("embed",)),
            Param("b/kernel", (32,), "f32", ("embed",)),
            Param("c/wi/kernel", (64, 128)),
        )
    )
    assert by_path(guesses)["c/wi/kernel"] == "embed mlp"
    assert [(axis.name, axis.has_one_size) for axis in guesses.axes] == [
        ("embed", False),
        ("mlp", True),
    ]


@given(arrays)
def test_every_array_fits_its_names(params: Params) -> None:
    """Invariants `all`, `fit` and `one_size`."""
    guesses = guess(params)
    told = [param.path for each in guesses.arrays for param in each.params]
    assert sorted(told) == sorted(param.path for param in params if param.rank)
    sizes = {axis.name: axis.size for axis in guesses.axes if axis.has_one_size}
    assert len({axis.name for axis in guesses.axes}) == len(guesses.axes)
    for each in guesses.arrays:
        names = [name for name in each.names or () if name is not None]
        for param in each.params:
            assert each.names is None or len(each.names) == param.rank
        if not each.is_own:
            assert len(set(names)) == len(names)
            shown = zip(each.names or (), each.params[0].shape, strict=False)
            for name, size in shown:
                assert name is None or sizes.get(name.rstrip("'"), size) == size


@given(st.permutations(range(6)))
def test_order_of_arrays_changes_no_name(order: list[int]) -> None:
    params = (
        Param("embed/embedding", (1000, 64)),
        Param("layers_0/attn/query/kernel", (64, 64)),
        Param("layers_0/attn/key/kernel", (64, 16)),
        Param("layers_0/mlp/wi/kernel", (64, 256)),
        Param("layers_0/mlp/wo/kernel", (256, 64)),
        Param("layers_0/norm/scale", (64,)),
    )
    mixed = tuple(params[at] for at in order)
    assert by_path(guess(mixed)) == by_path(guess(params))


def test_biases_tell_how_matrices_are_stored() -> None:
    """LightGlue: wide norms in each block, and the maps of attention are square."""
    found = named(
        layers__0__mlp__norm__weight=(128,),
        layers__0__attention__q_proj__weight=(64, 64),
        layers__0__attention__o_proj__weight=(64, 64),
        layers__0__mlp__fc2__weight=(64, 128),
        layers__0__mlp__fc2__bias=(64,),
    )
    assert found["layers.0.attention.q_proj.weight"].startswith("joined_kv embed")
    assert found["layers.0.attention.o_proj.weight"].startswith("embed")


def test_a_map_between_widths_that_no_row_knows_is_by_size() -> None:
    arrays = {
        "vision.norm.weight": (96,),
        "vision.up.weight": (384, 96),
        "text.norm.weight": (64,),
        "text.up.weight": (256, 64),
        "text.odd_proj.weight": (64, 96),
        "text.other_proj.weight": (777, 64),
    }
    guesses = guess(tuple(Param(path, shape) for path, shape in arrays.items()))
    found = {each.params[0].path: each for each in guesses.arrays}
    assert by_path(guesses)["text.odd_proj.weight"] == "embed_64 embed"
    assert found["text.odd_proj.weight"].what == ""
    assert found["text.other_proj.weight"].names == ("dim_777", "embed_64")


def test_a_gate_without_experts_is_no_router() -> None:
    found = named(norm__weight=(64,), gateway__gate__weight=(96, 64), up__weight=(256, 64))
    assert found["gateway.gate.weight"] == "dim_96 embed"


@pytest.mark.parametrize("layers", [(), (6,)])
@pytest.mark.parametrize("leaf", ["", "_S_kernel"])
def test_a_gate_of_the_sizes_of_the_matrices_beside_it_is_no_router(
    layers: tuple[int, ...], leaf: str
) -> None:
    found = named(
        **{
            "blocks_S_0_S_norm": (*layers, 64),
            f"blocks_S_0_S_mlp_S_gate{leaf}": (*layers, 64, 192),
            f"blocks_S_0_S_mlp_S_up{leaf}": (*layers, 64, 192),
            f"blocks_S_0_S_mlp_S_down{leaf}": (*layers, 192, 64),
        }
    )
    assert [name.removeprefix("layers ") for name in found.values()] == [
        *("norm", "embed mlp", "embed mlp", "mlp embed")
    ]


def test_a_gate_that_tells_stacked_experts_apart_is_a_router() -> None:
    found = named(norm=(64,), mlp_S_gate=(64, 8), mlp_S_w1=(8, 64, 192), mlp_S_w2=(8, 192, 64))
    assert found["mlp/gate"] == "embed router"
    assert found["mlp/w1"] == "expert embed mlp"


def test_a_value_beside_keys_is_one_and_alone_it_is_what_is_in_a_box() -> None:
    found = named(
        blocks_S_norm=(4, 64),
        blocks_S_attention_S_norm=(4, 64),
        blocks_S_attention_S_query=(4, 64, 8, 16),
        blocks_S_attention_S_key=(4, 64, 8, 16),
        blocks_S_attention_S_value=(4, 64, 8, 16),
        mlp_S_up_S_kernel_S_value=(64, 256),
        mlp_S_down_S_kernel_S_value=(256, 64),
    )
    assert found["blocks/attention/value"] == "layers embed heads kv"
    assert found["mlp/up/kernel/value"] == "embed mlp"


def test_layers_of_a_projection_that_no_row_knows_are_no_experts() -> None:
    """Two towers of stacked layers: `proj` may be anything, and is stacked as what is beside it."""
    shapes = {
        "qkv/weight": (12, 4608, 1536),
        "q_norm/weight": (12, 64),
        "proj/weight": (12, 1536, 1536),
        "proj/bias": (12, 1536),
        "up/weight": (12, 6144, 1536),
        "down/weight": (12, 1536, 6144),
    }
    every = [(f"blocks/{side}/{end}", shapes[end]) for side in ("image", "text") for end in shapes]
    every += [("time_in/fc1/weight", (1536, 256)), ("time_in/fc2/weight", (1536, 1536))]
    found = by_path(guess(tuple(Param(path, shape) for path, shape in every)))
    for side in ("image", "text"):
        assert found[f"blocks/{side}/proj/weight"].startswith("layers ")
        assert found[f"blocks/{side}/proj/bias"] == "layers embed"


def test_what_is_beside_an_output_says_whether_it_is_of_attention() -> None:
    """Decoders in plain pytrees keep attention and MLP in one flat layer."""
    llama = {
        "wq": (512, 512),
        "wk": (512, 128),
        "wv": (512, 128),
        "wo": (512, 512),
        "w1": (512, 1536),
        "w2": (1536, 512),
    }
    t5 = {"wq": (512, 512), "wi": (512, 2048), "wo": (2048, 512)}
    alone = {"wi": (512, 2048), "wo": (2048, 512)}
    expected = {"llama": ("joined_kv", "embed"), "t5": ("mlp", "embed"), "alone": ("mlp", "embed")}
    for name, shapes in {"llama": llama, "t5": t5, "alone": alone}.items():
        params = [Param(f"layers/{at}/{key}", shapes[key]) for at in range(2) for key in shapes]
        found = guess((*params, Param("embedding", (32000, 512))))
        names = {each.params[0].path: each.names for each in found.arrays}
        assert names["layers/0/wo"] == expected[name]
        assert names["embedding"] == ("vocab", "embed")


def test_convolutions_of_state_space_blocks_may_have_their_window_first() -> None:
    shapes = {
        "in_proj": (4, 512, 2176),
        "conv_weight": (4, 4, 1152),
        "conv_bias": (4, 1152),
        "norm/weight": (4, 1024),
        "out_proj": (4, 1024, 512),
    }
    params = [Param(f"blocks/mixer/{name}", shape) for name, shape in shapes.items()]
    params.append(Param("blocks/norm/weight", (4, 512)))
    names = {e.params[0].path: e.names for e in guess(tuple(params)).arrays}
    assert names["blocks/mixer/conv_weight"] == ("layers", None, "inner_conv")
    assert names["blocks/mixer/conv_bias"] == ("layers", "inner_conv")


def test_unknown_convolutions_of_flax_and_biases_by_size_are_named_as_their_weights() -> None:
    shapes = {
        "grid/kernel": (14, 14, 3, 1152),
        "grid/bias": (1152,),
        "blocks/0/attn/q/kernel": (1152, 1152),
        "blocks/0/mlp/fc1/kernel": (1152, 4608),
        "blocks/0/mlp/fc2/kernel": (4608, 1152),
        "blocks/0/ln/scale": (1152,),
        "state/bias": (1152,),
        "state/kernel": (48, 1152),
    }
    found = guess(tuple(Param(*each) for each in shapes.items())).arrays
    names = {each.params[0].path: each.names for each in found}
    assert names["grid/kernel"] == (None, None, "channels", "embed")
    assert names["grid/bias"] == ("embed",)
    assert names["state/kernel"] == ("dim_48", "embed")
    assert names["state/bias"] == ("embed",)


def test_the_linear_map_beside_a_fused_gate_is_the_way_down() -> None:
    shapes = {"gating_einsum": (2, 512, 2048), "linear": (2048, 512)}
    params = [Param(f"layer_{at}/mlp/{key}", shapes[key]) for at in range(2) for key in shapes]
    params += [Param(f"layer_{at}/norm/scale", (512,)) for at in range(2)]
    (down,) = [e for e in guess(tuple(params)).arrays if e.params[0].path.endswith("linear")]
    assert (down.names, down.what) == (("mlp", "embed"), "down")


def test_a_gate_beside_a_router_is_a_gate() -> None:
    found = named(
        norm_S_scale=(64,),
        moe_S_router=(64, 8),
        moe_S_gate=(8, 64, 96),
        moe_S_up=(8, 64, 96),
        moe_S_down=(8, 96, 64),
    )
    assert found["moe/gate"] == found["moe/up"] == "expert embed mlp"
    assert found["moe/router"] == "embed router"


def test_keys_and_values_of_one_array_are_as_those_of_two() -> None:
    found = named(norm_S_scale=(64,), attention_S_wq=(64, 8, 16), attention_S_wkv=(2, 64, 4, 16))
    assert found["attention/wkv"] == "_ embed kv_heads kv"


def test_the_output_of_latent_attention_is_one() -> None:
    found = named(
        layers_S_n1=(4, 64),
        layers_S_wq_a=(4, 64, 24),
        layers_S_wq_b=(4, 24, 8, 12),
        layers_S_wkv_a=(4, 64, 20),
        layers_S_wk_b=(4, 16, 8, 8),
        layers_S_wo=(4, 8, 8, 64),
        layers_S_up=(4, 64, 256),
        layers_S_down=(4, 256, 64),
    )
    assert found["layers/wo"].startswith("layers heads kv")
    assert found["layers/wo"].endswith(" embed")


def test_halves_of_a_low_rank_pair_are_named_as_their_weight() -> None:
    """Whatever they are called: their shapes say it, beside that of the weight."""
    found = named(
        table=(1000, 64),
        blocks_S_norm=(4, 64),
        blocks_S_up_S_weight=(4, 256, 64),
        blocks_S_up_S_a=(4, 8, 64),
        blocks_S_up_S_b=(4, 256, 8),
        blocks_S_down_S_weight=(4, 64, 256),
        blocks_S_down_S_a=(4, 8, 256),
        blocks_S_down_S_b=(4, 64, 8),
    )
    assert found["table"] == "vocab embed"
    assert found["blocks/up/weight"] == "layers mlp embed"
    assert found["blocks/up/a"] == "layers low_rank embed"
    assert found["blocks/up/b"] == "layers mlp low_rank"
    assert found["blocks/down/a"] == "layers low_rank mlp"
    assert found["blocks/down/b"] == "layers embed low_rank"


def test_a_recurrent_model_of_haiku_has_its_vocabulary_at_both_ends() -> None:
    found = named(
        embed_S_embeddings=(1000, 64),
        lstm_S_linear_S_w=(192, 512),
        lstm_S_linear_S_b=(512,),
        linear_S_w=(128, 1000),
        linear_S_b=(1000,),
    )
    assert found["embed/embeddings"] == "vocab embed"
    assert found["lstm/linear/w"] == "gates_in gates"
    assert found["lstm/linear/b"] == "gates"
    assert found["linear/w"].endswith(" vocab")


def test_layers_are_stacked_where_no_norm_says_it() -> None:
    """A diffusion transformer has norms without scales: all arrays of a block begin with six."""
    found = named(
        patch=(16, 128),
        blocks_S_qkv=(6, 128, 384),
        blocks_S_proj=(6, 128, 128),
        blocks_S_mlp_S_w1=(6, 128, 512),
        blocks_S_mlp_S_b1=(6, 512),
        blocks_S_mlp_S_w2=(6, 512, 128),
        blocks_S_mlp_S_b2=(6, 128),
    )
    assert found["blocks/qkv"] == "layers embed joined_qkv"
    assert found["blocks/mlp/w1"] == "layers embed mlp"
    assert found["blocks/mlp/w2"] == "layers mlp embed"
    assert found["blocks/mlp/b1"] == "layers mlp"


def captioner() -> dict[str, tuple[int, ...]]:
    """Return a decoder of stacked layers that reads a vision tower of another width."""
    block = {
        "self_attn_S_wq": (16, 1536, 12, 128),
        "self_attn_S_wk": (16, 1536, 4, 128),
        "self_attn_S_wv": (16, 1536, 4, 128),
        "self_attn_S_wo": (16, 12, 128, 1536),
        "cross_attn_S_wq": (16, 1536, 12, 128),
        "cross_attn_S_wk": (16, 1024, 4, 128),
        "cross_attn_S_wv": (16, 1024, 4, 128),
        "cross_attn_S_wo": (16, 12, 128, 1536),
        "self_norm_S_scale": (16, 1536),
        "cross_norm_S_scale": (16, 1536),
        "gate_S_kernel": (16, 1536, 6144),
        "sink_S_kernel": (16, 6144, 1536),
    }
    tower = {
        "ln1_S_scale": (1024,),
        "attn_S_qkv_S_kernel": (1024, 3072),
        "attn_S_proj_S_kernel": (1024, 1024),
        "up_S_kernel": (1024, 4096),
        "down_S_kernel": (4096, 1024),
    }
    return {
        **{f"layers_S_{path}": shape for path, shape in block.items()},
        **{f"vision_S_blocks_S_{n}_S_{path}": tower[path] for n in range(24) for path in tower},
        "final_norm_S_scale": (1536,),
        "words_S_embedding": (50257, 1536),
        "positions_S_embedding": (300, 1536),
    }


def test_keys_of_cross_attention_read_the_width_of_the_other_tower() -> None:
    """All arrays of attention have the width of a head, which is not that of the model."""
    found = named(**captioner())
    for each in ("wk", "wv"):
        assert found[f"layers/cross_attn/{each}"] == "layers vision_embed kv_heads kv"
        assert found[f"layers/self_attn/{each}"] == "layers embed kv_heads kv"


@pytest.mark.parametrize(
    ("shape", "names"),
    [((512, 1024), "joined_kv_heads vision_embed"), ((1024, 512), "vision_embed joined_kv_heads")],
)
def test_the_width_of_the_other_tower_tells_how_a_matrix_is_stored(
    shape: tuple[int, int], names: str
) -> None:
    found = named(
        decoder__0__norm__weight=(1536,),
        decoder__0__cross_attn__q_proj__weight=(1536, 1536),
        decoder__0__cross_attn__k_proj__weight=shape,
        decoder__0__cross_attn__v_proj__weight=shape,
        decoder__0__mlp__up_proj__weight=(6144, 1536),
        vision__norm__weight=(1024,),
        vision__mlp__up_proj__weight=(4096, 1024),
    )
    assert found["decoder.0.cross_attn.k_proj.weight"] == names


def test_a_table_of_embeddings_as_wide_as_the_model_is_of_tokens() -> None:
    found = named(**captioner(), kinds_S_type_S_embedding=(99, 1536), odd_S_embedding=(99, 1024))
    assert found["words/embedding"] == "vocab embed"
    assert found["positions/embedding"] == "abspos_buckets embed"
    assert found["kinds/type/embedding"] == "dim_99 embed"


def test_random_keys_and_counters_are_no_projections() -> None:
    params = [
        Param("layers/norm/scale", (16, 512), "f32"),
        Param("layers/attn/wq", (16, 512, 8, 64), "f32"),
        Param("layers/attn/wk", (16, 512, 8, 64), "f32"),
        Param("layers/attn/drop/rngs/key", (16,), "key<fry>"),
        Param("layers/attn/drop/rngs/count", (16,), "u32"),
        Param("layers/drop/key", (16, 2), "u32"),
        Param("head/rngs/value", (512,), "key<fry>"),
        Param("layers/attn/k_proj/kernel", (16, 512, 512), "s8"),
        Param("rngs/key", (), "key<fry>"),
    ]
    guesses = guess(tuple(params))
    found = by_path(guesses)
    assert found["layers/attn/drop/rngs/key"] == "layers"
    assert found["layers/attn/drop/rngs/count"] == "layers"
    assert found["layers/drop/key"] == "layers _"
    assert found["head/rngs/value"] == "_"
    assert found["layers/attn/k_proj/kernel"] == "layers embed joined_kv_heads", "quantized"
    assert "rngs/key" not in found
