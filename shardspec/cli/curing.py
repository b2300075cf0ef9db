"""`shardspec search --step` of a spec without `step:`: the lines that the code lacks."""

from __future__ import annotations

import itertools
import os
import shlex
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import click

from shardspec import pipeline
from shardspec.cli import edits, options, streams
from shardspec.cli.request import Request
from shardspec.cli.steps import Tell, plan_on_target, step_and_folder, with_step
from shardspec.cure import telling
from shardspec.cure.figures import Figures
from shardspec.cure.patching import Patched, Refused, diff_of
from shardspec.cure.searching import MOST, Deadline, Trial, deadline
from shardspec.fixing import Changed
from shardspec.ir.spec import Spec, Target
from shardspec.report.search import WIDTH
from shardspec.search.ranking import Choice, Question, asked
from shardspec.search.variants import Refusal

if TYPE_CHECKING:
    from shardspec.jax_backend.cure.again import Asked
    from shardspec.jax_backend.cure.curing import Again, Search
    from shardspec.jax_backend.resolver import Resolver
    from shardspec.jax_backend.step.trace import Call

#: Answers that are written into the code, traced again and compiled; and how many times the next
#: ones are, where none of those before earns its place.
_MOST_TRIED, _MOST_ROUNDS = 3, 3

#: How lines that code lacks are searched for.
CURE = (
    options.option(
        "--patch",
        metavar="FILE",
        help="Write all changes as a diff for `git apply`; `-` for stdout.",
    ),
    options.seconds_option(
        "--within",
        300.0,
        "How long all of it may take: the search, tracing again, compilers, other meshes.",
        least=1,
    ),
    options.flag("--no-compile", "Show the model's figures, and compile nothing."),
)


class Words(NamedTuple):
    """What a search over code may choose.

    Attributes:
      lines: `constraints`, `arguments`.
      has_names: whether names are searched for the policies of `jax.checkpoint`.
      of_mesh: words of a search over meshes, as `--over` gives them; empty for none.
    """

    lines: frozenset[str]
    of_mesh: str
    has_names: bool = False


def words_of_code(request: Request, over: str | None) -> Words | None:
    """Return what is searched of code; None where the `step:` of the spec is searched.

    It fails where an option was given that this search has no use for.
    """
    request.require_place()
    words = _words(request, over)
    unused = _OF_CODE if words is None else _OF_STATED
    if words is not None and not words.of_mesh:
        unused |= _OF_MESHES
    context = click.get_current_context()
    for each in context.command.params:
        if each.name in unused and context.get_parameter_source(each.name) in _STATED:
            option = each.opts[0]
            if words is None:
                streams.fail(f"{option} is for a search over code", "add `--step MODULE:FUNCTION`")
            if each.name in _OF_MESHES:
                streams.fail(
                    f"{option} is for a search over meshes", "add them: `--over constraints,mesh`"
                )
            streams.fail(f"{option} is for a search by the `step:` of a spec", "leave it out")
    return words


def _words(request: Request, over: str | None) -> Words | None:
    words = [] if over is None else [word.strip() for word in over.split(",")]
    lines = frozenset(word for word in words if word in _LINES)
    others = [word for word in words if word not in (*_LINES, _NAMES)]
    if request.step_name is None:
        if lines:
            streams.fail(f"--over {min(lines)} needs code to trace", "name it: `--step train:step`")
        return None
    if not lines and request.load()[0].step is not None:
        return None
    stated = [word for word in others if word.partition("=")[0] not in _OF_SPEC]
    if stated:
        help = "leave it out, or write one" if not lines else "search one after the other"
        streams.fail(f"--over {', '.join(stated)} needs a `step:` in the spec", help)
    return Words(lines, ",".join(others), _NAMES in words) if words else ALL_LINES


