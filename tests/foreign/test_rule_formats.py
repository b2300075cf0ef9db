"""Rules for Flax, T5X and MaxText: import after export is the identity, and losses are said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import SourceFile
from shardspec.foreign import formats
from shardspec.foreign.formats import Options, Request, export_named, module_of, spec_text
from shardspec.foreign.proof import reduced
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Mesh, MeshAxis, Override, Param, Params, Pattern, Policy, Spec, Target
from shardspec.resolve.resolver import resolve
from tests import strategies

RULE_FORMATS = ("flax", "t5x-gin", "maxtext")
FILES = {"flax": "rules.py", "nnx": "rules.py", "t5x-gin": "my.gin", "maxtext": "my.yml"}

all_arrays = st.lists(strategies.params(repeats=False), max_size=6).map(
    lambda found: tuple(replace(each, path=f"a_{n}/k") for n, each in enumerate(found))
)


@st.composite
def keeping_specs(draw: st.DrawFn, names: tuple[str, ...] = strategies.MESH) -> Spec:
    """Specs that say no more than a rule list can: no sizes count, no units."""
    mesh = draw(strategies.meshes(names))
    assume(mesh.axes)
    return Spec(
        SourceFile("spec.yaml", ""),
        axis_rules=draw(strategies.rule_lists(mesh=(*names, strategies.ABSENT))),
        policy=Policy("keep"),
        targets=(Target("only", mesh),),
    )


def plan_of(spec: Spec, params: Params = ()) -> ShardingPlan:
    return resolve(spec, spec.targets[0], params)


def written(name: str, plan: ShardingPlan, **options: Any) -> tuple[str | None, Any]:
    text, found = module_of(export_named(name)).write(Request(plan, **options))
    return text, found


def codes(found: Any) -> set[str]:
    return {each.code.id for each in found}


def back(format_name: str, text: str, mesh: Mesh, /, **options: Any) -> Spec:
    """Return the spec that `shardspec import` makes of an exported text."""
    source = SourceFile(FILES[format_name], text)
    sizes = tuple((axis.name, str(axis.size)) for axis in mesh.axes)
    asked = Options(mesh=sizes, **options)
    entry = formats.format_named(format_name)
    assert entry is not None
    imported, faults = formats.module_of(entry).read([source], asked)
    assert imported is not None, faults
    found, wrong = spec_text(imported, asked, [source], "back.yaml")
    assert found is not None, wrong
    spec, _ = pipeline.load_text(found, "back.yaml")
    assert spec is not None
    return spec


def partitions(plan: ShardingPlan) -> list[Any]:
    return [sharding.partition_spec for sharding in plan.arrays]


@pytest.mark.parametrize("name", RULE_FORMATS)
@given(data=st.data())
def test_import_after_export_is_the_identity(name: str, data: st.DataObject) -> None:
    spec = data.draw(keeping_specs())
    plan = plan_of(spec, data.draw(all_arrays))
    text, found = written(name, plan, is_resolved=True)
    if name == "maxtext" and not reduced(plan):
        assert text is None
        assert codes(found) == {"SHD607"}
        return
    assert text is not None
    if name != "t5x-gin":
        assert "SHD606" not in codes(found)
    options = {"name": "RULES", "semantics": "linen"} if name == "flax" else {}
    again = back(name, text, plan.mesh, **options)
    others = data.draw(all_arrays)
    assert partitions(plan_of(again, others)) == partitions(plan_of(spec, others))


@given(keeping_specs(("data", "model")), all_arrays)
def test_t5x_gives_named_arrays_the_answers_of_the_plan(spec: Spec, params: Params) -> None:
    text, found = written("t5x-gin", plan_of(spec, params))
    assert text is not None
    assert "SHD606" not in codes(found)


@given(strategies.specs(), all_arrays)
def test_what_flax_would_do_otherwise_is_an_error(spec: Spec, params: Params) -> None:
    """The proof is complete: without SHD606, the list gives each array the plan's answer."""
    assume(spec.targets[0].mesh.axes)
    plan = plan_of(spec, params)
    text, found = written("flax", plan, is_resolved=True)
    assert text is not None
    again = back("flax", text, plan.mesh, name="RULES", semantics="linen")
    ours, theirs = partitions(plan), partitions(plan_of(again, params))
    assert (ours == theirs) == ("SHD606" not in codes(found))


@given(strategies.specs(), all_arrays)
def test_reduced_rules_give_the_same_answers(spec: Spec, params: Params) -> None:
    plan = plan_of(spec, params)
    less = replace(spec, axis_rules=reduced(plan), targets=spec.targets[:1])
    assert partitions(plan_of(less, params)) == partitions(plan)


