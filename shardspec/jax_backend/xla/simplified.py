"""A module as XLA simplifies it before it partitions it.

TPU and GPU compilers simplify a program first; the CPU's partitions it as it is. Where that decides
what is sent, the module is simplified here.
"""

from __future__ import annotations

import math
from typing import Any

from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from shardspec.jax_backend.step import passes
from shardspec.jax_backend.step.passes import made_by
from shardspec.jax_backend.xla.padded import pad_concatenated

_SCATTER, _ADD, _RETURN = "stablehlo.scatter", "stablehlo.add", "stablehlo.return"
_CONSTANT, _BROADCAST = "stablehlo.constant", "stablehlo.broadcast_in_dim"
_DOT, _TRANSPOSE = "stablehlo.dot_general", "stablehlo.transpose"
_RESHAPE, _CONVERT = "stablehlo.reshape", "stablehlo.convert"
_CUT, _UPDATE = "stablehlo.dynamic_slice", "stablehlo.dynamic_update_slice"
_SELECT, _COMPARE, _IOTA = "stablehlo.select", "stablehlo.compare", "stablehlo.iota"


def simplified(module: bytes, *, for_tpu: bool = False) -> bytes:
    """Return the bytecode of a module, simplified; bytes that are no module as they are.

    Calls are replaced by what they call, and what only adds dimensions of size 1 by a reshape; then

    - `scatter(0, ...) + a` becomes `scatter(a, ...)`: the gradient of an array that is read twice,
      once by an index. The scatter is then sharded as `a` is. Of two scatters neither starts with
      the other: what devices sum of them is added up first.
    - `convert(reshape(a))` becomes `reshape(convert(a))` where it makes `a` narrower, and a reshape
      that another one undoes is dropped: what a scan keeps of a weight is then sharded as the
      weight is.
    - `select(i < 0, i + n, i)` becomes `i` where `i` counts, as an index that JAX makes safe: a
      lookup of each row in itself is then found to be one.
    - a slice that is all of an array, and an update of all of one, are dropped: a scan of one round
      keeps what it makes as that is sharded, and not as its stack of zeros is.
    - the transpose of a product of matrices, as a gradient of a weight is, becomes the product the
      other way round, on a TPU: of operands that compete for a mesh axis, the first one decides.
    - a product of a transposed matrix reads the matrix itself, on a TPU: what is multiplied with
      its transpose is then gathered once.
    - what is computed twice is computed once, on a TPU: stacks of zeros that are alike are one
      array with one sharding, although loops fill them with different values.
    - a scatter of one element into each row of zeros, as the gradient of `take_along_axis` is,
      becomes a comparison of each position with the index, on a TPU: it is sharded as what it is
      added to, and not as the index.
    - `erf` and `top_k`, which only the CPU's partitioner sees, become an operation by element and
      the first elements of a sorted array.

    Source: dumps of the passes of libtpu 0.0.52 and of XLA:GPU in jaxlib 0.10.2 (`algsimp`,
    `convert-mover`, and on a TPU `cse`, `sparse-gradient-rewrite` and `transpose-folding`), which
    run ahead of `spmd-partitioning`. On a TPU, `padded` comes last.

    Args:
      for_tpu: whether the module is for a TPU.
    """
    with mlir.make_ir_context():
        try:
            found = ir.Module.parse(module)
        except ir.MLIRError:
            return module
        passes.inlined(found)
        simplify(found, for_tpu=for_tpu)
        return passes.bytecode_of(found)


def simplify(module: Any, *, for_tpu: bool = False) -> None:
    """Simplify a module without calls, in place."""
    found: dict[str, list[Any]] = {}
    for each in passes.operations(module.operation):
        if passes.only_reshapes(each):
            passes.become(each, _RESHAPE, [each.operands[0]])
        else:
            found.setdefault(each.name, []).append(each)
    if for_tpu:
        found[_SCATTER] = [each for each in found.get(_SCATTER, ()) if not _compare(each)]
    for name, change in _CHANGES:
        for each in found.get(name, ()):
            change(each)
    for each in [each for each in passes.operations(module.operation) if each.name == _RESHAPE]:
        _merge(each)
    if for_tpu:
        for each in found.get(_TRANSPOSE, ()):
            _turn_product(each)
        for each in passes.operations(module.operation):
            if each.name == _DOT:
                _read_untransposed(each)
        _compute_once(module)
        pad_concatenated(module)