#: Lines of code, and entries of `params`; what else may be chosen of a step that code states.
_LINES, _NAMES = ("constraints", "arguments"), "remat"
ALL_LINES = Words(frozenset(_LINES), "")
LINES_AND_MESH = ALL_LINES._replace(of_mesh="mesh,order")
_OF_SPEC = ("mesh", "order", "state", "hardware", "rules", "microbatches")
#: Options of a search over meshes; those that need `step:` in the spec.
_OF_MESHES = frozenset(("keep", "machines", "most"))
_OF_STATED = frozenset(
    (
        *("prices", "max_chips", "fits", "per_device_batch", "latency", "by", "pareto"),
        *("confirm", "verify", "measured"),
    )
)
_OF_CODE = frozenset(each.name for each in CURE)


_STATED = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT)


def cured(
    request: Request,
    words: Words,
    choice: Choice,
    *,
    top: int = _MOST_TRIED,
    write: bool = False,
    diff: bool = False,
) -> int:
    """Search, try and show what a step lacks; return the exit status."""
    began, until = time.monotonic(), deadline(request.within_s)
    plan = plan_on_target(request, "nothing is searched", is_told=False, has_code=True)
    choice = choice._replace(over=words.of_mesh)
    if write and plan.spec.source.name == "-":
        streams.fail("stdin cannot be written", "name the file of the spec")
    if words.of_mesh:
        _question(plan.spec, plan.target, choice)
    name, folder = step_and_folder(request)
    work = _searching(words, until, is_compiled=not request.no_compile)
    done = "traced and searched"
    found = with_step(plan.spec, plan.target.name, request, work, done=done)
    from shardspec.jax_backend.cure.again import Asked

    of_code = Asked(plan.spec, plan.target.name, name, folder, {})
    with streams.progress(is_quiet=request.is_quiet) as tell:
        most = min(top, _MOST_TRIED)
        tries = _Tries(found, of_code, words, choice, request, most, until, tell)
        report = replace(tries.report(), seconds=time.monotonic() - began)
    if words.lines:
        tries.remember(report)
    _give(report, tries, write=write, diff=diff)
    tries.remark_findings(report)
    return _status(report)


def _searching(
    words: Words, until: Deadline, *, is_compiled: bool
) -> Callable[[Resolver, Call, Tell], Search]:
    """Return what searches lines for a traced step, in files of this folder."""
    here = os.getcwd()
    share = _OF_TRIALS if words.of_mesh or is_compiled else _OF_TRIALS_ALONE

    def work(resolver: Resolver, call: Call, tell: Tell) -> Search:
        from shardspec.jax_backend.cure.curing import search

        kinds = words.lines
        return search(resolver, call, here, kinds, most=MOST, until=until, share=share, tell=tell)

    return work


def _status(report: telling.Report) -> int:
    """Return the exit status of an answer."""
    if report.found is None and not report.late:
        return streams.FAILED
    after = report.mesh or report.today
    return streams.FINDINGS if after.figures.fits is False else streams.FINE


def _give(report: telling.Report, tries: _Tries, *, write: bool, diff: bool) -> None:
    """Print an answer, and write what was asked for."""
    request, source = tries.request, tries.asked.spec.source
    patch = request.patch
    answer, why = _answer(report, tries)
    of_spec = [each for each in answer if each.file == source.name]
    if write:
        answer = [each for each in answer if each not in of_spec]
    text = diff_of(answer, os.getcwd())
    is_taken = write and why is None
    _print(report, text, request, is_data=patch == "-", is_taken=is_taken)
    if why is not None and (write or diff):
        edits.refuse(why)
    if why is not None and patch is not None:
        request.remark(f"{patch} has no mesh: {why.message}")
    if write or diff:
        _write_spec(source.name, of_spec, report, request, is_shown=not write)
    if patch is not None:
        nothing, _, _ = telling.nothing(report).partition(":")
        _write(text, patch, tries, "the spec has it all" if write and of_spec else nothing)
    elif any(each.file != source.name for each in answer):
        command = tries.command("search", "--patch", "lines.diff")
        request.remark(f"the code is not changed: `{command}` writes its lines as a diff")


