"""Axis mappings of Haliax and configurations of Levanter."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import SourceFile
from shardspec.foreign import haliax
from shardspec.foreign.formats import NoAnswer, Options
from shardspec.ir.spec import Mesh, MeshAxis, Param
from tests.foreign.proofs import proof, spec_of

MESH = (("data", "2"), ("model", "4"))
NAMES = ("batch", "embed", "mlp", "heads", "vocab")
OLDER = """
data: {id: dlwh/wikitext}
trainer:
  model_axis_size: 4
  tensor_parallel_axes: [mlp, heads]
  fsdp_axis: embed
  batch_axis: batch
"""
NEWER = """
trainer:
  mesh:
    axes: {model: 4, context: 2}
    shared_mapping: {position: context}
    param_mapping: {embed: [replica_dcn, data]}
    compute_mapping: {kv: model}
"""
values = st.sampled_from(("data", "model", None, ["data", "model"], ["model"]))
mappings = st.dictionaries(st.sampled_from(NAMES), values, min_size=1)
arrays = st.lists(
    st.lists(st.sampled_from(NAMES), max_size=3, unique=True).map(tuple), max_size=5
).map(lambda found: tuple(Param(f"a_{i}", (8,) * len(n), "f32", n) for i, n in enumerate(found)))


def read(text: str, file: str = "config.yaml", **options: Any) -> Any:
    return haliax.read([SourceFile(file, text)], Options(**options))


@given(mappings, arrays)
def test_the_spec_lays_out_all_as_haliax_does(mapping: Any, params: Any) -> None:
    options = Options(mesh=MESH, params=params)
    found = proof(haliax, SourceFile("m.json", json.dumps(mapping)), params, options)
    assert [each for each in found if not isinstance(each.theirs, NoAnswer)] == []


@given(mappings, arrays)
def test_answer_is_a_look_up_by_name(mapping: Any, params: Any) -> None:
    imported, _ = read(json.dumps(mapping), "m.json")
    mesh = Mesh((MeshAxis("data", 2), MeshAxis("model", 4)))
    for param, answer in zip(params, haliax.answer(imported.reading, params, mesh), strict=True):
        axes = [mapping.get(name) or [] for name in param.logical_axes]
        dims = tuple((each,) if isinstance(each, str) else tuple(each) for each in axes)
        used = [axis for dim in dims for axis in dim]
        if len(set(used)) < len(used):
            assert isinstance(answer, NoAnswer), "JAX refuses a mesh axis that is given twice"
        else:
            assert not isinstance(answer, NoAnswer)
            assert answer.dims == dims


def test_an_axis_twice_in_an_array_is_refused() -> None:
    imported, _ = read("{embed: data}")
    params = (Param("a", (8, 8), "f32", ("embed", "embed")),)
    (answer,) = haliax.answer(imported.reading, params, Mesh())
    assert isinstance(answer, NoAnswer)


def test_older_levanter() -> None:
    options = Options(hardware="tpu v4 4x4x4")
    text, _ = spec_of(haliax, SourceFile("config.yaml", OLDER), options)
    assert "mesh: {replica: 1, data: rest, model: 4}  # from config.yaml:4\n" in text
    assert (
        "  - mlp -> model  # from config.yaml:5: tensor_parallel_axes\n"
        "  - heads -> model  # from config.yaml:5: tensor_parallel_axes\n"
        "  - batch -> (replica, data)  # from config.yaml:7: batch_axis\n"
        "  - embed -> data  # from config.yaml:6: fsdp_axis\n"
    ) in text
    _, faults = read(OLDER, hardware="tpu v4 4x4x4")
    assert [fault.message for fault in faults] == [
        "`embed -> data` is for parameters; what is computed keeps `embed` whole"
    ]


def test_defaults_of_older_levanter() -> None:
    imported, faults = read("trainer: {train_batch_size: 8}")
    assert imported.data["rules"] == ["batch -> (replica, data)", "embed -> data"]
    assert "mesh" not in imported.data
    assert "depends on the machine" in faults[0].message


def test_own_entries_of_parameters_win() -> None:
    text = (
        "trainer: {axis_resources: {mlp: model, embed: model}, "
        "parameter_axis_resources: {mlp: data}, fsdp_axis: null, batch_axis: null}"
    )
    imported, faults = read(text, mesh=MESH)
    assert imported.data["rules"] == ["mlp -> data", "embed -> model"]
    assert "in parameters the axis is `mlp -> data`" in faults[0].message


def test_newer_levanter() -> None:
    options = Options(hardware="2 * tpu v4 4x4x4")
    text, _ = spec_of(haliax, SourceFile("config.yaml", NEWER), options)
    assert "  data: rest\n  replica: 1\n  model: 4\n  context: 2\n  replica_dcn: 2 @ dcn\n" in text
    imported, faults = read(NEWER, hardware="2 * tpu v4 4x4x4")
    assert imported.data["rules"] == [
        "mlp -> model",
        "heads -> model",
        "position -> context",
        "embed -> (replica_dcn, data)",
        "batch -> (replica_dcn, replica, data)",
    ]
    assert faults[0].message.startswith("`kv -> model` is for what is computed")


def test_python_mappings() -> None:
    text = "param_axis_mapping = {'embed': 'data'}\nother = {'mlp': ('model', 'data')}\n"
    assert read(text, "m.py")[0].data["rules"] == ["embed -> data"]
    assert read(text, "m.py", name="other")[0].data["rules"] == ["mlp -> (model, data)"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("trainer: 3", "SHD603"),
        ("trainer: {axis_resources: [a]}", "SHD603"),
        ("trainer: {fsdp_axis: 3}", "SHD603"),
        ("trainer: {mesh: {axes: {data: x}}}", "SHD603"),
        ("trainer: {mesh: {axes: {a: -1, b: -1}}}", "SHD603"),
        ("trainer: {mesh: {axes: {a: 2}, dcn_axes: {a: 2}}}", "SHD603"),
        ("a: 3", "SHD603"),
        ("a: {embed: data}\nb: {mlp: data}", "SHD604"),
    ],
)
def test_bad_files(text: str, code: str) -> None:
    imported, faults = read(text, hardware="8 cpu")
    assert imported is None
    assert faults[0].code.id == code


CLASS = """
import dataclasses
BATCH = "data"
TENSOR = ("data", "model")

