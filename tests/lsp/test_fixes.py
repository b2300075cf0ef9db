"""What an editor offers for a finding is what `--fix` does, and the edits do it."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from shardspec.diagnostics import SourceFile
from shardspec.language import loader
from shardspec.language.formatting import formatted
from shardspec.language.reading import is_dsl
from shardspec.language.yaml_text.printer import load_as_pyyaml
from shardspec.lsp import findings, types
from shardspec.lsp.navigation import Family, renamed
from shardspec.lsp.snapshot import Snapshot
from shardspec.lsp.types import RefusedError
from tests.lsp.client import Editor, at, edited, editor
from tests.lsp.test_typing import IS_NIGHTLY
from tests.lsp.test_typing import edited as typed
from tests.lsp.texts import BOTH, SPEC, snapshot_of


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    with editor(tmp_path_factory.mktemp("fixes")) as opened:
        yield opened


def after(snapshot: Snapshot, action: types.CodeAction) -> str:
    assert action.edit is not None
    return after_edits(snapshot, action.edit)


def after_edits(snapshot: Snapshot, edit: types.WorkspaceEdit) -> str:
    assert edit.changes is not None
    (edits,) = edit.changes.values()
    spans = [(*snapshot.lines.offsets(each.range), each.new_text) for each in edits]
    text = snapshot.text
    for start, end, new in sorted(spans, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def test_a_sure_fix_is_preferred_and_mends(tmp_path: Path) -> None:
    text = SPEC.replace("heads -> model", "heads -> modle")
    snapshot = snapshot_of(tmp_path, "spec.yaml", text)
    where = text.index("modle")
    action = findings.actions(snapshot, where, where)[0]
    assert (action.title, action.is_preferred) == ("Replace `modle` by `model`", True)
    assert after(snapshot, action) == SPEC


def test_an_unsure_fix_is_offered_as_such(tmp_path: Path) -> None:
    text = SPEC.replace("heads -> model", "heads -> mdl")
    snapshot = snapshot_of(tmp_path, "spec.yaml", text)
    where = text.index("mdl")
    found = [each for each in findings.actions(snapshot, where, where) if "model`" in each.title]
    assert all("(may not be what you mean)" in each.title for each in found)
    assert [each.is_preferred for each in found] == [False]
    assert findings.fix_all(snapshot) is None


def test_line_ends_stay(tmp_path: Path) -> None:
    text = SPEC.replace("heads -> model", "heads -> modle").replace("\n", "\r\n")
    snapshot = snapshot_of(tmp_path, "spec.yaml", text)
    action = findings.fix_all(snapshot)
    assert action is not None
    assert after(snapshot, action) == SPEC.replace("\n", "\r\n")


def test_a_finding_can_be_silenced(tmp_path: Path) -> None:
    text = SPEC.replace("params:\n", "params:\n  nothing/**: embed\n")
    snapshot = snapshot_of(tmp_path, "spec.yaml", text)
    (found,) = snapshot.found
    assert found.primary is not None
    where = found.primary.span.start
    silence = next(
        each for each in findings.actions(snapshot, where, where) if "Silence" in each.title
    )
    mended = snapshot_of(tmp_path, "spec.yaml", after(snapshot, silence))
    assert mended.found == ()


def test_what_several_targets_ask_for_is_offered_once(tmp_path: Path) -> None:
    text = SPEC.replace(
        'layers_{0..3}/wi/kernel": bf16[64, 256]', 'layers_{0..3}/wi/kernel": bf16[64, 257]'
    )
    snapshot = snapshot_of(tmp_path, "spec.yaml", text)
    titles = [each.title for each in findings.actions(snapshot, 0, text.index("params:"))]
    assert len(titles) == len(set(titles)) > 1


def test_all_fixes_in_one_go(session: Editor) -> None:
    text = SPEC.replace("heads -> model", "heads -> modle").replace(": mlp embed", ": mlp embde")
    uri = session.open("spec.yaml", text)
    whole = {"start": at(text, "shardspec"), "end": at(text, "decode")}
    context = {"diagnostics": [], "only": ["source.fixAll"]}
    (action,) = session.about("codeAction", uri, range=whole, context=context)
    assert action["kind"] == "source.fixAll"
    assert edited(text, action["edit"]["changes"][uri]) == SPEC
    context = {"diagnostics": []}
    titles = [
        each["title"] for each in session.about("codeAction", uri, range=whole, context=context)
    ]
    assert titles[0].startswith("Replace `modle`")
    assert "Fix all" not in " ".join(titles)


def test_hints_and_colours_over_the_wire(session: Editor) -> None:
    uri = session.open("hints.yaml", SPEC)
    whole = {"start": at(SPEC, "shardspec"), "end": at(SPEC, "decode")}
    labels = [each["label"] for each in session.about("inlayHint", uri, range=whole)]
    assert "4 arrays" in labels
    settings = {"settings": {"shardspec": {"inlayHints": {"patterns": False}}}}
    session.notify("workspace/didChangeConfiguration", settings)
    labels = [each["label"] for each in session.about("inlayHint", uri, range=whole)]
    assert "4 arrays" not in labels
    assert labels
    assert len(session.about("semanticTokens/full", uri)["data"]) % 5 == 0


@pytest.mark.parametrize(("name", "text"), BOTH)
@settings(max_examples=500 if IS_NIGHTLY else 12)
@given(seed=st.integers(0, 2**32))
def test_every_edit_leaves_a_text_that_can_be_parsed(name: str, text: str, seed: int) -> None:
    """The law of all that an editor is offered: fixes, silences, "fix all", renames, formatting."""
    chance, path = random.Random(seed), os.path.realpath(name)
    for _ in range(chance.randint(0, 2)):
        text = typed(text, chance)
    snapshot = Snapshot("file:///spec", 1, path, {path: text})
    if not can_be_parsed(snapshot.source):
        return
    offered = findings.actions(snapshot, 0, len(text))
    edits = [each.edit for each in (*offered, findings.fix_all(snapshot)) if each is not None]
    for use in chance.sample(snapshot.uses, min(4, len(snapshot.uses))):
        family = Family(snapshot, (snapshot,))
        with suppress(RefusedError):
            new = chance.choice(("x", "x.y", "a-b", "x: y", "none", "'x", "{x}", "x # y", "é"))
            edits.append(renamed(family, use.span.start, new))
    changes = [after_edits(snapshot, edit) for edit in edits if edit and edit.changes]
    changes.append(snapshot.text if (form := formatted(snapshot.source)[0]) is None else form)
    for new in changes:
        assert can_be_parsed(SourceFile(path, new)), new


def can_be_parsed(source: SourceFile) -> bool:
    """Say whether a text is YAML for PyYAML too, or the DSL."""
    reading, _ = loader.read(loader.File(source, "", source.name, is_dsl(source)))
    if reading is None or not reading.is_whole or is_dsl(source):
        return reading is not None and reading.is_whole
    with suppress(yaml.YAMLError):
        load_as_pyyaml(source.text)
        return True
    return False