def _question(spec: Spec, today: Target, choice: Choice) -> Question:
    """Return what is searched of meshes; exit where that is not clear."""
    found = asked(spec, (), today, choice, is_of_code=True)
    if not isinstance(found, Question):
        edits.refuse(found)
    return found


def _answer(report: telling.Report, tries: _Tries) -> tuple[list[Patched], Refusal | None]:
    """Return the files that change, the spec first, or why it cannot have the mesh."""
    best, source = report.best, tries.asked.spec.source
    patches = [] if best is None or isinstance(best.patches, Refused) else [*best.patches]
    if report.remat is not None and not isinstance(report.remat.patches, Refused):
        own = {each.file for each in report.remat.patches}  # with the lines of these files
        patches = [each for each in patches if each.file not in own]
        patches += report.remat.patches
    if report.mesh is None or report.mesh.candidate is None:
        return patches, None
    found = report.mesh.candidate
    today = tries.question.target
    change = edits.changed(tries.question.spec, today, found, tries.request)
    if not isinstance(change, Changed):
        return patches, change
    rest = [each for each in patches if each.file != source.name]
    return [Patched(source.name, source.text, change.new, ()), *rest], None


def _write_spec(
    name: str,
    of_spec: Sequence[Patched],
    report: telling.Report,
    request: Request,
    *,
    is_shown: bool,
) -> None:
    """Write what is of the spec `name` in an answer, or show it."""
    if not of_spec:
        request.undone(f"{name} stays as it is: no other mesh or entries save enough")
    mesh = None if report.mesh is None else report.mesh.candidate
    what = "the entries" if mesh is None else str(mesh)
    for each in of_spec:
        change = Changed(each.file, each.old, each.new)
        edits.written(change, what, request, is_shown=is_shown)


