"""Sums over devices that compilers join, move behind loops, and scatter."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from shardspec.programs.hlo import Instruction, number
from shardspec.programs.rewrites.edit import (
    FAR,
    FORMS,
    PASSES,
    SCATTER,
    SUM,
    Edit,
    form,
    typed,
)

_ADDS = frozenset(("add", "subtract"))
#: What constraints leave behind, and XLA takes out.
_COPIES = frozenset(("copy",))
#: Through these a number of the device stays what it is.
_SAME_NUMBER = frozenset(("bitcast", "convert", "copy", "reshape"))


def sums_once(edit: Edit) -> None:
    """Sum once what is added up before anything else reads it.

    The gradients of one activation through several weights are each a partial sum on every device:
    XLA adds them up on the device and sums the total. Where each device keeps the same slice of all
    of them, it slices the total.
    """
    pending: dict[str, tuple[str, ...]] = {}
    totals: dict[tuple[str, ...], str] = {}
    sliced: dict[str, tuple[str, ...]] = {}
    for each in edit:
        if each.operation == SUM and len(each.operands) == 1:
            pending[each.name] = (each.name,)
            continue
        group = _carried_on(edit, each, pending, sliced)
        if group:
            pending[each.name] = group
        if group and each.operation in _ADDS:
            for name in each.operands:
                totals.pop(pending[name], None)
            totals[group] = each.name
    for group, name in totals.items():
        last = edit.by_name[group[-1]]
        for one in group[: -1 if group[0] in sliced else None]:
            edit.stop(edit.by_name[one])
        if group[0] in sliced:
            continue
        kind = edit.by_name[name].type
        edit.behind(name, (replace(last, name=f"{name}.sum", type=kind, operands=(name,)),))


def sums_folded(edit: Edit) -> None:
    """Sum at once what is summed over one axis and then over another.

    A manual region sums over its axes, and the partitioner over the others right behind it.
    Source: XLA's pass `all-reduce-folder`.
    """
    for each in [*edit]:
        one = edit.folded(each, SUM)
        if one is not None:
            edit.stop(edit.source(each))
            edit.put(one)


def sums_split(edit: Edit) -> None:
    """Scatter first what is summed further than each device's slice needs.

    XLA:GPU makes a sum over all devices, of which each keeps the part of `fsdp`, a scatter over
    `fsdp` and a sum of the part over the other axes, where the part is added to another sum over
    those: the total is then summed once. Source: XLA's pass `all-reduce-splitter`.
    """
    for each in [*edit]:
        is_of_all = edit.ways(each) == edit.target.mesh.device_count
        if each.operation != SUM or len(each.operands) != 1 or not is_of_all:
            continue
        slice = only_slice(edit, each, FORMS)
        rest = () if slice is None else _added_to(edit, slice)
        kept = tuple(name for name in edit.axes(each) if name not in rest)
        if slice is not None and rest and _parts(edit, slice) == edit.target.mesh.ways(kept):
            edit.put(edit.over(each, kept))
            summed = replace(
                each, name=f"{slice.name}.sum", type=slice.type, operands=(slice.name,)
            )
            edit.behind(slice.name, (edit.over(summed, rest),))


def _added_to(edit: Edit, each: Instruction) -> tuple[str, ...]:
    """Return over which axes the sum goes that a value is added to; none where it is to none."""
    value, user = each, edit.only_reader(each)
    while user is not None and user.operation in PASSES:
        value, user = user, edit.only_reader(user)
    if user is None or user.operation not in _ADDS:
        return ()
    others = [edit.by_name[name] for name in user.operands if name != value.name]
    while others and others[0].operation in PASSES:
        others = [edit.source(others[0])]
    return edit.axes(others[0]) if others and others[0].operation == SUM else ()


def _carried_on(
    edit: Edit,
    each: Instruction,
    pending: dict[str, tuple[str, ...]],
    sliced: dict[str, tuple[str, ...]],
) -> tuple[str, ...]:
    """Return the sums whose total an instruction passes on, read by nothing else.

    Args:
      sliced: by what numbers of the device sums are sliced.
    """
    is_slice = each.operation == "dynamic-slice"
    if each.operation not in PASSES and each.operation not in _ADDS and not is_slice:
        return ()
    read = each.operands[:1] if is_slice else each.operands
    groups = [pending.get(name, ()) for name in read]
    is_only = all(edit.only_reader(edit.by_name[name]) for name in read)
    if not groups or not all(groups) or not is_only:
        return ()
    names = [name for group in groups for name in group]
    is_cut = names[0] in sliced
    if is_slice:
        is_bare = edit.shown(read[0], _COPIES).name == names[0]
        if len(names) > 1 or is_cut or not is_bare or not _parts(edit, each):
            return ()
        sliced[names[0]] = tuple(n for n in each.operands[1:] if not _constant(edit, n))
    if each.operation not in _ADDS:
        is_other = is_cut and not is_slice and each.operation not in _COPIES
        return () if is_other else groups[0]
    are_alike = len({(edit.together(edit.by_name[name]), sliced.get(name)) for name in names}) == 1
    return tuple(names) if are_alike and len(set(each.operands)) == 2 else ()


def sums_after_loop(edit: Edit, outer: Edit, loop: Instruction, *, are_narrow: bool) -> None:
    """Sum behind a loop what each round only adds to a total.

    So it is with gradients of microbatches where every device holds all of a weight.

    Args:
      are_narrow: whether the total is sent as narrow as what a round adds, as XLA:GPU does; libtpu
        sends it as it is kept.
    """
    for each in [*edit]:
        at = _total(edit, each) if each.operation == SUM and len(each.operands) == 1 else None
        if at is None:
            continue
        edit.stop(each)
        for made in outer.readers(loop.name):
            is_total = made.operation == "get-tuple-element" and len(made.arrays) == 1
            if is_total and number(made.attribute("index")) == at:
                whole = made.arrays[0]
                dtype = each.arrays[0].dtype if are_narrow else whole.dtype
                kind = typed(dtype, whole.shape)
                own = form(f"{made.name}.own", kind, made.name, "convert")
                summed = replace(each, name=f"{made.name}.sum", type=kind, operands=(own.name,))
                outer.behind(made.name, (own, summed))


def _total(edit: Edit, sum: Instruction) -> int | None:
    """Return the element of the loop's tuple to which alone a sum is added in each round."""
    value, user = sum, edit.only_reader(sum)
    for _ in range(FAR):
        if user is None or user.operation not in PASSES:
            break
        value, user = user, edit.only_reader(user)
    if user is None or user.operation != "add" or len(set(user.operands)) < 2:
        return None
    root = edit.only_reader(user)
    kept = edit.by_name[next(name for name in user.operands if name != value.name)]
    is_element = kept.operation == "get-tuple-element" and edit.only_reader(kept) is not None
    if not is_element or root is None or not root.is_root or root.operation != "tuple":
        return None
    at = number(kept.attribute("index"))
    is_given = edit.source(kept).operation == "parameter"
    back = root.operands[at : at + 1]
    return at if is_given and root.operands.count(user.name) == 1 and back == (user.name,) else None


