"""The arrays of a model, from whatever file lists or holds them.

`reader` finds out what a path is and asks the one module that knows the format. None of them
reads weights, and none runs what a file holds.
"""

from __future__ import annotations

from shardspec.frontend.manifests.arrays import Arrays
from shardspec.frontend.manifests.listing import read_manifest
from shardspec.frontend.manifests.reader import read_arrays

__all__ = ["Arrays", "read_arrays", "read_manifest"]