@dataclass(slots=True)
class _Tries:
    """The best answers, as they are once they are written, traced and compiled.

    Attributes:
      most: lines, and meshes, that are tried at once.
      until: when all of it ends.
      question: which meshes are tried; of the spec with the best lines.
    """

    found: Search
    asked: Asked
    words: Words
    choice: Choice
    request: Request
    most: int
    until: Deadline
    tell: Tell
    question: Question = field(init=False)
    lowered: list[Again] = field(default_factory=list)

    def report(self) -> telling.Report:
        """Return a search and its answers.

        Where none of them earns its place once it is tried, the next ones are tried.
        """
        from shardspec.jax_backend.cure.curing import more_of

        is_all = not (self.choice.over or self.words.has_names)
        of_lines = self.until.part(1.0 if is_all else _OF_LINES)
        self.lowered = lowered = [self.found.now]
        tried: list[telling.Tried] = []
        for left in reversed(range(_MOST_ROUNDS)):
            answers = () if self.found.found is None else self.found.found.answers[: self.most]
            new = self._traced(answers, of_lines)
            lowered += new
            is_first = not tried
            if answers or (is_first and not is_all):
                tried += self._compiled(lowered if is_first else new, of_lines)
            report = self._reported(_alike(tried or [self.found.now.tried], lowered))
            seconds = of_lines.left * _OF_TRIALS
            if report.best is not None or not answers or not left or seconds < 1:
                break
            refuted = [each.tried.lines for each in lowered[1:]]
            self.found = more_of(self.found, refuted, seconds, self.tell)
        late = [each.cost is not None for each in tried if each.is_late]
        report = replace(report, untraced=late.count(False), unproved=late.count(True))
        is_known = report.found is not None or report.late > 0
        if self.words.has_names and is_known:
            report = self._with_names(report)
        if not self.choice.over or not is_known:
            return report
        return self._with_meshes(report)

    def _traced(self, answers: Sequence[tuple[Trial, Figures]], until: Deadline) -> list[Again]:
        """Return answers as they are once they are written, and traced again."""
        from shardspec.jax_backend.cure.again import tracing
        from shardspec.jax_backend.cure.curing import again
        from shardspec.jax_backend.xla.compiling import most_at_once

        begun = itertools.count(1)

        def traced(answer: tuple[Trial, Figures]) -> Again:
            self.tell(f"tracing answer {next(begun)} of {len(answers)} again")
            return again(self.found, *answer, self.asked, self._reload, until)

        with tracing(most_at_once()) as pool:
            return list(pool.map(traced, answers))

    def _reported(self, tried: Sequence[telling.Tried]) -> telling.Report:
        found, (base, *others) = self.found, tried
        own = (found.found, found.beyond, found.trials, found.late, self.request.within_s)
        return telling.Report(
            base, telling.ordered(others), *own, bool(self.words.lines), mapped=found.mapped
        )

    def _with_names(self, report: telling.Report) -> telling.Report:
        from shardspec.jax_backend.cure.curing import Policies, policies, policies_in

        now, with_lines = self._with_lines(report)
        own, names = policies_in(os.getcwd(), with_lines), self.found.names
        found = Policies()
        if own and names:
            until = self.until.part(_OF_TRIALS)
            found = policies(with_lines, now, own, names, until, self.tell)
        tried = self._proved(report, now, found.found)
        late = sum(each.is_late for each in tried)
        other = telling.OtherNames(len(own), names, tried, found.late)
        return replace(report, names=other, unproved=report.unproved + late)

    def _today(self, report: telling.Report) -> Again:
        """Return the step with the best lines."""
        return next(each for each in self.lowered if each.tried.lines == report.today.lines)

    def _with_lines(self, report: telling.Report) -> tuple[Again, Asked]:
        """Return the step with the best lines, and what is traced of it."""
        from shardspec.jax_backend.cure.curing import with_patches

        best, now = report.today, self._today(report)
        patches = () if isinstance(best.patches, Refused) else best.patches
        return now, with_patches(self.asked, patches, self._reload) or self.asked

    def _proved(
        self, report: telling.Report, now: Again, found: Sequence[Again]
    ) -> tuple[telling.Tried, ...]:
        """Return what was found, the first ones that are better compiled where the lines are."""
        better = [e for e in found if e.tried.figures.is_better(now.tried.figures)]
        is_compiled = report.today.basis == "compiled"
        proved = self._compiled(better[: self.most], self.until) if is_compiled else []
        return (*proved, *(each.tried for each in found[len(proved) :]))

    def _with_meshes(self, report: telling.Report) -> telling.Report:
        from shardspec.jax_backend.cure.curing import meshes

        now, with_lines = self._with_lines(report)
        today = pipeline.sound_target(pipeline.find_target(with_lines.spec, self.asked.target))
        self.question = _question(with_lines.spec, today, self.choice)
        until = self.until.part(_OF_MESHES_TRACED)
        found = meshes(self.question, with_lines, now, until, self.tell)
        tried = self._proved(report, now, found.found)
        late = sum(each.is_late for each in tried)
        other = telling.OtherMeshes(tried, found.late, found.failed)
        return replace(report, meshes=other, unproved=report.unproved + late)

    def command(self, verb: str, *options: str) -> str:
        """Return the command that asks a verb about the same step, as one types it."""
        spec, request = self.asked.spec, self.request
        target = self.asked.target if len(spec.targets) > 1 else None
        given = (("--target", target), ("--phase", request.phase), ("--arrays", request.arrays))
        chosen = [word for flag, value in given if value for word in (flag, value)]
        step = ("--step", self.asked.step)
        return shlex.join(["shardspec", verb, spec.source.name, *chosen, *step, *options])

    def _compiled(self, lowered: Sequence[Again], until: Deadline) -> list[telling.Tried]:
        """Return answers with the compiler's figures, where it is asked."""
        from shardspec.jax_backend.cure.curing import compiled
        from shardspec.jax_backend.xla.compiling import most_at_once

        if self.request.no_compile or not lowered:
            return [each.tried for each in lowered]
        begun = itertools.count(1)

        def made(each: Again) -> telling.Tried:
            self.tell(f"compiling step {next(begun)} of {len(lowered)}")
            return compiled(each, until)

        with ThreadPoolExecutor(most_at_once()) as pool:
            return list(pool.map(made, lowered))

    def remember(self, report: telling.Report) -> None:
        """Keep what was found for the help of other verbs; of a search without time, its lines."""
        from shardspec.jax_backend.cure.remembered import remember

        cure, now = telling.cure_of(report), self.found.now.lowered
        is_done = report.found is not None and not report.late
        if now is not None and (cure.lines or is_done):
            remember(now.module, self.found.plan, cure, {each.file for each in cure.lines})

    def remark_findings(self, report: telling.Report) -> None:
        """Name the findings of the step with the best lines, which no line mends."""
        from shardspec.lints.registry import step_codes

        cost = self._today(report).tried.cost
        if cost is None:
            return
        plan = cost.plan
        params = tuple(each.param for each in plan.arrays)
        found = pipeline.check(plan.spec, (), params, plan.target.name, costs=[cost]).shown
        codes = dict.fromkeys(each.code for each in found if each.code in step_codes())
        if codes:
            what = "; ".join(f"{code.id} ({code.summary})" for code in codes)
            shows = self.command("check")
            self.request.remark(f"this step also has {what}: `{shows}` says what to do")

    def _reload(self, text: str) -> Spec | None:
        return self.request.reload(self.asked.spec.source.name, text)


