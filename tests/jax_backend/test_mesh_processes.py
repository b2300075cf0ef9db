"""Two processes with four devices each make the same mesh."""

from __future__ import annotations

import pytest

pytest.importorskip("jax")

from tests.jax_backend.many import run

_PROGRAM = """
import shardspec
spec = shardspec.loads('''
shardspec: 1
targets:
  other: {hardware: tpu v5e 2x4, mesh: {data: 4, model: 2}}
  laptop: {hardware: 8 cpu, mesh: {data: 4, model: 2}}
''')
resolver = shardspec.Resolver(spec, target="auto")
assert resolver.target.name == "laptop"
report([[[d.process_index, d.id] for d in row] for row in resolver.mesh.devices])
"""


def test_every_process_makes_the_same_mesh() -> None:
    first, second = run(_PROGRAM, 2)
    assert first == second
    assert [place[0] for row in first for place in row] == [0] * 4 + [1] * 4
