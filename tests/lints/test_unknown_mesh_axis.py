from __future__ import annotations

from tests.lints.findings_of import findings_of, marked

ARRAYS = "arrays: {k: 'f32[a=8 b=8]', h: 'f32[8]'}\n"


def test_one_finding_for_an_axis_with_all_its_places() -> None:
    (found,) = findings_of(
        "mesh: {x: 2}\nrules: [a -> q, 'b -> (x, q) | x']\n" + ARRAYS, only="unknown-mesh-axis"
    )
    assert marked(found) == ["q", "q", "mesh"]


def test_many_places_are_counted() -> None:
    rules = ", ".join(f"a{i} -> q" for i in range(9))
    axes = ", ".join(f"a{i}: 4" for i in range(9))
    (found,) = findings_of(f"mesh: {{x: 2}}\nrules: [{rules}]\naxes: {{{axes}}}")
    assert found.notes == ("it is in 5 more places",)


def test_an_axis_of_another_target_is_known() -> None:
    targets = "targets: {s: {mesh: {x: 2}}, t: {mesh: {x: 2, r: 2}}}\n"
    text = targets + "rules: ['a -> (r, x)']\narrays: {k: 'f32[a=8]'}"
    assert findings_of(text) == ()


def test_partitions_are_looked_at() -> None:
    text = "mesh: {x: 2}\noverrides: [{path: h, spec: (xx)}]\narrays: {h: 'f32[8]'}"
    (found,) = findings_of(text, only="unknown-mesh-axis")
    assert marked(found)[0] == "xx"
    assert found.help == "did you mean `x`?"


def test_a_name_inside_another_is_not_marked() -> None:
    text = "mesh: {x_y: 2}\nrules: ['a -> (x_y, x)']\narrays: {k: 'f32[a=8]'}"
    (found,) = findings_of(text, only="unknown-mesh-axis")
    assert found.primary is not None
    assert found.primary.span.column == text.split("\n")[1].rindex("x") + 1


def test_state_is_looked_at() -> None:
    text = "mesh: {x: 2}\nrules: [a -> x]\nstate: {optimizer: zero1, over: '(x, xx)'}\n"
    (found,) = findings_of(text + "arrays: {h: 'f32[a=8]'}", only="unknown-mesh-axis")
    assert marked(found)[0] == "xx"
    assert found.help == "did you mean `x`?"
