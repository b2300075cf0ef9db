from __future__ import annotations

from pathlib import Path

import pytest

from shardspec.arrays import read_arrays
from shardspec.arrays.reading import LARGEST_HEADER, FrugalFile
from tests.arrays import samples
from tests.arrays.samples import entry, header, write

GIB = 2**30


def found_in(path: str) -> dict[str, tuple[tuple[int, ...], str]]:
    arrays, faults = read_arrays(path)
    assert faults == ()
    return {param.path: (param.shape, param.dtype) for param in arrays.params}


def test_a_file_of_the_library(tmp_path: Path) -> None:
    path = write(tmp_path, "model.safetensors", samples.safetensors_bytes())
    assert found_in(path) == samples.EXPECTED


@pytest.mark.parametrize("name", ["weights", "model.bin", "model.json", "x.npz"])
def test_the_content_counts_before_the_name(tmp_path: Path, name: str) -> None:
    assert len(found_in(write(tmp_path, name, samples.safetensors_bytes()))) == 6


@pytest.mark.parametrize(
    ("dtype", "ours", "bytes_each"),
    [
        ("BF16", "bf16", 2),
        ("F8_E4M3", "f8_e4m3fn", 1),
        ("F8_E8M0", "f8_e8m0fnu", 1),
        ("I64", "s64", 8),
        ("U8", "u8", 1),
        ("BOOL", "bool", 1),
        ("C64", "c64", 8),
    ],
)
def test_dtypes(tmp_path: Path, dtype: str, ours: str, bytes_each: int) -> None:
    data = header({"a": entry([3], 0, 3 * bytes_each, dtype)}, 3 * bytes_each)
    assert found_in(write(tmp_path, "m.safetensors", data)) == {"a": ((3,), ours)}


def test_four_bits_fill_half_a_byte(tmp_path: Path) -> None:
    data = header({"a": entry([4], 0, 2, "F4")}, 2)
    assert found_in(write(tmp_path, "m.safetensors", data)) == {"a": ((4,), "f4_e2m1fn")}


def test_names_stay_and_metadata_is_no_array(tmp_path: Path) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    data = header({"__metadata__": {"format": "pt"}, name: entry([], 0, 4)}, 4)
    assert list(found_in(write(tmp_path, "m.safetensors", data))) == [name]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", None),
        (b"\x05\x00", "is cut off at byte 0: 8 more are needed and 2 are left"),
        ((LARGEST_HEADER + 1).to_bytes(8, "little") + b"{}", "header of 100,000,001 bytes"),
        (b"\xff" * 8 + b"{}", "header of 18,446,744,073,709,551,615 bytes"),
        ((100).to_bytes(8, "little") + b"{}", "100 more are needed and 2 are left"),
        (header({"a": entry([4], 0, 15)}, 16), "takes 15 bytes; its shape needs 16"),
        (header({"a": entry([4], 16, 0)}, 16), "takes -16 bytes"),
        (header({"a": entry([4], 0, 16)}, 15), "ends at byte 16 of 15"),
        (header({"a": entry([4], 0, 16)}, 17), "1 byte after the last array"),
        (header({"a": entry([4], 4, 20)}, 20), "a hole of 4 bytes before `a`"),
        (header({"a": entry([4], 0, 16), "b": entry([4], 8, 24)}, 24), "overlaps `a` by 8"),
        (header({"a": entry([4], 0, 16), "b": entry([4], 0, 16)}, 16), "overlaps `a` by 16"),
        (header({"a": entry([4], -16, 0)}, 0), "overlaps the header by 16"),
        (header({"a": entry([-4], 0, 16)}, 16), "`shape` is no list of sizes"),
        (header({"a": entry([4.0], 0, 16)}, 16), "`shape` is no list of sizes"),  # type: ignore[list-item]
        (header({"a": entry([True], 0, 4)}, 4), "`shape` is no list of sizes"),
        (header({"a": entry([1 << 60], 0, 1 << 62)}, 0), "`shape` is no list of sizes"),
        (header({"a": {"dtype": "F32", "shape": [4]}}, 16), "does not state a dtype"),
        (header({"a": [1]}), "does not state a dtype"),
        (header({"a": {**entry([4], 0, 16), "x": 1}}, 16), "offsets alone"),
        (header({"a": {**entry([4], 0, 16), "dtype": 5}}, 16), "`dtype` is no name"),
        (header({"a": {**entry([4], 0, 16), "data_offsets": [0]}}, 16), "are not two numbers"),
        (header({"a": entry([4], 0, 16, "F31")}, 16), "dtype `F31`, which shardspec does not"),
        (header([1, 2]), "is no mapping of names to arrays"),  # type: ignore[arg-type]
        ((3).to_bytes(8, "little") + b'{"a', "is not JSON: unterminated string"),
        ((3).to_bytes(8, "little") + b'{"\xff', "is not UTF-8 at byte 2"),
        ((90_000).to_bytes(8, "little") + b'{"a":' * 18_000, "nested too deep"),
        ((17).to_bytes(8, "little") + b'{"a": 1, "a": 2 }', "has `a` twice"),
        ((13).to_bytes(8, "little") + b'{"\\ud800":[]}', "half of a surrogate pair"),
    ],
    ids=range(29),
)
def test_hostile_files(tmp_path: Path, data: bytes, message: str | None) -> None:
    arrays, faults = read_arrays(write(tmp_path, "m.safetensors", data))
    assert arrays.params == ()
    assert faults
    assert all(message in fault.message for fault in faults) if message else True


def test_fifty_gigabytes_cost_a_kilobyte(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {f"layers.{n}.weight": [1024, 1024 * 1024] for n in range(50)}
    layout = {
        name: entry(shape, n * GIB, (n + 1) * GIB, "U8")
        for n, (name, shape) in enumerate(sizes.items())
    }
    start = header(layout)
    path = tmp_path / "m.safetensors"
    path.write_bytes(start)
    with path.open("r+b") as file:
        file.truncate(len(start) + 50 * GIB)
    read: list[int] = []
    own = FrugalFile.read

    def counted(self: FrugalFile, size: int | None = -1, /) -> bytes:
        data = own(self, size)
        read.append(len(data))
        return data

    monkeypatch.setattr(FrugalFile, "read", counted)
    assert len(found_in(str(path))) == 50
    assert sum(read) < len(start) + 64
    assert sum(read) < 8192


def test_a_header_beyond_reason_is_not_parsed(tmp_path: Path) -> None:
    raw = b"[" + b"[]," * 1_400_000 * 3 + b"[]]"
    data = len(raw).to_bytes(8, "little") + raw
    _, (fault,) = read_arrays(write(tmp_path, "m.safetensors", data))
    assert "lists more than 1,000,000 arrays" in fault.message
