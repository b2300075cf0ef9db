"""`shardspec explain`: one verb for every "why"."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import click

from shardspec import pipeline
from shardspec.assets import DOCS
from shardspec.cli import completion, options, streams
from shardspec.cli import request as requests
from shardspec.cli.streams import FINDINGS, Failure, echo, fail, show, wants_color
from shardspec.diagnostics import Diagnostic, codes
from shardspec.diagnostics.words import counted, did_you_mean, listed, nearest
from shardspec.ir.plan import ActivationSharding, Sharding, ShardingPlan
from shardspec.ir.spec import Spec, axis_of
from shardspec.report import pages
from shardspec.resolve.resolver import activation_for

if TYPE_CHECKING:
    from shardspec.report.saved_cost import SavedCost

_LINE = re.compile(r"(?P<file>.+):(?P<line>[0-9]{1,9})")
_WHY_NOT = re.compile(r"(?P<path>.+):(?P<dim>[^:=]+)=(?P<axes>[^=]+)")
#: A place as findings print it, with its column: `spec.yaml:3:9`, `preset:t5x/2d:3:5`.
_PLACE = re.compile(
    r"(?P<line>(?:.+\.(?:ya?ml|shard|py)|(?:preset|step|example|arrays):.+):[0-9]{1,9}):[0-9]{1,9}"
)
#: What a message says before a name, where the name alone might be another's.
_KINDS = ("array", "activation", "target", "phase", "rule")

#: Rows that a part of a path may stand for: of more, one is asked for.
_MOST_MEANT = 4

_SCALAR = "is a scalar and has no dimensions"
_ARRAYS_ONLY = "--porcelain prints arrays", "give it a path or a glob alone"
_DRAWS_ONLY = "--draw draws an array, a glob or an activation", "give it that alone"


@options.verb(
    "explain",
    click.Argument(
        ["subjects"],
        nargs=-1,
        metavar="[SPEC] [SUBJECT]",
        shell_complete=completion.subjects,
    ),
    options.NAMED,
    options.TARGET,
    options.PHASE,
    *options.GIVEN,
    options.COST,
    *options.FINDINGS,
    options.option(
        "--why-not",
        metavar="PATH:DIM=AXIS",
        help="Why is this dimension (its number or name) not on that axis?",
    ),
    options.flag("--porcelain", "Tab-separated lines for other programs."),
    options.flag("--draw", "Draw who holds which part, hosts and slices too."),
    options.option(
        "--list",
        "listed",
        is_flag=False,
        flag_value="findings",
        type=click.Choice(["findings", "presets", "hardware", "examples", "steps", "arrays"]),
        help="Show all findings, or all there is of what comes along.",
    ),
    example="shardspec explain layers_3/kernel --spec spec.yaml",
    page="explaining.md",
)
def command(
    request: requests.Request,
    *,
    subjects: tuple[str, ...],
    why_not: str | None,
    porcelain: bool,
    draw: bool,
    listed: str | None,
) -> None:
    """Explain why an array is sharded the way it is, or what a name means.

    SUBJECT is the path of an array, a part of it, a glob over paths, a line (`spec.yaml:15`),
    a mesh axis or a logical axis (`axis:NAME`), an activation, a target, a phase, a rule
    (`embed -> data`), a finding (`SHD301`, `indivisible`), a field of the language (`rules`,
    `policy.indivisible`), or what comes along (`preset:expert`, `step:moe`, `hardware:v5p`).
    The word before `:` may be left out. With a saved cost, also a line of code (`train.py:71`).
    """
    subject, first = _spec_and_subject(subjects, request)
    _one_question(subject, why_not, listed=listed, porcelain=porcelain, draw=draw)
    if listed:
        show(pages.list_lines(listed))
        return
    spec_name = first or next(iter(request.named), None)
    if subject is not None and not porcelain and not draw and _is_told(subject, spec_name):
        return
    match = _LINE.fullmatch(subject or "")
    spec_name = spec_name or (_spec_file(match["file"]) if match else None)
    file = requests.find_spec(spec_name) if spec_name else _found(subject)
    plan, diagnostics = _plan(file, request, match)
    if subject and not match:
        subject = _whole(subject, plan, request)
        _one_question(subject, None, listed=None, porcelain=porcelain, draw=draw)
    asked = _AboutPlan(subject, plan, match, request)
    if why_not is not None:
        lines = _why_not(why_not, plan, request)
    else:
        lines = _answer(asked, porcelain=porcelain, draw=draw)
    if porcelain:
        for line in lines:
            echo(line)
    else:
        _show(lines, asked)
    _compare_lock(plan, subject, request)
    if not porcelain:
        _name_target(plan, request)
    raise SystemExit(FINDINGS if requests.has_errors(diagnostics) else 0)


class _AboutPlan(NamedTuple):
    """What is asked of a plan: an array, a name, or a line of a file."""

    subject: str | None
    plan: ShardingPlan
    line: re.Match[str] | None
    request: requests.Request

    @property
    def code(self) -> tuple[str, int] | None:
        """Return the file and the line, where it is one of code."""
        line = self.line
        return (line["file"], int(line["line"])) if line and _is_code(line["file"]) else None


def _place(subject: str | None) -> str | None:
    """Return a place without its column; that in a file that comes along with what the file is."""
    if subject is None:
        return None
    place = _PLACE.fullmatch(subject)
    subject = subject if place is None else place["line"]
    line = _LINE.fullmatch(subject)
    if line is None or os.path.exists(line["file"]):
        return subject
    kind = pages.kind_of(line["file"])
    return subject if kind is None else f"{kind}:{subject}"


def _is_told(subject: str, spec_name: str | None) -> bool:
    """Explain what needs no spec, and say whether there is nothing more to say."""
    if not _explain_words(subject):
        return _explain_shipped(subject, spec_name)
    if _stands_in_spec(subject, spec_name):
        echo("")
        return False
    return True


def _name_target(plan: ShardingPlan, request: requests.Request) -> None:
    """Say on stderr which of several targets was chosen, where none is named."""
    count = len(plan.spec.targets)
    if count > 1 and request.target is None:
        request.remark(f"\non target {plan.target.name}; --target shows another of {count}")


def _show(lines: Iterator[str], asked: _AboutPlan) -> None:
    """Show what the plan says, and beside it what a saved cost does."""
    saved = asked.request.saved_cost()
    shown = _no_lines(asked.code[0], saved) if asked.code else lines
    show(shown, color=wants_color(asked.request.color))
    if saved is not None and asked.subject is not None:
        show(_cost(saved, asked.subject, asked))


def _plan(
    file: str, request: requests.Request, line: re.Match[str] | None
) -> tuple[ShardingPlan, tuple[Diagnostic, ...]]:
    """Return the plan that is asked about, and what loading found, after a report.

    Args:
      line: a line of the spec that is asked about, whose phase counts where it stands in one.
    """
    spec, diagnostics = request.load(file)
    spec = _phase_of_line(spec, line)
    chosen = request.choose_target(spec, diagnostics)
    diagnostics = pipeline.about(diagnostics, request.target)
    if request.target is None and not request.settings:  # a faulty target leaves the others
        diagnostics = requests.why_unsound([chosen], diagnostics)
        chosen = next((target for target in spec.targets if target.is_sound), chosen)
    request.require_sound(chosen, diagnostics)
    request.report(diagnostics)
    if spec.phase and request.phase is None:
        request.remark(f"in phase {spec.phase}\n")
    return pipeline.compile_plans(spec, request.params(spec), [chosen])[0], diagnostics


def _phase_of_line(spec: Spec, line: re.Match[str] | None) -> Spec:
    """Return the phase in which alone something stands on a line; the spec itself elsewhere."""
    if line is None or not spec.phases:
        return spec
    from shardspec.report.explain_line import explain_line

    for each in spec.in_phases:
        for plan in pipeline.compile_plans(each, (), each.targets[:1]):
            if any(True for _ in explain_line(line["file"], int(line["line"]), plan)):
                return each
    return spec


def _answer(asked: _AboutPlan, *, porcelain: bool, draw: bool) -> Iterator[str]:
    """Yield what there is to say about a line of a spec, an array, a glob or an axis."""
    subject, plan, line = asked.subject or "", asked.plan, asked.line
    if line and not requests.has_path(plan, subject):
        if porcelain or draw:
            fail(*(_ARRAYS_ONLY if porcelain else _DRAWS_ONLY))
        yield from _line(line["file"], int(line["line"]), plan)
        return
    yield from _subject(subject, plan, porcelain=porcelain)
    if draw:
        yield from _drawing(subject, plan)


def _no_lines(file: str, saved: SavedCost | None) -> Iterator[str]:
    """Return nothing, which is what a spec says of a line of code; fail where no cost does."""
    if saved is None:
        help = "--cost FILE says what a line of code sends; `shardspec cost -o FILE` saves that"
        fail(f"{file} is code, and no spec", help)
    return iter(())


def _cost(saved: SavedCost, subject: str, asked: _AboutPlan) -> Iterator[str]:
    """Yield what the subject costs in saved figures, where they are of this spec."""
    from shardspec.report import saved_cost

    plan, line = asked.plan, asked.line
    if not saved.is_of(plan.spec):
        asked.request.remark(f"{saved.title} is of another spec, {saved.cost.spec}")
        return
    lines: Iterator[str] = iter(())
    if asked.code:
        lines = saved_cost.place_lines(saved, *asked.code, plan)
    elif line and not requests.has_path(plan, subject):
        lines = saved_cost.line_lines(saved, line["file"], int(line["line"]), plan)
    elif subject.startswith("axis:") and subject[5:] in plan.mesh.names:
        lines = saved_cost.axis_lines(saved, subject[5:], plan)
    elif not subject.startswith("axis:"):
        named = _activation(subject, plan)
        is_array = named is None or requests.has_path(plan, subject)
        paths = [each.path for each in requests.select(subject, plan)] if is_array else [subject]
        lines = saved_cost.array_lines(saved, paths, plan)
    for number, each in enumerate(lines):
        if not number and not asked.code:
            yield ""
        yield each


def _drawing(subject: str, plan: ShardingPlan) -> Iterator[str]:
    """Yield the activation of this name, or the arrays, drawn; layers that are alike once."""
    from shardspec.report.drawing import MOST_DRAWN, drawing
    from shardspec.report.table import rows

    devices = plan.mesh.device_count
    if devices > MOST_DRAWN:
        axis = max(plan.mesh.axes, key=lambda axis: axis.size).name
        help = f"make the mesh smaller for the drawing, as in `--set mesh.{axis}=8`"
        fail(f"{devices:,} devices are not drawn: at most {MOST_DRAWN:,}", help)
    yield ""
    named = _activation(subject, plan)
    if named is not None and not requests.has_path(plan, subject):
        yield from drawing([named], plan).lines(streams.width_of())
        return
    found = requests.select(subject, plan)
    shown = rows(ShardingPlan(plan.spec, plan.target, tuple(found)))
    yield from drawing([row.first for row in shown], plan).lines(streams.width_of())


def _compare_lock(plan: ShardingPlan, subject: str | None, request: requests.Request) -> None:
    """Say on stderr where the lock beside the spec is stale, or says otherwise of this array."""
    if not os.path.exists(f"{os.path.splitext(plan.spec.source.name)[0]}.lock"):
        return
    from shardspec.lock.lock_file import lock_remark

    remark = lock_remark(plan, subject)
    if remark:
        request.remark(f"\n{remark}")


def _spec_and_subject(
    subjects: tuple[str, ...], request: requests.Request
) -> tuple[str | None, str | None]:
    """Return what is asked about, and the spec where that stands before it, as in other verbs."""
    if len(subjects) < 2:
        subject = next(iter(subjects), None)
        if (
            subject is not None
            and subject.endswith((".yaml", ".shard"))
            and os.path.isfile(subject)
        ):
            fail(
                f"`{subject}` is a spec",
                f"name what to explain: `shardspec explain {subject} PATH`",
            )
        return _place(subject), None
    *specs, subject = subjects
    if len(specs) > 1 or not os.path.exists(specs[0]):
        fail(
            f"{len(subjects)} subjects: {', '.join(subjects)}", "ask one at a time, or with a glob"
        )
    if request.named:
        fail(f"two specs: {specs[0]} and --spec {request.named[0]}", "name the spec once")
    return _place(subject), specs[0]


def _one_question(
    subject: str | None, why_not: str | None, *, listed: str | None, porcelain: bool, draw: bool
) -> None:
    """Refuse what asks for nothing, or for two things at once."""
    asked = [
        name
        for name, is_asked in (
            (f"`{subject}`", subject is not None),
            ("--why-not", why_not is not None),
            ("--list", listed is not None),
        )
        if is_asked
    ]
    if not asked:
        help = "a path, a glob, FILE:LINE, axis:NAME, an activation, a code"
        fail("nothing to explain is named", help)
    if len(asked) > 1:
        help = "ask one at a time; --why-not names its own array, `--why-not 'PATH:0=tensor'`"
        fail(f"{' and '.join(asked)} are two questions", help)
    if porcelain and (subject is None or subject.startswith("axis:")):
        fail(*_ARRAYS_ONLY)
    if draw and (porcelain or subject is None or subject.startswith("axis:")):
        fail(*_DRAWS_ONLY)


def _explain_words(subject: str) -> bool:
    """Explain what needs no spec: a finding, a field, what comes along; say whether it was one."""
    code = pages.find_code(subject)
    if code is not None:
        link = f"Documentation: {DOCS}findings.md#{code.id.lower()}-{code.name}"
        show([*pages.finding_page(code).split("\n"), "", link], is_page=True)
        return True
    if re.fullmatch(r"(?i)SHD\d*", subject):
        _print_family(subject.upper())
        return True
    if re.fullmatch(r"[a-z-]+(\.[a-z_]+)?", subject):
        lines = pages.field_page(subject)
        if lines:
            show(lines)
            return True
    return False


def _stands_in_spec(word: str, spec_name: str | None) -> bool:
    """Say whether a word of the language is also a name of the spec."""
    spec = requests.quiet_spec(spec_name)
    if spec is None or not spec.targets:
        return False
    return word in _names(spec) or any(array.path == word for array in spec.params)


def _explain_shipped(subject: str, spec_name: str | None) -> bool:
    """Explain a preset, a step, a chip and the like, unless a spec has more to say of the name."""
    page = pages.page_of(subject)
    if page is None:
        return False
    spec = requests.quiet_spec(spec_name)
    name = subject.rpartition(":")[0]
    if spec is not None and (name in {each.name for each in spec.sources} or _has(spec, subject)):
        return False
    if isinstance(page, str):
        fail(f"`{subject}` is not there", page)
    show(page)
    return True


def _has(spec: Spec, word: str) -> bool:
    """Say whether an array, an activation, an axis, a target or a phase of a spec is called so."""
    return word in _names(spec) or bool(
        requests.parts_of(word, [each.path for each in spec.params])
    )


def _names(spec: Spec) -> set[str]:
    """Return the names of activations, axes, targets and phases."""
    names = {*spec.mesh_axis_names, *(rule.logical_axis for rule in spec.axis_rules)}
    names |= {axis.name for axis in spec.logical_axes} | {each.name for each in spec.targets}
    names |= {each.name for each in spec.activations}
    return names | {each.phase for each in spec.phases}


def _print_family(start: str) -> None:
    """Print the findings whose codes start so; fail with the nearest where there are none."""
    found = [code for code in codes.ALL if code.id.startswith(start)]
    if not found:
        near = nearest(start, [code.id for code in codes.ALL], count=3)
        fail(f"no finding has the code {start}", f"near it: {listed(near)}; all: explain --list")
    show(pages.code_lines(found))


def _found(subject: str | None) -> str:
    """Return the spec of this folder; where there is none, a word may have been a finding's."""
    try:
        return requests.find_spec(None)
    except Failure as failure:
        named = pages.near_names(subject or "")
        if named is None:
            raise
        fail(failure.message, f"{named}; or {failure.help}")


