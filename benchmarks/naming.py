"""How many arrays of public models `init` names, and how many of those names are wrong.

    python benchmarks/naming.py shapes FOLDER llama mixtral bert ...   # needs torch, transformers
    python benchmarks/naming.py judge FOLDER                           # needs shardspec alone

`shapes` makes each model from the default config of its class on torch's meta device, and again
with one number of the config changed at a time: a dimension that changes depends on that number.
So what a dimension is comes from the module, and not from a table of names: `intermediate_size`
is the width of an MLP, whatever its array is called. `judge` holds the names that `init` guesses
to that. A name is wrong where its dimension depends on a number of another kind; where gate and
up are one matrix and the name says one of them, or the other way round; and where inputs and
outputs of a square matrix of attention are taken for each other. Arrays that other libraries name
come as files of the same form: `{"model": NAME, "arrays": {PATH: [SHAPE, KIND, DEPENDS_ON]}}`.
"""

from __future__ import annotations

import copy
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

#: Kinds of numbers of configs, by their names; the first that is found counts.
KINDS = {
    "width": r"(?:out|hidden|stage|stages|base|embed)_channels|stage_channels",
    "other": r"type_vocab|num_buckets|codebook",
    "mlp": r"shared_experts|intermediate|ffn|d_ff|n_inner|mlp_ratio|mlp_dim|feed_forward|inner_dim",
    "vocab": r"vocab_size",
    "experts": r"num_.*experts$|n_routed_experts|num_experts|n_experts",
    "rank": r"_rank$",
    "heads": r"num.*heads|n_head|head_dim|d_kv|kv_channels|query_groups|linear_.*head|d_head",
    "state": r"state|conv_kernel|conv_dim|mamba|expand|ssm|lru_width",
    "places": r"position|n_ctx|image_size|patch(?!_emb)|max_|seq_len|num_mel|channels|spatial"
    r"|kernel|conv_",
    "width ": r"",
}
_ATTENTION = {"joined_kv", "joined_kv_heads", "joined_qkv", "key_value", "heads", "kv_heads", "kv"}
#: Of what kind of numbers a dimension of a name may depend, and on one of which it has to.
MAY: dict[str, tuple[set[str], set[str]]] = {
    "embed": ({"width", "state", "places"}, {"width", "state", "places"}),
    "mlp": ({"mlp", "width", "state", "places"}, set()),
    "gate_up": ({"mlp", "width", "state"}, {"mlp"}),
    "vocab": ({"vocab", "places"}, {"vocab"}),
    "expert": ({"experts"}, {"experts"}),
    "router": ({"experts"}, {"experts"}),
    "low_rank": ({"rank", "heads", "state"}, {"rank", "heads", "state"}),
    **{name: ({"heads", "width", "state", "rank"}, set()) for name in _ATTENTION},
}
_OUTPUT = re.compile(
    r"(?i)(?:^|[./])(?:o_proj|out_proj|output_proj|final|proj_out|o|out|dense|c_proj|wo|proj|to_out(?:\.0)?|to_add_out|output|out_lin"
    r"|linear_proj|attn_output|projection(?:_layer)?|linear_out|linear|attention_output)[./](?:weight|kernel|w)$"
)


def kind_of(number: str) -> str:
    last = number.split(".")[-1]
    return next(kind for kind, text in KINDS.items() if re.search(text, last)).strip()


def shapes(folder: Path, names: Sequence[str]) -> None:
    """Write a file for each model: its arrays, and on what their dimensions depend."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    for name in names:
        try:
            found = measured(CONFIG_MAPPING[name]())
        except Exception as error:  # defaults of some classes make no model
            print(f"{name}: {str(error)[:90]}", file=sys.stderr)
            continue
        (folder / f"{name}.json").write_text(json.dumps({"model": name, "arrays": found}))


def measured(config: Any) -> dict[str, Any]:
    """Return shape, class and dependencies of each parameter of a model."""
    first = arrays_of(config)
    depends = {path: [set[str]() for _ in shape] for path, (shape, _) in first.items()}
    for route in numbers(config):
        for factor in (2, 4, 3):
            changed = copy.deepcopy(config)
            owner = changed
            for part in route[:-1]:
                owner = getattr(owner, part)
            value = getattr(owner, route[-1])
            is_list = isinstance(value, (list, tuple))
            new = type(value)(each * factor for each in value) if is_list else value * factor
            try:
                setattr(owner, route[-1], new)
                second = arrays_of(changed)
            except Exception:  # not every number may have every size
                continue
            for path, (shape, _) in first.items():
                for at, size in enumerate(shape):
                    if path in second and second[path][0][at : at + 1] != (size,):
                        depends[path][at].add(".".join(route))
            break
    return {
        path: (shape, kind, [sorted(each) for each in depends[path]])
        for path, (shape, kind) in first.items()
    }


def arrays_of(config: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and class of each parameter of the fullest model that a config has."""
    import torch
    import transformers as hf

    heads = ["CausalLM", "Seq2SeqLM", "ImageTextToText", "MaskedLM", "ImageClassification"]
    for auto in (*(getattr(hf, f"AutoModelFor{head}") for head in heads), hf.AutoModel):
        if type(config) in auto._model_mapping:
            with torch.device("meta"):
                model = auto.from_config(config)
            return {
                f"{prefix}.{name}".lstrip("."): (tuple(each.shape), type(module).__name__)
                for prefix, module in model.named_modules()
                for name, each in module.named_parameters(recurse=False)
            }
    raise ValueError("no model of this config")


