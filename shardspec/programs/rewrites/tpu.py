"""What libtpu alone does to collectives: turns of a ring, whole sums, slices apart.

The rules are those of `analysis.step_partition`, which says how each was found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shardspec.analysis import step_partition
from shardspec.ir.operations import IN_HLO, MOVES, CollectiveKind, ring_bytes
from shardspec.ir.spec import Shape, array_bytes
from shardspec.programs.calls import Ref, is_made_for
from shardspec.programs.hlo import HloArray, Instruction
from shardspec.programs.products import flops_of
from shardspec.programs.reading import SENDS
from shardspec.programs.rewrites.edit import (
    FAR,
    GATHER,
    PASSES,
    SCATTER,
    SUM,
    Edit,
    form,
    is_alone,
    typed,
)
from shardspec.programs.rewrites.sums import cut_dims, only_slice

#: The share of a ring's time that a product has to take. Source: compiles with libtpu 0.0.52, which
#: computes in turns products of 0.06 and more, and whole those of 0.01 and less.
_LEAST_HIDDEN = 0.03
#: Along which mesh axes values differ.
Differs = Mapping[Ref, frozenset[str]]


def products_in_turns(edit: Edit, differs: Differs) -> None:
    """Pass operands and sums of products around a ring: `compiled_sends.windowed_bytes`.

    XLA's partitioner does so only where all devices have different parts of the product: it sets
    aside an axis that splits one dimension of the operands and the result alike, and what is left
    has to be the ring. A weight that is gathered over `fsdp` for a batch that is split over `fsdp`
    and `expert`, or on a mesh with an idle axis, is gathered at once.

    Args:
      differs: the mesh axes along which each value differs from device to device.
    """
    longest = step_partition.longest_row(edit.target.hardware)
    for each in [*edit]:
        if each.operation not in (SCATTER, GATHER) or not is_alone(each):
            continue
        members = edit.members(each)
        axes = () if members is None else members.axes(edit.target.mesh)
        if members is None or not step_partition.has_ring(len(axes), members.ways, longest):
            continue
        if each.operation == SCATTER:
            product, whole = _summed(edit, each, differs), edit.source(each).arrays[0]
        else:
            is_small = members.ways == step_partition.SMALL_RING
            product = None if is_small else _product(edit, each, {*axes}, differs)
            whole = each.arrays[0]
        if product is not None and _is_long(edit, product, whole.bytes):
            edit.sends(each, step_partition.windowed_bytes(whole.bytes, members.ways))


def one_hots_compared(edit: Edit) -> None:
    """Move what a scatter of single elements into a constant reads, and not its result.

    That is the backward pass of `take_along_axis`. libtpu makes it a comparison of each position
    with the index before it partitions: what is then resharded is as small as the index, and as the
    elements where they differ.
    """
    for each in [*edit]:
        scatter = _scattered(edit, each) if each.operation in _MOVED and is_alone(each) else None
        dims = () if scatter is None else scatter.numbers("inserted_window_dims")
        if scatter is None or {*each.numbers("dimensions")} & {*dims}:
            continue
        _, index, rows = (edit.by_name[name] for name in scatter.operands)
        if not _is_constant(edit, rows.name):
            edit.ahead(each.name, _moved(edit, each, f"{each.name}.rows", rows, dims))
        given, moved = _moved(edit, each, each.name, index, dims)
        edit.ahead(each.name, (given,))
        edit.put(moved)


def _moved(
    edit: Edit, each: Instruction, name: str, of: Instruction, dims: Sequence[int]
) -> tuple[Instruction, Instruction]:
    """Return a collective of another array, without some dimensions, and its operand."""
    own, sent = (
        typed(of.arrays[0].dtype, [1 if at in dims else size for at, size in enumerate(shape)])
        for shape in (edit.source(each).arrays[0].shape, each.arrays[0].shape)
    )
    given = form(f"{name}.given", own, each.operands[0], "convert")
    return given, replace(each, name=name, operands=(given.name,), type=sent)


_MOVED = frozenset(map(str, MOVES))
#: Through these a comparison stays one.
_SAME = frozenset((*PASSES, "broadcast", "dynamic-slice", "slice"))


def _scattered(edit: Edit, each: Instruction) -> Instruction | None:
    """Return the scatter of single elements into a constant that a collective moves a part of."""
    found = edit.shown(each.operands[0], _SAME)
    is_single = found.operation == "scatter" and "update_window_dims={}" in found.bare
    is_new = is_single and len(found.operands) == 3
    return found if is_new and _is_constant(edit, found.operands[0]) else None


def _is_constant(edit: Edit, name: str) -> bool:
    """Say whether a value repeats or shows a constant."""
    return edit.shown(name, _SAME).operation == "constant"


def _summed(edit: Edit, scatter: Instruction, differs: Differs) -> Instruction | None:
    """Return the product whose partial sum is scattered because it is partitioned so.

    What each device keeps is not summed over other mesh axes then.
    """
    product, slice = edit.source(scatter), only_slice(edit, scatter)
    if slice is None or product.operation != "dot" or slice.op_name != product.op_name:
        return None
    is_summed_on = any(user.operation in (SUM, SCATTER) for user in _readers(edit, slice))
    return None if is_summed_on or not _is_everywhere(edit, product, differs) else product


def _is_everywhere(edit: Edit, each: Instruction, differs: Differs) -> bool:
    """Say whether all devices of the mesh have different values."""
    every = {name for name, size in edit.target.mesh.sizes.items() if size > 1}
    while Ref(edit.name, each.name) not in differs and each.operands:
        each = edit.source(each)
    return every <= differs.get(Ref(edit.name, each.name), every)


def _product(
    edit: Edit, gather: Instruction, axes: set[str], differs: Differs
) -> Instruction | None:
    """Return the product that a gather is made for, where it makes no partial sum."""
    readers = _readers(edit, gather)
    if len(readers) != 1 or readers[0].operation != "dot":
        return None
    product = readers[0]
    is_own = is_made_for(product, gather, edit.source(gather), edit.readers(gather.name))
    is_split = axes <= differs.get(Ref(edit.name, product.name), frozenset(axes))
    is_sum = any(user.operation in (SUM, SCATTER) for user in edit.readers(product.name))
    is_apart = _is_everywhere(edit, edit.source(gather), differs)
    return product if is_own and is_split and is_apart and not is_sum else None


def _readers(edit: Edit, each: Instruction) -> list[Instruction]:
    """Return what reads a value in whatever form."""
    found: list[Instruction] = []
    waiting = [each]
    while waiting:
        for user in edit.readers(waiting.pop().name):
            (waiting if user.operation in PASSES else found).append(user)
    return found


def _is_long(edit: Edit, product: Instruction, moved_bytes: int) -> bool:
    """Say whether a product takes long enough to be computed while a ring passes bytes."""
    hardware = edit.target.hardware
    chip = None if hardware is None else hardware.chip
    if chip is None or not chip.bf16_flops_per_s or not chip.link_bytes_per_s:
        return False
    shapes = [edit.by_name[name].arrays[0].shape for name in product.operands]
    flops = flops_of(product, shapes, product.arrays[0].shape)
    seconds = flops * chip.devices_per_chip / chip.bf16_flops_per_s
    return seconds > _LEAST_HIDDEN * moved_bytes / (2 * chip.link_bytes_per_s)


def sums_of_lanes_whole(edit: Edit) -> None:
    """Sum whole what is scattered along lanes: `compiled_sends.is_sliced_whole`."""
    for each in [*edit]:
        slice = only_slice(edit, each) if each.operation == SCATTER and is_alone(each) else None
        if slice is not None:
            shape, cut = _as_kept(edit, slice)
            is_last = cut == len(shape) - 1
            size = edit.source(each).arrays[0].bytes
            is_turned = bool(each.attribute(SENDS))
            is_whole = is_last and step_partition.is_sliced_whole(shape, each.arrays[0].dtype)
            if is_whole and not is_turned:
                edit.sends(each, ring_bytes(CollectiveKind.ALL_REDUCE, size, edit.ways(each)))


def _as_kept(edit: Edit, slice: Instruction) -> tuple[Shape, int]:
    """Return the shape in which a slice is kept, and the dimension of it that is cut.

    Results of the step are laid out as they are given back; what a loop stacks as it is made.
    """
    each, cut = slice, (*cut_dims(edit, slice), -1)[0]
    made = slice.arrays[0].shape, cut
    for _ in range(FAR):
        user = edit.only_reader(each)
        if user is None or user.operation not in _TURNS or not user.arrays:
            break
        dims = user.numbers("dimensions")
        if any(one.operation == _STACKS for one in _readers(edit, user)):
            return made
        cut = dims.index(cut) if user.operation == "transpose" and cut in dims else cut
        each = user
    return each.arrays[0].shape, cut


_TURNS = frozenset(("convert", "copy", "transpose", SUM))
_STACKS = "dynamic-update-slice"


def whole_machine_summed(edit: Edit) -> None:
    """Sum what goes over all devices of a slice: `compiled_sends.is_summed_whole`."""
    for each in [*edit]:
        kind = IN_HLO.get(each.operation)
        if kind is None or not is_alone(each):
            continue
        size = kind.payload(edit.source(each).arrays[0].bytes, each.arrays[0].bytes)
        if step_partition.is_summed_whole(kind, edit.ways(each), size, edit.target.hardware):
            edit.sends(each, ring_bytes(CollectiveKind.ALL_REDUCE, size, edit.ways(each)))


def legs_apart(edit: Edit) -> None:
    """Send within slices and between them apart: `compiled_sends.across_slices`."""
    for each in [*edit]:
        kind = IN_HLO.get(each.operation)
        if kind is None or not is_alone(each):
            continue
        given, axes = edit.source(each).arrays[0], edit.axes(each)
        payload = kind.payload(given.bytes, each.arrays[0].bytes)
        legs = step_partition.across_slices(kind, axes, payload, edit.target)
        if len(legs) > 1:
            edit.put(form(each.name, each.type, each.operands[0]))
            edit.behind(each.name, _legs(edit, each, given, legs))


_SENDS = re.compile(rf", {SENDS}=\d+")


def _legs(
    edit: Edit, each: Instruction, given: HloArray, legs: list[step_partition.Leg]
) -> list[Instruction]:
    """Return a collective as several, one behind the other."""
    made: list[Instruction] = []
    name, is_whole = each.name, bool(each.attribute(SENDS))
    each = replace(each, attributes=_SENDS.sub("", each.attributes))
    for at, (kind, axes, payload) in enumerate(legs):
        ways = edit.target.mesh.ways(axes)
        sizes = (payload // ways if kind.traits.grows else payload, payload)
        own, sent = (
            typed(given.dtype, (size * 8 // array_bytes((8,), given.dtype),)) for size in sizes
        )
        part = form(f"{each.name}.part{at}", own, name)
        name = f"{each.name}.leg{at}"
        leg = replace(each, name=name, type=sent, operation=str(kind), operands=(part.name,))
        if is_whole and kind is CollectiveKind.REDUCE_SCATTER:
            wire_bytes = ring_bytes(CollectiveKind.ALL_REDUCE, payload, ways)
            leg = replace(leg, attributes=f"{leg.attributes}, {SENDS}={wire_bytes}")
        made += [part, edit.over(leg, axes)]
    return [*made, form(f"{each.name}.whole", each.type, name)]
