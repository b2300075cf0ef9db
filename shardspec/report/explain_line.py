"""What one line of a spec does, and one axis: what it wins, what it loses, to whom, how much."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple, TypeVar

from shardspec.diagnostics import SourceFile, Span, words
from shardspec.diagnostics.diagnostic import printable
from shardspec.diagnostics.lines import columns
from shardspec.diagnostics.words import binary_bytes, counted, described, named, percent
from shardspec.ir import plan as plans
from shardspec.ir import spec as ir
from shardspec.report.explain import explain_activation, outcome_text
from shardspec.report.table import Row, rows, spec_text, target_title
from shardspec.resolve.match import PathMatcher
from shardspec.resolve.state import moment_name

_ASK = "ask for a line with a rule, a pattern, an axis, an array, an activation or a target"

#: What has a pattern.
E = TypeVar("E", bound=plans.Entry | ir.ScanRule | ir.MemoryRule | ir.TrainingRule | ir.Replicate)
S = TypeVar("S", plans.ParamSharding, plans.ActivationSharding)


def explain_line(file: str, line: int, plan: plans.ShardingPlan) -> Iterator[str]:
    """Yield what stands on the line and what it does on this target, if anything."""
    spec, asked = plan.spec, _Line(file, line)
    for rule in (*spec.axis_rules, *spec.any_rules):
        if asked.begins(rule.span):
            yield from explain_rule(rule, plan)
    yield from _entries(asked, plan)
    yield from _arrays(asked, plan)
    for sharding in plan.activations:
        if asked.holds(sharding.activation.span):
            yield from explain_activation(sharding, plan)
    for axis in spec.logical_axes:
        if asked.begins(axis.span):
            yield from _declared(axis, f"axis `{axis.name}`")
            yield f"  used by {_users(axis.name, plan)}"
    for target in spec.targets:
        if any(map(asked.begins, (target.span, *(axis.span for axis in target.mesh.axes)))):
            yield f"{target_title(target)}: mesh {target.mesh}"
    for level in spec.lint_levels:
        if asked.begins(level.span):
            yield f"finding `{level.finding}` is set to {level.severity.name.lower()}"
    yield from _state_and_coverage(asked, spec)
    yield from _step_lines(asked, plan)


def _declared(axis: ir.LogicalAxis, name: str) -> Iterator[str]:
    """Yield what `axes` says of a logical axis: size, unit, parts, and its own words."""
    grain = axis.unit if axis.parts is None else axis.parts.unit
    unit = f", unit {grain}" if grain > 1 else ""
    unit += f", min_shard {axis.min_shard}" if axis.min_shard > 1 else ""
    yield f"{name} = {axis.size or 'any size'}{unit}"
    if axis.doc:
        yield f"  {printable(axis.doc)}"
    if axis.parts is not None:
        parts = ", ".join(f"{name} {size}" for name, size in axis.parts.sizes)
        groups = f", interleaved in groups of {axis.parts.group} ({axis.parts.group_text})"
        yield f"  parts {parts}{groups * axis.parts.is_interleaved}"


def _step_lines(asked: _Line, plan: plans.ShardingPlan) -> Iterator[str]:
    """Yield the lines of the step that stand here, and the arrays that their patterns read."""
    step = plan.spec.step
    if step is not None and asked.begins(step.span):
        yield f"step: {step.mode}, {counted(len(step.program), 'line')}"
    for each in () if step is None else step.program:
        if each.span is None or not asked.holds(each.span):
            continue
        yield f"step {' '.join(each.span.text.split())}"
        for term in (*each.operands, *filter(None, (each.per,))):
            if term.kind != "value":
                found = _matching(ir.Pattern(term.text, term.kind), plan)
                yield f"  reads {_described(found) if found else f'no array: {term.text}'}"


def _users(axis: str, plan: plans.ShardingPlan) -> str:
    """Return the arrays and the activations that have a logical axis."""
    arrays = [s.param.path for s in plan.arrays if axis in s.logical_axes]
    names = [s.activation.name for s in plan.activations if axis in s.logical_axes]
    users = [described(arrays)] if arrays else []
    users += [named("activation", names)] if names else []
    return " and ".join(users) or "no array and no activation"


def _state_and_coverage(asked: _Line, spec: ir.Spec) -> Iterator[str]:
    """Yield what `state:` and `coverage:` say, if they stand on the line."""
    state, gate = spec.state, spec.coverage
    if state is not None and (asked.holds(state.span) or asked.begins(state.over_span)):
        over = f" over {ir.target_text(state.over)}" if state.over else ""
        yield f"state: optimizer {state.optimizer}{over}, {state.moments} x {state.dtype}"
    if gate is not None and asked.begins(gate.span):
        most = binary_bytes(gate.max_bytes or 0)
        if gate.max_share is not None:
            most = f"{100 * gate.max_share:.6g} % of the bytes of all arrays"
        yield f"coverage: every device may hold {most} whole"


def nothing_there(file: str, line: int, plan: plans.ShardingPlan) -> tuple[str, str]:
    """Return why `explain_line` has nothing to say about a line, and what to ask."""
    sources = _sources(plan)
    source = next((s for s in sources.values() if _same_file(s.name, file)), None)
    if source is None:
        hint = words.did_you_mean(file, sources)
        return f"the spec reads no file {file}", hint or f"it reads {words.listed(sources)}"
    count = len(source.text.splitlines())
    if not 1 <= line <= count:
        return (
            f"{source.name} has {counted(count, 'line')}, no line {line}",
            f"ask for a line from 1 to {count}",
        )
    text = source.line_text(line).strip()
    if not text or text.startswith("#"):
        what = "empty" if not text else "a comment"
        return f"line {line} of {source.name} is {what}", _ASK
    nothing = f"line {line} of {source.name} holds nothing in force"
    if source == plan.spec.source:
        return f"{nothing}: no rule, pattern, axis, array, activation or target", _ASK
    return f"{nothing}: a rule that is replaced or dropped, or a heading", _ASK


def _sources(plan: plans.ShardingPlan) -> dict[str, SourceFile]:
    """Return the files that the plan was read from, manifests among them, by name."""
    found = {source.name: source for source in (plan.spec.source, *plan.spec.sources)}
    for sharding in plan.arrays:
        if sharding.param.span is not None:
            found.setdefault(sharding.param.span.source.name, sharding.param.span.source)
    return found


def _same_file(name: str, file: str) -> bool:
    return name == file or posixpath.normpath(name) == posixpath.normpath(file)


class _Line(NamedTuple):
    """The line that is asked about."""

    file: str
    line: int

    def begins(self, span: Span | None) -> bool:
        """Say whether something starts here."""
        return self.holds(span) and span is not None and span.line == self.line

    def holds(self, span: Span | None) -> bool:
        """Say whether something has a part of its text here."""
        if span is None or not _same_file(span.source.name, self.file):
            return False
        return span.line <= self.line <= span.line + span.text.rstrip().count("\n")


def _entries(asked: _Line, plan: plans.ShardingPlan) -> Iterator[str]:
    """Yield what the path patterns on the line do."""

    def told(
        entries: Iterable[E], say: Callable[[E, plans.ShardingPlan], Iterator[str]]
    ) -> Iterator[str]:
        for entry in entries:
            if asked.holds(entry.pattern.span) or asked.holds(entry.span):
                yield from say(entry, plan)

    spec = plan.spec
    yield from told(spec.path_rules, _entry)
    yield from told(spec.derives, _entry)
    yield from told(spec.overrides, _entry)
    yield from told(spec.scans, _scan)
    yield from told(spec.memory, _memory)
    yield from told(spec.training, _training)
    yield from told(spec.replicate, _replicate)


def _arrays(asked: _Line, plan: plans.ShardingPlan) -> Iterator[str]:
    """Yield the arrays that the line lists, those that agree as one."""
    stands = cache(asked.holds)
    here = [sharding for sharding in plan.arrays if stands(sharding.param.span)]
    if not here:
        return
    yield counted(len(here), "array")
    for row in rows(plans.ShardingPlan(plan.spec, plan.target, tuple(here))):
        size = binary_bytes(row.per_device_bytes)
        said = spec_text(row.first.partition_spec)
        yield f"  {row.name}   {row.first.param}   {said}   {size} per device"


def explain_phase(phase: ir.Spec) -> Iterator[str]:
    """Yield the targets of a phase, and how to ask what is in it."""
    yield f"phase {phase.phase}"
    for target in phase.targets:
        yield f"  {target_title(target)}: mesh {target.mesh}"
    yield f"--phase {phase.phase} explains an array in it"


def explain_rules(text: str, plan: plans.ShardingPlan) -> Iterator[str] | None:
    """Return what the rules of this text do, as messages quote them; None where there is none.

    Args:
      text: one or several alternatives: `embed -> model | data`.
    """
    axis, _, places = text.partition("->")
    wanted = {f"{axis.strip()} -> {' '.join(each.split())}" for each in places.split("|")}
    rules = (*plan.spec.axis_rules, *plan.spec.any_rules)
    found = [rule for rule in rules if str(rule) in wanted]
    return (line for rule in found for line in explain_rule(rule, plan)) if found else None


def explain_rule(rule: ir.AxisRule, plan: plans.ShardingPlan) -> Iterator[str]:
    """Yield how a rule ended over all arrays and activations, by outcome."""
    yield f"rule `{rule}`"
    arrays = _outcomes(rule, plan.arrays, plan)
    activations = _outcomes(rule, plan.activations, plan)
    early = [*arrays.pop(None, ()), *activations.pop(None, ())]
    for said, group in sorted(arrays.items(), key=lambda item: -len(item[1])):
        yield f"  {said}: {_with_bytes(group)}"
    for said, found in sorted(activations.items(), key=lambda item: -len(item[1])):
        yield f"  {said}: {named('activation', [each.activation.name for each in found])}"
    if early:
        count = _counted(early)
        yield f"  not asked: an earlier rule had placed `{rule.logical_axis}` in {count}"
    if rule.logical_axis == ir.ANY and not arrays:
        yield "  every array has names, or another rule for `*` comes first"
    elif not arrays and not activations and not early:
        yield f"  no array and no activation has the logical axis `{rule.logical_axis}`"


def _outcomes(
    rule: ir.AxisRule, shardings: Iterable[S], plan: plans.ShardingPlan
) -> dict[str | None, list[S]]:
    """Return what has the axis of a rule, by how the rule ended; None where it is not asked."""
    found: dict[str | None, list[S]] = {}
    for sharding in shardings:
        for dim in sharding.dims:
            attempt = next((a for a in dim.attempts if plans.is_same(a.rule, rule)), None)
            if attempt is None and dim.logical_axis != rule.logical_axis:
                continue
            said = None if attempt is None else "wins"
            if attempt is not None and attempt.outcome is not plans.Outcome.TAKEN:
                said = f"loses, {outcome_text(attempt, dim, sharding, plan)}"
            found.setdefault(said, []).append(sharding)
    return found


def _counted(shardings: Iterable[plans.Sharding]) -> str:
    """Return `2 arrays and 1 activation`."""
    kinds = Counter(isinstance(sharding, plans.ParamSharding) for sharding in shardings)
    return words.tallied((kinds[True], "array"), (kinds[False], "activation"))


def _entry_text(entry: plans.Entry) -> str:
    section = "override" if isinstance(entry, ir.Override) else "params"
    return f'{"derive" if isinstance(entry, ir.DeriveRule) else section} "{entry.pattern}"'


def _entry(entry: plans.Entry, plan: plans.ShardingPlan) -> Iterator[str]:
    """Yield which arrays an entry names, and who names the others that it matches."""
    yield _entry_text(entry)
    named = [sharding for sharding in plan.arrays if plans.is_same(sharding.matched, entry)]
    matching = _matching(entry.pattern, plan)
    if named:
        verb = "lays out" if isinstance(entry, ir.DeriveRule) else "names"
        yield f"  {verb} {_described(named)}"
    counts = Counter(str(s.partition_spec) for s in named if s.mismatch is None)
    for spec, count in counts.most_common():
        yield f"  {spec}   {counted(count, 'array')}"
    misfits = [s for s in named if s.mismatch is not None]
    if misfits:
        yield f"  {_described(misfits)}: left without names, for they have another rank"
    if len(matching) > len(named) or not named:
        yield _matches(matching, plan, entry.pattern)
        yield from _others(matching, entry)


def _others(matching: list[plans.ParamSharding], entry: plans.Entry) -> Iterator[str]:
    """Yield what else gives names to arrays that an entry matches."""
    others = (sharding for sharding in matching if not plans.is_same(sharding.matched, entry))
    for taker, group in words.grouped(others, lambda sharding: sharding.matched).items():
        if taker is None:
            own = group[0].origin is plans.Origin.ARRAY
            verb = "carries its" if len(group) == 1 else "carry their"
            why = f"{verb} own names" if own else "needs no names"
            yield f"    {len(group)} {why}"
            continue
        taken = "is taken" if len(group) == 1 else "are taken"
        by = f"{_entry_text(taker)}{_place(taker.pattern)}"
        yield f"    {len(group)} {taken} by {by}, which comes first"


def _place(pattern: ir.Pattern) -> str:
    return f" ({pattern.span.place})" if pattern.span else ""


def _memory(entry: ir.MemoryRule, plan: plans.ShardingPlan) -> Iterator[str]:
    """Yield which arrays an entry places, and what it does to optimizer state."""
    yield f'memory "{entry.pattern}": {entry.memory}'
    placed = [sharding for sharding in plan.arrays if plans.is_same(sharding.placed, entry)]
    if placed:
        yield f"  places {_with_bytes(placed)}"
    matcher = PathMatcher((entry.pattern,))
    state = [
        each
        for each in plan.arrays
        if any(matcher.first_match(moment_name(each.path, at)) is not None for at in range(2))
    ]
    if state:
        yield f"  is about the optimizer state of {_described(state)}"
    if not placed and not state:
        yield _matches((), plan, entry.pattern)


def _training(entry: ir.TrainingRule, plan: plans.ShardingPlan) -> Iterator[str]:
    """Yield which arrays an entry decides on, and the bytes of their parameters."""
    yield f'training "{entry.pattern}": {entry.training}'
    found = [sharding for sharding in plan.arrays if plans.is_same(sharding.training, entry)]
    if found:
        verb = "trains" if entry.training == "trained" else "freezes"
        yield f"  {verb} {_with_bytes(found)}"
    else:
        nothing = f"  decides on none of {counted(len(plan.arrays), 'array')}"
        yield _matches((), plan, entry.pattern) if entry.pattern.is_optional else nothing


def _replicate(entry: ir.Replicate, plan: plans.ShardingPlan) -> Iterator[str]:
    """Yield the arrays that are meant to be whole, and which of them are split all the same."""
    yield f'replicate "{entry.pattern}" because {entry.because}'
    matching = _matching(entry.pattern, plan)
    yield _matches(matching, plan, entry.pattern)
    split = sum(bool(sharding.partition_spec.mesh_axes) for sharding in matching)
    if split:
        yield f"    {split} {'is' if split == 1 else 'are'} split by rules"


def _scan(scan: ir.ScanRule, plan: plans.ShardingPlan) -> Iterator[str]:
    """Yield the arrays whose names a `scan` entry completes."""
    stacked = ", ".join(f"{name}@{position}" for name, position in scan.axes)
    yield f'scan "{scan.pattern}": {stacked}'
    used = [sharding for sharding in plan.arrays if plans.is_same(sharding.scan, scan)]
    matching = _matching(scan.pattern, plan)
    if used:
        yield f"  adds to the names of {_described(used)}"
    if len(matching) > len(used) or not matching:
        yield _matches(matching, plan, scan.pattern)
        reasons = Counter(_why_unscanned(s) for s in matching if not plans.is_same(s.scan, scan))
        yield from (f"    {count} {why}" for why, count in reasons.most_common())


def _why_unscanned(sharding: plans.ParamSharding) -> str:
    if sharding.scan is not None:
        pattern = sharding.scan.pattern
        return f'by an earlier entry, scan "{pattern}"{_place(pattern)}'
    if sharding.origin is plans.Origin.ARRAY:
        return "with names of their own"
    if sharding.matched is None:
        return "without names, which it could add to"
    if sharding.derivation is not None:
        return "that derive from others"
    if sharding.is_stated:
        return "with a spec that an override states"
    return "with as many names as dimensions without it"


def _matching(pattern: ir.Pattern, plan: plans.ShardingPlan) -> list[plans.ParamSharding]:
    """Return the arrays whose paths a pattern matches."""
    matcher = PathMatcher((pattern,))
    return [each for each in plan.arrays if matcher.first_match(each.param.path) is not None]


def _matches(
    found: Sequence[plans.ParamSharding],
    plan: plans.ShardingPlan,
    pattern: ir.Pattern | None = None,
) -> str:
    """Return which arrays a pattern matches, and of none whether it has to."""
    if found:
        return f"  matches {_described(found)}"
    if pattern is not None and pattern.is_optional:
        return "  optional: matches no array here"
    return f"  matches none of {counted(len(plan.arrays), 'array')}"


def _with_bytes(shardings: Sequence[plans.ParamSharding]) -> str:
    """Return arrays with what a device holds of them."""
    size = sum(sharding.per_device_bytes for sharding in shardings)
    return f"{_described(shardings)}, {binary_bytes(size)} per device"


def _described(shardings: Sequence[plans.ParamSharding]) -> str:
    return described([sharding.param.path for sharding in shardings])


#: Rows shown of what a mesh axis does not split.
_MOST = 12


def explain_mesh_axis(name: str, plan: plans.ShardingPlan) -> Iterator[str]:
    """Yield what mesh axis `name` splits and what it does not: arrays by size, then activations."""
    parts = dict(plan.mesh.wholes).get(name, ())
    if parts:
        yield f"mesh axis {name} is in parts: {', '.join(parts)}"
        for part in parts:
            yield from explain_mesh_axis(part, plan)
        return
    axis = next(axis for axis in plan.mesh.axes if axis.name == name)
    network = " over DCN" if axis.network == "dcn" else ""
    network += f", {axis.axis_type}" if axis.axis_type != "auto" else ""
    yield f"mesh axis {name} = {axis.size}{network}   target {plan.target.name}: mesh {plan.mesh}"
    users = [row for row in rows(plan) if name in row.first.partition_spec.mesh_axes]
    others = [row for row in rows(plan) if name not in row.first.partition_spec.mesh_axes]
    total = sum(_bytes(row) for row in (*users, *others))
    if not (plan.arrays or plan.activations):
        yield "splits nothing: the spec lists no arrays and no activations"
    if plan.arrays:
        yield f"splits {percent(sum(map(_bytes, users)), total)} of {binary_bytes(total)} of arrays"
    yield from _row_lines(users, name)
    if others:
        yield f"does not split {percent(sum(map(_bytes, others)), total)}"
        yield from _row_lines(others[:_MOST], None)
        if len(others) > _MOST:
            yield f"  and {len(others) - _MOST} more rows"
    yield from _activations(name, plan)


def _activations(mesh_axis: str, plan: plans.ShardingPlan) -> Iterator[str]:
    """Yield the activations that a mesh axis splits, then those it does not."""
    users = [each for each in plan.activations if mesh_axis in each.partition_spec.mesh_axes]
    others = [each for each in plan.activations if mesh_axis not in each.partition_spec.mesh_axes]
    if plan.activations:
        count = counted(len(plan.activations), "activation")
        yield f"splits {'none' if not users else len(users)} of {count}"
        yield from _listed_activations(users, mesh_axis)
    if users and others:
        yield f"does not split {len(others)}"
    if others:
        yield from _listed_activations(others[:_MOST], None)
        if len(others) > _MOST:
            yield f"  and {len(others) - _MOST} more"


def _listed_activations(
    group: Sequence[plans.ActivationSharding], mesh_axis: str | None
) -> Iterator[str]:
    yield from columns(
        (each.activation.name, _dims_of(each.dims, mesh_axis) or spec_text(each.partition_spec))
        for each in group
    )


def _dims_of(dims: Sequence[plans.DimSharding], mesh_axis: str | None) -> str:
    """Return `dim 1 (batch)` for each of the dimensions that a mesh axis splits."""
    return ", ".join(
        f"dim {index} ({dim.logical_axis or '_'})"
        for index, dim in enumerate(dims)
        if mesh_axis in dim.mesh_axes
    )


def explain_logical_axis(name: str, plan: plans.ShardingPlan) -> Iterator[str]:
    """Yield the rules for logical axis `name`, in order, and what has it."""
    head = f"logical axis {name}"
    declared = next((axis for axis in plan.spec.logical_axes if axis.name == name), None)
    yield from [head] if declared is None else _declared(declared, head)
    yield from _placed(name, plan)
    for role in sorted(_roles(name, plan)):
        yield f"role {role}"
        yield from _placed(role, plan)


def _placed(name: str, plan: plans.ShardingPlan) -> Iterator[str]:
    """Yield the rules for a logical axis by this name, then what has it."""
    for rule in plan.spec.axis_rules:
        if rule.logical_axis == name:
            yield f"  {rule}   {rule.span.place if rule.span else ''}".rstrip()
    yield from _row_lines([row for row in rows(plan) if name in row.first.logical_axes], None)
    named = [each for each in plan.activations if name in each.logical_axes]
    if named:
        yield counted(len(named), "activation")
        yield from _listed_activations(named, None)


def _roles(name: str, plan: plans.ShardingPlan) -> set[str]:
    """Return the roles of an axis that something names: `embed'`, `out:embed`."""
    named = [each.logical_axes for each in (*plan.arrays, *plan.activations)]
    named.append(tuple(rule.logical_axis for rule in plan.spec.axis_rules))
    named.append(tuple(axis.name for axis in plan.spec.logical_axes))
    every = {each for axes in named for each in axes if each}
    return {each for each in every if each != name and ir.axis_of(each) == name}


def _bytes(row: Row) -> int:
    return sum(sharding.param.bytes for sharding in row.shardings)


def _row_lines(group: list[Row], mesh_axis: str | None) -> Iterator[str]:
    cells = (
        (
            row.name,
            f"{binary_bytes(_bytes(row)):>9}",
            _dims_of(row.first.dims, mesh_axis) or spec_text(row.first.partition_spec),
        )
        for row in sorted(group, key=_bytes, reverse=True)
    )
    yield from columns(cells, paths=0)
