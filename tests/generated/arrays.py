"""The arrays of a recipe's model with the names of their dimensions, and the spec for them."""

from __future__ import annotations

from typing import NamedTuple

from tests.generated.recipe import Recipe

#: Width of a head, experts of a layer, rank of LoRA, tokens of a page.
KV, EXPERTS, RANK, PAGE = 128, 8, 16, 64


class Weight(NamedTuple):
    """One parameter: its shape, and logical axes, `_` for none."""

    shape: tuple[int, ...]
    names: str
    dtype: str = ""


def heads_of(recipe: Recipe) -> tuple[int, int]:
    """Return the heads of queries, and of keys and values."""
    heads = recipe.width // KV
    return heads, heads if recipe.kv == "same" else max(heads // 4, 1)


def hidden_of(recipe: Recipe) -> int:
    """Return the width inside an MLP, of one expert, of a state."""
    return recipe.width * (2 if recipe.experts != "none" else 4 if recipe.mlp == "plain" else 3)


def layer_weights(recipe: Recipe) -> dict[str, Weight]:
    """Return the weights of one layer."""
    found = {"mlp_norm": Weight((recipe.width,), "norm"), **_mixer(recipe), **_mlp(recipe)}
    if recipe.weights == "lora":
        for name in ("query", "value", "up", "down"):
            if name in found and len(found[name].shape) == 2:
                (rows, columns), names = found[name].shape, found[name].names.split()
                found[f"{name}_a"] = Weight((rows, RANK), f"{names[0]} _")
                found[f"{name}_b"] = Weight((RANK, columns), f"_ {names[1]}")
    if recipe.weights == "int8":
        for name, weight in list(found.items()):
            if len(weight.shape) > 1 and name not in ("router", "up_experts", "down_experts"):
                found[name] = weight._replace(dtype="s8")
                kept = 2 if name == "out" and len(weight.shape) == 3 else 1
                names = " ".join(weight.names.split()[kept:])
                found[f"{name}_scale"] = Weight(weight.shape[kept:], names)
    return found


def _mixer(recipe: Recipe) -> dict[str, Weight]:
    width = recipe.width
    norm = {"mixer_norm": Weight((width,), "norm")}
    if recipe.mixer == "none":
        return {}
    if recipe.mixer in ("attention", "cross", "ring"):
        heads, kv_heads = heads_of(recipe)
        found = {**norm}
        for name, count, axis in (
            ("query", heads, "heads"),
            ("key", kv_heads, "kv_heads"),
            ("value", kv_heads, "kv_heads"),
        ):
            found[name] = Weight((width, count, KV), f"embed {axis} kv")
            if recipe.heads == "flat":
                found[name] = Weight((width, count * KV), f"embed {axis}")
        found["out"] = Weight((heads, KV, width), "heads kv embed")
        if recipe.heads == "flat":
            found["out"] = Weight((heads * KV, width), "heads embed")
        return found
    inner = 2 * width if recipe.mixer in ("scan", "conv") else width
    found = {**norm, "state_out": Weight((inner, width), "mlp embed")}
    if recipe.mixer == "conv":
        return {**found, "kernel": Weight((3, width, inner), "_ embed mlp")}
    found["state_in"] = Weight((width, inner), "embed mlp")
    if recipe.mixer == "rnn":
        return {**found, "state_again": Weight((inner, inner), "_ mlp")}
    return {**found, "state_gate": Weight((width, inner), "embed mlp")}


def _mlp(recipe: Recipe) -> dict[str, Weight]:
    width, hidden = recipe.width, hidden_of(recipe)
    if recipe.experts != "none":
        return {
            "router": Weight((width, EXPERTS), "embed _"),
            "up_experts": Weight((EXPERTS, width, hidden), "expert embed mlp"),
            "down_experts": Weight((EXPERTS, hidden, width), "expert mlp embed"),
        }
    found = {
        "up": Weight((width, hidden), "embed mlp"),
        "down": Weight((hidden, width), "mlp embed"),
    }
    return found if recipe.mlp == "plain" else {"gate": found["up"], **found}


def weights_of(recipe: Recipe) -> dict[str, Weight]:
    """Return all parameters by path, stacked where layers are scanned."""
    found = {}
    if recipe.embedding != "none":
        found["embedding"] = Weight((recipe.vocab, recipe.width), "vocab embed")
    if recipe.head == "own":
        found["logits"] = Weight((recipe.width, recipe.vocab), "embed vocab")
    for name, weight in layer_weights(recipe).items():
        if recipe.layers == "unrolled":
            for at in range(recipe.depth):
                found[f"layers_{at}/{name}"] = weight
        else:
            shape = (recipe.depth, *weight.shape)
            found[f"layers/{name}"] = Weight(shape, f"layers {weight.names}", weight.dtype)
    return found


def spec_of(recipe: Recipe) -> str:
    """Return the text of the spec, with one target, `machine`."""
    mesh = ", ".join(_size(name, size) for name, size in recipe.mesh.items())
    slots = recipe.batch_axes
    alone = tuple(name for name in slots if name != "expert")
    optional = "?" if recipe.batch == "small" and len(slots) > 1 else ""
    batch = [f"({', '.join(slots)}){optional}" if len(slots) > 1 else slots[0]]
    if alone != slots and alone:
        batch.append(f"({', '.join(alone)})" if len(alone) > 1 else alone[0])
    if recipe.batch == "small" or recipe.mode == "serve":
        batch.append("none")
    rules = ["expert -> expert | none"] if "expert" in recipe.mesh else []
    rules.append(f"batch -> {' | '.join(batch)}")
    if "stage" in recipe.mesh:
        rules.append("layers -> stage")
    if "seq" in recipe.mesh:
        rules.append("length -> seq")
    if "tensor" in recipe.mesh:
        rules += ["act_length -> tensor", "heads, kv_heads, mlp, vocab -> tensor | none"]
    if "fsdp" in recipe.mesh:
        rules.append("embed -> fsdp | none")
    known = {
        rule_name.strip() for rule in rules for rule_name in rule.partition("->")[0].split(",")
    }
    rules += [f"{name} -> none" for name in _NAMES if name not in known]
    lines = [
        "shardspec: 1",
        "targets:",
        f"  machine: {{hardware: {recipe.machine}, mesh: {{{mesh}}}}}",
    ]
    lines += ["rules:", *(f"  - {rule}" for rule in rules)]
    lines += ["activations:", *(f"  {name}: {names}" for name, names in ACTIVATIONS.items())]
    arrays = weights_of(recipe)
    lines += ["params:", *(f"  {path}: {each.names}" for path, each in arrays.items())]
    lines.append("arrays:")
    for path, each in arrays.items():
        lines.append(f"  {path}: {each.dtype or dtype_of(recipe)}{list(each.shape)}")
    if recipe.placed == "zero1":
        over = "(replica, data)" if "replica" in recipe.mesh else "data"
        lines.append(f'state: {{optimizer: zero1, over: "{over}"}}')
    lines.append("lints: {SHD1: allow, SHD2: allow, SHD3: allow, SHD4: allow, SHD5: allow}")
    return "\n".join(lines) + "\n"


def dtype_of(recipe: Recipe) -> str:
    """Return the dtype of parameters: those of a decode step are narrow."""
    return "bf16" if recipe.mode == "serve" else recipe.dtype


def _size(name: str, size: int) -> str:
    return f"{name}: {size} @ dcn" if name == "replica" else f"{name}: {size}"


#: Names that have no rule of their own in some recipes.
_NAMES = (
    *("length", "act_length", "cache_length", "embed", "heads", "kv_heads", "kv"),
    *("mlp", "vocab", "norm", "layers", "expert"),
)
ACTIVATIONS = {
    "residual": "batch length embed",
    "sequence": "batch act_length embed",
    "odd": "_ batch _",
    "query": "batch length heads kv",
    "hidden": "batch length mlp",
    "logits": "batch length vocab",
    "dispatched": "expert batch _ embed",
    "expert_hidden": "expert batch _ mlp",
    "sorted": "expert _ embed",
    "micro": "_ batch length",
    "cache": "layers batch cache_length kv_heads kv",
}
