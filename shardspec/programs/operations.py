"""What operations of a compiled program do: bytes they move, FLOPs, and what they might send.

An operand is read as far as the result needs it: a fusion that slices one layer out of a stack
reads that layer, a lookup reads its rows, and an update in place writes only the update. What
libtpu keeps on the chip (`S(1)` in a layout) moves nothing, nor does another name for an array.

The reader counts what it knows by name. Silence about anything else would be a zero, and a zero is
a proof; so every instruction is looked up here. It stays on its device by its opcode or, for a
custom call, by its target; it is counted; or it is unknown. There is no default that says nothing.

A Mosaic kernel stays on its device unless its configuration says that it communicates: libtpu
refuses a kernel that copies to another device and does not say so.

XLA prints products as `dot` for GPUs and CPUs, or as calls of cuBLAS. For TPUs they are
convolutions, in which a dimension of a batch is one of space that the window does not mix; only
taps on elements that are there count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from shardspec.ir.operations import IN_HLO, op_info
from shardspec.ir.spec import Shape
from shardspec.ir.step import Figure, OpKind
from shardspec.programs.calls import Calls
from shardspec.programs.hlo import Computation, HloArray, Instruction, number

#: What only devices that talk to each other have.
_AMONG = re.compile(r"\b(?:replica_groups|channel_id|source_target_pairs)=")
#: Each begins, goes on and ends as one of its own name.
_PARTS = ("start", "update", "done")
#: What a program has of these it has of the other end, too: what is sent counts.
_OTHER_ENDS = frozenset(("recv", "recv-done", "send-done"))
_TARGET = re.compile(r'\bcustom_call_target="([^"]*)"')
#: Custom calls that stay on their device, by target: marks, memory, and kernels of the compilers.
#: `TODO(..)` is how libtpu marks what SparseCores do: a computation that the program holds.
_OWN_CALL_NAMES = """
AllocateBuffer ApproxTopK AssumeGatherIndicesInBound AsyncCollectiveDone AsyncCollectiveStart
Cholesky CompactWyHelper ConcatBitcast CreateBuffer Eigh EighTpu GatherScatterIndicesBitpacked
InvertDiagBlocksLowerTriangular InvertDiagBlocksUpperTriangular LayoutConstraint LuDecomposition
LuRealDecompositionBlock MoveToDevice MoveToHost PadToStatic PartialReduce Pin
ProductOfElementaryHouseholderReflectors Qr QrDecompositionBlock ResizeBilinear ResizeBilinearGrad
ResizeNearest ResizeNearestGrad SPMDFullToShardShape SPMDShardToFullShape Sharding SliceId
SliceToDynamic TODO(b/522284627) TopK Unpin X64Combine X64SplitHigh X64SplitLow ZeroCrop __gpu$TopK
annotate_device_placement cu_lu_pivots_to_permutation cu_threefry2x32 cu_threefry2x32_ffi
"""
_OWN_CALLS = frozenset(_OWN_CALL_NAMES.split())
#: Families of them: NVIDIA's libraries, LAPACK, oneDNN, and calls of Python on the host.
_OWN_FAMILIES = (
    *("__cublas$", "__cudnn$", "__cusolver$", "__cusparse$", "__cub$", "xla.gpu.ext.cub_"),
    *("cublas_", "cusolver_", "cusparse_", "lapack_", "__onednn$"),
    *("xla_ffi_python_", "xla_python_", "xla_ffi_partitioned_python_"),
)
#: Kernels that a user writes.
_TRITON = ("__gpu$xla.gpu.triton", "__triton", "triton_kernel_call")
_MOSAIC_TPU, _MOSAIC_GPU = "tpu_custom_call", "mosaic_gpu"
#: By what a kernel says that it reaches other devices.
_REACHES = re.compile(r'"has_communication":\s*true|"collective_id":\s*"?\d')
_GPU_STAYS = re.compile(r"\buses_xla_collective_metadata = false\b")

#: A foreign call may do anything.
ALL: tuple[Figure, ...] = ("sends", "flops", "memory", "time")
SENDS: tuple[Figure, ...] = ("sends", "time")
#: What is unknown of an instruction: its name, why, and the figures that it touches.
Uncounted = tuple[str, str, tuple[Figure, ...]]


def base(operation: str) -> str:
    """Return the operation that one is a part of.

    >>> base("all-gather-start"), base("copy-done"), base("add")
    ('all-gather', 'copy', 'add')
    """
    whole, _, end = operation.rpartition("-")
    return whole if end in _PARTS else operation


def target_of(each: Instruction) -> str:
    """Return what a custom call calls, or an empty text."""
    found = _TARGET.search(each.attributes)
    return found.group(1) if found else ""


def uncounted(each: Instruction, *, crosses: bool = False) -> Uncounted | None:
    """Return what is unknown of an instruction; None where it is local, or counted.

    Args:
      crosses: whether it is a send to other slices that is counted.

    Invariants:
      census: whatever has replica groups, a channel or pairs, and no known name, is unknown.
    """
    operation = base(each.operation)
    if operation in IN_HLO or each.operation in _OTHER_ENDS:
        return None
    if operation == "send":
        return None if crosses or _is_to_host(each) else (operation, _NO_ENDS, SENDS)
    if operation == "ragged-all-to-all":
        return operation, "how much each device sends is in its operands", SENDS
    if operation == "custom-call":
        return _of_call(each)
    if not op_info(operation).is_known:
        return operation, "shardspec does not know this operation", SENDS
    if _AMONG.search(each.bare):
        return operation, "it names devices, which no operation of this name does", SENDS
    return None


_NO_ENDS = "the devices that it sends to cannot be read"


def is_local(each: Instruction) -> bool:
    """Say whether an instruction stays on its device, whoever runs it."""
    is_sent = base(each.operation) in IN_HLO or each.operation in _OTHER_ENDS
    return not is_sent and uncounted(each) is None


def _is_to_host(each: Instruction) -> bool:
    """Say whether a send is to the device's own host, as for `jax.debug.print`."""
    return "is_host_transfer=true" in each.bare and "xla_megascale" not in each.attributes


