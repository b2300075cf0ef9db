"""What the language server takes of a processor, and how long an editor waits.

    python benchmarks/editing.py                    # both spellings, 2,000 and 10,000 lines
    python benchmarks/editing.py SPEC ...           # specs of your own
    python benchmarks/editing.py --keys 40 --pause-s 0.2

A client types into a real session of the server, over its pipes, the path of an array, and
asks at every key what VS Code asks: colours and symbols. It reads the processor time of the server
process, all threads, from the kernel.

- `start`: from the start of the process to its first answer, in seconds of wall clock and of CPU.
- `typing`: CPU milliseconds a key while keys follow each other, and the wall-clock milliseconds
  until findings of that text are there, the pause of the server in them.
- `rest`: CPU milliseconds of the look at all of the text that follows when typing rests.

Run `taskset -c 0` in front for numbers that other processes disturb less.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

LINES = (2_000, 10_000)
_LAYER = (
    *(
        ("attention/query/kernel", "bf16[4096, 32, 128]"),
        ("attention/key/kernel", "bf16[4096, 8, 128]"),
    ),
    *(
        ("attention/value/kernel", "bf16[4096, 8, 128]"),
        ("attention/out/kernel", "bf16[32, 128, 4096]"),
    ),
    *(("mlp/gate/kernel", "bf16[4096, 16384]"), ("mlp/up/kernel", "bf16[4096, 16384]")),
    *(("mlp/down/kernel", "bf16[16384, 4096]"), ("norm/scale", "bf16[4096]")),
)
_AXES = {"embed": 4096, "mlp": 16384, "heads": 32, "kv_heads": 8, "kv": 128}
_RULES = ("mlp -> model", "heads -> model", "kv_heads -> model", "embed -> data")
_PARAMS = {
    "**/attention/query/kernel": "embed heads kv",
    "**/attention/{key,value}/kernel": "embed kv_heads kv",
    "**/attention/out/kernel": "heads kv embed",
    "**/mlp/{gate,up}/kernel": "embed mlp",
    "**/mlp/down/kernel": "mlp embed",
    "**/scale": "embed",
}


def spec(lines: int, suffix: str) -> str:
    """Return a decoder of so many lines, most of which are arrays, as models list them."""
    arrays = [
        (f"layer_{n // 8}/{path}", kind) for n in range(lines) for path, kind in [_LAYER[n % 8]]
    ]
    if suffix == ".yaml":
        head = ["shardspec: 1", "axes:", *(f"  {name}: {size}" for name, size in _AXES.items())]
        head += ["targets:", "  pod: {hardware: tpu v4 4x4x4, mesh: {data: rest, model: 4}}"]
        head += ["rules:", *(f"  - {rule}" for rule in _RULES)]
        head += ["params:", *(f'  "{path}": {names}' for path, names in _PARAMS.items()), "arrays:"]
        body = [f"  {path}: {kind}" for path, kind in arrays[: lines - len(head)]]
        return "\n".join((*head, *body, ""))
    head = ["shardspec 1", *(f"axis {name} = {size}" for name, size in _AXES.items())]
    head += ["target pod on tpu v4 4x4x4 { data = rest; model = 4 }"]
    head += ["rules {", *(f"  {rule}" for rule in _RULES), "}", "params {"]
    head += [*(f"  {path} : {names}" for path, names in _PARAMS.items()), "}", "arrays {"]
    body = [f"  {path} : {kind}" for path, kind in arrays[: lines - len(head) - 1]]
    return "\n".join((*head, *body, "}", ""))


class Times(NamedTuple):
    """The times of one session, in seconds."""

    start: float
    start_cpu: float
    typing_cpu: float
    waited: tuple[float, ...]
    rest_cpu: float


class Session:
    """A server, and the messages that it sends."""

    def __init__(self, folder: Path) -> None:
        """Start it in a folder."""
        command = [sys.executable, "-m", "shardspec", "lsp", "--stdio"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, cwd=folder, **pipes)  # type: ignore[call-overload]
        self._incoming: queue.Queue[dict[str, Any]] = queue.Queue()
        self._id = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def send(self, method: str, params: Any, **more: Any) -> None:
        """Send a message."""
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self.process.stdin.flush()

    def ask(self, method: str, params: Any) -> int:
        """Send a question, whose answer is not waited for."""
        self._id += 1
        self.send(method, params, id=self._id)
        return self._id

    def answer(self, number: int) -> None:
        """Wait for an answer."""
        while self._incoming.get(timeout=120).get("id") != number:
            pass

    def findings(self, version: int) -> list[Any]:
        """Wait for the findings of a version."""
        while True:
            params = self._incoming.get(timeout=120).get("params") or {}
            if params.get("version") == version:
                return list(params["diagnostics"])

    def quiet(self, seconds: float) -> None:
        """Wait until nothing has come for so long."""
        while True:
            try:
                self._incoming.get(timeout=seconds)
            except queue.Empty:
                return

    def _listen(self) -> None:
        stream = self.process.stdout
        while True:
            length = 0
            while line := stream.readline().strip():
                length = int(line.split(b":")[1]) if line.startswith(b"Content-Length") else length
            if not length:
                return
            self._incoming.put(json.loads(stream.read(length)))

    @property
    def cpu(self) -> float:
        """Return the processor time of all threads, in seconds."""
        threads = Path(f"/proc/{self.process.pid}/task").iterdir()
        return sum(int((each / "schedstat").read_text().split()[0]) for each in threads) / 1e9


def measured(path: Path, keys: int, pause_s: float) -> Times:
    """Return the times of a session in which a letter after the other is typed into an entry."""
    text, uri = path.read_text(encoding="utf-8"), path.resolve().as_uri()
    began = time.perf_counter()
    session = Session(path.parent)
    session.answer(session.ask("initialize", {"capabilities": {}, "rootUri": path.parent.as_uri()}))
    start, start_cpu = time.perf_counter() - began, session.cpu
    session.send("initialized", {})
    item = {"uri": uri, "languageId": "yaml", "version": 0, "text": text}
    session.send("textDocument/didOpen", {"textDocument": item})
    session.findings(0)
    session.quiet(3.0)
    which = {"uri": uri}
    at, mark = text.index("\n", len(text) // 2), " : " if path.suffix == ".shard" else ": "
    before, waited = session.cpu, []
    for version in range(1, keys + 1):
        typed = f"{text[:at]}\n  typed/{'x' * version}{mark}bf16[4096]{text[at:]}"
        sent = time.perf_counter()
        change = {
            "textDocument": {**which, "version": version},
            "contentChanges": [{"text": typed}],
        }
        session.send("textDocument/didChange", change)
        session.ask("textDocument/semanticTokens/full", {"textDocument": which})
        session.ask("textDocument/documentSymbol", {"textDocument": which})
        session.findings(version)
        waited.append(time.perf_counter() - sent)
        time.sleep(max(0.0, pause_s - waited[-1]))
    typing = session.cpu - before
    session.quiet(8.0)
    rest = session.cpu - before - typing
    session.process.kill()
    session.process.wait()
    return Times(start, start_cpu, typing / keys, tuple(waited), rest)


def main() -> None:
    """Print a line for each spec."""
    formatter = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("specs", nargs="*", type=Path)
    parser.add_argument("--keys", type=int, default=20)
    parser.add_argument("--pause-s", type=float, default=0.15)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        made = [
            (Path(folder, str(n), f"spec{s}"), n, s) for n in LINES for s in (".yaml", ".shard")
        ]
        for path, lines, suffix in () if asked.specs else made:
            path.parent.mkdir(exist_ok=True)
            path.write_text(spec(lines, suffix), encoding="utf-8")
        for path in asked.specs or [path for path, *_ in made]:
            times = measured(path.resolve(), asked.keys, asked.pause_s)
            lines = path.read_text(encoding="utf-8").count("\n")
            print(
                f"{path.name} ({lines:,} lines):"
                f" start {times.start:.2f} s ({times.start_cpu:.2f} CPU);"
                f" typing {1000 * times.typing_cpu:.0f} ms CPU a key,"
                f" findings after {1000 * statistics.median(times.waited):.0f} ms"
                f" (at most {1000 * max(times.waited):.0f});"
                f" rest {1000 * times.rest_cpu:.0f} ms CPU",
                flush=True,
            )


if __name__ == "__main__":
    main()
