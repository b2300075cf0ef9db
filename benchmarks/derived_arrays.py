"""Record the arrays that libraries make from weights: names, sizes, and what each dimension is.

What a dimension is comes from the library and not from a reading of it: each model is made again
with one size doubled, and a dimension that changes is one of the weight's dimensions of that size.
So is each model with all sizes equal, which `tests/specs/test_derived_packages.py` wants as well.

Needs the packages that are recorded, in an environment of their own:

    pip install torch peft transformers compressed-tensors bitsandbytes optimum-quanto torchao
    pip install jax flax qwix
    python benchmarks/derived_arrays.py tests/data/derived_arrays.txt

AWQ's layers are those of AutoAWQ 0.2.9, whose module is read from the folder in $AUTOAWQ, since it
cannot be installed beside a recent transformers.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import inspect
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator

warnings.filterwarnings("ignore")

Shapes = dict[str, tuple[int, ...]]
Sizes = dict[str, int]

#: What a linear layer reads and makes, by the name of the layer.
LAYERS = ("q_proj", "o_proj", "up_proj")
PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83)


def record(
    package: str,
    model: str,
    names: tuple[str, ...],
    make: Callable[[Sizes], Shapes],
    unit: int = 16,
) -> Iterator[str]:
    """Yield the lines of one model: `path | sizes | equal sizes | what each dimension is`."""
    sizes = {name: unit * prime for name, prime in zip(names, PRIMES, strict=False)}
    try:
        found, equal = make(sizes), make(dict.fromkeys(names, 4 * unit))
        changed = {name: make(sizes | {name: 2 * sizes[name]}) for name in names}
    except Exception as error:  # the library has no such thing for this layer
        print(f"{package} {model}: {type(error).__name__} {str(error)[:90]}", file=sys.stderr)
        return
    version = "0.2.9" if package == "autoawq" else importlib.metadata.version(package)
    yield f"# {package} {version} | {model}"
    for path, shape in found.items():
        if any(path not in other for other in (equal, *changed.values())):
            continue
        dims = [
            "+".join(name for name in names if changed[name][path][at : at + 1] != (size,)) or "-"
            for at, size in enumerate(shape)
        ]
        numbers = ("x".join(map(str, each)) or "." for each in (shape, equal[path]))
        yield " | ".join((path, *numbers, " ".join(dims) or "."))


# PEFT


def torch_model(sizes: Sizes, kind: str):
    """Return a model whose layers have names and kinds of real ones."""
    import torch
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)

    class Experts(nn.Module):
        def __init__(self, *, is_transposed: bool) -> None:
            super().__init__()
            e, i, o = sizes["e"], sizes["i_experts"], sizes["o_experts"]
            self.is_transposed = is_transposed
            self.gate_up_proj = nn.Parameter(torch.zeros((e, i, o) if is_transposed else (e, o, i)))

        def forward(self, x):
            return x

    def linear(name: str):
        return nn.Linear(sizes[f"i_{name}"], sizes[f"o_{name}"])

    def tree(**inner):
        found = nn.Module()
        for name, each in inner.items():
            setattr(found, name, each)
        return found

    i, o = (sizes.get(f"{side}_{kind}", 0) for side in "io")
    window = (3, 3, 3)[: int(kind[-1])] if kind.startswith("conv") and kind[-1].isdigit() else ()
    made = {
        "linear": lambda: {
            "self_attn": tree(q_proj=linear("q_proj"), o_proj=linear("o_proj")),
            "mlp": tree(up_proj=linear("up_proj")),
        },
        "embed": lambda: {"embed_tokens": nn.Embedding(i, o)},
        "norm": lambda: {"norm": nn.LayerNorm(i)},
        "experts": lambda: {"experts": Experts(is_transposed=False)},
        "experts_transposed": lambda: {"experts": Experts(is_transposed=True)},
        "c_proj": lambda: {"attn": tree(c_proj=Conv1D(o, i))},
        "c_fc": lambda: {"mlp": tree(c_fc=Conv1D(o, i))},
        "conv1": lambda: {"conv": nn.Conv1d(i, o, window)},
        "conv2": lambda: {"conv": nn.Conv2d(i, o, window)},
        "conv3": lambda: {"conv": nn.Conv3d(i, o, window)},
    }[kind]()
    model = nn.Module()
    model.model = tree(layers=nn.ModuleList([tree(**made)]))
    model.forward = lambda x: x
    return model


def names_of(kind: str) -> tuple[str, ...]:
    if kind == "linear":
        return tuple(f"{side}_{name}" for name in LAYERS for side in "io")
    if kind.startswith("experts"):
        return ("e", "i_experts", "o_experts")
    return ("i_norm",) if kind == "norm" else (f"i_{kind}", f"o_{kind}")


TARGETS = {
    "linear": ["q_proj", "o_proj", "up_proj"],
    "embed": ["embed_tokens"],
    "norm": ["norm"],
    "c_proj": ["c_proj"],
    "c_fc": ["c_fc"],
}
#: Settings without which a method does not work on these sizes.
SETTINGS = {
    "BOFT": {"boft_block_size": 4},
    "OFT": {"oft_block_size": 4, "r": 0},
    "ADALORA": {"total_step": 10},
    "VBLORA": {"vector_length": 8, "num_vectors": 5},
    "ROAD": {"group_size": 8},
    "C3A": {"block_size": 8},
}


def peft_arrays(kind: str, method: str, more: dict, is_saved: bool, adapter: str = "default"):
    """Return what makes a model with adapters: its shapes in training, or as it is saved."""
    from peft import get_peft_model, get_peft_model_state_dict
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    def make(sizes: Sizes) -> Shapes:
        config = next(c for t, c in PEFT_TYPE_TO_CONFIG_MAPPING.items() if t.value == method)
        known = inspect.signature(config).parameters
        given = dict(SETTINGS.get(method, {})) | more
        if "target_modules" in known and "target_modules" not in more:
            given["target_modules"] = TARGETS.get(kind, ["conv"])
        if "feedforward_modules" in known:
            given.setdefault("feedforward_modules", [])
        base = torch_model(sizes, kind)
        plain = {path: tuple(each.shape) for path, each in base.state_dict().items()}
        model = get_peft_model(base, config(**given), adapter_name=adapter)
        if not is_saved:
            return {path: tuple(each.shape) for path, each in model.state_dict().items()}
        kept = get_peft_model_state_dict(model, adapter_name=adapter, save_embedding_layers=False)
        return plain | {path: tuple(each.shape) for path, each in kept.items()}

    return make


def peft() -> Iterator[str]:
    from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING

    kinds = ("linear", "embed", "c_proj", "c_fc", "conv1", "conv2", "conv3")
    lora = [(kind, more) for kind in kinds for more in ({"r": 4}, {"r": 4, "use_dora": True})]
    lora += [
        ("linear", {"r": 4, "lora_bias": True}),
        ("linear", {"r": 4, "modules_to_save": ["up_proj"], "target_modules": ["q_proj"]}),
    ]
    lora += [
        (kind, {"r": 4, "target_modules": [], "target_parameters": ["experts.gate_up_proj"]})
        for kind in ("experts", "experts_transposed")
    ]
    lora += [
        (
            "embed",
            {"r": 4, "target_modules": [], "trainable_token_indices": {"embed_tokens": [0, 1, 2]}},
        )
    ]
    for is_saved in (False, True):
        where = "saved" if is_saved else "in training"
        for kind, more in lora:
            for adapter in ("default", "french"):
                make = peft_arrays(kind, "LORA", more, is_saved, adapter)
                said = ", ".join(more)
                yield from record(
                    "peft", f"LORA {kind} {said}, {adapter}, {where}", names_of(kind), make
                )
        methods = [each.value for each in PEFT_TYPE_TO_CONFIG_MAPPING]
        for method in methods:
            config = next(c for t, c in PEFT_TYPE_TO_CONFIG_MAPPING.items() if t.value == method)
            if method == "LORA" or "target_modules" not in inspect.signature(config).parameters:
                continue
            for kind in (*kinds, "norm"):
                if (kind == "norm") == (method == "LN_TUNING"):
                    make = peft_arrays(kind, method, {}, is_saved)
                    yield from record("peft", f"{method} {kind}, {where}", names_of(kind), make)


# Quantized weights


def quantized(make: Callable) -> Callable[[Sizes], Shapes]:
    """Return what makes a layer quantized by a library, in a model."""

    def shapes(sizes: Sizes) -> Shapes:
        import torch
        from torch import nn

        torch.manual_seed(0)
        model = nn.Module()
        model.up_proj = nn.Linear(sizes["i"], sizes["o"], bias=False, dtype=torch.bfloat16)
        found = make(model, sizes)
        return {f"model.layers.0.mlp.{path}": tuple(each.shape) for path, each in found.items()}

    return shapes


def quanto(kind: str) -> Callable:
    def make(model, sizes):
        from optimum import quanto as q

        q.quantize(
            model, weights=getattr(q, kind), activations=q.qint8 if kind == "qint8" else None
        )
        q.freeze(model)
        return model.state_dict()

    return make


def torchao(kind: str) -> Callable:
    def make(model, sizes):
        import torchao.quantization as q
        from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

        q.quantize_(model, getattr(q, kind)())
        return flatten_tensor_state_dict(model.state_dict())[0]

    return make


def bitsandbytes(kind: str) -> Callable:
    def make(model, sizes):
        import bitsandbytes as bnb
        import torch

        shape = (sizes["o"], sizes["i"])
        if kind == "int8":
            layer = bnb.nn.Linear8bitLt(*shape[::-1], bias=False, has_fp16_weights=False).to("cpu")
            layer(torch.randn(2, shape[1]))
        else:
            how = {"quant_type": kind[:3], "compress_statistics": "nested" in kind}
            layer = bnb.nn.Linear4bit(*shape[::-1], bias=False)
            layer.weight = bnb.nn.Params4bit(torch.randn(shape), requires_grad=False, **how)
            layer = layer.to("cpu")
        return {f"up_proj.{path}": each for path, each in layer.state_dict().items()}

    return make


def compressed(scheme: str) -> Callable:
    def make(model, sizes):
        from compressed_tensors.compressors import ModelCompressor
        from compressed_tensors.quantization import (
            QuantizationConfig,
            QuantizationStatus,
            apply_quantization_config,
            preset_name_to_scheme,
        )

        groups = {"group": preset_name_to_scheme(scheme, ["Linear"])}
        apply_quantization_config(model, QuantizationConfig(config_groups=groups))
        for name, each in model.named_parameters():
            if "scale" in name:
                each.data.fill_(1)
        for module in model.modules():
            if hasattr(module, "quantization_status"):
                module.quantization_status = QuantizationStatus.FROZEN
        ModelCompressor.from_pretrained_model(model).compress_model(model)
        return model.state_dict()

    return make


def awq(kind: str) -> Callable:
    def make(model, sizes):
        folder = os.environ["AUTOAWQ"]
        for name in ("awq", "awq.modules", "awq.modules.linear", "awq.utils"):
            module = sys.modules.setdefault(name, types.ModuleType(name))
            module.__path__ = [os.path.join(folder, *name.split("."))]
        found = importlib.import_module(f"awq.modules.linear.{kind.split('_')[1].lower()}")
        layer = getattr(found, kind)(4, 64, sizes["i"], sizes["o"], False, "cpu")
        return {f"up_proj.{path}": each for path, each in layer.state_dict().items()}

    return make


def quantizers() -> Iterator[str]:
    from compressed_tensors.quantization.quant_scheme import PRESET_SCHEMES

    configs = (
        "Int8WeightOnlyConfig",
        "Int8DynamicActivationInt8WeightConfig",
        "Float8WeightOnlyConfig",
        "Int8DynamicActivationIntxWeightConfig",
        "IntxWeightOnlyConfig",
        "Int4WeightOnlyConfig",
    )
    asked = [
        *(
            ("optimum-quanto", kind, quanto(kind))
            for kind in ("qint8", "qint4", "qint2", "qfloat8")
        ),
        *(("torchao", kind, torchao(kind)) for kind in configs),
        *(
            ("bitsandbytes", kind, bitsandbytes(kind))
            for kind in ("nf4", "nf4 nested", "fp4", "int8")
        ),
        *(("compressed-tensors", kind, compressed(kind)) for kind in PRESET_SCHEMES),
        *(("autoawq", kind, awq(kind)) for kind in ("WQLinear_GEMM", "WQLinear_GEMV")),
    ]
    for package, kind, make in asked:
        yield from record(package, kind, ("i", "o"), quantized(make), unit=256)


# JAX


def jax_shapes(make: Callable) -> Callable[[Sizes], Shapes]:
    def shapes(sizes: Sizes) -> Shapes:
        import jax
        from flax import nnx

        state = nnx.state(make(sizes))
        found = {}
        for keys, leaf in jax.tree_util.tree_flatten_with_path(nnx.to_pure_dict(state))[0]:
            path = "/".join(str(getattr(key, "key", getattr(key, "name", key))) for key in keys)
            if hasattr(leaf, "shape") and "rngs" not in path and "key" not in str(leaf.dtype):
                found[path.replace("/.", "/")] = tuple(leaf.shape)
        return found

    return shapes


def nnx_lora() -> Iterator[str]:
    from flax import nnx

    def plain(s: Sizes):
        return nnx.Dict(up=nnx.LoRALinear(s["i"], s["o"], lora_rank=4, rngs=nnx.Rngs(0)))

    def around(s: Sizes):
        linear = nnx.Linear(s["i"], s["o"], rngs=nnx.Rngs(0))
        return nnx.Dict(up=nnx.LoRA(s["i"], 4, s["o"], base_module=linear, rngs=nnx.Rngs(0)))

    def stacked(s: Sizes):
        make = nnx.vmap(lambda key: nnx.LoRALinear(s["i"], s["o"], lora_rank=4, rngs=nnx.Rngs(key)))
        import jax

        return nnx.Dict(up=make(jax.random.split(jax.random.key(0), s["layers"])))

    for name, make, names in (
        ("LoRALinear", plain, ("i", "o")),
        ("LoRA", around, ("i", "o")),
        ("LoRALinear, nnx.vmap", stacked, ("layers", "i", "o")),
    ):
        yield from record("flax", name, names, jax_shapes(make), unit=2)


def qwix() -> Iterator[str]:
    import jax.numpy as jnp
    import qwix as q
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, kind: str, s: Sizes) -> None:
            rngs = nnx.Rngs(0)
            d, n, h, f, e = (s.get(name, 1) for name in ("embed", "heads", "kv", "mlp", "expert"))
            layer, shape = {
                "Linear": lambda: (nnx.Linear(d, f, use_bias=False, rngs=rngs), (2, 3, d)),
                "query": lambda: (
                    nnx.LinearGeneral(d, (n, h), use_bias=False, rngs=rngs),
                    (2, 3, d),
                ),
                "out": lambda: (
                    nnx.LinearGeneral((n, h), d, axis=(-2, -1), use_bias=False, rngs=rngs),
                    (2, 3, n, h),
                ),
                "Einsum query": lambda: (
                    nnx.Einsum("btd,dnh->btnh", (d, n, h), rngs=rngs),
                    (2, 3, d),
                ),
                "Einsum query, heads first": lambda: (
                    nnx.Einsum("btd,ndh->btnh", (n, d, h), rngs=rngs),
                    (2, 3, d),
                ),
                "Einsum out": lambda: (
                    nnx.Einsum("btnh,nhd->btd", (n, h, d), rngs=rngs),
                    (2, 3, n, h),
                ),
                "Einsum experts": lambda: (
                    nnx.Einsum("btd,edf->ebtf", (e, d, f), rngs=rngs),
                    (2, 3, d),
                ),
                "Einsum experts out": lambda: (
                    nnx.Einsum("ebtf,efd->ebtd", (e, f, d), rngs=rngs),
                    (e, 2, 3, f),
                ),
                "Conv": lambda: (nnx.Conv(d, f, (3, 5), use_bias=False, rngs=rngs), (2, 8, 8, d)),
            }[kind]()
            self.layer, self.shape = layer, shape

        def __call__(self, x):
            return self.layer(x)

    kinds = {
        "Linear": ("embed", "mlp"),
        "query": ("embed", "heads", "kv"),
        "out": ("heads", "kv", "embed"),
        "Einsum query": ("embed", "heads", "kv"),
        "Einsum query, heads first": ("heads", "embed", "kv"),
        "Einsum out": ("heads", "kv", "embed"),
        "Einsum experts": ("expert", "embed", "mlp"),
        "Einsum experts out": ("expert", "mlp", "embed"),
        "Conv": ("embed", "mlp"),
    }
    for kind, names in kinds.items():
        for title, how in (
            ("", {}),
            (", int8", {"weight_qtype": "int8"}),
            (", int4 in tiles", {"weight_qtype": "int4", "tile_size": 2}),
        ):

            def make(s: Sizes, kind=kind, how=how):
                model = Model(kind, s)
                rule = q.LoraRule(module_path=".*", rank=4, alpha=1.0, **how)
                x = jnp.zeros(model.shape)
                return q.apply_lora_to_model(model, q.LoraProvider([rule]), x, rngs=nnx.Rngs(1))

            yield from record("qwix", f"{kind}{title}", names, jax_shapes(make), unit=2)


def main(path: str) -> None:
    """Write what is recorded to a file."""
    lines = [line for part in (peft, quantizers, nnx_lora, qwix) for line in part()]
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
    print(len(lines), "lines")


if __name__ == "__main__":
    main(sys.argv[1])
