"""What compilers do to collectives of a partitioned program, as edits of it.

Sums over devices are joined, moved behind loops, and scattered; gathers and exchanges are narrowed,
joined and taken out of loops. libtpu alone sends in turns of a ring, makes whole sums, and keeps
slices apart: `analysis.step_partition` has those rules, and says how each was found.
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from shardspec.analysis import step_partition
from shardspec.ir.operations import IN_HLO, MOVES, SENT_AHEAD, CollectiveKind, ring_bytes
from shardspec.ir.spec import Mesh, Shape, array_bytes
from shardspec.programs import edit as edits
from shardspec.programs.alike import Differs
from shardspec.programs.calls import Ref, is_made_for
from shardspec.programs.edit import FAR, GATHER, PASSES, SCATTER, SUM, Edit, form, is_alone, typed
from shardspec.programs.hlo import HloArray, Instruction, number
from shardspec.programs.operations import flops_of
from shardspec.programs.reading import SENDS

_ADDS = frozenset(("add", "subtract"))
#: What constraints leave behind, and XLA takes out.
_COPIES = frozenset(("copy",))
#: Through these a number of the device stays what it is.
_SAME_NUMBER = frozenset(("bitcast", "convert", "copy", "reshape"))


def sums_once(edit: Edit, apart: Container[str] = ()) -> None:
    """Sum once what is added up before anything else reads it.

    The gradients of one activation through several weights are each a partial sum on every device:
    XLA adds them up on the device and sums the total. Where each device keeps the same slice of all
    of them, it slices the total.

    Args:
      apart: the names of sums that stay as they are.
    """
    pending: dict[str, tuple[str, ...]] = {}
    totals: dict[tuple[str, ...], str] = {}
    sliced: dict[str, tuple[str, ...]] = {}
    for each in edit:
        if each.operation == SUM and len(each.operands) == 1:
            if each.name not in apart:
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

    XLA:GPU makes a sum over all devices, of which each keeps a part, a scatter over neighbours that
    have all parts together and a sum of the part over the others, where there is another sum over
    either beside it. Source: xla/service/gpu/transforms/all_reduce_splitter.cc.
    """
    beside = {edit.together(each) for each in edit if each.operation == SUM}
    for each in [*edit]:
        is_of_all = edit.ways(each) == edit.target.mesh.device_count
        if each.operation != SUM or len(each.operands) != 1 or not is_of_all:
            continue
        slice = only_slice(edit, each, edits.FORMS)
        kept = () if slice is None else _innermost(edit.target.mesh, _parts(edit, slice))
        rest = tuple(name for name in edit.axes(each) if name not in kept)
        if slice is None or not kept or not rest or edit.only_reader(slice) is None:
            continue
        summed = replace(each, name=f"{slice.name}.sum", type=slice.type, operands=(slice.name,))
        parts = edit.over(each, kept), edit.over(summed, rest)
        if not beside.isdisjoint(map(edit.together, parts)):
            edit.put(parts[0])
            edit.behind(slice.name, parts[1:])


def _innermost(mesh: Mesh, ways: int) -> tuple[str, ...]:
    """Return the innermost axes of a mesh that have so many devices; none where none have."""
    found: list[str] = []
    for name, size in reversed(mesh.sizes.items()):
        if ways > 1 and ways % size == 0:
            ways //= size
            found.insert(0, name)
        elif size > 1:
            break
    return tuple(found) if ways == 1 else ()


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
            if is_total and made.index == at:
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
    at = kept.index
    is_given = edit.source(kept).operation == "parameter"
    back = root.operands[at : at + 1]
    return at if is_given and root.operands.count(user.name) == 1 and back == (user.name,) else None


def sums_scattered(edit: Edit, passed: Container[str]) -> None:
    """Make an all-reduce of which each device keeps its own slice a reduce-scatter.

    XLA does where one slice alone reads the sum, cuts one dimension into as many parts as there are
    devices in a group, and begins at a place that a table has for the number of the device.

    Args:
      passed: operations that may stand between the sum and its slice; where they may only reshape,
        the dimension that is cut has to be one of the sum's.
    """
    for each in [*edit]:
        if each.operation == SUM and len(each.operands) == 1:
            slice = only_slice(edit, each, passed)
            if slice is None or not 1 < _parts(edit, slice) == edit.ways(each):
                continue
            if "transpose" in passed or _is_dim(each, edit.source(slice), cut_dims(edit, slice)[0]):
                edit.put(replace(each, operation=SCATTER))


