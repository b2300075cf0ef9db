"""YAML -> data, positions and faults."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.diagnostics import Diagnostic, SourceFile, codes
from shardspec.diagnostics.render import render_all
from shardspec.language.reading import Data, Reading, Route
from shardspec.language.yaml_text.reader import read_yaml

SPEC = """\
# A spec
shardspec: 1
extends: [t5x/2d]
axes:
  batch: 512   # a size
  joined_kv: {size: 4096, unit: 64, doc: "heads * kv; one head is 64 wide"}
targets:
  v4-512:
    hardware: tpu v4 4x4x8
    mesh:
      data: rest
      model: submesh 4x2x2x1
rules:
  - batch -> (replica, data)
  - {rule: mlp -> model, at: start}
params:
  "**/mlp/wi_{0,1}/kernel": embed mlp
  're:.*/(query|key)/kernel': embed joined_kv
overrides:
  - match: 'encoder/layer_\\d+/kernel'
    axes: embed mlp
    because: >
      external module
policy: {indivisible: next}
"""


def read(text: str) -> tuple[Reading | None, tuple[Diagnostic, ...]]:
    return read_yaml(SourceFile("spec.yaml", text))


def data_of(text: str) -> Data:
    reading, faults = read(text)
    assert not faults
    assert reading is not None
    return reading.data


def routes_of(data: Data, route: Route = ()) -> list[Route]:
    steps = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data)
        if isinstance(data, list)
        else ()
    )
    return [route, *(found for step, one in steps for found in routes_of(one, (*route, step)))]


def test_a_spec() -> None:
    data = data_of(SPEC)
    assert isinstance(data, dict)
    assert data["axes"] == {
        "batch": 512,
        "joined_kv": {"size": 4096, "unit": 64, "doc": "heads * kv; one head is 64 wide"},
    }
    assert data["rules"] == ["batch -> (replica, data)", {"rule": "mlp -> model", "at": "start"}]
    assert data["overrides"] == [
        {"match": r"encoder/layer_\d+/kernel", "axes": "embed mlp", "because": "external module\n"}
    ]


def test_every_value_has_a_place_and_exact_starts_line_up() -> None:
    reading, _ = read(SPEC)
    assert reading is not None
    source_map, text = reading.source_map, reading.source.text
    for route in routes_of(reading.data):
        assert route in source_map.values
        if route and isinstance(route[-1], str):
            assert source_map.keys[route].text == route[-1]
    for excerpt in [*source_map.values.values(), *source_map.keys.values()]:
        if excerpt.start is not None:
            assert text[excerpt.start : excerpt.start + len(excerpt.text)] == excerpt.text


def test_places() -> None:
    reading, _ = read(SPEC)
    assert reading is not None
    source_map = reading.source_map
    rule = source_map.value(("rules", 0))
    assert str(rule.part(9, 25).span) == "spec.yaml:14:14"
    assert rule.part(10, 17).span.text == "replica"
    pattern = source_map.key(("params", "**/mlp/wi_{0,1}/kernel"))
    assert pattern.span.text == '"**/mlp/wi_{0,1}/kernel"'
    assert pattern.part(3, 6).span.text == "mlp"
    assert source_map.value(("overrides", 0, "because")).start is None
    assert source_map.value(("targets", "v4-512", "mesh")).span.text == (
        "data: rest\n      model: submesh 4x2x2x1"
    )
    assert source_map.value(("policy",)).span.text == "{indivisible: next}"
    assert source_map.value(()).span.text == SPEC.split("\n", 1)[1].rstrip()


@pytest.mark.parametrize(
    "text", ['k: "é\U0001f600 x"\r\nl: y\r\n', "\ufeffk: 1\nl: y\n", "é: 1\nl: y"]
)
def test_offsets_count_characters(text: str) -> None:
    reading, faults = read(text)
    assert not faults
    assert reading is not None
    assert reading.source_map.value(("l",)).at(0, 1).text == "y"


@pytest.mark.parametrize("scalar", ['"a\\tb"', "'it''s'", "a\n  b", "|\n  a\n", '"a\n  b"'])
def test_values_that_do_not_line_up_point_at_the_whole(scalar: str) -> None:
    reading, _ = read(f"k: {scalar}\n")
    assert reading is not None
    excerpt = reading.source_map.value(("k",))
    assert excerpt.start is None
    assert excerpt.part(0, 1).span.text == scalar.rstrip()


def test_anchors_and_tags_are_no_part_of_the_value() -> None:
    reading, faults = read('a: &x !!str no\nb: &y  # c\n  k: 1\nc: &z [1]\nd: !!str\n  &w "q"\n')
    assert not faults
    assert reading is not None
    assert reading.data == {"a": "no", "b": {"k": 1}, "c": [1], "d": "q"}
    spans = {
        route[0]: reading.source_map.value(route).span.text
        for route in [("a",), ("b",), ("c",), ("d",)]
    }
    assert spans == {"a": "no", "b": "k: 1", "c": "[1]", "d": '"q"'}


def test_an_alias_points_at_its_use() -> None:
    reading, faults = read("a: &x {p: [1, two]}\nb: *x\nc: [*x]\n&k key: 1\n*k : 2\n")
    assert [fault.code for fault in faults] == [codes.DUPLICATE_KEY]
    assert reading is not None
    assert reading.data == {
        "a": {"p": [1, "two"]},
        "b": {"p": [1, "two"]},
        "c": [{"p": [1, "two"]}],
        "key": 1,
    }
    for route in (("b", "p", 1), ("c", 0, "p", 1)):
        excerpt = reading.source_map.value(route)
        assert (excerpt.text, excerpt.span.text, excerpt.start) == ("two", "*x", None)
    assert reading.source_map.key(("b", "p")).span.text == "*x"


def test_duplicate_keys_show_both_and_keep_the_first() -> None:
    reading, faults = read("a: 1\nb: {c: x, c: {d: no}}\na: [2]\na: 3\n")
    assert reading is not None
    assert reading.data == {"a": 1, "b": {"c": "x"}}
    duplicates = [fault for fault in faults if fault.code is codes.DUPLICATE_KEY]
    assert [[label.span.line for label in fault.labels] for fault in duplicates] == [
        [2, 2],
        [3, 1],
        [4, 1],
    ]
    assert all(not fault.labels[1].primary for fault in duplicates)
    assert [fault.code for fault in faults].count(codes.YAML_TRAP) == 1
    assert reading.source_map.value(("a",)).span.text == "1"
    assert ("b", "c", "d") not in reading.source_map.values


def test_an_alias_as_a_repeated_value() -> None:
    reading, faults = read("a: &x [1]\na: *x\nb: {a: 1, a: *x}\n")
    assert [fault.code for fault in faults] == [codes.DUPLICATE_KEY, codes.DUPLICATE_KEY]
    assert reading is not None
    assert reading.data == {"a": [1], "b": {"a": 1}}


def test_yaml_traps_as_keys_and_values() -> None:
    reading, faults = read('no: 1\n"on": 2\na: off\nb: "off"\nc: [010, y, n]\n')
    assert [fault.primary.span.text for fault in faults if fault.primary] == ["no", "off", "010"]
    assert {fault.code for fault in faults} == {codes.YAML_TRAP}
    assert reading is not None
    assert reading.data == {"no": 1, "on": 2, "a": "off", "b": "off", "c": ["010", "y", "n"]}


def test_keys_are_strings() -> None:
    assert data_of("8: a\ntrue: b\n1.5: c\n~: d\n") == {"8": "a", "true": "b", "1.5": "c", "~": "d"}


@pytest.mark.parametrize(
    ("text", "code", "caret"),
    [
        ("? [a]\n: 1\n", codes.WRONG_TYPE, "[a]"),
        ("{{a: 1}: 2}", codes.WRONG_TYPE, "{a: 1}"),
        ("a: &x [1]\n*x : 2\n", codes.WRONG_TYPE, "*x"),
        ("{? : 1}\n", codes.SYNTAX, ""),
        ("<<: {a: 1}\n", codes.SYNTAX, "<<"),
        ("a: !!python/object:os.system x\n", codes.SYNTAX, "!!python/object:os.system"),
        ("a: !!int 3\n", codes.SYNTAX, "!!int"),
        ("a: !!map {}\n", codes.SYNTAX, "!!map"),
        ("a: *nothing\n", codes.SYNTAX, "*nothing"),
        ("a: " + "9" * 5000, codes.WRONG_TYPE, "9" * 5000),
    ],
)
def test_faults_that_let_reading_go_on(text: str, code: object, caret: str) -> None:
    reading, faults = read(text)
    assert reading is not None
    (fault,) = faults
    assert fault.code is code
    assert fault.primary is not None
    assert fault.primary.span.text == caret


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("", codes.SYNTAX, "empty"),
        ("# only this\n", codes.SYNTAX, "empty"),
        ("---\n", codes.SYNTAX, "empty"),
        ("- a\n", codes.WRONG_TYPE, "is a list"),
        ("foo", codes.WRONG_TYPE, "single value"),
        ("a: 1\n---\nb: 2\n", codes.SYNTAX, "second document"),
        ("[" * 100_000, codes.TOO_DEEP, "64 levels"),
        ("{a: " * 100_000, codes.TOO_DEEP, "64 levels"),
        ("- " * 100_000, codes.TOO_DEEP, "64 levels"),
        ("a: &a [*a]", codes.TOO_DEEP, "inside its own anchor"),
        ("a: &a {b: {c: *a}}", codes.TOO_DEEP, "inside its own anchor"),
    ],
)
def test_faults_that_end_the_reading(text: str, code: object, message: str) -> None:
    reading, faults = read(text)
    assert reading is None
    (fault,) = faults
    assert fault.code is code
    assert message in fault.message


def test_depth_64_is_fine() -> None:
    assert read("a: " + "[" * 63 + "]" * 63)[1] == ()
    assert [fault.code for fault in read("a: " + "[" * 64 + "]" * 64)[1]] == [codes.TOO_DEEP]


def test_aliases_do_not_explode() -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 20)]
    started = time.perf_counter()
    reading, faults = read("\n".join(rows))
    assert time.perf_counter() - started < 30
    assert reading is None
    assert [fault.code for fault in faults] == [codes.TOO_DEEP]


def test_aliases_do_not_go_deep() -> None:
    rows = ["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 100))]
    reading, faults = read("\n".join(rows))
    assert reading is None
    assert [fault.code for fault in faults] == [codes.TOO_DEEP]


yamlish = st.lists(
    st.sampled_from(
        ["a", "b: ", "- ", "\n", "\n  ", "\n    ", ": ", "? ", "[", "]", "{", "}", ", ", "&x ",
         "*x", "!!str ", "!t ", "|", ">-", "'", '"', "\\", "#", " # c", "\t", "no", "010", "<<: ",
         "---\n", "...\n", "%YAML 1.1\n", "\r\n", "\x85", "\u2028", "\ufeff", "\x07", "é",
         "\ud800", "**/k", "@", "~", "-> ", "8"]
    ),
    max_size=30,
).map("".join)  # fmt: skip
mutated = st.builds(
    lambda at, size, piece: SPEC[:at] + piece + SPEC[at + size :],
    st.integers(0, len(SPEC)),
    st.integers(0, 40),
    st.text("\n \t:-#'\"[]{}&*!|>%@`,a\\é", max_size=4),
)


@given(st.one_of(st.text(), st.text(st.characters()), yamlish, mutated))
def test_robust(text: str) -> None:
    reading, faults = read(text)
    assert reading is not None or faults
    for fault in faults:
        for label in fault.labels:
            assert 0 <= label.span.start <= label.span.end <= len(text)
    render_all(faults)
    if reading is None:
        return
    for excerpts in (reading.source_map.keys, reading.source_map.values):
        for excerpt in excerpts.values():
            assert 0 <= excerpt.span.start <= excerpt.span.end <= len(text)
            if excerpt.start is not None:
                assert text[excerpt.start : excerpt.start + len(excerpt.text)] == excerpt.text
    if not faults:
        assert set(routes_of(reading.data)) == set(reading.source_map.values)


def places(found: tuple[Reading | None, tuple[Diagnostic, ...]]) -> object:
    """Return all that a reading says, with the places that equality leaves out."""
    reading, faults = found
    if reading is None:
        return faults
    maps = (reading.source_map.keys, reading.source_map.values)
    known = [{route: (each, each.span, each.start) for route, each in map.items()} for map in maps]
    order = [[*each] for each in maps]
    return reading.data, known, order, reading.comments, reading.is_whole, faults


def test_lines_of_a_flow_are_no_run() -> None:
    lines = "".join(f"  k{n}: f32,\n" for n in range(20))
    reading, faults = read_yaml(SourceFile("spec.yaml", f"arrays: {{\n{lines}}}\n"))
    assert reading is not None
    assert not faults
    assert reading.data == {"arrays": {f"k{n}": "f32" for n in range(20)}}