def _spec_file(file: str) -> str | None:
    """Return the file of `FILE:LINE`, unless that is a preset's, or code."""
    return None if _is_shipped(file) or _is_code(file) else file


def _is_shipped(file: str) -> bool:
    return file.startswith(("preset:", "step:", "example:", "arrays:"))


def _is_code(file: str) -> bool:
    return file.endswith(".py")


def _line(file: str, line: int, plan: ShardingPlan) -> list[str]:
    from shardspec.report.explain_line import explain_line, nothing_there

    lines = list(explain_line(file, line, plan))
    if not lines:
        page = pages.page_of(f"{file}:{line}") if _is_shipped(file) else None
        if page is None or isinstance(page, str):
            fail(*nothing_there(file, line, plan))
        return list(page)
    return lines


def _subject(subject: str, plan: ShardingPlan, *, porcelain: bool) -> Iterator[str]:
    if subject.startswith("axis:"):
        yield from _axis(subject[5:], plan)
        return
    if not requests.has_path(plan, subject):
        lines = _named(subject, plan)
        if lines is not None:
            if porcelain:
                fail(*_ARRAYS_ONLY)
            yield from lines
            return
        if not requests.matching(subject, [each.path for each in plan.arrays]):
            _nearest(subject, plan)
    found = requests.select(subject, plan)
    if porcelain:
        from shardspec.report.explain import porcelain as lines_of

        for sharding in found:
            yield from lines_of(sharding)
        return
    from shardspec.report.explain import explain

    if len(found) == 1:
        yield from explain(found[0], plan)
        return
    from shardspec.report.table import rows

    shown = rows(ShardingPlan(plan.spec, plan.target, tuple(found)))
    for number, row in enumerate(shown):
        if number:
            yield ""
        if len(row.shardings) > 1:
            yield f"{row.name}: alike; the first of them:"
        yield from explain(row.first, plan)


