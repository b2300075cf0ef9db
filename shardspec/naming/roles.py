"""What arrays are called in the common families of models, and which dimensions such an array has.

One table, read from top to bottom; the first row whose words end the path of an array decides.
Paths are compared in one form: `/` between components, small letters, words of CamelCase apart, so
that `model.layers.3.self_attn.q_proj.weight` and `MlpBlock_0/Dense_0/kernel` are
`model/layers/3/self_attn/q_proj` and `mlp_block_0/dense_0`, with `weight` and `kernel` as leaves.

A row says what an array is for, not how a library stores it. `embed -> heads kv` is a linear map
from its inputs to its outputs: torch stores `[out, in]`, Flax `[in, out]`, either may keep heads
and head width apart or side by side (`JOINED`), stack layers or experts, and have a bias as long as
the outputs. `conv: channels -> embed` has dimensions of space as well. Any other row lists the
names in their order. `|` separates answers between which sizes decide; the first is the usual one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import NamedTuple

#: Axes that libraries keep side by side in one dimension, as the presets call them.
JOINED: Mapping[tuple[str, ...], str] = {
    ("heads", "kv"): "joined_kv",
    ("kv_heads", "kv"): "joined_kv_heads",
}

#: Last components of paths that say which array of a module it is, and nothing of what it is for.
MATRICES = ("weight", "kernel", "w", "embedding", "input_embedding", "qweight", "weight_v")
VECTORS = ("bias", "b")
SCALES = ("scale", "offset", "gamma", "beta", "g", "mean", "var", "running_mean", "running_var")
#: Those of a module whose array they only wrap: NNX's variables, Haiku's parameters.
WRAPPERS = ("value", "raw_value")
#: Leaves of arrays that hold outputs first: `[out, in]`.
OUTPUTS_FIRST = ("weight", "qweight", "weight_v")


class AxisKind(NamedTuple):
    """What is known of a logical axis beyond its name.

    Attributes:
      doc: what it is, as a spec says it.
      like: the axis by whose rules it goes where no rule names it; "" for `none`.
      halves: of an axis of two equal parts, what they are called.
    """

    doc: str
    like: str = ""
    halves: tuple[str, ...] = ()


AXES = {
    "vocab": AxisKind("tokens of the vocabulary"),
    "embed": AxisKind("width of the model, between the blocks"),
    "mlp": AxisKind("width inside the feed-forward blocks"),
    "heads": AxisKind("heads of the queries"),
    "kv_heads": AxisKind("heads of keys and values", like="heads"),
    "kv": AxisKind("width of one head"),
    "joined_kv": AxisKind("all heads, side by side", like="heads"),
    "joined_kv_heads": AxisKind("all heads of keys or values, side by side", like="joined_kv"),
    "joined_qkv": AxisKind("query, key and value of all heads, side by side"),
    "key_value": AxisKind("keys and values of all heads, side by side"),
    "gate_up": AxisKind("gate and up, side by side", like="mlp", halves=("gate", "up")),
    "mlp_qkv": AxisKind("query, key, value and what goes into the feed-forward block"),
    "mlp_joined_kv": AxisKind("heads, and what comes out of the feed-forward block"),
    "norm": AxisKind("scales and biases of norms"),
    "expert": AxisKind("experts"),
    "router": AxisKind("scores of the experts"),
    "layers": AxisKind("stacked layers"),
    "abspos_buckets": AxisKind("places of learned positions"),
    "relpos_buckets": AxisKind("buckets of relative positions"),
    "segments": AxisKind("kinds of segments"),
    "classes": AxisKind("classes that are told apart"),
    "projection": AxisKind("space that towers are compared in"),
    "channels": AxisKind("channels, or pixels of a patch"),
    "conditions": AxisKind("width of what the model is conditioned on"),
    "modulation": AxisKind("shifts, scales and gates of adaptive norms, side by side"),
    "inner": AxisKind("width inside the state-space blocks", like="mlp"),
    "inner_parts": AxisKind("what goes into a state-space block, side by side"),
    "inner_conv": AxisKind("what a state-space block convolves, side by side"),
    "state": AxisKind("size of the state"),
    "time_step": AxisKind("rank of the step size, or that beside the states"),
    "ssm_heads": AxisKind("heads of the state-space blocks"),
    "low_rank": AxisKind("rank of a map in two steps"),
}


class Role(NamedTuple):
    """One row: how paths end, and what dimensions such an array has.

    Attributes:
      what: what the array is for, as a comment says it.
      ends: a regular expression for the last components, without the leaf.
      names: its dimensions, as the module says.
      under: what has to stand somewhere before those.
    """

    what: str
    ends: str
    names: str
    under: str = ""


_MLP = r"mlp|ff|ffn|feed_forward|feedforward|expert|moe|channel_mix|dense_relu"
_ATTENTION = r"attn|attention|att(?=/)|mha|self_att|dot_product"
_SSM = r"mixer|mamba|ssm"
_TIME = r"(?:^|/)(?:t_|time_?(?:step)?_?|guidance_|vector_|text_|y_)(?:emb\w*|in)/"

ROLES = (
    # state-space models
    Role("what goes into the block", "in_proj", "embed -> inner_parts", _SSM),
    Role("what comes out of the block", "out_proj", "inner -> embed", _SSM),
    Role("step size and states", "x_proj", "inner -> time_step", _SSM),
    Role("step size", "dt_proj", "time_step -> inner", _SSM),
    Role("convolution", "conv_?1d", "inner _ _ | inner_conv _ _ | inner | inner_conv", _SSM),
    Role("decay", "a_log", "inner state | ssm_heads", _SSM),
    Role("skip, or step size", "d|dt_bias", "inner | ssm_heads", _SSM),
    Role("norm inside the block", "norm", "inner | norm", _SSM),
    # RWKV: its feed-forward block has keys and values, too
    Role("up", r"key", "embed -> mlp", r"ffn|feed_forward|channel_mix"),
    Role("down", r"value", "mlp -> embed", r"ffn|feed_forward|channel_mix"),
    Role("gate", r"receptance", "embed -> embed", r"ffn|feed_forward|channel_mix"),
    Role("query", r"receptance|gate", "embed -> heads kv", r"att(?:ention)?(?=/)|time_mix"),
    Role(
        "mix of time steps",
        r"(?:time_(?:mix|maa)_[a-z]+|time_decay|time_first|time_faaaa|x_[a-z])",
        "_ _ embed | embed | heads kv | heads",
    ),
    # adaptive norms and conditions of diffusion transformers
    Role(
        "shifts and scales",
        r"(?:ada_?ln\w*|modulation|(?:img_|txt_)?mod)(?:/(?:1|lin|linear|dense_0))?"
        r"|(?:norm\w*|norm_out)/linear",
        "embed -> modulation",
    ),
    Role("time, first", r"(?:linear_1|mlp/0|in_layer|in_proj|dense_0)", "_ -> embed", _TIME),
    Role("time, second", r"(?:linear_2|mlp/2|out_layer|out_proj|dense_1)", "embed -> embed", _TIME),
    Role("condition", r"context_embedder|txt_in|caption_projection", "conditions -> embed"),
    Role("patches", r"x_embedder|img_in", "channels -> embed"),
    Role("output", r"proj_out", "embed -> channels | mlp_joined_kv -> embed"),
    Role("output", r"final_layer/linear", "embed -> channels"),
    # norms
    Role(
        "norm of heads",
        r"_?(?:q|k|query|key)_(?:layer_?)?norm|norm_(?:added_)?[qk]",
        "kv | joined_kv | joined_kv_heads | norm",
    ),
    Role(
        "norm",
        r"\w*(?:layer_?norm|rms_?norm|group_?norm|batch_?norm|norm|(?<![a-z])ln)(?:_?[a-z]{0,12}|_[a-z_]+)_?\d*",
        "norm",
    ),
    # embeddings and heads
    Role(
        "patches",
        r"patch_embed\w*(?:/(?:proj|projection))?|pos_embed/proj",
        "conv: channels -> embed",
    ),
    Role(
        "patches",
        r"embedding|conv_(?:stem|proj)",
        "conv: channels -> embed | conv: embed -> embed",
    ),
    Role(
        "first convolutions",
        r"conv[12]",
        "conv: channels -> embed | conv: embed -> embed",
        r"^\D*$",
    ),
    Role(
        "convolutions over sound",
        r"conv_layers/\d+/conv|pos_conv_embed/conv",
        "conv: channels -> embed | conv: embed -> embed",
    ),
    Role("sound to model", r"feature_projection/projection", "embed -> embed"),
    Role(
        "positions",
        r"(?:abs)?(?:pos(?:ition)?(?:al)?_emb\w*|pos_emb\w*|wpe|embed_positions|position_embedder"
        r"|posembed_input/pos_embedding)",
        "abspos_buckets embed | _ abspos_buckets embed",
    ),
    Role("segments", r"token_type_embeddings?|segment_embeddings?", "segments embed"),
    Role(
        "token that stands for all",
        r"class_embedding|cls(?:_token)?|class_token|mask_token|masked_spec_embed|dist\w*_token|register_tokens|probe",
        "embed | _ embed | _ _ embed",
    ),
    Role(
        "relative positions",
        r"relative_attention_bias|rel(?:ative)?_pos\w*_bias\w*",
        "relpos_buckets heads | heads relpos_buckets",
    ),
    Role("relative positions", r"rel_embedding|relpos_bias", "heads relpos_buckets"),
    Role(
        "output",
        r"lm_head|logits_dense|embed_out|unembed\w*|vocab_projector|predictions(?:/decoder)?",
        "embed -> vocab",
    ),
    Role(
        "output",
        r"head|classifier|score|qa_outputs|seq_relationship|fc",
        "embed -> classes | embed -> vocab",
    ),
    Role("projection", r"(?:visual|text|image)_(?:projection|proj)", "embed -> projection"),
    Role("pooling", r"pooler/dense|transform/dense|pre_classifier|pre_logits", "embed -> embed"),
    Role(
        "tokens",
        r"embed_tokens|wte|tok_embeddings|word_embeddings?|token_embedd(?:er|ings?)|embed_in|shared"
        r"|embeddings?|embedder|emb|embed(?:_\d+)?|vocab_embed\w*",
        "vocab embed",
    ),
    # attention
    Role(
        "query, key and value",
        r"qkv\w*|c_attn|query_key_value|w_?qkv|attn_qkv",
        "embed -> joined_qkv | embed -> _ heads kv",
    ),
    Role("query, key and value", r"in_proj(?:_weight|_bias)?", "embed -> joined_qkv", _ATTENTION),
    Role("key and value", r"kv|kv_proj|to_kv", "embed -> key_value | embed -> _ kv_heads kv"),
    Role("low rank", r"[qk]v?_a_proj\w*", "embed -> low_rank"),
    Role("heads of low rank", r"[qk]v?_b_proj", "low_rank -> heads kv"),
    Role("query", r"q_einsum", "heads embed kv"),
    Role("key and value", r"kv_einsum", "_ kv_heads embed kv"),
    Role("output of attention", r"attn_vec_einsum", "heads kv embed"),
    Role(
        "query",
        r"q|query|queries|[qw]_?q|q_proj|query_proj|to_q|q_lin|add_q_proj",
        "embed -> heads kv",
    ),
    Role(
        "key and value",
        r"[kv]|key|value|keys|values|w_?[kv]|[kv]_proj|(?:key|value)_proj|to_[kv]|[kv]_lin|add_[kv]_proj",
        "embed -> kv_heads kv",
    ),
    Role(
        "output of attention",
        r"o|w_?o|out|o_proj|out_proj|output_proj|to_out(?:/0)?|to_add_out|c_proj|proj|out_lin|dense|linear|output(?:/dense)?",
        "heads kv -> embed",
        _ATTENTION,
    ),
    Role(
        "output of attention",
        r"o_proj|out_proj|to_out(?:/0)?|to_add_out|out_lin",
        "heads kv -> embed",
    ),
    Role("output", r"output", "embed -> vocab"),
    # feed-forward
    Role(
        "router",
        r"router(?:/\w+)?|\w*(?:moe|sparse)\w*/gate|gate/wg|shared_expert_gate",
        "embed -> router | embed -> _",
    ),
    Role(
        "gate and up",
        r"gate_up(?:_proj)?|gate_and_up|w12|wi_fused|up_gate_proj",
        "embed -> gate_up",
    ),
    Role("gate and up", r"gating_einsum", "_ embed mlp"),
    Role("gate", r"gate", "embed -> router | embed -> mlp"),
    Role(
        "up",
        r"up(?:_proj)?|gate(?:_proj)?|w[13]|wi(?:_\d)?|fc_?1|c_fc|fc_in|dense_h_to_4h|intermediate/dense"
        r"|intermediate_dense|lin(?:ear)?_?1|proj_mlp|net/0/proj",
        "embed -> mlp",
    ),
    Role(
        "up",
        r"dense_0|(?:mlp|ff|ffn)/(?:0|in|lin)|dense1|(?:ffn?|mlp)_up|linear",
        "embed -> mlp",
        _MLP,
    ),
    Role(
        "down",
        r"down(?:_proj)?|w2|wo|fc_?2|c_proj|fc_out|dense_4h_to_h|output/dense|output_dense|lin(?:ear)?_?2|net/2",
        "mlp -> embed",
    ),
    Role(
        "down",
        r"dense_1|(?:mlp|ff|ffn)/(?:2|out)|dense2|(?:ffn?|mlp)_down",
        "mlp -> embed",
        _MLP,
    ),
)

_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_MOST_CHARACTERS = 2000


class Place(NamedTuple):
    """A path, taken apart.

    Attributes:
      module: what the array belongs to, in the form of the table.
      leaf: which array of the module it is; "" where its own name says that.
    """

    module: str
    leaf: str


def place_of(path: str) -> Place:
    """Return the module and leaf of a path.

    >>> place_of("model.layers.3.self_attn.q_proj.weight")
    Place(module='model/layers/3/self_attn/q_proj', leaf='weight')
    >>> place_of("MlpBlock_0/Dense_0/kernel"), place_of("experts/w1")
    (Place(module='mlp_block_0/dense_0', leaf='kernel'), Place(module='experts/w1', leaf=''))
    """
    plain = _WORDS.sub("_", path[-_MOST_CHARACTERS:].replace(".", "/")).lower()
    parts = [part.replace("__", "_") for part in plain.split("/") if part]
    if len(parts) > 1 and parts[-1] in WRAPPERS:
        parts.pop()
    if len(parts) > 1 and parts[-1] in (*MATRICES, *VECTORS, *SCALES):
        return Place("/".join(parts[:-1]), parts[-1])
    return Place("/".join(parts), "")


@cache
def _compiled() -> tuple[tuple[re.Pattern[str], re.Pattern[str] | None, Role], ...]:
    return tuple(
        (
            re.compile(rf"(?:^|/)(?:{role.ends})$"),
            re.compile(role.under) if role.under else None,
            role,
        )
        for role in ROLES
    )


def roles_of(place: Place) -> Iterator[Role]:
    """Yield the rows that an array may go by, the best first."""
    for ends, under, role in _compiled():
        found = ends.search(place.module)
        if found and (under is None or under.search(place.module, 0, found.start() + 1)):
            yield role
