"""Constraints by logical axes: what `Resolver.constrain` does.

It runs for every activation of every layer while JAX traces, so an answer is kept under all that
it depends on, and only the first of a kind is resolved and checked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardspec.jax_backend.activations import ActivationResolver, Names
from shardspec.jax_backend.arguments import (
    UNUSABLE,
    kind_of,
    names_given,
    refuse_no_tree,
    refuse_unusable,
)
from shardspec.jax_backend.arrays import SCALARS
from shardspec.jax_backend.paths import path_of
from shardspec.jax_backend.shardings import TreePlacer
from shardspec.jax_backend.surroundings import constrained, manual_axes, surroundings

if TYPE_CHECKING:
    import jax


@dataclass(frozen=True, slots=True)
class Constrainer:
    """The constraints of one spec on one mesh; answers are remembered."""

    mesh: jax.sharding.Mesh
    activations: ActivationResolver
    placer: TreePlacer
    _known: dict[object, jax.sharding.NamedSharding] = field(default_factory=dict, repr=False)

    def constrain(self, x: Any, names: Any, activation: str | None, name: str | None) -> Any:
        """Return an array, or a tree of them, with a constraint; see `Resolver.constrain`."""
        if (names is None) == (activation is None):
            raise TypeError("constrain() takes either names or activation=, and not both")
        if not (name is None or isinstance(name, str)):
            raise TypeError(f"`name` is a string, not {kind_of(name)}")
        if activation is not None:
            self.activations.refuse_unnamed(activation)
        if isinstance(x, str):
            raise TypeError('the array comes first: `constrain(x, "batch embed")`')
        shape = getattr(x, "shape", None)
        if type(shape) is not tuple:
            asked = names if activation is None else self.activations.text(activation)
            if type(x) in SCALARS:
                self.activations.dims(asked, (), name=name or activation, array=x)
                return x
            return self._tree(x, asked, name or activation or "")
        mesh = self._surroundings(x, name)
        manual = manual_axes(mesh, self.mesh)
        given: Any = names if type(names) is str or names is None else names_given(names)
        key = (given, activation, shape, manual)
        sharding = self._known.get(key)
        if sharding is None:
            asked = given if activation is None else self.activations.named(activation)
            sharding = self._known[key] = self._sharding(x, asked, manual, name or activation)
        try:
            return constrained(x, sharding, mesh)
        except UNUSABLE as error:
            refuse_unusable(x, name or activation or "", error, "constrain")
            raise

    def _surroundings(self, x: Any, name: str | None) -> Any:
        try:
            return surroundings(x, self.mesh)
        except UNUSABLE as error:  # JAX knows no type for it
            refuse_unusable(x, name or "", error, "constrain")
            raise

    def _sharding(
        self, x: Any, names: Names, manual: frozenset[str], name: str | None
    ) -> jax.sharding.NamedSharding:
        dims = self.activations.dims(names, x.shape, manual=manual, name=name, array=x)
        return self.placer.named(dims)

    def _tree(self, tree: Any, names: Any, name: str) -> Any:
        """Return a tree with each array constrained by the string that stands for it in `names`."""
        import jax

        refuse_no_tree(tree)

        def below(above: Any, asked: str | None, node: Any) -> Any:
            def one(keys: Any, leaf: Any) -> Any:
                if isinstance(leaf, str):
                    raise TypeError("the tree of arrays comes first: `constrain(tree, names)`")
                is_array = type(getattr(leaf, "shape", None)) is tuple or type(leaf) in SCALARS
                if asked is None or not is_array:
                    return leaf
                path = path_of((*above, *keys))
                return self.constrain(leaf, asked, None, "/".join(filter(None, (name, path))))

            return jax.tree_util.tree_map_with_path(one, node)

        return jax.tree_util.tree_map_with_path(
            below, names, tree, is_leaf=lambda node: node is None or isinstance(node, str)
        )
