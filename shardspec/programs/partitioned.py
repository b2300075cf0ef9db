"""What TPU and GPU compilers do to a program once XLA has partitioned it.

XLA's partitioner says where devices need what others have. The compilers then rewrite some of it:
sums that are added up become one, a sum that is only sliced is scattered, a loop's totals are
summed behind it. Each pass here is one of these, from program to program.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shardspec.analysis import compiled_sends
from shardspec.ir.collectives import IN_HLO, MOVES, CollectiveKind
from shardspec.ir.spec import Target, array_bytes
from shardspec.ir.step import StepArgument
from shardspec.programs.calls import Ref, calls_of
from shardspec.programs.groups import Slices, members_of
from shardspec.programs.hlo import Computation, HloArray, Instruction, Program, number
from shardspec.programs.products import flops_of
from shardspec.programs.varying import varying

#: Operations that pass a partial sum on as it is, so that it can be summed over devices later.
_PASSES = frozenset(("convert", "reshape", "transpose", "negate", "copy", "bitcast"))
_RESHAPES = frozenset(("reshape", "bitcast", "copy"))
_FORMS = frozenset(("reshape", "bitcast", "copy", "transpose"))
_MOVES = frozenset(str(kind) for kind in MOVES)
_GATHERS = frozenset((str(CollectiveKind.ALL_GATHER),))
_ADDS = frozenset(("add", "subtract"))
_SCATTER = "reduce-scatter"
_GROUPS = re.compile(
    r"(?:, )?(?:replica_groups|source_target_pairs)=.*?(?=, (?!device_ids)\w+=|$)", re.DOTALL
)
_SUM = "all-reduce"
#: How many operations a value is followed through.
_FAR = 64


def rewritten(program: Program, target: Target, arguments: Sequence[StepArgument] = ()) -> Program:
    """Return a partitioned program as the compiler of a target leaves it."""
    program = inlined(program)
    calls = calls_of(program)
    if calls is None:
        return program
    is_gpu = target.hardware is not None and target.hardware.chip.platform == "gpu"
    differs = _differing(program, target, arguments)
    edits = {
        name: _Edit(body, target, program.partitions) for name, body in program.computations.items()
    }
    for name in reversed(calls.times):
        edit, site = edits[name], calls.sites.get(name)
        outer = None if site is None else edits[site.ref.computation]
        if is_gpu:
            sums_once(edit)
        if site is not None and outer is not None and site.caller.attribute("body") == name:
            sums_after_loop(edit, outer, site.caller.name, is_gpu=is_gpu)
        if not is_gpu:
            sums_once(edit)
        if site is not None and outer is not None and site.caller.attribute("body") == name:
            moves_hoisted(edit, outer, site.caller)
        moves_narrowed(edit, is_tpu=not is_gpu)
        if not is_gpu:
            gathers_once(edit)
        sums_scattered(edit, _RESHAPES if is_gpu else _PASSES)
        if not is_gpu:
            products_in_turns(edit, differs)
            sums_of_lanes_whole(edit)
            whole_machine_summed(edit)
        legs_apart(edit)
    bodies = {name: edit.body for name, edit in edits.items()}
    entry = None if program.entry is None else bodies[program.entry.name]
    return replace(program, computations=bodies, entry=entry)


@dataclass(slots=True)
class _Edit:
    """A computation while it is rewritten."""

    body: Computation
    target: Target
    devices: int

    def __post_init__(self) -> None:
        self.body = Computation(self.body.name, dict(self.body.instructions))

    @property
    def instructions(self) -> dict[str, Instruction]:
        return self.body.instructions

    def users(self, name: str) -> list[Instruction]:
        return self.body.users.get(name, [])

    def axes(self, each: Instruction) -> tuple[str, ...]:
        """Return the mesh axes that a collective goes over."""
        members = members_of(each, Slices(tuple(range(self.devices)), (0,)))
        return () if members is None else members.axes(self.target.mesh)

    def ways(self, each: Instruction) -> int:
        """Return how many devices are in a group of a collective; 0 where that is not known."""
        members = members_of(each, Slices(tuple(range(self.devices)), (0,)))
        return 0 if members is None else members.ways

    def over(self, each: Instruction, axes: tuple[str, ...], **changed: Any) -> Instruction:
        """Return a collective that goes over mesh axes."""
        sizes = ",".join(f"'{name}'={size}" for name, size in self.target.mesh.sizes.items())
        groups = f"replica_groups=mesh[{sizes}] {{{','.join(repr(axis) for axis in axes)}}}"
        return replace(each, attributes=f", {groups}{_GROUPS.sub('', each.attributes)}", **changed)

    def put(self, each: Instruction) -> None:
        """Put an instruction in place of the one of its name."""
        self.body.instructions[each.name] = each
        vars(self.body).pop("users", None)

    def ahead(self, name: str, made: Sequence[Instruction]) -> None:
        """Put instructions before one."""
        found: dict[str, Instruction] = {}
        for each in self.instructions.values():
            if each.name == name:
                found |= {one.name: one for one in made}
            found[each.name] = each
        self.body = Computation(self.body.name, found)

    def before(self, name: str, *made: Instruction) -> None:
        self.ahead(name, made)

    def insert(self, name: str, behind: Sequence[Instruction]) -> None:
        """Put instructions behind one; what read it reads the last of them."""
        found: dict[str, Instruction] = {}
        for each in self.instructions.values():
            if name in each.operands:
                read = tuple(behind[-1].name if one == name else one for one in each.operands)
                each = replace(each, operands=read)
            found[each.name] = each
            if each.name == name:
                found[name] = replace(each, is_root=False)
                found |= {one.name: one for one in behind}
        self.body = Computation(self.body.name, found)


def _groups(each: Instruction) -> str:
    """Return who takes part in a collective, as it is printed."""
    found = _GROUPS.search(each.bare)
    return found.group() if found else ""


def _kind(dtype: str, shape: Sequence[int]) -> str:
    """Return the type of an array, as it is printed."""
    return f"{dtype}[{','.join(map(str, shape))}]"


def _count(array: HloArray) -> int:
    return math.prod(array.shape)


def sums_once(edit: _Edit) -> None:
    """Sum once what is added up before anything else reads it."""
    pending: dict[str, tuple[str, ...]] = {}
    whole: dict[tuple[str, ...], str] = {}
    for name, each in edit.instructions.items():
        if each.operation == _SUM and len(each.operands) == 1:
            pending[name] = (name,)
        elif each.operation in _PASSES or each.operation in _ADDS:
            group = _carried_on(edit, each, pending)
            if group:
                pending[name] = group
            if group and each.operation in _ADDS:
                for one in each.operands:
                    whole.pop(pending[one], None)
                whole[group] = name
    for group, name in whole.items():
        _merge(edit, name, group)


def _carried_on(
    edit: _Edit, each: Instruction, pending: dict[str, tuple[str, ...]]
) -> tuple[str, ...]:
    groups = [pending.get(name, ()) for name in each.operands]
    once = all(len(edit.users(name)) == 1 for name in each.operands)
    if not groups or not all(groups) or not once:
        return ()
    if each.operation in _PASSES:
        return groups[0]
    sums = [edit.instructions[name] for group in groups for name in group]
    if len(set(each.operands)) < 2 or len({_groups(sum) for sum in sums}) > 1:
        return ()
    return tuple(name for group in groups for name in group)


def _merge(edit: _Edit, name: str, group: tuple[str, ...]) -> None:
    """Sum the value of a name over devices, in place of the sums that it is made of."""
    whole, last = edit.instructions[name], edit.instructions[group[-1]]
    for one in group:
        edit.put(replace(edit.instructions[one], operation="copy", attributes=""))
    made = replace(last, name=f"{name}.sum", type=whole.type, operands=(name,))
    edit.insert(name, (replace(made, is_root=whole.is_root),))


def sums_after_loop(edit: _Edit, outer: _Edit, loop: str, *, is_gpu: bool) -> None:
    """Sum behind a loop what each round only adds to a total.

    XLA:GPU sends the total as narrow as it is summed in each round, libtpu as wide as it is kept.
    """
    root = edit.body.root
    if root is None or root.operation != "tuple":
        return
    for each in [*edit.instructions.values()]:
        at = _total(edit, each, root) if each.operation == _SUM else None
        if at is not None:
            edit.put(replace(each, operation="copy", attributes=""))
            _sum_element(outer, loop, at, each, is_gpu=is_gpu)


def _total(edit: _Edit, sum: Instruction, root: Instruction) -> int | None:
    """Return the element of a loop's tuple to which alone a value is added in each round."""
    each = sum
    for _ in range(_FAR):
        users = edit.users(each.name)
        if len(users) != 1 or each.is_root or len(sum.operands) != 1:
            return None
        value, each = each, users[0]
        if each.operation == "add":
            other = next((name for name in each.operands if name != value.name), "")
            return _element(edit, each, other, root)
        if each.operation not in _PASSES:
            return None
    return None


