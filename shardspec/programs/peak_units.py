"""Kernels of one body of a program: which XLA makes one of, and in which orders they may run.

A unit writes values to memory, or runs a loop. XLA joins small collectives over the same devices,
and slices of one shape on a TPU. Of the orders that its schedulers try there are two here
beside that of the program: each operation right after what it needs (post-order), and first what
frees most memory for what it makes (a list scheduler).
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from shardspec.programs.peak_graph import Node, Value
from shardspec.programs.peak_kernels import is_elementwise

_SLICES = frozenset(("slice", "dynamic-slice", "select"))
#: Chips whose compiler gathers weights first. v4 and v6e gather each right before its use.
GATHERS_FIRST = frozenset(("v5e", "v5p"))
#: What leads from parameters to a gathered weight, and computes nothing.
_MOVES = frozenset(
    ("all-gather", "collective-permute", "convert", "copy", "dynamic-slice", "slice")
)
#: A product hides the gather of its weights where it makes more than such a part of their bytes.
_HIDES = 16
#: Kernels that are smaller than this are not worth the search.
_LEAST_ELEMENTS = 1 << 16
#: Of more kernels in one body nothing is joined.
_MOST_UNITS = 20_000


@dataclass(slots=True)
class Unit:
    """An operation that writes memory or runs a loop, or several that XLA joins.

    Attributes:
      reads: what has to be in memory for it.
      made: what it writes.
      inner: the most bytes that its bodies hold.
    """

    node: Node
    reads: frozenset[Value]
    made: list[Value]
    inner: int = 0


#: Which unit makes a value.
Makers = dict[Value, int]


def makers_of(units: Sequence[Unit]) -> Makers:
    """Return which unit makes each value."""
    return {value: at for at, unit in enumerate(units) for value in unit.made}


def needs_of(units: Sequence[Unit]) -> list[tuple[int, ...]]:
    """Return which other units each one needs, in order."""
    makers = makers_of(units)
    made = ({makers[value] for value in unit.reads if value in makers} for unit in units)
    return [tuple(sorted(found - {at})) for at, found in enumerate(made)]


def joined_collectives(
    units: list[Unit],
    key_of: Callable[[Unit], Hashable],
    most_bytes: int,
    *,
    is_backward: bool = False,
) -> list[Unit]:
    """Join collectives of one key, where none needs another, as XLA's combiners do.

    Args:
      key_of: what those have in common that are joined; None of what is joined with nothing.
      most_bytes: of the results of those that become one.
      is_backward: whether it goes over them from the last to the first.
    """
    if len(units) > _MOST_UNITS:
        return units
    before = _ancestors(units)
    sets: dict[Hashable, list[_Joint]] = defaultdict(list)
    for at in range(len(units))[:: -1 if is_backward else 1]:
        key, size = key_of(units[at]), sum(value.bytes for value in units[at].made)
        if key is None or not 0 < size <= most_bytes:
            continue
        found = sets[key]
        if not found or found[-1].bytes + size > most_bytes or found[-1].needs(at, before):
            found.append(_Joint([], 0, 0))
        found[-1].add(at, size)
    return _joined(units, [sorted(each.members) for found in sets.values() for each in found])


def joined_readers(
    units: list[Unit], size_of: Callable[[Node], int], needed: str = ""
) -> list[Unit]:
    """Join kernels over as many elements that read the same, where none needs another.

    Args:
      size_of: how many elements an operation goes over; 0 of one that is not joined.
      needed: an operation that one of them has to be.
    """
    if len(units) > _MOST_UNITS:
        return units
    before = _ancestors(units)
    sharing: dict[tuple[int, Value], list[int]] = defaultdict(list)
    for at, unit in enumerate(units):
        size = size_of(unit.node) if unit.made else 0
        for value in unit.reads if size >= _LEAST_ELEMENTS else ():
            sharing[size, value].append(at)
    taken: set[int] = set()
    sets = []
    for _, found in sorted(sharing.items(), key=lambda item: (item[1], item[0][1].serial)):
        joint = _Joint([], 0, 0)
        for at in found:
            if at not in taken and not joint.bits & before[at]:
                joint.add(at, 0)
        joint_operations = {units[at].node.operation for at in joint.members}
        if len(joint.members) > 1 and (not needed or needed in joint_operations):
            taken.update(joint.members)
            sets.append(joint.members)
    return _joined(units, sets)


def joined_makers(units: list[Unit], pairs: Sequence[tuple[Value, Value]]) -> list[Unit]:
    """Join the kernels that make the values of each pair, where none needs another in between."""
    makers = makers_of(units)
    of: dict[int, set[int]] = {}
    for pair in pairs:
        members = {makers[value] for value in pair if value in makers}
        members = members.union(*(of[at] for at in members if at in of))
        of.update(dict.fromkeys(members, members))
    sets = {min(each): sorted(each) for each in of.values()}
    return _joined(units, [*sets.values()])


def behind_gathered(units: list[Unit], gathered: Set[Value]) -> list[Unit]:
    """Let what else reads an array and its sums come behind what is gathered of it for a sum.

    XLA:GPU makes both in one kernel: of logits the sum of each row, in its logarithm, and that of
    the label less this. The gradient of the logits needs the one, and so comes behind both.
    """
    found = [at for at, unit in enumerate(units) if not gathered.isdisjoint(unit.made)]
    if not found or len(units) * len(found) > _MOST_UNITS:
        return units
    before = _ancestors(units)
    for at in found:
        makers = ((value, value.maker) for value in units[at].reads)
        sums = {value for value, maker in makers if maker and maker.operation == "reduce"}
        rows = max((math.prod(value.shape) for value in units[at].made), default=0)
        arrays = {v for v in units[at].reads - sums if math.prod(v.shape) > rows}
        for other, unit in enumerate(units):
            is_needed = other in found or before[at] >> other & 1
            if not is_needed and unit.reads & sums and unit.reads & arrays:
                unit.reads |= gathered & {*units[at].made}
    return [units[at] for at in post_order(units, [])]


def sliced(node: Node) -> int:
    """Return the elements of a slice or a selection, which libtpu joins."""
    return math.prod(node.results[0].shape) if node.operation in _SLICES else 0


def siblings(node: Node) -> int:
    """Return the elements that a sum or an elementwise operation goes over: XLA:GPU joins these."""
    if node.operation == "reduce":
        return max(math.prod(each.shape) for each in node.operands)
    return math.prod(node.results[0].shape) if is_elementwise(node) else 0


@dataclass(slots=True)
class _Joint:
    """Units that become one: by number, as bits, and how many bytes they make."""

    members: list[int]
    bits: int
    bytes: int

    def add(self, at: int, size: int) -> None:
        """Add a unit."""
        self.members.append(at)
        self.bits |= 1 << at
        self.bytes += size

    def needs(self, at: int, before: Sequence[int]) -> bool:
        """Say whether a unit needs one of these or one of these needs it, as `_ancestors` says."""
        return bool(self.bits & before[at]) or any(before[one] >> at & 1 for one in self.members)


def _ancestors(units: list[Unit]) -> list[int]:
    """Return for each unit which ones it needs, as bits."""
    makers = makers_of(units)
    before = [0] * len(units)
    for at, unit in enumerate(units):
        for value in unit.reads:
            maker = makers.get(value, at)
            if maker < at:
                before[at] |= before[maker] | 1 << maker
    return before


def _joined(units: list[Unit], sets: list[list[int]]) -> list[Unit]:
    """Return units with those of each set as one, in an order in which all can run.

    A set that needs another in a circle is not joined.
    """
    first = [*range(len(units))]
    _join([each for each in sets if len(each) > 1], first, needs_of(units), range(len(units)))
    whole: dict[int, Unit] = {}
    for at, unit in enumerate(units):
        one = whole.get(first[at])
        if one is None:
            whole[first[at]] = Unit(unit.node, unit.reads, [*unit.made], unit.inner)
        else:
            one.reads |= unit.reads
            one.made += unit.made
    found = list(whole.values())
    return [found[at] for at in post_order(found, [])]


def _join(
    sets: list[list[int]], first: list[int], needs: Sequence[tuple[int, ...]], among: Iterable[int]
) -> None:
    """Note the first of its set for each unit; of sets in a circle, of each half that has none.

    Args:
      among: the units that circles of these sets lead through.
    """
    for each in sets:
        for at in each:
            first[at] = each[0]
    for circle in _circles(first, needs, among) if sets else ():
        inside = [at for at in among if first[at] in circle]
        own = [each for each in sets if each[0] in circle]
        for each in own:
            for at in each:
                first[at] = at
        if len(own) > 1:
            _join(own[: len(own) // 2], first, needs, inside)
            _join(own[len(own) // 2 :], first, needs, inside)


def _circles(
    first: Sequence[int], needs: Sequence[tuple[int, ...]], among: Iterable[int]
) -> list[set[int]]:
    """Return the joined units that need each other in a circle, each by the first of it.

    These are the strongly connected components of more than one, as Kosaraju finds them.
    """
    needed: dict[int, set[int]] = {first[at]: set() for at in among}
    for at in among:
        needed[first[at]].update(first[other] for other in needs[at] if first[other] in needed)
    readers: dict[int, list[int]] = {at: [] for at in needed}
    for at, others in needed.items():
        for other in others:
            readers[other].append(at)
    seen: set[int] = set()
    last = reversed(_depth_first(needed, needed, set()))
    found = [{*_depth_first(readers, (at,), seen)} for at in last if at not in seen]
    return [each for each in found if len(each) > 1]


def post_order(units: Sequence[Unit], outs: Sequence[frozenset[Value]]) -> list[int]:
    """Return the order in which each operation comes right after what it needs.

    Args:
      outs: what has to be in memory for each result, in their order.
    """
    return _deep(units, needs_of(units), sorted(_makers_of_outs(units, outs)))


def deep_order(
    units: Sequence[Unit], outs: Sequence[frozenset[Value]], size: Callable[[Value], int]
) -> list[int]:
    """Return the order of XLA's depth-first scheduler: of what is needed, the largest comes first.

    That is what most other operations read, and then what most bytes are made for.
    Source: xla/hlo/transforms/simplifiers/hlo_memory_scheduler.cc, `DFSMemoryScheduler`.
    """
    needs = needs_of(units)
    readers = [0] * len(units)
    for other in itertools.chain.from_iterable(needs):
        readers[other] += 1
    weights: list[tuple[int, int, int]] = []
    made = 0
    for at, needed in enumerate(needs):
        own = sum(map(size, units[at].made))
        made += own
        before = [weights[other] for other in needed if other < at]
        users = max(0, readers[at] - 1) - sum(each[0] for each in before)
        total = own - sum(each[1] for each in before)
        weights.append((-min(users, len(units)), -min(total, made), at))
    inside = [tuple(sorted(needed, key=weights.__getitem__)) for needed in needs]
    return _deep(units, inside, sorted(_makers_of_outs(units, outs), key=weights.__getitem__))


def _makers_of_outs(units: Sequence[Unit], outs: Sequence[frozenset[Value]]) -> set[int]:
    makers = makers_of(units)
    return {makers[value] for out in outs for value in out if value in makers}


def _deep(
    units: Sequence[Unit], needs: Sequence[tuple[int, ...]], firsts: Iterable[int]
) -> list[int]:
    """Return units depth first, each behind what it needs, in that order."""
    effects = (at for at, unit in enumerate(units) if not unit.made)
    return _depth_first(needs, (*effects, *firsts, *range(len(units))), set())


def _depth_first(
    needs: Sequence[Iterable[int]] | Mapping[int, Iterable[int]],
    firsts: Iterable[int],
    seen: set[int],
) -> list[int]:
    """Return numbers depth first, each behind what it needs, but not what was seen before."""
    order: list[int] = []
    for first in dict.fromkeys(firsts):
        if first in seen:
            continue
        seen.add(first)
        stack = [(first, iter(needs[first]))]
        while stack:
            at, waiting = stack[-1]
            found = next((other for other in waiting if other not in seen), None)
            if found is None:
                order.append(at)
                stack.pop()
            else:
                seen.add(found)
                stack.append((found, iter(needs[found])))
    return order


def gathers_first(units: Sequence[Unit], orders: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return orders that gather weights first if little is computed with them.

    The collective cannot be hidden behind a few tokens: a decode step gathers all its weights, one
    after another, before the first layer, or else behind the loop before.
    Source: libtpu 0.0.52, decode steps of two to four layers.
    """
    needs = needs_of(units)
    most: dict[Value, int] = defaultdict(int)
    for unit in units:
        made = sum(value.bytes for value in unit.made)
        for value in unit.reads:
            most[value] = max(most[value], made)
    moves: list[bool] = []
    for unit, needed in zip(units, needs, strict=True):
        moves.append(unit.node.operation in _MOVES and all(moves[at] for at in needed))
    early: set[int] = set()
    for at in reversed(range(len(units))):
        is_slow = all(most[value] * _HIDES <= value.bytes for value in units[at].made)
        if at in early or (units[at].node.operation == "all-gather" and moves[at] and is_slow):
            early |= {at, *needs[at]}
    return [_moved_first(units, order, early) for order in orders]


