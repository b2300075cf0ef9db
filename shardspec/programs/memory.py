"""What a compiled program holds on a device, out of the compiler's own buffer assignment.

XLA prints every allocation with its size, what it is for, and the values that share it. Allocations
of another color than the first lie in other memory (the chip's own vector memory, the host's).
What a computation that is called beside others (a copy on the sparse cores of v7x) is given and
gives, `thread-local`, is its caller's memory once more: it takes none.

The report of live ranges says when each value is alive. The values alive at the peak are returned
by name. The block of temporaries is larger than their sum, by the gaps between them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

_ALLOCATION = re.compile(r"allocation \d{1,18}: size (\d{1,18})(.*)")
_VALUE = re.compile(
    r" *value: <\d{1,18} ([\w.\-]+)(\{[\d,]*\})? .{0,40}?\(size=(\d{1,18}),offset=(\d{1,18})\)"
)
_LIFE = re.compile(r" *([\w.\-]+\{[\d,]*\}):(\d{1,9})-(\d{1,9})")
_PARAMETER = re.compile(r", parameter (\d{1,9}),")
_SHAPE = re.compile(r"\): (\w+\[[\d,]*\])")
#: How many of the largest values are kept.
_MOST = 20
#: How XLA begins to say that there is not enough memory.
NO_ROOM = "RESOURCE_EXHAUSTED"


@dataclass(frozen=True, slots=True)
class HeldValue:
    """A value of the program that shares the memory of temporaries.

    Attributes:
      name: of the instruction that makes it.
      shape: on one device, `bf16[16,4096]`.
      names: all that ever have this place in memory, those of the peak first.
    """

    name: str
    shape: str
    bytes: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CompiledMemory:
    """What one device holds of a program, by the compiler.

    Attributes:
      arguments: the bytes of each parameter, by its number; those that results take over included.
      output_bytes: of results that have memory of their own.
      temporary_bytes: of everything in between: one block, in which values follow each other.
      other_bytes: constants and scalars.
      largest: of what shares the block of temporaries, the largest first; of values in the same
        place, such as a loop's and its body's, the first. Where lives are known, only of what is
        alive at the peak.
      alive_bytes: of the block, what is alive at the peak; None where lives are not known.
    """

    arguments: Mapping[int, int]
    output_bytes: int
    temporary_bytes: int
    other_bytes: int = 0
    largest: tuple[HeldValue, ...] = ()
    alive_bytes: int | None = None

    @property
    def argument_bytes(self) -> int:
        """Return the bytes of all parameters."""
        return sum(self.arguments.values())

    @property
    def bytes(self) -> int:
        """Return what the program needs in all."""
        return self.argument_bytes + self.output_bytes + self.temporary_bytes + self.other_bytes


def memory_of_assignment(text: str, lives: str = "") -> CompiledMemory | None:
    """Return what a buffer assignment says, None where the text is none.

    Args:
      text: a dump `*after_optimizations-buffer-assignment.txt` of XLA.
      lives: its dump `*after_optimizations-live-range.txt`.

    Invariants:
      alive: what is alive at the peak is never more than the block of temporaries.
    """
    arguments: dict[int, int] = {}
    sizes = {"output": 0, "temporary": 0, "other": 0}
    values: dict[_Seat, list[tuple[str, HeldValue]]] = {}
    kind: str | None = None
    for line in _lines_of_allocations(text):
        allocation = _ALLOCATION.match(line)
        if allocation:
            size, about = int(allocation.group(1)), allocation.group(2)
            parameter = _PARAMETER.search(about)
            kind = _kind(about)
            if parameter and kind:
                arguments[int(parameter.group(1))] = size
            elif kind:
                sizes[kind] += size
        elif kind == "temporary":
            value = _VALUE.match(line)
            shape = _SHAPE.search(line)
            if value and shape:
                size, offset = int(value.group(3)), int(value.group(4))
                made = HeldValue(value.group(1), shape.group(1), size)
                name = value.group(1) + (value.group(2) or "{}")
                values.setdefault((offset, size), []).append((name, made))
    if kind is None:
        return None
    alive = _alive(values, lives) if lives else None
    first = (named[0][1] for named in values.values())
    held = [replace(each, names=(each.name,)) for each in first] if alive is None else alive
    ordered = sorted(held, key=lambda value: (-value.bytes, value.name))
    return CompiledMemory(
        arguments,
        sizes["output"],
        sizes["temporary"],
        sizes["other"],
        tuple(ordered[:_MOST]),
        None if alive is None else min(sizes["temporary"], sum(each.bytes for each in alive)),
    )


#: Where a value lies in the block: its offset and its size.
_Seat = tuple[int, int]


def _alive(
    values: Mapping[_Seat, Sequence[tuple[str, HeldValue]]], text: str
) -> list[HeldValue] | None:
    """Return what is alive at the moment that holds most, a place in memory once; None if unknown.

    Args:
      values: those of each place, with their names in the report of live ranges.
    """
    lives: dict[str, tuple[int, int]] = {}
    for line in text.split("\n"):
        life = _LIFE.fullmatch(line)
        if life:
            lives[life.group(1)] = int(life.group(2)), int(life.group(3))
    changes: dict[int, list[tuple[int, _Seat]]] = {}
    for seat, named in values.items():
        known = {lives[name] for name, _ in named if name in lives}
        for born, dies in (life for life in known if life[0] <= life[1]):
            changes.setdefault(born, []).append((1, seat))
            changes.setdefault(dies + 1, []).append((-1, seat))
    if not changes:
        return None
    held: Counter[_Seat] = Counter()
    best, most, at = 0, 0, min(changes)
    for tick in sorted(changes):
        for change, seat in changes[tick]:
            before = held[seat] > 0
            held[seat] += change
            most += seat[1] * ((held[seat] > 0) - before)
        if most > best:
            best, at = most, tick
    found = []
    for named in values.values():
        alive = [value for name, value in named if _lives_at(lives.get(name), at)]
        if alive:
            every = (value for _, value in named)
            names = dict.fromkeys(value.name for value in (*alive, *every))
            found.append(replace(alive[0], names=tuple(names)))
    return found


def _lives_at(life: tuple[int, int] | None, tick: int) -> bool:
    return life is not None and life[0] <= tick <= life[1]


def memory_of_stats(stats: Mapping[str, int]) -> CompiledMemory:
    """Return what XLA's memory statistics say: sums alone.

    Args:
      stats: bytes of `argument`, `output`, `alias` (results in the memory of arguments), `temp`.
    """
    output = max(0, stats["output"] - stats["alias"])
    return CompiledMemory({0: stats["argument"]}, output, stats["temp"])


def _lines_of_allocations(text: str) -> Iterator[str]:
    """Yield the lines behind `BufferAssignment:`."""
    _, _, behind = text.partition("BufferAssignment:\n")
    for line in behind.split("\n"):
        if line.startswith(("Total bytes used", "HloLiveRange", "Used values")):
            return
        yield line


def _kind(about: str) -> str:
    """Return what an allocation is for; nothing where it takes no memory of the device."""
    if ", color " in about or ", thread-local" in about:
        return ""
    if ", preallocated-temp" in about:
        return "temporary"
    return "output" if ", maybe-live-out" in about else "other"
