"""No target has this name.

A flag or a program asks for a target by name (`--target v5e-256`), and the spec has none that is
called so, or no target at all. `shardspec compile --list-targets` shows them.

Bad:
    # shardspec compile spec.yaml --target labtop
    shardspec: 1
    targets:
      laptop: {mesh: {tensor: 4}}
    rules:
      - mlp -> tensor

Good:
    # shardspec compile spec.yaml --target laptop
    shardspec: 1
    targets:
      laptop: {mesh: {tensor: 4}}
    rules:
      - mlp -> tensor
"""

from __future__ import annotations

from shardspec.diagnostics.codes import UNKNOWN_TARGET as CODE

__all__ = ["CODE"]
