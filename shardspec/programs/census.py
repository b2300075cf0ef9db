"""What of a compiled program might send between devices, and is not counted.

The reader counts what it knows by name. Silence about anything else would be a zero, and a zero is
a proof; so every instruction is looked up here. It stays on its device by its opcode or, for a
custom call, by its target; it is counted; or it is unknown. There is no default that says nothing.

A Mosaic kernel stays on its device unless its configuration says that it communicates: libtpu
refuses a kernel that copies to another device and does not say so.
"""

from __future__ import annotations

import re

from shardspec.ir.operations import IN_HLO, op_info
from shardspec.ir.step import Figure
from shardspec.programs.hlo import Instruction

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
