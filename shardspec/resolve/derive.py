"""How an array lies that is made from another: LoRA's two sides, scales, averages, master copies.

Each of its dimensions *is* a dimension of the parent, and has that one's mesh axes; or it is none
of them, and is whole, or asks the rules, which find the parent's mesh axes taken. The rules alone
could answer otherwise: `embed -> model | data` puts `embed` on `data` in a kernel whose other
dimension has `model`, and on `model` in the side of a LoRA that has no other.

The parent is found by its path. Where it is not there, or sizes do not fit, nothing is guessed: the
array is whole, and a finding says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from shardspec.ir.plan import (
    Attempt,
    Derivation,
    Dims,
    DimSharding,
    Kind,
    Origin,
    Outcome,
    ParamSharding,
)
from shardspec.ir.spec import DerivedDims, DeriveRule, Param, ParentDim, derived_text
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.patterns.template import template_of
from shardspec.resolve.assign import RuleTable, assign_beside
from shardspec.resolve.factors import by_name, disagreement, other_side

#: Arrays that derive one from the other, at most: more go in a circle.
DEEPEST = 8


class Resolving(Protocol):
    """A spec made ready for one target, as far as a derived array asks it."""

    @property
    def table(self) -> RuleTable:
        """Return its rules."""

    @property
    def arrays(self) -> Mapping[str, Param]:
        """Return the arrays by path."""

    def resolve(self, param: Param, entry: None = None, depth: int = 0) -> ParamSharding:
        """Return the answer for one array."""


def wanted_paths(rule: DeriveRule, path: str) -> tuple[str, ...]:
    """Return where the parent of an array may be, in order."""
    made = template_of(rule.pattern.text, rule.parent) if rule.parent else None
    if made is None or isinstance(made, SyntaxFault):
        return ()
    return tuple(each for each in made.paths(path) if each != path)


def derived(resolver: Resolving, param: Param, rule: DeriveRule, depth: int = 0) -> ParamSharding:
    """Return the answer for an array that an entry of `derive:` matches.

    Args:
      depth: how many arrays derive from it.

    Invariants:
      once: no array uses a mesh axis twice.
      parent: a dimension that is one of the parent's has its mesh axes, or none.
    """
    wanted = wanted_paths(rule, param.path)
    found = next((resolver.arrays[path] for path in wanted if path in resolver.arrays), None)
    if found is None or depth >= DEEPEST:
        return _alone(param, rule, Derivation(None, wanted=wanted))
    parent = resolver.resolve(found, None, depth + 1)
    if _goes_round(parent, resolver):
        return _alone(param, rule, Derivation(None, wanted=wanted))
    fault = _of_other_side(resolver, rule, param, parent)
    if fault:
        return _alone(param, rule, Derivation(parent, wanted=wanted, fault=fault))
    return laid_out(param, rule, parent, resolver.table, wanted)


def _of_other_side(
    resolver: Resolving, rule: DeriveRule, param: Param, parent: ParamSharding
) -> str:
    """Return why the other side of a product keeps this one from being laid out, "" if it does not.

    One of them alone may fit by chance, where sizes are equal.
    """
    found = (resolver.arrays.get(path) for path in other_side(rule, param.path))
    other = next(filter(None, found), None)
    if other is None or 1 in (param.element_count, other.element_count):
        return ""
    if misfit_of(rule, param, parent):
        return ""
    shown = f"which is {parent.param}, and this is {param}"
    if misfit_of(rule, other, parent):
        return f"{shown}: the other side, `{other.path}`, does not fit"
    why = disagreement(rule, param, other, parent)
    return f"{shown}: {why}" if why else ""


def _goes_round(parent: ParamSharding, resolver: Resolving) -> bool:
    """Say whether a parent derives from arrays that derive from it."""
    found = parent.derivation
    if found is None or found.parent is not None:
        return False
    return any(path in resolver.arrays for path in found.wanted)


def laid_out(
    param: Param,
    rule: DeriveRule,
    parent: ParamSharding,
    table: RuleTable,
    wanted: tuple[str, ...] = (),
) -> ParamSharding:
    """Return the answer for an array whose parent is known."""
    if param.element_count == 1:
        return _alone(param, rule, Derivation(parent, wanted=wanted))
    above = parent.derivation
    if above is not None and (above.fault or above.parent is None):
        fault = "which is not laid out itself"
        return _alone(param, rule, Derivation(parent, wanted=wanted, fault=fault))
    reading = reading_of(rule, param, parent)
    fault = reading if isinstance(reading, str) else _misfit(reading, param, parent.param)
    if isinstance(reading, str):
        return _alone(param, rule, Derivation(parent, wanted=wanted, fault=fault))
    if fault:
        return _alone(param, rule, Derivation(parent, reading, wanted, fault))
    placed = [
        _placed(size, dim, parent, rule) for size, dim in zip(param.shape, reading, strict=True)
    ]
    names = tuple(dim if isinstance(dim, str) else None for dim in reading)
    dims = assign_beside(placed, param.shape, names, table)
    derivation = Derivation(parent, reading, wanted)
    return ParamSharding(param, dims, Origin.DERIVE, rule, derivation=derivation)


def _alone(param: Param, rule: DeriveRule, derivation: Derivation) -> ParamSharding:
    dims = Dims(DimSharding(size, None) for size in param.shape)
    return ParamSharding(param, dims, Origin.DERIVE, rule, derivation=derivation)


def reading_of(rule: DeriveRule, param: Param, whole: ParamSharding) -> DerivedDims | str:
    """Return what each dimension of an array is, counted from the front, `...` written out.

    Returns:
      Instead, what does not fit, in words that go on from the parent's path.
    """
    parent = whole.param
    shown = f"{parent}, and this is {param}"
    named = by_name(rule, param, whole)
    if named is not None:
        return f"which is {shown}: {named}" if isinstance(named, str) else named
    answer = _answer(rule, param.rank)
    if answer is None:
        counts = " or ".join(str(len(each)) for each in rule.answers)
        return f"which is {shown}: `dims` has {counts} for {param.rank} dimensions"
    if len(answer) == 1 and _is_open(answer) and param.rank != parent.rank:
        return f"which is {shown}: `dims` has to say which dimensions it has"
    found: list[ParentDim | str | None] = []
    for dim in answer:
        if isinstance(dim, ParentDim) and dim.place is None:
            more = param.rank - len(answer) + 1
            found += (dim._replace(place=place) for place in range(more))
        elif isinstance(dim, ParentDim) and dim.place is not None and dim.place < 0:
            found.append(dim._replace(place=dim.place + parent.rank))
        else:
            found.append(dim)
    places = [dim.place for dim in found if isinstance(dim, ParentDim)]
    if any(place is None or not 0 <= place < parent.rank for place in places):
        return f"which is {shown}: dims {derived_text(answer)} are not all there"
    if len(set(places)) < len(places):
        return f"which is {shown}: dims {derived_text(answer)} stand for one of them twice"
    return tuple(found)


def _answer(rule: DeriveRule, rank: int) -> DerivedDims | None:
    """Return the answer for a rank: the one of as many dimensions, else one with `...`."""
    exact = (each for each in rule.answers if len(each) == rank and not _is_open(each))
    open_ones = (each for each in rule.answers if _is_open(each) and len(each) <= rank + 1)
    return next(exact, None) or next(open_ones, None)


def _is_open(answer: DerivedDims) -> bool:
    return any(isinstance(dim, ParentDim) and dim.place is None for dim in answer)


def misfit_of(rule: DeriveRule, param: Param, parent: ParamSharding) -> str:
    """Return what does not fit of an array and what an entry says of it, "" where all does."""
    reading = reading_of(rule, param, parent)
    return reading if isinstance(reading, str) else _misfit(reading, param, parent.param)


def _misfit(reading: DerivedDims, param: Param, parent: Param) -> str:
    """Return which size is not what it should be, "" where all are."""
    for at, (size, dim) in enumerate(zip(param.shape, reading, strict=True)):
        if not isinstance(dim, ParentDim) or size == 1:
            continue
        whole = parent.shape[dim.place or 0]
        if not _fits(size, whole, dim):
            wanted = _size_text(whole, dim)
            shown = f"{parent}, and this is {param}"
            return f"which is {shown}: dim {at} is `{dim}`, so {wanted}, and not {size}"
    return ""


def _fits(size: int, whole: int, dim: ParentDim) -> bool:
    """Say whether a size is that of a dimension of the parent, in blocks or spread out."""
    if dim.operator == "/":
        return 0 < size <= whole if dim.by is None else size == -(-whole // dim.by)
    if dim.operator == "*":
        return whole > 0 and size % whole == 0 if dim.by is None else size == whole * dim.by
    return size == whole


def _size_text(whole: int, dim: ParentDim) -> str:
    if dim.operator == "/":
        return f"at most {whole}" if dim.by is None else str(-(-whole // dim.by))
    if dim.operator == "*":
        return f"a multiple of {whole}" if dim.by is None else str(whole * dim.by)
    return str(whole)


def _placed(
    size: int, dim: ParentDim | str | None, parent: ParamSharding, rule: DeriveRule
) -> DimSharding | None:
    """Return a dimension that is one of the parent's; None for one that rules are asked about."""
    if not isinstance(dim, ParentDim):
        return None if isinstance(dim, str) else DimSharding(size, None)
    of_parent = parent.dims[dim.place or 0]
    is_same = size == of_parent.size
    name = of_parent.logical_axis if is_same else None
    grain = (of_parent.unit, of_parent.segments) if is_same else (1, 1)
    axes, ways = of_parent.mesh_axes, of_parent.ways
    if not axes or (size == 1 and not is_same):
        return DimSharding(size, name, (), *grain)
    outcome = Outcome.TAKEN if is_same or _is_uncut(size, of_parent) else Outcome.INDIVISIBLE
    taken = Attempt(Kind.PARENT, dim.place or 0, axes, axes, outcome, ways, None, None, rule.span)
    return DimSharding(size, name, (taken,), *grain)


def _is_uncut(size: int, of_parent: DimSharding) -> bool:
    """Say whether the parent's shards hold whole blocks, as many each."""
    whole, ways = of_parent.size or 0, of_parent.ways
    small, large = sorted((size, whole))
    return size % ways == 0 and whole % ways == 0 and small > 0 and large % small == 0
