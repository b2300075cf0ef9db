"""Whether a sharded step computes what one device computes: the answer, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from shardspec.diagnostics.lines import columns
from shardspec.diagnostics.words import by_key, counted, listed
from shardspec.ir.step import Place
from shardspec.records import Data, data_of

Verdict = Literal["same", "different", "untried"]

#: Outputs that are shown of those that differ; JSON has all.
_MOST = 8
#: Sizes in code that are shown of those that became small.
_MOST_SIZES = 6


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """An array that the step returns, and that differs.

    Attributes:
      call: 1 for the first call of the step, 2 for the second, with the state of the first.
      error: the largest difference, as a share of the largest value.
      noise: the same between two runs on one device whose inputs differ by rounding.
      ratio: sharded by unsharded, where it is the same for all elements.
      devices_differ: whether devices that should hold the same values hold others.
    """

    path: str
    call: int
    error: float
    noise: float
    ratio: float | None = None
    devices_differ: bool = False


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first value inside the step that differs.

    Attributes:
      what: how it differs.
      operation: as JAX names it.
    """

    place: Place
    what: str
    operation: str


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a step computes on small meshes, compared with one device.

    Attributes:
      outputs: how many arrays it returns.
      width: the dtype of all floats.
      seeds: how many sets of values were tried.
      meshes: the sizes of the mesh axes above 1, of each mesh.
      axes: the mesh axes at fault, each set one that differs with all others at 1.
      first: None where it is not known.
      untried: why the sharded step could not be run, by mesh axis.
      sizes: that became small, with the small ones; `written` are those in code.
      unstable: outputs without a finite number on one device, which are not compared.
      capacities: lines that give each device a capacity of its own, by which it drops other tokens
        than one device: both runs had room for all.
      device_random: lines whose random numbers depend on the device; both runs used constants.
    """

    step: str
    target: str
    outputs: int
    width: str
    seeds: int
    meshes: tuple[tuple[tuple[str, int], ...], ...] = ()
    differences: tuple[OutputDifference, ...] = ()
    axes: tuple[tuple[str, ...], ...] = ()
    first: FirstDifference | None = None
    untried: tuple[tuple[str, str], ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    written: tuple[str, ...] = ()
    unstable: tuple[str, ...] = ()
    device_random: tuple[Place, ...] = ()
    capacities: tuple[str, ...] = ()
    seconds: float = field(default=0.0, compare=False)

    def __str__(self) -> str:
        """Return the answer as `shardspec verify --numbers` prints it."""
        return "\n".join(map(str, numbers_lines(self)))

    @property
    def verdict(self) -> Verdict:
        """Return `untried` also where an axis in use, or an output, was not compared."""
        if self.differences:
            return "different"
        return "untried" if self.untried or self.unstable or not self.meshes else "same"


def numbers_lines(numbers: Numbers) -> list[str]:
    """Return the answer as text."""
    lines = [f"numbers {numbers.step} on {numbers.target}: {_headline(numbers)}", ""]
    lines += [f"  {key:8} {text}" for key, text in _facts(numbers)]
    if numbers.differences:
        lines += ["", *(f"  {line}" for line in _table(numbers))]
    return lines


def _headline(numbers: Numbers) -> str:
    count = counted(numbers.outputs, "output")
    if numbers.verdict == "different":
        paths = {each.path for each in numbers.differences}
        verb = "differs" if len(paths) == 1 else "differ"
        return f"DIFFERENT: {len(paths)} of {count} {verb} from one device"
    if not numbers.meshes:
        return "NOT COMPARED with one device"
    if numbers.untried:
        axes = listed([axis for axis, _ in numbers.untried])
        return f"the same in all of {count} where it could be tried; NOT COMPARED over {axes}"
    if numbers.unstable:
        some = f"{len(numbers.unstable)} of {count}"
        return f"NOT COMPARED in {some}: no finite number on one device; the same in the others"
    room = " with room for all tokens" if numbers.capacities else ""
    if numbers.outputs == 1:
        return f"the same{room}: the output equals that of one device"
    return f"the same{room}: all {count} equal those of one device"


def _facts(numbers: Numbers) -> Iterator[tuple[str, str]]:
    meshes = "; ".join(" ".join(f"{name}={size}" for name, size in each) for each in numbers.meshes)
    if meshes:
        seeds = counted(numbers.seeds, "seed")
        yield "meshes", f"{meshes}  ({numbers.width}, {seeds}, two calls each)"
    if numbers.axes:
        yield "axis", "; ".join(" with ".join(each) for each in numbers.axes)
    if numbers.first is not None:
        place = numbers.first.place
        yield "first", f"{place} {numbers.first.what} ({numbers.first.operation})"
    for why, axes in by_key((why, axis) for axis, why in numbers.untried).items():
        yield "untried", f"{', '.join(axes)}: {why}"
    if numbers.unstable:
        yield "unstable", f"{listed(numbers.unstable)}: give values by `--inputs MODULE:FUNCTION`"
    for line in numbers.capacities:
        yield "capacity", f"{line} is of each device, which drops other tokens: both runs keep all"
    for place in numbers.device_random:
        yield "random", f"{place} depends on the device: replaced by a constant in both runs"
    if numbers.sizes:
        yield "sizes", ", ".join(f"{size} -> {small}" for size, small in numbers.sizes)
    if numbers.written:
        more = len(numbers.written) - _MOST_SIZES
        rest = [f"{more} more"] if more > 0 else []
        yield "in code", ", ".join([*numbers.written[:_MOST_SIZES], *rest])


def _table(numbers: Numbers) -> Sequence[str]:
    rows = [("output", "call", "off by", "rounding", "")]
    for each in numbers.differences[:_MOST]:
        ratio = each.ratio
        notes = [_ratio(ratio)] if ratio is not None and f"{ratio:.2f}" != "1.00" else []
        notes += ["devices hold different values"] if each.devices_differ else []
        rows.append(
            (each.path, f"{each.call}", f"{each.error:.1e}", f"{each.noise:.0e}", ", ".join(notes))
        )
    more = len(numbers.differences) - _MOST
    rest = [f"and {more} more"] if more > 0 else []
    return [*columns(rows, right=(1, 2, 3)), *rest]


def _ratio(ratio: float) -> str:
    """Return what a constant ratio between two runs means."""
    known = {2.0: "summed twice", 0.5: "half of the sum", 4.0: "summed 4 times"}
    meaning = next((text for value, text in known.items() if abs(ratio - value) < 0.01 * value), "")
    return f"{ratio:.2f} times{f': {meaning}' if meaning else ''}"


def numbers_data(numbers: Numbers) -> Data:
    """Return the answer as data for JSON."""
    return {"verdict": numbers.verdict, **data_of(numbers)}
