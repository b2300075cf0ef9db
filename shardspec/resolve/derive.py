"""How an array lies that is made from another: LoRA's two sides, scales, averages, master copies.

Each of its dimensions *is* a dimension of the parent, and has that one's mesh axes; or it is none
of them, and is whole, or asks the rules, which find the parent's mesh axes taken. The rules alone
could answer otherwise: `embed -> model | data` puts `embed` on `data` in a kernel whose other
dimension has `model`, and on `model` in the side of a LoRA that has no other.

The parent is found by its path. Where it is not there, or sizes do not fit, nothing is guessed: the
array is whole, and a finding says why.

Which dimension of a parent each one of a derived array is, by names: `from X = A[in] @ B`.

A weight is the product of two arrays, with some of its dimensions summed over. One side holds those
and the rank, the other the rank and the rest; what both name, they share. So names say what each
dimension is, for any rank, and no size does: sizes are held against the answer afterwards.

A dimension of the parent goes by the name that `params` gives it, by its role in that (`in` of
`in:embed`), and by what the entry calls it in brackets, where no role says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, Protocol

from shardspec.ir import plan
from shardspec.ir import spec as ir
from shardspec.ir.plan import Derivation, Dims, DimSharding, Kind, Origin, Outcome, ParamSharding
from shardspec.ir.spec import DerivedDims, DeriveRule, Param, ParentDim, derived_text
from shardspec.language.glob import braces_of, template_of
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.resolve.match import RuleTable, assign_beside

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
    found = _paths(rule.pattern.text, rule.parent, path) if rule.parent else ()
    return tuple(each for each in found if each != path)


@lru_cache(maxsize=1 << 12)
def _paths(pattern: str, wanted: str, path: str) -> tuple[str, ...]:
    """Return the paths that go with one; on every mesh of a search they are the same."""
    made = template_of(pattern, wanted)
    return () if isinstance(made, SyntaxFault) else made.paths(path)


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
    taken = plan.Attempt(
        Kind.PARENT, dim.place or 0, axes, axes, outcome, ways, None, None, rule.span
    )
    return DimSharding(size, name, (taken,), *grain)


def _is_uncut(size: int, of_parent: DimSharding) -> bool:
    """Say whether the parent's shards hold whole blocks, as many each."""
    whole, ways = of_parent.size or 0, of_parent.ways
    small, large = sorted((size, whole))
    return size % ways == 0 and whole % ways == 0 and small > 0 and large % small == 0


class _Weight(NamedTuple):
    """The dimensions of a parent, as an entry names them.

    Attributes:
      own: where those stand that `scan:` does not add.
      names: of each of those, the names that it goes by.
      stacks: where those are to stand in an array that scan adds, and where they do in the parent.
    """

    param: ir.Param
    own: tuple[int, ...]
    names: tuple[frozenset[str], ...]
    stacks: tuple[tuple[int, int], ...]


def by_name(
    rule: ir.DeriveRule, param: ir.Param, parent: ParamSharding
) -> ir.DerivedDims | str | None:
    """Return what each dimension of an array is, counted from the front.

    Returns:
      Instead, what does not fit, in words that go on from `which is f32[4, 8]: `; None where the
      entry counts the dimensions.
    """
    if rule.factors is None and rule.own is None:
        return None
    weight = _weight(rule, parent)
    if isinstance(weight, str):
        return weight
    rank = param.rank - len(weight.stacks)
    found = _of_dims(rule, weight, rank) if rule.factors is None else _side(rule, weight, param)
    if isinstance(found, str) or found is None:
        return found
    dims = list(found)
    for position, place in sorted((at % max(param.rank, 1), place) for at, place in weight.stacks):
        dims.insert(position, ir.ParentDim(place))
    return tuple(dims)


def side_of(rule: ir.DeriveRule, path: str) -> ir.Side | None:
    """Return which side of the product an array is."""
    assert rule.factors is not None
    left, right, _ = rule.factors
    braces = braces_of(rule.pattern.text, (left.text, right.text))
    texts = () if braces is None else _paths(rule.pattern.text, braces, path)
    return next((side for side in (left, right) if texts == (side.text,)), None)


def other_side(rule: ir.DeriveRule, path: str) -> tuple[str, ...]:
    """Return where the other side of the product may be; nothing where the entry has none."""
    side = None if rule.factors is None else side_of(rule, path)
    if side is None or rule.factors is None:
        return ()
    left, right, _ = rule.factors
    braces = braces_of(rule.pattern.text, (left.text, right.text)) or ""
    wanted = rule.pattern.text.replace(braces, (right if side == left else left).text)
    return _paths(rule.pattern.text, wanted, path)


