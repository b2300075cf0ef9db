"""Typing in a large text: a block tells what is wrong in it, and the end is as a fresh look."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.editing import spec
from shardspec.language import loader
from shardspec.language.reading import Reading
from shardspec.lsp import findings, navigation
from shardspec.lsp.findings import diagnostics, while_typing
from shardspec.lsp.hover import hover
from shardspec.lsp.snapshot import Lines, Snapshot
from tests.lsp.client import Editor, at, editor
from tests.lsp.test_typing import edited
from tests.lsp.texts import BOTH

LONG = [("spec.yaml", spec(1500, ".yaml")), ("spec.shard", spec(1500, ".shard"))]
long = pytest.mark.parametrize(("name", "text"), LONG)
PIECES = (
    "a",
    ":",
    "\n",
    "  ",
    "{",
    "}",
    "[",
    "- ",
    '"',
    "# x",
    "rules:\n",
    "rules {\n",
    "\n}\n",
    "é",
)


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Editor]:
    with editor(tmp_path) as started:
        yield started


@long
def test_blocks_are_all_of_the_text(name: str, text: str) -> None:
    """Each line of the text is in one block, where the block says that it stands."""
    found = [*findings.blocks(text, is_dsl=name.endswith(".shard"))]
    lines, covered = text.split("\n"), []
    for block in found:
        for number, line in enumerate(block.text.split("\n")[block.head :]):
            if block.line + number < len(lines) and line == lines[block.line + number]:
                covered.append(block.line + number)
    assert set(covered) >= {n for n, line in enumerate(lines) if line.startswith("  ")}
    assert len(found) > 10
    assert max(block.text.count("\n") for block in found) < 300


@long
def test_a_sound_text_has_sound_blocks(name: str, text: str) -> None:
    for block in findings.blocks(text, is_dsl=name.endswith(".shard")):
        assert findings.faults(block, name, is_dsl=name.endswith(".shard"))[1] == []


@long
def test_an_edit_changes_few_blocks(name: str, text: str) -> None:
    """A line more in the middle moves no other cut."""
    at_line = text.index("\n", len(text) // 2)
    new = f"{text[:at_line]}\n  one/more : bf16[8]{text[at_line:]}"
    is_dsl = name.endswith(".shard")
    before = {block.text for block in findings.blocks(text, is_dsl=is_dsl)}
    changed = [b for b in findings.blocks(new, is_dsl=is_dsl) if b.text not in before]
    assert 1 <= len(changed) <= 2


@long
def test_a_fault_is_told_where_it_stands(name: str, text: str) -> None:
    whole = text.index("\n", len(text) // 2)
    mark = " : " if name.endswith(".shard") else ": "
    new = f"{text[:whole]}\n  typed/x{mark}bf16[4,{text[whole:]}"
    found = while_typing([], text, Lines(new), name)
    line = new[: whole + 1].count("\n")
    assert found
    assert {each.range.start.line for each in found} <= {line, line + 1}


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(PIECES)), max_size=5), st.booleans()
)
def test_what_is_carried_along_stays_at_its_line(
    edits: list[tuple[int, str]], is_dsl: bool
) -> None:
    """A finding below all edits moves with its line, whatever is typed above."""
    name, text = BOTH[is_dsl]
    real = os.path.realpath(name)
    snapshot = Snapshot("", 0, real, {real: text.replace("-> model", "-> modle")})
    known, now = diagnostics(snapshot)[real], snapshot.text
    last = max((each.range.start.line for each in known), default=0)
    line = now.split("\n")[last]
    for place, piece in edits:
        first = min(each.range.start.line for each in known)
        at_ = place % (len("\n".join(now.split("\n")[:first])) + 1)
        new = now[:at_] + piece + now[at_:]
        known = [*findings.moved(known, now, new, [])]
        now = new
    assert now.split("\n")[max(each.range.start.line for each in known)] == line


@pytest.mark.parametrize("typed", ["\n", "\n  x -> data", "\n\n", " # x", "\n  heads"])
@pytest.mark.parametrize(("name", "text"), BOTH)
def test_a_line_more_above_takes_a_finding_along(name: str, text: str, typed: str) -> None:
    """Enter at the end of the line above moves the finding to where its words are then."""
    real, text = os.path.realpath(name), text.replace("heads -> model", "heads -> modle")
    snapshot = Snapshot("", 0, real, {real: text})
    at_line = text.rindex("\n", 0, text.index("modle"))
    new = Lines(f"{text[:at_line]}{typed}{text[at_line:]}")
    known = [each for each in diagnostics(snapshot)[real] if "modle" in each.message]
    assert known
    (moved, *_) = findings.moved(known, text, new.text, [])
    start, end = new.offsets(moved.range)
    assert new.text[start:end] == "modle"


def told(found: list[dict[str, object]]) -> list[str]:
    return sorted(f"{each['code']} {each['message']} {each['range']}" for each in found)


@pytest.mark.parametrize("name", dict(LONG))
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(seeds=st.lists(st.integers(0, 2**32), min_size=1, max_size=5))
def test_after_any_edits_all_is_as_a_fresh_look_says(
    session: Editor, tmp_path: Path, name: str, seeds: list[int]
) -> None:
    """The law: findings, symbols and a hover, once typing has rested."""
    text, uri, path = dict(LONG)[name], session.uri(name), os.path.realpath(tmp_path / name)
    if uri not in session.versions:
        session.open(name, text)
        session.findings(uri)
    now = text
    for seed in seeds:
        now = edited(now, random.Random(seed))
        session.edit(uri, now)
    symbols = session.about("documentSymbol", uri)  # which waits until typing has rested
    fresh = Snapshot(uri, 1, path, {path: now})
    assert [each["name"] for each in symbols or []] == [s.name for s in navigation.symbols(fresh)]
    expected = (f"{d.code} {d.message} {as_json(d.range)}" for d in diagnostics(fresh)[path])
    assert told(session.findings(uri)) == sorted(expected), now
    if "embed" in now:
        asked = session.about("hover", uri, position=at(now, "embed"))
        said = None if asked is None else asked["contents"]["value"]
        assert said == hover(fresh, now.index("embed"))


@long
def test_what_a_look_has_read_is_what_reading_anew_gives(name: str, text: str) -> None:
    """Symbols and colours are those of the text, also where an edit leaves no spec."""
    path, chance = os.path.realpath(name), random.Random(name)
    for _ in range(4):
        text = edited(text, chance)
        snapshot = Snapshot("", 1, path, {path: text})
        file = loader.File(snapshot.source, "", path, name.endswith(".shard"))
        expected = loader.read(file)[0]
        assert placed(snapshot.reading) == placed(expected)


def placed(reading: Reading | None) -> object:
    if reading is None:
        return None
    maps = (reading.source_map.keys, reading.source_map.values)
    return reading.data, [[(at, each, each.span) for at, each in map.items()] for map in maps]


def as_json(range_: object) -> dict[str, dict[str, int]]:
    ends = ((side, getattr(range_, side)) for side in ("start", "end"))
    return {side: {"line": end.line, "character": end.character} for side, end in ends}
