from __future__ import annotations

from pathlib import Path

import pytest

from shardspec.arrays import read_arrays
from tests.arrays.samples import MODEL_INFO, write


@pytest.mark.parametrize("name", ["model-info.txt", "t5.txt"])
def test_names_shapes_axes_and_specs(tmp_path: Path, name: str) -> None:
    arrays, faults = read_arrays(write(tmp_path, name, MODEL_INFO))
    assert faults == ()
    assert [(p.path, str(p), p.logical_axes) for p in arrays.params] == [
        ("decoder/logits_dense/kernel", "f32[64, 2048]", ("embed", "vocab")),
        ("decoder/norm/scale", "f32[64]", None),
        ("decoder/both", "f32[8, 8]", ("embed", None)),
    ]
    assert [(path, str(spec)) for path, spec in arrays.partitions] == [
        ("decoder/logits_dense/kernel", "P(None, 'model')"),
        ("decoder/norm/scale", "P(None)"),
        ("decoder/both", "P(('replica', 'data'), None)"),
    ]
    for param in arrays.params:
        assert param.span is not None
        assert param.span.text == param.path


def test_windows_line_ends(tmp_path: Path) -> None:
    text = MODEL_INFO.replace("\n", "\r\n")
    arrays, faults = read_arrays(write(tmp_path, "model-info.txt", text))
    assert (len(arrays.params), faults) == (3, ())


def test_a_folder_of_t5x(tmp_path: Path) -> None:
    write(tmp_path, "model-info.txt", MODEL_INFO)
    write(tmp_path, "config.gin", "")
    arrays, faults = read_arrays(str(tmp_path))
    assert (len(arrays.params), faults) == (3, ())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("131072", "131073"), "has 131,073 elements, and its shape another number"),
        (("131200", "131201"), "have 131,200 elements, and the total says 131,201"),
        (("vocab=2048", "vocab=2o48"), "has no shape of sizes"),
        (("vocab=2048", "vocab=-2048"), "has no shape of sizes"),
        (("size 131072", "sise 131072"), "is no line of T5X's"),
        (("Variable decoder/norm", "nonsense"), "is no line of T5X's"),
        (("Total number", "Totel number"), "is no line of T5X's"),
        (("(64,)  partition", "(64,)  partition\nVariable x"), "is no line of T5X's"),
    ],
)
def test_faults(tmp_path: Path, change: tuple[str, str], message: str) -> None:
    text = MODEL_INFO.replace(*change, 1)
    arrays, faults = read_arrays(write(tmp_path, "model-info.txt", text))
    assert arrays.params == ()
    assert message in faults[0].message
    assert faults[0].primary is not None


def test_a_file_without_its_end(tmp_path: Path) -> None:
    text = MODEL_INFO.partition("Total")[0]
    _, (fault,) = read_arrays(write(tmp_path, "model-info.txt", text))
    assert "has no total" in fault.message


@pytest.mark.parametrize("spec", ["None", "PartitionSpec(", "('a' 'b')", "((('a',),),)", "(1,)"])
def test_what_is_no_partition_is_none(tmp_path: Path, spec: str) -> None:
    text = MODEL_INFO.replace("(None, 'model')", spec, 1)
    arrays, faults = read_arrays(write(tmp_path, "model-info.txt", text))
    assert faults == ()
    assert len(arrays.partitions) == 2
