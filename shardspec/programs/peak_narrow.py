"""Arrays that XLA makes narrower before it moves them.

Where everything that reads a gathered, permuted or exchanged array converts it to a narrower type,
XLA converts first. On a TPU it also does so for what a loop reads slice by slice and does not
change: a stack of f32 weights is converted once, outside of the loop, and the narrow stack lives
until the last loop that reads it.

What a loop sends alike in each round is sent once, ahead of it, and lives as long as the loop.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardspec.ir.operations import SENT_AHEAD
from shardspec.ir.spec import array_bytes
from shardspec.programs.hlo import Instruction
from shardspec.programs.peak_graph import (
    BARRIER,
    LOOP,
    UPDATE,
    Body,
    Node,
    Value,
    every_node,
    note_users,
)

_MOVES = frozenset(("all-gather", "all-to-all", "collective-permute"))
_AHEAD = frozenset(map(str, SENT_AHEAD))
_FLOATS = frozenset(("f32", "bf16", "f16", "f64"))


def narrow(main: Body, *, is_tpu: bool) -> None:
    """Convert before a move, and stacks before the loops that slice them."""
    _send_ahead(main)
    stacks: dict[tuple[Value, str], Value] = {}
    order = {node: at for at, node in enumerate(every_node(main))}
    for node in reversed(order):
        if len(node.operands) == 0 or len(node.results) != 1:
            continue
        is_slice = node.operation == "dynamic-slice"
        if node.operation not in _MOVES and not is_slice:
            continue
        kept = _behind_barrier(node.results[0]) if is_slice else None
        dtype = _narrower(kept or node.results[0])
        source = node.operands[0]
        if dtype is None or source.dtype != node.results[0].dtype:
            continue
        if is_slice:
            if not is_tpu or source.body.depth >= node.body.depth:
                continue
            stack = stacks.get((source, dtype))
            if stack is None:
                stack = stacks[source, dtype] = converted(source, dtype, outermost(node, source))
            _moved(node, source, stack, dtype, kept)
        else:
            _moved(node, source, converted(source, dtype, node), dtype)
    for node in order:
        _update_selected(node)
    if is_tpu:
        _hoist(main, stacks)
    else:
        _fill(main)
    noted_anew(main)


def _send_ahead(main: Body) -> None:
    """Send before a loop what it reads from outside and sends: `rewrites.moves_hoisted`."""
    for node in [*every_node(main)]:
        if node.operation not in _AHEAD or not node.body.is_loop or not node.operands:
            continue
        source = max(node.operands, key=lambda each: each.body.depth)
        if source.body.depth < node.body.depth:
            loop = outermost(node, source)
            node.body.nodes.remove(node)
            loop.body.nodes.insert(loop.body.nodes.index(loop), node)
            node.body = loop.body
            for each in node.results:
                each.body = loop.body


def _update_selected(node: Node) -> None:
    """Select what an array is updated with, where a device updates its own part alone.

    XLA's partitioner selects between the updated array and the old one. XLA then selects between
    the update and what is there, and so writes in place.
    """
    if node.operation != "select" or len(node.operands) != 3:
        return
    for new, old in (node.operands[1:], node.operands[:0:-1]):
        update = new.maker
        if update is None or update.operation != UPDATE or update.operands[0] is not old:
            continue
        if len(new.users) == 1 and update.body is node.body:
            node.operation, node.operands = UPDATE, [*update.operands, node.operands[0]]
            node.body.nodes.remove(update)
            return


def _hoist(main: Body, stacks: dict[tuple[Value, str], Value]) -> None:
    """Convert before a loop what the loop would convert to a narrower type in each round."""
    for node in [*every_node(main)]:
        if node.operation != "convert" or len(node.operands) != 1 or not node.body.is_loop:
            continue
        source, result = node.operands[0], node.results[0]
        if (
            source.body.depth >= node.body.depth
            or result.bytes >= source.bytes
            or result.is_yielded
        ):
            continue
        key = source, result.dtype
        if key not in stacks:
            stacks[key] = converted(source, result.dtype, outermost(node, source))
        for user in result.users:
            user.operands = [stacks[key] if each is result else each for each in user.operands]
            for inner in user.bodies:
                replaced(inner, {result: stacks[key]})
        node.body.nodes.remove(node)


def _fill(main: Body) -> None:
    """Make zeros for each loop that begins with them, all in one kernel, on a GPU.

    A loop writes over what it begins with, so two that begin with equal zeros need two arrays.
    """
    taken: set[Value] = set()
    for node in [*every_node(main)]:
        for at, value in enumerate(node.operands if node.operation == LOOP else ()):
            maker = value.maker
            if maker is None or maker.operation != "broadcast" or value.body is not node.body:
                continue
            if value in taken:
                value = Value(value.dtype, value.shape, value.bytes, value.body, maker)
                maker.results.append(value)
                node.operands[at] = value
            taken.add(value)


def _narrower(value: Value) -> str | None:
    """Return the narrower type that all readers convert a value to."""
    if value.is_yielded or not value.users or value.dtype not in _FLOATS:
        return None
    found = {user.results[0].dtype for user in value.users if user.operation == "convert"}
    if len(found) != 1 or any(user.operation != "convert" for user in value.users):
        return None
    dtype = found.pop()
    is_less = array_bytes((8,), dtype) < array_bytes((8,), value.dtype)
    return dtype if dtype in _FLOATS and is_less else None


def converted(source: Value, dtype: str, at: Node | Body, operation: str = "convert") -> Value:
    """Return another form of a value, made right before an operation or at the end of a body."""
    if isinstance(at, Body):
        body, place, maker = at, len(at.nodes), source.maker
    else:
        body, place, maker = at.body, at.body.nodes.index(at), at
    attributes = "" if maker is None else maker.instruction.attributes
    node = Node(operation, Instruction("", "", operation, (), "", attributes), body, [source])
    made = Value(dtype, source.shape, array_bytes(source.shape, dtype), body, node, 0)
    node.results.append(made)
    body.nodes.insert(place, node)
    source.users.append(node)
    return made


def _behind_barrier(value: Value) -> Value | None:
    """Return what a value is called behind the barrier that alone reads it."""
    reader = value.users[0] if len(value.users) == 1 and not value.is_yielded else None
    if reader is None or reader.operation != BARRIER or reader.operands.count(value) != 1:
        return None
    return reader.results[reader.operands.index(value)]


def _moved(
    node: Node, source: Value, narrow_source: Value, dtype: str, kept: Value | None = None
) -> None:
    """Let an operation read the narrow form; what converted its result is that result.

    Args:
      kept: what the result is called behind a barrier, where that is converted.
    """
    node.operands = [narrow_source if each is source else each for each in node.operands]
    source.users = [user for user in source.users if user is not node]
    narrow_source.users.append(node)
    result = kept or node.results[0]
    for each in {node.results[0], result}:
        each.dtype, each.bytes = dtype, array_bytes(each.shape, dtype)
    for convert in result.users:
        gone = convert.results[0]
        for user in gone.users:
            user.operands = [result if each is gone else each for each in user.operands]
            for inner in user.bodies:
                replaced(inner, {gone: result})
        yields = convert.body.yields
        convert.body.yields = [result if each is gone else each for each in yields]
        result.is_yielded = result.is_yielded or gone.is_yielded
        convert.body.nodes.remove(convert)
    result.users = [user for convert in result.users for user in convert.results[0].users]


def replaced(body: Body, others: Mapping[Value, Value]) -> None:
    """Let all that reads values in a body, or in those inside it, read others instead."""
    body.yields = [others.get(each, each) for each in body.yields]
    for node in body.nodes:
        node.operands = [others.get(each, each) for each in node.operands]
        for inner in node.bodies:
            replaced(inner, others)


def outermost(node: Node, source: Value) -> Node:
    """Return the loop around an operation that stands beside a value from outside."""
    found = node
    while found.body.depth > source.body.depth and found.body.node is not None:
        found = found.body.node
    return found


def noted_anew(main: Body) -> None:
    """Note who reads what, after a program was changed."""
    _forget(main)
    note_users(main)


def _forget(body: Body) -> None:
    for value in body.arguments:
        value.users = []
    for node in body.nodes:
        for value in node.results:
            value.users = []
        for inner in node.bodies:
            _forget(inner)