def _whole(subject: str, plan: ShardingPlan, request: requests.Request) -> str:
    """Return the glob that part of a path stands for; what is no such part stays as it is."""
    paths = [each.param.path for each in plan.arrays]
    kind, colon, name = subject.partition(":")
    if kind == "array" and colon and subject not in paths:
        return _whole(name, plan, request)
    is_something = subject.startswith("axis:") or _named(subject, plan) is not None
    if is_something or requests.matching(subject, paths):
        return subject
    found = requests.parts_of(subject, paths)
    is_axis = subject in plan.spec.mesh_axis_names or subject in _logical_axes(plan)
    if not found:
        return f"axis:{subject}" if is_axis else subject
    from shardspec.report.table import rows

    glob = requests.glob_of_part(subject, paths, found)
    shown = rows(ShardingPlan(plan.spec, plan.target, tuple(requests.select(glob, plan))))
    axis = f"; the axis is `axis:{subject}`" if is_axis else ""
    if len(shown) > _MOST_MEANT:
        each = (row.name.removesuffix(f" x{len(row.shardings)}") for row in shown[:_MOST_MEANT])
        names = ", ".join(f"`{name}`" for name in each)
        help = f"say which array: {names}, ...; or all: `{glob}`{axis}"
        fail(f"`{subject}` is a part of {counted(len(found), 'path')}", help)
    request.remark(f"`{subject}` is read as `{glob}`{axis}\n")
    return glob


