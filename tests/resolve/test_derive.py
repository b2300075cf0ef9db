"""Arrays that are laid out from others: which dimension is which, and what follows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.ir.plan import Origin, ParamSharding, ShardingPlan
from shardspec.ir.spec import DerivedDims, DeriveRule, Param, ParentDim, Pattern, Target
from shardspec.resolve.derive import laid_out, reading_of
from shardspec.resolve.resolver import array_resolver
from tests.strategies import derived_dims, meshes, params, specs

SPEC = """\
shardspec: 1
mesh: {{data: 2, model: 4}}
rules:
  - mlp -> model
  - embed -> model | data
  - rank -> data
params: {{"**/kernel": embed mlp}}
derive: {derive}
arrays: {arrays}
"""


def plan_of(derive: str, arrays: str) -> ShardingPlan:
    spec, faults = pipeline.load_text(SPEC.format(derive=derive, arrays=arrays))
    assert spec is not None
    assert faults == ()
    return pipeline.compile_plans(spec)[0]


def answer(derive: str, shape: str, kernel: str = "[64, 128]") -> ParamSharding:
    arrays = f'{{wi/kernel: "f32{kernel}", wi/other: "f32{shape}"}}'
    return plan_of(f'{{"**/other": "{derive}"}}', arrays)["wi/other"]


@pytest.mark.parametrize(
    ("derive", "shape", "spec"),
    [
        ("from **/kernel", "[64, 128]", "P('data', 'model')"),
        ("from **/kernel dims 0 _", "[64, 8]", "P('data', None)"),
        ("from **/kernel dims _ 1", "[8, 128]", "P(None, 'model')"),
        ("from **/kernel dims 1 0", "[128, 64]", "P('model', 'data')"),
        ("from **/kernel dims rank 1", "[8, 128]", "P('data', 'model')"),
        ("from **/kernel dims 0 rank", "[64, 8]", "P('data', None)"),
        ("from **/kernel dims -1", "[128]", "P('model')"),
        ("from **/kernel dims ... -2 _", "[64, 8]", "P('data', None)"),
        ("from **/kernel dims 0/16 1", "[4, 128]", "P('data', 'model')"),
        ("from **/kernel dims .../any", "[32, 16]", "P('data', 'model')"),
        ("from **/kernel dims 0 1*8", "[64, 1024]", "P('data', 'model')"),
        ("from **/kernel dims 0 1*any", "[64, 384]", "P('data', 'model')"),
        ("from **/kernel dims 0 1", "[1, 128]", "P(None, 'model')"),
        ("from **/kernel dims 0 1 | 1", "[128]", "P('model')"),
        ("from **/kernel dims 0 1", "[1]", "P(None)"),
        ("from **/kernel dims 0 1", "[]", "P()"),
        ("from **/{kernell,kernel} dims 0 _", "[64, 8]", "P('data', None)"),
    ],
)
def test_answers(derive: str, shape: str, spec: str) -> None:
    found = answer(derive, shape)
    assert str(found.partition_spec) == spec
    assert found.origin is Origin.DERIVE
    assert found.derivation is not None
    assert found.derivation.parent is not None
    assert found.derivation.fault == ""


@pytest.mark.parametrize(
    ("derive", "shape", "fault"),
    [
        ("from **/kernel", "[64]", "has to say which"),
        ("from **/kernel dims 0", "[64, 8]", "`dims` has 1 for 2 dimensions"),
        ("from **/kernel dims 0 2", "[64, 8]", "not all there"),
        ("from **/kernel dims ... -2", "[64, 64]", "one of them twice"),
        ("from **/kernel dims 0 _", "[32, 8]", "dim 0 is `0`, so 64, and not 32"),
        ("from **/kernel dims 0/16 1", "[5, 128]", "dim 0 is `0/16`, so 4, and not 5"),
        ("from **/kernel dims 0/any 1", "[65, 128]", "so at most 64"),
        ("from **/kernel dims 0*8 1", "[64, 128]", "so 512"),
        ("from **/kernel dims 0*any 1", "[32, 128]", "so a multiple of 64"),
    ],
)
def test_what_does_not_fit_is_whole(derive: str, shape: str, fault: str) -> None:
    found = answer(derive, shape)
    assert found.is_replicated
    assert found.derivation is not None
    assert fault in found.derivation.fault


def test_blocks_that_shards_would_cut_are_whole() -> None:
    found = answer("from **/kernel dims 0/16 1", "[3, 128]", "[48, 128]")
    assert str(found.partition_spec) == "P(None, 'model')"
    odd = answer("from **/kernel dims 0/any _", "[4, 8]", "[6, 128]")
    assert str(odd.partition_spec) == "P(None, None)", "6 in 4 blocks: shards of 3 would cut them"


def test_parents_of_parents_and_circles() -> None:
    arrays = '{a/kernel: "f32[64, 128]", b/kernel2: "f32[64, 128]", c/kernel3: "f32[64, 128]"}'
    chain = '{"c/kernel3": from b/kernel2, "b/*": from a/kernel}'
    assert str(plan_of(chain, arrays)["c/kernel3"].partition_spec) == "P('data', 'model')"
    circle = '{"c/kernel3": from b/kernel2, "b/*": from c/kernel3}'
    for path in ("c/kernel3", "b/kernel2"):
        found = plan_of(circle, arrays)[path]
        assert found.is_replicated
        assert found.derivation is not None
        assert found.derivation.parent is None


def test_who_comes_first() -> None:
    text = SPEC.format(
        derive='{"a/*": from b}', arrays='{a/w: "f32[_=64 mlp=128]", b: "f32[64, 128]"}'
    )
    spec, _ = pipeline.load_text(text + "overrides: [{path: a/x, axes: mlp _}]\n")
    assert spec is not None
    arrays = (Param("a/w", (64, 128), "f32", (None, "mlp")), Param("a/x", (64, 128)))
    named, overridden = pipeline.compile_plans(spec, arrays)[0].arrays
    assert (named.origin, overridden.origin) == (Origin.ARRAY, Origin.OVERRIDE)


def test_arrays_of_the_spec_are_parents_of_those_that_are_given() -> None:
    spec = plan_of('{"**/other": from **/kernel dims 0 _}', '{wi/kernel: "f32[64, 128]"}').spec
    (found,) = pipeline.compile_plans(spec, (Param("wi/other", (64, 8)),))[0].arrays
    assert str(found.partition_spec) == "P('data', None)"


@given(specs(), params(), params(), st.lists(derived_dims, min_size=1, max_size=2), meshes())
def test_laws(
    spec: object, parent: Param, param: Param, found_dims: list[DerivedDims], mesh: object
) -> None:
    """once, parent: whatever is asked for, no mesh axis stands twice, and none is made up."""
    target = Target("t", mesh)  # type: ignore[arg-type]
    arrays = array_resolver(spec, target)  # type: ignore[arg-type]
    rule = DeriveRule(Pattern("x"), "", tuple(found_dims))
    owner = arrays.resolve(parent)
    found = laid_out(param, rule, owner, arrays.table)
    axes = found.partition_spec.mesh_axes
    assert len(set(axes)) == len(axes)
    assert found.derivation is not None
    reading = found.derivation.reading
    assert len(reading) in (0, param.rank)
    for dim, what in zip(found.dims, reading, strict=False):
        if what is None:
            assert dim.mesh_axes == ()
        elif isinstance(what, ParentDim):
            assert dim.mesh_axes in ((), owner.dims[what.place or 0].mesh_axes)
            assert (
                dim.mesh_axes == () or dim.size == owner.dims[what.place or 0].size or dim.is_even
            )
    if found.derivation.fault:
        assert found.is_replicated


@given(params())
def test_an_array_like_its_parent_lies_as_it(param: Param) -> None:
    """same: without `dims`, the answer is the parent's."""
    spec, _ = pipeline.load_text(SPEC.format(derive="{}", arrays="{}"))
    assert spec is not None
    arrays = array_resolver(spec, spec.targets[0])
    owner = arrays.resolve(param)
    rule = DeriveRule(Pattern("x"), "", ((ParentDim(None),),))
    assert laid_out(param, rule, owner, arrays.table).partition_spec == owner.partition_spec
    assert isinstance(reading_of(rule, param, owner), tuple)


