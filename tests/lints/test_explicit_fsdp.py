"""What SHD113 tells of, and what it leaves in peace."""

from __future__ import annotations

import pytest

from shardspec.diagnostics import Diagnostic
from tests.lints.findings_of import findings_of, marked

RESIDUAL = "residual: batch length embed"
HIDDEN = "hidden: batch length mlp"
WO = "wo: 'bf16[mlp=256 embed=64]'"


def found(
    *arrays: str,
    mesh: str = "{data: 8 explicit}",
    rules: str = "batch -> data, embed -> data",
    activations: tuple[str, ...] = (RESIDUAL, HIDDEN),
    more: str = "",
) -> tuple[Diagnostic, ...]:
    text = (
        f"mesh: {mesh}\nrules: [{rules}, 'length, mlp, heads, kv, vocab, expert, layers -> none']\n"
        f"arrays: {{{', '.join(arrays)}}}\nactivations: {{{', '.join(activations)}}}\n{more}"
    )
    return findings_of(text, only="explicit-fsdp")


def paths(findings: tuple[Diagnostic, ...]) -> list[str]:
    return [note.rpartition(" ")[2] for each in findings for note in each.notes[1:]]


def test_the_finding() -> None:
    (one,) = found(WO, "wi: 'bf16[embed=64 mlp=256]'")
    assert one.message == (
        "explicit `data` would split `batch` and `embed` of one result on target `default`:"
        " JAX refuses to use 1 array (ShardingTypeError)"
    )
    assert one.notes == (
        "32.0 KiB in all; gathered where it is used, the largest takes 32.0 KiB on each device",
        "32.0 KiB  wo",
    )
    assert one.help == (
        'gather where used: `resolver.constrain(w, "mlp _")`, and say so under `activations`'
        " (`NAME: mlp _`); or leave `data` automatic, without `explicit`"
    )
    assert marked(one) == ["data", "data", "8 explicit", RESIDUAL]
    assert one.target == "default"


@pytest.mark.parametrize(
    "mesh",
    ["{data: 8}", "{data: 8 manual}", "{data: 8, model: 1 explicit}"],
)
def test_other_types_of_axes_are_left_in_peace(mesh: str) -> None:
    assert found(WO, mesh=mesh) == ()


def test_an_explicit_axis_of_size_one_counts() -> None:
    assert paths(found(WO, mesh="{data: 1 explicit}")) == ["wo"]


def test_only_targets_that_are_explicit_are_named() -> None:
    text = (
        "targets: {a: {mesh: {data: 8}}, b: {mesh: {data: 4 explicit}},"
        " c: {mesh: {data: 2 explicit}}}\n"
        "rules: ['batch, embed -> data', mlp -> none]\n"
        f"arrays: {{{WO}}}\n"
    )
    (one,) = findings_of(text, only="explicit-fsdp")
    assert "on targets `b`, `c`:" in one.message
    assert one.target is None


@pytest.mark.parametrize(
    ("array", "told"),
    [
        ("'bf16[heads=4 kv=16 embed=64]'", True),
        ("'bf16[embed=64]'", True),  # a scale
        ("'bf16[length=32 embed=64]'", True),  # added
        ("'bf16[layers=3 mlp=256 embed=64]'", True),
        ("'bf16[layers=3 embed=64 mlp=256]'", False),
        ("'bf16[expert=4 mlp=256 embed=64]'", True),
        ("'bf16[expert=4 embed=64 mlp=256]'", False),
        ("'bf16[embed=64 heads=4 kv=16]'", False),
        ("'bf16[mlp=256]'", False),
        ("'bf16[vocab=512 embed=64]'", False),  # looked up
        ("'bf16[embed=64 vocab=512]'", False),
        ("'bf16[batch=8 length=32 embed=64]'", False),  # no weight
        ("'bf16[mlp=256 _=64]'", False),
        ("'bf16[]'", False),
    ],
)
@pytest.mark.parametrize(
    "activations",
    [
        (RESIDUAL, HIDDEN, "q: batch length heads kv", "routed: expert batch _ mlp"),
        (RESIDUAL,),
        (),
    ],
)
def test_what_is_met_by_name(array: str, told: bool, activations: tuple[str, ...]) -> None:
    assert paths(found(f"w: {array}", activations=activations)) == (["w"] if told else [])