def sums_scattered(edit: Edit, passed: Container[str], *, are_cut: bool = False) -> None:
    """Make an all-reduce of which each device keeps its own slice a reduce-scatter.

    XLA does where one slice alone reads the sum, cuts one dimension into as many parts as there are
    devices in a group, and begins at a place that a table has for the number of the device.

    Args:
      passed: operations that may stand between the sum and its slice.
      are_cut: whether the slice becomes the reduce-scatter, so that no device has the whole sum.
    """
    for each in [*edit]:
        if each.operation == SUM and len(each.operands) == 1:
            slice = only_slice(edit, each, passed)
            if slice is None or not 1 < _parts(edit, slice) == edit.ways(each):
                continue
            made = replace(each, operation=SCATTER)
            if are_cut:
                made = replace(made, name=slice.name, type=slice.type, is_root=slice.is_root)
            edit.put(made)


def only_slice(edit: Edit, sum: Instruction, passed: Container[str] = PASSES) -> Instruction | None:
    """Return the slice that alone reads a sum, through other forms of it."""
    user = edit.only_reader(sum)
    for _ in range(FAR):
        if user is None or user.operation not in passed:
            break
        user = edit.only_reader(user)
    return user if user is not None and user.operation == "dynamic-slice" else None


def cut_dims(edit: Edit, slice: Instruction) -> list[int]:
    """Return the dimensions that a slice cuts."""
    before, after = edit.source(slice).arrays[0].shape, slice.arrays[0].shape
    return [at for at, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]


def _parts(edit: Edit, slice: Instruction) -> int:
    """Return of how many parts a slice is each device's own; 0 where it is another slice."""
    cut = cut_dims(edit, slice)
    if len(cut) != 1 or not _is_in_table(edit, slice.operands[1 + cut[0]]):
        return 0
    before, after = edit.source(slice).arrays[0].shape, slice.arrays[0].shape
    return before[cut[0]] // after[cut[0]] if before[cut[0]] % after[cut[0]] == 0 else 0


def _is_in_table(edit: Edit, name: str) -> bool:
    """Say whether a number is found in a table by the number of the device."""
    for _ in range(FAR):
        each = edit.by_name[name]
        match each.operation:
            case "partition-id":
                return True
            case "dynamic-slice" | "clamp":
                name = each.operands[1]
            case "subtract":
                offset = each.operands[1]
                if _constant(edit, offset) != "0" and not _is_in_table(edit, offset):
                    return False
                name = each.operands[0]
            case "multiply" if any(_constant(edit, one) for one in each.operands):
                name = each.operands[bool(_constant(edit, each.operands[0]))]
            case operation if operation in _SAME_NUMBER:
                name = each.operands[0]
            case _:
                return False
    return False


def _constant(edit: Edit, name: str) -> str:
    """Return the value of a constant as it is printed; empty where a value is none."""
    each = edit.by_name[name]
    return each.stated.strip() if each.operation == "constant" else ""
