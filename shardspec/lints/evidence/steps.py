"""What a step sends or computes in vain, and how it is told of.

A collective is judged by what reads it. A gather whose only readers are operations that its mesh
axis splits in nothing has served no one: the devices of the axis all do the same work on what they
have gathered, each of them all of it. A gather of FSDP is no such thing: there the mesh axis that
splits the weight splits the examples, too, and each device works on its own.

How XLA reshards an array: in collectives of its own, or by gathering it whole first.

XLA's partitioner knows a few moves, and sees of a sharding no mesh axes, but into how many parts
each dimension is split and how often the whole is repeated. Parts can be exchanged between
dimensions, a dimension split further or gathered, two dimensions' parts merged or one's spread over
two. Where no chain of these that it looks for leads from one sharding to the other, it gathers the
whole array on every device and slices it: "involuntary full rematerialization" in its log.

Source: behaviour of jaxlib 0.10.2, whose log was read for the transitions in
`tests/data/reshards.json` (`benchmarks/reshards.py`); openxla/xla#15207 is one of them.
"""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple, TypeVar

from shardspec.analysis.comparison import group
from shardspec.analysis.cost import Cost
from shardspec.analysis.coverage import is_large
from shardspec.diagnostics import Span
from shardspec.diagnostics.words import binary_bytes, counted, grouped, percent, three_figures
from shardspec.ir import step as steps
from shardspec.ir.spec import Mesh, PartitionSpec
from shardspec.ir.step import CollectiveKind, ring_bytes

Found = TypeVar("Found")
_SHOWN = 5
_PAIR = 2


class IdleGather(NamedTuple):
    """A gather over a mesh axis that splits nothing of what reads it.

    Attributes:
      cause: why the mesh axis splits what is gathered.
      ops: the products that read it, if any do.
      saved: the bytes that a device would not send without this mesh axis in it.
    """

    collective: steps.Collective
    cause: steps.Cause
    ops: tuple[steps.StepOp, ...]
    saved: int

    @property
    def is_weight(self) -> bool:
        """Say whether a weight is gathered that the spec splits, for its own sake.

        Where a constraint asks for a product whole, XLA may gather the weight of the product.
        """
        each = self.collective
        is_own = each.forced_by is None or moved(each).name == each.carries.name
        return each.carries.kind == "weight" and self.cause.attempt is not None and is_own


def idle_gathers(step: steps.Step) -> Iterator[IdleGather]:
    """Yield every gather of a step whose readers all do the same work on what is gathered."""
    ops = {op.at: op for op in step.ops}
    for each in step.collectives:
        reshard = each.reshard
        if each.kind is not steps.CollectiveKind.ALL_GATHER or reshard is None or not reshard.works:
            continue
        readers = tuple(ops[at] for at in reshard.works if at in ops)
        for cause in each.because:
            axis = cause.mesh_axis
            if reshard.shared_over is not None and axis not in reshard.shared_over:
                yield IdleGather(each, cause, readers, saved_bytes(each, axis, step.mesh))


def told_gathers(step: steps.Step) -> tuple[IdleGather, ...]:
    """Return those that SHD504 and SHD505 tell of."""
    return tuple(
        each
        for each in idle_gathers(step)
        if each.is_weight or each.collective.forced_by is not None
    )


