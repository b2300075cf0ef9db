"""Products of which XLA gathers an operand, where Shardy sums over devices.

Where one operand is split along what a product sums over and the other is replicated, Shardy has
each device take its own slice of the other, and sums what they make. XLA's partitioner gathers the
first where it has no more elements than the result, or is replicated over a mesh axis. Every device
then computes the whole product. What multiplies a vector is no product for XLA: it sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from shardspec.jax_backend.step.graph import Axis, Graph, Node, Value
from shardspec.jax_backend.step.ops import dimensions


def gather_summands(graph: Graph) -> None:
    """Put the gather of an operand in place of the sum of a product, where XLA does so.

    Source: compiles of single products with libtpu 0.0.52 for v5e 2x2 and 2x4 and v5p 2x2x1.
    """
    for node in [*graph.nodes()]:
        found = _gathered(node, set(graph.sizes))
        if found is not None:
            _gather(node, *found)


def _gathered(node: Node, names: set[str]) -> tuple[Value, Value, Node] | None:
    """Return the operand that is gathered, the other one and the sum; None where XLA sums."""
    users = node.results[0].users if node.name == "stablehlo.dot_general" else []
    if len(users) != 1 or users[0].name != "sdy.all_reduce" or node.result.yielded:
        return None
    for given, other in (node.operands[:2], node.operands[1::-1]):
        axes = _summed(node, given)
        is_all = bool(axes) and axes == _summed(node, other)
        ways = math.prod(axis.size for axis in axes)
        is_small = ways * math.prod(given.shard_shape) <= math.prod(node.result.shard_shape)
        is_taken = _was_whole(other) and not any(_slices(given))
        if is_all and is_taken and (is_small or names - given.axes.keys()) and _is_matrix(node):
            return given, other, users[0]
    return None


def sliced_summands(node: Node) -> Iterator[tuple[Value, int]]:
    """Yield what a product sums over of an operand, of which devices slice the other for that.

    Of an operand that is split otherwise, too: XLA may gather either of them, or both.
    """
    users = node.results[0].users
    if any(user.name == "sdy.all_reduce" for user in users):
        for at, operand in enumerate(node.operands[:2]):
            if any(_summed(node, operand)) and any(_slices(operand)) and not _was_whole(operand):
                yield from ((node.operands[1 - at], dim) for dim in dimensions(node)[1 - at])


def _summed(node: Node, operand: Value) -> set[Axis]:
    """Return the axes that split the dimensions of an operand that a product sums over."""
    dims = dimensions(node)[0 if operand is node.operands[0] else 1]
    return {axis for dim in dims for axis in operand.split[dim]}


def _slices(value: Value) -> Iterator[Node]:
    """Yield the slicing that made a value, if it is in place."""
    node = value.made_by
    while node is not None and node.name in ("sdy.all_slice", "stablehlo.transpose"):
        if node.name == "sdy.all_slice":
            yield node
        node = node.operands[0].made_by


def _is_matrix(node: Node) -> bool:
    """Say whether no operand is a vector: nothing but what is summed over."""
    kept = (
        size
        for operand, summed in zip(node.operands[:2], dimensions(node)[:2], strict=True)
        for size in [math.prod(operand.shape) // math.prod(operand.shape[dim] for dim in summed)]
    )
    return min(kept) > 1


def _was_whole(value: Value) -> bool:
    """Say whether every device has all of what it takes its slice of."""
    return any(not node.operands[0].axes for node in _slices(value))


def _gather(product: Node, given: Value, other: Value, summed: Node) -> None:
    """Make the sum over devices a gather of an operand, ahead of the product."""
    axes = _summed(product, given)
    body, result = product.body, summed.result
    for value in (given, other):
        whole = _without(value, axes)
        whole.users = [product]
        value.users.remove(product)
        product.operands[product.operands.index(value)] = whole
        if value is given:
            whole.made_by = summed
            given.users.append(summed)
            gathered = whole
    made = product.result
    made.users, made.yielded = result.users, result.yielded
    for user in made.users:
        user.operands[:] = [made if each is result else each for each in user.operands]
    body.yields[:] = [made if each is result else each for each in body.yields]
    summed.name, summed.operands, summed.results = "sdy.all_gather", [given], [gathered]
    body.nodes.remove(summed)
    body.nodes.insert(body.nodes.index(product), summed)
    product.at, summed.at = summed.at, product.at


def _without(value: Value, axes: set[Axis]) -> Value:
    split = tuple(tuple(axis for axis in own if axis not in axes) for own in value.split)
    return Value(value.dtype, value.shape, split, value.origins, value.body, value.made_by)
