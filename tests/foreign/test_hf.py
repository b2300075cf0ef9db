"""Tensor-parallel plans of Hugging Face transformers."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.foreign import hf
from shardspec.foreign.formats import NoAnswer, NotRead, Options
from shardspec.foreign.hf_models import generic, partition
from shardspec.ir.spec import Mesh, MeshAxis, Param
from tests.foreign.proofs import spec_of

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
keys = st.sampled_from(
    ("layers.*.q", "layers.*.mlp.up", "layers.*.mlp.up.weight", "mlp.up", "up", "norm", "typo",
     "layers.*.mlp.w", "layers.0.q", "model.layers.*.q", "mlp.layers.*.up")
)  # fmt: skip
parts = st.sampled_from((".", "/"))
names = st.sampled_from(
    ("model.layers.0.q.weight", "layers.1.q.bias", "layers.0.mlp.up.weight", "norm.weight",
     "mlp.up.bias", "model.layers.3.mlp.w", "embed_tokens.weight", "a.norm", "mlp.layers.2.up.b",
     "layers.0.mlp.up.weight_scale", "x.up.weight", "layers.12.mlp.up.weight", "layers.0.q.weight")
)  # fmt: skip
arrays = st.lists(
    st.tuples(names, st.sampled_from(((), (8,), (8, 16), (8, 16, 32)))),
    unique_by=lambda each: each[0],
)


def read(text: str, file: str = "config.json", **options: Any) -> Any:
    return hf.read([SourceFile(file, text)], Options(**options))


def param(path: str, *shape: int) -> Param:
    return Param(path, shape, "bf16")


def style_of(name: str, plan: dict[str, str]) -> str | None:
    """Do what transformers 5.23.0 does in `_get_parameter_plan`."""
    known = re.sub(r"\.\d+(\.|$)", lambda found: ".*" + found.group(1), name)
    if known in plan:
        return plan[known]
    return plan.get(known.rsplit(".", 1)[0]) if "." in known else None


@given(st.dictionaries(keys, styles, min_size=1), arrays, parts)
def test_the_spec_splits_as_transformers_does(plan: Any, found: Any, part: str) -> None:
    params = tuple(param(name.replace(".", part), *shape) for name, shape in found)
    options = Options(mesh=MESH, params=params, names=("tp_plan=.",))
    source = SourceFile("plan.json", json.dumps({"tp_plan": plan}))
    written, reading = spec_of(hf, source, options)
    spec, _ = pipeline.load_text(written, "spec.yaml")
    assert spec is not None
    shardings = pipeline.compile_plans(spec, params)[0]
    answers = hf.answer(reading, params, shardings.mesh)
    for (name, shape), sharding, answer in zip(found, shardings.arrays, answers, strict=True):
        style = style_of(name, plan)
        dims = partition(style or "replicate", name.rpartition(".")[2], len(shape), "tp")
        if isinstance(dims, NoAnswer):
            assert isinstance(answer, NoAnswer)
            assert sharding.is_replicated
        else:
            assert sharding.partition_spec.dims == dims
            assert answer == sharding.partition_spec


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
        *(param(f"model.layers.{i}.self_attn.o_proj.weight", 64, 64) for i in range(3)),
        *(param(f"model.layers.{i}.mlp.experts.down_proj", 8, 64, 64) for i in range(3)),
        *(param(f"model.layers.{i}.mlp.experts.gate_up_proj", 8, 128, 64) for i in range(3)),
        param("model.embed_tokens.weight", 320, 64),
        param("model.norm.weight", 64),
    )
    options = Options(mesh=MESH, params=params)
    text, _ = spec_of(hf, SourceFile("config.json", CONFIG), options)
    assert (
        r"  - match: model[./]layers[./]\d+[./]mlp[./]experts[./]down_proj  "
        "# from config.json:7: rowwise\n    spec: (none, none, tp)\n"
    ) in text
    assert "embed_tokens[./]weight  # from config.json:4: embedding_rowwise\n" in text
    assert r"- match: model[./]layers[./]\d+[./]mlp[./]experts[./]gate_up_proj  # from conf" in text
    assert 'because: "packed_colwise in config.json:6: no PartitionSpec gives each device' in text
    _, faults = read(CONFIG, params=params)
    assert [fault.message for fault in faults] == [
        "`layers.*.mlp.experts.gate_up_proj`: "
        "packed_colwise gives each device a part of both packed halves"
    ]


def test_python_files_are_joined() -> None:
    sources = [SourceFile("configuration.py", LLAMA), SourceFile("modeling.py", MODEL)]
    imported, faults = hf.read(sources, Options())
    assert imported is not None
    found = imported.data["overrides"]
    assert isinstance(found, list)
    for name in ("lm_head", "embed_tokens"):
        match = f"(?:.+[./])?{name}[./]weight"
        assert {"match": match, "optional": True, "spec": "(tp, none)"} in found
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


# Whose plan it is: the files of a model of several parts, and what was not read.

CONFIGURATION = """
class FooTextConfig(PreTrainedConfig):
    base_model_tp_plan = {"layers.*.up": "colwise", "layers.*.down": "rowwise"}

