"""Entries against the arrays that they are for: ranks, derived entries, phases."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

from shardspec.diagnostics import Diagnostic, Span, codes, labels_at, quote
from shardspec.diagnostics.words import counted, grouped, listed, named, template
from shardspec.ir.plan import Attempt, DimSharding, Origin, Outcome, ParamSharding, is_same
from shardspec.ir.spec import (
    DerivedDims,
    DeriveRule,
    Param,
    ParentDim,
    Spec,
    derived_text,
    target_text,
)
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import Affected, shared_folder, subjects, with_cost
from shardspec.lints.evidence.entries import params_line, proposed_names
from shardspec.resolve.derive import misfit_of

# rank-mismatch


def rank_mismatch(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for each entry and rank that do not agree."""
    wrong = (sharding for sharding in context.first if sharding.mismatch is not None)
    groups = grouped(wrong, _entry_and_rank)
    stacked = _stacked(list(groups.values()))
    if stacked:
        paths = [sharding.param.path for group in stacked for sharding in group]
        yield with_cost(_not_scanned(stacked), context, paths)
    for (place, _, _), group in groups.items():
        if group not in stacked:
            paths = [sharding.param.path for sharding in group]
            yield with_cost(_rank_mismatch_finding(context, place, group), context, paths)


def _entry_and_rank(sharding: ParamSharding) -> tuple[Span | None, int, str]:
    alike = "" if sharding.matched else template(sharding.param.path)
    return sharding.named_at, sharding.param.rank, alike


def _stacked(groups: Sequence[list[ParamSharding]]) -> list[list[ParamSharding]]:
    """Return the entries that all lack one name for arrays of one folder with equal first sizes."""
    found: dict[tuple[str, int], list[list[ParamSharding]]] = {}
    for group in groups:
        first = group[0]
        names = first.mismatch or ()
        if first.origin is Origin.PARAMS and names and len(names) + 1 == first.param.rank:
            key = (first.param.path.partition("/")[0], first.param.shape[0])
            found.setdefault(key, []).append(group)
    most = max(found.values(), key=len, default=[])
    return most if len(most) > 1 else []


def _not_scanned(groups: Sequence[list[ParamSharding]]) -> Diagnostic:
    """Return the one finding for stacked layers that nothing says are stacked."""
    members = [sharding for group in groups for sharding in group]
    parents = [sharding.param.path.split("/")[:-1] for sharding in members]
    folder = "/".join((*shared_folder(parents), "**"))
    first = members[0]
    return Diagnostic(
        codes.RANK_MISMATCH,
        f"{len(groups)} entries of `params` have one name less than their arrays have dimensions,"
        f" and the first dimension of all is {first.param.shape[0]}",
        labels_at(
            (first.named_at, "one name too few"),
            (first.param.span, counted(first.param.rank, "dimension")),
        ),
        help=f"if layers are stacked, add to `scan`: {quote.pattern(folder, 'layers@0')}; else name"
        " every dimension, `_` where it has none",
    )


def _rank_mismatch_finding(
    context: Context, place: Span | None, group: list[ParamSharding]
) -> Diagnostic:
    sharding = group[0]
    param = sharding.param
    names = sharding.mismatch or ()
    shown = " ".join(name or "_" for name in names)
    matched = sharding.matched
    source = f"its own names `{shown}`"
    if matched is not None:
        source = f"{sharding.origin} entry `{matched.pattern}`"
    is_partition = sharding.is_stated
    given = counted(len(names), "part" if is_partition else "name")
    if sharding.scan is not None and len(names) == param.rank:
        return _no_position(group)
    return Diagnostic(
        codes.RANK_MISMATCH,
        f"{source}: {given} for {counted(param.rank, 'dimension')} of `{param.path}` {param}",
        labels_at((place, given), (param.span, counted(param.rank, "dimension"))),
        help=_own_help(context, group)
        if matched is None
        else _PARTS
        if is_partition
        else _proposal(context, group) or _rank_mismatch_help(len(names), param.rank, param.path),
    )


