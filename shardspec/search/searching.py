"""A search: what is asked, and what was found; the one way in for the command line and Python."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shardspec.analysis.cost import Cost
from shardspec.analysis.spec_step import stated_cost
from shardspec.analysis.step_time import scaled
from shardspec.diagnostics.words import counted, listed
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Hardware, Mesh, Params, Spec, Target
from shardspec.resolve.resolver import resolve
from shardspec.search.ranking import By, Evaluator, Ranking, SearchRow, Sent, Wanted, sends
from shardspec.search.variants import (
    MOST_DEVICES,
    Candidate,
    Freedom,
    Over,
    Refusal,
    Variant,
    batch_axes,
    candidates,
    machine_of,
    mesh_sizes,
    parse_over,
    stage_axes,
    variants,
    with_counts,
)

#: Candidates that are looked at where nobody says how many.
MOST = 20_000
_MOST_AXES = 16
_NO_STEP = (
    "add `step: {extends: decoder}`, or another of its library: decoder-tied, moe, t5, vit, decode"
    " (`shardspec explain step`)"
)


@dataclass(frozen=True, slots=True)
class Question:
    """What a search is asked.

    Attributes:
      target: the mesh and machine of today.
      machines: those to look at; that of the target, where none is named.
      variants: the spec, and what else it might be; the spec as it is comes first.
      most: how many candidates are looked at, at most.
      is_of_code: whether code says what a step computes, and not the spec.
    """

    spec: Spec = field(repr=False)
    params: Params = field(repr=False)
    target: Target
    machines: tuple[Hardware, ...]
    variants: tuple[Variant, ...]
    freedom: Freedom = field(default_factory=Freedom)
    wanted: Wanted = field(default_factory=Wanted)
    most: int = MOST
    by: By = "time"
    is_of_code: bool = False

    def refusal(self) -> Refusal | None:
        """Return why there is nothing to search; None where there is."""
        target, hardware = self.target, self.target.hardware
        if self.spec.step is None and not self.is_of_code:
            return Refusal("the spec does not say what a step computes", _NO_STEP)
        if hardware is None:
            help = "add `hardware: tpu v5p 4x4x4` (or `4 * h100`) to it"
            return Refusal(f"target `{target.name}` is a mesh without a machine", help)
        if len(target.mesh.axes) > _MOST_AXES:
            count = counted(len(target.mesh.axes), "mesh axis")
            return Refusal(f"{count} are too many to choose sizes for", f"at most {_MOST_AXES}")
        if not self.params and not self.is_of_code:
            return Refusal("the spec lists no arrays", "add `arrays:` or `manifest:`")
        largest = max(self.machines, key=lambda each: each.device_count)
        if largest.device_count > MOST_DEVICES:
            return Refusal(
                f"`{largest}` has {largest.device_count:,} devices",
                f"a search looks at machines of {MOST_DEVICES:,} at most",
            )
        return self._wrong_keep() or (None if self.is_of_code else self._no_program())

    def _wrong_keep(self) -> Refusal | None:
        of_roles = (each.roles.mesh_axes for each in self.variants if each.roles is not None)
        names = dict.fromkeys((*self.target.mesh.names, *itertools.chain(*of_roles)))
        for name in self.freedom.keep:
            if name not in names:
                return Refusal(f"--keep {name}: no mesh axis", f"there are {listed(names)}")
        return None

    def _no_program(self) -> Refusal | None:
        faults = Evaluator(self.spec, self.params).faults
        if not faults:
            return None
        help = faults[0].help or "`shardspec check` says more"
        return Refusal(f"`step:` cannot be read: {faults[0].message}", help)

    @property
    def today(self) -> Candidate:
        """Return the layout that the spec states."""
        return Candidate(self.target, self.spec.policy.order, Variant(self.spec))

    def candidates(self) -> Iterator[Candidate]:
        """Yield the layouts to look at, those nearest to today's first on each machine."""
        most_chips = self.wanted.max_chips
        for hardware in self.machines:
            if most_chips is None or hardware.chip_count <= most_chips:
                yield from candidates(self.target, hardware, self.variants, self.freedom)

    @property
    def count(self) -> int:
        """Return how many candidates are looked at."""
        return sum(1 for _ in itertools.islice(self.candidates(), self.most))

    @property
    def is_cut(self) -> bool:
        """Say whether there are more sizes than are ever looked at."""
        roles = dict.fromkeys(each.roles for each in self.variants)
        return any(
            mesh_sizes(self.target, machine, self.freedom, each).is_cut
            for machine in self.machines
            for each in roles
        )


class Choice(NamedTuple):
    """What a search may choose, in the words of the command line.

    Attributes:
      over: `mesh,order,remat=full|dots`.
      keep: sizes of mesh axes that stay; none of an axis for today's.
      machines: `tpu v5p 4x4x8`; the target's own where none is named.
      most: how many candidates are looked at, at most.
    """

    over: str = "mesh,order"
    keep: Mapping[str, Sequence[int]] = {}
    machines: Sequence[str] = ()
    most: int = MOST
    by: By = "time"