class FooVisionConfig(PreTrainedConfig):
    base_model_tp_plan = {"layers.*.up": "rowwise"}

class FooConfig(PreTrainedConfig):
    sub_configs = {"text_config": FooTextConfig, "vision_config": SubConfigSpec(
        config_class=FooVisionConfig), "audio_config": AutoConfig}
    base_model_tp_plan = {"adapter.fc1": "colwise"}
"""
MODELING = """
class FooPreTrainedModel(PreTrainedModel):
    config: FooConfig
    base_model_prefix = "model"

class FooTextModel(FooPreTrainedModel):
    config: FooTextConfig
    def __init__(self, config):
        super().__init__(config)
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([Layer(config) for _ in range(config.layers)])

class FooVisionModel(FooPreTrainedModel):
    config: FooVisionConfig
    def __init__(self, config):
        self.layers = nn.ModuleList([Layer(config)])

class FooModel(FooPreTrainedModel):
    def __init__(self, config: FooConfig):
        self.vision_tower = FooVisionModel._from_config(config.vision_config)
        self.language_model = AutoModel.from_config(config.get_text_config())
        if config.audio_config is not None:
            self.audio_tower = AutoModel.from_config(config.audio_config)
        self.adapter = FooAdapter(config)

class FooForConditionalGeneration(FooPreTrainedModel, GenerationMixin):
    _tp_plan = {"lm_head": "colwise_gather_output"}
    def __init__(self, config):
        self.model = FooModel(config)
        self.lm_head = nn.Linear(1, 1)