def _named(name: str, plan: ShardingPlan) -> Iterator[str] | None:
    """Return the explanation of an activation, a target, a phase or a rule; None for other names.

    With or without what it is: `target:slice` and `slice`.
    """
    kind, colon, bare = name.partition(":")
    if not colon or kind not in _KINDS:
        kind, bare = "", name
    activation = _activation(bare, plan) if kind in ("", "activation") else None
    if activation is not None:
        from shardspec.report.explain import explain_activation

        return explain_activation(activation, plan, bare)
    spec = plan.spec
    target = next((each for each in spec.targets if each.name == bare), None)
    if target is not None and kind in ("", "target"):
        from shardspec.report.table import target_title

        return iter((target_title(target), f"mesh {target.mesh}"))
    phase = next((each for each in spec.phases if each.phase == bare), None)
    if phase is not None and kind in ("", "phase"):
        from shardspec.report.explain_line import explain_phase

        return explain_phase(phase)
    if "->" not in bare or kind not in ("", "rule"):
        return None
    from shardspec.report.explain_line import explain_rules

    return explain_rules(bare, plan)


def _nearest(subject: str, plan: ShardingPlan) -> None:
    """Fail with the nearest name of its kind, where the subject says which kind it is of."""
    kind, colon, name = subject.partition(":")
    kind = "rule" if "->" in subject else kind if colon else ""
    spec = plan.spec
    known = {
        "activation": [each.activation.name for each in plan.activations],
        "target": [each.name for each in spec.targets],
        "phase": [each.phase for each in spec.phases],
        "rule": list(dict.fromkeys(map(str, (*spec.axis_rules, *spec.any_rules)))),
    }.get(kind)
    if known is None:
        return
    name = subject.removeprefix(f"{kind}:")
    near = nearest(name, known)
    help = f"did you mean `{kind}:{near[0]}`?" if near else None
    help = help or (f"there is {listed(known, 8)}" if known else f"the spec has no {kind}")
    fail(f"no {kind} is called `{name}`", help)


