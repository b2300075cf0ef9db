"""Arrays that are made to lie otherwise: how before, how after, and who reads them then.

Shardy carries out one reshard as several collectives in a row, at one place of the program. XLA has
ways of its own from the first to the last, and what counts for whoever reads is the last. A slice
sends nothing, and is a part of a reshard all the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from shardspec.ir.collectives import IN_SHARDY, MOVES
from shardspec.ir.step import Reshard, Tear
from shardspec.jax_backend.step.graph import Axis, Graph, Node, Value
from shardspec.jax_backend.step.sends import Send

_SLICE = "sdy.all_slice"
_MOVES = {_SLICE, *(name for name, kind in IN_SHARDY.items() if kind in MOVES)}
#: Operations that an array passes on its way to the slice that each device keeps of it.
_PASSES = frozenset(f"stablehlo.{name}" for name in ("convert", "reshape", "transpose", "negate"))
_TURNS = frozenset(("stablehlo.transpose", "stablehlo.reverse"))
#: Stands for the function's giving a value back, among the ticks of what reads it.
_RESULT = -1
#: How many values are looked at for what an array comes to.
_FAR = 300


def _is_form(node: Node) -> bool:
    return bool(node.info.view) and node.name != _SLICE


def reshard_of(send: Send, graph: Graph, name: str = "") -> Reshard | None:
    """Return the reshard that a collective is a part of; None where it is a part of none.

    None as well where XLA sends something else, and under `shard_map`, where an array is one of
    each group of devices.
    """
    node = send.node
    if node.body.all_manual or node.name not in _MOVES or send.kind is not IN_SHARDY[node.name]:
        return None
    first, after = _first(node), _last(node).result
    before = first.operands[0]
    ends = [after]
    readers = dict.fromkeys(at for value in ends for at in _readers(value))
    again = frozenset.intersection(*map(_sliced_over, ends))
    works = _works(ends)
    return Reshard(
        first.at,
        before.array().split,
        after.array().split,
        tuple(at for at in readers if at != _RESULT),
        _RESULT in readers,
        tuple(name for name in graph.sizes if name in again),
        tuple(sorted(each.at for each in works or ())),
        None if works is None else _shared_over(works),
        any(axis.size != graph.sizes[axis.name] for axis in _axes(before, *ends)),
        _tear(before, after, send.names),
        before.array(name),
    )


def _sliced_over(value: Value) -> frozenset[str]:
    """Return the mesh axes over which everything that reads a value slices it first."""
    found = [_sliced_by(user) for user in value.users]
    return frozenset.intersection(*found) if found else frozenset()


def _sliced_by(user: Node) -> frozenset[str]:
    if user.name in _PASSES:
        return _sliced_over(user.result)
    if user.name != _SLICE:
        return frozenset()
    return frozenset(user.result.axes.keys() - user.operands[0].axes.keys())


def _tear(value: Value, after: Value, names: Sequence[str]) -> Tear | None:
    """Return the reshape that cut the batch of a value, if mesh axes come to its second part."""
    rows = after.split[1:2]
    for _ in range(_FAR):
        node = value.made_by
        if node is not None and node.name == "stablehlo.reshape":
            break
        is_same = node is not None and (
            (_is_form(node) and node.name not in _TURNS) or node.name in _MOVES
        )
        before = node.operands[0] if node is not None and is_same else value.given
        if before is None:
            return None
        value = before
    else:
        return None
    given = node.operands[0]
    cut = given.shape[:1] == (math.prod(value.shape[:2]),) and 1 not in value.shape[:2]
    axes = {axis.name for axis in given.split[0]} if cut else set()
    moved = axes & set(names) & {axis.name for part in rows for axis in part}
    return Tear(given.shape, value.shape, node.where.place) if moved else None


def _works(values: Sequence[Value]) -> list[Node] | None:
    """Return the operations that arrays come to; None where that leads too far to be known.

    What makes an array lie otherwise again reads nothing of it.
    """
    seen: set[Value] = set()
    found: dict[int, Node] = {}
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.yielded or len(seen) > _FAR:
            return None
        for user in value.users:
            if user.bodies:
                return None
            if user.name == "stablehlo.optimization_barrier":
                waiting.append(user.results[user.operands.index(value)])
            elif _is_form(user) or user.info.is_elementwise:
                waiting.append(user.result)
            elif user.name not in _MOVES:
                found[user.at] = user
    return list(found.values())


def _shared_over(works: Sequence[Node]) -> tuple[str, ...]:
    values = [value for node in works for value in (*node.operands, *node.results)]
    manual = (axis for node in works for axis in node.body.all_manual)
    return tuple(dict.fromkeys((*manual, *(axis.name for axis in _axes(*values)))))


def _first(node: Node) -> Node:
    made_by = node.operands[0].made_by
    while made_by is not None and _goes_on(made_by, node):
        node, made_by = made_by, made_by.operands[0].made_by
    return node


def _last(node: Node) -> Node:
    while len(node.result.users) == 1 and _goes_on(node, node.result.users[0]):
        node = node.result.users[0]
    return node


def _goes_on(node: Node, after: Node) -> bool:
    """Say whether two operations are parts of one reshard."""
    are_moves = node.name in _MOVES and after.name in _MOVES
    return are_moves and node.where == after.where and node.result.users == [after]


def _axes(*values: Value) -> Iterator[Axis]:
    return (axis for value in values for axes in value.split for axis in axes)


def _readers(value: Value) -> Iterator[int]:
    """Yield the ticks of what reads a value; that of a loop where the next round does."""
    if value.yielded:
        owner = value.body.owner
        yield _RESULT if owner is None else owner.at
    for user in value.users:
        if not _is_form(user):
            yield user.at
        elif user.name == "stablehlo.optimization_barrier":
            yield from _readers(user.results[user.operands.index(value)])
        else:
            yield from _readers(user.result)
