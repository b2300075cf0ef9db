"""What XLA does to collectives after propagation, and Shardy's output does not show.

Each correction is one function over the collectives of a program. They change what is sent, not
how: combining, scheduling and how a collective is carried out change counts and kinds and no
bytes, and are left to the compiler.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container
from dataclasses import replace
from typing import Any, assert_never

from jaxlib.mlir.dialects import stablehlo

from shardspec.analysis import compiled_sends
from shardspec.ir.collectives import IN_SHARDY, MOVES, SUMS, CollectiveKind, ring_bytes
from shardspec.ir.spec import Hardware, Target, array_bytes
from shardspec.jax_backend.step.graph import Node, Value
from shardspec.jax_backend.step.ops import dimensions
from shardspec.jax_backend.step.sends import Send
from shardspec.jax_backend.step.trace import platform_of

#: Operations that pass a partial sum on as it is, so that it can be summed over devices later.
_PASSES = frozenset(f"stablehlo.{name}" for name in ("convert", "reshape", "transpose", "negate"))
_RESHAPES = frozenset(("stablehlo.reshape",))
#: Operations that give the same array again, as far as what is sent is concerned.
_COPIES = frozenset(("stablehlo.convert", "stablehlo.transpose"))
#: The dimensions that the parts of a scatter's index are for.
_INDEXED = re.compile(r"scatter_dims_to_operand_dims = \[([\d, ]+)\]")
_SUMS = frozenset(("stablehlo.add", "stablehlo.subtract"))


def corrected(sends: list[Send], target: Target) -> list[Send]:
    """Return the collectives that are left when XLA has rewritten the program for a target."""
    platform = platform_of(target)
    sends = rows_written_in_place(constants_made_in_place(sends))
    longest = compiled_sends.longest_row(target.hardware)
    sends = lookups_exchanged(sends)
    sends = equal_gathers_once(sends, longest)
    sends = narrow_gathers(sends, platform == "tpu")
    sends = partial_sums_once(sends)
    apart = {axis.name for axis in target.mesh.axes if axis.network == "dcn"}
    passed = _RESHAPES if platform == "gpu" else _PASSES
    sends = sliced_sums_scattered(sends, passed, apart if platform == "tpu" else set())
    sends = sums_after_loops(sends, platform == "gpu")
    sends = windowed_products(sends, longest)
    if platform == "tpu":
        sends = sums_of_lanes_whole(sends, longest)
        sends = whole_machine_summed(sends, target.hardware)
    return [leg for send in sends for leg in _legs(send, target)]


def _legs(send: Send, target: Target) -> list[Send]:
    """Return a collective as what goes within slices, and what goes between them."""
    legs = compiled_sends.across_slices(send.kind, send.names, send.payload_bytes, target)
    if len(legs) == 1:
        return [send]
    parts = (tuple(axis for axis in send.axes if axis.name in names) for _, names, _ in legs)
    return [
        send.over(kind, axes, payload) for (kind, _, payload), axes in zip(legs, parts, strict=True)
    ]


def constants_made_in_place(sends: list[Send]) -> list[Send]:
    """Drop a collective of a constant: every device makes its own.

    The gradient of a table starts as zeros that lie as the table does.
    """
    return [send for send in sends if send.is_written or not is_constant(send.source)]


def is_constant(value: Value) -> bool:
    """Say whether a value is the same in every run, whatever its form."""
    node = value.made_by
    if node is None:
        return False
    if node.info.view:
        return is_constant(node.operands[0])
    return node.info.is_constant


def rows_written_in_place(sends: list[Send]) -> list[Send]:
    """Drop a gather of rows that each device writes into its own rows of an array.

    A cache that every sequence is at another place of, `cache.at[arange(batch), place].set(new)`:
    XLA sees that row `i` of what is new goes into row `i`.
    """
    return [send for send in sends if send.is_written or not _is_in_place(send)]


def _is_in_place(send: Send) -> bool:
    readers = _all_readers(send) if send.kind is CollectiveKind.ALL_GATHER else []
    return bool(readers) and all(
        node.name == "stablehlo.scatter"
        and _same_array(node.operands[0]) is not send.result
        and set(send.names) <= _counted_axes(node)
        for node in readers
    )


def _counted_axes(scatter: Node) -> set[str]:
    """Return the mesh axes that split dimensions whose index counts rows up from 0."""
    dims = indexed_dims(scatter)
    into, index = scatter.operands[:2]
    while index.made_by is not None and _shows(index.made_by):
        index = index.made_by.operands[0]
    parts = [index]
    if index.made_by is not None and index.made_by.name == "stablehlo.concatenate":
        parts = index.made_by.operands
    counted = [at for at, part in zip(dims, parts, strict=False) if _counts(part)]
    return {axis.name for at in counted for axis in into.split[at]}


def _shows(node: Node) -> bool:
    """Say whether an operation shows what it reads in another form, or on more devices."""
    return bool(node.info.view) or node.name == "sdy.all_gather"


def indexed_dims(scatter: Node) -> list[int]:
    """Return the dimensions that the parts of a scatter's index are for."""
    found = _INDEXED.search(str(scatter.op.attributes["scatter_dimension_numbers"]))
    return [int(each) for each in found.group(1).split(",")] if found else []


