"""What an entry of `derive:` should say of an array that it does not fit: judged, or nothing.

A proposal that only fits the numbers is accepted once it is written, and lays the array out
wrongly. So each candidate is applied here, to all arrays that the entry is for, and it counts if
it fits them exactly, is the only one that does, and agrees with other arrays of the same parent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations

from shardspec.ir.plan import ParamSharding
from shardspec.ir.spec import DerivedDims, DeriveRule, Param, ParentDim, derived_text
from shardspec.resolve.derive import misfit_of

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
