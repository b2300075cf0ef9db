"""One hypothesis strategy per core type, drawing from awkward values.

Sizes of 1, 3 and primes, rank 0, no rules at all, axes that no mesh has, tuples, `none`,
units, priorities, names that are given twice.
"""

from __future__ import annotations

import re

from hypothesis import strategies as st

from shardspec.diagnostics import SourceFile
from shardspec.ir.spec import (
    AxisRule,
    CoverageGate,
    LogicalAxis,
    Mesh,
    MeshAxis,
    Param,
    Pattern,
    Policy,
    Replicate,
    Spec,
    StatePolicy,
    Target,
)

LOGICAL = ("batch", "embed", "mlp", "heads", "kv", "vocab", "layers")
MESH = ("data", "fsdp", "tensor", "expert")
ABSENT = "stage"

mesh_axis_sizes = st.sampled_from((1, 2, 3, 4, 5, 8, 16))
dim_sizes = st.sampled_from((0, 1, 2, 3, 4, 6, 7, 8, 12, 13, 16, 24, 60, 64, 97, 128, 240))


@st.composite
def meshes(draw: st.DrawFn, names: tuple[str, ...] = MESH) -> Mesh:
    chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=len(names)))
    types = st.sampled_from(("auto", "auto", "explicit", "manual"))
    return Mesh(
        tuple(MeshAxis(name, draw(mesh_axis_sizes), axis_type=draw(types)) for name in chosen)
    )


def axis_rules(
    logical: tuple[str, ...] = LOGICAL, mesh: tuple[str, ...] = (*MESH, ABSENT)
) -> st.SearchStrategy[AxisRule]:
    targets = st.lists(st.sampled_from(mesh), unique=True, max_size=3).map(tuple)
    return st.builds(AxisRule, st.sampled_from(logical), targets, st.integers(-2, 2))


def rule_lists(**names: tuple[str, ...]) -> st.SearchStrategy[tuple[AxisRule, ...]]:
    return st.lists(axis_rules(**names), max_size=10).map(
        lambda rules: tuple(sorted(rules, key=lambda rule: rule.priority))
    )


@st.composite
def params(draw: st.DrawFn, *, repeats: bool = True, path: str = "array") -> Param:
    names = draw(
        st.lists(st.sampled_from((*LOGICAL, None)), max_size=4, unique_by=None if repeats else _key)
    )
    shape = tuple(draw(dim_sizes) for _ in names)
    dtype = draw(st.sampled_from(("bf16", "f32", "s4", "bool")))
    return Param(path, shape, dtype, tuple(names))


def _key(name: str | None) -> object:
    return object() if name is None else name


state_policies = st.builds(
    StatePolicy,
    st.sampled_from(("same", "zero1", "zero2")),
    st.lists(st.sampled_from((*MESH, ABSENT)), unique=True, max_size=3).map(tuple),
    st.integers(0, 3),
    st.sampled_from(("f32", "bf16")),
)
coverage_gates = st.builds(CoverageGate, st.floats(0, 1)) | st.builds(
    CoverageGate, st.none(), st.integers(0, 1 << 40)
)
replicates = st.lists(
    st.builds(Replicate, st.sampled_from(("**", "a0", "a*", "b")).map(Pattern), st.just("tiny")),
    max_size=3,
).map(tuple)

units = st.dictionaries(st.sampled_from(LOGICAL), st.sampled_from((1, 2, 4, 8)), max_size=4)
policies = st.builds(Policy, st.sampled_from(("next", "keep")), st.sampled_from(("t5x", "ring")))


@st.composite
def specs(draw: st.DrawFn) -> Spec:
    """A spec with one or two targets, over which `param()` arrays resolve."""
    targets = draw(st.lists(meshes(), min_size=1, max_size=2))
    minima = draw(units)
    axes = tuple(
        LogicalAxis(name, None, unit, min_shard=minima.get(name, 1))
        for name, unit in draw(units).items()
    )
    return Spec(
        SourceFile("spec.yaml", ""),
        logical_axes=axes,
        axis_rules=draw(rule_lists()),
        policy=draw(policies),
        targets=tuple(Target(f"t{i}", mesh) for i, mesh in enumerate(targets)),
        state=draw(st.none() | state_policies),
        coverage=draw(st.none() | coverage_gates),
        replicate=draw(replicates),
    )


REGEX_CHARS = "aAbBkKsS09_/.- \t\n\x0b\x1c\\^$[]()éÉſKİıß٣\u2028\U0001d7d8\ud800"

_regex_leaves = st.one_of(
    st.sampled_from(REGEX_CHARS).map(re.escape),
    st.sampled_from([".", r"\w", r"\W", r"\d", r"\D", r"\s", r"\S", r"\n", r"\x1f"]),
    st.sampled_from(["^", "$", r"\A", r"\Z", r"\b", r"\B", "(?!)", "", "(?:)", "ab", "kernel"]),
    st.sampled_from(["[a-k]", "[^/]", "[^a]", r"[^\W_]", r"[\s\d]", r"[\w-]", "[A-z]", "[é-ſ]"]),
    st.sampled_from(["[[:alpha:]]", "[]a]", "[^]]", r"[\]\\]", "[a^]"]),
)


def _grown_regex(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    quantifiers = st.sampled_from(
        ["*", "+", "?", "*?", "+?", "??", "{2}", "{,2}", "{1,3}", "{2,}", "{0}", "{0,0}", "{1,2}?"]
    )
    scopes = [
        "(?:",
        "(",
        "(?i:",
        "(?a:",
        "(?s:",
        "(?m:",
        "(?-i:",
        "(?i-s:",
        "(?x: ",
        "(?ai:",
        "(?u:",
    ]
    return st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"(?:{'|'.join(parts)})"),
        st.tuples(inner, quantifiers).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        st.tuples(st.sampled_from(scopes), inner).map(lambda pair: f"{pair[0]}{pair[1]})"),
    )


#: Python regexes of every construct that RE2 can express.
regexes = st.tuples(
    st.sampled_from(["", "", "", "(?i)", "(?a)", "(?s)", "(?m)", "(?x)", "(?im)"]),
    st.recursive(_regex_leaves, _grown_regex, max_leaves=8),
).map("".join)
#: Paths with line breaks, words of other scripts and lone surrogates.
odd_paths = st.one_of(
    st.text(st.sampled_from(REGEX_CHARS), max_size=8),
    st.text(st.sampled_from("ab/\n_é"), max_size=5),
    st.text(max_size=5),
)
