"""YAML 1.1 reads a plain word as something else.

Many tools read YAML 1.1, where a plain `no` or `on` is a boolean, `12:30` is 750 and `010` is 8.
Then a file means one thing here and another there. Only `true`, `false`, `null`, `~` and plain
decimal numbers are more than text; any other such word has to be quoted.

Bad:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    axes: {on: 64, mlp: 128}
    rules:
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=64 mlp]

Good:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    axes: {"on": 64, mlp: 128}
    rules:
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[_=64 mlp]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import YAML_TRAP as CODE

__all__ = ["CODE"]