def _element(edit: _Edit, add: Instruction, other: str, root: Instruction) -> int | None:
    """Return which element a loop gives back as itself with something added to it."""
    kept = edit.instructions.get(other)
    if kept is None or kept.operation != "get-tuple-element" or edit.users(add.name) != [root]:
        return None
    at = number(kept.attribute("index"))
    given = edit.instructions.get(kept.operands[0])
    is_given = given is not None and given.operation == "parameter"
    is_back = root.operands.count(add.name) == 1 and root.operands[at] == add.name
    return at if is_given and is_back and len(edit.users(other)) == 1 else None


def _sum_element(outer: _Edit, loop: str, at: int, sum: Instruction, *, is_gpu: bool) -> None:
    """Sum over devices an element of what a loop gives."""
    for each in [*outer.users(loop)]:
        if each.operation == "get-tuple-element" and number(each.attribute("index")) == at:
            narrow = f"{each.name}.own"
            own = sum.arrays[0].dtype if is_gpu else each.arrays[0].dtype
            kind = f"{own}[{','.join(map(str, each.arrays[0].shape))}]"
            convert = replace(
                each,
                name=narrow,
                type=kind,
                operation="convert",
                operands=(each.name,),
                attributes="",
                is_root=False,
            )
            made = replace(
                sum, name=f"{each.name}.sum", type=kind, operands=(narrow,), is_root=each.is_root
            )
            outer.insert(each.name, (convert, made))


