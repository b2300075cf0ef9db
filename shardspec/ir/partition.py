"""How one array is split: one tuple of mesh axes per dimension.

Always of full rank, `()` for a dimension that no mesh axis splits, because JAX's own
`P('a', None)` and `P('a')` are unequal though they mean the same.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """Mesh axes of each dimension, major to minor.

    Invariants:
      once: no mesh axis stands in two places.
    """

    dims: tuple[tuple[str, ...], ...] = ()

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """Return every mesh axis in use, in order of dimension."""
        return tuple(axis for dim in self.dims for axis in dim)

    @property
    def is_replicated(self) -> bool:
        """Say whether no dimension is split by any mesh axis."""
        return not any(self.dims)

    def __str__(self) -> str:
        """Return it as JAX prints it: `P('data', None, ('x', 'y'))`."""
        return f"P({', '.join(_entry(dim) for dim in self.dims)})"


def _entry(dim: tuple[str, ...]) -> str:
    if not dim:
        return "None"
    return repr(dim[0]) if len(dim) == 1 else f"({', '.join(map(repr, dim))})"
