"""MaxText: its real rules, how its files are joined, its meshes, and what that changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.foreign import flax, maxtext
from shardspec.foreign.formats import (
    ForeignRule,
    Imported,
    NoAnswer,
    Options,
    Request,
    linen_axes,
    spec_text,
)
from shardspec.foreign.maxtext_config import MaxTextConfig, read_configs
from shardspec.foreign.proof import differences, spelt_out
from shardspec.ir.spec import Mesh, MeshAxis, Param, Params, Spec
from shardspec.language.yaml_text.printer import print_yaml
from shardspec.resolve.resolver import resolve

DATA = Path(__file__).parents[1] / "data" / "maxtext"
MESH = "mesh_axes: [data, fsdp, tensor]\nici_fsdp_parallelism: 4\nici_tensor_parallelism: 2\n"


def real(name: str) -> SourceFile:
    path = DATA / name
    return SourceFile(str(path), path.read_text(encoding="utf-8"))


def file(text: str, name: str = "base.yml") -> SourceFile:
    return SourceFile(name, text)


def read(*files: SourceFile, **options: Any) -> tuple[Imported | None, tuple[Diagnostic, ...]]:
    return maxtext.read(files, Options(**options))


def spec_of(*files: SourceFile, **options: Any) -> tuple[Spec, Imported]:
    imported, faults = read(*files, **options)
    assert imported is not None, faults
    written, wrong = spec_text(imported, Options(**options), files, "spec.yaml")
    assert wrong == ()
    assert written is not None
    spec, faults = pipeline.load_text(written, "spec.yaml")
    assert spec is not None
    assert faults == ()
    return spec, imported


def differing(params: Params, *files: SourceFile, **options: Any) -> list[str]:
    """Return the paths of arrays that MaxText lays out otherwise than the spec."""
    spec, imported = spec_of(*files, params=params, **options)
    plan = pipeline.compile_plans(spec, params)[0]
    answers = maxtext.answer(imported.reading, params, plan.target.mesh)
    return [
        path
        for each in differences(plan, answers)
        if not isinstance(each.theirs, NoAnswer)
        for path in each.paths
    ]


def rules(*texts: str) -> str:
    return f"logical_axis_rules: [{', '.join(texts)}]\n"


# the real files

NAMES = tuple(dict.fromkeys(rule.name or "" for rule in read_configs([real("base.yml")]).rules))


@given(st.lists(st.lists(st.sampled_from(NAMES), max_size=4, unique=True).map(tuple), max_size=8))
def test_the_spec_says_what_maxtext_does(all_names: Any) -> None:
    params = tuple(Param(f"a_{i}", (64,) * len(n), "f32", n) for i, n in enumerate(all_names))
    files = (real("base.yml"), real("llama2-70b.yml"))
    machine = "2 * tpu v5e 4x4"
    assert differing(params, *files, hardware=machine) == []
    mesh = (("fsdp", "4"), ("tensor", "2"), ("context", "2"), ("expert", "2"))
    assert differing(params, *files, mesh=mesh) == []


def test_base_rules_are_whole() -> None:
    spec, imported = spec_of(real("base.yml"), hardware="2 * tpu v5e 4x4")
    assert len(spec.axis_rules) == 84
    assert spec.targets[0].mesh.sizes["fsdp"] == 16
    data = spec.targets[0].mesh.axes[1]
    assert (data.name, data.size, data.network) == ("data", 2, "dcn")
    assert imported.data["activations"] == {
        "input_data": "activation_embed_and_logits_batch activation_norm_length"
    }


def test_unknown_mesh_axes_of_a_shipped_file_are_found() -> None:
    files = (real("base.yml"), real("custom_mesh_and_rule/ep-as-dp.yml"))
    imported, faults = read(*files, hardware="tpu v5e 4x4")
    assert imported is not None
    assert [fault.code.id for fault in faults] == ["SHD601"] * 3
    named = [fault.message.split("`")[1] for fault in faults]
    assert named == ["context", "tensor", "tensor_transpose"]
    spec, _ = spec_of(*files, hardware="tpu v5e 4x4")
    assert {axis for rule in spec.axis_rules for axis in rule.mesh_axes} <= set(
        spec.targets[0].mesh.names
    )


def test_a_misspelt_mesh_axis_has_a_suggestion() -> None:
    text = "mesh_axes: [expert, tensor]\n" + rules("[exp, exprt]", "[mlp, model]")
    helps = [fault.help for fault in read(file(text))[1]]
    left = "the axis is left out of these rules in the spec"
    assert helps[-2:] == [f"did you mean `expert`? {left}", left]


def test_a_custom_mesh_replaces_everything() -> None:
    spec, _ = spec_of(
        real("base.yml"), real("custom_mesh_and_rule/pure-fsdp.yml"), hardware="tpu v5e 4x4"
    )
    assert spec.targets[0].mesh.sizes == {"fsdp": 16}
    *rules, last = spec.axis_rules
    assert len(rules) == 13
    assert (last.logical_axis, last.mesh_axes) == ("activation_norm_length", ())  # the input's
    assert pipeline.findings(spec, pipeline.compile_plans(spec)).shown == ()


def test_a_custom_mesh_may_be_named_by_a_file() -> None:
    overlay = SourceFile(str(DATA / "run.yml"), "custom_mesh_and_rule: pure-fsdp\n")
    spec, _ = spec_of(real("base.yml"), overlay, hardware="tpu v5e 4x4")
    assert spec.targets[0].mesh.sizes == {"fsdp": 16}
    gone = SourceFile(str(DATA / "run.yml"), "custom_mesh_and_rule: 2d-fsdp\n")
    _, faults = read(real("base.yml"), gone, hardware="tpu v5e 4x4")
    assert "names `2d-fsdp`" in faults[0].message


# joining

BASE = MESH + rules("[heads, tensor]", "[mlp, tensor]", "[embed, [fsdp, tensor]]")
CHILD = rules("[heads, fsdp]")
ATTENTION = Param("attention/query", (64, 8), "f32", ("embed", "heads"))
NORM = Param("norm", (64,), "f32", ("embed",))


def test_a_replaced_rule_moves_to_the_end_and_loses() -> None:
    spec, _ = spec_of(file(BASE), file(CHILD, "model.yml"), params=(ATTENTION,))
    assert [str(rule) for rule in spec.axis_rules] == [
        "mlp -> tensor",
        "embed -> (fsdp, tensor)",
        "heads -> fsdp",
    ]
    assert differing((ATTENTION,), file(BASE), file(CHILD, "model.yml")) == []
    _, (fault,) = read(file(BASE), file(CHILD, "model.yml"), params=(ATTENTION,))
    assert fault.code.id == "SHD605"
    assert [label.span.place for label in fault.labels] == ["model.yml:1", "base.yml:4"]
    assert "it changes 1 of 1 array with `heads`" in fault.notes


def test_in_place_is_another_answer_and_said_so() -> None:
    files = (file(BASE), file(CHILD, "model.yml"))
    spec, _ = spec_of(*files, merge="in-place")
    assert str(spec.axis_rules[0]) == "heads -> fsdp"
    assert differing((ATTENTION, NORM), *files, merge="in-place") == [ATTENTION.path]
    _, (fault,) = read(*files, merge="in-place")
    assert (fault.code.id, fault.help) == (
        "SHD605",
        "--merge maxtext imports what MaxText does",
    )


def test_a_tuple_with_all_its_parts_behind_it_is_one_rule() -> None:
    parts = ("[mlp, [fsdp, tensor]]", "[mlp, fsdp]", "[mlp, tensor]")
    text = MESH + rules("[embed, fsdp]", *parts, "[kv, [fsdp, tensor]]", "[kv, fsdp]")
    spec, _ = spec_of(file(text))
    assert [str(rule) for rule in spec.axis_rules] == [
        "embed -> fsdp",
        "mlp -> (fsdp, tensor)?",
        "kv -> (fsdp, tensor)",
        "kv -> fsdp",
    ]
    arrays = (
        Param("a", (8, 8), "f32", ("embed", "mlp")),
        Param("b", (16,), "f32", ("mlp",)),
        Param("c", (8, 16), "f32", ("mlp", "kv")),
    )
    assert differing(arrays, file(text)) == []


def test_a_move_that_changes_no_array_is_not_said() -> None:
    assert read(file(BASE), file(CHILD, "model.yml"), params=(NORM,))[1] == ()
    only = file(rules("[embed, fsdp]"), "model.yml")
    assert read(file(BASE), only)[1] == ()


def test_a_file_may_replace_the_whole_list() -> None:
    text = "override_logical_axis_rules: True\n" + CHILD
    spec, _ = spec_of(file(BASE), file(text, "model.yml"))
    assert [str(rule) for rule in spec.axis_rules] == ["heads -> fsdp"]


def test_a_base_config_is_read_first(tmp_path: Path) -> None:
    (tmp_path / "base.yml").write_text(BASE)
    child = file("base_config: base.yml\nici_tensor_parallelism: 1\n", str(tmp_path / "run.yml"))
    spec, _ = spec_of(child)
    assert spec.targets[0].mesh.sizes == {"data": 1, "fsdp": 4, "tensor": 1}
    assert len(spec.axis_rules) == 3
    whole = file("base_config: base.yml\n" + CHILD, str(tmp_path / "run.yml"))
    assert len(spec_of(whole)[0].axis_rules) == 1


def test_an_empty_base_config_is_none() -> None:
    _, faults = read(file('base_config: ""\n' + BASE), mesh=(("fsdp", "4"),))
    assert faults == ()


@pytest.mark.parametrize("path", ["../../base.yml", "{folder}/base.yml", "missing.yml"])
def test_a_base_config_elsewhere_is_not_read(path: str, tmp_path: Path) -> None:
    (tmp_path / "base.yml").write_text("- this is no configuration\n")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    named = path.format(folder=tmp_path)
    source = file(f"base_config: {named}\n" + BASE, str(inner / "run.yml"))
    _, faults = read(source, mesh=(("fsdp", "4"),))
    assert [fault.code.id for fault in faults] == ["SHD601"]
    assert faults[0].message == f"`base_config` names `{named}`, which is not beside this file"


def folder_of_configs(tmp_path: Path) -> Path:
    """Return a folder as MaxText has it: base.yml, and a file two folders below it."""
    configs = tmp_path / "maxtext" / "configs"
    (configs / "post_train" / "big").mkdir(parents=True)
    (configs / "models").mkdir()
    (configs / "custom_mesh_and_rule").mkdir()
    (configs / "base.yml").write_text("model_name: default\n" + BASE)
    (configs / "post_train" / "sft.yml").write_text("base_config: base.yml\nuse_sft: true\n")
    (configs / "post_train" / "big" / "run.yml").write_text(
        "base_config: post_train/sft.yml\n" + CHILD
    )
    return configs


def opened(path: Path) -> SourceFile:
    return SourceFile(str(path), path.read_text(encoding="utf-8"))


def texts(spec: Spec) -> list[str]:
    return [str(rule) for rule in spec.axis_rules]


def test_a_base_config_is_found_in_the_folder_of_configs(tmp_path: Path) -> None:
    configs = folder_of_configs(tmp_path)
    run = opened(configs / "post_train" / "big" / "run.yml")
    spec, _ = spec_of(run)
    assert texts(spec) == ["heads -> fsdp"]
    assert spec.targets[0].mesh.sizes["fsdp"] == 4
    assert read(run)[1] == ()


def test_a_base_config_is_found_in_a_folder_that_is_said(tmp_path: Path) -> None:
    configs = folder_of_configs(tmp_path)
    (tmp_path / "mine.yml").write_text("base_config: post_train/sft.yml\n")
    mine = opened(tmp_path / "mine.yml")
    assert {fault.code.id for fault in read(mine)[1]} == {"SHD601", "SHD603"}
    help = read(mine)[1][0].help or ""
    assert "-I " in help
    spec, _ = spec_of(mine, include=(str(configs),))
    assert len(texts(spec)) == 3


def test_a_base_that_is_given_and_named_is_read_once(tmp_path: Path) -> None:
    configs = folder_of_configs(tmp_path)
    files = (opened(configs / "base.yml"), opened(configs / "post_train" / "sft.yml"))
    assert read(*files)[1] == ()
    assert len(texts(spec_of(*files)[0])) == 3


def test_a_base_that_is_only_given_has_its_list_replaced_not_joined(tmp_path: Path) -> None:
    given = SourceFile(str(tmp_path / "elsewhere" / "base.yml"), BASE)
    run = SourceFile(str(tmp_path / "run.yml"), "base_config: base.yml\n" + CHILD)
    spec, _ = spec_of(given, run)
    assert texts(spec) == ["heads -> fsdp"]
    assert spec.targets[0].mesh.sizes["tensor"] == 2
    assert differing((ATTENTION, NORM), given, run) == []


def test_two_configurations_to_start_from_are_refused(tmp_path: Path) -> None:
    configs = folder_of_configs(tmp_path)
    other = SourceFile(str(tmp_path / "other.yml"), BASE)
    imported, faults = read(other, opened(configs / "post_train" / "sft.yml"))
    assert imported is None
    assert "is not based on" in faults[0].message


def test_a_circle_of_base_configs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("base_config: b.yml\n" + BASE)
    (tmp_path / "b.yml").write_text("base_config: a.yml\n" + BASE)
    imported, faults = read(opened(tmp_path / "a.yml"))
    assert imported is None
    assert "circle" in faults[0].message


def test_the_file_of_the_model_is_joined(tmp_path: Path) -> None:
    configs = folder_of_configs(tmp_path)
    (configs / "models" / "big.yml").write_text(rules("[embed, data]"))
    run = SourceFile(str(configs / "run.yml"), "base_config: base.yml\nmodel_name: big-Instruct\n")
    assert texts(spec_of(run)[0]) == ["heads -> tensor", "mlp -> tensor", "embed -> data"]
    assert differing((ATTENTION, NORM), run) == []
    model = opened(configs / "models" / "big.yml")
    assert texts(spec_of(run, model)[0]) == texts(spec_of(run)[0])
    gone = SourceFile(str(configs / "run.yml"), "base_config: base.yml\nmodel_name: huge\n")
    (fault,) = read(gone)[1]
    assert "models/huge.yml" in fault.message


def test_a_custom_mesh_counts_in_the_end_whatever_comes_behind_it(tmp_path: Path) -> None:
    configs = folder_of_configs(tmp_path)
    custom = "mesh_axes: [fsdp]\n" + rules("[mlp, fsdp]")
    (configs / "custom_mesh_and_rule" / "mine.yml").write_text(custom)
    run = SourceFile(
        str(configs / "run.yml"), "base_config: base.yml\ncustom_mesh_and_rule: mine\n"
    )
    late = file(CHILD, "late.yml")
    assert texts(spec_of(run, late)[0]) == ["mlp -> fsdp"]
    assert differing((ATTENTION, NORM), run, late) == []
    given = file(custom, "mine.yml")
    assert texts(spec_of(file(BASE), given, late)[0]) == ["mlp -> fsdp"]


def test_the_proof_does_not_trust_the_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def joined_wrongly(self: MaxTextConfig, new: Any) -> None:
        self.rules = self.in_place = (*new, *self.rules)

    files = (file(BASE), file(CHILD, "model.yml"))
    assert differing((ATTENTION, NORM), *files) == []
    monkeypatch.setattr(MaxTextConfig, "_merge", joined_wrongly)
    assert differing((ATTENTION, NORM), *files) == [ATTENTION.path]


def test_a_file_that_pyyaml_cannot_read_has_no_answer() -> None:
    imported, _ = read(file(MESH + "? [1, 2]\n: x\n" + rules("[embed, fsdp]")))
    assert imported is not None
    plan_mesh = Mesh((MeshAxis("fsdp", 4),))
    (answer,) = maxtext.answer(imported.reading, (NORM,), plan_mesh)
    assert isinstance(answer, NoAnswer)
    assert "cannot be read as MaxText reads them" in answer.reason


names = st.sampled_from(("heads", "mlp", "embed", "kv"))
some_rules = st.lists(
    st.tuples(
        names, st.lists(st.sampled_from(("data", "fsdp", "tensor")), max_size=2, unique=True)
    ),
    min_size=1,
    max_size=6,
)
arrays = st.lists(st.lists(names, max_size=3, unique=True).map(tuple), max_size=5)


def joined(base: Any, new: Any) -> Any:
    """Return MaxText's own join, written down from its source."""
    taken = {rule[0] for rule in new}
    return [rule for rule in base if rule[0] not in taken] + new


