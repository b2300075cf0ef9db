"""The arrays of a live state, each asked of `StateResolver` with the parameter it belongs to.

What stands in place of one parameter is a *node*: an array, a box, a hole, or several arrays.
Nodes of which nothing tells their answers apart are asked about once: they belong to parameters
that share an answer, and hold arrays of the same shapes and names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardspec.ir.plan import ParamSharding
from shardspec.jax_backend.arrays import Leaf, array_param, leaves_of
from shardspec.jax_backend.keys import HOLE
from shardspec.jax_backend.owners import Loose, Owners, Part, parts_of
from shardspec.jax_backend.paths import Place, joined
from shardspec.resolve.state import StateSharding, parameter
from shardspec.resolve.state_resolver import StateResolver

#: What stands for a leaf of a state; None for one that is no array.
Answer = StateSharding | None


def each_answer(
    state: Any, owners: Owners, resolver: StateResolver, params_at: Place | None
) -> Iterator[Answer]:
    """Yield the answer for each leaf of a state, in the order in which JAX flattens it.

    Leaves that share an answer share the object.
    """
    for part in parts_of(state, owners, params_at):
        yield from _answers(part, owners, resolver)


def _answers(part: Part, owners: Owners, resolver: StateResolver) -> Iterator[Answer]:
    if isinstance(part, Loose):
        for leaf in leaves_of(part.node):
            yield _loose(leaf, joined(part.path, leaf.path), owners, resolver)
        return
    if part.nodes is None:
        params = [parameter(owner) for owner in owners.groups]
        yield from (None if at is None else params[at] for at in owners.of_nodes)
        return
    known: dict[Any, tuple[Answer, ...]] = {}
    for node, key in zip(part.nodes, part.keys, strict=True):
        answers = known.get(key)
        if answers is None:
            owner = None if key[0] is None else owners.groups[key[0]]
            leaves = () if key[1] is HOLE else leaves_of(node)
            answers = known[key] = tuple(
                _answer(leaf, owner, part.prefix, leaf.components, resolver) for leaf in leaves
            )
        yield from answers


def _loose(leaf: Leaf, path: str, owners: Owners, resolver: StateResolver) -> Answer:
    found = owners.find(path) if leaf.shape else None
    if found is not None:
        return _answer(leaf, owners.owner(found.place), found.prefix, found.rest, resolver)
    return _answer(leaf, None, path, (), resolver)


def _answer(
    leaf: Leaf,
    owner: ParamSharding | None,
    prefix: str,
    rest: Place,
    resolver: StateResolver,
) -> Answer:
    """Return the answer for one leaf, None if it is no array."""
    shape = leaf.shape
    if shape is None:
        return None
    path = joined(prefix, "" if owner is None else owner.param.path, *rest)
    param = array_param(path, shape, leaf.value, leaf.names)
    return resolver.resolve(param, owner, _field(prefix), rest)


def _field(prefix: str) -> str:
    """Return what the optimizer calls the arrays under a path: its last component with a name."""
    return next((part for part in reversed(prefix.split("/")) if not part.isdecimal()), "")
