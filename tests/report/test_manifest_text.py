from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from shardspec.arrays import read_manifest
from shardspec.arrays.listing import manifest_json, manifest_yaml
from shardspec.cli.main import cli
from shardspec.diagnostics import SourceFile
from shardspec.ir.spec import Param
from tests.arrays import samples
from tests.arrays.samples import write

components = st.sampled_from(("layers_0", "layers_1", "layers_10", "k", "a.b-1", "é", "x y", "#"))
paths = st.lists(components, min_size=1, max_size=3).map("/".join)
shapes = st.lists(st.sampled_from((0, 1, 3, 4096)), max_size=3).map(tuple)
dtypes = st.sampled_from(("bf16", "f32", "s4", "bool", "f8_e4m3fn"))


@st.composite
def arrays(draw: st.DrawFn) -> tuple[Param, ...]:
    made = []
    for path in draw(st.lists(paths, unique=True, max_size=8)):
        shape = draw(shapes)
        axes = st.sampled_from(("embed", "mlp", None))
        names = tuple(draw(axes) for _ in shape) if draw(st.booleans()) else None
        made.append(Param(path, shape, draw(dtypes), names if names and any(names) else None))
    return tuple(made)


def test_the_source_of_this_folder_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "step_10"
    folder.mkdir()
    (folder / "model-info.txt").write_text(samples.MODEL_INFO, encoding="utf-8")
    monkeypatch.chdir(folder)
    assert 'source: "step_10"\n' in CliRunner().invoke(cli, ["manifest", "."]).stdout


@given(arrays(), st.sampled_from((manifest_json, manifest_yaml)))
def test_round_trip(params: tuple[Param, ...], write_text: object) -> None:
    text = write_text(params, "model")  # type: ignore[operator]
    again, faults = read_manifest(SourceFile("m", text))
    assert faults == ()
    assert set(again) == set(params)


def test_layers_are_one_line() -> None:
    params = tuple(Param(f"l.{n}.w", (4,), "bf16") for n in range(80))
    assert manifest_yaml(params, "m").splitlines()[3:] == ["arrays:", '  "l.{0..79}.w": bf16[4]']


@pytest.mark.parametrize("how", ["yaml", "json"])
def test_the_verb(tmp_path: Path, how: str) -> None:
    path = write(tmp_path, "model.safetensors", samples.safetensors_bytes())
    result = CliRunner().invoke(cli, ["manifest", path, "--format", how])
    assert result.exit_code == 0
    again, faults = read_manifest(SourceFile("m", result.stdout))
    assert faults == ()
    assert {p.path: (p.shape, p.dtype) for p in again} == samples.EXPECTED
    assert str(tmp_path) not in result.stdout


def test_a_damaged_file_writes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path, "model.safetensors", samples.safetensors_bytes()[:-1])
    out = tmp_path / "arrays.yaml"
    result = CliRunner().invoke(cli, ["manifest", path, "-o", str(out)])
    assert (result.exit_code, result.stdout) == (2, "")
    assert "SHD015" in result.stderr
    assert not out.exists()


def test_a_brace_cannot_be_written(tmp_path: Path) -> None:
    data = samples.header({"a{b": samples.entry([], 0, 4)}, 4)
    path = write(tmp_path, "m.safetensors", data)
    result = CliRunner().invoke(cli, ["manifest", path])
    assert result.exit_code
    assert result.stdout == ""
    assert "has a brace" in result.stderr
