"""A stranger's spec that is opened: no code of it runs, and nothing outside the project shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.lsp.client import ROOT

HOSTILE = """\
extends: [../outside.yaml, ./base.yaml, "git:HEAD:./x.yaml"]
manifest: [evil:arrays, ../model.pkl]
mesh: {data: 2}
rules:
  - embed -> data
  - password -> data
params:
  "re:(a+)+$": embed
arrays:
  a/kernel: bf16[embed=64]
step: {extends: ../../../../etc/passwd}
"""
#: Everything that can be asked, at every place, with an ear on what Python does meanwhile.
CHILD = """
import json, os, sys
events = []
from shardspec.lsp import completion, findings, hover, navigation
from shardspec.lsp import navigation
from shardspec.lsp.navigation import Family, references
from shardspec.lsp.snapshot import Snapshot
path = os.path.abspath("spec.yaml")
text = open(path).read()
def heard(event, arguments):
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect"):
        events.append([event, str(arguments[0])])
    if event == "import":
        events.append([event, str(arguments[0])])
sys.addaudithook(heard)
snapshot = Snapshot("file://" + path, 1, path, {os.path.realpath(path): text})
family = Family(snapshot, (snapshot,))
said_of_targets = repr(hover.lenses(family))
said = [said_of_targets, repr(findings.diagnostics(snapshot)), repr(navigation.symbols(snapshot))]
said += [repr(navigation.folds(snapshot)), repr(navigation.tokens(snapshot))]
said += [repr(hover.hints(snapshot, 0, len(text), frozenset(hover.KINDS)))]
said += [repr(findings.actions(snapshot, 0, len(text))), repr(findings.fix_all(snapshot))]
for offset in range(0, len(text), 3):
    said.append(repr(hover.hover(snapshot, offset)))
    said.append(repr(completion.completions(snapshot, snapshot.spec, offset)))
    said.append(repr(navigation.definitions(snapshot, offset)))
    said.append(repr(references(family, offset, with_stated=True)))
    try:
        said.append(repr(navigation.renamed(family, offset, "other")))
    except navigation.RefusedError as refused:
        said.append(str(refused))
print(json.dumps({"events": events, "said": "".join(said)}))
"""


def test_nothing_runs_and_nothing_shows(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text("")
    (project / "spec.yaml").write_text(HOSTILE)
    (project / "base.yaml").write_text("rules:\n  - embed -> data\n")
    (project / "evil.py").write_text("open('ran', 'w')\n")
    (tmp_path / "outside.yaml").write_text("rules:\n  - password: hunter2\n  - hunter3 -> data\n")
    (tmp_path / "model.pkl").write_bytes(b"cos\nsystem\n(S'touch ran'\ntR.")
    run = subprocess.run(
        [sys.executable, "-c", CHILD],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(run.stdout)
    assert "hunter" not in told["said"]
    assert "root:" not in told["said"]
    assert (tmp_path / "outside.yaml").as_uri() not in told["said"]
    assert "SHD016" in told["said"], "what would run code is refused, and said"
    assert (project / "base.yaml").as_uri() in told["said"], "what is inside is shown"
    assert not (project / "ran").exists()
    assert not [each for each in told["events"] if each[0] == "import" and each[1] == "evil"]
    started = [each for each in told["events"] if each[0] != "import"]
    assert all(sys.executable in each[1] for each in started), started
