"""Presets lay out what real packages make as it is, or refuse it: names and sizes are theirs.

`benchmarks/derived_arrays.py` records them, and which dimension of a weight each dimension is, by
making each model again with one size doubled.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from shardspec import pipeline
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.spec import Param, Spec
from shardspec.resolve.match import PathMatcher, path_matcher

DATA = Path(__file__).parents[1] / "data" / "derived_arrays.txt"
PRESETS = {
    "peft": "derive/peft",
    "qwix": "derive/qwix",
    "flax": "derive/nnx-lora",
    **dict.fromkeys(
        ("autoawq", "bitsandbytes", "compressed-tensors", "optimum-quanto", "torchao"),
        "derive/quantized",
    ),
}
#: What a user names: weights, and nothing that a library makes from them.
WEIGHT = re.compile(
    r"(.*[./])?(base_layer\.|original_module\.|base_module/|_proj\.|c_fc\.|conv\.|embed_tokens\.|norm\.)?"
    r"(weight|bias|weight_packed|qweight|_weight_qdata|weight\._data(\._data)?|gate_up_proj"
    r"|kernel(/array/qvalue)?)"
)
ADAPTER = re.compile(r"lora_|hira_|glora|gralora|lily_|peanut|oft_|modules_to_save|ln_tuning|psoft")
#: What the spec of a user of experts in one array has: nothing says which array an adapter is of.
EXPERTS = (
    '"base_model.model.*.experts.lora_{A,B}*": from {base_model.model.,}*.experts{.base_layer,}'
    ".gate_up_proj = B[t0 t2] @ A[t0 t1]"
)


class Array(NamedTuple):
    """One array of a library.

    Attributes:
      equal: its sizes where all sizes of the model are equal.
      dims: for each dimension, which of the model's sizes it goes with.
    """

    path: str
    shape: tuple[int, ...]
    equal: tuple[int, ...]
    dims: tuple[tuple[str, ...], ...]

    @property
    def is_weight(self) -> bool:
        """Say whether a user names it."""
        return WEIGHT.fullmatch(self.path) is not None and not ADAPTER.search(self.path)


class Model(NamedTuple):
    """What one library makes of one model."""

    package: str
    title: str
    arrays: tuple[Array, ...]

    @property
    def names(self) -> dict[str, str]:
        """Return the logical axis of each size: `t0`, in their order in the title's model."""
        found = sorted({name for array in self.arrays for dim in array.dims for name in dim})
        return {name: f"t{at}" for at, name in enumerate(found)}

    def params(self, *, equal: bool, said: bool) -> Iterator[Param]:
        """Yield the arrays, with names for the weights; with roles where those have to be said."""
        for array in self.arrays:
            axes = self.axes(array, said=said) if array.is_weight else None
            yield Param(array.path, array.equal if equal else array.shape, "f32", axes)

    def axes(self, array: Array, *, said: bool) -> tuple[str | None, ...]:
        """Return the logical axes of a weight."""
        names = [self.names[dim[0]] if dim else None for dim in array.dims]
        if not said or len(array.dims) < 2:
            return tuple(names)
        if self.package == "qwix":
            read = next(each for each in self.arrays if each.path.endswith("lora_a")).dims
            made = next(each for each in self.arrays if each.path.endswith("lora_b")).dims
            reads, makes = ({n for dim in dims for n in dim} for dims in (read, made))
            roles = [
                "in:" if {*dim} & reads else "out:" if {*dim} & makes else "" for dim in array.dims
            ]
            if None in names:  # a convolution, whose window is read
                roles = [role if role == "out:" else "" for role in roles]
        elif " c_" in self.title:
            roles = ["in:" if dim[0].startswith("i_") else "out:" for dim in array.dims]
        else:
            return tuple(names)
        return tuple(n and f"{role}{n}" for role, n in zip(roles, names, strict=True))


@cache
def models() -> tuple[Model, ...]:
    found: list[tuple[str, list[Array]]] = []
    for line in DATA.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            found.append((line, []))
            continue
        path, shape, equal, dims = line.split(" | ")
        sizes = (() if each == "." else tuple(map(int, each.split("x"))) for each in (shape, equal))
        of = (
            ()
            if dims == "."
            else tuple(() if d == "-" else tuple(d.split("+")) for d in dims.split())
        )
        found[-1][1].append(Array(path, *sizes, of))
    heads = ((title.removeprefix("# ").split(" | "), arrays) for title, arrays in found)
    return tuple(Model(head[0].split()[0], head[1], tuple(arrays)) for head, arrays in heads)


