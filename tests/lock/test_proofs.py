"""Proofs in a lock: which of what they belong to is another today."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from shardspec import loads, pipeline
from shardspec.analysis import layout_diff
from shardspec.analysis.layout_diff import Input, Layout, ProofLayout, made_from, text_digest
from shardspec.lock.lock_file import changes, code_inputs, is_provable, proofs_of, with_proofs

SPEC = """\
shardspec: 1
targets:
  pod: {hardware: tpu v5e 2x4, mesh: {data: rest}}
  gpus: {hardware: h100, mesh: {data: rest}}
  desk: {hardware: 8 cpu, mesh: {data: rest}}
  bare: {mesh: {data: 2}}
arrays: {w: "f32[embed=8]"}
"""
INSTALLED = {"jax": "0.10.2", "libtpu": "0.0.52"}


def layout(text: str = SPEC) -> Layout:
    spec = loads(text).ir
    return layout_diff.layout_of(spec, pipeline.compile_plans(spec))


def proof(*code: Input) -> ProofLayout:
    held = layout_diff.ProvedBytes((), 1, 2)
    return ProofLayout("a:b", made_from(layout()), tuple(INSTALLED.items()), code, (), held)


def changed(
    found: ProofLayout,
    folder: Path,
    versions: dict[str, str] = INSTALLED,
    flags: dict[str, str] | None = None,
) -> list[str]:
    return list(changes(found, layout(), str(folder), versions.get, flags or {}))


def test_what_is_as_it_was_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\r\n", newline="")
    assert changed(proof(Input("a.py", text_digest("x = 1\n"))), tmp_path) == []


def test_each_part_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 2\n")
    given = replace(
        proof(*(Input(name, text_digest("x = 1\n")) for name in ("a.py", "b.py"))),
        made_from=made_from(layout(SPEC.replace("embed=8", "embed=16"))),
    )
    assert changed(given, tmp_path, {"jax": "0.10.3", "libtpu": "0.0.52"}) == [
        "the spec or its arrays changed",
        "`a.py` changed",
        "`b.py` cannot be read",
        "jax was 0.10.2 and is 0.10.3",
    ]


def test_flags_of_the_compiler_are_told(tmp_path: Path) -> None:
    had = (("LIBTPU_INIT_ARGS", "--a=1"), ("XLA_FLAGS", "--b"), ("fallback", "--c"))
    found = replace(proof(), flags=had)
    now = {"LIBTPU_INIT_ARGS": "--a=2", "JAX_ENABLE_X64": "1"}
    assert changed(found, tmp_path, flags=now) == [
        "JAX_ENABLE_X64 was not set and is 1",
        "LIBTPU_INIT_ARGS was --a=1 and is --a=2",
        "XLA_FLAGS was --b and is not set",
    ]
    assert changed(found, tmp_path, flags=dict(had[:2])) == []


def test_what_is_not_installed_here_is_no_other_version(tmp_path: Path) -> None:
    assert changed(proof(), tmp_path, {}) == []


def test_what_a_spec_says_changes_a_proof_and_a_comment_does_not() -> None:
    assert made_from(layout()) == made_from(layout(f"{SPEC}# more\n"))
    assert made_from(layout()) != made_from(layout(f"{SPEC}doc: more\n"))


@pytest.mark.parametrize("name", ["fifo", "folder", "/dev/zero", "../nobody"])
def test_code_that_is_no_file_of_text_is_said_at_once(tmp_path: Path, name: str) -> None:
    import os

    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (said,) = changed(proof(Input(name, text_digest(""))), tmp_path)
    assert said == f"`{name}` cannot be read"


def test_code_is_what_the_project_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "train.py": "project/train.py",
        "layers": "project/model/layers.py",
        "installed": "project/.venv/lib/site-packages/dep.py",
        "outside": "other/outside.py",
    }
    for name, file in files.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {name}\n")
        module = ModuleType(f"a_module_of_tests_{name}")
        module.__file__ = str(path)
        monkeypatch.setitem(sys.modules, module.__name__, module)
    lock_folder = tmp_path / "project" / "conf"
    lock_folder.mkdir()
    found = code_inputs(str(tmp_path / "project"), str(lock_folder))
    assert [each.name for each in found] == ["../model/layers.py", "../train.py"]
    assert found[1].digest == text_digest("# train.py\n")


def test_proofs_go_into_a_layout_and_out() -> None:
    given = {"pod": proof()}
    assert proofs_of(with_proofs(layout(), given)) == given
    assert proofs_of(with_proofs(with_proofs(layout(), given), {})) == {}


def test_targets_that_a_compiler_may_know() -> None:
    found = {target.name for target in loads(SPEC).ir.targets if is_provable(target)}
    assert found == {"pod", "gpus"}
