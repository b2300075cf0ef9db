"""Proofs. That of an import is our plan beside the other tool's answer, array by array.

The proof of an export is what our own reading of the text gives each array, beside the plan. The
text that was written is read back by the reader that `shardspec import` has for the format, and
answered by the other tool's semantics. So a wrong export is found before it is written.

Other tools cannot say a mesh axis that only another machine has, nor a rule that is
passed over where it does not divide. On one mesh and for known arrays both can often be said
without: the absent axis is dropped from its tuple, and a rule that never fires is left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, Label, SourceFile, codes, words
from shardspec.diagnostics.words import counted, described, pattern_of
from shardspec.foreign import formats
from shardspec.ir.plan import Attempt, Outcome, ParamSharding, ShardingPlan
from shardspec.ir.spec import AxisRule, PartitionSpec, override_text, target_text

_NO_ANSWER = "change the file: {} itself fails for these arrays with it"
_UNSAYABLE = "a spec keeps them whole: in JAX, make the parts arrays of their own and split those"


class Difference(NamedTuple):
    """Arrays that differ alike.

    Attributes:
      reasons: what our trace says about the dimensions that differ.
    """

    paths: tuple[str, ...]
    ours: PartitionSpec
    theirs: formats.Answer
    reasons: tuple[str, ...] = ()


def differences(plan: ShardingPlan, answers: Sequence[formats.Answer]) -> tuple[Difference, ...]:
    """Return where the plan is not what the other tool says, arrays that differ alike together.

    Args:
      answers: one for each array of the plan, in its order.
    """
    alike: dict[tuple[object, ...], list[tuple[ParamSharding, formats.Answer]]] = {}
    for sharding, answer in zip(plan.arrays, answers, strict=True):
        if answer != sharding.partition_spec and not isinstance(answer, formats.NotRead):
            param = sharding.param
            names = (param.logical_axes, sharding.logical_axes, param.shape)
            key = (words.template(param.path), names, sharding.partition_spec, answer)
            alike.setdefault(key, []).append((sharding, answer))
    return tuple(_difference(group) for group in alike.values())


def _difference(group: list[tuple[ParamSharding, formats.Answer]]) -> Difference:
    sharding, answer = group[0]
    paths = sorted((each.param.path for each, _ in group), key=words.natural)
    reasons = tuple(_reasons(sharding, answer))
    return Difference(tuple(paths), sharding.partition_spec, answer, reasons)


def _reasons(sharding: ParamSharding, answer: formats.Answer) -> Iterator[str]:
    """Yield why our plan has what it has, for the dimensions that differ."""
    if sharding.mismatch is not None:
        given = ", ".join(str(name) for name in sharding.mismatch)
        yield f"the names ({given}) do not fit {len(sharding.dims)} dimensions"
    if not isinstance(answer, PartitionSpec):
        return
    for index, (dim, theirs) in enumerate(zip(sharding.dims, answer.dims, strict=True)):
        if dim.mesh_axes == theirs:
            continue
        name = f"dim {index}" + (f" `{dim.logical_axis}`" if dim.logical_axis else "")
        tried = "; ".join(_tried(attempt, dim.size) for attempt in dim.attempts)
        yield f"{name}: {tried or 'no rule was tried'}"


def _tried(attempt: Attempt, size: int | None) -> str:
    rule = f"`{attempt}`"
    if attempt.outcome is Outcome.BUSY:
        return f"{rule} is busy: dim {attempt.blocked_by} has it"
    if attempt.outcome is Outcome.INDIVISIBLE:
        return f"{rule} does not fire: {size} is not divisible by {attempt.ways}"
    if attempt.outcome is Outcome.TAKEN:
        return f"{rule} fires"
    return f"{rule} names a mesh axis that is not there"


def findings(found: Sequence[Difference], tool: str) -> tuple[Diagnostic, ...]:
    """Return a finding for each group of arrays that differ, and for each reason to refuse."""
    return tuple(_finding(group, tool) for group in together(found))


def together(found: Sequence[Difference]) -> tuple[Sequence[Difference], ...]:
    """Return the groups of which each is one finding."""
    groups = words.by_key(
        ((each.theirs, each.reasons) if isinstance(each.theirs, formats.NoAnswer) else index, each)
        for index, each in enumerate(found)
    )
    return tuple(groups.values())


def _finding(group: Sequence[Difference], tool: str) -> Diagnostic:
    """Return the finding for arrays that differ alike, or are refused for one reason."""
    paths = [path for each in group for path in each.paths]
    theirs, notes = group[0].theirs, group[0].reasons
    said, help = str(theirs), ""
    if isinstance(theirs, PartitionSpec):
        stated = f'`- {{path: "{pattern_of(paths)}", spec: "{override_text(theirs.dims)}"}}`'
        help = f"add {stated} to `overrides:` of the imported spec"
    if isinstance(theirs, formats.NoAnswer):
        those = "them" if len(group) > 1 else "it"
        said = "refuses" if theirs.refuses else f"splits {those} as no PartitionSpec can say"
        help = theirs.help or (_NO_ANSWER.format(tool) if theirs.refuses else _UNSAYABLE)
        notes = (f"{tool}: {theirs.reason}", *notes)
    one = words.collapsed(paths) if len(group) == 1 else None
    if one is None:
        notes = (described(paths), *notes)
    if len(group) > 1:
        message = f"{counted(len(paths), 'array')}: shardspec places them, {tool} {said}"
    else:
        which = f"`{one}`" if one is not None else f"`{paths[0]}` and others"
        count = f" x{len(paths)}" if len(paths) > 1 else ""
        message = f"{which}{count}: shardspec gives {group[0].ours}, {tool} {said}"
    return Diagnostic(codes.IMPORT_DIFFERS, formats.one_line(message), notes=notes, help=help)


class NotCompared(NamedTuple):
    """Arrays that nothing is known of in the other tool, for one reason."""

    paths: tuple[str, ...]
    size: int
    reason: formats.NotRead


def not_compared(plan: ShardingPlan, answers: Sequence[formats.Answer]) -> tuple[NotCompared, ...]:
    """Return the arrays that the other tool may split by what was not read, by reason."""
    answered = zip(answers, plan.arrays, strict=True)
    alike = words.by_key((why, each) for why, each in answered if isinstance(why, formats.NotRead))
    params = ((why, [each.param for each in group]) for why, group in alike.items())
    return tuple(
        NotCompared(tuple(each.path for each in group), sum(each.bytes for each in group), why)
        for why, group in params
    )


def not_compared_findings(groups: Sequence[NotCompared], tool: str) -> tuple[Diagnostic, ...]:
    """Return a finding for each reason why arrays are not compared."""
    found = []
    for each in groups:
        arrays = counted(len(each.paths), "array")
        message = f"{arrays} not compared with {tool}: {each.reason.reason}"
        notes = (f"{described(each.paths)}; {words.binary_bytes(each.size)}",)
        found.append(Diagnostic(codes.NOT_COMPARED, message, notes=notes, help=each.reason.help))
    return tuple(found)


def rules_for(request: formats.Request) -> tuple[AxisRule, ...]:
    """Return the rules in order: all as they stand, or those that count on the target.

    Invariants:
      same: the reduced list gives every array of the plan the same answer.
    """
    mesh = request.plan.mesh
    rules = reduced(request.plan) if request.is_resolved else request.spec.axis_rules
    if mesh.wholes:
        rules = tuple(replace(rule, mesh_axes=mesh.in_parts(rule.mesh_axes)) for rule in rules)
    return tuple(each for rule in rules for each in spelt_out(rule))


#: Mesh axes of a `(a, b)?` that are spelt out: 63 rules of six.
_MOST_SPELT = 6


def spelt_out(rule: AxisRule) -> tuple[AxisRule, ...]:
    """Return what says `a -> (x, y)?` where tuples are all or nothing: each part, largest first.

    Of mesh axes that are busy, the same is left out. Sizes are another matter, which no tool of
    such rules looks at.
    """
    axes = rule.mesh_axes
    if not rule.in_part or len(axes) > _MOST_SPELT:
        return (replace(rule, in_part=False),)
    parts = (part for size in range(len(axes), 0, -1) for part in combinations(axes, size))
    return tuple(replace(rule, mesh_axes=part, in_part=False) for part in parts)


def reduced(plan: ShardingPlan) -> tuple[AxisRule, ...]:
    """Return the rules that count on the plan's target, without axes that it lacks."""
    here = plan.mesh.sizes
    known = plan.spec.mesh_axis_names
    idle = _never_fitting(plan)
    kept = []
    for rule in plan.spec.axis_rules:
        wanted = plan.mesh.in_parts(rule.mesh_axes)
        present = tuple(axis for axis in wanted if axis in here)
        is_dead = bool(wanted) and (not present or not set(wanted) <= known)
        if not is_dead and rule not in idle:
            kept.append(replace(rule, mesh_axes=present))
    return tuple(kept)


