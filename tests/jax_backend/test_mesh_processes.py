"""Two processes with four devices each make the same mesh."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

_PROGRAM = """
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", 4)
jax.distributed.initialize(f"127.0.0.1:{sys.argv[2]}", 2, int(sys.argv[1]))
import shardspec
spec = shardspec.loads('''
shardspec: 1
targets:
  other: {hardware: tpu v5e 2x4, mesh: {data: 4, model: 2}}
  laptop: {hardware: 8 cpu, mesh: {data: 4, model: 2}}
''')
resolver = shardspec.Resolver(spec, target="auto")
assert resolver.target.name == "laptop"
devices = resolver.mesh.devices
print(json.dumps([[[d.process_index, d.id] for d in row] for row in devices]))
"""


def test_every_process_makes_the_same_mesh() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    folder = Path(__file__).parents[2]
    environment = {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(folder), "PATH": ""}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(process), port],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
        for process in range(2)
    ]
    results = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0, 0], results
    first, second = (json.loads(out.splitlines()[-1]) for out, _ in results)
    assert first == second
    assert [place[0] for row in first for place in row] == [0] * 4 + [1] * 4
