from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from shardspec.arrays import read_arrays
from shardspec.arrays.listing import is_entry_point
from shardspec.arrays.reading import kind_of
from tests.arrays import samples
from tests.arrays.samples import entry, header, write


class Bomb:
    def __reduce__(self) -> Any:
        return (Path("touched").touch, ())


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("name", ["m.pkl", "m.pt", "pytorch_model.bin", "M.PTH", "weights"])
def test_nothing_is_unpickled(
    tmp_path: Path, name: str, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, name, pickle.dumps({"a": Bomb()}, protocol))
    arrays, faults = read_arrays(path)
    assert arrays.params == ()
    if protocol or name != "weights":
        assert [fault.code.name for fault in faults] == ["unsafe-manifest"]
    assert faults
    assert not Path("touched").exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x93NUMPY\x01\x00", "one array without a name"),
        (b"\x89HDF\r\n\x1a\n" + bytes(20), "an HDF5 file"),
        (b"GGUF\x03\0\0\0", "a GGUF file"),
        (b"\x1f\x8b\x08\0", "compressed with gzip"),
        (b"\x28\xb5\x2f\xfd", "compressed with zstd"),
    ],
)
def test_formats_without_names_say_what_to_do(tmp_path: Path, data: bytes, message: str) -> None:
    arrays, (fault,) = read_arrays(write(tmp_path, "weights", data))
    assert arrays.params == ()
    assert message in fault.message
    assert fault.help


@pytest.mark.parametrize("name", ["m.json", "m.yaml", "list", "m.safetensors.txt"])
def test_text_is_a_manifest(tmp_path: Path, name: str) -> None:
    arrays, faults = read_arrays(write(tmp_path, name, '{"a/k": "bf16[2, 3]"}'))
    assert faults == ()
    (param,) = arrays.params
    assert (param.path, str(param)) == ("a/k", "bf16[2, 3]")
    assert param.span is not None
    assert [source.name for source in arrays.sources] == [str(tmp_path / name)]


@pytest.mark.parametrize("text", ['{"weight_map": "f32[2]"}', '{"metadata": "f32[2]"}'])
def test_an_array_may_be_called_as_a_key_of_an_index(tmp_path: Path, text: str) -> None:
    arrays, faults = read_arrays(write(tmp_path, "m.json", text))
    assert (len(arrays.params), faults) == (1, ())


def test_the_same_path_twice(tmp_path: Path) -> None:
    text = '{"l_{0..2}/k": "f32[2]", "l_1/k": "f32[3]"}'
    arrays, (fault,) = read_arrays(write(tmp_path, "m.json", text))
    assert [str(param) for param in arrays.params] == ["f32[2]"] * 3
    assert fault.code.name == "duplicate-array"
    assert fault.primary is not None
    assert fault.primary.span.text == "l_1/k"


def test_what_cannot_be_read(tmp_path: Path) -> None:
    os.symlink("loop", tmp_path / "loop")
    for path in (str(tmp_path / "gone.safetensors"), str(tmp_path / "loop"), "a\0b", "/dev/null"):
        arrays, faults = read_arrays(path)
        assert arrays.params == ()
        assert faults, path


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = write(tmp_path, "m.safetensors", samples.safetensors_bytes())
    os.chmod(path, 0)
    _, (fault,) = read_arrays(path)
    assert "permission denied" in fault.message


def test_a_folder_without_arrays(tmp_path: Path) -> None:
    write(tmp_path, "readme.md", "")
    _, (fault,) = read_arrays(str(tmp_path))
    assert "holds no arrays" in fault.message
    assert "`*.safetensors`" in (fault.help or "")


def test_a_folder_with_two_of_a_kind(tmp_path: Path) -> None:
    for name in ("model.safetensors", "model.fp16.safetensors"):
        write(tmp_path, name, header({"a": entry([], 0, 4)}, 4))
    _, (fault,) = read_arrays(str(tmp_path))
    assert "holds 2 of a kind: `model.fp16.safetensors`, `model.safetensors`" in fault.message


def test_folders_in_a_circle(tmp_path: Path) -> None:
    os.symlink(tmp_path, tmp_path / "1")
    _, (fault,) = read_arrays(str(tmp_path))
    assert "holds no arrays" in fault.message


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("models.gpt:init", True),
        ("gpt:Model.init", True),
        ("gpt", False),
        ("./gpt:init", False),
        ("C:\\x", False),
        ("a:b:c", False),
        ("os:system('x')", False),
    ],
)
def test_the_form_of_an_entry_point(name: str, expected: bool) -> None:
    assert is_entry_point(name) is expected


def test_a_function_is_not_called_and_a_file_of_that_name_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "bomb.py", "import pathlib\npathlib.Path('touched').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    _, (fault,) = read_arrays("bomb:init")
    assert fault.code.name == "unsafe-manifest"
    assert not Path("touched").exists()
    write(tmp_path, "bomb:init", '{"a": "f32[]"}')
    arrays, faults = read_arrays("bomb:init")
    assert (len(arrays.params), faults) == (1, ())


@pytest.mark.parametrize("start", [b"", b"a: f32[2]", b"\xef\xbb\xbf{", b"\xd7\x90: f32[2]"])
def test_text_is_not_taken_for_msgpack(start: bytes) -> None:
    kind = kind_of(start, "m")
    assert getattr(kind, "is_text", False)
