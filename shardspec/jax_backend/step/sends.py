"""What devices send each other in a propagated program.

Shardy inserts a collective wherever an operation needs an array otherwise than it lies; code under
`shard_map` has those that the user wrote. This is what Shardy asks for; what XLA sends is in its
partitioned program.

Arrays that are made to lie otherwise: how before, how after, and who reads them then.

Shardy carries out one reshard as several collectives in a row, at one place of the program. XLA has
ways of its own from the first to the last, and what counts for whoever reads is the last. A slice
sends nothing, and is a part of a reshard all the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from shardspec.ir.operations import IN_SHARDY, IN_STABLEHLO, MOVES, CollectiveKind, ring_bytes
from shardspec.ir.step import Place, Reshard, Tear
from shardspec.jax_backend.step.graph import Axis, Graph, Node, Value

_AXIS = re.compile(r'"((?:[^"\\]|\\.)*)"(?::\((\d+)\)(\d+))?')
_MESH_GROUP = re.compile(r"axes\s*=\s*\[(.*)\]")


@dataclass(slots=True, eq=False)
class Send:
    """One collective, before it is told of.

    Attributes:
      axes: over which it goes, parts of mesh axes included.
      source: the value that is sent.
      payload_bytes: as `ring_bytes` takes them.
      wire_bytes: what one device sends each time it runs.
    """

    kind: CollectiveKind
    axes: tuple[Axis, ...]
    node: Node
    source: Value
    payload_bytes: int
    wire_bytes: int
    is_written: bool = False

    @property
    def count(self) -> float:
        """Return how often it runs in a step."""
        return self.node.count

    @property
    def ways(self) -> int:
        """Return among how many devices it goes."""
        return math.prod(axis.size for axis in self.axes)

    @property
    def result(self) -> Value:
        """Return what comes of it."""
        return self.node.result

    @property
    def names(self) -> tuple[str, ...]:
        """Return its mesh axes."""
        return tuple(dict.fromkeys(axis.name for axis in self.axes))


def sends_of(graph: Graph) -> list[Send]:
    """Return every collective of a program, in its order."""
    found = (_send(node, graph) for node in graph.nodes())
    return [each for each in found if each is not None and each.ways > 1]


def _send(node: Node, graph: Graph) -> Send | None:
    if node.name in IN_SHARDY and node.operands:
        return _inserted(node, IN_SHARDY[node.name], graph)
    if node.name in IN_STABLEHLO and node.operands and node.body.all_manual:
        return _written(node, IN_STABLEHLO[node.name], graph)
    return None


def _inserted(node: Node, kind: CollectiveKind, graph: Graph) -> Send:
    source, result = node.operands[0], node.result
    stated = "reduction_axes"  # of a sum that splits nothing
    axes = tuple(_moved(source, result))
    if stated in node.op.attributes:
        axes = _stated_axes(str(node.op.attributes[stated]), graph.sizes)
    payload = kind.payload(source.bytes, result.bytes)
    if kind is CollectiveKind.ALL_REDUCE and _is_of_several(source):
        kind, payload = CollectiveKind.ALL_GATHER, source.bytes * math.prod(a.size for a in axes)
    send = Send(kind, axes, node, source, payload, 0)
    send.wire_bytes = ring_bytes(kind, payload, send.ways)
    return send


def _is_of_several(value: Value) -> bool:
    """Say whether a reduction of several arrays at once made a value, as for an `argmax`.

    XLA has no sum over devices for those: it gathers what each device has, and reduces that.
    """
    node = value.made_by
    return node is not None and node.name == "stablehlo.reduce" and len(node.results) > 1


def _moved(source: Value, result: Value) -> Iterator[Axis]:
    """Yield the axes, or parts of them, that split the two otherwise.

    A row that was cut out of a sharded dimension is not sharded, although Shardy says so.
    """
    for dim, (before, after) in enumerate(zip(source.split, result.split, strict=True)):
        if source.shape[dim] == 1:
            continue
        for at, axis in enumerate(before):
            if at >= len(after) or after[at] != axis:
                kept = _part_kept(axis, after[at] if at < len(after) else None)
                yield axis._replace(size=axis.size // kept)
        for at, axis in enumerate(after):
            gained = at >= len(before) or before[at] != axis
            if gained and axis.name not in source.axes:
                yield axis
            elif gained and dim < len(before) and at < len(before):
                kept = _part_kept(axis, before[at])
                if kept > 1 and axis.size > kept:
                    yield axis._replace(size=axis.size // kept)


def _part_kept(axis: Axis, other: Axis | None) -> int:
    """Return how many ways of an axis stay where they are."""
    same = other is not None and (axis.name, axis.before) == (other.name, other.before)
    return min(axis.size, other.size) if same and other is not None else 1


def _stated_axes(text: str, sizes: dict[str, int]) -> tuple[Axis, ...]:
    """Return the axes that one attribute of one operation lists."""
    return tuple(
        Axis(name, int(size), int(before)) if size else Axis(name, sizes[name])
        for name, before, size in _AXIS.findall(text)
    )


def _written(node: Node, kind: CollectiveKind, graph: Graph) -> Send:
    operands, results = node.operands, node.results
    pairs = "source_target_pairs"  # a broadcast has groups
    groups = _groups(node, pairs if pairs in node.op.attributes else "replica_groups")
    axes = _group_axes(groups, graph.sizes) if isinstance(groups, list) else ()
    if isinstance(groups, str):
        axes = _stated_axes(groups, graph.sizes)
    payload = kind.payload(*(sum(value.bytes for value in each) for each in (operands, results)))
    send = Send(kind, axes, node, operands[0], payload, 0, is_written=True)
    is_listed = isinstance(groups, list) and groups and kind.traits.way != "shift"
    ways = len(groups[0]) if is_listed else send.ways
    send.wire_bytes = ring_bytes(kind, payload, ways)
    return send


def _groups(node: Node, name: str) -> list[tuple[int, ...]] | str:
    """Return the groups of devices, or the text of the mesh axes where it names those."""
    if name not in node.op.attributes:
        return []
    attribute: Any = node.op.attributes[name]
    if not hasattr(attribute, "type") or not hasattr(attribute, "__getitem__"):
        found = _MESH_GROUP.search(str(attribute))
        return found.group(1) if found else str(attribute)
    rows, columns = attribute.type.shape
    flat = [attribute[at] for at in range(rows * columns)]
    return [tuple(flat[at * columns : (at + 1) * columns]) for at in range(rows)]


def _group_axes(groups: list[tuple[int, ...]], sizes: dict[str, int]) -> tuple[Axis, ...]:
    """Return the mesh axes whose coordinate differs within a group of devices."""
    counts: dict[str, int] = {}
    for group in groups:
        places = [_coordinates(device, sizes) for device in group]
        for name in sizes:
            count = len({place[name] for place in places})
            if count > 1:
                counts[name] = max(counts.get(name, 1), count)
    return tuple(Axis(name, counts[name]) for name in sizes if name in counts)


def _coordinates(device: int, sizes: dict[str, int]) -> dict[str, int]:
    place = {}
    for name, size in reversed(sizes.items()):
        place[name] = device % size
        device //= size
    return place


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
    readers, again, works = dict.fromkeys(_readers(after)), _sliced_over(after), _works(after)
    return Reshard(
        first.at,
        before.array().split,
        after.array().split,
        tuple(at for at in readers if at != _RESULT),
        _RESULT in readers,
        tuple(name for name in graph.sizes if name in again),
        tuple(sorted(each.at for each in works or ())),
        None if works is None else _shared_over(works),
        any(axis.size != graph.sizes[axis.name] for axis in _axes(before, after)),
        _tear(before, after, send.names),
        before.array(name),
        Place() if before.made_by is None else before.made_by.where.place,
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


def _works(value: Value) -> list[Node] | None:
    """Return the operations that an array comes to; None where that leads too far to be known.

    What makes an array lie otherwise again reads nothing of it.
    """
    seen: set[Value] = set()
    found: dict[int, Node] = {}
    waiting = [value]
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