def _of_call(each: Instruction) -> Uncounted | None:
    """Return what is unknown of a custom call."""
    target = target_of(each)
    if _AMONG.search(each.bare):
        return f"custom-call {target}".rstrip(), "it names devices", ALL
    return unknown_call(target, each.attributes)


def unknown_call(target: str, stated: str) -> Uncounted | None:
    """Return what is unknown of a custom call; None where it surely stays on its device.

    Args:
      stated: what else the program says of it, the configuration of its backend above all.
    """
    what = f"custom-call {target}".rstrip()
    if target in _OWN_CALLS or target.startswith(_OWN_FAMILIES):
        return None
    if target == _MOSAIC_TPU:
        if '"custom_call_config"' not in stated:
            return what, "the kernel is not in the program", ALL
        is_local = not _REACHES.search(stated)
        return None if is_local else (what, "the kernel copies to other devices", SENDS)
    if target.startswith(_TRITON):
        is_local = "nvshmem" not in stated
        return None if is_local else (what, "the kernel calls NVSHMEM", SENDS)
    if target.startswith(_MOSAIC_GPU):
        stays = _GPU_STAYS.search(stated) is not None
        is_local = stays and "nvshmem" not in stated
        return None if is_local else (what, "the kernel may reach other devices", SENDS)
    return what, "shardspec does not know whether it stays on its device", ALL


#: The memory of the host, by XLA's number of it; 0 is that of the device.
HOST = 5
#: Operations that move nothing, or whose computations do.
_SILENT_NAMES = """
add-dependency after-all bitcast call conditional constant domain get-dimension-size
get-tuple-element iota opt-barrier parameter partition-id recv recv-done replica-id send send-done
tuple while
"""
_SILENT = frozenset(_SILENT_NAMES.split())
#: Custom calls that mark, allocate or rename.
_MARK_NAMES = """
AllocateBuffer AssumeGatherIndicesInBound AsyncCollectiveDone AsyncCollectiveStart ConcatBitcast
CreateBuffer GatherScatterIndicesBitpacked LayoutConstraint Pin SPMDFullToShardShape
SPMDShardToFullShape Sharding Unpin annotate_device_placement
"""
_MARKS = frozenset(_MARK_NAMES.split())
#: Operations that read of their first operand what they give.
_PICKS = frozenset(("slice", "dynamic-slice", "gather"))
#: How many names of one array are followed.
_FAR = 50


class _Inside(NamedTuple):
    """What a fusion reads of its parameters, and what it writes of its results, in elements."""

    read: dict[int, float]
    written: list[float]


