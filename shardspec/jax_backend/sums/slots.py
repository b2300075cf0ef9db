"""Where each dimension of an operand goes in an operation of JAX: on to the result, or into a sum.

Of an operand that is split along a dimension only that matters. A dimension that goes nowhere in
particular, because elements move along it, has no slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from shardspec.ir.step import Part


class Slot(NamedTuple):
    """Where a dimension goes.

    Attributes:
      at: the dimension of the result, or which of the dimensions that are summed.
      part: what the operation does along it, where it does not go on: it adds up, or finds a most.
      is_minor: whether it is merged into that dimension of the result behind another.
    """

    at: int
    part: Part | None = None
    is_minor: bool = False


#: For each dimension of one operand.
Slots = list[Slot | None]

#: What makes an element of those in its place.
_ELEMENTWISE = """abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e bessel_i1e
    cbrt ceil clamp clz complex conj convert_element_type copy copy_p cos cosh digamma div eq erf
    erf_inv erfc exp exp2 expm1 floor ge gt igamma igammac imag integer_pow is_finite le lgamma log
    log1p logistic lt max min mul name ne neg nextafter not or polygamma pow population_count pvary
    real reduce_precision rem round rsqrt select_n sharding_constraint shift_left
    shift_right_arithmetic shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh
    xor"""
_IN_PLACE = frozenset(_ELEMENTWISE.split())
_REDUCE: dict[str, Part | None] = {
    "reduce_sum": "sum",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
    **dict.fromkeys(("reduce_and", "reduce_or", "reduce_prod", "reduce_xor", "argmax", "argmin")),
}


def slots_of(equation: Any) -> list[Slots] | None:
    """Return the slots of each operand; None for an operation that is not known here."""
    name = equation.primitive.name
    shapes = [tuple(getattr(each.aval, "shape", ())) for each in equation.invars]
    if name in _IN_PLACE:
        return [[Slot(at) for at in range(len(shape))] for shape in shapes]
    if name in _REDUCE:
        axes = equation.params["axes"]
        return [_without(shape, axes, _REDUCE[name]) for shape in shapes]
    found = _OTHERS.get(name)
    return None if found is None else found(equation.params, shapes, equation)


def _without(shape: tuple[int, ...], axes: Iterable[int], part: Part | None) -> Slots:
    gone = set(axes)
    kept = iter(range(len(shape)))
    lost: Slot | None
    found: Slots = []
    for dim in range(len(shape)):
        lost = None if part is None else Slot(dim, part)
        found.append(lost if dim in gone else Slot(next(kept)))
    return found


def _where(shape: tuple[int, ...], is_kept: Callable[[int], bool]) -> Slots:
    return [Slot(dim) if is_kept(dim) else None for dim in range(len(shape))]


def _broadcast(params: Any, shapes: Any, _: Any) -> list[Slots]:
    onto, out = params["broadcast_dimensions"], params["shape"]
    first = [
        Slot(int(at)) if out[at] == size else None for at, size in zip(onto, shapes[0], strict=True)
    ]
    return [first]


def _reshape(params: Any, shapes: Any, _: Any) -> list[Slots]:
    found: Slots = [None] * len(shapes[0])
    before, after = shapes[0], tuple(params["new_sizes"])
    for old, new in _groups(before, after):
        large_old = [dim for dim in old if before[dim] != 1]
        large_new = [dim for dim in new if after[dim] != 1]
        if not large_old or len(large_new) != 1:
            continue  # of several new dimensions, each may be the one that is split
        if len([dim for dim in new if dim < large_new[0]]) <= old.index(large_old[0]):
            found[large_old[0]] = Slot(large_new[0])
        for dim in large_old[1:]:
            found[dim] = Slot(large_new[0], is_minor=True)
    return [found]


def _groups(
    before: tuple[int, ...], after: tuple[int, ...]
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the dimensions of a reshape that have the same elements, before and after."""
    old: list[int] = []
    new: list[int] = []
    i = j = 0
    while i < len(before) or j < len(after):
        sizes = math.prod(before[d] for d in old), math.prod(after[d] for d in new)
        if i < len(before) and (sizes[0] <= sizes[1] or j == len(after)):
            old.append(i)
            i += 1
        else:
            new.append(j)
            j += 1
        sizes = math.prod(before[d] for d in old), math.prod(after[d] for d in new)
        if old and new and sizes[0] == sizes[1] != 1:
            yield old, new
            old, new = [], []


def _slice(params: Any, shapes: Any, equation: Any) -> list[Slots]:
    out = equation.outvars[0].aval.shape
    first = _where(shapes[0], lambda dim: bool(out[dim] == shapes[0][dim]))
    return [first, *([] for _ in shapes[1:])]


