"""Other meshes for a step of code: it is traced again on each, with the lines that were found.

The program depends on the sizes of mesh axes, and not on their placement or the order of chips. So
a step is traced once for all placements of the same sizes, and each has the times of its own links.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardspec import pipeline
from shardspec.analysis.cost import cost_of
from shardspec.cure.figures import Figures
from shardspec.cure.searching import Deadline
from shardspec.cure.telling import Tried
from shardspec.diagnostics.words import counted, grouped
from shardspec.jax_backend.cure.again import Asked, traced_again, tracing
from shardspec.jax_backend.cure.curing import Again, refusal
from shardspec.jax_backend.xla.compiling import most_at_once
from shardspec.jax_backend.xla.verifying import Lowered
from shardspec.search.ranking import Question
from shardspec.search.variants import Candidate

#: Arguments of the function of a step that no spec states.
_GIVEN = ("microbatches",)


class Meshes(NamedTuple):
    """What a step takes on other meshes.

    Attributes:
      found: the best placement of each, the best first; today's mesh is one of them.
      late: meshes that were not traced, for want of time.
      failed: those on which the step could not be traced or priced, each with the reason.
    """

    found: tuple[Again, ...]
    late: int
    failed: tuple[tuple[str, str], ...]


def meshes(
    question: Question,
    asked: Asked,
    now: Again,
    until: Deadline,
    tell: Callable[[str], None],
) -> Meshes:
    """Return what a step takes on the meshes of a question.

    Args:
      asked: the step, its sources with the lines that were found.
      now: what it takes on today's mesh.
      until: when tracing ends; today's mesh is always there.
    """
    by_program = grouped(itertools.islice(question.candidates(), question.most), _program)
    groups, own = list(by_program.values()), by_program.get(_program(question.today))
    begun = itertools.count(1)
    tokens = None if now.tried.cost is None else now.tried.cost.tokens

    def traced(group: Sequence[Candidate]) -> Again | str | None:
        if group is own and now.lowered is not None:
            return _best(group, now.lowered, tokens)
        if not until.left:
            return None
        tell(f"tracing on {next(begun)} of {counted(len(groups), 'mesh')}")
        changes = dict(group[0].variant.changes)
        given = {word: int(changes[word]) for word in _GIVEN if word in changes}
        found = traced_again(replace(asked, spec=group[0].spec, given=given), until.left)
        if found is None:
            return None
        if isinstance(found, Lowered):
            return _best(group, found, tokens)
        return refusal(found[0])

    with tracing(most_at_once()) as pool:
        made = list(zip(groups, pool.map(traced, groups), strict=True))
    found = [each for _, each in made if isinstance(each, Again)]
    failed = [(_label(group[0]), each) for group, each in made if isinstance(each, str)]
    found.sort(key=lambda each: each.tried.figures.rank)
    return Meshes(tuple(found), sum(each is None for _, each in made), tuple(failed))


def _program(candidate: Candidate) -> Hashable:
    """Return what candidates with the same program agree in."""
    return candidate.variant.changes, str(candidate.hardware), tuple(candidate.mesh.sizes.items())


def _label(candidate: Candidate) -> str:
    return " ".join(filter(None, (candidate.mesh_text, str(candidate.variant))))


def _best(group: Sequence[Candidate], found: Lowered, tokens: int | None) -> Again | str:
    """Return the best placement of one program; why there is none where it has no time on any."""
    tried = list(_priced(group, found, tokens))
    best = min(tried, key=lambda each: each.figures.rank)
    if best.figures.seconds is None:
        return "its time is unknown"
    return Again(best, found)


def _priced(group: Sequence[Candidate], found: Lowered, tokens: int | None) -> Iterator[Tried]:
    for each in group:
        (plan,) = pipeline.compile_plans(each.spec, None, [each.target])
        cost = cost_of(plan, found.step, tokens=tokens)
        yield Tried((), Figures.of(cost), cost=cost, candidate=each)