def _counts(value: Value) -> bool:
    """Say whether a value is 0, 1, 2 and so on; a negative index that is not there, too."""
    node = value.made_by
    while node is not None and (_shows(node) or node.name == "stablehlo.select"):
        node = node.operands[-1 if node.name == "stablehlo.select" else 0].made_by
    return node is not None and node.name == "stablehlo.iota"


def equal_gathers_once(sends: list[Send], longest: int = 0) -> list[Send]:
    """Drop a gather of what has been gathered alike in the same body.

    Shardy gathers a weight for each operation that reads it; XLA merges those whose operands are
    the same value. The gather of a forward pass and that of its rematerialisation stay two: a
    barrier stands between their operands, or they are in different loops. So do those for two
    products of which XLA splits one by the weight's own axes first. libtpu does not where it could
    pass the weight around a ring.

    Args:
      longest: as `windowed_products` takes them.
    """
    first: dict[tuple[object, ...], Send] = {}
    kept = []
    for send in sends:
        source = _same_array(send.source)
        left = frozenset(axis for axes in send.result.split for axis in axes)
        led = _is_led_by_the_weight(send) and not _has_ring(send, longest)
        key = (source, send.node.body, send.kind, frozenset(send.axes), left, led)
        if send.kind in SUMS or send.is_written or key not in first:
            kept.append(send)
            first[key] = send
        else:
            first[key].merged.append(send.result)
    return kept


def _is_led_by_the_weight(send: Send) -> bool:
    """Say whether XLA splits the product that a gather is for by the weight's own axes first.

    Where both operands have a dimension that splits the result, XLA starts with one of them and
    repeats the other operand over it: with that which repeats fewer bytes, or else the right one.
    A weight that comes first is gathered within groups of devices made for this product alone.
    """
    readers = [user for user in send.result.users if user.name == "stablehlo.dot_general"]
    for reader in readers if send.kind is CollectiveKind.ALL_GATHER else ():
        at = 0 if reader.operands[0] is send.result else 1
        lhs, rhs, lhs_batch, rhs_batch = dimensions(reader)
        summed = [(*lhs, *lhs_batch), (*rhs, *rhs_batch)]
        weight, other = reader.operands[at], reader.operands[1 - at]
        own, others = _kept_ways(weight, summed[at]), _kept_ways(other, summed[1 - at])
        if own > 1 and others > 1:
            return weight.bytes // send.ways * others + at > other.bytes * own
    return False


def _kept_ways(value: Value, summed: tuple[int, ...]) -> int:
    """Return into how many shards the dimensions split that a product keeps for itself."""
    kept = (axes for dim, axes in enumerate(value.split) if dim not in summed)
    return math.prod(axis.size for axes in kept for axis in axes)


def _same_array(value: Value) -> Value:
    """Return what a value is a copy of: narrower, or with its dimensions in another order."""
    node = value.made_by
    while node is not None and node.name in _COPIES and node.body is value.body:
        value = node.operands[0]
        node = value.made_by
    return value


def narrow_gathers(sends: list[Send], is_tpu: bool = False) -> list[Send]:
    """Gather in the narrower dtype what is made narrower as soon as it is gathered.

    Matrix units of TPUs take f32 as bf16, unless a product is asked for in a higher precision.
    libtpu narrows what is exchanged or passed on, too. Source: compiles of f32 weights and
    activations with libtpu 0.0.52 for v4, v5e, v5p and v6e.
    """
    kinds = MOVES if is_tpu else (CollectiveKind.ALL_GATHER,)
    for send in sends:
        is_moved = send.kind in kinds and send.source is send.node.operands[0]
        if not is_moved or not send.result.users:
            continue
        values = [value for result in (send.result, *send.merged) for value in _read_as(result)]
        widest = max(_read_bytes(value, is_tpu) for value in values)
        own = array_bytes((8,), send.result.dtype)
        if widest < own:
            send.payload_bytes = send.payload_bytes * widest // own
            send.wire_bytes = send.wire_bytes * widest // own
    return sends


