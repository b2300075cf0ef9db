"""The spec in JAX code: a mesh, shardings of trees, and constraints on activations.

One `Resolver` is one spec on one machine. It has no global state and needs no context: what it
gives back carries its mesh, so it works the same in eager code, under `jax.jit`, inside
`jax.set_mesh` and inside `jax.shard_map`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, ShardspecError
from shardspec.diagnostics.codes import UNKNOWN_MESH_AXIS
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec, Target
from shardspec.jax_backend.activations import ActivationResolver, Names
from shardspec.jax_backend.arrays import shape_of
from shardspec.jax_backend.constrain import constrained
from shardspec.jax_backend.faults import plan_of, raise_errors
from shardspec.jax_backend.mesh import device_mesh, match_target
from shardspec.jax_backend.shardings import tree_placer
from shardspec.resolve.resolver import array_resolver

if TYPE_CHECKING:
    import jax


class Loaded(Protocol):
    """A loaded spec, as `shardspec.load` returns it."""

    @property
    def ir(self) -> Spec:
        """Return the lowered form."""


class Resolver:
    """A spec on the devices of this machine.

    Attributes:
      target: the target in use.
      mesh: its mesh over real devices, in the order that the spec's `policy` asks for, axis types
        set.
    """

    def __init__(
        self,
        spec: str | os.PathLike[str] | Spec | Loaded,
        target: str = "auto",
        devices: Sequence[jax.Device] | None = None,
    ) -> None:
        """Load the spec, choose the target, and build its mesh.

        Args:
          spec: a file, a loaded spec, or its lowered form.
          target: a name, or `auto` for the target whose hardware `devices` are.
          devices: None for `jax.devices()`.

        Raises:
          ShardspecError: the spec is wrong, or no target fits the devices.
        """
        lowered = _lowered(spec)
        self.target: Target = _chosen(lowered, target, devices)
        self.mesh: jax.sharding.Mesh = device_mesh(self.target, devices, order=lowered.policy.order)
        self._arrays = array_resolver(lowered, self.target)
        self._placer = tree_placer(self._arrays, self.mesh)
        self._activations = ActivationResolver(self._arrays)
        found = pipeline.findings(lowered, [ShardingPlan(lowered, self.target, ())])
        raise_errors(d for d in found if d.code == UNKNOWN_MESH_AXIS)

    def __repr__(self) -> str:
        """Return `Resolver(spec.yaml, target laptop: data=4 model=2)`."""
        name = self._arrays.spec.source.name
        return f"Resolver({name}, target {self.target.name}: {self.target.mesh})"

    def shardings(self, tree: Any, *, boxed: bool = True) -> Any:
        """Return a `NamedSharding` for every array of a pytree, in a tree of the same structure.

        It serves as `in_shardings` and `out_shardings` of `jax.jit`, and for `jax.device_put`.
        Equal specs share one object. Specs are of full rank: trailing Nones stay. A leaf that
        is no array (a function, a string) gets None.

        Args:
          tree: arrays, `ShapeDtypeStruct`s, or whatever has a shape and a dtype; boxed by
            Flax or not.
          boxed: whether Flax's boxes stay around the shardings. Without them the tree fits
            the unboxed arrays, and as a prefix the boxed ones too.

        Raises:
          ShardspecError: an array has no names, too few, or sizes that do not divide.
        """
        return self._placer.place(tree, boxed=boxed)

    def spec(self, names: Names) -> jax.sharding.PartitionSpec:
        """Return the `PartitionSpec` for logical axes, e.g. `"batch length embed"`.

        Sizes count where the spec's `axes` state them.
        """
        return self.sharding(names).spec

    def sharding(
        self, names: Names, shape: Sequence[int] | None = None
    ) -> jax.sharding.NamedSharding:
        """Return the sharding for logical axes.

        Args:
          shape: None where it is not known; then the sizes that the spec's `axes` state count.
        """
        return self._placer.named(self._activations.dims(names, shape))

    def constrain(
        self,
        x: jax.Array,
        names: Names | None = None,
        *,
        activation: str | None = None,
    ) -> jax.Array:
        """Return `x` with a sharding constraint by its logical axes or its activation's name.

        Args:
          names: one per dimension, `_` or None for a dimension without a name.
          activation: an entry of the spec's `activations`.

        Raises:
          ShardspecError: unknown names, too few or too many, or sizes that do not divide.
        """
        if (names is None) == (activation is None):
            raise TypeError("constrain() takes either names or activation=, and not both")
        asked = names if activation is None else self._activations.named(activation)
        dims = self._activations.dims(asked or (), x.shape)
        return constrained(x, self._placer.named(dims))

    def put(self, tree: Any) -> Any:
        """Return `tree` with its arrays on the devices where the plan wants them."""
        import jax

        treedef: Any
        leaves, treedef = jax.tree_util.tree_flatten(tree)
        wanted = jax.tree_util.tree_leaves(self.shardings(tree))
        places = [place for place, leaf in enumerate(leaves) if shape_of(leaf) is not None]
        moved = jax.device_put([leaves[place] for place in places], wanted)
        for place, array in zip(places, moved, strict=True):
            leaves[place] = array
        return treedef.unflatten(leaves)

    def plan(self, tree: Any) -> ShardingPlan:
        """Return the plan for the arrays of a pytree, with the reasons for every dimension."""
        return plan_of(self._arrays, tree)

    def findings(self, tree: Any) -> tuple[Diagnostic, ...]:
        """Return everything the checks have to say about the arrays of a pytree."""
        return pipeline.findings(self._arrays.spec, [self.plan(tree)])


def _lowered(spec: str | os.PathLike[str] | Spec | Loaded) -> Spec:
    if isinstance(spec, Spec):
        return spec
    if isinstance(spec, str | os.PathLike):
        loaded, diagnostics = pipeline.load_path(os.fspath(spec))
        raise_errors(diagnostics)
        assert loaded is not None, "a spec that does not load has errors"
        return loaded
    return spec.ir


def _chosen(spec: Spec, name: str, devices: Sequence[jax.Device] | None) -> Target:
    import jax

    if name == "auto" and spec.targets:
        return match_target(spec.targets, jax.devices() if devices is None else devices)
    found = pipeline.find_target(spec, None if name == "auto" else name)
    if isinstance(found, Diagnostic):
        raise ShardspecError([found])
    return found