def numbers(config: Any, route: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield where a config and those inside it hold numbers that sizes may depend on."""
    for name, value in vars(config).items():
        if hasattr(value, "to_dict"):
            yield from numbers(value, (*route, name))
        is_size = isinstance(value, int) and not isinstance(value, bool) and value > 1
        if isinstance(value, (list, tuple)) and re.search(r"size|dim|channel|width|chans", name):
            is_size = bool(value) and all(type(each) is int and each > 1 for each in value)
        words = r"size|dim|d_model|n_emb|width|chan|feat|filters"
        usual = kind_of(name) != "width" or re.search(words, name)
        if not name.startswith("_") and (is_size or "mlp_ratio" in name) and value and usual:
            yield (*route, name)


def judged(file: Path) -> tuple[list[int], list[str]]:
    """Return counts and bytes of all, named and wrong arrays, and what is unnamed or wrong."""
    from shardspec.ir.spec import Param
    from shardspec.naming.guessing import UNKNOWN, guess

    arrays = {
        path: each for path, each in json.loads(file.read_text())["arrays"].items() if each[0]
    }
    guesses = guess(tuple(Param(path, tuple(each[0]), "bf16") for path, each in arrays.items()))
    kinds = {axis.name: axis.kind for axis in guesses.axes}
    names = {param.path: each.names for each in guesses.arrays for param in each.params}
    sizes: dict[str, set[int]] = defaultdict(set)
    for shape, _, depends in arrays.values():
        for size, on in zip(shape, depends, strict=True):
            for number in on:
                sizes[number].add(size)
    sums, told = [0] * 6, []
    for path, (shape, kind, depends) in arrays.items():
        found = None if names[path] is None else [kinds.get(n or "", n) for n in names[path]]
        wrong = () if found is None else tuple(faults(path, found, shape, kind, depends, sizes))
        is_named = found is not None and not any(
            (name is None or name == UNKNOWN) and size > 8 and on and not (at and "Conv" in kind)
            for at, (name, size, on) in enumerate(zip(found, shape, depends, strict=True))
        )
        bytes_ = 2 * math.prod(shape)
        for at, counts in enumerate((True, is_named, bool(wrong))):
            sums[at] += counts
            sums[at + 3] += counts * bytes_
        if wrong or not is_named:
            told.append(f"{file.stem}: {path} {shape} {names[path]} {'; '.join(wrong)}")
    return sums, told


def faults(
    path: str,
    names: Sequence[str | None],
    shape: Sequence[int],
    kind: str,
    depends: Sequence[Sequence[str]],
    sizes: dict[str, set[int]],
) -> Iterator[str]:
    """Yield what is wrong with the names of an array."""
    for name, size, on in zip(names, shape, depends, strict=True):
        is_count = name is not None and ("expert" in name or "router" in name)
        shared = {number for number in on if is_count and number.endswith("n_shared_experts")}
        of = {"experts" if number in shared else kind_of(number) for number in on}
        if name == "vocab" and "vocab" in of:
            of -= {"other"}
        may, must = MAY.get((name or "").rstrip("'"), (of, set()))
        if of and (not of <= may or (must and not of & must)):
            yield f"{name} depends on {', '.join(on)}"
        widths = [number for number in on if kind_of(number) == "mlp" and "ratio" not in number]
        widths = [number for number in widths if len(sizes[number]) <= 4]  # no stages of their own
        is_double = any(size % 2 == 0 and size // 2 in sizes[number] for number in widths)
        is_shared = re.search(r"shared|shexp", path) is not None  # several experts, side by side
        is_told = not is_shared and (bool(widths) or name == "mlp")
        if name in ("mlp", "gate_up") and is_told and is_double != (name == "gate_up"):
            yield f"{name} is {'two' if is_double else 'one'}"
    is_square = len(shape) == 2 and shape[0] == shape[1] and depends[0] == depends[1]
    if is_square and set(names) == {"embed", "joined_kv"} and kind in ("Linear", "Conv1D"):
        out_first = (names[0] == "embed") == (kind == "Linear")
        if bool(_OUTPUT.search(path)) != out_first:
            yield "the other way round"


def main() -> None:
    verb, folder, *names = sys.argv[1:]
    if verb == "shapes":
        Path(folder).mkdir(parents=True, exist_ok=True)
        shapes(Path(folder), names)
        return
    rows = [judged(file) for file in sorted(Path(folder).glob("*.json"))]
    for _, told in rows:
        print(*told, sep="\n", end="\n" if told else "")
    for what, at in (("arrays", 0), ("bytes", 3)):
        all_, named, wrong = (sum(sums[at + each] for sums, _ in rows) for each in range(3))
        means = [sum(sums[at + each] / sums[at] for sums, _ in rows) / len(rows) for each in (1, 2)]
        print(
            f"{what} of {len(rows)} models: {named / all_:.1%} named, {wrong / all_:.2%} wrong;"
            f" mean of models: {means[0]:.1%} named, {means[1]:.2%} wrong"
        )


if __name__ == "__main__":
    main()
