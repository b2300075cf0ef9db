"""Layouts as specs: every array lies as its tree has it, by names where these explain it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import SourceFile
from shardspec.foreign.formats import ForeignRule, NotRead, Options, linen_axes, nnx_axes, spec_text
from shardspec.foreign.layout import Family, LaidOut, Layout, answer, read
from shardspec.ir.spec import Param, PartitionSpec

MESH = (("fsdp", 4), ("tp", 2), ("expert", 3))
AXES = [axis for axis, _ in MESH]
SIZES = (1, 2, 7, 8, 64, 64, 96, 256)
PARTS = (
    *("layers_0", "layers_1", "attn", "q_proj", "o_proj", "mlp", "wi", "wo", "norm", "lm_head"),
    *("embedder", "kernel", "scale", "w", "x{1}", "a b", "*", "ü", "re:y", "0", "key's"),
)
RULES = st.tuples(st.sampled_from("abcd"), st.lists(st.sampled_from(AXES), unique=True, max_size=2))
NAMES = st.lists(st.sampled_from("abcd"), unique=True, min_size=1, max_size=3)


def plan_of(layout: Layout, *mesh: tuple[str, str]) -> tuple[str, Any, Any]:
    """Return the text of a layout's spec, its plan, and what the layout answers."""
    options = Options(mesh=mesh)
    imported, faults = read(layout, options)
    assert imported is not None, [fault.message for fault in faults]
    text, wrong = spec_text(imported, options, [SourceFile("m:f", "")], "spec.yaml")
    assert text is not None, [fault.message for fault in wrong]
    spec, _ = pipeline.load_text(text, "spec.yaml")
    assert spec is not None
    params = tuple(each.param for each in imported.reading.values())
    (plan,) = pipeline.compile_plans(spec, params, spec.targets[:1])
    return text, plan, answer(imported.reading, params, plan.target.mesh)


def model(**dims: tuple[tuple[int, ...], tuple[tuple[str, ...], ...]]) -> tuple[LaidOut, ...]:
    return tuple(
        LaidOut(Param(path.replace("__", "/"), shape, "f32"), axes)
        for path, (shape, axes) in dims.items()
    )


@st.composite
def partitions(draw: st.DrawFn, rank: int) -> tuple[tuple[str, ...], ...]:
    """Return mesh axes for some of the dimensions, each axis once at most."""
    dims: list[tuple[str, ...]] = [()] * rank
    for axis in draw(st.permutations(AXES)):
        at = draw(st.integers(-2, rank - 1))
        if at >= 0:
            dims[at] = (*dims[at], axis)
    return tuple(dims)[: draw(st.integers(0, rank))] if draw(st.booleans()) else tuple(dims)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[LaidOut, ...]:
    """Return arrays of any layout; some carry names: mesh axes, or logical ones."""
    paths = draw(st.sets(st.lists(st.sampled_from(PARTS), min_size=1, max_size=4).map("/".join),
                         min_size=1, max_size=12))  # fmt: skip
    own = draw(st.sampled_from((None, AXES, ["embed", "heads", "a b"])))
    found = []
    for path in sorted(paths):
        shape = tuple(draw(st.lists(st.sampled_from(SIZES), max_size=4)))
        dims = draw(partitions(len(shape)))
        names = None
        if own is not None and draw(st.booleans()):
            names = tuple(() if not axes else (draw(st.sampled_from(own)),) for axes in dims)
        found.append(LaidOut(Param(path, shape, "f32"), dims, names))
    return tuple(found)


#: Names of an array whose layout is stated come into no rule.
STATED = (
    LaidOut(Param("*", (256, 1, 1, 64), "f32"), ((), (), ("expert",), ("fsdp", "tp"))),
    LaidOut(Param("w", (256, 64), "f32"), (("tp", "expert"), ("fsdp",)), (("fsdp",), ("expert",))),
)


@settings(deadline=None)
@example(STATED)
@given(arrays())
def test_a_spec_has_every_array_where_the_tree_has_it(found: tuple[LaidOut, ...]) -> None:
    _, plan, answers = plan_of(Layout("m:f", found, MESH))
    for each, sharding, theirs in zip(found, plan.arrays, answers, strict=True):
        assert isinstance(each.dims, tuple)
        rest = ((),) * (each.param.rank - len(each.dims))
        assert sharding.partition_spec == theirs == PartitionSpec((*each.dims, *rest))


@settings(deadline=None)
@given(
    st.lists(RULES, min_size=1, max_size=6),
    st.lists(NAMES, min_size=1, max_size=6),
    st.sampled_from(("linen", "nnx")),
)  # fmt: skip
def test_names_and_rules_are_what_flax_makes_of_them(
    pairs: list[tuple[str, list[str]]], named: list[list[str]], who: str
) -> None:
    rules = tuple(ForeignRule(name, tuple(axes)) for name, axes in pairs)
    read_as = linen_axes if who == "linen" else nnx_axes
    family: Family = "logical" if who == "linen" else "nnx"
    found = tuple(
        LaidOut(
            Param(f"w{at}", (24,) * len(names), "f32"), None, tuple((n,) for n in names), family
        )
        for at, names in enumerate(named)
    )
    layout = Layout("m:f", found, MESH, rules)
    wanted = [read_as(names, rules) for names in named]
    if all(isinstance(dims, tuple) and not any(dims) for dims in wanted):
        return
    _, plan, answers = plan_of(layout)
    for sharding, theirs, dims in zip(plan.arrays, answers, wanted, strict=True):
        used = [axis for dim in dims if isinstance(dim, tuple) for axis in dim]
        if len(set(used)) == len(used) and set(used) <= set(AXES):
            assert sharding.partition_spec == theirs == PartitionSpec(dims)  # type: ignore[arg-type]
        else:
            assert not isinstance(theirs, PartitionSpec)