def moves_narrowed(edit: _Edit, *, is_tpu: bool) -> None:
    """Move in the narrower dtype what is made narrower as soon as it has come.

    XLA:GPU gathers so what all readers make narrower; libtpu moves so whatever it moves.
    """
    for each in [*edit.instructions.values()]:
        kinds = _MOVES if is_tpu else _GATHERS
        if each.operation in kinds and len(each.arrays) == 1 == len(each.operands):
            dtypes = _read_as(edit, each, is_tpu=is_tpu)
            widest = max(dtypes, key=_bits, default="")
            if widest and _bits(widest) < _bits(each.arrays[0].dtype):
                _narrow(edit, each, widest)


def _bits(dtype: str) -> int:
    return array_bytes((8,), dtype)


def _read_as(edit: _Edit, each: Instruction, *, is_tpu: bool) -> set[str]:
    """Return the dtypes that all readers of a value make of it first; none where one does not.

    A product on a TPU takes f32 as bf16 unless it asks for more.
    """
    found: set[str] = set()
    for user in edit.users(each.name):
        moves = user.operation in _FORMS or (is_tpu and user.operation in _MOVES)
        if user.operation == "convert":
            found.add(user.arrays[0].dtype)
        elif moves and not user.is_root and len(user.operands) == 1:
            inner = _read_as(edit, user, is_tpu=is_tpu)
            if not inner:
                return set()
            found |= inner
        elif is_tpu and user.operation == "dot" and "high" not in user.bare:
            found.add(_QUICK if each.arrays[0].dtype == "f32" else each.arrays[0].dtype)
        else:
            return set()
    return set() if each.is_root else found


#: What a TPU multiplies f32 as.
_QUICK = "bf16"


