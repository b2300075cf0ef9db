"""A key stands twice, and only one of the two can count.

Most YAML readers keep the last and say nothing, so an edit of the first changes nothing. Both
places are shown; one has to go.

Bad:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    axes:
      embed: 64
      mlp: 128
      embed: 96
    rules:
      - embed -> data
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[embed mlp]

Good:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    axes:
      embed: 64
      mlp: 128
    rules:
      - embed -> data
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[embed mlp]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import DUPLICATE_KEY as CODE

__all__ = ["CODE"]
