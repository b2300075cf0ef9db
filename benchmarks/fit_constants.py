"""The constants of the time of a step, fitted on the measured rows, each with its error bars.

    python benchmarks/fit_constants.py

A row's time is nearly a sum of parts, each of them one constant times what it multiplies: the parts
come from `step_time` itself, by what a change of each constant does to it. They are fitted by the
mean of the relative errors' sizes (weighted squares, again and again), on decoders of 4B and more
on TPU; then the one share that GPUs have, `matmul_efficiency` of their catalogue, with the others
as they are. Printed are:

- each constant, with the range of nine in ten fits on models drawn anew, with replacement;
- the errors: of the fit, of rows whose model was left out of it, and of rows whose chip was; beside
  the baseline, one MFU, with the same left out;
- how well the rows that send over DCN tell what of it shows, by what it carries;
- what that makes of the measured submeshes of T5 on v4, which are in no fit: their order.

What comes out is written into `shardspec.analysis.step_time.FITTED` and `specs/hardware` by hand.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.measured_steps import Measured, baseline, compiled, load  # noqa: E402
from shardspec.analysis.step_time import (  # noqa: E402
    FITTED,
    ON_GPU,
    Carries,
    Constants,
    Send,
    constants_of,
    links_of,
    step_time,
)

#: `slices` is told by steps of one model on one slice and on more, and not by this fit.
NAMES = tuple(each.name for each in fields(Constants) if each.name not in ("carrying", "slices"))
DRAWN = 200
#: Shares that may show of what a role sends over DCN; rows tell if these change their time by 1 %.
SHARES = tuple(each / 10 for each in range(16))
ROLES: tuple[Carries, ...] = ("activations", "weights", "gradients")
LEAST_TOLD = 0.01


class Parts(NamedTuple):
    """The time of a row by constants: `fixed` and, for each constant, what it multiplies.

    All by the measured time, so that a perfect fit is 1.
    """

    row: Measured
    fixed: float
    slopes: tuple[float, ...]
    matmul: float

    def share(self, values: Sequence[float], matmul: float = 1.0) -> float:
        """Return the predicted time by the measured one."""
        own = sum(slope * value for slope, value in zip(self.slopes, values, strict=True))
        return self.fixed + own + (matmul - 1) * self.matmul


def parts_of(row: Measured) -> Parts:
    """Return the parts of a row's time, by what a change of each constant does."""
    assert row.seconds is not None, "only measured rows are fitted"

    def seconds(constants: Constants) -> float:
        time = step_time(row.plan, row.stated.step, constants)
        assert time is not None, "a row of the fit has a time"
        assert row.seconds is not None, "only measured rows are fitted"
        return time.step_seconds / row.seconds

    own = constants_of(row.chip)
    now = seconds(own)
    values = [getattr(own, name) for name in NAMES]
    slopes = [
        (seconds(replace(own, **{name: value * 1.02})) - now) / (value * 0.02)
        for name, value in zip(NAMES, values, strict=True)
    ]
    rest = now - sum(slope * value for slope, value in zip(slopes, values, strict=True))
    is_narrow = row.kind[1]
    matmul = rest + (slopes[0] * values[0] if is_narrow else 0.0)
    return Parts(row, rest, tuple(slopes), matmul)


def fitted(rows: Sequence[Parts]) -> list[float]:
    """Return the constants of the least mean error; a constant that no row tells stays as it is."""
    values = np.array([getattr(FITTED, name) for name in NAMES])
    slopes = np.array([each.slopes for each in rows])
    wanted = np.array([1 - each.fixed for each in rows])
    told = slopes.max(axis=0) > 1e-3
    weights = np.ones(len(rows))
    for _ in range(60):
        root = np.sqrt(weights)[:, None]
        free = list(np.flatnonzero(told))
        while free:
            least = wanted - slopes[:, ~told] @ values[~told]
            found, *_ = np.linalg.lstsq((slopes * root)[:, free], least * root[:, 0], rcond=None)
            if (found >= 0).all():
                break
            free.pop(int(np.argmin(found)))
        values = np.where(told, 0.0, values)
        values[free] = found
        weights = 1 / np.maximum(np.abs(slopes @ values - wanted), 0.02)
    return [float(value) for value in values]


def left_out(
    rows: Sequence[Parts], key: Callable[[Measured], object], fit: Callable[..., list[float]]
) -> list[float]:
    """Return the errors of rows by a fit without those of the same model, or chip."""
    fits = {
        key(each.row): fit([other for other in rows if key(other.row) != key(each.row)])
        for each in rows
    }
    return [each.share(fits[key(each.row)]) - 1 for each in rows]


def model_of(row: Measured) -> object:
    """Return the name of a row's model."""
    return row.row["model"]


def chip_of(row: Measured) -> object:
    """Return the chip of a row."""
    return row.row["hardware"]


