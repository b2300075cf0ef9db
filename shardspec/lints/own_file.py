"""A plan, a lock or a list of arrays stands where a spec should.

shardspec writes files of its own: plans (`compile -o`, `--format json`), locks, manifests. None of
them is a spec, and reading one as a spec would find a fault in every line. A manifest is named by
`manifest:` in a spec, or on the command line; plans and locks are compared by `shardspec diff`.

Bad:
    shardspec-arrays: 1
    arrays:
      mlp/kernel: bf16[4096, 512]

Good:
    shardspec: 1
    mesh: {tensor: 4}
    rules: [mlp -> tensor]
    params: {mlp/kernel: _ mlp}
    arrays:
      mlp/kernel: bf16[4096, 512]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import OWN_FILE as CODE

__all__ = ["CODE"]