def _read_as(value: Value) -> list[Value]:
    """Return a value as its readers have it: narrower, where each of them makes it so first."""
    if all(user.name == "stablehlo.convert" for user in value.users):
        return [user.result for user in value.users]
    return [value]


def _read_bytes(value: Value, is_tpu: bool) -> int:
    """Return the bytes of eight elements as products read them, where only products do."""
    is_narrow = is_tpu and value.dtype == "f32" and bool(value.users)
    dtype = "bf16" if is_narrow and all(map(_is_quick_product, value.users)) else value.dtype
    return array_bytes((8,), dtype)


def _is_quick_product(node: Node) -> bool:
    """Say whether an operation takes f32 as bf16, or moves it for such operations alone."""
    if IN_SHARDY.get(node.name) in MOVES:
        return bool(node.result.users) and all(map(_is_quick_product, node.result.users))
    if node.name != "stablehlo.dot_general":
        return False
    asked = node.op.attributes
    return "HIGH" not in (str(asked["precision_config"]) if "precision_config" in asked else "")


def partial_sums_once(sends: list[Send]) -> list[Send]:
    """Sum once what is added up before anything else reads it.

    The gradients of one activation through several weights are each a partial sum on every device:
    XLA adds them on the device and reduces the sum. Of those, the last reduction stays.
    """
    by_result = {send.result: send for send in sends if send.kind in SUMS}
    pending: dict[Value, tuple[Send, ...]] = {
        value: (send,) for value, send in by_result.items() if not send.is_written
    }
    merged: set[Send] = set()
    widths: dict[Send, int] = {}
    bodies = dict.fromkeys(send.node.body for send in sends)
    for node in (node for body in bodies for node in body.nodes):
        groups = [pending.get(operand, ()) for operand in node.operands]
        group = _carried_on(node, groups)
        if group:
            pending[node.result] = group
            merged.update(group[:-1])
            widths[group[-1]] = _widened(group, node, widths)
    return [send for send in sends if send not in merged]


def _widened(group: tuple[Send, ...], node: Node, widths: dict[Send, int]) -> int:
    """Make a sum as wide as what is added up on the device before it; return how wide it is."""
    last = group[-1]
    own = widths.get(last) or array_bytes((8,), last.result.dtype)
    width = array_bytes((8,), node.result.dtype)
    if len(group) < 2 or node.name not in _SUMS or width <= own:
        return own
    last.payload_bytes = last.payload_bytes * width // own
    last.wire_bytes = last.wire_bytes * width // own
    return width


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


def sliced_sums_scattered(
    sends: list[Send], passed: frozenset[str] = _PASSES, apart: Container[str] = ()
) -> list[Send]:
    """Make an all-reduce whose result is only sliced over its axes a reduce-scatter.

    It is so with a gradient that every device sums whole, and of which the optimizer state is
    split (ZeRO): each device keeps its own slice of the sum. Where only some of its axes slice,
    those scatter, and the others reduce the slice.

    Args:
      passed: operations that may stand between the sum and the slice. XLA:GPU does not look through
        one that makes the sum wider, as where a gradient in bf16 meets moments in f32.
      apart: mesh axes between slices of TPUs; where a sum goes within and between them, libtpu
        looks through none of these operations.
    """
    return [
        each
        for send in sends
        for each in _scattered(send, _RESHAPES if _is_apart(send, apart) else passed)
    ]


def _is_apart(send: Send, apart: Container[str]) -> bool:
    return len({name in apart for name in send.names}) > 1


