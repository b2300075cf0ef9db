from __future__ import annotations

import pytest

from shardspec.diagnostics import Severity
from tests.lints.findings_of import findings_of, marked

HEAD = "mesh: {x: 2}\n"


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("rules: [e -> x, q -> x]\narrays: {k: 'f32[e=8]'}", ["q"]),
        ("rules: ['e, q -> x']\narrays: {k: 'f32[e=8]'}", ["q"]),
        ("rules:\n  - rule: q -> x\n    at: end\narrays: {k: 'f32[8]'}\nparams: {k: _}", ["q"]),
        ("rules: [e -> x, q -> x]\nactivations: {a: q}\narrays: {k: 'f32[e=8]'}", []),
        ("rules: [e -> x, q -> x]\naxes: {q: 8}\narrays: {k: 'f32[e=8]'}", []),
        ("rules: [e -> x]", []),
    ],
)
def test_marks(text: str, marks: list[str]) -> None:
    found = findings_of(HEAD + text, only="axis-without-array")
    assert [marked(d)[0] for d in found] == marks
    assert all(d.severity is Severity.WARNING for d in found)


def test_the_way_out_works() -> None:
    text = HEAD + "rules: [e -> x, batch -> x]\narrays: {k: 'f32[e=8]'}\n"
    (found,) = findings_of(text)
    assert found.help == "take the rule out; or, if code has it, add `batch: SIZE` to `axes`"
    assert findings_of(text.replace(", batch -> x", "")) == ()
    assert findings_of(text + "axes: {batch: 64}\n") == ()


def test_a_near_name_is_offered_and_not_sure() -> None:
    text = HEAD + "rules: [hedas -> x, heads -> none]\narrays: {a: 'f32[heads=8]'}"
    (found,) = findings_of(text)
    assert (found.help or "").startswith("did you mean `heads`? else take the rule out")
    assert found.fix is not None
    assert (found.fix.edits[0].text, found.fix.is_sure) == ("heads", False)
