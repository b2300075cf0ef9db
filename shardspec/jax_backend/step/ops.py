"""What a propagated program computes: what no compiler fuses away.

Contractions, lookups, sorts and kernels, each with its arrays, its FLOPs and its phase.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from jaxlib.mlir.dialects import stablehlo

from shardspec.diagnostics.words import by_key
from shardspec.ir.step import Flows, OpKind, StepOp
from shardspec.jax_backend.step.graph import WITH_BODIES, Graph, Node, Value
from shardspec.programs.op_names import einsum_in, phase_of
from shardspec.programs.products import Window, einsum, taps

#: Custom calls that are marks in the program, and compute nothing.
_MARKS = ("Sharding", "SPMD", "LayoutConstraint", "annotate", "MoveTo", "xla.sdy", "Unreduced")


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
    flows = Flows()
    for node in graph.nodes():
        kind = node.info.kind
        if kind is not None and node.results and not is_mark(node):
            reads = flows.compute(node.at, map(_outermost, node.operands))
            made = dict.fromkeys(node.results, frozenset((node.at,)))
            yield replace(_op(node, kind, names), reads=tuple(sorted(reads)))
        else:
            made = {result: flows.makers(found) for result, found in _passed_on(node)}
        for result, ticks in made.items():
            flows.make(result, ticks)


def _passed_on(node: Node) -> Iterator[tuple[Value, list[Value]]]:
    """Yield each result of what computes nothing, and the values that it is made of."""
    bodies = node.bodies if node.name in WITH_BODIES else []
    if node.name == "stablehlo.while":
        bodies = bodies[:1]
    for at, result in enumerate(node.results):
        inner = [body.yields[at] for body in bodies if at < len(body.yields)]
        yield result, [_outermost(value) for value in (inner if bodies else node.operands)]


def _outermost(value: Value) -> Value:
    """Return the value that the argument of a body is given; of a loop before its first round."""
    while value.given is not None:
        value = value.given
    return value


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
