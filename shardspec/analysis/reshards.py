"""How XLA makes an array lie otherwise: in collectives of its own, or by gathering it whole first.

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
from collections.abc import Iterator

from shardspec.ir.spec import Mesh, PartitionSpec
from shardspec.ir.step import CollectiveKind, ring_bytes

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