def _turn_product(transpose: Any) -> None:
    """Multiply the other way round where the product of two matrices is transposed."""
    value, result = transpose.operands[0], transpose.results[0]
    if made_by(value) != _DOT or len(result.type.shape) != 2 or len(list(value.uses)) != 1:
        return
    dot = value.owner
    numbers = stablehlo.DotDimensionNumbers(dot.attributes["dot_dimension_numbers"])
    if len(numbers.lhs_batching_dimensions) or list(transpose.attributes["permutation"]) != [1, 0]:
        return
    sums = numbers.rhs_contracting_dimensions, numbers.lhs_contracting_dimensions
    turned = stablehlo.DotDimensionNumbers.get([], [], *sums)
    with ir.InsertionPoint(transpose), dot.location:
        made = stablehlo.dot_general(
            result.type, dot.operands[1], dot.operands[0], dot_dimension_numbers=turned
        )
    result.replace_all_uses_with(made)
    transpose.erase()
    dot.erase()


def _read_untransposed(dot: Any) -> None:
    """Let a product read the matrices whose transposes it is given, one or a batch of them."""
    numbers = stablehlo.DotDimensionNumbers(dot.attributes["dot_dimension_numbers"])
    sides = [
        ([*numbers.lhs_batching_dimensions], [*numbers.lhs_contracting_dimensions]),
        ([*numbers.rhs_batching_dimensions], [*numbers.rhs_contracting_dimensions]),
    ]
    for at, (batch, summed) in enumerate(sides):
        value = dot.operands[at]
        if (
            made_by(value) == _TRANSPOSE
            and len(summed) == 1 == len(value.type.shape) - len(batch) - 1
        ):
            order = list(value.owner.attributes["permutation"])
            sides[at] = [order[dim] for dim in batch], [order[dim] for dim in summed]
            dot.operands[at] = value.owner.operands[0]
    (left, lefts), (right, rights) = sides
    made = stablehlo.DotDimensionNumbers.get(left, right, lefts, rights)
    dot.attributes["dot_dimension_numbers"] = made


#: Operations that are not what they were when they come again, or that XLA takes for such.
_APART = ("stablehlo.rng", "stablehlo.custom_call", "stablehlo.optimization_barrier")
_SHARED = ("stablehlo.", "chlo.", "sdy.sharding_constraint")


def _compute_once(module: Any) -> None:
    """Let everything in a block read the first of what is computed alike in it."""
    seen: dict[tuple[object, ...], Any] = {}
    for each in passes.operations(module.operation):
        if len(each.regions) or not each.name.startswith(_SHARED) or each.name.startswith(_APART):
            continue
        first = seen.setdefault(_as_computed(each), each)
        if first is not each:
            for old, new in zip(each.results, first.results, strict=True):
                old.replace_all_uses_with(new)
            each.erase()


def _as_computed(op: Any) -> tuple[object, ...]:
    """Return what two operations share that compute the same at the same time."""
    kinds = tuple(each.type for each in op.results)
    try:
        stated = tuple((each, op.attributes[each]) for each in op.attributes)
    except TypeError:  # complex numbers, which MLIR's bindings print and do not read
        stated = ((op.name, str(op).partition(" = ")[2]),)
    return op.block, op.name, tuple(op.operands), stated, kinds


