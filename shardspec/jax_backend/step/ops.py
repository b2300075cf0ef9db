"""What a propagated program computes, and which of its values take memory from when to when.

Told of is what no compiler fuses away: contractions, lookups, sorts, kernels. Chains of operations
element by element never exist in memory; what a contraction, a loop or a collective makes does. It
is a floor of what is alive at once, and three rules bring it nearer to what libtpu reports: what
two contractions read is kept; results take the memory of donated arguments; and a stack of weights
that loops read slice by slice, narrowed, is narrowed whole, once and ahead of them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from jaxlib.mlir.dialects import stablehlo

from shardspec.diagnostics.words import by_key
from shardspec.ir.collectives import IN_SHARDY, IN_STABLEHLO
from shardspec.ir.step import OpKind, StepOp, StepTensor
from shardspec.jax_backend.step.graph import Graph, Node, Value
from shardspec.jax_backend.step.trace import Given
from shardspec.programs.op_names import einsum_in, phase_of
from shardspec.programs.products import Window, einsum, taps

#: Custom calls that are marks in the program, and compute nothing.
_MARKS = ("Sharding", "SPMD", "LayoutConstraint", "annotate", "MoveTo", "xla.sdy", "Unreduced")
#: What reads whole arrays, which are kept for it.
_READERS = ("einsum", "convolution")
#: Fewer bytes than these are not told of.
_LEAST_TENSOR_BYTES = 4096


def set_phases(graph: Graph) -> None:
    """Say of every operation in which phase of the step it runs.

    JAX's own names tell forward, backward and rematerialised work apart. What has no such name
    comes with the loop it stands in, or else before the first backward work or after it.
    """
    update = False
    for node in graph.nodes():
        told = phase_of(node.where.name)
        outer = node.body.owner
        if told is None and outer is not None:
            told = phase_of(outer.where.name)
        update = update or told == "backward"
        node.phase = told or ("update" if update else "forward")


def ops_of(graph: Graph, names: dict[Value, str]) -> Iterator[StepOp]:
    """Yield every operation that computes, in the order of the program.

    Args:
      names: of values, by their identity: the weights and activations that are known.
    """
    for node in graph.nodes():
        kind = node.info.kind
        if kind is not None and node.results and not is_mark(node):
            yield _op(node, kind, names)


def backend_config(node: Node) -> str:
    """Return what a custom call states for its compiler; empty where it states nothing."""
    attributes = node.op.attributes
    held = attributes["backend_config"] if "backend_config" in attributes else ""  # noqa: SIM401
    return str(getattr(held, "value", held))


def target_of(node: Node) -> str:
    """Return the name of the kernel or mark that a custom call is; empty for anything else."""
    attributes = node.op.attributes
    return (
        str(attributes["call_target_name"]).strip('"') if "call_target_name" in attributes else ""
    )


def is_mark(node: Node) -> bool:
    """Say whether an operation is a mark in the program, and computes nothing."""
    return target_of(node).startswith(_MARKS)


def _op(node: Node, kind: OpKind, names: dict[Value, str]) -> StepOp:
    split = [axis for value in (*node.results, *node.operands) for axis in value.axes]
    return StepOp(
        kind,
        einsum_of(node),
        tuple(value.array(names.get(value, "")) for value in node.operands),
        node.result.array(names.get(node.result, "")),
        flops_of(node),
        node.count,
        node.where.place,
        node.phase,
        tuple(dict.fromkeys((*node.body.all_manual, *split))),
        node.at,
    )


def flops_of(node: Node) -> int:
    """Return the FLOPs of one device each time an operation runs; 0 where nothing is multiplied.

    A kernel says its own, where it was given a cost estimate.
    """
    if node.name == "stablehlo.dot_general":
        contracted, _, _, _ = dimensions(node)
        shape = node.operands[0].shard_shape
        return 2 * math.prod(node.result.shard_shape) * math.prod(shape[at] for at in contracted)
    if node.name == "stablehlo.convolution":
        return _convolution_flops(node)
    return _kernel_flops(node) if node.name == "stablehlo.custom_call" else 0


def _convolution_flops(node: Node) -> int:
    """Return the FLOPs of a convolution: what falls on padding or between elements is none."""
    numbers = stablehlo.ConvDimensionNumbers(node.op.attributes["dimension_numbers"])
    image, kernel = node.operands
    result = math.prod(node.result.shard_shape)
    features = kernel.shard_shape[numbers.kernel_input_feature_dimension]
    dims = zip(
        numbers.input_spatial_dimensions,
        numbers.kernel_spatial_dimensions,
        numbers.output_spatial_dimensions,
        strict=True,
    )
    found = Fraction(2 * result * features)
    for at, (inner, tap, outer) in enumerate(dims):
        stride, spread, apart = (
            _windows(node, name, at) for name in ("window_strides", "lhs_dilation", "rhs_dilation")
        )
        window = Window(kernel.shape[tap], stride, _low(node, at), spread, apart)
        places = node.result.shape[outer]
        found *= Fraction(taps(window, image.shape[inner], places), max(1, places))
    return math.ceil(found)


def _windows(node: Node, name: str, at: int) -> int:
    given = node.op.attributes
    return int(given[name][at]) if name in given else 1


def _low(node: Node, at: int) -> int:
    """Return the padding before the first element."""
    given = node.op.attributes
    return int(given["padding"][2 * at]) if "padding" in given else 0


def _kernel_flops(node: Node) -> int:
    try:
        config = json.loads(backend_config(node) or "{}")
    except ValueError:
        return 0
    held = config.get("custom_call_config", {}) if isinstance(config, dict) else {}
    estimate = held.get("cost_estimate") or {}
    return int(estimate.get("flops", 0))


def dimensions(node: Node) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return what a product contracts and batches: left, right, left, right."""
    found: Any = stablehlo.DotDimensionNumbers(node.op.attributes["dot_dimension_numbers"])
    return (
        list(found.lhs_contracting_dimensions),
        list(found.rhs_contracting_dimensions),
        list(found.lhs_batching_dimensions),
        list(found.rhs_batching_dimensions),
    )


