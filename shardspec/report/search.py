"""What a search found, for people: a table with the best first, and why the best is.

Times are worked out by a model of the machine: `~`. A rank with `=` is a tie with the best, as far
as the model can tell.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardspec import pipeline
from shardspec.analysis.accuracy import SURE
from shardspec.analysis.memory import room_text, share_of
from shardspec.diagnostics import Diagnostic, codes, words
from shardspec.diagnostics.lines import columns, fitted
from shardspec.ir.spec import Params
from shardspec.lints.checks import size_one_axis, unknown_mesh_axis
from shardspec.lints.context import Context
from shardspec.report.comparison import signed_text
from shardspec.report.cost import seconds_text
from shardspec.report.cost_json import lines_of
from shardspec.report.search_json import search_data, sent_data
from shardspec.search import ranking as rankings
from shardspec.search.ranking import UNKNOWN_ROWS as UNKNOWN_ROWS
from shardspec.search.ranking import Found
from shardspec.search.variants import Candidate

#: How wide it is where no terminal says.
WIDTH = 110
#: Rows that are shown where nobody says how many.
TOP = 10
#: Rows that are checked before the search for sound ones ends.
_MOST_CHECKED = 60
#: What is sent otherwise, in lines of each kind.
_MOST_SENT = 3
#: Sets of roles whose candidates are counted in the text.
_MOST_KINDS = 24
#: The share of a step below which a change is not worth a word.
_LITTLE = 0.005


@dataclass(frozen=True, slots=True)
class Shown:
    """A row with what the checks say of it and do not say of today's mesh.

    Attributes:
      rank: among those that are shown.
      hidden: axes that are padded; and mesh axes that shard nothing, since one of size 1 takes the
        dimension before them.
    """

    rank: int
    row: rankings.SearchRow
    findings: tuple[Diagnostic, ...] = ()
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class Search:
    """What a search found; `print` shows what `shardspec search` does.

    Attributes:
      found: all rows, the best first.
      shown: those that are shown, in order; the first is the best without errors.
      passed: how many better rows the errors of each code ruled out.
      faults: the codes of the errors that today's mesh has itself; a row may share them.
      hidden: of today's mesh, as `Shown` has it.
    """

    found: Found
    shown: tuple[Shown, ...]
    passed: Mapping[str, int] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[rankings.SearchRow, ...]:
        """Return all rows, the best first, those that have errors too."""
        return self.found.rows

    @property
    def today(self) -> rankings.SearchRow | None:
        """Return what the spec's own mesh costs."""
        return self.found.today

    @property
    def best(self) -> rankings.SearchRow | None:
        """Return the best row that no check has errors about; None where all have unknowns."""
        row = self.shown[0].row if self.shown else None
        return None if row is None or row.unknown else row

    def __str__(self) -> str:
        """Return what `shardspec search` prints."""
        return "\n".join(fitted(search_lines(self), WIDTH))

    def _repr_html_(self) -> str:
        from shardspec.report.page import search_pieces

        return search_pieces(self.found, self.best)

    def __repr__(self) -> str:
        """Return `Search(36 rows, best fsdp=64 tensor=2)`."""
        best = "nothing" if self.best is None else str(self.best.candidate)
        return f"Search({words.counted(len(self.rows), 'row')}, best {best})"


def checked(found: Found, top: int = TOP, *, is_front: bool = False) -> Search:
    """Return a search with what the checks say of its best rows; those with errors are passed over.

    What is found of the same line of today's mesh, too, says nothing of a row.

    Args:
      top: how many rows are shown.
      is_front: whether only what no other beats in time, memory and chips is.
    """
    rows, params = found.rows, found.question.params
    if is_front:
        rows = rankings.pareto(rows)
    elif len(found.question.machines) > 1:
        rows = found.best_of_machines()
    today = _findings(found.question.today, params)
    before = set(map(_place, today))
    shown: list[Shown] = []
    passed: dict[str, int] = {}
    for row in rows[:_MOST_CHECKED]:
        if len(shown) == top:
            break
        told = [each for each in _findings(row.candidate, params) if _place(each) not in before]
        errors = dict.fromkeys(each.code.id for each in told if each.is_error)
        for code in errors:
            passed[code] = passed.get(code, 0) + 1
        if not errors:
            hidden = _hidden(row.candidate, params)
            shown.append(Shown(len(shown) + 1, row, tuple(told), hidden))
    faults = dict.fromkeys(each.code.id for each in today if each.is_error)
    hidden = _hidden(found.question.today, params)
    return Search(found, tuple(shown), passed, tuple(faults), hidden)


