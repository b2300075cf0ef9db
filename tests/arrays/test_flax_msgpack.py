from __future__ import annotations

from pathlib import Path
from typing import Any

import flax.linen as nn
import flax.serialization
import jax
import jax.numpy as jnp
import msgpack
import numpy as np
import optax
import pytest

from shardspec.arrays import read_arrays
from shardspec.arrays.reading import FrugalFile
from shardspec.jax_backend.trees import params_of
from tests.arrays import samples
from tests.arrays.samples import write

GIB = 2**30


def found_in(folder: Path, data: bytes, name: str = "m.msgpack") -> dict[str, str]:
    arrays, faults = read_arrays(write(folder, name, data))
    assert faults == ()
    return {param.path: str(param) for param in arrays.params}


@pytest.mark.parametrize("name", ["flax_model.msgpack", "checkpoint_1000"])
def test_a_file_of_flax(tmp_path: Path, name: str) -> None:
    arrays, faults = read_arrays(write(tmp_path, name, samples.msgpack_bytes()))
    assert faults == ()
    assert {p.path: (p.shape, p.dtype) for p in arrays.params} == samples.EXPECTED


def test_paths_are_those_of_the_live_tree(tmp_path: Path) -> None:
    init = nn.with_partitioning(nn.initializers.zeros_init(), ("embed", "mlp"))
    variables = nn.Dense(8, kernel_init=init).init(jax.random.key(0), jnp.ones((1, 4)))
    state = {**variables, "opt": optax.adam(1e-3).init({"w": jnp.zeros(3)}), "value": jnp.ones(2)}
    live = {param.path: str(param) for param in params_of(state)}
    # An optimizer's named tuple is saved by the names of its fields, as it is live.
    assert found_in(tmp_path, flax.serialization.to_bytes(state)) == live


def test_numbers_are_arrays_and_text_is_none(tmp_path: Path) -> None:
    tree = {"i": 7, "f": 1.5, "b": True, "n": None, "s": "text", "c": 2 + 3j, "l": [1, -5]}
    live = {param.path: str(param) for param in params_of(tree)}
    assert found_in(tmp_path, flax.serialization.to_bytes(tree)) == live
    assert live["c"] == "c64[]"


def test_arrays_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flax.serialization, "MAX_CHUNK_SIZE", 64)
    tree = {"a": np.zeros((6, 7), np.float32), "b": np.zeros(3, np.int8)}
    data = flax.serialization.to_bytes(tree)
    assert b"__msgpack_chunked_array__" in data
    assert found_in(tmp_path, data) == {"a": "f32[6, 7]", "b": "s8[3]"}


def test_fifty_gigabytes_cost_kilobytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.msgpack"
    inner = b"\x93\x92\xce" + (1024).to_bytes(4, "big") + b"\xce" + (GIB // 1024).to_bytes(4, "big")
    inner += b"\xa4int8\xc6" + GIB.to_bytes(4, "big")
    outer = b"\xc9" + (len(inner) + GIB).to_bytes(4, "big") + b"\x01"
    with path.open("wb") as file:
        file.write(b"\xde" + (50).to_bytes(2, "big"))
        for number in range(50):
            file.write(b"\xa2" + f"{number:02}".encode() + outer + inner)
            file.seek(GIB, 1)
        file.truncate()
    read: list[int] = []
    own = FrugalFile.read

    def counted(self: FrugalFile, size: int | None = -1, /) -> bytes:
        data = own(self, size)
        read.append(len(data))
        return data

    monkeypatch.setattr(FrugalFile, "read", counted)
    arrays, faults = read_arrays(str(path))
    assert faults == ()
    assert {str(param) for param in arrays.params} == {f"s8[1024, {GIB // 1024}]"}
    assert len(arrays.params) == 50
    assert sum(read) < 50 * 1024


def ext(shape: Any, dtype: Any, data: bytes, code: int = 1) -> msgpack.ExtType:
    return msgpack.ExtType(code, msgpack.packb((shape, dtype, data)))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (samples.msgpack_bytes()[:-1], "is cut off at byte"),
        (samples.msgpack_bytes() + b"\x00", "has 1 byte after the end"),
        (b"\xdf\xff\xff\xff\xff", "is cut off"),
        (b"\x81\xa1a\xdd\xff\xff\xff\xff", "is cut off"),
        (b"\x81\xa1a\xc1", "no value starts with 0xc1"),
        (b"\x81\x90\x00", "the key at byte 1 is no name"),
        (b"\x81\xa1\xff\x00", "not UTF-8"),
        (b"\x82\xa1a\x00\xa1a\x00", "the key `a` twice"),
        (b"\x81\xa1a" * 5000 + b"\x00", "nested deeper than"),
        (b"\x81\xa1a" + b"\x91" * 5000 + b"\x00", "nested deeper than"),
        (msgpack.packb({"a": ext([2], "float32", b"1234567")}), "bytes do not fit its shape"),
        (msgpack.packb({"a": ext([-2], "float32", b"")}), "no list of sizes"),
        (msgpack.packb({"a": ext([2], "floof", b"")}), "dtype `floof`"),
        (msgpack.packb({"a": ext([2], 7, b"")}), "without a dtype"),
        (msgpack.packb({"a": ext(5, "float32", b"")}), "without shape, dtype and bytes"),
        (
            msgpack.packb({"a": msgpack.ExtType(1, b"\x93\x90\xa4int8\xc4\x01\x00\x00")}),
            "end at byte",
        ),
        (msgpack.packb({"a": {"__msgpack_chunked_array__": True}}), "do not fit together"),
        (
            msgpack.packb(
                {
                    "a": {
                        "__msgpack_chunked_array__": True,
                        "shape": {"0": 3},
                        "chunks": {"0": ext([2], "int8", b"12")},
                    }
                }
            ),
            "not as many as its shape needs",
        ),
    ],
    ids=range(18),
)
def test_hostile_files(tmp_path: Path, data: bytes, message: str) -> None:
    arrays, (fault,) = read_arrays(write(tmp_path, "m.msgpack", data))
    assert arrays.params == ()
    assert message in fault.message
