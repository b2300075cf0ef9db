"""The dtype codes of numpy, in `.npy` headers and zarr metadata, as our names."""

from __future__ import annotations

import re

from shardspec.ir.param import dtype_name

_CODE = re.compile(r"[<>|=]?([a-zA-Z])([0-9]{1,2})")
_KINDS = {"f": "float", "i": "int", "u": "uint", "c": "complex"}

#: Text and bytes: no arrays of a model, and left out as strings are anywhere.
_TEXT = re.compile(r"[<>|=]?[SUa][0-9]+")

#: Python objects: numpy pickles these.
_OBJECTS = re.compile(r"[<>|=]?O[0-9]*")


def numpy_dtype(code: str) -> str | None:
    """Return our name of `<f4`, `|b1` or `bfloat16`; None for what is no dtype of JAX.

    >>> numpy_dtype("<f4"), numpy_dtype("|b1"), numpy_dtype("bfloat16"), numpy_dtype("|V2")
    ('f32', 'bool', 'bf16', None)
    """
    found = _CODE.fullmatch(code)
    if not found:
        return dtype_name(code)
    if found[1] == "b":
        return "bool" if found[2] == "1" else None
    kind = _KINDS.get(found[1])
    return None if kind is None else dtype_name(f"{kind}{int(found[2]) * 8}")


def is_text(code: str) -> bool:
    """Say whether elements are strings."""
    return _TEXT.fullmatch(code) is not None


def is_object(code: str) -> bool:
    """Say whether elements are Python objects."""
    return _OBJECTS.fullmatch(code) is not None