def _never_fitting(plan: ShardingPlan) -> frozenset[AxisRule]:
    """Return the rules that were passed over for a size, and fired nowhere."""
    by_outcome: dict[Outcome, set[AxisRule]] = defaultdict(set)
    dims = (dim for each in (*plan.arrays, *plan.activations) for dim in each.dims)
    for attempt in (attempt for dim in dims for attempt in dim.attempts):
        if attempt.rule is not None:
            by_outcome[attempt.outcome].add(attempt.rule)
    return frozenset(by_outcome[Outcome.INDIVISIBLE] - by_outcome[Outcome.TAKEN])


def proof(
    request: formats.Request,
    text: str,
    name: str,
    options: formats.Options,
    *,
    by_path: bool = False,
) -> tuple[Diagnostic, ...]:
    """Return a finding for each group of arrays that the file would lay out otherwise.

    Args:
      name: of the format, as `shardspec import` knows it.
      by_path: whether the format itself names arrays by path. Otherwise arrays have the names
        of the plan, and those whose layout an override states are left out.
    """
    entry = formats.format_named(name)
    assert entry is not None, f"there is a reader of {name}"
    module = formats.module_of(entry)
    suffix = {"flax": ".py", "nnx": ".py", "maxtext": ".yml"}.get(name, ".gin")
    imported, faults = module.read((SourceFile(f"<exported>{suffix}", text),), options)
    assert imported is not None, f"what was written reads back: {faults}"
    kept = tuple(s for s in request.plan.arrays if by_path or not s.is_stated)
    plan = ShardingPlan(request.spec, request.plan.target, kept)
    # Where it names no paths, arrays have the names that the plan has for them.
    own = (replace(each.param, logical_axes=each.logical_axes) for each in kept)
    params = tuple(each.param for each in kept) if by_path else tuple(own)
    answers: Sequence[formats.Answer] = module.answer(imported.reading, params, plan.mesh)
    found = differences(plan, answers)
    about = (group[0] for group in together(found))
    pairs = zip(findings(found, imported.tool), about, strict=True)
    return tuple(_exported(*pair, plan, request) for pair in pairs)


def _exported(
    finding: Diagnostic, about: Difference, plan: ShardingPlan, request: formats.Request
) -> Diagnostic:
    """Return the finding of a comparison as one about an export."""
    label = next(_labels(plan[about.paths[0]]), None)
    help = "--lossy writes the file all the same"
    if not request.is_resolved:
        help = "--resolved writes the rules that count on this target; " + help
    labels = () if label is None else (label,)
    return replace(finding, code=codes.EXPORT_DIFFERS, labels=labels, help=help)


def _labels(sharding: ParamSharding) -> Iterator[Label]:
    """Yield the rules that are passed over here, which the other tool would take."""
    for dim in sharding.dims:
        for attempt in dim.attempts:
            span = attempt.span
            if span is None:
                continue
            if attempt.outcome is Outcome.INDIVISIBLE:
                yield Label(span, f"skipped: {dim.size} is not divisible by {attempt.ways}")
            elif attempt.mesh_axes != attempt.asked:
                yield Label(span, f"here this is {target_text(attempt.mesh_axes)}")
            elif attempt.outcome is Outcome.ABSENT:
                yield Label(span, "this target has no such mesh axis")