def test_memory_is_that_of_the_arrays_own_path_and_rules_for_any_are_not_asked() -> None:
    text = SPEC.format(
        derive='{"**/other": from **/kernel dims 0 _, "**/lost": from **/nothing}',
        arrays='{wi/kernel: "f32[64, 128]", wi/other: "f32[64, 8]", wi/lost: "f32[64, 8]"}',
    )
    text = text.replace("rules:\n", 'rules:\n  - "* -> data"\n')
    spec, _ = pipeline.load_text(f'{text}memory: {{"**/other": pinned_host}}\n')
    assert spec is not None
    plan = pipeline.compile_plans(spec)[0]
    found = [(str(plan[f"wi/{name}"].partition_spec)) for name in ("kernel", "other", "lost")]
    assert found == ["P('data', 'model')", "P('data', None)", "P(None, None)"]
    kinds = [plan[f"wi/{name}"].memory_kind for name in ("kernel", "other", "lost")]
    assert kinds == [None, "pinned_host", None]


def test_a_dimension_of_parts_has_those_of_its_parent() -> None:
    text = SPEC.format(
        derive='{"**/other": from **/kernel dims _ 1, "**/scale": from **/kernel dims _ 1/2}',
        arrays='{w/kernel: "f32[64 mlp]", w/other: "f32[8, 128]", w/scale: "f32[8, 64]"}',
    )
    spec, _ = pipeline.load_text(
        f"{text}axes: {{half: 64, mlp: {{parts: {{a: half, b: half}}}}}}\n"
    )
    assert spec is not None
    plan = pipeline.compile_plans(spec)[0]
    assert [plan[f"w/{name}"].dims[1].segments for name in ("kernel", "other", "scale")] == [
        2,
        2,
        1,
    ]
    assert plan["w/other"].dims[1].mesh_axes == plan["w/kernel"].dims[1].mesh_axes
