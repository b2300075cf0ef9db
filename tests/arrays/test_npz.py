from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardspec.arrays import read_arrays
from tests.arrays import samples
from tests.arrays.samples import write


def npz(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def zipped(*members: tuple[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, data in members:
            archive.writestr(name, data)
    return stream.getvalue()


def npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    raw = header.encode()
    width = 2 if version == 1 else 4
    return b"\x93NUMPY" + bytes([version, 0]) + len(raw).to_bytes(width, "little") + raw + data


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file_of_numpy(tmp_path: Path, compressed: bool) -> None:
    arrays, faults = read_arrays(write(tmp_path, "m.npz", samples.npz_bytes(compressed)))
    assert faults == ()
    expected = {k: v for k, v in samples.EXPECTED.items() if v[1] != "bf16"}
    assert {p.path: (p.shape, p.dtype) for p in arrays.params} == expected


def test_strings_are_left_out_and_order_is_no_matter(tmp_path: Path) -> None:
    data = npz(a=np.zeros((2, 3), order="F"), names=np.array(["x", "yy"]), b=np.zeros(2, ">i2"))
    arrays, faults = read_arrays(write(tmp_path, "m.npz", data))
    assert faults == ()
    assert {p.path: str(p) for p in arrays.params} == {"a": "f64[2, 3]", "b": "s16[2]"}


class Bomb:
    def __reduce__(self) -> Any:
        return (Path("touched").touch, ())


def test_objects_are_never_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = npz(a=np.array([Bomb()], dtype=object), b=np.zeros(2))
    arrays, (fault,) = read_arrays(write(tmp_path, "m.npz", data))
    assert arrays.params == ()
    assert fault.code.name == "unsafe-manifest"
    assert not Path("touched").exists()
    with np.load("m.npz", allow_pickle=True) as loaded:
        assert loaded["a"] is not None
    assert Path("touched").exists(), "the bomb is a bomb"


F4 = "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\x03\x04", "is no sound zip"),
        (b"PK\x05\x06" + bytes(18), None),
        (samples.npz_bytes()[:-30], "is no sound zip"),
        (
            zipped(("a.npy", b"")),
            "`a` in",
        ),
        (zipped(("a.npy", b"\x93NUMPY")), "is no `.npy` file"),
        (zipped(("a.npy", npy(F4, bytes(8), version=9))), "version 9"),
        (zipped(("a.npy", npy(F4, bytes(7)))), "has 7 bytes; its shape needs 8"),
        (zipped(("a.npy", npy("{" * 3000))), "is no Python dict"),
        (zipped(("a.npy", npy("__import__('os').abort()"))), "is no Python dict"),
        (zipped(("a.npy", npy(" " * 20_000))), "header of 20,000 bytes"),
        (zipped(("a.npy", npy(F4)[:20])), "is cut off in its header"),
        (zipped(("a.npy", npy("{'shape': (2,)}"))), "without dtype, order and shape"),
        (zipped(("a.npy", npy(F4.replace("(2,)", "(-2,)")))), "no tuple of sizes"),
        (zipped(("a.npy", npy(F4.replace("(2,)", "(10**30,)")))), "is no Python dict"),
        (zipped(("a.npy", npy(F4.replace("'<f4'", "[('x', '<f4')]")))), "has records"),
        (zipped(("a.npy", npy(F4.replace("<f4", "|V2"), bytes(4)))), "dtype `|V2`"),
        (zipped(("a.npy", npy(F4, bytes(8))), ("b.txt", b"")), "is a zip with `b.txt` in it"),
    ],
    ids=range(17),
)
def test_hostile_files(tmp_path: Path, data: bytes, message: str | None) -> None:
    arrays, faults = read_arrays(write(tmp_path, "m.npz", data))
    assert arrays.params == ()
    if message is not None:
        (fault,) = faults
        assert message in fault.message


def test_a_name_twice(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"):
        data = zipped(("a.npy", npy(F4, bytes(8))), ("a.npy", npy(F4, bytes(8))))
    _, (fault,) = read_arrays(write(tmp_path, "m.npz", data))
    assert fault.code.name == "duplicate-array"


def test_a_pytorch_archive_is_a_pickle(tmp_path: Path) -> None:
    data = zipped(("archive/data.pkl", b"\x80\x02."), ("archive/data/0", bytes(8)))
    _, (fault,) = read_arrays(write(tmp_path, "model.pt", data))
    assert fault.code.name == "unsafe-manifest"
    assert "PyTorch" in fault.message
