"""Starts a program in several processes of JAX at once, on CPU devices, over Gloo."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.versions_of_jax import QUICK_FLAGS

#: Seconds after which a program that hangs is ended; it is no measure of anything.
_LIMIT_S = 100


def run(
    program: str, count: int, *arguments: Any, devices: int = 4, gloo: bool = True
) -> list[Any]:
    """Return what each process reported, the last time it did.

    Args:
      devices: of each process.
      gloo: whether collectives go over Gloo; one process can do without.
    """
    assert gloo or count == 1
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = Path(__file__).parents[2]
    environment = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(folder), "PATH": ""}
    environment["XLA_FLAGS"] = QUICK_FLAGS
    with ExitStack() as stack:
        # Files, since a full pipe of one process would stop all of them.
        logs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in range(count)]
        started = []
        for process, log in enumerate(logs):
            given = json.dumps([program, process, count, devices, port if gloo else 0, *arguments])
            command = [sys.executable, "-P", "-m", __name__, given]
            started.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))
        try:
            for each in started:
                each.wait(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            pass  # told below, with what the processes said
        finally:
            for each in started:
                each.kill()
                each.wait()
        return [_answer(*each) for each in zip(started, logs, strict=True)]


def main(program: str, process: int, count: int, devices: int, port: int, *arguments: Any) -> None:
    """Run a program: it finds `jax`, `process`, `count`, `arguments`, and `report`."""
    import jax

    jax.config.update("jax_num_cpu_devices", devices)
    if port:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", count, process)

    def report(answer: Any) -> None:
        print("ANSWER" + json.dumps(answer), flush=True)

    given = {"jax": jax, "process": process, "count": count, "arguments": [*arguments]}
    exec(compile(program, "<program>", "exec"), {"__name__": "__main__", "report": report, **given})


def _answer(process: subprocess.Popen[bytes], log: Any) -> Any:
    log.seek(0)
    text = log.read()
    assert process.returncode == 0, text
    answers = [line for line in text.splitlines() if line.startswith("ANSWER")]
    assert answers, text
    return json.loads(answers[-1].removeprefix("ANSWER"))


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