"""
FOO = tuple(
    param(path, 8, 16)
    for path in (
        "model.language_model.embed_tokens.weight",
        "model.language_model.layers.0.up.weight",
        "model.language_model.layers.0.down.weight",
        "model.vision_tower.layers.0.up.weight",
        "model.adapter.fc1.weight",
        "lm_head.weight",
    )
)
AUDIO = param("model.audio_tower.layers.0.up.weight", 8, 16)
COLUMN, ROW, WHOLE = (("tp",), ()), ((), ("tp",)), ((), ())


def foo(files: dict[str, str], *names: str, params: Any = FOO) -> Any:
    """Return the answer for each array by the last part of its name, and the findings."""
    sources = [SourceFile(name, text) for name, text in files.items()]
    options = Options(mesh=MESH, params=params, names=names)
    imported, faults = hf.read(sources, options)
    if imported is None:
        return None, faults
    mesh = Mesh((MeshAxis("tp", 4),))
    return hf.answer(imported.reading, params, mesh), faults


BOTH = {"configuration_foo.py": CONFIGURATION, "modeling_foo.py": MODELING}


def test_a_model_has_the_plans_of_its_parts() -> None:
    """As transformers does it: class, configuration, and each child with its name in front."""
    for names in ((), ("FooForConditionalGeneration",)):
        answers, _ = foo(BOTH, *names)
        assert [each.dims for each in answers] == [COLUMN, COLUMN, ROW, ROW, COLUMN, COLUMN]


def test_parts_whose_class_is_in_no_file_are_not_compared() -> None:
    answers, _ = foo(BOTH, params=(*FOO, AUDIO))
    assert isinstance(answers[-1], NotRead)
    assert answers[-1].reason == (
        "`model.audio_tower` is the model of `config.audio_config`, whose file is not given"
    )
    assert not any(isinstance(each, NotRead) for each in answers[:-1])


def test_a_plan_alone_speaks_for_its_own_module() -> None:
    answers, _ = foo({"configuration_foo.py": CONFIGURATION}, "FooTextConfig")
    assert [type(each).__name__ for each in answers[:3]] == ["PartitionSpec"] * 3
    assert [type(each).__name__ for each in answers[3:]] == ["NotRead"] * 3


def test_names_say_where_plans_belong() -> None:
    names = (
        "FooTextConfig=model.language_model",
        "FooVisionConfig=model.vision_tower",
        "FooConfig=model",
        "FooForConditionalGeneration._tp_plan=.",
    )
    answers, _ = foo(BOTH, *names)
    assert [each.dims for each in answers] == [COLUMN, COLUMN, ROW, ROW, COLUMN, COLUMN]


def test_sections_of_one_configuration_are_all_read() -> None:
    plans = {
        "base_model_tp_plan": {"adapter.fc1": "colwise"},
        "text_config": {
            "base_model_tp_plan": {"layers.*.up": "colwise", "layers.*.down": "rowwise"}
        },
        "vision_config": {"base_model_tp_plan": {"layers.*.up": "rowwise"}},
    }  # fmt: skip
    answers, _ = foo({"config.json": json.dumps(plans)})
    assert [each.dims for each in answers[:5]] == [COLUMN, COLUMN, ROW, ROW, COLUMN]
    assert isinstance(answers[5], NotRead)


def test_a_plan_that_fits_two_places_asks() -> None:
    params = tuple(param(f"{tower}.layers.0.up.weight", 8, 16) for tower in ("a", "b"))
    plan = {"plan.json": '{"layers.*.up": "colwise"}'}
    answers, faults = foo(plan, params=params)
    assert answers is None
    assert faults[0].code.id == "SHD604"
    plan = {"plan.json": '{"tp_plan": {"layers.*.up": "colwise"}}'}
    assert "say where it belongs: --name tp_plan=a; twice" in str(
        foo(plan, params=params)[1][0].help
    )
    answers, _ = foo(plan, "tp_plan=a", "tp_plan=b", params=params)
    assert [each.dims for each in answers] == [COLUMN, COLUMN]
    answers, _ = foo(plan, "tp_plan=a", params=params)
    assert [type(each).__name__ for each in answers] == ["PartitionSpec", "NotRead"]


def test_the_plan_of_a_class_alone_does_not_split_embeddings() -> None:
    """Only the plan of a configuration does: seen on Emu3ForCausalLM."""
    params = (param("model.embed_tokens.weight", 8, 16), param("lm_head.weight", 8, 16))
    for plan in ('{"tp_plan": {"lm_head": "colwise"}}', '{"lm_head": "colwise"}'):
        answers, _ = foo({"plan.json": plan}, params=params)
        assert [each.dims for each in answers] == [WHOLE, COLUMN]


@pytest.mark.parametrize(
    ("style", "section"), [("colwise", "overrides"), ("replicate", "replicate")]
)
def test_keys_that_name_nothing_are_kept(style: str, section: str) -> None:
    plan = {"layers.*.up": "colwise", "layers.*.gate_projj": style}
    text, found = _checked(plan, "layers.0.up.weight")
    assert found == []  # for layers that this model does not have
    assert "names no array of those given" in text
    _, found = _checked(plan, "layers.0.up.weight", "layers.0.gate_proj.weight")
    pattern = "layers[./]\\d+[./]gate_projj[./]weight"
    assert [(str(each.severity), each.message.partition(" matches")[0]) for each in found] == [
        ("warning", f"optional {section.removesuffix('s')} pattern `re:{pattern}`")
    ]
    assert found[0].help == "did you mean `re:layers[./]\\d+[./]gate_proj[./]weight`?"


def test_a_plan_of_which_no_key_names_an_array_is_one_finding() -> None:
    """As the plan of Llama 4, whose class says `base_model_prefix = "language_model"`."""
    plan = {f"layers.*.self_attn.{each}_proj": "colwise" for each in "qkv"}
    paths = [f"model.layers.0.self_attn.{each}_proj.weight" for each in "qkvo"]
    text, (found, *more) = _checked(plan, *paths, names=("tp_plan=language_model",))
    assert "optional" not in text
    assert more == []
    assert found.message == (
        "3 patterns match none of 4 arrays (3 override): the patterns begin with"
        " `language_model.`, and the paths with `model.`"
    )
    assert found.help == "write `model.` for `language_model.` in each pattern"


def _checked(
    plan: dict[str, str], *paths: str, names: tuple[str, ...] = ()
) -> tuple[str, list[Diagnostic]]:
    """Return the imported spec of a plan, and what is found of its patterns."""
    params = tuple(param(path, 8, 16) for path in paths)
    options = Options(mesh=MESH, params=params, names=names)
    source = SourceFile("plan.json", json.dumps({"tp_plan": plan}))
    text, _ = spec_of(hf, source, options)
    spec, _ = pipeline.load_text(text, "spec.yaml")
    assert spec is not None
    said = pipeline.findings(spec, pipeline.compile_plans(spec, params)).shown
    return text, [each for each in said if each.code.id == "SHD204"]


def test_output_weights_that_are_the_embeddings_are_no_typo() -> None:
    plan = {"plan.json": '{"tp_plan": {"model.embed_tokens": "replicate", "lm_head": "colwise"}}'}
    answers, faults = foo(plan, params=(param("model.embed_tokens.weight", 8, 16),))
    assert [each.dims for each in answers] == [WHOLE]
    assert faults[0].message.startswith("`lm_head` names no array: output weights tied")


def test_a_style_for_one_layer_on_a_list_of_them_is_said() -> None:
    """Transformers raises: seen on the talker of Qwen3-Omni, whose `lm_head` is a ModuleList."""
    plan = {"plan.json": '{"tp_plan": {"lm_head": "colwise", "layers.*.up": "colwise"}}'}
    params = (param("layers.0.up.weight", 8, 16), param("lm_head.0.weight", 8, 16))
    answers, faults = foo(plan, params=params)
    assert [each.dims for each in answers] == [COLUMN, WHOLE]
    assert [each.message for each in faults] == [
        "`lm_head` is a module without parameters of its own: nothing is split"
    ]
