from __future__ import annotations

import pytest

from tests.lints.findings_of import findings_of, marked


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("rules: [e -> x, q -> x]\narrays: {k: 'f32[e=8]'}", ["q"]),
        ("rules: ['e, q -> x']\narrays: {k: 'f32[e=8]'}", ["q"]),
        ("rules:\n  - rule: q -> x\n    at: end\narrays: {k: 'f32[8]'}\nparams: {k: _}", ["q"]),
        ("rules: [e -> x]\nparams: {'**': q}\narrays: {k: 'f32[8]'}\naxes: {e: 4}", ["q"]),
        ("rules: [e -> x]\naxes: {e: 4, q: 4}\nparams: {'**': q}\narrays: {k: 'f32[4]'}", []),
        ("rules: [e -> x]\nactivations: {r: e}\narrays: {k: 'f32[]'}", []),
        ("arrays: {k: 'f32[e=8]'}", []),
        ("rules: [e -> x]", []),
    ],
)
def test_marks(text: str, marks: list[str]) -> None:
    found = findings_of("mesh: {x: 2}\n" + text, only="unknown-logical-axis")
    assert [marked(d)[0] for d in found] == marks


def test_rules_of_presets_may_name_other_axes() -> None:
    text = "extends: t5x/2d\nmesh: {data: 2, model: 2}\narrays: {k: 'f32[embed=8]'}"
    assert findings_of(text) == ()


def test_one_finding_for_all_arrays() -> None:
    text = "mesh: {x: 2}\nrules: [e -> x]\naxes: {e: 4}\narrays: {'l_{0..9}/k': 'f32[q=8]'}"
    (found,) = findings_of(text)
    assert "10 arrays" in found.notes[0]


def test_nothing_is_known() -> None:
    text = "mesh: {x: 2}\nrules: [a -> x]\narrays: {k: 'f32[8]'}"
    (found,) = findings_of(text, only="unknown-logical-axis")
    assert found.help == "nothing names an axis yet"


def test_drop_is_said_to_have_removed_the_rule() -> None:
    text = "extends: t5x/2d\ndrop: mlp\nmesh: {data: 2, model: 2}\narrays: {k: 'f32[mlp=8]'}"
    (found,) = findings_of(text, only="unknown-logical-axis")
    assert (found.help or "").startswith("`drop` removed the rule for `mlp`")


@pytest.mark.parametrize(
    ("rules", "array", "fixes"),
    [
        ("hedas -> x", "f32[heads=8]", [("heads", False), None]),
        ("hedas -> x", "f32[heads]", [("heads", True)]),
        ("hedas -> x, heads -> none", "f32[heads=8]", [("heads", False)]),
        ("heads -> x", "f32[heads=8]', k: 'f32[hedas=8]", [("heads", True)]),
    ],
)
def test_only_one_side_is_respelt(
    rules: str, array: str, fixes: list[tuple[str, bool] | None]
) -> None:
    """Where the slip may be the rule's or the arrays', only the rule is offered another name."""
    axes = "axes: {heads: 8}\n" if "[heads]" in array else ""
    text = f"mesh: {{x: 2}}\n{axes}rules: [{rules}]\narrays: {{a: '{array}'}}\n"
    found = findings_of(text, only="unknown-logical-axis")
    made = [(d.fix.edits[0].text, d.fix.is_sure) if d.fix else None for d in found]
    assert made == fixes
