"""An array does not have the dimensions that `derive:` gives it.

Each dimension in `dims` is one of the parent's: as long as that, or as its spelling says, `0/128`
with one for each 128, `0*8` with 8 for each; size 1 is always whole. If a size differs, the entry
was written for other arrays or another parent. The array is replicated.

Bad:
    shardspec: 1
    mesh: {tensor: 4}
    rules:
      - mlp -> tensor
    derive:
      "**/scale": from **/kernel dims 0 1
    params:
      "**/kernel": _ mlp
    arrays:
      mlp/wi/kernel: s8[1024, 128]
      mlp/wi/scale: f32[8, 128]

Good:
    -  "**/scale": from **/kernel dims 0 1
    +  "**/scale": from **/kernel dims 0/128 1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import grouped
from shardspec.ir.plan import ParamSharding
from shardspec.ir.spec import DerivedDims, DeriveRule, Param, ParentDim, derived_text
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import with_cost
from shardspec.resolve.derive import misfit_of


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each entry and fault."""
    wrong = [each for each in context.first if each.derivation and each.derivation.fault]
    for at, group in enumerate(grouped(wrong, _entry_and_fault).values()):
        finding = _finding(group[0], context.first if at < _MOST_CURES else ())
        yield with_cost(finding, context, [each.path for each in group])


#: Findings for which a cure is looked for among all arrays.
_MOST_CURES = 16


def _entry_and_fault(sharding: ParamSharding) -> tuple[object, str]:
    return sharding.named_at, sharding.derivation.fault if sharding.derivation else ""


def _finding(first: ParamSharding, arrays: Sequence[ParamSharding]) -> Diagnostic:
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
        help=cure(first, arrays) or _help(rule, param, derivation.parent),
    )


def _help(rule: DeriveRule, param: Param, parent: ParamSharding) -> str:
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
    of_parent = (dim for answer in rule.answers for dim in answer if isinstance(dim, ParentDim))
    if not answers and all(dim.place is not None for dim in of_parent):  # else it may be none, too
        answers = [*_in_blocks(found.reading, first.param, parent)]
    if len(answers) != 1 or not _serves(answers[0], first, arrays):
        return None
    others = [each for each in rule.answers if len(each) != first.param.rank]
    text = " | ".join(map(derived_text, (answers[0], *others[: len(rule.answers) - 1])))
    return f"`dims {text}` fits, and nothing else does; or another parent was meant"


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