def asked(
    spec: Spec,
    params: Params,
    target: Target,
    choice: Choice,
    wanted: Wanted | None = None,
    *,
    is_of_code: bool = False,
) -> Question | Refusal:
    """Return what is searched, or why it cannot be.

    Args:
      is_of_code: see `Question`.
    """
    words = parse_over(choice.over)
    if isinstance(words, Refusal):
        return words
    made = _variants(spec, words, target.mesh, is_of_code=is_of_code)
    if isinstance(made, Refusal):
        return made
    machines: list[Hardware] = []
    for text in choice.machines:
        machine = machine_of(text)
        if isinstance(machine, Refusal):
            return Refusal(f"machine `{text}`: {machine.message}", machine.help)
        machines.append(machine)
    if not machines and target.hardware is not None:
        machines = [target.hardware]
        if "hardware" in words:
            machines += [each.hardware for each in spec.targets if each.hardware is not None]
    freedom = _freedom(spec, target.mesh, words, choice.keep)
    chosen = tuple(dict.fromkeys(machines))
    wanted = wanted or Wanted()
    found = Question(
        spec, params, target, chosen, made, freedom, wanted, choice.most, choice.by, is_of_code
    )
    return found.refusal() or found


def _freedom(spec: Spec, today: Mesh, words: Over, keep: Mapping[str, Sequence[int]]) -> Freedom:
    """Return what is chosen of a mesh: roles choose its sizes and the order of chips, too."""
    sizes = today.sizes
    kept = {axis: found or (sizes.get(axis, 1),) for axis, found in keep.items()}
    if "stages" in words and "mesh" not in words:
        moved = {*stage_axes(spec), *batch_axes(spec)}
        kept = {axis: (size,) for axis, size in sizes.items() if axis not in moved} | kept
    return Freedom(
        not words.keys().isdisjoint(("mesh", "stages", "roles")),
        not words.keys().isdisjoint(("order", "roles")),
        kept,
        "axes" in words,
    )


def _variants(
    spec: Spec, words: Over, today: Mesh, *, is_of_code: bool
) -> tuple[Variant, ...] | Refusal:
    """Return what a spec might be; code is told numbers of microbatches, and no spec."""
    if not is_of_code:
        return variants(spec, words, today) if spec.step is not None else (Variant(spec),)
    others = {word: each for word, each in words.items() if word != "microbatches"}
    made = variants(spec, others, today)
    if isinstance(made, Refusal) or "microbatches" not in words:
        return made
    return with_counts(made, words["microbatches"])


def held_to(question: Question, plan: ShardingPlan, seconds: float) -> Question:
    """Return a search whose times are scaled by what a step took over its prediction.

    Args:
      plan: of the step that was measured.

    Raises:
      ValueError: no time is predicted of it.
    """
    scale = stated_cost(plan).scale(seconds)
    return replace(question, wanted=question.wanted._replace(scale=scale))


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    Attributes:
      today: what the spec's own mesh costs; None where that is not known.
      rows: the best first.
      ranking: what became of all candidates.
      left: whether candidates were left out, since there are more than were to be looked at.
      is_stopped: whether somebody ended the search before its end.
    """

    question: Question
    today: SearchRow | None
    rows: tuple[SearchRow, ...]
    ranking: Ranking = field(repr=False)
    left: bool = False
    is_stopped: bool = False

    def plan(self, row: SearchRow) -> ShardingPlan:
        """Return the layout of every array under a row."""
        return resolve(row.candidate.spec, row.candidate.target, self.question.params)

    def cost(self, row: SearchRow) -> Cost | None:
        """Return the whole of what a row costs, each array by its name."""
        cost = stated_cost(self.plan(row))
        if cost.step is None:
            return None
        share = self.question.wanted.scale.share
        return cost if cost.time is None else replace(cost, time=scaled(cost.time, share))

    def sends(self, row: SearchRow) -> tuple[Sent, ...]:
        """Return what is sent otherwise than today, the largest change first."""
        now = self.today and self.cost(self.today)
        then = self.cost(row)
        return sends(now, then) if now and then else ()

    def best_of_machines(self) -> tuple[SearchRow, ...]:
        """Return the best row of each machine."""
        found: dict[Hardware, SearchRow] = {}
        for row in self.rows:
            found.setdefault(row.candidate.hardware, row)
        return tuple(found.values())


#: Called with the number of each candidate that was looked at.
Tell = Callable[[int], None]


def search(question: Question, tell: Tell | None = None) -> Found:
    """Return what the layouts cost that a question asks about.

    A `KeyboardInterrupt` ends it early, with what is known by then.
    """
    ranking = Ranking(question.params, question.wanted)
    today = ranking.row(question.today)
    left, is_stopped = False, False
    try:
        for number, candidate in enumerate(question.candidates(), 1):
            if number > question.most:
                left = True
                break
            ranking.take(candidate)
            if tell is not None:
                tell(number)
    except KeyboardInterrupt:
        is_stopped = True
    left = left or question.is_cut
    return Found(question, today, ranking.rows(question.by), ranking, left, is_stopped)
