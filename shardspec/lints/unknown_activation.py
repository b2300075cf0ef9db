"""Code asks for an activation that the spec does not name.

`resolver.constrain(x, activation="residual")` looks under `activations:`. Without an entry there
is no constraint to apply, and XLA would choose one by itself; so the call is refused.

Bad:
    # resolver.constrain(x, activation="residaul")
    shardspec: 1
    mesh: {data: 8}
    rules:
      - batch -> data
    activations:
      residual: batch _ _

Good:
    # resolver.constrain(x, activation="residual")
    shardspec: 1
    mesh: {data: 8}
    rules:
      - batch -> data
    activations:
      residual: batch _ _
"""

from __future__ import annotations

from shardspec.diagnostics.codes import UNKNOWN_ACTIVATION as CODE

__all__ = ["CODE"]