def _moved_first(units: Sequence[Unit], order: Sequence[int], early: Set[int]) -> list[int]:
    """Return an order with some units first, each behind the loop that it came behind."""
    loops = itertools.accumulate(bool(units[at].node.bodies) for at in order)
    parts = dict(zip(order, loops, strict=True))
    return sorted(order, key=lambda at: (parts[at], not units[at].node.bodies, at not in early))


def list_order(
    units: Sequence[Unit], held: frozenset[Value], size: Callable[[Value], int]
) -> list[int]:
    """Return the order of a list scheduler: what frees most for what it makes comes first.

    Args:
      held: what stays in memory whoever has read it.
    """
    return _List(units, held, size).order()


class _List:
    """A list scheduler: what is ready, by what it frees."""

    def __init__(
        self, units: Sequence[Unit], held: frozenset[Value], size: Callable[[Value], int]
    ) -> None:
        self.units, self.held, self.size = units, held, size
        self.left: dict[Value, int] = defaultdict(int)
        self.readers: dict[Value, list[int]] = defaultdict(list)
        self.need = [0] * len(units)
        makers = makers_of(units)
        for at, unit in enumerate(units):
            for value in unit.reads:
                if makers.get(value, at) != at:
                    self.left[value] += 1
                    self.readers[value].append(at)
                    self.need[at] += 1

    def order(self) -> list[int]:
        """Return the order; that of the program where there is none."""
        waiting = {at for at, count in enumerate(self.need) if count == 0}
        ready = [(-self._gain(at), at) for at in waiting]
        heapq.heapify(ready)
        found: list[int] = []
        while ready:
            _, at = heapq.heappop(ready)
            if at in waiting:
                waiting.discard(at)
                found.append(at)
                for other in self._changed(at, waiting):
                    heapq.heappush(ready, (-self._gain(other), other))
        is_whole = len(found) == len(self.units)
        return found if is_whole else list(range(len(self.units)))

    def _changed(self, at: int, waiting: set[int]) -> list[int]:
        """Return what is ready now, and what now frees more."""
        found = []
        for value in self.units[at].reads:
            if value in self.left:
                self.left[value] -= 1
                if self.left[value] == 1:
                    found += [other for other in self.readers[value] if other in waiting]
        for value in self.units[at].made:
            for other in self.readers.get(value, ()):
                self.need[other] -= 1
                if self.need[other] == 0:
                    waiting.add(other)
                    found.append(other)
        return found

    def _gain(self, at: int) -> int:
        unit = self.units[at]
        freed = (v for v in unit.reads if self.left.get(v) == 1 and v not in self.held)
        return sum(map(self.size, freed)) - sum(map(self.size, unit.made))