def _hidden(candidate: Candidate, params: Params) -> tuple[str, ...]:
    """Return which axes are padded, and what those of size 1 keep others from, a phrase each."""
    (plan,) = pipeline.compile_plans(candidate.spec, candidate.arrays(params))
    pads = (axis for axis in plan.spec.logical_axes if axis.padding)
    padded = tuple(f"pads `{axis.name}` {axis.true_size} -> {axis.size}" for axis in pads)
    return padded + tuple(
        f"`{axis}` of size 1 takes `{name}` before `{', '.join(behind)}`"
        for (axis, name), behind in size_one_axis.hidden_by(plan).items()
    )


def _findings(candidate: Candidate, params: Params) -> tuple[Diagnostic, ...]:
    """Return what the checks say of a layout, but of what was asked for: sizes of 1, machines.

    Mesh axes that only other targets have are known.
    """
    spec, whole = candidate.spec, candidate.variant.spec
    told = pipeline.findings(spec, pipeline.compile_plans(spec, candidate.arrays(params))).shown
    passed = {codes.SIZE_ONE_AXIS, codes.TARGET_NAME}
    here = replace(whole, targets=(*whole.targets, candidate.target))
    if not any(unknown_mesh_axis.check(Context(here, ()))):
        passed.add(codes.UNKNOWN_MESH_AXIS)  # an axis of other targets
    return tuple(each for each in told if each.code not in passed)


def _place(finding: Diagnostic) -> tuple[object, ...]:
    """Return what tells a finding from others, whatever the sizes in its words."""
    spans = (label.span for label in finding.labels if label.primary)
    return finding.code, *((span.source.name, span.start) for span in spans)


def search_lines(table: Search) -> Iterator[str]:
    """Yield what a search found."""
    found, shown = table.found, table.shown
    question = found.question
    target = question.target
    assert target.hardware is not None, "only a target with a machine is searched"
    yield "   ".join((question.spec.source.name, f"{target.name}: {target.hardware.title}"))
    yield f"    {_seen(found, len(shown))}"
    yield from _kinds(found)
    yield from _calibrated(shown, found)
    if question.wanted.scale.told:
        yield f"    {question.wanted.scale.told}"
    yield ""
    yield from _table(found, shown)
    yield from _beside_table(table)
    best = table.best
    if shown and best is None:
        yield f"  no row is the best: {UNKNOWN_ROWS}"
    if best is not None and any(rankings.is_tie(best, each.row) for each in shown[1:]):
        share = words.percent(rankings.spread(best, shown[1].row), 1)
        yield f"  = within {share} of the best: the model cannot tell them apart"
    if best is not None and found.today is not None:
        yield ""
        yield from _beside_today(found, best)
        own = found.ranking.kinds.get(None, rankings.Searched())
        is_alone = len(found.ranking.kinds) < 2 and question.spec.step is not None
        if is_alone and (len(own.sizes) < 2 or best.candidate == found.today.candidate):
            yield "    --over roles searches other mesh axes, with the rules that shard over them"


def _beside_table(table: Search) -> Iterator[str]:
    """Yield what the figures and the axes of the table leave out."""
    shown, passed, question = table.shown, table.passed, table.found.question
    target, found = question.target, table.found
    spec = question.spec
    if spec.step is not None and spec.step.mode == "train" and spec.state is None:
        yield "  memory is without optimizer state: the spec has no `state:`"
    ones = [axis for axis in target.mesh.names if axis not in _above_one(shown, found.today)]
    if ones and len(ones) < len(target.mesh.names):
        yield f"  of size 1 in all rows: {words.listed(ones, limit=16)}"
    step = spec.step
    if step is not None and step.experts is not None and step.experts.balance is not None:
        yield "  experts are uneven: the time is expected, the memory that of one step in a hundred"
    if table.hidden:
        yield f"  today {'; '.join(table.hidden)}"
    if passed:
        yield f"  skipped, since they have errors: {_codes(passed)}"
    if table.faults:
        told = ", ".join(table.faults)
        yield f"  today's mesh has errors itself, and so may rows: {told} (`shardspec check`)"