def in_full(rule: Any) -> Iterator[tuple[str, list[str]]]:
    """Yield a rule as MaxText has it: `(data, fsdp)?` stands for both, and then each alone."""
    yield rule.logical_axis, list(rule.mesh_axes)
    yield from ((rule.logical_axis, [axis]) for axis in rule.mesh_axes if rule.in_part)


@given(some_rules, some_rules, arrays)
@example(
    base=[("heads", [])],
    new=[("heads", ["data", "fsdp"]), ("heads", ["data"]), ("heads", ["fsdp"])],
    all_names=[],
)
def test_joins_as_maxtext_does(base: Any, new: Any, all_names: Any) -> None:
    files = (
        file(MESH + f"logical_axis_rules: {[list(rule) for rule in base]}"),
        file(f"logical_axis_rules: {[list(rule) for rule in new]}", "model.yml"),
    )
    params = tuple(Param(f"a_{i}", (64,) * len(n), "f32", n) for i, n in enumerate(all_names))
    spec, _ = spec_of(*files)
    stated = [one for rule in spec.axis_rules for one in in_full(rule)]
    assert stated == [(name, axes) for name, axes in joined(base, new)]
    assert differing(params, *files) == []


layers = st.lists(
    st.tuples(some_rules | st.none(), st.sampled_from((None, True, False))), max_size=3
)


