"""Constraints inside of `jax.vmap`, on all of an array: what is mapped has names, too.

Under `vmap` code sees one example, and a constraint of JAX leaves the mapped dimension to XLA,
which is that of the batch. So the constraint waits until `vmap` has put its dimensions in, the
innermost first, and is then one on the array that there is. Through `jit`, `scan` and
`jax.checkpoint` it waits as a primitive of its own. What no `vmap` maps has no such dimension: it
is constrained along the others, as it would be beside one.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from shardspec.ir.plan import Dims
from shardspec.ir.spec import LogicalAxes, jax_entries
from shardspec.jax_backend import arguments
from shardspec.jax_backend.constrain import Constrainer, axes_of, constrained, manual_axes
from shardspec.jax_backend.constrain import surroundings as mesh_around

_waiting = Primitive("shardspec_constrain")


def constrained_mapped(
    constrainer: Constrainer, tree: Any, names: Any, mapped: Any, name: str | None
) -> Any:
    """Return an array, or a tree of them, with a constraint; see `Resolver.constrain`.

    Raises:
      TypeError: names are missing, or those of an array are a tree.
    """
    if names is None:
        raise TypeError("constrain() takes mapped= with names")
    shape = getattr(tree, "shape", None)
    if type(shape) is not tuple:
        raise TypeError(f"constrain() takes mapped= for one array, not {arguments.kind_of(tree)}")
    own, outer = axes_of(names), axes_of(mapped)
    _dims(tree, own, outer, name, constrainer)  # faults come at once
    return _wait(tree, names=own, mapped=outer, name=name, constrainer=constrainer)


def _wait(
    x: Any, *, names: LogicalAxes, mapped: LogicalAxes, name: str | None, constrainer: Constrainer
) -> Any:
    if not mapped:
        return constrainer.constrain(x, names, None, name)
    return _waiting.bind(x, names=names, mapped=mapped, name=name, constrainer=constrainer)


def _batched(args: Any, dims: Any, *, names: Any, mapped: Any, **others: Any) -> Any:
    """Give the dimension of the innermost `vmap` the last of the names that wait."""
    (x,), (at,) = args, dims
    names = (*names[:at], mapped[-1], *names[at:])
    return _wait(x, names=names, mapped=mapped[:-1], **others), at


def _beside(
    x: Any, *, names: LogicalAxes, mapped: LogicalAxes, name: str | None, constrainer: Constrainer
) -> Any:
    """Constrain what no `vmap` maps along the dimensions that it has."""
    whole = constrainer.placer.named(_dims(x, names, mapped, name, constrainer))
    own = jax.sharding.PartitionSpec(*jax_entries(whole.spec)[len(mapped) :])
    sharding = jax.sharding.NamedSharding(whole.mesh, own)
    return constrained(x, sharding, mesh_around(x, constrainer.mesh))


def _dims(
    x: Any, names: LogicalAxes, mapped: LogicalAxes, name: str | None, constrainer: Constrainer
) -> Dims:
    """Return the sharding of all dimensions, of which whatever splits the mapped ones divides them.

    Raises:
      ShardspecError: as `Resolver.constrain` does.
    """
    manual = manual_axes(mesh_around(x, constrainer.mesh), constrainer.mesh)
    sizes = (*(constrainer.mesh.size for _ in mapped), *x.shape)
    return constrainer.activations.dims((*mapped, *names), sizes, manual=manual, name=name, array=x)


_waiting.def_impl(_beside)
_waiting.def_abstract_eval(lambda x, **_: x)
ad.deflinear2(_waiting, lambda cotangent, _, **asked: (_waiting.bind(cotangent, **asked),))
batching.primitive_batchers[_waiting] = _batched
mlir.register_lowering(_waiting, mlir.lower_fun(_beside, multiple_results=False))
