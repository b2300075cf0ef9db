"""What XLA's partitioner sends for operations along a sharded dimension, where that is certain.

A device that needs a few rows of its neighbours gets them by collective-permute: a halo. Where
halos are wider than a shard XLA goes other ways, and nothing is counted. Source: compiles of single
operations with libtpu 0.0.52 for v5e 2x4 (`tests/data/plain_ops.json`).
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Sequence
from typing import Any, NamedTuple

from jaxlib.mlir.dialects import stablehlo

from shardspec.ir.spec import array_bytes
from shardspec.ir.step import CollectiveKind, ring_bytes
from shardspec.jax_backend.step.graph import Axis, Graph, Node, Value
from shardspec.jax_backend.step.sends import Send
from shardspec.jax_backend.step.trace import Result
from shardspec.jax_backend.step.unknown import before, gathers_features, is_plain, numbers_of

_PERMUTE = CollectiveKind.COLLECTIVE_PERMUTE
#: How many of the greatest XLA surely looks for in each shard by itself.
_FEW = 16
_WINDOWED = frozenset(
    f"stablehlo.{name}" for name in ("slice", "pad", "reduce_window", "convolution")
)


class _Window(NamedTuple):
    """Which elements along a dimension of the operand an element of the result is made of.

    Attributes:
      reach: from the first to the last of them.
    """

    dim: int
    made: int
    start: int
    stride: int
    reach: int


def halos_of(graph: Graph, platform: str, asked: Container[Any]) -> dict[Node, list[Send]]:
    """Return the operations whose collectives are certain, each with those.

    Args:
      asked: as `unknown_of` takes them.
    """
    found: dict[Node, list[Send]] = {}
    for node in graph.nodes():
        sent = _sent(node, graph, platform == "tpu", asked)
        if sent is not None:
            found[node] = sent
            if node.name == "stablehlo.concatenate":
                found |= {each.made_by: [] for each in node.operands if each.made_by is not None}
    return found


def whole_results(graph: Graph, results: Sequence[Result]) -> Iterator[Send]:
    """Yield a gather of every result that JAX cannot give back in shards.

    Where nobody states how a result is sharded, it is as propagated: unless that would be by parts
    of mesh axes, or in shards of different sizes.
    """
    for value, result in zip(graph.main.yields, results, strict=False):
        odd = [
            axis
            for size, axes in zip(value.shape, value.split, strict=True)
            for axis in axes
            if size > 1 and (size % _ways(axes) or axis.size != graph.sizes[axis.name])
        ]
        if odd and not result.split and value.made_by is not None:
            payload = value.bytes * _ways(odd)
            yield _send(CollectiveKind.ALL_GATHER, odd, value.made_by, value, payload)


def _ways(axes: Sequence[Axis]) -> int:
    return math.prod(axis.size for axis in axes)


def _send(
    kind: CollectiveKind, axes: Sequence[Axis], node: Node, source: Value, payload: int
) -> Send:
    wire = ring_bytes(kind, payload, _ways(axes))
    return Send(kind, tuple(axes), node, source, payload, wire)


def _sent(node: Node, graph: Graph, is_tpu: bool, asked: Container[Any]) -> list[Send] | None:
    """Return the collectives of an operation; None where they are not certain, or not counted."""
    own = node.operands[0] if node.operands else None
    if own is None or before(own, asked) is not own or gathers_features(node):
        return None
    if node.name == "stablehlo.reverse":
        axes = [axis for dim in numbers_of(node, "dimensions") for axis in node.result.split[dim]]
        return [_send(_PERMUTE, axes, node, own, own.bytes)] if axes else []
    if node.name == "chlo.top_k":
        return _found_in_parts(node, graph)
    if node.name == "stablehlo.concatenate":
        return _rolled(node)
    if node.name == "stablehlo.slice":
        made = node.result
        dims = [
            at for at, axes in enumerate(made.split) if axes and made.shape[at] != own.shape[at]
        ]
        if dims and all(made.shape[at] == 1 for at in dims):
            cut = [axis for at in dims for axis in own.split[at]]
            return [_send(CollectiveKind.ALL_REDUCE, cut, node, made, made.bytes)]
    windows = _windows(node)
    if not windows:
        return None
    found = [_halos(node, window, is_tpu) for window in windows]
    return None if None in found else [each for group in found for each in group or ()]


def _found_in_parts(node: Node, graph: Graph) -> list[Send] | None:
    """Return the gathers of what each device finds as the greatest of its own shard.

    XLA does so for few of a matrix of f32 that all mesh axes split, and merges values by their
    places: both go. It sorts or gathers all of any other array.
    """
    own = node.operands[0]
    axes, kind = own.split[-1], CollectiveKind.ALL_GATHER
    if not axes:
        return []
    ways = math.prod(size for name, size in graph.sizes.items() if name not in own.axes)
    few = node.result.shape[-1] <= _FEW
    if (own.dtype, len(own.shape), ways) != ("f32", 2, 1) or not few:
        return None
    return [_send(kind, axes, node, each, each.bytes * _ways(axes)) for each in node.results]


def _passed(node: Node, dim: int, rows: int, width: int = 1) -> Send:
    """Return the permute of some rows of an operand.

    Args:
      width: by how much narrower they are than the operand.
    """
    source = node.operands[0]
    payload = source.bytes // source.shard_shape[dim] * rows // width
    return _send(_PERMUTE, source.split[dim], node, source, payload)


def _rolled(node: Node) -> list[Send] | None:
    """Return what goes around where an array is put together of its own two parts, swapped."""
    parts = [each.made_by for each in node.operands if each.made_by is not None]
    if [each.name for each in parts] != ["stablehlo.slice"] * 2:
        return None
    first, second = parts
    (dim,) = numbers_of(node, "dimension")
    whole, axes = first.operands[0], first.operands[0].split[dim]
    size, by = whole.shape[dim], second.result.shape[dim]
    starts = [numbers_of(each, "start_indices")[dim] for each in parts]
    is_swap = second.operands[0] is whole and starts == [by, 0] and node.result.shape == whole.shape
    if not is_swap or not axes or axes != node.result.split[dim] or size % _ways(axes):
        return None
    return [_passed(first, dim, min(by, size - by, size // _ways(axes)))]


def _windows(node: Node) -> list[_Window]:
    """Return the window along each dimension; none where zeros stand between elements.

    Slices, pads, windows and convolutions name what they have of these by names of their own.
    """
    spread = (*numbers_of(node, "base_dilations"), *numbers_of(node, "lhs_dilation"))
    if node.name not in _WINDOWED or any(each > 1 for each in spread) or not is_plain(node):
        return []
    own = made = list(range(len(node.result.shape)))
    taps = numbers_of(node, "window_dimensions")
    if node.name == "stablehlo.convolution":
        numbers = stablehlo.ConvDimensionNumbers(node.op.attributes["dimension_numbers"])
        own, made = numbers.input_spatial_dimensions, numbers.output_spatial_dimensions
        taps = [node.operands[1].shape[dim] for dim in numbers.kernel_spatial_dimensions]
    zeros, ones = [0] * len(own), [1] * len(own)
    starts = numbers_of(node, "start_indices") or zeros
    lows = numbers_of(node, "edge_padding_low") or numbers_of(node, "padding")[::2] or zeros
    strides = numbers_of(node, "strides") or numbers_of(node, "window_strides") or ones
    apart = numbers_of(node, "rhs_dilation") or numbers_of(node, "window_dilations") or ones
    return [
        _Window(dim, to, start - low, stride, (tap - 1) * gap + 1)
        for dim, to, start, low, stride, tap, gap in zip(
            own, made, starts, lows, strides, taps or ones, apart, strict=True
        )
    ]


def _halos(node: Node, window: _Window, is_tpu: bool) -> list[Send] | None:
    """Return the permutes of the rows that devices need of their neighbours."""
    source, made = node.operands[0], node.result
    axes = source.split[window.dim]
    if not axes or (made.shape[window.made] == source.shape[window.dim] and window.reach == 1):
        return [] if axes == made.split[window.made] else None
    if axes != made.split[window.made]:
        return None
    size, new = source.shape[window.dim], made.shape[window.made]
    own, part = source.shard_shape[window.dim], made.shard_shape[window.made]
    left = right = 0
    for at in range(min(_ways(axes), -(-new // max(part, 1)))):
        first = max(0, window.start + at * part * window.stride)
        end = window.start + (min(new, (at + 1) * part) - 1) * window.stride + window.reach
        left, right = max(left, at * own - first), max(right, min(size, end) - (at + 1) * own)
    if max(left, right) > own:
        return None
    is_narrow = is_tpu and node.name == "stablehlo.convolution" and source.dtype == "f32"
    width = array_bytes((8,), "f32") // array_bytes((8,), "bf16") if is_narrow else 1
    return [_passed(node, window.dim, rows, width) for rows in (left, right) if rows]