def _calibrated(shown: Sequence[Shown], found: Found) -> Iterator[str]:
    """Yield what of the times stands on measurements, of each calibration that counts in them."""
    rows = [*(each.row for each in shown), *([] if found.today is None else [found.today])]
    for made in dict.fromkeys(row.calibration for row in rows):
        if made is not None:
            links = (
                f"; collectives on {made.mesh} of {made.machine}, on other meshes by the links"
                if made.is_measured
                else ""
            )
            yield f"    {made}{links}"


def _codes(passed: Mapping[str, int]) -> str:
    return ", ".join(f"{code} in {count}" for code, count in passed.items())


def _seen(found: Found, shown: int) -> str:
    """Return how many candidates were looked at, and what became of the rest."""
    ranking = found.ranking
    large = ranking.too_large
    counts = (
        (large, f"{large:,} {'does' if large == 1 else 'do'} not fit"),
        (ranking.refused, f"{ranking.refused:,} have too few sequences on a device"),
        (ranking.too_slow, f"{ranking.too_slow:,} take longer than --latency"),
        (ranking.misplaced, f"{ranking.misplaced:,} cannot lie on their machine"),
        (ranking.unlinked, f"of the links of {ranking.unlinked:,} no speed is known"),
        (ranking.untimed, f"the catalogue has no speeds of {words.listed(ranking.untimed)}"),
    )
    parts = [words.counted(ranking.seen, "candidate"), *(said for count, said in counts if count)]
    parts.append(f"{shown} of {words.counted(len(found.rows), 'row')} shown")
    if found.is_stopped:
        parts.append("stopped before the end")
    elif found.left:
        parts.append("there are more: --most N looks further, --keep AXIS=SIZE narrows the search")
    return "; ".join(parts)


def _table(found: Found, shown: Sequence[Shown]) -> Iterator[str]:
    rooms = {(each.row.hbm_bytes, share_of(each.row.candidate.target)) for each in shown}
    machines = len(found.question.machines) > 1
    is_priced = any(each.row.dollars_per_step is not None for each in shown)
    heads = ["", "mesh", "step", "tokens/s", "MFU", "memory", "bound by", "compared with today"]
    size, share = rooms.pop()
    if size is not None and not rooms:
        heads[5] += f" of {room_text(size, share)}"
    axes = _above_one(shown, found.today)
    rows = [_cells(_rank(each, shown[0]), each, axes, found.today) for each in shown]
    if found.today is not None:
        rows.append(_cells("now", Shown(0, found.today), axes, None))
    if is_priced:
        heads.insert(3, "dollars")
        own = [*(each.row for each in shown), found.today]
        rows = [
            (*cells[:3], _dollars(row), *cells[3:]) for cells, row in zip(rows, own, strict=False)
        ]
    if machines:
        heads.insert(1, "machine")
        own = [*(each.row for each in shown), found.today]
        titles = [row.candidate.hardware.with_count for row in own if row is not None]
        rows = [(*cells[:1], title, *cells[1:]) for cells, title in zip(rows, titles, strict=True)]
    yield from columns((tuple(heads), *rows), right=(0,), is_prose=True)


def _above_one(shown: Sequence[Shown], today: rankings.SearchRow | None) -> set[str]:
    """Return the mesh axes that are larger than 1 in a row that is shown."""
    rows = [*(each.row for each in shown), *([] if today is None else [today])]
    axes = (axis for row in rows for axis in row.candidate.mesh.axes)
    return {axis.name for axis in axes if axis.size > 1}


def _rank(each: Shown, best: Shown) -> str:
    if each.row.unknown:
        return "?"
    if each is best:
        return str(each.rank)
    return f"{each.rank}=" if rankings.is_tie(best.row, each.row) else str(each.rank)