def _start_with_sum(scatter: Any) -> None:
    """Let a scatter start with what is added to its result alone."""
    uses = list(scatter.results[0].uses) if len(scatter.operands) == 3 else []
    add = uses[0].owner.operation if len(uses) == 1 else None
    if add is None or add.name != _ADD or not (_adds(scatter) and _is_zero(scatter.operands[0])):
        return
    other = add.operands[1 - uses[0].operand_number]
    if made_by(other) == _SCATTER:  # of two scatters neither is
        return
    scatter.move_before(add)
    scatter.operands[0] = other
    add.results[0].replace_all_uses_with(scatter.results[0])
    add.erase()


def _compare(scatter: Any) -> bool:
    """Compare each position with the index, where each row of zeros is given one element."""
    if len(scatter.operands) != 3 or not _is_zero(scatter.operands[0]):
        return False
    zeros, index, given = scatter.operands
    numbers = stablehlo.ScatterDimensionNumbers(scatter.attributes["scatter_dimension_numbers"])
    rows, dims = [*numbers.input_batching_dims], [*numbers.inserted_window_dims]
    of_index = [*numbers.scatter_indices_batching_dims]
    in_order = rows == sorted(rows) and of_index == sorted(of_index)
    shape = zeros.type.shape
    sizes = [shape[dim] for dim in rows]
    is_one = len(dims) == 1 == len(shape) - len(rows)
    if not is_one or not in_order or math.prod(given.type.shape) != math.prod(sizes):
        return False
    with ir.InsertionPoint(scatter), scatter.location:
        at, value = (
            stablehlo.broadcast_in_dim(
                ir.RankedTensorType.get(shape, each.type.element_type),
                stablehlo.reshape(ir.RankedTensorType.get(sizes, each.type.element_type), each),
                rows,
            )
            for each in (index, given)
        )
        own = stablehlo.iota(at.type, dims[0])
        equal = stablehlo.ComparisonDirectionAttr.get("EQ")
        is_there = stablehlo.compare(own, at, comparison_direction=equal)
        made = stablehlo.select(is_there, value, zeros)
    scatter.results[0].replace_all_uses_with(made)
    scatter.erase()
    return True


def _adds(scatter: Any) -> bool:
    """Say whether a scatter adds up what goes to one place."""
    names = [each.operation.name for each in scatter.regions[0].blocks[0].operations]
    return names == [_ADD, _RETURN]


def _is_zero(value: Any) -> bool:
    if made_by(value) == _BROADCAST:
        value = value.owner.operands[0]
    if made_by(value) != _CONSTANT:
        return False
    if isinstance(ir.RankedTensorType(value.type).element_type, ir.ComplexType):
        return False
    stated = value.owner.attributes["value"]
    return bool(stated.is_splat and not stated.get_splat_value().value)


def _drop_wrap(select: Any) -> None:
    """Take an index as it is where it is never below zero."""
    test, _, value = select.operands
    if made_by(test) != _COMPARE or "LT" not in str(test.owner.attributes["comparison_direction"]):
        return
    left, right = test.owner.operands
    if left == value and _is_zero(right) and _counted(value) is not None:
        select.results[0].replace_all_uses_with(value)
        select.erase()


def _count(concatenate: Any) -> None:
    """Count where indices are put together, so that each row is seen to look up in itself."""
    for at, value in enumerate(concatenate.operands):
        dim = _counted(value)
        if dim is not None:
            with ir.InsertionPoint(concatenate), concatenate.location:
                concatenate.operands[at] = stablehlo.iota(value.type, dim)


def _counted(value: Any) -> int | None:
    """Return the dimension along which a value is 0, 1, 2 and so on, if there is one."""
    if isinstance(value.owner, ir.Block):
        given = _unchanged(value)
        return None if given is None else _counted(given)
    name = made_by(value)
    if name == _IOTA:
        return int(value.owner.attributes["iota_dimension"])
    if name not in (_BROADCAST, _RESHAPE):
        return None
    given = value.owner.operands[0]
    dim = _counted(given)
    if dim is None or given.type.shape[dim] == 1:
        return None
    if name == _BROADCAST:
        return int(list(value.owner.attributes["broadcast_dimensions"])[dim])
    before, after = ([at for at, n in enumerate(v.type.shape) if n > 1] for v in (given, value))
    sizes = [[v.type.shape[at] for at in dims] for v, dims in ((given, before), (value, after))]
    return after[before.index(dim)] if sizes[0] == sizes[1] else None