def _narrow(edit: _Edit, each: Instruction, dtype: str) -> None:
    before = edit.instructions[each.operands[0]]
    made = f"{each.name}.narrow"
    kind = f"{dtype}[{','.join(map(str, before.arrays[0].shape))}]"
    convert = Instruction(made, kind, "convert", (before.name,), "", "")
    found: dict[str, Instruction] = {}
    for one in edit.instructions.values():
        if one.name == each.name:
            found[made] = convert
            shape = ",".join(map(str, each.arrays[0].shape))
            one = replace(each, operands=(made,), type=f"{dtype}[{shape}]")
        found[one.name] = one
    edit.body = Computation(edit.body.name, found)


def moves_hoisted(edit: _Edit, outer: _Edit, loop: Instruction) -> None:
    """Move ahead of a loop what each round moves alike, unless that makes it larger."""
    root, given = edit.body.root, edit.body.parameters.get(0)
    if root is None or root.operation != "tuple" or given is None or not loop.operands:
        return
    fixed = _Fixed(edit, root, given.name)
    for each in [*edit.instructions.values()]:
        if each.operation in _HOISTED and len(each.operands) == 1 and fixed.holds(each.name):
            names = fixed.chain(each.name)
            copies = {given.name: loop.operands[0]}
            made: list[Instruction] = []
            for name in names:
                old = edit.instructions[name]
                copies[name] = f"{name}.ahead.{loop.name}"
                operands = tuple(copies[one] for one in old.operands)
                made.append(replace(old, name=copies[name], operands=operands, is_root=False))
            outer.ahead(loop.name, made)
            edit.put(replace(each, operation="copy", attributes=""))


_HOISTED = frozenset(str(kind) for kind in CollectiveKind if not kind.traits.grows)


@dataclass(slots=True)
class _Fixed:
    """What is the same in every round of a loop."""

    edit: _Edit
    root: Instruction
    given: str
    known: dict[str, bool] = field(default_factory=dict)

    def holds(self, name: str) -> bool:
        """Say whether a value is the same in every round."""
        if name not in self.known:
            self.known[name] = False
            self.known[name] = self._holds(self.edit.instructions.get(name))
        return self.known[name]

    def _holds(self, each: Instruction | None) -> bool:
        if each is None or each.operation in _NEVER:
            return False
        if each.operation == "get-tuple-element" and each.operands[0] == self.given:
            at = number(each.attribute("index"))
            back = self.root.operands[at : at + 1]
            return bool(back) and back[0] == each.name
        return all(self.holds(name) for name in each.operands)

    def chain(self, name: str) -> list[str]:
        """Return the names that a value is made of, each behind what it reads; not the tuple."""
        found: dict[str, None] = {}
        waiting = [(name, False)]
        while waiting:
            at, is_ready = waiting.pop()
            if is_ready:
                found[at] = None
            elif at not in found and at != self.given:
                waiting.append((at, True))
                waiting += [(one, False) for one in self.edit.instructions[at].operands]
        return [*found]


_NEVER = frozenset(
    ("parameter", "while", "conditional", "custom-call", "rng", "rng-bit-generator", "opt-barrier")
)


def _differing(
    program: Program, target: Target, arguments: Sequence[StepArgument]
) -> dict[Ref, frozenset[str]]:
    """Return along which mesh axes values differ from device to device."""
    every, slices = frozenset(target.mesh.sizes), Slices(tuple(range(program.partitions)), (0,))
    given = [frozenset(each.array.split.mesh_axes) for each in arguments]

    def over(each: Instruction) -> frozenset[str]:
        members = members_of(each, slices)
        return every if members is None else frozenset(members.axes(target.mesh))

    return varying(program, given, over, every)


