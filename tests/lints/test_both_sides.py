"""A name misspelt in a rule, which arrays have right: one finding, one advice."""

from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic

SPEC = (
    "shardspec: 1\nmesh: {{fsdp: 2, tensor: 4}}\nrules:\n  - embed -> fsdp\n  - {rule} -> tensor\n"
)
ARRAYS = "arrays:\n  a/kernel: bf16[embed=64 {name}=128]\n  b/kernel: bf16[embed=64 {name}=128]\n"
ACTIVATIONS = "activations:\n  act: _ embed {name}\n"


def found(text: str) -> list[Diagnostic]:
    spec, faults = pipeline.load_text(text, "spec.yaml")
    assert spec is not None
    shown = pipeline.check(spec, faults, spec.params).shown
    return [each for each in shown if each.code.id in ("SHD202", "SHD230")]


@pytest.mark.parametrize("rest", [ARRAYS, ACTIVATIONS + "arrays:\n  w: bf16[embed=64]\n"])
def test_a_slip_is_one_finding(rest: str) -> None:
    (told,) = found((SPEC + rest).format(rule="hedas", name="heads"))
    assert told.code.id == "SHD202"
    assert told.help == "did you mean `heads`?"
    assert told.fix is not None
    assert {edit.text for edit in told.fix.edits} == {"heads"}


def test_the_finding_shows_both_places() -> None:
    (told,) = found((SPEC + ARRAYS).format(rule="hedas", name="heads"))
    assert [label.span.text for label in told.labels] == ["hedas", "heads"]
    assert told.arrays == ("a/kernel", "b/kernel")


def test_following_it_ends_it() -> None:
    assert found((SPEC + ARRAYS).format(rule="heads", name="heads")) == []


def test_names_that_are_merely_alike_are_not_told_both_ways() -> None:
    rule, array = found((SPEC + ARRAYS).format(rule="kv_head_dims", name="kv_heads"))
    helps = {rule.code.id: rule.help or "", array.code.id: array.help or ""}
    assert "did you mean `kv_heads`?" in helps["SHD230"]
    assert "did you mean" not in helps["SHD202"]
    assert "a rule is for `kv_head_dims`, which nothing has" in helps["SHD202"]


def test_other_names_still_have_their_finding() -> None:
    text = (
        (SPEC + ARRAYS)
        .format(rule="hedas", name="heads")
        .replace("b/kernel: bf16[embed", "b/kernel: bf16[embd")
    )
    assert [each.subject for each in found(text)] == ["hedas", "embd"]