@given(keeping_specs(), all_arrays)
def test_nnx_gives_the_answers_of_a_plan_that_is_a_dictionary(spec: Spec, params: Params) -> None:
    plan = plan_of(spec, params)
    text, found = written("nnx", plan)
    assert text is not None
    answers: dict[str, set[Any]] = {}
    for sharding in plan.arrays:
        for dim in sharding.dims:
            if dim.logical_axis is not None:
                answers.setdefault(dim.logical_axis, set()).add(dim.mesh_axes)
    is_dictionary = all(len(each) == 1 for each in answers.values())
    assert ("SHD607" not in codes(found)) == is_dictionary
    if is_dictionary:
        assert "SHD606" not in codes(found)
        again = back("nnx", text, plan.mesh, name="RULES")
        assert partitions(plan_of(again, params)) == partitions(plan)


SPEC = """\
shardspec: 1
axes:
  heads: {size: 24, unit: 8}
targets:
  one: {mesh: {data: 2, model: 4}}
  two: {mesh: {replica: 2, data: 2, model: 4}}
rules:
  - batch -> (replica, data)
  - heads -> model
  - embed -> model | data
params:
  "*/wi/kernel": embed mlp
overrides:
  - path: odd
    spec: (data)
  - path: renamed
    axes: mlp embed
activations:
  residual: batch embed
arrays:
  a/wi/kernel: f32[16, 16]
  odd: f32[16]
  renamed: f32[16, 16]
  q: f32[embed=16 heads]
"""


def loaded(text: str) -> ShardingPlan:
    spec, found = pipeline.load_text(text, "spec.yaml")
    assert spec is not None, found
    return pipeline.compile_plans(spec)[0]


def test_flax_says_each_entry_that_it_loses() -> None:
    text, found = written("flax", loaded(SPEC))
    assert text is not None
    messages = [each.message for each in found]
    assert [each.code.id for each in found] == ["SHD601"] * 5 + ["SHD606"]
    assert "the names of 1 array that `params:` gives" in messages[0]
    assert "`odd` is one: 1 array" in messages[1]
    assert "`renamed` is one: 1 array" in messages[2]
    assert "1 named activation" in messages[3]
    assert "the mesh of one has no `replica`" in messages[4]
    assert messages[5] == "`q`: shardspec gives P('model', None), Flax Linen P('data', 'model')"


def test_a_resolved_list_has_what_counts_on_the_target() -> None:
    text, found = written("flax", loaded(SPEC), is_resolved=True)
    assert text is not None
    assert '("batch", "data"),  # spec.yaml:8' in text
    assert "heads" not in text
    assert [each.code.id for each in found] == ["SHD601"] * 4


def test_a_unit_is_a_loss_where_no_array_tells() -> None:
    plan = loaded(SPEC)
    text, found = written("flax", replace(plan, arrays=()), is_resolved=True)
    assert text is not None
    assert any("units of 8" in each.message for each in found)


def test_t5x_names_the_standard_rules_and_those_after_them() -> None:
    more = "extends: t5x/2d\nrules: [expert -> data]\nmesh: {data: 2, model: 4}\n"
    text, found = written("t5x-gin", loaded(more))
    assert text is not None
    assert found == ()
    assert "@partitioning.standard_logical_axis_rules()" in text
    assert "activation_partitioning_dims = 2" in text
    assert 'additional_rules = [\n    ("expert", "data"),' in text


@pytest.mark.parametrize(
    ("hardware", "mesh", "line"),
    [
        ("tpu v4 4x8x8", "{data: rest, model: submesh 4x2x2x1}", "model_parallel_submesh = (4, 2"),
        ("tpu v5e 4x8", "{data: rest, model: 8}", "model_parallel_submesh = ("),
        ("tpu v3 4x4", "{data: rest, model: submesh 2x1x1x2}", "submesh = (2, 1, 1, 2)"),
        ("4 * h100", "{data: rest, model: 8}", "num_partitions = 8"),
        (
            "2 * tpu v5p 4x4x8",
            "{replica: 2 @ dcn, data: rest, model: 8}",
            "ici_mesh_shape = (1, 16, 8)\npartitioning.PjitPartitioner.dcn_mesh_shape = (2, 1, 1)",
        ),
    ],
)
def test_t5x_makes_the_mesh_of_the_target(hardware: str, mesh: str, line: str) -> None:
    rules = "rules: ['batch -> (replica, data)']" if "replica" in mesh else "extends: t5x/1d"
    plan = loaded(f"hardware: {hardware}\nmesh: {mesh}\n{rules}\n")
    text, found = written("t5x-gin", plan)
    assert text is not None
    orders = [each.message for each in found]
    if "model: 8}" in mesh and hardware == "tpu v5e 4x8":
        assert orders == ["T5X orders devices by the submesh 2x4x1x1, and the spec does not"]
    else:
        assert orders == []
    assert line in text
    source = SourceFile("my.gin", text)
    entry = formats.format_named("t5x-gin")
    assert entry is not None
    options = Options(hardware=hardware)
    imported, _ = formats.module_of(entry).read([source], options)
    again, faults = spec_text(imported, options, [source], "back.yaml")
    assert again is not None, faults
    spec, _ = pipeline.load_text(again, "back.yaml")
    assert spec is not None
    assert spec.targets[0].mesh.sizes == plan.mesh.sizes


