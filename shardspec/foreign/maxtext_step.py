"""The step of a model of MaxText, as lines that `cost` prices.

MaxText calls its arrays alike in all decoders, `query/kernel`, `wi_0`, and names their dimensions
by what rules are to do: `q_heads` and `heads`, `embed_vocab` and `embed_moe`. In a product these
are one dimension, so each line says `[q_heads as heads]`. The lines are those of the arrays of
`--against`; without them those of the configuration, where it says what the model is.

Values have names of their own in MaxText, `activation_embed`. Their rules are repeated for the
names of the lines: `batch`, `length`, and `act:embed` where an array has the same dimension.
Source: AI-Hypercomputer/maxtext, `src/maxtext/layers`: `attentions.py`, `linears.py`, `moe.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.words import listed, template
from shardspec.foreign.formats import TRACE_INSTEAD, ForeignRule, Options, lost, no_step
from shardspec.foreign.maxtext_config import MaxTextConfig, Rules
from shardspec.ir.plan import STACKED
from shardspec.ir.spec import Param, Pattern
from shardspec.language.reading import Comments, Data, Route
from shardspec.resolve.match import path_matcher

#: What a dimension is in a product -> the names that rules have for it.
_SAME = (
    *(("embed", r"embed_(?:vocab|moe|no_exp\w*|tensor_transpose)"), ("heads", "q_heads")),
    *(
        ("router", "_"),
        ("mlp", r"mlp_(?:moe|no_fsdp)"),
        ("expert", r"exp|exp_with_fsdp"),
        ("kv", "kv_head_dim"),
    ),
)
#: Names of the lines, each with those of MaxText whose rules it goes by.
_VALUES = (
    *(("batch", ("activation_batch",)), ("expert", ("activation_exp",))),
    ("length", ("activation_norm_length", "activation_length")),
    *(("act:embed", ("activation_embed",)), ("act:heads", ("activation_heads",))),
    ("act:kv_heads", ("activation_kv_heads",)),
    *(("act:mlp", ("activation_mlp",)), ("act:vocab", ("activation_vocab",))),
)
#: Results of MaxText by which `remat_policy` says what is kept -> the values of lines.
_KEPT = {
    "query_proj": "query",
    "key_proj": "key",
    "value_proj": "value",
    "context": "context",
    "attention_out": "context",
    "out_proj": "residual",
    "mlpwo": "residual made",
    **dict.fromkeys(("mlpwi", "mlpwi_0", "mlpwi_1"), "hidden inside"),
    "moe_mlpwi_0": "inside",
    "moe_mlpwi_1": "inside",
    "moe_mlpwo": "made",
}
_QKV = "query_proj key_proj value_proj"
_MINIMAL = f"{_QKV} out_proj mlpwi mlpwo"
#: What a policy keeps; `none` is `full`. Source: MaxText, layers/decoders.py, `get_remat_policy`.
_POLICIES = {
    **dict.fromkeys(("full", "none"), ""),
    **dict.fromkeys(("save_qkv_proj", "qkv_proj_offloaded"), _QKV),
    "save_out_proj": "out_proj",
    "save_dot_except_mlp": f"{_QKV} out_proj",
    "save_dot_except_mlpwi": f"{_QKV} out_proj mlpwo",
    "save_dot_with_context_except_mlp": f"{_QKV} context out_proj",
    **dict.fromkeys(("minimal", "minimal_offloaded", "minimal_with_quantization"), _MINIMAL),
    **dict.fromkeys(
        ("minimal_with_context", "minimal_flash", "minimal_with_context_and_quantization"),
        f"{_MINIMAL} context",
    ),
}
_ACTIVATIONS = {
    "residual": "batch length act:embed",
    "query": "batch length act:heads kv",
    "key": "batch length act:kv_heads kv",
    "value": "batch length act:kv_heads kv",
    "hidden": "batch length act:mlp",
    "logits": "batch length act:vocab",
}
_SIZES = {
    "embed": "base_emb_dim",
    "heads": "base_num_query_heads",
    "kv": "head_dim",
    "kv_heads": "base_num_kv_heads",
    "mlp": "base_mlp_dim",
    "vocab": "vocab_size",
    "expert": "num_experts",
    "router": "num_experts",
}
_DTYPES = {"bfloat16": "bf16", "float32": "f32", "float16": "f16"}


#: What MaxText calls a layer of a block that it scans.
_LAYER = re.compile(r"layers_[0-9]+")


class _Line(NamedTuple):
    """A line of a program.

    Attributes:
      names: that its array has where no arrays are given.
    """

    before: str
    pattern: str
    after: str
    names: str


_TABLE = "**/token_embedder/embedding"
_EMBEDDING = _Line(
    "gather(tokens[batch length], ", _TABLE, ") -> residual[batch length embed]", "embed_vocab"
)
_ATTENTION = (
    _Line("residual, ", "**/query/kernel", " -> query", "q_heads"),
    _Line("residual, ", "**/key/kernel", " -> key", ""),
    _Line("residual, ", "**/value/kernel", " -> value", ""),
    _Line("flash(query, key, value)", "", " -> context", ""),
    _Line("context, ", "**/out/kernel", " -> residual", ""),
)
_WIDE = "[expert batch slot act:embed as embed]"
_INSIDE = "[expert batch slot act:mlp as mlp]"
_EXPERTS = (
    _Line("residual, ", "**/gate/kernel", " -> routing[batch length router]", "embed_moe _"),
    _Line("dispatch(residual, routing)", "", f" -> arrived{_WIDE}", ""),
    _Line("arrived, ", "**/wi_{0,1}", f" -> inside{_INSIDE}", "exp embed_moe mlp_moe"),
    _Line("inside, ", "**/wo", f" -> made{_WIDE}", "exp mlp_moe embed_moe"),
    _Line("combine(made, routing)", "", " -> residual", ""),
)
_MLP = (
    _Line("residual, ", "**/wi{,_0,_1}/kernel", " -> hidden", ""),
    _Line("hidden, ", "**/wo/kernel", " -> residual", ""),
)
_LOGITS = _Line("residual, ", "**/logits_dense/kernel", " -> logits", "embed_vocab")
_TIED = _Line("residual, ", _TABLE, " -> logits", "embed_vocab")


class MaxTextStep(NamedTuple):
    """What a spec says of a step: sections, and rules before those of the arrays."""

    data: dict[str, Data]
    activations: dict[str, Data]
    rules: Rules
    comments: dict[Route, Comments]


def maxtext_step(
    config: MaxTextConfig, rules: Rules, sizes: Mapping[str, int] | None, options: Options
) -> tuple[MaxTextStep | None, tuple[Diagnostic, ...]]:
    """Return the step of a configuration, None where it has none; and what is left out.

    Args:
      rules: those that the spec has.
      sizes: of the mesh; None where only the machine can tell.
    """
    params = options.params
    is_model = "decoder_block" in config.values
    lines = _chosen(config, params) if is_model or params is not None else None
    if lines is None and not is_model:
        return None, ()
    if lines is None:
        what = "the attention of this configuration has" if params is None else "these arrays have"
        return None, (no_step(f"{what} no known lines"),)
    known = {rule.name for rule in rules}
    of_loops, left_out = _by_loops(lines, params or ())
    program: list[Data] = [_text(line, params, known) for line in of_loops]
    words = {key: (data, said) for key, data, said in _words(config, lines)}
    step: dict[str, Data] = {key: data for key, (data, _) in words.items()} | {"program": program}
    devices = None if sizes is None else math.prod(sizes.values())
    axes = _sizes(config, devices, params, lines)
    if not {"batch", "length"} <= axes.keys():  # a list of rules alone, or a mesh yet to be known
        why = "the sizes of batch and length are not known"
        return None, (no_step(why),) if is_model else ()
    data: dict[str, Data] = {"step": step, "axes": axes}
    if config.text("opt_type").startswith("adam"):
        data["state"] = {"optimizer": "same"}
    activations: dict[str, Data] = dict(_ACTIVATIONS)
    own = tuple(_rules_of_values(rules, known, experts=_EXPERTS[0] in lines))
    said = {key: fault for key, (_, fault) in words.items() if fault is not None}
    comments: dict[Route, Comments] = {
        ("step", key): Comments(before=(fault.message,)) for key, fault in said.items()
    }
    others = tuple(_of_another_model(config, axes, lines)) if params is not None else ()
    return MaxTextStep(data, activations, own, comments), (*left_out, *others, *said.values())


def _chosen(config: MaxTextConfig, params: Sequence[Param] | None) -> list[_Line] | None:
    """Return the lines of a model; None where its attention or its table has no line."""
    if params is None:
        if config.text("attention_type") == "mla" or config.is_true("fused_qkv"):
            return None
        experts = _EXPERTS if (_number(config, "num_experts") or 1) > 1 else ()
        dense = () if experts and not _number(config, "first_num_dense_layers") else _MLP
        last = _TIED if config.is_true("logits_via_embedding") else _LOGITS
        return [_EMBEDDING, *_ATTENTION, *experts, *dense, last]
    there = {line for line in (_EMBEDDING, *_ATTENTION, *_EXPERTS, *_MLP, _LOGITS, _TIED)
             if not line.pattern or _matched(line, params)}  # fmt: skip
    if not there.issuperset((_EMBEDDING, *_ATTENTION)):
        return None
    experts = _EXPERTS if there.issuperset(_EXPERTS) else ()
    dense = _MLP if there.issuperset(_MLP) else ()
    return [_EMBEDDING, *_ATTENTION, *experts, *dense, _LOGITS if _LOGITS in there else _TIED]


def _by_loops(
    lines: Sequence[_Line], params: Sequence[Param]
) -> tuple[list[_Line], tuple[Diagnostic, ...]]:
    """Return the lines, those of a layer once for each loop of the decoder; and what has none."""
    layer = [line for line in lines if line not in (_EMBEDDING, _LOGITS, _TIED)]
    of_line = {
        line: dict.fromkeys(map(_loop, _matched(line, params))) for line in layer if line.pattern
    }
    loops = list(dict.fromkeys(loop for found in of_line.values() for loop in found))
    ours = [loop for loop in loops if "decoder" in loop.split("/")] or list(filter(None, loops))
    if len(loops) < 2:
        return list(lines), ()
    made = [_EMBEDDING]
    for loop in ours:
        has = {line for line, found in of_line.items() if loop in found}
        own = (line for line in layer if line in has or _is_between(line, layer, has))
        made += [line._replace(pattern=_inside_of(loop, line.pattern)) for line in own]
    others = [loop or "layers without a number" for loop in loops if loop not in ours]
    what = f"the step leaves out {listed(others)}: no decoder, so the lines are not known"
    return [*made, lines[-1]], (lost(what, None, help=TRACE_INSTEAD),) if others else ()


def _loop(param: Param) -> str:
    """Return the path of an array down to its layer, "" of a layer that there is once.

    Of a block of layers that is scanned, each layer has its own: `decoder/layers/layers_0`.
    """
    parts = param.path.removeprefix("params/").split("/")
    names = STACKED.intersection(param.logical_axes or ())
    at = next((place for place, part in enumerate(parts) if part in names), None)
    if at is not None:
        is_block = _LAYER.fullmatch(parts[min(at + 1, len(parts) - 1)]) is not None
        return "/".join(parts[: at + 1 + is_block])
    before, number, _ = template("/".join(parts[:-2])).partition("#")
    return f"{before}*" if number else ""


def _is_between(line: _Line, layer: Sequence[_Line], has: set[_Line]) -> bool:
    """Say whether a line without arrays is part of a block whose arrays were found."""
    blocks = (block for block in (_ATTENTION, _EXPERTS) if line in block)
    return not line.pattern and any(has.intersection(block) for block in blocks)


def _inside_of(loop: str, pattern: str) -> str:
    """Return a pattern for the arrays of one loop: `**/decoder/layers/**/query/kernel`."""
    return f"**/{loop}/{pattern}" if pattern else ""


def _matched(line: _Line, params: Sequence[Param]) -> list[Param]:
    matcher = path_matcher((Pattern(line.pattern),))
    return [param for param in params if matcher.first_match(param.path) is not None]


def _text(line: _Line, params: Sequence[Param] | None, known: set[str | None]) -> str:
    """Return a line, with the names of its array that are others in a product."""
    if not line.pattern:
        return f"{line.before}{line.after}"
    names = dict.fromkeys(line.names.split())
    if params is not None:
        found = _matched(line, params)
        names = dict.fromkeys(name or "_" for each in found for name in each.logical_axes or ())
    known |= {"_"}
    renamed = [f"{n} as {_same(n)}" for n in names if _same(n) != n and (params or n in known)]
    return f'{line.before}"{line.pattern}"{_inside(renamed)}{line.after}'


def _inside(renamed: Sequence[str]) -> str:
    return f"[{', '.join(renamed)}]" if renamed else ""


def _same(name: str) -> str:
    return next((base for base, names in _SAME if re.fullmatch(names, name)), name)


def _number(config: MaxTextConfig, key: str) -> float | None:
    node = config.values.get(key)
    return node.number if node is not None and node.kind == "number" else None


def _words(
    config: MaxTextConfig, lines: Sequence[_Line]
) -> Iterator[tuple[str, Data, Diagnostic | None]]:
    """Yield what a configuration says of a step beside its lines, and what that leaves out."""
    if config.text("remat_policy"):
        yield "remat", *_remat(config, lines)
    if config.text("dtype") in _DTYPES:
        yield "dtype", _DTYPES[config.text("dtype")], None
    parts = _number(config, "gradient_accumulation_steps") or 1
    if parts > 1:
        yield "microbatches", int(parts), None
    chosen = _number(config, "num_experts_per_tok")
    if _EXPERTS[0] in lines and chosen:
        yield "experts", f"top {int(chosen)} {_taken(config, chosen)}", None


def _remat(config: MaxTextConfig, lines: Sequence[_Line]) -> tuple[Data, Diagnostic | None]:
    """Return what the layers keep, and what of the policy `remat:` cannot say."""
    policy, span = config.text("remat_policy"), config.values["remat_policy"].span
    kept = _POLICIES.get(policy, "").split()
    offloaded = kept if policy.endswith("_offloaded") else []
    if policy == "custom":
        offloaded = [name for name in _KEPT if config.text(name) == "offload"]
        kept = [name for name in _KEPT if config.text(name) == "device"] + offloaded
    made = {line.after.partition("-> ")[2].partition("[")[0] for line in lines}
    values = dict.fromkeys(value for name in kept for value in _KEPT[name].split())
    remat: Data = [value for value in values if value in made] or "full"
    if policy not in (*_POLICIES, "custom"):
        message = f"`remat_policy: {policy}` is not known: the step keeps what comes into a layer"
        return remat, lost(message, span, help=TRACE_INSTEAD)
    if offloaded:
        message = f"`remat_policy: {policy}` keeps {listed(offloaded)} in the host's memory: the"
        message += " step keeps them on the device, so that its activations are an upper bound"
        return remat, lost(message, span, help=TRACE_INSTEAD)
    return remat, None


def _taken(config: MaxTextConfig, chosen: float) -> str:
    """Return how many tokens the experts take.

    Without a capacity, tokens are sorted for a ragged product; `sparse_matmul: false` has every
    expert compute every token. Source: MaxText, layers/moe.py, `sparse_matmul`, `dense_matmul`.
    """
    if "sparse_matmul" not in config.values or config.is_true("sparse_matmul"):
        return "dropless"
    capacity = _number(config, "capacity_factor") or -1
    experts = _number(config, "num_experts") or chosen
    return f"capacity {max(capacity, 1) if capacity > 0 else experts / chosen:g}"


def _sizes(
    config: MaxTextConfig,
    devices: int | None,
    params: Sequence[Param] | None,
    lines: Sequence[_Line],
) -> dict[str, Data]:
    """Return the sizes of the names of the lines that are known: of arrays, else as configured."""
    found: dict[str, set[int]] = {}
    for line in lines if params is not None else ():
        for each in _matched(line, params or ()) if line.pattern else ():
            for name, size in zip(each.logical_axes or (), each.shape, strict=False):
                found.setdefault(_same(name or "_"), set()).add(size)
    sizes: dict[str, Data] = {}
    each_batch, length = (
        _number(config, "per_device_batch_size"),
        _number(config, "max_target_length"),
    )
    if each_batch and devices and (batch := each_batch * devices) % 1 == 0:
        sizes["batch"] = int(batch)
    if length:
        sizes["length"] = int(length)
    for name, key in _SIZES.items():
        several = found.get(name, set())
        stated = _number(config, key) if params is None else None
        if len(several) == 1 or stated:
            sizes[name] = next(iter(several), int(stated or 0))
    if _EXPERTS[0] not in lines:
        sizes = {name: size for name, size in sizes.items() if name not in ("expert", "router")}
    return sizes


def _of_another_model(
    config: MaxTextConfig, axes: Mapping[str, Data], lines: Sequence[_Line]
) -> Iterator[Diagnostic]:
    """Yield the sizes of the configuration that the arrays do not have."""
    if (_number(config, "global_parameter_scale") or 1) != 1:
        return
    keys = {name: key for name, key in _SIZES.items() if name in axes}
    if _EXPERTS[0] in lines:  # whose widths have a key of their own
        keys.pop("mlp", None)
    for name, key in keys.items():
        stated = _number(config, key)
        if stated and stated != axes[name]:
            message = f"`{key}` is {stated:g}, and the arrays have {name}={axes[name]}"
            help = "list the arrays of this model; the spec goes by those that are listed"
            yield lost(message, config.values[key].span, help=help)


def _rules_of_values(
    rules: Rules, known: set[str | None], *, experts: bool
) -> Iterator[ForeignRule]:
    """Yield the rules of values for the names of the lines, in the order of MaxText's own.

    Where experts have their mesh axis, the batch goes without it.
    """
    goes_by: dict[str | None, str] = {
        name: own
        for own, names in _VALUES
        if own not in known and (name := next(filter(known.__contains__, names), None))
    }
    named = [replace(rule, name=goes_by[rule.name]) for rule in rules if rule.name in goes_by]
    of_experts = [rule for rule in named if rule.name == "expert"]
    taken = {axis for rule in of_experts for axis in rule.mesh_axes}
    if experts:
        yield from of_experts
    for rule in named:
        left = tuple(axis for axis in rule.mesh_axes if axis not in taken)
        if rule.name != "expert":
            yield rule
        if rule.name == "batch" and experts and left and left != rule.mesh_axes:
            yield replace(rule, mesh_axes=left)
