"""The server over stdin and stdout: findings, shape, formatting, and what is never answered."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardspec import pipeline
from tests.lsp.client import ROOT, Editor, RefusedError, at, edited, editor, under

SPEC = """\
shardspec: 1
axes: {embed: 64, mlp: 256}
mesh: {data: 2, model: 4}
rules:
  - embed -> data
  - mlp -> model
params:
  "**/wi/kernel": embed mlp
arrays:
  "layers_{0..3}/wi/kernel": bf16[64, 256]
"""
DSL = """\
shardspec 1
axis embed = 64
axis mlp = 256
mesh { data = 2; model = 4 }
rules {
  embed -> data
  mlp -> model
}
params {
  **/wi/kernel : embed mlp
}
arrays {
  layers_{0..3}/wi/kernel : bf16[64, 256]
}
"""


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Editor]:
    with editor(tmp_path_factory.mktemp("lsp")) as opened:
        yield opened


def test_findings_are_those_of_check(session: Editor) -> None:
    text = SPEC.replace("mlp -> model", "mlp -> modle").replace("embed mlp", "embed mpl")
    uri = session.open("same.yaml", text)
    found = session.findings(uri)
    path = str(session.folder / "same.yaml")
    spec, faults = pipeline.load_path(path, texts={os.path.realpath(path): text})
    assert spec is not None
    shown = pipeline.check(spec, faults, spec.params).shown
    assert [each["code"] for each in found] == [each.code.id for each in shown] != []
    for mine, theirs in zip(found, shown, strict=True):
        assert theirs.primary is not None
        assert under(text, mine["range"]) == theirs.primary.span.text
        assert mine["message"].startswith(theirs.message)
        assert mine["severity"] == (1 if theirs.is_error else 2)


@pytest.mark.parametrize(("name", "text"), [("a.yaml", SPEC), ("a.shard", DSL)])
def test_findings_come_and_go_with_the_text(session: Editor, name: str, text: str) -> None:
    uri = session.open(name, text)
    assert session.findings(uri) == []
    wrong = text.replace("-> model", "-> modle")
    session.edit(uri, wrong)
    (found,) = session.findings(uri)
    assert (found["code"], under(wrong, found["range"])) == ("SHD201", "modle")
    session.edit(uri, text)
    assert session.findings(uri) == []


def test_columns_are_utf_16(session: Editor) -> None:
    text = SPEC.replace('"**/wi/kernel": embed mlp', '"**/{🧊🧊,wi}/kernel": embed mpl')
    found = session.findings(session.open("wide.yaml", text))
    assert {under(text, each["range"]) for each in found} == {"mpl"}


def test_a_base_that_is_open_counts_as_it_stands(session: Editor) -> None:
    (session.folder / "base.yaml").write_text("rules:\n  - embed -> data\n", encoding="utf-8")
    child = SPEC.replace("  - embed -> data\n", "").replace("axes:", "extends: ./base.yaml\naxes:")
    uri = session.open("child.yaml", child)
    assert session.findings(uri) == []
    base = session.open("base.yaml", "shardspec: 1\nrules:\n  - embed -> dtaa\n")
    (found,) = session.some(base)
    assert found["code"] == "SHD201"
    assert (found["range"]["start"]["line"], session.published[uri][-1]["diagnostics"]) == (2, [])
    assert found["message"].endswith("\nfor 1 spec: `child.yaml`")
    session.close(base)
    assert session.next_findings(base) == []


def test_levels_of_the_project_count(tmp_path: Path) -> None:
    project = '[tool.shardspec.lints]\nSHD201 = "warn"\n'
    (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    with editor(tmp_path) as session:
        uri = session.open("spec.yaml", SPEC.replace("-> model", "-> modle"))
        assert [each["severity"] for each in session.findings(uri)] == [2]
        (tmp_path / "pyproject.toml").unlink()
        changed = {"changes": [{"uri": session.uri("pyproject.toml"), "type": 3}]}
        session.notify("workspace/didChangeWatchedFiles", changed)
        assert [each["severity"] for each in session.next_findings(uri)] == [1]


def test_other_yaml_is_left_alone(session: Editor) -> None:
    uri = session.open("compose.yaml", "services:\n  web: {image: x}\n")
    assert session.about("documentSymbol", uri) is None
    assert uri not in session.published


@pytest.mark.parametrize(("name", "text"), [("f.yaml", SPEC), ("f.shard", DSL)])
def test_formatting_is_that_of_fmt(session: Editor, name: str, text: str) -> None:
    uri = session.open(name, text.replace("embed -> data", "embed   ->  data"))
    options = {"tabSize": 2, "insertSpaces": True}
    edits = session.about("formatting", uri, options=options)
    done = edited(text.replace("embed -> data", "embed   ->  data"), edits)
    session.edit(uri, done)
    assert "embed -> data" in done
    assert session.about("formatting", uri, options=options) == []
    session.edit(uri, "rules: [")
    assert session.about("formatting", uri, options=options) is None


@pytest.mark.parametrize(("name", "text"), [("s.yaml", SPEC), ("s.shard", DSL)])
def test_symbols(session: Editor, name: str, text: str) -> None:
    found = session.about("documentSymbol", session.open(name, text))
    by_name = {each["name"]: each for each in found}
    assert list(by_name) == ["shardspec", "axes", "mesh", "rules", "params", "arrays"]
    assert [each["name"] for each in by_name["rules"]["children"]] == [
        "embed -> data",
        "mlp -> model",
    ]
    assert [each["name"] for each in by_name["axes"]["children"]] == ["embed", "mlp"]
    assert under(text, by_name["axes"]["children"][1]["selectionRange"]) == "mlp"
    for symbol in found:
        whole = under(text, symbol["range"])
        assert under(text, symbol["selectionRange"]) in whole


def test_folding_needs_no_sound_text(session: Editor) -> None:
    uri = session.open("folds.yaml", SPEC + "overrides:\n  - path: [\n")
    found = [(each["startLine"], each["endLine"]) for each in session.about("foldingRange", uri)]
    assert found == [(3, 5), (6, 7), (8, 9), (10, 11)]
    uri = session.open("folds.shard", DSL)
    found = [(each["startLine"], each["endLine"]) for each in session.about("foldingRange", uri)]
    assert found == [(4, 6), (8, 9), (11, 12)]


def test_fast_typing_is_looked_at_once(session: Editor) -> None:
    """What `t5-1.1-xxl` takes is in docs/measured.md; here, that an edit is not waited for."""
    text = (ROOT / "specs/examples/t5-1.1-xxl.yaml").read_text(encoding="utf-8")
    text = text.replace("../arrays/t5-1.1-xxl.yaml", "t5-1.1-xxl")
    uri = session.open("t5.yaml", text)
    assert session.findings(uri) == []
    before = len(session.published[uri])
    for size in (2, 4, 16, 8):
        session.edit(uri, text.replace("model: 8", f"model: {size}"))
    assert session.findings(uri) == []
    assert len(session.published[uri]) - before <= 2


def test_a_session_without_a_client_ends() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "shardspec", "lsp"],
        input=b"",
        capture_output=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    assert (run.returncode, run.stdout) == (0, b"")


def test_names_over_the_wire(session: Editor) -> None:
    """Hover, completion, definition, references, highlights and rename, as an editor asks."""
    uri = session.open("names.yaml", SPEC)
    here = {"position": at(SPEC, "mlp -> model")}
    hovered = session.about("hover", uri, **here)
    assert hovered["contents"]["kind"] == "markdown"
    assert "rule `mlp -> model`" in hovered["contents"]["value"]
    (stated,) = session.about("definition", uri, **here)
    assert under(SPEC, stated["range"]) == "mlp"
    context = {"includeDeclaration": True}
    places = session.about("references", uri, **here, context=context)
    assert [place["range"]["start"]["line"] for place in places] == [1, 5, 7]
    kinds = [each["kind"] for each in session.about("documentHighlight", uri, **here)]
    assert kinds == [3, 2, 2]
    items = session.about("completion", uri, position=at(SPEC, "model\nparams"))
    assert {"data", "model", "none"} <= {item["label"] for item in items}
    whole = session.about("prepareRename", uri, **here)
    assert (under(SPEC, whole["range"]), whole["placeholder"]) == ("mlp", "mlp")
    edits = session.about("rename", uri, **here, newName="hidden")["changes"][uri]
    assert edited(SPEC, edits) == SPEC.replace("mlp", "hidden")
    with pytest.raises(RefusedError, match="`embed` is the name of a logical axis already") as no:
        session.about("rename", uri, **here, newName="embed")
    assert no.value.code == -32803


def test_an_answer_for_an_older_text_is_not_given(session: Editor) -> None:
    uri = session.open("stale.yaml", SPEC)
    session.findings(uri)
    asked = session.begin(
        "textDocument/hover", {"textDocument": {"uri": uri}, "position": at(SPEC, "mlp")}
    )
    session.edit(uri, f"# another line\n{SPEC}")
    assert refusal_of(session, asked) in (None, -32801)


def refusal_of(session: Editor, asked: int) -> int | None:
    """Return the code of a refusal; None where an answer came before the edit."""
    try:
        session.end(asked)
    except RefusedError as refused:
        return refused.code
    return None


def test_columns_are_counted_as_the_editor_asks(tmp_path: Path) -> None:
    """Helix and Neovim would rather have bytes."""
    capabilities = {"general": {"positionEncodings": ["utf-8", "utf-16"]}}
    with editor(tmp_path, capabilities) as session:
        assert session.capabilities["positionEncoding"] == "utf-8"
        text = SPEC.replace('"**/wi/kernel": embed mlp', '"**/{🧊,wi}/kernel": embed mpl')
        (found,) = session.findings(session.open("wide.yaml", text))
        line = text.splitlines()[7].encode()
        start, end = (found["range"][side]["character"] for side in ("start", "end"))
        assert line[start:end] == b"mpl"


def test_a_text_without_a_file(session: Editor) -> None:
    uri = session.open("untitled:Untitled-1", DSL.replace("-> model", "-> modle"), "shardspec")
    (found,) = session.findings(uri)
    assert found["code"] == "SHD201"
    assert session.about("hover", uri, position=at(DSL, "embed"))["contents"]["value"]


def test_a_file_with_blanks_in_its_name(session: Editor) -> None:
    (session.folder / "a base.yaml").write_text("rules:\n  - embed -> data\n")
    text = SPEC.replace("axes:", 'extends: "./a base.yaml"\naxes:', 1)
    uri = session.open("my spec é.yaml", text)
    assert session.findings(uri) == []
    (place,) = session.about("definition", uri, position=at(text, "./a base"))
    assert place["uri"] == session.uri("a base.yaml")


def test_a_file_becomes_a_spec_while_it_is_written(session: Editor) -> None:
    uri = session.open("new.yaml", "")
    assert session.about("documentSymbol", uri) is None
    session.edit(uri, SPEC.replace("-> model", "-> modle"))
    assert [each["code"] for each in session.findings(uri)] == ["SHD201"]
    session.edit(uri, "rul")
    assert session.findings(uri), "it stays one, whatever is left of it"


def test_what_is_no_longer_wanted_is_dropped(session: Editor) -> None:
    uri = session.open("cancel.yaml", SPEC)
    params = {"textDocument": {"uri": uri}, "position": at(SPEC, "mlp")}
    asked = session.begin("textDocument/hover", params)
    session.notify("$/cancelRequest", {"id": asked})
    assert refusal_of(session, asked) in (None, -32800)
    assert session.findings(uri) == []
    assert session.about("hover", uri, position=at(SPEC, "mlp"))


def test_a_rename_in_a_base_reaches_open_specs_that_extend_it(session: Editor) -> None:
    base = "shardspec: 1\nmesh: {data: 2, model: 4}\nrules:\n  - mlp -> model\n"
    (session.folder / "shared.yaml").write_text(base)
    text = SPEC.replace("axes:", "extends: ./shared.yaml\naxes:", 1)
    child = session.open("extends.yaml", text)
    parent = session.open("shared.yaml", base)
    changes = session.about("rename", parent, position=at(base, "mlp"), newName="hidden")["changes"]
    assert edited(base, changes[parent]) == base.replace("mlp", "hidden")
    assert edited(text, changes[child]) == text.replace("mlp", "hidden")
    with pytest.raises(RefusedError, match="`embed` is the name of a logical axis already"):
        session.about("rename", parent, position=at(base, "mlp"), newName="embed")


def test_a_file_that_takes_long_keeps_no_other_waiting(session: Editor) -> None:
    entries = "".join(f"  a{n}/**: mlp_{n}\n" for n in range(40_000))
    long = session.open("long.yaml", f"shardspec: 1\nmesh: {{data: 2}}\nparams:\n{entries}")
    short = session.open("short.yaml", "shardspec: 1\nmesh: {data: 2}\nrules: [mlp -> modle]\n")
    assert session.findings(short)
    assert long not in session.published
    session.close(short)
    session.close(long)
