"""The only place where stages are chained: text -> Spec -> plan -> findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from shardspec import arrays
from shardspec.arrays import read_arrays, read_manifest
from shardspec.diagnostics import Diagnostic, ShardspecError, codes, point, sort_key
from shardspec.diagnostics.levels import NOTHING_ASKED, Levels, LevelTable
from shardspec.diagnostics.words import did_you_mean, listed
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Params, Spec, Target, family
from shardspec.language import loader
from shardspec.language.reading import is_dsl
from shardspec.language.silencing import project_levels, suppressed
from shardspec.resolve.resolver import resolve

if TYPE_CHECKING:
    from shardspec.analysis.cost import Cost

__all__ = ["read_arrays", "read_manifest"]


def load_path(
    path: str,
    settings: Mapping[str, str] | None = None,
    *,
    with_manifests: bool = True,
    texts: Mapping[str, str] | None = None,
    asked: LevelTable = NOTHING_ASKED,
) -> tuple[Spec | None, tuple[Diagnostic, ...]]:
    """Return the spec in the file at `path` (`-` is stdin), and every fault found.

    The one door: the levels of the project above the file come in with it, and every verb, `load`
    and `Resolver` take this way.

    Args:
      settings: what-ifs, route to value: `{"mesh.model": "8"}`; they beat the file.
      with_manifests: False leaves what `manifest:` names unread, for arrays from elsewhere.
      texts: by real path, what counts in place of what a file holds: edits not yet written.
      asked: the levels that the caller asks for, beyond those of project and spec.

    Returns:
      The spec, None where nothing can be made of the text; and the faults: raw beside a spec, for
      `leveled` and `checked`, and as loud as is asked where there is none.
    """
    reader = arrays if with_manifests else None
    found = loader.load_path(path, settings, arrays=reader, texts=texts)
    return _with_levels(*found, path, asked)


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
    return _with_levels(*loader.load_text(text, name, settings, arrays=arrays), "-", asked)


def _with_levels(
    spec: Spec | None, faults: tuple[Diagnostic, ...], path: str, asked: LevelTable
) -> tuple[Spec | None, tuple[Diagnostic, ...]]:
    project, more = project_levels(path)
    faults = (*more, *faults)
    if spec is None:
        return None, tuple(Levels((project, asked)).heard(faults))
    return spec.everywhere(
        lambda each: replace(each, project_levels=project, call_levels=asked)
    ), faults


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
    arrays = spec.params if params is None else (*params, *_caches_beside(params, spec))
    return tuple(resolve(spec, target, arrays) for target in chosen)


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
    return tuple(
        plan
        for each in spec.in_phases
        for plan in compile_plans(
            each,
            None if params is spec.params else params,
            [found for found in each.targets if target is None or found.is_called(target)],
        )
    )


def findings(
    spec: Spec, plans: Sequence[ShardingPlan], costs: Sequence[Cost] = ()
) -> tuple[Diagnostic, ...]:
    """Return everything that the checks have to say, in reading order, as loud as is asked.

    Args:
      plans: those of a phase are looked at as such.
      costs: of a step, on the targets that it was traced for.
    """
    return leveled(spec, _found(spec, plans, costs))


def step_findings(costs: Sequence[Cost]) -> tuple[Diagnostic, ...]:
    """Return what the checks that read a step have to say, and what a stated one leaves out."""
    from shardspec.lints.context import Context
    from shardspec.lints.registry import run_on_steps

    plans = tuple(cost.plan for cost in costs)
    spec = plans[0].spec if plans else None
    stated = [cost.plan for cost in costs if cost.step and cost.step.source == "spec"]
    left = uncounted(stated[0]) if stated else ()
    found = run_on_steps(Context(spec, plans, tuple(costs))) if spec else ()
    return (*left, *leveled(spec, found)) if spec else ()


def uncounted(plan: ShardingPlan) -> tuple[Diagnostic, ...]:
    """Return the error that a stated step leaves out much of the model, for verbs that price it."""
    from shardspec.lints.checks.unread_arrays import in_figures

    return _as_spelt(plan.spec, tuple(in_figures(plan.spec, plan.arrays)))


def without_uncounted(found: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return findings without the warning that `uncounted` says as an error."""
    return tuple(each for each in found if each.code is not codes.UNREAD_ARRAYS)