@given(some_rules, layers, layers, arrays)
def test_chains_and_overlays_are_those_of_maxtext(
    base: Any, chain: Any, overlays: Any, all_names: Any
) -> None:
    """`base_config` replaces the list; files on top join it by name, or replace it when asked."""
    expected = base
    files = [file(MESH + f"logical_axis_rules: {[list(rule) for rule in base]}\n", "/no/0.yml")]
    for index, (own, flag) in enumerate(chain, 1):
        text = f"base_config: {index - 1}.yml\n" + written(own, flag)
        files.append(file(text, f"/no/{index}.yml"))
        expected = own or expected
    for index, (own, flag) in enumerate(overlays):
        files.append(file("x: 1\n" + written(own, flag), f"/no/over_{index}.yml"))
        expected = (own or []) if flag else joined(expected, own or [])
    imported, faults = read(*files)
    if not expected:
        assert imported is None
        return
    assert imported is not None, faults
    spec, _ = spec_of(*files)
    spelt = [part for rule in spec.axis_rules for part in spelt_out(rule)]
    assert [(rule.logical_axis, list(rule.mesh_axes)) for rule in spelt] == [
        (name, axes) for name, axes in expected
    ]
    params = tuple(Param(f"a_{i}", (64,) * len(n), "f32", n) for i, n in enumerate(all_names))
    assert differing(params, *files) == []


