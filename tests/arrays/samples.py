"""Checkpoints as their own libraries write them, small."""

from __future__ import annotations

import io
import json
from functools import cache
from pathlib import Path
from typing import Any

#: What every sample holds, in the paths of a plain tree.
SHAPES = {
    "encoder/layers_0/mlp/wi/kernel": ((4, 6), "float32"),
    "encoder/layers_1/mlp/wi/kernel": ((4, 6), "float32"),
    "encoder/norm/scale": ((4,), "bfloat16"),
    "mask": ((3, 1), "bool"),
    "ids": ((2,), "int8"),
    "step": ((), "int32"),
}
SHORT = {"float32": "f32", "bfloat16": "bf16", "bool": "bool", "int8": "s8", "int32": "s32"}

EXPECTED = {path: (shape, SHORT[dtype]) for path, (shape, dtype) in SHAPES.items()}


def tree(*, joined: bool = False) -> dict[str, Any]:
    """Return the sample as a tree, or as one dict with its paths for keys."""
    import ml_dtypes  # noqa: F401
    import numpy as np

    root: dict[str, Any] = {}
    for path, (shape, dtype) in SHAPES.items():
        array = np.zeros(shape, np.dtype(dtype))
        *parents, last = [path] if joined else path.split("/")
        node = root
        for parent in parents:
            node = node.setdefault(parent, {})
        node[last] = array
    return root


@cache
def safetensors_bytes() -> bytes:
    from safetensors.numpy import save

    return save(tree(joined=True), metadata={"format": "np"})


@cache
def npz_bytes(compressed: bool = False) -> bytes:
    import numpy as np

    stream = io.BytesIO()
    arrays = {k: v for k, v in tree(joined=True).items() if v.dtype != "bfloat16"}
    (np.savez_compressed if compressed else np.savez)(stream, **arrays)
    return stream.getvalue()


@cache
def msgpack_bytes() -> bytes:
    import flax.serialization

    return flax.serialization.to_bytes(tree())


MODEL_INFO = (
    "Variable decoder/logits_dense/kernel                                      "
    "size 131072       shape (embed=64, vocab=2048)                   "
    "partition spec (None, 'model')\n"
    "Variable decoder/norm/scale  size 64  shape (64,)  partition spec PartitionSpec(None,)\n"
    "Variable decoder/both        size 64  shape (embed=8, None=8)  "
    "partition spec (('replica', 'data'), None)\n"
    "Variable    decoder/nothing                 None\n"
    "Total number of parameters: 131200\n"
    "\n"
    "State    step                               size 1            shape ()\n"
    "Variable param_states/decoder/norm/scale/v  size 64  shape (64,)  partition spec (None,)\n"
)


def header(arrays: dict[str, Any], size: int = 0) -> bytes:
    """Return a safetensors file with this header and `size` bytes of weights."""
    raw = json.dumps(arrays).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(size)


def entry(shape: list[int], start: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def write(folder: Path, name: str, data: bytes | str) -> str:
    """Write a file and return its path."""
    path = folder / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return str(path)
