"""How fast a machine is, by a run that was captured on it: a calibration, as measuring gives one.

A product counts by the median of its runs, a collective by the device that came to it last, which
waited for nobody. A run has the sizes that its step has: a table of products is filled in between
with the nearest of them, and what stands behind each figure is how many operations were measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from shardspec.analysis.cost import cost_of
from shardspec.analysis.step_time import matmul_seconds, matmul_sizes
from shardspec.diagnostics.words import by_key, counted, grouped
from shardspec.ir.calibration import Calibration, Curve, MatmulTable, Spread
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Chip
from shardspec.ir.step import CollectiveKind
from shardspec.language.calibration import calibrated_chip
from shardspec.programs.captures import Capture
from shardspec.programs.measured import Joined
from shardspec.programs.moved import Traffic
from shardspec.programs.reading import ReadProgram
from shardspec.programs.runs import Steps, steps_of

#: Sizes of a table along one side, those that take longest.
_MOST_SIZES = 8
#: A copy smaller than this says how long it takes to begin, and not how fast memory is.
_LEAST_BYTES = 1 << 16
#: A share is more than nothing.
_LEAST_SHARE = 1e-3
_Sizes = tuple[int, int, int]


def calibration_of_run(
    capture: Capture, module: str, program: ReadProgram, plan: ShardingPlan, date: str
) -> Calibration:
    """Return what a run says of the machine of a plan's target.

    Raises:
      ValueError: it is of another kind of device, or has nothing that a calibration holds.
    """
    hardware = plan.target.hardware
    assert hardware is not None, "whoever asks knows the machine"
    ran = {each.rpartition("/")[2].partition(":")[0].lower() for each in _devices(capture)}
    if ran != {hardware.chip.platform}:
        kinds = " and ".join(sorted(each.upper() for each in ran))
        raise ValueError(f"it is of a {kinds}, and target `{plan.target.name}` of {hardware}")
    joined = Joined(cost_of(plan), capture, module, program)
    steps = steps_of(capture, module, joined.rank, joined.name)
    ran_on = f"{counted(len(steps.devices), 'device')}, {counted(steps.count, 'step')}"
    found = Calibration(
        hardware.chip.name,
        hardware.chip.device_kinds[0],
        date,
        f"a run of {module} on {ran_on}",
        machine=hardware.machine,
        mesh=str(plan.mesh),
        curves=tuple(_curves(joined, steps)),
        exposed=_exposed(joined, steps),
    )
    found = _with_matmuls(found, joined, steps, hardware.chip)
    if not (found.curves or found.matmuls):
        raise ValueError("it has no product and no collective whose sizes the program states")
    return found


def _devices(capture: Capture) -> set[str]:
    return {each.device for each in capture.events}


# products


def _with_matmuls(made: Calibration, joined: Joined, steps: Steps, chip: Chip) -> Calibration:
    runs: dict[str, dict[_Sizes, list[float]]] = {}
    for op, times in steps.once.items():
        found = joined.product(op)
        sizes = None if found is None else matmul_sizes(replace(found, kind="einsum"))
        if found is not None and sizes is not None:
            m, k, n = (max(1, round(each)) for each in sizes)
            runs.setdefault(found.dtype, {}).setdefault((m, k, n), []).extend(times)
    if chip.bf16_flops_per_s is None:
        peaks = {
            dtype: max(2 * math.prod(at) / statistics.median(took) for at, took in held.items())
            for dtype, held in runs.items()
        }
        made = replace(made, flops_per_s=tuple(peaks.items()))
    if chip.hbm_bytes_per_s is None:
        made = replace(made, hbm_bytes_per_s=_memory(joined, steps))
        if made.hbm_bytes_per_s is None:
            return made
    own = calibrated_chip(chip, made)
    tables = (_table(dtype, held, own) for dtype, held in runs.items())
    return replace(made, matmuls=tuple(tables))


def _memory(joined: Joined, steps: Steps) -> Spread | None:
    """Return how fast operations that multiply and send nothing read and write."""
    assert joined.program is not None, "a calibration is of a program"
    calls = joined.program.calls
    traffic, speeds = Traffic(calls, is_tpu=False), []
    for op, times in steps.once.items():
        at = joined.instruction(op)
        body = None if at is None else calls.program.computations.get(at[0].computation)
        if at is None or body is None or joined.sends(op) or joined.product(op) is not None:
            continue
        moved, took = traffic.of(body, at[1]), statistics.median(times)
        if moved >= _LEAST_BYTES and took > 0:
            speeds.append(moved / took)
    return _spread(speeds) if speeds else None


def _table(dtype: str, runs: dict[_Sizes, list[float]], chip: Chip) -> MatmulTable:
    """Return a table over the sizes that take longest; between them it has the nearest."""
    shares = {
        at: min(1.0, matmul_seconds(chip, dtype, *at) / statistics.median(took))
        for at, took in runs.items()
    }
    sides = tuple(_sides(runs, side) for side in range(3))

    def nearest(at: tuple[int, ...]) -> float:
        return shares[min(shares, key=lambda each: (_apart(each, at), each))]

    filled = (max(_LEAST_SHARE, float(f"{nearest(at):.3g}")) for at in product(*sides))
    count = sum(map(len, runs.values()))
    spreads = ((max(took) - min(took)) / statistics.median(took) for took in runs.values())
    spread = statistics.median(spreads)
    m, k, n = sides
    return MatmulTable(dtype, m, k, n, tuple(filled), spread, count)


def _sides(runs: dict[_Sizes, list[float]], side: int) -> tuple[int, ...]:
    """Return the sizes along one side of a table."""
    times = grouped(runs, lambda at: at[side])
    took = {size: sum(sum(runs[at]) for at in held) for size, held in times.items()}
    return tuple(sorted(sorted(took, key=lambda size: -took[size])[:_MOST_SIZES]))


def _apart(one: Sequence[int], other: Sequence[int]) -> float:
    return sum(math.log(a / b) ** 2 for a, b in zip(one, other, strict=True))


# collectives


def _curves(joined: Joined, steps: Steps) -> Iterator[Curve]:
    """Yield how long each kind of collective takes over its mesh axes, by what it carries."""
    found: list[tuple[tuple[CollectiveKind, tuple[str, ...], int], float]] = []
    for op, times in steps.once.items():
        sends = joined.sends(op)
        ways = {(each.kind, each.axes) for each in sends}
        if len(ways) == 1 and joined.product(op) is None:
            size = sum(each.payload_bytes for each in sends)
            found += (((sends[0].kind, sends[0].axes, size), took) for took in times if took > 0)
    kinds = grouped(by_key(found).items(), lambda item: item[0][:2])
    for (kind, axes), held in kinds.items():
        rows = sorted((size, _spread(times)) for (_, _, size), times in held if size)
        if rows:
            yield Curve(kind, axes, tuple(row[0] for row in rows), tuple(row[1] for row in rows))


def _exposed(joined: Joined, steps: Steps) -> Spread | None:
    """Return which share of the collectives shows in the time of a step."""
    sent = [(op, took) for op, took in steps.ops.items() if joined.sends(op) and took.seconds]
    whole = sum(took.seconds for _, took in sent)
    if not whole:
        return None
    shares = [max(_LEAST_SHARE, took.shown / took.seconds) for _, took in sent]
    mean = max(_LEAST_SHARE, sum(took.shown for _, took in sent) / whole)
    count = sum(len(steps.once.get(op, ())) for op, _ in sent)
    return Spread(min(max(mean, min(shares)), max(shares)), min(shares), max(shares), count)


def _spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values), len(values))