def written(own: Any, flag: Any) -> str:
    listed = "" if own is None else f"logical_axis_rules: {[list(rule) for rule in own]}\n"
    said = "" if flag is None else f"override_logical_axis_rules: {flag}\n"
    return listed + said


# meshes


def mesh_of(text: str, **options: Any) -> tuple[Any, list[str]]:
    imported, faults = read(file(text + rules("[embed, fsdp]")), **options)
    assert imported is not None, faults
    return imported.data.get("mesh"), [fault.code.id for fault in faults]


AXES = "mesh_axes: [data, stage, fsdp, tensor]\n"


def test_minus_one_takes_the_rest() -> None:
    text = AXES + "dcn_data_parallelism: -1\nici_fsdp_parallelism: -1\nici_tensor_parallelism: 4\n"
    assert mesh_of(text, hardware="2 * tpu v5e 4x4") == (
        {"data": "2 @ dcn", "stage": 1, "fsdp": 4, "tensor": 4},
        [],
    )
    assert mesh_of(text) == (None, ["SHD601"])
    asked = (("fsdp", "8"), ("tensor", "2"))
    assert mesh_of(text, mesh=asked)[0] == {"data": 1, "stage": 1, "fsdp": "8", "tensor": "2"}


def test_stage_is_called_pipeline_there() -> None:
    text = AXES + "ici_pipeline_parallelism: 2\n"
    assert mesh_of(text) == ({"data": 1, "stage": 2, "fsdp": 1, "tensor": 1}, ["SHD601"])


