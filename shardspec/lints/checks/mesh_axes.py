"""Mesh axes: which are unknown, unused, of size one, or used twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, islice

from shardspec.diagnostics import Diagnostic, SourceFile, Span, codes, labels_at, point, quote
from shardspec.diagnostics.words import (
    binary_bytes,
    by_key,
    described,
    did_you_mean,
    grouped,
    listed,
    named,
    respelt,
)
from shardspec.ir.plan import Alike, Attempt, DimSharding, Kind, Outcome, ShardingPlan, divides
from shardspec.ir.spec import LogicalAxes, Mesh, MeshAxis, Spec, target_text
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import Affected, subjects, with_cost, would_divide
from shardspec.lints.evidence.entries import first_word, lone_axes, respelling
from shardspec.lints.evidence.rules import batch_rules, crossing_axes, is_stacked, stacked_axes
from shardspec.resolve.assign import Stating

# size-one-axis


def size_one_axis(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each axis of size 1 that decides a dimension on some target."""
    for plan in context.shared_plans:
        for axis in plan.mesh.axes:
            if axis.size == 1:
                yield from _wins(axis, plan)


def _wins(axis: MeshAxis, plan: ShardingPlan) -> Iterator[Diagnostic]:
    won = by_key(
        (dim.taken, sharding.param.path)
        for sharding in plan.arrays
        for dim in sharding.dims
        if dim.mesh_axes == (axis.name,) and dim.taken is not None
    )
    activations: dict[str, None] = {}
    for activation in plan.activations:
        for dim in activation.dims:
            taken = dim.taken if dim.mesh_axes == (axis.name,) else None
            if taken is not None and _has_later(taken, plan):
                won.setdefault(taken, [])
                activations.setdefault(activation.activation.name)
    if not won:
        return
    first = next(iter(won))
    what = "this override takes it" if _is_stated(first) else "this rule takes it"
    paths = list(dict.fromkeys(path for paths in won.values() for path in paths))
    rules = ", ".join(dict.fromkeys(map(_shown, won)))
    allowed = quote.setting("lints", ("size-one-axis", "allow"))
    way_out = (
        "remove it from the override"
        if all(map(_is_stated, won))
        else "remove it from this mesh, and the next alternative is tried"
    )
    yield Diagnostic(
        codes.SIZE_ONE_AXIS,
        f"`{axis.name}` has size 1 on target `{plan.target.name}`, and wins {rules}",
        labels_at((axis.span, "shards nothing"), (first.span, what)),
        notes=tuple(_notes(paths, tuple(activations))),
        target=plan.target.name,
        help=f"give `{axis.name}` a larger size, or {way_out}; or {allowed}",
    )


def _has_later(taken: Attempt, plan: ShardingPlan) -> bool:
    """Say whether an alternative behind a rule would be tried, and asks for a split."""
    axis = taken.rule.logical_axis if taken.rule is not None else None
    behind = plan.spec.axis_rules[taken.position + 1 :]
    later = (each for each in behind if each.logical_axis == axis)
    return any(set(each.mesh_axes) & set(plan.mesh.names) for each in later)


def _notes(paths: list[str], activations: Sequence[str]) -> Iterator[str]:
    if paths:
        yield described(paths)
    if activations:
        yield named("activation", activations)


def _is_stated(taken: Attempt) -> bool:
    return taken.kind is Kind.STATED


def _shown(taken: Attempt) -> str:
    return "an override" if _is_stated(taken) else f"`{taken}`"


# unused-mesh-axis


