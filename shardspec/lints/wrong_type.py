"""A value has the wrong type or form.

A list stands where names do, a number where text does, an override says two things at once or
nothing. The value is left out, and the rest of the spec is still checked. A `mesh` without a name
is for a spec with one machine: beside `targets` it would be one more of them, so it is refused.

Bad:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    params:
      "**/wi/kernel": _ mlp
      "**/wo/kernel": [mlp, _]
    arrays:
      mlp/wi/kernel: bf16[64, 128]

Good:
    shardspec: 1
    mesh: {data: 2, tensor: 4}
    rules:
      - mlp -> tensor
    params:
      "**/wi/kernel": _ mlp
      "**/wo/kernel": mlp _
    arrays:
      mlp/wi/kernel: bf16[64, 128]
      mlp/wo/kernel: bf16[128, 64]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import WRONG_TYPE as CODE

__all__ = ["CODE"]
