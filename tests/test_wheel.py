"""A wheel carries grammars and specs, and works in a folder that knows nothing of the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="the build backend is in the test group")

ROOT = Path(__file__).parent.parent

SPEC = """\
extends: t5x/1d
manifest: gpt2
hardware: tpu v4 2x2x2
mesh: {data: rest, model: 2}
params:
  "h.*.mlp.c_fc.weight": embed mlp
  "**": _
lints: {unnamed-array: allow, rank-mismatch: allow, unmatched-pattern: allow}
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel of this checkout, built without a network."""
    folder = tmp_path_factory.mktemp("dist")
    build = "from hatchling.builders.wheel import WheelBuilder; import sys; "
    build += "print(next(WheelBuilder('.').build(directory=sys.argv[1], versions=['standard'])))"
    result = subprocess.run(
        [sys.executable, "-c", build, str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return Path(result.stdout.strip().splitlines()[-1])


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what is in the wheel, as an installer would lay it out."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def run(installed: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the installed `shardspec` by its entry point, in a folder outside the checkout."""
    entry = "from shardspec.cli.main import main; main()"
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, "-P", "-c", entry, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=120,
    )


def test_wheel_carries_grammars_and_specs(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for folder in ("grammars", "specs"):
        for path in (ROOT / folder).rglob("*"):
            if path.is_file() and path.parent.name != "__pycache__":
                assert f"shardspec/_data/{path.relative_to(ROOT).as_posix()}" in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]
    assert "shardspec/py.typed" in names


def test_the_installed_package_is_the_one_that_runs(installed: Path, tmp_path: Path) -> None:
    probe = "import shardspec, shardspec.assets as a; print(shardspec.__file__, a.data_folder())"
    result = subprocess.run(
        [sys.executable, "-P", "-c", probe],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(installed)},
        check=True,
    )
    assert result.stdout.split() == [
        str(installed / "shardspec/__init__.py"),
        str(installed / "shardspec/_data"),
    ]


def test_installed_compile_uses_bundled_files(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "spec.yaml").write_text(SPEC, encoding="utf-8")
    result = run(installed, tmp_path, "compile", "spec.yaml")
    assert result.returncode == 0, result.stderr
    assert "148 arrays" in result.stdout
    assert "TPU v4 2x2x2" in result.stdout


def test_installed_pages_of_findings(installed: Path, tmp_path: Path) -> None:
    for code in ("SHD005", "SHD301"):  # a text of its own, and the docstring of a check
        result = run(installed, tmp_path, "explain", code)
        assert result.returncode == 0, result.stderr
        assert "\nBad:\n" in result.stdout


def test_installed_dsl_and_presets(installed: Path, tmp_path: Path) -> None:
    dsl = "extends t5x/2d\nmesh { data = 2; model = 4 }\narrays { k : bf16[embed=64 mlp=128] }\n"
    (tmp_path / "spec.shard").write_text(dsl, encoding="utf-8")
    result = run(installed, tmp_path, "explain", "k")
    assert result.returncode == 0, result.stderr
    assert "preset:t5x/2d" in result.stdout
    assert "t5x/2d" in run(installed, tmp_path, "compile", "--list-presets").stdout


def test_installed_version_is_that_of_the_package(installed: Path, tmp_path: Path) -> None:
    import shardspec

    result = run(installed, tmp_path, "--version")
    assert result.stdout.splitlines()[0] == f"shardspec {shardspec.__version__}"


def test_examples_of_the_wheel_have_no_errors(installed: Path, tmp_path: Path) -> None:
    examples = sorted((installed / "shardspec/_data/specs/examples").glob("*.yaml"))
    assert examples
    result = run(installed, tmp_path, "check", *map(str, examples))
    assert result.returncode == 0, result.stdout[-2000:]
