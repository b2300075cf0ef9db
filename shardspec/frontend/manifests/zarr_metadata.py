"""Shape and dtype of a zarr array, from the JSON beside its chunks: `.zarray` or `zarr.json`.

Source: the zarr specifications, versions 2 and 3.
"""

from __future__ import annotations

from shardspec.diagnostics import Diagnostic
from shardspec.frontend.manifests.arrays import damaged, no_dtype
from shardspec.frontend.manifests.json_text import parse_json, sizes_of
from shardspec.frontend.manifests.numpy_dtypes import numpy_dtype
from shardspec.ir.param import Shape

#: What the metadata of an array is called, in version 2 and in version 3.
METADATA = (".zarray", "zarr.json")

Zarr = tuple[Shape, str]


def parse_zarr(raw: bytes, array: str, name: str) -> Zarr | Diagnostic:
    """Return shape and dtype that a zarr array's metadata states.

    Args:
      array: the array's name, for messages.
      name: the checkpoint's.
    """
    data = parse_json(raw, f"the metadata of `{array}` in `{name}`")
    if isinstance(data, Diagnostic):
        return data
    shape = sizes_of(data.get("shape")) if isinstance(data, dict) else None
    if shape is None:
        return damaged(f"the metadata of `{array}` in `{name}` has no shape of sizes")
    code = data.get("dtype", data.get("data_type"))
    if not isinstance(code, str):
        return damaged(f"the metadata of `{array}` in `{name}` has no dtype")
    dtype = numpy_dtype(code)
    return no_dtype(array, code, name) if dtype is None else (shape, dtype)
