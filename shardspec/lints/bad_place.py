"""`at` or `drop` names an axis that has no rules.

`at: before mlp` puts a rule before the rules of `mlp`, and `drop: [mlp]` removes those that are
inherited. Where `mlp` has none, the name is misspelt or the preset has changed. The rule goes to
the end, where others may win over it.

Bad:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    axes: {embed: 64, mlp: 128}
    rules:
      - mlp -> tensor
      - rule: embed -> data
        at: before mpl
    arrays:
      mlp/kernel: bf16[embed mlp]

Good:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    axes: {embed: 64, mlp: 128}
    rules:
      - mlp -> tensor
      - rule: embed -> data
        at: before mlp
    arrays:
      mlp/kernel: bf16[embed mlp]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import BAD_PLACE as CODE

__all__ = ["CODE"]
