"""The only place where stages are chained: text -> Spec -> plan -> findings."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardspec import arrays
from shardspec.arrays import read_arrays, read_manifest
from shardspec.diagnostics import Code, Diagnostic, ShardspecError, codes, point, quote, sort_key
from shardspec.diagnostics.codes import NOTHING_ASKED, Levels, LevelTable
from shardspec.diagnostics.words import did_you_mean, listed, near_or_known
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Params, Spec, Target, family
from shardspec.language import loader
from shardspec.language.reading import Reading, is_dsl
from shardspec.language.silencing import project_levels, suppressed
from shardspec.resolve.resolver import padded, pads, resolve

if TYPE_CHECKING:
    from shardspec.analysis.cost import Cost

__all__ = ["read_arrays", "read_manifest"]


def load_path(
    path: str,
    settings: Mapping[str, str] | None = None,
    *,
    with_manifests: bool = True,
    texts: Mapping[str, str] | None = None,
    folders: tuple[str, ...] = (),
    readings: list[Reading] | None = None,
    asked: LevelTable = NOTHING_ASKED,
) -> tuple[Spec | None, tuple[Diagnostic, ...]]:
    """Return the spec in the file at `path` (`-` is stdin), and every fault found.

    The one door: the levels of the project above the file come in with it, and every verb, `load`
    and `Resolver` take this way.

    Args:
      settings: what-ifs, route to value: `{"mesh.model": "8"}`; they beat the file.
      with_manifests: False leaves what `manifest:` names unread, for arrays from elsewhere.
      texts: by real path, what counts in place of what a file holds: edits not yet written.
      folders: those that a person has open together, without links: they are one project.
      readings: takes what is read of the files, for who asks about their texts.
      asked: the levels that the caller asks for, beyond those of project and spec.

    Returns:
      The spec, None where nothing can be made of the text; and the faults: raw beside a spec, for
      a `Report`, and as loud as is asked where there is none.
    """
    reader = arrays if with_manifests else None
    options = loader.LoadOptions(settings or {}, reader, texts or {}, folders, readings)
    return _with_levels(*loader.load_path(path, options), path, asked)


def load_text(
    text: str,
    name: str = "<string>",
    settings: Mapping[str, str] | None = None,
    *,
    asked: LevelTable = NOTHING_ASKED,
) -> tuple[Spec | None, tuple[Diagnostic, ...]]:
    """Return the spec in `text`, YAML or DSL; relative names start from this folder.

    So does the project whose levels count; else as `load_path`.
    """
    options = loader.LoadOptions(settings or {}, arrays)
    return _with_levels(*loader.load_text(text, name, options), "-", asked)


def _with_levels(
    spec: Spec | None, faults: tuple[Diagnostic, ...], path: str, asked: LevelTable
) -> tuple[Spec | None, tuple[Diagnostic, ...]]:
    project, more = project_levels(path)
    faults = (*more, *faults)
    if spec is None:
        heard = Levels((project, asked)).heard(faults)
        return None, tuple(each.spelt(is_dsl=_is_in_dsl(each)) for each in heard)
    spec, _ = padded(spec)
    return spec.everywhere(
        lambda each: replace(each, project_levels=project, call_levels=asked)
    ), faults


def _is_in_dsl(found: Diagnostic) -> bool:
    return found.primary is not None and is_dsl(found.primary.span.source)


def asked_also(spec: Spec, asked: LevelTable) -> Spec:
    """Return a loaded spec for a caller with levels of its own, which beat those before."""
    if asked == NOTHING_ASKED:
        return spec
    settings = (*spec.call_levels.settings, *asked.settings)
    levels = spec.call_levels._replace(settings=settings)
    return spec.everywhere(lambda each: replace(each, call_levels=levels))


def compile_plans(
    spec: Spec, params: Params | None = None, targets: Sequence[Target] | None = None
) -> tuple[ShardingPlan, ...]:
    """Return a plan for each target.

    Args:
      params: the arrays; None for those that the spec itself lists.
      targets: None for all of the spec.
    """
    chosen = spec.targets if targets is None else targets
    is_known = all(target in spec.targets for target in chosen)
    if not is_known or (params is not None and params is not spec.params):
        spec, params = padded(spec, params, None if is_known else chosen)
    return _plans(spec, params, chosen)


def _plans(
    spec: Spec, params: Params | None, targets: Iterable[Target]
) -> tuple[ShardingPlan, ...]:
    arrays = spec.params if params is None else (*params, *_caches_beside(params, spec))
    return tuple(resolve(spec, target, arrays) for target in targets)


def _caches_beside(params: Params, spec: Spec) -> Params:
    """Return the caches of the spec that are not among the arrays."""
    known = {param.path for param in params} if spec.caches else ()
    return tuple(cache for cache in spec.caches if cache.path not in known)


def plans_of_phases(
    spec: Spec, params: Params | None = None, target: str | None = None
) -> tuple[ShardingPlan, ...]:
    """Return a plan for each target of the spec and of each of its phases.

    Args:
      params: the arrays; None for those that the spec itself lists.
      target: the name of the only one to look at; None for all.
    """
    arrays = None if params is spec.params else params
    if arrays is not None:
        spec, arrays = padded(spec, arrays)
    return tuple(
        plan
        for each in spec.in_phases
        for plan in _plans(
            each,
            arrays,
            [found for found in each.targets if target is None or found.is_called(target)],
        )
    )


@dataclass(frozen=True, slots=True)
class Report:
    """What a run found in a spec, and what of it is shown: the one place that decides.

    Attributes:
      spec: whose levels and comments count.
      found: everything, whatever its level.
      of_comments: what is wrong with the comments themselves, which no comment silences.
      targets: how many targets the spec was looked at on.

    Invariants:
      once: a report of what another shows, on the same spec, shows the same.
    """

    spec: Spec
    found: tuple[Diagnostic, ...]
    of_comments: tuple[Diagnostic, ...] = ()
    targets: int = 0

    @property
    def loud(self) -> tuple[Diagnostic, ...]:
        """Return what is as loud as is asked, in any order, those that others explain too.

        Whoever decides by the code of a finding asks this: what to show is another matter.
        """
        return _as_spelt(self.spec, self.spec.levels.heard(self._unsilenced))

    @property
    def shown(self) -> tuple[Diagnostic, ...]:
        """Return what is to be shown, in reading order; families of targets as one."""
        found = _chosen(self.loud)
        if any("[" in target.name for each in self.spec.in_phases for target in each.targets):
            from shardspec.lints.follow_on import families_as_one

            found = tuple(families_as_one(found))
        return found

    @property
    def errors(self) -> tuple[Diagnostic, ...]:
        """Return the errors among what is shown."""
        return tuple(each for each in self.shown if each.is_error)

    @property
    def hidden(self) -> tuple[Diagnostic, ...]:
        """Return the errors that only whoever loaded the spec does not want to hear of."""
        if self.spec.call_levels == NOTHING_ASKED:
            return ()
        heard = {replace(each, level=None) for each in self.loud if each.is_error}
        others = replace(self, spec=replace(self.spec, call_levels=NOTHING_ASKED)).loud
        errors = (each for each in _chosen(others) if each.is_error)
        return tuple(each for each in errors if replace(each, level=None) not in heard)

    @property
    def _unsilenced(self) -> tuple[Diagnostic, ...]:
        return (*suppressed(self.found)[0], *self.of_comments)


def _chosen(found: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    """Return findings once each, in reading order, without those that others of them explain."""
    if not found:
        return ()
    from shardspec.lints.follow_on import without_follow_ons

    return tuple(dict.fromkeys(sorted(without_follow_ons(found), key=sort_key)))


def report(spec: Spec, found: Iterable[Diagnostic]) -> Report:
    """Return a report of what was found elsewhere: faults of reading, doubts about code."""
    return Report(spec, tuple(found))


def findings(
    spec: Spec,
    plans: Sequence[ShardingPlan],
    costs: Sequence[Cost] = (),
    faults: Iterable[Diagnostic] = (),
    only: Container[Code] | None = None,
) -> Report:
    """Return a report of everything that the checks find.

    Args:
      plans: those of a phase are looked at as such.
      costs: of a step, on the targets that it was traced for.
      faults: what loading the spec found.
      only: the checks that are run; None for all.
    """
    return report(spec, (*faults, *_found(spec, plans, costs, only=only)))


def step_findings(costs: Sequence[Cost]) -> tuple[Diagnostic, ...]:
    """Return what the checks that read a step have to say, and what a stated one leaves out."""
    from shardspec.lints.context import Context
    from shardspec.lints.registry import run_on_steps

    plans = tuple(cost.plan for cost in costs)
    spec = plans[0].spec if plans else None
    stated = [cost.plan for cost in costs if cost.step and cost.step.source == "spec"]
    left = uncounted(stated[0]) if stated else ()
    read = tuple(cost.for_checks for cost in costs)
    found = run_on_steps(Context(spec, plans, read)) if spec else ()
    return (*left, *report(spec, found).shown) if spec else ()


def uncounted(plan: ShardingPlan) -> tuple[Diagnostic, ...]:
    """Return the error that a stated step leaves out much of the model, for verbs that price it."""
    from shardspec.lints.checks.unread_arrays import in_figures

    return _as_spelt(plan.spec, in_figures(plan.spec, plan.arrays))


def without_uncounted(found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return findings without the warning that `uncounted` says as an error."""
    return tuple(each for each in found if each.code is not codes.UNREAD_ARRAYS)