def test_sizes_for_axes_that_are_not_there_are_said() -> None:
    text = "mesh_axes: [fsdp]\nici_fsdp_parallelism: 4\nici_tensor_parallelism: 4\n"
    assert mesh_of(text) == ({"fsdp": 4}, ["SHD601"])


def test_an_axis_inside_and_across_slices_is_said() -> None:
    text = "mesh_axes: [fsdp]\nici_fsdp_parallelism: 4\ndcn_fsdp_parallelism: 2\n"
    assert mesh_of(text) == ({"fsdp": 8}, ["SHD601"])


def test_explicit_mode_is_a_type_of_the_axes() -> None:
    text = "shard_mode: explicit\n" + MESH
    mesh, _ = mesh_of(text)
    assert mesh == {"data": "1 explicit", "fsdp": "4 explicit", "tensor": "2 explicit"}


@pytest.mark.parametrize(
    "text",
    [
        "ici_fsdp_parallelism: -1\nici_tensor_parallelism: -1\n",
        "ici_fsdp_parallelism: 3\nici_tensor_parallelism: -1\n",
        "ici_fsdp_parallelism: 4\n",
        "ici_fsdp_parallelism: 16\ndcn_data_parallelism: 2\n",
        "ici_fsdp_parallelism: -2\n",
        "ici_fsdp_parallelism: many\n",
    ],
)
def test_sizes_that_maxtext_refuses_are_refused(text: str) -> None:
    imported, faults = read(file(AXES + text + rules("[embed, fsdp]")), hardware="tpu v5e 4x4")
    assert imported is None
    assert "SHD603" in {fault.code.id for fault in faults}