def _activation(name: str, plan: ShardingPlan) -> ActivationSharding | None:
    """Return the activation of this name; None where there is none."""
    return activation_for(plan.activations, name)


def _logical_axes(plan: ShardingPlan) -> set[str]:
    """Return the names of logical axes: of arrays, of activations, of rules, of `axes`."""
    logical = {axis for s in plan.arrays for axis in s.logical_axes if axis}
    logical |= {axis for s in plan.activations for axis in s.logical_axes if axis}
    logical |= {axis.name for axis in plan.spec.logical_axes}
    return logical | {rule.logical_axis for rule in plan.spec.axis_rules}


def _axis(name: str, plan: ShardingPlan) -> Iterable[str]:
    from shardspec.report.explain_line import explain_logical_axis, explain_mesh_axis

    if name in (*plan.mesh.names, *dict(plan.mesh.wholes)):
        return explain_mesh_axis(name, plan)
    logical = _logical_axes(plan)
    if name in logical:
        return explain_logical_axis(name, plan)

    having = [target.name for target in plan.spec.targets if name in target.mesh.names]
    if having:
        message = f"target {plan.target.name} has no mesh axis `{name}`; it has {plan.mesh}"
        fail(message, f"ask about one that has it: --target {having[0]}")
    hint = did_you_mean(name, [*plan.mesh.names, *logical])
    axes = f"axes: {', '.join((*plan.mesh.names, *sorted(logical)))}"
    return fail(f"no mesh axis and no logical axis is called `{name}`", hint or axes)


