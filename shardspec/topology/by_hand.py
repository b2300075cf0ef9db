"""An order that the spec states itself: digits of the machine, several tiles, a list of devices.

`over x y4/2` gives a mesh axis its digits, a submesh how many ways it takes along each direction,
and a list says of every place of the mesh which device stands there. Each is a claim that every
device stands at one place, and is checked here before anything is laid out. Nothing is ever counted
out device by device before it is known that there are as many as there are places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, Label, Span, codes, labels_at, point, quote
from shardspec.diagnostics.words import listed, near_or_known
from shardspec.ir.spec import Hardware, Mesh, MeshAxis, Stretch, divisors, shape_text
from shardspec.topology.machine import Digit, Machine, machine_of

#: Of the devices of a list: each is a place in memory.
MOST_LISTED = 1 << 18
_NAMED = 4
_DIVISORS = 16


class StatedDigit(NamedTuple):
    """A stretch of a mesh axis on a machine, and where the spec says it."""

    owner: str
    stretch: Stretch
    digit: Digit
    span: Span | None

    def __str__(self) -> str:
        """Return `x4/2` of `data`, in quotes."""
        return f"`{self.stretch}` of `{self.owner}`"


def digits_over(axis: MeshAxis, machine: Machine) -> tuple[Digit, ...]:
    """Return the digits of an axis that says what it runs over, most significant first."""
    indices = {physical.name: index for index, physical in enumerate(machine)}
    return tuple(
        Digit(index, each.size or machine[index].extent, each.step)
        for each in axis.over
        for index in (indices[each.direction],)
    )


def free_digits(stated: Sequence[Digit], machine: Machine) -> tuple[Digit, ...]:
    """Return what digits that are stated leave over, the slowest physical axis first.

    Where nothing is stated this is the machine, a digit for each physical axis.

    Invariants:
      permutation: with those that are stated, these count every device once.

    >>> from shardspec.topology.machine import PhysicalAxis
    >>> free_digits([Digit(0, 2, 2)], (PhysicalAxis("x", 8, "ici"),))
    (Digit(axis=0, size=2, stride=4), Digit(axis=0, size=2, stride=1))
    """
    free: list[Digit] = []
    for index, physical in enumerate(machine):
        own = sorted(
            (d for d in stated if d.axis == index and d.size > 1), key=lambda digit: digit.stride
        )
        gaps, reached = [], 1
        for digit in own:
            gaps.append(Digit(index, digit.stride // reached, reached))
            reached = digit.span
        gaps.append(Digit(index, physical.extent // reached, reached))
        free += [gap for gap in reversed(gaps) if gap.size > 1 or not own]
    return tuple(free)


def sized(
    axis: MeshAxis, spans: Sequence[Span | None], hardware: Hardware
) -> tuple[MeshAxis, tuple[StatedDigit, ...], Diagnostic | None]:
    """Return an axis that says what it runs over with its size, its digits, or what is wrong.

    Args:
      spans: the place of each stretch.
    """
    machine = machine_of(hardware)
    extents = {physical.name: physical.extent for physical in machine}
    for each, span in zip(axis.over, spans, strict=True):
        fault = _stretch_fault(each, span, extents, hardware)
        if fault is not None:
            return axis, (), fault
    digits = digits_over(axis, machine)
    links = {machine[digit.axis].link for digit in digits if digit.size > 1}
    size = math.prod(digit.size for digit in digits)
    found = replace(axis, size=size, network="dcn" if links == {"dcn"} else "ici")
    stated = zip(axis.over, digits, spans, strict=True)
    return found, tuple(StatedDigit(axis.name, *each) for each in stated), None


def _stretch_fault(
    each: Stretch, place: Span | None, extents: dict[str, int], hardware: Hardware
) -> Diagnostic | None:
    """Return why a stretch is none of this machine."""
    extent = extents.get(each.direction)
    if extent is None:
        message = f"`{each.direction}` is no direction of {hardware}"
        help = near_or_known(each.direction, extents, "directions")
        return point(codes.DEVICE_ORDER, message, place, help=help)
    size = extent if each.size is None else each.size
    if extent % (size * each.step) == 0:
        return None
    long = f"{each.direction} is {extent} long on {hardware}"
    if extent % size == 0:
        span = size * each.step
        message = f"`{each}`: {long}, and {size} that are {each.step} apart take {span} of it"
        help = f"steps that fit: {_listed_divisors(extent // size)}"
        return point(codes.DEVICE_ORDER, message, place, help=help)
    message = f"`{each}`: {long}, which {size} does not divide"
    return point(codes.DEVICE_ORDER, message, place, help=f"one of {_listed_divisors(extent)}")


def _listed_divisors(number: int) -> str:
    return ", ".join(map(str, divisors(number)[:_DIVISORS]))


def fault_on(mesh: Mesh, hardware: Hardware) -> Diagnostic | None:
    """Return why a mesh whose sizes are known does not lie on a machine as it says.

    Where it was made for this one, that is known already; a search asks of others.
    """
    stated: list[StatedDigit] = []
    for axis in mesh.axes:
        if axis.over:
            found, digits, fault = sized(axis, [axis.span] * len(axis.over), hardware)
            if fault is not None:
                return fault
            if found.size != axis.size:
                message = f"`{axis.name}` = {axis.size} runs over {found.size} of {hardware}"
                return point(codes.DEVICE_ORDER, message, axis.span, help=f"write `{axis.size}`")
            stated += digits
    tiled = [axis for axis in mesh.axes if axis.submesh is not None]
    fault = overlap(stated, machine_of(hardware))
    return fault or (tiles_fault(tiled, stated, hardware) if tiled else None)


def overlap(stated: Sequence[StatedDigit], machine: Machine) -> Diagnostic | None:
    """Return the finding for two stretches that would put two devices in one place."""
    for index, physical in enumerate(machine):
        own = [each for each in stated if each.digit.axis == index and each.digit.size > 1]
        own.sort(key=lambda each: each.digit.stride)
        for below, above in pairwise(own):
            if above.digit.stride % below.digit.span:
                return _meet(below, above, _stepped(own, stated, physical.extent))
    return None


def _meet(below: StatedDigit, above: StatedDigit, way_out: str) -> Diagnostic:
    name = below.stretch.direction
    return Diagnostic(
        codes.DEVICE_ORDER,
        f"{above} and {below} share devices along {name}: some would stand at two places of the"
        " mesh, others at none",
        labels_at((above.span, "runs over some"), (below.span, "that this runs over")),
        help=way_out,
    )


def _stepped(own: Sequence[StatedDigit], stated: Sequence[StatedDigit], extent: int) -> str:
    """Return the stretches with steps such that they share nothing, the last with neighbours."""
    product = math.prod(each.digit.size for each in own)
    sizes = " * ".join(str(each.digit.size) for each in own)
    if extent % product:
        return f"sizes along it must divide {extent}, and {sizes} = {product} does not"
    steps, below = {}, 1
    for each in reversed([each for each in stated if each in own]):
        steps[each] = f"`{each.stretch._replace(size=each.digit.size, step=below)}`"
        below *= each.digit.size
    said = ", ".join(f"{text} of `{each.owner}`" for each, text in reversed(steps.items()))
    return f"write {said}: then the last one has the neighbours"


def left_out(
    stated: Sequence[StatedDigit], machine: Machine, span: Span | None, target: str
) -> Diagnostic | None:
    """Return the finding where all axes say what they run over, and that is not the machine."""
    free = [d for d in free_digits([e.digit for e in stated], machine) if d.size > 1]
    if not free:
        return None
    missing = [_missing(digit, stated, machine) for digit in free]
    total = math.prod(physical.extent for physical in machine)
    over = f"over {' '.join(missing)} {stated[0].stretch}"
    idle = total - total // math.prod(digit.size for digit in free)
    return point(
        codes.DEVICE_ORDER,
        f"no mesh axis of target `{target}` runs over {listed(missing)}: {idle} of {total} devices"
        " would stand nowhere",
        span,
        help=f"add it to one of them, as in {quote.size(stated[0].owner, over)}, or add an axis"
        " that is `rest`",
    )


def _missing(digit: Digit, stated: Sequence[StatedDigit], machine: Machine) -> str:
    is_whole = all(each.digit.axis != digit.axis for each in stated)
    name = machine[digit.axis].name
    return name if is_whole else str(Stretch(name, digit.size, digit.stride))


def tiles_fault(
    tiled: Sequence[MeshAxis], stated: Sequence[StatedDigit], hardware: Hardware
) -> Diagnostic | None:
    """Return why submeshes do not tile a slice together, beside what `over` has taken.

    Each has (x, y, z, core) numbers. Of one direction, the last tile has the neighbours.
    """
    from shardspec.topology.assignment import factorings

    machine = machine_of(hardware)
    left = [1] * len(machine)
    for digit in free_digits([each.digit for each in stated], machine):
        left[digit.axis] *= digit.size
    room = left[1:]
    asked = [
        math.prod(axis.submesh[at] for axis in tiled if axis.submesh) for at in range(len(room))
    ]
    bad = [at for at, (want, have) in enumerate(zip(asked, room, strict=True)) if have % want]
    if not bad:
        return None
    first, *others = tiled
    why = "; ".join(_too_many(machine[at + 1].name, at, tiled, room[at], stated) for at in bad)
    beside = [
        have // math.gcd(have, math.prod(axis.submesh[at] for axis in others if axis.submesh))
        for at, have in enumerate(room)
    ]
    wanted = first.submesh or ()
    fits = sorted(
        factorings(first.size, tuple(beside)),
        key=lambda fit: sum(abs(a - b) for a, b in zip(fit, wanted, strict=True)),
    )
    names = listed([axis.name for axis in tiled])
    tiles = ", ".join(f"`submesh {shape_text(fit)}`" for fit in fits[:4])
    help = (
        f"for `{first.name}` these fit: {tiles}" if fits else f"no tile of {first.size} fits beside"
    )
    marks = [(axis.span, shape_text(axis.submesh or ())) for axis in tiled]
    return Diagnostic(
        codes.SUBMESH_TILING,
        f"{_tiles_named(names, len(tiled))}: {why}",
        labels_at(*marks),
        help=help,
    )


def _tiles_named(names: str, count: int) -> str:
    if count == 1:
        return f"the submesh of {names} does not tile the slice"
    return f"the submeshes of {names} do not tile the slice together"


def _too_many(
    name: str, at: int, tiled: Sequence[MeshAxis], have: int, stated: Sequence[StatedDigit]
) -> str:
    """Return `x: 2 * 4 = 8 does not divide 4`."""
    sizes = [axis.submesh[at] for axis in tiled if axis.submesh and axis.submesh[at] > 1]
    product = " * ".join(map(str, sizes))
    total = product if len(sizes) == 1 else f"{product} = {math.prod(sizes)}"
    taken = any(each.digit.axis == at + 1 and each.digit.size > 1 for each in stated)
    return f"{name}: {total} does not divide {have}{', which `over` leaves' if taken else ''}"


class DeviceRun(NamedTuple):
    """Devices of a list in a row, `0..3` or `7..4`; one where both are the same."""

    first: int
    last: int
    span: Span

    @property
    def length(self) -> int:
        """Return how many there are."""
        return abs(self.last - self.first) + 1

    @property
    def numbers(self) -> range:
        """Return them, in order."""
        step = 1 if self.last >= self.first else -1
        return range(self.first, self.last + step, step)


def listed_devices(
    runs: Sequence[DeviceRun], axes: Sequence[MeshAxis], span: Span, total: int
) -> tuple[int, ...] | Diagnostic:
    """Return the devices of a list, or why it is no permutation of all there are.

    Args:
      span: the place of the list.
      total: the devices of the mesh.
    """
    twice = next((a for a in axes if a.over or a.submesh is not None or a.auto), None)
    if twice is not None:
        message = f"`devices` lists the order, and `{twice.name}` states its own"
        labels = labels_at((span, "says where every device stands"), (twice.span, "says it again"))
        help = f"write {quote.size(twice.name, twice.size)}, or take the list out"
        return Diagnostic(codes.DEVICE_ORDER, message, labels, help=help)
    out = next((run for run in runs if max(run.first, run.last) >= total), None)
    if out is not None:
        message = f"there is no device {out.first if out.first >= total else total}"
        help = f"the {total} devices of the mesh have the numbers 0 to {total - 1}"
        return point(codes.DEVICE_ORDER, message, out.span, help=help)
    count = sum(run.length for run in runs)
    if count > MOST_LISTED or total > MOST_LISTED:
        message = f"a list of {max(count, total):,} devices; {MOST_LISTED:,} is the most"
        help = "say the order by directions: `over x y4`"
        return point(codes.DEVICE_ORDER, message, span, help=help)
    return _once(runs, span, total)


def _once(runs: Sequence[DeviceRun], span: Span, total: int) -> tuple[int, ...] | Diagnostic:
    """Return the devices, each of which stands in the list once, or those that do not."""
    places: dict[int, DeviceRun] = {}
    again: dict[int, DeviceRun] = {}
    for run in runs:
        for number in run.numbers:
            (again if number in places else places).setdefault(number, run)
    missing = [number for number in range(total) if number not in places]
    lacks = f"device{'s' if len(missing) > 1 else ''} {_some(missing)}"
    if not again and not missing:
        return tuple(places)
    if not again:
        verb = "is" if len(missing) == 1 else "are"
        message = f"`devices` lists {len(places)} of {total} devices: {lacks} {verb} missing"
        return point(codes.DEVICE_ORDER, message, span, help=f"add {_some(missing)}")
    number, run = next(iter(again.items()))
    more = f", as are {_some([each for each in again if each != number])}" if len(again) > 1 else ""
    return Diagnostic(
        codes.DEVICE_ORDER,
        f"device {number} is listed twice{more}",
        (Label(run.span, "again here"), Label(places[number].span, "first here", primary=False)),
        help=f"put {_some(missing)} in place of {'it' if len(missing) == 1 else 'them'}: {lacks}"
        f" {'is' if len(missing) == 1 else 'are'} not listed"
        if missing
        else "leave one of the two out",
    )


def _some(numbers: Sequence[int]) -> str:
    """Return `4, 5, 6, 7 and 9 more`."""
    text = ", ".join(map(str, numbers[:_NAMED]))
    return f"{text} and {len(numbers) - _NAMED} more" if len(numbers) > _NAMED else text


def device_coordinates(hardware: Hardware) -> Iterator[tuple[int, ...]]:
    """Yield the coordinate of each device in the order of their numbers.

    A TPU counts core, x, y and z, the first fastest, then the next slice: as `id` of JAX does.
    Others count node by node.
    """
    machine = machine_of(hardware)
    extents = [axis.extent for axis in machine]
    slices, *torus, core = range(len(machine))
    order = (
        [slices, *reversed(torus), core] if hardware.chip.platform == "tpu" else range(len(extents))
    )
    for number in range(math.prod(extents)):
        place, rest = [0] * len(extents), number
        for axis in reversed(order):
            rest, place[axis] = divmod(rest, extents[axis])
        yield tuple(place)
