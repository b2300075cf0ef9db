"""T5X's `DataLayout` and the chunks under it, by T5X's names."""

from __future__ import annotations

from shardspec.jax_backend.data_layout import (
    DataLayout,
    LocalChunker,
    LocalChunkInfo,
    MeshAxes,
    get_data_layout,
    names_of,
)

__all__ = [
    "DataLayout",
    "LocalChunkInfo",
    "LocalChunker",
    "MeshAxes",
    "get_data_layout",
    "names_of",
]