def _scattered(send: Send, passed: frozenset[str]) -> list[Send]:
    if send.kind is not CollectiveKind.ALL_REDUCE or send.is_written:
        return [send]
    sliced = sliced_over(send.result, passed)
    scatter = tuple(axis for axis in send.axes if axis.name in sliced)
    if not scatter:
        return [send]
    first = send.over(CollectiveKind.REDUCE_SCATTER, scatter, send.payload_bytes)
    rest = tuple(axis for axis in send.axes if axis.name not in sliced)
    if not rest:
        return [first]
    return [first, send.over(CollectiveKind.ALL_REDUCE, rest, send.payload_bytes // first.ways)]


def sliced_over(value: Value, passed: frozenset[str] = _PASSES) -> frozenset[str]:
    """Return the mesh axes over which everything that reads a value slices it first."""
    if not value.users:
        return frozenset()
    return frozenset.intersection(*(_sliced_by(user, passed) for user in value.users))


def _sliced_by(user: Node, passed: frozenset[str]) -> frozenset[str]:
    if user.name in passed:
        return sliced_over(user.result, passed)
    if user.name != "sdy.all_slice":
        return frozenset()
    return frozenset(user.result.axes.keys() - user.operands[0].axes.keys())


def lookups_exchanged(sends: list[Send]) -> list[Send]:
    """Exchange what is looked up in a table, where Shardy would gather the table.

    A table that is split along its features by the axis that splits the batch: XLA looks up each
    device's features for the whole batch and exchanges them, and likewise backward, where it adds
    up each device's features of the gradient. The table itself is not sent.
    """
    return [_exchanged(send) or send for send in sends]


def _exchanged(send: Send) -> Send | None:
    looked_up = _looked_up(send)
    if looked_up is None or not set(send.names) <= looked_up.axes.keys():
        return None
    moved = send.over(CollectiveKind.ALL_TO_ALL, send.axes, looked_up.bytes)
    return replace(moved, source=looked_up)


def _looked_up(send: Send) -> Value | None:
    """Return the rows that a lookup gives, or that are added to a table backward."""
    if send.is_written:
        return None
    readers, made_by = _all_readers(send), send.source.made_by
    match send.kind:
        case CollectiveKind.ALL_GATHER:
            is_lookup = len(readers) == 1 and readers[0].name == "stablehlo.gather"
            is_table = is_lookup and _same_array(readers[0].operands[0]) is send.result
            return readers[0].result if is_table and not _is_of_rows(send, readers[0]) else None
        case CollectiveKind.REDUCE_SCATTER:
            is_scatter = made_by is not None and made_by.name == "stablehlo.scatter"
            return made_by.operands[-1] if made_by is not None and is_scatter else None
        case (
            CollectiveKind.ALL_REDUCE
            | CollectiveKind.ALL_TO_ALL
            | CollectiveKind.COLLECTIVE_PERMUTE
        ):
            return None
        case _:
            assert_never(send.kind)


def _is_of_rows(send: Send, lookup: Node) -> bool:
    """Say whether what is gathered are not features: rows, or one table of several."""
    numbers: Any = stablehlo.GatherDimensionNumbers(lookup.op.attributes["dimension_numbers"])
    dims = (*numbers.start_index_map, *numbers.operand_batching_dims)
    names = {axis.name for dim in dims for axis in send.source.split[dim]}
    return bool(names & set(send.names))


def sums_after_loops(sends: list[Send], are_merged: bool) -> list[Send]:
    """Sum over devices once behind a loop what the loop only adds up.

    So it is with gradients of microbatches where every device holds all of a weight, and with that
    of what an encoder gives to every layer of a decoder.

    Args:
      are_merged: whether several sums that are added up in each round are one by then, as for
        XLA:GPU. libtpu sums those in every round, and others as wide as their total is.
    """
    own = {send.result for send in sends if are_merged}
    for send in sends:
        if send.kind is CollectiveKind.ALL_REDUCE and not send.is_written:
            total = _total(send, own)
            if total is not None:
                send.after = send.node.body.owner
                send.payload_bytes = send.payload_bytes if are_merged else total.bytes
                send.wire_bytes = ring_bytes(send.kind, send.payload_bytes, send.ways)
    return sends


def _total(send: Send, own: set[Value]) -> Value | None:
    """Return the argument of a loop to which alone a value is added in each round.

    Args:
      own: the results that are sums of their own, where the others are part of one of those.
    """
    body, value = send.node.body, send.result
    while body.is_loop and len(value.users) == 1:
        user = value.users[0]
        others = [each for each in user.operands if each is not value]
        if user.name in _PASSES or (user.name in _SUMS and all(_is_part(o, own) for o in others)):
            value = user.result
        elif user.name == "stablehlo.add" and len(others) == 1:
            at = next((at for at, each in enumerate(body.yields) if each is user.result), -1)
            is_total = at >= 0 and others[0] is body.arguments[at]
            is_only = is_total and len(others[0].users) == 1 and not user.result.users
            return others[0] if is_only else None
        else:
            return None
    return None


def _is_part(value: Value, own: set[Value]) -> bool:
    """Say whether a value is a partial sum that is reduced as part of another."""
    node = value.made_by
    if node is None:
        return False
    if node.name in _PASSES or node.name in _SUMS:
        return all(_is_part(each, own) for each in node.operands)
    return node.name == "sdy.all_reduce" and bool(own) and value not in own


def windowed_products(sends: list[Send], longest: int) -> list[Send]:
    """Count the turns of products that libtpu computes while it passes operands around a ring.

    A weight that one product reads is not gathered: its shards go around in both directions, each
    multiplied as it comes, and the sum of a gradient is built up so. Over n devices that moves
    n + 1 shards where a gather or a reduce-scatter moves n - 1. A product whose result is a
    partial sum itself gathers first, and so does one that all devices compute. A ring of four
    gathers as ever.

    Args:
      longest: chips in a row; 0 where no product is computed so, as on GPUs.
    """
    for send in sends:
        if _has_ring(send, longest) and _is_windowed(send):
            send.wire_bytes = compiled_sends.windowed_bytes(send.payload_bytes, send.ways)
    return sends


def _has_ring(send: Send, longest: int) -> bool:
    return compiled_sends.has_ring(len(send.axes), send.ways, longest)


def _is_windowed(send: Send) -> bool:
    if send.is_written:
        return False
    match send.kind:
        case CollectiveKind.REDUCE_SCATTER:
            made_by = send.source.made_by if send.node.name == "sdy.reduce_scatter" else None
            return made_by is not None and made_by.name == "stablehlo.dot_general"
        case CollectiveKind.ALL_GATHER:
            return send.ways != compiled_sends.SMALL_RING and _is_of_product(send)
        case (
            CollectiveKind.ALL_REDUCE
            | CollectiveKind.ALL_TO_ALL
            | CollectiveKind.COLLECTIVE_PERMUTE
        ):
            return False
        case _:
            assert_never(send.kind)


def _is_of_product(send: Send) -> bool:
    """Say whether one product alone reads what is gathered, and makes no partial sum of it."""
    readers = _all_readers(send)
    return (
        len(readers) == 1
        and readers[0].name == "stablehlo.dot_general"
        and not any(IN_SHARDY.get(user.name) in SUMS for user in readers[0].result.users)
        and set(send.names) <= readers[0].result.axes.keys()
    )


def _all_readers(send: Send) -> list[Node]:
    return [node for value in (send.result, *send.merged) for node in _readers(value)]


def _readers(value: Value) -> list[Node]:
    """Return the operations that read a value, or another form of it."""
    found = []
    for user in value.users:
        found += _readers(user.result) if user.name in _PASSES else [user]
    return found


def sums_of_lanes_whole(sends: list[Send], longest: int) -> list[Send]:
    """Count twice a sum along lanes that libtpu slices whole: `compiled_sends.is_sliced_whole`."""
    for send in sends:
        is_sum = send.kind is CollectiveKind.REDUCE_SCATTER and not send.is_written
        is_turned = _has_ring(send, longest) and _is_windowed(send)
        if is_sum and not is_turned and _slices_lanes(send):
            send.wire_bytes = ring_bytes(CollectiveKind.ALL_REDUCE, send.payload_bytes, send.ways)
    return sends


def _slices_lanes(send: Send) -> bool:
    names, value = set(send.names), send.result
    while value.users and value.users[0].name in (*_COPIES, "sdy.all_slice"):
        is_there = names <= value.axes.keys()
        if is_there and value.users[0].name == "sdy.all_slice":
            break
        value = value.users[0].result
    last = {axis.name for axis in value.split[-1]} if value.split else set()
    dtype = send.source.dtype
    return names <= last and compiled_sends.is_sliced_whole(value.shard_shape, dtype)


def whole_machine_summed(sends: list[Send], hardware: Hardware | None) -> list[Send]:
    """Count twice what libtpu moves as an all-reduce, where a collective goes over all devices."""
    for send in sends:
        what = send.kind, send.ways, send.payload_bytes
        if not send.is_written and compiled_sends.is_summed_whole(*what, hardware):
            kind = CollectiveKind.ALL_REDUCE
            send.wire_bytes = ring_bytes(kind, send.payload_bytes, send.ways)
    return sends
