"""Which dimension of a parent each one of a derived array is, by names: `from X = A[in] @ B`.

A weight is the product of two arrays, with some of its dimensions summed over. One side holds those
and the rank, the other the rank and the rest; what both name, they share. So names say what each
dimension is, for any rank, and no size does: sizes are held against the answer afterwards.

A dimension of the parent goes by the name that `params` gives it, by its role in that (`in` of
`in:embed`), and by what the entry calls it in brackets, where no role says otherwise.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from shardspec.ir import spec as ir
from shardspec.ir.plan import ParamSharding
from shardspec.language.grammar.syntax import SyntaxFault
from shardspec.language.patterns.template import braces_of, template_of


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
    made = None if braces is None else template_of(rule.pattern.text, braces)
    texts = () if made is None or isinstance(made, SyntaxFault) else made.paths(path)
    return next((side for side in (left, right) if texts == (side.text,)), None)


def other_side(rule: ir.DeriveRule, path: str) -> tuple[str, ...]:
    """Return where the other side of the product may be; nothing where the entry has none."""
    side = None if rule.factors is None else side_of(rule, path)
    if side is None or rule.factors is None:
        return ()
    left, right, _ = rule.factors
    braces = braces_of(rule.pattern.text, (left.text, right.text)) or ""
    wanted = rule.pattern.text.replace(braces, (right if side == left else left).text)
    made = template_of(rule.pattern.text, wanted)
    return () if isinstance(made, SyntaxFault) else made.paths(path)


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
