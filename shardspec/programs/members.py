"""Which devices a collective joins, in each of the ways that XLA prints it, and over which axes.

    replica_groups={{0,1},{2,3}}                            one by one
    replica_groups=[2,2]<=[2,2]T(1,0)                       rows of a turned block of numbers
    replica_groups=mesh['a'=2,'b'=2] {'b'}                  axes of a mesh of its own
    replica_groups=mesh['a'=8] {'a':(2)4}                   a part of one
    replica_groups=mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'a'}
    source_target_pairs={{0,1},{1,0}}                       who sends to whom
    _xla_megascale_target="{1,2}x{0:7}"                     slices, for each device of a slice
    _xla_megascale_target={{100000,200000},{100001,200001}} slices and devices, one by one
    _xla_megascale_target={{100003->200000}}                who sends to whom

A device is a number: its place in the mesh that the program was compiled for, major to minor. The
mesh axes of a collective are those whose coordinate differs within one of its groups.

libtpu makes one program for all slices, which counts the devices of a slice: what crosses slices
hosts send, and the last three ways are of that. They have the numbers of the chips, slice by slice.
Which chip is at which place in the mesh is said beside the program (`hlo.with_chips`), or read off
rows that have all of them.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from shardspec.ir.operations import IN_MEGASCALE, CollectiveKind
from shardspec.ir.spec import Mesh
from shardspec.programs.calls import Ref
from shardspec.programs.hlo import Computation, Instruction, Program, number

_STATED = re.compile(
    r"(?:replica_groups|source_target_pairs)=.*?(?=, (?!device_ids)\w+=|$)", re.DOTALL
)
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_LISTED = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=@?\w*mesh\[([^\[\]]*+)\]"
    r"(?:, device_ids=\(([^()]*+(?:\([^()]*+\)[^()]*+)?+)\))? \{([^{}]*+)\}"
)
_SIZED = re.compile(r"'([^']*)'=(\d+)")
_USED = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")
_TURNED = re.compile(r"\[([\d,]+)\](?:<=\[[\d,]+\])?(?:T\(([\d,]+)\))?")
_ROW = re.compile(r"\{([\d,]+)\}")
_CROSSES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_TARGET = re.compile(r'_xla_megascale_target=(?:"([^"]*)"|(\{\{[^=]*\}\}))')
_EACH = re.compile(r"\{([\d,]+)\}x\{[\d,:]+\}")
_HOP = re.compile(r"[\d,>-]+")
#: What libtpu adds to the number of a device for each slice; slices are counted from one.
_SLICE = 100_000

Groups = list[tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Members:
    """Who takes part in a collective.

    Attributes:
      groups: of devices, each group for itself; of a permute, pairs.
      ways: how many devices are in one.
    """

    groups: Groups
    ways: int

    def axes(self, mesh: Mesh) -> tuple[str, ...]:
        """Return the mesh axes whose coordinate differs within a group."""
        found = []
        below = mesh.device_count
        for name, size in mesh.sizes.items():
            below //= size
            if any(_differs(group, below, size) for group in self.groups):
                found.append(name)
        return tuple(found)


def _differs(group: tuple[int, ...], below: int, size: int) -> bool:
    return len({device // below % size for device in group}) > 1


@dataclass(frozen=True, slots=True)
class Slices:
    """The devices of a mesh as a program counts them that is the same for all slices.

    Attributes:
      devices: the place in the mesh of each device of the first slice.
      firsts: the place in the mesh of the first device of each slice.
      chips: the number of the chip at each place in the mesh; empty where it is not known.

    Invariants:
      sum: the place of device `d` of slice `s` is `firsts[s] + devices[d]`.
    """

    devices: tuple[int, ...]
    firsts: tuple[int, ...]
    chips: tuple[int, ...] = ()


def slices_of(mesh: Mesh, partitions: int, chips: tuple[int, ...] = ()) -> Slices | None:
    """Return how a program for so many devices counts those of a mesh; None where it is not for it.

    It is for all of them, or for those of one slice: where the axes `@ dcn` are the slices.
    """
    if partitions == mesh.device_count:
        return Slices(tuple(range(partitions)), (0,))
    sizes = mesh.sizes
    crossing = {axis.name for axis in mesh.axes if axis.network == "dcn"}
    inside = _places(sizes, {name for name in sizes if name not in crossing})
    if len(inside) != partitions:
        return None
    chips = chips if len(chips) == mesh.device_count else ()
    return Slices(inside, _places(sizes, crossing), chips)


def _places(sizes: dict[str, int], along: set[str]) -> tuple[int, ...]:
    """Return the places in a mesh along some axes, with the others at their start."""
    places, below = [0], math.prod(sizes.values())
    for name, size in sizes.items():
        below //= size
        if name in along:
            places = [start + at * below for start in places for at in range(size)]
    return tuple(places)


def members_of(instruction: Instruction, slices: Slices) -> Members | None:
    """Return who takes part; everyone of a slice where nothing is said.

    None where it is said in a way that cannot be read, or of devices that are not there.
    """
    found = _STATED.search(instruction.bare)
    members = _members(found.group() if found else "", len(slices.devices))
    if members is None or len(slices.firsts) == 1:
        return members
    groups = [tuple(slices.devices[at] for at in group) for group in members.groups]
    return Members(groups, members.ways)


def together(instruction: Instruction, device_count: int) -> Hashable:
    """Return what two collectives over the same devices have in common."""
    found = _STATED.search(instruction.bare)
    return _together(found.group() if found else "", device_count)


@lru_cache(maxsize=1024)
def _together(text: str, device_count: int) -> Hashable:
    members = _members(text, device_count)
    return text if members is None else frozenset(map(frozenset, members.groups))


def crossing_of(
    instruction: Instruction, slices: Slices
) -> tuple[CollectiveKind, Members | None] | None:
    """Return what a program sends to other slices, and who takes part; None where it does not."""
    kind = _CROSSES.search(instruction.attributes)
    if instruction.operation != "send" or kind is None or kind.group(1) not in IN_MEGASCALE:
        return None
    target = _TARGET.search(instruction.attributes)
    return IN_MEGASCALE[kind.group(1)], _crossing(*target.groups(""), slices) if target else None


class Crossing(NamedTuple):
    """What is sent to other slices.

    Attributes:
      members: who takes part; None where that cannot be read.
      inside: of a permute, the computations that have its pairs inside of a slice.
    """

    kind: CollectiveKind
    members: Members | None
    inside: tuple[str, ...] = ()


def crossings(program: Program, slices: Slices) -> Iterator[tuple[Ref, Crossing]]:
    """Yield what a program sends to other slices.

    A permute of the user's of which a part stays in its slice is two: a device sends either to
    another slice, or in a condition on the same array, which has a branch for each slice. Here it
    is one, with the pairs of both.
    """
    for name, body in program.computations.items():
        for send in body.instructions.values():
            crossing = crossing_of(send, slices)
            if crossing is not None:
                kind, members = crossing
                found = _permutes_beside(program, body, send) if kind.traits.way == "shift" else []
                for _, each in found:
                    members = _both(members, members_of(each, slices))
                yield Ref(name, send.name), Crossing(kind, members, tuple(at for at, _ in found))


def _both(one: Members | None, other: Members | None) -> Members | None:
    return Members(one.groups + other.groups, one.ways) if one and other else None


def _permutes_beside(
    program: Program, body: Computation, send: Instruction
) -> list[tuple[str, Instruction]]:
    """Return the permutes of what is sent that a condition chooses from, and where they are."""
    users = body.users.get(send.operands[0], []) if send.operands else []
    ways = [at for each in users if each.operation == "conditional" for at in each.called]
    return [
        (branch.name, each)
        for branch in filter(None, map(program.computations.get, ways))
        for each in branch.instructions.values()
        if each.operation.removesuffix("-start") == "collective-permute"
    ]


@lru_cache(maxsize=1024)
def _crossing(product: str, listed: str, slices: Slices) -> Members | None:
    each = _EACH.fullmatch(product)
    rows = [tuple(s * _SLICE for s in _numbers(each.group(1)))] if each else []
    for row in _HOP.findall(listed):
        rows.append(_numbers(row.replace("->", ",")))
    places = _places_of_chips(rows, slices)
    if not rows or any(chip not in places for row in rows for chip in row):
        return None
    return Members([tuple(places[chip] for chip in row) for row in rows], max(map(len, rows)))


def _places_of_chips(rows: Groups, slices: Slices) -> dict[int, int]:
    """Return the place in the mesh of each chip: as is known, else as rows of all of them show."""
    if slices.chips:
        return {chip: at for at, chip in enumerate(slices.chips)}
    inner = list(dict.fromkeys(chip % _SLICE for row in rows for chip in row))
    if len(inner) != len(slices.devices):
        inner = list(range(len(slices.devices)))
    return {
        chip + at * _SLICE: first + device
        for at, first in enumerate(slices.firsts, 1)
        for chip, device in zip(inner, slices.devices, strict=True)
    }


@lru_cache(maxsize=1024)
def _members(text: str, device_count: int) -> Members | None:
    pairs = _PAIRS.search(text)
    if pairs:
        found = [_numbers(row) for row in _ROW.findall(pairs.group(1))]
        return _known(found, device_count, 2)
    groups = _groups(text, device_count)
    if groups is None:
        return None
    return _known(groups, device_count, max(map(len, groups), default=0))


def _known(groups: Groups, device_count: int, ways: int) -> Members | None:
    if any(device >= device_count for group in groups for device in group):
        return None
    return Members(groups, ways)


def _groups(text: str, device_count: int) -> Groups | None:
    iota, mesh = _IOTA.search(text), _MESH.search(text)
    if iota:
        shape, dims, order = (_numbers(part or "") for part in iota.groups())
        devices = turned(range(device_count), dims, order)
        ways = shape[-1] if shape else 0
        return _rows(devices, ways) if math.prod(shape) == device_count else None
    if mesh:
        return _mesh_groups(mesh, device_count)
    listed = _LISTED.search(text)
    rows = [_numbers(row) for row in _ROW.findall(listed.group(1))] if listed else []
    if not rows and "replica_groups=" in text and not listed:
        return None
    return rows or [tuple(range(device_count))]


def _mesh_groups(found: re.Match[str], device_count: int) -> Groups | None:
    """Return the groups along some axes of a mesh that the collective states itself."""
    sizes, ids, used = found.groups()
    axes = {name: number(size) for name, size in _SIZED.findall(sizes)}
    devices = _device_ids(ids, device_count)
    inner: dict[str, list[tuple[int, int]]] = {}
    for name, before, size in _USED.findall(used):
        part = (number(before), number(size)) if size else (1, axes.get(name, 0))
        inner.setdefault(name, []).append(part)
    if devices is None or not inner.keys() <= axes.keys():
        return None
    dims: list[int] = []
    within: list[int] = []
    for name, size in axes.items():
        for ways, is_used in _parts(size, sorted(inner.get(name, []))):
            within += [len(dims)] if is_used else []
            dims.append(ways)
    if math.prod(dims) != device_count:
        return None
    outer = [at for at in range(len(dims)) if at not in within]
    return _rows(turned(devices, dims, outer + within), math.prod(dims[at] for at in within))


def _parts(size: int, used: list[tuple[int, int]]) -> list[tuple[int, bool]]:
    """Return an axis as parts, major to minor, each with whether it is used.

    >>> _parts(8, [(2, 2)])
    [(2, False), (2, True), (2, False)]
    """
    found, before = [], 1
    for start, part in used:
        if start > before:
            found.append((start // before, False))
        found.append((part, True))
        before = max(1, start * part)
    if before < size:
        found.append((size // before, False))
    return found


def _device_ids(text: str | None, device_count: int) -> Sequence[int] | None:
    """Return the devices of a mesh in its order: as they are counted, listed, or turned."""
    if text is None:
        return range(device_count)
    found = _TURNED.match(text)
    if found:
        return turned(range(device_count), _numbers(found.group(1)), _numbers(found.group(2) or ""))
    listed = _numbers(re.sub(r"[^\d,]", "", text))
    return listed if len(listed) == device_count else None


def turned(
    devices: Sequence[int], dims: Sequence[int], order: Sequence[int]
) -> tuple[int, ...] | None:
    """Return devices laid in a block of sizes, read with its dimensions in another order.

    >>> turned(range(6), (2, 3), (1, 0))
    (0, 3, 1, 4, 2, 5)
    """
    if math.prod(dims) != len(devices) or not all(dims):
        return None
    order = tuple(order) or tuple(range(len(dims)))
    if sorted(order) != list(range(len(dims))):
        return None
    strides = [math.prod(dims[at + 1 :]) for at in range(len(dims))]
    ranges = [range(0, dims[at] * strides[at], strides[at]) for at in order if dims[at] > 1]
    return tuple(devices[sum(place)] for place in itertools.product(*ranges))


def _rows(devices: Sequence[int] | None, ways: int) -> Groups | None:
    if devices is None or ways < 1 or len(devices) % ways:
        return None
    return [tuple(devices[at : at + ways]) for at in range(0, len(devices), ways)]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(number(each) for each in text.split(",") if each)
