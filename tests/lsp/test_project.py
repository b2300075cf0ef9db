"""All specs of a project at once: a base, the specs that extend it, and the code about them."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardspec.diagnostics import Diagnostic, SourceFile
from shardspec.language.files import SPEC_NAMES
from shardspec.lsp.findings import diagnostics
from shardspec.lsp.python_calls import Calls, Project, calls, is_named
from shardspec.lsp.server import MOST_TOPS
from shardspec.lsp.snapshot import Opened, Snapshot
from shardspec.lsp.types import Kind
from tests.lsp.client import Editor, RefusedError, at, edited, editor, under

BASE = """\
shardspec: 1
axes: {embed: 64, mlp: 256}
rules:
  - mlp -> model
  - embed -> data
params:
  "**/wi": embed mlp
"""
#: Three specs of one base, two of them of the same arrays.
SPEC = """\
extends: ./base.yaml
mesh: {{data: 2, model: 4}}
arrays: {{{path}/wi: "bf16[64, 256]"}}
"""
DSL = """\
extends "./base.yaml"
mesh on 8 cpu { data = 2; model = 4 }
rules {
  mlp -> model
}
arrays {
  c/wi : bf16[64, 256]
}
"""
CODE = """\
import shardspec

NAMES = "batch embed"


def step(x, names):
    resolver = shardspec.Resolver("specs/a.yaml")
    x = resolver.constrain(x, "batch length embed")
    y = shardspec.constrain({"mlp": x}, {"mlp": ["in:mlp'"]}, name="embed")
    return resolver.sharding(NAMES), "embed", y