# beyond rules


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("shard_optimizer_over_data: true\n", "zero1"),
        ("custom_mesh: hybrid_ring_64x4\n", "ring"),
        (
            "data_sharding: [[data, tensor]]\ninput_data_sharding_logical_axes: [embed]\n",
            "input_data",
        ),
        ("logical_axis_rules_for_eval: [[embed, []]]\n", "the phase `eval` has the list"),
        ("custom_mesh_and_rule_for_eval: pure-fsdp\n", "maxtext/configs"),
    ],
)
def test_what_maxtext_does_in_code_is_said(text: str, word: str) -> None:
    _, faults = read(file(MESH + text + rules("[embed, fsdp]")))
    assert [fault.code.id for fault in faults] == ["SHD601"]
    assert word in (faults[0].help or "")


def test_of_data_sharding_the_axis_that_rules_lack_is_marked() -> None:
    text = "data_sharding: [[fsdp, tensor]]\ninput_data_sharding_logical_axes: [embed]\n"
    _, (found,) = read(file(MESH + text + rules("[embed, fsdp]")))
    assert found.primary is not None
    assert found.primary.span.text == "tensor"


@pytest.mark.parametrize(
    "text",
    [
        "logical_axis_rules_for_eval: []\n",
        'custom_mesh_and_rule_for_eval: ""\n',
        "optimizer_memory_host_offload: false\n",
        "optimizer_memory_host_offload: no\n",
    ],
)
def test_what_is_not_used_is_not_said(text: str) -> None:
    assert read(file(MESH + text + rules("[embed, fsdp]")))[1] == ()


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("optimizer_memory_host_offload: true\n", {"opt_state/**": "pinned_host"}),
        (
            "parameter_memory_host_offload: True\n",
            {"opt_state/**": "device", "**": "pinned_host"},
        ),
        (
            "optimizer_memory_host_offload: yes\nparameter_memory_host_offload: true\n",
            {"opt_state/**": "pinned_host", "**": "pinned_host"},
        ),
        ("optimizer_memory_host_offload: false\n", None),
    ],
)
def test_what_is_offloaded_lies_in_host_memory_and_comes_back(text: str, memory: Any) -> None:
    imported, faults = read(file(MESH + text + rules("[embed, fsdp]")))
    assert imported is not None
    assert faults == ()
    assert imported.data.get("memory") == memory
    spec, found = pipeline.load_text(print_yaml(imported.data), "spec.yaml")
    assert spec is not None, found
    param = Param("mlp/wi", (64, 64), "f32", ("embed", None))
    plan = resolve(spec, spec.targets[0], [param])
    on_host = "parameter_memory" in text
    assert plan["mlp/wi"].memory_kind == ("pinned_host" if on_host else None)
    written, faults = maxtext.write(Request(plan))
    assert written is not None
    assert not [fault for fault in faults if "memory" in fault.message]
    for key in ("optimizer", "parameter"):
        line = f"{key}_memory_host_offload: true"
        is_on = f"{key}_memory_host_offload" in text and "false" not in text
        assert (line in written.splitlines()) is is_on


