"""Measured rows -> specs with a `step:`, by the dimensions of their models.

A row names a model, a machine and a mesh as its publisher did: `ici_fsdp`, `dcn_data`, `model`.
What comes out is the text of a spec as any user might write it, for `shardspec.loads`. `None`
where the row, or what is known of its model, does not say enough.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from shardspec.assets import spec_path
from shardspec.language.catalogue import catalogue_entry

DATA = Path(__file__).resolve().parent / "data"
#: What a row may call a dimension of `model_dims.json`: MaxText, Levanter, axlearn, Hugging Face.
_OTHER_NAMES = {
    "embed": "base_emb_dim emb_dim hidden_dim hidden_size d_model n_embd model_dims",
    "layers": "base_num_decoder_layers num_decoder_layers num_layers num_hidden_layers n_layer",
    "heads": "base_num_query_heads num_query_heads num_heads num_attention_heads n_head",
    "kv_heads": "base_num_kv_heads num_kv_heads num_key_value_heads",
    "head_dim": "dims_per_head d_kv kv",
    "mlp": "base_mlp_dim mlp_dim ffn_dim intermediate_size d_ff hidden_dims",
    "vocab": "vocab_size",
    "experts": "num_experts num_local_experts",
    "active": "num_experts_per_tok",
    "expert_mlp": "base_moe_mlp_dim moe_intermediate_size",
}
#: Roles of mesh axes: what of a model each splits, by the names that frameworks give them.
_DATA = ("data", "replica", "batch")
_FSDP = ("fsdp", "zero")
_TURNED = ("fsdp_transpose",)
_TENSOR = ("tensor", "model", "mdl", "tensor_sequence", "tensor_transpose")
_LENGTH = ("context", "sequence", "seq")
_EXPERT = ("expert",)
_ROLES = {*_DATA, *_FSDP, *_TURNED, *_TENSOR, *_LENGTH, *_EXPERT}
#: What the layers keep, by what publishers call it.
#: Source: MaxText, layers/decoders.py, get_remat_policy; its `custom` is what its recipes for
#: dense models mostly say: queries, keys and values are kept (or offloaded).
_REMAT = {
    "full": "full",
    "none": "none",
    "minimal": "dots",
    "minimal_flash": "none",
    "minimal_with_context": "none",
    "minimal_offloaded": "dots",
    "save_dot_except_mlp": "[query, key, value, attended]",
    "save_dot_except_mlpwi": "[query, key, value, attended]",
    "save_dot_with_context_except_mlp": "[query, key, value, context, attended]",
    "save_qkv_proj": "[query, key, value]",
    "qkv_proj_offloaded": "[query, key, value]",
    "custom": "[query, key, value]",
    "save_out_proj": "[attended]",
}
#: What stands around the name of a model: who publishes or runs it, and what it was tuned for.
_AROUND = re.compile(
    r"^(?:meta|google|nvidia|levanter|axlearn|maxtext|paxml|default)-(?=[a-z])"
    r"|-(?:hf|it|pt|chat|instruct|pretrain|v0\.\d)$"
)
#: MaxText's default model, by how many billions of parameters it has: `maxtext-64b`.
_DEFAULT = re.compile(r"(?:maxtext-)?(?:default-)?(\d+)(b|t)")
_DTYPES = {"fp8": "f8_e4m3fn", "int8": "s8", "f8": "f8_e4m3fn"}


@dataclass(frozen=True)
class Stack:
    """Equal layers, one behind the other.

    Attributes:
      positions: pairs of a query and a key that attention goes through, by query: half the length
        where it is causal, less where it sees a window.
      experts: 0 for a dense MLP; `active` of them for each token, `shared_mlp` beside them.
      kv_rank: of latent attention, whose keys have `key_dim` of their own; 0 for none.
      shares_kv: whether another layer makes the keys and values.
      side: `encoder` or `decoder` of a model that has both; empty for a decoder alone.
    """

    count: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    gated: bool
    positions: float
    experts: int = 0
    active: int = 0
    expert_mlp: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    key_dim: int = 0
    value_dim: int = 0
    shares_kv: bool = False
    side: str = ""


@dataclass(frozen=True)
class Model:
    """A model on sequences of one length.

    Attributes:
      targets: the length of what a decoder is given beside them; 0 where there is one stack alone.
      capacity: slots of an expert for each token that it is due.
    """

    embed: int
    vocab: int
    tied: bool
    stacks: tuple[Stack, ...]
    length: int
    targets: int = 0
    capacity: float = 1.0

    @property
    def parameters(self) -> int:
        """Return the parameters, all experts and no norms."""
        tables = self.vocab * self.embed * (1 if self.tied else 2)
        return tables + sum(each.count * _parameters(each, self.embed) for each in self.stacks)

    @property
    def flops_per_sequence(self) -> float:
        """Return the FLOPs of a training step that a sequence takes, none done again.

        Six for each token and weight of a product, and what attention computes; a mask is not
        counted.
        """
        own = 6 * self.vocab * self.embed * (self.targets or self.length)
        for each in self.stacks:
            length = self.targets if each.side == "decoder" else self.length
            active = _parameters(replace(each, experts=each.active), self.embed)
            width = each.heads * (each.head_dim + (each.value_dim or each.head_dim))
            pairs = length * each.positions
            own += 6 * each.count * (active * length + width * pairs)
        return own


def _parameters(stack: Stack, embed: int) -> int:
    of_mlp = 3 if stack.gated else 2
    queries, out = stack.heads * stack.head_dim, stack.heads * (stack.value_dim or stack.head_dim)
    keys = 0 if stack.shares_kv else 2 * stack.kv_heads * stack.head_dim * embed
    found = embed * (queries + out) + keys
    if stack.kv_rank:
        down = embed * (stack.q_rank + stack.kv_rank + stack.head_dim - stack.key_dim)
        of_query = queries * (stack.q_rank or embed)
        of_keys = stack.kv_rank * stack.heads * (stack.key_dim + stack.value_dim)
        found = down + of_query + of_keys + embed * out
    if stack.side == "decoder":
        found *= 2
    return found + of_mlp * embed * (stack.mlp + stack.experts * stack.expert_mlp)


# what is known of models


def dims_of(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the dimensions of a row's model: its own, else those that are known by its name."""
    known, name = _known(), str(row.get("model", ""))
    found = dict(known["models"].get(plain(name)) or _default(known["maxtext"], name) or {})
    own = row.get("model_dims")
    if isinstance(own, Mapping):
        if not found:
            found = dict(known["maxtext"]) if _is_maxtext(own) else {}
        if "global_parameter_scale" in own:
            scaled = _scaled(known["maxtext"], own["global_parameter_scale"])
            if scaled is None:
                return None
            found = scaled
        found |= _renamed(own)
    found.setdefault("kv_heads", found.get("heads"))
    if found.get("heads") and found.get("embed"):
        found.setdefault("head_dim", found["embed"] // found["heads"])
    needed = ("embed", "layers", "heads", "kv_heads", "head_dim", "mlp", "vocab")
    sizes = [found.get(name) for name in needed]
    is_whole = all(isinstance(size, int) and 0 < size < 1 << 24 for size in sizes)
    return found if is_whole else None


@cache
def _known() -> dict[str, Any]:
    data = json.loads((DATA / "model_dims.json").read_text(encoding="utf-8"))
    models: dict[str, Any] = {}
    for name, dims in data["models"].items():
        for each in (name, *dims.get("also", ())):
            models[plain(each)] = dims
    return {"models": models, "maxtext": data["maxtext"]}


def plain(name: str) -> str:
    """Return a name as others spell it, too.

    >>> plain("meta-llama/Llama-3.1-405B-Instruct"), plain("llama3_1_405b"), plain("Llama 3 8B")
    ('llama3.1405b', 'llama3.1405b', 'llama38b')
    """
    found = re.sub(r"^t5-?v?1[-.]1(?!\d)", "t5-1.1", _bare(name))
    found = re.sub(r"(?<![\d.])(\d)[-p](\d)(?=-|$)", r"\1.\2", found)  # a version, and no size
    return re.sub(r"(?<=[a-z\d])v(?=\d)|-v(?=\d)|-", "", found)


def _bare(name: str) -> str:
    """Return a name in small letters and hyphens, without what stands around it."""
    found = re.sub(r"[-_ ]+", "-", name.rpartition("/")[2].strip().lower()[:80])
    while (bare := _AROUND.sub("", found)) != found:
        found = bare
    return found


def _default(base: Mapping[str, Any], name: str) -> dict[str, Any] | None:
    """Return MaxText's default model by its name; None for other names."""
    found = _DEFAULT.fullmatch(re.sub(r"[-_ ]+", "-", name.strip().lower()[:80]))
    if found is None or not re.match(r"maxtext|default", name.strip().lower()):
        return None
    return _scaled(base, int(found[1]) * (1024 if found[2] == "t" else 1))


def _is_maxtext(own: Mapping[str, Any]) -> bool:
    return any(name.startswith(("base_", "global_")) for name in own)


def _renamed(own: Mapping[str, Any]) -> dict[str, Any]:
    names = {old: name for name, others in _OTHER_NAMES.items() for old in others.split()}
    found = {names.get(name, name): value for name, value in own.items()}
    return {name: value for name, value in found.items() if isinstance(value, int | float | bool)}


def _scaled(base: Mapping[str, Any], scale: object) -> dict[str, Any] | None:
    """Return MaxText's default model at a `global_parameter_scale`, a power of two.

    Source: MaxText, pyconfig.get_individual_scales: layers, then heads and MLP, then embedding.
    """
    if not isinstance(scale, int) or scale < 1 or scale & (scale - 1) or scale > 1 << 16:
        return None
    layers, rest = divmod(scale.bit_length() - 1, 3)
    heads, embed = layers + (rest > 0), layers + (rest > 1)
    by = {"layers": layers, "heads": heads, "kv_heads": heads, "mlp": heads, "embed": embed}
    return {**base, **{name: base[name] << power for name, power in by.items()}}


def model_of(row: Mapping[str, Any]) -> Model | None:
    """Return the model of a row on its length; None where something is not known."""
    dims = dims_of(row)
    length = row.get("seq") or (dims or {}).get("length")
    if dims is None or not isinstance(length, int) or not 0 < length < 1 << 24:
        return None
    if dims.get("encoder"):
        targets = dims.get("targets", length)
        stacks = (
            _stack(dims, dims["layers"], length, side="encoder"),
            _stack(dims, dims["layers"], targets / 2, side="decoder"),
        )
        return Model(dims["embed"], dims["vocab"], False, stacks, length, targets)
    recipe = recipe_of(row) if dims.get("experts") else None
    return Model(
        *(dims["embed"], dims["vocab"], bool(dims.get("tied"))),
        *(tuple(_stacks(dims, length)), length),
        capacity=(recipe or {}).get("capacity", 1.0),
    )


def _stacks(dims: Mapping[str, Any], length: int) -> Iterator[Stack]:
    """Yield the layers of a decoder, those that are alike together."""
    layers, every = dims["layers"], dims.get("global_every", 1)
    dense = dims.get("dense_layers", 0)
    sparse = layers // dims.get("moe_every", 1) if dims.get("experts") else 0
    dense = dense or layers - sparse
    shared = dims.get("shared_kv_layers", 0)
    kinds = [("dense", dense - shared), ("shared", shared), ("experts", layers - dense)]
    for kind, count in kinds:
        whole = count // every if every > 1 else count
        for is_global, number in ((True, whole), (False, count - whole)):
            if number > 0:
                pairs = length / 2 if is_global else _seen(dims, length)
                yield _stack(dims, number, pairs, kind=kind, is_global=is_global)


def _seen(dims: Mapping[str, Any], length: int) -> float:
    """Return how many keys a query sees on average, of a window or a chunk."""
    if "window" in dims:
        window = min(dims["window"], length)
        return window - window * window / (2 * length)
    return min(dims.get("chunk", length), length) / 2


def _stack(
    dims: Mapping[str, Any], count: int, positions: float, *, kind: str = "dense",
    is_global: bool = False, side: str = "",
) -> Stack:  # fmt: skip
    is_whole = is_global and dims.get("global_every", 1) > 1
    found = Stack(
        *(count, dims["heads"], dims["kv_heads"], dims["head_dim"], dims["mlp"]),
        *(bool(dims.get("gated", True)), positions),
        *(0, 0, 0, dims.get("q_rank", 0), dims.get("kv_rank", 0)),
        *(dims.get("key_dim", 0), dims.get("value_dim", 0)),
        side=side,
    )
    if is_whole:
        found = replace(
            found,
            head_dim=dims.get("global_head_dim", found.head_dim),
            kv_heads=dims.get("global_kv_heads", found.kv_heads),
        )
    if kind == "shared":
        return replace(found, mlp=dims.get("shared_kv_mlp", found.mlp), shares_kv=True)
    if kind == "experts":
        return replace(
            found,
            mlp=dims.get("shared_mlp", 0),
            experts=dims["experts"],
            active=dims.get("active", 1),
            expert_mlp=dims.get("expert_mlp", dims["mlp"]),
        )
    return found


# meshes


@dataclass(frozen=True)
class Machine:
    """Where a row ran.

    Attributes:
      text: as `hardware:` has it.
      axes: of the mesh, by name, with their sizes and whether they cross slices.
    """

    text: str
    axes: dict[str, tuple[int, bool]] = field(default_factory=dict)

    def of(self, roles: tuple[str, ...]) -> list[str]:
        """Return the axes of a role, those that cross slices first."""
        found = [name for name in self.axes if name.removeprefix("dcn_") in roles]
        return sorted(found, key=lambda name: not name.startswith("dcn_"))


def machine_of(row: Mapping[str, Any]) -> Machine | None:
    """Return the machine and mesh of a row; None where they are not stated, or disagree."""
    kind, chips, mesh = kind_of(row), row.get("chips"), row.get("mesh")
    if not _is_count(chips) or not isinstance(mesh, Mapping) or not mesh:
        return None
    if not all(_is_count(size) and re.fullmatch(r"\w{1,40}", name) for name, size in mesh.items()):
        return None
    found = _gpus(kind, chips) if kind.startswith("gpu") else _slices(row, kind, chips)
    if found is None:
        return None
    text, slices = found
    axes = _axes(mesh, slices)
    if not {name.removeprefix("dcn_") for name in axes} <= _ROLES:
        return None  # stages of a pipeline, and what nobody has described
    devices = chips * _devices_per_chip(kind)
    whole = math.prod(size for size, _ in axes.values())
    crossing = math.prod(size for size, is_dcn in axes.values() if is_dcn)
    return Machine(text, axes) if whole == devices and crossing == slices else None


def _devices_per_chip(kind: str) -> int:
    return 2 if re.search(r"tpu ?v?(7x|3|2)\b", kind) else 1


def kind_of(row: Mapping[str, Any]) -> str:
    """Return what a row ran on, as `tpu v6e`, `tpu7x` or `gpu h100-80g x8`."""
    found = re.sub(r"[_ ]+", " ", str(row.get("hardware", "")).strip().lower()[:80])
    found = found.replace("trillium", "v6e").replace("ironwood", "7x")
    if re.match(r"v\d", found):
        found = f"tpu {found}"
    if re.match(r"(?:nvidia )?(?:a|h|b|gb)\d", found):
        found = f"gpu {found.removeprefix('nvidia ')}"
    found = re.sub(r"^(tpu ?v?\d\w*)-\d+$", r"\1", found)  # an accelerator type
    return re.sub(r"^tpu ?v?7x$", "tpu7x", found)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 24


def _gpus(kind: str, chips: int) -> tuple[str, int] | None:
    match = re.match(r"gpu (\w+?)(?:-(\d{1,4})gb?)?(?: x(\d{1,3}))?$", kind)
    if match is None:
        return None
    name, memory = match[1], match[2]
    per_node = int(match[3] or (4 if name.startswith("gb") else 8))
    if not per_node or spec_path("hardware", name) is None:
        return None
    name = "a100-40gb" if (name, memory) == ("a100", "40") else name
    if chips % per_node:
        return (f"{chips} {name}", 1) if chips < per_node else None
    return f"{chips // per_node} * {name}", chips // per_node


def _slices(row: Mapping[str, Any], kind: str, chips: int) -> tuple[str, int] | None:
    """Return slices of a TPU: as many as the row says, each of the shape it says or of its size."""
    match = re.match(r"tpu ?(\w+)$", kind)
    if match is None:
        return None
    count = re.match(r"(\d{1,6}) ?x ?(?=v|tpu)", str(row.get("slice", "")))
    slices = max(1, int(count[1])) if count else 1
    crossing = [size for name, size in row["mesh"].items() if name.startswith("dcn_")]
    slices = max(slices, math.prod(crossing))
    if chips % slices:
        return None
    if spec_path("hardware", f"tpu_{_chip(match[1])}") is None:
        return None
    shape = row.get("topology") or _shape(match[1], chips // slices)
    is_shape = re.fullmatch(r"\d{1,4}(?:x\d{1,4}){1,2}", str(shape))
    return (f"{slices} * tpu {_chip(match[1])} {shape}", slices) if is_shape else None


def _chip(name: str) -> str:
    return name if name.startswith("v") else f"v{name}"


def _shape(kind: str, chips: int) -> str | None:
    """Return the shape of a slice by its chips: as near to a cube as the catalogue has it."""
    found = catalogue_entry(f"tpu_{_chip(kind)}").shapes.of_size(chips)
    return None if found is None else "x".join(map(str, found))


def _axes(mesh: Mapping[str, int], slices: int) -> dict[str, tuple[int, bool]]:
    """Return the axes of a mesh; where none is said to cross slices, the first ones do."""
    axes: dict[str, tuple[int, bool]] = {}
    left = slices // math.prod(size for name, size in mesh.items() if name.startswith("dcn_"))
    for name, size in mesh.items():
        if size == 1:
            continue
        if name.startswith("dcn_"):
            axes[name] = (size, True)
            continue
        plain = name.removeprefix("ici_")
        across = 1 if name.startswith("ici_") else math.gcd(size, left)
        left //= across
        if across > 1:
            axes[f"dcn_{plain}"] = (across, True)
        if size > across:
            axes[plain] = (size // across, False)
    return axes or {"data": (1, False)}


# specs


def spec_text(row: Mapping[str, Any]) -> str | None:
    """Return the spec of a row, with its step and one target; None where it says too little."""
    model, machine, batch = model_of(row), machine_of(row), batch_of(row)
    if model is None or machine is None or batch is None or batch % _microbatches(row):
        return None
    head = {
        "shardspec": 1,
        "axes": _sizes(model, batch),
        "targets": {"measured": {"hardware": machine.text, "mesh": _mesh(machine)}},
        "rules": list(_rules(machine, model)),
        "state": {"optimizer": "same", "dtype": "f32"},
        "params": {path: re.sub(r"^layers_\d+ ", "", names) for path, names, _ in _arrays(model)},
        "scan": {f"s{at}/**": f"layers_{at}@0" for at, _ in enumerate(model.stacks)},
        "arrays": {path: _typed(model, at, names) for path, names, at in _arrays(model)},
        "activations": {"residual": "batch length embed", "encoded": "batch length embed"},
        "step": _step(row, model),
    }
    return json.dumps(head, indent=1)


def batch_of(row: Mapping[str, Any]) -> int | None:
    """Return the sequences of a step on all devices; None where the row does not say."""
    model = model_of(row)
    found, each, tokens = (
        row.get(name) for name in ("global_batch", "per_device_batch", "tokens_per_step")
    )
    if found is None and _is_count(tokens) and model is not None:
        found = tokens // model.length
    if found is None and isinstance(each, int | float) and _is_count(row.get("chips")):
        whole = each * row["chips"] * _devices_per_chip(kind_of(row))
        found = int(whole) if 0 < whole < 1 << 24 and whole == int(whole) else None
    return found if _is_count(found) else None


def _sizes(model: Model, batch: int) -> dict[str, int]:
    found = {"batch": batch, "length": model.length, "vocab": model.vocab, "embed": model.embed}
    if model.targets:
        found["target_length"] = model.targets
    for at, each in enumerate(model.stacks):
        own = {
            "layers": each.count,
            "heads": each.heads,
            "kv_heads": each.kv_heads,
            "kv": each.head_dim,
            "mlp": each.mlp,
            "expert": each.experts,
            "expert_mlp": each.expert_mlp,
            "q_rank": each.q_rank,
            "kv_rank": each.kv_rank,
            "key_dim": each.key_dim,
            "value_dim": each.value_dim,
        }
        if each.experts:
            due = model.length * each.active * model.capacity / each.experts
            own["slot"] = math.ceil(due)
        found |= {f"{name}_{at}": size for name, size in own.items() if size}
    return found


def _mesh(machine: Machine) -> dict[str, int | str]:
    return {n: f"{size} @ dcn" if is_dcn else size for n, (size, is_dcn) in machine.axes.items()}


def _rules(machine: Machine, model: Model) -> Iterator[str]:
    """Yield the rules: what each role of a mesh axis splits.

    Source: MaxText, configs/base.yml, logical_axis_rules; the other frameworks' are alike for the
    meshes that rows have.
    """
    split = (_FSDP, _TURNED, _LENGTH, _EXPERT)
    fsdp = [axis for roles in split for axis in machine.of(roles)]
    batch = (*machine.of(_DATA), *machine.of(_FSDP), *machine.of(_TURNED), *machine.of(_EXPERT))
    tensor, turned = machine.of(_TENSOR), machine.of(_TURNED)
    for at, each in enumerate(model.stacks):
        if each.experts:
            yield _rule(f"expert_{at}", machine.of(_EXPERT))
    yield _rule("batch", batch)
    for name in ("length", "target_length") if model.targets else ("length",):
        yield _rule(name, machine.of(_LENGTH))
    yield _rule("vocab", tensor)
    sizes = _sizes(model, 1)
    for name in sizes:
        role = name.rstrip("0123456789").rstrip("_")
        if role in ("heads", "kv_heads"):
            yield _rule(name, tensor)
        elif role in ("mlp", "expert_mlp"):
            yield _rule(name, (*turned, *tensor))
        elif role in ("layers", "kv", "q_rank", "kv_rank", "key_dim", "value_dim", "slot"):
            yield _rule(name, ())
    yield _rule("embed", fsdp)


def _rule(name: str, axes: Any) -> str:
    if not axes:
        return f"{name} -> none"
    if len(axes) == 1:
        return f"{name} -> {axes[0]} | none"
    return f"{name} -> ({', '.join(axes)})? | none"


def _arrays(model: Model) -> Iterator[tuple[str, str, int]]:
    """Yield the arrays: path, names of their dimensions, number of the stack."""
    yield "embedder/embedding", "vocab embed", -1
    for at, each in enumerate(model.stacks):
        for name, dims in _of_layer(each).items():
            names = (dim if dim == "embed" else f"{dim}_{at}" for dim in ("layers", *dims.split()))
            yield f"s{at}/{name}", " ".join(names), at
    if not model.tied:
        yield "logits/kernel", "embed vocab", -1


def _of_layer(stack: Stack) -> dict[str, str]:
    found = {"query": "embed heads kv", "out": "heads kv embed"}
    if stack.kv_rank:
        found = {
            "query": "q_rank heads kv" if stack.q_rank else "embed heads kv",
            **({"query_down": "embed q_rank"} if stack.q_rank else {}),
            "down": "embed kv_rank",
            "key": "kv_rank heads key_dim",
            "value": "kv_rank heads value_dim",
            "out": "heads value_dim embed",
        }
    elif not stack.shares_kv:
        found |= {"key": "embed kv_heads kv", "value": "embed kv_heads kv"}
    if stack.side == "decoder":
        found |= {f"cross_{name}": dims for name, dims in found.items()}
    for mlp, prefix, first in (("mlp", "", ""), ("expert_mlp", "expert_", "expert ")):
        if (stack.mlp if mlp == "mlp" else stack.experts) > 0:
            gates = ("gate", "up") if stack.gated else ("up",)
            found |= {f"{prefix}wi_{each}": f"{first}embed {mlp}" for each in gates}
            found[f"{prefix}wo"] = f"{first}{mlp} embed"
    if stack.experts:
        found["router"] = "embed expert"
    return found


def _typed(model: Model, at: int, names: str) -> str:
    sizes = _sizes(model, 1)
    return f"f32[{', '.join(str(sizes[name]) for name in names.split())}]"


def _step(row: Mapping[str, Any], model: Model) -> dict[str, Any]:
    precision = str(row.get("precision", "bf16")).lower()
    dtype = next((dtype for word, dtype in _DTYPES.items() if word in precision), "bf16")
    program = [*_start(model)]
    for at, each in enumerate(model.stacks):
        program += _layer(at, each, model)
    table = '"embedder/embedding"' if model.tied else '"logits/kernel"'
    length = "target_length" if model.targets else "length"
    program.append(f"residual, {table} -> logits[batch {length} vocab]")
    remat = _remat(row, model)
    found = {"microbatches": _microbatches(row), "remat": remat, "dtype": dtype, "program": program}
    # A learned bias on the scores keeps T5 from kernels.
    return {**found, "attention": "einsum"} if model.targets else found


def _microbatches(row: Mapping[str, Any]) -> int:
    parts = re.search(r"grad accumulation (\d{1,9})", str(row.get("note", "")))
    return int(parts[1]) if parts and 0 < int(parts[1]) < 4096 else 1


def _remat(row: Mapping[str, Any], model: Model) -> Any:
    """Return what layers keep, as the row or its recipe says; where nothing does, nothing."""
    stated = str(row.get("remat", "full")).lower()
    found = _REMAT.get(stated, "full")
    if stated == "custom":
        recipe = recipe_of(row)
        if recipe is not None:
            return recipe["kept"] or "full"
        # Recipes for models of experts mostly keep what comes into a layer, and no more.
        if any(each.experts for each in model.stacks):
            return "full"
    return found.strip("[]").split(", ") if found.startswith("[") else found


def recipe_of(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a published recipe says of a row's model on its machine."""
    recipes = json.loads((DATA / "kept.json").read_text(encoding="utf-8"))["recipes"]
    dims, models = dims_of(row), _known()["models"]
    for each in recipes:
        is_model = dims is not None and models[plain(each["model"])].items() <= dims.items()
        is_meant = is_model and each["hardware"] == kind_of(row)
        if not is_meant or (row.get("seq") or 0) < each.get("from_length", 0):
            continue
        if each.get("precision") in (None, row.get("precision", "bf16")):
            return dict(each)
    return None


def _start(model: Model) -> Iterator[str]:
    table = '"embedder/embedding"'
    if not model.targets:
        yield f"gather(tokens[batch length], {table}) -> residual[batch length embed]"
        return
    yield f"gather(tokens[batch length], {table}) -> encoded[batch length embed]"
    yield f"gather(targets[batch target_length], {table}) -> residual[batch target_length embed]"


def _layer(at: int, stack: Stack, model: Model) -> Iterator[str]:
    """Yield the lines of one layer."""
    value = "encoded" if stack.side == "encoder" else "residual"
    length = "target_length" if stack.side == "decoder" else "length"
    yield from _attention(at, stack, value, value, length, length, "", stack.positions)
    if stack.side == "decoder":
        pairs = float(model.length)
        yield from _attention(at, stack, value, "encoded", length, "length", "cross_", pairs)
    gates = "{gate,up}" if stack.gated else "up"
    if stack.mlp:
        yield f'{value}, "s{at}/wi_{gates}" -> hidden[batch {length} mlp_{at}]'
        yield f'hidden, "s{at}/wo" -> {value}[batch {length} embed]'
    if stack.experts:
        slots, size = f"batch slot_{at} embed", f"flops batch * slot_{at} * embed"
        yield f'residual, "s{at}/router" -> routing[batch length expert_{at}]'
        yield f"op(residual, routing) -> leaving[_ as expert_{at}, {slots}], {size}".replace(
            " slot", ", slot", 1
        ).replace(" embed]", ", embed]", 1)
        yield f"leaving -> arrived[expert_{at} {slots}]"
        inner = f"inner[expert_{at} batch slot_{at} expert_mlp_{at}]"
        yield f'arrived, "s{at}/expert_wi_{gates}" -> {inner}'
        yield f'inner, "s{at}/expert_wo" -> made[expert_{at} {slots}]'
        yield f"made -> returned[_ as expert_{at}, batch, slot_{at}, embed]"
        yield f"op(returned) -> mixed[batch length embed], {size}"
        yield "mixed -> residual[batch length embed]"


def _attention(
    at: int, stack: Stack, value: str, memory: str, length: str, key_length: str, cross: str,
    positions: float,
) -> Iterator[str]:  # fmt: skip
    """Yield the lines of attention; its FLOPs are those of the pairs that the mask leaves."""
    width, kv = f"kv_{at}", f"kv_heads_{at} kv_{at}"
    query = f"batch {length} heads_{at} kv_{at}"
    context = f"batch {length} heads_{at} " + (f"value_dim_{at}" if stack.kv_rank else width)
    pairs = round(2 * positions * (stack.head_dim + (stack.value_dim or stack.head_dim)))
    flops = f"flops {pairs} * batch * {length} * heads_{at}"
    source = value
    if stack.q_rank:
        yield f'{value}, "s{at}/query_down" -> query_low[batch {length} q_rank_{at}]'
        source = "query_low"
    yield f'{source}, "s{at}/{cross}query" -> query[{query}]'
    if stack.shares_kv:
        yield f"op(query) -> context[{context}], {flops}"
    elif stack.kv_rank:
        yield f'{memory}, "s{at}/down" -> low[batch {length} kv_rank_{at}]'
        for name in ("key", "value"):
            dims = f"batch {length} heads_{at} {name}_dim_{at}"
            yield f'low, "s{at}/{name}" -> {name}[{dims}]'
        yield f"op(query, key, value) -> context[{context}], {flops}"
    else:
        for name in ("key", "value"):
            yield f'{memory}, "s{at}/{cross}{name}" -> {name}[batch {key_length} {kv}]'
        yield f"flash(query, key, value) -> context[{context}], {flops}"
    yield f'context, "s{at}/{cross}out" -> attended[batch {length} embed]'
    yield f"attended -> {value}[batch {length} embed]"
