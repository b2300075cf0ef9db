from __future__ import annotations

import re

import pytest

from shardspec.lints.checks import unused_mesh_axis
from tests.lints.findings_of import findings_of, found_by
from tests.lints.step_examples import findings

HEAD = "mesh: {data: 4, model: 8}\naxes: {batch: 64}\narrays: {k: 'f32[embed=64 mlp=96]'}\n"


@pytest.mark.parametrize(
    ("text", "unused"),
    [
        ("rules: [batch -> data, embed -> none, mlp -> model]", []),
        ("rules: [batch -> data, embed -> data, mlp -> none]", ["model"]),
        ("rules: [batch -> data, embed -> none, mlp -> none | model]", []),
        (
            "rules: [batch -> data, embed -> none, mlp -> none | model]\n"
            "activations: {x: batch embed}",
            ["model"],
        ),
        ("rules: [batch -> data, heads -> model]\nactivations: {x: batch embed}", []),
        ("rules: [batch -> data, heads -> model]\nactivations: {x: batch heads}", []),
        ("rules: ['batch -> (data, model)', embed -> none, mlp -> none]", []),
        ("rules: [embed -> data, mlp -> none]", []),
        (
            "rules: [batch -> data, embed -> none, mlp -> none]\n"
            "overrides: [{path: k, spec: '(model, none)'}]",
            [],
        ),
        (
            "rules: [batch -> data, embed -> none, mlp -> none]\n"
            "state: {optimizer: zero1, over: model}",
            [],
        ),
    ],
)
def test_which(text: str, unused: list[str]) -> None:
    found = found_by(unused_mesh_axis, HEAD + text)
    assert [re.findall("`(.*?)`", each.message)[0] for each in found] == unused


def test_an_axis_of_size_one_has_no_copies() -> None:
    head = HEAD.replace("model: 8", "model: 1")
    assert found_by(unused_mesh_axis, f"{head}rules: [batch -> data, mlp -> none]") == []


@pytest.mark.parametrize(
    ("model", "offer"),
    [
        (8, "`embed -> model` would split"),
        (3, "`mlp -> model` would split"),
        (5, "`batch -> (data, model)`"),
        (7, "give its devices"),
    ],
)
def test_the_help_works(model: int, offer: str) -> None:
    batch = 160 if model == 5 else 64
    text = HEAD.replace("model: 8", f"model: {model}").replace("batch: 64", f"batch: {batch}")
    rules = "rules: [batch -> data, mlp -> none, embed -> none]"
    (found,) = found_by(unused_mesh_axis, f"{text}{rules}")
    assert found.help is not None
    assert found.help.startswith(offer)
    rule = re.match("`(.*?)`", found.help)
    if rule:
        axis = rule[1].partition(" ")[0]
        better = re.sub(rf"{axis} -> \w+", f"'{rule[1]}'", rules)
        assert found_by(unused_mesh_axis, f"{text}{better}") == []


def test_the_copies_are_counted_in_bytes() -> None:
    (found,) = found_by(unused_mesh_axis, f"{HEAD}rules: [batch -> data, 'embed, mlp -> none']")
    assert found.notes[0].startswith(
        "8 copies of everything: 24.0 KiB on each device, and 3.00 KiB"
    )


def _way_out(text: str) -> str:
    (found,) = findings_of(text, only="unused-mesh-axis")
    return found.help or ""


DCN = """\
mesh: {replica: 2 @ dcn, fsdp: 4}
axes: {batch: 64}
rules: [batch -> fsdp, embed -> fsdp, layers -> none]
scan: {'**': layers@0}
params: {'**': embed}
arrays: {w: 'f32[24, 64]'}
activations: {x: batch}
"""


def test_over_dcn_the_batch_is_the_way_out_with_the_slices_major() -> None:
    help = _way_out(DCN)
    assert help.startswith("`batch -> (replica, fsdp)` would split the batch over it")
    assert findings_of(DCN.replace("batch -> fsdp", "'batch -> (replica, fsdp)'")) == ()


def test_over_dcn_without_a_batch_that_divides_nothing_is_offered() -> None:
    assert _way_out(DCN.replace("64}", "4}")) == "give its devices to another mesh axis"


def test_stacked_layers_are_no_offer() -> None:
    text = DCN.replace(" @ dcn", "").replace("batch: 64", "batch: 4")
    assert "layers ->" not in _way_out(text)
    assert _way_out(text).startswith("`embed -> (replica, fsdp) | fsdp` would split")


PLACED = """\
# def step(params, x):
#     sharding = jax.NamedSharding(resolver.mesh, jax.P(*AXES))
#     return jax.lax.with_sharding_constraint(x, sharding) @ params["w"]
shardspec: 1
mesh: {data: 4, model: 8}
axes: {batch: 64, embed: 64}
rules:
  - batch -> data
  - embed -> none
activations:
  x: batch embed
arrays:
  w: bf16[embed=64 _=64]
"""


@pytest.mark.parametrize(("axes", "is_used"), [("('data', 'model')", True), ("('data',)", False)])
def test_code_of_a_step_may_use_an_axis(axes: str, is_used: bool) -> None:
    """No rule names `model`, and the constraint in the code shards the product over it."""
    found = [each.code.id for each in findings(PLACED.replace("AXES", axes))]
    assert ("SHD110" not in found) == is_used
