"""What is known of the result of one operation of JAX, by what is known of its operands.

Where each dimension of an operand goes in an operation of JAX: on to the result, or into a sum.

Of an operand that is split along a dimension only that matters. A dimension that goes nowhere in
particular, because elements move along it, has no slot.

Along one mesh axis a value is the same on all devices, split, or a part of a sum. Everything that
is not proved is `UNKNOWN`. A value is `PARTIAL` where each device has a part of it, and the parts
add up to what one device would have computed. It is `STALE` where it was computed from such a part
as if that were all of it: it differs from device to device, and no sum mends it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cache
from typing import Any, NamedTuple

import jax

from shardspec.ir.step import Part, Place


class Kind(Enum):
    """How a value lies along a mesh axis."""

    ZERO = auto()
    #: the same on all devices, and in every run
    CONSTANT = auto()
    SAME = auto()
    SPLIT = auto()
    PARTIAL = auto()
    STALE = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a value along one mesh axis.

    Attributes:
      dim: the dimension that is split.
      even: dimensions along which all elements are equal, of a value that is the same everywhere.
      part: what the devices have parts of.
      born: the operation that left each device with a part.
      used: the operation that took a part for the whole, or added to it what all devices have.
      is_product: whether it is a plain product of a forward pass, whose parts are to be added up.
      is_scaled: whether a number multiplied it: the number may make up for a sum that comes later.
      summed: the sum that made it complete.
      is_implicit: whether JAX wrote that sum.
    """

    kind: Kind
    dim: int = -1
    even: frozenset[int] = frozenset()
    part: Part = "sum"
    born: Place | None = None
    used: Place | None = None
    is_product: bool = False
    is_scaled: bool = False
    summed: Place | None = None
    is_implicit: bool = False

    @property
    def is_same(self) -> bool:
        """Say whether all devices have the same value."""
        return self.kind in (Kind.ZERO, Kind.CONSTANT, Kind.SAME)

    @property
    def is_partial(self) -> bool:
        """Say whether it differs between devices because each has a part."""
        return self.kind in (Kind.PARTIAL, Kind.STALE)

    @property
    def is_sum(self) -> bool:
        """Say whether the parts add up to the whole."""
        return self.kind is Kind.PARTIAL and self.part == "sum" and self.used is None

    def is_even(self, dim: int) -> bool:
        """Say whether all elements along a dimension are equal."""
        return self.kind is Kind.ZERO or dim in self.even


ZERO = State(Kind.ZERO)
SAME = State(Kind.SAME)
UNKNOWN = State(Kind.UNKNOWN)


def split(dim: int) -> State:
    """Return that of a value that is split along a dimension."""
    return State(Kind.SPLIT, dim)


def stale(of: State, at: Place | None) -> State:
    """Return that of a value that was computed from a part as if it were the whole."""
    return State(Kind.STALE, part=of.part, born=of.born, used=of.used or at)


def joined(first: State, second: State) -> State:
    """Return what holds of a value that is one or the other."""
    if first == second or second.kind is Kind.ZERO:
        return first
    if first.kind is Kind.ZERO:
        return second
    if first.is_same and second.is_same:
        return _both_same(first, second)
    kinds = {first.kind, second.kind}
    if kinds == {Kind.PARTIAL} and first.part == second.part:
        scaled, product = (
            first.is_scaled or second.is_scaled,
            first.is_product and second.is_product,
        )
        return replace(first, used=first.used or second.used, is_scaled=scaled, is_product=product)
    partial = first if first.is_partial else second
    other = second if partial is first else first
    if Kind.UNKNOWN not in kinds and partial.is_partial and partial.used is not None:
        return stale(partial, partial.used)
    if other.kind is Kind.STALE and other.used is not None:
        return stale(other, other.used)
    lying, whole = (first, second) if first.kind is Kind.SPLIT else (second, first)
    is_shard = lying.kind is Kind.SPLIT and whole.is_same and whole.is_even(lying.dim)
    return lying if is_shard else UNKNOWN


def _both_same(first: State, second: State) -> State:
    constant = first.kind is second.kind is Kind.CONSTANT
    return State(
        Kind.CONSTANT if constant else Kind.SAME,
        even=first.even & second.even,
        is_scaled=first.is_scaled or second.is_scaled,
        summed=first.summed if first.summed == second.summed else None,
        is_implicit=first.is_implicit and second.is_implicit,
    )


