"""A lock cannot be read: it was edited by hand, or a merge left its marks in it.

`spec.lock` is made by `shardspec lock` and read by `lock --check`, `diff`, `explain` and
`Resolver`. Two branches that moved arrays may conflict in it; whichever side is kept, the lock is
to be written anew from the merged spec.

Bad:
    # spec.lock
    target pod on tpu v5e 4x4
    mesh data = 4
    <<<<<<< ours
    wi/kernel : bf16[embed=8 mlp=8] = (none, tensor)

Good:
    # spec.lock, after `shardspec lock`
    wi/kernel : bf16[embed=8 mlp=8] = (fsdp, tensor)
"""

from __future__ import annotations

from shardspec.diagnostics.codes import BAD_LOCK as CODE

__all__ = ["CODE"]
