"""The order in which kernels run where collectives are hidden: GPUs from Hopper on, and TPU v5e.

XLA's latency hiding scheduler goes over the kernels of a body from the last to the first. A
collective is two of them, its end and its start. One is on its way at a time on GPUs, and one for
each link on v5e. The end is placed as soon as nobody waits for it any more. Then kernels follow
that take as long as the collective does, and then its start. So a gather starts early and its
result is in memory all that time, and products of gradients come late, behind the sums that they
hide.

Of what is ready the scheduler takes, in this order: the end of a collective; what waits for
nothing; what is behind most collectives; the kernel that takes about as long as is left to hide;
what reads a collective; what makes most others ready; what was last in the order before. On v5e
gathers and permutes are hidden alone, and what the step only returns may be what hides them.
Source: xla/service/latency_hiding_scheduler.cc, `ReadySetLt`, and
xla/service/gpu/model/sol_latency_estimator.cc for what each takes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from shardspec.ir.operations import CollectiveKind
from shardspec.programs.members import together
from shardspec.programs.operations import flops_of
from shardspec.programs.peak_graph import Node, Value, every_node
from shardspec.programs.peak_kernels import is_product
from shardspec.programs.peak_units import Unit, needs_of

EVERY = frozenset(map(str, CollectiveKind))
#: The share of the peak that products reach in XLA's own tables.
_REACHED = 0.6


@dataclass(frozen=True, slots=True)
class Speeds:
    """What a device does in a second, as the scheduler estimates it.

    Attributes:
      flops: of products.
      memory: bytes to and from the memory of the device.
      link: bytes to another device of the node.
      network: bytes to a device of another node.
      node: devices of a node, or of a slice of TPUs.
      hides: the collectives during which a device computes.
      send_s: what a collective takes at least, in seconds.
      kernel_s: what a kernel takes at least.
      at_once: how many collectives are on their way at a time.
      has_joined: whether a kernel takes the time of other products that it computes, too.
    """

    flops: float
    memory: float
    link: float
    network: float
    node: int
    hides: frozenset[str] = EVERY
    send_s: float = 20e-6
    kernel_s: float = 2e-6
    at_once: int = 1
    has_joined: bool = False


@dataclass(frozen=True, slots=True)
class Hidden:
    """An order of kernels in which some hide collectives.

    Attributes:
      order: the units by their numbers.
      starts: where in the order each collective starts: before that place.
    """

    order: tuple[int, ...]
    starts: dict[int, int]


def hidden(units: Sequence[Unit], speeds: Speeds, devices: int) -> Hidden:
    """Return the order in which a device runs a body, given one in which its units can run."""
    return _Scheduler(units, speeds, devices).run()


def sends(unit: Unit, hides: frozenset[str]) -> bool:
    """Say whether a unit is a collective of some kinds, or runs one inside."""
    if unit.node.operation in hides:
        return True
    return any(each.operation in hides for body in unit.node.bodies for each in every_node(body))


class _Scheduler:
    """The units that are ready, from the last of the program to the first."""

    def __init__(self, units: Sequence[Unit], speeds: Speeds, devices: int) -> None:
        self.units, self.speeds, self.devices = units, speeds, devices
        self.needs = needs_of(units)
        #: Who reads each unit and is not placed, and how many units nobody else reads than each.
        self.readers: list[set[int]] = [set() for _ in units]
        for at, needs in enumerate(self.needs):
            for other in needs:
                self.readers[other].add(at)
        self.unlocks = [0] * len(units)
        for readers in self.readers:
            self._note_last(readers)
        self.is_send = [unit.node.operation in speeds.hides for unit in units]
        self.has_sends = [sends(unit, speeds.hides) for unit in units]
        self.depth = self._depths()
        self.reads_send = [any(self.is_send[other] for other in found) for found in self.needs]
        self.read = frozenset[Value]().union(*(unit.reads for unit in units))
        #: Operations that are joined, and are made of no product that is: they are walked once.
        self.without_products = set[Node]()
        self.cost = [self._seconds(unit) for unit in units]
        #: Collectives whose end can be placed, and other kernels.
        self.ends: list[int] = []
        self.ready: list[int] = []
        #: The collectives whose starts are not placed yet, and when they may be, the first of them
        #: last.
        self.flying: list[tuple[float, int]] = []
        self.now = 0.0
        #: What is placed, from the last to the first, and whether it is a start.
        self.placed: list[tuple[int, bool]] = []

    def run(self) -> Hidden:
        """Return the order."""
        for at, readers in enumerate(self.readers):
            if not readers:
                self._wait(at)
        while self.ends or self.ready or self.flying:
            if self.ends and len(self.flying) < self.speeds.at_once:
                self._end(max(self.ends, key=lambda at: (self.depth[at], at)))
            else:
                self._next()
        self.placed.reverse()
        order = tuple(at for at, is_start in self.placed if not is_start)
        starts, count = {}, 0
        for at, is_start in self.placed:
            if is_start:
                starts[at] = count
            else:
                count += 1
        return Hidden(order, starts)

    def _depths(self) -> list[int]:
        """Return how many collectives are on the way to each unit."""
        found = [0] * len(self.units)
        for at, needs in enumerate(self.needs):
            found[at] = max((found[other] + self.is_send[other] for other in needs), default=0)
        return found

    def _end(self, at: int) -> None:
        self.ends.remove(at)
        self.flying.append((self.now + self._wire_seconds(self.units[at]), at))
        self.flying.sort(reverse=True)
        self.placed.append((at, False))

    def _next(self) -> None:
        """Place the best kernel that is ready, or the start of a collective."""
        free = [at for at in self.ready if not self.flying or not self.has_sends[at]]
        best = max(free, key=self._key, default=None)
        if self.flying and (best is None or self._is_start_first(self.flying[-1][1], best)):
            due, at = self.flying.pop()
            self.now = max(self.now, due)
            self.placed.append((at, True))
        else:
            assert best is not None, "a kernel is ready, or a collective is on its way"
            at = best
            self.ready.remove(at)
            self.now += self.cost[at]
            self.placed.append((at, False))
        for other in self.needs[at]:
            self.readers[other].discard(at)
            self._note_last(self.readers[other])
            if not self.readers[other]:
                self._wait(other)

    def _note_last(self, readers: Collection[int]) -> None:
        if len(readers) == 1:
            self.unlocks[next(iter(readers))] += 1

    def _wait(self, at: int) -> None:
        (self.ends if self.is_send[at] else self.ready).append(at)

    def _key(self, at: int) -> tuple[float, ...]:
        return self.depth[at], self._fit(at), self.reads_send[at], self.unlocks[at], at

    def _fit(self, at: int) -> float:
        """Return how close what a kernel takes is to what is left to hide."""
        left = self.flying[-1][0] - self.now if self.flying else -1.0
        return -abs(left - self.cost[at]) if left >= 0 else 0.0

    def _is_start_first(self, start: int, other: int) -> bool:
        if self.flying[-1][0] > self.now:
            return False  # the other hides some of it
        if self.ends:
            return True  # another collective waits for this one
        if self.depth[start] == 0 or self.depth[start] != self.depth[other]:
            return 0 < self.depth[start] > self.depth[other]
        own = self.reads_send[start], self.unlocks[start], start
        return own > (self.reads_send[other], self.unlocks[other], other)

    def _seconds(self, unit: Unit) -> float:
        """Return what a kernel takes."""
        moved = sum(each.bytes for values in (unit.reads, unit.made) for each in values)
        flops = 0
        for node in filter(is_product, self._joined(unit)):
            shapes = [each.shape for each in node.operands]
            flops += flops_of(node.instruction, shapes, node.results[0].shape)
        most = max(moved / self.speeds.memory, flops / (self.speeds.flops * _REACHED))
        return self.speeds.kernel_s + most

    def _joined(self, unit: Unit) -> Collection[Node]:
        """Return the operations of a kernel: its own, and those by which it makes what it reads."""
        found, waiting = {unit.node: None}, [unit.node] if self.speeds.has_joined else []
        while waiting:
            for value in waiting.pop().operands:
                inner = None if value in self.read else value.maker
                if inner is None or inner in found or inner in self.without_products:
                    continue
                found[inner] = None
                waiting.append(inner)
        if not any(map(is_product, found)):
            self.without_products.update(found)
        return found

    def _wire_seconds(self, unit: Unit) -> float:
        """Return what a collective takes."""
        turns = 2 if unit.node.operation == "all-reduce" else 1
        size = turns * sum(each.bytes for each in unit.made)
        groups = together(unit.node.instruction, self.devices)
        node = self.speeds.node
        is_inside = isinstance(groups, frozenset) and all(
            len({device // node for device in group}) == 1 for group in groups
        )
        speed = self.speeds.link if is_inside else self.speeds.network
        return self.speeds.send_s + size / speed
