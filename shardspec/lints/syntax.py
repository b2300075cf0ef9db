"""Text is not YAML, or not the shardspec language.

The caret stands where reading stopped, and the help says what may stand there. Each rule,
pattern, type and size is read on its own: one that cannot be read is left out, and the rest of
the spec is still checked.

Bad:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    axes: {embed: 64, mlp: 128}
    rules:
      - mlp -> tensor
      - embed => data
    arrays:
      mlp/kernel: bf16[embed mlp]

Good:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    axes: {embed: 64, mlp: 128}
    rules:
      - mlp -> tensor
      - embed -> data
    arrays:
      mlp/kernel: bf16[embed mlp]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import SYNTAX as CODE

__all__ = ["CODE"]
