"""No checkpoint whatever gives a traceback, reads weights, or is half believed.

Sound files of every format with bytes changed, cut, doubled and taken from each other, headers
that are JSON with junk in it, and folders of such files.
"""

from __future__ import annotations

import io
import json
import math
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.arrays import read_arrays
from shardspec.arrays.reading import Outcome
from shardspec.diagnostics.render import render, render_concise
from shardspec.ir.spec import DTYPE_BITS
from tests.arrays import samples

Data = dict[str, bytes]


@cache
def sound() -> Data:
    """Return one small sound file of each format, by name."""
    return {
        "m.safetensors": samples.safetensors_bytes(),
        "m.npz": samples.npz_bytes(),
        "packed.npz": samples.npz_bytes(True),
        "m.msgpack": samples.msgpack_bytes(),
        "model-info.txt": samples.MODEL_INFO.encode(),
        "m.json": b'{"a/{0..3}/k": "bf16[2, 3]", "b": {"shape": [2], "dtype": "f32"}}',
    }


@cache
def sound_folder(ocdbt: bool) -> Data:
    """Return the files of a small checkpoint of Orbax, by path inside the folder."""
    import orbax.checkpoint as ocp

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ckpt"
        with ocp.PyTreeCheckpointer(use_ocdbt=ocdbt) as checkpointer:
            checkpointer.save(path, samples.tree())
        files = (each for each in path.rglob("*") if each.is_file())
        return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


@pytest.fixture(autouse=True, scope="module")
def made_before() -> None:
    """Make the files outside of strategies, since their libraries use random numbers."""
    sound()
    sound_folder(True)
    sound_folder(False)


@st.composite
def changed(draw: st.DrawFn, data: bytes, other: bytes) -> bytes:
    """Return `data` with a few places changed, some of them by pieces of `other`."""
    raw = bytearray(data)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(raw)))
        end = min(len(raw), start + draw(st.sampled_from((0, 1, 1, 2, 8, 40))))
        at = draw(st.integers(0, len(other)))
        piece = draw(
            st.one_of(
                st.just(b""),
                st.binary(max_size=9),
                st.just(bytes(raw[start:end]) * 2),
                st.just(other[at : at + 30]),
                st.sampled_from((b"\xff" * 4, b"\xff" * 8, bytes(8), b"\x7f", b"[" * 2000)),
            )
        )
        raw[start:end] = piece
    return bytes(raw[: draw(st.integers(0, len(raw)))] if draw(st.integers(0, 3)) == 0 else raw)


@st.composite
def changed_files(draw: st.DrawFn) -> tuple[str, bytes]:
    name = draw(st.sampled_from(sorted(sound())))
    other = draw(st.sampled_from(sorted(sound())))
    called = draw(st.sampled_from((name, name, other, "weights", "m.bin", "x.index.json")))
    return called, draw(changed(sound()[name], sound()[other]))


def read(name: str, data: bytes) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        outcome = read_arrays(str(path))
    check(outcome)
    return outcome


def check(outcome: Outcome) -> None:
    """Check that arrays are arrays, and that every fault can be shown."""
    arrays, faults = outcome
    for param in arrays.params:
        assert param.dtype in DTYPE_BITS
        assert all(type(size) is int and size >= 0 for size in param.shape)
        assert len(param.logical_axes or param.shape) == len(param.shape)
    paths = {param.path: param for param in arrays.params}
    assert len(paths) == len(arrays.params)
    for path, partition in arrays.partitions:
        assert len(partition.dims) == paths[path].rank
    for fault in faults:
        assert render(fault)
        assert "\n" not in render_concise(fault)
        assert sum(label.primary for label in fault.labels) == bool(fault.labels)
        for label in fault.labels:
            assert 0 <= label.span.start <= label.span.end <= len(label.span.source.text)
    if any(fault.code.name in {"bad-checkpoint", "unsafe-manifest"} for fault in faults):
        assert arrays.params == ()


@given(changed_files())
def test_any_file(file: tuple[str, bytes]) -> None:
    read(*file)


@given(st.binary(max_size=60), st.sampled_from(("m.safetensors", "m.npz", "m.msgpack", "weights")))
def test_any_bytes(data: bytes, name: str) -> None:
    read(name, data)


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(("F32", "data_offsets", "shape", "dtype", "", "\ud800", "a"))
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """Return a safetensors file, the header of which may hold junk or state a wrong size."""
    arrays: dict[str, Any] = {}
    at = 0
    for number in range(draw(st.integers(0, 4))):
        shape = draw(st.lists(st.integers(0, 5), max_size=3))
        size = 4 * math.prod(shape)
        arrays[f"a{number}"] = samples.entry(shape, at, at + size)
        at += size
    for name in arrays:
        if draw(st.integers(0, 5)) == 0:
            key = draw(st.sampled_from(("shape", "dtype", "data_offsets", "more")))
            arrays[name][key] = draw(junk)
    room = at + draw(st.sampled_from((0, 0, 0, 0, -1, 1)))
    return samples.header(arrays, max(room, 0))


@given(headers())
def test_what_we_take_the_library_takes_too(data: bytes) -> None:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    arrays, faults = read("m.safetensors", data)
    if faults:
        assert arrays.params == ()
        return
    try:
        taken = {name: array.shape for name, array in load(data).items()}
    except (SafetensorError, KeyError) as error:
        pytest.fail(f"{error}: {data!r}")
    assert taken == {param.path: param.shape for param in arrays.params}


@given(st.data(), st.booleans())
def test_any_folder_of_orbax(data: st.DataObject, ocdbt: bool) -> None:
    files = dict(sound_folder(ocdbt))
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(files)))
        other = data.draw(st.sampled_from(sorted(files)))
        if data.draw(st.integers(0, 4)) == 0:
            del files[name]
        else:
            files[name] = data.draw(changed(files[name], files[other]))
        if not files:
            break
    with tempfile.TemporaryDirectory() as folder:
        for name, raw in files.items():
            path = Path(folder, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(raw)
        check(read_arrays(folder))


@given(junk, junk)
def test_trees_of_orbax(tree: Any, leaf: Any) -> None:
    key = {"key_metadata": [{"key": "w"}], "value_metadata": {"value_type": "jax.Array"}}
    for data in (tree, {"tree_metadata": tree}, {"tree_metadata": {"w": key, "x": leaf}}):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "_METADATA").write_text(json.dumps(data), encoding="utf-8")
            Path(folder, "_sharding").write_text(json.dumps(leaf), encoding="utf-8")
            Path(folder, "w").mkdir()
            Path(folder, "w", ".zarray").write_text(json.dumps(leaf), encoding="utf-8")
            check(read_arrays(folder))


@given(junk, st.sampled_from(("weight_map", "metadata", "other")))
def test_any_index(weights: Any, key: str) -> None:
    text = json.dumps({"metadata": {}, "weight_map": {"a": "m.safetensors"}, key: weights})
    read("m.safetensors.index.json", text.encode())


names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)


@given(st.sets(names, max_size=4))
def test_npz_of_any_names(members: set[str]) -> None:
    import zipfile

    import numpy as np

    stream, one = io.BytesIO(), io.BytesIO()
    np.save(one, np.zeros((2, 3), np.float32))
    with zipfile.ZipFile(stream, "w") as archive:
        for name in members:
            archive.writestr(f"{name}.npy", one.getvalue())
    arrays, _ = read("m.npz", stream.getvalue())
    assert all(param.shape == (2, 3) for param in arrays.params)


def test_sound_files_are_sound() -> None:
    for name, data in sound().items():
        arrays, faults = read(name, data)
        assert faults == ()
        assert arrays.params
