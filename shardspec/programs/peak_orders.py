"""In which order of its dimensions each value is in the memory of a GPU, and who asks for another.

A product writes its result by rows. What is computed of it, element by element, keeps that order.
A product of batches that reads it in another one, as grouped heads are, has it written once more in
the order that it asks for; and where two values of other orders meet, one is written in the order
of the other first.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from shardspec.programs.peak_graph import Body, Node, Value, every_node
from shardspec.programs.peak_kernels import is_elementwise
from shardspec.programs.peak_layouts import either_order, order_asked
from shardspec.programs.peak_narrow import converted, noted_anew

#: Dimensions of a value from the outermost to the innermost, of those that are longer than 1.
Order = tuple[int, ...]


def reorder(main: Body) -> None:
    """Write out once more, on a GPU, what is read in another order than that in memory."""
    orders: dict[Value, Order] = {}
    _note(main, orders)
    made: dict[tuple[Value, Order], Value] = {}
    for node in [*every_node(main)]:
        if node.operation == "dot" and len(node.shapes) == 2:
            for side in (0, 1):
                read = _read_order(node, side, orders)
                if read and read not in either_order(node, side):
                    _turn(node, side, order_asked(node, side), made)
        elif is_elementwise(node) and len(node.results) == 1:
            _meet(node, orders, made)
    noted_anew(main)


def _meet(
    node: Node, orders: Mapping[Value, Order], made: dict[tuple[Value, Order], Value]
) -> None:
    """Turn what an elementwise operation reads beside a value with another innermost dimension."""
    read = {at: _read_order(node, at, orders) for at in _big(node, node.results[0])}
    known = [(at, order) for at, order in read.items() if order]
    for at, order in known[1:]:
        if order[-1] != known[0][1][-1]:
            _turn(node, at, known[0][1], made)


def _turn(node: Node, at: int, asked: Order, made: dict[tuple[Value, Order], Value]) -> None:
    """Let an operation read a value in the order that it asks for."""
    value, view = node.operands[at], node.views[at]
    is_own = value.maker is not None and is_elementwise(value.maker) and value.body is node.body
    if view is None or not asked or not is_own or _is_repeated(value):
        return
    key = value, tuple(view[each] for each in asked)
    if key not in made:
        made[key] = converted(value, value.dtype, node, "transpose")
    node.operands[at] = made[key]
    node.views = (*node.views[:at], None, *node.views[at + 1 :])


def _note(body: Body, found: dict[Value, Order]) -> None:
    """Note the order in memory of each value: of an elementwise operation, that of an operand."""
    for node in body.nodes:
        for inner in node.bodies:
            _note(inner, found)
        for value in node.results:
            read = (_read_order(node, at, found) for at in _big(node, value))
            kept = next(filter(None, read), None) if is_elementwise(node) else None
            found[value] = kept or _turned(node, value) or _plain(value)


def _turned(node: Node, value: Value) -> Order:
    """Return the order of a product that nobody reads but with its two sides changed over.

    XLA makes a product of the operands changed over of it.
    """
    reads = [
        user.views[at] if at < len(user.views) else None
        for user in value.users
        for at, read in enumerate(user.operands)
        if read is value
    ]
    view = reads[0] if reads and len({*reads}) == 1 else None
    if node.operation != "dot" or view is None or node.instruction.numbers("lhs_batch_dims"):
        return ()
    count = len(node.shapes[0]) - len(node.instruction.numbers("lhs_contracting_dims"))
    places = range(len(value.shape))
    is_turned = view == (*places[count:], *places[:count])
    return tuple(at for at in view if value.shape[at] > 1) if is_turned else ()


def _big(node: Node, value: Value) -> list[int]:
    """Return which operands are as large as a result, that with most readers first."""
    found = [
        at
        for at, operand in enumerate(node.operands)
        if prod(operand.shape) == prod(value.shape) and not _is_repeated(operand)
    ]
    return sorted(found, key=lambda at: (-len(node.operands[at].users), node.operands[at].serial))


def _is_repeated(value: Value) -> bool:
    """Say whether a value repeats a smaller one."""
    while value.maker is not None and value.maker.operation in ("broadcast", "convert"):
        if value.maker.operation == "broadcast":
            return True
        value = value.maker.operands[0]
    return False


def _read_order(node: Node, at: int, found: Mapping[Value, Order]) -> Order:
    """Return the order in memory of an operand, by its dimensions as they are read."""
    value = node.operands[at]
    view = node.views[at] if at < len(node.views) else None
    if view is None:
        return ()
    place = {dim: index for index, dim in enumerate(found.get(value, _plain(value)))}
    read = [index for index, dim in enumerate(view) if dim in place]
    return tuple(sorted(read, key=lambda index: place[view[index]]))


def _plain(value: Value) -> Order:
    """Return the order of rows."""
    return tuple(at for at, size in enumerate(value.shape) if size > 1)
