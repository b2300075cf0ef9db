"""How one array is split: one tuple of mesh axes per dimension.

Always of full rank, `()` for a dimension that no mesh axis splits, because JAX's own
`P('a', None)` and `P('a')` are unequal though they mean the same.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True, slots=True)
class PartitionSpec:
    """Mesh axes of each dimension, major to minor.

    `.to_jax()` is JAX's own. Equal to that where both mean the same: there, Nones at the end do not
    count, and `"x"` is `("x",)`. Hashes differ: as keys of a dict take one kind.

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

    def to_jax(self) -> jax.sharding.PartitionSpec:
        """Return it as JAX's `PartitionSpec`, of full rank; loads jax."""
        from jax.sharding import PartitionSpec as JaxSpec

        make: Any = JaxSpec
        entries = (dim[0] if len(dim) == 1 else dim or None for dim in self.dims)
        found: JaxSpec = make(*entries)
        return found

    def __eq__(self, other: object) -> bool:
        """Say whether `other` splits an array likewise, be it ours or JAX's."""
        if isinstance(other, PartitionSpec):
            return self.dims == other.dims
        entries = _jax_entries(other)
        if entries is None:
            return NotImplemented
        return _shortened(self.dims) == _shortened(entries)

    def __hash__(self) -> int:
        """Return the hash of the dimensions."""
        return hash(self.dims)

    def __str__(self) -> str:
        """Return it as JAX prints it: `P('data', None, ('x', 'y'))`."""
        return f"P({', '.join(_entry(dim) for dim in self.dims)})"


def _jax_entries(spec: Any) -> tuple[Any, ...] | None:
    """Return the entries of a `PartitionSpec` of JAX as tuples; None for anything else.

    Where jax is not loaded, nothing is one.
    """
    kind = getattr(getattr(sys.modules.get("jax"), "sharding", None), "PartitionSpec", None)
    if kind is None or not isinstance(spec, kind):
        return None
    if getattr(spec, "unreduced", None) or getattr(spec, "reduced", None):
        return (spec,)  # partial sums, which no plan has
    return tuple((each,) if isinstance(each, str) else each or () for each in spec)


def _shortened(dims: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return dimensions without those at the end that nothing splits."""
    rank = max((at for at, dim in enumerate(dims, 1) if dim != ()), default=0)
    return dims[:rank]


def _entry(dim: tuple[str, ...]) -> str:
    if not dim:
        return "None"
    return repr(dim[0]) if len(dim) == 1 else f"({', '.join(map(repr, dim))})"
