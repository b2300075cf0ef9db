"""Bytes on a device: of all that it must hold, and of one array in the tiles of a TPU.

What a device must hold before the first activation: parameters, gradients, optimizer state.

A lower bound, and an exact one: shapes, dtypes and layouts are known before anything runs.
Activations and the compiler's buffers come on top. Every figure keeps the arrays it comes from.
What programs have of a device's memory, `limit`, and whether they have room, `has_room`, is said
here alone.

What an array takes in the memory of a TPU, which is handed out in tiles.

A tile has 8 rows (sublanes) of 128 elements (lanes). The compiler chooses which dimension runs
along the lanes and which along the sublanes, takes the two that waste least, fills them up to
whole tiles, and takes a lower tile (4, 2, 1 rows; as many as fill 32 bits of a column) for fewer
rows. So a short dimension costs nothing while two others fill the tiles. A vector lies in tiles of
1,024 elements, a short one and a number in stretches of 512 bytes.

Source: Cloud TPU performance guide (cloud.google.com/tpu/docs/performance-guide), padding to
8 x 128; XLA, tiled layout (openxla.org/xla/tiled_layout); the layouts and argument sizes that
libtpu 0.0.52 compiles for v5e and v5p, to which tests/differential/test_libtpu_tiles.py holds it.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache

from shardspec.diagnostics.words import binary_bytes, grouped
from shardspec.ir import spec as specs
from shardspec.ir.plan import Alike, Dims, ParamSharding, ShardingPlan
from shardspec.resolve.match import path_matcher
from shardspec.resolve.state import data_axes, extra_axes, moment_name, state_axes, without_axes


class Held(StrEnum):
    """What a device holds of an array."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    MOMENTS = "optimizer state"
    CACHES = "caches"


@dataclass(frozen=True, slots=True)
class Figure:
    """The bytes that one device holds of arrays that are alike.

    Attributes:
      arrays: as they are laid out: as the parameters, or split further by ZeRO; and their memory.
      copies: arrays of this shape for each parameter (2 moments for Adam).
      is_tiled: whether the memory is that of a TPU, which is handed out in tiles.
    """

    held: Held
    arrays: Alike = field(repr=False)
    copies: int = 1
    is_tiled: bool = False

    @property
    def bytes(self) -> int:
        """Return the bytes of the largest shards of all the arrays, tiles filled up."""
        tiled = None
        if self.is_tiled and self.arrays.memory_kind is None:
            tiled = tiled_bytes(self.arrays.shard_shape, self.arrays.dtype)
        if tiled is None:
            return self.arrays.device_bytes * self.copies
        return tiled * self.arrays.count * self.copies

    @property
    def global_bytes(self) -> int:
        """Return the bytes of the whole arrays, each counted once."""
        return self.arrays.total_bytes * self.copies


@dataclass(frozen=True, slots=True)
class Memory:
    """What one device of a target holds, figure by figure, and apart from it what its host does.

    Attributes:
      figures: of both; `bytes` and what is beside it are those of the device.
      hbm_bytes: what JAX has of a device, `limit`; None where it is not known, or is the host's.
      hbm_share: the share of the device that this is, where JAX allocates one.

    Invariants:
      floor: bytes * devices >= global_bytes.
    """

    figures: tuple[Figure, ...]
    hbm_bytes: int | None = None
    hbm_share: float | None = None

    @property
    def bytes(self) -> int:
        """Return the sum of the figures of device memory."""
        return sum(figure.bytes for figure in self.on_device)

    @property
    def host_bytes(self) -> int:
        """Return the sum of the figures of host memory, for one device."""
        return sum(figure.bytes for figure in self.on_host)

    @property
    def global_bytes(self) -> int:
        """Return what all devices together must hold, if nothing stood twice."""
        return sum(figure.global_bytes for figure in self.on_device)

    @property
    def on_device(self) -> tuple[Figure, ...]:
        """Return the figures of what lies in the memory of the device."""
        return tuple(each for each in self.figures if each.arrays.memory_kind is None)

    @property
    def on_host(self) -> tuple[Figure, ...]:
        """Return the figures of what lies in the memory of its host."""
        return tuple(each for each in self.figures if each.arrays.memory_kind is not None)

    @property
    def fits(self) -> bool:
        """Say whether a device has room for it, as far as that is known."""
        return has_room(self.bytes, self.hbm_bytes) is not False

    @property
    def by_kind(self) -> dict[Held, int]:
        """Return the bytes of each kind that there is: `memory.by_kind["parameters"]`."""
        return _by_kind(self.on_device)

    @property
    def host_by_kind(self) -> dict[Held, int]:
        """Return the bytes of each kind that there is in host memory, for one device."""
        return _by_kind(self.on_host)

    def of(self, held: Held) -> tuple[Figure, ...]:
        """Return the figures of one kind in device memory."""
        return tuple(figure for figure in self.on_device if figure.held is held)

    def __str__(self) -> str:
        """Return a line: `parameters 1.00 MiB, gradients 1.00 MiB: 2.00 MiB per device`."""
        kinds, host = map(_kinds_text, (self.by_kind, self.host_by_kind))
        room = f" of {room_text(self.hbm_bytes, self.hbm_share)}" if self.hbm_bytes else ""
        apart = f"; in host memory {host}" if host else ""
        return f"{kinds or 'no arrays'}: {binary_bytes(self.bytes)}{room} per device{apart}"