@dataclass(slots=True)
class Traffic:
    """The traffic between a device and its memory, by operation.

    Attributes:
      is_tpu: whether layouts name memory on the chip; on GPUs other numbers are HBM, too.
      to_host: whether something was moved to the memory of the host or from it.
    """

    calls: Calls
    is_tpu: bool
    to_host: bool = False
    _inside: dict[str, _Inside] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in reversed(self.calls.times):  # what is called comes first
            site, body = self.calls.sites.get(name), self.calls.program.computations.get(name)
            if site is not None and body is not None and site.caller.operation == "fusion":
                self._inside[name] = self._opened(body)

    def of(self, body: Computation, each: Instruction) -> float:
        """Return the bytes that an instruction of a computation moves each time it runs."""
        if _is_silent(each):
            return 0.0
        read: dict[str, float] = {}
        for name, count in self._asked(body, each, _size(each)):
            read[name] = read.get(name, 0.0) + count
        found = ((body.instructions.get(name), count) for name, count in read.items())
        moved = sum(self._bytes(one.arrays[:1], [count]) for one, count in found if one)
        return moved + self._bytes(each.arrays, self._written(body, each))

    def _bytes(self, arrays: tuple[HloArray, ...], counts: list[float]) -> float:
        """Return the bytes in memory of so many elements of some arrays."""
        moved = 0.0
        for array, count in zip(arrays, counts, strict=False):
            self.to_host |= array.space == HOST and count > 0
            if array.space == 0 or not (self.is_tpu or array.space == HOST):
                moved += array.bytes * min(1.0, count / max(1, math.prod(array.shape)))
        return moved

    def _opened(self, body: Computation) -> _Inside:
        root = body.root
        if root is None:
            return _Inside({}, [])
        needed = {root.name: _size(root)}
        for each in reversed(body.instructions.values()):
            if each.name in needed and not _is_sent(each):
                for name, count in self._asked(body, each, needed[each.name]):
                    whole = _size(body.instructions.get(name))
                    needed[name] = min(whole, needed.get(name, 0.0) + count)
        read = {at: needed.get(each.name, 0.0) for at, each in body.parameters.items()}
        return _Inside(read, self._written(body, root))

    def _asked(
        self, body: Computation, each: Instruction, needed: float
    ) -> Iterator[tuple[str, float]]:
        """Yield how many elements of its operands an instruction reads to give so many."""
        kind, names = each.operation, each.operands
        sizes = [_size(body.instructions.get(name)) for name in names]
        if kind == "fusion" and each.called:
            read = self._inside.get(each.called[0], _Inside({}, [])).read
            sizes = [read.get(at, 0.0) for at in range(len(names))]
        elif kind in _PICKS:
            sizes[:1] = [needed]
        elif kind == "dynamic-update-slice":
            sizes[:1] = [0.0]
        elif kind == "scatter":
            sizes[: len(names) // 2] = sizes[len(names) // 2 + 1 :]
        elif kind == "tuple":
            given = (_named(body, name) for name in names)
            pairs = zip(given, sizes, strict=False)
            sizes = [0.0 if one is None or one.operation == "parameter" else n for one, n in pairs]
        elif op_info(kind).is_elementwise or op_info(base(kind)).view == "whole":
            whole = _size(each)
            sizes = [needed if size == whole else size for size in sizes]
        yield from zip(names, sizes, strict=False)

    def _written(self, body: Computation, each: Instruction) -> list[float]:
        """Return how many elements of each of its results an instruction writes."""
        found = _named(body, each.name) or each
        kind, names = found.operation, found.operands
        sizes = [_size(body.instructions.get(name)) for name in names]
        if kind == "fusion" and found.called:
            return self._inside.get(found.called[0], _Inside({}, [])).written
        if kind == "tuple":
            return [n for name in names for n in self._element(body, name)]
        if kind == "parameter" or _is_sent(found):
            return [0.0] * len(found.arrays)
        if kind == "dynamic-update-slice":
            return sizes[1:2]
        if kind == "scatter":
            return sizes[len(names) // 2 + 1 :]
        whole = [float(math.prod(array.shape)) for array in found.arrays]
        has_scratch = kind == "copy-start" or target_of(found).startswith("__cu")
        return whole[:1] if has_scratch else whole

    def _element(self, body: Computation, name: str) -> list[float]:
        found = _named(body, name)
        if found is None or found.operation == "get-tuple-element":
            return [_size(found)]
        return [_size(found)] if found.operation == "tuple" else self._written(body, found)


def _named(body: Computation, name: str) -> Instruction | None:
    """Return the instruction that a name stands for, other names of one array looked through."""
    found = body.instructions.get(name)
    for _ in range(_FAR):
        if found is None or found.operation != "bitcast" or not found.operands:
            break
        found = body.instructions.get(found.operands[0])
    return found


def _size(each: Instruction | None) -> float:
    return 0.0 if each is None or not each.arrays else float(math.prod(each.arrays[0].shape))


def _is_sent(each: Instruction) -> bool:
    """Say whether an instruction only sends, marks or allocates."""
    return base(each.operation) in IN_HLO or (
        each.operation == "custom-call" and target_of(each) in _MARKS
    )


def _is_silent(each: Instruction) -> bool:
    return (
        each.operation in _SILENT or _is_sent(each) or each.operation.endswith(("-done", "-update"))
    )


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
