"""`extends` or `manifest` names nothing there is.

A plain name is a bundled preset (`shardspec compile --list-presets`) or a bundled manifest; a
file is named by its relative path with its suffix, `./base.yaml`. The rest of the spec is
checked without it, so other findings may be its consequences.

Bad:
    shardspec: 1
    extends: t5x/3d
    mesh: {data: 2, model: 4}
    arrays:
      mlp/kernel: bf16[embed=64 mlp=128]

Good:
    shardspec: 1
    extends: t5x/2d
    mesh: {data: 2, model: 4}
    arrays:
      mlp/kernel: bf16[embed=64 mlp=128]
"""

from __future__ import annotations

from shardspec.diagnostics.codes import UNKNOWN_PRESET as CODE

__all__ = ["CODE"]
