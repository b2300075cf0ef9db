"""A lock is older than the files it was made from.

`spec.lock` holds a digest of every file that the spec was made of: itself, presets, manifests. If
one of them changed since, the lock may still say the same, or not: `shardspec lock --check`
compares, and `shardspec lock` writes it anew. A preset that changes with a new version of
shardspec shows up here too.

Bad:
    # git diff --stat
    spec.yaml | 2 +-

Good:
    # git diff --stat, after `shardspec lock`
    spec.lock | 4 ++--
    spec.yaml | 2 +-
"""

from __future__ import annotations

from shardspec.diagnostics.codes import STALE_LOCK as CODE

__all__ = ["CODE"]