"""


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Editor]:
    specs = tmp_path / "specs"
    specs.mkdir()
    files = {
        "base.yaml": BASE,
        "a.yaml": SPEC.format(path="a"),
        "b.yaml": SPEC.format(path="a"),
        "c.shard": DSL,
        "compose.yaml": "services:\n  embed: {image: x}\n",
        "../model.py": CODE,
    }
    for name, text in files.items():
        (specs / name).write_text(text)
    with editor(tmp_path) as started:
        yield started


def open_base(session: Editor, text: str = BASE) -> str:
    return session.open("specs/base.yaml", text)


def rename(session: Editor, uri: str, text: str, old: str, new: str) -> dict[str, Any]:
    """Return the new texts of a rename by path, each of which has to be parseable."""
    edit = session.about("rename", uri, position=at(text, old), newName=new)
    texts = {}
    for found, edits in edit["changes"].items():
        path = Path(found.removeprefix("file://"))
        texts[str(path.relative_to(session.folder))] = edited(path.read_text(), edits)
    return texts


def test_a_typo_in_a_base_shows_in_the_base(session: Editor) -> None:
    """The specs are closed; each finding stands once, with the specs that it is found for."""
    wrong = BASE.replace("embed -> data", "embed -> dtaa")
    uri = open_base(session, wrong)
    (found,) = session.some(uri)
    assert (found["code"], under(wrong, found["range"])) == ("SHD201", "dtaa")
    assert "for 3 specs: `a.yaml`, `b.yaml`, `c.shard`" in found["message"]
    session.edit(uri, BASE)
    assert session.findings(uri) == []


def test_a_base_is_one_however_it_looks(session: Editor) -> None:
    """Its name and keys do not tell: a spec extends it."""
    wrong = BASE.replace("shardspec: 1\n", "").replace("rules:", "rulez:")
    (found,) = session.some(open_base(session, wrong))
    assert (found["code"], under(wrong, found["range"])) == ("SHD003", "rulez")


def test_a_base_alone_is_looked_at_alone(session: Editor) -> None:
    uri = session.open("alone.yaml", BASE.replace("-> model", "->"))
    assert {each["code"] for each in session.some(uri)} == {"SHD002"}


def test_a_fix_is_offered_in_the_base(session: Editor) -> None:
    wrong = BASE.replace("embed -> data", "embed -> dtaa")
    uri = open_base(session, wrong)
    session.some(uri)
    here = at(wrong, "dtaa", 1)
    context: dict[str, Any] = {"diagnostics": []}
    offered = session.about("codeAction", uri, range={"start": here, "end": here}, context=context)
    (fix,) = [each for each in offered if "data" in each["title"]]
    assert edited(wrong, fix["edit"]["changes"][uri]) == BASE


def test_a_base_of_many_specs(session: Editor) -> None:
    """More than are looked at while typing: that is said, and a rename changes all of them."""
    rules = "mesh: {data: 2, model: 4}\nrules: [embed -> model]\n"
    many = MOST_TOPS + 4
    for number in range(many):
        path = session.folder / f"specs/n{number}.yaml"
        path.write_text(f"extends: ./base.yaml\n{rules}")
    uri = open_base(session, BASE.replace("embed -> data", "embed -> dtaa"))
    (found,) = session.some(uri)
    cut = f"{MOST_TOPS} of {many + 3} specs"
    assert f"({cut} are looked at)" in found["message"]
    (lens,) = session.about("codeLens", uri)
    assert lens["command"]["title"].startswith(f"for {cut}: ")
    hovered = session.about("hover", uri, position=at(BASE, "embed ->"))["contents"]["value"]
    assert f"looked at: {cut}" in hovered
    session.edit(uri, BASE)
    texts = rename(session, uri, BASE, "embed", "width")
    assert sum("width -> model" in text for text in texts.values()) == many


def test_hover_in_a_base_answers_for_all_its_specs(session: Editor) -> None:
    uri = open_base(session)
    said = session.about("hover", uri, position=at(BASE, "mlp -> model"))["contents"]["value"]
    assert "for 2 specs: `a.yaml`, `b.yaml`" in said
    assert "for 1 spec: `c.shard`" in said, "which has a rule of its own"
    assert "rule `mlp -> model`" in said
    arrow = session.about("hover", uri, position=at(BASE, "-> model"))["contents"]["value"]
    assert "for 2 specs" in arrow


def test_an_axis_is_renamed_everywhere(session: Editor) -> None:
    """From the base: closed specs of both spellings, and what code constrains by."""
    uri = open_base(session)
    texts = rename(session, uri, BASE, "mlp", "hidden")
    assert texts["specs/base.yaml"] == BASE.replace("mlp", "hidden")
    assert texts["specs/c.shard"] == DSL.replace("mlp", "hidden")
    assert texts["model.py"] == CODE.replace("in:mlp'", "in:hidden'")
    assert "specs/compose.yaml" not in texts
    texts = rename(session, uri, BASE, "embed", "width")
    new = CODE.replace("batch length embed", "batch length width")
    assert texts["model.py"] == new.replace('"batch embed"', '"batch width"')
    ast.parse(texts["model.py"])


def test_a_rename_from_a_spec_reaches_its_siblings(session: Editor) -> None:
    """`model.py` names `a.yaml` alone, and so is about every spec that shares the base."""
    uri = session.open("specs/c.shard", DSL, "shardspec")
    texts = rename(session, uri, DSL, "mlp", "hidden")
    assert set(texts) == {"specs/base.yaml", "specs/c.shard", "model.py"}


def test_references_include_code_and_closed_specs(session: Editor) -> None:
    uri = open_base(session)
    context = {"includeDeclaration": True}
    places = session.about("references", uri, position=at(BASE, "mlp"), context=context)
    files = {place["uri"].rpartition("/")[2] for place in places}
    assert files == {"base.yaml", "c.shard", "model.py"}
    (in_code,) = [place for place in places if place["uri"].endswith("model.py")]
    assert under(CODE, in_code["range"]) == "mlp"


@pytest.mark.parametrize(
    ("file", "text", "why"),
    [
        ("broken.py", b"constrain(x, 'embed'\n", "broken.py` is no Python"),
        ("latin.yaml", b"rules:\n  - embed -> \xe9\n", "latin.yaml` is not UTF-8"),
        ("pieces.py", b"constrain(x, 'batch ' 'embed')\n", "pieces.py:1 puts `embed` together"),
        ("escaped.py", b"constrain(x, 'batch\\x20embed')\n", "escaped.py:1 puts `embed` together"),
        ("open.yaml", b"extends: ./specs/base.yaml\nrules: [embed ->]\n", "mend this first"),
        ("large.yaml", b"#" * (5 * 2**20), "large.yaml: it is larger than 4 MiB"),
    ],
)
def test_a_rename_says_which_file_it_cannot_read(
    session: Editor, file: str, text: bytes, why: str
) -> None:
    (session.folder / file).write_bytes(text)
    uri = open_base(session)
    with pytest.raises(RefusedError) as no:
        session.about("rename", uri, position=at(BASE, "embed"), newName="width")
    assert why in str(no.value)
    (session.folder / file).unlink()
    assert "model.py" in rename(session, uri, BASE, "embed", "width")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(session: Editor) -> None:
    (session.folder / "secret.yaml").write_text("rules: [embed -> data]\n")
    (session.folder / "secret.yaml").chmod(0)
    with pytest.raises(RefusedError, match=r"secret\.yaml: Permission denied"):
        rename(session, open_base(session), BASE, "embed", "width")


def test_code_that_names_no_spec_may_be_about_another(session: Editor) -> None:
    (session.folder / "layer.py").write_text("def f(r, x):\n    return r.constrain(x, 'embed')\n")
    uri = open_base(session)
    assert "layer.py" in rename(session, uri, BASE, "embed", "width")
    (session.folder / "other.yaml").write_text("rules: [embed -> x]\nmesh: {x: 2}\n")
    with pytest.raises(RefusedError, match=r"layer\.py:2 has `embed` and names no spec"):
        rename(session, uri, BASE, "embed", "width")


def test_what_code_works_out_is_said(session: Editor) -> None:
    (session.folder / "late.py").write_text("def f(r, x, n):\n    return r.constrain(x, n)\n")
    rename(session, open_base(session), BASE, "embed", "width")
    (told,) = [each for each in session.shown if each["method"] == "window/showMessage"]
    assert "late.py:2" in told["params"]["message"]


def test_targets_and_phases_of_resolvers_are_renamed(session: Editor) -> None:
    text = "targets: {pod: {hardware: 2 cpu, mesh: {x: 2}}}\nphases: {fast: {rules: [a -> x]}}\n"
    code = 'r = Resolver("specs/t.yaml", "pod", phase="fast")\ns = Resolver("b.yaml", "pod")\n'
    (session.folder / "specs/t.yaml").write_text(text)
    (session.folder / "run.py").write_text(code)
    uri = session.open("specs/t.yaml", text)
    with pytest.raises(RefusedError, match=r"run\.py:1 has `pod`: there .* another text"):
        rename(session, uri, text, "pod", "a\\n")
    assert rename(session, uri, text, "pod", "slice")["run.py"] == code.replace("pod", "slice", 1)
    assert rename(session, uri, text, "fast", "slow")["run.py"] == code.replace("fast", "slow")


def test_lenses_say_the_verdict_of_each_target(session: Editor) -> None:
    text = SPEC.format(path="a").replace(
        "mesh: {data: 2, model: 4}",
        "targets:\n  pod: {hardware: tpu v4 2x2x2, mesh: {data: 2, model: 4}}\n"
        "  laptop: {hardware: 8 cpu, mesh: {data: 2, model: 4}}",
    )
    uri = session.open("specs/a.yaml", text)
    first, second = session.about("codeLens", uri)
    assert (first["range"]["start"]["line"], second["range"]["start"]["line"]) == (2, 3)
    assert first["command"]["title"].startswith("pod: fits, ")
    assert first["command"]["title"].endswith("; no findings")
    assert "its memory is unknown" in second["command"]["title"]
    (lens,) = session.about("codeLens", open_base(session))
    assert lens["command"]["title"].startswith("for 3 specs: a.yaml no findings; ")


def test_a_closed_spec_is_read_anew_when_it_changes(session: Editor) -> None:
    uri = open_base(session)
    assert session.findings(uri) == []
    path = session.folder / "specs/a.yaml"
    path.write_text(path.read_text().replace("model: 4", "modle: 4"))
    changed = {"changes": [{"uri": path.as_uri(), "type": 2}]}
    session.notify("workspace/didChangeWatchedFiles", changed)
    (found,) = session.some(uri)
    assert (found["code"], "`a.yaml`" in found["message"]) == ("SHD201", True)


PYTHON = '''\
from pathlib import Path
TEXT = "kv"
LATER = "one"; LATER = "two"
def run(x, named, resolver):
    r = ss.Resolver(Path(__file__).parent / "specs" / "a.yaml", target="pod", phase="decode")
    r.constrain(x, """
        batch embed""", activation="residual")
    with Resolver("./b.shard") as held:
        held.size("é"), held.partition_spec(TEXT), other.size("no"), held.sharding(LATER)
    return r.constrain(x, named), r.constrain(x, f"a {named}"), r.constrain(x, None)
'''


def test_what_python_says() -> None:
    found = calls(SourceFile("m.py", PYTHON))
    assert isinstance(found, Calls)
    assert [(use.kind, use.span.text) for use in found.uses if use.is_plain and use.is_sure] == [
        (Kind.LOGICAL_AXIS, "kv"),
        *((Kind.TARGET, "pod"), (Kind.PHASE, "decode")),
        *((Kind.LOGICAL_AXIS, "batch"), (Kind.LOGICAL_AXIS, "embed")),
        *((Kind.ACTIVATION, "residual"), (Kind.LOGICAL_AXIS, "é")),
    ]
    assert found.specs == ("a.yaml", "./b.shard")
    assert is_named("/work/specs/a.yaml", found.specs)
    assert not is_named("/work/specs/aa.yaml", found.specs)
    assert sorted(span.line for span in found.unknown) == [9, 10, 10]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (
            "constrain(x, TABLE['embed']), constrain(x, f('embed')), constrain(*args)",
            ["?", "?", "?"],
        ),
        ("constrain(x, 'a' if kind == 'embed' else 'b')", ["a", "b"]),
        ("partial(shardspec.constrain, names='embed')", ["embed"]),
        (
            "from shardspec import constrain as c, Resolver as R\n"
            "c(x, 'embed'), R('a.yaml', 'pod')",
            ["embed", "pod"],
        ),
        ("con = shardspec.constrain\ncon(x, 'embed')", ["embed"]),
        ("def f(r: shardspec.Resolver | None): r.sharding('embed')", ["embed"]),
        ("r: 'Resolver' = make()\nr.batch({'embed': 'a'})", ["a"]),
        ("r = Resolver('a.yaml') if x else None\nr.size('embed')", ["embed"]),
        ("r = make()\nr.sharding('embed')", ["(embed)"]),
        ("N: str = 'embed'\nconstrain(x, ('a', N))", ["a", "embed"]),
        ("constrain(x, 'a_' + 'embed'), constrain(x, 'a ' + 'embed')", ["?", "a", "embed"]),
        ("constrain(x, ('a',) + ('embed',)), constrain(x, ' '.join(['b']))", ["a", "embed", "b"]),
        ("constrain(x, 'a embed'.split()), constrain(x, (n := 'b'))", ["a", "embed", "b"]),
        ("nn.with_logical_partitioning(f, ('embed', None))", ["embed"]),
        ('constrain(x,\r\n """a\r\n embed""")\r\n', ["a", "embed"]),
    ],
)
def test_names_are_found_however_code_writes_them(text: str, names: list[str]) -> None:
    """`?` for a call whose names code works out, brackets for one of what may be no resolver."""
    found = calls(SourceFile("m.py", text))
    assert isinstance(found, Calls)
    said = ["?" for _ in found.unknown]
    said += [each.span.text if each.is_sure else f"({each.span.text})" for each in found.uses]
    assert sorted(said) == sorted(names)
    assert all(each.is_plain for each in found.uses)


@pytest.mark.parametrize(
    "text", ["(" * 5000, "def f(:", "x = '\x00'", "-" * 100_000 + "1", "class " * 99, "\ufeff1"]
)
def test_hostile_python_is_a_reason(text: str) -> None:
    assert isinstance(calls(SourceFile("m.py", text)), (Calls, Diagnostic))


def test_what_could_hold_a_name_unread_is_said(tmp_path: Path) -> None:
    """In whatever encoding, and also in a spec whose `extends` is lost; not in others' files."""
    cell = {"cell_type": "code", "source": ["constrain(x, ", "'embed')"]}
    notebook = {"cells": [cell, {"cell_type": "markdown", "source": ["mlp"]}]}
    files: dict[str, bytes] = {
        "utf16.yaml": "extends: ./base.yaml\nrules: [embed -> data]\n".encode("utf-16"),
        "latin.py": b"# \xe9\nconstrain(x, 'embed')\n",
        "two.yaml": b"extends: ./base.yaml\nrules: [embed -> data]\n---\na: b\n",
        "lost.shard": b'extends "./base.yaml\nrules {\n  embed -> data\n}\n',
        "note.ipynb": json.dumps(notebook).encode(),
        "helm.yaml": b"{{- if .Values.embed }}\nname: {{ embed }}\n  - x\n",
        "other.yaml": b"services: [embed\n",
        "plain.ipynb": b'{"cells": "embed"}',
    }
    for name, raw in files.items():
        (tmp_path / name).write_bytes(raw)
    project = Project([str(tmp_path)])
    project.read({})
    held = {Path(each.path).name for each in project.unread if each.may_hold("embed")}
    assert held == {"utf16.yaml", "latin.py", "two.yaml", "lost.shard", "note.ipynb"}
    assert not any(each.may_hold("mlp") for each in project.unread)