def _why_not(question: str, plan: ShardingPlan, request: requests.Request) -> Iterator[str]:
    from shardspec.report.explain import why_not

    match = _WHY_NOT.fullmatch(question)
    if match is None:
        help = "an array or an activation first: `a/kernel:0=data`, `a/kernel:embed=data`"
        fail(f"--why-not wants PATH:DIM=AXIS: {question}", help)
    wanted = tuple(re.findall(r"[^\s,()]+", match["axes"]))
    wanted = () if wanted == ("none",) else wanted
    activation = _activation(match["path"].removeprefix("activation:"), plan)
    if activation is not None and not requests.has_path(plan, match["path"]):
        named = f"activation {activation.activation.name}"
        yield from why_not(activation, _dimension(match["dim"], activation, named), wanted, plan)
        return
    path = _whole(match["path"], plan, request)
    found = requests.select(match["path"] if path.startswith("axis:") else path, plan)
    at = {each.path: _dimension(match["dim"], each, f"{each.path} {each.param}") for each in found}
    from shardspec.report.table import rows

    for row in rows(ShardingPlan(plan.spec, plan.target, tuple(found))):
        yield from why_not(row.first, at[row.first.path], wanted, plan, row.name)


def _dimension(asked: str, sharding: Sharding, named: str) -> int:
    """Return the dimension that a number or the name of its axis means; fail where none is."""
    names = sharding.logical_axes
    if asked.isdecimal():
        if len(asked) < 10 and int(asked) < len(names):
            return int(asked)
        shown = " ".join(name or "_" for name in names)
        last = len(names) - 1
        have = (
            f"has dimensions 0 to {last}" if last > 0 else "has dimension 0" if names else _SCALAR
        )
        fail(f"{named} ({shown}) has no dimension {asked}", f"it {have}")
    found = [at for at, name in enumerate(names) if name == asked]
    found = found or [at for at, name in enumerate(names) if name and axis_of(name) == asked]
    if len(found) == 1:
        return found[0]
    if found:
        numbers = " or ".join(map(str, found))
        fail(f"{len(found)} dims of {named} are called `{asked}`", f"say which: {numbers}")
    own = [f"`{name}`" for name in names if name]
    help = (
        f"its dimensions are {', '.join(own)}" if own else "it has no names: use a number, from 0"
    )
    return fail(f"{named} has no dimension `{asked}`", help)
