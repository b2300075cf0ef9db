"""`shardspec search`: the meshes that a model could have, ranked, and why the best is."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import replace

import click

from shardspec import pipeline
from shardspec.analysis.cost import cost_of
from shardspec.analysis.spec_step import stated_cost
from shardspec.cli import completion, edits, options, steps
from shardspec.cli.curing import CURE, cured, words_of_code
from shardspec.cli.request import Request, has_errors
from shardspec.cli.streams import FINDINGS, FINE, fail, progress, show
from shardspec.diagnostics.words import binary_bytes, percent
from shardspec.fixing import Changed
from shardspec.report import search as tables
from shardspec.report.cost import seconds_text
from shardspec.report.search import search_text
from shardspec.search.ranking import MOST, By, Choice, Found, Question, Wanted, asked, search

_NUMBER = r"[0-9]{1,9}(?:\.[0-9]{1,6})?"
_PRICE = re.compile(rf"(?P<chip>[\w.-]+)=(?P<price>{_NUMBER})")
#: A line of progress: characters, and candidates between two of them.
_BAR, _TOLD_EVERY = 24, 25
_KEEP = re.compile(r"(?P<axis>[^=\s]+)(?:=(?P<sizes>[0-9]{1,9}(?:\|[0-9]{1,9})*))?")


def _keep(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, tuple[int, ...]]:
    """Return the sizes of `tensor=8`, `tensor=4|8`; none for `tensor`, which is as it is today."""
    kept = {}
    for value in values:
        found = _KEEP.fullmatch(value)
        if found is None:
            fail(f"--keep {value} is no size of an axis", "as in `--keep tensor=8`, `--keep fsdp`")
        sizes = (found["sizes"] or "").split("|")
        kept[found["axis"]] = tuple(int(size) for size in sizes if size)
    return kept


def _prices(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, float]:
    """Return dollars of a chip hour, by chip."""
    prices = {}
    for value in values:
        found = _PRICE.fullmatch(value)
        if found is None:
            fail(f"--price {value} is no price", "dollars of a chip hour: `--price v5p=4.2`")
        prices[found["chip"]] = float(found["price"])
    return prices


def _latency(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """Return the seconds of `30ms`."""
    found = None if text is None else steps.seconds_in(text)
    if text is not None and not found:
        fail(f"--latency {text} is no time", "as in `--latency 30ms`")
    return found


@options.verb(
    "search",
    *options.ONE_PLAN,
    *options.GIVEN,
    *options.FINDINGS,
    options.format_option("text", "json"),
    options.option(
        "--over",
        default=None,
        metavar="WORDS",
        help="What the search may change: roles (other mesh axes, with their rules), mesh, order,"
        " axes, batch, dtype, state, remat, microbatches, offload, schedule, stages, hardware,"
        " rules=preset:A|preset:B; with values: `remat=full|dots`. For a --step"
        " without `step:` in the spec: constraints, arguments, remat (names that a policy saves),"
        " mesh, order, state, hardware, rules, microbatches=2|8."
        "  [default: mesh,order; constraints,arguments]",
    ),
    options.repeated(
        "--keep",
        callback=_keep,
        metavar="AXIS=SIZE",
        help="A size that stays: `tensor=8`, `tensor=4|8`; `tensor` alone for today's.",
    ),
    options.repeated(
        "--hardware",
        "machines",
        metavar="MACHINE",
        shell_complete=completion.machines,
        help="Another machine to look at, in place of the target's: `tpu v5p 4x4x8`, `16 * h100`.",
    ),
    options.repeated(
        "--price",
        "prices",
        callback=_prices,
        metavar="CHIP=DOLLARS",
        help="Of an hour of a chip: `v5p=4.2`.",
    ),
    options.count_option("--max-chips", "Skip machines with more chips.", 1),
    options.flag("--fits", "Leave out what is certain not to fit in memory."),
    options.option(
        "--per-device-batch",
        type=click.FloatRange(min=0, min_open=True),
        metavar="N",
        help="Sequences of a microbatch that each device has at least.",
    ),
    options.option(
        "--latency",
        callback=_latency,
        metavar="TIME",
        help="The longest that a step may take: `30ms`. Of one that serves, a token's latency.",
    ),
    options.choice_option(
        "--by",
        of=("time", "latency", "cost", "memory"),
        help="What is best: the most tokens a second, the shortest step, the cheapest token, or the"
        " least memory.",
    ),
    options.flag("--pareto", "Show what no other beats in time, memory and chips at once."),
    options.top("Rows shown."),
    options.option(
        "--most",
        type=click.IntRange(min=1, max=1_000_000),
        default=MOST,
        show_default=True,
        metavar="N",
        help="Candidates looked at, those most like today's mesh first.",
    ),
    options.flag("--write", "Write the best into the spec, in place; comments stay."),
    options.flag("--diff", "Show what --write would change; write nothing."),
    steps.STEP,
    options.count_option("--confirm", "Trace the step of --step on the best N, too.", default=0),
    options.count_option(
        "--verify",
        "Have the compiler prove the step on the best N: that of --step, else of the spec.",
        default=0,
    ),
    *CURE,
    steps.MEASURED,
    *options.OUTPUT,
    example="shardspec search spec.yaml --over mesh,remat",
    page="search.md",
)
def command(
    request: Request,
    *,
    over: str | None,
    keep: Mapping[str, tuple[int, ...]],
    machines: tuple[str, ...],
    prices: Mapping[str, float],
    max_chips: int | None,
    fits: bool,
    per_device_batch: float | None,
    latency: float | None,
    by: By,
    pareto: bool,
    top: int,
    most: int,
    write: bool,
    diff: bool,
    confirm: int,
    verify: int,
    measured: steps.Measured | None,
) -> None:
    """Rank meshes by the time of a step, or find the lines that the code lacks.

    With --step, and no `step:` in the spec, it searches the code for values to constrain: which
    lines to add, by logical axes, and what they save. Before an answer is shown, it is written into
    the sources and traced again, and compiled if there is a compiler. --patch writes it.

    Otherwise `step:` of the spec says what a step computes, and no code and no devices are needed.
    It tries all sizes of the mesh axes that multiply to the devices, which axis crosses slices,
    tiles of the torus, the order of chips, and what --over adds: with `roles`, other mesh axes and
    the rules of the presets that shard over them. Each candidate is resolved by the rules of the
    spec, compared with the memory of a device, and timed as in `shardspec cost`. Ctrl-C shows the
    best so far.
    """
    if confirm and request.step_name is None:
        fail("--confirm needs code to trace", "name it: `--step train:step`")
    choice = Choice(over or "mesh,order", keep, machines, most, by)
    words = words_of_code(request, over)
    if words is not None:
        raise SystemExit(cured(request, words, choice, top=top, write=write, diff=diff))
    wanted = Wanted(fits, max_chips, per_device_batch, prices, latency=latency)
    question = _held_to(measured, _question(request, choice, wanted), request)
    table = tables.checked(_searched(question, request), top, is_front=pareto)
    _print(table, request)
    tried = table.shown[: max(confirm, verify)]
    off = [_is_off(question, request, verify, each) for each in tried]
    if write or diff:
        _write_best(table, request, is_off=any(off[:1]), is_shown=diff)
    is_bad = table.best is None or table.best.fits is False or any(off)
    raise SystemExit(FINDINGS if is_bad else FINE)


# what is asked


def _question(request: Request, choice: Choice, wanted: Wanted) -> Question:
    """Return what is searched; exit where that is not clear, or the answer has no place."""
    request.require_place()
    spec, diagnostics = request.load()
    target = request.choose_target(spec, diagnostics)
    told = pipeline.about(diagnostics, target.name)
    request.require_sound(target, told)
    request.report(told)
    if has_errors(told):
        request.undone(f"nothing is searched: {spec.source.name} has errors")
        raise SystemExit(FINDINGS)
    if request.target is None and len(spec.targets) > 1:
        request.remark(f"target {target.name}; --target searches another of {len(spec.targets)}")
    found = asked(spec, request.params(spec), target, choice, wanted)
    if not isinstance(found, Question):
        edits.refuse(found)
    (plan,) = pipeline.compile_plans(spec, found.params, [target])
    request.report(pipeline.uncounted(plan))
    return found


def _held_to(measured: steps.Measured | None, question: Question, request: Request) -> Question:
    """Return a search whose times are scaled by what a measured step took over its prediction."""
    if measured is None:
        return question
    at = steps.as_it_is(measured, request, question.target.name)
    plan = steps.plan_on_target(at, "nothing is searched", is_told=False)
    scale = steps.scale_of(measured, stated_cost(plan), request)
    return replace(question, wanted=question.wanted._replace(scale=scale))


# the search


def _searched(question: Question, request: Request) -> Found:
    """Return what is found; on a terminal a line says how far it is."""
    with progress(is_quiet=request.is_quiet) as tell:
        tell("searching")
        total = question.count if sys.stderr.isatty() else 0

        def told(number: int) -> None:
            if number % _TOLD_EVERY == 0 and total:
                done = _BAR * number // total
                bar = "#" * done + "." * (_BAR - done)
                tell(f"[{bar}] {number:,} of {total:,} candidates")

        return search(question, told)


def _way_out(found: Found) -> str:
    """Return what to try where nothing is shown."""
    if found.ranking.untimed:
        return "--hardware names a machine of the catalogue: `--hardware 'tpu v5p 4x4x4'`"
    if found.ranking.unlinked and not found.rows:
        return "`shardspec calibrate` measures those of the spec's own mesh: keep its sizes"
    if found.ranking.too_slow and not found.rows:
        return "allow more, or answer fewer at once: `--over mesh,order,batch`"
    if not found.ranking.seen:
        return "name other sizes with --keep, or another machine with --hardware"
    if found.ranking.refused and not found.rows:
        return "ask for fewer, or keep the batch on fewer devices: --keep fsdp=8"
    return "--over mesh,order,remat,microbatches,state looks for what needs less memory"


def _print(table: tables.Search, request: Request) -> None:
    if not table.shown:
        fail(tables.nothing_found(table.found, table.passed), _way_out(table.found))
    request.give(lambda is_kept: search_text(table), tables.search_lines(table), tables.WIDTH)


# what is done with the best


def _write_best(table: tables.Search, request: Request, *, is_off: bool, is_shown: bool) -> None:
    """Write the best row into the spec, unless its trace says something else.

    Args:
      is_shown: write nothing, and show what would change.
    """
    if is_off:
        request.undone("the best is not confirmed, and is not written")
        return
    best = table.shown[0].row
    question = table.found.question
    if best.unknown:
        fail(
            f"no row is the best, so none is written: {tables.UNKNOWN_ROWS}", _way_out(table.found)
        )
    if best.fits is False:
        fail("the best does not fit in memory, and is not written", _way_out(table.found))
    change = edits.changed(question.spec, question.target, best.candidate, request)
    if not isinstance(change, Changed):
        edits.refuse(change)
    edits.written(change, str(best.candidate), request, is_shown=is_shown)


def _is_off(question: Question, request: Request, verify: int, each: tables.Shown) -> bool:
    """Trace the step of a layout, or compile it; say whether it is not what is stated of it.

    It may take another time, one that is unknown, or not fit where it is stated to. Where stdout
    has JSON, it is said on stderr.
    """
    is_data = request.form == "json" or request.output == "-"
    candidate = each.row.candidate
    (plan,) = pipeline.compile_plans(candidate.spec, candidate.arrays(question.params))
    if each.rank <= verify:
        show(["", f"{each.rank}   {each.row.candidate}   compiled"], err=is_data)
        with steps.Pending(plan, request) as pending:
            proof = pending.proof()
        steps.print_proof(proof, err=is_data)
        return proof.fits is False and each.row.fits is not False
    traced = cost_of(plan, steps.traced_step(plan, request), tokens=each.row.tokens)
    stated, spread = each.row.seconds, each.row.time.spread
    found, why = "unknown", "its time is unknown"
    if traced.time is not None and not traced.uncounted("time"):
        seconds = traced.time.step_seconds * question.wanted.scale.share
        is_off = max(seconds, stated) > (1 + spread) * min(seconds, stated)
        why = f"off by more than {percent(spread, 1)}" if is_off else ""
        found = f"~ {seconds_text(seconds)}"
    size = binary_bytes(traced.memory.total.bytes)
    told = f"step ~ {seconds_text(stated)}, traced {found}, {traced.memory.total.mark} {size}"
    if traced.memory.fits is False and each.row.fits is not False:
        why = "it does not fit"
    head = f"NOT CONFIRMED, {why}: " if why else ""
    show([f"{each.rank}   {head}{each.row.candidate}   {told}"], err=is_data)
    return bool(why)
