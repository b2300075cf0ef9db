"""Run a traced step on the devices that are here, twice in a row, on values of ours.

What two runs return is compared here as well: beyond rounding, or not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.sharding import NamedSharding, PartitionSpec

from shardspec.diagnostics.words import grouped
from shardspec.jax_backend.mesh import mesh_for
from shardspec.jax_backend.numbers.rerun import End, Mark, Rerun
from shardspec.jax_backend.numbers.small import Trial
from shardspec.programs.numbers import FirstDifference, OutputDifference

#: How often a step is called, each call with the state that the one before returned.
CALLS = 2
#: A program that runs once is compiled in a hurry.
_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@dataclass
class Runner:
    """A step on one mesh, compiled.

    Attributes:
      width: of its floats.
    """

    trial: Trial
    width: np.dtype[Any]
    is_watched: bool = False
    rerun: Rerun = field(init=False)
    _jitted: Any = field(init=False)

    def __post_init__(self) -> None:
        """Choose the devices."""
        target = self.trial.target
        devices = jax.devices()[: target.mesh.device_count]
        mesh = mesh_for(target, devices, self.trial.spec.policy.order)
        self.rerun = Rerun(mesh, self.width, self.is_watched)
        closed = self.trial.program.jaxpr
        options: dict[str, Any] = dict(_QUICK)
        self._jitted = jax.jit(lambda leaves: self.rerun(closed, leaves), compiler_options=options)

    def __call__(self, values: Sequence[Any]) -> list[list[Result]]:
        """Return what each call computes, as arrays of this host."""
        found = []
        given = list(values)
        with jax.set_mesh(self.rerun.mesh):
            for _ in range(CALLS):
                outs, _ = self._jitted(self._placed(given))
                found.append([_here(each) for each in outs])
                for result, argument in self.trial.program.passed_on:
                    given[argument] = outs[result]
        return found

    def watched(self, values: Sequence[Any], call: int) -> tuple[list[Mark], list[Any]]:
        """Return the marks of a call, and their values.

        Args:
          call: 0 for the first.
        """
        given = list(values)
        with jax.set_mesh(self.rerun.mesh):
            for _ in range(call + 1):
                outs, seen = self._jitted(self._placed(given))
                for result, argument in self.trial.program.passed_on:
                    given[argument] = outs[result]
        return list(self.rerun.marks), [_here(each).value for each in seen]

    def _placed(self, values: list[Any]) -> list[Any]:
        return [
            value if isinstance(value, jax.Array) and value.committed else self._put(value, leaf)
            for value, leaf in zip(values, self.trial.program.leaves, strict=True)
        ]

    def _put(self, value: Any, leaf: Any) -> Any:
        spec = getattr(getattr(leaf, "sharding", None), "spec", PartitionSpec())
        return jax.device_put(value, NamedSharding(self.rerun.mesh, spec))


def _here(value: Any) -> Result:
    """Return an array of this host, and whether devices that should agree do not."""
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    parts: dict[str, Any] = {}
    apart = False
    for shard in value.addressable_shards:
        own = np.asarray(shard.data)
        first = parts.setdefault(str(shard.index), own)
        apart |= first is not own and not np.array_equal(first, own, equal_nan=_is_float(own))
    return Result(np.asarray(value), apart)


def _is_float(value: Any) -> bool:
    return bool(np.issubdtype(value.dtype, np.inexact))


def values_of(trial: Trial, seed: int, width: np.dtype[Any], scale: float) -> list[Any]:
    """Return a value for each argument of a step.

    Args:
      scale: of random floats.
    """
    random = np.random.default_rng(seed)
    uses = uses_of(trial.program.jaxpr)
    program = trial.program
    made = [
        _scaled(value_for(leaf, use, random, width, is_zero=given.role == "optimizer"), scale)
        for leaf, use, given in zip(program.leaves, uses, program.given, strict=True)
    ]
    stated = trial.stated or (None,) * len(made)
    return [
        own if told is None else np.asarray(told, own.dtype).reshape(own.shape)
        for told, own in zip(stated, made, strict=True)
    ]


def _scaled(value: Any, scale: float) -> Any:
    is_float = isinstance(value, np.ndarray) and np.issubdtype(value.dtype, np.floating)
    return (value * scale).astype(value.dtype) if is_float else value


def reordered(values: Sequence[Any], seed: int) -> list[Any]:
    """Return values off by the rounding of their type, as sums in another order are."""
    random = np.random.default_rng(seed)

    def moved(value: Any) -> Any:
        if not isinstance(value, np.ndarray | np.generic) or not np.issubdtype(
            value.dtype, np.floating
        ):
            return value
        step = np.finfo(value.dtype).eps * random.choice((-1.0, 0.0, 1.0), np.shape(value))
        return (value * (1 + step)).astype(value.dtype)

    return [moved(each) for each in values]


#: How many times the rounding that was seen is still rounding.
_NOISE = 64.0
#: What is rounding whatever was seen, in units of the least of the type.
_LEAST = 128.0
#: Integers that may differ where rounding decides between two choices, in times of what was seen.
_FLIPS = 8.0


class Result(NamedTuple):
    """An array that a run returned.

    Attributes:
      value: of the first device that has each part.
      devices_differ: whether devices that should hold the same values hold others.
    """

    value: Any
    devices_differ: bool = False


def differences(
    paths: Sequence[str],
    one: Sequence[Sequence[Result]],
    many: Sequence[Sequence[Result]],
    noisy: Sequence[Sequence[Sequence[Result]]],
) -> Iterator[OutputDifference]:
    """Yield the outputs that differ beyond rounding, call by call.

    Args:
      one: of each call on one device, and `many` sharded.
      noisy: of runs on one device whose inputs are off by rounding.
    """
    for call, (expected, found) in enumerate(zip(one, many, strict=True)):
        for at, path in enumerate(paths):
            others = [each[call][at].value for each in noisy]
            error = difference(expected[at].value, found[at].value, others)
            apart = found[at].devices_differ
            if error is not None or apart:
                off, noise = error or (0.0, 0.0)
                ratio = ratio_of(expected[at].value, found[at].value) if error else None
                yield OutputDifference(path, call + 1, off, noise, ratio, apart)


def difference(expected: Any, found: Any, others: Sequence[Any]) -> tuple[float, float] | None:
    """Return by how much two arrays differ, and the rounding; None where it is no more than that.

    Both are shares of the largest value; of integers, of the elements.
    """
    if expected.size != found.size:
        return 1.0, 0.0
    found = found.reshape(expected.shape)
    if not expected.size:
        return None
    if not np.issubdtype(expected.dtype, np.inexact):
        off = float(np.mean(expected != found))
        noise = max((float(np.mean(expected != each)) for each in others), default=0.0)
        return (off, noise) if off > _FLIPS * noise else None
    finite = np.isfinite(expected)
    if not finite.any():
        return None
    if (np.isfinite(found) != finite).any():
        return 1.0, 0.0
    scale = float(np.abs(expected[finite]).max())
    noise = max((_far(expected, each, finite) for each in others), default=0.0)
    off = _far(expected, found, finite)
    least = _LEAST * float(np.finfo(expected.dtype).eps) * scale
    if off <= max(least, _NOISE * noise, float(np.finfo(expected.dtype).tiny)):
        return None
    return (off / scale if scale else 1.0), (noise / scale if scale else 0.0)


def is_comparable(value: Any) -> bool:
    """Say whether some number of an array is one: where all are NaN, nothing can differ."""
    is_exact = not np.issubdtype(value.dtype, np.inexact)
    return is_exact or not value.size or bool(np.isfinite(value).any())


def _far(one: Any, other: Any, finite: Any) -> float:
    both = finite & np.isfinite(other)
    return float(np.abs(one[both] - other[both]).max()) if both.any() else 0.0


def ratio_of(expected: Any, found: Any) -> float | None:
    """Return what all elements of one array are multiplied by to give the other's, if one is."""
    if not np.issubdtype(expected.dtype, np.floating) or expected.size != found.size:
        return None
    expected, found = expected.ravel(), found.ravel()
    large = np.abs(expected) > 1e-2 * np.abs(expected).max(initial=0.0)
    large &= np.isfinite(expected) & np.isfinite(found)
    if not large.any():
        return None
    ratios = found[large] / expected[large]
    middle = float(np.median(ratios))
    is_one = abs(middle - 1) < 1e-3 or np.abs(ratios - middle).max() > 1e-2 * abs(middle)
    return None if is_one else middle


