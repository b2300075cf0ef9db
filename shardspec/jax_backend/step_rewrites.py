"""What XLA does to collectives after propagation, and Shardy's output does not show.

Each correction is one function over the collectives of a program. They change what is sent, not
how: combining, scheduling and how a collective is carried out change counts and kinds and no
bytes, and are left to the compiler.
"""

from __future__ import annotations

from collections.abc import Iterable

from shardspec.ir.step import CollectiveKind
from shardspec.jax_backend.step_graph import Node, Value
from shardspec.jax_backend.step_sends import Send

#: Operations that pass a partial sum on as it is, so that it can be summed over devices later.
_PASSES = frozenset(f"stablehlo.{name}" for name in ("convert", "reshape", "transpose", "negate"))
_SUMS = frozenset(("stablehlo.add", "stablehlo.subtract"))
_REDUCES = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)


def corrected(sends: list[Send]) -> list[Send]:
    """Return the collectives that are left when XLA has rewritten the program."""
    sends = equal_gathers_once(sends)
    sends = partial_sums_once(sends)
    return sliced_sums_scattered(sends)


def equal_gathers_once(sends: list[Send]) -> list[Send]:
    """Drop a gather of what has been gathered alike in the same body.

    Shardy gathers a weight for each operation that reads it; XLA merges those whose operands are
    the same value. The gather of a forward pass and that of its rematerialisation stay two: a
    barrier stands between their operands, or they are in different loops.
    """
    seen: set[tuple[object, ...]] = set()
    kept = []
    for send in sends:
        key = (id(send.source), id(send.node.body), send.kind, send.result.split)
        if send.kind in _REDUCES or send.is_written or key not in seen:
            kept.append(send)
        seen.add(key)
    return kept


def partial_sums_once(sends: list[Send]) -> list[Send]:
    """Sum once what is added up before anything else reads it.

    The gradients of one activation through several weights are each a partial sum on every device:
    XLA adds them on the device and reduces the sum. Of those, the last reduction stays.
    """
    by_result = {id(send.result): send for send in sends if send.kind in _REDUCES}
    pending: dict[int, tuple[Send, ...]] = {
        number: (send,) for number, send in by_result.items() if not send.is_written
    }
    merged: set[int] = set()
    for node in _nodes_after(sends):
        groups = [pending.get(id(operand), ()) for operand in node.operands]
        group = _carried_on(node, groups)
        if group:
            pending[id(node.result)] = group
            merged.update(id(each) for each in group[:-1])
    return [send for send in sends if id(send) not in merged]


def _nodes_after(sends: Iterable[Send]) -> list[Node]:
    bodies = {id(send.node.body): send.node.body for send in sends}
    return [node for body in bodies.values() for node in body.nodes]


def _carried_on(node: Node, groups: list[tuple[Send, ...]]) -> tuple[Send, ...]:
    """Return the reductions whose sum a node passes on, read by nothing else."""
    read_once = all(len(operand.users) == 1 for operand in node.operands)
    if not groups or not all(groups) or not read_once:
        return ()
    if node.name in _PASSES:
        return groups[0]
    alike = len({(each.kind, frozenset(each.axes)) for group in groups for each in group}) == 1
    if node.name in _SUMS and alike and node.operands[0] is not node.operands[1]:
        return tuple(each for group in groups for each in group)
    return ()


def sliced_sums_scattered(sends: list[Send]) -> list[Send]:
    """Make an all-reduce whose result is only sliced over the same axes a reduce-scatter.

    It is so with a gradient that every device sums whole, and of which the optimizer state is
    split (ZeRO): each device keeps its own slice of the sum.
    """
    for send in sends:
        if send.kind is CollectiveKind.ALL_REDUCE and _only_sliced(send.result, send):
            send.become(CollectiveKind.REDUCE_SCATTER)
    return sends


def _only_sliced(value: Value, send: Send) -> bool:
    return bool(value.users) and all(_slices(user, send) for user in value.users)


def _slices(user: Node, send: Send) -> bool:
    if user.name in _PASSES:
        return _only_sliced(user.result, send)
    if user.name != "sdy.all_slice":
        return False
    before = {axis.name for axes in user.operands[0].split for axis in axes}
    after = {axis.name for axes in user.result.split for axis in axes}
    return after - before >= set(send.names)
