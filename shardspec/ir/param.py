"""The arrays of a model: path, shape, dtype and, where they carry them, logical axes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from shardspec.diagnostics import SourceFile, Span
from shardspec.ir.partition import PartitionSpec

Shape = tuple[int, ...]
LogicalAxes = tuple[str | None, ...]

#: What a machine counts in 64 bits with a sign, as XLA does: elements, devices, sizes.
MOST_ELEMENTS = 2**63 - 1

#: Bits of one element by the short name of its dtype. Source: the names' own widths.
DTYPE_BITS: dict[str, int] = {
    "bool": 8,
    **{f"{kind}{bits}": bits for kind in "su" for bits in (2, 4, 8, 16, 32, 64)},
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
    "c64": 64,
    "c128": 128,
    **dict.fromkeys(("f8_e3m4", "f8_e4m3", "f8_e4m3fn", "f8_e4m3fnuz", "f8_e4m3b11fnuz"), 8),
    **dict.fromkeys(("f8_e5m2", "f8_e5m2fnuz", "f8_e8m0fnu"), 8),
    "f4_e2m1fn": 4,
    "key<fry>": 64,
    "key<rbg>": 128,
    "key<urbg>": 128,  # jax.random.key, by implementation
}

#: Long names (numpy, ml_dtypes, safetensors) to the short ones.
DTYPE_ALIASES: dict[str, str] = {
    "bfloat16": "bf16",
    **{f"float{bits}": f"f{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"s{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"i{bits}": f"s{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (2, 4, 8, 16, 32, 64)},
    **{f"complex{bits}": f"c{bits}" for bits in (64, 128)},
    **{name.replace("f8_", "float8_"): name for name in DTYPE_BITS if name.startswith("f8_")},
    **{name.replace("f8_", "f8"): name for name in DTYPE_BITS if name.startswith("f8_")},
    "float4_e2m1fn": "f4_e2m1fn",
    "pred": "bool",
}


def dtype_name(name: str) -> str | None:
    """Return the short name of a dtype (`bfloat16` and `BF16` are `bf16`), None if unknown."""
    lowered = name.lower()
    lowered = DTYPE_ALIASES.get(lowered, lowered)
    return lowered if lowered in DTYPE_BITS else None


def array_bytes(shape: Shape, dtype: str) -> int:
    """Return the bytes of an array, the last byte filled up."""
    return -(-math.prod(shape) * DTYPE_BITS.get(dtype, 32) // 8)


@dataclass(frozen=True, slots=True)
class Param:
    """One array of a model.

    Attributes:
      path: `/`-joined, made by `jax_backend.paths` for live trees.
      dtype: a key of `DTYPE_BITS`, or a name that is not known here (then 4 bytes).
      logical_axes: the names the array itself carries, one per dimension, None for a
        dimension without a name; None where it carries none at all.
      span: the manifest entry it came from.
    """

    path: str
    shape: Shape
    dtype: str = "f32"
    logical_axes: LogicalAxes | None = None
    span: Span | None = field(default=None, compare=False, repr=False)

    @property
    def rank(self) -> int:
        """Return the number of dimensions."""
        return len(self.shape)

    @property
    def element_count(self) -> int:
        """Return the number of elements of the whole array."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        """Return the bytes of the whole array."""
        return array_bytes(self.shape, self.dtype)

    def __str__(self) -> str:
        """Return `bf16[4096, 512]`."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


Params = tuple[Param, ...]


class Arrays(NamedTuple):
    """The arrays that a file lists or holds.

    Attributes:
      partitions: path and PartitionSpec of the arrays whose layout the file states (T5X, Orbax).
      sources: the texts among the files that were read; spans of `params` lie in them.
    """

    params: Params = ()
    partitions: tuple[tuple[str, PartitionSpec], ...] = ()
    sources: tuple[SourceFile, ...] = ()
