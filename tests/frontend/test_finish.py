from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import Spec


def load(text: str) -> tuple[Spec, tuple[Diagnostic, ...]]:
    spec, diagnostics = pipeline.load_text(text, "s.yaml")
    assert spec is not None
    return spec, diagnostics


def sizes(text: str) -> dict[str, int | None]:
    spec, _ = load(f"axes: {text}")
    return {axis.name: axis.size for axis in spec.logical_axes}


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ("{a: 4, b: null}", {"a": 4, "b": None}),
        ("{c: 2 * b, b: 3 * a, a: 4}", {"c": 24, "b": 12, "a": 4}),
        ("{a: {size: 2 * 3, unit: 2}}", {"a": 6}),
    ],
)
def test_sizes(axes: str, expected: dict[str, int | None]) -> None:
    assert sizes(axes) == expected


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ("{a: 2 * b}", ["`a` needs that of `b`"]),
        ("{c: 2 * a, a: 2 * b}", ["`a` needs that of `b`"]),
        ("{a: b, b: a, c: a}", ["depends on itself: a -> b -> a"]),
        ("{a: a}", ["depends on itself: a -> a"]),
        ("{a: b * b, b: 999999999999999}", ["`a` is beyond any array"]),
    ],
)
def test_sizes_that_are_not_known_are_reported_once(axes: str, said: list[str]) -> None:
    _, diagnostics = load(f"axes: {axes}")
    assert [d.code.name for d in diagnostics] == ["unknown-size"] * len(said)
    for diagnostic, words in zip(diagnostics, said, strict=True):
        assert words in diagnostic.message


def test_a_long_chain_of_sizes_ends() -> None:
    axes = ", ".join(f"a{i}: a{i + 1}" for i in range(2000))
    _, diagnostics = load(f"axes: {{{axes}, a2000: 2}}")
    assert {d.code.name for d in diagnostics} == {"unknown-size"}


def test_arrays() -> None:
    spec, diagnostics = load(
        "axes: {embed: 64}\narrays:\n  'l_{0..2}/k': bf16[embed mlp=2*embed]\n"
        "  'x/{a,b}': f32[3, _=4]\n  s: bool[]"
    )
    assert diagnostics == ()
    assert [str(p.path) for p in spec.params] == ["l_0/k", "l_1/k", "l_2/k", "x/a", "x/b", "s"]
    assert spec.params[0].shape == (64, 128)
    assert spec.params[0].logical_axes == ("embed", "mlp")
    assert spec.params[3].logical_axes is None
    assert spec.params[5].shape == ()


@pytest.mark.parametrize(
    ("array", "code", "marked"),
    [
        ("k: bf15[4]", "syntax", "bf15"),
        ("k: bf16(4)", "syntax", "("),
        ("k: bf16[mlp]", "unknown-size", "mlp"),
        ("k: bf16[mlp=2*width]", "unknown-size", "width"),
        ("'{': f32[]", "syntax", "{"),
        ("'{a,a}': f32[]", "duplicate-array", "'{a,a}'"),
        ("'{0..99999999}': f32[]", "syntax", "{0..99999999}"),
    ],
)
def test_faulty_arrays(array: str, code: str, marked: str) -> None:
    spec, diagnostics = load(f"arrays:\n  {array}\n  sound: f32[2]")
    assert [d.code.name for d in diagnostics] == [code]
    assert diagnostics[0].primary is not None
    assert diagnostics[0].primary.span.text == marked
    assert "sound" in {param.path for param in spec.params}


def test_the_first_of_two_arrays_counts() -> None:
    spec, diagnostics = load("arrays: {'a/{x,y}': 'f32[2]', a/y: 'f32[3]'}")
    assert [d.code.name for d in diagnostics] == ["duplicate-array"]
    assert {param.path: param.shape for param in spec.params} == {"a/x": (2,), "a/y": (2,)}