def test_other_dimensions_than_embed() -> None:
    rules = "batch -> data, mlp -> data"
    wi = "wi: 'bf16[embed=64 mlp=256]'"
    assert paths(found(WO, wi, rules=rules)) == ["wi"]
    assert paths(found(WO, wi, rules=rules, activations=(RESIDUAL,))) == []


def test_the_batch_must_have_the_axis() -> None:
    mesh = "{data: 2 explicit, fsdp: 4 explicit}"
    for activations in ((RESIDUAL, HIDDEN), ()):
        rules = "batch -> data, embed -> fsdp"
        assert found(WO, mesh=mesh, rules=rules, activations=activations) == ()
        rules = "'batch -> (data, fsdp)', embed -> fsdp"
        assert paths(found(WO, mesh=mesh, rules=rules, activations=activations)) == ["wo"]
        rules = "'batch -> data | fsdp', embed -> fsdp"
        assert found(WO, mesh=mesh, rules=rules, activations=activations) == ()


def test_two_mesh_axes_are_one_finding() -> None:
    (one,) = found(
        WO,
        mesh="{data: 2 explicit, fsdp: 4 explicit}",
        rules="'batch, embed -> (data, fsdp)'",
    )
    assert one.message.startswith("explicit `data`, `fsdp` would split `batch` and `embed`")


def test_another_dimension_than_the_batch() -> None:
    rules = "length -> data, embed -> data"
    (one,) = found(WO, rules=rules)
    assert "would split `length` and `embed`" in one.message


def test_the_shared_dimension_of_experts_is_no_clash() -> None:
    activations = ("routed: expert batch _ embed", "hidden: expert batch _ mlp")
    wo = "wo: 'bf16[expert=8 mlp=256 embed=64]'"
    assert found(wo, rules="expert -> data, batch -> data", activations=activations) == ()


def test_names_as_maxtext_has_them() -> None:
    activations = ("a: activation_batch activation_length activation_embed",)
    rules = "activation_batch -> data, 'activation_length, activation_embed -> none', embed -> data"
    assert paths(found(WO, rules=rules, activations=activations)) == ["wo"]


def test_a_weight_that_is_named_as_it_is_used_is_gathered() -> None:
    scale = "scale: 'bf16[embed=64]'"
    assert paths(found(WO, scale, activations=(RESIDUAL, HIDDEN, "wo: mlp _"))) == ["scale"]
    assert found(WO, scale, activations=(RESIDUAL, HIDDEN, "wo: mlp _", "scale: _")) == ()
    assert found(WO, activations=("wo: mlp _",)) == ()
    assert paths(found(WO, activations=(RESIDUAL, "ids: _ _"))) == ["wo"]
    stacked = "wo: 'bf16[layers=3 mlp=256 embed=64]'"
    assert found(stacked, activations=(RESIDUAL, "wo: mlp _")) == ()


def test_many_weights_are_one_finding_with_their_bytes() -> None:
    (one,) = found(
        "'l_{0..3}/wo': 'bf16[mlp=256 embed=64]'",
        "'l_{0..3}/out': 'bf16[heads=4 kv=16 embed=64]'",
        "'l_{0..3}/scale': 'f32[embed=64]'",
    )
    assert "refuses to use 12 arrays" in one.message
    assert one.notes == (
        "161 KiB in all; gathered where it is used, the largest takes 32.0 KiB on each device",
        "128 KiB  l_{0..3}/wo x4",
        "32.0 KiB  l_{0..3}/out x4",
        "1.00 KiB  l_{0..3}/scale x4",
    )
    assert '`resolver.constrain(w, names)` with "mlp _", "heads kv _", "_"' in (one.help or "")


def test_other_mesh_axes_of_a_weight_stay_where_it_is_used() -> None:
    (one,) = found(
        WO,
        mesh="{data: 4 explicit, model: 2 explicit}",
        rules="batch -> data, embed -> data, mlp -> model",
    )
    assert "takes 16.0 KiB on each device" in one.notes[0]


@pytest.mark.parametrize("activations", [(RESIDUAL, HIDDEN), (RESIDUAL,), ()])
def test_weights_of_pytorch_have_their_inputs_last(activations: tuple[str, ...]) -> None:
    down = "down_proj.weight: 'bf16[embed=64 mlp=256]'"
    up = "up_proj.weight: 'bf16[mlp=256 embed=64]'"
    (one,) = found(down, up, activations=activations)
    assert paths((one,)) == ["down_proj.weight"]
    assert '`resolver.constrain(w, "_ mlp")`' in (one.help or "")
