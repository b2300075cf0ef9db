"""The fewest lines that a step lacks: a search over what could be added, each trial priced.

First each line is tried alone, then the best with others, up to four. Where one of the most likely
lines earns much, it leads: the others are tried beside it, and no longer alone. Values are also
moved from one dimension to another and back, as a mixture of experts needs. And a step may need
several lines at once of which none helps alone: all lines are tried together, and those that
nothing depends on are left out again by halves. Each line of the answer earns its place: without
it, the step takes at least 6 % more, or does not fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, permutations, zip_longest
from typing import NamedTuple

from shardspec.cure.figures import Figures
from shardspec.cure.lines import Layout, Line, Site
from shardspec.diagnostics.words import by_key

Trial = tuple[Line, ...]
#: Prices trials, many at once; None for one that it cannot, or has no time left for.
Price = Callable[[Sequence[Trial]], Iterable[Figures | None]]
PricedTrial = tuple[Trial, Figures]
Priced = list[PricedTrial]

#: Lines that are tried alone, if nothing else is asked.
MOST = 100
#: How many trials go on to the next round, what they are tried with, and lines of an answer.
_BEAM, _PARTNERS, _DEEPEST = 3, 12, 4
#: Trials after which it is asked whether to go on, those of which one may do as much as all lines
#: at once, and the share that a line earns which leads: all others are tried beside it.
_CHUNK, _START, _LEADS = 24, 8, 0.3
#: Two answers are as good as each other where one takes at most so much more.
_AS_GOOD = 0.02
#: Moves that are tried, and rounds in which more natural names are put in.
_MOST_MOVES, _ROUNDS = 48, 3
#: The same where one line does as much as all lines at once: little is left to find.
_FEW = 16


class Deadline(NamedTuple):
    """When a search ends, on the monotonic clock."""

    at: float

    @property
    def left(self) -> float:
        """Return the seconds that are left; 0 where it is over."""
        return max(0.0, self.at - time.monotonic())

    def part(self, share: float) -> Deadline:
        """Return the end of a part of what is left."""
        return deadline(self.left * share)


def deadline(within_s: float) -> Deadline:
    """Return the end of so many seconds."""
    return Deadline(time.monotonic() + within_s)


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found.

    Attributes:
      answers: lines and what the step takes with them, the best first; each earns its place.
      together: what the step takes with the first layout of all sites at once; None if unknown.
      tried: what it takes with each set of lines that was priced.
      sites, layouts: how many there were to try.
    """

    base: Figures
    answers: tuple[tuple[Trial, Figures], ...]
    together: Figures | None
    tried: tuple[tuple[Trial, Figures], ...]
    sites: int
    layouts: int


def searched(sites: Sequence[Site], price: Price, most: int = MOST) -> Found | None:
    """Return the lines that a step lacks; None where the step itself cannot be priced.

    Args:
      sites: what could be constrained, with layouts, in the order of the program.
    """
    every = tuple(Line(site, site.layouts[:1]) for site in sites)
    base, together = price([(), every])
    if base is None:
        return None
    search = _Search(price, base)
    first = [*_apart(sorted(every, key=lambda line: -line.site.weight))][:most]
    are_there = together is not None and together.key == base.key
    singles, is_led = search.alone(first, together, are_there=are_there)
    search.note((), base)
    search.note(every, together)
    best = singles[0][1] if singles and not are_there else None
    is_close = best is not None and together is not None and _are_alike(best, together)
    if not is_led and search.could_improve():
        room = most if are_there else most - len(first)
        others = [*islice(_others(singles), min(_FEW, room) if is_close else room)]
        singles += search.priced((line,) for line in others)
        singles.sort(key=lambda pair: pair[1].rank)
    if singles and not is_close and search.could_improve():
        search.deepen(singles, sites, 1 if is_led else _BEAM)
    if search.could_improve():
        search.move(sites, is_close=is_close)
    if together is not None:
        search.all_at_once(every, together)
    layouts = sum(len(site.layouts) for site in sites)
    answers = search.answers()
    return Found(base, answers, together, search.tried, len(sites), layouts)


def further(found: Found, price: Price, refuted: Priced) -> Found:
    """Return the next answers of a search whose first ones earn too little once they are tried.

    A line that all answers so far have is suspect. An answer with few such lines comes next.
    """
    search = _Search(price, found.base, found.tried)
    return replace(found, answers=search.answers(refuted), tried=search.tried)


