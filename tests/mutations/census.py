"""How many mistakes are caught: mutator by mutator, over all subjects."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.mutations.judging import Verdict, judge
from tests.mutations.mutators.registry import Mutator
from tests.mutations.subjects import Subject, subjects
from tests.mutations.text import Mistake


@dataclass
class Count:
    """What came of the mutants of one mutator."""

    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def mutants(self) -> int:
        """Return how many were made."""
        return len(self.verdicts)

    @property
    def worse(self) -> list[Verdict]:
        """Return those that make a plan worse."""
        return [verdict for verdict in self.verdicts if verdict.worse]

    @property
    def caught(self) -> list[Verdict]:
        """Return the worse ones that a finding reports."""
        return [verdict for verdict in self.worse if verdict.is_caught]

    @property
    def missed(self) -> list[Verdict]:
        """Return the worse ones that no finding reports."""
        return [verdict for verdict in self.worse if not verdict.is_caught]

    @property
    def pedantic(self) -> list[Verdict]:
        """Return the missed ones that a pedantic finding reports."""
        return [verdict for verdict in self.missed if verdict.pedantic]

    @property
    def on_line(self) -> list[Verdict]:
        """Return the caught ones whose line is named."""
        return [verdict for verdict in self.caught if verdict.names_line]

    @property
    def changes(self) -> list[Verdict]:
        """Return those with other answers that are not worse."""
        return [verdict for verdict in self.verdicts if verdict.is_change and not verdict.worse]

    @property
    def fraction(self) -> float:
        """Return the share of the worse ones that is caught."""
        return len(self.caught) / len(self.worse) if self.worse else 1.0


@cache
def mistakes(mutator: Mutator) -> tuple[tuple[Subject, tuple[Mistake, ...]], ...]:
    """Return every mistake that a mutator can make, by subject."""
    made = ((subject, tuple(mutator(subject))) for subject in subjects())
    return tuple((subject, found) for subject, found in made if found)


def draws(mutator: Mutator) -> st.SearchStrategy[tuple[Subject, Mistake]]:
    """Return a random mistake in a random subject that has a place for it."""
    return st.sampled_from(mistakes(mutator)).flatmap(
        lambda pair: st.tuples(st.just(pair[0]), st.sampled_from(pair[1]))
    )


def count(mutator: Mutator, examples: int) -> Count:
    """Return what comes of a mutator's mistakes: all, or as many as hypothesis draws of many."""
    every = [(subject, mistake) for subject, found in mistakes(mutator) for mistake in found]
    chosen = every if len(every) <= examples else drawn(mutator, examples)
    return Count([judge(subject, mistake) for subject, mistake in chosen])


def drawn(mutator: Mutator, examples: int) -> list[tuple[Subject, Mistake]]:
    """Return a random choice of a mutator's mistakes, the same each time, none of them twice."""
    found: dict[tuple[str, Mistake], tuple[Subject, Mistake]] = {}

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=tuple(HealthCheck),
    )
    @given(draws(mutator))
    def draw(one: tuple[Subject, Mistake]) -> None:
        found.setdefault((one[0].name, one[1]), one)

    draw()
    return list(found.values())


def kinds(verdicts: Sequence[Verdict]) -> Counter[str]:
    """Return how often each finding is reported."""
    return Counter(code for v in verdicts for code in {d.code.name for d in v.found})
