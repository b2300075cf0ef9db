from __future__ import annotations

import json

import pytest

from shardspec.arrays import read_manifest
from shardspec.diagnostics import SourceFile

ARRAYS = {
    "a/k": "bf16[64, 128]",
    "b/k": {"shape": [2, 3], "dtype": "float32"},
    "c/k": {"shape": [], "dtype": "s8", "axes": []},
    "d/k": {"shape": [4, 5], "dtype": "f32", "axes": "embed _"},
}


@pytest.mark.parametrize("header", [True, False], ids=["header", "bare"])
@pytest.mark.parametrize("spelling", ["json", "yaml"])
def test_both_spellings(spelling: str, header: bool) -> None:
    import yaml

    data = {"shardspec-arrays": 1, "doc": "d", "arrays": ARRAYS} if header else ARRAYS
    text = json.dumps(data) if spelling == "json" else yaml.safe_dump(data)
    params, diagnostics = read_manifest(SourceFile(f"m.{spelling}", text))
    assert diagnostics == ()
    found = {param.path: param for param in params}
    assert found["a/k"].shape == (64, 128)
    assert found["a/k"].dtype == "bf16"
    assert found["b/k"].dtype == "f32"
    assert found["c/k"].shape == ()
    assert found["d/k"].logical_axes == ("embed", None)


def test_ranges() -> None:
    params, diagnostics = read_manifest(SourceFile("m.json", '{"l_{0..2}/k": "f32[2]"}'))
    assert diagnostics == ()
    assert [param.path for param in params] == ["l_0/k", "l_1/k", "l_2/k"]


@pytest.mark.parametrize(
    ("text", "codes"),
    [
        ("[1]", ["wrong-type"]),
        ("{", ["syntax"]),
        ('{"a": }', ["syntax"]),
        ("", ["syntax"]),
        ('{"a": 5}', ["bad-manifest"]),
        ('{"a": {"shape": 5}}', ["bad-manifest"]),
        ('{"a": {"shape": [true]}}', ["bad-manifest"]),
        ('{"a": {"shape": [-1]}}', ["bad-manifest"]),
        ('{"a": {"shape": [1], "dtype": "bf15"}}', ["syntax"]),
        ('{"a": {"shape": [1]}}', ["bad-manifest"]),
        ('{"a": {"shape": [1], "dytpe": "bf16", "axis": "b"}}', ["unknown-key", "unknown-key"]),
        ('{"a": {"shape": [1], "dtype": "f32", "axes": [5]}}', ["bad-manifest"]),
        ('{"a": "f32[embed]"}', ["bad-manifest"]),
        ('{"a": "f32(4)"}', ["syntax"]),
        ('{"a": "f32[1]", "a": "f32[2]"}', ["duplicate-key"]),
        ('{"{": "f32[1]"}', ["syntax"]),
        ('{"shardspec-arrays": 1}', ["bad-manifest"]),
        ('{"shardspec-arrays": 2, "arrays": {"a": "f32[1]"}}', ["bad-manifest"]),
        ('{"shardspec-arrays": true, "arrays": {"a": "f32[1]"}}', ["bad-manifest"]),
        ("[" * 100_000, ["too-deep"]),
        ("{" + '"a":{' * 100_000, ["syntax"]),
    ],
)
def test_faults(text: str, codes: list[str]) -> None:
    _, diagnostics = read_manifest(SourceFile("m.json", text))
    assert [d.code.name for d in diagnostics] == codes


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("s.yaml", "shardspec: 1\nmesh: {a: 2}\narrays:\n  k: f32[2]\n", "shardspec"),
        ("s.yaml", "mesh: {a: 2}\nrules: [b -> a]\n", "mesh"),
        ("s.json", '{"shardspec": 1, "rules": []}', "shardspec"),
        ("s.shard", "# a spec\nshardspec 1\nmesh { a = 2 }\n", "shardspec 1"),
    ],
)
def test_a_spec_is_one_finding(name: str, text: str, place: str) -> None:
    params, (found,) = read_manifest(SourceFile(name, text))
    assert params == ()
    assert found.message == f"`{name}` is a spec, not a list of arrays"
    assert found.primary is not None
    assert found.primary.span.text == place


def test_arrays_may_be_called_as_sections_are() -> None:
    text = 'mesh: {"shape": [2], "dtype": "f32"}\nrules: f32[2]\nshardspec: f32[3]\n'
    params, diagnostics = read_manifest(SourceFile("m.yaml", text))
    assert diagnostics == ()
    assert [param.path for param in params] == ["mesh", "rules", "shardspec"]


def test_the_rest_is_kept() -> None:
    params, diagnostics = read_manifest(SourceFile("m.json", '{"a": 5, "b": "f32[2]"}'))
    assert [param.path for param in params] == ["b"]
    assert diagnostics[0].primary is not None
    assert diagnostics[0].primary.span.text == "a"


@pytest.mark.parametrize("spelling", ["json", "yaml"])
def test_a_misspelt_key_names_the_right_one(spelling: str) -> None:
    text = "a: {shape: [1], dtype: bf16}\nb: {shape: [1], dytpe: bf16}\n"
    if spelling == "json":
        text = '{"a": "f32[1]", "b": {"shape": [1], "dytpe": "bf16"}}'
    params, (found,) = read_manifest(SourceFile("m", text))
    assert [param.path for param in params] == ["a"]
    assert found.help == "did you mean `dtype`?"
    assert found.primary is not None
    assert found.primary.span.text == ("dytpe" if spelling == "yaml" else "b")


@pytest.mark.parametrize("quoted", [True, False], ids=["json", "yaml"])
def test_a_header_has_few_keys(quoted: bool) -> None:
    text = "{shardspec-arrays: 1, sorce: x, arrays: {a: 'f32[1]'}}"
    if quoted:
        text = '{"shardspec-arrays": 1, "sorce": "x", "arrays": {"a": "f32[1]"}}'
    params, (found,) = read_manifest(SourceFile("m", text if quoted else "# m\n" + text))
    assert len(params) == 1
    assert (found.code.name, found.help) == ("unknown-key", "did you mean `source`?")
    assert found.primary is not None
    assert found.primary.span.text == "sorce"


@pytest.mark.parametrize("text", ["", "[1]", "5", "- a"])
def test_the_help_is_about_manifests(text: str) -> None:
    _, (found,) = read_manifest(SourceFile("m.yaml", text))
    assert "a manifest maps paths to arrays" in (found.help or "")


@pytest.mark.parametrize(
    "name", [r"a\ud800", r"\udc00b", r"a\udc00\ud800", r"\ud800\ud800\udc00", r"x\uDBFFy"]
)
def test_a_name_that_is_no_text(name: str) -> None:
    """Half of a surrogate pair cannot be written as UTF-8 again."""
    for text in (
        f'{{"{name}": "f32[1]"}}',
        f'{{"shardspec-arrays": 1, "arrays": {{"{name}": 1}}}}',
    ):
        params, found = read_manifest(SourceFile("arrays.json", text))
        assert not params
        (fault,) = found
        assert "half of a surrogate pair" in fault.message
        assert fault.primary is not None
        assert fault.primary.span.text.startswith("\\u")


def test_a_whole_pair_is_a_name() -> None:
    (param,), found = read_manifest(SourceFile("a.json", r'{"\ud83d\ude00": "f32[1]"}'))
    assert (param.path, found) == ("\U0001f600", ())
