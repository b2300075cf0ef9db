"""What a compiled program computes: FLOPs and einsums of products, as each compiler prints them.

XLA prints products as `dot` for GPUs and CPUs, or as calls of cuBLAS. For TPUs they are
convolutions, in which a dimension of a batch is one of space that the window does not mix; only
taps on elements that are there count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from shardspec.ir.operations import op_info
from shardspec.ir.spec import Shape
from shardspec.ir.step import OpKind
from shardspec.programs.hlo import Instruction, number
from shardspec.programs.moved import target_of

#: How the targets of custom calls begin that are kernels; the others are marks, or move memory.
_KERNELS = ("tpu_custom_call", "__cu", "__onednn", "__triton", "triton", "mosaic", "__gpu$")
#: What a call of cuBLAS contracts of its first operand.
_CONTRACTED = re.compile(r'"lhs_contracting_dimensions":\[([\d",\s]*+)\]')
_WINDOW = re.compile(r"\bwindow=\{([^{}]*+)\}")
_LABELS = re.compile(r"\bdim_labels=([a-z\d?]+)_([a-z\d?]+)->([a-z\d?]+)")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
#: Where both are more, the window and its places, so many of them stand for all.
_MOST_TAPS = 1 << 14


def kind_of(each: Instruction) -> OpKind | None:
    """Return what an instruction computes, None for one that a compiler fuses away."""
    if each.operation == "custom-call":
        if _gemm(each) is not None:
            return "einsum"
        return "kernel" if target_of(each).startswith(_KERNELS) else None
    return op_info(each.operation).kind


def flops_of(each: Instruction, operands: Sequence[Shape], result: Shape) -> int:
    """Return the FLOPs each time a product runs; 0 of what is none."""
    if len(operands) < 2:
        return 0
    gemm = _gemm(each)
    if each.operation == "dot" or gemm is not None:
        contracted = each.numbers("lhs_contracting_dims") if gemm is None else gemm
        sizes = (operands[0][at] for at in contracted if at < len(operands[0]))
        return 2 * math.prod(result) * math.prod(sizes)
    return _convolution_flops(each, operands, result) if each.operation == "convolution" else 0


def _gemm(each: Instruction) -> tuple[int, ...] | None:
    """Return what a call of cuBLAS contracts of its first operand; None of anything else."""
    if each.operation != "custom-call" or not target_of(each).startswith("__cublas$"):
        return None
    stated = _CONTRACTED.search(each.attributes)
    return None if stated is None else tuple(map(number, re.findall(r"\d+", stated.group(1))))


def einsum_of(each: Instruction, ranks: Sequence[int]) -> str:
    """Return a product as an einsum, spelt anew; empty of what is none."""
    if each.operation != "dot" or len(ranks) < 2 or max(ranks) > len(_LETTERS) // 2:
        return ""
    lhs, rhs = each.numbers("lhs_contracting_dims"), each.numbers("rhs_contracting_dims")
    lhs_batch, rhs_batch = each.numbers("lhs_batch_dims"), each.numbers("rhs_batch_dims")
    pairs = zip((*lhs, *lhs_batch), (*rhs, *rhs_batch), strict=False)
    if any(a >= ranks[0] or b >= ranks[1] for a, b in pairs):
        return ""
    return einsum((lhs, rhs, lhs_batch, rhs_batch), ranks)


def einsum(dims: Sequence[Sequence[int]], ranks: Sequence[int]) -> str:
    """Return a product of two arrays as an einsum, spelt anew.

    Args:
      dims: what is contracted and batched: left, right, left, right.

    >>> einsum(([1], [0], [], []), (2, 2))
    'ab,bc->ac'
    """
    lhs, rhs, lhs_batch, rhs_batch = dims
    pairs = list(zip((*lhs, *lhs_batch), (*rhs, *rhs_batch), strict=False))
    left = _LETTERS[: ranks[0]]
    shared = {b: left[a] for a, b in pairs}
    fresh = iter(_LETTERS[ranks[0] :])
    right = "".join(shared.get(at) or next(fresh) for at in range(ranks[1]))
    used = {left[a] for a, _ in pairs}
    kept = "".join(left[at] for at in lhs_batch if at < ranks[0])
    return f"{left},{right}->{kept}" + "".join(c for c in left + right if c not in used)


class Window(NamedTuple):
    """One dimension of the window of a convolution, as XLA has it; all but `low` are positive."""

    size: int
    stride: int
    low: int
    lhs_dilate: int
    rhs_dilate: int


def _convolution_flops(each: Instruction, operands: Sequence[Shape], result: Shape) -> int:
    labels = _LABELS.search(each.bare)
    if labels is None:
        return 0
    inputs, kernel, output = (
        dict(zip(text, shape, strict=False))
        for text, shape in zip(labels.groups(), (*operands[:2], result), strict=True)
    )
    counts = (
        taps(dim, inputs.get(str(at), 1), output.get(str(at), 1))
        for at, dim in enumerate(_window(each))
    )
    # of groups of features or of batches, each result has what one group of the kernel gives
    features: int = kernel.get("i", 1) * output.get("f", 1) * output.get("b", 1)
    return 2 * math.prod(counts) * features


def _window(each: Instruction) -> Iterator[Window]:
    found = _WINDOW.search(each.bare)
    fields = (
        dict(part.split("=", 1) for part in found.group(1).split() if "=" in part) if found else {}
    )
    sizes = fields.get("size", "").split("x")
    for at in range(len(sizes)):
        low = _part(fields, "pad", at, 0)
        size, stride, spread, apart = (
            max(1, _part(fields, name, at, 1))
            for name in ("size", "stride", "lhs_dilate", "rhs_dilate")
        )
        yield Window(size, stride, low, spread, apart)


def _part(fields: dict[str, str], name: str, at: int, otherwise: int) -> int:
    parts = fields.get(name, "").split("x")
    text = parts[at].partition("_")[0] if at < len(parts) else ""
    if not text.lstrip("-").isdecimal():
        return otherwise
    return -number(text[1:]) if text.startswith("-") else number(text)


@lru_cache(maxsize=4096)
def taps(dim: Window, size: int, count: int) -> int:
    """Return how often a tap of the window falls on an element, over all places of it.

    Place `p` and tap `t` fall on element `e` where `p * stride + t * rhs_dilate - low` is
    `e * lhs_dilate`. For one of the shorter range, those of the other are evenly spaced.

    Args:
      size: elements of the dimension.
      count: places of the window.
    """
    near, far = sorted(((count, dim.stride), (dim.size, dim.rhs_dilate)))
    every = max(1, -(-near[0] // _MOST_TAPS))
    while math.gcd(every, dim.lhs_dilate) > 1:
        every += 1
    last = (size - 1) * dim.lhs_dilate
    period, start = _solved(far[1], dim.lhs_dilate)
    common = dim.lhs_dilate // period
    found = 0
    looked_at = range(0, near[0], every)
    for at in looked_at:
        low = dim.low - at * near[1]  # far * step is from `low` to `low + last`
        if low % common:
            continue
        first = max(0, -(-low // far[1]))
        first += (low // common * start - first) % period
        beyond = min(far[0] - 1, (low + last) // far[1])
        found += max(0, (beyond - first) // period + 1)
    return found * near[0] // max(1, len(looked_at))


def _solved(step: int, dilate: int) -> tuple[int, int]:
    """Return the period of multiples of `step` among those of `dilate`, and its inverse there."""
    common = math.gcd(step, dilate)
    period = dilate // common
    return period, pow(step // common, -1, period) if period > 1 else 0