def _no_position(group: list[ParamSharding]) -> Diagnostic:
    """Return the finding for a scan axis beyond the end of the array."""
    param, scan = group[0].param, group[0].scan
    asked = " ".join(f"{axis}@{position}" for axis, position in scan.axes) if scan else ""
    return Diagnostic(
        codes.RANK_MISMATCH,
        f"`{asked}`: `{param.path}` {param} does not have this dimension",
        labels_at((scan.span if scan else None, "")),
        help=f"positions run from 0 to {param.rank - 1}, or from -{param.rank} to -1",
    )


def _own_help(context: Context, group: list[ParamSharding]) -> str:
    """Return the way out for names that an array carries: `scan` and `params` leave those alone.

    The names of a kernel that its layer reshapes cannot be mended where they stand.
    """
    params = [sharding.param for sharding in group]
    axes = proposed_names(context.spec, params) or _placed_names(context, group[0])
    path = template(params[0].path).replace("#", "*")
    yaml = f'to `overrides` `- {{path: "{path}", axes: {axes}}}`'
    entry = quote.either(yaml, f"`override {path} : {axes}`")
    return (
        f"an array's own names come before `params` and `scan`: add {entry}; or correct"
        " them in the model, unless a layer reshapes the array that it names (Flax's"
        " `DenseGeneral`)"
    )


def _placed_names(context: Context, sharding: ParamSharding) -> str:
    """Return an array's own names at dimensions of their sizes; at the last ones without sizes."""
    shape, names = sharding.param.shape, [*(sharding.mismatch or ())]
    sizes = {axis.name: axis.size for axis in context.spec.logical_axes if axis.size}
    if not any(name in sizes for name in names):
        return " ".join(name or "_" for name in ([None] * len(shape) + names)[-len(shape) :])
    placed = ["_"] * len(shape)
    for name in names:
        at = next((at for at, size in enumerate(shape) if size == sizes.get(name or "")), None)
        if at is not None and placed[at] == "_":
            placed[at] = name or "_"
    return " ".join(placed)


_PARTS = "one part for every dimension, `none` for one that is replicated: `(none, model)`"


def _proposal(context: Context, group: list[ParamSharding]) -> str | None:
    """Return the entry of `params` that would be right for arrays, where there is one answer.

    It stands in place of the wrong one, or above where that one is right for other arrays.
    """
    first = group[0]
    params = [sharding.param for sharding in group]
    names = proposed_names(context.spec, params)
    if first.origin is not Origin.PARAMS or first.matched is None or names is None:
        return None
    of_entry = [each for each in context.first if is_same(each.matched, first.matched)]
    if len(of_entry) == len(group):
        return f"by path and size, write {quote.pattern(str(first.matched.pattern), names)}"
    line = params_line(context.spec, params)
    return None if line is None else f"by path and size, put above it {line}"


def _rank_mismatch_help(names: int, rank: int, path: str) -> str:
    if names and names + 1 == rank:
        folder = template(path).replace("#", "*").rsplit("/", 1)[0]
        return (
            "name every dimension, `_` where it has none; if layers are stacked, add to `scan`: "
            f"{quote.pattern(f'{folder}/**', 'layers@0')}"
        )
    return "name every dimension, `_` where it has none"


# lost-in-phase