def test_t5x_names_stacked_arrays_whole() -> None:
    plan = loaded(
        "mesh: {data: 2, model: 4}\nrules: [mlp -> model, layers -> none, embed -> none]\n"
        'params: {"**/kernel": embed mlp}\nscan: {"layers/**": layers@1}\n'
        'arrays: {"layers/kernel": "f32[8, 3, 8]", "last/kernel": "f32[8, 8]"}\n'
    )
    text, found = written("t5x-gin", plan)
    assert text is not None
    assert found == ()
    assert '(\'layers/kernel\', ("embed", "layers", "mlp"))' in text


def test_a_stated_layout_is_no_override_of_t5x() -> None:
    plan = loaded(SPEC)
    _, found = written("t5x-gin", plan)
    stated = next(each for each in found if each.code.id == "SHD601")
    assert stated.message == "`odd` states a layout, and T5X's overrides are names"
    assert any("`odd`: shardspec gives P('data'), T5X refuses" in each.message for each in found)


def test_maxtext_has_sizes_inside_and_across_and_the_input() -> None:
    plan = loaded(
        "hardware: 2 * tpu v5p 4x4x8\nmesh: {data: 2 @ dcn, stage: 1, fsdp: rest, tensor: 8}\n"
        "rules: ['batch -> (data, fsdp)', embed -> fsdp]\n"
        "activations: {input_data: batch length}\nlints: {unused-mesh-axis: allow}\n"
    )
    text, found = written("maxtext", plan)
    assert text is not None
    assert found == ()
    for line in (
        "dcn_data_parallelism: 2",
        "ici_data_parallelism: 1",
        "ici_pipeline_parallelism: 1",
        "ici_fsdp_parallelism: 16",
        'data_sharding: [["data", "fsdp"]]',
        'input_data_sharding_logical_axes: ["batch", "length"]',
    ):
        assert line in text.split("\n")
    again = back("maxtext", text, Mesh())
    assert again.targets[0].mesh == plan.mesh
    assert again.activations == plan.spec.activations


def test_maxtext_has_no_size_for_any_other_axis() -> None:
    plan = loaded("mesh: {rows: 2}\nrules: [embed -> rows]\n")
    _, found = written("maxtext", plan)
    assert [each.message for each in found] == [
        "MaxText has no size for a mesh axis `rows`, and fails (KeyError)"
    ]


def test_axis_types_are_a_loss_where_no_mesh_is_made() -> None:
    plan = loaded("mesh: {data: 2 explicit, fsdp: 2}\nrules: [embed -> data]\n")
    _, in_flax = written("flax", plan)
    _, in_maxtext = written("maxtext", plan)
    assert [each.message for each in in_flax] == [
        "`data` is an explicit mesh axis, and a rule list of Flax makes no mesh"
    ]
    assert [each.message for each in in_maxtext] == [
        "`data` is explicit, and MaxText's mesh axes are all of one type"
    ]


def test_state_is_a_loss() -> None:
    plan = loaded(
        "mesh: {data: 2}\nrules: [embed -> data]\nstate: {optimizer: zero1, over: data}\n"
    )
    _, found = written("flax", plan)
    assert "`optimizer: zero1`" in found[0].message


def test_an_override_that_matches_no_array_is_no_loss() -> None:
    mesh = Mesh((MeshAxis("data", 2),))
    spec = Spec(
        SourceFile("spec.yaml", ""),
        overrides=(Override(Pattern("other"), ("embed",)),),
        targets=(Target("only", mesh),),
    )
    _, found = written("flax", plan_of(spec, (Param("a", (2,), "f32", ("mlp",)),)))
    assert found == ()
