"""A mesh: named axes with sizes and no devices, as JAX's `AbstractMesh`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from shardspec.diagnostics import Span

Network = Literal["ici", "dcn"]
AxisType = Literal["auto", "explicit", "manual"]


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """One named axis of a mesh.

    Attributes:
      size: how many ways it splits; 1 shards nothing.
      network: `ici` inside a slice (GPUs: NVLink), `dcn` between slices (GPUs: the network).
      submesh: the (x, y, z, core) tile this axis runs over, where the spec asked for one.
      auto: whether the spec left the choice of the tile to the compiler (`auto N`).
      axis_type: who shards along it: the compiler (`auto`), the types of the code (`explicit`),
        or code that sees its own shard (`manual`). JAX's `AxisType`.
      span: where the spec states the size.
    """

    name: str
    size: int
    network: Network = "ici"
    submesh: tuple[int, ...] | None = None
    auto: bool = False
    axis_type: AxisType = "auto"
    span: Span | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Mesh:
    """Mesh axes, major to minor.

    Invariants:
      distinct: no two axes have the same name.
    """

    axes: tuple[MeshAxis, ...] = ()

    def __post_init__(self) -> None:
        assert len(set(self.names)) == len(self.axes), f"a mesh axis stands twice in {self.names}"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the axis names in mesh order."""
        return tuple(axis.name for axis in self.axes)

    @property
    def sizes(self) -> dict[str, int]:
        """Return the size of each axis by name, in mesh order."""
        return {axis.name: axis.size for axis in self.axes}

    @property
    def device_count(self) -> int:
        """Return the product of the sizes."""
        return math.prod(axis.size for axis in self.axes)

    def ways(self, names: Iterable[str]) -> int:
        """Return into how many shards these axes split; one that is not here splits nothing."""
        sizes = self.sizes
        return math.prod(sizes.get(name, 1) for name in names)

    def __str__(self) -> str:
        """Return `data=16 model=16`."""
        return " ".join(f"{axis.name}={axis.size}" for axis in self.axes)


def divisors(number: int, limit: int = 1 << 16) -> tuple[int, ...]:
    """Return the sizes that go into `number`, ascending, those up to `limit`.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    low = [d for d in range(1, min(math.isqrt(number), limit) + 1) if number % d == 0]
    high = [number // d for d in reversed(low) if d * d != number]
    return tuple(d for d in (*low, *high) if d <= limit)