def _is_dim(each: Instruction, reshaped: Instruction, dim: int) -> bool:
    """Say whether a dimension of an array is one that it has before it is reshaped."""
    before, after = each.arrays[0].shape, reshaped.arrays[0].shape
    starts = {prod(before[:at]): size for at, size in enumerate(before) if size > 1}
    return starts.get(prod(after[:dim])) == after[dim]


def scatters_cut(edit: Edit, passed: Container[str]) -> None:
    """Let each device have its slice of a reduce-scatter alone, and of a sum the whole."""
    for each in [*edit]:
        slice = only_slice(edit, each, passed) if each.operation == SCATTER else None
        if slice is None:
            continue
        whole = ring_bytes(CollectiveKind.ALL_REDUCE, each.arrays[0].bytes, edit.ways(each))
        if number(each.attribute(SENDS)) == whole:
            edit.put(replace(each, operation=SUM))
        else:
            edit.put(replace(each, name=slice.name, type=slice.type, is_root=slice.is_root))


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


#: How values differ from device to device.
Differing = Mapping[Ref, Differs]


def products_in_turns(edit: Edit, differs: Differing) -> None:
    """Pass operands and sums of products around a ring: `step_partition.windowed_bytes`.

    XLA's partitioner does so only where all devices have different parts of the product: it sets
    aside an axis that splits one dimension of the operands and the result alike, and what is left
    has to be the ring. A weight that is gathered over `fsdp` for a batch that is split over `fsdp`
    and `expert`, or on a mesh with an idle axis, is gathered at once.

    Args:
      differs: how each value differs from device to device.
    """
    for each in [*edit]:
        whole = _turned_bytes(edit, each, differs) if each.operation in (SCATTER, GATHER) else 0
        if whole:
            sent = step_partition.windowed_bytes(whole, edit.ways(each))
            edit.sends(each, sent, in_turns=True)


def sums_in_turns(edit: Edit, differs: Differing) -> frozenset[str]:
    """Return the sums of products that are computed in turns: each by itself, even if added up."""
    sums = (each for each in edit if each.operation == SUM)
    return frozenset(each.name for each in sums if _turned_bytes(edit, each, differs))


def _turned_bytes(edit: Edit, each: Instruction, differs: Differing) -> int:
    """Return the bytes of the array that a ring passes on in place of a collective; 0 for none."""
    members = edit.members(each) if is_alone(each) else None
    axes = () if members is None else members.axes(edit.target.mesh)
    longest = step_partition.longest_row(edit.target.hardware)
    if members is None or not step_partition.has_ring(len(axes), members.ways, longest):
        return 0
    if each.operation == GATHER:
        is_small = members.ways == step_partition.SMALL_RING
        product = None if is_small else _product(edit, each, {*axes}, differs)
        whole = each.arrays[0].bytes
    else:
        product, whole = _summed(edit, each, differs), edit.source(each).arrays[0].bytes
    if product is None:
        return 0
    shapes = [edit.by_name[name].arrays[0].shape for name in product.operands]
    flops = flops_of(product, shapes, product.arrays[0].shape)
    is_long = step_partition.hides_ring(flops, whole, members.ways, edit.target)
    return whole if is_long else 0


def _summed(edit: Edit, scatter: Instruction, differs: Differing) -> Instruction | None:
    """Return the product whose partial sum is scattered because it is partitioned so.

    What each device keeps is not summed over other mesh axes then.
    """
    product, slice = edit.source(scatter), only_slice(edit, scatter)
    if slice is None or product.operation != "dot" or slice.op_name != product.op_name:
        return None
    is_summed_on = any(
        user.operation in (SUM, SCATTER) or user.name in edit.stopped
        for user in _readers(edit, slice)
    )
    return None if is_summed_on or not _is_everywhere(edit, product, differs) else product