def _unchanged(argument: Any) -> Any:
    """Return what a loop is given for an argument that it gives on as it is; None for others."""
    block, at = argument.owner, ir.BlockArgument(argument).arg_number
    last = block.operations[len(block.operations) - 1]
    loop = block.owner.operation
    is_same = loop.name == "stablehlo.while" and last.operands[at] == argument
    return loop.operands[at] if is_same else None


def _convert_first(convert: Any) -> None:
    """Make an array narrower before it is reshaped."""
    value, result = convert.operands[0], convert.results[0]
    if made_by(value) != _RESHAPE or _width(result) >= _width(value):
        return
    whole = value.owner.operands[0]
    with ir.InsertionPoint(convert), convert.location:
        kind = ir.RankedTensorType.get(whole.type.shape, result.type.element_type)
        made = ir.Operation.create(_CONVERT, results=[kind], operands=[whole])
        shown = ir.Operation.create(_RESHAPE, results=[result.type], operands=made.results)
    result.replace_all_uses_with(shown.results[0])
    convert.erase()


def _width(value: Any) -> int:
    """Return the bits of an element; 0 where that is not known."""
    return int(getattr(value.type.element_type, "width", 0))


def _merge(reshape: Any) -> None:
    """Reshape at once what is reshaped twice."""
    value, result = reshape.operands[0], reshape.results[0]
    if made_by(value) == _RESHAPE:
        value = value.owner.operands[0]
        reshape.operands[0] = value
    if value.type == result.type:
        result.replace_all_uses_with(value)
        reshape.erase()


def _sort(op: Any) -> None:
    """Replace the largest elements by the first ones of a sorted array."""
    given = op.operands[0]
    kind, numbers = given.type, ir.IntegerType.get_signless(32)
    last = len(kind.shape) - 1
    with ir.InsertionPoint(op), op.location:
        indices = ir.RankedTensorType.get(kind.shape, numbers)
        made = stablehlo.SortOp([kind, indices], [given, stablehlo.iota(indices, last)])
        made.attributes["dimension"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), last)
        scalars = [ir.RankedTensorType.get([], each) for each in (kind.element_type, numbers)]
        types = [scalars[0]] * 2 + [scalars[1]] * 2
        block = made.regions[0].blocks.append(*types, arg_locs=[op.location] * 4)
        with ir.InsertionPoint(block):
            order = stablehlo.ComparisonDirectionAttr.get("GT")
            left, right = list(block.arguments)[:2]
            larger = stablehlo.compare(left, right, comparison_direction=order)
            stablehlo.return_([larger])
        for old, new in zip(op.results, made.results, strict=True):
            ends = [*kind.shape[:-1], old.type.shape[-1]]
            cut = stablehlo.slice(new, [0] * len(ends), ends, [1] * len(ends))
            old.replace_all_uses_with(cut)
    op.erase()


def _by_element(op: Any) -> None:
    """Replace an operation by one that works by element, too, and that the partitioner knows."""
    passes.become(op, "stablehlo.tanh", [op.operands[0]])


def _whole(cut: Any) -> None:
    """Take all of an array as it is, or all that it is overwritten by."""
    value, result = cut.operands[int(cut.name == _UPDATE)], cut.results[0]
    if value.type == result.type:
        result.replace_all_uses_with(value)
        cut.erase()


_CHANGES = (
    (_CUT, _whole),
    (_UPDATE, _whole),
    ("chlo.erf", _by_element),
    ("chlo.erfc", _by_element),
    ("chlo.top_k", _sort),
    (_SELECT, _drop_wrap),
    ("stablehlo.concatenate", _count),
    (_SCATTER, _start_with_sum),
    (_CONVERT, _convert_first),
)