def _by_kind(figures: Iterable[Figure]) -> dict[Held, int]:
    found: dict[Held, int] = {}
    for figure in figures:
        found[figure.held] = found.get(figure.held, 0) + figure.bytes
    return found


def _kinds_text(sizes: Mapping[Held, int]) -> str:
    return ", ".join(f"{held} {binary_bytes(size)}" for held, size in sizes.items())


def memory(plan: ShardingPlan, *, state: specs.StatePolicy | None = None) -> Memory:
    """Return what a device holds, with gradients and optimizer state where `state:` is given.

    Only arrays of floating-point numbers that are not frozen have gradients and moments.

    Args:
      state: in place of the spec's own, for what-ifs.
    """
    policy = plan.spec.state if state is None else state
    held_by = gradients_of(replace(plan.spec, state=policy), plan.mesh)
    if policy is not None and any(arrays.first.is_state for arrays in plan.alike):
        policy = replace(policy, moments=0)  # the plan lists them
    figures: list[Figure] = []
    for arrays in plan.alike:
        dims = arrays.dims
        held = Held.MOMENTS if arrays.first.is_state else Held.PARAMETERS
        held = Held.CACHES if arrays.first.param.is_cache else held
        figures.append(Figure(held, arrays.laid_out(dims)))
        if held is Held.PARAMETERS and policy is not None and arrays.first.is_trained:
            gradients = arrays.laid_out(held_by.held(dims), held_by.dtype)
            figures.append(Figure(Held.GRADIENTS, replace(gradients, memory_kind=None)))
            moments = arrays.laid_out(held_by.updated(dims), policy.dtype)
            figures += _moments(plan.spec, moments, policy.moments)
    if is_tiled(plan.target):
        figures = [replace(figure, is_tiled=True) for figure in figures]
    return Memory(tuple(figures), limit(plan.target), share_of(plan.target))


def _moments(spec: specs.Spec, arrays: Alike, count: int) -> Iterator[Figure]:
    """Yield the moments of parameters, those of each memory apart."""
    if not spec.memory:
        if count:
            yield Figure(Held.MOMENTS, arrays, count)
        return

    def kinds_of(owner: ParamSharding) -> tuple[specs.HostMemory | None, ...]:
        return tuple(_moment_memory(spec, owner, number) for number in range(count))

    for kinds, alike in grouped(arrays.shardings, kinds_of).items():
        for kind, copies in Counter(kinds).items():
            moments = replace(arrays, shardings=tuple(alike), memory_kind=kind)
            yield Figure(Held.MOMENTS, moments, copies)


def _moment_memory(spec: specs.Spec, owner: ParamSharding, moment: int) -> specs.HostMemory | None:
    """Return where a moment lies: where an entry of `memory:` says, else beside its parameter."""
    matcher = path_matcher(tuple(entry.pattern for entry in spec.memory))
    index = matcher.first_match(moment_name(owner.path, moment))
    return owner.memory_kind if index is None else specs.host_memory(spec.memory[index].memory)


