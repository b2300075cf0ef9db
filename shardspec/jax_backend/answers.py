"""What a resolver has answered: one `NamedSharding` per spec, one answer per key.

Every pair of shape and names is resolved and checked once, on one mesh, and remembered for as
long as the resolver lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardspec.ir.param import Param
from shardspec.ir.plan import DimSharding
from shardspec.jax_backend.arrays import array_param
from shardspec.jax_backend.boxes import box_value, is_box, is_linen
from shardspec.jax_backend.faults import raise_faults
from shardspec.jax_backend.keys import Key
from shardspec.resolve.resolver import ArrayResolver

if TYPE_CHECKING:
    import jax


def partition_entries(dims: Sequence[DimSharding]) -> tuple[Any, ...]:
    """Return what `jax.sharding.PartitionSpec` takes, one entry for every dimension.

    One mesh axis is a string, several are a tuple, none is None. Trailing Nones stay, so the
    length is always the rank: JAX holds `P('a', None)` and `P('a')` for different.
    """
    entries = (dim.mesh_axes for dim in dims)
    return tuple(None if not axes else axes[0] if len(axes) == 1 else axes for axes in entries)


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers on one mesh.

    Attributes:
      by_key: key, or key and template -> sharding, None for what is no array.
      boxed: the same, in the Linen box that all nodes of that key can share.
    """

    arrays: ArrayResolver
    mesh: jax.sharding.Mesh
    by_key: dict[Any, Any] = field(default_factory=dict, repr=False)
    boxed: dict[Any, Any] = field(default_factory=dict, repr=False)
    _by_spec: dict[Any, jax.sharding.NamedSharding] = field(default_factory=dict, repr=False)

    def named(self, dims: Sequence[DimSharding]) -> jax.sharding.NamedSharding:
        """Return the one sharding object for this answer."""
        import jax

        partition_spec: Any = jax.sharding.PartitionSpec
        spec = partition_spec(*partition_entries(dims))
        found = self._by_spec.get(spec)
        if found is None:
            found = self._by_spec[spec] = jax.sharding.NamedSharding(self.mesh, spec)
        return found

    def of_params(self, params: Iterable[Param | None], tree: Any) -> list[Any]:
        """Return the sharding of each array by its path, None for what is no array.

        Raises:
          ShardspecError: one is at fault; it says all that is wrong with `tree`.
        """
        resolved = [None if param is None else self.arrays.resolve(param) for param in params]
        # The resolver keeps equal dims as one object, which lives as long as it does.
        distinct = {
            (found.dims, found.origin, found.mismatch): found for found in resolved if found
        }
        if distinct:
            raise_faults(self.arrays, tuple(distinct.values()), tree)
        known = {found.dims: self.named(found.dims) for found in distinct.values()}
        return [None if found is None else known[found.dims] for found in resolved]

    def learn(self, fresh: Mapping[Any, Any], params: Iterable[Param | None], tree: Any) -> None:
        """Remember the answers for new keys.

        Args:
          fresh: key -> a node that has it.
          params: what to resolve for each.
        """
        shardings = self.of_params(params, tree)
        for (key, node), sharding in zip(fresh.items(), shardings, strict=True):
            self.by_key[key] = sharding
            self.boxed[key] = node.replace_boxed(sharding) if is_linen(type(node)) else sharding

    def needs_path(self, key: Key) -> bool:
        """Say whether an array with this key is named, or named anew, by its path."""
        shape, names = key[:2]
        if shape is None:
            return False
        return self.arrays.names.needs_paths or (names is None and self.names_by_path)

    @property
    def names_by_path(self) -> bool:
        """Say whether the spec names arrays that carry no names."""
        return bool(self.arrays.spec.path_rules)


def param_of(key: Key, node: Any, path: str) -> Param | None:
    """Return what to resolve for a key, None for what is no array."""
    shape, names = key[:2]
    if shape is None:
        return None
    content = box_value(node) if is_box(type(node)) else node
    return array_param(path, tuple(shape), content, names)