# Find the first value inside a step that differs, by two watched runs of it.
#
# Values outside `shard_map` are compared as they are. Inside, each device has one, and they may
# stand for the value of one device in several ways: all the same, its parts, or numbers of which it
# is the sum, the mean or the largest. A value that fits none of these is wrong, or is part of a way
# to compute that comes right again. So the search starts at the outputs that differ, and goes back
# through values that are wrong, as far as the first that is made of right ones alone. What is wrong
# in one iteration of a loop makes all that follow wrong, so first iterations are compared, and
# others only where those are right.


#: How the values of devices stand for that of one; `unknown` where they cannot be paired.
State = Literal["same", "split", "sum", "mean", "largest", "wrong", "unknown"]

#: A difference up to this share of the largest value is rounding.
_ROUNDING = 1e-5
#: What is larger stands for a score that is masked, and says nothing of the size of others.
_MASKED = 1e9
_PENDING: dict[State, str] = {
    "sum": "a partial sum",
    "mean": "a mean over a part",
    "largest": "the largest of a part",
}
_MOVES = frozenset(("all_gather", "all_to_all", "ppermute", "psum_scatter", "reduce_scatter"))
#: What follows the order of the values on one device.
_OWN_ORDER = frozenset(("iota", "sort", "cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"))
_SUMS = frozenset(("psum", "psum_invariant", "psum2", "all_gather_invariant"))


