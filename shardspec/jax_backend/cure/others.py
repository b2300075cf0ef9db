"""A step of code as it could be otherwise: traced again on other meshes, and with other policies.

The program depends on the sizes of mesh axes, and not on their placement or the order of chips. So
a step is traced once for all placements of the same sizes, and each has the times of its own links.

Policies are those of `jax.checkpoint`. A value may be saved that the code names with
`checkpoint_name`. First all and none of them are tried, and each name added or left out; then the
same beside the best, as long as one more earns.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardspec import pipeline
from shardspec.analysis.cost import cost_of
from shardspec.cure.figures import Figures
from shardspec.cure.patching import Patched, Refused
from shardspec.cure.policies import Policy, policies_of, with_names
from shardspec.cure.searching import Deadline
from shardspec.cure.telling import Tried
from shardspec.cure.written import is_inside, source_of
from shardspec.diagnostics.words import counted, grouped
from shardspec.jax_backend.cure.again import Asked, traced_again, tracing
from shardspec.jax_backend.cure.curing import Again, priced_again, refusal
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


_MOST_ROUNDS = 3

#: What each policy of the code saves, in the order of the policies.
Saved = tuple[tuple[str, ...], ...]


class Policies(NamedTuple):
    """What a step takes with other names.

    Attributes:
      found: the best first; without the code as it is.
      late: sets of names that were not traced, for want of time.
    """

    found: tuple[Again, ...] = ()
    late: int = 0


def policies_in(folder: str, asked: Asked) -> tuple[Policy, ...]:
    """Return the policies in the modules of a folder that are imported."""
    files = dict.fromkeys(getattr(each, "__file__", None) for each in [*sys.modules.values()])
    found: list[Policy] = []
    for file in filter(None, files):
        text = source_of(file) if file.endswith(".py") and is_inside(file, folder) else ""
        if isinstance(text, str):
            found += policies_of(file, asked.sources.get(file, text))
    return tuple(found)


def policies(
    asked: Asked,
    now: Again,
    own: Sequence[Policy],
    names: Sequence[str],
    until: Deadline,
    tell: Callable[[str], None],
) -> Policies:
    """Return what a step takes with other names for its policies.

    Args:
      asked: the step, its sources with the lines that were found.
      now: what it takes with these.
      own: the policies in these sources.
      names: those that the code gives its values.
    """
    known: dict[Saved, Again | None] = {tuple(each.names for each in own): now}
    best = next(iter(known))
    with tracing(most_at_once()) as pool:
        for _ in range(_MOST_ROUNDS):
            new = [each for each in dict.fromkeys(_others(best, names)) if each not in known]
            tell(f"tracing with {len(new)} other sets of names")

            def traced(saved: Saved) -> Again | None:
                found = _with_saved(asked, now, own, saved, until)
                return None if found.tried.is_late else found

            known |= zip(new, pool.map(traced, new), strict=True)
            sound = [(each, saved) for saved, each in known.items() if each is not None]
            first, chosen = min(sound, key=lambda pair: pair[0].tried.figures.rank)
            before = known[best]
            if before is None or not first.tried.figures.is_better(before.tried.figures):
                break
            best = chosen
    found = [each for each in known.values() if each is not None and each is not now]
    sound_ones = [each for each in found if each.lowered is not None]
    sound_ones.sort(key=lambda each: each.tried.figures.rank)
    return Policies(tuple(sound_ones), sum(each is None for each in known.values()))


def _others(saved: Saved, names: Sequence[str]) -> Iterator[Saved]:
    """Yield what else policies could save: all, nothing, one name more or less."""
    for at, own in enumerate(saved):
        added = [(*own, name) for name in names if name not in own]
        left = [tuple(each for each in own if each != name) for name in own]
        every = (*own, *(name for name in names if name not in own))
        for other in (every, (), *added, *left):
            yield *saved[:at], other, *saved[at + 1 :]


def _with_saved(
    asked: Asked, now: Again, own: Sequence[Policy], saved: Saved, until: Deadline
) -> Again:
    """Return what a step takes whose policies save other names."""
    pairs = [pair for pair in zip(own, saved, strict=True) if pair[0].names != pair[1]]
    patches = []
    for file in dict.fromkeys(policy.file for policy, _ in pairs):
        old = source_of(file)
        assert not isinstance(old, Refused), "it was read before"
        chosen = [pair for pair in pairs if pair[0].file == file]
        new = with_names(asked.sources.get(file, old), chosen)
        patches.append(Patched(file, old, new, ()))
    sources = {**asked.sources, **{each.file: each.new for each in patches}}
    told = tuple((policy.file, policy.line, names) for policy, names in pairs)
    tried = Tried((), now.tried.figures, tuple(patches), saved=told)
    target = pipeline.sound_target(pipeline.find_target(asked.spec, asked.target))
    return priced_again(tried, replace(asked, sources=sources), target, now.tried.cost, until)
