"""Plan -> NamedShardings of a live tree, fast: one look-up per array.

The tree is flattened once, in C. What decides an array's sharding is its shape and its names,
and a model has a dozen such pairs however many layers it has. So every pair is resolved and
checked once, and every distinct spec has one `NamedSharding` object. Paths are made only
where the answer depends on them: overrides, and arrays that leave their names to `params:`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from shardspec.diagnostics import ShardspecError
from shardspec.ir.plan import DimSharding
from shardspec.jax_backend.answers import Answers, param_of
from shardspec.jax_backend.arrays import axes_collections, leaves_of
from shardspec.jax_backend.boxes import box_test, box_value, is_box, is_nnx
from shardspec.jax_backend.keys import UNREADABLE, Key, KeyReader
from shardspec.jax_backend.layers import LayerWalk, PathDecides
from shardspec.jax_backend.templates import template_maker
from shardspec.resolve.resolver import ArrayResolver

if TYPE_CHECKING:
    import jax


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Keep the garbage collector off while a tree is taken apart and put together.

    That makes many containers and no garbage, and the collector would walk the whole model
    several times for nothing.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@dataclass(frozen=True, slots=True)
class TreePlacer:
    """The shardings of trees on one mesh.

    Attributes:
      template: makes a path's template; None where the patterns of the spec allow none.
    """

    answers: Answers
    template: Callable[[str], str] | None = field(repr=False)

    def named(self, dims: Sequence[DimSharding]) -> jax.sharding.NamedSharding:
        """Return the one sharding object for this answer."""
        return self.answers.named(dims)

    def place(self, tree: Any, *, boxed: bool = True) -> Any:
        """Return `tree` with a sharding for every array, None for a leaf that is none.

        Args:
          boxed: whether the boxes of Flax stay around the shardings.
        """
        with collector_at_rest():
            with suppress(PathDecides):
                return self._by_key(tree, boxed)
            return self._by_path(tree, boxed)

    def _by_key(self, tree: Any, boxed: bool) -> Any:
        """Return the placed tree by keys, and templates where they count.

        Raises:
          PathDecides: they do not decide.
        """
        arrays, answers = self.answers.arrays, self.answers
        if axes_collections(tree):
            raise PathDecides
        paths_count = arrays.names.needs_paths or answers.names_by_path
        if not paths_count or (not arrays.names.needs_paths and _starts_with_box(tree)):
            placed = self._by_names(tree, boxed)
            if placed is not None:
                return placed
        if self.template is None or not paths_count:
            raise PathDecides
        return LayerWalk(tree, answers, self.template, boxed=boxed).placed()

    def _by_names(self, tree: Any, boxed: bool) -> Any:
        """Return the placed tree by the keys of its nodes alone; None where they do not decide."""
        import jax

        structure: Any
        nodes, structure = jax.tree_util.tree_flatten(tree, is_leaf=box_test())
        reader = KeyReader()
        known = self.answers.boxed if boxed else self.answers.by_key
        placed = _looked_up(known, nodes, reader)
        if isinstance(placed, _Unknown):
            if self.answers.needs_path(placed.key) or not self._learnt(nodes, reader, tree):
                return None
            placed = [known[key] for key in reader.keys(nodes)]
        if placed is None:
            return None
        if boxed and any(map(is_nnx, set(map(type, nodes)))):
            placed = reader.renewed(nodes, placed)
        return structure.unflatten(placed)

    def _learnt(self, nodes: Sequence[Any], reader: KeyReader, tree: Any) -> bool:
        """Learn the answers for new keys; False where keys do not decide."""
        try:
            found = dict(zip(reader.keys(nodes), nodes, strict=True))
            fresh = {key: node for key, node in found.items() if key not in self.answers.by_key}
            if any(map(self.answers.needs_path, fresh)):
                return False
            params = [param_of(key, node, "") for key, node in fresh.items()]
        except (ShardspecError, *UNREADABLE):
            return False
        self.answers.learn(fresh, params, tree)
        return True

    def _by_path(self, tree: Any, boxed: bool) -> Any:
        """Return the placed tree by the whole path of each array."""
        import jax

        structure: Any
        nodes, structure = jax.tree_util.tree_flatten(tree, is_leaf=box_test())
        flat = iter(self.answers.of_params((leaf.param for leaf in leaves_of(tree)), tree))
        return structure.unflatten(_put_back(nodes, flat, boxed))


class _Unknown(NamedTuple):
    """A key that was not met before."""

    key: Key


def _looked_up(
    known: Mapping[Any, Any], nodes: Sequence[Any], reader: KeyReader
) -> list[Any] | _Unknown | None:
    """Return what is known for each node, or the first key that is not, or None for no keys."""
    try:
        return [known[key] for key in reader.keys(nodes)]
    except KeyError as missing:
        return _Unknown(missing.args[0])
    except UNREADABLE:
        return None


def _starts_with_box(tree: Any) -> bool:
    """Say whether the first leaf of a tree is in a box of Flax."""
    below = _children(tree)
    while below and not is_box(type(tree)):
        tree = below[0]
        below = _children(tree)
    return is_box(type(tree))


def _children(node: Any) -> list[Any]:
    """Return the children of a node; none for a leaf."""
    import jax

    below = jax.tree_util.tree_leaves(node, is_leaf=lambda other: other is not node)
    return [] if below and below[0] is node else below


def tree_placer(arrays: ArrayResolver, mesh: jax.sharding.Mesh) -> TreePlacer:
    """Return the shardings of trees on `mesh`, none of them known yet."""
    spec = arrays.spec
    patterns = [
        *(override.pattern for override in spec.overrides),
        *(rule.pattern for rule in spec.path_rules),
        *(scan.pattern for scan in spec.scans),
    ]
    return TreePlacer(Answers(arrays, mesh), template_maker(patterns))


def _put_back(nodes: Sequence[Any], flat: Iterator[Any], boxed: bool) -> list[Any]:
    """Return what stands in place of each node, with its leaves taken from `flat`."""
    import jax

    parts = []
    for node in nodes:
        content = box_value(node) if not boxed and is_box(type(node)) else node
        structure: Any = jax.tree_util.tree_structure(content)
        parts.append(structure.unflatten([next(flat) for _ in range(structure.num_leaves)]))
    return parts
