"""How far predictions are off over many rows: overall, by class, and the worst."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

from shardspec.analysis.accuracy import LEVELS, Mode, Off, Rows, interpolated
from tests.generated.rows import Row

#: Classes with fewer rows have no line.
LEAST_ROWS = 5
#: A program that sends less than this is all noise: a few scalars.
_LEAST_BYTES = 2**20
_WORST = 10

_HEAD = ("", "rows", "median", "quartiles", "90th", "worst", "within 5 %", "within 10 %")


def bytes_error(row: Row) -> float | None:
    """Return the share of the compiled bytes by which the prediction is off, by mesh axes."""
    if row["error"] is not None or row["compiled_bytes"] < _LEAST_BYTES:
        return None
    difference: float = row["difference"]
    return difference


def memory_error(row: Row) -> float | None:
    """Return the share of the compiled memory by which the prediction is off."""
    if row["error"] is not None or not row["compiled_memory"]:
        return None
    return abs(row["predicted_memory"] / row["compiled_memory"] - 1)


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the page: what ran, both errors overall and by class, and verdicts."""
    good = [row for row in rows if row["error"] is None]
    faults = Counter(row["fault"] for row in rows if row["error"] is not None)
    told = ", ".join(f"{count} {name}" for name, count in faults.most_common()) or "none"
    platforms = Counter(row["platform"] for row in good)
    shares = ", ".join(f"{count} for {name.upper()}s" for name, count in sorted(platforms.items()))
    yield f"{len(rows)} cases, {len(good)} with figures ({shares}); without figures: {told}."
    yield ""
    yield f"| {' | '.join(_HEAD)} |"
    yield f"|{'|'.join(['---'] + ['---:'] * (len(_HEAD) - 1))}|"
    yield _line("bytes sent", map(bytes_error, good))
    yield _line("memory", map(memory_error, good))
    yield ""
    yield from _verdicts(good)
    yield ""
    short = ("median", "90th", "within 10 %")
    yield f"| class | rows | bytes: {' | '.join(short)} | memory: {' | '.join(short)} |"
    yield f"|{'|'.join(['---'] + ['---:'] * 7)}|"
    yield from _classes(good)


def worst(rows: Sequence[Row], count: int = _WORST) -> Iterator[str]:
    """Yield the worst cases with the command that runs each again."""
    for name, error in (("bytes", bytes_error), ("memory", memory_error)):
        for row in ranked(rows, error)[:count]:
            share = _percent(error(row) or 0.0)
            yield f"{name} {share}: python -m tests.generated --recipe '{row['recipe']}'"


def ranked(rows: Iterable[Row], error: Callable[[Row], float | None]) -> list[Row]:
    """Return the rows that have an error, the worst first."""
    return sorted(
        (row for row in rows if error(row) is not None), key=lambda row: -(error(row) or 0.0)
    )


def _verdicts(good: Sequence[Row]) -> Iterator[str]:
    asked = Counter((row["predicted_fits"], row["compiled_fits"]) for row in good)
    names = {True: "fits", False: "does not fit", None: "not known"}
    yield "| predicted | compiled | rows |"
    yield "|---|---|---:|"
    for (ours, theirs), count in sorted(asked.items(), key=lambda each: -each[1]):
        yield f"| {names[ours]} | {names[theirs]} | {count} |"


def _classes(good: Sequence[Row]) -> Iterator[str]:
    tags = sorted({tag for row in good for tag in row["tags"]})
    for tag in tags:
        own = [row for row in good if tag in row["tags"]]
        if len(own) >= LEAST_ROWS:
            cells = [cell for error in (bytes_error, memory_error) for cell in _short(own, error)]
            yield f"| `{tag}` | {len(own)} | {' | '.join(cells)} |"


def _short(rows: Sequence[Row], error: Callable[[Row], float | None]) -> Iterator[str]:
    found = sorted(each for row in rows if (each := error(row)) is not None)
    yield _percent(quantile(found, 0.5))
    yield _percent(quantile(found, 0.9))
    yield _share(found, 0.1)


def _line(name: str, errors: Iterable[float | None]) -> str:
    found = sorted(each for each in errors if each is not None)
    at = [_percent(quantile(found, share)) for share in (0.5, 0.25, 0.75, 0.9, 1.0)]
    cells = (name, str(len(found)), at[0], f"{at[1]} to {at[2]}", *at[3:])
    return f"| {' | '.join((*cells, _share(found, 0.05), _share(found, 0.1)))} |"


def quantile(ordered: Sequence[float], share: float) -> float:
    """Return the smallest value that this share of all is no larger than; NaN of none."""
    if not ordered:
        return math.nan
    return ordered[max(math.ceil(share * len(ordered)) - 1, 0)]


def _share(found: Sequence[float], limit: float) -> str:
    return _percent(sum(each <= limit for each in found) / len(found)) if found else "-"


def _percent(share: float) -> str:
    if math.isnan(share):
        return "-"
    return f"{share * 100:.0f} %" if share >= 0.0995 else f"{share * 100:.1f} %"


def ratios(rows: Iterable[Row]) -> dict[tuple[str, Mode, Off], list[float]]:
    """Return compiled over predicted, by platform, mode and figure."""
    found: dict[tuple[str, Mode, Off], list[float]] = {}
    figures: tuple[tuple[Off, str], ...] = (("memory", "memory"), ("sends", "bytes"))
    for row in rows:
        for off, name in figures:
            predicted, compiled = row[f"predicted_{name}"], row[f"compiled_{name}"]
            if row["error"] is None and predicted and compiled is not None:
                key = row["platform"], row["mode"], off
                found.setdefault(key, []).append(compiled / predicted)
    return found


def learned(ratios: Sequence[float]) -> Rows:
    """Return what ratios of compiled over predicted figures say.

    The k-th smallest of n is at the level k / (n + 1): n rows do not say how rare is what none of
    them is. Beyond the first and the last, levels have their ratio.

    >>> learned([1.0, 1.5, 2.0])
    Rows(size=3, ratios=(1.0, 1.0, 1.0, 1.5, 2.0, 2.0, 2.0))
    """
    ordered, count = sorted(ratios), len(ratios)
    known = [(rank / (count + 1), ratio) for rank, ratio in enumerate(ordered, 1)]
    return Rows(count, tuple(float(f"{interpolated(known, level):.3g}") for level in LEVELS))


def accuracy(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the lines of `LEARNED` in shardspec/analysis/accuracy.py that rows give."""
    yield "LEARNED: dict[tuple[str, Mode, Off], Rows] = {"
    for key, found in sorted(ratios(rows).items()):
        size, known = learned(found)
        names = ", ".join(f'"{name}"' for name in key)
        yield f"    ({names}): Rows({size}, {known}),"
    yield "}"