def einsum_of(node: Node) -> str:
    """Return a product as an einsum: as the code spells it, where it does and it fits.

    A product of the backward pass is another than that of the code, and is spelt anew.
    """
    if node.name != "stablehlo.dot_general":
        return ""
    stated = stated_einsum(node)
    if stated and node.phase in ("forward", "remat"):
        return stated
    return einsum(dimensions(node), [len(operand.shape) for operand in node.operands[:2]])


def stated_einsum(node: Node) -> str:
    """Return the einsum in whose name an operation runs, empty where there is none."""
    return einsum_in(node.where.place)


def contracted_axes(node: Node) -> dict[str, list[Value]]:
    """Return the mesh axes over which the result of an operation is a partial sum, and of whom.

    Each with the operands that have it in a dimension that the operation sums over.
    """
    return by_key(
        (axis.name, operand)
        for at, operand in enumerate(node.operands)
        for dim in _summed_dims(node, at)
        for axis in operand.split[dim]
    )


def _summed_dims(node: Node, at: int) -> list[int]:
    if node.name == "stablehlo.dot_general" and at < 2:
        return dimensions(node)[at]
    if node.name == "stablehlo.reduce" and at < len(node.operands) // 2:
        return [int(dim) for dim in node.op.attributes["dimensions"]]
    if node.name in ("stablehlo.gather", "stablehlo.scatter", "stablehlo.convolution"):
        return list(range(len(node.operands[at].shape)))
    return []


def tensors_of(
    graph: Graph, arguments: Sequence[Given | None], platform: str
) -> Iterator[StepTensor]:
    """Yield the values that take memory, in the order of the program.

    Args:
      platform: of the chips; the stacks of weights that are narrowed ahead are a rule of TPUs.
    """
    if platform == "tpu":
        yield from _narrowed_stacks(graph, arguments)
    donated = sum(1 for each in arguments if each is not None and each.is_donated)
    for node in graph.nodes():
        for value in node.results:
            if value.bytes >= _LEAST_TENSOR_BYTES and _is_kept(node, value):
                tensor = _tensor(graph, node, value, donated > 0)
                yield _named_copy(tensor, node, arguments)


def _is_kept(node: Node, value: Value) -> bool:
    if node.name == "stablehlo.while":
        at = node.results.index(value)
        body = node.bodies[0]
        return body.yields[at] is not body.arguments[at]
    if _is_maker(node):
        return _memory_of_copy(node) in (None, "device")
    if node.phase == "forward" and not node.info.view and _is_saved(value):
        return True
    if _narrows(node):
        made_by = node.operands[0].made_by
        is_own = made_by is not None and not (_is_maker(made_by) or made_by.info.view)
        return is_own and len(_contractions(value)) > 1
    return not node.info.view and len(_contractions(value)) > 1


def _is_maker(node: Node) -> bool:
    """Say whether an operation makes an array that no consumer can be fused with."""
    is_sent = node.name in IN_SHARDY or node.name in IN_STABLEHLO
    return is_sent or node.info.kind is not None or node.name == "stablehlo.reduce"


def _memory_of_copy(node: Node) -> str | None:
    """Return the memory that an operation moves its operand to; None for any other operation."""
    if not is_mark(node) or "mhlo.frontend_attributes" not in node.op.attributes:
        return None
    stated = str(node.op.attributes["mhlo.frontend_attributes"])
    told = re.search(r'_xla_buffer_placement = "(\w+)"', stated)
    return told[1] if told else None


