"""The lines that a step lacks, found, written and tried: what `search --step` does without `step:`.

What is found is a model's. Each answer is therefore written into the sources, the step is traced
from these again, and its compiler is asked where there is one.

A step of code as it could be otherwise: traced again on other meshes, and with other policies.

The program depends on the sizes of mesh axes, and not on their placement or the order of chips. So
a step is traced once for all placements of the same sizes, and each has the times of its own links.

Policies are those of `jax.checkpoint`. A value may be saved that the code names with
`checkpoint_name`. First all and none of them are tried, and each name added or left out; then the
same beside the best, as long as one more earns.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from shardspec import pipeline
from shardspec.analysis.cost import Cost, cost_of
from shardspec.cure.figures import Figures
from shardspec.cure.patching import Patched, Refused
from shardspec.cure.policies import Policy, policies_of, with_names
from shardspec.cure.searching import Deadline, Found, Trial, further, searched
from shardspec.cure.telling import Tried
from shardspec.cure.written import is_inside, source_of, writable, written
from shardspec.diagnostics import Diagnostic, ShardspecError
from shardspec.diagnostics.words import counted, grouped
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec, Target
from shardspec.jax_backend.cure.again import Asked, traced_again, tracing
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
from shardspec.jax_backend.xla.compiling import MORE_TIME, Compile, Compiling, most_at_once
from shardspec.jax_backend.xla.verifying import Lowered, cost_by
from shardspec.search.ranking import Question
from shardspec.search.variants import Candidate

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
      names: that the code gives its values, for policies of `jax.checkpoint`.
    """

    plan: ShardingPlan
    base: Base
    now: Again
    found: Found | None
    beyond: int
    trials: int
    late: int
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
    beyond = sum(not site.is_index for site in sites)
    beyond -= sum(site.at is not None and not site.is_index for site in own)
    before = Again(Tried((), now, cost=cost), Lowered(step, module))
    mapped = len(arguments) + len(in_code) - len(own)
    counts = (beyond, trials.count, trials.late, mapped)
    return Search(plan, base, before, answer, *counts, names_in(traced.program))


def more_of(search: Search, refuted: Sequence[Trial], within_s: float, tell: Tell) -> Search:
    """Return a search with its next answers, those before having been refuted."""
    assert search.found is not None, "it had answers"
    figures = dict(search.found.tried)
    pairs = [(trial, figures[trial]) for trial in refuted]
    with Trials(search.base, within_s) as trials:
        found = further(search.found, _pricing(trials, tell), pairs)
    return search._replace(
        found=found,
        trials=search.trials + trials.count,
        late=search.late + trials.late,
    )


def _pricing(trials: Trials, tell: Tell) -> Callable[[Sequence[Trial]], list[Figures | None]]:
    def price(asked: Sequence[Trial]) -> list[Figures | None]:
        return list(trials.figures(asked, told))

    def told(done: int, left: int) -> None:
        tell(f"{done} of {counted(done + left, 'layout')} tried")

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