def test_names_and_rules_are_those_a_person_would_write() -> None:
    layers = {
        f"layers__{n}__{path}": each
        for n in range(4)
        for path, each in {
            "attn__q_proj__kernel": ((64, 8, 16), (("fsdp",), ("tp",), ())),
            "attn__o_proj__kernel": ((8, 16, 64), (("tp",), (), ("fsdp",))),
            "mlp__up_proj__kernel": ((64, 256), (("fsdp",), ("tp",))),
            "mlp__down_proj__kernel": ((256, 64), (("tp",), ("fsdp",))),
            "norm__scale": ((64,), ()),
        }.items()
    }
    found = model(embed__embedding=((512, 64), (("tp",), ("fsdp",))), **layers)
    text, plan, _ = plan_of(Layout("m:f", found, MESH))
    rules = text[text.index("rules:") : text.index("params:")]
    assert "- embed -> fsdp  # 17 dimensions\n" in rules
    assert "- heads -> tp" in rules
    assert "- mlp -> tp" in rules
    assert "- kv, norm -> none" in rules
    assert "overrides:" not in text
    assert '  "**/q_proj/kernel": embed heads kv  # 4 arrays\n' in text
    assert not pipeline.check(plan.spec, (), plan.spec.params).shown


def test_a_dimension_that_lies_otherwise_has_a_name_of_its_own() -> None:
    found = model(
        embed__embedding=((512, 64), (("tp",), ("fsdp",))),
        mlp__wi__kernel=((64, 256), (("fsdp",), ("tp",))),
        lm_head__kernel=((64, 512), ((), ("tp",))),
    )
    text, _, _ = plan_of(Layout("m:f", found, MESH))
    assert "lm_head/kernel: lm_head_embed vocab" in text
    assert "- lm_head_embed -> none" in text


def test_a_contest_keeps_one_name_and_orders_the_rules() -> None:
    found = model(
        moe__experts__wi=((6, 64, 256), (("fsdp",), (), ("tp",))),
        moe__experts__wo=((6, 256, 64), (("fsdp",), ("tp",), ())),
        mlp__wi__kernel=((64, 256), (("fsdp",), ("tp",))),
        mlp__wo__kernel=((256, 64), (("tp",), ("fsdp",))),
    )
    text, _, _ = plan_of(Layout("m:f", found, MESH))
    assert text.index("- expert -> fsdp") < text.index("- embed -> fsdp")
    assert "expert embed mlp\n" in text.replace("  # 1 array", "")


def test_arrays_that_carry_mesh_axes_are_named_by_overrides() -> None:
    names = (("fsdp",), ("tp",))
    found = (LaidOut(Param("mlp/wi/kernel", (64, 256), "f32"), None, names),)
    text, _, _ = plan_of(Layout("m:f", found, MESH))
    assert "axes: embed mlp" in text
    assert "params:" not in text


def test_names_in_boxes_are_logical_where_arrays_lie_otherwise() -> None:
    names, dims = (("width",), ("hidden",)), (("fsdp",), ("tp",))
    found = (LaidOut(Param("wi", (64, 256), "f32"), dims, names),)
    text, _, _ = plan_of(Layout("m:f", found, MESH))
    assert "- width -> fsdp" in text
    assert "f32[width=64, hidden=256]" in text


@pytest.mark.parametrize(
    ("found", "mesh", "message"),
    [
        ((LaidOut(Param("w", (8,), "f32")),), MESH, "says of no array how it is sharded"),
        ((LaidOut(Param("w", (8,), "f32"), (("tp",),)),), (), "how large the mesh axes are: `tp`"),
        ((LaidOut(Param("w", (8,), "f32"), (("t p",),)),), (("t p", 2),), "`t p` cannot be"),
        ((LaidOut(Param("", (8,), "f32"), (("tp",),)),), MESH, "has an array without a path"),
        (tuple(LaidOut(Param("w", (8,), "f32"), (("tp",),)) for _ in "12"), MESH, "`w`"),
        (
            tuple(LaidOut(Param("z" * n, (8,), "f32"), (("tp",),)) for n in range(1, 10_002)),
            MESH,
            "10,001 arrays whose paths differ in more than numbers",
        ),
        (
            (LaidOut(Param("w", (8,), "f32"), None, (("embed",),), "logical"),),
            MESH,
            "no rule says where `embed` goes",
        ),
    ],
)  # fmt: skip
def test_what_is_no_layout_is_said(
    found: tuple[LaidOut, ...], mesh: tuple[tuple[str, int], ...], message: str
) -> None:
    imported, faults = read(Layout("m:f", found, mesh), Options())
    assert imported is None
    assert message in faults[0].message


def test_arrays_of_which_nothing_is_known_are_not_compared() -> None:
    found = (
        LaidOut(Param("a", (8, 8), "f32"), (("tp",),)),
        LaidOut(Param("b", (8, 8), "f32"), NotRead("sums", "they are sums over tp", "")),
        LaidOut(Param("c", (8, 8), "f32")),
        LaidOut(Param("d", (), "f32")),
    )
    _, _, answers = plan_of(Layout("m:f", found, MESH))
    assert [isinstance(each, NotRead) for each in answers] == [False, True, True, False]
