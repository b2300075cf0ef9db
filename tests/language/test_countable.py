"""What no machine can count is left out and said, wherever it comes from."""

from __future__ import annotations

import pytest

from shardspec import pipeline
from shardspec.arrays import read_arrays, read_manifest
from shardspec.diagnostics import SourceFile
from shardspec.ir.spec import MOST_ELEMENTS, Param
from shardspec.language.layer import countable

HUGE = ", ".join(["999999999999999"] * 25)


def codes(text: str) -> list[str]:
    return [d.code.id for d in pipeline.load_text(text)[1]]


@pytest.mark.parametrize(
    "text",
    [
        f"arrays:\n  w: f32[{HUGE}]\n",
        "mesh: {a: 999999999999999, b: 999999999999999}\n",
        "arrays:\n  'w_{0..99}': f32[4611686018427, 4611686018427]\n",
    ],
)
def test_a_spec_says_it_once(text: str) -> None:
    assert codes(f"shardspec: 1\nrules:\n  - a -> b\n{text}").count("SHD305") == 1


SIZES = "axes: {batch: 4294967296, length: 4294967296, embed: 64}\n"


def test_activations_are_counted_as_arrays_are() -> None:
    entries = "activations:\n  wide: batch length embed\n  fine: batch embed _\n"
    text = f"shardspec: 1\nmesh: {{a: 2}}\nrules:\n  - embed -> a\n{SIZES}{entries}"
    spec, found = pipeline.load_text(text)
    (told,) = found
    assert told.code.id == "SHD305"
    assert told.message == (
        "activation `wide`: 2^63 elements or more,"
        " batch=4,294,967,296, length=4,294,967,296, embed=64"
    )
    assert told.primary is not None
    assert told.primary.span.line == 7
    assert spec is not None
    assert [each.name for each in spec.activations] == ["wide", "fine"]


def test_a_size_that_is_told_of_alone_is_told_once() -> None:
    text = (
        "shardspec: 1\nmesh: {a: 2}\nrules:\n  - b -> a\n"
        "axes: {b: 9223372036854775808}\nactivations: {wide: b _}\n"
    )
    assert len(codes(text)) == 1


def test_the_largest_that_can_be_counted_stays() -> None:
    largest = Param("w", (7, MOST_ELEMENTS // 7))
    beyond = Param("v", (2, 2**62))
    kept, found = countable((largest, beyond))
    assert kept == (largest,)
    assert [d.code.id for d in found] == ["SHD305"]


def test_a_listing_says_it(tmp_path) -> None:
    path = tmp_path / "arrays.json"
    path.write_text(f'{{"w": "f32[{HUGE}]", "v": "f32[8]"}}')
    arrays, found = read_arrays(str(path))
    assert [param.path for param in arrays.params] == ["v"]
    assert [d.code.id for d in found] == ["SHD305"]


def test_a_listing_has_a_name_for_each_dimension() -> None:
    text = "w: {shape: [4, 8], dtype: f32, axes: embed}\n"
    arrays, found = read_manifest(SourceFile("arrays.yaml", text))
    assert not arrays
    assert found[0].message == "`w`: `axes` has 1 name for 2 dimensions"


def test_one_dimension_is_spoken_of_as_one() -> None:
    (found,) = countable((Param("w", (2**63,)),))[1]
    assert "dimensions" not in found.message
    assert "9,223,372,036,854,775,808" in found.message
