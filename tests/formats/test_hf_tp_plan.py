"""Tensor-parallel plans of Hugging Face transformers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import SourceFile
from shardspec.formats import hf_tp_plan
from shardspec.formats.foreign.imported import NoAnswer, Options
from shardspec.formats.foreign.tp_styles import generic, partition
from shardspec.ir.param import Param
from tests.formats.proofs import proof, spec_of

MESH = (("data", "2"), ("tp", "4"))
PLAN = {
    "layers.*.self_attn.q_proj": "colwise",
    "layers.*.self_attn.o_proj": "rowwise",
    "layers.*.mlp.experts.gate_up_proj": "packed_colwise",
    "layers.*.mlp.experts.down_proj": "rowwise",
    "layers.*.mlp.experts": "moe_tp_experts",
}
CONFIG = json.dumps({"model_type": "mixtral", "base_model_tp_plan": PLAN}, indent=1)
LLAMA = """
class LlamaConfig(PreTrainedConfig):
    base_model_tp_plan = {"layers.*.mlp.up_proj": "colwise", "layers.*.mlp.down_proj": "rowwise"}
"""
MODEL = 'class LlamaForCausalLM:\n    _tp_plan = {"lm_head": "colwise_gather_output"}\n'
styles = st.sampled_from(("colwise", "rowwise", "replicate", "embedding_rowwise", "packed_rowwise"))
keys = st.sampled_from(("layers.*.q", "layers.*.mlp.up", "mlp.up", "up", "norm", "layers.*.mlp.w"))
parts = st.sampled_from((".", "/"))
names = st.sampled_from(
    ("model.layers.0.q.weight", "layers.1.q.bias", "layers.0.mlp.up.weight", "norm.weight",
     "mlp.up.bias", "model.layers.3.mlp.w", "embed_tokens.weight", "a.norm", "mlp.layers.2.up.b",
     "layers.0.mlp.up.weight_scale", "x.up.weight", "layers.12.mlp.up.weight")
)  # fmt: skip
arrays = st.lists(
    st.tuples(names, st.sampled_from(((), (8,), (8, 16), (8, 16, 32)))),
    unique_by=lambda each: each[0],
)


def read(text: str, file: str = "config.json", **options: Any) -> Any:
    return hf_tp_plan.read([SourceFile(file, text)], Options(**options))


def param(path: str, *shape: int) -> Param:
    return Param(path, shape, "bf16")


@given(st.dictionaries(keys, styles, min_size=1), arrays, parts)
def test_the_spec_splits_as_transformers_does(plan: Any, found: Any, part: str) -> None:
    params = tuple(param(name.replace(".", part), *shape) for name, shape in found)
    options = Options(mesh=MESH, params=params)
    differing = proof(hf_tp_plan, SourceFile("plan.json", json.dumps(plan)), params, options)
    assert [each for each in differing if not isinstance(each.theirs, NoAnswer)] == []


@pytest.mark.parametrize(
    ("style", "leaf", "rank", "dims"),
    [
        ("colwise", "weight", 2, (("tp",), ())),
        ("colwise_rep", "bias", 1, (("tp",),)),
        ("colwise", "down_proj", 3, ((), ("tp",), ())),
        ("rowwise", "weight", 2, ((), ("tp",))),
        ("rowwise", "bias", 1, ((),)),
        ("rowwise", "down_proj", 3, ((), (), ("tp",))),
        ("embedding_rowwise", "weight", 2, (("tp",), ())),
        ("embedding_colwise", "weight", 2, ((), ("tp",))),
        ("grouped_gemm", "gate_up_proj", 3, (("tp",), (), ())),
        ("sequence_parallel", "weight", 1, ((),)),
        ("colwise", "scale", 0, ()),
    ],
)
def test_styles(style: str, leaf: str, rank: int, dims: Any) -> None:
    assert partition(style, leaf, rank, "tp") == dims


def test_packed_styles_have_no_partition() -> None:
    assert isinstance(partition("packed_colwise", "gate_up_proj", 3, "tp"), NoAnswer)
    assert isinstance(partition("made_up", "weight", 2, "tp"), NoAnswer)


def test_numbers_between_dots_are_wildcards() -> None:
    assert generic("layers.3.w1.weight") == "layers.*.w1.weight"
    assert generic("experts.7") == "experts.*"


def test_mixtral() -> None:
    params = (
        *(param(f"model.layers.{i}.self_attn.q_proj.weight", 64, 64) for i in range(3)),
        *(param(f"model.layers.{i}.mlp.experts.down_proj", 8, 64, 64) for i in range(3)),
        param("model.embed_tokens.weight", 320, 64),
        param("model.norm.weight", 64),
    )
    options = Options(mesh=MESH, params=params)
    text, _ = spec_of(hf_tp_plan, SourceFile("config.json", CONFIG), options)
    assert (
        r"  - match: (?:.+[./])?layers[./]\d+[./]mlp[./]experts[./]down_proj  "
        "# from config.json:7: rowwise\n    spec: (none, none, tp)\n"
    ) in text
    assert "embed_tokens[./]weight  # from config.json:4: embedding_rowwise\n" in text
    _, faults = read(CONFIG, params=params)
    assert [fault.message for fault in faults] == [
        "`layers.*.mlp.experts.gate_up_proj`: "
        "packed_colwise gives each device a part of both packed halves"
    ]


def test_python_files_are_joined() -> None:
    sources = [SourceFile("configuration.py", LLAMA), SourceFile("modeling.py", MODEL)]
    imported, faults = hf_tp_plan.read(sources, Options())
    assert imported is not None
    found = imported.data["overrides"]
    assert isinstance(found, list)
    assert {"match": "(?:.+[./])?lm_head[./]weight", "spec": "(tp, none)"} in found
    assert {"match": "(?:.+[./])?embed_tokens[./]weight", "spec": "(tp, none)"} in found
    assert faults[-1].message.startswith("no arrays are given")


def test_the_mesh_axis_is_the_one_that_splits() -> None:
    text = '{"a": "colwise", "embed_tokens": "replicate"}'
    for mesh, axis in (((("x", "8"),), "x"), ((("data", "2"), ("model", "4")), "model")):
        imported, _ = read(text, mesh=mesh)
        assert imported.data["overrides"][0]["spec"] == f"({axis}, none)"


def test_keys_that_never_match_and_unknown_styles() -> None:
    _, faults = read('{"layers.0.q": "colwise", "b": "made_up"}')
    messages = [fault.message for fault in faults]
    assert "`layers.0.q` never matches: names are looked up with `*` for numbers" in messages
    assert "`made_up` is no style of transformers" in messages


@pytest.mark.parametrize(
    ("text", "file", "code"),
    [
        ("{}", "config.json", "SHD603"),
        ('{"base_model_tp_plan": 3}', "config.json", "SHD603"),
        ('{"base_model_tp_plan": {"a": 3}}', "config.json", "SHD603"),
        ("class A:\n    base_model_tp_plan = make()", "c.py", "SHD603"),
        ("class A:\n    _tp_plan = {'a': 'x'}\nclass B:\n    _tp_plan = {}", "c.py", "SHD604"),
    ],
)
def test_bad_files(text: str, file: str, code: str) -> None:
    imported, faults = read(text, file)
    assert imported is None
    assert faults[0].code.id == code


def test_a_section_is_named() -> None:
    plans = {"text_config": {"base_model_tp_plan": {"a": "colwise"}},
             "vision_config": {"base_model_tp_plan": {"b": "rowwise"}}}  # fmt: skip
    imported, _ = read(json.dumps(plans), name="vision_config")
    assert [entry.key for entry in imported.reading.entries] == ["embed_tokens", "b"]