def same_of(states: Iterable[State]) -> State:
    """Return that of what is computed from values that are the same on all devices."""
    kinds = {state.kind for state in states}
    return State(Kind.CONSTANT if Kind.SAME not in kinds else Kind.SAME)


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
_ELEMENTWISE = """abs acos acosh add add_any and asin asinh atan atan2 atanh bessel_i0e
    bessel_i1e cbrt ceil clamp clz complex conj convert_element_type copy copy_p cos cosh
    digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igammac imag integer_pow
    is_finite le lgamma log log1p log2 logistic lt max min mul name ne neg nextafter not
    one_minus_square or polygamma polynomial population_count pow pvary real reduce_precision
    rem round rsqrt select_n sharding_constraint shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh sqrt square stop_gradient sub tan tanh xor"""
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
        out = equation.outvars[0].aval.shape
        return [
            [Slot(at) if size == out[at] else None for at, size in enumerate(shape)]
            for shape in shapes
        ]
    if name in _REDUCE:
        axes = equation.params["axes"]
        return [_without(shape, axes, _REDUCE[name]) for shape in shapes]
    found = _MAPS.get(name)
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
    for old, new in same_elements(before, after):
        large_old = [dim for dim in old if before[dim] != 1]
        large_new = [dim for dim in new if after[dim] != 1]
        if not large_old or len(large_new) != 1:
            continue  # of several new dimensions, each may be the one that is split
        if len([dim for dim in new if dim < large_new[0]]) <= old.index(large_old[0]):
            found[large_old[0]] = Slot(large_new[0])
        for dim in large_old[1:]:
            found[dim] = Slot(large_new[0], is_minor=True)
    return [found]


