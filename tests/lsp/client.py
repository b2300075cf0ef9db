"""An editor for tests: it starts the real server and talks to it over stdin and stdout."""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: How long an answer may take before a test fails, in seconds: machines of tests are busy.
PATIENCE_S = 60.0


class RefusedError(Exception):
    """An error that the server answered with: its code and message."""

    def __init__(self, error: dict[str, Any]) -> None:
        where = "".join((error.get("data") or {}).get("traceback", ()))
        super().__init__(f"{error['code']}: {error['message']}\n{where}")
        self.code: int = error["code"]
        self.message: str = error["message"]


class Editor:
    """One session. Texts are kept as an editor keeps them, with their versions.

    Attributes:
      published: by URI, the last findings, and all that came with their versions.
      asked: requests of the server, which are answered with null.
    """

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process
        self.versions: dict[str, int] = {}
        self.published: dict[str, list[dict[str, Any]]] = {}
        self.asked: list[dict[str, Any]] = []
        self.shown: list[dict[str, Any]] = []
        self._id = 0
        self._incoming: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._answers: dict[int, dict[str, Any]] = {}
        threading.Thread(target=self._listen, daemon=True).start()

    # messages

    def send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self.process.stdin is not None
        self.process.stdin.write(f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
        self.process.stdin.flush()

    def notify(self, method: str, params: Any) -> None:
        self.send({"method": method, "params": params})

    def begin(self, method: str, params: Any) -> int:
        """Ask, and return the number of the question."""
        self._id += 1
        self.send({"id": self._id, "method": method, "params": params})
        return self._id

    def end(self, number: int) -> Any:
        """Return the answer to a question, or raise the refusal."""
        until = time.monotonic() + PATIENCE_S
        while number not in self._answers:
            self._take(until)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise RefusedError(answer["error"])
        return answer["result"]

    def ask(self, method: str, params: Any) -> Any:
        return self.end(self.begin(method, params))

    def _take(self, until: float) -> None:
        try:
            message = self._incoming.get(timeout=max(0.01, until - time.monotonic()))
        except queue.Empty:
            raise TimeoutError("the server does not answer") from None
        assert message is not None, f"the server has ended: {self.process.poll()}"
        if message.get("method") == "textDocument/publishDiagnostics":
            params = message["params"]
            self.published.setdefault(params["uri"], []).append(params)
        elif "method" in message and "id" in message:
            self.asked.append(message)
            self.send({"id": message["id"], "result": None})
        elif "method" in message:
            self.shown.append(message)
        else:
            self._answers[message["id"]] = message

    def _listen(self) -> None:
        stream = self.process.stdout
        assert stream is not None
        while True:
            length = 0
            while (line := stream.readline().strip()) != b"":
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            if not length:
                self._incoming.put(None)
                return
            self._incoming.put(json.loads(stream.read(length)))

    # texts

    def uri(self, name: str) -> str:
        return (self.folder / name).as_uri()

    def open(self, name: str, text: str, language: str = "yaml") -> str:
        uri = name if ":" in name else self.uri(name)
        self.versions[uri] = 1
        item = {"uri": uri, "languageId": language, "version": 1, "text": text}
        self.notify("textDocument/didOpen", {"textDocument": item})
        return uri

    def edit(self, uri: str, text: str) -> int:
        self.versions[uri] += 1
        which = {"uri": uri, "version": self.versions[uri]}
        change = {"textDocument": which, "contentChanges": [{"text": text}]}
        self.notify("textDocument/didChange", change)
        return self.versions[uri]

    def close(self, uri: str) -> None:
        self.notify("textDocument/didClose", {"textDocument": {"uri": uri}})

    def about(self, feature: str, uri: str, **more: Any) -> Any:
        return self.ask(f"textDocument/{feature}", {"textDocument": {"uri": uri}, **more})

    def findings(self, uri: str) -> list[dict[str, Any]]:
        """Return the findings of a text as it stands, once they are there."""
        until = time.monotonic() + PATIENCE_S
        while not self.published.get(uri) or (
            self.published[uri][-1].get("version") != self.versions[uri]
        ):
            self._take(until)
        return self.published[uri][-1]["diagnostics"]

    def some(self, uri: str) -> list[dict[str, Any]]:
        """Return the first findings of a text that are any, of a server without versions."""
        until = time.monotonic() + PATIENCE_S
        while not any(each["diagnostics"] for each in self.published.get(uri, ())):
            self._take(until)
        return self.published[uri][-1]["diagnostics"]

    def next_findings(self, uri: str) -> list[dict[str, Any]]:
        """Return the findings that come next, whatever their version."""
        count = len(self.published.get(uri, ()))
        until = time.monotonic() + PATIENCE_S
        while len(self.published.get(uri, ())) == count:
            self._take(until)
        return self.published[uri][-1]["diagnostics"]


@contextmanager
def editor(
    folder: Path,
    capabilities: dict[str, Any] | None = None,
    command: Sequence[str] = (sys.executable, "-P", "-m", "shardspec", "lsp", "--stdio"),
    **options: Any,
) -> Iterator[Editor]:
    """Start the server in a folder, and end it as an editor does."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    session = Editor(folder, process)
    try:
        start = {
            "processId": os.getpid(),
            "rootUri": folder.as_uri(),
            "capabilities": capabilities or {},
            "initializationOptions": options,
        }
        session.capabilities = session.ask("initialize", start)["capabilities"]
        session.notify("initialized", {})
        yield session
        session.ask("shutdown", None)
        session.notify("exit", None)
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()
        process.wait()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        process.stdout.close()


def has_tool(package: str) -> bool:
    """Say whether npx is there, and gets a package of the index of Node."""
    npx = shutil.which("npx")
    if npx is None:
        return False
    command = ["npm", "view", package, "version"]
    try:
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def at(text: str, needle: str, inner: int = 0) -> dict[str, int]:
    """Return the position of a piece of a text, or `inner` characters into it, in UTF-16."""
    offset = text.index(needle) + inner
    line = text.count("\n", 0, offset)
    start = text.rfind("\n", 0, offset) + 1
    return {"line": line, "character": len(text[start:offset].encode("utf-16-le")) // 2}


def under(text: str, range_: dict[str, Any]) -> str:
    """Return the text of a range, which is counted in UTF-16."""
    return text[offset_of(text, range_["start"]) : offset_of(text, range_["end"])]


def offset_of(text: str, position: dict[str, int]) -> int:
    lines = text.splitlines(keepends=True)
    before = sum(map(len, lines[: position["line"]]))
    line = lines[position["line"]] if position["line"] < len(lines) else ""
    units = line.encode("utf-16-le")[: 2 * position["character"]]
    return before + len(units.decode("utf-16-le"))


def edited(text: str, edits: list[dict[str, Any]]) -> str:
    """Return a text after edits, as an editor makes them."""
    for edit in sorted(edits, key=lambda e: offset_of(text, e["range"]["start"]), reverse=True):
        start, end = (offset_of(text, edit["range"][side]) for side in ("start", "end"))
        text = text[:start] + edit["newText"] + text[end:]
    return text
