"""The budget of one file: what counts, where it ends, and that it ends there every time."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from shardspec import pipeline
from shardspec.cli.main import cli
from shardspec.diagnostics import budget
from shardspec.language.files import real_path
from shardspec.lsp.snapshot import Snapshot

ROOT = Path(__file__).parents[2]
HEAD = "shardspec: 1\nmesh: {data: 2}\n"
#: What is a lot -> a spec with many of it.
FILES = {
    "rules": "rules:\n" + "  - a -> data\n" * 3000,
    "faulty rules": "rules:\n" + "  - a ->\n" * 3000,
    "flow": "params: {" + "a: b, " * 3000 + "}\n",
    "patterns": "params:\n" + "".join(f"  a{n}/**: mlp\n" for n in range(3000)),
    "arrays": "arrays:\n" + "".join(f"  a{n}/w: 'f32[mlp=2]'\n" for n in range(3000)),
    "ranges": "arrays: {'a_{0..9}/b_{0..299}': 'f32[mlp=2]'}\n",
    "mesh axes": "mesh: {" + ", ".join(f"m{n}: 1" for n in range(3000)) + "}\n",
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST", 60_000)


@pytest.mark.parametrize("what", FILES)
def test_a_file_that_is_too_much_is_given_up(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (HEAD if what != "mesh axes" else "shardspec: 1\n") + FILES[what]
    (tmp_path / "spec.yaml").write_text(text)
    first, again = (
        CliRunner().invoke(cli, ["check", "spec.yaml", "--format", "concise"]) for _ in range(2)
    )
    assert first.exit_code == 1
    assert "[SHD029]" in first.stdout
    assert first.stdout == again.stdout
    name = str(tmp_path / "spec.yaml")
    shown = Snapshot("file://x", 1, name, {real_path(name): text})
    assert [each.code.id for each in shown.found][-1] == "SHD029"
    assert shown.spec is None


def test_the_place_is_where_it_was_given_up(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(HEAD + FILES["flow"].replace(", ", ",\n  "))
    with pytest.raises(budget.SpentError) as spent, budget.limited():
        pipeline.load_path(str(path))
    assert spent.value.span is not None
    assert 100 < spent.value.span.line < 3000


def test_elsewhere_nothing_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(HEAD + FILES["patterns"])
    spec, _ = pipeline.load_path(str(path))
    assert spec is not None


def test_what_the_project_ships_is_far_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "MOST", 10_000_000)
    with budget.limited():
        spec, faults = pipeline.load_path(str(ROOT / "specs/examples/t5-1.1-xxl.yaml"))
        assert spec is not None
        pipeline.check(spec, faults, spec.params)
