"""Which mesh axis gets which part of which physical axis, for any mesh that fits the machine.

The axis that talks most chooses first, from all ways to make its size out of what is left of
each physical axis; the lowest digit of a physical axis is the most local, so it goes to whoever
comes first. There is always an answer: the sizes multiply to the devices, so what one axis
takes leaves exactly enough for the rest, prime by prime. Choices that score the same are all
carried on, so that an even choice early does not cost a later axis.

How good an axis lies is one stated score, smaller is better. In this order: no DCN inside an axis
that did not ask for it; all devices of a chip together (their own link is faster than ICI); whole
wrapped rings; then compact, which is most links at work and then the shortest diameter; then
fewest hosts. Mesh axes are compared from the last to the first, since by convention the last talks
most. Links are counted as in a ring all-gather: a closed ring sends both ways (2), a line is worth
1, a ring that takes every second chip shares each link with another ring (half as much). Two
devices of a chip whose rings differ share the chip's links.

Tiles (x, y, z, core) of a slice: how a mesh axis runs over one, which fit, and the best.

The slice is cut into tiles of the submesh's shape. Inside a tile runs the model axis, over the
tiles the data axis. Each physical axis gets up to four digits, from the most significant down:
data over hosts, data inside a host, model over hosts, model inside a host; the split at hosts
keeps every host's devices a contiguous rectangle of the mesh. Two tile shapes (a whole row, a
whole plane) do without it: they turn the axes so that z is more major. For `auto N` all tiles of
N devices that divide the slice are compared by `score_axis`.

Source: google-research/t5x, partitioning.get_mesh and partitioning.default_mesh, whose facts these
are: the order of devices, and the table of submeshes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.ir.spec import Hardware, MeshAxis, divisors, shape_text
from shardspec.topology import machine as machines
from shardspec.topology.machine import Digit, Machine, PhysicalAxis, slice_extents, slice_host

_TIES_KEPT = 24
Factors = tuple[int, ...]


class AxisScore(NamedTuple):
    """The score of one mesh axis; tuples of these compare placements.

    Attributes:
      dcn_ways: how many ways the axis is split over DCN, unasked; 1 is none.
      chip_groups: groups of the axis that meet in one chip; 1 where it has the chip to itself.
      open_runs: 0 where every stretch of torus is a whole ring (or a whole row of two), else 1.
      minus_links: links at work per device, negated; minus infinity inside a chip or switch.
      diameter: hops between the two devices farthest apart.
      hosts: hosts that one group touches.
    """

    dcn_ways: int
    chip_groups: int
    open_runs: int
    minus_links: float
    diameter: int
    hosts: int

    @property
    def links(self) -> float:
        """Return the ICI links at work per device."""
        return -self.minus_links


def is_ring(digit: Digit, axis: PhysicalAxis) -> bool:
    """Say whether the digit goes all the way around its physical axis."""
    return axis.wraps and digit.span == axis.extent and digit.size > 2


def is_whole(digit: Digit, axis: PhysicalAxis) -> bool:
    """Say whether the digit is a whole wrapped row of chips, or a whole row of two."""
    return digit.size == axis.extent and (axis.wraps or digit.size == 2)


def score_axis(digits: Sequence[Digit], machine: Machine, *, asks_dcn: bool = False) -> AxisScore:
    """Return the score of a mesh axis that runs over `digits`.

    Args:
      asks_dcn: whether the spec says `@ dcn`, so that DCN costs nothing.
    """
    return _score(machines.joined_digits(digits), machine, asks_dcn)


@lru_cache(maxsize=1 << 14)
def _score(digits: tuple[Digit, ...], machine: Machine, asks_dcn: bool) -> AxisScore:
    torus = [digit for digit in digits if machine[digit.axis].link == "ici"]
    dcn = math.prod(digit.size for digit in digits if machine[digit.axis].link == "dcn")
    links = sum((2 if is_ring(digit, machine[digit.axis]) else 1) / digit.stride for digit in torus)
    shared = links_shared(digits, machine)
    return AxisScore(
        dcn_ways=1 if asks_dcn else dcn,
        chip_groups=shared,
        open_runs=int(not all(is_whole(digit, machine[digit.axis]) for digit in torus)),
        minus_links=-links / shared if torus else -math.inf,
        diameter=sum(reach(digit, machine[digit.axis]) for digit in torus),
        hosts=host_count(digits, machine),
    )


def links_shared(digits: Iterable[Digit], machine: Machine) -> int:
    """Return how many groups of a mesh axis use the links of one chip at once."""
    cores = math.prod(axis.extent for axis in machine if axis.link == "chip")
    own = math.prod(digit.size for digit in digits if machine[digit.axis].link == "chip")
    return max(1, cores // own)


def reach(digit: Digit, axis: PhysicalAxis) -> int:
    """Return the hops between the two places of a digit that are farthest apart."""
    steps = digit.size // 2 if is_ring(digit, axis) else digit.size - 1
    return steps * digit.stride


def host_count(digits: Sequence[Digit], machine: Machine) -> int:
    """Return the hosts that a group touches, at most, wherever the group lies."""
    count = 1
    for index, axis in enumerate(machine):
        own = [digit for digit in digits if digit.axis == index and digit.size > 1]
        if own:
            count *= _hosts_along(own, axis)
    return count


def _hosts_along(digits: Sequence[Digit], axis: PhysicalAxis) -> int:
    """Return the hosts of the widest of the groups that lie side by side on a physical axis."""
    if axis.host in (1, axis.extent):
        return math.prod(each.size for each in digits) if axis.host == 1 else 1
    hosts: dict[int, set[int]] = {}
    for place in range(axis.extent):
        first = place - sum(place // each.stride % each.size * each.stride for each in digits)
        hosts.setdefault(first, set()).add(place // axis.host)
    return max(map(len, hosts.values()))


class Request(NamedTuple):
    """A mesh axis that wants its share.

    Attributes:
      asks_dcn: whether it should run over DCN.
      factors: ways along each physical axis, where the spec fixes them (a submesh).
      is_inside: whether it has to lie in one slice, wherever there (`auto N`).
    """

    size: int
    asks_dcn: bool = False
    factors: Factors | None = None
    is_inside: bool = False


class _Partial(NamedTuple):
    """An unfinished assignment: what is taken, what is left, and the score so far.

    What is left stands by the stretches that were free at the beginning.
    """

    taken: tuple[tuple[int, tuple[Digit, ...]], ...]
    left: Factors
    strides: Factors
    scores: tuple[AxisScore, ...] = ()


@lru_cache(maxsize=1 << 12)
def assign_digits(
    requests: tuple[Request, ...], machine: Machine, free: tuple[Digit, ...] | None = None
) -> tuple[tuple[Digit, ...], ...] | None:
    """Return the digits of every mesh axis, in the order of `requests`.

    None where a fixed request does not fit, or the sizes do not multiply to the devices.

    Args:
      free: what others have left of the machine; all of it where that is left out.
    """
    if free is None:
        free = tuple(Digit(index, axis.extent, 1) for index, axis in enumerate(machine))
    sizes, strides = (tuple(each.size for each in free), tuple(each.stride for each in free))
    partials = [_Partial((), sizes, strides)]
    for index in _by_weight(requests):
        grown = [
            _extended(partial, index, factors, requests[index], machine, free)
            for partial in partials
            for factors in _choices(requests[index], partial.left, machine, free)
        ]
        if not grown:
            return None
        best = min(partial.scores for partial in grown)
        kept = (partial for partial in grown if partial.scores == best)
        partials = _without_doubles(kept)[:_TIES_KEPT]
    finished = [partial for partial in partials if set(partial.left) <= {1}]
    if not finished:
        return None
    digits = dict(finished[0].taken)
    return tuple(digits[index] for index in range(len(requests)))


def _by_weight(requests: Sequence[Request]) -> list[int]:
    """Return whose turn it is: DCN axes, fixed tiles, tiles, then from the last to the first."""

    def turn(index: int) -> tuple[bool, bool, bool, int]:
        request = requests[index]
        return (not request.asks_dcn, request.factors is None, not request.is_inside, -index)

    return sorted(range(len(requests)), key=turn)


def _choices(
    request: Request, left: Factors, machine: Machine, free: Sequence[Digit]
) -> Iterator[Factors]:
    """Yield the ways along each free stretch that multiply to the size of the request."""
    choices = iter(factorings(request.size, left))
    if request.factors is not None:
        wanted = request.factors
        return (found for found in choices if _ways(found, machine, free) == wanted)
    if not request.asks_dcn and not request.is_inside:
        return choices
    dcn = next(index for index, axis in enumerate(machine) if axis.link == "dcn")
    kept = [(_ways(factors, machine, free)[dcn], factors) for factors in choices]
    wished = 1 if request.is_inside else max((ways for ways, _ in kept), default=1)
    return (factors for ways, factors in kept if ways == wished)


def _ways(factors: Factors, machine: Machine, free: Sequence[Digit]) -> Factors:
    """Return the ways along each physical axis."""
    ways = [1] * len(machine)
    for factor, stretch in zip(factors, free, strict=True):
        ways[stretch.axis] *= factor
    return tuple(ways)


@lru_cache(maxsize=1 << 12)
def factorings(size: int, left: tuple[int, ...]) -> tuple[Factors, ...]:
    """Return every tuple with product `size` whose entries divide those of `left`, in order."""
    if not left:
        return ((),) if size == 1 else ()
    return tuple(
        (factor, *rest)
        for factor in range(1, min(size, left[0]) + 1)
        if size % factor == 0 and left[0] % factor == 0
        for rest in factorings(size // factor, left[1:])
    )


def _extended(
    partial: _Partial,
    index: int,
    factors: Factors,
    request: Request,
    machine: Machine,
    free: Sequence[Digit],
) -> _Partial:
    digits = tuple(
        Digit(stretch.axis, size, stride)
        for stretch, size, stride in zip(free, factors, partial.strides, strict=True)
        if size > 1
    )
    score = score_axis(digits, machine, asks_dcn=request.asks_dcn)
    return _Partial(
        (*partial.taken, (index, digits)),
        tuple(have // ways for have, ways in zip(partial.left, factors, strict=True)),
        tuple(stride * ways for stride, ways in zip(partial.strides, factors, strict=True)),
        (*partial.scores, score),
    )


def _without_doubles(partials: Iterator[_Partial]) -> list[_Partial]:
    """Return partials that leave different things over, the first of each kind."""
    return list({partial.left: partial for partial in reversed(list(partials))}.values())[::-1]


Path = Literal["plain", "tile-by-host", "swap-yz", "swap-xz"]
Tile = tuple[int, ...]
Primes = tuple[int, int, int, int]
_AXIS_NAMES = ("x", "y", "z", "core")
_HOST_FAULT = (
    "to tile the mesh by hosts, each dimension of the model parallel submesh must be either a "
    "factor or a multiple of the corresponding dimension of the per-host submesh"
)


class Tiling(NamedTuple):
    """A tiling of one slice.

    Attributes:
      data: digits of the index of a tile, most significant first.
      model: digits of the index within a tile.
      path: which of the four ways made it.
    """

    data: tuple[Digit, ...]
    model: tuple[Digit, ...]
    path: Path


class TilingFault(NamedTuple):
    """Why a submesh does not tile a slice.

    Attributes:
      reason: `factor` (does not divide the slice), `core` (a turned tile must take whole chips) or
        `host` (neither a factor nor a multiple of the host).
      message: the fact with its numbers.
      help: what would fit.
    """

    reason: Literal["factor", "core", "host"]
    message: str
    help: str


def axis_order(extents: Sequence[int], tile: Sequence[int]) -> tuple[tuple[int, ...], Path | None]:
    """Return the order of x, y, z, core that the tile asks for, and why it is turned.

    The path is None where the axes keep their order. Only (x, y, z, core) is ever turned.
    """
    gx, gy, gz, _ = extents
    mx, my, mz, _ = tile
    if (mx == gx > 1 and my == mz == 1) or (mx == 1 and my == gy > 1 and mz == gz > 1):
        return (0, 2, 1, 3), "swap-yz"
    if (my == gy > 1 and mx == mz == 1) or (my == 1 and mx == gx > 1 and mz == gz > 1):
        return (2, 1, 0, 3), "swap-xz"
    return (0, 1, 2, 3), None


def host_factors(extent: int, tile: int, host: int) -> Primes | None:
    """Return the sizes of the four digits of one axis, or None where hosts do not fit.

    >>> host_factors(8, 4, 2), host_factors(8, 2, 4), host_factors(6, 3, 2)
    ((2, 1, 2, 2), (2, 2, 1, 2), None)
    """
    tiles = extent // tile
    if tile >= host:
        return (tiles, 1, tile // host, host) if tile % host == 0 else None
    if host % tile:
        return None
    return (tiles // (host // tile), host // tile, 1, tile)


def tile_slice(
    extents: Sequence[int], tile: Tile, host: Sequence[int] | None
) -> Tiling | TilingFault:
    """Return the tiling of a slice of `extents` by `tile`, in T5X's order, or why there is none.

    Args:
      host: extents of one host, to keep its devices together; None to leave hosts out.
    """
    if any(size < 1 or extent % size for extent, size in zip(extents, tile, strict=True)):
        return _factor_fault(extents, tile)
    order, path = axis_order(extents, tile) if len(extents) == 4 else (range(len(extents)), None)
    if path and tile[3] != extents[3]:
        return _core_fault(extents, tile)
    hosts = (1,) * len(extents) if path or host is None else host
    fitted = {axis: host_factors(extents[axis], tile[axis], hosts[axis]) for axis in order}
    whole = {axis: factors for axis, factors in fitted.items() if factors is not None}
    if len(whole) < len(fitted):
        return TilingFault("host", _HOST_FAULT, "take a tile that leaves hosts whole")
    return _tiling(order, whole, path or ("plain" if host is None else "tile-by-host"))


def _tiling(order: Sequence[int], factors: dict[int, Primes], path: Path) -> Tiling:
    """Return the digits: all data-over-hosts first, then data inside hosts; model alike."""
    kinds: list[tuple[Digit, ...]] = []
    for kind in range(4):
        digits = (
            Digit(axis, factors[axis][kind], math.prod(factors[axis][kind + 1 :])) for axis in order
        )
        kinds.append(tuple(digit for digit in digits if digit.size > 1))
    return Tiling((*kinds[0], *kinds[1]), (*kinds[2], *kinds[3]), path)


def _factor_fault(extents: Sequence[int], tile: Tile) -> TilingFault:
    bad = [
        f"{name}: {want} does not divide {have}"
        for name, want, have in zip(_AXIS_NAMES, tile, extents, strict=False)
        if want < 1 or have % want
    ]
    message = f"submesh {shape_text(tile)} does not tile the slice: {'; '.join(bad)}"
    return TilingFault("factor", message, _fitting_tiles(extents, tile))


def _fitting_tiles(extents: Sequence[int], tile: Tile) -> str:
    """Return the tiles of the wanted size that do divide, or the divisors of each dimension."""
    fits = sorted(
        factorings(math.prod(tile), extents),
        key=lambda fit: sum(abs(a - b) for a, b in zip(fit, tile, strict=True)),
    )
    if fits:
        return f"these do: {', '.join(map(shape_text, fits[:4]))}"
    options = (", ".join(map(str, divisors(extent))) for extent in extents)
    rows = (f"{name}: {text}" for name, text in zip(_AXIS_NAMES, options, strict=False))
    return f"per dimension, one of {'; '.join(rows)}"


def _core_fault(extents: Sequence[int], tile: Tile) -> TilingFault:
    message = (
        f"a submesh that is one whole row or plane of the slice must take all {extents[3]} devices "
        f"of a chip, but core is {tile[3]}"
    )
    whole = next(
        (
            (*tile[:axis], tile[axis] // extents[3], *tile[axis + 1 : 3], extents[3])
            for axis in range(3)
            if tile[axis] % extents[3] == 0 and tile[3] == 1
        ),
        (*tile[:3], extents[3]),
    )
    return TilingFault("core", message, f"write `submesh {shape_text(whole)}`")


def tiling_on(hardware: Hardware, tile: Tile) -> Tiling | TilingFault:
    """Return the tiling of one slice, hosts kept together where the tile lets them be."""
    return _tiling_of(tuple(slice_extents(hardware)), tile, tuple(slice_host(hardware)))


@lru_cache(maxsize=1 << 12)
def _tiling_of(extents: tuple[int, ...], tile: Tile, host: tuple[int, ...]) -> Tiling | TilingFault:
    found = tile_slice(extents, tile, host)
    cuts_hosts = isinstance(found, TilingFault) and found.reason == "host"
    return tile_slice(extents, tile, None) if cuts_hosts else found


def tile_fault(axis: MeshAxis, hardware: Hardware, *, is_alone: bool = True) -> Diagnostic | None:
    """Return what keeps the submesh of a mesh axis from tiling one slice.

    Args:
      is_alone: whether it is the only thing that a mesh states of its order; then T5X's order is
        taken, which has rules of its own.
    """
    tile, chip = axis.submesh or (), hardware.chip
    if chip.torus_rank == 0:
        message = f"`submesh` is a tile of a TPU torus, and {chip.title} has none"
        return point(codes.SUBMESH_TILING, message, axis.span, help=f"write `{axis.size}`")
    if len(tile) != len(_AXIS_NAMES):
        text = f"submesh {shape_text(tile)}"
        message = f"a submesh is (x, y, z, core), and `{text}` has {len(tile)} numbers"
        return point(codes.SUBMESH_TILING, message, axis.span, help="as in `submesh 4x2x2x1`")
    fault = tiling_on(hardware, tile)
    if isinstance(fault, Tiling) or (fault.reason != "factor" and not is_alone):
        return None
    if fault.reason == "core":
        message = f"{fault.message} ({slice_text(hardware)})"
        return point(codes.SUBMESH_TILING, message, axis.span, help=fault.help)
    extents = slice_extents(hardware)
    notes: tuple[str, ...] = ()
    if tile[3] > extents[3] == 1:
        joined = ", its two cores joined (megacore)" if chip.cores_per_chip > 1 else ""
        counts = f"`core` counts the JAX devices of one chip; {chip.title} shows one{joined}"
        notes = (f"{counts}, so core must be 1",)
    label = f"one slice is {shape_text(extents)} (x, y, z, core)"
    return point(
        codes.SUBMESH_TILING, fault.message, axis.span, label, notes=notes, help=fault.help
    )


def slice_text(hardware: Hardware) -> str:
    """Return a slice as a person says it: `TPU v3 4x4, 2 devices a chip`."""
    cores = hardware.chip.devices_per_chip
    per_chip = f", {cores} devices a chip" if cores > 1 else ""
    return f"{hardware.chip.title} {shape_text(hardware.topology)}{per_chip}"


class SubmeshChoice(NamedTuple):
    """Our tile beside T5X's own.

    Attributes:
      t5x_tile: None where T5X has no entry.
      t5x_score: None where T5X's tile does not tile the slice.
    """

    tile: Tile
    score: AxisScore
    t5x_tile: Tile | None
    t5x_score: AxisScore | None


def score_tile(tile: Sequence[int], hardware: Hardware) -> AxisScore:
    """Return the score of a model axis that runs over such tiles."""
    machine = machines.machine_of(hardware)
    digits = [Digit(index + 1, size, 1) for index, size in enumerate(tile) if size > 1]
    return score_axis(digits, machine)


def best_submesh(hardware: Hardware, partitions: int) -> Tile | None:
    """Return the best tile of so many devices; None where none divides the slice."""
    return next(iter(_ranked(hardware, partitions)), None)


def better_submeshes(hardware: Hardware, partitions: int, score: AxisScore) -> tuple[Tile, ...]:
    """Return the tiles of so many devices that beat `score`, with more links; the best first."""
    scored = ((tile, score_tile(tile, hardware)) for tile in _ranked(hardware, partitions))
    return tuple(tile for tile, own in scored if own < score and own.links > score.links)


def tilings(hardware: Hardware, partitions: int) -> list[Tile]:
    """Return the tiles of so many devices that divide the slice."""
    extents, host = slice_extents(hardware), slice_host(hardware)
    tiles = factorings(partitions, extents)
    return [tile for tile in tiles if isinstance(tile_slice(extents, tile, host), Tiling)]


def _ranked(hardware: Hardware, partitions: int) -> list[Tile]:
    """Return the tiles of so many devices that divide the slice, the best first."""
    tiles = tilings(hardware, partitions)
    return sorted(tiles, key=lambda tile: (score_tile(tile, hardware), tile))


def choose_submesh(hardware: Hardware, partitions: int) -> SubmeshChoice | None:
    """Return the best tile and what T5X would have taken; None where no tile fits."""
    tile = best_submesh(hardware, partitions)
    if tile is None:
        return None
    theirs, extents = None, slice_extents(hardware)
    if hardware.chip.torus_rank:
        kind = hardware.chip.device_kinds[0]
        theirs = t5x_default_submesh(kind, extents, partitions)
    valid = theirs is not None and isinstance(
        tile_slice(extents, theirs, slice_host(hardware)), Tiling
    )
    their_score = score_tile(theirs, hardware) if theirs is not None and valid else None
    return SubmeshChoice(tile, score_tile(tile, hardware), theirs, their_score)


_CORE_PAIRS: dict[int, Tile] = {
    1: (1, 1, 1, 1),
    2: (1, 1, 1, 2),
    4: (2, 1, 1, 2),
    8: (2, 2, 1, 2),
    16: (4, 2, 1, 2),
}


def t5x_default_submesh(device_kind: str, bounds: Sequence[int], partitions: int) -> Tile | None:
    """Return T5X's pick, valid or not; None where its table has no entry.

    Args:
      device_kind: as JAX reports it.
      bounds: (x, y, z, core) of the slice.
    """
    if device_kind in ("TPU v2", "TPU v3"):
        return _CORE_PAIRS.get(partitions)
    if device_kind in ("TPU v4", "TPU v4 lite") and bounds[3] == 1:
        return _for_v4(bounds, partitions)
    return None


def _for_v4(bounds: Sequence[int], partitions: int) -> Tile | None:
    x, _, z, _ = bounds
    picks: dict[int, Tile] = {
        1: (1, 1, 1, 1),
        2: (1, 2, 1, 1),
        4: (4, 1, 1, 1) if x >= 4 else (2, 2, 1, 1),
        8: (1, 1, 8, 1) if z >= 8 else (4, 2, 1, 1),
    }
    if z >= 16:
        picks[16] = (1, 1, 16, 1)
    elif x >= 8:
        picks[16] = (8, 2, 1, 1)
    else:
        picks[16] = (4, 4, 1, 1) if x >= 4 else (2, 2, 4, 1)
    return picks.get(partitions)
