from __future__ import annotations

import pytest

from shardspec.lints.checks import priority_reorders
from tests.lints.findings_of import found_by, marked

HEAD = "mesh: {data: 2, model: 4}\naxes: {batch: 64}\narrays: {w: 'f32[embed=64 mlp=128]'}\n"


@pytest.mark.parametrize(
    ("rules", "marks"),
    [
        ("[embed -> model, mlp -> model @ -1]", ["model", "model"]),
        ("[embed -> model @ 3, mlp -> model]", ["model", "model"]),
        ("[mlp -> model @ -1, embed -> model]", ["model"]),
        ("[embed -> data, mlp -> model @ 7]", ["model"]),
        ("[embed -> model, mlp -> model]", []),
        ("[batch -> data @ 1]", ["data"]),
    ],
)
def test_which(rules: str, marks: list[str]) -> None:
    found = found_by(priority_reorders, f"{HEAD}rules: {rules}")
    assert [mark for each in found for mark in marked(each)] == marks


def test_both_answers_are_shown() -> None:
    (found,) = found_by(priority_reorders, f"{HEAD}rules: [embed -> model, mlp -> model @ -1]")
    assert "is P(None, 'model'), not P('model', None)" in found.message
    assert found.notes == ("it changes 1 array",)


def test_one_that_changes_nothing_can_be_taken_out() -> None:
    (found,) = found_by(priority_reorders, f"{HEAD}rules: [embed -> data, 'mlp -> model @ 7']")
    assert found.message == "`@ 7` of `mlp -> model` changes nothing"
    assert found.fix is not None
    (edit,) = found.fix.edits
    assert edit.span.text == " @ 7"


def test_an_inherited_priority_is_told_where_a_rule_of_the_specs_own_loses() -> None:
    text = (
        "extends: [fsdp-tensor, expert]\nmesh: {fsdp: 4, expert: 2, tensor: 2}\n"
        "axes: {expert: 8, batch: 64}\nactivations: {x: expert batch _ embed}\n"
    )
    assert found_by(priority_reorders, text) == []
    (found,) = found_by(priority_reorders, f"{text}rules: ['batch -> (fsdp, expert)']")
    assert "`@ -1` of `expert -> expert`" in found.message
    assert marked(found) == ["(fsdp, expert)", "expert"]
    assert found.help is not None
    own = f"{text}rules: ['batch -> (fsdp, expert)', expert -> expert]"
    assert found_by(priority_reorders, own) == []