@dataclass(frozen=True, slots=True)
class Watched:
    """One watched run.

    Attributes:
      results: the marks of each result.
    """

    marks: Sequence[Mark]
    values: Sequence[Any]
    results: Sequence[tuple[int, ...]]
    ends: Sequence[End]


def first_difference(
    one: Watched, many: Watched, axes: Sequence[str], wrong: Sequence[int]
) -> FirstDifference | None:
    """Return the first value that differs and leads to outputs that do; None if none is found.

    Args:
      axes: the mesh axes of `many`.
      wrong: the outputs that differ, by their places.
    """
    for is_whole in (False, True):
        states = list(_states(one, many, is_whole=is_whole))
        found, passed = _back(many, states, wrong)
        named = sorted(each for each in found if many.marks[each].place.is_known)
        told = [(at, _what(many, states, at, axes)) for at in named]
        reasons = [pair for pair in told if pair[1]]
        for at, what in reasons or _exchange(many, named, passed, axes) or told:
            mark = many.marks[at]
            plain = f"is the first value that differs when {_over(axes)} is larger than 1"
            return FirstDifference(mark.place, what or plain, mark.primitive)
        at_end = _at_end(many, states, axes)
        if at_end is not None:
            return at_end
    return None


def _states(one: Watched, many: Watched, *, is_whole: bool) -> Iterator[State]:
    """Yield how each value of many devices stands for that of one.

    Args:
      is_whole: whether all iterations of loops are compared, or the first alone.
    """
    expected = grouped(range(len(one.marks)), lambda at: _key(one.marks[at]))
    found = grouped(range(len(many.marks)), lambda at: _key(many.marks[at]))
    pairs: dict[int, int] = {}
    for key, places in found.items():
        others = expected.get(key, ())
        if len(others) == len(places):
            pairs.update(zip(places, others, strict=True))
    for at, mark in enumerate(many.marks):
        if at not in pairs:
            yield "unknown"
            continue
        left, right = one.values[pairs[at]], many.values[at]
        yield _state(
            _by_device(left, one.marks[pairs[at]], is_whole), _by_device(right, mark, is_whole)
        )


