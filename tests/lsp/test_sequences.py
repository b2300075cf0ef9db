"""The law: after any sequence of edits the state of the server is that of a fresh one.

Five specs, which extend one another, and code are opened, edited, undone, saved, closed, written,
renamed and removed on disk, in any order. Then all that is shown, and what is answered about names
of every open text, is what a server says that is started on the same files and buffers.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shardspec.lsp import features, server
from shardspec.lsp.server import SpecServer
from shardspec.lsp.wire import AnswerError, Params

IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
BASE = "axes: {embed: 64, mlp: 256}\nrules:\n  - mlp -> model\n  - embed -> data\n"
#: Names that are specs whatever is in them: another text stays one once it was one.
FILES = {
    "spec.yaml": BASE,
    "mid/mid.shard": 'extends "../spec.yaml"\nparams {\n  **/wi : embed mlp\n}\n',
    "mid/spec.yaml": "extends: ./mid.shard\nmesh: {data: 2, model: 4}\n"
    "arrays: {a/wi: 'bf16[64, 256]'}\n",
    "b.shard": 'extends "./mid/mid.shard"\nmesh on 8 cpu { data = 2; model = 4 }\n'
    "arrays {\n  b/wi : bf16[64, 256]\n}\n",
    "c/spec.yaml": "shardspec: 1\nextends: ../spec.yaml\n"
    "targets: {pod: {mesh: {data: 2, model: 4}}}\nrules: [embed -> model]\n",
    "m.py": "r = Resolver('mid/spec.yaml')\nr.constrain(x, 'embed mlp')\n",
}
NAMES = tuple(FILES)
#: What is done to a text: a piece of it that becomes another, or a piece put in somewhere.
CHANGES = (
    *(
        ("data", "dtaa"),
        ("embed", "width"),
        ("mlp", "embed"),
        ("../spec", "./other"),
        ("extends", "ext"),
    ),
    *(("rules", "rulez"), ("64", "63"), ("./mid", "./"), ("-> model", "->"), ("'embed", "f'embed")),
    *((None, "\n"), (None, "{"), (None, "  "), (None, "# x"), (None, "é"), (None, "")),
)
DOINGS = (
    *("edit", "edit", "edit", "undo", "open", "close"),
    *("save", "write", "remove", "move", "wait", "wait"),
)
STEPS = st.tuples(
    st.sampled_from(DOINGS),
    st.sampled_from(NAMES),
    st.sampled_from(CHANGES),
    st.integers(0, 10**4),
)


class Session:
    """A server without an editor, on a folder; `shown` is what an editor would show."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.shown = folder, dict[str, Any]()
        self.server: SpecServer = features.made()
        self.server.notify = self.noted  # type: ignore[method-assign]
        self.server.handlers["initialize"](Params({"rootUri": folder.as_uri()}))
        self.texts: dict[str, list[str]] = {}
        self.version = 0

    def noted(self, method: str, params: Any) -> None:
        if method == "textDocument/publishDiagnostics":
            self.shown[params["uri"]] = params["diagnostics"]

    def put(self, name: str, text: str) -> None:
        self.version += 1
        self.texts.setdefault(name, []).append(text)
        self.server.put((self.folder / name).as_uri(), self.version, text)

    def take(self, doing: str, name: str, change: tuple[str | None, str], at: int) -> None:
        """Do one thing, as an editor or a person beside it does."""
        path, opened = self.folder / name, self.texts.get(name)
        now = opened[-1] if opened else path.read_text() if path.exists() else FILES[name]
        old, new = change
        cut = at % (len(now) + 1)
        changed = now.replace(old, new) if old else now[:cut] + new + now[cut:]
        match doing:
            case "edit":
                self.put(name, changed)
            case "open" if not opened:
                self.put(name, now)
            case "undo" if opened and len(opened) > 1:
                self.put(name, self.texts[name].pop(at % (len(opened) - 1)))
            case "close" if opened:
                del self.texts[name]
                self.server.drop(path.as_uri())
            case "save" if opened:
                path.write_text(now)
                self.server.files_changed()
            case "write" | "remove" | "move":
                if doing == "write":
                    path.write_text(changed)
                elif path.exists() and doing == "remove":
                    path.unlink()
                elif path.exists():
                    path.rename(path.with_stem("other"))
                self.server.files_changed()

    async def rest(self) -> None:
        """Wait until nothing is on its way."""
        held = self.server
        while tasks := [
            each
            for each in (*held._announcing.values(), *held._hurrying.values())
            if not each.done()
        ]:
            await asyncio.wait(tasks)

    async def state(self) -> dict[str, Any]:
        """Return all that is shown, and what is answered about names of each open text."""
        await self.rest()
        said: dict[str, Any] = {
            uri: sorted(map(repr, each)) for uri, each in self.shown.items() if each
        }
        for name in self.texts:
            for word in ("embed", "data"):
                place = self.texts[name][-1].find(word)
                if place >= 0:
                    for method in ("hover", "references", "rename", "codeLens", "codeAction"):
                        said[f"{name} {word} {method}"] = await self.asked(name, method, place)
        for worker in (self.server._worker, self.server._slow_worker):
            worker.shutdown()
        return said

    async def asked(self, name: str, method: str, offset: int) -> str:
        before = self.texts[name][-1][:offset]
        column = len(before) - before.rfind("\n") - 1
        place = {"line": before.count("\n"), "character": column}
        params = {
            "textDocument": {"uri": (self.folder / name).as_uri()},
            "position": place,
            "range": {"start": place, "end": place},
            "newName": "renamed",
            "context": {"includeDeclaration": True, "diagnostics": []},
        }
        try:
            found = await self.server.handlers[f"textDocument/{method}"](Params(params))
        except AnswerError as refused:
            return str(refused)
        changes = getattr(found, "changes", None)
        return repr(sorted(map(repr, changes.items())) if changes else found)


async def compared(folder: Path, steps: list[Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state after some steps, and that of a server started then."""
    session = Session(folder)
    session.put("mid/spec.yaml", FILES["mid/spec.yaml"])
    for step in steps:
        if step[0] == "wait":
            await session.rest()
        session.take(*step)
    fresh = Session(folder)
    for name, texts in session.texts.items():
        fresh.put(name, texts[-1])
    return await session.state(), await fresh.state()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no pause of the typing be waited for."""
    monkeypatch.setattr(server, "PAUSE_S", 0.0)


@settings(
    max_examples=500 if IS_NIGHTLY else 12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(steps=st.lists(STEPS, min_size=2, max_size=10))
def test_after_any_sequence_the_state_is_that_of_a_fresh_server(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("project").resolve()
    for name, text in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    state, fresh = asyncio.run(compared(folder, steps))
    assert state == fresh
