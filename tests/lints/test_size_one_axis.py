from __future__ import annotations

import pytest

from tests.lints.findings_of import findings_of

HEAD = "mesh: {x: 1, y: 2}\nrules: [a -> x]\nlints: {unnamed-array: allow}\n"


@pytest.mark.parametrize(
    ("text", "winner", "help"),
    [
        ("arrays: {k: 'f32[a=8]'}", "`a -> x`", "from all that names it"),
        ("overrides: [{path: k, spec: (x)}]\narrays: {k: 'f32[8]'}", "an override", "the override"),
    ],
)
def test_who_wins(text: str, winner: str, help: str) -> None:
    (found,) = findings_of(HEAD + text, only="size-one-axis")
    assert found.message.endswith(f"and wins {winner}")
    assert help in (found.help or "")


@pytest.mark.parametrize(
    ("rule", "notes"),
    [("x", ()), ("x | y", ("activations `h`, `g`",)), ("y | x", ()), ("x | none", ())],
)
def test_activations_count_where_an_alternative_is_kept_from_them(
    rule: str, notes: tuple[str, ...]
) -> None:
    text = f"mesh: {{x: 1, y: 2}}\nrules: [a -> {rule}]\nactivations: {{h: a _, g: _ a}}\n"
    found = findings_of(text, only="size-one-axis")
    assert [d.notes for d in found] == ([notes] if notes else [])


@pytest.mark.parametrize(
    ("mesh", "rule", "lints"),
    [
        pytest.param("{data: 8}", "mlp -> none", "", id="removed from the mesh and the rules"),
        pytest.param(
            "{data: 8, model: 1}", "mlp -> model", "lints: {size-one-axis: allow}\n", id="kept"
        ),
    ],
)
def test_help_does_not_lead_to_the_finding_that_leads_back(
    mesh: str, rule: str, lints: str
) -> None:
    """One said to remove the axis from the mesh, where the other says to add it."""
    spec = "mesh: MESH\nrules: [RULE, e -> data]\narrays: {wi: 'bf16[e=64 mlp=128]'}\n"
    spec = spec.replace("RULE", "mlp -> model")
    (one,) = findings_of(spec.replace("MESH", "{data: 8, model: 1}"), only="size-one-axis")
    (unknown,) = findings_of(spec.replace("MESH", "{data: 8}"), only="unknown-mesh-axis")
    assert "from the mesh and from all that names it" in (one.help or "")
    assert "`model: 1` to the mesh, which keeps the rule, and allow `size-one-axis`" in (
        unknown.help or ""
    )
    followed = spec.replace("MESH", mesh).replace("mlp -> model", rule) + lints
    assert findings_of(followed) == ()


@pytest.mark.parametrize(
    ("rules", "count"),
    [
        ("[]", 0),  # the preset names the axis, and the mesh has to have it
        ("[expert -> expert]", 1),
    ],
)
def test_an_axis_of_size_one_is_reported_of_own_rules_and_not_of_a_preset(
    rules: str, count: int
) -> None:
    text = f"extends: [expert]\nmesh: {{data: 8, expert: 1}}\nrules: {rules}\n"
    found = findings_of(f"{text}arrays: {{wi: 'f32[expert=8 _=64]'}}\n", only="size-one-axis")
    assert len(found) == count
