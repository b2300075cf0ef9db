"""T5X's gin files: the answers that T5X itself gave, and what a spec cannot say of them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.foreign import t5x
from shardspec.foreign.formats import Imported, NoAnswer, Options, machine_named, spec_text
from shardspec.foreign.proof import differences
from shardspec.ir.spec import Param, Params, Spec

DATA = Path(__file__).parents[1] / "data"
VECTORS = json.loads((DATA / "t5x_meshes.json").read_text())["vectors"]
NAMES = ("batch", "vocab", "embed", "mlp", "heads", "joined_kv", "kv", "layers", "expert")
MESH = (("replica", "2"), ("data", "4"), ("model", "2"))

P = "partitioning.PjitPartitioner"
S = "partitioning.standard_logical_axis_rules"
O = "utils.override_params_axes_names.params_axes_names_override"  # noqa: E741


def of_kind(kind: str) -> list[Any]:
    return [vector for vector in VECTORS if vector["kind"] == kind]


def read(text: str, **options: Any) -> tuple[Imported | None, tuple[Diagnostic, ...]]:
    return t5x.read([SourceFile("run.gin", text)], Options(**options))


def imported_from(text: str, **options: Any) -> Imported:
    imported, faults = read(text, **options)
    assert imported is not None, faults
    return imported


def spec_of(text: str, **options: Any) -> tuple[Spec, Imported]:
    imported = imported_from(text, **options)
    source = SourceFile("run.gin", text)
    written, wrong = spec_text(imported, Options(**options), [source], "spec.yaml")
    assert wrong == ()
    assert written is not None
    spec, faults = pipeline.load_text(written, "spec.yaml")
    assert spec is not None
    assert faults == ()
    return spec, imported


def proof(text: str, params: Params, **options: Any) -> tuple[Any, ...]:
    spec, imported = spec_of(text, params=params, **options)
    plan = pipeline.compile_plans(spec, params)[0]
    answers = t5x.answer(imported.reading, params, plan.target.mesh)
    return tuple(
        each for each in differences(plan, answers) if not isinstance(each.theirs, NoAnswer)
    )


# rules


@pytest.mark.parametrize("vector", of_kind("standard_rules"), ids=lambda each: each["id"])
def test_standard_rules_are_those_of_t5x(vector: Any) -> None:
    arguments = vector["input"]
    text = "".join(f"{S}.{name} = {value!r}\n" for name, value in arguments.items())
    imported, faults = read(text)
    if "error" in vector:
        assert imported is None
        assert [fault.code.id for fault in faults] == ["SHD603"]
        return
    spec, imported = spec_of(text)
    expected = [(name, (axis,) if isinstance(axis, str) else tuple(axis or ()))
                for name, axis in vector["expected"]]  # fmt: skip
    assert [(rule.name, rule.mesh_axes) for rule in imported.reading.rules] == expected
    assert [(rule.logical_axis, rule.mesh_axes) for rule in spec.axis_rules] == expected


def test_there_are_recorded_answers() -> None:
    assert len(of_kind("standard_rules")) >= 7
    assert len(of_kind("override_axes")) >= 12


def test_a_standard_set_is_a_preset() -> None:
    text = (
        f"{S}.activation_partitioning_dims = 2\n"
        f"{P}.logical_axis_rules = @{S}()\n"
        f"{S}.additional_rules = [('expert', 'data')]\n"
    )
    data = imported_from(text, mesh=MESH).data
    assert data["extends"] == ["t5x/activations-2d"]
    assert data["rules"] == ["expert -> data"]


def test_additional_rules_for_a_standard_name_stay_behind_it() -> None:
    spec, _ = spec_of(f"{S}.additional_rules = [('kv', 'model')]\n", mesh=MESH)
    assert "extends" not in imported_from(f"{S}.additional_rules = [('kv', 'model')]\n").data
    assert str(spec.axis_rules[-1]) == "kv -> model"


def test_batch_is_over_replica_too_where_slices_are_several() -> None:
    text = f"{P}.ici_mesh_shape = (1, 4, 2)\n{P}.dcn_mesh_shape = (2, 1, 1)\n"
    spec, imported = spec_of(text)
    assert str(spec.axis_rules[0]) == "batch -> (replica, data)"
    assert imported.data["mesh"] == {"replica": "2 @ dcn", "data": 4, "model": 2}
    assert imported.reading.rules[0].mesh_axes == ("replica", "data")


def test_a_list_of_its_own() -> None:
    text = f"RULES = [('embed', 'data'), ('mlp', ('data', 'model'))]\n{P}:\n"
    text += "  logical_axis_rules = %RULES\n"
    assert imported_from(text, mesh=MESH).data["rules"] == [
        "embed -> data",
        "mlp -> (data, model)",
    ]


rules = st.lists(
    st.tuples(
        st.sampled_from(NAMES),
        st.sampled_from((None, "data", "model", ("replica", "data"), ("data", "model"))),
    ),
    max_size=6,
)
names = st.lists(st.one_of(st.sampled_from(NAMES), st.none()), max_size=4).map(tuple)
overrides = st.lists(
    st.tuples(
        st.sampled_from(("a_0", "a_[12]", "a_\\d+", "b/.*", ".*", "A_0", "a")),
        names,
    ),
    max_size=3,
)


@given(
    st.sampled_from(((1, 1), (1, 2), (2, 1), (2, 2), None)),
    rules,
    overrides,
    st.lists(names, min_size=1, max_size=5),
)
def test_the_spec_says_what_t5x_does(
    dims: tuple[int, int] | None, pairs: Any, patterns: Any, all_names: Any
) -> None:
    assume(dims is not None or pairs)
    if dims is None:
        text = f"{P}.logical_axis_rules = {pairs!r}\n"
    else:
        text = f"{S}.activation_partitioning_dims = {dims[0]}\n"
        text += f"{S}.parameter_partitioning_dims = {dims[1]}\n{S}.additional_rules = {pairs!r}\n"
    text += f"{O} = {patterns!r}\n"
    params = tuple(
        Param(f"a_{index}", (9,) * len(each), "f32", each) for index, each in enumerate(all_names)
    )
    assert proof(text, params, mesh=MESH) == ()


# overrides


@pytest.mark.parametrize("vector", of_kind("override_axes"), ids=lambda each: each["id"])
def test_overrides_are_those_of_t5x(vector: Any) -> None:
    """Rules that give each name a mesh axis of its own make names visible in the answer."""
    given_names = vector["input"]["params_axes"] or {}
    pairs = [(pattern, value) for pattern, value in vector["input"]["overrides"]]
    letters = ("vocab", "embed", "mlp", "a", "b", "later")
    rules_text = repr([(name, name) for name in letters])
    text = f"{P}.logical_axis_rules = {rules_text}\n{O} = {pairs!r}\n"
    params = tuple(
        Param(path, tuple(shape), "f32", _names(given_names.get(f"{path}_axes")))
        for path, shape in vector["input"]["params"].items()
    )
    options = {"mesh": tuple((name, "1") for name in letters), "params": params}
    imported, faults = read(text, **options)
    error = vector.get("error", "")
    if error.startswith("error:"):
        assert imported is None
        assert [fault.code.id for fault in faults] == ["SHD603"]
        return
    if "collection" in error or error == "AssertionError: ":
        pytest.skip("about a live tree, not about the file")
    spec, imported = spec_of(text, **options)
    answers = t5x.answer(imported.reading, params, spec.targets[0].mesh)
    by_path = dict(zip((param.path for param in params), answers, strict=True))
    if error:
        assert any("override" in a.reason for a in answers if isinstance(a, NoAnswer))
        return
    for param in params:
        expected = vector["expected"]["params_axes"].get(f"{param.path}_axes")
        answer = by_path[param.path]
        if expected is None:
            assert answer == t5x.NO_NAMES
        elif len(set(expected)) < len(expected):
            assert isinstance(answer, NoAnswer)
        else:
            assert not isinstance(answer, NoAnswer)
            assert [dim[0] for dim in answer.dims] == expected


def _names(value: Any) -> tuple[str, ...] | None:
    return None if value is None else tuple(value)


def test_a_none_that_hides_later_patterns_is_said() -> None:
    text = f"{O} = [('.*scale', None), ('.*', ('embed',)), ('b', None)]\n"
    imported, faults = read(text, mesh=MESH)
    assert imported is not None
    assert [fault.code.id for fault in faults] == ["SHD601"]
    assert imported.data["overrides"] == [{"match": ".*", "axes": "embed"}]


def test_a_text_is_a_sequence_of_names() -> None:
    assert imported_from(f"{O} = [('a', 'xy')]", mesh=MESH).data["overrides"] == [
        {"match": "a", "axes": "x y"}
    ]


# meshes


def hardware_of(vector: Any) -> str | None:
    kind = {"TPU v3": "v3", "TPU v4": "v4"}.get(vector["input"]["device_kind"])
    x, y, z, _ = vector["input"]["topology"]
    if kind is None or vector["input"].get("device_order") == "reversed":
        return None
    name = f"tpu {kind} {x}x{y}" if kind == "v3" else f"tpu {kind} {x}x{y}x{z}"
    return None if isinstance(machine_named(name), tuple) else name


MESHES = [v for v in of_kind("default_mesh") if hardware_of(v)]


@pytest.mark.parametrize("vector", MESHES, ids=lambda each: each["id"])
def test_meshes_are_those_of_t5x(vector: Any) -> None:
    text = f"{P}.num_partitions = {vector['input']['num_partitions']}\n"
    imported, faults = read(text, hardware=hardware_of(vector))
    assert imported is not None
    if "error" in vector:
        assert [fault.code.id for fault in faults] == ["SHD601"]
        assert "auto" in str(imported.data["mesh"])
        return
    assert faults == ()
    spec, _ = spec_of(text, hardware=hardware_of(vector))
    assert list(spec.targets[0].mesh.sizes.values()) == vector["expected"]["shape"]
    tile = spec.targets[0].mesh.axes[1].submesh
    assert tile == tuple(vector["expected"]["model_parallel_submesh"])


@pytest.mark.parametrize("options", [{"hardware": "tpu v4 4x4x4"}, {"mesh": MESH}, {}])
def test_a_submesh_and_a_number_are_refused(options: Any) -> None:
    text = f"{P}.num_partitions = 2\n{P}.model_parallel_submesh = (2, 2, 1, 1)\n"
    imported, (fault,) = read(text, **options)
    assert imported is None
    assert "both set" in fault.message
    assert [label.span.line for label in fault.labels] == [2, 1]


@pytest.mark.parametrize(
    ("count", "tile"), [("None", "(2, 2, 1, 1)"), ("0", "(2, 2, 1, 1)"), ("4", "None"), ("4", "()")]
)
def test_one_of_the_two_may_be_nothing(count: str, tile: str) -> None:
    text = f"{P}.num_partitions = {count}\n{P}.model_parallel_submesh = {tile}\n"
    spec, _ = spec_of(text, hardware="tpu v4 4x4x4")
    assert spec.targets[0].mesh.sizes == {"data": 16, "model": 4}


@pytest.mark.parametrize(
    ("hardware", "sizes"),
    [("8 cpu", {"data": 1, "model": 8}), ("2 * h100", {"data": 8, "model": 2})],
)
def test_other_machines(hardware: str, sizes: dict[str, int]) -> None:
    spec, _ = spec_of(f"{P}.num_partitions = 2\n", hardware=hardware)
    assert spec.targets[0].mesh.sizes == sizes
    assert math.prod(sizes.values()) == spec.targets[0].hardware.device_count  # type: ignore[union-attr]


def test_without_a_machine_there_is_no_mesh_and_that_is_said() -> None:
    imported, (fault,) = read(f"{P}.num_partitions = 2\n")
    assert imported is not None
    assert "mesh" not in imported.data
    assert fault.code.id == "SHD601"
    assert "--hardware" in (fault.help or "")


# files


def test_includes_are_followed_and_the_last_binding_counts(tmp_path: Path) -> None:
    (tmp_path / "base.gin").write_text(f"N = 4\n{S}.parameter_partitioning_dims = 1\n")
    text = f"include 'base.gin'\n{S}.parameter_partitioning_dims = 2\nN = 2\n"
    text += f"{P}.num_partitions = %N\n"
    source = SourceFile(str(tmp_path / "run.gin"), text)
    imported, faults = t5x.read([source], Options(hardware="2 * h100"))
    assert faults == ()
    assert imported is not None
    assert imported.data["extends"] == ["t5x/parameters-2d"]
    assert imported.data["mesh"] == {"data": "rest", "model": 2}


def test_includes_are_looked_for_in_folders(tmp_path: Path) -> None:
    (tmp_path / "t5x").mkdir()
    (tmp_path / "t5x" / "base.gin").write_text(f"{S}.parameter_partitioning_dims = 2\n")
    imported, faults = read("include 't5x/base.gin'\n", mesh=MESH, include=(str(tmp_path),))
    assert faults == ()
    assert imported is not None
    assert imported.data["extends"] == ["t5x/parameters-2d"]


def test_includes_of_includes_are_looked_for_where_the_first_file_is(tmp_path: Path) -> None:
    (tmp_path / "t5x").mkdir()
    (tmp_path / "t5x" / "base.gin").write_text("include 't5x/model.gin'\n")
    (tmp_path / "t5x" / "model.gin").write_text(f"{S}.parameter_partitioning_dims = 2\n")
    source = SourceFile(str(tmp_path / "run.gin"), "include 't5x/base.gin'\n")
    imported, faults = t5x.read([source], Options(mesh=MESH))
    assert faults == ()
    assert imported is not None
    assert imported.data["extends"] == ["t5x/parameters-2d"]


def test_a_macro_that_nothing_binds_is_named() -> None:
    imported, faults = read(f"{S}.parameter_partitioning_dims = %DIMS\n", mesh=MESH)
    assert imported is None
    assert [fault.message for fault in faults] == [
        "`parameter_partitioning_dims` is a value that is not known "
        "(nothing binds the macro `DIMS`); T5X has rules for 1 and 2"
    ]


def test_other_partitioners_are_refused() -> None:
    text = f"{S}.additional_rules = None\nmine.MyPartitioner.num_partitions = 4\n"
    imported, (fault,) = read(text, mesh=MESH)
    assert imported is None
    assert "`MyPartitioner`" in fault.message
    assert "--mesh" in (fault.help or "")


# mixtures of experts

M = "moe_partitioning.MoePjitPartitioner"
MS = "moe_partitioning.standard_logical_axis_rules"
MOE_MESH = (("data", "2"), ("expert", "4"), ("model", "2"))
MOE_NAMES = (*NAMES, "expert_mlp", "expert_replicas", "unmodeled", "mine")


def test_rules_for_experts_are_those_of_t5x() -> None:
    imported = imported_from(f"{M}.num_expert_partitions = 4\n", mesh=MOE_MESH)
    listed = imported.data["rules"]
    assert isinstance(listed, list)
    assert listed[0] == "batch -> (expert, data)"
    assert "embed -> model" in listed, "activations are split in 2 dimensions by default"
    assert listed[-4:] == [
        *("expert -> expert", "expert_mlp -> model"),
        *("expert_replicas -> data", "unmodeled -> none"),
    ]
    assert "extends" not in imported.data


def test_arguments_are_those_of_the_function_for_experts() -> None:
    text = (
        f"{M}.num_expert_partitions = 4\n{S}.activation_partitioning_dims = 2\n"
        f"{MS}.activation_partitioning_dims = 1\n"
        f"{MS}.additional_rules = [('mine', 'expert'), ('batch', 'data')]\n"
    )
    listed = imported_from(text, mesh=MOE_MESH).data["rules"]
    assert isinstance(listed, list)
    assert "embed -> none" in listed
    assert listed[-2:] == ["mine -> expert", "batch -> (expert, data)"]


def test_a_list_of_ones_own_stays_as_it_is() -> None:
    text = f"{M}.num_expert_partitions = 4\n{M}.logical_axis_rules = [('batch', 'data')]\n"
    assert imported_from(text, mesh=MOE_MESH).data["rules"] == ["batch -> data"]


@given(st.lists(st.lists(st.sampled_from(MOE_NAMES), max_size=4, unique=True), max_size=5))
def test_the_spec_says_what_the_partitioner_for_experts_does(all_names: Any) -> None:
    params = tuple(
        Param(f"a_{i}", (64,) * len(n), "f32", tuple(n)) for i, n in enumerate(all_names)
    )
    text = f"{M}.num_expert_partitions = 4\n{MS}.additional_rules = [('mine', 'expert')]\n"
    assert proof(text, params, mesh=MOE_MESH) == ()


@pytest.mark.parametrize(
    ("hardware", "experts", "sizes"),
    [
        ("tpu v4 4x4x4", 16, {"data": 2, "expert": 16, "model": 2}),
        ("tpu v4 4x4x4", 12, {"data": 4, "expert": 8, "model": 2}),
        ("tpu v4 4x4x4", 1000, {"data": 1, "expert": 32, "model": 2}),
        ("tpu v4 4x4x4", 1, {"data": 32, "expert": 1, "model": 2}),
        ("2 * h100", 3, {"data": 4, "expert": 2, "model": 2}),
    ],
)
def test_the_mesh_of_experts(hardware: str, experts: int, sizes: dict[str, int]) -> None:
    text = f"{M}.num_expert_partitions = {experts}\n{M}.num_partitions = 2\n"
    spec, _ = spec_of(text, hardware=hardware)
    assert spec.targets[0].mesh.sizes == sizes


def test_without_a_number_of_experts_there_is_no_mesh_and_that_is_said() -> None:
    text = f"{M}.num_expert_partitions = %NUM_EXPERTS\n{M}.num_partitions = 2\n"
    imported, faults = read(text, hardware="tpu v4 4x4x4")
    assert imported is not None
    assert "mesh" not in imported.data
    assert any("nothing binds the macro `NUM_EXPERTS`" in fault.message for fault in faults)


def test_the_partitioner_that_a_run_chooses_counts() -> None:
    both = f"{M}.num_expert_partitions = 4\n{P}.num_partitions = 2\n"
    plain = both + "train.partitioner = @partitioning.PjitPartitioner()\n"
    assert imported_from(plain, mesh=MESH).data["extends"] == ["t5x/1d"]
    moe = both + "train.partitioner = @moe_partitioning.MoePjitPartitioner()\n"
    assert "extends" not in imported_from(moe, mesh=MOE_MESH).data


@pytest.mark.parametrize("path", ["../out.gin", "/out.gin", "a/../../out.gin", "missing.gin"])
def test_includes_that_are_not_read_are_said(path: str, tmp_path: Path) -> None:
    (tmp_path / "out.gin").write_text(f"{S}.parameter_partitioning_dims = 2\n")
    folder = tmp_path / "inner"
    folder.mkdir()
    source = SourceFile(str(folder / "run.gin"), f"include {path!r}\n{S}.additional_rules = None\n")
    imported, faults = t5x.read([source], Options(mesh=MESH))
    assert imported is not None
    assert imported.data["extends"] == ["t5x/1d"]
    assert [fault.code.id for fault in faults] == ["SHD601"]


def test_includes_in_a_circle_are_refused(tmp_path: Path) -> None:
    text = "include 'run.gin'\n"
    (tmp_path / "run.gin").write_text(text)
    source = SourceFile(str(tmp_path / "run.gin"), text)
    imported, faults = t5x.read([source], Options())
    assert imported is None
    assert [fault.code.id for fault in faults] == ["SHD603"]


def test_scopes_are_said_and_can_be_asked_for() -> None:
    text = f"{P}.num_partitions = 1\ninfer/{P}.num_partitions = 2\n"
    imported, faults = read(text, hardware="2 * h100")
    assert imported is not None
    assert imported.data["mesh"] == {"data": "rest", "model": 1}
    assert [fault.code.id for fault in faults] == ["SHD601"]
    assert imported_from(text, hardware="2 * h100", name="infer").data["mesh"] == {
        "data": "rest",
        "model": 2,
    }


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.b = 1",
        f"{P}.logical_axis_rules = @mine.rules()",
        f"{P}.logical_axis_rules = %MISSING",
        f"A = %B\nB = %A\n{P}.logical_axis_rules = %A",
        f"{P}.logical_axis_rules = [('a', 'b', 'c')]",
        f"{P}.logical_axis_rules = [",
        f"{S}.activation_partitioning_dims = 3",
        f"{S}.additional_rules = 5",
        f"{P}.num_partitions = 'two'",
        f"{P}.model_parallel_submesh = (1, 'a')",
        f"{O} = [('(', ('a',))]",
        f"{O} = 5",
        f"{O} = [('a', 5)]",
    ],
)
def test_a_file_that_cannot_be_used_is_refused(text: str) -> None:
    imported, faults = read(text, hardware="2 * h100")
    assert imported is None
    assert "SHD603" in {fault.code.id for fault in faults}


def test_bindings_of_partitioning_that_t5x_lacks_are_reported_once() -> None:
    known = f"{P}.num_partitions = 2\n{P}.params_on_devices = True\ntrain.model_dir = 'x'\n"
    slips = f"{P}.num_partition = 4\n{S}.activation_dims = 2\npartitioning.standard_rules.a = 1\n"
    assert imported_from(known, hardware="tpu v4 2x2x2").data["mesh"]
    _, before = read(known, hardware="tpu v4 2x2x2")
    _, faults = read(known + slips, hardware="tpu v4 2x2x2")
    (found,) = faults[len(before) :]
    for slip in (f"{P}.num_partition", f"{S}.activation_dims", "partitioning.standard_rules.a"):
        assert f"`{slip}`" in found.message
    assert found.help == "did you mean `num_partitions`?"


PAIRS = '[("encoder/.*/kernel", ("embed", "mlp")), ("b", ("mlp",))]'


@pytest.mark.parametrize(
    "code",
    [
        f"utils.override_params_axes_names(v, {PAIRS})",
        f"PAIRS = {PAIRS}\ndef f(v):\n    return override_params_axes_names(v, PAIRS)",
        f"class M:\n    def f(self, v):\n        own = {PAIRS}\n"
        "        return override_params_axes_names(model_variables=v,"
        " params_axes_names_override=own)",
    ],
)
def test_overrides_of_python_code_are_those_of_gin(code: str) -> None:
    sources = [SourceFile("run.gin", f"{P}.num_partitions = 2\n"), SourceFile("model.py", code)]
    imported, faults = t5x.read(sources, Options())
    assert imported is not None, faults
    in_gin = imported_from(f"{P}.num_partitions = 2\n{O} = {PAIRS}\n")
    assert imported.data["overrides"] == in_gin.data["overrides"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def f(v, given=()):\n    return override_params_axes_names(v, given)", "no call of"),
        ("override_params_axes_names(v, made())", "no call of"),
        ("x = 1", "no call of"),
        (f"override_params_axes_names(v, {PAIRS})\noverride_params_axes_names(w, {PAIRS})", "2 "),
        ("def f(:", "no Python"),
    ],
)
def test_code_whose_overrides_are_not_read_says_the_way(code: str, message: str) -> None:
    imported, faults = t5x.read([SourceFile("model.py", code)], Options())
    assert imported is None
    assert message in faults[0].message
    assert "gin" in (faults[0].help or "") or "Python" in (faults[0].help or "")
