"""How Flax NNX reads a rule list: as a dictionary.

Each name is renamed by the last rule that has it, in every array alike. There is no priority and
no fallback, no look at which mesh axes an array uses already, and a name without a rule is taken
for a mesh axis as it stands. Source: flax 0.12.8, `flax.core.spmd.apply_rules`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardspec.ir.param import LogicalAxes
from shardspec.ir.partition import PartitionSpec
from shardspec.ir.spec import AxisRule


@dataclass(frozen=True, slots=True)
class NnxReading:
    """What NNX makes of the names of one array; JAX may refuse it.

    Attributes:
      dims: mesh axes of each dimension.
      unruled: names that no rule has, which stand in `dims` as mesh axes.
    """

    dims: tuple[tuple[str, ...], ...]
    unruled: tuple[str, ...] = ()

    @property
    def partition_spec(self) -> PartitionSpec:
        """Return the partition, as NNX hands it to JAX."""
        return PartitionSpec(self.dims)

    @property
    def repeated(self) -> tuple[str, ...]:
        """Return mesh axes that stand more than once: JAX refuses those."""
        counts = Counter(axis for dim in self.dims for axis in dim)
        return tuple(axis for axis, count in counts.items() if count > 1)


def nnx_rules(rules: Sequence[AxisRule]) -> dict[str, AxisRule]:
    """Return the rule that NNX follows for each logical axis."""
    return {rule.logical_axis: rule for rule in rules}


def read_as_nnx(logical_axes: LogicalAxes, rules: Mapping[str, AxisRule]) -> NnxReading:
    """Return the mesh axes that NNX gives an array with these names.

    Invariants:
      same: equal to `nnx.get_partition_spec` under the same rules.
    """
    dims = tuple(
        () if axis is None else rules[axis].mesh_axes if axis in rules else (axis,)
        for axis in logical_axes
    )
    unruled = (axis for axis in logical_axes if axis is not None and axis not in rules)
    return NnxReading(dims, tuple(dict.fromkeys(unruled)))
