"""A manifest entry is not an array.

A manifest maps paths to arrays, each with every size as a number: `bf16[4096, 512]`, or
`{"shape": [4096, 512], "dtype": "bf16"}`. An entry that is something else is left out, and the
others are read.

Bad:
    # arrays.yaml, a manifest
    mlp/wi/kernel: bf16[64, 128]
    mlp/wo/kernel: [128, 64]

Good:
    # arrays.yaml, a manifest
    mlp/wi/kernel: bf16[64, 128]
    mlp/wo/kernel: bf16[128, 64]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import BAD_MANIFEST as CODE

__all__ = ["CODE"]