def tree_findings(plan: ShardingPlan) -> tuple[Diagnostic, ...]:
    """Return everything the checks have to say about the plan of a live tree.

    A name that only rules have may be one that `constrain` gives to an activation, or the layers
    of a scan. It is a finding only where it is spelt much like one that the arrays have.
    """
    named = with_lone_named(plan)
    return tuple(map(for_trees, findings(with_axes_of_code(named), [named]).shown))


#: What stands for the path of an array that is a tree of its own, while it is checked.
_LONE = "\x00"


def with_lone_named(plan: ShardingPlan) -> ShardingPlan:
    """Return the plan of a live tree; `for_trees` finds words for an array without a path."""
    if [each.param.path for each in plan.arrays] != [""]:
        return plan
    (lone,) = plan.arrays
    return replace(plan, arrays=(replace(lone, param=replace(lone.param, path=_LONE)),))


def _of_lone(text: str) -> str:
    """Return a text with words for the lone array, and `**` where it has a pattern for it."""
    text = text.replace(f"`{_LONE}`", "the array").replace(f", {_LONE}", "")
    return text.replace(_LONE, "**")


#: The way out for a live tree, and that for an argument of a step.
_BOXES = (
    "if Flax's boxes name these arrays, pass the boxes: `like=BOXED` of `put`, `abstract`,"
    " `restore` and `verify_placement`"
)
_LINES = (
    "`shardspec init --arrays MODULE:FUNCTION` and `shardspec import ... --against MODULE:FUNCTION`"
    " write such lines; or give the step its parameters in Flax's boxes, or in a state with"
    " `params_axes` beside `params`"
)


