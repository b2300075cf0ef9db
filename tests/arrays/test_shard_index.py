from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from shardspec.arrays import read_arrays
from tests.arrays.samples import entry, header, write

INDEX = "model.safetensors.index.json"
A, B = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def model(folder: Path, weight_map: object = None) -> str:
    """Write a checkpoint of two shards, and return the path of its index."""
    write(folder, A, header({"a.w": entry([4], 0, 16), "b.w": entry([2], 16, 24)}, 24))
    write(folder, B, header({"c.w": entry([], 0, 4)}, 4))
    weights = {"a.w": A, "c.w": B, "b.w": A} if weight_map is None else weight_map
    data = {"metadata": {"total_size": 28}, "weight_map": weights}
    return write(folder, INDEX, json.dumps(data, indent=1))


def test_all_shards_are_read(tmp_path: Path) -> None:
    arrays, faults = read_arrays(model(tmp_path))
    assert faults == ()
    assert {p.path: str(p) for p in arrays.params} == {
        "a.w": "f32[4]",
        "b.w": "f32[2]",
        "c.w": "f32[]",
    }
    assert [source.name for source in arrays.sources] == [str(tmp_path / INDEX)]
    for param in arrays.params:
        assert param.span is not None
        assert param.span.text == param.path


def test_the_folder_will_do(tmp_path: Path) -> None:
    model(tmp_path)
    write(tmp_path, "config.json", "{}")
    arrays, faults = read_arrays(str(tmp_path))
    assert (len(arrays.params), faults) == (3, ())


def test_links_are_followed(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    snapshot.mkdir()
    model(blobs)
    for name in (INDEX, A, B):
        os.symlink(blobs / name, snapshot / name)
    arrays, faults = read_arrays(str(snapshot))
    assert (len(arrays.params), faults) == (3, ())


@pytest.mark.parametrize(
    ("weights", "message", "shown"),
    [
        ({"a.w": A, "b.w": A, "c.w": "gone.safetensors"}, "is not there", "gone.safetensors"),
        ({"a.w": "../x.safetensors"}, "not the name of a file beside", "../x.safetensors"),
        ({"a.w": "/x/y.safetensors"}, "not the name of a file beside", "/x/y.safetensors"),
        ({"a.w": ".."}, "not the name of a file beside", ".."),
        ({"a.w": ""}, "not the name of a file beside", ""),
        ({"a.w": "C:x.safetensors"}, "not the name of a file beside", "C:x.safetensors"),
        ({"a.w": A, "b.w": A, "c.w": A}, f"`{A}` lacks `c.w`", "c.w"),
        ({"a.w": A, "c.w": B}, f"`{A}` holds `b.w`, which the index does not name", A),
        ({"a.w": 5}, "names no file", "a.w"),
        ({"a.w": INDEX}, "is text, not a checkpoint", INDEX),
        ({}, "has no `weight_map`", "{"),
        ([], "has no `weight_map`", "{"),
        ({"a.w": "pytorch_model.bin"}, "are mostly pickles", "pytorch_model.bin"),
    ],
    ids=range(13),
)
def test_faults(tmp_path: Path, weights: object, message: str, shown: str) -> None:
    write(tmp_path, "pytorch_model.bin", b"not really")
    arrays, faults = read_arrays(model(tmp_path, weights))
    assert arrays.params == ()
    (fault,) = (fault for fault in faults if message in fault.message)
    assert fault.primary is not None
    assert fault.primary.span.text == shown


def test_a_backslash_leads_out(tmp_path: Path) -> None:
    arrays, (fault,) = read_arrays(model(tmp_path, {"a.w": "..\\x"}))
    assert arrays.params == ()
    assert "not the name of a file beside" in fault.message


def test_a_loop_of_links(tmp_path: Path) -> None:
    path = model(tmp_path)
    os.unlink(tmp_path / B)
    os.symlink(B, tmp_path / B)
    _, (fault,) = read_arrays(path)
    assert f"`{B}`, which" in fault.message
    assert fault.message.endswith("is no file")


def test_a_damaged_shard_is_named_in_the_index(tmp_path: Path) -> None:
    path = model(tmp_path)
    os.truncate(tmp_path / A, 100)
    _, (fault,) = read_arrays(path)
    assert "is cut off" in fault.message
    assert fault.primary is not None
    assert fault.primary.span.text == A


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", "5", '{"weight_map": {"a": 1, "a": 2}}'])
def test_no_index(tmp_path: Path, text: str) -> None:
    arrays, faults = read_arrays(write(tmp_path, INDEX, text))
    assert arrays.params == ()
    assert faults
