from __future__ import annotations

from pathlib import Path

import pytest

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.diagnostic import apply
from shardspec.ir.spec import Param
from shardspec.resolve.resolver import resolve
from tests.lints.findings_of import findings_of, marked


@pytest.mark.parametrize(
    ("text", "marks"),
    [
        ("rules: [e -> x, q -> x]\narrays: {k: 'f32[e=8]'}", []),
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


def test_drop_is_said_to_have_removed_the_rule() -> None:
    text = "extends: t5x/2d\ndrop: mlp\nmesh: {data: 2, model: 2}\narrays: {k: 'f32[mlp=8]'}"
    (found,) = findings_of(text, only="unknown-logical-axis")
    assert (found.help or "").startswith("`drop` removed the rule for `mlp`")


@pytest.mark.parametrize(
    ("rules", "array", "fixes"),
    [
        ("hedas -> x", "f32[heads=8]", [("heads", False)]),
        ("hedas -> x", "f32[heads]", [("heads", True)]),
        ("heads -> x", "f32[heads=8]', k: 'f32[hedas=8]", [("heads", True)]),
    ],
)
def test_only_one_side_is_respelt(
    rules: str, array: str, fixes: list[tuple[str, bool] | None]
) -> None:
    """Where the slip may be the rule's or the arrays', one finding offers the rule another name."""
    axes = "axes: {heads: 8}\n" if "[heads]" in array else ""
    text = f"mesh: {{x: 2}}\n{axes}rules: [{rules}]\narrays: {{a: '{array}'}}\n"
    found = findings_of(text, only="unknown-logical-axis")
    made = [(d.fix.edits[0].text, d.fix.is_sure) if d.fix else None for d in found]
    assert made == fixes


@pytest.mark.parametrize(
    ("rule", "error"),
    [("mpl -> x", True), ("kv -> x", False), ("MLP -> x", True), ("mlp2 -> x", False)],
)
def test_a_rule_missed_by_a_slip_is_an_error_with_the_bytes(rule: str, error: bool) -> None:
    """`axes` declares the name, so the arrays alone have a warning (SHD203)."""
    head = f"mesh: {{x: 2}}\naxes: {{mlp: 1024}}\nrules: [{rule}]\n"
    found = findings_of(f"{head}arrays: {{k: 'f32[mlp _=1024]'}}", only="unknown-logical-axis")
    assert len(found) == error
    if error:
        assert found[0].help == "did you mean `mlp`?"
        assert found[0].bytes == 4 << 20
        assert found[0].notes == (
            "no rule is for `mlp`: 1 array, k; replicated: 4.00 MiB on every device, 100 % of all"
            " it holds; sharded over `x`, it would be 2.00 MiB",
        )


def test_a_slip_for_an_axis_that_another_rule_places_misses_nothing() -> None:
    text = "mesh: {x: 2}\nrules: [hedas -> x, heads -> none]\narrays: {a: 'f32[heads=8]'}"
    assert [d.code.name for d in findings_of(text)] == ["axis-without-array"]


def test_a_name_that_the_array_has_already_is_not_what_is_meant() -> None:
    text = """\
mesh: {x: 2}
rules: [embed -> none, kv -> x, heads -> none]
arrays: {w: 'f32[embed=8 qkv=3 heads=4 kv=8]', v: 'f32[qkw=3]'}
activations: {a: kv kvv}
"""
    found = {d.subject: d for d in findings_of(text, only="unknown-logical-axis")}
    for name in ("qkv", "kvv"):
        assert found[name].fix is None
        assert "did you mean" not in (found[name].help or "")


def test_a_name_of_a_mesh_axis_is_split_over_it() -> None:
    text = "mesh: {model: 2}\nrules: [embed -> none]\narrays: {w: 'f32[embed=8 model=4]'}\n"
    (found,) = findings_of(text, only="unknown-logical-axis")
    assert found.help == "`model` is a mesh axis; write a rule of its own: `model -> model`"
    mended = text.replace("embed -> none", "embed -> none, model -> model")
    assert findings_of(mended) == ()


def test_a_mesh_axis_in_place_of_a_name_shows_the_names_that_go_there() -> None:
    text = "mesh: {model: 2}\nrules: [mlp -> model]\narrays: {w: 'f32[model=4]', v: 'f32[mlp=4]'}\n"
    (found,) = findings_of(text, only="unknown-logical-axis")
    assert "write a logical axis that has a rule to it: `mlp`" in (found.help or "")


def test_a_place_of_an_axis_that_only_code_names_stands_in_axes() -> None:
    text = """
mesh: {data: 2}
rules: [embed -> data]
axes: {embed: 8}
"""
    square = (Param("square", (8, 8), "f32", ("embed", "embed'")),)
    (found,) = checked_with(text, square)
    assert found.code.id == "SHD202"
    assert found.help is not None
    assert "is a place of `embed`" in found.help
    assert checked_with(text.replace("8}", '8, "embed\'": }'), square) == []


def checked_with(text: str, params: tuple[Param, ...]) -> list[Diagnostic]:
    spec, faults = pipeline.load_text(text, "s.yaml")
    assert spec is not None
    plans = tuple(resolve(spec, target, params) for target in spec.targets)
    return [*pipeline.checked(spec, faults, plans).shown]


NUMBER = "let: {rank: 16}\nmesh: {x: 2}\nrules: [e -> x]\n"


def test_a_number_alone_in_a_type_is_written_as_a_size() -> None:
    text = NUMBER + "axes: {e: 64}\narrays:\n  a: f32[e, rank]\n  b: f32[e rank]\n"
    (found,) = findings_of(text, only="unknown-logical-axis")
    assert found.help == "`rank` is a number of `let`: `_=rank` says that it is a size"
    assert found.fix is not None
    assert [edit.text for edit in found.fix.edits] == ["_=rank", "_=rank"]
    (after,) = apply([found.fix]).texts.values()
    assert "a: f32[e, _=rank]\n  b: f32[e _=rank]\n" in after
    assert not [d for d in findings_of(after) if d.is_error]


@pytest.mark.parametrize("names", ["params: {a: e rank}", "activations: {a: e rank}"])
def test_a_number_among_names_is_no_axis(names: str) -> None:
    text = f"{NUMBER}axes: {{e: 64}}\narrays: {{a: 'f32[64, 2 * rank]'}}\n{names}\n"
    (found,) = findings_of(text, only="unknown-logical-axis")
    help = "`rank` is a number of `let`, no axis: `_` is a dimension without a name"
    assert (found.help, found.fix) == (help, None)
    assert not findings_of(text.replace("e rank", "e _"), only="unknown-logical-axis")


@pytest.mark.parametrize(("axis", "marks"), [("bacth", ["bacth"]), ("other", [])])
def test_a_slip_in_a_base_is_found(tmp_path: Path, axis: str, marks: list[str]) -> None:
    base = f"shardspec: 1\naxes: {{e: 8, batch: 4}}\nrules: [e -> x, {axis} -> x]\n"
    (tmp_path / "base.yaml").write_text(base)
    top = tmp_path / "spec.yaml"
    top.write_text("extends: base.yaml\nmesh: {x: 2}\narrays: {k: 'f32[e=8]'}\n")
    spec, faults = pipeline.load_path(str(top))
    assert spec is not None
    found = pipeline.check(spec, faults, spec.params).shown
    assert [marked(each)[0] for each in found] == marks
