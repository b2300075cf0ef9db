"""Two costs of one step -> what a change of the spec does to it, and the rules that did it.

A rule is known by its text, wherever it stands: one that another replaces is gone on one side and
new on the other. What several rules send together is one row, as in the table of `cost --by rule`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from shardspec.analysis.cost import Cost
from shardspec.analysis.step_memory import MARKS
from shardspec.analysis.traffic import TrafficRow, askers, group
from shardspec.diagnostics.words import by_key
from shardspec.ir.step import Unknown


@dataclass(frozen=True, slots=True)
class Change:
    """One figure before and after.

    Attributes:
      places: where the spec says it, on either side; the same place once.
    """

    name: str
    before: float
    after: float
    places: tuple[str, ...] = ()

    @property
    def is_same(self) -> bool:
        """Say whether nothing changed."""
        return self.before == self.after

    @property
    def more(self) -> float:
        """Return how much there is more, negative for less."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class CostDiff:
    """What one step costs on one target under two specs.

    Invariants:
      whole: the changes of the mesh axes sum to that of what is sent, and so do those of the rules.
    """

    target: str
    before: Cost
    after: Cost

    @classmethod
    def of(cls, target: str, before: Cost, after: Cost) -> Self:
        """Return both sides on one basis: the model's, unless a compiler answered for both."""
        diff = cls(target, before, after)
        return diff if before.basis == after.basis else diff.by_model

    @property
    def by_model(self) -> Self:
        """Return both sides by the model, which says the same wherever it is asked."""
        before, after = self.before.predicted or self.before, self.after.predicted or self.after
        return replace(self, before=before, after=after)

    @property
    def mark(self) -> str:
        """Return how well both sides are known, `x` by a compiler and `~` by the model."""
        return MARKS[self.after.basis]

    @property
    def memory(self) -> Change:
        """Return the bytes that a device holds at the peak."""
        return Change("memory", self.before.memory.total.bytes, self.after.memory.total.bytes)

    @property
    def parts(self) -> tuple[Change, ...]:
        """Return the parts of the memory that changed, the largest change first."""
        old, new = self.before.memory.parts, self.after.memory.parts
        return changes(
            {name: part.bytes for name, part in old.items()},
            {name: part.bytes for name, part in new.items()},
        )

    @property
    def seconds(self) -> Change | None:
        """Return how long a step takes; None where one side is not known."""
        old, new = self.before.time, self.after.time
        if old is None or new is None:
            return None
        return Change("time", old.step_seconds, new.step_seconds)

    @property
    def flops(self) -> Change:
        """Return the FLOPs of a step on all devices."""
        return Change("FLOPs", self.before.flops or 0, self.after.flops or 0)

    @property
    def sent(self) -> Change:
        """Return the bytes that one device sends in a step."""
        old, new = (sum(sizes.values()) for sizes in self._by_axis)
        return Change("sends", old, new)

    @property
    def axes(self) -> tuple[Change, ...]:
        """Return what is sent over each mesh axis that changed, the largest change first."""
        return changes(*self._by_axis)

    @property
    def rules(self) -> tuple[Change, ...]:
        """Return what each rule sends, of those that changed, the largest change first."""
        old, new = (dict(_by_rule(cost)) for cost in (self.before, self.after))
        found = []
        for name in dict.fromkeys((*new, *old)):
            sides = [side[name] for side in (old, new) if name in side]
            before, after = (side[name].wire_bytes if name in side else 0 for side in (old, new))
            places = dict.fromkeys(place for row in sides for place in _places(row))
            found.append(Change(name, before, after, tuple(places)))
        return _sorted(found)

    @property
    def is_same(self) -> bool:
        """Say whether a step costs what it did."""
        figures = (self.memory, self.seconds, self.flops, self.sent)
        is_same = all(each is None or each.is_same for each in figures) and not self.unknown
        return is_same and not (self.parts or self.axes or self.rules)

    @property
    def unknown(self) -> tuple[Unknown, ...]:
        """Return what could not be counted on either side: nothing is certain to be the same."""
        steps = (cost.step for cost in (self.before, self.after) if cost.step is not None)
        return tuple(dict.fromkeys(each for step in steps for each in step.unknown))

    @property
    def _by_axis(self) -> tuple[dict[str, int], dict[str, int]]:
        return _by_axis(self.before), _by_axis(self.after)


def _by_axis(cost: Cost) -> dict[str, int]:
    sent = cost.step.wire_bytes if cost.step else {}
    return {"+".join(axes): size for axes, size in sent.items()}


def changes(old: Mapping[str, float], new: Mapping[str, float]) -> tuple[Change, ...]:
    """Return the figures that changed, by name, the largest change first."""
    names = dict.fromkeys((*new, *old))
    return _sorted(Change(name, old.get(name, 0), new.get(name, 0)) for name in names)


def _sorted(changes: Iterable[Change]) -> tuple[Change, ...]:
    found = [each for each in changes if not each.is_same]
    return tuple(sorted(found, key=lambda each: (-abs(each.more), each.name)))


def _by_rule(cost: Cost) -> Iterator[tuple[str, TrafficRow]]:
    """Yield the rows of the table by rule, each with the texts of its rules."""
    rows = group(cost.step.collectives if cost.step else (), "rule")
    named = ((sorted(asker.text for asker in askers(row.collectives[0])), row) for row in rows)
    for name, alike in by_key((" + ".join(texts), row) for texts, row in named).items():
        yield name, TrafficRow(name, tuple(each for row in alike for each in row.collectives))


def _places(row: TrafficRow) -> list[str]:
    found = (asker.place for asked in row.askers for asker in asked if asker.place)
    return list(dict.fromkeys(found))
