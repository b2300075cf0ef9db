"""Formats that say where the arrays of one plan lie: regexes, LayoutMap, tp_plan, Haliax, JSON."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import SourceFile
from shardspec.foreign import formats, hf
from shardspec.foreign.formats import EXPORTS, Options, Request, export_named, module_of, spec_text
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Param, Policy, Spec, Target
from shardspec.resolve.resolver import resolve
from tests import strategies


def loaded(text: str) -> ShardingPlan:
    spec, found = pipeline.load_text(text, "spec.yaml")
    assert spec is not None, found
    return pipeline.compile_plans(spec)[0]


def written(name: str, plan: ShardingPlan, **options: Any) -> tuple[Any, Any]:
    return module_of(export_named(name)).write(Request(plan, **options))


def run(text: str) -> dict[str, Any]:
    space: dict[str, Any] = {}
    exec(text, space)
    return space


def full(spec: Any, rank: int) -> tuple[tuple[str, ...], ...]:
    """Return a PartitionSpec of JAX as ours has it."""
    dims = tuple(() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in spec)
    return dims + ((),) * (rank - len(dims))


@st.composite
def plans(draw: st.DrawFn) -> ShardingPlan:
    spec: Spec = draw(strategies.specs())
    numbers = st.integers(0, 12)
    paths = draw(
        st.lists(
            st.builds("layers_{}/w{}/k".format, numbers, numbers) | strategies.odd_paths,
            unique=True,
            max_size=12,
        )
    )
    params = tuple(draw(strategies.params(path=path)) for path in paths)
    return resolve(spec, spec.targets[0], params)


@pytest.mark.parametrize("match", [re.fullmatch, re.search])
@given(plan=plans())
def test_a_list_of_regexes_is_the_plan(match: Any, plan: ShardingPlan) -> None:
    text, _ = written("regex", plan)
    rules = run(text)["RULES"]
    for sharding in plan.arrays:
        path = sharding.param.path
        found = [spec for regex, spec in rules if match(regex, path)]
        assert full(found[0], sharding.param.rank) == sharding.partition_spec.dims


@given(plans())
def test_a_layout_map_has_one_entry_for_a_path(plan: ShardingPlan) -> None:
    text, found = written("keras", plan)
    entries = run(text)["LAYOUT_MAP"]
    for sharding in plan.arrays:
        hits = [axes for regex, axes in entries.items() if re.search(regex, sharding.param.path)]
        is_joined = any(len(dim) > 1 for dim in sharding.partition_spec.dims)
        if is_joined:
            assert "over several mesh axes" in "".join(each.message for each in found)
        else:
            assert [full(axes, 0) for axes in hits] == [sharding.partition_spec.dims]


LLAMA = """\
mesh: {fsdp: 2, tensor: 2}
rules: [vocab -> tensor, mlp -> tensor, heads -> tensor, embed -> none]
params:
  "{model.embed_tokens,lm_head}.weight": vocab embed
  "model.layers.*.mlp.up_proj.weight": mlp embed
  "model.layers.*.mlp.up_proj.bias": mlp
  "model.layers.*.mlp.down_proj.weight": embed mlp
  "model.layers.*.mlp.down_proj.bias": embed
  "model.layers.*.norm.weight": embed
  "model.layers.*.odd.weight": heads embed
  "model.layers.*.odd.bias": embed
arrays:
  model.embed_tokens.weight: f32[16, 8]
  lm_head.weight: f32[16, 8]
  "model.layers.{0..2}.mlp.up_proj.weight": f32[16, 8]
  "model.layers.{0..2}.mlp.up_proj.bias": f32[16]
  "model.layers.{0..2}.mlp.down_proj.weight": f32[8, 16]
  "model.layers.{0..2}.mlp.down_proj.bias": f32[8]
  "model.layers.{0..2}.norm.weight": f32[8]
  "model.layers.{0..2}.odd.weight": f32[8, 8]
  "model.layers.{0..2}.odd.bias": f32[8]
