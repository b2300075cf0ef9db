"""Operations along a sharded dimension, where Shardy does not say what XLA sends.

Shardy inserts what products, sums and lookups send. It says nothing of the rest, or guesses: it
takes the shift of a sharded dimension for free, and exchanges before a sort, where XLA has its own
way. `_WORKS` lists, for every operation that is not element by element, the dimensions that it
works along. Where none of those is sharded nothing is sent. Where one is, `halos` counts what XLA's
partitioner surely does, and everything else is unknown, as is any operation that has no row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardspec.ir.collectives import IN_SHARDY, IN_STABLEHLO
from shardspec.ir.step import Unknown
from shardspec.jax_backend.step.graph import Axis, Graph, Node, Value
from shardspec.jax_backend.step.ops import backend_config, is_mark, target_of
from shardspec.jax_backend.step.rewrites import indexed_dims, is_constant
from shardspec.jax_backend.step.summands import sliced_summands
from shardspec.programs.census import SENDS, unknown_call

#: What is unknown may be left out where all of it together cannot exceed this share of the bytes.
_NEGLIGIBLE = 0.02
#: How often an operation may send all of its arrays; a solver, panel by panel, more often.
_MOST_TIMES = 2
_SOLVERS = 16

Works = Iterator[tuple[Value, int]]
Shape = Sequence[int]


def unknown_of(
    graph: Graph, known: Container[Node], wire_bytes: float, asked: Container[Any]
) -> list[Unknown]:
    """Return the operations whose collectives are not known, in the order of the program.

    Those that together could add at most 2 % to what is sent are left out: no figure shows them.

    Args:
      known: operations whose collectives are counted.
      wire_bytes: what the step sends as far as that is known.
      asked: split, shape and place of every constraint: an array that the user reshards.
    """
    found = [
        node
        for node in graph.nodes()
        if node not in known
        and (_is_foreign(node) or _is_from_host(node) or _is_sharded(node, asked))
    ]
    left = _NEGLIGIBLE * wire_bytes
    small: set[Node] = set()
    for node in sorted(found, key=_most_bytes):
        left -= _most_bytes(node)
        if left < 0:
            break
        small.add(node)
    return [_unknown(node) for node in found if node not in small]


def _unknown(node: Node) -> Unknown:
    name = target_of(node)
    what = f"custom-call {name}" if name else node.name.partition(".")[2].replace("_", "-")
    reason, figures = (
        "it works along a sharded dimension, and how XLA partitions it is not known",
        SENDS,
    )
    if _is_from_host(node):
        reason = "one device gets it from its host, and how the others get it is not known"
    elif _is_exchange(node):
        what, reason = (
            (name or what).replace("_", "-"),
            "how much each device sends is in its operands",
        )
    elif name:
        reason = "nothing says how XLA partitions this kernel on a sharded array"
        found = unknown_call(name, backend_config(node)) if node.body.all_manual else None
        what, reason, figures = found or (what, reason, figures)
    return Unknown(what, reason, figures, node.where.place, node.phase, node.count)


def _most_bytes(node: Node) -> float:
    if _is_foreign(node):
        return math.inf
    ways = math.prod(axis.size for axis in _axes(node))
    times = _SOLVERS if node.name in _MATRICES or target_of(node) else _MOST_TIMES
    return times * ways * node.count * sum(each.bytes for each in (*node.operands, *node.results))


def _axes(node: Node) -> set[Axis]:
    values = (*map(before, node.operands), *node.results)
    return {axis for value in values for axes in value.split for axis in axes}


def _is_exchange(node: Node) -> bool:
    return "replica_groups" in node.op.attributes or target_of(node) == "ragged_all_to_all"


def _is_foreign(node: Node) -> bool:
    """Say whether an operation under `shard_map` may send what nothing here counts."""
    if not node.body.all_manual or node.name in IN_STABLEHLO:
        return False
    name = target_of(node)
    is_local = not name or is_mark(node) or unknown_call(name, backend_config(node)) is None
    return _is_exchange(node) or not is_local


def _is_from_host(node: Node) -> bool:
    """Say whether a function of Python makes an array, which runs once, for one device."""
    is_call = node.name == "stablehlo.recv" or target_of(node).startswith("xla_ffi_python_")
    is_read = any(each.bytes and (each.users or each.yielded) for each in node.results)
    return is_call and is_read and not node.body.all_manual


def _is_sharded(node: Node, asked: Container[Any]) -> bool:
    """Say whether a mesh axis splits a dimension that an operation works along."""
    if (
        node.info.is_free
        or node.name in IN_STABLEHLO
        or node.name.startswith("sdy.")
        or is_mark(node)
    ):
        return False
    at = _WORKS.get(node.name)
    works = _everywhere(node) if at is None else at(node)
    return any(_splits(value, dim, asked) for value, dim in works)


def _splits(value: Value, dim: int, asked: Container[Any]) -> bool:
    return any(each.split[dim] for each in _resharded(value, asked))


def before(value: Value, asked: Container[Any] = ()) -> Value:
    """Return a value as it was sharded before Shardy resharded it for an operation."""
    return [*_resharded(value, asked)][-1]


def _resharded(value: Value, asked: Container[Any] = ()) -> Iterator[Value]:
    """Yield a value, and what it is a reshard of that no constraint asks for, the nearest first."""
    yield value
    while value.made_by is not None and value.made_by.name in IN_SHARDY:
        node = value.made_by
        if node.name == "sdy.all_reduce" or (value.split, value.shape, node.where.place) in asked:
            return
        value = node.operands[0]
        yield value


def _everywhere(node: Node) -> Works:
    if target_of(node) in _BATCHED:
        return _last(node, 2)
    if target_of(node) == "ApproxTopK":
        return _changed(node)
    values = (*node.operands, *node.results)
    return ((value, dim) for value in values for dim in range(len(value.shape)))


def numbers_of(node: Node, name: str) -> list[int]:
    """Return the numbers of an attribute; none where an operation does not have it."""
    held: Any = node.op.attributes
    if name not in held:
        return []
    found = held[name]
    if isinstance(found, ir.DenseIntElementsAttr):
        return [found[at] for at in range(len(found))]
    return [found.value] if isinstance(found, ir.IntegerAttr) else list(found)


def _along(name: str) -> Callable[[Node], Works]:
    """Return the dimensions that an attribute lists, of every array of an operation."""
    return lambda node: (
        (value, dim) for value in (*node.operands, *node.results) for dim in numbers_of(node, name)
    )


def _sorted(node: Node) -> Works:
    """Yield what a sort works along; a list, of which XLA gathers the keys as Shardy does."""
    return iter(()) if len(node.result.shape) == 1 else _along("dimension")(node)


def _joined(node: Node) -> Works:
    """Yield what parts are joined along, where one of them does not divide into shards.

    Shards of whole parts are exchanged for others, as Shardy says.
    """
    (dim,) = numbers_of(node, "dimension")
    values = (*map(before, node.operands), node.result)
    ways = max(math.prod(axis.size for axis in value.split[dim]) for value in values)
    odd = any(value.shape[dim] % ways for value in values)
    return iter([(value, dim) for value in values] if odd else ())


def _last(node: Node, count: int) -> Works:
    first = len(node.operands[0].shape) - count
    for value in (*node.operands, *node.results):
        yield from ((value, dim) for dim in range(first, len(value.shape)))


def _transformed(node: Node) -> Works:
    return _last(node, len(numbers_of(node, "fft_length")))


def _changed(node: Node) -> Works:
    """Yield the dimensions that have another size in the result."""
    own, made = node.operands[0], node.result
    for dim, (old, new) in enumerate(zip(own.shape, made.shape, strict=True)):
        if old != new:
            yield from ((own, dim), (made, dim))


def _cut(node: Node) -> Works:
    """Yield the same, unless the result is to have them whole: then XLA moves the operand first."""
    user = node.result.users[0] if len(node.result.users) == 1 else node
    made = user.result if user.name in IN_SHARDY else node.result
    return (
        (value, dim)
        for value, dim in _changed(node)
        if made.split[dim] or node.operands[0].split[dim]
    )


def _updated(node: Node) -> Works:
    """Yield the dimensions that an update covers in part; one row is written where it belongs."""
    into, update = node.operands[:2]
    for dim, (whole, part) in enumerate(zip(into.shape, update.shape, strict=True)):
        if part not in (1, whole):
            yield from ((into, dim), (node.result, dim))


def _placed(node: Node) -> Works:
    """Yield the dimensions of which constant rows are written: XLA makes a slice of those."""
    dims = indexed_dims(node) if is_constant(node.operands[1]) else []
    return ((node.operands[0], dim) for dim in dims)


def is_plain(node: Node) -> bool:
    """Say whether windows are summed by one operation, an addition or a maximum."""
    blocks = (block for region in node.op.regions for block in region)
    return all(len(list(block.operations)) <= _PLAIN for block in blocks)


def _windowed(node: Node) -> Works:
    rank = len(node.result.shape)
    if not is_plain(node):
        yield from _everywhere(node)  # sums that are not of one addition or maximum
        return
    windows = numbers_of(node, "window_dimensions") or [1] * rank
    for dim in range(rank):
        if windows[dim] != 1:
            yield from ((node.operands[0], dim), (node.result, dim))


def _convolved(node: Node) -> Works:
    numbers = stablehlo.ConvDimensionNumbers(node.op.attributes["dimension_numbers"])
    kernel = node.operands[1].shape
    spatial = zip(
        numbers.input_spatial_dimensions,
        numbers.output_spatial_dimensions,
        numbers.kernel_spatial_dimensions,
        strict=True,
    )
    for dim, made, taps in spatial:
        if kernel[taps] != 1:
            yield from ((node.operands[0], dim), (node.result, made), (node.operands[1], taps))
    if gathers_features(node):
        yield node.operands[0], numbers.input_feature_dimension


def gathers_features(node: Node) -> bool:
    """Say whether gathering what a convolution sums over is cheaper than that sum: XLA does so."""
    if node.name != "stablehlo.convolution":
        return False
    numbers = stablehlo.ConvDimensionNumbers(node.op.attributes["dimension_numbers"])
    given = node.operands[0]
    ways = math.prod(axis.size for axis in given.split[numbers.input_feature_dimension])
    return ways > 1 and given.bytes * ways < 2 * node.result.bytes


def _reshaped(node: Node) -> Works:
    """Yield the dimensions of an array that was repeated: XLA gathers it before that."""
    own = node.operands[0]
    made_by = before(own).made_by
    if made_by is not None and made_by.name == "stablehlo.broadcast_in_dim" and before(own) != own:
        yield from ((own, dim) for dim in range(len(own.shape)))


def _ragged(node: Node) -> Works:
    """Yield all dimensions of a product of groups but the columns that it makes."""
    left, right, sizes = node.operands[:3]
    whole = ((left, 2), (right, 2), (sizes, 1), (node.result, 1))
    return ((value, dim) for value, count in whole for dim in range(count))


#: How many operations a window is summed by that XLA knows: one, and the return.
_PLAIN = 2
_MATRICES = frozenset(("stablehlo.cholesky", "stablehlo.triangular_solve"))
#: Kernels of XLA for each of several matrices.
_BATCHED = frozenset(("Cholesky", "Qr", "Householder", "ProductOfElementaryHouseholderReflectors"))
#: The dimensions that an operation works along, by its name. What is not here and not free works
#: along all of them.
_WORKS: dict[str, Callable[[Node], Works]] = {
    "stablehlo.sort": _sorted,
    "stablehlo.reverse": _along("dimensions"),
    "stablehlo.concatenate": _joined,
    "stablehlo.fft": _transformed,
    **dict.fromkeys(_MATRICES, lambda node: _last(node, 2)),
    "stablehlo.dot_general": sliced_summands,
    "chlo.top_k": lambda node: _last(node, 1),
    "chlo.ragged_dot": _ragged,
    "stablehlo.slice": _cut,
    "stablehlo.pad": _cut,
    "stablehlo.dynamic_slice": _changed,
    "stablehlo.dynamic_update_slice": _updated,
    "stablehlo.reduce_window": _windowed,
    "stablehlo.select_and_scatter": _windowed,
    "stablehlo.convolution": _convolved,
    "stablehlo.reshape": _reshaped,
    "stablehlo.scatter": _placed,
}