def saved_bytes(each: steps.Collective, axis: str, mesh: Mesh) -> int:
    """Return what a device would send less in a step if a gather did without a mesh axis."""
    if each.reshard is not None and each.reshard.has_parts:
        return each.wire_bytes
    ways = mesh.sizes[axis]
    rest = mesh.ways(name for name in each.mesh_axes if name != axis)
    left = steps.ring_bytes(each.kind, each.payload_bytes // ways, rest)
    return max(0, round((each.wire_bytes_per_run - left) * each.count))


class Seats(NamedTuple):
    """The operands of a product that reads a weight, by letter.

    Attributes:
      own: the letters of the weight; `letters` are those of `other`, what it is multiplied with.
    """

    weight: steps.StepArray
    own: str
    other: steps.StepArray
    letters: str
    result: str


def seats_of(op: steps.StepOp, weights: Collection[str]) -> Seats | None:
    """Return the operands of a product of two that reads one of some weights, and one only."""
    inputs, _, result = op.einsum.partition("->")
    letters = inputs.split(",")
    if not result or [len(each) for each in letters] != [len(e.shape) for e in op.operands]:
        return None
    own = [at for at, each in enumerate(op.operands) if each.name in weights]
    if len(own) != 1 or len(letters) != _PAIR:
        return None
    (at,) = own
    return Seats(op.operands[at], letters[at], op.operands[1 - at], letters[1 - at], result)


def places_by(
    found: Iterable[Found], told: Callable[[Found], tuple[str, steps.StepOp]]
) -> Iterator[tuple[str, str]]:
    """Yield what products need, with their lines: `model.py:7 and model.py:9`."""
    for need, pairs in grouped(map(told, found), lambda pair: pair[0]).items():
        yield need, " and ".join(list(dict.fromkeys(str(op.place) for _, op in pairs))[:_SHOWN])


def wasted_flops(ops: Iterable[steps.StepOp], ways: int) -> float:
    """Return the FLOPs of a device in a step that other devices do as well."""
    once = {op.at: op for op in ops}
    return sum(op.flops * op.count for op in once.values()) * (ways - 1) / ways


def is_large_traffic(size: int, step: steps.Step) -> bool:
    """Say whether so many bytes are large of what a device sends in a step."""
    return is_large(size, sum(step.wire_bytes.values()))


def guessed(found: Collection[steps.Collective], step: steps.Step) -> tuple[str, ...]:
    """Return the arguments with guessed shardings to which collectives owe being large, if any.

    A finding about such traffic is one about these arguments: SHD518 says what is to be done.
    """
    guesses = {each.path for each in step.arguments if each.is_guess}
    own = [each for each in found if each.carries.name in guesses]
    rest = sum(each.wire_bytes for each in found) - sum(each.wire_bytes for each in own)
    return () if is_large_traffic(rest, step) else tuple({each.carries.name for each in own})


def large_groups(
    found: Iterable[Found],
    key: Callable[[Found], object],
    size: Callable[[Found], int],
    step: steps.Step,
) -> Iterator[list[Found]]:
    """Yield what has one key in common, where its bytes are large of what a device sends."""
    for alike in grouped(found, key).values():
        if is_large_traffic(sum(map(size, alike)), step):
            yield alike


def reshards(step: steps.Step) -> Iterator[tuple[steps.Reshard, tuple[steps.Collective, ...]]]:
    """Yield every reshard of a step with the collectives that it consists of."""
    moves = (each for each in step.collectives if each.reshard is not None)
    for parts in grouped(moves, lambda each: each.reshard).values():
        if parts[0].reshard is not None:
            yield parts[0].reshard, tuple(parts)


def moved(each: steps.Collective) -> steps.StepArray:
    """Return the array that a reshard moves, whatever XLA sends for it."""
    own = None if each.reshard is None else each.reshard.array
    return each.array if own is None else own


def spans_of(collectives: Iterable[steps.Collective]) -> tuple[tuple[Span | None, str], ...]:
    """Return where the spec says of their mesh axes that they lie so."""
    causes = (cause for each in collectives for cause in each.because)
    return tuple((cause.span, f"`{cause.mesh_axis}` comes from here") for cause in causes)


def sent_lines(collectives: Iterable[steps.Collective]) -> tuple[str, ...]:
    """Return a line for each of what is sent most, and one for the rest.

    As "1.75 GiB  x32  weight layers/wi, model.py:71".
    """
    rows = group(collectives)
    lines = [
        f"{binary_bytes(row.wire_bytes)}  x{times(row.count)}"
        f"  {placed(str(row.carries[0]), row.places[0])}"
        for row in rows[:_SHOWN]
    ]
    rest = rows[_SHOWN:]
    if rest:
        size = binary_bytes(sum(row.wire_bytes for row in rest))
        lines.append(f"{size}  in {counted(len(rest), 'other row')}")
    return tuple(lines)


def repeats(op: steps.StepOp, mesh: Mesh) -> dict[str, int]:
    """Return the mesh axes whose devices repeat each other's work in an operation: how many do.

    An axis that splits nothing of it, or only as many ways as a dimension has: of sixteen devices
    over eight heads, each two compute the same.
    """
    shared: dict[str, int] = {}
    for array in (*op.operands, op.result):
        for axis, ways in _taken(array, mesh).items():
            shared[axis] = max(shared.get(axis, 1), ways)
    sizes = mesh.sizes
    alike = {name: 1 if name in op.mesh_axes else size for name, size in sizes.items()}
    alike |= {name: sizes[name] // min(ways, sizes[name]) for name, ways in shared.items()}
    return {name: ways for name, ways in alike.items() if ways > 1}


def _taken(array: steps.StepArray, mesh: Mesh) -> dict[str, int]:
    """Return how many ways each mesh axis splits an array: fewer than it has, where parts do."""
    taken: dict[str, int] = {}
    for size, part, axes in zip(array.shape, array.shard_shape, array.split.dims, strict=True):
        ways = -(-size // max(part, 1))
        for axis in axes:
            own = mesh.sizes[axis] * ways // mesh.ways(axes)
            taken[axis] = taken.get(axis, 1) * max(own, 1)
    return taken


def placed(what: str, place: object) -> str:
    """Return what is computed or sent at a line: `weight wi, model.py:71`; an einsum, as a product.

    Attention multiplies for each example and each head: both operands and the result have these.

    >>> placed("bte,ef->btf", "model.py:71"), placed("bthd,bshd->bhts", "model.py:53")[:33]
    ('product at model.py:71 (bte,ef->btf)', 'attention product at model.py:53 ')
    """
    inputs, arrow, result = what.partition("->")
    if not arrow:
        return f"{what}, {place}"
    shared = set(result).intersection(*map(set, inputs.split(",")))
    return f"{'attention ' if len(shared) > 1 else ''}product at {place} ({what})"


def product(op: steps.StepOp) -> str:
    """Return what a product is called, with its line."""
    return placed(op.einsum or op.kind, op.place)


def op_lines(ops: Iterable[steps.StepOp], whole: float) -> tuple[str, ...]:
    """Return the lines that compute most: "4 %  x32  product at model.py:71 (bte,ef->btf)".

    Args:
      whole: the FLOPs of the step.
    """
    sums: dict[str, tuple[float, float]] = {}
    for op in ops:
        key = product(op)
        flops, count = sums.get(key, (0.0, 0.0))
        sums[key] = (flops + op.flops * op.count, count + op.count)
    order = sorted(sums.items(), key=lambda item: -item[1][0])
    lines = [
        f"{percent(flops, whole)}  x{times(count)}  {key}" for key, (flops, count) in order[:_SHOWN]
    ]
    rest = order[_SHOWN:]
    if rest:
        share = percent(sum(flops for _, (flops, _) in rest), whole)
        lines.append(f"{share}  in {counted(len(rest), 'other line')}")
    return tuple(lines)


def searchable(way_out: str, cost: Cost, otherwise: str = "") -> str:
    """Return help with the lines that a search found, or the command that looks for one.

    Of a step that was not traced from code, there is neither.

    Args:
      way_out: what to do, or empty.
      otherwise: what to know where no line was found.
    """
    own = "; ".join(filter(None, (way_out, otherwise)))
    if cost.step is None or cost.step.source != "code":
        return own
    cure = cost.step.cure
    if cure is not None and not cure.lines:
        return f"{own}; `shardspec search` found no line that the spec's rules allow and that helps"
    if cure is not None:
        shown = [_added(each) for each in cure.lines[:_SHOWN]]
        more = len(cure.lines) - len(shown)
        rest = [counted(more, "other line")] if more > 0 else []
        added = " and ".join([*shown, *rest])
        found = f"add {added}, which `shardspec search` found: {cure.gain}"
        return f"{found}; or {way_out}" if way_out else found
    over = " --over constraints" if cost.plan.spec.step is not None else ""
    span = cost.target.span if cost.step.called else None
    spec = "SPEC" if span is None else shlex.quote(span.source.name)
    command = f"shardspec search {spec} --step {cost.step.called or 'MODULE:FUNCTION'}{over}"
    return f"{own}; `{command}` looks for the line to add"


def _added(line: steps.Added) -> str:
    place = f"{line.file}:{line.line}" if line.line else line.file
    return f"`{line.text}` at {place}" if line.text else f"a constraint at {place}"


def times(count: float) -> str:
    """Return how often: `32`, or `2.5` for an average."""
    return f"{count:.0f}" if count == int(count) else three_figures(count)


def per_step(size: float) -> str:
    """Return `1.75 GiB per device and step`."""
    return f"{binary_bytes(size)} per device and step"


#: Into how many parts each dimension is split.
Parts = tuple[int, ...]


def goes_straight(before: PartitionSpec, after: PartitionSpec, mesh: Mesh) -> bool:
    """Say whether XLA moves an array from one sharding to another without gathering it whole."""
    return is_reachable(_parts(before, mesh), _parts(after, mesh), mesh.device_count)


def _parts(spec: PartitionSpec, mesh: Mesh) -> Parts:
    return tuple(mesh.ways(axes) for axes in spec.dims)


def is_reachable(before: Parts, after: Parts, devices: int) -> bool:
    """Say whether XLA has moves from one splitting to another.

    >>> is_reachable((2, 1, 4), (1, 8, 1), 8), is_reachable((2, 4, 1), (1, 8, 1), 8)
    (False, True)
    """
    if before == after or _is_one_move(before, after, devices):
        return True
    copies, copies_after = (devices // math.prod(parts) for parts in (before, after))
    if copies == copies_after:
        merged = _merged_or_spread(before, after)
        if merged is not None:
            return is_reachable(merged, after, devices)
    if copies_after > 1:
        gathered = _one_gathered(before, copies, copies_after)
        if gathered is not None:
            return is_reachable(gathered, after, devices)
    if copies > 1 and copies_after == 1:
        split = _one_split(before, after, copies)
        if split is not None and is_reachable(split, after, devices):
            return True
    return _is_reachable_without_equals(before, after, devices)


def _is_one_move(before: Parts, after: Parts, devices: int) -> bool:
    """Say whether parts are only exchanged, only split further, or only gathered."""
    pairs = tuple(zip(before, after, strict=True))
    if math.prod(before) == math.prod(after):
        return _is_exchange(before, after)
    is_repeated = math.prod(before) < devices and all(new % old == 0 for old, new in pairs)
    return is_repeated or (math.prod(after) < devices and all(old % new == 0 for old, new in pairs))


def _is_exchange(before: Parts, after: Parts) -> bool:
    """Say whether dimensions have exchanged their parts, two by two."""
    now = list(before)
    for at, wanted in enumerate(after):
        if now[at] == wanted:
            continue
        rest = range(at + 1, len(now))
        other = next((i for i in rest if now[i] == wanted and after[i] != wanted), None)
        if other is None or max(now[at], wanted) % min(now[at], wanted):
            return False
        now[at], now[other] = now[other], now[at]
    return True


def _merged_or_spread(before: Parts, after: Parts) -> Parts | None:
    """Return what merging the parts of two dimensions, or spreading one's over two, leads to."""
    differing = [at for at, old in enumerate(before) if old != after[at]]
    for i, j in itertools.combinations(differing, 2):
        whole = (before[i], before[j], after[i], after[j]).count(1)
        more, less = (i, j) if before[i] > after[i] else (j, i)
        is_even = whole == 1 or before[more] % after[more] == 0
        if whole < 2 and is_even and before[i] * before[j] == after[i] * after[j]:
            return _with(before, {i: after[i], j: after[j]})
        if whole == 0 and before[more] == after[i] * after[j]:
            return _with(before, {more: after[more] * before[less], less: after[less]})
    return None


def _with(parts: Parts, changed: dict[int, int]) -> Parts:
    return tuple(changed.get(at, ways) for at, ways in enumerate(parts))


def _one_gathered(before: Parts, copies: int, copies_after: int) -> Parts | None:
    """Return what gathering one dimension leads to, where that makes all the copies wanted."""
    for at, ways in enumerate(before):
        if ways > 1 and ways * copies == copies_after:
            return _with(before, {at: 1})
    return None


def _one_split(before: Parts, after: Parts, copies: int) -> Parts | None:
    """Return what splitting one more dimension by all the copies leads to."""
    for at, (old, new) in enumerate(zip(before, after, strict=True)):
        if old == 1 and new != 1 and new % copies == 0:
            return _with(before, {at: copies})
    return None


def _is_reachable_without_equals(before: Parts, after: Parts, devices: int) -> bool:
    """Say whether there are moves for each group of devices that equal dimensions keep apart."""
    equal = [at for at, old in enumerate(before) if old == after[at] > 1]
    if not equal:
        return False
    groups = math.prod(before[at] for at in equal)
    alone = dict.fromkeys(equal, 1)
    return is_reachable(_with(before, alone), _with(after, alone), devices // groups)


def straight_bytes(held: int, before: PartitionSpec, after: PartitionSpec, mesh: Mesh) -> int:
    """Return what one device sends to make an array lie otherwise in one go.

    It is split by what is new, then exchanged, then gathered.

    Args:
      held: the bytes of a device's part before.
    """
    old, new = _places(before), _places(after)
    held //= mesh.ways(axis for axis in new if axis not in old)
    moved = mesh.ways(axis for axis in new if axis in old and new[axis] != old[axis])
    gone = mesh.ways(axis for axis in old if axis not in new)
    exchanged = ring_bytes(CollectiveKind.ALL_TO_ALL, held, moved)
    return exchanged + ring_bytes(CollectiveKind.ALL_GATHER, held * gone, gone)


def stop_between(
    before: PartitionSpec, after: PartitionSpec, mesh: Mesh, held: int
) -> PartitionSpec | None:
    """Return the sharding to stop at on the way, so that XLA needs not gather the whole array.

    Of those from which and to which it has moves, the one with which least is sent; each mesh axis
    lies there as before, as after, or nowhere.
    """
    stops = [
        each
        for each in _stops(before, after)
        if goes_straight(before, each, mesh) and goes_straight(each, after, mesh)
    ]
    return min(stops, key=lambda each: _sent(before, each, after, mesh, held), default=None)


def _sent(
    before: PartitionSpec, stop: PartitionSpec, after: PartitionSpec, mesh: Mesh, held: int
) -> int:
    there = held * mesh.ways(_places(before)) // mesh.ways(_places(stop))
    return straight_bytes(held, before, stop, mesh) + straight_bytes(there, stop, after, mesh)


def _stops(before: PartitionSpec, after: PartitionSpec) -> Iterator[PartitionSpec]:
    old, new = _places(before), _places(after)
    axes = tuple(dict.fromkeys((*old, *new)))
    choices = [dict.fromkeys((old.get(axis), new.get(axis), None)) for axis in axes]
    for chosen in itertools.product(*choices):
        dims = tuple(
            tuple(axis for axis, dim in zip(axes, chosen, strict=True) if dim == at)
            for at in range(len(before.dims))
        )
        yield PartitionSpec(dims)


def _places(spec: PartitionSpec) -> dict[str, int]:
    """Return the dimension that each mesh axis splits."""
    return {axis: dim for dim, axes in enumerate(spec.dims) for axis in axes}