"""


def test_a_tp_plan_has_what_is_colwise_or_rowwise() -> None:
    text, found = written("hf-tp-plan", loaded(LLAMA))
    assert json.loads(text) == {
        "base_model_tp_plan": {
            "embed_tokens": "embedding_rowwise",
            "layers.*.mlp.down_proj": "rowwise",
            "layers.*.mlp.up_proj": "colwise",
        },
        "_tp_plan": {"lm_head": "colwise_gather_output"},
    }
    assert [each.message.partition(":")[0] for each in found] == [
        "`model.layers.0.odd.weight` x6 is P('tensor', None) over f32[8, 8]",
    ]


MOE_PLAN = {
    "base_model_tp_plan": {
        "embed_tokens": "embedding_rowwise",
        "layers.*.attn.q": "colwise",
        "layers.*.mlp.experts.down_proj": "rowwise",
        "layers.*.mlp.experts": "moe_tp_experts",
    },
    "_tp_plan": {"lm_head": "colwise_gather_output"},
}
MOE_ARRAYS = tuple(
    Param(path, shape, "bf16")
    for path, shape in {
        "model.embed_tokens.weight": (64, 8),
        "model.layers.0.attn.q.weight": (8, 8),
        "model.layers.0.mlp.experts.gate_up_proj": (4, 16, 8),
        "model.layers.0.mlp.experts.down_proj": (4, 8, 8),
        "lm_head.weight": (64, 8),
    }.items()
)


def test_a_tp_plan_goes_there_and_back() -> None:
    options = Options(mesh=(("tp", "2"),), params=MOE_ARRAYS)
    source = SourceFile("plan.json", json.dumps(MOE_PLAN))
    imported, faults = hf.read([source], options)
    assert (imported is None, faults) == (False, ())
    yaml, _ = spec_text(imported, options, [source], "spec.yaml")
    spec, _ = pipeline.load_text(yaml, "spec.yaml")
    plan = pipeline.compile_plans(spec, MOE_ARRAYS)[0]
    text, found = written("hf-tp-plan", plan)
    assert json.loads(text) == MOE_PLAN
    assert [each.message for each in found] == [
        "`layers.*.mlp.experts.gate_up_proj` is replicated,"
        " and others of `layers.*.mlp.experts` are split"
    ]


def test_embeddings_that_are_whole_say_so() -> None:
    whole = LLAMA.replace("vocab -> tensor, ", "vocab -> none, ")
    text, found = written("hf-tp-plan", loaded(whole))
    assert json.loads(text)["base_model_tp_plan"]["embed_tokens"] == "replicate"
    assert {each.code.id for each in found} == {"SHD601"}


def test_layers_that_differ_have_no_common_word() -> None:
    plan = loaded(
        "mesh: {tensor: 2}\nrules: [mlp -> tensor, embed -> none]\n"
        'params: {model.layers.0.up.weight: embed embed2, "model.layers.*.up.weight": mlp embed,'
        ' "model.layers.*.down.weight": embed mlp}\n'
        'arrays: {"model.layers.{0..1}.up.weight": "f32[4, 4]",'
        ' "model.layers.{0..1}.down.weight": "f32[4, 4]"}\n'
    )
    text, found = written("hf-tp-plan", plan)
    assert json.loads(text)["base_model_tp_plan"] == {"layers.*.down": "rowwise"}
    assert "`model.layers.1.up.weight` is P('tensor', None)" in found[0].message


def test_a_tp_plan_is_about_one_axis() -> None:
    both = LLAMA.replace("embed -> none", "embed -> fsdp")
    text, (fault,) = written("hf-tp-plan", loaded(both))
    assert text is None
    assert fault.message.endswith("arrays are split over `fsdp` and `tensor`")
    assert fault.help == "say which: --axis tensor"
    text, found = written("hf-tp-plan", loaded(both), axis="tensor")
    assert "rowwise" in text
    assert "are split over `fsdp` too" in found[0].message
    text, (fault,) = written("hf-tp-plan", loaded(both), axis="rows")
    assert text is None
    assert fault.message == "the mesh has no axis `rows`: fsdp, tensor"


def test_a_model_that_is_none_of_hugging_face_has_no_tp_plan() -> None:
    plan = loaded(
        "mesh: {tensor: 2}\nrules: [mlp -> tensor]\narrays: {a/kernel: 'f32[mlp=4 a=2 b=2]'}\n"
    )
    text, found = written("hf-tp-plan", plan)
    assert text is None
    assert [each.code.id for each in found] == ["SHD601", "SHD607"]


def test_haliax_has_a_dictionary() -> None:
    yaml = pytest.importorskip("yaml")
    plan = loaded(
        "mesh: {replica: 2, data: 2}\n"
        "rules: ['batch -> (replica, data)', embed -> data, mlp -> none]\n"
        "arrays: {a: 'f32[embed=4 mlp=4]'}\n"
    )
    text, found = written("haliax", plan)
    assert found == ()
    assert yaml.safe_load(text) == {"axis_mapping": {"batch": ["replica", "data"], "embed": "data"}}


def test_names_that_no_spec_could_spell() -> None:
    yaml = pytest.importorskip("yaml")
    plan = loaded("mesh: {data: 2, y: 2}\nrules: [on -> data, mlp -> y]\n")
    odd = 'a"b\\'
    params = (
        Param("a", (4, 4), "f32", ("on", odd)),
        Param("b", (4,), "f32", ("mlp",)),
    )
    plan = resolve(plan.spec, plan.target, params)
    text, _ = written("haliax", plan)
    assert yaml.safe_load(text) == {"axis_mapping": {"on": "data", "mlp": "y"}}
    text, _ = written("nnx", plan)
    assert run(text)["RULES"] == (("on", "data"), ("mlp", "y"), (odd, None))


def test_a_contest_is_no_dictionary() -> None:
    plan = loaded(
        "mesh: {data: 2, model: 2}\nrules: [mlp -> model, embed -> model | data]\n"
        "arrays: {a: 'f32[embed=4 mlp=4]', b: 'f32[embed=4]'}\n"
    )
    for name in ("haliax", "nnx"):
        _, found = written(name, plan)
        assert [each.code.id for each in found] == ["SHD607"]
        assert found[0].message.startswith("`embed` is P('data') 1x and P('model') 1x, and ")


def test_json_is_the_plan() -> None:
    text, found = written("json", loaded(LLAMA))
    assert found == ()
    assert json.loads(text)["arrays"]["lm_head.weight"]["spec"] == ["tensor", None]


def test_every_format_has_a_writer_and_takes_its_options() -> None:
    plan = loaded(LLAMA)
    for each in EXPORTS:
        text, _ = module_of(each).write(Request(plan))
        assert text is not None, each.name
        assert set(each.options) <= {"resolved", "axis"}


def test_names_of_files_stay_text() -> None:
    spec, _ = pipeline.load_text("mesh: {a: 2}\nrules: [b -> a]\n", 'x"""; import os #\n.yaml')
    assert spec is not None
    plan = resolve(spec, spec.targets[0], (Param('p"\n\\', (2,), "f32", ("b",)),))
    for name in ("flax", "nnx", "regex", "keras", "python"):
        text, _ = written(name, plan)
        assert "import os" not in text or "os" not in run(text)
        compile(text, name, "exec")