def test_a_memory_that_maxtext_has_no_switch_for_is_said() -> None:
    spec, _ = pipeline.load_text(
        "mesh: {fsdp: 4}\nrules: [embed -> fsdp]\nmemory: {emb: pinned_host}\n", "spec.yaml"
    )
    assert spec is not None
    plan = resolve(spec, spec.targets[0], [Param("emb", (64, 8), "f32", ("embed", None))])
    written, faults = maxtext.write(Request(plan))
    assert written is not None
    assert "offload" not in written
    (fault,) = [fault for fault in faults if "memory" in fault.message]
    said = "MaxText's YAML has no memory kinds: the `pinned_host` of 1 array stays here"
    assert fault.message == said


def test_rules_for_evaluation_are_a_spec_of_their_own() -> None:
    text = MESH + "logical_axis_rules_for_eval: [[embed, [fsdp, tensor]]]\n" + rules("[mlp, fsdp]")
    options = Options(name="logical_axis_rules_for_eval", mesh=(("fsdp", "4"), ("tensor", "2")))
    imported, faults = flax.read([file(text)], options)
    assert imported is not None, faults
    assert imported.data["rules"] == ["embed -> (fsdp, tensor)"]


def evaluated(spec: Spec, params: Params) -> list[Any]:
    """Return what the phase `eval` of a spec gives each array."""
    (phase,) = spec.phases
    assert phase.phase == "eval"
    (plan,) = pipeline.compile_plans(phase, params)
    return [each.partition_spec.dims for each in plan.arrays]


def evaluating_otherwise(spec: Spec, imported: Imported, params: Params) -> list[str]:
    """Return the arrays that MaxText evaluates otherwise than the phase, where it has an answer."""
    (plan,) = pipeline.compile_plans(spec.phases[0], params)
    answers = maxtext.answer(imported.of_phases["eval"], params, plan.mesh)
    found = differences(plan, answers)
    return [path for each in found if not isinstance(each.theirs, NoAnswer) for path in each.paths]


NAMES = st.lists(st.sampled_from("abcd"), min_size=1, max_size=3, unique=True)
LISTS = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.lists(st.sampled_from(("data", "fsdp", "tensor", "seq")), max_size=2, unique=True),
    ),
    min_size=1,
    max_size=6,
)


@given(LISTS, LISTS, st.lists(NAMES, min_size=1, max_size=4))
def test_a_phase_evaluates_as_the_list_says(
    train: list[Any], evaluation: list[Any], arrays: list[list[str]]
) -> None:
    """Whatever stands in both lists, on the mesh of training: axes that it lacks are left out."""
    text = f"{MESH}logical_axis_rules: {listed(train)}\n"
    text += f"logical_axis_rules_for_eval: {listed(evaluation)}\n"
    spec, imported = spec_of(file(text))
    params = tuple(
        Param(f"p{at}", (64,) * len(names), logical_axes=tuple(names))
        for at, names in enumerate(arrays)
    )
    on_mesh = tuple(
        ForeignRule(name, tuple(axis for axis in axes if axis != "seq"))
        for name, axes in evaluation
    )
    wanted = [linen_axes(param.logical_axes or (), on_mesh) for param in params]
    assert evaluated(spec, params) == wanted
    assert evaluating_otherwise(spec, imported, params) == []


def listed(pairs: list[Any]) -> str:
    return f"[{', '.join(f'[{name}, [{chr(44).join(axes)}]]' for name, axes in pairs)}]"


def test_a_phase_says_no_more_than_what_differs() -> None:
    text = MESH + rules("[batch, [data, fsdp]]", "[embed, fsdp]", "[mlp, tensor]")
    text += "logical_axis_rules_for_eval: [[batch, [data, fsdp]], [embed, []], [mlp, tensor]]\n"
    _, imported = spec_of(file(text))
    assert imported.data["phases"] == {"eval": {"rules": ["embed -> none"]}}
    assert imported.comments["phases", "eval", "rules", 0].trailing == "from base.yml:5"