def _pad(params: Any, shapes: Any, _: Any) -> list[Slots]:
    return [_where(shapes[0], lambda dim: not any(params["padding_config"][dim])), []]


def _along(name: str) -> Callable[[Any, Any, Any], list[Slots]]:
    """Return the slots of an operation that moves elements along the dimensions of a parameter."""

    def found(params: Any, shapes: Any, _: Any) -> list[Slots]:
        told = params[name]
        moved = {told} if isinstance(told, int) else set(told)
        return [_where(shape, lambda dim: dim not in moved) for shape in shapes]

    return found


def _update(params: Any, shapes: Any, _: Any) -> list[Slots]:
    own, new = shapes[:2]
    both = _where(own, lambda dim: bool(own[dim] == new[dim]))
    return [both, both, *([] for _ in shapes[2:])]


def _dot(params: Any, shapes: Any, _: Any) -> list[Slots]:
    contracted, batch = params["dimension_numbers"]
    behind = len(batch[0])
    found: list[Slots] = []
    for shape, summed, shared in zip(shapes, contracted, batch, strict=True):
        own: Slots = [None] * len(shape)
        for at, dim in enumerate(summed):
            own[dim] = Slot(at, "sum")
        for at, dim in enumerate(shared):
            own[dim] = Slot(at)
        for dim in range(len(shape)):
            if own[dim] is None:
                own[dim] = Slot(behind)
                behind += 1
        found.append(own)
    return found


def _convolution(params: Any, shapes: Any, _: Any) -> list[Slots]:
    numbers = params["dimension_numbers"]
    left: Slots = [None] * len(shapes[0])
    right: Slots = [None] * len(shapes[1])
    if params["feature_group_count"] == params["batch_group_count"] == 1:
        left[numbers.lhs_spec[0]] = Slot(numbers.out_spec[0])
        right[numbers.rhs_spec[0]] = Slot(numbers.out_spec[1])
        left[numbers.lhs_spec[1]] = right[numbers.rhs_spec[1]] = Slot(0, "sum")
    return [left, right]


def _gather(params: Any, shapes: Any, equation: Any) -> list[Slots]:
    numbers, sizes = params["dimension_numbers"], params["slice_sizes"]
    rank = len(equation.outvars[0].aval.shape)
    behind = iter(at for at in range(rank) if at not in numbers.offset_dims)
    indices: Slots = [*(Slot(at) for at in behind), None]
    own: Slots = [None] * len(shapes[0])
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    kept = (dim for dim in range(len(shapes[0])) if dim not in gone)
    for dim, at in zip(kept, numbers.offset_dims, strict=True):
        if sizes[dim] == shapes[0][dim]:
            own[dim] = Slot(at)
    pairs = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    for dim, at in pairs:
        own[dim] = indices[at]
    return [own, indices]


def _scatter(params: Any, shapes: Any, equation: Any) -> list[Slots]:
    numbers = params["dimension_numbers"]
    adds = equation.primitive.name in ("scatter-add", "scatter_add")
    own, updates = shapes[0], shapes[2]
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    kept = [dim for dim in range(len(own)) if dim not in gone]
    window = dict(zip(numbers.update_window_dims, kept, strict=True))
    batching = dict(
        zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    new: Slots = [None] * len(updates)
    indices: Slots = [None] * len(shapes[1])
    at = 0
    for dim in range(len(updates)):
        if dim in window:
            new[dim] = Slot(window[dim]) if updates[dim] == own[window[dim]] else None
            continue
        lost = Slot(at, "sum") if adds else None
        new[dim] = indices[at] = Slot(batching[at]) if at in batching else lost
        at += 1
    moved = {
        *numbers.scatter_dims_to_operand_dims,
        *(into for dim, into in window.items() if updates[dim] != own[into]),
    }
    return [_where(own, lambda dim: dim not in moved), indices, new]


def _transposed(params: Any, shapes: Any, _: Any) -> list[Slots]:
    order = list(params["permutation"])
    return [[Slot(order.index(dim)) for dim in range(len(shapes[0]))]]


def _squeezed(params: Any, shapes: Any, _: Any) -> list[Slots]:
    return [_without(shapes[0], params["dimensions"], None)]


_OTHERS: dict[str, Callable[[Any, Any, Any], list[Slots]]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transposed,
    "squeeze": _squeezed,
    "slice": _slice,
    "dynamic_slice": _slice,
    "dynamic_update_slice": _update,
    "pad": _pad,
    "concatenate": _along("dimension"),
    "split": _along("axis"),
    "rev": _along("dimensions"),
    "sort": _along("dimension"),
    **dict.fromkeys(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), _along("axis")),
    "dot_general": _dot,
    "conv_general_dilated": _convolution,
    "gather": _gather,
    **dict.fromkeys(("scatter", "scatter-add", "scatter_add"), _scatter),
}
