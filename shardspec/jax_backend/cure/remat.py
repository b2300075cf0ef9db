"""Other names for the policies of `jax.checkpoint` that a step has: it is traced again with each.

A value may be saved that the code names with `checkpoint_name`. First all and none of them are
tried, and each name added or left out; then the same beside the best, as long as one more earns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardspec import pipeline
from shardspec.cure.patching import Patched, Refused
from shardspec.cure.policies import Policy, policies_of, with_names
from shardspec.cure.searching import Deadline
from shardspec.cure.telling import Tried
from shardspec.cure.written import is_inside, source_of
from shardspec.jax_backend.cure.again import Asked, tracing
from shardspec.jax_backend.cure.curing import Again, priced_again
from shardspec.jax_backend.xla.compiling import most_at_once

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
                found = _traced(asked, now, own, saved, until)
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


def _traced(
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
