"""What a step takes, in figures that rank the lines that could be added to it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping
from typing import NamedTuple, Self, TypeVar

from shardspec.analysis.cost import Cost

Key = TypeVar("Key", bound=Hashable)

#: A line has to earn this share of the time, or of the bytes where the time stays.
LEAST_GAIN = 0.06
#: Times that differ by less are the same.
_SAME = 0.01
_MOST_PLACES = 16


class Figures(NamedTuple):
    """What a step takes on one device.

    Attributes:
      fits: whether it fits in memory; None where nothing says it.
      seconds: of a step; None where that is unknown.
      sent: bytes by mesh axes.
      memory: bytes at the peak.
      compute: the seconds of it that no collective takes.
      places: the lines at which most is sent: file, line, bytes.
    """

    fits: bool | None
    seconds: float | None
    sent: tuple[tuple[str, float], ...]
    memory: float
    compute: float = 0.0
    places: tuple[tuple[str, int, float], ...] = ()

    @classmethod
    def of(cls, cost: Cost) -> Self:
        """Return those of a cost."""
        sent: Counter[str] = Counter()
        places: Counter[tuple[str, int]] = Counter()
        for each in cost.step.collectives if cost.step is not None else ():
            sent["+".join(each.axes)] += each.wire_bytes
            for place in {each.place.own, (each.place.file, each.place.line)}:
                places[place] += each.wire_bytes
        most = tuple((*place, size) for place, size in places.most_common(_MOST_PLACES))
        is_known = cost.time is not None and not cost.uncounted("time")
        seconds = cost.time.step_seconds if cost.time is not None and is_known else None
        compute = 0.0 if cost.time is None else cost.time.compute_seconds
        memory = cost.memory
        size = memory.total.bytes
        return cls(memory.fits, seconds, tuple(sent.items()), size, compute, most)

    @property
    def bytes(self) -> float:
        """Return the bytes sent over all axes."""
        return sum(size for _, size in self.sent)

    def onward(self, more: Figures, times: int) -> Figures:
        """Return what a step takes that is as much larger than this as another is, some times over.

        Whether it fits is not known of it.
        """

        def on(few: float, many: float) -> float:
            return few + times * (many - few)

        def each(few: Mapping[Key, float], many: Mapping[Key, float]) -> dict[Key, float]:
            keys = dict.fromkeys((*few, *many))
            return {key: max(0.0, on(few.get(key, 0.0), many.get(key, 0.0))) for key in keys}

        places = each(
            {(file, line): size for file, line, size in self.places},
            {(file, line): size for file, line, size in more.places},
        )
        known = None not in (self.seconds, more.seconds)
        return Figures(
            None,
            on(self.seconds or 0.0, more.seconds or 0.0) if known else None,
            tuple(each(dict(self.sent), dict(more.sent)).items()),
            on(self.memory, more.memory),
            on(self.compute, more.compute),
            tuple((*place, size) for place, size in places.items()),
        )

    def is_like(self, other: Figures) -> bool:
        """Say whether two models of one step say the same of its time and its bytes."""
        pairs = ((self.seconds, other.seconds), (self.bytes, other.bytes))
        return all(one == two or (one and two and abs(one / two - 1) < _SAME) for one, two in pairs)

    @property
    def key(self) -> tuple[object, ...]:
        """Return what is the same for figures that nobody tells apart."""
        time = None if self.seconds is None else f"{self.seconds:.3g}"
        return self.fits, time, f"{self.bytes:.4g}", f"{self.memory:.3g}"

    def could_improve(self, compute: float) -> bool:
        """Say whether a line could earn its place where computing takes as long as it says."""
        if self.seconds is None or self.fits is False:
            return True
        return self.seconds * (1 - LEAST_GAIN) > compute

    @property
    def rank(self) -> tuple[bool, float, float, float]:
        """Return what is least for the best: it fits, is fast, sends little, and holds little.

        The model's times are good to 15 %: half the bytes are worth 3.5 % of the time.
        """
        time = math.inf if self.seconds is None else self.seconds * max(1.0, self.bytes) ** 0.05
        return self.fits is False, time, self.bytes, self.memory

    def is_better(self, other: Figures, share: float = LEAST_GAIN) -> bool:
        """Say whether this earns a share of what another takes, or fits where that does not."""
        if (self.fits is False) != (other.fits is False):
            return self.fits is not False
        mine, yours = self.seconds, other.seconds
        if mine is not None and yours is not None:
            if mine < (1 - share) * yours:
                return True
            if mine > (1 + _SAME) * yours:
                return False
        if self.bytes != other.bytes:
            return self.bytes < (1 - share) * other.bytes
        return self.memory < (1 - share) * other.memory