def _is_everywhere(edit: Edit, each: Instruction, differs: Differing) -> bool:
    """Say whether all devices of the mesh have different values."""
    while Ref(edit.name, each.name) not in differs and each.operands:
        each = edit.source(each)
    found = differs.get(Ref(edit.name, each.name))
    return found is None or found.is_everywhere


def _product(
    edit: Edit, gather: Instruction, axes: set[str], differs: Differing
) -> Instruction | None:
    """Return the product that a gather is made for, where it makes no partial sum."""
    readers = _readers(edit, gather)
    if len(readers) != 1 or readers[0].operation != "dot":
        return None
    product = readers[0]
    is_own = is_made_for(product, gather, edit.source(gather), edit.readers(gather.name))
    found = differs.get(Ref(edit.name, product.name))
    is_split = found is None or axes <= found.axes
    is_sum = any(user.operation in (SUM, SCATTER) for user in edit.readers(product.name))
    is_apart = _is_everywhere(edit, edit.source(gather), differs)
    return product if is_own and is_split and is_apart and not is_sum else None


def _readers(edit: Edit, each: Instruction) -> list[Instruction]:
    """Return what reads a value in whatever form, stopped collectives among them."""
    found: list[Instruction] = []
    waiting = [each]
    while waiting:
        for user in edit.readers(waiting.pop().name):
            is_passed = user.operation in PASSES and user.name not in edit.stopped
            (waiting if is_passed else found).append(user)
    return found


def sums_of_lanes_whole(edit: Edit) -> None:
    """Sum whole what is scattered along lanes: `step_partition.is_sliced_whole`."""
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
    """Sum what goes over all devices of a slice: `step_partition.is_summed_whole`."""
    for each in [*edit]:
        kind = IN_HLO.get(each.operation)
        if kind is None or not is_alone(each) or each.attribute(SENDS):
            continue
        size = kind.payload(edit.source(each).arrays[0].bytes, each.arrays[0].bytes)
        axes = edit.axes(each)
        is_all = edit.ways(each) == edit.target.mesh.ways(axes)
        if is_all and step_partition.is_summed_whole(kind, axes, size, edit.target):
            edit.sends(each, ring_bytes(CollectiveKind.ALL_REDUCE, size, edit.ways(each)))


def legs_apart(edit: Edit) -> None:
    """Send within slices and between them apart: `step_partition.across_slices`."""
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


_MOVES = frozenset(map(str, MOVES))
_HOISTED = frozenset(map(str, SENT_AHEAD))
#: What may be another value in every round, whatever it reads.
_NEW = frozenset(
    (
        *("parameter", "while", "conditional", "custom-call", "opt-barrier"),
        *("rng", "rng-bit-generator", "rng-get-and-update-state"),
    )
)
#: What shows a value narrower, or with its dimensions in another order.
#: What libtpu makes narrower before it cuts and joins it.
_CUTS = frozenset(("broadcast", "concatenate", "dynamic-slice", "pad", "select", "slice"))
#: Through these libtpu looks for what was narrower; a copy, which a constraint leaves, ends that.
_SHOWS = frozenset(("bitcast", "convert", "dynamic-slice", "reshape", "slice", "transpose"))
_PRODUCTS = frozenset(("convolution", "dot", "ragged-dot"))
#: What a TPU multiplies f32 as.
_QUICK = "bf16"


def moves_narrowed(edit: Edit, *, is_tpu: bool) -> None:
    """Move in the narrower dtype what its readers make narrower first.

    XLA:GPU does so with gathers, libtpu with whatever is moved, and with f32 that products read.
    libtpu also makes wider only behind a move what was narrower before it.
    """
    kinds = _MOVES if is_tpu else (GATHER,)
    for each in [*edit]:
        if each.operation in kinds and is_alone(each):
            own = each.arrays[0].dtype
            dtypes = _read_as(edit, each, is_tpu=is_tpu)
            widest = max(dtypes, key=_width, default=own)
            if is_tpu:
                widest = min(widest, _made_as(edit, each), key=_width)
            if _width(widest) < _width(own):
                given = form(
                    f"{each.name}.narrow",
                    typed(widest, edit.source(each).arrays[0].shape),
                    each.operands[0],
                    "convert",
                )
                edit.ahead(each.name, (given,))
                kind = typed(widest, each.arrays[0].shape)
                edit.put(replace(each, operands=(given.name,), type=kind))


