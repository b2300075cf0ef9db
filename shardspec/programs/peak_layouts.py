"""Arrays that XLA:GPU writes out in another order of their dimensions.

A view takes no memory where the order in memory can stay. Where it cannot, XLA changes the layout
of what the array is cut from: a stack that a loop reads slice by slice is copied before the loop.
Source: xla/service/gpu/transforms/layout_assignment.cc.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from shardspec.programs.peak_graph import LOOP, UPDATE, Body, Node, Value, every_node
from shardspec.programs.peak_narrow import converted, noted_anew, outermost, replaced

#: The order in which cuDNN reads a filter: its outputs first.
_FILTER = re.compile(r"\bdim_labels=\w{1,9}_o")
_DIMENSION = re.compile(r"\bdimensions=\{(\d{1,3})\}")
_THROUGH = frozenset(("convert", "dynamic-slice", "slice"))
_WHOLE = frozenset(("s8", "u8"))
#: What keeps the order of the dimensions of its operands.
_KEEPS = frozenset((*_THROUGH, UPDATE, "concatenate", "select", "pad"))


def turn(main: Body) -> None:
    """Write out transposed, on a GPU, what a gather or a product in a loop reads slice by slice."""
    _sum_vectors(main)
    _turn_for_gathers(main)
    noted_anew(main)
    for node in [*every_node(main)]:
        if node.operation == LOOP and node.bodies:
            _turn_for_products(node, node.bodies[0])
    noted_anew(main)


def _sum_vectors(main: Body) -> None:
    """Turn products of which one side has no rows into sums, which kernels make as they read.

    Source: xla/service/gpu/transforms/algebraic_simplifier.cc. Such a product is kept where it is
    one for Triton, and that never takes a side without rows.
    """
    for node in every_node(main):
        is_product = node.operation == "dot" and len(node.shapes) == 2
        if is_product and not (_has_rows(node, 0) and _has_rows(node, 1)):
            node.operation = "reduce"


def _has_rows(node: Node, side: int) -> bool:
    """Say whether an operand of a product has more than its batch and what is summed over."""
    return any(node.shapes[side][at] > 1 for at in _parted(node, side)[2])


def _turn_for_gathers(main: Body) -> None:
    """Turn what is gathered along another dimension than the outermost, the one NCCL gathers."""
    turned: dict[Value, Value] = {}
    for node in [*every_node(main)]:
        found = _DIMENSION.search(node.instruction.bare)
        is_gather = node.operation == "all-gather" and node.operands and node.instruction.arrays
        if not is_gather or found is None:
            continue
        if math.prod(node.instruction.arrays[0].shape[: int(found.group(1))]) <= 1:
            continue
        reader, source = node, node.operands[0]
        while source.maker is not None and source.maker.operation in _THROUGH:
            if not source.maker.operands:
                break
            reader, source = source.maker, source.maker.operands[0]
        if source.maker is not None and source.body is reader.body:
            continue
        if source.body.is_loop or (source.body is reader.body and reader is not node):
            continue
        copy = turned.get(source)
        if copy is None:
            first = outermost(node, source)
            copy = turned[source] = converted(source, source.dtype, first, "transpose")
        reader.operands = [copy if each is source else each for each in reader.operands]


def _turn_for_products(loop: Node, body: Body) -> None:
    """Turn the stacks whose slices a product reads in another order than that in memory."""
    turned: dict[Value, None] = {}
    for node in body.nodes:
        for side in (0, 1) if node.operation == "dot" and len(node.shapes) == 2 else ():
            order = order_asked(node, side)
            if list(order) != sorted(order):
                turned.update(dict.fromkeys(_stacks(body, node.operands[side])))
        if node.operation == "convolution" and not _FILTER.search(node.instruction.bare):
            turned.update(dict.fromkeys(_stacks(body, node.operands[1])))
    for stack in turned:
        if stack.body is not body:
            replaced(body, {stack: converted(stack, stack.dtype, loop, "transpose")})
        else:
            _carry_turned(loop, stack.at)


def order_asked(node: Node, side: int) -> tuple[int, ...]:
    """Return the order in memory that a product asks of the dimensions of an operand.

    XLA makes each side of a product three dimensions: batch, rows and columns. A side that has no
    more than these already is read as it is. Of integers, both sides are read with their columns
    last.
    """
    batch, summed, free = _parted(node, side)
    if {value.dtype for value in node.operands} <= _WHOLE:
        return either_order(node, side)[0]
    is_plain = len(summed) == 1 and len(free) <= 1 and batch == tuple(range(len(batch)))
    return () if not batch or is_plain else either_order(node, side)[side]


def either_order(node: Node, side: int) -> tuple[tuple[int, ...], ...]:
    """Return the orders in memory in which a product reads an operand: rows or columns first."""
    batch, summed, free = _parted(node, side)
    shape = node.shapes[side]
    both = ((*batch, *free, *summed), (*batch, *summed, *free))
    return tuple(tuple(a for a in order if a < len(shape) and shape[a] > 1) for order in both)


def _parted(node: Node, side: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the dimensions of an operand of a product: of its batch, summed over, and others."""
    name = ("lhs", "rhs")[side]
    batch = node.instruction.numbers(f"{name}_batch_dims")
    summed = node.instruction.numbers(f"{name}_contracting_dims")
    rest = (at for at in range(len(node.shapes[side])) if at not in (*batch, *summed))
    return batch, summed, tuple(rest)


def _stacks(body: Body, read: Value) -> Iterator[Value]:
    """Yield the stacks that a value of a loop is cut from, and those that it is written into."""
    seen: set[Value] = set()
    waiting = [read]
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        if value.body is not body or value.maker is None:
            if len(value.shape) > 1:
                yield value
        elif value.maker.operation in _KEEPS:
            waiting += _parts(value.maker)
        for user in value.users:
            is_written = user.operation == UPDATE and user.operands[1] is value
            if is_written and user.body is body:
                waiting += [user.operands[0], user.results[0]]


def _parts(node: Node) -> Sequence[Value]:
    """Return the operands whose order of dimensions the result has."""
    if node.operation == "concatenate":
        return node.operands
    if node.operation == "select":
        return node.operands[1:]
    return node.operands[: 2 if node.operation == UPDATE else 1]


def _carry_turned(loop: Node, at: int) -> None:
    """Carry an array through a loop in another order, and bring what comes out into its own."""
    given, result = loop.operands[at], loop.results[at]
    if given.maker is None or given.maker.operation != "broadcast":
        loop.operands[at] = converted(given, given.dtype, loop, "transpose")
    if not result.users and not result.is_yielded:
        return
    after = loop.body.nodes[loop.body.nodes.index(loop) + 1 :]
    reader = next((node for node in after if result in (*node.operands, *node.captures)), None)
    back = converted(result, result.dtype, reader or loop.body, "transpose")
    made = back.maker
    replaced(loop.body, {result: back})
    if made is not None:
        made.operands = [result]
