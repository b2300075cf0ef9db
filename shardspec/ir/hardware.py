"""The machine: chips of one kind, wired into slices (TPU), nodes (GPU) or a host (CPU)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from shardspec.diagnostics import Span

Platform = Literal["tpu", "gpu", "cpu"]


@dataclass(frozen=True, slots=True)
class Chip:
    """One catalogue entry: what a kind of chip is and has. `specs/hardware/` holds the sources.

    Attributes:
      name: what a spec says: `v5e`, `h100`, `cpu`.
      title: what a person says: `TPU v5e`.
      device_kinds: the strings that JAX reports as `device_kind` for it.
      devices_per_chip: JAX devices a chip shows (2 on TPU v2, v3 and v7x).
      cores_per_chip: TensorCores of a TPU chip; with megacore (v4, v5p) two are one device.
      torus_rank: dimensions of the chip torus; 0 where there is none.
      host_shape: chips per host along each torus dimension; for GPUs, chips per node.
      hbm_bytes: memory of one chip; None where the host's own memory is used.
      bf16_flops_per_s: peak, dense, one chip.
      hbm_bytes_per_s: memory bandwidth of one chip.
      link_bytes_per_s: one link, one way (TPU: ICI; GPU: all NVLink of a chip).
      links: links of one chip.
      network_bytes_per_s: DCN or network bandwidth of one host, one way.
      int8_ops_per_s: peak, dense, one chip.
      fp8_flops_per_s: peak, dense, one chip.
      pair_bytes_per_s: the link between the devices of one chip, where it is stated.
      wrap_size: a torus dimension of this size wraps around by itself (v2, v3, v5e, v6e).
      wrap_multiple: all torus dimensions wrap once each is a multiple of this (v4, v5p, v7x).
    """

    name: str
    title: str
    platform: Platform
    device_kinds: tuple[str, ...]
    devices_per_chip: int
    torus_rank: int
    host_shape: tuple[int, ...]
    hbm_bytes: int | None = None
    bf16_flops_per_s: float | None = None
    hbm_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None
    links: int | None = None
    network_bytes_per_s: float | None = None
    int8_ops_per_s: float | None = None
    fp8_flops_per_s: float | None = None
    pair_bytes_per_s: float | None = None
    cores_per_chip: int = 1
    wrap_size: int | None = None
    wrap_multiple: int | None = None

    def wraps(self, topology: tuple[int, ...]) -> tuple[bool, ...]:
        """Return, for each torus dimension of a slice, whether its ends are joined."""
        if self.wrap_multiple is not None:
            cubes = all(size % self.wrap_multiple == 0 for size in topology)
            return (cubes,) * len(topology)
        return tuple(size == self.wrap_size for size in topology)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The machine of one target.

    Attributes:
      slice_count: TPU slices, or GPU nodes; 1 for CPU.
      topology: chips along each torus dimension of one slice; `(chips per node,)` for GPUs
        and `(devices,)` for CPU.
      accelerator_type: the marketing name the spec used (`v4-512`), if it did.
      host_shape: chips per host along each dimension of `topology`; the chip's own unless the
        slice is smaller than a host or has larger ones.

    Invariants:
      counts: device_count = slice_count x product(topology) x devices_per_chip.
    """

    chip: Chip
    slice_count: int
    topology: tuple[int, ...]
    accelerator_type: str | None = None
    host_shape: tuple[int, ...] = ()
    span: Span | None = field(default=None, compare=False, repr=False)

    @property
    def chip_count(self) -> int:
        """Return the chips of all slices."""
        return self.slice_count * math.prod(self.topology)

    @property
    def device_count(self) -> int:
        """Return the JAX devices of all slices."""
        return self.chip_count * self.chip.devices_per_chip

    @property
    def devices_per_slice(self) -> int:
        """Return the JAX devices of one slice or node."""
        return self.device_count // self.slice_count

    def __str__(self) -> str:
        """Return it as a spec writes it: `2 * tpu v5p 4x4x8`, `4 * h100`, `8 cpu`."""
        chip = self.chip
        if chip.platform == "tpu":
            return f"{_times(self.slice_count)}tpu {chip.name} {shape_text(self.topology)}"
        if chip.platform == "cpu":
            return f"{self.device_count} {chip.name}"
        usual = self.topology == chip.host_shape
        return f"{_times(self.slice_count)}{'' if usual else f'{self.topology[0]} '}{chip.name}"


def shape_text(shape: Iterable[int]) -> str:
    """Return `4x8x8`."""
    return "x".join(map(str, shape))


def _times(count: int) -> str:
    return "" if count == 1 else f"{count} * "