def _width(dtype: str) -> int:
    return array_bytes((8,), dtype)


def _made_as(edit: Edit, each: Instruction) -> str:
    """Return the narrowest dtype of what is only shown and converted before it is moved."""
    found, dtype = edit.source(each), each.arrays[0].dtype
    for _ in range(FAR):
        if found.operation not in _SHOWS or not found.operands:
            break
        found = edit.source(found)
        if len(found.arrays) != 1:
            break
        dtype = min(dtype, found.arrays[0].dtype, key=_width)
    return dtype


def _read_as(edit: Edit, each: Instruction, *, is_tpu: bool, depth: int = 0) -> set[str]:
    """Return the dtypes that readers make of a value first; none where one takes it as it is."""
    found: set[str] = set()
    for user in edit.readers(each.name):
        shows = user.operation in edits.FORMS or (is_tpu and user.operation in (*_MOVES, *_CUTS))
        is_quick = is_tpu and user.operation in _PRODUCTS and "high" not in user.bare
        if user.operation == "convert":
            found.add(user.arrays[0].dtype)
        elif is_quick and each.arrays[0].dtype == "f32":
            found.add(_QUICK)
        elif shows and len(user.arrays) == 1 and depth < FAR:
            inner = _read_as(edit, user, is_tpu=is_tpu, depth=depth + 1)
            if not inner:
                return set()
            found |= inner
        else:
            return set()
    return set() if each.is_root else found


def gathers_joined(edit: Edit) -> None:
    """Gather at once what is gathered along one dimension after another.

    libtpu's partitioner gathers all that an operation needs with one collective. That is as many
    bytes as one after another, over both axes. What is sliced behind the gathers is resharded in
    steps, each with a collective of its own.
    """
    for each in [*edit]:
        one, user = edit.folded(each, GATHER), edit.only_reader(each)
        is_step = user is not None and user.operation == "dynamic-slice"
        if one is not None and not is_step:
            edit.stop(edit.source(each))
            edit.put(one)


def moves_hoisted(edit: Edit, outer: Edit, loop: Instruction) -> None:
    """Send ahead of a loop what every round sends alike, unless that makes it larger."""
    given = edit.parameters.get(0)
    if given is None or not loop.operands or not edit.root:
        return
    fixed = _Fixed(edit, given.name)
    for each in [*edit]:
        if each.operation not in _HOISTED or not is_alone(each) or not fixed.holds(each.name):
            continue
        copies = {given.name: loop.operands[0]}
        made = []
        for name in fixed.chain(each.name):
            old = edit.by_name[name]
            copies[name] = f"{loop.name}.{name}"
            read = tuple(copies[one] for one in old.operands)
            made.append(replace(old, name=copies[name], operands=read))
        outer.ahead(loop.name, (one for one in made if one.name not in outer.by_name))
        edit.stop(each)


@dataclass(slots=True)
class _Fixed:
    """What is the same in every round of a loop.

    Attributes:
      given: the name of the loop's tuple in its body.
    """

    edit: Edit
    given: str
    known: dict[str, bool] = field(default_factory=dict)

    def holds(self, name: str) -> bool:
        """Say whether a value is the same in every round."""
        for each in self.chain(name):
            if each not in self.known:
                self.known[each] = self._holds(self.edit.by_name[each])
        return self.known[name]

    def _holds(self, each: Instruction) -> bool:
        if each.operation in _NEW:
            return False
        if each.operation == "get-tuple-element" and each.operands[0] == self.given:
            root = self.edit.by_name[self.edit.root]
            at = each.index
            return root.operation == "tuple" and root.operands[at : at + 1] == (each.name,)
        return all(self.known.get(name, False) for name in each.operands)

    def chain(self, name: str) -> list[str]:
        """Return what a value is made of, each behind what it reads, up to the loop's tuple."""
        found: dict[str, None] = {}
        waiting = [(name, False)]
        while waiting:
            at, is_ready = waiting.pop()
            if is_ready:
                found[at] = None
            elif at not in found and at != self.given:
                waiting.append((at, True))
                if self.known.get(at) is not False:
                    waiting += [(one, False) for one in self.edit.by_name[at].operands]
        return [*found]
