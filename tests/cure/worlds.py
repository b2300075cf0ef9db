"""Steps that are nothing but a table of what lines make of their figures, for searches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from shardspec.cure.figures import Figures
from shardspec.cure.lines import Layout, Site
from shardspec.cure.patching import Extent
from shardspec.cure.searching import Trial

ROWS = Layout("batch _ embed", (("fsdp",), (), ()))
COLUMNS = Layout("_ _ mlp", ((), (), ("tensor",)))
EXPERTS = Layout("_ expert _", ((), ("fsdp",), ()))
LAYOUTS = (ROWS, COLUMNS, EXPERTS)
#: A step that takes 100 s, and of that computes one.
BASE = Figures(True, 100.0, (("fsdp", 1e6),), 1e9, 1.0)

#: A line as a rule of a table names it: the line of its site, and its layouts.
Named = tuple[int, tuple[Layout, ...]]


def extent(line: int, file: str = "model.py") -> Extent:
    return Extent(file, line, 8, line, 24)


def site(
    line: int,
    layouts: Sequence[Layout] = LAYOUTS,
    *,
    weight: float = 0.0,
    effort: int = 0,
    shape: tuple[int, ...] = (),
) -> Site:
    """Return a value of a shape of its own, or of one that it shares."""
    return Site(
        shape or (64, 128, 512 + line),
        "f32",
        extent(line),
        layouts=tuple(layouts),
        weight=weight,
        effort=effort,
    )


def named(trial: Trial) -> frozenset[Named]:
    return frozenset((line.site.at.line if line.site.at else 0, line.layouts) for line in trial)


@dataclass
class World:
    """A step of so many seconds, and by what sets of lines these are multiplied.

    Attributes:
      known: how many trials are priced until time is over.
      asked: how often each was.
    """

    rules: Iterable[tuple[Iterable[Named], float]]
    base: Figures = BASE
    known: float = float("inf")
    asked: Counter[frozenset[Named]] = field(default_factory=Counter)

    def figures(self, trial: Trial) -> Figures:
        seconds, size = self.base.seconds, self.base.bytes
        own = named(trial)
        share = 1.0
        for needed, factor in self.rules:
            share *= factor if own.issuperset(needed) else 1.0
        sent = ((self.base.sent[0][0], size * share),)
        return self.base._replace(seconds=None if seconds is None else seconds * share, sent=sent)

    def price(self, trials: Sequence[Trial]) -> list[Figures | None]:
        found: list[Figures | None] = []
        for trial in trials:
            is_known = len(self.asked) < self.known or named(trial) in self.asked
            if is_known:
                self.asked[named(trial)] += 1
            found.append(self.figures(trial) if is_known else None)
        return found


def line(at: int, *layouts: Layout) -> Named:
    return at, layouts or (ROWS,)
