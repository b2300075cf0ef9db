"""The arrays of a model, from whatever file lists or holds them.

`reader` finds out what a path is and asks the one module that knows the format. None of them
reads weights, and none runs what a file holds.
"""

from __future__ import annotations

from shardspec.arrays.listing import names_path, read_arrays, read_manifest, read_named

__all__ = ["names_path", "read_arrays", "read_manifest", "read_named"]