def _key(mark: Mark) -> object:
    return mark.primitive, mark.place, mark.wraps


def _by_device(value: Any, mark: Mark, is_whole: bool) -> Any:
    """Return a value with its devices first: one row for a value outside of `shard_map`."""
    value = np.asarray(value)
    for dim, wrap in enumerate(mark.wraps if not is_whole else ()):
        if wrap != "devices" and value.shape[dim]:
            first = value.shape[dim] - 1 if wrap == "reversed" else 0
            value = np.take(value, [first], dim)
    if value.dtype == bool:
        value = value.astype(np.int32)
    if "devices" not in mark.wraps:
        return value[None]
    places = [at for at, each in enumerate(mark.wraps) if each == "devices"]
    value = np.moveaxis(value, places, range(len(places)))
    return value.reshape(math.prod(value.shape[: len(places)]), *value.shape[len(places) :])


def _state(one: Any, many: Any) -> State:
    expected = one[0]
    sizes = np.abs(expected[np.abs(expected) < _MASKED])
    scale = float(sizes.max(initial=0.0)) * _ROUNDING

    def equal(value: Any) -> bool:
        return value.shape == expected.shape and bool(
            np.isclose(value, expected, rtol=_ROUNDING, atol=scale, equal_nan=True).all()
        )

    if all(map(equal, many)):
        return "same"
    if len(many) == 1:
        return "wrong"
    if many[0].shape == expected.shape:
        if equal(many.sum(0)):
            return "sum"
        if equal(many.mean(0)):
            return "mean"
        return "largest" if equal(many.max(0)) else "wrong"
    for dim in range(expected.ndim):
        if many[0].shape[dim] != expected.shape[dim] and equal(np.concatenate(list(many), dim)):
            return "split"
    return "wrong"


def _over(axes: Sequence[str]) -> str:
    return " and ".join(f"`{axis}`" for axis in axes)


def _exchange(
    many: Watched, named: Sequence[int], passed: Sequence[int], axes: Sequence[str]
) -> list[tuple[int, str]]:
    """Return the first exchange between devices that gives wrong values, where it is the fault.

    A device counts and sorts its own part in its own order, and a ring has parts of the answer
    until it ends. Such values differ in right steps, too, so they are no fault by themselves.

    Args:
      named: the first values that differ, all without a reason.
      passed: the wrong values on the way to wrong outputs.
    """
    moves = [at for at in sorted(passed) if many.marks[at].primitive in _MOVES]
    move = next((at for at in moves if many.marks[at].place.is_known), None)
    if move is None:
        return []
    wraps = many.marks[move].wraps
    is_ring = any(wrap != "devices" for wrap in wraps)

    def is_own(at: int) -> bool:
        mark, dtype = many.marks[at], np.asarray(many.values[at]).dtype
        is_count = mark.primitive in _OWN_ORDER or not np.issubdtype(dtype, np.inexact)
        return is_count or (is_ring and mark.wraps == wraps)

    if not all(map(is_own, named)):
        return []
    if is_ring:
        return [(move, f"is in a ring over {_over(axes)} that ends with values that differ")]
    return [(move, f"is the first exchange over {_over(axes)} that gives other values")]


