"""Figures behind lines, and names by their colours."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardspec.analysis.memory import memory
from shardspec.lsp import hover, navigation
from shardspec.lsp.snapshot import Snapshot
from shardspec.lsp.types import LEGEND
from tests.lsp.texts import BOTH, SPEC, snapshot_of

both = pytest.mark.parametrize(("name", "text"), BOTH)


def shown(snapshot: Snapshot, *kinds: str) -> dict[str, list[str]]:
    """Return the hints by the text of the line that they stand on."""
    found: dict[str, list[str]] = {}
    for hint in hover.hints(snapshot, 0, len(snapshot.text), frozenset(kinds or hover.KINDS)):
        line = snapshot.lines.line(hint.position.line).strip()
        found.setdefault(line, []).append(str(hint.label))
    return found


@both
def test_hints_are_the_figures_of_the_plan(tmp_path: Path, name: str, text: str) -> None:
    snapshot = snapshot_of(tmp_path, name, text)
    found = {line.lstrip("- "): labels for line, labels in shown(snapshot).items()}
    assert found["embed -> data"] == ["64 → 4 (4 arrays)"]
    assert found["heads -> model"] == ["takes nothing"]
    pod = next(labels for line, labels in found.items() if "pod" in line and "4x4x4" in line)
    held = memory(snapshot.plans[0]).bytes
    assert pod == [f"{held / 1024:.1f} KiB of 30.8 GiB"]
    wi = next(labels for line, labels in found.items() if "**/wi/kernel" in line)
    assert wi == ["4 arrays"]


@both
def test_hints_stand_behind_what_they_are_of(tmp_path: Path, name: str, text: str) -> None:
    snapshot = snapshot_of(tmp_path, name, text)
    for hint in hover.hints(snapshot, 0, len(text), frozenset({"rules"})):
        before = text[: snapshot.lines.offset(hint.position)]
        assert before.endswith(("data", "model", "model)"))


def test_hints_can_be_switched_off(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, "spec.yaml", SPEC)
    assert shown(snapshot, "targets").keys() < shown(snapshot).keys()
    for off in (False, {"enabled": False}, dict.fromkeys(hover.KINDS, False)):
        assert hover.wanted({"inlayHints": off}) == frozenset()
    assert hover.wanted({}) == frozenset(hover.KINDS)


def test_no_target_holds_a_figure_of_a_spec_of_which_a_part_was_left_out(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, "spec.yaml", SPEC + "state: {optimizer: zero9}\n")
    assert [each.code.id for each in snapshot.found if each.is_error] == ["SHD004"]
    assert not shown(snapshot, "targets")


@both
def test_tokens_lie_side_by_side(tmp_path: Path, name: str, text: str) -> None:
    wide = text.replace("measured", "🧊 measured").replace("odd/kernel", "o🧊d/kernel")
    snapshot = snapshot_of(tmp_path, name, wide)
    data = navigation.tokens(snapshot).data
    line = column = 0
    found = []
    for at in range(0, len(data), 5):
        step, start, length, kind, _ = data[at : at + 5]
        column = column + start if step == 0 else start
        line += step
        units = snapshot.lines.line(line).encode("utf-16-le")
        word = units[2 * column : 2 * (column + length)].decode("utf-16-le")
        found.append((word, LEGEND["tokenTypes"][kind]))
    assert len(found) > 40
    assert {
        ("embed", "parameter"),
        ("data", "enumMember"),
        ("tp", "number"),
        ("pod", "class"),
        ("tpu v4 4x4x4", "type"),
        ("**/wi/kernel", "regexp"),
        ("o🧊d/kernel", "variable"),
        ("repeated-axis", "macro"),
    } <= set(found)