#: Of a GPU's memory, what JAX allocates where nothing tells it otherwise.
JAX_SHARE = 0.75


def limit(target: specs.Target) -> int | None:
    """Return what programs have of one device's memory; None where it is not known, or the host's.

    The compiler of a TPU hands out a part of it, and JAX allocates a share of what the driver of a
    GPU shows. A chip's memory is shared by the devices that it shows. Every surface asks this.
    """
    chip = None if target.hardware is None else target.hardware.chip
    if chip is None or chip.hbm_bytes is None:
        return None
    share = share_of(target)
    most = chip.usable_hbm_bytes or chip.hbm_bytes
    return (most if share is None else int(most * share)) // chip.devices_per_chip


def has_room(held_bytes: int, limit_bytes: int | None, *, is_partial: bool = False) -> bool | None:
    """Say whether a device has room; None where nobody knows.

    Args:
      is_partial: whether there is more than `held_bytes`: then only a no is known.
    """
    if limit_bytes is None or (is_partial and held_bytes <= limit_bytes):
        return None
    return held_bytes <= limit_bytes


def share_of(target: specs.Target) -> float | None:
    """Return the share of a device's memory that JAX allocates; None where it is no GPU.

    Source: JAX documentation, GPU memory allocation: 75 %, or `XLA_PYTHON_CLIENT_MEM_FRACTION`.
    """
    hardware = target.hardware
    if hardware is None or hardware.chip.platform != "gpu":
        return None
    return hardware.stated_share or JAX_SHARE


#: What to do about a step that has no room.
WAY_OUT = "`shardspec check` with the same spec and `--step` says what to change"


def room_text(limit_bytes: int, share: float | None) -> str:
    """Return a limit, with the share that JAX allocates: `59.3 GiB (75 % of the GPU)`."""
    of_gpu = "" if share is None else f" ({100 * share:g} % of the GPU)"
    return f"{binary_bytes(limit_bytes)}{of_gpu}"


def share_notes(target: specs.Target) -> Iterator[str]:
    """Yield how more of a GPU's memory counts, where nothing says how much JAX allocates."""
    hardware = target.hardware
    if hardware is not None and share_of(target) is not None and hardware.stated_share is None:
        more = replace(hardware, stated_share=0.9)
        yield (
            f"JAX allocates {100 * JAX_SHARE:g} % of a GPU; `{more}` is a machine whose"
            " XLA_PYTHON_CLIENT_MEM_FRACTION is 0.9"
        )


def is_tiled(target: specs.Target) -> bool:
    """Say whether arrays lie in tiles on a target's devices."""
    return target.is_tpu


LANES = 128
SUBLANES = 8
_LEAST_BYTES = 512