def _is_saved(value: Value) -> bool:
    """Say whether a barrier of the backward pass reads a value: what a layer is redone from.

    Nothing is fused over a barrier, so that what goes in lies in memory.
    """
    return any(
        (user.name == "stablehlo.optimization_barrier" and user.phase != "forward")
        or (user.info.view and any(_is_saved(view) for view in _views(user, value)))
        for user in value.users
    )


def _narrows(node: Node) -> bool:
    return node.name == "stablehlo.convert" and node.result.bytes < node.operands[0].bytes


def _contractions(value: Value) -> set[int]:
    """Return the contractions that read a value, or a view of it that is as wide."""
    found: set[int] = set()
    for user in value.users:
        if user.info.kind in _READERS:
            found.add(user.at)
        elif user.info.view and not _narrows(user):
            found.update(*map(_contractions, _views(user, value)))
    return found


def _views(node: Node, value: Value) -> list[Value]:
    """Return the results of an operation that are other forms of one of its operands."""
    if node.name != "stablehlo.optimization_barrier":
        return node.results
    pairs = zip(node.operands, node.results, strict=True)
    return [result for operand, result in pairs if operand is value]


def _narrowed_stacks(graph: Graph, arguments: Sequence[Given | None]) -> Iterator[StepTensor]:
    """Yield the narrow copies of weights that loops read slice by slice.

    Source: final programs of libtpu 0.0.52 for v4, v5e and v5p: one `convert` of each whole stack
    of f32 that every layer narrows, alive from the first loop that reads it to the last.
    """
    copies: dict[tuple[Value, str], tuple[Node, int, int]] = {}
    for loop in graph.nodes():
        body = loop.bodies[0] if loop.name == "stablehlo.while" else None
        if body is None:
            continue
        for at, held in enumerate(body.arguments):
            root = held
            while root.given is not None:
                root = root.given
            if root.argument is None or body.yields[at] is not held:
                continue
            for narrow in _narrowings(held):
                key = root, narrow.result.dtype
                first, born, _ = copies.get(key, (narrow, _first_tick(loop), 0))
                copies[key] = first, born, loop.at
    for (root, dtype), (narrow, born, dies) in copies.items():
        given = arguments[root.argument] if root.argument is not None else None
        array = replace(root.array("" if given is None else given.path), dtype=dtype)
        if array.bytes >= _LEAST_TENSOR_BYTES:
            yield StepTensor(array, array.bytes, born, dies, narrow.where.place, narrow.phase)


def _narrowings(value: Value) -> Iterator[Node]:
    """Yield what narrows slices of a value."""
    for user in value.users:
        if _narrows(user):
            yield user
        elif user.info.view or user.name == "sdy.all_gather":
            for view in _views(user, value):
                yield from _narrowings(view)


def _tensor(graph: Graph, node: Node, value: Value, donates: bool) -> StepTensor:
    born = _first_tick(node) if node.bodies else node.at
    is_result = value.body is graph.main and bool(value.yielded)
    dies = graph.end if is_result else max(_last_read(value, set()), node.at)
    is_loops = bool(value.yielded) and node.body.is_loop  # whose result has the memory
    held = 0 if is_loops or (is_result and donates) else value.bytes
    places = (each.where.place for each in (node, *_first_readers(value)))
    place = next((each for each in places if each.is_known), node.where.place)
    return StepTensor(value.array(), held, born, dies, place, node.phase)


def _named_copy(tensor: StepTensor, node: Node, arguments: Sequence[Given | None]) -> StepTensor:
    """Return a copy of what lies in host memory by the name of that; any other value as it is."""
    at = node.operands[0].argument if _memory_of_copy(node) else None
    given = arguments[at] if at is not None and at < len(arguments) else None
    if given is None:
        return tensor
    return replace(tensor, array=replace(tensor.array, name=given.path))


def _first_readers(value: Value) -> Iterator[Node]:
    """Yield what reads a value, and what reads the views of it: a gather has no line of its own."""
    for user in value.users:
        yield user
        if user.info.view and user.results:
            yield from user.result.users


def _first_tick(node: Node) -> int:
    """Return when a loop starts: its buffers are there from then on."""
    ticks = [inner.at for body in node.bodies for inner in body.nodes]
    return min((*ticks, node.at))


def _last_read(value: Value, seen: set[Value]) -> int:
    """Return the last tick that reads a value, or what is only another view of it."""
    if value in seen:
        return 0
    seen.add(value)
    last = 0
    for user in value.users:
        last = max(last, user.at)
        if user.info.view:
            last = max((last, *(_last_read(view, seen) for view in _views(user, value))))
    if value.body.is_loop and value.yielded:
        owner = value.body.owner
        last = max(last, owner.at if owner is not None else 0)
    return last