def tree_findings(plan: ShardingPlan) -> tuple[Diagnostic, ...]:
    """Return everything the checks have to say about the plan of a live tree.

    A name that only rules have may be one that `constrain` gives to an activation, or the layers
    of a scan. It is a finding only where it is spelt much like one that the arrays have.
    """
    return tuple(map(for_trees, findings(with_axes_of_code(plan), [plan])))


def for_trees(found: Diagnostic) -> Diagnostic:
    """Return a finding with the way out that only a live tree has."""
    if found.code is not codes.UNNAMED_ARRAY:
        return found
    way_out = "of a tree that Flax's boxes name: `like=BOXED` tells the names to `put`, `abstract`,"
    return replace(found, help=f"{found.help}\n{way_out} `restore` and `verify_placement`")


def with_axes_of_code(plan: ShardingPlan) -> Spec:
    """Return the spec of a live tree's plan, with the axes that code alone may name."""
    from shardspec.lints.context import Context

    spec = plan.spec
    context = Context(spec, (plan,))
    known = context.axes_in_use | context.axes.keys()
    lone = sorted(context.axes_in_rules - known)
    more = tuple(axis for axis in lone if did_you_mean(axis, sorted(known)) is None)
    return replace(spec, axes_of_code=more) if more else spec


def heard(spec: Spec, plans: Sequence[ShardingPlan]) -> tuple[Diagnostic, ...]:
    """Return what `findings` chooses from: as loud as is asked, those that others say as well too.

    Whoever decides by the code of a finding asks this: what to show is another matter.
    """
    return tuple(spec.levels.heard(suppressed(_found(spec, plans))[0]))


