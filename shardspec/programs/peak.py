"""Peak memory of a partitioned program on one device: what is alive in which order.

`peak_kernels` says which values are in memory. Here each has a first and a last tick, in the order
of the program, in post-order, and in that of a greedy list scheduler; the least peak counts, as in
XLA. What a loop carries keeps its buffer, an update is in place, an elementwise kernel writes over
an operand that nobody reads any more, and results take the memory of donated parameters.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from shardspec.analysis.memory import tiled_bytes
from shardspec.programs.groups import together
from shardspec.programs.hlo import Instruction, Program
from shardspec.programs.peak_graph import LOOP, Body, Node, Value, graph_of
from shardspec.programs.peak_narrow import narrow
from shardspec.programs.peak_kernels import (
    UPDATE,
    Kernels,
    Platform,
    is_elementwise,
    alone,
    is_product,
)


@dataclass(frozen=True, slots=True)
class Held:
    """A value that takes memory.

    Attributes:
      born: the first tick at which it is in memory, of one clock for the whole program.
      dies: the last.
      why: why it is in memory and not inside a kernel.
    """

    instruction: Instruction | None
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    born: int
    dies: int
    why: str


@dataclass(frozen=True, slots=True)
class Peak:
    """What a program holds.

    Attributes:
      given_bytes: of the parameters, which are there throughout.
      values: all that take memory of their own, parameters excepted.
      at: the tick at which most is alive.
    """

    given_bytes: int
    made_bytes: int
    values: tuple[Held, ...]
    at: int
    end: int

    @property
    def bytes(self) -> int:
        return self.given_bytes + self.made_bytes

    @property
    def alive(self) -> tuple[Held, ...]:
        """Return what is alive at the peak, the largest first."""
        found = (each for each in self.values if each.born <= self.at <= each.dies)
        return tuple(sorted(found, key=lambda each: -each.bytes))


#: The fast memory that values of a TPU may lie in, of a device: VMEM, on v4 CMEM.
#: Source: jax/_src/pallas/mosaic/tpu_info.py, `vmem_capacity_bytes` and `cmem_capacity_bytes`.
FAST_BYTES = {
    "v4": 134_000_000,
    "v5e": 128 << 20,
    "v6e": 128 << 20,
    "v7x": 64 << 20,
}


def peak_of(
    program: Program, platform: Platform, donated: Collection[int] = (), fast_bytes: int = 0
) -> Peak:
    """Return what a partitioned program holds on one device.

    Args:
      donated: the numbers of the parameters whose memory results may take.
      fast_bytes: of the memory beside that of the device, by `FAST_BYTES`.
    """
    main = graph_of(program)
    if main is None:
        return Peak(0, 0, (), 0, 0)
    narrow(main, is_tpu=platform == "tpu")
    kernels = Kernels(platform)
    kernels.decide(main)
    sizes = _Sizes(platform, kernels)
    schedule = _Schedule(kernels, sizes, program, frozenset(donated))
    schedule.plan(main)
    lives: list[tuple[Value, int, int]] = []
    end = schedule.emit(main, 0, lives)
    if fast_bytes:
        lives = _without_fast(lives, sizes, fast_bytes, kernels)
    values = tuple(
        Held(
            value.maker.instruction if value.maker else None,
            value.dtype,
            value.shape,
            sizes.of(value),
            born,
            dies,
            kernels.stored.get(value, ""),
        )
        for value, born, dies in lives
    )
    at, made = _highest((each.born, each.dies, each.bytes) for each in values)
    given = sum(map(sizes.of, main.arguments))
    return Peak(given, made, values, at, end)


def _without_fast(
    lives: list[tuple[Value, int, int]], sizes: _Sizes, capacity: int, kernels: Kernels
) -> list[tuple[Value, int, int]]:
    """Return the lives without those that fit into the fast memory, the shortest of them first.

    What is given back lies in the memory of the device.
    """
    held: dict[int, int] = defaultdict(int)
    kept = []
    for value, born, dies in sorted(lives, key=lambda life: (life[2] - life[1], life[1])):
        size = sizes.of(value)
        can_lie = value.maker is not None and not value.is_yielded
        can_lie = can_lie and size <= capacity // 2
        ticks = range(born, dies + 1)
        if can_lie and all(held[tick] + size <= capacity for tick in ticks):
            for tick in ticks:
                held[tick] += size
        else:
            kept.append((value, born, dies))
    return kept


def _highest(lives: Iterable[tuple[int, int, int]]) -> tuple[int, int]:
    changes: dict[int, int] = defaultdict(int)
    for born, dies, size in lives:
        changes[born] += size
        changes[dies + 1] -= size
    best = held = at = 0
    for tick in sorted(changes):
        held += changes[tick]
        if held > best:
            best, at = held, tick
    return at, best


@dataclass(slots=True)
class _Sizes:
    """The bytes of each value as it is stored."""

    platform: Platform
    kernels: Kernels
    known: dict[Value, int] = field(default_factory=dict)

    def of(self, value: Value) -> int:
        found = self.known.get(value)
        if found is None:
            found = self.known[value] = self._size(value)
        return found

    def _size(self, value: Value) -> int:
        if self.platform != "tpu" or value.bytes == 0:
            return value.bytes
        dtype = value.dtype
        readers = self.kernels.of.get(value, frozenset())
        maker = value.maker
        if (
            dtype == "f32"
            and maker is not None
            and is_elementwise(maker)
            and readers
            and all(map(is_product, readers))
        ):
            dtype = "bf16"
        return tiled_bytes(value.shape, dtype) or value.bytes


@dataclass(slots=True)
class _Unit:
    """An operation that writes memory, or a loop.

    Attributes:
      inner: the most bytes that its bodies hold, or that it needs itself while it runs.
    """

    node: Node
    reads: frozenset[Value]
    made: list[Value]
    inner: int = 0


@dataclass(slots=True)
class _Plan:
    """The order of a body and what is alive in it."""

    units: list[_Unit]
    lives: list[tuple[Value, int, int]]
    peak: int


class _Schedule:
    """Orders the operations of each body."""

    def __init__(
        self, kernels: Kernels, sizes: _Sizes, program: Program, donated: frozenset[int]
    ) -> None:
        self.kernels, self.sizes, self.donated = kernels, sizes, donated
        self.aliases, self.devices = program.aliases, program.partitions
        self.plans: dict[int, _Plan] = {}
        self.takes: dict[Value, Value] = {}

    def plan(self, body: Body) -> int:
        """Choose the order of a body; return the most bytes that it holds beside the outside."""
        units = self._units(body)
        outs = [self.kernels.roots.get(value, frozenset()) for value in body.yields]
        makers = {value: at for at, unit in enumerate(units) for value in unit.made}
        orders: list[list[int]] = [list(range(len(units)))]
        if len(units) > 2:
            held = frozenset().union(*outs)
            orders += [self._greedy(units, makers, held), _post(units, makers, outs)]
        best: _Plan | None = None
        for order in orders:
            found = self._measured(body, [units[at] for at in order], outs)
            if best is None or found.peak < best.peak:
                best = found
        assert best is not None
        self.plans[id(body)] = best
        return best.peak

    def emit(self, body: Body, start: int, lives: list[tuple[Value, int, int]]) -> int:
        """Add the lives of a body's values by one clock; return the tick after it."""
        plan = self.plans[id(body)]
        begins, ends = [], []
        tick = start
        for unit in plan.units:
            begins.append(tick)
            for inner in unit.node.bodies:
                tick = self.emit(inner, tick, lives)
            ends.append(tick)
            tick += 1
        begins.append(tick)
        ends.append(tick)
        for value, born, dies in plan.lives:
            lives.append((value, begins[born] if born >= 0 else start, ends[dies]))
        return tick + 1

    def _units(self, body: Body) -> list[_Unit]:
        units = []
        for node in body.nodes:
            inner = max((self.plan(each) for each in node.bodies), default=0)
            roots = self.kernels.roots
            made = [value for value in node.results if value in roots.get(value, ())]
            if made or node.operation == UPDATE or node.bodies:
                reads = self.kernels.reads(node)
                inner = max(inner, self._masked_bytes(node))
                units.append(_Unit(node, reads, made, inner))
                self._note_takes(node, reads, made)
        return combined(units, self.devices) if self.kernels.platform == "gpu" else self._siblings(units)

    def _siblings(self, units: list[_Unit]) -> list[_Unit]:
        """Make one kernel of elementwise ones of one shape that share what they read."""
        before = _ancestors(units)
        sets: dict[object, list[int]] = {}
        taken: set[int] = set()
        taken_by: dict = {}
        for at, unit in enumerate(units):
            node = unit.node
            if not unit.made or node.operation not in ("slice", "dynamic-slice", "select"):
                continue
            shape = math.prod(unit.made[0].shape)
            if shape < 1 << 16:
                continue
            for value in sorted(unit.reads, key=lambda each: each.serial):
                if at in taken:
                    break
                key = shape, value
                group = sets.get(key)
                if group is None:
                    sets[key] = [at]
                elif group[0] in taken and taken_by[group[0]] != key:
                    sets[key] = [at]
                elif not any(before[at] >> one & 1 for one in group):
                    group.append(at)
                    for one in group:
                        taken.add(one)
                        taken_by[one] = key
        return _joined(units, [each for each in sets.values() if len(each) > 1])

    def _masked_bytes(self, node: Node) -> int:
        """Return what a ragged product takes on a GPU: XLA repeats rows for each group, masked."""
        if node.operation != "ragged-dot" or self.kernels.platform != "gpu":
            return 0
        rows, weights, groups = (each.shape for each in node.operands[:3])
        count = math.prod(groups)
        if len(weights) > len(rows):
            return count * node.operands[0].bytes
        return count * (node.operands[0].bytes + node.operands[1].bytes)

    def _note_takes(self, node: Node, reads: frozenset[Value], made: list[Value]) -> None:
        """Note in whose buffer a value can be written, where nobody reads that any more."""
        if node.operation == LOOP:
            for operand, value in zip(node.operands, node.results, strict=False):
                into = alone(self.kernels.roots.get(operand, frozenset()))
                if into is not None:
                    self.takes[value] = into
            return
        if node.operation == "scatter" and made:
            into = alone(self.kernels.roots.get(node.operands[0], frozenset()))
            if into is not None:
                self.takes[made[0]] = into
        elif is_elementwise(node) or node.operation == "all-reduce":
            for value in made:
                if not self._can_overwrite(value):
                    continue
                same = [
                    each
                    for each in reads
                    if self.sizes.of(each) == self.sizes.of(value)
                    and each not in self.kernels.summed
                ]
                if same:
                    self.takes[value] = min(same, key=lambda each: each.serial)

    def _can_overwrite(self, value: Value) -> bool:
        """Say whether a kernel may write over what it reads: on a GPU, where it sums nothing up."""
        if self.kernels.platform == "tpu" and value.maker is not None:
            return value.maker.operation == "all-reduce"
        readers = self.kernels.of.get(value, frozenset())
        return not any(each.operation == "reduce" for each in readers)

    def _measured(self, body: Body, units: list[_Unit], outs: list[frozenset[Value]]) -> _Plan:
        born: dict[Value, int] = {}
        last: dict[Value, int] = {}
        for at, unit in enumerate(units):
            for value in unit.reads:
                last[value] = at
            for value in unit.made:
                born[value] = at
        end = len(units)
        for out in outs:
            for value in out:
                last[value] = end
        free = self._taken_over(body, born, last, outs)
        self._follow(born, last, free)
        lives = []
        for value, at in born.items():
            if value not in free:
                is_out = body.node is None and last.get(value, at) == end
                lives.append((value, 0 if is_out else at, max(last.get(value, at), at)))
        changes: dict[int, int] = defaultdict(int)
        for value, at, dies in lives:
            changes[at] += self.sizes.of(value)
            changes[dies + 1] -= self.sizes.of(value)
        held = peak = 0
        for at in range(end + 1):
            held += changes.get(at, 0)
            peak = max(peak, held + (units[at].inner if at < end else 0))
        return _Plan(units, lives, peak)

    def _taken_over(
        self,
        body: Body,
        born: dict[Value, int],
        last: dict[Value, int],
        outs: list[frozenset[Value]],
    ) -> set[Value]:
        """Return the values that lie in the buffer of a carry or of a donated parameter."""
        free: set[Value] = set()
        if body.is_loop:
            for argument, out in zip(body.arguments, outs, strict=False):
                for value in out:
                    if value in born and last.get(argument, -1) < born[value] + _in_place(value):
                        free.add(value)
        elif body.node is None:
            for argument, out in zip(self._given_up(body), outs, strict=False):
                for value in out if argument is not None else ():
                    if value in born and last.get(argument, -1) < born[value] + _in_place(value):
                        free.add(value)
        return free

    def _given_up(self, body: Body) -> list[Value | None]:
        """Return for each result of the program the parameter whose memory it takes."""
        taken = {number for at, number in self.aliases.items() if at < len(body.yields)}
        pool: dict[tuple[str, tuple[int, ...]], list[Value]] = defaultdict(list)
        for at, argument in enumerate(body.arguments):
            if at in self.donated and at not in taken:
                pool[argument.dtype, argument.shape].append(argument)
        found: list[Value | None] = []
        for at, value in enumerate(body.yields):
            number = self.aliases.get(at)
            if number is not None and number < len(body.arguments):
                found.append(body.arguments[number])
            else:
                same = pool.get((value.dtype, value.shape))
                found.append(same.pop(0) if same else None)
        return found

    def _follow(self, born: dict[Value, int], last: dict[Value, int], free: set[Value]) -> None:
        """Give a value the buffer of one that dies as it is made."""
        for value in sorted(
            self.takes.keys() & born.keys(), key=lambda each: (-born[each], each.serial)
        ):
            source = self.takes[value]
            if value in free or source not in born or source is value:
                continue
            if last.get(source) == born[value]:
                free.add(value)
                last[source] = max(last.get(value, born[value]), born[value])

    def _greedy(
        self, units: Sequence[_Unit], makers: dict[Value, int], held: frozenset[Value]
    ) -> list[int]:
        """Return the order of a list scheduler: what frees most for what it makes comes first."""
        left: dict[Value, int] = defaultdict(int)
        readers: dict[Value, list[int]] = defaultdict(list)
        need = [0] * len(units)
        for at, unit in enumerate(units):
            for value in unit.reads:
                if value in makers and makers[value] != at:
                    left[value] += 1
                    readers[value].append(at)
                    need[at] += 1

        def gain(at: int) -> int:
            unit = units[at]
            freed = sum(
                self.sizes.of(value)
                for value in unit.reads
                if left.get(value) == 1 and value not in held
            )
            return freed - sum(map(self.sizes.of, unit.made))

        ready = [(-gain(at), at) for at, count in enumerate(need) if count == 0]
        heapq.heapify(ready)
        waiting = {at for _, at in ready}
        order: list[int] = []
        while ready:
            score, at = heapq.heappop(ready)
            if at not in waiting:
                continue
            waiting.discard(at)
            order.append(at)
            for value in units[at].reads:
                if value in left:
                    left[value] -= 1
                    if left[value] == 1:
                        for other in readers[value]:
                            if other in waiting:
                                heapq.heappush(ready, (-gain(other), other))
            for value in units[at].made:
                for other in readers.get(value, ()):
                    need[other] -= 1
                    if need[other] == 0:
                        waiting.add(other)
                        heapq.heappush(ready, (-gain(other), other))
        return order if len(order) == len(units) else list(range(len(units)))