def _cells(
    rank: str, each: Shown, axes: set[str], today: rankings.SearchRow | None
) -> tuple[str, ...]:
    row, findings = each.row, each.findings
    tokens = row.tokens_per_s
    memory = f"{row.memory.mark} {words.binary_bytes(row.memory.bytes)}"
    if row.fits is False:
        memory += ", DOES NOT FIT" + (f" ({row.pipeline})" if row.pipeline else "")
    elif row.unknown and row.fits is None:
        memory += ", unknown whether it fits"
    elif row.fits_probability is not None and row.fits_probability < SURE:
        memory += f", fits {words.percent(row.fits_probability, 1)} likely"
    beside = [] if today is None else [phrase(today, row)]
    if row.share is not None and row.share.copies > 1:
        beside.append(f"{row.share.copies} devices compute the same sequences")
    beside += each.hidden
    if findings:
        codes = tuple(dict.fromkeys(told.code.id for told in findings))
        beside.append(f"adds {'warning' if len(codes) == 1 else 'warnings'} {', '.join(codes)}")
    return (
        rank,
        row.candidate.text(axes),
        f"{'at least ' if row.unknown else ''}~ {seconds_text(row.seconds)}",
        "" if tokens is None else words.element_count(round(tokens)),
        "unknown" if row.unknown else words.percent(row.time.mfu, 1),
        memory,
        "unknown" if row.unknown else row.time.bound,
        "; ".join(beside),
    )


def _dollars(row: rankings.SearchRow | None) -> str:
    """Return what a step costs in money, or a million tokens where they are counted."""
    dollars = None if row is None else row.dollars_per_token
    if row is None or dollars is None:
        return ""
    return f"{dollars * 1e6:.3g} /M tokens" if row.tokens else f"{dollars:.3g} a step"


def phrase(today: rankings.SearchRow, row: rankings.SearchRow) -> str:
    """Return in a phrase what a layout gains and loses: `-1.8 s tensor, +368 ms fsdp, -15 GiB`."""
    if row.candidate == today.candidate:
        return "this is today's"
    if row.unknown or today.unknown:
        names = dict.fromkeys(each.what for each in (*row.unknown, *today.unknown))
        return f"unknown: {words.listed(names)}"
    least = _LITTLE * max(today.seconds, row.seconds)
    moved = [each for each in rankings.parts_changed(today, row) if abs(each.more) >= least]
    parts = [f"{signed_text(each.more)} {each.name}" for each in moved[:3]]
    more = row.memory.bytes - today.memory.bytes
    if abs(more) >= 0.01 * max(today.memory.bytes, row.memory.bytes):
        parts.append(f"{'+' if more > 0 else '-'}{words.binary_bytes(abs(more))}")
    return ", ".join(parts) or "the same"


def _beside_today(found: Found, best: rankings.SearchRow) -> Iterator[str]:
    """Yield why the best is better: what takes less, what more, what is sent otherwise."""
    today = found.today
    assert today is not None, "there is something to hold it against"
    if best.candidate == today.candidate:
        yield from _no_better(found)
        return
    if today.unknown:
        yield f"today's mesh is not compared: {UNKNOWN_ROWS}"
        return
    times = words.three_figures(today.pace / best.pace) if best.pace else "many"
    is_same = today.tokens == best.tokens
    told = f"{times} times as fast" if is_same else f"{times} times the tokens/s"
    if today.fits is False and best.fits is not False:
        told = "today's does not fit"
    elif rankings.is_tie(today, best):
        near = words.percent(rankings.spread(today, best), 1)
        told = f"within {near} of each other: the model cannot tell which is faster"
    old, new = seconds_text(today.seconds), seconds_text(best.seconds)
    yield f"today -> best        ~ {old} -> ~ {new}, {told}"
    parts = [
        f"{each.name} {seconds_text(each.before)} -> {seconds_text(each.after)}"
        for each in rankings.parts_changed(today, best)
    ]
    yield f"    takes   {', '.join(parts)}" if parts else "    takes   as long in all parts"
    yield from _rules(best)
    sent = found.sends(best)
    for word, kind in (
        ("less", [each for each in sent if each.after < each.before]),
        ("more", [each for each in sent if each.after > each.before]),
    ):
        rows = [
            (f"sends {word}" if at == 0 else "", *_sent(each))
            for at, each in enumerate(kind[:_MOST_SENT])
        ]
        yield from columns(rows, right=(4,), indent=4, paths=3)
        if len(kind) > _MOST_SENT:
            yield f"    {'':<12}and {words.counted(len(kind) - _MOST_SENT, 'row')} {word}"