def test_folders_that_are_open_together_are_one_project(tmp_path: Path) -> None:
    """A typo shows in the base of another folder, by the name under which that is open."""
    for name, text in {
        "a/base.yaml": BASE.replace("-> data", "-> dtaa"),
        "b/pyproject.toml": "",
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    path = str(tmp_path.resolve() / "b" / "spec.yaml")
    base = os.path.join(os.path.realpath(tmp_path), "a", "base.yaml")
    texts = {path: SPEC.format(path="a").replace("./base", "../link/base")}
    folders = tuple((os.path.realpath(tmp_path / each), "") for each in "ab")
    snapshot = Snapshot("", 0, path, texts, opened=Opened({base: "open:base"}, folders))
    (found,) = diagnostics(snapshot)[base]
    assert found.code == "SHD201"
    use = next(each for each in snapshot.all_uses if each.name == "dtaa")
    location = snapshot.location(use.span)
    assert location is not None
    assert location.uri == "open:base"
    assert diagnostics(Snapshot("", 0, path, texts))[path], "where it is extended, if it is apart"


def test_a_project_is_listed_within_bounds(tmp_path: Path) -> None:
    """No link is followed, and nothing hidden, nor of an environment, is looked into."""
    for folder in (".git", "node_modules", "env", "src"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "spec.yaml").write_text(BASE)
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "src")
    (tmp_path / "linked.yaml").symlink_to(tmp_path / "src" / "spec.yaml")
    project = Project([str(tmp_path)])
    project.read({})
    assert [*project.specs] == [os.path.realpath(tmp_path / "src" / "spec.yaml")]
    assert project.unread == ()