def _back(
    many: Watched, states: Sequence[State], wrong: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Return the wrong values that are made of right ones alone, and all wrong ones on the way.

    Both are on the way to wrong outputs.
    """
    results = [mark for at in wrong for mark in many.results[at]]
    first: list[int] = []
    waiting, seen = [*results], set[int]()
    while waiting:
        at = waiting.pop()
        is_wrong = states[at] == "wrong" or (states[at] == "same" and at in results)
        if at in seen or not (is_wrong or states[at] == "unknown"):
            continue
        seen.add(at)
        sources = _sources(many, states, at)
        before = [each for each in sources if states[each] == "wrong"]
        waiting += before
        if not before and states[at] == "wrong":
            first.append(at)
    return first, [at for at in seen if states[at] == "wrong"]


def _sources(many: Watched, states: Sequence[State], at: int) -> list[int]:
    """Return the values that one is made of; in place of those without a pair, what makes them."""
    found: dict[int, None] = {}
    waiting = list(many.marks[at].sources)
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if each in seen:
            continue
        seen.add(each)
        if states[each] == "unknown":
            waiting += many.marks[each].sources
        else:
            found[each] = None
    return list(found)


def _what(many: Watched, states: Sequence[State], at: int, axes: Sequence[str]) -> str:
    """Return what is wrong about a value; empty where that is not clear."""
    mark = many.marks[at]
    over = _over(axes)
    sources = _sources(many, states, at)
    kinds = {states[each] for each in sources}
    if mark.primitive == "random_bits":
        return f"every device along {over} draws the same random numbers for other data"
    if mark.primitive in _SUMS and "same" in kinds:
        return f"sums over {over} a value that is already the same on every device"
    if mark.primitive in _SUMS and "mean" in kinds:
        return f"sums over {over} what is to be averaged: each device has a mean over its part"
    if mark.primitive in _MOVES:
        return f"does not give the array of one device in its order along {over}"
    pending = next((each for each in sources if states[each] in _PENDING), None)
    if pending is not None:
        made = many.marks[_origin(many, states, pending)].place
        where = f" (of {made})" if made.is_known and made != mark.place else ""
        return f"uses {_PENDING[states[pending]]} over {over}{where} as if it were complete"
    return ""


def _origin(many: Watched, states: Sequence[State], at: int) -> int:
    """Return where a value began to be a part: what it is made of is not one."""
    seen = {at}
    while True:
        before = (each for each in _sources(many, states, at) if states[each] in _PENDING)
        found = next((each for each in before if each not in seen), None)
        if found is None:
            return at
        seen.add(found)
        at = found


def _at_end(many: Watched, states: Sequence[State], axes: Sequence[str]) -> FirstDifference | None:
    """Return a result of a `shard_map` that is returned as complete and is not."""
    over = _over(axes)
    for end in many.ends:
        for at in end.marks:
            pending = _PENDING.get(states[at])
            if pending is not None and not end.axes.issuperset(axes):
                mark = many.marks[at]
                place = mark.place if mark.place.is_known else end.place
                what = f"is {pending} over {over}, and `shard_map` returns it as complete"
                return FirstDifference(place, what, mark.primitive)
    return None


# Values for the arguments of a step that has only shapes: numbers that its program can use.
#
# What an argument is for is read from the program. An integer that indexes a dimension is below its
# size; one that is compared with positions is a position. A float that a square root is taken of is
# not negative. Keys of random numbers are keys. What nothing tells apart is a mask of zeros and
# ones.


#: What passes an integer on as it is, or nearly.
_PASSES = frozenset(
    (
        *("broadcast_in_dim", "reshape", "squeeze", "transpose", "slice", "concatenate", "rev"),
        *("convert_element_type", "copy", "pvary", "select_n", "add", "sub", "max", "min", "clamp"),
        *("sharding_constraint", "reshard", "pad", "all_gather", "ppermute", "all_to_all", "rem"),
        *("expand_dims", "dynamic_slice", "gather", "stop_gradient", "sort", "split"),
    )
)
#: What passes a float on whose sign decides whether a root of the result is a number.
_SCALES = frozenset(
    (
        *("mul", "div", "add", "add_any", "max", "convert_element_type", "broadcast_in_dim"),
        *("reshape", "squeeze", "select_n", "sharding_constraint", "pvary", "transpose", "copy"),
        *("reshard", "reduce_sum", "slice"),
    )
)
_ROOTS = frozenset(("sqrt", "rsqrt", "log", "pow"))
_COMPARES = frozenset(("eq", "ne", "lt", "le", "gt", "ge"))


@dataclass
class Use:
    """What the program does with one argument.

    Attributes:
      limit: an integer is below this; None where nothing says.
      is_key: whether random numbers are made of it.
      is_rooted: whether a root is taken of it.
      is_index: whether it indexes a dimension; what is only compared with positions does not.
    """

    limit: int | None = None
    is_key: bool = False
    is_rooted: bool = False
    is_index: bool = False

    def below(self, limit: int) -> None:
        """Note a bound."""
        self.limit = limit if self.limit is None else max(1, min(self.limit, limit))


@dataclass
class _Uses:
    """A walk over a program that carries, for each variable, the arguments that it comes from."""

    uses: list[Use]

    def walk(self, jaxpr: Any, given: Sequence[frozenset[int]], sizes: Sequence[int | None]) -> Any:
        """Return the arguments that each result comes from, and of which positions it is made."""
        known: dict[Any, frozenset[int]] = dict(zip(jaxpr.invars, given, strict=True))
        places: dict[Any, int | None] = dict(zip(jaxpr.invars, sizes, strict=True))
        none: frozenset[int] = frozenset()
        for eqn in jaxpr.eqns:
            args = [
                none if isinstance(each, core.Literal) else known.get(each, none)
                for each in eqn.invars
            ]
            at = [
                None if isinstance(each, core.Literal) else places.get(each) for each in eqn.invars
            ]
            outs = self._equation(eqn, args, at)
            for var, (out, place) in zip(eqn.outvars, outs, strict=True):
                known[var], places[var] = out, place
        return [
            (none, None)
            if isinstance(each, core.Literal)
            else (known.get(each, none), places.get(each))
            for each in jaxpr.outvars
        ]

    def _equation(self, eqn: Any, args: list[frozenset[int]], at: list[int | None]) -> Any:
        inner = list(_programs(eqn))
        if inner:
            found: Any = None
            for jaxpr, skipped in inner:
                own, places = args[skipped:], at[skipped:]
                if len(jaxpr.invars) != len(own):
                    continue
                outs = self.walk(jaxpr, own, places)
                found = outs if len(outs) == len(eqn.outvars) else found
            return found or [(frozenset(), None)] * len(eqn.outvars)
        self._sink(eqn, args, at)
        name = eqn.primitive.name
        passed: frozenset[int] = frozenset()
        place = None
        is_float = jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating)
        if name == "iota":
            place = eqn.params["shape"][eqn.params["dimension"]]
        elif name in _PASSES or name == "mul":
            place = max((each for each in at if each is not None), default=None)
        if name in (_SCALES if is_float else _PASSES):
            own = args[:1] if name in ("gather", "dynamic_slice") else args
            passed = frozenset().union(*own)
        return [(passed, place)] * len(eqn.outvars)

    def _sink(self, eqn: Any, args: list[frozenset[int]], at: list[int | None]) -> None:
        name, params = eqn.primitive.name, eqn.params
        shape = tuple(getattr(eqn.invars[0].aval, "shape", ())) if eqn.invars else ()
        if name == "gather":
            dims = params["dimension_numbers"].start_index_map
            self._below(
                args[1], min((shape[d] - params["slice_sizes"][d] + 1 for d in dims), default=1)
            )
        elif name.startswith("scatter"):
            dims = params["dimension_numbers"].scatter_dims_to_operand_dims
            self._below(args[1], min((shape[d] for d in dims), default=1))
        elif name == "dynamic_slice":
            for dim, (size, whole) in enumerate(zip(params["slice_sizes"], shape, strict=True)):
                self._below(args[1 + dim], whole - size + 1)
        elif name == "dynamic_update_slice":
            for dim, (size, whole) in enumerate(zip(eqn.invars[1].aval.shape, shape, strict=True)):
                self._below(args[2 + dim], whole - size + 1)
        elif name in _COMPARES and len(args) == 2:
            for own, place in ((args[0], at[1]), (args[1], at[0])):
                if place is not None:
                    self._below(own, place, is_index=name == "eq")
        elif name in ("random_wrap", "threefry2x32"):
            for each in self._of(args):
                each.is_key = True
        elif name in _ROOTS:
            for each in self._of(args):
                each.is_rooted = True

    def _below(self, own: frozenset[int], limit: int, *, is_index: bool = True) -> None:
        for each in self._of([own]):
            each.below(max(1, limit))
            each.is_index |= is_index

    def _of(self, args: Sequence[frozenset[int]]) -> Iterator[Use]:
        yield from (self.uses[at] for own in args for at in own)


def _programs(eqn: Any) -> Iterator[tuple[Any, int]]:
    """Yield the programs inside an equation, and how many of its operands are not theirs."""
    params, name = eqn.params, eqn.primitive.name
    if name == "while":
        yield params["body_jaxpr"].jaxpr, params["cond_nconsts"]
        return
    if name == "cond":
        for each in params["branches"]:
            yield each.jaxpr, 1
        return
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        inner = params.get(key)
        if inner is not None and name != "pallas_call":
            yield getattr(inner, "jaxpr", inner), 0
            return


def uses_of(closed: Any) -> list[Use]:
    """Return what a program does with each of its arguments."""
    uses = [Use() for _ in closed.jaxpr.invars]
    found = _Uses(uses)
    given = [frozenset({at}) for at in range(len(uses))]
    found.walk(closed.jaxpr, given, [None] * len(uses))
    return uses


def value_for(
    struct: Any, use: Use, random: np.random.Generator, width: Any, *, is_zero: bool = False
) -> Any:
    """Return a value for one argument.

    Args:
      struct: its shape and dtype.
      width: the dtype of floats.
      is_zero: whether it is optimizer state, which starts at zero: what the step makes of that
        shows the gradients as they are.
    """
    shape, dtype = tuple(struct.shape), struct.dtype
    if is_zero and not jnp.issubdtype(dtype, jax.dtypes.prng_key) and not use.is_key:
        return np.zeros(shape, width if jnp.issubdtype(dtype, jnp.floating) else dtype)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        seeds = random.integers(0, 2**31, shape)
        return (
            jax.vmap(jax.random.key)(seeds.reshape(-1)).reshape(shape)
            if shape
            else jax.random.key(int(seeds))
        )
    if jnp.issubdtype(dtype, jnp.bool_):
        return _first(random.random(shape) < 0.8, True)
    found: Any
    if jnp.issubdtype(dtype, jnp.integer):
        if use.is_key:
            return random.integers(0, 2**31, shape).astype(dtype)
        low = 0
        limit = 2 if use.limit is None else use.limit
        if use.limit is not None and not use.is_index and limit > 1:
            low = 1
        found = np.asarray(random.integers(low, max(limit, low + 1), shape))
        return _first(found, 1).astype(dtype) if use.limit is None else found.astype(dtype)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return (random.standard_normal(shape) + 1j * random.standard_normal(shape)).astype(dtype)
    found = np.asarray(random.standard_normal(shape))
    found = found / np.sqrt(shape[-2]) if len(shape) > 1 else 1 + 0.1 * found
    return (np.abs(found) if use.is_rooted else found).astype(width)


def _first(found: Any, value: Any) -> Any:
    """Return an array whose first entry of each row is a value: no row is masked whole."""
    found = np.asarray(found)
    if found.ndim:
        found[..., 0] = value
        return found
    return np.asarray(value)
