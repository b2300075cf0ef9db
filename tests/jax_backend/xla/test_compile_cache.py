"""Programs that are kept: found again by content, and never believed from a stranger."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardspec.jax_backend.xla import cache
from shardspec.jax_backend.xla.cache import Compiled, keep, kept, key_of
from shardspec.programs.memory import CompiledMemory, HeldValue

MEMORY = CompiledMemory({0: 3, 2: 5}, 7, 11, 13, (HeldValue("fusion.1", "f32[8]", 32),))
MADE = Compiled(
    *("HloModule m", MEMORY, "libtpu 1", 2.5, False, "no room", ("a warning",)),
    date="2026-11-23",
    flags=(("XLA_FLAGS", "--a=1"),),
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "shardspec" / "compiled"


def same(one: Compiled | None, other: Compiled) -> bool:
    from dataclasses import replace

    return one is not None and one.was_kept and replace(one, was_kept=False) == other


def test_what_is_kept_is_found_again() -> None:
    assert kept("k") is None
    keep("k", MADE)
    assert same(kept("k"), MADE)
    keep("n", Compiled("text", None, "c", 1.0, True))
    assert same(kept("n"), Compiled("text", None, "c", 1.0, True))


def test_a_key_is_all_that_the_outcome_depends_on() -> None:
    first = key_of(b"module", {"order": [[0, 1]]}, "libtpu 1", is_whole=False)
    others = {
        key_of(b"other", {"order": [[0, 1]]}, "libtpu 1", is_whole=False),
        key_of(b"module", {"order": [[1, 0]]}, "libtpu 1", is_whole=False),
        key_of(b"module", {"order": [[0, 1]]}, "libtpu 2", is_whole=False),
        key_of(b"module", {"order": [[0, 1]]}, "libtpu 1", is_whole=True),
    }
    assert first not in others
    assert len(others) == 4
    assert first == key_of(b"module", {"order": [[0, 1]]}, "libtpu 1", is_whole=False)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_may_write_is_not_used(folder: Path, mode: int) -> None:
    keep("k", MADE)
    folder.chmod(mode)
    assert kept("k") is None
    keep("j", MADE)
    folder.chmod(0o700)
    assert kept("j") is None
    assert same(kept("k"), MADE)


def test_a_link_and_a_relative_folder_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "shardspec").symlink_to(tmp_path / "real")
    keep("k", MADE)
    assert list((tmp_path / "real").rglob("*.json")) == []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    keep("k", MADE)
    assert kept("k") is None
    assert not (tmp_path / "here").exists()


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_a_folder_that_cannot_be_written_is_no_fault(folder: Path) -> None:
    folder.mkdir(parents=True)
    folder.chmod(0o500)
    keep("k", MADE)
    assert kept("k") is None


def test_the_newest_entries_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST", 3)
    for number in range(5):
        keep(str(number), MADE)
        os.utime(folder / f"{number}.json", (number, number))
    keep("last", MADE)
    assert {path.stem for path in folder.glob("*.json")} == {"last", "4", "3"}


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
)


FIELDS = ("text", "memory", "compiler", "seconds", "is_whole", "refusal", "warnings")


@given(st.text() | st.dictionaries(st.sampled_from(FIELDS), ANY).map(json.dumps))
def test_any_entry_is_read_or_not_there(text: str) -> None:
    found = cache._folder()
    assert found is not None
    (found / "k.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    made = kept("k")
    assert made is None or isinstance(made.text, str)