@dataclasses.dataclass
class ShardingRules:
    batch: AxisName = BATCH
    embed: AxisName = None
    mlp: AxisName = TENSOR
    heads: AxisName = "model"

    def __call__(self, *keys):
        return tuple(getattr(self, key) for key in keys)
"""


def test_a_class_of_rules_is_a_mapping() -> None:
    imported, faults = read(CLASS, "model.py", mesh=MESH)
    assert faults == ()
    assert imported.data["rules"] == [
        *("batch -> data", "embed -> none", "mlp -> (data, model)", "heads -> model"),
    ]
    assert imported.data["doc"] == "Rules of a class"


def test_what_the_only_call_of_the_class_says_counts() -> None:
    text = CLASS + "rules = ShardingRules(embed='model', heads=None)\n"
    imported, _ = read(text, "model.py", mesh=MESH)
    assert imported.data["rules"] == [
        *("batch -> data", "mlp -> (data, model)", "embed -> model", "heads -> none"),
    ]
    two = text + "other = ShardingRules(embed='data')\n"
    assert "embed -> none" in read(two, "model.py", mesh=MESH)[0].data["rules"]


@given(arrays)
def test_the_spec_lays_out_all_as_the_class_does(params: Any) -> None:
    found = proof(haliax, SourceFile("m.py", CLASS), params, Options(mesh=MESH, params=params))
    for each in found:
        assert isinstance(each.theirs, NoAnswer)
        assert "vocab" in each.theirs.reason or "twice" in each.theirs.reason


def test_tags_and_keys_beside_the_trainer_do_not_stop_an_import() -> None:
    text = "data: !include data/source.yaml\noptim: !include o.yaml\n" + OLDER.replace(
        "data: {id: dlwh/wikitext}\n", ""
    )
    imported, _ = read(text, hardware="tpu v4 4x4x4")
    assert imported is not None
    assert imported.data["rules"]


def test_a_trainer_from_another_file_is_refused_with_the_reason() -> None:
    imported, faults = read("trainer: !include trainer.yaml\n")
    assert imported is None
    assert "`!include`" in faults[0].message


def test_a_class_of_axis_names_is_a_class_of_rules() -> None:
    text = (
        "class ShardingAxisName2D:\n    ATTN_HEAD = 'model'\n    VOCAB = ('expert', 'model')\n"
        "    ATTN_TENSOR = None\n"
    )
    options = Options(mesh=(("expert", "2"), ("model", "4")))
    imported, faults = haliax.read([SourceFile("sharding.py", text)], options)
    assert not faults
    assert imported is not None
    assert imported.data["rules"] == [
        "ATTN_HEAD -> model",
        "VOCAB -> (expert, model)",
        "ATTN_TENSOR -> none",
    ]
