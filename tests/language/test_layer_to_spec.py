from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import Spec
from shardspec.language.grammar.expressions import parse_size
from shardspec.language.grammar.print_expressions import print_size
from shardspec.language.grammar.syntax import SizeExpr


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
        ("{c: a - 2 * (b + 1) * b, a: 30, b: 3}", {"c": 6, "a": 30, "b": 3}),
        ("{a: b - b, b: 3}", {"a": 0, "b": 3}),
        ("{a: 1000000 * 1000000 * 1000000 * 10 - 9 * 1000000 * 1000000 * 1000000}", {"a": 10**18}),
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
        ("{a: b * b, b: 999999999999999, c: 1 - a}", ["`a` is beyond any array"]),
        ("{a: b - 4, b: 3, c: 2 * a}", ["`a` is -1, less than nothing"]),
        ("{a: b-4, b: 3}", ["`a` needs that of `b-4`"]),
        ("{a: {size: 8, unit: b}}", ["the unit of `a` needs the size of `b`"]),
        ("{a: {size: 8, unit: b - 3}, b: 3}", ["the unit of `a` is 0"]),
        ("{a: {size: 8, unit: b}, b: c}", ["`b` needs that of `c`"]),
    ],
)
def test_sizes_that_are_not_known_are_reported_once(axes: str, said: list[str]) -> None:
    _, diagnostics = load(f"axes: {axes}")
    assert [d.code.name for d in diagnostics] == ["unknown-size"] * len(said)
    for diagnostic, words in zip(diagnostics, said, strict=True):
        assert words in diagnostic.message


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("{size: 4, parts: {q: 4}}", ("wrong-type", "this has both")),
        ("{parts: {}}", ("wrong-type", "`parts` is empty")),
        ("{size: 4, interleaved: true}", ("wrong-type", "there are none")),
        ("{parts: {q: b - 8, k: 16}}", ("unknown-size", "the part `q` of `a` is 0")),
        ("{parts: {q: 2 * c}}", ("unknown-size", "`a` needs that of `c`")),
        ("{parts: {q: 2 * a}}", ("unknown-size", "depends on itself")),
        ("{parts: {q: 2 /}}", ("syntax", "after `2`")),
    ],
)
def test_parts_that_are_none(entry: str, said: tuple[str, str]) -> None:
    spec, (fault,) = load(f"axes: {{a: {entry}, b: 8}}")
    assert fault.code.name == said[0]
    assert said[1] in fault.message
    assert spec.logical_axes[0].parts is None


def test_an_axis_is_as_long_as_its_parts() -> None:
    spec, diagnostics = load(
        "axes: {a: {parts: {q: 4 * b, k: b}, unit: 4}, b: 8, c: {parts: {q: 2 * b, k: b}, unit: 4,"
        " interleaved: true}}"
    )
    assert diagnostics == ()
    fused, _, mixed = spec.logical_axes
    assert (fused.size, fused.unit, fused.parts and fused.parts.segments) == (40, 4, 5)
    assert (mixed.size, mixed.unit, mixed.parts and mixed.parts.segments) == (24, 12, 1)


def test_a_unit_may_name_axes() -> None:
    spec, diagnostics = load("axes: {a: {size: 4 * b, unit: 2 * b}, b: 8}")
    assert diagnostics == ()
    assert [axis.unit for axis in spec.logical_axes] == [16, 1]


def test_a_difference_without_spaces_is_a_name_and_the_help_says_so() -> None:
    for text in ("axes: {a: b-4, b: 3}", "axes: {b: 3}\narrays: {x: 'f32[b-4]'}"):
        _, (fault,) = load(text)
        assert "`b - 4`, with spaces" in str(fault.help)


@given(
    st.lists(st.tuples(st.sampled_from("+-"), st.integers(0, 99), st.sampled_from("abc"))),
    st.tuples(*[st.integers(0, 50)] * 3),
)
def test_a_size_is_what_arithmetic_makes_of_it(
    terms: list[tuple[str, int, str]], values: tuple[int, int, int]
) -> None:
    known = dict(zip("abc", values, strict=True))
    text = "7" + "".join(f" {sign} {count} * ({name} + 1)" for sign, count, name in terms)
    expected = eval(text, {}, known)
    size = parse_size(text)
    assert isinstance(size, SizeExpr)
    assert size.value(known.get) == expected
    again = parse_size(print_size(size))
    assert isinstance(again, SizeExpr)
    assert again.value(known.get) == expected


@pytest.mark.parametrize("length", [2, 65, 140, 3000])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_chain_of_sizes_of_any_length_is_worked_out(length: int, *, is_reversed: bool) -> None:
    entries = [f"a{i}: a{i + 1}" for i in range(length)] + [f"a{length}: 12"]
    axes = ", ".join(reversed(entries) if is_reversed else entries)
    spec, diagnostics = load(f"axes: {{{axes}}}\narrays: {{w: 'f32[a0]'}}")
    assert diagnostics == ()
    assert [param.shape for param in spec.params] == [(12,)]


def test_a_chain_that_outgrows_every_array_is_said_once_where_it_does() -> None:
    axes = ", ".join(f"x{i}: 2*x{i + 1}" for i in range(140))
    spec, diagnostics = load(f"axes: {{{axes}, x140: 1}}\narrays: {{w: 'f32[x0]', v: 'f32[x78]'}}")
    assert [(d.code.name, d.message) for d in diagnostics] == [
        ("unknown-size", "the size of `x77` is beyond any array: 2^63 or more")
    ]
    assert [param.path for param in spec.params] == ["w", "v"]
    assert spec.params[0].shape == (2**63,)
    assert spec.params[1].shape == (2**62,)


def test_a_wide_product_is_worked_out() -> None:
    names = [f"a{i}" for i in range(100)]
    axes = ", ".join(f"{name}: 1" for name in names)
    assert sizes(f"{{all: {' * '.join(names)}, {axes}}}")["all"] == 1


def test_a_long_circle_is_one_finding_of_one_line() -> None:
    axes = ", ".join(f"a{i}: a{(i + 1) % 500}" for i in range(500))
    _, diagnostics = load(f"axes: {{{axes}}}\narrays: {{w: 'f32[a7]'}}")
    assert [d.message for d in diagnostics] == [
        "the size of `a0` depends on itself: a0 -> a1 -> a2 -> a3 -> ... 493 more ..."
        " -> a497 -> a498 -> a499 -> a0",
        "the size of `a7` is not known",
    ]
    assert [label.text for label in diagnostics[1].labels] == ["its entry of `axes` gives none"]


def test_a_product_in_a_type_that_is_too_large_keeps_its_array() -> None:
    spec, diagnostics = load("arrays: {w: 'f32[4, mlp=999999999999999*999999999999999]'}")
    assert [d.message for d in diagnostics] == ["a dimension is too large: 2^63 or more"]
    assert [param.path for param in spec.params] == ["w"]


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