def products_in_turns(edit: _Edit, differs: Mapping[Ref, frozenset[str]]) -> None:
    """Pass operands of products around a ring: `compiled_sends.windowed_bytes`."""
    longest = compiled_sends.longest_row(edit.target.hardware)
    for each in [*edit.instructions.values()]:
        if each.operation not in (_SCATTER, "all-gather") or len(each.operands) != 1:
            continue
        axes, ways = edit.axes(each), edit.ways(each)
        if not compiled_sends.has_ring(len(axes), ways, longest):
            continue
        is_gather = each.operation != _SCATTER
        given = edit.instructions[each.operands[0]]
        if is_gather and (
            ways == compiled_sends.SMALL_RING or not _is_of_product(edit, each, set(axes), differs)
        ):
            continue
        if not is_gather and not _is_of_sum(edit, each, given):
            continue
        whole = each.arrays[0] if is_gather else given.arrays[0]
        product = _readers(edit, each)[0] if is_gather else given
        if not _hides(edit, product, whole.bytes):
            continue
        turns = f"{each.name}.turns"
        shape = (ways + 1, _count(whole) // ways)
        part = Instruction(turns, _kind(whole.dtype, shape), "reshape", (given.name,), "", "")
        edit.before(each.name, part)
        edit.put(replace(each, operation="collective-permute", operands=(turns,)))


def sums_of_lanes_whole(edit: _Edit) -> None:
    """Sum whole what is scattered along lanes: `compiled_sends.is_sliced_whole`."""
    for each in [*edit.instructions.values()]:
        if each.operation == _SCATTER and len(each.operands) == 1:
            slice = _only_slice(edit, each, _PASSES)
            if slice is None:
                continue
            before = edit.instructions[slice.operands[0]].arrays[0].shape
            after = slice.arrays[0].shape
            last = _laid(slice)
            is_last = bool(after) and before[last] != after[last]
            dtype = each.arrays[0].dtype
            if is_last and compiled_sends.is_sliced_whole(after, dtype):
                edit.put(replace(each, operation=_SUM))


def _laid(each: Instruction) -> int:
    return len(each.arrays[0].shape) - 1


def whole_machine_summed(edit: _Edit) -> None:
    """Sum what libtpu moves as a sum over all devices: `compiled_sends.is_summed_whole`."""
    for each in [*edit.instructions.values()]:
        kind = IN_HLO.get(each.operation)
        if kind is None or len(each.operands) != 1 or len(each.arrays) != 1:
            continue
        given = edit.instructions[each.operands[0]].arrays[0]
        size = kind.payload(given.bytes, each.arrays[0].bytes)
        if not compiled_sends.is_summed_whole(kind, edit.ways(each), size, edit.target.hardware):
            continue
        if kind.traits.grows:
            name = f"{each.name}.zeros"
            edit.before(each.name, Instruction(name, each.type, "pad", each.operands, "", ""))
            each = replace(each, operands=(name,))
        edit.put(replace(each, operation=_SUM))


def _is_of_sum(edit: _Edit, sum: Instruction, product: Instruction) -> bool:
    """Say whether a product's partial sum is scattered because the product is partitioned so."""
    slice = _only_slice(edit, sum, _PASSES)
    is_own = slice is not None and slice.op_name == product.op_name
    return product.operation == "dot" and is_own


def _hides(edit: _Edit, product: Instruction, moved_bytes: int) -> bool:
    """Say whether a product takes long enough to be computed while a ring passes bytes."""
    hardware = edit.target.hardware
    chip = None if hardware is None else hardware.chip
    if chip is None or not chip.bf16_flops_per_s or not chip.link_bytes_per_s:
        return False
    shapes = [edit.instructions[name].arrays[0].shape for name in product.operands]
    flops = flops_of(product, shapes, product.arrays[0].shape)
    seconds = flops * chip.devices_per_chip / chip.bf16_flops_per_s
    return seconds > _LEAST_HIDDEN * moved_bytes / (2 * chip.link_bytes_per_s)


#: The share of a ring's time that a product has to take. Source: compiles with libtpu 0.0.52, which
#: computes in turns products of 0.06 and more, and whole those of 0.01 and less.
_LEAST_HIDDEN = 0.03


def _is_of_product(
    edit: _Edit, each: Instruction, axes: set[str], differs: Mapping[Ref, frozenset[str]]
) -> bool:
    """Say whether one product alone reads a value, and makes no partial sum of it."""
    users = _readers(edit, each)
    if len(users) != 1 or users[0].operation != "dot":
        return False
    if each.op_name != users[0].op_name:  # XLA does so where it partitions a product
        return False
    if not axes <= differs.get(Ref(edit.body.name, users[0].name), axes):
        return False
    return not any(user.operation in (_SUM, _SCATTER) for user in edit.users(users[0].name))


def _readers(edit: _Edit, each: Instruction) -> list[Instruction]:
    found: list[Instruction] = []
    for user in edit.users(each.name):
        found += _readers(edit, user) if user.operation in _PASSES else [user]
    return found


def inlined(program: Program) -> Program:
    """Put what is called in place of the calls."""
    bodies = dict(program.computations)
    calls = calls_of(program)
    for name in reversed(calls.times) if calls is not None else ():
        bodies[name] = _inlined(bodies[name], bodies)
    entry = None if program.entry is None else bodies[program.entry.name]
    return replace(program, computations=bodies, entry=entry)


def _inlined(body: Computation, bodies: dict[str, Computation]) -> Computation:
    found: dict[str, Instruction] = {}
    renamed: dict[str, str] = {}
    for each in body.instructions.values():
        operands = tuple(renamed.get(one, one) for one in each.operands)
        inner = bodies.get(each.called[0]) if each.operation == "call" and each.called else None
        if inner is None or inner.root is None:
            found[each.name] = (
                replace(each, operands=operands) if operands != each.operands else each
            )
            continue
        own = {one.name: operands[at] for at, one in inner.parameters.items()}
        for one in inner.instructions.values():
            if one.operation != "parameter":
                own[one.name] = f"{each.name}.{one.name}"
                read = tuple(own[name] for name in one.operands)
                is_root = each.is_root and one.is_root
                found[own[one.name]] = replace(
                    one, name=own[one.name], operands=read, is_root=is_root
                )
        renamed[each.name] = own[inner.root.name]
    bodies_root = body.root
    if bodies_root is not None and bodies_root.name in renamed:
        last = renamed[bodies_root.name]
        if last in found:
            found[last] = replace(found[last], is_root=True)
    return _picked(Computation(body.name, found))


def _picked(body: Computation) -> Computation:
    """Read the elements of tuples that stand in the same computation from what makes them."""
    same: dict[str, str] = {}
    found: dict[str, Instruction] = {}
    for each in body.instructions.values():
        operands = tuple(same.get(one, one) for one in each.operands)
        each = replace(each, operands=operands) if operands != each.operands else each
        source = found.get(operands[0]) if each.operation == "get-tuple-element" else None
        if source is not None and source.operation == "tuple" and not each.is_root:
            same[each.name] = source.operands[number(each.attribute("index"))]
        else:
            found[each.name] = each
    read = {name for each in found.values() for name in each.operands}
    left = {
        name: each
        for name, each in found.items()
        if each.operation != "tuple" or each.is_root or name in read
    }
    return Computation(body.name, left)


def legs_apart(edit: _Edit) -> None:
    """Send within slices and between them apart: `compiled_sends.across_slices`."""
    for each in [*edit.instructions.values()]:
        kind = IN_HLO.get(each.operation)
        if kind is None or len(each.operands) != 1 or len(each.arrays) != 1:
            continue
        given = edit.instructions[each.operands[0]].arrays[0]
        payload = kind.payload(given.bytes, each.arrays[0].bytes)
        legs = compiled_sends.across_slices(kind, edit.axes(each), payload, edit.target)
        if len(legs) < 2:
            continue
        name = each.operands[0]
        behind = []
        for at, (leg, axes, size) in enumerate(legs):
            ways = edit.target.mesh.ways(axes)
            made, sent = f"{each.name}.leg{at}", f"{each.name}.sent{at}"
            taken = size // ways if leg.traits.grows else size
            bits = _bits(given.dtype)
            part = Instruction(
                made, _kind(given.dtype, (taken * 8 // bits,)), "reshape", (name,), "", ""
            )
            grown = size if leg.traits.grows else taken
            moved = edit.over(
                each,
                axes,
                name=sent,
                type=_kind(given.dtype, (grown * 8 // bits,)),
                operation=str(leg),
                operands=(made,),
                is_root=False,
            )
            behind += [part, moved]
            name = sent
        back = Instruction(
            f"{each.name}.whole", each.type, "reshape", (name,), "", "", each.is_root
        )
        edit.put(
            replace(
                each,
                operation="copy",
                attributes="",
                type=edit.instructions[each.operands[0]].type,
                is_root=False,
            )
        )
        edit.insert(each.name, (*behind, back))


def gathers_once(edit: _Edit) -> None:
    """Gather once what is gathered alike, and only read with its dimensions in another order."""
    first: dict[tuple[object, ...], str] = {}
    for each in [*edit.instructions.values()]:
        if each.operation in _GATHERS and len(each.operands) == 1 == len(each.arrays):
            source = _same(edit, each.operands[0])
            whole = tuple(sorted(each.arrays[0].shape))
            key = (source, _joined(edit, each), whole, each.arrays[0].dtype)
            if first.setdefault(key, each.name) != each.name:
                edit.put(replace(each, operation="reshape", operands=(first[key],), attributes=""))


def _joined(edit: _Edit, each: Instruction) -> object:
    """Return what has to be alike of the devices that two equal gathers join.

    XLA orders them by the dimension that it splits a product by first. libtpu does not mind where
    it could pass the operand around a ring.
    """
    members = members_of(each, Slices(tuple(range(edit.devices)), (0,)))
    if members is None:
        return each.name
    longest = compiled_sends.longest_row(edit.target.hardware)
    if compiled_sends.has_ring(len(members.axes(edit.target.mesh)), members.ways, longest):
        return frozenset(map(frozenset, members.groups))
    return tuple(members.groups)


def _same(edit: _Edit, name: str) -> str:
    """Return what a value is, but for the order of its dimensions."""
    for _ in range(_FAR):
        each = edit.instructions.get(name)
        if each is None or each.operation not in ("transpose", "copy", "convert"):
            return name
        name = each.operands[0]
    return name


def sums_scattered(edit: _Edit, passed: frozenset[str]) -> None:
    """Make an all-reduce of which each device keeps its own slice a reduce-scatter.

    XLA does where one slice alone reads the sum, cuts one dimension into as many parts as there are
    devices in a group, and begins at a place that it finds in a table by the device's number.
    """
    for each in [*edit.instructions.values()]:
        if each.operation == _SUM and len(each.operands) == 1 and not each.is_root:
            slice = _only_slice(edit, each, passed)
            parts = 0 if slice is None else _parts(edit, slice)
            if parts > 1 and parts == edit.ways(each):
                edit.put(replace(each, operation=_SCATTER))


def _only_slice(edit: _Edit, sum: Instruction, passed: frozenset[str]) -> Instruction | None:
    """Return the slice that alone reads a sum, through other forms of it."""
    each = sum
    for _ in range(_FAR):
        users = edit.users(each.name)
        if len(users) != 1 or each.is_root:
            return None
        each = users[0]
        if each.operation == "dynamic-slice":
            return each
        if each.operation not in passed:
            return None
    return None


def _parts(edit: _Edit, slice: Instruction) -> int:
    """Return of how many parts each device keeps its own; 0 where it is another slice."""
    before = edit.instructions[slice.operands[0]].arrays[0].shape
    after = slice.arrays[0].shape
    cut = [at for at, (whole, part) in enumerate(zip(before, after, strict=True)) if whole != part]
    if len(cut) != 1 or before[cut[0]] % after[cut[0]]:
        return 0
    is_own = _is_table(edit, slice.operands[1 + cut[0]])
    return before[cut[0]] // after[cut[0]] if is_own else 0


def _is_zero(edit: _Edit, name: str) -> bool:
    each = edit.instructions.get(name)
    return each is not None and each.operation == "constant" and each.stated.strip() == "0"


def _is_table(edit: _Edit, name: str) -> bool:
    """Say whether a number is found in a table by the number of the device."""
    for _ in range(_FAR):
        each = edit.instructions.get(name)
        if each is None:
            return False
        if each.operation == "partition-id":
            return True
        if each.operation == "dynamic-slice":
            name = each.operands[1]
        elif each.operation in ("reshape", "convert", "bitcast", "copy", "clamp"):
            name = each.operands[1 if each.operation == "clamp" else 0]
        elif each.operation == "subtract" and _is_zero(edit, each.operands[1]):
            name = each.operands[0]
        elif each.operation == "multiply":
            left, right = (edit.instructions.get(one) for one in each.operands)
            if left is None or right is None or "constant" not in (left.operation, right.operation):
                return False
            name = each.operands[left.operation == "constant"]
        else:
            return False
    return False