@lru_cache(maxsize=1 << 14)
def tiled_bytes(
    shape: specs.Shape, dtype: str, chosen_for: specs.Shape | None = None
) -> int | None:
    """Return the bytes of an array with its tiles filled up; None for dtypes not known here.

    Args:
      chosen_for: the shape that the compiler chose the layout for, if it is another one: that of
        the whole array, of which this is the part of one device.

    >>> tiled_bytes((4096, 16), "bf16"), tiled_bytes((8, 64), "bf16"), tiled_bytes((16,), "f32")
    (131072, 2048, 512)
    >>> tiled_bytes((1100,), "f32"), tiled_bytes((), "bf16")
    (8192, 512)
    >>> tiled_bytes((64, 1, 128), "bf16"), tiled_bytes((64, 1, 128), "bf16", (64, 4, 128))
    (16384, 32768)
    """
    bits = specs.DTYPE_BITS.get(dtype, 0)
    if bits not in {8, 16, 32}:
        return None
    if 0 in shape:
        return 0
    packing = 32 // bits
    if len(shape) < 2:
        size = math.prod(shape)
        whole = _up(size, LANES * SUBLANES) if size > LANES * SUBLANES else size
        return _up(whole * bits // 8, _LEAST_BYTES)
    least, pair = min(
        (_filled(chosen_for or shape, *pair, packing), pair) for pair in _pairs(shape)
    )
    return (_filled(shape, *pair, packing) if chosen_for else least) * bits // 8


def relaid_bytes(shape: specs.Shape, dtype: str, whole: specs.Shape) -> int | None:
    """Return the bytes of a part in the layout of the whole array; None where it takes no more."""
    size = tiled_bytes(shape, dtype, whole)
    return None if size == tiled_bytes(shape, dtype) else size


def _filled(shape: specs.Shape, lanes: int, rows: int, packing: int) -> int:
    """Return the elements of an array whose tiles have these dimensions, counted from the last."""
    along, beside = shape[-1 - lanes], shape[-1 - rows]
    rest = math.prod(shape) // (along * beside)
    return rest * _up(along, LANES) * _up(beside, _tile_rows(beside, packing))


def _pairs(shape: specs.Shape) -> Iterator[tuple[int, int]]:
    """Yield every choice of two dimensions, counted from the last."""
    return itertools.permutations(range(len(shape)), 2)


def _tile_rows(rows: int, packing: int) -> int:
    """Return the rows of the tile: a power of two, 8 at most."""
    return min(SUBLANES, max(packing, 1 << (rows - 1).bit_length()))


def _up(size: int, step: int) -> int:
    return -(-size // step) * step


# How a device holds gradients, by `state:` and `step:`: one answer for all verbs.
#
# | `state:` | one pass over the batch | microbatches, added up | |---|---|---| | `same` | as the
# parameter | as the parameter | | `zero1` | as the state: each goes into the update as it is made |
# as the parameter | | `zero2` | as the state | as the state |
#
# `reduce: step` adds up microbatches before anything is sent, so a device holds all of a gradient
# that it has a part in: the mesh axes of the batch split none of it. ZeRO's third stage is a matter
# of the rules, which split parameters over these axes.
#
# Without a `step:` nothing says how the batch is gone through, and ZeRO-1 is taken at its word: it
# splits state, and not gradients. What microbatches add up is held in the dtype that it is added
# in.


#: The axis of microbatches that are in a pipeline at once.
_MICROBATCH = "microbatch"


@dataclass(frozen=True, slots=True)
class Gradients:
    """How the gradients of a spec are held on a mesh.

    Attributes:
      is_split: whether they are held as the state is.
      dtype: what they are added up in; None for that of the parameter.
      over: the mesh axes that ZeRO splits state over.
      is_once: whether microbatches are added up before gradients are reduced.
      whole_over: the mesh axes that split no gradient because of that.
    """

    mesh: specs.Mesh
    is_split: bool
    dtype: str | None
    over: tuple[str, ...]
    is_once: bool = False
    whole_over: tuple[str, ...] = ()

    def held(self, dims: Dims) -> Dims:
        """Return how the gradient of an array that is laid out by `dims` is held."""
        if self.whole_over:
            return without_axes(dims, self.mesh, self.whole_over)
        return self.updated(dims) if self.is_split else dims

    def updated(self, dims: Dims) -> Dims:
        """Return what the update takes of it, as the state is laid out."""
        return extra_axes(dims, self.mesh, self.over)


def gradients_of(spec: specs.Spec, mesh: specs.Mesh) -> Gradients:
    """Return how the gradients of a spec are held on a mesh."""
    step, state = spec.step, "same" if spec.state is None else spec.state.optimizer
    count, dtype, is_training = 1, None, step is not None and step.mode == "train"
    if step is not None and is_training:
        sizes = {axis.name: axis.size or 1 for axis in spec.logical_axes}
        count = max(step.microbatches, sizes.get(_MICROBATCH, 1))
        dtype = (step.gradients or "f32") if count > 1 else None
    is_split = state == "zero2" or (state == "zero1" and is_training and count == 1)
    reduce = None if step is None or count == 1 else step.reduce
    is_once = reduce == "step" or (reduce is None and state == "zero1" and count > 1)
    whole_over = data_axes(spec, mesh) if reduce == "step" else ()
    return Gradients(mesh, is_split, dtype, state_axes(spec, mesh), is_once, whole_over)