def leveled(spec: Spec, diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return `diagnostics` as loud as is asked, sorted; what is allowed or ignored is gone."""
    return shown(spec, suppressed(diagnostics)[0])


def checked(
    spec: Spec,
    faults: Iterable[Diagnostic],
    plans: Sequence[ShardingPlan],
    *,
    costs: Sequence[Cost] = (),
    is_whole: bool = True,
) -> tuple[Diagnostic, ...]:
    """Return the faults of a spec with all findings, those about its own suppressions too.

    Args:
      faults: what loading the spec found.
      costs: of a step, on the targets that it was traced for.
      is_whole: whether `plans` are all that the spec is about, as it stands; only then can it be
        said that a suppression silences nothing.
    """
    return shown(spec, everything(spec, faults, plans, costs=costs, is_whole=is_whole))


class Told(NamedTuple):
    """What there is to say of a spec.

    Attributes:
      shown: the findings, as loud as is asked.
      targets: how many it was looked at on.
      hidden: how many errors only the caller does not want to hear of.
    """

    shown: tuple[Diagnostic, ...]
    targets: int = 0
    hidden: int = 0


def check(
    spec: Spec,
    faults: Iterable[Diagnostic],
    params: Params,
    target: str | None = None,
    *,
    costs: Sequence[Cost] = (),
    is_whole: bool = True,
) -> Told:
    """Return all that `shardspec check` says of a spec.

    Args:
      faults: what loading it found.
      target: the name of the only one to look at; None for all.
      costs: of a step, on the targets that it was traced for.
      is_whole: as for `everything`.
    """
    from shardspec.lints.checks import nothing_checked

    plans = plans_of_phases(spec, params, target)
    targets = tuple(plan.target for plan in plans)
    if not plans and (target is not None or params):
        chosen = find_target(spec, target)
        assert isinstance(chosen, Diagnostic), "a target that there is has a plan"
        return Told(leveled(spec, (*faults, chosen)))
    nothing = () if costs else nothing_checked.findings(spec, params, targets)
    faults = (*about(faults, target), *nothing)
    phases = tuple(
        each
        for each in spec.phases
        if target is None or any(found.is_called(target) for found in each.targets)
    )
    found = everything(spec, faults, plans, costs=costs, is_whole=is_whole, phases=phases)
    return Told(shown(spec, found), len(targets), len(unheard(spec, found)))


def shown(spec: Spec, diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return what of `everything` is to be shown, as loud as is asked; families as one."""
    found = _as_loud_as(spec.levels, diagnostics)
    if any("[" in target.name for each in spec.in_phases for target in each.targets):
        from shardspec.lints.slice_counts import as_families

        found = tuple(as_families(found))
    return _as_spelt(spec, found)


def _as_spelt(spec: Spec, found: tuple[Diagnostic, ...]) -> tuple[Diagnostic, ...]:
    """Return findings with what they quote in the spelling of the spec."""
    if not found or not is_dsl(spec.source):
        return found
    from shardspec.lints.dsl_words import names_of, respelt_for_dsl

    names = names_of(spec)
    return tuple(respelt_for_dsl(each, names) for each in found)


def everything(
    spec: Spec,
    faults: Iterable[Diagnostic],
    plans: Sequence[ShardingPlan],
    *,
    costs: Sequence[Cost] = (),
    is_whole: bool = True,
    phases: Sequence[Spec] = (),
) -> tuple[Diagnostic, ...]:
    """Return what `checked` does before it is decided how loud it is; no comment silences it.

    Args:
      phases: those to look at, with or without plans.
    """
    from shardspec.lints.checks.bad_suppression import bad
    from shardspec.lints.checks.unused_suppression import unused
    from shardspec.lints.registry import step_codes

    faults = tuple(faults)
    kept, used = suppressed((*faults, *_found(spec, plans, costs, phases)))
    found = [*kept, *bad(spec.source)]
    if is_whole and not any(fault.code.is_fault for fault in faults):
        found += unused(spec.source, used, () if costs else step_codes())
    return tuple(found)


def unheard(spec: Spec, diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return the errors that only whoever loaded the spec does not want to hear of."""
    found = tuple(diagnostics)
    heard = {replace(each, level=None) for each in spec.levels.heard(found) if each.is_error}
    others = _as_loud_as(replace(spec, call_levels=NOTHING_ASKED).levels, found)
    errors = (each for each in others if each.is_error)
    return tuple(each for each in errors if replace(each, level=None) not in heard)


def _found(
    spec: Spec,
    plans: Sequence[ShardingPlan],
    costs: Sequence[Cost] = (),
    phases: Sequence[Spec] = (),
) -> Iterator[Diagnostic]:
    """Yield what the checks find in a spec, and in those of its phases that are looked at."""
    from shardspec.lints.context import Context
    from shardspec.lints.registry import run

    if not phases and all(plan.spec.phase == spec.phase for plan in plans):
        return run(Context(spec, tuple(plans), tuple(costs)))
    from shardspec.lints.phases import together

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


def _as_loud_as(levels: Levels, diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    heard = tuple(levels.heard(diagnostics))
    if not heard:
        return ()
    from shardspec.lints.follow_on import without_follow_ons

    return tuple(dict.fromkeys(sorted(without_follow_ons(heard), key=sort_key)))


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
    known = f"phases: {listed(names)}" if names else "the spec has no `phases`"
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
        help = "add `mesh: {data: 8}`, or `targets:` with a mesh each"
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
    help = did_you_mean(name, names) or f"targets: {listed(names)}"
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
            help = did_you_mean(name, known) or f"there are {listed(known, limit=16)}"
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
    help = "`shardspec check` says why, unless `lints:` silences it"
    return point(codes.MESH_PRODUCT, message, target.span, help=help)