def test_a_custom_file_for_evaluation_is_the_phase() -> None:
    """Its mesh is not asked, as MaxText does not; the real files."""
    base = real("base.yml")
    text = base.text.replace(
        'custom_mesh_and_rule_for_eval: ""', 'custom_mesh_and_rule_for_eval: "pure-fsdp"'
    )
    sources = SourceFile(base.name, f"{text}\ncustom_mesh_and_rule_for_eval: pure-fsdp\n")
    spec, imported = spec_of(sources, mesh=(("fsdp", "8"),))
    custom = read_configs([real("custom_mesh_and_rule/pure-fsdp.yml")])
    names = ("embed", "mlp"), ("activation_batch", "activation_length", "activation_embed")
    params = tuple(
        Param(f"p{at}", (64,) * len(each), logical_axes=each) for at, each in enumerate(names)
    )
    assert evaluated(spec, params) == [
        linen_axes(param.logical_axes or (), custom.rules) for param in params
    ]
    phases: Any = imported.data["phases"]
    assert phases["eval"]["rules"]
    assert evaluating_otherwise(spec, imported, params) == []
    (lost,) = (replace(phase, axis_rules=phase.axis_rules[1:]) for phase in spec.phases)
    assert evaluating_otherwise(replace(spec, phases=(lost,)), imported, params)


def test_without_rules_for_evaluation_nothing_more_is_proved() -> None:
    _, imported = spec_of(file(MESH + rules("[embed, fsdp]")))
    assert imported.of_phases == {}


# keys that are given twice, tags


def test_a_key_that_stands_twice_and_does_not_matter_is_said() -> None:
    text = "seed: 0\n" + MESH + rules("[embed, fsdp]") + "seed: 1\n"
    imported, (fault,) = read(file(text))
    assert imported is not None
    assert (fault.code.id, fault.message) == ("SHD601", "the key `seed` is given twice")
    assert [label.span.place for label in fault.labels] == ["base.yml:6", "base.yml:1"]


@pytest.mark.parametrize("key", ["ici_fsdp_parallelism: 8", "mesh_axes: [fsdp]"])
def test_a_key_that_stands_twice_and_matters_is_refused(key: str) -> None:
    imported, faults = read(file(MESH + rules("[embed, fsdp]") + key + "\n"))
    assert imported is None
    assert [fault.code.id for fault in faults] == ["SHD603"]


def test_tags_of_other_keys_do_not_stop_an_import() -> None:
    text = "data: !include data.yaml\nenv: !env {a: 1}\n" + MESH + rules("[embed, fsdp]")
    assert read(file(text))[1] == ()


# mesh axes that are not there

GHOST = "mesh_axes: [fsdp, tensor]\nici_fsdp_parallelism: 4\nici_tensor_parallelism: 2\n"


def test_no_rule_is_written_that_is_dead_without_an_axis_that_is_not_there() -> None:
    text = GHOST + rules("[mlp, [fsdp, ghost]]", "[mlp, fsdp]", "[kv, ghost]", "[kv, tensor]")
    imported, (fault,) = read(file(text))
    assert imported is not None
    assert imported.data["rules"] == ["mlp -> fsdp", "kv -> none"]
    assert any("base.yml:4, base.yml:4, left out" in note for note in fault.notes)
    spec, _ = spec_of(file(text))
    params = (Param("a", (64, 64), "f32", ("mlp", "kv")),)
    found = pipeline.findings(spec, pipeline.compile_plans(spec, params)).shown
    assert "SHD214" not in {each.code.id for each in found}


def test_a_rule_that_is_dead_in_the_file_itself_stays() -> None:
    text = GHOST + rules("[mlp, fsdp]", "[mlp, [fsdp, tensor]]", "[embed, ghost]")
    imported, _ = read(file(text))
    assert imported is not None
    assert imported.data["rules"] == ["mlp -> fsdp", "mlp -> (fsdp, tensor)", "embed -> none"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "a: 1",
        "logical_axis_rules: 5",
        "logical_axis_rules: [[a, b, c]]",
        "logical_axis_rules: [[a, [b, [c]]]]",
        "mesh_axes: {a: 1}\nlogical_axis_rules: [[a, b]]",
        "logical_axis_rules: [[a, b]",
        "logical_axis_rules: &x [*x]",
        "\tlogical_axis_rules",
    ],
)
def test_a_file_that_is_no_configuration_is_refused(text: str) -> None:
    imported, faults = read(file(text))
    assert imported is None
    assert "SHD603" in {fault.code.id for fault in faults}