def disagreement(
    rule: ir.DeriveRule, param: ir.Param, other: ir.Param, parent: ParamSharding
) -> str:
    """Return in what two sides are none of one product, "" where they are.

    Each fits the weight. They have the same rank, and hold what they share in the same way.
    """
    weight, readings = (
        _weight(rule, parent),
        [by_name(rule, each, parent) for each in (param, other)],
    )
    held = weight if isinstance(weight, str) else _held(rule, weight)
    if isinstance(weight, str) or isinstance(held, str):
        return ""
    shared = {weight.own[at] for at in set(held[0]) & set(held[1])}
    ranks, ways = [], []
    for each, reading in zip((param, other), readings, strict=True):
        if reading is None or isinstance(reading, str):
            return ""
        dims = list(zip(each.shape, reading, strict=True))
        plain = [size for size, dim in dims if not isinstance(dim, ir.ParentDim)]
        spread = [size for size, dim in dims if isinstance(dim, ir.ParentDim) and _is_spread(dim)]
        ranks += [*spread, *plain][:1]
        parts = [dim for _, dim in dims if isinstance(dim, ir.ParentDim) and not _is_spread(dim)]
        ways.append(shared <= {dim.place for dim in parts})
    if len(set(ranks)) > 1:
        return f"the ranks are {ranks[0]} and {ranks[1]}"
    return "" if len(set(ways)) == 1 else f"`{param}` and `{other}` are no sides of one product"


def _is_spread(dim: ir.ParentDim) -> bool:
    """Say whether a dimension is the rank with what both sides share."""
    return dim.operator == "*" and dim.by is None


def _weight(rule: ir.DeriveRule, parent: ParamSharding) -> _Weight | str:
    """Return the dimensions of a parent with the names that they go by."""
    rank = parent.param.rank
    scan = () if parent.scan is None or parent.mismatch else parent.scan.axes
    places = {position % rank: position for _, position in scan}
    own = tuple(at for at in range(rank) if at not in places)
    axes = [parent.logical_axes[at] for at in own]
    stacks = tuple((places[at], at) for at in sorted(places))
    if rule.own is None:
        names = [{axis, ir.axis_of(axis), _role(axis)} if axis else set[str]() for axis in axes]
        return _Weight(parent.param, own, tuple(frozenset(each) for each in names), stacks)
    named = next((names for names in rule.own if len(names) == len(own)), None)
    if not rule.own or any(name in ir.SIDES for names in rule.own for name in names):
        named = _roles(axes) or named
    if named is None:
        shown = " ".join(axis or "_" for axis in axes)
        stated = f"`[{' | '.join(map(' '.join, rule.own))}]`" if rule.own else "this entry"
        return f"{stated} names none of {len(own)} dimensions, and no role in `{shown}` does"
    return _Weight(parent.param, own, tuple(frozenset({name}) for name in named), stacks)


def _role(axis: str | None) -> str:
    """Return `in` of `in:embed`."""
    return (axis or "").rpartition(":")[0]


def _roles(axes: list[str | None]) -> tuple[str, ...] | None:
    """Return for each dimension whether the weight reads or makes it; None where no name says so.

    >>> _roles(["in:embed", "heads", "kv"]), _roles(["embed", "mlp"])
    (('in', 'out', 'out'), None)
    """
    roles = [next((r for r in ir.SIDES if axis and r in (axis, _role(axis))), "") for axis in axes]
    said = set(filter(None, roles))
    if not said:
        return None
    other = ir.SIDES[said == {"in"}] if len(said) == 1 else ""
    return tuple(role or other for role in roles)


def _places(rule: ir.DeriveRule, weight: _Weight, names: tuple[str, ...]) -> tuple[int, ...] | str:
    """Return where the dimensions with these names stand among the parent's own, in its order."""
    found: set[int] = set()
    for name in names:
        here = {at for at, known in enumerate(weight.names) if name in known}
        if not here and name not in rule.parent_names:
            return f"none of its dimensions is called `{name}`"
        if len(here) > 1 and rule.own is None:
            return f"`{name}` is the name of {len(here)} of its dimensions; say `in:` and `out:`"
        found |= here
    return tuple(sorted(found))


