"""Definition, references and rename; a rename leaves the plan as it was, by another name."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from shardspec import pipeline
from shardspec.ir.spec import Spec
from shardspec.lsp import navigation, types
from shardspec.lsp.navigation import Family, references
from shardspec.lsp.snapshot import Snapshot
from shardspec.lsp.types import Kind, Use
from tests.lsp.texts import BOTH, SPEC, marked, snapshot_of

both = pytest.mark.parametrize(("name", "text"), BOTH)
ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "specs/examples").glob("*.*") if path.is_file())


def names_at(snapshot: Snapshot, places: list[types.Location]) -> list[tuple[int, str]]:
    """Return line and text of places in a text."""
    assert all(place.uri == snapshot.uri for place in places)
    found = (snapshot.lines.offsets(place.range) for place in places)
    return [(snapshot.lines.line_of(a) + 1, snapshot.text[a:b]) for a, b in found]


def answers(spec: Spec, old: str = "", new: str = "") -> list[tuple[str, str, str]]:
    """Return how everything lies, names changed back."""

    def by_old(text: object) -> str:
        return re.sub(rf"\b{new}\b", old, str(text)) if new else str(text)

    return [
        (plan.name, array.path, by_old(array.partition_spec))
        for plan in pipeline.plans_of_phases(spec)
        for array in plan.arrays
    ]


def refusal(snapshot: Snapshot, use: Use) -> str | None:
    try:
        navigation.renamed_range(snapshot, use.span.start)
    except navigation.RefusedError as refused:
        return str(refused)
    return None


@both
def test_the_texts_are_sound(tmp_path: Path, name: str, text: str) -> None:
    assert snapshot_of(tmp_path, name, text).found == ()


@both
def test_names_stand_where_they_say(tmp_path: Path, name: str, text: str) -> None:
    snapshot = snapshot_of(tmp_path, name, text)
    kinds = {use.kind for use in snapshot.uses}
    assert kinds >= {*Kind} - {Kind.BASE, Kind.MANIFEST, Kind.STEP}
    for use in snapshot.uses:
        assert use.span.text.strip('"') == use.name


@both
@pytest.mark.parametrize(("needle", "stated"), [("mlp", "mlp"), ("model", "model"), ("tp }", "tp")])
def test_definition(tmp_path: Path, name: str, text: str, needle: str, stated: str) -> None:
    if needle not in text:
        needle = needle.replace(" }", "}")
    snapshot = snapshot_of(tmp_path, name, text)
    found = names_at(snapshot, navigation.definitions(snapshot, text.index(needle)))
    assert {each for _, each in found} == {stated}
    line = {"mlp": ("axes", "axis mlp"), "model": ("pod", "laptop"), "tp": ("let",)}
    starts = line.get(stated, ("axes", "axis embed"))
    for number, _ in found:
        assert text.splitlines()[number - 1].strip().startswith(("target ", *starts))


def test_definition_of_what_comes_along(tmp_path: Path) -> None:
    text, offset = marked("extends: [t5x‸/2d]\nhardware: 2 * tpu v5p 4x4x4\nmesh: {data: rest}\n")
    snapshot = snapshot_of(tmp_path, "spec.yaml", text)
    (place,) = navigation.definitions(snapshot, offset)
    assert place.uri == (ROOT / "specs/presets/t5x/2d.yaml").as_uri()
    (place,) = navigation.definitions(snapshot, text.index("v5p"))
    assert place.uri == (ROOT / "specs/hardware/tpu_v5p.yaml").as_uri()


def test_a_base_is_followed_within_the_project_alone(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text("")
    (tmp_path / "secret.yaml").write_text("rules:\n  - embed -> data\n")
    (project / "base.yaml").write_text("rules:\n  - embed -> data\n")
    text = SPEC.replace("axes:", "extends: [./base.yaml, ../secret.yaml]\naxes:", 1)
    snapshot = snapshot_of(project, "spec.yaml", text)
    (place,) = navigation.definitions(snapshot, text.index("./base"))
    assert place.uri == (project / "base.yaml").as_uri()
    assert navigation.definitions(snapshot, text.index("../secret")) == []
    places = references(Family(snapshot, (snapshot,)), text.index("embed"), with_stated=True)
    assert {place.uri for place in places} == {snapshot.uri, (project / "base.yaml").as_uri()}


def test_a_pattern_leads_to_its_arrays(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, "spec.yaml", SPEC)
    found = navigation.definitions(snapshot, SPEC.index("**/wi"))
    assert names_at(snapshot, found) == [(18, '"layers_{0..3}/wi/kernel"')]


@both
@pytest.mark.parametrize("old", ["embed", "mlp", "heads", "data", "model", "tp", "pod", "decode"])
def test_a_rename_changes_the_name_alone(tmp_path: Path, name: str, text: str, old: str) -> None:
    """The law: the plan is the same, and every text but the name's is as it was."""
    snapshot = snapshot_of(tmp_path, name, text)
    edit = navigation.renamed(Family(snapshot, (snapshot,)), text.index(old), "other-name")
    assert edit.changes is not None
    new = text
    spans = [snapshot.lines.offsets(each.range) for each in edit.changes[snapshot.uri]]
    for start, end in sorted(spans, reverse=True):
        assert new[start:end] == old
        new = f"{new[:start]}other-name{new[end:]}"
    rest = re.sub(r"\bother-name\b", old, new)
    assert rest == text
    after = snapshot_of(tmp_path, name, new)
    assert after.found == ()
    assert after.spec is not None
    assert snapshot.spec is not None
    if old not in ("pod", "decode"):
        assert answers(after.spec, old, "other-name") == answers(snapshot.spec)
    assert not re.search(rf"\b{old}\b", new.replace("measured", ""))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_axes_of_the_examples_can_be_renamed_or_say_why_not(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    real = os.path.realpath(path)
    snapshot = Snapshot(path.as_uri(), 1, real, {real: text})
    assert snapshot.spec is not None
    for kind in (Kind.LOGICAL_AXIS, Kind.MESH_AXIS):
        use = next(use for use in snapshot.uses if use.kind is kind)
        if "comes with shardspec" in (refusal(snapshot, use) or ""):
            continue
        edit = navigation.renamed(Family(snapshot, (snapshot,)), use.span.start, "renamed")
        assert edit.changes is not None
        new = text
        spans = [snapshot.lines.offsets(each.range) for each in edit.changes[snapshot.uri]]
        for start, end in sorted(spans, reverse=True):
            new = f"{new[:start]}renamed{new[end:]}"
        after = Snapshot(path.as_uri(), 2, real, {real: new})
        assert after.spec is not None
        assert answers(after.spec, use.name, "renamed") == answers(snapshot.spec)


def test_a_base_file_is_renamed_as_well(tmp_path: Path) -> None:
    base = "rules:\n  - heads -> model\n"
    (tmp_path / "base.yaml").write_text(base)
    text = SPEC.replace("axes:", "extends: ./base.yaml\naxes:", 1)
    snapshot = snapshot_of(tmp_path, "spec.yaml", text)
    edit = navigation.renamed(Family(snapshot, (snapshot,)), text.index("heads"), "h")
    assert edit.changes is not None
    assert {Path(uri).name: len(edits) for uri, edits in edit.changes.items()} == {
        "spec.yaml": 2,
        "base.yaml": 1,
    }


@pytest.mark.parametrize(
    ("needle", "new", "why"),
    [
        ("embed", "mlp", "`mlp` is the name of a logical axis already: spec.yaml:3"),
        ("embed", "tp", "`tp` is the name of a number already: spec.yaml:2"),
        ("embed", "two words", "`two words` is no name for a logical axis"),
        ("embed", "none", "`none` is no name for a logical axis"),
        ("embed", "in:x", "`in:x` is no name for a logical axis"),
        ("model", "data", "`data` is the name of a mesh axis already"),
        ("tp", "rest", "a fault then: spec.yaml:2: `rest` is a word of the language"),
        ("pod", "decode", ": a phase and a target are called"),
        ("bf16", "x", "this is a dtype; axes, names of `let`, targets and phases are renamed"),
        ("repeated-axis", "x", "this is a finding; axes"),
    ],
)
def test_a_rename_is_refused_with_the_reason(
    tmp_path: Path, needle: str, new: str, why: str
) -> None:
    snapshot = snapshot_of(tmp_path, "spec.yaml", SPEC)
    with pytest.raises(navigation.RefusedError) as refused:
        navigation.renamed(Family(snapshot, (snapshot,)), SPEC.index(needle), new)
    assert why in str(refused.value)


def test_what_comes_along_is_not_renamed(tmp_path: Path) -> None:
    text = SPEC.replace("axes:", "extends: t5x/1d\naxes:", 1)
    snapshot = snapshot_of(tmp_path, "spec.yaml", text)
    with pytest.raises(navigation.RefusedError, match=r"`embed` also stands in preset:t5x/1d:\d+"):
        navigation.renamed(Family(snapshot, (snapshot,)), text.index("embed"), "x")


def test_an_unread_line_is_mended_first(tmp_path: Path) -> None:
    snapshot = snapshot_of(tmp_path, "spec.yaml", SPEC.replace("embed -> data", "embed ->"))
    with pytest.raises(navigation.RefusedError, match="mend this first"):
        navigation.renamed_range(snapshot, SPEC.index("embed"))
