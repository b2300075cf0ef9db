"""What attention calls its dimensions: heads, their width, positions of queries and of keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardspec.analysis.step_values import Index, Read, Value, View

#: What tells positions from heads in attention.
_POSITIONS = ("length", "seq", "pos", "token", "patch")


def roles(query: Read, key: Read) -> tuple[str, dict[str, str]] | None:
    """Return the index of the positions of keys, and what other indices of keys are.

    None where it is not plain which of them are positions.
    """
    asked, held = query.indices, key.indices
    own = [i.name for i in held if i.name not in {j.name for j in asked}]
    left = [i.name for i in asked if i.name not in {j.name for j in held}]
    found = next((name for name in own if is_position(name)), None)
    if found is None and len(own) > len(left):
        found = own[0]
    if found is None and len(own) == len(left):  # in cross-attention each has positions of its own
        found = next((o for o, asks in zip(own, left, strict=True) if is_position(asks)), None)
    if found is None:
        shared = [i.name for i in held if i.name not in own and is_position(i.name)]
        if not shared:
            return None
        found = f"{shared[0]}'"
        aliases = {shared[0]: found}
        left = [name for name in left if name != shared[0]]
    else:
        aliases = {}
        positions = [name for name in left if is_position(name)] or left[:1]
        left = [name for name in left if name not in positions[:1]]
    heads = [name for name in own if name != found]
    aliases |= dict(zip(heads, left, strict=False))
    return found, aliases


def headed(view: View, units: dict[str, int]) -> View:
    """Return a view in which heads that lie side by side are an index of their own."""

    def apart(index: Index) -> tuple[Index, ...]:
        unit = units.get(index.name, 1)
        if unit <= 1 or index.size % unit or index.size == unit:
            return (index,)
        return Index(f"{index.name}'", index.size // unit), Index(f"{index.name}/unit", unit)

    return tuple(tuple(part for index in dim for part in apart(index)) for dim in view)


def is_position(name: str) -> bool:
    """Say whether a name is one of positions."""
    return any(word in name for word in _POSITIONS)


def aliased(view: View, aliases: dict[str, str]) -> View:
    """Return a view whose indices have other names."""
    return tuple(tuple(Index(aliases.get(i.name, i.name), i.size) for i in dim) for dim in view)


def flat(value: Value, indices: Sequence[Index]) -> View:
    """Return the view of a value, by the indices of the query where the shapes agree."""
    found, left = [], list(indices)
    for size in value.shape:
        inner = [left.pop(0)] if left else []
        while left and math.prod(index.size for index in inner) < size:
            inner.append(left.pop(0))
        found.append(tuple(inner))
    is_same = [math.prod(i.size for i in dim) for dim in found] == [*value.shape]
    return tuple(found) if is_same and not left else value.view
