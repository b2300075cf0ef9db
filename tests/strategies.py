"""One hypothesis strategy per core type, drawing from awkward values.

Sizes of 1, 3 and primes, rank 0, no rules at all, axes that no mesh has, tuples, `none`,
units, priorities, names that are given twice.
"""

from __future__ import annotations

import re
from dataclasses import replace

from hypothesis import strategies as st

from shardspec.diagnostics import SourceFile, Span
from shardspec.ir.plan import Attempt, Kind, Outcome
from shardspec.ir.spec import (
    MEMORY_KINDS,
    AxisRule,
    CoverageGate,
    DeriveRule,
    LogicalAxis,
    MemoryRule,
    Mesh,
    MeshAxis,
    Param,
    ParentDim,
    PartitionSpec,
    Pattern,
    Policy,
    Replicate,
    Spec,
    StatePolicy,
    Target,
    TrainingRule,
)
from shardspec.ir.step import (
    Carried,
    Cause,
    CauseKind,
    Collective,
    CollectiveKind,
    Place,
    Reshard,
    Step,
    StepArgument,
    StepArray,
    StepOp,
    StepTensor,
    ring_bytes,
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
    whole = st.builds(AxisRule, st.sampled_from(logical), targets, st.integers(-2, 2))
    return whole | whole.filter(lambda rule: not rule.is_none).map(
        lambda rule: replace(rule, in_part=True)
    )


def rule_lists(**names: tuple[str, ...]) -> st.SearchStrategy[tuple[AxisRule, ...]]:
    return st.lists(axis_rules(**names), max_size=10).map(
        lambda rules: tuple(sorted(rules, key=lambda rule: rule.priority))
    )


any_rule_lists = st.lists(axis_rules(logical=("*",)), min_size=1, max_size=2).map(tuple)


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

memories = st.lists(
    st.builds(
        MemoryRule,
        st.sampled_from(("**", "a0", "opt_state/**", "opt_state/**/mu/a*", "b")).map(Pattern),
        st.sampled_from(MEMORY_KINDS),
    ),
    max_size=3,
).map(tuple)

trainings = st.lists(
    st.builds(
        TrainingRule,
        st.sampled_from(("**", "a0", "a*", "b")).map(Pattern),
        st.sampled_from(("trained", "frozen")),
    ),
    max_size=3,
).map(tuple)

units = st.dictionaries(st.sampled_from(LOGICAL), st.sampled_from((1, 2, 4, 8)), max_size=4)
policies = st.builds(
    Policy,
    st.sampled_from(("next", "keep", "pad")),
    st.sampled_from(("t5x", "ring")),
    st.sampled_from((None, None, 1, 512, 1 << 16)),
)


_parent_dims = st.builds(
    ParentDim, st.integers(-3, 3), st.sampled_from(("", "/", "*")), st.none() | st.integers(1, 4)
)
#: What `dims` may say: dimensions of a parent, names, `_`, with `...` in front or not.
derived_dims = st.builds(
    lambda found, leads: (*([ParentDim(None)] if leads else []), *found),
    st.lists(
        _parent_dims | st.none() | st.sampled_from(("embed", "mlp", "rank")), min_size=1, max_size=4
    ),
    st.booleans(),
)
#: For arrays `d0`, `d1`, whose parents are `a0`, `d0` or not there.
derives = st.lists(
    st.builds(
        DeriveRule,
        st.sampled_from(("d0", "d1", "d*", "**")).map(Pattern),
        st.sampled_from(("a0", "a0", "a1", "d0", "gone")),
        st.lists(derived_dims, min_size=1, max_size=2).map(tuple) | st.just(((ParentDim(None),),)),
    ),
    max_size=2,
).map(tuple)


@st.composite
def families(draw: st.DrawFn) -> tuple[Param, ...]:
    """Arrays `a0`, `a1` with names, and others that may derive from them, or be a cache."""
    named = draw(st.lists(params(), min_size=1, max_size=4))
    found = [replace(param, path=f"a{at}") for at, param in enumerate(named)]
    for at in range(draw(st.integers(0, 2))):
        shape = draw(st.permutations(draw(st.sampled_from(named)).shape))
        kept = draw(st.integers(0, len(shape)))
        more = draw(st.lists(dim_sizes, max_size=1))
        found.append(Param(f"d{at}", (*shape[:kept], *more), "f32"))
    if draw(st.booleans()):
        found.append(Param("cache/k", draw(params()).shape, "bf16"))
    return tuple(found)


@st.composite
def caches(draw: st.DrawFn) -> tuple[Param, ...]:
    """What `caches:` lists: none, or one."""
    cache = replace(draw(params()), path="cache/k", is_cache=True)
    return draw(st.sampled_from(((), (cache,))))


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
        any_rules=draw(st.just(()) | any_rule_lists),
        policy=draw(policies),
        targets=tuple(Target(f"t{i}", mesh) for i, mesh in enumerate(targets)),
        state=draw(st.none() | state_policies),
        coverage=draw(st.none() | coverage_gates),
        replicate=draw(replicates),
        memory=draw(memories),
        training=draw(trainings),
        derives=draw(derives),
        params=draw(caches()),
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


# steps: nothing of them has to fit together, as long as the laws of `ir/step.py` hold

_OF_STEP = Mesh(tuple(MeshAxis(name, size) for name, size in zip(MESH, (4, 2, 3, 1), strict=True)))


@st.composite
def step_arrays(draw: st.DrawFn) -> StepArray:
    """An array of a step, split by some of the mesh axes."""
    shape = tuple(draw(st.lists(st.sampled_from((1, 8, 4096, 1 << 20)), max_size=3)))
    left = list(draw(st.permutations(MESH)))
    dims = tuple(
        tuple(left.pop() for _ in range(draw(st.integers(0, min(2, len(left)))))) for _ in shape
    )
    parts = tuple(-(-size // _OF_STEP.ways(axes)) for size, axes in zip(shape, dims, strict=True))
    name = draw(st.sampled_from(("", "a0", "mlp/wi")))
    return StepArray(
        draw(st.sampled_from(("bf16", "f32"))), shape, PartitionSpec(dims), parts, name
    )


_spans = st.just(Span(SourceFile("spec.yaml", "some text to point at"), 5, 9))
_mesh_axes = st.lists(st.sampled_from(MESH), unique=True, min_size=1, max_size=3).map(tuple)
_places = st.sampled_from((Place(), Place("model.py", 7), Place("model.py", 80, "layers")))
_phases = st.sampled_from(("forward", "backward", "remat", "update"))
_counts = st.sampled_from((0.5, 1, 32))
_ticks = st.integers(0, 20)


@st.composite
def step_ops(draw: st.DrawFn) -> StepOp:
    """An operation of a step."""
    operands = tuple(draw(st.lists(step_arrays(), max_size=2)))
    return StepOp(
        draw(st.sampled_from(("einsum", "convolution", "gather", "kernel"))),
        draw(st.sampled_from(("", "ab,bc->ac"))),
        operands,
        draw(step_arrays()),
        draw(st.sampled_from((0, 10**9, 10**15))),
        draw(_counts),
        draw(_places),
        draw(_phases),
        draw(_mesh_axes),
        draw(_ticks),
    )


@st.composite
def causes(draw: st.DrawFn, mesh_axis: str) -> Cause:
    """Why a mesh axis is in a collective, by a rule with a place or without one."""
    attempt = Attempt(
        Kind.RULE, 0, (mesh_axis,), (mesh_axis,), Outcome.TAKEN, span=draw(st.none() | _spans)
    )
    return Cause(
        mesh_axis,
        draw(st.sampled_from(CauseKind)),
        draw(st.sampled_from(("", "a0", "mlp/wi"))),
        draw(st.none() | st.integers(0, 2)),
        draw(_places),
        draw(st.sampled_from((None, "mlp"))),
        draw(st.sampled_from((None, attempt))),
    )


@st.composite
def collectives(draw: st.DrawFn) -> Collective:
    """A collective of a step, the reshard that it is a part of included."""
    axes = draw(_mesh_axes)
    kind = draw(st.sampled_from(CollectiveKind))
    array, after = draw(step_arrays()), draw(step_arrays())
    payload = draw(st.sampled_from((0, 1000, 1 << 30)))
    readers = tuple(draw(st.lists(_ticks, unique=True, max_size=2)))
    ends = (draw(st.booleans()), draw(st.sampled_from(((), (axes[0],)))))
    same_rank = len(array.shape) == len(after.shape)
    over = draw(st.none() | st.lists(st.sampled_from(MESH), max_size=2).map(tuple))
    more = (*ends, readers, over, draw(st.booleans()))
    reshard = Reshard(draw(_ticks), array.split, after.split, readers, *more) if same_rank else None
    kinds = st.sampled_from(("weight", "gradient", "activation", "einsum", "unknown"))
    return Collective(
        kind,
        axes,
        payload,
        ring_bytes(kind, payload, _OF_STEP.ways(axes)),
        draw(_counts),
        array,
        draw(_places),
        draw(_phases),
        Carried(draw(kinds), draw(st.sampled_from(("", "a0", "mlp/wi")))),
        tuple(draw(causes(axis)) for axis in axes),
        draw(st.none() | causes(axes[0])),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(_ticks),
        reshard,
        draw(st.sampled_from((1, 8, 32))),
    )


@st.composite
def steps(draw: st.DrawFn) -> Step:
    """A step on a mesh of the axes in `MESH`."""
    born = st.tuples(step_arrays(), _ticks, _ticks, _places, _phases)
    tensors = tuple(
        StepTensor(array, array.bytes, min(one, other), max(one, other), place, phase)
        for array, one, other, place, phase in draw(st.lists(born, max_size=3))
    )
    roles = st.sampled_from(("parameter", "optimizer", "batch", "cache"))
    given = st.builds(StepArgument, st.sampled_from(("a0", "mlp/wi")), roles, step_arrays())
    return Step(
        "code",
        _OF_STEP,
        tuple(draw(st.lists(step_ops(), max_size=3))),
        tuple(draw(st.lists(collectives(), max_size=3))),
        tensors,
        tuple(draw(st.lists(given, max_size=2))),
        20,
        draw(_places),
    )