def _apart(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield one line for each shape at each place in the code, then those that are left."""
    seen: set[object] = set()
    left = []
    for line in lines:
        at = line.site.at
        key = line.layouts, line.site.path, line.site.shape, at and (at.file, at.line)
        if key in seen:
            left.append(line)
        else:
            seen.add(key)
            yield line
    yield from left


def _others(singles: Priced) -> Iterator[Line]:
    """Yield other layouts of sites; of those for which the first one does the same, of one."""
    kinds: dict[object, Site] = {}
    for (line,), figures in singles:
        key = line.site.shape, line.layouts, figures.key
        if key not in kinds or kinds[key].weight < line.site.weight:
            kinds[key] = line.site
    chosen = sorted(kinds.values(), key=lambda site: -site.weight)
    for rank in range(1, max((len(site.layouts) for site in chosen), default=0)):
        yield from (
            Line(site, (site.layouts[rank],)) for site in chosen if rank < len(site.layouts)
        )


def _moves(sites: Sequence[Site]) -> Iterator[Trial]:
    """Yield moves of mesh axes to another dimension: of one value, and there and back of two."""
    for at, site in enumerate(sites):
        for pair in permutations(site.layouts, 2):
            if _is_move(*pair):
                yield (Line(site, pair),)
                for other in sites[at + 1 :]:
                    if other.at != site.at and _has(other, site, pair):
                        yield Line(site, pair), Line(other, pair[::-1])


def _in_turns(moves: Sequence[Trial]) -> Iterator[Trial]:
    """Yield moves of values of each shape in turns: what is nearest may be a mere index."""
    kinds = by_key((move[0].site.shape, move) for move in moves).values()
    yield from (move for row in zip_longest(*kinds) for move in row if move is not None)


def _has(site: Site, other: Site, layouts: Iterable[Layout]) -> bool:
    """Say whether a site is of the shape of another, and could have its layouts."""
    return site.shape == other.shape and set(layouts) <= set(site.layouts)


def _effort_of(move: Line) -> int:
    """Return what is least for a likely move: of few mesh axes, between natural layouts.

    An all-to-all moves one axis, and the others stay where they are.
    """
    before, after = move.layouts
    moved = sum(
        axis not in there
        for here, there in zip(before.split, after.split, strict=True)
        for axis in here
    )
    ranks = sorted(move.site.layouts.index(each) for each in move.layouts)
    return (1 + 4 * ranks[0] + ranks[1]) * moved**3


def _is_move(before: Layout, after: Layout) -> bool:
    """Say whether the same mesh axes are on other dimensions."""
    axes = [sorted(axis for own in each.split for axis in own) for each in (before, after)]
    return axes[0] == axes[1] and before.split != after.split


class _Search:
    def __init__(self, price: Price, base: Figures, tried: Iterable[PricedTrial] = ()) -> None:
        self.base = base
        self._price = price
        self._found = dict(tried)

    @property
    def tried(self) -> tuple[PricedTrial, ...]:
        """Return all trials that were priced, and what they take."""
        return tuple(self._found.items())

    def priced(self, trials: Iterable[Trial]) -> Priced:
        """Return what trials take, the best first; what cannot be priced is left out."""
        asked = list(trials)
        new = [trial for trial in asked if trial not in self._found]
        pairs = zip(new, self._price(new), strict=True) if new else ()
        self._found |= {trial: figures for trial, figures in pairs if figures is not None}
        found = [(trial, self._found[trial]) for trial in asked if trial in self._found]
        return sorted(found, key=lambda pair: pair[1].rank)

    def alone(
        self, lines: Sequence[Line], together: Figures | None, *, are_there: bool
    ) -> tuple[Priced, bool]:
        """Return what lines take alone, the best first, and whether one of the likeliest leads.

        Args:
          together: what all lines at once take; where one does as much, the rest is not tried.
          are_there: whether the values have these layouts already, so that none is tried.
        """
        if are_there:
            return [((line,), self.base) for line in lines], False
        singles: Priced = []
        is_led = False
        for start, end in ((0, _START), (_START, _CHUNK)):
            singles += self.priced((line,) for line in lines[start:end])
            singles.sort(key=lambda pair: pair[1].rank)
            is_led = bool(singles) and singles[0][1].is_better(self.base, _LEADS)
            if is_led and together is not None and _are_alike(singles[0][1], together):
                break
        left = lines[_CHUNK:]
        if is_led:
            lead = singles[0][0][0]
            left = [Line(lead.site, (layout,)) for layout in lead.site.layouts[1:]]
        singles += self.priced((line,) for line in left)
        return sorted(singles, key=lambda pair: pair[1].rank), is_led

    def could_improve(self) -> bool:
        """Say whether a line could still earn its place: the step takes longer than it computes."""
        found = [self.base, *self._found.values()]
        best = min(found, key=lambda each: each.rank)
        if any(each.is_better(best) for each in found):
            return True
        return best.could_improve(min(each.compute for each in found))

    def deepen(self, singles: Priced, sites: Sequence[Site], most: int) -> None:
        """Try the best lines with others: the best alone, and those where most is sent."""
        places = singles[0][1].places
        near = {site: site.near(places) for site in sites}
        is_led = most == 1
        lines = [Line(s, (each,)) for s in sites for each in s.layouts[: None if is_led else 1]]
        lines.sort(key=lambda line: -near[line.site] / (1 + _doubt((line,))))
        best = islice(_unlike(singles), _PARTNERS // 3 if is_led else _PARTNERS)
        partners = [trial for trial, _ in best]
        partners += [(line,) for line in islice(_apart(lines), 2 * _PARTNERS - len(partners))]
        partners = [*dict.fromkeys(partners)]
        self._wider([*islice(_unlike(singles), most)], partners, most)

    def _wider(self, beam: Priced, partners: Sequence[Trial], most: int = _BEAM) -> None:
        """Add to trials what they are tried with, as long as one more earns its place."""
        best = self.base
        while beam and beam[0][1].is_better(best) and len(beam[0][0]) < _DEEPEST:
            best = beam[0][1]
            wider = {
                frozenset((*trial, *more)): (*trial, *more)
                for trial, _ in beam
                for more in partners
                if not {line.site for line in more} & {line.site for line in trial}
            }
            beam = [*islice(_unlike(self.priced(wider.values())), most)]

    def note(self, trial: Trial, figures: Figures | None) -> None:
        """Take up what a trial takes."""
        if figures is not None:
            self._found[trial] = figures

    def all_at_once(self, every: Trial, figures: Figures) -> None:
        """Where all lines at once are best, leave out those that nothing depends on."""
        others = (each for trial, each in self._found.items() if trial != every)
        best = min([self.base, *others], key=lambda each: each.rank)
        if figures.is_better(best, _AS_GOOD):
            self._halve(every, figures)

    def move(self, sites: Sequence[Site], *, is_close: bool) -> None:
        """Move values to other dimensions where most is sent beside the best lines.

        Args:
          is_close: whether little is left to find; then only moves that earn get others beside.
        """
        most = _FEW if is_close else _MOST_MOVES
        (beside, figures), *_ = self._ranked()
        own = {line.site for line in beside}
        moves = [trial for trial in _moves(sites) if not own & {line.site for line in trial}]

        def doubt(trial: Trial) -> float:
            near = sum(line.site.near(figures.places) for line in trial) / len(trial)
            return _effort_of(trial[0]) / (near + 1e-3)

        moves = [*_in_turns(sorted(moves, key=doubt))]
        moved: Priced = []
        for start in range(0, min(most, len(moves)), _CHUNK):
            chunk = moves[start : min(most, start + _CHUNK)]
            moved += self.priced((*beside, *trial) for trial in chunk)
            moved.sort(key=lambda pair: pair[1].rank)
            if moved and moved[0][1].is_better(figures):
                break
        else:
            if is_close:
                return
        best = [*islice(_unlike(moved), _BEAM)]
        back = [
            (Line(site, line.layouts[::-1]),)
            for line in dict.fromkeys(line for trial, _ in best for line in trial if line.is_move)
            for site in sites
            if site != line.site and _has(site, line.site, line.layouts)
        ]
        places = best[0][1].places if best else ()
        back.sort(key=lambda trial: -trial[0].site.near(places))
        alone = [
            (line,) for trial, _ in islice(_unlike(self._ranked()), _PARTNERS) for line in trial
        ]
        self._wider(best, [*dict.fromkeys((*back[:_PARTNERS], *alone))])

    def _ranked(self) -> Priced:
        few = ((trial, each) for trial, each in self._found.items() if len(trial) <= 2 * _DEEPEST)
        return sorted(few, key=lambda pair: pair[1].rank)

    def _halve(self, whole: Trial, figures: Figures) -> None:
        """Leave out ever smaller parts of the lines, while the step stays as good."""
        parts = 2
        while len(whole) > 1:
            size = -(-len(whole) // parts)
            cuts = [whole[at : at + size] for at in range(0, len(whole), size)]
            others = [tuple(each for each in whole if each not in cut) for cut in cuts]
            good = [
                (trial, found)
                for trial, found in self.priced(dict.fromkeys((*cuts, *others)))
                if trial and not figures.is_better(found, _AS_GOOD)
            ]
            if good:
                before = len(whole)
                whole = min(good, key=lambda pair: len(pair[0]))[0]
                parts = 2 if len(whole) <= size else max(2, parts * len(whole) // before)
            elif size == 1:
                return
            else:
                parts = min(len(whole), 2 * parts)

    def answers(self, refuted: Sequence[PricedTrial] = ()) -> tuple[PricedTrial, ...]:
        """Return the best trials in which each line earns its place.

        What has all lines of one before, and is no better, would come down to that one again.

        Args:
          refuted: earlier answers; what the model takes for the same as one of them is left out.
        """
        kept: dict[object, PricedTrial] = {}
        before = [*refuted]
        known = {figures.key for _, figures in refuted}
        left = [*_unlike(self._ranked())]
        while left and len(kept) < _BEAM:
            suspects = _shared((*refuted, *kept.values()) if refuted else ())
            chosen = min(left, key=lambda pair: len(suspects.intersection(pair[0])))
            left.remove(chosen)
            trial, figures = chosen
            is_more = any(
                {*less} <= {*trial} and not figures.is_better(own) for less, own in before
            )
            if figures.is_better(self.base) and not is_more:
                earned = self._earned(trial, figures)
                easy = self._easier(*self._natural(*earned))
                least, own = self._earned(*easy)  # a line may earn less beside others
                before += [earned, (least, own)]
                if own.is_better(self.base) and own.key not in known:
                    kept.setdefault(own.key, (least, own))
        return tuple(sorted(kept.values(), key=lambda pair: not refuted and pair[1].rank))

    def _earned(self, trial: Trial, figures: Figures) -> tuple[Trial, Figures]:
        """Return a trial without the lines that earn too little."""
        while len(trial) > 1:
            without = self.priced(tuple(e for e in trial if e is not line) for line in trial)
            idle = [pair for pair in without if not figures.is_better(pair[1])]
            if not idle:
                break
            trial, figures = idle[0]
        return trial, figures

    def _natural(self, trial: Trial, figures: Figures) -> tuple[Trial, Figures]:
        """Return a trial with the most natural names that are as good."""
        for _ in range(_ROUNDS):
            others = [
                tuple(Line(one.site, (layout,)) if one is line else one for one in trial)
                for line in trial
                for layout in _plainer(line)
            ]
            good = [
                (rest, found)
                for rest, found in self.priced(others)
                if not figures.is_better(found, _AS_GOOD)
            ]
            if not good:
                break
            trial, figures = min(good, key=lambda pair: _doubt(pair[0]))
        return trial, figures

    def _easier(self, trial: Trial, figures: Figures) -> tuple[Trial, Figures]:
        """Return a trial with lines that are less to write, where they do the same."""
        for at, line in enumerate(trial):
            alone, own = self._found.get((line,)), {each.site for each in trial}
            if line.is_move or alone is None:
                continue
            others = [
                other[0]
                for other, found in self._found.items()
                if len(other) == 1
                and _is_easier(other[0], line, is_idle=alone.key == self.base.key)
                and other[0].site not in own
                and found.key == alone.key
            ]
            for other in sorted(others, key=lambda each: _toil(each.site))[:1]:
                for rest, found in self.priced([(*trial[:at], other, *trial[at + 1 :])]):
                    if not figures.is_better(found, _AS_GOOD):
                        trial, figures = rest, found
        return trial, figures


def _shared(tried: Iterable[PricedTrial]) -> set[Line]:
    """Return the lines that all trials have."""
    lines = [{*trial} for trial, _ in tried]
    return set.intersection(*lines) if lines else set()


def _is_easier(line: Line, other: Line, *, is_idle: bool) -> bool:
    """Say whether a line is less to write; in another layout it is to be a simpler one.

    Args:
      is_idle: whether both do nothing alone.
    """
    if line.layouts == other.layouts:
        return _toil(line.site) < _toil(other.site)
    return not is_idle and line.site.effort < other.site.effort


def _toil(site: Site) -> tuple[int, int]:
    """Return what is least for a line that is easy to write, and to read where it stands.

    A helper that many parts of a model call is no place to lay out what one of them computes.
    """
    return site.effort, len(site.points)


def _plainer(line: Line) -> tuple[Layout, ...]:
    """Return layouts that say less, or more naturally, what a line does."""
    if line.is_move:
        return line.layouts
    return line.site.layouts[: line.site.layouts.index(line.layouts[0])]


def _are_alike(left: Figures, right: Figures) -> bool:
    return not (left.is_better(right, _AS_GOOD) or right.is_better(left, _AS_GOOD))


def _doubt(trial: Trial) -> int:
    return sum(line.site.layouts.index(each) for line in trial for each in line.layouts)


def _unlike(found: Priced) -> Iterator[tuple[Trial, Figures]]:
    """Yield trials that take something else than those before, the best of each kind."""
    seen: set[object] = set()
    for trial, figures in found:
        if figures.key not in seen:
            seen.add(figures.key)
            yield trial, figures
