"""What a compiled program holds on a device, out of the compiler's own buffer assignment.

XLA prints every allocation with its size, what it is for, and the values that share it. Allocations
of another color than the first lie in other memory (the chip's own vector memory, the host's).
What a computation that is called beside others (a copy on the sparse cores of v7x) is given and
gives, `thread-local`, is its caller's memory once more: it takes none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_ALLOCATION = re.compile(r"allocation \d{1,18}: size (\d{1,18})(.*)")
_VALUE = re.compile(
    r" *value: <\d{1,18} ([\w.\-]+)(?:\{[\d,]*\})? .{0,40}?\(size=(\d{1,18}),offset=(\d{1,18})\)"
)
_PARAMETER = re.compile(r", parameter (\d{1,9}),")
_SHAPE = re.compile(r"\): (\w+\[[\d,]*\])")
#: How many of the largest values are kept.
_MOST = 10


@dataclass(frozen=True, slots=True)
class HeldValue:
    """A value of the program that shares the memory of temporaries.

    Attributes:
      name: of the instruction that makes it.
      shape: on one device, `bf16[16,4096]`.
    """

    name: str
    shape: str
    bytes: int


@dataclass(frozen=True, slots=True)
class CompiledMemory:
    """What one device holds of a program, by the compiler.

    Attributes:
      arguments: the bytes of each parameter, by its number; those that results take over included.
      output_bytes: of results that have memory of their own.
      temporary_bytes: of everything in between: one block, in which values follow each other.
      other_bytes: constants and scalars.
      largest: of what shares the block of temporaries, the largest first; of values in the same
        place, such as a loop's and its body's, the first.
    """

    arguments: Mapping[int, int]
    output_bytes: int
    temporary_bytes: int
    other_bytes: int = 0
    largest: tuple[HeldValue, ...] = ()

    @property
    def argument_bytes(self) -> int:
        """Return the bytes of all parameters."""
        return sum(self.arguments.values())

    @property
    def bytes(self) -> int:
        """Return what the program needs in all."""
        return self.argument_bytes + self.output_bytes + self.temporary_bytes + self.other_bytes


def memory_of_assignment(text: str) -> CompiledMemory | None:
    """Return what a buffer assignment says, None where the text is none.

    Args:
      text: a dump `*after_optimizations-buffer-assignment.txt` of XLA.
    """
    arguments: dict[int, int] = {}
    sizes = {"output": 0, "temporary": 0, "other": 0}
    values: dict[tuple[int, int], HeldValue] = {}
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
                size, offset = int(value.group(2)), int(value.group(3))
                made = HeldValue(value.group(1), shape.group(1), size)
                values.setdefault((offset, size), made)
    if kind is None:
        return None
    ordered = sorted(values.values(), key=lambda value: (-value.bytes, value.name))
    held = tuple(ordered[:_MOST])
    return CompiledMemory(arguments, sizes["output"], sizes["temporary"], sizes["other"], held)


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