@cache
def spec_of(package: str, said: bool) -> Spec:
    rules = ", ".join(f"t{at} -> m{at}" for at in range(6))
    mesh = ", ".join(f"m{at}: 2" for at in range(6))
    derive = f"derive: {{{EXPERTS}}}\n" if said else ""
    roles = " ".join(f"in:t{at} out:t{at}" for at in range(6))  # of which arrays may have names
    text = f"extends: {PRESETS[package]}\nmesh: {{{mesh}}}\nrules: [{rules}]\n"
    text += f"params: {{none: '{roles}'}}\n"
    spec, faults = pipeline.load_text(text + derive.replace("from ", "'from ").replace("]}", "]'}"))
    assert spec is not None
    assert faults == ()
    return spec


def plan_of(model: Model, *, equal: bool, said: bool) -> ShardingPlan:
    params = tuple(model.params(equal=equal, said=said))
    return pipeline.compile_plans(spec_of(model.package, said), params)[0]


def is_refused(found: ParamSharding) -> bool:
    """Say whether a finding says that the array cannot be laid out: SHD205, SHD241, SHD242."""
    derivation = found.derivation
    if derivation is None:
        return found.needs_names and not is_replicated(found.path)
    return derivation.parent is None or bool(derivation.fault)


@cache
def replicated() -> PathMatcher:
    """Return the patterns by which presets say that an array is replicated, and why."""
    return path_matcher(tuple(entry.pattern for entry in spec_of("peft", True).replicate))


def is_replicated(path: str) -> bool:
    return replicated().first_match(path) is not None


def is_right(model: Model, array: Array, found: ParamSharding) -> bool:
    """Say whether each dimension lies as the one that it is.

    One that goes with several, or in blocks, may also be whole; so may all that layers share.
    """
    if is_replicated(array.path):
        return found.is_replicated
    weights = [each for each in model.arrays if each.is_weight]
    sizes = {
        (dim, size)
        for each in weights
        for dim, size in zip(each.dims, each.shape, strict=True)
        if dim
    }
    for dim, size, axes in zip(array.dims, array.shape, found.partition_spec.dims, strict=True):
        first = {(f"m{model.names[name][1:]}",) for name in dim}
        if axes not in (first | {()} if dim else {()}):
            return False
        if not axes and (dim, size) in sizes and len(dim) == 1:
            return False
    return True


def verdicts(package: str, *, equal: bool, said: bool) -> Iterator[tuple[str, str]]:
    """Yield what becomes of each array that is made from another, and which it is."""
    for model in models():
        if model.package != package:
            continue
        plan = plan_of(model, equal=equal, said=said)
        for array in model.arrays:
            if array.is_weight:
                continue
            found = plan[array.path]
            verdict = "right" if is_right(model, array, found) else "WRONG"
            if is_refused(found):
                verdict = "refused"
            yield verdict, f"{model.title}: {array.path} {found.param} {found.partition_spec}"


@pytest.mark.parametrize("package", PRESETS)
@pytest.mark.parametrize("said", [True, False])
def test_each_array_is_right_or_refused_whatever_the_sizes(package: str, said: bool) -> None:
    answers = [[*verdicts(package, equal=equal, said=said)] for equal in (False, True)]
    wrong = [each for found in answers for verdict, each in found if verdict == "WRONG"]
    assert wrong == []
    assert [verdict for verdict, _ in answers[0]] == [verdict for verdict, _ in answers[1]]


def test_nearly_all_are_right() -> None:
    found = Counter(
        verdict for package in PRESETS for verdict, _ in verdicts(package, equal=False, said=True)
    )
    assert found["right"] >= 0.97 * found.total()


def test_the_pages_have_these_numbers() -> None:
    found = [each for package in PRESETS for each in verdicts(package, equal=False, said=True)]
    count = Counter(verdict for verdict, _ in found)
    right = {title.split()[0] for verdict, title in found if verdict == "right"}
    methods = {model.title.split()[0] for model in models() if model.package == "peft"}
    others = len(methods & right - {"LORA", "ADALORA", "TRAINABLE_TOKENS"})
    root = DATA.parents[2]
    page = (root / "docs" / "derived.md").read_text(encoding="utf-8")
    assert f"on {len(found):,} arrays" in page
    assert f"{count['right']:,} are sharded like" in page
    assert f"{count['refused']} are an" in page
    assert f"the arrays of {others} other methods" in page
    preset = (root / "specs" / "presets" / "derive" / "peft.yaml").read_text(encoding="utf-8")
    assert f"and {others} other methods" in preset