def lost_in_phase(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each logical axis that is whole for want of a mesh axis, with a rule."""
    spec = context.spec
    if not spec.mesh_axes_elsewhere:
        return
    affected: dict[str, Affected] = defaultdict(Affected)
    causes: dict[str, tuple[DimSharding, Attempt]] = {}
    for plan in context.plans:
        for subject in subjects(plan):
            for dim in subject.dims:
                attempt = _lost(dim, spec)
                if attempt is not None and dim.logical_axis is not None:
                    causes.setdefault(dim.logical_axis, (dim, attempt))
                    affected[dim.logical_axis].add(subject, plan)
    for axis, (_, attempt) in causes.items():
        finding = _lost_in_phase_finding(axis, attempt, spec)
        found = affected[axis]
        if found.activations:
            note = f"replicated: {named('activation', found.activations)}"
            finding = replace(finding, notes=(note,))
        yield with_cost(finding, context, found.arrays, "replicated: ")


def _lost(dim: DimSharding, spec: Spec) -> Attempt | None:
    """Return the rule that would have split a dimension, had the phase one of its mesh axes."""
    if dim.taken is not None or dim.size == 1:
        return None
    return next(
        (
            attempt
            for attempt in dim.attempts
            if attempt.outcome is Outcome.ABSENT
            and spec.mesh_axes_elsewhere.issuperset(attempt.asked)
        ),
        None,
    )


def _lost_in_phase_finding(axis: str, attempt: Attempt, spec: Spec) -> Diagnostic:
    where = f"phase `{spec.phase}`" if spec.phase else "the spec itself"
    asked = target_text(attempt.asked)
    target = spec.targets[0]
    own = sorted(spec.own_mesh_axes)
    rules = "its `rules`" if spec.phase else "`rules`"
    return Diagnostic(
        codes.LOST_IN_PHASE,
        f"`{axis}` is replicated in {where}: no mesh there has `{asked}`",
        labels_at(
            (attempt.span, "splits it elsewhere"),
            (target.span, f"has {listed(target.mesh.names)}"),
        ),
        help=f"add to {rules} `{axis} -> AXIS` (of {listed(own)}), or `{axis} -> none` if every"
        " device should hold a copy",
        subject=axis,
    )


# derived-misfit


def derived_misfit(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each entry and fault."""
    wrong = [each for each in context.first if each.derivation and each.derivation.fault]
    for at, group in enumerate(grouped(wrong, _entry_and_fault).values()):
        finding = _derived_misfit_finding(group[0], context.first if at < _MOST_CURES else ())
        yield with_cost(finding, context, [each.path for each in group])


#: Findings for which a cure is looked for among all arrays.
_MOST_CURES = 16


def _entry_and_fault(sharding: ParamSharding) -> tuple[object, str]:
    return sharding.named_at, sharding.derivation.fault if sharding.derivation else ""


def _derived_misfit_finding(first: ParamSharding, arrays: Sequence[ParamSharding]) -> Diagnostic:
    derivation, rule = first.derivation, first.matched
    assert derivation is not None
    assert derivation.parent is not None
    assert isinstance(rule, DeriveRule)
    parent, param = derivation.parent.param, first.param
    return Diagnostic(
        codes.DERIVED_MISFIT,
        f"`{param.path}` derives from `{parent.path}`, {derivation.fault}",
        labels_at(
            (rule.span, "does not fit"), (param.span, str(param)), (parent.span, str(parent))
        ),
        help=cure(first, arrays) or _derived_misfit_help(rule, param, derivation.parent),
    )


def _derived_misfit_help(rule: DeriveRule, param: Param, parent: ParamSharding) -> str:
    if parent.derivation is not None and (parent.derivation.fault or not parent.derivation.parent):
        return f"lay out `{parent.path}` first"
    if rule.factors is not None:
        return (
            f"say in `params` what `{parent.path}` reads, as in `in:embed mlp`; or name it in an"
            f" entry for this array, as in `from {rule.parent} = {rule.factors.left.text}[embed]"
            f" @ {rule.factors.right.text}`"
        )
    return (
        f"say of each of the {param.rank} dimensions which of the parent's it is, by number;"
        " `_` is none, `0/any` one for each block of the first, `0*any` several for each"
    )


# What an entry of `derive:` should say of an array that it does not fit: judged, or nothing.
#
# A proposal that only fits the numbers is accepted once it is written, and lays the array out
# wrongly. So each candidate is applied here, to all arrays that the entry is for, and it counts if
# it fits them exactly, is the only one that does, and agrees with other arrays of the same parent.


#: Arrays with more dimensions have too many candidates.
_MOST_DIMS = 4


def cure(first: ParamSharding, arrays: Sequence[ParamSharding]) -> str | None:
    """Return what to write where one answer fits an array, in words; None where none is sure.

    Args:
      arrays: all that have answers, among which the other side and those of the same entry are.
    """
    rule, found = first.matched, first.derivation
    if not isinstance(rule, DeriveRule) or found is None or found.parent is None:
        return None
    is_long = max(first.param.rank, found.parent.param.rank) > _MOST_DIMS
    if is_long or not found.reading or rule.own is not None or rule.factors is not None:
        return None
    parent = found.parent.param
    answers = [*_exact(found.reading, first.param, parent)]
    if not answers and all(_is_counted(answer) for answer in rule.answers):
        answers = [*_in_blocks(found.reading, first.param, parent)]
    if len(answers) != 1 or not _serves(answers[0], first, arrays):
        return None
    others = [each for each in rule.answers if len(each) != first.param.rank]
    text = " | ".join(map(derived_text, (answers[0], *others[: len(rule.answers) - 1])))
    return f"`dims {text}` fits, and nothing else does; or another parent was meant"


def _is_counted(answer: DerivedDims) -> bool:
    """Say whether an entry says of each dimension which one it is; else it may be none, too."""
    return all(dim.place is not None for dim in answer if isinstance(dim, ParentDim))


def _exact(reading: DerivedDims, param: Param, parent: Param) -> set[DerivedDims]:
    """Return the ways to give an array as many dimensions of the parent, each as long as it is."""
    own = [dim for dim in reading if not isinstance(dim, ParentDim)]
    return {
        dims
        for places in permutations(range(parent.rank), param.rank - len(own))
        for dims in permutations((*map(ParentDim, places), *own))
        if all(size == whole for size, whole, _ in _of_parent(dims, param, parent))
    }


def _in_blocks(reading: DerivedDims, param: Param, parent: Param) -> set[DerivedDims]:
    """Return the ways in which an array has one for each so many of the parent's."""
    if not all(isinstance(dim, ParentDim) for dim in reading):
        return set()
    found: set[DerivedDims] = set()
    for places in permutations(map(ParentDim, range(parent.rank)), param.rank):
        sizes = [*_of_parent(places, param, parent)]
        if all(size and not whole % size for size, whole, _ in sizes):
            found.add(
                tuple(
                    dim if size in (1, whole) else ParentDim(dim.place, "/", whole // size)
                    for size, whole, dim in sizes
                )
            )
    return found


def _of_parent(
    dims: DerivedDims, param: Param, parent: Param
) -> Iterator[tuple[int, int, ParentDim]]:
    """Yield the size of each dimension that is one of the parent's, and that of the parent's."""
    for size, dim in zip(param.shape, dims, strict=True):
        if isinstance(dim, ParentDim):
            yield size, parent.shape[dim.place or 0], dim


def _serves(answer: DerivedDims, first: ParamSharding, arrays: Sequence[ParamSharding]) -> bool:
    """Say whether an answer fits all arrays of the entry, and agrees with those beside it.

    Arrays made from one parent, with dimensions of their own, are sides of one product: they have
    one rank, and hold different dimensions.
    """
    rule = first.matched
    assert isinstance(rule, DeriveRule)
    cured, rank = replace(rule, answers=(answer,)), first.param.rank
    places, free = _held(answer), _free(answer, first.param)
    above = first.derivation.parent.path if first.derivation and first.derivation.parent else ""
    for each in arrays:
        found = each.derivation
        if found is None or found.parent is None:
            continue
        if each.matched == rule and each.param.rank == rank:
            if misfit_of(cured, each.param, found.parent):
                return False
        elif free and found.parent.path == above:
            beside = _free(found.reading, each.param) if not found.fault else []
            if beside and (beside != free or _held(found.reading) & places):
                return False
    return True


def _held(answer: DerivedDims) -> set[int | None]:
    return {dim.place for dim in answer if isinstance(dim, ParentDim)}


def _free(answer: DerivedDims, param: Param) -> list[int]:
    """Return the sizes of the dimensions that are none of the parent's."""
    pairs = zip(param.shape, answer, strict=False)
    return [size for size, dim in pairs if not isinstance(dim, ParentDim)]