ROUND = {
    "regex": ("rules.py", {"match": "fullmatch"}),
    "keras": ("rules.py", {"match": "fullmatch"}),
    "haliax": ("config.yaml", {}),
}


@st.composite
def plain_plans(draw: st.DrawFn) -> ShardingPlan:
    """Plans whose paths and layouts every format by path can say."""
    mesh = draw(strategies.meshes())
    assume(mesh.axes)
    single = draw(st.booleans())
    rules = draw(strategies.rule_lists(mesh=mesh.names))
    kept = tuple(r for r in rules if not single or len(r.mesh_axes) < 2)
    spec = Spec(
        SourceFile("spec.yaml", ""),
        axis_rules=kept,
        policy=Policy("keep"),
        targets=(Target("only", mesh),),
    )
    numbers = st.integers(0, 12)
    paths = st.builds("layers_{}/w{}/k".format, numbers, numbers)
    params = [
        draw(strategies.params(path=path, repeats=False))
        for path in draw(st.lists(paths, unique=True, min_size=1, max_size=12))
    ]
    return resolve(spec, spec.targets[0], params)


@pytest.mark.parametrize("name", sorted(ROUND))
@given(plan=plain_plans())
def test_import_after_export_is_the_plan(name: str, plan: ShardingPlan) -> None:
    text, found = written(name, plan)
    assume("{}" not in text)
    assume(not any(each.code.id == "SHD607" for each in found))
    assume(not any("several mesh axes" in each.message for each in found))
    file, options = ROUND[name]
    source = SourceFile(file, text)
    params = tuple(sharding.param for sharding in plan.arrays)
    sizes = tuple((axis.name, str(axis.size)) for axis in plan.mesh.axes)
    asked = Options(mesh=sizes, params=params, **options)
    entry = formats.format_named(name)
    assert entry is not None
    reader = formats.module_of(entry)
    imported, faults = reader.read([source], asked)
    assert imported is not None, faults
    expected = [sharding.partition_spec for sharding in plan.arrays]
    assert list(reader.answer(imported.reading, params, plan.mesh)) == expected
    again, wrong = spec_text(imported, asked, [source], "back.yaml")
    assert again is not None, wrong
    spec, _ = pipeline.load_text(again, "back.yaml")
    assert spec is not None
    (back,) = pipeline.compile_plans(spec, params)
    assert [sharding.partition_spec for sharding in back.arrays] == expected
