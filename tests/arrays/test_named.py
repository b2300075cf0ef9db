from __future__ import annotations

from pathlib import Path

import pytest

from shardspec import pipeline
from tests.arrays import samples
from tests.arrays.samples import entry, header, write


def load(folder: Path, manifest: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return the arrays of a spec, and the code of each finding with the text under its label."""
    path = write(folder, "spec.yaml", f"mesh: {{m: 2}}\nmanifest: {manifest}\n")
    spec, found = pipeline.load_path(path)
    assert spec is not None
    assert all(each.primary is not None for each in found)
    shown = [(each.code.name, each.primary.span.text) for each in found if each.primary]
    return {param.path: str(param) for param in spec.params}, shown


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("m.safetensors", samples.safetensors_bytes()),
        ("./m.safetensors", samples.safetensors_bytes()),
        ("m.npz", samples.npz_bytes()),
        ("m.msgpack", samples.msgpack_bytes()),
        ("model-info.txt", samples.MODEL_INFO.encode()),
        ("./model-info", samples.MODEL_INFO.encode()),
        ("m.json", b'{"a": "f32[2]", "b": "f32[]", "c": "f32[]"}'),
    ],
)
def test_a_spec_names_any_of_them(tmp_path: Path, name: str, data: bytes) -> None:
    write(tmp_path, name, data)
    arrays, found = load(tmp_path, name)
    assert found == []
    assert len(arrays) >= 3


def test_several_add_up(tmp_path: Path) -> None:
    write(tmp_path, "a.json", '{"x": "f32[2]"}')
    write(tmp_path, "b.safetensors", header({"y": entry([3], 0, 12)}, 12))
    arrays, found = load(tmp_path, "[a.json, b.safetensors]")
    assert (arrays, found) == ({"x": "f32[2]", "y": "f32[3]"}, [])


def test_two_files_with_one_array(tmp_path: Path) -> None:
    write(tmp_path, "a.json", '{"y": "f32[2]"}')
    write(tmp_path, "b.safetensors", header({"y": entry([3], 0, 12)}, 12))
    path = write(tmp_path, "spec.yaml", "mesh: {m: 2}\nmanifest: [a.json, b.safetensors]\n")
    _, (fault,) = pipeline.load_path(path)
    assert fault.code.name == "duplicate-array"


def test_a_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write(tmp_path / "run", "m.safetensors", samples.safetensors_bytes())
    assert len(load(tmp_path, "./run")[0]) == 6
    assert len(load(tmp_path, "run/")[0]) == 6


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("gone.safetensors", "unknown-preset"),
        ("./gone", "unknown-preset"),
        ("gone", "unknown-preset"),
        ("weights.pt", "unknown-preset"),
        ("half.safetensors", "bad-checkpoint"),
        ("bomb.pkl", "unsafe-manifest"),
        ("models.gpt:init", "unsafe-manifest"),
        (".", "unknown-preset"),
    ],
)
def test_faults_stand_where_the_spec_names_the_file(tmp_path: Path, name: str, code: str) -> None:
    write(tmp_path, "half.safetensors", samples.safetensors_bytes()[:-1])
    write(tmp_path, "bomb.pkl", b"\x80\x04.")
    assert load(tmp_path, name) == ({}, [(code, name)])
