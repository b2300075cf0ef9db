"""The lines that a step lacks, found, written and tried: what `search --step` does without `step:`.

What is found is a model's. Each answer is therefore written into the sources, the step is traced
from these again, and its compiler is asked where there is one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardspec import pipeline
from shardspec.analysis.cost import Cost, cost_of
from shardspec.cure.figures import Figures
from shardspec.cure.patching import Patched, Refused
from shardspec.cure.searching import Deadline, Found, Trial, further, searched
from shardspec.cure.telling import Tried
from shardspec.cure.written import is_inside, writable, written
from shardspec.diagnostics import Diagnostic, ShardspecError
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec, Target
from shardspec.jax_backend.cure.again import Asked, traced_again
from shardspec.jax_backend.cure.layouts import Namer, unplaced, weighed, with_mapped
from shardspec.jax_backend.cure.rows import Rows
from shardspec.jax_backend.cure.shortened import shortened
from shardspec.jax_backend.cure.sites import sites_of
from shardspec.jax_backend.cure.worker import Base, Trials
from shardspec.jax_backend.equations import names_in
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.step.graph import free_shapes
from shardspec.jax_backend.step.passes import bytecode_of
from shardspec.jax_backend.step.reading import traced_step
from shardspec.jax_backend.step.trace import Call, Layouts
from shardspec.jax_backend.xla.compiling import MORE_TIME, Compile, Compiling
from shardspec.jax_backend.xla.verifying import Lowered, cost_by

Tell = Callable[[str], None]
#: Why an answer has no figures, or none of the compiler.
NOT_TRACED = "not traced again: the time ended (--within)"
NOT_COMPILED = "not compiled: the time ended (--within)"
_LONGEST_COMPILE_S = 300.0


class Again(NamedTuple):
    """Lines that were tried, and the module that came of them, for a compiler."""

    tried: Tried
    lowered: Lowered | None = None


class Search(NamedTuple):
    """What was found of a step, and how.

    Attributes:
      base: the step as the search prices it.
      now: the step as it is.
      found: None where the step cannot be priced.
      beyond: values that no line of a file in the working folder makes; `mapped` of them are inside
        of `jax.vmap`.
      trials: how many were priced; `late` of them were not, since time was over.
      seconds: that it took.
      names: that the code gives its values, for policies of `jax.checkpoint`.
    """

    plan: ShardingPlan
    base: Base
    now: Again
    found: Found | None
    beyond: int
    trials: int
    late: int
    seconds: float
    mapped: int = 0
    names: tuple[str, ...] = ()


def search(
    resolver: Resolver,
    call: Call,
    folder: str,
    kinds: Container[str],
    *,
    most: int,
    until: Deadline,
    share: float,
    tell: Tell,
) -> Search:
    """Return the lines that a step lacks, by the model.

    Args:
      folder: files outside of it are not changed.
      kinds: of lines: `constraints` of values, `arguments` that nothing places.
      most: lines that are tried alone.
      share: of the time that is left when the step is traced, after which no further trial begins.

    Raises:
      ShardspecError: the step cannot be traced.
    """
    traced, step = traced_step(resolver, call)
    (plan,) = pipeline.compile_plans(resolver._arrays.spec, None, [resolver.target])
    cost = cost_of(plan, step)
    started = time.monotonic()
    sites = sites_of(traced.module) if "constraints" in kinds else ()
    has_entries = is_inside(plan.spec.source.name, folder)
    arguments = [*unplaced(traced.arguments)] if has_entries and "arguments" in kinds else []
    has_places = has_entries and resolver._has_places
    namer = Namer(Layouts(resolver), traced.arguments)
    in_code = writable(sites, folder, has_places=has_places)
    rows = Rows(traced)
    in_code = [s if s.at is None else replace(s, rows=rows.of(s.at, s.shape)) for s in in_code]
    own = [*arguments, *with_mapped(in_code, namer)]
    module, now = bytecode_of(traced.module), Figures.of(cost)
    found = weighed(own, namer, traced.arguments, now)
    layers, shorter = shortened(module)
    free = free_shapes(traced.results)
    base = Base(module, plan, step.arguments, now, free, cost.tokens, layers, shorter)
    with Trials(base, until.left * share) as trials:
        answer = searched(found, _pricing(trials, tell), most)
    seconds = time.monotonic() - started
    beyond = sum(not site.is_index for site in sites)
    beyond -= sum(site.at is not None and not site.is_index for site in own)
    before = Again(Tried((), now, cost=cost), Lowered(step, module))
    mapped = len(arguments) + len(in_code) - len(own)
    counts = (beyond, trials.count, trials.late, seconds, mapped)
    return Search(plan, base, before, answer, *counts, names_in(traced.program))


def more_of(search: Search, refuted: Sequence[Trial], within_s: float, tell: Tell) -> Search:
    """Return a search with its next answers, those before having been refuted."""
    assert search.found is not None, "it had answers"
    figures = dict(search.found.tried)
    pairs = [(trial, figures[trial]) for trial in refuted]
    started = time.monotonic()
    with Trials(search.base, within_s) as trials:
        found = further(search.found, _pricing(trials, tell), pairs)
    return search._replace(
        found=found,
        trials=search.trials + trials.count,
        late=search.late + trials.late,
        seconds=search.seconds + time.monotonic() - started,
    )


def _pricing(trials: Trials, tell: Tell) -> Callable[[Sequence[Trial]], list[Figures | None]]:
    def price(asked: Sequence[Trial]) -> list[Figures | None]:
        tell(f"{trials.count} layouts tried, {len(asked)} more")
        return list(trials.figures(asked))

    return price


def again(
    search: Search,
    lines: Trial,
    figures: Figures,
    asked: Asked,
    reload: Callable[[str], Spec | None],
    until: Deadline,
) -> Again:
    """Return lines as changes of files, and what the step takes that is traced from them.

    Flax's function places nothing where its rules are not in context, and elsewhere by its own
    rules. Where the step is worse than the search expects, shardspec's function is tried instead.

    Args:
      reload: reads a new text of the spec; None where it has faults.
    """
    usual, own = (written(lines, asked.spec.source, is_own=own) for own in (False, True))
    found = _traced(search, Tried(lines, figures, usual), asked, reload, until)
    is_traced = found.lowered is not None
    if own == usual or (is_traced and not figures.is_better(found.tried.figures)):
        return found
    other = _traced(search, Tried(lines, figures, own), asked, reload, until)
    is_better = other.lowered is not None and other.tried.figures.is_better(found.tried.figures)
    return other if is_better or not is_traced else found


def _traced(
    search: Search,
    tried: Tried,
    asked: Asked,
    reload: Callable[[str], Spec | None],
    until: Deadline,
) -> Again:
    """Return what the step takes that is traced from changed files, or why that is not known."""
    patches = tried.patches
    if isinstance(patches, Refused):
        return Again(replace(tried, why=patches.reason))
    changed = with_patches(asked, patches, reload)
    if changed is None:
        return Again(replace(tried, why="the spec cannot be read with them"))
    return priced_again(tried, changed, search.plan.target, search.now.tried.cost, until)


def priced_again(
    tried: Tried, asked: Asked, target: Target, before: Cost | None, until: Deadline
) -> Again:
    """Return what the step takes that is traced once more, or why that is not known.

    Args:
      before: what it takes today, of as many tokens.
    """
    found = traced_again(asked, until.left) if until.left else None
    if found is None:
        return Again(replace(tried, why=NOT_TRACED, is_late=True))
    if not isinstance(found, Lowered):
        return Again(replace(tried, why=refusal(found[0])))
    (plan,) = pipeline.compile_plans(asked.spec, None, [target])
    cost = cost_of(plan, found.step, tokens=None if before is None else before.tokens)
    return Again(replace(tried, figures=Figures.of(cost), cost=cost), found)


def with_patches(
    asked: Asked, patches: Sequence[Patched], reload: Callable[[str], Spec | None]
) -> Asked | None:
    """Return what is traced with changed files; None where the spec cannot be read any more."""
    sources = {os.path.realpath(each.file): each.new for each in patches}
    text = sources.pop(os.path.realpath(asked.spec.source.name), None)
    spec = asked.spec if text is None else reload(text)
    return None if spec is None else replace(asked, spec=spec, sources=sources)


def refusal(diagnostic: Diagnostic) -> str:
    """Return what is wrong, with the line of the code where it is."""
    spans = [label.span for label in diagnostic.labels]
    spans = [span for span in spans if span.source.name.endswith(".py")] or spans
    return f"{diagnostic.message}, at {spans[0].place}" if spans else diagnostic.message


def compiled(found: Again, until: Deadline) -> Tried:
    """Return lines with the figures of the target's compiler; where it gives none, it says why."""
    tried, cost = found.tried, found.tried.cost
    if cost is None or found.lowered is None:
        return tried
    if not until.left:
        return replace(tried, why=NOT_COMPILED, is_late=True)
    how = Compiling(min(until.left, _LONGEST_COMPILE_S))
    try:
        with Compile(cost.target, how, cost.plan.spec.policy.order) as compile:
            compile.give(found.lowered.module)
            made = cost_by(cost, compile.result(), found.lowered.step.arguments)
    except ShardspecError as error:
        first = error.diagnostics[0]
        is_late = first.help == MORE_TIME and not until.left
        return replace(tried, why=NOT_COMPILED if is_late else first.message, is_late=is_late)
    return replace(tried, cost=made, figures=Figures.of(made))