def ranges(rows: Sequence[Parts], seed: int = 0) -> list[tuple[float, float]]:
    """Return for each constant the range of nine in ten fits on models drawn anew."""
    draw = random.Random(seed)
    names = sorted({str(model_of(each.row)) for each in rows})
    by_model = {name: [e for e in rows if str(model_of(e.row)) == name] for name in names}
    fits = []
    for _ in range(DRAWN):
        drawn = draw.choices(names, k=len(names))
        fits.append(fitted([each for name in drawn for each in by_model[name]]))
    found = []
    for at in range(len(NAMES)):
        ordered = sorted(values[at] for values in fits)
        found.append((ordered[DRAWN // 20], ordered[-DRAWN // 20 - 1]))
    return found


def gpu_share(rows: Sequence[Parts], values: Sequence[float]) -> float:
    """Return by what the matmuls of GPUs are to be multiplied, the others as they are."""
    needed = [1 + (1 - each.share(values)) / each.matmul for each in rows]
    return statistics.median(needed)


def mean(errors: Sequence[float]) -> str:
    """Return the mean of the sizes of errors."""
    return f"{statistics.mean(map(abs, errors)):.1%}"


def spread(errors: Sequence[float]) -> str:
    """Return the mean of the sizes of errors, and within how much four in five of them are."""
    within = sorted(map(abs, errors))[len(errors) * 4 // 5]
    return f"{mean(errors)}, four in five within {within:.0%}"


@dataclass(frozen=True, slots=True)
class OverDcn(Constants):
    """Constants of which what one role sends over DCN shows as another share."""

    crossing: frozenset[str] = frozenset()
    role: Carries = "gradients"
    share: float = 1.0

    def shown_of(self, send: Send) -> float:
        """Return the share of a collective that shows."""
        is_it = send.carries == self.role and not self.crossing.isdisjoint(send.mesh_axes)
        return self.share if is_it else Constants.shown_of(self, send)


def errors_over_dcn(row: Measured, role: Carries) -> list[float] | None:
    """Return the errors of a row with each of `SHARES`; None where the role sends none over DCN."""
    links, mesh, own = links_of(row.plan), row.plan.mesh, constants_of(row.chip)
    assert links is not None, "a row of the fit has a time"
    large = [axis.name for axis in mesh.axes if axis.size > 1]
    crossing = {a for a in large if any(leg.link == "dcn" for leg in links.legs((a,)) or ())}
    values = {each.name: getattr(own, each.name) for each in fields(own)}
    found = []
    for share in SHARES:
        constants = OverDcn(**values, crossing=frozenset(crossing), role=role, share=share)
        time = step_time(row.plan, row.stated.step, constants)
        assert time is not None, "a row of the fit has a time"
        assert row.seconds is not None, "only measured rows are fitted"
        found.append(time.step_seconds / row.seconds - 1)
    return found if max(found) - min(found) > LEAST_TOLD else None


def dcn_lines(rows: Sequence[Measured], role: Carries, seed: int = 0) -> Iterator[str]:
    """Yield how many rows tell what of a role's traffic over DCN shows, and how well."""
    told = [(str(model_of(row)), errors_over_dcn(row, role)) for row in rows]
    by_model: dict[str, list[list[float]]] = {}
    for name, errors in told:
        if errors is not None:
            by_model.setdefault(name, []).append(errors)
    if not by_model:
        yield f"  {role:9} over DCN: no row tells"
        return

    def best(names: Sequence[str]) -> float:
        drawn = [errors for name in names for errors in by_model[name]]
        return min(SHARES, key=lambda s: sum(abs(e[SHARES.index(s)]) for e in drawn))

    draw = random.Random(seed)
    fits = sorted(best(draw.choices(sorted(by_model), k=len(by_model))) for _ in range(DRAWN))
    count = sum(map(len, by_model.values()))
    low, high = fits[DRAWN // 20], fits[-DRAWN // 20 - 1]
    yield f"  {role:9} over DCN: {count} rows of {len(by_model)} models, {low} to {high}"


def main() -> None:
    found = [each for each in map(compiled, load()) if each is not None and each.seconds]
    tpu = [parts_of(each) for each in found if each.chip.platform == "tpu" and each.is_large]
    gpu = [each for each in found if each.chip.platform == "gpu" and each.model.parameters >= 1e9]
    values = fitted(tpu)
    print(f"TPU, decoders of 4B and more: {len(tpu)} rows")
    for name, value, (low, high) in zip(NAMES, values, ranges(tpu), strict=True):
        print(f"  {name:8} {value:6.3f}   {low:6.3f} to {high:6.3f}   now {getattr(FITTED, name)}")
    rows = [each.row for each in tpu]
    pairs = ((baseline(each, rows), each.seconds) for each in rows)
    simple = [told / own - 1 for told, own in pairs if told and own]
    pairs = ((baseline(each, rows, without_chip=True), each.seconds) for each in rows)
    bare = [told / own - 1 for told, own in pairs if told and own]
    print(f"  error of the fit {mean([each.share(values) - 1 for each in tpu])}")
    own = spread(left_out(tpu, model_of, fitted))
    print(f"  model left out {own}, one MFU {mean(simple)}")
    print(f"  chip left out {spread(left_out(tpu, chip_of, fitted))}, one MFU {mean(bare)}")
    for role in ROLES:
        print(*dcn_lines(rows, role), sep="\n")
    of_gpu = [parts_of(each) for each in gpu]
    now = [getattr(ON_GPU, name) for name in NAMES]
    share = gpu_share(of_gpu, now)
    without = {
        model_of(e.row): gpu_share([o for o in of_gpu if model_of(o.row) != model_of(e.row)], now)
        for e in of_gpu
    }
    errors = [each.share(now, without[model_of(each.row)]) - 1 for each in of_gpu]
    print(f"GPU, models of 1B and more: {len(of_gpu)} rows")
    print(f"  matmul_efficiency of the catalogue / {share:.2f}")
    pairs = ((baseline(each, gpu), each.seconds) for each in gpu)
    simple = [told / own - 1 for told, own in pairs if told and own]
    print(f"  model left out {spread(errors)}, one MFU {mean(simple)}")
    for role in ROLES:
        print(*dcn_lines(gpu, role), sep="\n")


if __name__ == "__main__":
    main()