def unused_mesh_axis(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each mesh axis of a target that nothing is split over."""
    spec = context.spec
    if not batch_rules(spec) and not spec.activations:
        return
    named = {axis for rule in spec.axis_rules for axis in rule.mesh_axes}
    if named - spec.mesh_axis_names:
        return
    for plan in context.plans:
        groups = plan.alike
        split = {axis for each in subjects(plan) for axis in each.mesh_axes}
        used = split | _meant_for_others(plan) | _in_steps(context, plan)
        for axis in plan.mesh.axes:
            if axis.size > 1 and axis.name not in used:
                yield _unused_mesh_axis_finding(axis, plan, groups)


def _meant_for_others(plan: ShardingPlan) -> set[str]:
    """Return the mesh axes that are named for what the plan does not show."""
    shown = {name for each in subjects(plan) for name in each.logical_axes}
    named = {
        axis
        for rule in plan.spec.axis_rules
        if not plan.activations or rule.logical_axis not in shown
        for axis in plan.mesh.in_parts(rule.mesh_axes)
    }
    return named | set(plan.mesh.in_parts(plan.spec.state.over) if plan.spec.state else ())


def _in_steps(context: Context, plan: ShardingPlan) -> set[str]:
    """Return the mesh axes that arguments or operations of the target's step are split over."""
    steps = [step for cost, step in context.steps if cost.target == plan.target]
    arrays = [each.array.split for step in steps for each in step.arguments]
    named = [each.mesh_axes for each in arrays] + [op.mesh_axes for s in steps for op in s.ops]
    return set(chain.from_iterable(named))


def _unused_mesh_axis_finding(
    axis: MeshAxis, plan: ShardingPlan, groups: Sequence[Alike]
) -> Diagnostic:
    target, notes = plan.target, []
    held = sum(group.device_bytes for group in groups)
    if held:
        notes.append(
            f"{axis.size} copies of everything: {binary_bytes(held)} on each device, and"
            f" {binary_bytes(held / axis.size)} if every array were split over it"
        )
    said = f"groups of {axis.size} devices do the same"
    return point(
        codes.UNUSED_MESH_AXIS,
        f"nothing is split over mesh axis `{axis.name}` = {axis.size} of target `{target.name}`",
        axis.span or target.span,
        said if axis.span is not None else f"`{axis.name}` = {axis.size} in its mesh",
        notes=tuple(notes),
        help=_way_out(axis, plan, groups),
        target=target.name,
    )


def _misspelt(axis: MeshAxis, plan: ShardingPlan) -> str | None:
    """Return what rules or other targets call an axis that only this target has, or nearly so."""
    spec, own = plan.spec, set(plan.mesh.names)
    elsewhere = {
        name for other in spec.targets if other is not plan.target for name in other.mesh.names
    }
    in_rules = {name for rule in spec.axis_rules for name in rule.mesh_axes}
    if axis.name in elsewhere | in_rules:
        return None
    return did_you_mean(axis.name, (elsewhere | in_rules) - own)


def _way_out(axis: MeshAxis, plan: ShardingPlan, groups: Sequence[Alike]) -> str:
    misspelt = _misspelt(axis, plan)
    if misspelt is not None:
        return f"{misspelt} else write a rule for `{axis.name}`"
    by_size = sorted(groups, key=lambda group: -group.device_bytes)
    offers = _for_the_batch(axis, plan)
    if not _crosses(axis, plan):
        stacked = stacked_axes(plan.spec)
        arrays = (offer for group in by_size for offer in _offers(axis, group, plan, stacked))
        offers = chain(arrays, offers)
    return "; or ".join((*islice(offers, 1), "give its devices to another mesh axis"))


def _for_the_batch(axis: MeshAxis, plan: ShardingPlan) -> Iterator[str]:
    """Yield a rule that would split the batch over the axis as well, where that divides."""
    sizes = {each.name: each.size for each in plan.spec.logical_axes}
    for rule in batch_rules(plan.spec):
        wanted = plan.mesh.in_parts(rule.mesh_axes)
        own = tuple(name for name in wanted if name in plan.mesh.names)
        wider = _with(axis, own, plan.mesh)
        if divides(plan.mesh.ways(wider), sizes.get(rule.logical_axis) or 0):
            yield f"`{rule.logical_axis} -> {target_text(wider)}` would split the batch over it"


def _with(axis: MeshAxis, others: Sequence[str], mesh: Mesh) -> tuple[str, ...]:
    """Return mesh axes with one more, major where the mesh has it before them all."""
    order = mesh.names.index(axis.name)
    is_major = all(order < mesh.names.index(name) for name in others)
    return (axis.name, *others) if is_major else (*others, axis.name)


def _crosses(axis: MeshAxis, plan: ShardingPlan) -> bool:
    """Say whether an axis crosses slices or nodes, over which only the batch should be split."""
    return any(found.axis.name == axis.name for found in crossing_axes(plan.target))


def _offers(
    axis: MeshAxis, group: Alike, plan: ShardingPlan, stacked: frozenset[str]
) -> Iterator[str]:
    """Yield rules that would split these arrays over the axis; dimensions still whole first.

    Stacked layers are no offer: a loop over them would fetch each from another device.
    """
    for dim in sorted(group.dims, key=lambda dim: dim.ways):
        if dim.logical_axis is None or is_stacked(dim.logical_axis, stacked):
            continue
        if would_divide(axis.size, dim):
            whole = target_text(_with(axis, dim.mesh_axes, plan.mesh))
            rest = f" | {target_text(dim.mesh_axes)}" if dim.mesh_axes else ""
            yield f"`{dim.logical_axis} -> {whole}{rest}` would split {described(group.paths)}"


# unknown-mesh-axis


#: Places that are shown; more are counted.
_SHOWN = 4


def unknown_mesh_axis(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each unknown mesh axis and file: all places that name it."""
    spec = context.spec
    if not spec.targets:
        return
    known = spec.mesh_axis_names
    asked: dict[tuple[str, SourceFile | None], dict[Span | None, None]] = {}
    for span, axes in _uses(spec):
        for axis in axes:
            if axis not in known:
                place = None if span is None else first_word(span, axis)
                source = None if span is None else span.source
                asked.setdefault((axis, source), {}).setdefault(place)
    affected = _affected(context) if asked else {}
    for (axis, _), places in asked.items():
        finding = _unknown_mesh_axis_finding(
            axis, [place for place in places if place is not None], spec
        )
        found = affected.get(axis, Affected())
        finding = with_cost(finding, context, found.arrays, "not split so: ")
        names = found.activations
        more = (f"not split so: {named('activation', names)}",) if names else ()
        yield replace(finding, notes=(*finding.notes, *more))


def _uses(spec: Spec) -> Iterator[tuple[Span | None, tuple[str, ...]]]:
    """Yield each place that names mesh axes, with those axes."""
    yield from ((rule.span, rule.mesh_axes) for rule in (*spec.axis_rules, *spec.any_rules))
    entries: tuple[Stating, ...] = (*spec.overrides, *spec.activations)
    for entry in entries:
        stated = tuple(axis for dim in entry.partition or () for axis in dim)
        yield entry.span, stated + entry.sums.mesh_axes
    if spec.state is not None:
        yield spec.state.over_span, spec.state.over


def _affected(context: Context) -> dict[str, Affected]:
    """Return, by mesh axis, what rules with an unknown one were tried on."""
    affected: dict[str, Affected] = defaultdict(Affected)
    for plan in context.plans:
        for subject in subjects(plan):
            for axis in _asked(subject.dims):
                affected[axis].add(subject, plan)
    return affected


def _asked(dims: Sequence[DimSharding]) -> set[str]:
    """Return the mesh axes of the rules that named one which the mesh does not have."""
    return {
        axis
        for dim in dims
        for attempt in dim.attempts
        if attempt.outcome is Outcome.UNKNOWN
        for axis in attempt.asked
    }


def _unknown_mesh_axis_finding(axis: str, places: list[Span], spec: Spec) -> Diagnostic:
    places.sort(key=lambda place: place.start)
    said = ("no target has this axis", *[""] * (_SHOWN - 1))
    target = spec.targets[0]
    rest = len(places) - _SHOWN
    known = spec.mesh_axis_names
    more = (f"it is in {rest} more place{'s' if rest > 1 else ''}",) if rest > 0 else ()
    return Diagnostic(
        codes.UNKNOWN_MESH_AXIS,
        f"unknown mesh axis `{axis}`",
        labels_at(
            *zip(places, said, strict=False),
            (target.span, f"its mesh axes: {', '.join(target.mesh.names)}"),
        ),
        notes=more,
        help=did_you_mean(axis, known) or f"the targets have {listed(sorted(known))}",
        fix=respelt(places, axis, known),
        subject=axis,
    )


# repeated-axis


def repeated_axis(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each entry that names an axis twice."""
    wrong = context.having(lambda dims: bool(repeated(dims.logical_axes)))
    for (place, names), group in grouped(wrong, lambda s: (s.named_at, s.logical_axes)).items():
        param = group[0].param
        notes = (described([member.param.path for member in group]),)
        yield _repeated_axis_finding(names, f"`{param.path}` {param}", place, notes)
    for activation in context.spec.activations:
        if repeated(activation.logical_axes):
            what = f"activation `{activation.name}`"
            yield _repeated_axis_finding(activation.logical_axes, what, activation.span, ())


def _repeated_axis_finding(
    names: LogicalAxes, what: str, place: Span | None, notes: tuple[str, ...]
) -> Diagnostic:
    first = repeated(names)[0]
    return point(
        codes.REPEATED_AXIS,
        f"{listed(repeated(names))} names more than one dimension of {what}",
        place,
        notes=notes,
        help=f"give one of them another name, with its own rule; or write that both are intended:"
        f" `{first} {first}'`",
    )


@cache
def repeated(names: LogicalAxes) -> tuple[str, ...]:
    """Return the names that stand more than once, in order."""
    if len(set(names)) == len(names):
        return ()
    return tuple(name for name, count in Counter(names).items() if name and count > 1)


# axis-without-rule


def axis_without_rule(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each declared axis that is in use and that no rule names."""
    ruled = context.axes_in_rules
    if not ruled:
        return
    for axis in context.spec.logical_axes:
        if axis.name in ruled:
            continue
        paths = context.paths_with(axis.name)
        activations = context.activations_with(axis.name)
        if paths or activations:
            finding = point(
                codes.AXIS_WITHOUT_RULE,
                f"no rule names `{axis.name}`, so it is replicated",
                axis.span,
                "declared here",
                help=f"if that is intended, write: `{axis.name} -> none`",
                subject=axis.name,
            )
            finding = with_cost(finding, context, paths)
            more = (named("activation", activations),) if activations else ()
            yield replace(finding, notes=(*finding.notes, *more))


# axis-without-array


def axis_without_array(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each axis of rules that nothing has."""
    known = context.axes_heard_of
    for lone in lone_axes(context):
        if lone.meant is None:
            added = quote.added("axes", lone.name, "SIZE")
            out = f"take the rule out; or, if code has it, add {added}"
            near = did_you_mean(lone.name, known)
            yield point(
                codes.AXIS_WITHOUT_ARRAY,
                f"nothing has the logical axis `{lone.name}` of this rule",
                lone.places[0],
                f"no array, activation or {quote.entry_of('axes')} has it",
                help=f"{near} else {out}" if near else out,
                fix=respelling(context, lone),
                subject=lone.name,
            )