#: XLA puts collectives of a GPU together up to so many bytes (`kDefaultCollectiveCombineThreshold`).
_COMBINED_BYTES = 30 << 20


def combined(units: list[_Unit], devices: int) -> list[_Unit]:
    """Put gathers and sums over the same devices together, where none needs another."""
    before = _ancestors(units)
    sets: dict[object, list[list[int]]] = defaultdict(list)
    for at, unit in enumerate(units):
        size = sum(value.bytes for value in unit.made)
        if unit.node.operation not in _COMBINES or not 0 < size <= _COMBINED_BYTES:
            continue
        dtype = unit.made[0].dtype
        key = unit.node.operation, together(unit.node.instruction, devices), dtype
        for each in sets[key][-1:]:
            total = sum(value.bytes for one in each for value in units[one].made)
            if total + size <= _COMBINED_BYTES and not any(before[at] >> one & 1 for one in each):
                each.append(at)
                break
        else:
            sets[key].append([at])
    return _joined(units, [each for found in sets.values() for each in found if len(each) > 1])


def _ancestors(units: list[_Unit]) -> list[int]:
    """Return for each unit which ones it needs, as bits."""
    makers = {value: at for at, unit in enumerate(units) for value in unit.made}
    before = [0] * len(units)
    for at, unit in enumerate(units):
        for value in unit.reads:
            maker = makers.get(value)
            if maker is not None and maker < at:
                before[at] |= before[maker] | 1 << maker
    return before


