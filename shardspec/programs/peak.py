"""Peak memory of a partitioned program on one device: what is alive, in which order.

XLA's partitioner runs without the target's compiler; fusion, scheduling and buffer assignment do
not. They are modelled: `peak_kernels` says which values are in memory and why, `peak_units` in
which orders kernels may run. Here each value gets a first and a last tick, and the order of each
body is the one with the least peak, as in XLA. What a loop carries keeps its buffer, an update is
in place, and results take the memory of donated parameters where these are dead by then; a result
that takes none has memory of its own throughout.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from math import prod
from types import MappingProxyType

from shardspec.analysis.memory import tiled_bytes
from shardspec.analysis.step_memory import highest
from shardspec.diagnostics.words import grouped
from shardspec.ir.spec import Shape
from shardspec.programs.hlo import Instruction, Program
from shardspec.programs.members import together
from shardspec.programs.peak_again import Rates
from shardspec.programs.peak_gates import Gates
from shardspec.programs.peak_graph import LOOP, UPDATE, Body, Node, Value, graph_of
from shardspec.programs.peak_heap import gaps_between
from shardspec.programs.peak_hiding import Speeds, hidden, sends
from shardspec.programs.peak_kernels import (
    Kernels,
    Platform,
    alone,
    is_elementwise,
    is_product,
)
from shardspec.programs.peak_layouts import turn
from shardspec.programs.peak_narrow import narrow
from shardspec.programs.peak_orders import reorder
from shardspec.programs.peak_results import buffers_of, copy_gathered, relaid_results
from shardspec.programs.peak_rings import PutsOff, early, passed_on, put_off, turned
from shardspec.programs.peak_scores import PLAIN, Softmax, attended, sizes
from shardspec.programs.peak_units import (
    Unit,
    behind_gathered,
    deep_order,
    gathers_first,
    joined_collectives,
    joined_makers,
    joined_readers,
    list_order,
    makers_of,
    post_order,
    siblings,
    sliced,
)

#: The fast memory of a TPU device in which values may be instead: VMEM without what kernels keep of
#: it, on v4 CMEM. On v5p each of the two cores of a device has its own.
#: Source: what libtpu 0.0.52 reports for 40 programs: up to all of it on v4 and v5e, with values of
#: up to two thirds of it. Of v7x, jax/_src/pallas/mosaic/tpu_info.py, without a quarter.
FAST_BYTES = {"v4": 128 << 20, "v5e": 112 << 20, "v6e": 96 << 20, "v7x": 48 << 20}
#: Operations that can write their result where an operand is, beside elementwise ones.
_OVERWRITES = frozenset(("all-reduce", "scatter", UPDATE))

#: The collectives that XLA joins, and up to how many bytes: on GPUs
#: `xla_gpu_all_gather_combine_threshold_bytes` and its like. Source for TPUs: what libtpu 0.0.52
#: joins in 20 programs of v4, v5e, v5p and v6e, up to just that and never 128 MiB.
_JOINED = {"gpu": ("all-gather", "all-reduce", "reduce-scatter"), "tpu": ("all-reduce",)}
_JOINED_BYTES = {"gpu": 30 << 20, "tpu": 120 << 20}
#: So many units are looked at to join kernels with products; a text may be anything.
_MOST_JOINED = 4_000_000
_NO_SHAPES: Mapping[int, Shape] = MappingProxyType({})
_NO_STARTS: Mapping[Value, int] = MappingProxyType({})
_GAPS = "gaps between values"
#: A value, and the first and the last tick at which it is in memory.
Life = tuple[Value, int, int]


@dataclass(frozen=True, slots=True)
class Device:
    """What of a device decides what a program holds in its memory.

    Attributes:
      fast_bytes: of memory beside that of the device, by `FAST_BYTES`.
      speeds: where its compiler hides collectives behind kernels.
      rates: of a GPU, what it computes while it moves a byte.
      softmax: by `SOFTMAX`.
      gates: by `GATES`.
      gathers_first: whether its compiler gathers weights before a step that computes little.
      puts_off: which gradients its compiler puts off, by `PUTS_OFF`.
      usable_bytes: what its compiler hands out of its memory; None where that is not known.
    """

    platform: Platform
    fast_bytes: int = 0
    speeds: Speeds | None = None
    usable_bytes: int | None = None
    rates: Rates | None = None
    softmax: Softmax = PLAIN
    gates: Gates = "none"
    gathers_first: bool = False
    puts_off: PutsOff = "none"


@dataclass(frozen=True, slots=True)
class Held:
    """A value that takes memory.

    Attributes:
      instruction: what makes it; None of what a loop is given.
      bytes: on one device, with the padding of tiles.
      born: the first tick at which it is in memory, of one clock for the whole program.
      dies: the last.
      why: why it is in memory and not inside a kernel: `exponential, read by 3 kernels`.
      is_attended: whether it is of the scores of attention, which a flash kernel never holds whole.
    """

    instruction: Instruction | None
    dtype: str
    shape: Shape
    bytes: int
    born: int
    dies: int
    why: str
    is_attended: bool = False


@dataclass(frozen=True, slots=True)
class Peak:
    """What a program holds on one device.

    Attributes:
      given_bytes: of the parameters, which are in memory throughout.
      made_bytes: of the values that are in memory at the peak, and the gaps between them.
      values: all that take memory of their own, parameters excepted, and the gaps.
      at: the tick at which most is alive.
      end: the last tick.
    """

    given_bytes: int
    made_bytes: int
    values: tuple[Held, ...] = ()
    at: int = 0
    end: int = 0

    @property
    def bytes(self) -> int:
        """Return the most bytes that the program holds."""
        return self.given_bytes + self.made_bytes

    @property
    def gap_bytes(self) -> int:
        """Return the bytes of them that are gaps between values."""
        return sum(each.bytes for each in self.values if each.why == _GAPS)

    @property
    def alive(self) -> tuple[Held, ...]:
        """Return what is alive at the peak, the largest first."""
        found = (each for each in self.values if each.born <= self.at <= each.dies)
        return tuple(sorted(found, key=lambda each: -each.bytes))


def peak_of(
    program: Program,
    device: Device,
    donated: Collection[int] = (),
    free: Mapping[int, Shape] = _NO_SHAPES,
) -> Peak:
    """Return what a partitioned program holds on one device.

    Args:
      donated: the numbers of the parameters whose memory results may take, beside those that the
        program itself gives to a result.
      free: the shapes of the whole arrays of results whose sharding the caller does not state, by
        their numbers.

    Invariants:
      given: the peak is never less than the parameters take.
    """
    main = graph_of(program)
    if main is None:
        return Peak(0, 0)
    is_tpu = device.platform == "tpu"
    if not is_tpu:
        turn(main)
        reorder(main)
    narrow(main, is_tpu=is_tpu)
    relaid = relaid_results(main, program, free) if is_tpu else {}
    buffers = buffers_of(main, program.aliases, donated, relaid)
    if is_tpu:
        copy_gathered(main, buffers)
    first = _scheduled(main, program, device, buffers, relaid)
    peak = _peak(main, *first)
    if device.usable_bytes is None or peak.bytes <= device.usable_bytes:
        return peak
    if is_tpu and device.speeds is not None:  # without room, nothing is moved to hide collectives
        return peak_of(program, replace(device, speeds=None), donated, free)
    short = _scheduled(main, program, device, buffers, relaid, is_short=True)
    saved = first[0].saved(main) if is_tpu else None
    peaks = (_peak(main, *each, saved=saved) for each in (first, short))
    return min(peaks, key=lambda each: each.bytes)


def _scheduled(
    main: Body,
    program: Program,
    device: Device,
    buffers: Sequence[Value | None],
    relaid: Mapping[Value, int],
    *,
    is_short: bool = False,
) -> tuple[_Schedule, list[Life], int]:
    """Return the schedule of a program, what takes memory in it, and its last tick."""
    how = device.platform, device.rates, device.softmax, device.gates, is_short
    kernels = Kernels(*how, turned=turned(main))
    sizes = _Sizes(kernels, {**relaid, **passed_on(main)})
    kernels.decide(main)
    schedule = _Schedule(kernels, sizes, buffers, program, device)
    schedule.plan(main)
    lives: list[Life] = []
    end = schedule.emit(main, 0, lives)
    if device.fast_bytes:
        lives = _without_fast(lives, sizes, device.fast_bytes, schedule.copied(main))
    return schedule, lives, end


def _peak(
    main: Body, schedule: _Schedule, lives: Sequence[Life], end: int, saved: Value | None = None
) -> Peak:
    size = schedule.sizes.of
    left = (life for life in lives if life[0] is not saved)
    scores = attended(main, schedule.kernels.fuses)
    values = [_held(life, schedule.kernels, size(life[0]), scores) for life in left]
    at, made = highest((each.born, each.dies, each.bytes) for each in values)
    inside = [each for each in values if each.dies - each.born < end - 1]
    gaps = gaps_between((each.born, each.dies, each.bytes) for each in inside)
    if gaps:
        values.append(Held(None, "u8", (gaps,), gaps, at, at, _GAPS))
    return Peak(sum(map(size, main.arguments)), made + gaps, tuple(values), at, end)


def _held(life: Life, kernels: Kernels, size: int, scores: Set[tuple[int, ...]]) -> Held:
    value, born, dies = life
    instruction = None if value.maker is None else value.maker.instruction
    why = kernels.stored.get(value, "")
    is_attended = not scores.isdisjoint((sizes(value.shape), sizes(value.shape[1:])))
    return Held(instruction, value.dtype, value.shape, size, born, dies, why, is_attended)


def _without_fast(
    lives: Sequence[Life], sizes: _Sizes, capacity: int, copied: Collection[Value]
) -> list[Life]:
    """Return the lives without those that fit into the fast memory, the shortest of them first.

    What the program or a loop gives back is in the memory of the device, except what is `copied`.
    """
    held: dict[int, int] = defaultdict(int)
    kept = []
    for value, born, dies in sorted(lives, key=lambda life: (life[2] - life[1], life[1])):
        size = sizes.of(value)
        is_inner = value.maker is not None and (not value.is_yielded or value in copied)
        fits = is_inner and size <= capacity * 2 // 3
        ticks = range(born, dies + 1)
        if fits and all(held[tick] + size <= capacity for tick in ticks):
            for tick in ticks:
                held[tick] += size
        else:
            kept.append((value, born, dies))
    return kept


@dataclass(slots=True)
class _Sizes:
    """The bytes of each value as it is stored."""

    kernels: Kernels
    known: dict[Value, int]

    def of(self, value: Value) -> int:
        """Return what a value takes, tiles of a TPU filled up."""
        found = self.known.get(value)
        if found is None:
            found = self.known[value] = self._size(value)
        return found

    def _size(self, value: Value) -> int:
        is_wide = value in self.kernels.widened
        size = value.bytes * (2 if is_wide else 1)
        if self.kernels.platform != "tpu" or value.bytes == 0:
            return size
        return tiled_bytes(value.shape, "f32" if is_wide else value.dtype) or size


@dataclass(frozen=True, slots=True)
class _Plan:
    """The order of a body and what is alive in it, by the numbers of its units."""

    units: list[Unit]
    lives: list[Life]
    peak: int


class _Schedule:
    """Orders the kernels of each body, and says which values share a buffer."""

    def __init__(
        self,
        kernels: Kernels,
        sizes: _Sizes,
        buffers: Sequence[Value | None],
        program: Program,
        device: Device,
    ) -> None:
        self.kernels, self.sizes, self.buffers = kernels, sizes, buffers
        self.program, self.speeds, self.gathers_first = program, device.speeds, device.gathers_first
        self.puts_off = device.puts_off
        self.plans: dict[int, _Plan] = {}
        self.takes: dict[Value, tuple[Value, ...]] = {}
        self.masks: dict[tuple[Value, Value], Value] = {}

    def plan(self, body: Body) -> int:
        """Choose the order of a body; return the most bytes that it holds beside the outside."""
        units = self._units(body)
        outs = [self.kernels.roots.get(value, frozenset()) for value in body.yields]
        orders = [list(range(len(units)))]
        if len(units) > 2:
            held = frozenset[Value]().union(*outs)
            orders += [list_order(units, held, self.sizes.of), post_order(units, outs)]
            if self.kernels.platform == "gpu":
                orders.append(deep_order(units, outs, self.sizes.of))
        if body.node is None and self.gathers_first:
            orders = gathers_first(units, orders)
        plans = (self._measured(body, [units[at] for at in order], outs) for order in orders)
        best = min(plans, key=lambda each: each.peak)
        speeds, units, turns = self.speeds, best.units, self.kernels.turned
        if speeds is not None and any(sends(each, speeds.hides) for each in units):
            found = hidden(units, speeds, self.program.partitions)
            starts = {value: at for one, at in found.starts.items() for value in units[one].made}
            starts |= early(units, found.order, turns)
            best = self._measured(body, [units[at] for at in found.order], outs, starts)
        elif turns and body.node is None and self.puts_off != "none":
            best = self._measured(body, put_off(units, turns, self.puts_off), outs)
        self.plans[id(body)] = best
        return best.peak

    def saved(self, main: Body) -> Value | None:
        """Return what a TPU does not copy where it has no room, of donated arrays in a loop.

        It copies what a loop changes of them. Of two of one size, the copy of the second takes the
        memory of the first.
        Source: libtpu 0.0.52, loops over one to four donated caches on v4 and v5e.
        """
        found: dict[int, list[Value]] = defaultdict(list)
        for value in self.copied(main):
            found[self.sizes.of(value)].append(value)
        most = max((size for size, values in found.items() if len(values) > 1), default=None)
        return None if most is None else found[most][1]

    def copied(self, main: Body) -> list[Value]:
        """Return what a loop makes of donated arrays: a TPU copies it to these at the end."""
        pairs = zip(self.buffers, main.yields, strict=False)
        makers = ((value, value.maker) for buffer, value in pairs if buffer is not None)
        return [value for value, maker in makers if maker is not None and maker.operation == LOOP]

    def emit(self, body: Body, start: int, lives: list[Life]) -> int:
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
            lives.append((value, begins[born], ends[dies]))
        return tick + 1

    def _units(self, body: Body) -> list[Unit]:
        units: list[Unit] = []
        products: dict[Value | None, Unit] = {}
        roots = self.kernels.roots
        for node in body.nodes:
            inner = max((self.plan(each) for each in node.bodies), default=0)
            made = [value for value in node.results if value in roots.get(value, ())]
            if made or node.operation == UPDATE or node.bodies:
                reads = self.kernels.reads(node)
                self._note_takes(node, reads, made)
                source = alone(reads) if made and made[0] in self.kernels.again else None
                if source in products:
                    products[source].made += made
                    continue
                reads |= self._masked(node, units)
                units.append(Unit(node, reads, made, inner))
                if is_product(node) and self.kernels.platform == "tpu":
                    products.update((value, units[-1]) for value in made)
        if self.kernels.platform == "gpu":
            joined = joined_readers(units, siblings, "reduce")
            units = behind_gathered(joined, self.kernels.gathered)
        else:
            units = self._made_with(joined_readers(units, sliced))
        is_tpu, most = self.kernels.platform == "tpu", _JOINED_BYTES[self.kernels.platform]
        return joined_collectives(units, self._joint, most, is_backward=is_tpu)

    def _joint(self, unit: Unit) -> Hashable:
        """Return what collectives have in common that XLA joins; None of what it leaves alone."""
        each, program = unit.node.instruction, self.program
        if not unit.made or unit.node.operation not in _JOINED[self.kernels.platform]:
            return None
        inner = program.computations.get(each.called[0]) if each.called else None
        how = "" if inner is None or inner.root is None else inner.root.operation
        return unit.node.operation, how, together(each, program.partitions), unit.made[0].dtype

    def _made_with(self, units: list[Unit]) -> list[Unit]:
        """Join what a TPU makes in the kernel of a product with that product.

        Of several products it is the first that the others can run before: an activation that is
        computed again, or else what comes back from the next layer.
        """
        made_with = self.kernels.made_with
        found = [value for unit in units for value in unit.made if made_with.get(value)]
        tries = {v: [*made_with[v]] for v in found[: _MOST_JOINED // max(1, len(units))]}
        while tries:
            units = joined_makers(units, [(value, left[0]) for value, left in tries.items()])
            makers = makers_of(units)
            for value, (product, *left) in [*tries.items()]:
                del tries[value]
                if makers[value] != makers.get(product):
                    tries.update([(value, left)] if left else [])
                elif value.maker is not None:
                    beside = self.kernels.beside(value.maker)
                    self._take(value, [each for each in beside if each is not product])
        return joined_makers(units, [*self.kernels.written_with.items()])

    def _masked(self, node: Node, units: list[Unit]) -> set[Value]:
        """Return what a ragged product of a GPU reads beside its operands.

        The rows of each group, masked, are written first, once for all products of these rows, or
        anew for each where there is no room: XLA makes again what it can.
        """
        is_ragged = node.operation == "ragged-dot" and len(node.operands) == 3
        if not is_ragged or self.kernels.platform != "gpu":
            return set()
        rows, weights, groups = node.operands
        count = prod(groups.shape)
        found = set()
        for each in (rows,) if len(weights.shape) > len(rows.shape) else (rows, weights):
            value = None if self.kernels.is_short else self.masks.get((each, groups))
            if value is None:
                maker = Node("select", node.instruction, node.body, [each])
                value = Value(
                    each.dtype, (count, *each.shape), count * each.bytes, node.body, maker
                )
                self.kernels.stored[value] = "rows of a ragged product, masked for each group"
                maker.results.append(value)
                self.masks[each, groups] = value
                units.append(Unit(maker, self.kernels.roots.get(each, frozenset()), [value]))
            found.add(value)
        return found

    def _note_takes(self, node: Node, reads: frozenset[Value], made: list[Value]) -> None:
        """Note in whose buffer a value can be written, where nobody reads that any more."""
        roots = self.kernels.roots
        if node.operation == LOOP or (node.operation == "scatter" and made):
            for operand, value in zip(node.operands, node.results, strict=False):
                into = alone(roots.get(operand, frozenset()))
                if into is not None:
                    self.takes[value] = (into,)
        elif is_elementwise(node) or node.operation == "all-reduce":
            is_any = self.kernels.platform == "gpu" or node.operation == "all-reduce"
            beside = reads - self._summed_in(reads) if is_any else self._beside_product(node)
            for value in made if beside else ():
                self._take(value, beside)

    def _summed_in(self, reads: frozenset[Value]) -> Set[Value]:
        """Return what a kernel may sum up, too: on a GPU no product of which it reads no sum."""
        summed = self.kernels.summed.keys() & reads
        if self.kernels.platform == "tpu" or not summed:
            return summed
        sums = (each.maker for each in reads if each.maker and each.maker.operation == "reduce")
        own = frozenset[Value]().union(*map(self.kernels.reads, sums))
        return {v for v in summed if v in own or v.maker is None or not is_product(v.maker)}

    def _take(self, value: Value, beside: Collection[Value]) -> None:
        same = [each for each in beside if self.sizes.of(each) == self.sizes.of(value)]
        if same:
            self.takes[value] = tuple(sorted(same, key=lambda each: each.serial))

    def _beside_product(self, node: Node) -> list[Value]:
        """Return what a kernel of a TPU with a product reads beside it: it can write there."""
        return self.kernels.beside(node) if node in self.kernels.absorbed else []

    def _measured(
        self,
        body: Body,
        units: list[Unit],
        outs: Sequence[frozenset[Value]],
        starts: Mapping[Value, int] = _NO_STARTS,
    ) -> _Plan:
        """Return what is alive when, in one order.

        Args:
          starts: the unit before which a collective starts, by what it makes.
        """
        born = {value: at for at, unit in enumerate(units) for value in unit.made}
        last = {value: at for at, unit in enumerate(units) for value in unit.reads}
        placed = dict(born)
        born.update(starts)
        end = len(units)
        last.update((value, end) for out in outs for value in out)
        free, own = self._results(body, born, last, outs)
        # Source: libtpu 0.0.52, gradients of two products of which one is added to the other.
        apart: Collection[Value] = own
        if self.kernels.platform == "gpu":
            before = self._before(body, born, last, outs, free, own) if body.node is None else {}
            free |= before.keys()
            apart = {*before.values()}
        self._follow({v: at for v, at in placed.items() if v not in apart}, last, free)
        lives = [
            (value, 0 if value in own else at, max(last.get(value, at), at))
            for value, at in born.items()
            if value not in free
        ]
        inside = ((at, at, unit.inner) for at, unit in enumerate(units))
        outside = ((at, dies, self.sizes.of(value)) for value, at, dies in lives)
        _, peak = highest((*inside, *outside))
        return _Plan(units, lives, peak)

    def _results(
        self,
        body: Body,
        born: dict[Value, int],
        last: dict[Value, int],
        outs: Sequence[frozenset[Value]],
    ) -> tuple[set[Value], set[Value]]:
        """Return the results in a buffer that is there, and those with one of their own throughout.

        A result takes the buffer of a carry, of a donated parameter, or of the branch it is in.
        """
        free: set[Value] = set()
        own: set[Value] = set()
        for buffer, out in zip(self._buffers(body), outs, strict=False):
            for value in out & born.keys():
                if buffer is None:
                    (own if body.node is None else free).add(value)
                elif last.get(buffer, -1) < born[value] + self._can_be_in_place(value):
                    free.add(value)
        return free, own - free

    def _before(
        self,
        body: Body,
        born: dict[Value, int],
        last: dict[Value, int],
        outs: Sequence[frozenset[Value]],
        free: set[Value],
        own: set[Value],
    ) -> dict[Value, Value]:
        """Return what is in the buffer of a result before that is made, with the result.

        What a loop begins with is made before that, and so is not.
        """
        size = self.sizes.of
        pairs = zip(self._buffers(body), outs, strict=False)
        taken = [
            (-1 if buffer is None else last.get(buffer, -1), each)
            for buffer, out in pairs
            for each in out & (own if buffer is None else free)
        ]
        sizes = {size(result) for _, result in taken}
        left = [v for v in born.keys() - free - own if size(v) in sizes and not _begins_loop(v)]
        left.sort(key=lambda each: (born[each] - last.get(each, 0), each.serial))
        of_size = grouped(left, size)
        found: dict[Value, Value] = {}
        for begun, result in taken:
            span = range(begun + 1, born[result])
            inside = (
                each
                for each in of_size.get(size(result), ())
                if each not in found and born[each] in span and last.get(each, born[each]) in span
            )
            first = next(inside, None)
            if first is not None:
                found[first] = result
        return found

    def _can_be_in_place(self, value: Value) -> bool:
        """Say whether a value can be written where an operand of the same kernel is.

        A TPU copies what a loop is given, also where it is donated.
        """
        maker = value.maker
        if maker is None or is_elementwise(maker) or maker.operation in _OVERWRITES:
            return True
        return maker.operation == LOOP and self.kernels.platform == "gpu"

    def _buffers(self, body: Body) -> Sequence[Value | None]:
        """Return for each result of a body the argument whose buffer it takes."""
        if body.is_loop:
            return body.arguments
        return self.buffers if body.node is None else [None] * len(body.yields)

    def _follow(self, born: dict[Value, int], last: dict[Value, int], free: set[Value]) -> None:
        """Give a value the buffer of one that dies as it is made, the latest value first."""
        found = self.takes.keys() & born.keys() - free
        for value in sorted(found, key=lambda each: (-born[each], each.serial)):
            dying = (v for v in self.takes[value] if v in born and last.get(v) == born[value])
            source = next((v for v in dying if v is not value), None)
            if source is not None:
                free.add(value)
                last[source] = max(last.get(value, born[value]), born[value])


def _begins_loop(value: Value) -> bool:
    """Say whether a value is in the buffer of what a loop begins with."""
    is_read = any(user.operation == LOOP for user in value.users)
    return is_read or (value.maker is not None and value.maker.operation in (LOOP, "broadcast"))
