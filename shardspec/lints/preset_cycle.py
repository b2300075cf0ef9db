"""Specs extend each other in a circle.

What a spec extends is merged first, and in a circle there is no first. Take one of the two
`extends` out, or move what both need into a third file.

Bad:
    # base.yaml, which the next lines extend and which extends them
    shardspec: 1
    extends: ./base.yaml
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor

Good:
    # base.yaml
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor
"""

from __future__ import annotations

from shardspec.diagnostics.codes import PRESET_CYCLE as CODE

__all__ = ["CODE"]
