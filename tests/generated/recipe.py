"""The choices that make a step: the options, drawing from a seed, and what goes together.

Of every field the first option is the simplest, to which shrinking goes. `Recipe.text` has only the
fields that are not the simplest, so a small case has a short name.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

#: Machines by what a spec calls them: slices or nodes, devices of each, platform.
MACHINES: dict[str, tuple[int, int, str]] = {
    "tpu v5e 2x4": (1, 8, "tpu"),
    "tpu v5e 4x4": (1, 16, "tpu"),
    "tpu v5p 2x2x2": (1, 8, "tpu"),
    "tpu v4 2x2x4": (1, 16, "tpu"),
    "tpu v6e 2x4": (1, 8, "tpu"),
    "2 * tpu v5e 4x4": (2, 16, "tpu"),
    "a100": (1, 8, "gpu"),
    "h100": (1, 8, "gpu"),
    "2 * h100": (2, 8, "gpu"),
}

#: Options of each field, the simplest first.
OPTIONS: dict[str, tuple[Any, ...]] = {
    "machine": tuple(MACHINES),
    "mode": ("eval", "train", "serve"),
    "mixer": ("none", "attention", "cross", "scan", "rnn", "conv", "ring"),
    "attention": ("einsum", "library", "grouped"),
    "heads": ("split", "flat"),
    "kv": ("same", "grouped"),
    "mlp": ("plain", "gated"),
    "product": ("einsum", "matmul", "dot_general"),
    "experts": ("none", "gshard", "sorted", "alltoall", "ragged"),
    "weights": ("plain", "lora", "int8"),
    "layers": ("unrolled", "scan", "pipeline"),
    "depth": (1, 2, 4, 12, 24),
    "remat": ("none", "full", "dots", "names"),
    "embedding": ("none", "take", "onehot"),
    "head": ("none", "own", "tied"),
    "loss": ("logsumexp", "onehot", "along"),
    "microbatches": (1, 2, 4),
    "optimizer": ("none", "sgd", "adam", "lion", "adafactor", "muon"),
    "cache": ("update", "rolling", "paged"),
    "constraints": ("none", "residual", "all", "sequence", "odd", "some"),
    "placed": ("whole", "fsdp", "zero1"),
    "tensor": (1, 2, 4, 8),
    "idle": (1, 2),
    "results": ("free", "placed"),
    "per_shard": (1, 4, 16, 64),
    "batch": ("even", "small"),
    "width": (512, 1024, 2048, 4096, 8192),
    "length": (256, 512, 1024, 2048, 4096),
    "vocab": (8192, 32000, 50257),
    "dtype": ("f32", "bf16"),
}

#: How often the options of a field are drawn, where not all alike.
_WEIGHTS: dict[str, tuple[int, ...]] = {
    "machine": (2, 3, 3, 3, 3, 2, 3, 4, 4),
    "mode": (1, 7, 2),
    "mixer": (1, 6, 1, 2, 1, 1, 1),
    "experts": (6, 1, 1, 1, 1),
    "weights": (6, 1, 1),
    "layers": (3, 5, 1),
    "depth": (0, 3, 2, 2, 2),
    "per_shard": (1, 3, 4, 2),
    "length": (1, 2, 3, 3, 3),
    "embedding": (1, 4, 1),
    "head": (1, 3, 2),
    "microbatches": (4, 1, 1),
    "optimizer": (1, 1, 5, 1, 2, 2),
    "constraints": (3, 2, 3, 1, 1, 1),
    "placed": (2, 5, 1),
    "tensor": (3, 4, 3, 1),
    "idle": (7, 1),
    "batch": (7, 1),
    "width": (0, 2, 3, 3, 1),
    "vocab": (1, 2, 1),
    "dtype": (3, 1),
}


@dataclass(frozen=True)
class Recipe:
    """Choices; see `OPTIONS`.

    Invariants:
      text: `parsed(recipe.text) == recipe`.
      settled: whatever `drawn` and `simpler` give has been through `settled`.
    """

    machine: str = "tpu v5e 2x4"
    mode: str = "eval"
    mixer: str = "none"
    attention: str = "einsum"
    heads: str = "split"
    kv: str = "same"
    mlp: str = "plain"
    product: str = "einsum"
    experts: str = "none"
    weights: str = "plain"
    layers: str = "unrolled"
    depth: int = 1
    remat: str = "none"
    embedding: str = "none"
    head: str = "none"
    loss: str = "logsumexp"
    microbatches: int = 1
    optimizer: str = "none"
    cache: str = "update"
    constraints: str = "none"
    placed: str = "whole"
    tensor: int = 1
    idle: int = 1
    results: str = "free"
    per_shard: int = 1
    batch: str = "even"
    width: int = 512
    length: int = 256
    vocab: int = 8192
    dtype: str = "f32"

    @property
    def text(self) -> str:
        """Return the choices that are not the simplest, in the order of the fields."""
        chosen = ((name, getattr(self, name)) for name in OPTIONS)
        return ",".join(f"{name}={value}" for name, value in chosen if value != OPTIONS[name][0])

    @property
    def platform(self) -> str:
        """Return `tpu` or `gpu`."""
        return MACHINES[self.machine][2]

    @property
    def tags(self) -> tuple[str, ...]:
        """Return the classes that errors are counted by."""
        sizes = ("width", "length", "vocab", "per_shard", "depth")
        used = (name for name in OPTIONS if name not in sizes and not _is_idle(self, name))
        return (f"target:{self.platform}", *(f"{name}:{getattr(self, name)}" for name in used))

    @property
    def mesh(self) -> dict[str, int]:
        """Return the mesh, without axes of size 1."""
        slices, devices, _ = MACHINES[self.machine]
        inner = {
            "stage": 2 if self.layers == "pipeline" else 1,
            "seq": 2 if self.mixer == "ring" else 1,
            "expert": 2 if self.experts != "none" else 1,
            "tensor": self.tensor,
            "idle": self.idle,
        }
        rest = devices
        for size in inner.values():
            rest //= size
        data = "fsdp" if self.placed == "fsdp" else "data"
        sizes = {"replica": slices, data: rest, **inner}
        return {name: size for name, size in sizes.items() if size > 1}

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """Return the mesh axes that the batch is split over; experts' devices have tokens, too."""
        return tuple(name for name in self.mesh if name in ("replica", "data", "fsdp", "expert"))

    @property
    def batch_size(self) -> int:
        """Return the sequences of a step."""
        shards = 1
        for name in self.batch_axes:
            shards *= self.mesh[name]
        if self.batch == "small":
            return max(shards // 2, 1) * self.microbatches
        return shards * self.per_shard * self.microbatches


def _is_idle(recipe: Recipe, name: str) -> bool:
    """Say whether a field has no effect: it is as it is in the simplest, and could not be other."""
    if getattr(recipe, name) != OPTIONS[name][0]:
        return False
    has_attention = recipe.mixer in ("attention", "cross")
    needs = {
        "attention": has_attention,
        "heads": recipe.mixer in ("attention", "cross", "ring"),
        "kv": has_attention,
        "loss": recipe.head != "none" and recipe.mode != "serve",
        "remat": recipe.mode == "train",
        "microbatches": recipe.mode == "train",
        "optimizer": recipe.mode == "train",
        "cache": recipe.mode == "serve",
        "mlp": recipe.experts == "none",
    }
    return not needs.get(name, True)


def parsed(text: str) -> Recipe:
    """Return the recipe of a text.

    Raises:
      ValueError: a field or an option that there is not.
    """
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        options = {str(each): each for each in OPTIONS.get(name, ())}
        if value not in options:
            raise ValueError(f"{part}: the options of `{name}` are {', '.join(options) or 'none'}")
        found[name] = options[value]
    return settled(Recipe(**found))


def drawn(seed: int, platform: str = "all") -> Recipe:
    """Return the recipe of a seed."""
    chance = random.Random(f"shardspec {seed}")
    found = {}
    for name, options in OPTIONS.items():
        weights = _WEIGHTS.get(name, (1,) * len(options))
        if name == "machine" and platform != "all":
            weights = tuple(
                weight * (MACHINES[each][2] == platform)
                for each, weight in zip(options, weights, strict=True)
            )
        found[name] = chance.choices(options, weights)[0]
    return settled(Recipe(**found))


def settled(recipe: Recipe) -> Recipe:
    """Return the recipe with choices that do not go together replaced by simpler ones."""
    new = recipe
    if new.mode != "train":
        new = replace(new, remat="none", microbatches=1, optimizer="none")
        new = new if new.mode == "eval" else _served(new)
    if new.mode != "serve":
        new = replace(new, cache="update")
        new = new if new.weights != "int8" else replace(new, weights="plain")
    if new.layers == "pipeline":
        mixer = new.mixer if new.mixer in ("none", "attention") else "attention"
        new = replace(new, mixer=mixer, experts="none", depth=max(new.depth, 2), idle=1)
        new = replace(new, batch="even", constraints="none", weights="plain", microbatches=1)
    if new.mixer == "ring":
        new = replace(new, experts="none", constraints=_not_sequence(new), batch="even")
    if new.experts == "alltoall":
        new = replace(new, batch="even")
    if new.experts != "none":
        new = replace(new, mlp="plain")
    if new.mixer not in ("attention", "cross"):
        new = replace(new, attention="einsum", kv="same")
    if new.mixer not in ("attention", "cross", "ring"):
        new = replace(new, heads="split")
    if new.attention == "grouped":
        new = replace(new, kv="grouped")
    if new.head == "tied" and new.embedding == "none":
        new = replace(new, head="own")
    if new.head == "none" or new.mode == "serve":
        new = replace(new, loss="logsumexp")
    if new.embedding == "none" and new.head == "none":
        new = replace(new, vocab=8192)
    if new.layers == "unrolled":
        new = replace(new, depth=min(new.depth, 12))  # with FSDP, products that go around rings
    if new.mixer == "rnn":
        new = replace(new, length=min(new.length, 1024))
    if new.placed == "zero1" and new.optimizer == "none":
        new = replace(new, placed="whole")
    return _with_mesh(new)


def _served(recipe: Recipe) -> Recipe:
    """Return a recipe of a decode step."""
    mixer = recipe.mixer if recipe.mixer in ("none", "attention") else "attention"
    experts = recipe.experts if recipe.experts in ("none", "sorted", "ragged") else "none"
    layers = "scan" if recipe.layers == "pipeline" else recipe.layers
    new = replace(recipe, mixer=mixer, experts=experts, layers=layers)
    new = replace(new, constraints=_not_sequence(new))
    if new.constraints == "odd":
        new = replace(new, constraints="residual")
    return replace(new, weights="plain" if new.weights == "lora" else new.weights)


def _not_sequence(recipe: Recipe) -> str:
    return "residual" if recipe.constraints == "sequence" else recipe.constraints


def _with_mesh(recipe: Recipe) -> Recipe:
    """Return the recipe with axes that leave two devices for the batch."""
    new = recipe
    devices = MACHINES[new.machine][1]
    while True:
        taken = new.tensor * new.idle
        taken *= 2 ** sum((new.layers == "pipeline", new.mixer == "ring", new.experts != "none"))
        if taken <= devices // 2:
            break
        new = replace(new, idle=1) if new.idle > 1 else replace(new, tensor=new.tensor // 2)
    if new.tensor == 1 and new.constraints == "sequence":
        new = replace(new, constraints="residual")
    return new


def simpler(recipe: Recipe) -> Iterator[Recipe]:
    """Yield recipes with one choice simpler, those that take most away first."""
    order = sorted(fields(recipe), key=lambda field: _LATE.get(field.name, 0))
    for field in order:
        options = OPTIONS[field.name]
        at = options.index(getattr(recipe, field.name))
        for option in options[:at]:
            new = settled(replace(recipe, **{field.name: option}))
            if complexity(new) < complexity(recipe):
                yield new


def complexity(recipe: Recipe) -> int:
    """Return how far a recipe is from the simplest one: it falls with each step of shrinking."""
    return sum(OPTIONS[name].index(getattr(recipe, name)) for name in OPTIONS)


#: Sizes and machines are tried last: they make a case no easier to read.
_LATE = {"machine": 2, "width": 1, "length": 1, "vocab": 1, "per_shard": 1}