def for_trees(found: Diagnostic) -> Diagnostic:
    """Return a finding with the way out that only a live tree has."""
    if _LONE in found.message or _LONE in found.arrays:
        found = replace(
            found,
            message=_of_lone(found.message),
            notes=tuple(map(_of_lone, found.notes)),
            help=found.help and _of_lone(found.help),
            arrays=tuple(path.replace(_LONE, "") for path in found.arrays),
        )
    if found.code is not codes.UNNAMED_ARRAY:
        return found
    return replace(found, help=f"{found.help}\n{_BOXES}")


def for_step(found: Diagnostic) -> Diagnostic:
    """Return a finding about a live tree with the way out that an argument of a step has."""
    if found.code is not codes.UNNAMED_ARRAY or found.help is None:
        return found
    return replace(found, help=found.help.replace(_BOXES, _LINES))


def with_axes_of_code(plan: ShardingPlan) -> Spec:
    """Return the spec of a live tree's plan, with the axes that code alone may name."""
    from shardspec.lints.context import Context

    spec = plan.spec
    context = Context(spec, (plan,))
    known = context.axes_in_use | context.axes.keys()
    lone = sorted(context.axes_in_rules - known)
    more = tuple(axis for axis in lone if did_you_mean(axis, sorted(known)) is None)
    return replace(spec, axes_of_code=more) if more else spec