#: Shares of the time that is left: of trials before answers are proved, of lines before meshes, and
#: of tracing on meshes before these are compiled.
_OF_TRIALS, _OF_LINES, _OF_MESHES_TRACED = 0.4, 0.6, 0.6
#: The share of trials where nothing is compiled and no mesh is tried.
_OF_TRIALS_ALONE = 0.85


def _alike(tried: list[telling.Tried], lowered: list[Again]) -> list[telling.Tried]:
    """Return figures of one authority: the model's of all, where the compiler lacks one.

    An answer for which the compiler had no time is left out instead, if it had some for another.
    """
    if tried[0].basis == "compiled" and any(each.basis == "compiled" for each in tried[1:]):
        tried = [replace(each, cost=None) if each.is_late else each for each in tried]
    known = [each.cost for each in tried if each.cost is not None]
    if len({each.basis for each in known}) < 2:
        return tried
    why = next(each.why for each in tried if each.why)
    return [replace(each.tried, why=each.tried.why or why) for each in lowered]


def _print(
    report: telling.Report, diff: str, request: Request, *, is_data: bool, is_taken: bool
) -> None:
    lines = telling.report_lines(report, is_taken=is_taken)
    request.give(lambda is_kept: telling.report_text(report, diff), lines, WIDTH, err=is_data)
    best = report.best
    if best is not None and best.why:
        request.remark(best.why if best.is_late else f"not compiled: {best.why}")


def _write(diff: str, patch: str, tries: _Tries, nothing: str) -> None:
    """Write a diff, and show the commands that apply it and prove the step.

    Args:
      nothing: why there is no diff, where there is none.
    """
    request = tries.request
    if not diff:
        request.undone(f"{patch} is not written: {nothing}")
        return
    streams.write_file(patch, diff)
    proof = tries.command("cost" if tries.request.no_compile else "verify")
    apply = shlex.join(["git", "apply", patch])
    request.wrote(patch, f"{patch}: written; `{apply}` changes the files, then run `{proof}`")
    if "+import shardspec" in diff:
        request.remark("from then on all that calls this code does so in `with resolver:` (SHD031)")