def same_elements(
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
        moved = set(told) if isinstance(told, Iterable) else {told}  # numpy's integers, too
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


def _stacked(params: Any, shapes: Any, _: Any) -> list[Slots]:
    new = params["axis"]
    return [[Slot(at + (at >= new)) for at in range(len(shape))] for shape in shapes]


def _unstacked(params: Any, shapes: Any, _: Any) -> list[Slots]:
    return [_without(shapes[0], (params["axis"],), None)]


_MAPS: dict[str, Callable[[Any, Any, Any], list[Slots]]] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transposed,
    "squeeze": _squeezed,
    "stack": _stacked,
    "unstack": _unstacked,
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


_NAMES = {
    # shows its first operand in another form
    "views": """broadcast_in_dim conj convert_element_type copy copy_p dynamic_slice gather imag
        name pvary real reduce_precision reshape rev sharding_constraint slice split squeeze
        stop_gradient transpose unstack""",
    # puts elements of several operands beside each other
    "puts": """concatenate dynamic_update_slice pad scatter scatter-add scatter_add select_n
        stack""",
    # makes of several numbers the same one
    "rounds": "sign floor ceil round",
    # makes elements of different size of equal ones
    "uneven": """iota rng_bit_generator pad concatenate cumsum cumprod cummax cummin cumlogsumexp
        scatter scatter-add scatter_add dynamic_update_slice sort gather stack""",
    # depends on its operands alone, and is not in `jax.lax`
    "others": """add_any platform_index ragged_dot random_bits random_fold_in random_gamma
        random_seed random_split random_unwrap random_wrap threefry2x32""",
    # is in `jax.lax`, and does not depend on its operands alone
    "elsewhere": """psum pmax pmin ppermute pbroadcast all_gather all_to_all reduce_scatter
        axis_index ragged_all_to_all rng_uniform scan while cond after_all create_token""",
}
_VIEWS, _PUTS, _ROUNDS, _UNEVEN, _OTHERS, _ELSEWHERE = (
    frozenset(names.split()) for names in _NAMES.values()
)
#: What is linear in its first operand.
_LINEAR = _VIEWS | {"neg", "reduce_sum", "cumsum", "reduce_window_sum", "div"}
_ADDS = frozenset(("add", "sub", "add_any"))
_MULTIPLIES = frozenset(("mul", "dot_general", "conv_general_dilated"))


@cache
def deterministic() -> set[str]:
    """Return the operations whose results depend on their operands alone."""
    modules = (jax.lax, jax.lax.linalg)
    found = (getattr(at, name) for at in modules for name in dir(at) if name.endswith("_p"))
    names: set[str] = {getattr(each, "name", "") for each in found}
    return (names | _OTHERS | _VIEWS) - _ELSEWHERE


def computed(
    equation: Any, own: Sequence[State], at: Callable[[], Place], *, is_backward: bool
) -> Iterator[State]:
    """Yield what is known of each result.

    Args:
      at: returns the user's line of the operation.
    """
    name = equation.primitive.name
    state = _computed(equation, name, own, at, is_backward=is_backward)
    for var in equation.outvars:
        yield state if _is_kept(equation, name, own, state, var) else UNKNOWN


def _is_kept(equation: Any, name: str, own: Sequence[State], state: State, var: Any) -> bool:
    """Say whether a result differs wherever the parts do: a truth value, for one, may not."""
    if not state.is_partial or not any(each.is_partial for each in own):
        return True
    parts = (var for var, each in zip(equation.invars, own, strict=True) if each.is_partial)
    is_whole = state.kind is Kind.PARTIAL and not any(map(_is_real, parts))
    return name not in _ROUNDS and (_is_real(var) or (is_whole and var.aval.dtype != bool))


def _is_real(var: Any) -> bool:
    return bool(jax.numpy.issubdtype(var.aval.dtype, jax.numpy.inexact))


def _computed(
    equation: Any, name: str, own: Sequence[State], at: Callable[[], Place], *, is_backward: bool
) -> State:
    zeros = [each.kind is Kind.ZERO for each in own]
    if name in _MULTIPLIES and any(zeros) and not any(each.kind is Kind.SPLIT for each in own):
        return ZERO
    if name in _ADDS and any(zeros) and _is_one_shape(equation) and (zeros[1] or name != "sub"):
        return own[0] if zeros[1] else own[1]
    if name == "select_n" and not own[0].is_same and all(each.is_partial for each in own[1:]):
        return stale(own[1], at())
    if any(each.kind is Kind.UNKNOWN for each in own):
        return UNKNOWN
    slots = slots_of(equation)
    if any(each.is_partial for each in own):
        return _of_parts(equation, name, own, at)
    if all(each.is_same for each in own):
        return _of_same(equation, name, own, slots)
    return _of_split(equation, own, slots, at, is_backward=is_backward)


def _is_one_shape(equation: Any) -> bool:
    return len({each.aval.shape for each in equation.invars}) == 1


def _of_same(equation: Any, name: str, own: Sequence[State], slots: list[Slots] | None) -> State:
    """Return what is known where all operands are the same on all devices."""
    put = _put(name, own) if name in _PUTS else own
    if put and all(each.kind is Kind.ZERO for each in put) and name in _LINEAR | _ADDS | _PUTS:
        return ZERO
    if name == "div" and own[0].kind is Kind.ZERO:
        return ZERO
    scales = name == "div" and _is_number(equation, own, 1)
    if name == "mul":
        scales = _is_number(equation, own, 0) or _is_number(equation, own, 1)
    state = same_of(own)
    if state.kind is Kind.SAME:
        summed = [each for each in own if each.summed is not None]
        is_first = name in _LINEAR and own[0].summed is not None
        is_one = name in _ADDS or (name in _MULTIPLIES and len(summed) == 1)
        if summed and not scales and (is_first or is_one):
            told = summed[0]
            state = replace(state, summed=told.summed, is_implicit=told.is_implicit)
        state = replace(state, is_scaled=scales or any(each.is_scaled for each in own))
    return replace(state, even=_even(equation, name, own, slots))


def _is_number(equation: Any, own: Sequence[State], at: int) -> bool:
    """Say whether an operand is a number, or many of the same."""
    rank = len(equation.invars[at].aval.shape)
    return own[at].kind in (Kind.CONSTANT, Kind.ZERO) or len(own[at].even) == rank


def _even(
    equation: Any, name: str, own: Sequence[State], slots: list[Slots] | None
) -> frozenset[int]:
    """Return the dimensions of a result along which all elements are equal."""
    shape = equation.outvars[0].aval.shape
    pairs = zip(equation.invars, own, strict=True)
    is_even = all(
        len(each.even) == len(var.aval.shape) or each.kind is Kind.ZERO for var, each in pairs
    )
    if own and is_even and name not in _UNEVEN:
        return frozenset(range(len(shape)))
    if slots is None:
        return frozenset()
    held: dict[int, list[bool]] = {}
    for state, dims in zip(own, slots, strict=True):
        for dim, slot in enumerate(dims):
            if slot is not None and slot.part is None:
                held.setdefault(slot.at, []).append(state.is_even(dim))
    found = {dim for dim, even in held.items() if all(even)}
    if name == "broadcast_in_dim":
        found |= set(range(len(shape))) - held.keys()
    return frozenset(found)


def _of_split(
    equation: Any,
    own: Sequence[State],
    slots: list[Slots] | None,
    at: Callable[[], Place],
    *,
    is_backward: bool,
) -> State:
    """Return what is known where some operands are split and the others are the same."""
    if slots is None:
        return UNKNOWN
    found: set[Slot | None] = set()
    for var, state, dims in zip(equation.invars, own, slots, strict=True):
        if state.kind is Kind.SPLIT:
            slot = dims[state.dim] if state.dim < len(dims) else None
            is_part = slot is not None and slot.part is not None and var.aval.shape[state.dim] == 1
            found.add(None if is_part or slot is None or slot.is_minor else slot)
    slot = found.pop()
    if slot is None or found:
        return UNKNOWN
    for state, dims in zip(own, slots, strict=True):
        for dim, each in enumerate(dims):
            is_there = each is not None and (each.at, each.part) == (slot.at, slot.part)
            if is_there and state.is_same and not state.is_even(dim):
                return UNKNOWN
            if is_there and state.kind is Kind.SPLIT and state.dim != dim:
                return UNKNOWN
    if slot.part is None:
        return split(slot.at)
    if equation.primitive.name in _MULTIPLIES and any(each.kind is Kind.ZERO for each in own):
        return ZERO
    is_product = equation.primitive.name == "dot_general" and not is_backward
    return State(Kind.PARTIAL, part=slot.part, born=at(), is_product=is_product)


def _of_parts(equation: Any, name: str, own: Sequence[State], at: Callable[[], Place]) -> State:
    """Return what is known where a device has a part of some operands."""
    first = next(each for each in own if each.is_partial)
    if all(each.is_same or each.kind is Kind.PARTIAL for each in own):
        if name in _VIEWS and own[0] is first and all(each.is_same for each in own[1:]):
            return own[0]
        if all(each.part == "sum" for each in own if each.is_partial):
            found = _of_sums(equation, name, own, at)
            if found is not None:
                return found
    return stale(first, at())


def _of_sums(
    equation: Any, name: str, own: Sequence[State], at: Callable[[], Place]
) -> State | None:
    """Return what is known of what is linear in parts of sums; None where it is not linear."""
    parts = [each for each in own if each.is_partial]
    first = parts[0]
    used = next((each.used for each in parts if each.used), None)
    if name in _ADDS:
        is_product = all(each.is_product for each in parts)
        for index, each in enumerate(own):
            if each.kind in (Kind.SAME, Kind.CONSTANT):
                number = each.is_scaled or _is_number(equation, own, index)
                is_product, used = is_product and not number, used or at()
        return replace(first, used=used, is_product=is_product)
    if name in _MULTIPLIES:
        return replace(first, is_product=False) if len(parts) == 1 else None
    if name in _LINEAR:
        is_product = first.is_product and name not in ("div", "neg")
        is_first = own[0] is first and len(parts) == 1
        return replace(first, is_product=is_product) if is_first else None
    if name in _PUTS:
        put = _put(name, own)
        is_whole = all(each.is_partial or each.kind is Kind.ZERO for each in put)
        if is_whole and len(parts) == len([each for each in put if each.is_partial]):
            return replace(first, used=used, is_product=False)
        return UNKNOWN
    return None


def _put(name: str, own: Sequence[State]) -> Sequence[State]:
    """Return the operands whose elements an operation puts beside each other."""
    if name == "select_n":
        return own[1:]
    if name == "dynamic_update_slice":
        return own[:2]
    return (own[0], own[2]) if "scatter" in name else own
