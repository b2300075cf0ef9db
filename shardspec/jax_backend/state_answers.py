"""The arrays of a live state, each asked of `StateResolver` with the parameter it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from shardspec.ir.plan import ParamSharding
from shardspec.jax_backend.arrays import Leaf, array_param, leaves_of
from shardspec.jax_backend.boxes import box_value, is_box
from shardspec.jax_backend.keys import UNREADABLE, KeyReader
from shardspec.jax_backend.owners import Aligned, Loose, Owners, leaf_count, segments
from shardspec.jax_backend.paths import Place
from shardspec.resolve.state import StateSharding, parameter
from shardspec.resolve.state_resolver import StateResolver

#: What stands for a leaf of a state; None for one that is no array.
Answer = StateSharding | None


class Alike(NamedTuple):
    """The answers of a part of a state whose nodes are one leaf each.

    Attributes:
      keys: what decides the answer, for each leaf.
    """

    answers: dict[Any, Answer]
    keys: list[Any]


def each_answer(
    state: Any, owners: Owners, resolver: StateResolver, params_at: Place | None
) -> Iterator[Answer]:
    """Yield the answer for each leaf of a state, in the order in which JAX flattens it."""
    for segment in segments(state, owners, params_at):
        yield from answers_of(segment, owners, resolver)


def answers_of(
    segment: Aligned | Loose, owners: Owners, resolver: StateResolver
) -> Iterator[Answer]:
    """Yield the answer for each leaf of one part of a state."""
    if isinstance(segment, Loose):
        for leaf in leaves_of(segment.node):
            yield _loose(leaf, _joined(segment.path, leaf.path), owners, resolver)
        return
    for place, node in enumerate(segment.nodes):
        owner = owners.owner(place)
        if segment.is_params:
            yield None if owner is None else parameter(owner)
            continue
        for leaf in leaves_of(node):
            rest = tuple(leaf.path.split("/")) if leaf.path else ()
            yield _answer(leaf, owner, segment.prefix, rest, resolver)


def alike_answers(segment: Aligned, owners: Owners, resolver: StateResolver) -> Alike | None:
    """Return the answers of a part of a state, one for all leaves that are alike.

    None where a node holds more than one array, or cannot be told from others by shape and names.
    """
    nodes = segment.nodes
    try:
        keys = list(zip(owners.of_nodes, KeyReader().keys(nodes), strict=True))
        samples = dict(zip(keys, nodes, strict=True))
    except UNREADABLE:
        return None
    counts = {key: leaf_count(node) for key, node in samples.items()}
    if any(count > 1 for count in counts.values()):
        return None
    answers: dict[Any, Answer] = {}
    holes = {key for key, count in counts.items() if not count}
    for key, node in samples.items():
        if key not in holes:
            position, (_, names, *_) = key
            content = box_value(node) if is_box(type(node)) else node
            owner = None if position is None else owners.groups[position]
            leaf = Leaf("", content, names)
            if segment.is_params:
                answers[key] = None if owner is None else parameter(owner)
            else:
                answers[key] = _answer(leaf, owner, segment.prefix, (), resolver)
    return Alike(answers, [key for key in keys if key not in holes] if holes else keys)


def _loose(leaf: Leaf, path: str, owners: Owners, resolver: StateResolver) -> Answer:
    found = owners.find(path) if leaf.shape else None
    if found is not None:
        return _answer(leaf, found.owner, found.prefix, found.rest, resolver)
    return _answer(leaf, None, path, (), resolver)


def _answer(
    leaf: Leaf,
    owner: ParamSharding | None,
    prefix: str,
    rest: tuple[str, ...],
    resolver: StateResolver,
) -> Answer:
    """Return the answer for one leaf, None if it is no array."""
    shape = leaf.shape
    if shape is None:
        return None
    path = _joined(prefix, "" if owner is None else owner.param.path, *rest)
    param = array_param(path, shape, leaf.value, leaf.names)
    return resolver.resolve(param, owner, _field(prefix), rest)


def _joined(*paths: str) -> str:
    return "/".join(path for path in paths if path)


def _field(prefix: str) -> str:
    """Return what the optimizer calls the arrays under a path: its last component with a name."""
    return next((part for part in reversed(prefix.split("/")) if not part.isdecimal()), "")
