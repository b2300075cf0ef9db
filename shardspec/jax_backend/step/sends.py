"""What devices send each other in a propagated program.

Shardy inserts a collective wherever an operation needs an array otherwise than it lies; code under
`shard_map` has those that the user wrote. This is what Shardy asks for; what XLA sends is in its
partitioned program.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from shardspec.ir.collectives import IN_SHARDY, IN_STABLEHLO, CollectiveKind, ring_bytes
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
