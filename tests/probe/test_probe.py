"""The probe makes sound mutants, runs the tests that can notice them, and sees when one does."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.probe.__main__ import AREAS, files_of_tests, modules, unchanged
from tests.probe.covering import Covered, covered
from tests.probe.mutants import ROOT, Mutant, mutants, sample

EVERY = [path for area in AREAS for path in modules(area)]

CODE = '''
"""A module."""

LIMIT: int = 7


def first(sizes: list[int], *, is_strict: bool = True) -> int:
    """Return 1."""
    assert len(sizes) < 9
    for each in sizes:
        if not each:
            continue
        if each >= LIMIT and is_strict:
            raise ValueError(f"{each + 1} is too much", 3)
        sizes.append(max(each, 2))
        assert_never(each)
    return pow(LIMIT, sizes[0])


def text() -> str:
    return ""
'''

CHANGES = {
    ("constant", "LIMIT: int = 8"),
    ("constant", "def first(sizes: list[int], *, is_strict: bool = False) -> int:"),
    ("removed not", "if each:"),
    ("comparison", "if each > LIMIT and is_strict:"),
    ("boolean", "if each >= LIMIT or is_strict:"),
    ("dropped", "pass"),
    ("constant", "sizes.append(max(each, 3))"),
    ("returned", "return (pow(LIMIT, sizes[0])) + 1"),
    ("swapped arguments", "return pow(sizes[0], LIMIT)"),
    ("constant", "return pow(LIMIT, sizes[1])"),
    ("returned", 'return "?"'),
}


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a module in a project of its own."""
    monkeypatch.setattr("tests.probe.mutants.ROOT", tmp_path)
    (tmp_path / "module.py").write_text(CODE, encoding="utf-8")
    return tmp_path / "module.py"


def test_each_kind_of_change_is_made_and_nothing_else(module: Path) -> None:
    assert {(each.operator, each.after) for each in mutants("module.py")} == CHANGES


def test_a_mutant_is_the_module_but_for_its_lines(module: Path) -> None:
    for each in mutants("module.py"):
        changed = each.applied(CODE.encode()).decode()
        assert changed != CODE
        assert " ".join(changed.split()) == " ".join(CODE.split()).replace(each.before, each.after)


def test_every_mutant_of_the_package_can_be_read() -> None:
    for path in EVERY[::20]:
        source = (ROOT / path).read_bytes()
        for each in mutants(path)[::7]:
            ast.parse(each.applied(source))


def test_a_sample_is_that_of_its_seed() -> None:
    some = EVERY[::20]
    drawn = sample(some, 5, 50)
    assert drawn == sample(some[::-1], 5, 50)
    assert drawn != sample(some, 6, 50)
    assert len(set(drawn)) == 50


def test_tests_that_run_the_line_come_first_and_the_cheapest_of_them() -> None:
    file = "tests/cost/test_a.py"
    runs, other = {"shardspec/cost/a.py": f"{1 << 4:x}"}, {"shardspec/cost/a.py": f"{1 << 9:x}"}
    timed = {f"{file}::slow": (3.0, runs), f"{file}::other": (0.1, other)}
    far = {"tests/cost/test_b.py::far": (0.1, other)}
    found = Covered({file: timed | {f"{file}::fast": (0.5, runs)}, "tests/cost/test_b.py": far})
    mutant = Mutant("shardspec/cost/a.py", 0, 1, "", "dropped", "f", range(4, 5), "a", "pass")
    names = ["fast", "slow", "other"]
    far_one = "tests/cost/test_b.py::far"
    assert found.rounds(mutant, 10)[0] == [*(f"{file}::{name}" for name in names), far_one]
    assert found.rounds(mutant, 1)[0] == [f"{file}::fast"]
    names = ["other", "fast", "slow"]
    nowhere = found.rounds(mutant._replace(lines=range(7, 8)), 10)[0]
    assert nowhere == [*(f"{file}::{name}" for name in names), far_one]


def test_a_file_that_could_not_be_measured_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured = []

    def some(file: str, sources: object) -> object:
        measured.append(file)
        return None if file.endswith("test_b.py") else {f"{file}::one": (1.0, {})}

    @contextlib.contextmanager
    def here(count: int) -> Iterator[object]:
        yield SimpleNamespace(map=map)

    monkeypatch.setattr("tests.probe.covering._measured", some)
    monkeypatch.setattr("tests.probe.covering.workers", here)
    monkeypatch.setattr("tests.probe.covering.ROOT", tmp_path)
    files = ["test_a.py", "test_b.py"]
    for file in files:
        (tmp_path / file).write_text(file)
    pytest.importorskip("coverage")
    for _ in range(2):
        assert [*covered(files, [], 1, tmp_path / "kept.json").seconds] == ["test_a.py::one"]
    assert measured == [*files, "test_b.py"]


def test_what_is_said_to_change_nothing_is_still_a_mutant() -> None:
    known = unchanged()
    there = {each.key for path in {key[0] for key in known} for each in mutants(path)}
    assert set(known) <= there
    assert all(known.values())


def test_every_area_has_modules_and_tests() -> None:
    for area in AREAS:
        assert modules(area)
        assert list(files_of_tests(area))
