from __future__ import annotations

import pytest

from tests.lints.findings_of import findings_of

HEAD = "mesh: {x: 1, y: 2}\nrules: [a -> x]\nlints: {unnamed-array: allow}\n"


@pytest.mark.parametrize(
    ("text", "winner", "help"),
    [
        ("arrays: {k: 'f32[a=8]'}", "`a -> x`", "the next alternative"),
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