def _of_dims(rule: ir.DeriveRule, weight: _Weight, rank: int) -> ir.DerivedDims | str:
    """Return the dimensions that `dims` gives names of the parent's."""
    answer = next((each for each in rule.answers if len(each) == rank), None)
    if answer is None:
        counts = " or ".join(str(len(each)) for each in rule.answers)
        return f"`dims` has {counts} for {rank} dimensions"
    dims: list[ir.ParentDim | str | None] = []
    for dim in answer:
        if not isinstance(dim, str) or dim not in rule.parent_names:
            dims.append(dim)
            continue
        found = [at for at, names in zip(weight.own, weight.names, strict=True) if dim in names]
        if len(found) != 1:
            return f"{len(found) or 'none'} of its dimensions are called `{dim}`"
        dims.append(ir.ParentDim(found[0]))
    return tuple(dims)


def _held(rule: ir.DeriveRule, weight: _Weight) -> tuple[tuple[int, ...], tuple[int, ...]] | str:
    """Return which of the weight's own dimensions each side of a product holds."""
    assert rule.factors is not None
    left, right, _ = rule.factors
    first, second = (_places(rule, weight, side.names) for side in (left, right))
    if isinstance(first, str) or isinstance(second, str):
        return first if isinstance(first, str) else str(second)
    every = range(len(weight.own))
    first = first if left.names else tuple(at for at in every if at not in second)
    second = second if right.names else tuple(at for at in every if at not in first)
    missing = [at for at in every if at not in (*first, *second)]
    return f"neither side has dim {weight.own[missing[0]]}" if missing else (first, second)


def _side(rule: ir.DeriveRule, weight: _Weight, param: ir.Param) -> ir.DerivedDims | str:
    """Return the dimensions of one side of a product."""
    assert rule.factors is not None
    left, _, rank = rule.factors
    held = _held(rule, weight)
    if isinstance(held, str):
        return held
    first, second = held
    shared = tuple(at for at in first if at in second)
    side = side_of(rule, param.path)
    mine = tuple(at for at in (first if side == left else second) if at not in shared)
    if side is None or not mine:
        return f"`{side or param.path}` has none of its dimensions alone"
    return _written(weight, shared, mine, rank, is_left=side == left, param=param)


def _written(
    weight: _Weight,
    shared: tuple[int, ...],
    mine: tuple[int, ...],
    rank: str | None,
    *,
    is_left: bool,
    param: ir.Param,
) -> ir.DerivedDims | str:
    """Return the dimensions of a side in order: what is shared, its own, and the rank.

    By their number, its own may be joined into one, or what is shared with the rank; a convolution
    of torch has dimensions of size 1 behind them.
    """
    count = param.rank - len(weight.stacks)
    joined = _joined(weight, mine)
    own = tuple(ir.ParentDim(weight.own[at]) for at in mine)
    both = tuple(ir.ParentDim(weight.own[at]) for at in shared)
    between: tuple[ir.ParentDim | str | None, ...] = (rank,)
    ways: list[ir.DerivedDims] = [(*both, *((*own, *between) if is_left else (*between, *own)))]
    if len(mine) > 1:
        ways.append((*both, *((joined, *between) if is_left else (*between, joined))))
    if len(shared) == 1:  # experts before ranks in what is read, and behind them in what is made
        ways.append((*own, None) if is_left else (both[0]._replace(operator="*"), *own))
    fitting = [way for way in ways if len(way) == count]
    if len(fitting) == 1:
        return fitting[0]
    ones = count - len(ways[0])
    if ones > 0 and all(size == 1 for size in param.shape[-ones:]):
        return (*ways[0], *(None,) * ones)
    shown = f"this side is `{ir.derived_text(ways[0])}`"
    if fitting:
        return f"{shown}, and {param.rank} dimensions may be two ways to join them"
    wanted = " or ".join(sorted({str(len(way) + len(weight.stacks)) for way in ways}))
    return f"{shown}, so it has {wanted} dimensions, and not {param.rank}"


def _joined(weight: _Weight, mine: tuple[int, ...]) -> ir.ParentDim:
    """Return dimensions side by side in one, as so many for each of the first that is no 1."""
    sizes = [weight.param.shape[weight.own[at]] for at in mine]
    first = next((at for at, size in enumerate(sizes) if size != 1), 0)
    return ir.ParentDim(weight.own[mine[first]], "*", math.prod(sizes[first + 1 :]))
