"""The only place where stages are chained: text -> Spec -> plan -> findings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.codes import MESH_PRODUCT, UNKNOWN_TARGET
from shardspec.diagnostics.diagnostic import point, sort_key
from shardspec.diagnostics.levels import UNDENIABLE, Levels, LevelTable
from shardspec.diagnostics.suggest import did_you_mean, listed
from shardspec.frontend.loader import load_file, load_path, load_text
from shardspec.frontend.manifests import read_arrays, read_manifest
from shardspec.frontend.suppressions import suppressed
from shardspec.ir.param import Params
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Spec, Target
from shardspec.resolve.resolver import resolve

__all__ = [
    "about",
    "checked",
    "compile_plans",
    "find_target",
    "findings",
    "leveled",
    "load_file",
    "load_path",
    "load_text",
    "read_arrays",
    "read_manifest",
    "unsound",
]


def compile_plans(
    spec: Spec, params: Params | None = None, targets: Sequence[Target] | None = None
) -> tuple[ShardingPlan, ...]:
    """Return a plan for each target.

    Args:
      params: the arrays; None for those that the spec itself lists.
      targets: None for all of the spec.
    """
    chosen = spec.targets if targets is None else targets
    arrays = spec.params if params is None else params
    return tuple(resolve(spec, target, arrays) for target in chosen)


def findings(spec: Spec, plans: Sequence[ShardingPlan]) -> tuple[Diagnostic, ...]:
    """Return everything that the checks have to say, in reading order, as loud as the spec asks."""
    from shardspec.lints.context import Context
    from shardspec.lints.registry import run

    found = run(Context(spec, tuple(plans)))
    return leveled(spec, found)


def leveled(spec: Spec, diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Return `diagnostics` as loud as the spec asks, sorted; what it allows or ignores is gone."""
    return _heard(spec, suppressed(diagnostics)[0])


def checked(
    spec: Spec,
    faults: Iterable[Diagnostic],
    plans: Sequence[ShardingPlan],
    *,
    is_whole: bool = True,
) -> tuple[Diagnostic, ...]:
    """Return the faults of a spec with all findings, those about its own suppressions too.

    Args:
      faults: what loading the spec found.
      is_whole: whether `plans` are all that the spec is about, as it stands; only then can it be
        said that a suppression silences nothing.
    """
    from shardspec.lints.bad_suppression import bad
    from shardspec.lints.context import Context
    from shardspec.lints.registry import run
    from shardspec.lints.unused_suppression import unused

    faults = tuple(faults)
    kept, used = suppressed((*faults, *run(Context(spec, tuple(plans)))))
    found = [*kept, *bad(spec.source)]
    if is_whole and not any(fault.code.id in UNDENIABLE for fault in faults):
        found += unused(spec.source, used)
    return _heard(spec, found)


def _heard(spec: Spec, diagnostics: Iterable[Diagnostic]) -> tuple[Diagnostic, ...]:
    settings = tuple((level.finding, level.severity) for level in spec.lint_levels)
    heard = tuple(Levels((LevelTable(settings),)).heard(diagnostics))
    if not heard:
        return ()
    from shardspec.lints.follow_on import without_follow_ons

    return tuple(dict.fromkeys(sorted(without_follow_ons(heard), key=sort_key)))


def about(diagnostics: Iterable[Diagnostic], target: str | None) -> tuple[Diagnostic, ...]:
    """Return the diagnostics that concern `target`; all of them for None."""
    return tuple(d for d in diagnostics if target is None or d.target in (None, target))


def find_target(spec: Spec, name: str | None) -> Target | Diagnostic:
    """Return the target called `name`; the first one for None."""
    if not spec.targets:
        help = "add `mesh: {data: 8}`, or `targets:` with a mesh each"
        return point(UNKNOWN_TARGET, "the spec has no target", spec.source.whole, help=help)
    if name is None:
        return spec.targets[0]
    for target in spec.targets:
        if target.name == name:
            return target
    names = [target.name for target in spec.targets]
    help = did_you_mean(name, names) or f"targets: {listed(names)}"
    return point(UNKNOWN_TARGET, f"no target is called `{name}`", spec.targets[0].span, help=help)


def unsound(target: Target) -> Diagnostic | None:
    """Return why there is no plan to show for a target; None where there is one.

    The faults of its mesh say more, where `lints:` does not silence them.
    """
    if target.is_sound:
        return None
    message = f"the mesh of target `{target.name}` does not work out, or a `--set` is refused"
    help = "`shardspec check` says why, unless `lints:` silences it"
    return point(MESH_PRODUCT, message, target.span, help=help)
