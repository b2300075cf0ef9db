"""Names of `let` in meshes and sizes: they mean their numbers, whoever states them last."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.ir.spec import Spec


def load(text: str, **settings: str) -> Spec:
    spec, diagnostics = pipeline.load_text(
        text, "s.yaml", {f"let.{name}": number for name, number in settings.items()}
    )
    assert diagnostics == ()
    assert spec is not None
    return spec


WITH_NAMES = """
let: {{dp: {b} * tp, tp: {a}}}
mesh: {{data: dp @ dcn explicit, tensor: auto tp, expert: 3 * tp}}
axes: {{heads: {{size: {b} * tp, unit: tp}}, joined: dp * kv, kv: 4}}
arrays: {{q: "f32[heads, x=2 * tp]"}}
"""
WITH_NUMBERS = """
mesh: {{data: {ab} @ dcn explicit, tensor: auto {a}, expert: {a3}}}
axes: {{heads: {{size: {ab}, unit: {a}}}, joined: {ab4}, kv: 4}}
arrays: {{q: "f32[heads, x={a2}]"}}
"""


@given(st.integers(1, 64), st.integers(1, 64), st.booleans())
def test_a_name_means_its_number(a: int, b: int, is_set: bool) -> None:
    named = load(WITH_NAMES.format(a=9 if is_set else a, b=b), **({"tp": str(a)} if is_set else {}))
    plain = load(WITH_NUMBERS.format(a=a, ab=a * b, a3=3 * a, ab4=4 * a * b, a2=2 * a))
    assert named.targets == plain.targets
    assert named.logical_axes == plain.logical_axes
    assert named.params == plain.params


@pytest.mark.parametrize(
    ("own", "sizes"),
    [
        ("", {"data": 2, "tensor": 8}),
        ("let: {tp: 4}", {"data": 4, "tensor": 4}),
        ("let: {tp: 2 * half, half: 2}", {"data": 4, "tensor": 4}),
    ],
)
def test_a_child_states_the_numbers_of_its_parent(
    own: str, sizes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base = "let: {tp: 8}\nhardware: 16 cpu\nmesh: {data: rest, tensor: tp}\n"
    Path("base.yaml").write_text(base, encoding="utf-8")
    assert load(f"extends: ./base.yaml\n{own}").targets[0].mesh.sizes == sizes


@pytest.mark.parametrize(
    ("text", "code", "said", "help"),
    [
        ("mesh: {a: tp}", "unknown-size", "`tp` is no number", "add `tp: NUMBER` to `let`"),
        ("let: {tp: 2}\nmesh: {a: 2 * tpp}", "unknown-size", "`tpp`", "did you mean `tp`?"),
        ("mesh: {a: resst}", "unknown-size", "`resst`", "did you mean `rest`?"),
        ("let: {tp: 0}\nmesh: {a: tp}", "syntax", "`tp` = 0 devices", "1 or more"),
        ("let: {rest: 2}", "wrong-type", "`rest` is a word", "`rest_size`"),
        ("let: {a b: 2}", "wrong-type", "no name for a number", "letters"),
        ("let: {a: 2}\naxes: {a: 4}", "wrong-type", "of `let` and an axis", "`a_size`"),
        ("let: {a: b}", "unknown-size", "`a` needs `b`, which no entry of `let`", "to `let`"),
        ("let: {a: b, b: a}", "unknown-size", "depends on itself", "`a: 64`"),
        ("let: {a: 2 *}\nmesh: {x: a}", "syntax", "expected", None),
        (
            "let: {tp: 3}\nhardware: 8 cpu\nmesh: {a: rest, b: tp}",
            "mesh-product",
            "b=3 does not divide 8",
            "`b` in {1, 2, 4, 8}",
        ),
    ],
)
def test_what_is_no_number(text: str, code: str, said: str, help: str | None) -> None:
    spec, found = pipeline.load_text(text, "s.yaml")
    assert [each.code.name for each in found] == [code]
    assert said in found[0].message
    assert (help or "") in (found[0].help or "")
    assert spec is not None
    assert all(not target.is_sound for target in spec.targets)


def test_a_mesh_that_does_not_fit_says_what_its_names_come_to() -> None:
    _, (found,) = pipeline.load_text("let: {tp: 3}\nhardware: 8 cpu\nmesh: {b: 2 * tp}", "s.yaml")
    assert found.notes[-1] == "`b` is `2 * tp` = 6 by `let`"


PARTS = """
axes: {{kv_heads: {{size: 24, unit: 2}}}}
targets:
  t: {{hardware: 32 cpu, mesh: {mesh}}}
rules: [mlp -> tensor, kv_heads -> (tensor)?, "batch -> (data, b)?"]
"""


@pytest.mark.parametrize(
    ("mesh", "sizes"),
    [
        ("{data: 4, tensor: {a: 4, b: 2}}", {"data": 4, "a": 4, "b": 2}),
        ('{data: rest, tensor: "(a = 4, b = 2)"}', {"data": 4, "a": 4, "b": 2}),
        ("{data: 2, tensor: {a: fit kv_heads, b: rest}}", {"data": 2, "a": 4, "b": 4}),
        ("{data: 16, tensor: {a: fit kv_heads, b: 1}}", {"data": 16, "a": 2, "b": 1}),
        ("{tensor: {a: 8 explicit, b: 4 explicit}}", {"a": 8, "b": 4}),
    ],
)
def test_a_mesh_axis_in_parts(mesh: str, sizes: dict[str, int]) -> None:
    spec = load(PARTS.format(mesh=mesh))
    assert spec.targets[0].mesh.sizes == sizes
    assert spec.targets[0].mesh.wholes == (("tensor", ("a", "b")),)


@pytest.mark.parametrize(
    ("mesh", "code", "said"),
    [
        ("{data: 16, tensor: {a: 2}}", "syntax", "`a` alone"),
        ("{data: 8, tensor: {data: 2, b: 2}}", "duplicate-key", "two axes called `data`"),
        ("{data: 8, tensor: {a: '(x = 2, y = 2)', b: 1}}", "syntax", "has parts"),
        ("{data: 8, tensor: {a: fit heads, b: rest}}", "unknown-size", "`fit heads` needs"),
        ("{data: 8, tensor: {a: 3, b: 2}}", "mesh-product", "is not 32 devices"),
        ("{data: 8, tensor: {a: [2], b: 2}}", "wrong-type", "mesh.tensor"),
    ],
)
def test_parts_that_do_not_work_out(mesh: str, code: str, said: str) -> None:
    spec, found = pipeline.load_text(PARTS.format(mesh=mesh), "s.yaml")
    assert [each.code.name for each in found] == [code]
    assert said in found[0].message
    assert spec is not None
    assert not spec.targets[0].is_sound


def test_fit_needs_a_machine() -> None:
    text = "axes: {kv: 4}\nmesh: {a: fit kv}"
    _, (found,) = pipeline.load_text(text, "s.yaml")
    assert found.code.name == "unsolved-size"