def without_axes_of_code(plan: ShardingPlan, found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return findings without those of axes that code alone may name, where code is traced."""
    known, lone = with_axes_of_code(plan).axes_of_code, codes.AXIS_WITHOUT_ARRAY
    return tuple(each for each in found if each.code is not lone or each.subject not in known)


def check(
    spec: Spec,
    faults: Iterable[Diagnostic],
    params: Params,
    target: str | None = None,
    *,
    costs: Sequence[Cost] = (),
    is_whole: bool = True,
) -> Report:
    """Return a report of all that `shardspec check` says of a spec.

    Args:
      faults: what loading it found.
      target: the name of the only one to look at; None for all.
      costs: of a step, on the targets that it was traced for.
      is_whole: whether the spec is looked at as it stands; only then can it be said that a comment
        silences nothing.
    """
    from shardspec.lints.checks import nothing_checked

    plans = plans_of_phases(spec, params, target)
    targets = tuple(plan.target for plan in plans)
    if not plans and (target is not None or params):
        chosen = find_target(spec, target)
        assert isinstance(chosen, Diagnostic), "a target that there is has a plan"
        return report(spec, (*faults, chosen))
    nothing = () if costs else nothing_checked.findings(spec, params, targets)
    faults = (*about(faults, target), *nothing)
    phases = tuple(
        each
        for each in spec.phases
        if target is None or any(found.is_called(target) for found in each.targets)
    )
    found = checked(spec, faults, plans, costs=costs, is_whole=is_whole, phases=phases)
    return replace(found, targets=len(targets))


def checked(
    spec: Spec,
    faults: Iterable[Diagnostic],
    plans: Sequence[ShardingPlan],
    *,
    costs: Sequence[Cost] = (),
    is_whole: bool = True,
    phases: Sequence[Spec] = (),
) -> Report:
    """Return a report like `findings`, with what is wrong with the comments that silence some.

    Args:
      is_whole: as for `check`.
      phases: those to look at, with or without plans.
    """
    from shardspec.lints.checks.bad_suppression import bad
    from shardspec.lints.checks.unused_suppression import unused
    from shardspec.lints.registry import step_codes

    faults = tuple(faults)
    found = (*faults, *_found(spec, plans, costs, phases))
    of_comments = list(bad(spec.source))
    if is_whole and not any(fault.code.is_fault for fault in faults):
        of_comments += unused(spec.source, suppressed(found)[1], () if costs else step_codes())
    return Report(spec, found, tuple(of_comments))


def _as_spelt(spec: Spec, found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return findings with what they quote in the spelling of the spec."""
    return tuple(each.spelt(is_dsl=is_dsl(spec.source)) for each in found)


def _found(
    spec: Spec,
    plans: Sequence[ShardingPlan],
    costs: Sequence[Cost] = (),
    phases: Sequence[Spec] = (),
    only: Container[Code] | None = None,
) -> Iterator[Diagnostic]:
    """Yield what the checks find in a spec, and in those of its phases that are looked at."""
    from shardspec.lints.context import Context
    from shardspec.lints.registry import run

    spec = _as_padded(spec, plans)
    if not phases and all(plan.spec.phase == spec.phase for plan in plans):
        costs = tuple(cost.for_checks for cost in costs)
        return run(Context(spec, tuple(plans), costs), only)
    from shardspec.lints.follow_on import together

    asked = {plan.spec.phase for plan in plans} | {phase.phase for phase in phases}
    contexts = [
        Context(
            each,
            tuple(plan for plan in plans if plan.spec.phase == each.phase),
            tuple(cost for cost in costs if cost.plan.spec.phase == each.phase),
        )
        for each in spec.in_phases
        if not each.phase or each.phase in asked
    ]
    return together(contexts)


def _as_padded(spec: Spec, plans: Sequence[ShardingPlan]) -> Spec:
    """Return a spec with the sizes that its plans are of, which go by their arrays."""
    made = {plan.spec.phase: plan.spec for plan in plans} if pads(spec) else {}

    def change(each: Spec) -> Spec:
        of = made.get(each.phase, each)
        return replace(each, logical_axes=of.logical_axes, multiples=of.multiples)

    return spec.everywhere(change) if made else spec


def about(diagnostics: Iterable[Diagnostic], target: str | None) -> tuple[Diagnostic, ...]:
    """Return the diagnostics that concern `target`; all of them for None."""
    return tuple(
        d
        for d in diagnostics
        if target is None or d.target is None or target in (d.target, family(d.target))
    )


def without_faults(
    plans: Iterable[ShardingPlan], diagnostics: Iterable[Diagnostic]
) -> list[ShardingPlan]:
    """Return the plans on targets for which nothing of the spec was left out as unreadable."""
    faults = [each for each in diagnostics if each.code.is_fault and each.is_error]
    return [plan for plan in plans if not about(faults, plan.target.name)]


def find_phase(spec: Spec, name: str | None) -> Spec | Diagnostic:
    """Return the phase called `name`, as a spec; the spec itself for None."""
    if name is None or name == spec.phase:
        return spec
    for phase in spec.phases:
        if phase.phase == name:
            return phase
    names = [phase.phase for phase in spec.phases]
    known = f"phases: {listed(names)}" if names else f"the spec has no {quote.section('phases')}"
    help = did_you_mean(name, names) or known
    return Diagnostic(codes.UNKNOWN_PHASE, f"no phase is called `{name}`", help=help)


def find_target(spec: Spec, name: str | None) -> Target | Diagnostic:
    """Return the target called `name`; the first one for None."""
    if not spec.targets and any(phase.targets for phase in spec.phases):
        names = [phase.phase for phase in spec.phases if phase.targets]
        message = "the spec has no target of its own; its phases have"
        help = f"name one: {listed(names)} (`--phase {names[0]}`)"
        return point(codes.UNKNOWN_TARGET, message, spec.source.whole, help=help)
    if not spec.targets:
        mesh = quote.either("`mesh: {data: 8}`", "`mesh { data = 8 }`")
        help = f"add {mesh}, or {quote.section('targets:')} with a mesh each"
        return point(codes.UNKNOWN_TARGET, "the spec has no target", spec.source.whole, help=help)
    if name is None:
        return spec.targets[0]
    for target in spec.targets:
        if target.name == name:
            return target
    names = [target.name for target in spec.targets]
    several = [target.name for target in spec.targets if target.is_called(name)]
    if several:
        message = f"target `{name}` stands for {len(several)} counts of slices"
        help = f"say which: {listed(several)}"
        return point(codes.UNKNOWN_TARGET, message, spec.targets[0].span, help=help)
    help = near_or_known(name, names, "targets")
    return point(
        codes.UNKNOWN_TARGET, f"no target is called `{name}`", spec.targets[0].span, help=help
    )


def two_of(
    plans: Sequence[ShardingPlan], names: tuple[str, str]
) -> tuple[ShardingPlan, ShardingPlan] | Diagnostic:
    """Return the plans of two targets or phases: `pod`, `decode`, `decode@pod`.

    A phase alone is the one on its only target, or on that of the other name.
    """
    found = [[plan for plan in plans if name in (plan.name, plan.spec.phase)] for name in names]
    for at, name in enumerate(names):
        if not found[at]:
            known = list(dict.fromkeys(each for plan in plans for each in _sides_of(plan)))
            help = near_or_known(name, known, "targets and phases")
            message = f"no target and no phase is called `{name}`"
            return Diagnostic(codes.UNKNOWN_TARGET, message, help=help)
    for at, other in ((0, 1), (1, 0)):
        targets = [plan.target.name for plan in found[other]]
        if len(found[at]) > 1 and len(targets) == 1:
            found[at] = [p for p in found[at] if p.target.name == targets[0]] or found[at]
    for at, name in enumerate(names):
        if len(found[at]) > 1:
            help = f"say which: {listed(plan.name for plan in found[at])}"
            message = f"phase `{name}` runs on {len(found[at])} targets"
            return Diagnostic(codes.UNKNOWN_TARGET, message, help=help)
    return found[0][0], found[1][0]


def _sides_of(plan: ShardingPlan) -> tuple[str, ...]:
    return (plan.spec.phase, plan.name) if plan.spec.phase else (plan.name,)


def sound_target(found: Target | Diagnostic) -> Target:
    """Return a target that was looked for.

    Raises:
      ShardspecError: there is none, or no plan to show for it.
    """
    if isinstance(found, Diagnostic):
        raise ShardspecError([found])
    if (fault := unsound(found)) is not None:
        raise ShardspecError([fault])
    return found


def unsound(target: Target) -> Diagnostic | None:
    """Return why there is no plan to show for a target; None where there is one.

    The faults of its mesh say more, where `lints:` does not silence them.
    """
    if target.is_sound:
        return None
    message = f"the mesh of target `{target.name}` does not work out, or a `--set` is refused"
    help = f"`shardspec check` says why, unless {quote.section('lints:')} silences it"
    return point(codes.MESH_PRODUCT, message, target.span, help=help)
