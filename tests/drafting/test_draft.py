"""A first spec: sound for any arrays, whole, and the same each time."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.analysis.coverage import allowed_paths
from shardspec.drafting.draft import Asked, Draft, draft
from shardspec.drafting.machines import hardware_of
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Param, Params, Spec
from tests.naming.odd_arrays import arrays

MACHINES = ("8 cpu", "tpu v5e 4x4", "2 * tpu v5p 4x4x8", "4 * h100", "1 cpu", "tpu v5p 8x8x16")
PRESETS = ((), ("fsdp-tensor",), ("t5x/2d",), ("serving",), ("fsdp", "expert"), ("data-parallel",))


def drafted(
    params: Params, *machines: str, presets: tuple[str, ...] = (), to: str = "yaml"
) -> Draft:
    hardware = tuple(found for text in machines if (found := hardware_of(text)))
    made = draft(Asked(params, "arrays.yaml", hardware, presets, "./arrays.yaml"), to)
    assert isinstance(made, Draft), made
    return made


def loaded(made: Draft, params: Params) -> tuple[Spec, list[ShardingPlan]]:
    """Return the spec of a draft and its plans; fail where `check` finds an error."""
    text = re.sub(r"(?m)^manifest[ :].*\n", "", made.text)
    spec, faults = pipeline.load_text(text, "spec.shard" if "\nrules {" in text else "spec.yaml")
    assert spec is not None, faults
    told = pipeline.check(spec, faults, params)
    assert [each.message for each in told.shown if each.is_error] == []
    return spec, list(pipeline.compile_plans(spec, params))


LLAMA = (
    Param("embed/embedding", (32000, 4096), "bf16"),
    *(Param(f"layers_{at}/attn/query/kernel", (4096, 4096), "bf16") for at in range(4)),
    *(Param(f"layers_{at}/attn/key/kernel", (4096, 1024), "bf16") for at in range(4)),
    *(Param(f"layers_{at}/mlp/wi/kernel", (4096, 14336), "bf16") for at in range(4)),
    *(Param(f"layers_{at}/mlp/wo/kernel", (14336, 4096), "bf16") for at in range(4)),
    Param("norm/scale", (4096,), "bf16"),
)


EXPERTS = (
    *(each for each in LLAMA if "mlp" not in each.path),
    Param("lm_head/kernel", (4096, 32000), "bf16"),
    *(Param(f"layers_{at}/router/kernel", (4096, 16), "f32") for at in range(4)),
    *(Param(f"layers_{at}/moe/wi_{to}", (16, 4096, 1024)) for at in range(4) for to in (0, 1)),
    *(Param(f"layers_{at}/moe/wo", (16, 1024, 4096)) for at in range(4)),
)


#: Query, key and value in one array, and gate and up: defaults of transformers, small.
FUSED = (
    Param("wte.weight", (50257, 768)),
    *(Param(f"h.{at}.attn.c_attn.weight", (768, 2304)) for at in range(4)),
    *(Param(f"h.{at}.attn.c_proj.weight", (768, 768)) for at in range(4)),
    *(Param(f"h.{at}.mlp.gate_up_proj.weight", (768, 6144)) for at in range(4)),
    *(Param(f"h.{at}.mlp.c_proj.weight", (3072, 768)) for at in range(4)),
    Param("ln_f.weight", (768,)),
)
#: Experts that are arrays of their own, as checkpoints of Qwen and DeepSeek on the Hub have them.
SEPARATE = (
    *(each for each in LLAMA if "mlp" not in each.path),
    Param("lm_head.weight", (32000, 4096)),
    *(Param(f"layers.{at}.mlp.gate.weight", (16, 4096)) for at in range(4)),
    *(
        Param(f"layers.{at}.mlp.experts.{to}.{name}_proj.weight", shape)
        for at, to in product(range(4), range(16))
        for name, shape in (("gate", (1024, 4096)), ("up", (1024, 4096)), ("down", (4096, 1024)))
    ),
)
#: Names that no step of the library reads.
GGUF = (
    Param("token_embd.weight", (32000, 4096)),
    *(Param(f"blk.{at}.attn_q.weight", (4096, 4096)) for at in range(4)),
    *(Param(f"blk.{at}.ffn_up.weight", (14336, 4096)) for at in range(4)),
    *(Param(f"blk.{at}.ffn_down.weight", (4096, 14336)) for at in range(4)),
)
#: Arrays that carry axes of a mesh, as Tunix names its Gemma.
PLACED = (
    Param("embedder/input_embedding", (256128, 2048), "bf16", ("tp", "fsdp")),
    *(Param(f"l_{at}/q/w", (8, 2048, 256), "bf16", ("tp", "fsdp", None)) for at in range(4)),
    *(
        Param(f"l_{at}/kv/w", (2, 1, 2048, 256), "bf16", (None, "tp", "fsdp", None))
        for at in (0, 1)
    ),
    *(Param(f"l_{at}/up/w", (2048, 16384), "bf16", ("fsdp", "tp")) for at in range(4)),
    *(Param(f"l_{at}/norm/scale", (2048,), "bf16") for at in range(4)),
)
MODELS = {
    "dense": (LLAMA, {"decoder-tied"}),
    "experts": (EXPERTS, {"moe"}),
    "fused": (FUSED, {"decoder-tied"}),
    "separate": (SEPARATE, {"moe", None}),
    "gguf": (GGUF, {None}),
    "placed": (PLACED, {None}),
}


def taken(made: Draft, to: str) -> str:
    """Return the text with all that its last question proposes."""
    head, _, tail = made.text.rpartition("QUESTION: what is in a step?")
    lines = [line.removeprefix("# ") for line in tail.splitlines()[1:] if "at the end" not in line]
    inside = [line for line in lines if to == "yaml" and line.startswith("  ")]
    assert (to == "yaml") == bool(inside)
    below = "\n".join(line for line in lines if line not in inside)
    return head.replace("\naxes:\n", "\n".join(["\naxes:", *inside, ""])) + f"\n{below}\n"


@pytest.mark.parametrize("machine", ["tpu v5e 4x4", "3 * h100", "tpu v5e 1x1"])
@pytest.mark.parametrize("to", ["yaml", "dsl"])
@pytest.mark.parametrize("model", MODELS)
def test_what_the_last_question_proposes_can_be_taken_as_it_stands(
    to: str, model: str, machine: str
) -> None:
    params, steps = MODELS[model]
    made = drafted(params, machine, to=to)
    before, _ = loaded(made, params)
    text = taken(made, to)
    spec, plans = loaded(made._replace(text=text), params)
    step = re.search(r"extends:? ([\w-]+)", text.rpartition("activation")[2])
    assert (step and step[1]) in steps
    assert (spec.step is None) == (step is None)
    old = {each.code.id for each in pipeline.check(before, (), params).shown}
    told = pipeline.check(spec, (), params).shown
    assert [each.message for each in told if each.code.id not in old] == []
    assert len(spec.activations) == 1
    assert plans[0].activations[0].partition_spec.mesh_axes or plans[0].mesh.device_count == 1


def test_a_step_that_reads_no_array_is_not_proposed() -> None:
    for params in (GGUF, PLACED):
        text = drafted(params).text
        assert "step: {" not in text
        assert "No step of the library reads all these arrays" in text


def test_mesh_axes_that_arrays_name_stay_theirs() -> None:
    made = drafted(PLACED, "tpu v5e 4x4")
    assert "extends: [fsdp-tensor]  # guess: arrays name a mesh axis" in made.text
    assert "arrays name the mesh axis `tp`" in made.text
    _, (plan,) = loaded(made, PLACED)
    assert plan.mesh.sizes == {"fsdp": 2, "tensor": 8}
    assert plan["l_0/q/w"].partition_spec.mesh_axes == ("tensor", "fsdp")
    assert plan["l_1/up/w"].partition_spec.mesh_axes == ("fsdp", "tensor")
    assert plan["l_1/kv/w"].partition_spec.mesh_axes == ("fsdp",)


def test_each_array_of_tunix_lies_as_it_says() -> None:
    """Qwen3 8B, of google/tunix c7d8950f (models/qwen3/model.py): 399 arrays on `fsdp` and `tp`."""
    layer = {
        "attn/k_norm/w": ((128,), ("tp",)),
        "attn/q_norm/w": ((128,), ("tp",)),
        "attn/k_proj/w": ((4096, 8, 128), ("fsdp", "tp", None)),
        "attn/v_proj/w": ((4096, 8, 128), ("fsdp", "tp", None)),
        "attn/q_proj/w": ((4096, 32, 128), ("fsdp", "tp", None)),
        "attn/o_proj/w": ((32, 128, 4096), ("tp", None, "fsdp")),
        "input_layernorm/w": ((4096,), ("tp",)),
        "post_attention_layernorm/w": ((4096,), ("tp",)),
        "mlp/gate_proj/kernel": ((4096, 12288), ("fsdp", "tp")),
        "mlp/up_proj/kernel": ((4096, 12288), ("fsdp", "tp")),
        "mlp/down_proj/kernel": ((12288, 4096), ("tp", "fsdp")),
    }
    params = (
        Param("embedder/input_embedding", (151936, 4096), "bf16", ("tp", "fsdp")),
        Param("final_norm/w", (4096,), "bf16", ("tp",)),
        Param("lm_head/w", (4096, 151936), "bf16", ("fsdp", "tp")),
        *(
            Param(f"layers/{at}/{path}", shape, "bf16", axes)
            for at, (path, (shape, axes)) in product(range(36), layer.items())
        ),
    )
    _, (plan,) = loaded(drafted(params, "tpu v5e 4x4"), params)
    to = {"fsdp": ("fsdp",), "tp": ("tensor",), None: ()}
    right = [
        [dim.mesh_axes for dim in plan[each.path].dims] == [to[name] for name in each.logical_axes]
        for each in params
        if each.logical_axes is not None
    ]
    assert len(right) == 399
    assert all(right)


@pytest.mark.parametrize(
    ("mesh_axes", "presets", "rules"),
    [
        (("data", "model"), (), ["data -> fsdp", "model -> tensor"]),
        (("data", "model"), ("megatron",), ["data -> data", "model -> model"]),
        (("ep", "mdl"), (), ["ep -> expert", "mdl -> tensor"]),
        (("fsdp", "tp"), ("fsdp",), ["fsdp -> fsdp", "tp -> none"]),
    ],
)
def test_names_of_mesh_axes_go_to_those_of_the_preset(
    mesh_axes: tuple[str, str], presets: tuple[str, ...], rules: list[str]
) -> None:
    params = tuple(Param(f"m/{at}/w", (4096, 8192), "bf16", mesh_axes) for at in range(4))
    text = drafted(params, "tpu v5e 4x4", presets=presets).text
    assert re.findall(r"- (\w+ -> \w+)\n", text) == rules
    assert ("QUESTION: which mesh axes take these?" in text) == (rules[1] == "tp -> none")


def test_names_without_a_rule_are_asked_for() -> None:
    params = tuple(Param(f"m/{at}/w", (4096, 8192), "bf16", ("sp", "mine")) for at in range(4))
    made = drafted(params, "tpu v5e 4x4")
    assert "# QUESTION: which mesh axes take these? Arrays name them" in made.text
    assert "- sp, mine -> none" in made.text or "- mine, sp -> none" in made.text
    loaded(made, params)


def test_a_head_is_as_wide_as_those_of_its_own_tower() -> None:
    """Gemma 3: heads of 256 in the text tower, of 64 in the other, whose arrays do not tell."""
    params = (
        *(Param(f"text.layers.{at}.self_attn.q_proj.weight", (1024, 640)) for at in range(2)),
        *(Param(f"text.layers.{at}.self_attn.q_norm.weight", (256,)) for at in range(2)),
        *(Param(f"vision.layers.{at}.self_attn.q_proj.weight", (768, 768)) for at in range(2)),
        Param("text.norm.weight", (640,)),
        Param("vision.norm.weight", (768,)),
    )
    spec, _ = loaded(drafted(params), params)
    units = {axis.size: axis.unit for axis in spec.logical_axes if "joined" in axis.name}
    assert units == {1024: 256, 768: 64}


def test_names_by_size_alone_are_a_question() -> None:
    params = (*LLAMA, Param("odd/thing", (14336, 3)))
    assert "mlp _  # guess: by size alone; 1 array; QUESTION: are these" in drafted(params).text


def test_every_line_that_is_guessed_says_so() -> None:
    text = drafted(LLAMA).text
    named = text.partition("\nparams:\n")[2].partition("\n\n")[0]
    assert named.count("\n  ") + 1 == named.count("# guess: ") >= 6
    assert text.count("# guess: any laptop") == 1
    assert "extends: [fsdp]  # guess: " in text
    assert "QUESTION: is one head 128 wide?" in text


def test_without_a_machine_there_are_a_laptop_and_one_with_room() -> None:
    spec, _ = loaded(drafted(LLAMA), LLAMA)
    assert [str(target.hardware) for target in spec.targets] == ["8 cpu", "tpu v5e 2x2"]
    large = tuple(Param(f"layers_{at}/mlp/wi/kernel", (16384, 65536)) for at in range(40))
    spec, _ = loaded(drafted(large), large)
    assert str(spec.targets[1].hardware) == "tpu v5e 8x16"


@pytest.mark.parametrize(
    ("machine", "presets", "mesh"),
    [
        ("tpu v5e 4x4", ("fsdp",), {"fsdp": 16}),
        ("tpu v5p 8x8x8", ("fsdp-tensor",), {"fsdp": 64, "tensor": 8}),
        ("2 * tpu v5e 4x4", ("fsdp",), {"replica": 2, "fsdp": 16}),
    ],
)
def test_the_machine_chooses_the_preset(
    machine: str, presets: tuple[str, ...], mesh: dict[str, int]
) -> None:
    spec, (plan,) = loaded(drafted(LLAMA, machine), LLAMA)
    assert [each.partition(":")[2] for each in _extended(spec)] == list(presets)
    assert plan.mesh.sizes == mesh


def _extended(spec: Spec) -> list[str]:
    names = {rule.span.source.name for rule in spec.axis_rules if rule.span is not None}
    return sorted(name for name in names if name.startswith("preset:"))


def test_nodes_too_small_for_a_model_share_it() -> None:
    large = tuple(
        Param(f"layers_{at}/{path}", shape, "bf16")
        for at in range(80)
        for path, shape in (
            ("attn/query/kernel", (8192, 64, 128)),
            ("mlp/wi/kernel", (8192, 28672)),
            ("mlp/wo/kernel", (28672, 8192)),
        )
    )
    spec, (plan,) = loaded(drafted(large, "4 * h100"), large)
    assert plan.mesh.sizes == {"fsdp": 4, "tensor": 8}
    assert spec.targets[0].mesh.axes[0].network == "dcn"


def test_a_size_that_does_not_divide_is_whole_by_a_rule_that_says_so() -> None:
    params = (Param("embedder/embedding", (50257, 4096)), *LLAMA[1:])
    made = drafted(params, "tpu v5e 4x4", presets=("fsdp-tensor",))
    assert "50257 does not divide by tensor = 8: whole there" in made.text
    assert "mesh: {fsdp: rest, tensor: 8}  # guess: the axes that the presets name" in made.text
    _, (plan,) = loaded(made, params)
    (table,) = (each for each in plan.arrays if each.param.path == "embedder/embedding")
    assert table.dims[0].mesh_axes == ()


@pytest.mark.parametrize("size", [50257, 50260, 50264, 50272])
def test_a_rule_ends_in_none_exactly_where_a_mesh_axis_does_not_divide(size: int) -> None:
    params = (Param("embedder/embedding", (size, 4096)), *LLAMA[1:])
    made = drafted(params, "tpu v5e 4x4", presets=("fsdp-tensor",))
    spec, (plan,) = loaded(made, params)
    tensor = plan.mesh.sizes["tensor"]
    ends = [rule.is_none for rule in spec.axis_rules if rule.logical_axis == "vocab"]
    assert ends[-1] == bool(size % tensor)
    assert ("does not divide" in made.text) == bool(size % tensor)
    (table,) = (each for each in plan.arrays if each.param.path == "embedder/embedding")
    assert bool(table.dims[0].mesh_axes) == (size % tensor == 0)


def test_a_machine_without_room_is_a_question_and_a_warning() -> None:
    params = tuple(Param(f"layers_{at}/mlp/wi/kernel", (8192, 32768)) for at in range(80))
    made = drafted(params, "tpu v5e 2x2")
    assert "exceeds-memory: warn  # QUESTION: only a warning here: parameters take" in made.text
    loaded(made, params)


def test_an_array_with_an_unknown_dimension_is_placed_by_the_others() -> None:
    odd = (*LLAMA, Param("odd/thing", (77, 4096)), Param("odd/wide", (14336, 77)))
    made = drafted(odd)
    assert "dim_77: 77  # QUESTION: what is it? 77 is no axis; in 2 arrays" in made.text
    assert "# QUESTION: which mesh axes take these? No name is known of them" in made.text
    assert "- dim_77 -> none" in made.text
    assert "odd/wide: mlp dim_77  # guess: by size alone; 1 array; QUESTION: are" in made.text
    assert "2 arrays named in part: see `dim_77` in the spec" in made.remarks
    _, plans = loaded(made, odd)
    places = {each.param.path: each.partition_spec for each in plans[0].arrays}
    assert not places["odd/thing"].is_replicated
    assert not places["odd/wide"].is_replicated


def test_what_is_not_guessed_is_whole_and_asked_for() -> None:
    odd = (*LLAMA, Param("odd/thing", (77, 4095)), Param("odd/other", (77, 4095)))
    made = drafted(odd)
    assert "# QUESTION: what are the dimensions of [77, 4095] (2 arrays, 2.41 MiB)?" in made.text
    assert "77 is no axis; 4095 is no axis" in made.text
    assert 'because: "not guessed: [77, 4095]"' in made.text
    _, plans = loaded(made, odd)
    (thing,) = (each for each in plans[0].arrays if each.param.path == "odd/thing")
    assert thing.partition_spec.is_replicated


def test_arrays_that_derive_from_others_come_by_a_preset() -> None:
    lora = (
        *LLAMA,
        *(Param(f"layers_{at}/mlp/wi/kernel_lora_a", (4096, 8), "bf16") for at in range(4)),
        *(Param(f"layers_{at}/mlp/wi/kernel_lora_b", (8, 14336), "bf16") for at in range(4)),
    )
    made = drafted(lora, "tpu v5e 4x4")
    assert "extends: [fsdp, derive/qwix]" in made.text
    loaded(made, lora)


def test_two_halves_side_by_side_are_parts() -> None:
    params = (*LLAMA, Param("layers_0/mlp/gate_up_proj/kernel", (4096, 28672)))
    text = drafted(params).text
    assert "parts: {gate: mlp, up: mlp}" in text


@pytest.mark.parametrize("presets", PRESETS)
@pytest.mark.parametrize("machine", MACHINES)
def test_any_machine_and_preset(machine: str, presets: tuple[str, ...]) -> None:
    experts = Param("layers/moe/experts/w1", (8, 4, 4096, 14336))
    params = (*LLAMA, Param("layers/moe/norm/scale", (4, 4096)), experts)
    made = drafted(params, machine, presets=presets)
    loaded(made, params)


def _is_for_yaml_alone(params: Params) -> bool:
    """Say whether a path holds control characters, which the DSL has no spelling for."""
    return any(not char.isprintable() for param in params for char in param.path)


@settings(max_examples=60)
@given(
    arrays, st.sampled_from(MACHINES), st.sampled_from(PRESETS), st.sampled_from(("yaml", "dsl"))
)
@example((Param("moe/ln_1/weight", (0, 1), "f32"),), "8 cpu", (), "yaml")
def test_a_draft_is_sound_and_whole(
    params: Params, machine: str, presets: tuple[str, ...], spelling: str
) -> None:
    """Invariants `sound`, `all` and `same`, for any arrays."""
    to = "yaml" if _is_for_yaml_alone(params) else spelling
    made = drafted(params, machine, presets=presets, to=to)
    assert made == drafted(params, machine, presets=presets, to=to)
    spec, (plan,) = loaded(made, params)
    allowed = allowed_paths(spec, [param.path for param in params])
    for sharding in plan.arrays:
        if sharding.param.rank:
            assert sharding.mismatch is None
            assert sharding.needs_names == (sharding.param.path in allowed)


def test_numbers_for_a_stated_step_are_those_of_the_code() -> None:
    machines = (hardware_of("tpu v5e 4x4"),)
    asked = Asked(LLAMA, "train:step", machines, has_step=True, tokens=(96, 512))
    made = draft(asked, "yaml")
    assert "batch: 96" in made.text
    assert "length: 512" in made.text