def _no_better(found: Found) -> Iterator[str]:
    """Yield among how many the mesh of today is the best, and what was not searched."""
    ranking, mesh = found.ranking, found.question.target.mesh
    own = ranking.kinds.get(None)
    sizes = 0 if own is None else len(own.sizes)
    axes, seen = words.listed(mesh.names, limit=6), words.counted(ranking.seen, "candidate")
    if sizes < 2 and len(ranking.kinds) < 2:
        yield f"no other sizes of {axes} were searched: {seen} of today's mesh"
    else:
        sets = words.counted(sum(kind is not None for kind in ranking.kinds), "set")
        more = f", and {sets} of roles" if len(ranking.kinds) > 1 else ""
        yield f"today's mesh is the best of {seen}: {words.counted(sizes, 'mesh')} of {axes}{more}"


def _rules(best: rankings.SearchRow) -> Iterator[str]:
    """Yield what a spec says for the mesh axes of a row, where they are not its own."""
    roles = best.candidate.variant.roles
    if roles is None:
        return
    place = (
        "in addition to what the spec extends" if roles.is_own else "in place of the spec's rules"
    )
    extends = [f"extends: [{', '.join(roles.extends)}] {place}"] if roles.extends else []
    for at, text in enumerate((*extends, *roles.rules)):
        yield f"    {'' if at else 'rules':<8}{text}"


def _kinds(found: Found) -> Iterator[str]:
    """Yield how many candidates of each set of roles were looked at."""
    kinds = found.ranking.kinds
    if len(kinds) < 2:
        return
    counted = [f"{kind or 'own axes'} {each.candidates:,}" for kind, each in kinds.items()]
    more = len(counted) - _MOST_KINDS
    yield f"    searched: {', '.join(counted[:_MOST_KINDS])}" + (
        f", and {words.counted(more, 'other set')} of roles" if more > 0 else ""
    )


def _sent(each: rankings.Sent) -> tuple[str, ...]:
    sizes = words.binary_bytes(each.before), words.binary_bytes(each.after)
    return each.kind, "+".join(each.mesh_axes), each.carries, " -> ".join(sizes)


def nothing_found(found: Found, passed: Mapping[str, int]) -> str:
    """Return why there is nothing to show."""
    ranking = found.ranking
    if passed:
        return f"all of {words.counted(len(found.rows), 'row')} have errors: {_codes(passed)}"
    ruled = words.tallied((ranking.refused, "candidate"))
    if ranking.untimed and not found.rows:
        return f"the catalogue has no speeds of {words.listed(ranking.untimed)}"
    if ranking.unlinked and not found.rows:
        return f"no speed is known of the links of {words.counted(ranking.unlinked, 'candidate')}"
    if ranking.too_large:
        return f"none of {words.counted(ranking.seen, 'candidate')} fits in the memory of a device"
    if ruled:
        return f"{ruled} have fewer sequences on a device than --per-device-batch needs"
    if ranking.too_slow:
        return (
            f"each step takes longer than --latency, of {words.counted(ranking.seen, 'candidate')}"
        )
    if not ranking.seen and found.question.wanted.max_chips is not None:
        return f"no machine has at most {found.question.wanted.max_chips:,} chips (--max-chips)"
    return "no sizes of the mesh, as --keep has them, multiply to the devices of a machine"


# What a search found as JSON, `shardspec.search/1`; its schema is `specs/schemas/search.json`.
#
# All rows are written, the best first, and the findings of those that the table shows. Times are
# seconds, sizes bytes of one device.


def search_text(table: Search) -> str:
    """Return what a search found as JSON text. Equal searches have equal texts."""
    found, best = table.found, table.best
    head = search_data(found, best)
    rows = [
        {"rank": rank, **row, "findings": _codes_of(each, table)}
        for rank, (row, each) in enumerate(zip(head.pop("rows"), found.rows, strict=True), 1)
    ]
    today = {"today": head.pop("today")}
    told = {"with_errors": dict(table.passed), "errors_of_today": list(table.faults)}
    head |= {**told, "scale": found.question.wanted.scale.share, **today}
    sent = [] if best is None else [sent_data(each) for each in found.sends(best)]
    text = json.dumps(head, indent=2)
    lists = (f'  "{name}": {lines_of(each)}' for name, each in (("sends", sent), ("rows", rows)))
    return ",\n".join((text[:-2], *lists)) + "\n}\n"


def _codes_of(row: rankings.SearchRow, table: Search) -> list[str] | None:
    """Return the findings of a row; None where the checks were not asked about it."""
    shown = next((each for each in table.shown if each.row == row), None)
    return None if shown is None else list(dict.fromkeys(each.code.id for each in shown.findings))
