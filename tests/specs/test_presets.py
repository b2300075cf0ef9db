"""The bundled rule sets: T5X's, pair for pair, and what ours do to arrays of each kind."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardspec.diagnostics import codes
from shardspec.pipeline import compile_plans, findings, load_text

FOLDER = Path(__file__).parents[2] / "specs" / "presets"
NAMES = sorted(p.relative_to(FOLDER).as_posix()[: -len(".yaml")] for p in FOLDER.rglob("*.yaml"))


def pairs(text: str) -> list[list[str | None]]:
    found = [entry.split(">") for entry in text.split()]
    return [[name, None if value == "None" else value] for name, value in found]


# What t5x.partitioning.standard_logical_axis_rules returns, by activation and parameter dims.
# Source: google-research/t5x @ cc342d41, run.
STANDARD_TAIL = pairs(
    "relpos_buckets>None abspos_buckets>None length>None layers>None stack>None"
    " mlp_activations>None"
)
STANDARD = {
    "t5x/1d": pairs(
        "batch>data vocab>model embed>None mlp>model heads>model kv>None joined_kv>model"
    ),
    "t5x/activations-2d": pairs(
        "batch>data vocab>model mlp>model heads>model kv>None joined_kv>model embed>model"
    ),
    "t5x/parameters-2d": pairs(
        "batch>data vocab>model mlp>model heads>model kv>None joined_kv>model embed>data"
    ),
    "t5x/2d": pairs(
        "batch>data vocab>model mlp>model heads>model kv>None joined_kv>model embed>model"
        " embed>data"
    ),
}

# The rule sets of the T5X guide to partitioning. Source: google-research/t5x, its documentation.
GUIDE_TAIL = pairs(
    "kv>None joined_kv>None relpos_buckets>None abspos_buckets>None length>None layers>None"
    " stack>None mlp_activations>None"
)
GUIDE = {
    "data-parallel": pairs("batch>data vocab>None embed>None mlp>None heads>None"),
    "zero3": pairs("batch>data embed>data vocab>None mlp>None heads>None"),
    "megatron": pairs("batch>data mlp>model heads>model vocab>model embed>None"),
    "optimus": pairs("batch>data mlp>model heads>model vocab>model embed>model"),
    "gshard": pairs("batch>data mlp>model heads>model vocab>model embed>model embed>data"),
}

T5X: dict[str, list[list[str | None]]] = {
    **{name: head + STANDARD_TAIL for name, head in STANDARD.items()},
    **{name: head + GUIDE_TAIL for name, head in GUIDE.items()},
    "t5x/guide-example": pairs("head>model embed>model embed>data vocab>model"),
}
OURS = {
    "fsdp": "fsdp",
    "fsdp-tensor": "fsdp tensor",
    "sequence": "tensor",
    "context": "context fsdp",
    "expert": "expert fsdp",
    "pipeline": "stage",
    "serving": "data tensor",
}

CONVOLVED, WHOLE = "P(None, 'a', 'b', None)", "P(None, None, None, None)"

#: Parameters of LoRA and quantization by the names of their libraries: what lies as what.
DERIVED: dict[str, list[tuple[str, str, str, str, str]]] = {
    "derive/nnx-lora": [
        ("l/kernel", "64, 128", "l/lora/lora_a", "64, 4", "P('a', None)"),
        ("l/kernel", "64, 128", "l/lora/lora_b", "4, 128", "P(None, 'b')"),
        ("l/kernel", "6, 64, 128", "l/lora/lora_b", "6, 4, 128", "P(None, None, 'b')"),
        ("l/base_module/kernel", "64, 128", "l/lora_a", "64, 4", "P('a', None)"),
        ("l/kernel", "64, 128", "l/lora_a", "64, 4", "P('a', None)"),
    ],
    "derive/qwix": [
        ("l/kernel/array/qvalue", "64, 128", "l/kernel/array/scale", "1, 128", "P(None, 'b')"),
        ("l/kernel/array/qvalue", "64, 128", "l/kernel/array/zero_point", "8, 128", "P('a', 'b')"),
        ("l/kernel/array/qvalue", "64, 128", "l/kernel_lora_a", "64, 4", "P('a', None)"),
        ("l/kernel", "64, 128", "l/kernel_lora_b", "4, 128", "P(None, 'b')"),
    ],
    "derive/peft": [
        ("m.q.weight", "64, 128", "base_model.model.m.q.lora_A.weight", "4, 128", "P(None, 'b')"),
        ("m.q.weight", "64, 128", "base_model.model.m.q.lora_B.weight", "64, 4", "P('a', None)"),
        ("m.q.base_layer.weight", "64, 128", "m.q.lora_B.default.weight", "64, 4", "P('a', None)"),
        ("m.e.weight", "64, 128", "m.e.lora_embedding_A", "4, 64", "P(None, 'a')"),
        ("m.e.weight", "64, 128", "m.e.lora_embedding_B", "128, 4", "P('b', None)"),
        ("m.c.weight", "6, 64, 128, 3", "m.c.lora_A.weight", "4, 64, 128, 3", CONVOLVED),
        ("m.c.weight", "6, 64, 128, 3", "m.c.lora_B.weight", "6, 4, 1, 1", WHOLE),
    ],
    "derive/quantized": [
        ("m.q.weight", "64, 128", "m.q.weight_scale", "64, 1", "P('a', None)"),
        ("m.q.weight", "64, 128", "m.q.weight_scale", "64", "P('a')"),
        ("m.q.weight", "64, 128", "m.q.weight_scale", "1", "P(None)"),
        ("m.q.weight_packed", "64, 16", "m.q.weight_scale", "64, 4", "P('a', 'b')"),
        ("m.q.weight_packed", "64, 16", "m.q.weight_zero_point", "8, 4", "P('a', 'b')"),
        ("m.q.weight_packed", "64, 16", "m.q.weight_shape", "2", "P(None)"),
        ("m.q.weight", "64, 128", "m.q.input_scale", "", "P()"),
        ("m.q.weight", "512, 1024", "m.q.weight_scale_inv", "4, 8", "P('a', 'b')"),
        ("m.e.w_blocks", "8, 64, 4, 16", "m.e.w_scales", "8, 64, 4", "P(None, 'a', 'b')"),
        ("m.e.down", "8, 512, 1024", "m.e.down_scale_inv", "8, 4, 8", "P(None, 'a', 'b')"),
        ("m.e.weight", "8, 64, 128", "m.e.weight_scale", "8, 64, 4", "P(None, 'a', 'b')"),
        ("m.k_proj.weight", "512, 128", "m.k_scale", "8, 1, 1", "P('a', None, None)"),
        ("m.v_proj.weight", "512, 128", "m.v_scale", "1", "P(None)"),
    ],
}
NAMES_OF_RANK = {2: "x y", 3: "_ x y", 4: "_ x y _"}

# T5X's canonical names, and those that our sets add for what T5 does not have.
CANONICAL = {axis for axis, _ in STANDARD["t5x/1d"] + STANDARD_TAIL}
ADDED = {"kv_heads", "joined_kv_heads", "kv_length", "norm"}


def load(name: str) -> dict[str, Any]:
    data = yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


def flat(text: str) -> list[list[str | None]]:
    """Return the rules of a document as T5X spells them, after all that is merged into it."""
    spec, diagnostics = load_text(text)
    assert diagnostics == ()
    assert spec is not None
    rules = ((rule.logical_axis, rule.mesh_axes) for rule in spec.axis_rules)
    return [[axis, mesh_axes[0] if mesh_axes else None] for axis, mesh_axes in rules]


def placed(extends: str, mesh: str, array: str) -> str:
    """Return the partition of one array, `f32[expert=8 embed=64]`."""
    text = f"shardspec: 1\nextends: {extends}\nmesh: {mesh}\narrays:\n  x: '{array}'\n"
    spec, diagnostics = load_text(text)
    assert spec is not None
    assert diagnostics == ()
    (plan,) = compile_plans(spec)
    found = findings(spec, (plan,)).shown  # some presets leave an axis of this mesh idle
    assert [d for d in found if d.code != codes.UNUSED_MESH_AXIS] == []
    return str(plan["x"].partition_spec)


def test_every_preset_is_known_here() -> None:
    assert set(NAMES) == {*T5X, *OURS, *DERIVED}


@pytest.mark.parametrize("name", T5X)
def test_t5x_file_states_exactly_the_pairs_of_t5x(name: str) -> None:
    lines = [re.fullmatch(r"(\w+) -> (\w+)", rule) for rule in load(name)["rules"]]
    stated = [[m[1], None if m[2] == "none" else m[2]] for m in lines if m]
    assert len(stated) == len(lines)
    assert stated == T5X[name]


@pytest.mark.parametrize("name", T5X)
def test_extending_a_t5x_preset_gives_exactly_the_pairs_of_t5x(name: str) -> None:
    assert flat(f"shardspec: 1\nextends: {name}\n") == T5X[name]


@pytest.mark.parametrize("name", NAMES)
def test_preset_says_what_it_is_for_and_pins_no_machine(name: str) -> None:
    data = load(name)
    kept = [key for key in data if key != "replicate"]
    assert kept == ["shardspec", "doc", "derive" if name in DERIVED else "rules"]
    assert data["shardspec"] == 1
    assert 20 <= len(data["doc"]) <= 110
    assert "\n" not in data["doc"]


@pytest.mark.parametrize(
    ("name", "parent", "whole", "path", "shape", "expected"),
    [(name, *case) for name, cases in DERIVED.items() for case in cases],
)
def test_derived_arrays_lie_as_their_parents(
    name: str, parent: str, whole: str, path: str, shape: str, expected: str
) -> None:
    names = NAMES_OF_RANK[whole.count(",") + 1]
    text = (
        f"extends: {name}\nmesh: {{a: 2, b: 2}}\nrules: [x -> a, y -> b]\n"
        f'params: {{"{parent}": {names}}}\n'
        f'arrays: {{{parent}: "s8[{whole}]", {path}: "f32[{shape}]"}}'
    )
    spec, diagnostics = load_text(text)
    assert spec is not None
    assert diagnostics == ()
    plans = compile_plans(spec)
    assert findings(spec, plans).shown == ()
    assert str(plans[0][path].partition_spec) == expected


@pytest.mark.parametrize("name", DERIVED)
def test_a_name_without_its_preset_is_told_of(name: str) -> None:
    parent, whole, path, shape, _ = DERIVED[name][0]
    text = f'mesh: {{a: 2}}\narrays: {{{parent}: "s8[{whole}]", {path}: "f32[{shape}]"}}'
    spec, _ = load_text(text)
    assert spec is not None
    helps = [each.help or "" for each in findings(spec, compile_plans(spec)).shown]
    assert any(f"`extends: {name}`" in help and f"`{parent}`" in help for help in helps)


@pytest.mark.parametrize(("name", "mesh_axes"), OURS.items())
def test_our_preset_asks_for_no_mesh_axis_that_it_does_not_name(name: str, mesh_axes: str) -> None:
    spec, diagnostics = load_text(f"shardspec: 1\nextends: {name}\n")
    assert spec is not None
    assert diagnostics == ()
    assert {axis for rule in spec.axis_rules for axis in rule.mesh_axes} == set(mesh_axes.split())


@pytest.mark.parametrize("name", OURS)
def test_every_rule_of_ours_has_its_comment(name: str) -> None:
    lines = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    rules = lines[lines.index("rules:") + 1 :]
    bare = [
        rule
        for before, rule in zip(["", *rules], rules, strict=False)
        if rule.startswith("  - ") and not before.startswith(("  #", "  - "))
    ]
    assert bare == []


@pytest.mark.parametrize("name", ["fsdp", "fsdp-tensor"])
def test_whole_set_has_a_rule_for_every_name(name: str) -> None:
    assert {axis for axis, _ in flat(f"shardspec: 1\nextends: {name}\n")} == CANONICAL | ADDED


# Source of the first two: the T5X guide, in its text; of the others: T5X, run.
T5X_CASES = [
    ("t5x/guide-example", "embed=8 head=4", "P('data', 'model')"),
    ("t5x/guide-example", "vocab=8 embed=8", "P(None, 'model')"),
    ("t5x/1d", "vocab=8 embed=8", "P('model', None)"),
    ("t5x/1d", "embed=8 joined_kv=8", "P(None, 'model')"),
    ("t5x/activations-2d", "embed=8", "P('model')"),
    ("t5x/activations-2d", "batch=8 length=8 embed=8", "P('data', None, 'model')"),
    ("t5x/parameters-2d", "embed=8 mlp=8", "P('data', 'model')"),
    ("t5x/parameters-2d", "batch=8 length=8 embed=8", "P('data', None, None)"),
    ("t5x/2d", "vocab=8 embed=8", "P('model', 'data')"),
    ("t5x/2d", "embed=8 kv=8", "P('model', None)"),
    ("zero3", "embed=8 mlp=8", "P('data', None)"),
    ("megatron", "embed=8 joined_kv=8", "P(None, None)"),
    ("optimus", "embed=8 joined_kv=8", "P('model', None)"),
    ("gshard", "mlp=8 embed=8", "P('model', 'data')"),
    ("data-parallel", "batch=8 length=8 embed=8", "P('data', None, None)"),
]


@pytest.mark.parametrize(("name", "names", "expected"), T5X_CASES)
def test_t5x_preset_places(name: str, names: str, expected: str) -> None:
    assert placed(name, "{data: 2, model: 2}", f"f32[{names}]") == expected


FSDP = "fsdp", "{fsdp: 4}"
HYBRID = "fsdp-tensor", "{fsdp: 4, tensor: 2}"
SEQUENCE = "[fsdp-tensor, sequence]", "{fsdp: 4, tensor: 2}"
CONTEXT = "[fsdp-tensor, context]", "{fsdp: 4, context: 2, tensor: 2}"
EXPERT = "[fsdp-tensor, expert]", "{fsdp: 2, expert: 4, tensor: 2}"
PIPELINE = "[fsdp-tensor, pipeline]", "{stage: 2, fsdp: 4, tensor: 2}"
SERVING = "serving", "{data: 2, tensor: 4}"
OUR_CASES = [
    # Requests over data, heads over tensor, a request's tokens together.
    (SERVING, "batch=8 cache_length=64 kv_heads=8 kv=16", "P('data', None, 'tensor', None)"),
    (SERVING, "pages=8 page_size=16 kv_heads=8 kv=16", "P('data', None, 'tensor', None)"),
    (SERVING, "embed=8 mlp=16", "P(None, 'tensor')"),
    (SERVING, "joined_kv=16 embed=8", "P('tensor', None)"),
    (SERVING, "expert=8 embed=8 mlp=16", "P(None, None, 'tensor')"),
    # Weights by embed; by what they have, where they have none; small things whole.
    (FSDP, "embed=8 mlp=16", "P('fsdp', None)"),
    (FSDP, "mlp=16 embed=8", "P(None, 'fsdp')"),
    (FSDP, "mlp=16", "P('fsdp')"),
    (FSDP, "vocab=10", "P(None)"),
    (FSDP, "heads=2 kv=8", "P(None, None)"),
    (FSDP, "norm=8", "P(None)"),
    (FSDP, "batch=8 length=8 embed=8", "P('fsdp', None, None)"),
    (FSDP, "layers=8 embed=8 mlp=16", "P(None, 'fsdp', None)"),
    # Column by tensor going in, row by tensor coming out, the other dimension by fsdp.
    (HYBRID, "embed=8 mlp=16", "P('fsdp', 'tensor')"),
    (HYBRID, "mlp=16 embed=8", "P('tensor', 'fsdp')"),
    (HYBRID, "embed=8 kv_heads=2 kv=8", "P('fsdp', 'tensor', None)"),
    (HYBRID, "joined_kv_heads=16 embed=8", "P('tensor', 'fsdp')"),
    (HYBRID, "vocab=8 embed=8", "P('tensor', 'fsdp')"),
    (HYBRID, "batch=8 length=8 heads=4 kv=8", "P('fsdp', None, 'tensor', None)"),
    (HYBRID, "batch=8 length=8 embed=8", "P('fsdp', None, None)"),
    # Between the blocks the length is split, in them it is whole.
    (SEQUENCE, "batch=8 length=8 embed=8", "P('fsdp', 'tensor', None)"),
    (SEQUENCE, "batch=8 length=8 mlp=16", "P('fsdp', None, 'tensor')"),
    (SEQUENCE, "batch=8 length=8 heads=4 kv=8", "P('fsdp', None, 'tensor', None)"),
    (SEQUENCE, "batch=8 length=8 vocab=8", "P('fsdp', None, 'tensor')"),
    (SEQUENCE, "embed=8 mlp=16", "P('fsdp', 'tensor')"),
    # The length is split everywhere, keys are whole, weights are split over context as well.
    (CONTEXT, "batch=8 length=8 embed=8", "P('fsdp', 'context', None)"),
    (CONTEXT, "batch=8 length=8 mlp=16", "P('fsdp', 'context', 'tensor')"),
    (CONTEXT, "batch=8 heads=4 length=8 kv_length=8", "P('fsdp', 'tensor', 'context', None)"),
    (CONTEXT, "embed=8 mlp=16", "P(('fsdp', 'context'), 'tensor')"),
    (CONTEXT, "embed=12 mlp=16", "P('fsdp', 'tensor')"),
    # Expert weights by expert; dense ones by fsdp and expert; batch yields to expert.
    (EXPERT, "expert=4 embed=8 mlp=16", "P('expert', 'fsdp', 'tensor')"),
    (EXPERT, "embed=8 router=4", "P(('fsdp', 'expert'), None)"),
    (EXPERT, "embed=8 heads=4 kv=8", "P(('fsdp', 'expert'), 'tensor', None)"),
    (EXPERT, "batch=8 length=8 embed=8", "P(('fsdp', 'expert'), None, None)"),
    (EXPERT, "batch=8 expert=4 embed=8", "P('fsdp', 'expert', None)"),
    # Stacked layers are runs of neighbours; within a stage they are whole.
    (PIPELINE, "layers=8 embed=8 mlp=16", "P('stage', 'fsdp', 'tensor')"),
    (PIPELINE, "layers=4 stage=2 embed=8 mlp=16", "P(None, 'stage', 'fsdp', 'tensor')"),
    (PIPELINE, "stage=2 batch=8 length=8 embed=8", "P('stage', 'fsdp', None, None)"),
    (PIPELINE, "microbatch=4 batch=8 length=8", "P('stage', 'fsdp', None)"),
    (PIPELINE, "microbatch=4 stage=2 batch=8 length=8", "P(None, 'stage', 'fsdp', None)"),
    (PIPELINE, "vocab=8 embed=8", "P('tensor', 'fsdp')"),
]


@pytest.mark.parametrize(("setting", "names", "expected"), OUR_CASES)
def test_our_preset_places(setting: tuple[str, str], names: str, expected: str) -> None:
    extends, mesh = setting
    assert placed(extends, mesh, f"f32[{names}]") == expected


def test_each_of_ours_places_something_here() -> None:
    tried = {name for (extends, _), _, _ in OUR_CASES for name in re.findall(r"[\w-]+", extends)}
    assert tried == set(OURS)


@pytest.mark.parametrize("addition", ["context", "expert", "pipeline"])
def test_additions_go_on_top_of_plain_fsdp_too(addition: str) -> None:
    axis = {"pipeline": "stage"}.get(addition, addition)
    mesh = f"{{{axis}: 2, fsdp: 4}}"
    assert placed(f"[fsdp, {addition}]", mesh, "f32[mlp=16]") == "P('fsdp')"
    assert placed(f"[fsdp, {addition}]", mesh, "f32[norm=8]") == "P(None)"
