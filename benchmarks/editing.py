"""How long an editor waits: from a key to the findings, through a real session of the server.

    python benchmarks/editing.py            # T5 1.1 XXL, five targets, 558 arrays
    python benchmarks/editing.py SPEC ...

Each edit adds or takes away a letter of a comment at the end, so that all is worked out anew. The
pause that the server waits for is in the figures; `work` is the CPU time of one look without it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from shardspec.lsp.findings import diagnostics
from shardspec.lsp.server import PAUSE_S
from shardspec.lsp.snapshot import Snapshot

EDITS = 20


def session_times(path: Path) -> list[float]:
    """Return the seconds from each edit to its findings."""
    command = [sys.executable, "-m", "shardspec", "lsp"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    text, uri = path.read_text(encoding="utf-8"), path.as_uri()

    def send(method: str, params: Any, **more: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", "method": method, "params": params, **more}).encode()
        assert process.stdin is not None
        process.stdin.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        process.stdin.flush()

    def wait(version: int) -> None:
        assert process.stdout is not None
        while True:
            length = 0
            while line := process.stdout.readline().strip():
                length = int(line.split(b":")[1]) if line.startswith(b"Content-Length") else length
            message = json.loads(process.stdout.read(length))
            if message.get("params", {}).get("version") == version:
                return

    send("initialize", {"capabilities": {}}, id=1)
    send("initialized", {})
    item = {"uri": uri, "languageId": "yaml", "version": 0, "text": text}
    send("textDocument/didOpen", {"textDocument": item})
    wait(0)
    found = []
    for version in range(1, EDITS + 1):
        changes = [{"text": f"{text}\n#{'x' * (version % 7)}"}]
        started = time.perf_counter()
        which = {"uri": uri, "version": version}
        send("textDocument/didChange", {"textDocument": which, "contentChanges": changes})
        wait(version)
        found.append(time.perf_counter() - started)
    process.kill()
    return found


def work_times(path: Path) -> list[float]:
    """Return the CPU seconds of looks at a text, each another one."""
    real, text = os.path.realpath(path), path.read_text(encoding="utf-8")
    found = []
    for version in range(EDITS):
        started = time.process_time()
        texts = {real: f"{text}\n#{'x' * (version % 7)}"}
        diagnostics(Snapshot(path.as_uri(), version, real, texts))
        found.append(time.process_time() - started)
    return found[1:]


def main() -> None:
    """Print a line for each spec."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    example = Path(__file__).parents[1] / "specs/examples/t5-1.1-xxl.yaml"
    parser.add_argument("specs", nargs="*", type=Path, default=[example])
    print(f"pause {1000 * PAUSE_S:.0f} ms")
    for path in parser.parse_args().specs:
        waited, worked = session_times(path.resolve()), work_times(path.resolve())
        print(
            f"{path.name}: waited {1000 * statistics.median(waited):.0f} ms"
            f" (at most {1000 * max(waited):.0f}), work {1000 * statistics.median(worked):.0f} ms"
        )


if __name__ == "__main__":
    main()