@pytest.mark.parametrize(("most", "is_listed"), [(5, True), (4, False)])
def test_a_project_of_more_entries_than_are_looked_at_is_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, is_listed: bool
) -> None:
    """Folders and files count alike: here two folders with a file each, and a file."""
    monkeypatch.setattr("shardspec.lsp.python_calls.MOST_ENTRIES", most)
    for name in ("a/spec.yaml", "b/notes.txt", "c.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(BASE)
    project = Project([str(tmp_path)])
    project.read({})
    assert (project.unread == ()) == is_listed
    assert (len(project.specs) == 2) == is_listed
    assert all(f"more than {most} files" in each.reason for each in project.unread)


def test_a_file_that_is_called_a_spec_is_one_however_it_looks(tmp_path: Path) -> None:
    for name in (*SPEC_NAMES, "any.shard", "values.yaml"):
        (tmp_path / name).write_text("services: {web: nginx}\n")
    project = Project([str(tmp_path)])
    project.read({})
    assert {Path(each).name for each in project.specs} == {*SPEC_NAMES, "any.shard"}


@pytest.mark.parametrize("less", [0, 1])
def test_a_project_of_more_bytes_than_are_read_says_which_files_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, less: int
) -> None:
    for name in ("a.yaml", "b.yaml", "c.yaml"):
        (tmp_path / name).write_text(BASE)
    monkeypatch.setattr("shardspec.lsp.python_calls.MOST_BYTES", 3 * len(BASE) - less)
    project = Project([str(tmp_path)])
    project.read({})
    assert len(project.specs) == 3 - less
    assert len(project.unread) == less
    assert all("the files of the project are larger" in each.reason for each in project.unread)
    monkeypatch.setattr("shardspec.lsp.python_calls.MOST_BYTES", 4 * len(BASE))
    monkeypatch.setattr("shardspec.lsp.python_calls._LARGEST", len(BASE) - less)
    other = Project([str(tmp_path)])
    other.read({})
    assert len(other.specs) == (0 if less else 3)
    assert all(each.reason.startswith("it is larger than") for each in other.unread)