def _joined(units: list[_Unit], sets: list[list[int]]) -> list[_Unit]:
    """Return units with those of each set as one, in an order in which all can run."""
    first = {at: each[0] for each in sets for at in each}
    whole: dict[int, _Unit] = {}
    for at, unit in enumerate(units):
        key = first.get(at, at)
        if key in whole:
            one = whole[key]
            one.reads |= unit.reads
            one.made += unit.made
        else:
            whole[key] = _Unit(unit.node, unit.reads, [*unit.made], unit.inner)
    found = list(whole.values())
    makers = {value: at for at, unit in enumerate(found) for value in unit.made}
    return [found[at] for at in _visited(found, makers, [], sorted)]


def _in_place(value: Value) -> bool:
    """Say whether a value can be written where an operand of the same kernel is."""
    return value.maker is None or is_elementwise(value.maker) or value.maker.operation in _WRITES


_COMBINES = frozenset(("all-gather", "all-reduce", "reduce-scatter"))
_SENDS = frozenset(
    ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
)
_WRITES = frozenset(("all-reduce", "scatter", UPDATE))


def _post(
    units: Sequence[_Unit], makers: dict[Value, int], outs: list[frozenset[Value]]
) -> list[int]:
    """Return the order in which each operation comes right after what it needs."""
    return _visited(units, makers, outs, lambda found: sorted(found))


def _visited(
    units: Sequence[_Unit],
    makers: dict[Value, int],
    outs: list[frozenset[Value]],
    ordered: Callable[[set[int]], list[int]],
) -> list[int]:
    order: list[int] = []
    seen: set[int] = set()

    def needs(at: int) -> list[int]:
        found = {makers[value] for value in units[at].reads if value in makers}
        return ordered(found - {at})

    firsts = [makers[value] for out in outs for value in out if value in makers]
    effects = [at for at, unit in enumerate(units) if not unit.made]
    for first in dict.fromkeys((*effects, *ordered(set(firsts)), *range(len(units)))):
        if first in seen:
            continue
        seen.add(first)
        stack = [(first, iter(needs(first)))]
        while stack:
            at, waiting = stack[-1]
            for other in waiting:
                if other not in seen:
                    seen.add(other)
                    stack.append((other, iter(needs(other))))
                    break
            else:
                order.append(at)
                stack.pop()
    return order
