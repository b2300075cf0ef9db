"""How often libtpu gathers one array: once for readers that are near each other.

Its partitioner gathers an operand anew for each operation that reads it. Two gathers become one
where their readers are about as far from the end of the program. So the weights of a last layer are
gathered once, and those of the layers before it twice: ahead, and again for the backward pass.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace

from shardspec.analysis import step_partition
from shardspec.programs import edit as edits
from shardspec.programs.edit import FORMS, GATHER, Edit, form, is_alone
from shardspec.programs.hlo import Instruction

#: By how many operations readers of one gather may be apart.
#: Source: xla/service/spmd/schedule_aware_collective_ops_cse.cc, and two steps that libtpu 0.0.52
#: compiled: 138 operations apart they share a gather, 161 apart they do not.
_NEAR = 150
_ALIKE = frozenset(("transpose", "copy", "convert"))


@dataclass(frozen=True, slots=True)
class _Use:
    """A gather that one operation reads.

    Attributes:
      read: the name that the operation reads, of the gather or of another form of it.
    """

    gather: Instruction
    read: str
    reader: Instruction


@dataclass(slots=True)
class _Shared:
    """A gather for some operations.

    Attributes:
      lowest: how many operations are behind the last of them.
    """

    lowest: int
    uses: list[_Use]


def gathers_once(edit: Edit) -> None:
    """Gather once for readers that are near each other, and anew for one that is far."""
    heights = _heights(edit)
    places = {each.name: at for at, each in enumerate(edit)}
    uses = [
        _Use(each, read, reader)
        for each in edit
        if each.operation == GATHER and is_alone(each)
        for read, reader in _reads(edit, each)
    ]
    last: dict[Hashable, _Shared] = {}
    found: list[_Shared] = []
    for use in sorted(uses, key=lambda use: places[use.reader.name]):
        height = heights[use.reader.name]
        keys = [*_joins(edit, use.gather)]
        shared = next((last[key] for key in keys if key in last), None)
        if shared is None or shared.lowest > height + 1 + _NEAR:
            shared = _Shared(height, [])
            found.append(shared)
        shared.lowest = min(shared.lowest, height)
        shared.uses.append(use)
        last.update(dict.fromkeys(keys, shared))
    _apply(edit, found)


def _apply(edit: Edit, found: list[_Shared]) -> None:
    taken: set[str] = set()
    for number, shared in enumerate(found):
        first = shared.uses[0]
        name = first.gather.name
        if name in taken:
            name = f"{name}.again{number}"
            edit.ahead(first.reader.name, [replace(first.gather, name=name)])
        taken.add(name)
        for use in shared.uses:
            if use.gather.name != name:
                _read_instead(edit, use, name)
    for each in [*edit]:
        is_unread = not edit.readers(each.name) and not each.is_root
        if each.operation == GATHER and is_unread and is_alone(each):
            edit.stop(each)


def _read_instead(edit: Edit, use: _Use, name: str) -> None:
    """Let an operation read another gather of the same array."""
    other = f"{use.read}.for.{use.reader.name}"
    reader = edit.by_name[use.reader.name]
    edit.ahead(reader.name, [form(other, edit.by_name[use.read].type, name)])
    operands = tuple(other if each == use.read else each for each in reader.operands)
    edit.put(replace(reader, operands=operands))


def _reads(edit: Edit, gather: Instruction) -> Iterator[tuple[str, Instruction]]:
    """Yield what reads a gather in whatever form, with the name that it reads."""
    waiting = [gather]
    while waiting:
        each = waiting.pop()
        for user in edit.readers(each.name):
            if user.operation in FORMS and not user.is_root:
                waiting.append(user)
            else:
                yield each.name, user


def _heights(edit: Edit) -> dict[str, int]:
    """Return how many operations are behind each, on the longest way, and one for each branch."""
    found: dict[str, int] = {}
    for each in reversed([*edit]):
        height = 0
        for user in edit.readers(each.name):
            height = max(height, found.get(user.name, 0)) + (user.operation not in FORMS)
        found[each.name] = height
    return found


def _joins(edit: Edit, each: Instruction) -> Iterator[Hashable]:
    """Yield what other gathers of the same array have in common with those that libtpu joins.

    XLA orders devices by the dimension that it splits a product by first, and joins what it prints
    alike. libtpu does not mind their order where it could pass the operand around a ring, and in
    the backward pass.
    """
    array = each.arrays[0]
    key = (edit.shown(each.operands[0], _ALIKE).name, array.dtype, *sorted(array.shape))
    yield (*key, edits.devices_of(each))
    members, longest = edit.members(each), step_partition.longest_row(edit.target.hardware)
    axes = () if members is None else members.axes(edit.target.mesh)
    if members is not None and step_partition.has_ring(len(axes), members.ways, longest):
        yield (*key, edit.together(each))
    elif "transpose(" in each.op_name:
        yield (*key, edit.together(each), "backward")
