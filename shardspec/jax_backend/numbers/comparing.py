"""Compare a sharded step with the same step on one device: which meshes, which axis, which line.

`facts_of` reads what a program says of its sizes and its mesh, at the sizes that the user states:
how sizes are made of others, and which axes it uses.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np
from jax.extend import core
from jax.sharding import NamedSharding, PartitionSpec

from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.ir.spec import Target, jax_entries
from shardspec.ir.step import Place
from shardspec.jax_backend.batch import names_of
from shardspec.jax_backend.equations import (
    equations_of,
    made_manual,
    programs_of,
)
from shardspec.jax_backend.numbers import room, runs
from shardspec.jax_backend.numbers.rerun import KERNEL, Watched
from shardspec.jax_backend.numbers.small import TIGHT, Relations, SmallSizes, Trial, values_of
from shardspec.jax_backend.numbers.where import first_difference
from shardspec.jax_backend.step.sum_rules import same_elements
from shardspec.kept import kept
from shardspec.programs.numbers import FirstDifference, Numbers, OutputDifference

#: A size and what it is made of.
_Made = tuple[int, tuple[int, ...]]


@dataclass
class Facts:
    """What is read of one program.

    Attributes:
      sizes: of all its arrays, without the least.
      elements: that it computes, all equations and iterations together.
      axes: the mesh axes that something is sharded over, or that code names.
      split: the sizes of which each device of a `shard_map` has a part.
      rings: the mesh axes along which arrays move from one device to the next.
    """

    sizes: set[int] = field(default_factory=set)
    elements: int = 0
    products: dict[_Made, None] = field(default_factory=dict)
    sums: dict[_Made, None] = field(default_factory=dict)
    axes: dict[str, None] = field(default_factory=dict)
    split: set[int] = field(default_factory=set)
    rings: dict[str, None] = field(default_factory=dict)

    @property
    def relations(self) -> Relations:
        """Return how sizes are made of others."""
        return Relations(tuple(self.products), tuple(self.sums))


def facts_of(closed: Any, leaves: Iterable[Any]) -> Facts:
    """Return the facts of a program and of what it is called with."""
    facts = Facts()
    for leaf in leaves:
        facts.sizes.update(leaf.shape)
        _use(facts, getattr(getattr(leaf, "sharding", None), "spec", None))
    for eqn in equations_of(closed.jaxpr):
        for var in eqn.outvars:
            facts.sizes.update(each for each in getattr(var.aval, "shape", ()) if type(each) is int)
        _relate(facts, eqn)
        _place(facts, eqn)
    _sliced(facts, closed.jaxpr)
    facts.elements = _elements(closed.jaxpr)
    facts.sizes = {each for each in facts.sizes if each > TIGHT.stays}
    return facts


def _elements(jaxpr: Any) -> int:
    """Return how many elements a program computes, on all devices and in all iterations."""
    count = 0
    for eqn in jaxpr.eqns:
        inner = [*core.jaxprs_in_params(eqn.params)]
        own = sum(math.prod(getattr(var.aval, "shape", ())) for var in eqn.outvars)
        count += _times(eqn) * sum(map(_elements, inner)) if inner else own * _terms(eqn)
    return count


#: Products that are added up in the time that one element of another operation takes.
_PRODUCTS = 64


def _terms(eqn: Any) -> int:
    """Return how many elements one of a result counts for: those of long sums take longer."""
    name, params = eqn.primitive.name, eqn.params
    products = 1
    if name == "conv_general_dilated":
        shape = eqn.invars[1].aval.shape
        products = math.prod(shape) // max(1, shape[params["dimension_numbers"].rhs_spec[0]])
    elif name == "dot_general":
        (dims, _), _ = params["dimension_numbers"]
        products = math.prod(eqn.invars[0].aval.shape[dim] for dim in dims)
    return 1 + products // _PRODUCTS


def _times(eqn: Any) -> int:
    """Return how often the programs in an equation run: by iterations, or by devices."""
    if eqn.primitive.name != "shard_map":
        return int(eqn.params.get("length", 1))
    sizes = dict(eqn.params["mesh"].shape)
    return math.prod(sizes[axis] for axis in made_manual(eqn))


def _relate(facts: Facts, eqn: Any) -> None:
    name = eqn.primitive.name
    if name == "reshape":
        shapes = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
        for sides in same_elements(*shapes):
            pairs = zip(shapes, sides, strict=True)
            sizes = (tuple(shape[d] for d in dims if shape[d] != 1) for shape, dims in pairs)
            one, many = sorted(sizes, key=len)
            if len(one) == 1 < len(many):
                facts.products[one[0], many] = None
    elif name == "concatenate":
        at = eqn.params["dimension"]
        parts = tuple(each.aval.shape[at] for each in eqn.invars)
        facts.sums[eqn.outvars[0].aval.shape[at], parts] = None
    elif name == "split":
        facts.sums[sum(eqn.params["sizes"]), tuple(eqn.params["sizes"])] = None


def _sliced(facts: Facts, jaxpr: Any) -> None:
    """Note the dimensions that slices part without a rest."""
    for each in programs_of(jaxpr):
        found: dict[tuple[Any, int], set[tuple[int, int]]] = {}
        for eqn in each.eqns:
            if eqn.primitive.name != "slice" or isinstance(eqn.invars[0], core.Literal):
                continue
            shape = eqn.invars[0].aval.shape
            bounds = zip(eqn.params["start_indices"], eqn.params["limit_indices"], strict=True)
            for dim, (start, limit) in enumerate(bounds):
                if limit - start < shape[dim]:
                    found.setdefault((eqn.invars[0], dim), set()).add((start, limit))
        for (var, dim), parts in found.items():
            ordered = sorted(parts)
            ends = [0, *(limit for _, limit in ordered)]
            if [start for start, _ in ordered] == ends[:-1] and ends[-1] == var.aval.shape[dim]:
                sizes = tuple(limit - start for start, limit in ordered)
                facts.sums[var.aval.shape[dim], sizes] = None


def _place(facts: Facts, eqn: Any) -> None:
    """Note the mesh axes that an equation names."""
    name, params = eqn.primitive.name, eqn.params
    if name == "ppermute":
        facts.rings.update(dict.fromkeys(_axes(params["axis_name"])))
    for value in params.values():
        if isinstance(value, NamedSharding):
            _use(facts, value.spec)
    if name == "shard_map":
        for spec in (*params["in_specs"], *params["out_specs"]):
            _use(facts, spec)
        for var, spec in zip(eqn.invars, params["in_specs"], strict=True):
            pairs = zip(var.aval.shape, jax_entries(spec), strict=False)
            facts.split.update(size for size, entry in pairs if names_of(entry))
    for key in ("axes", "axis_name"):
        facts.axes.update(dict.fromkeys(_axes(params.get(key))))


def _axes(value: Any) -> tuple[str, ...]:
    found = value if isinstance(value, tuple | list) else (value,)
    return tuple(each for each in found if isinstance(each, str))


def _use(facts: Facts, spec: Any) -> None:
    if isinstance(spec, PartitionSpec):
        for entry in (*jax_entries(spec), *((each,) for each in spec.unreduced | spec.reduced)):
            if entry is not PartitionSpec.UNCONSTRAINED:
                facts.axes.update(dict.fromkeys(names_of(entry)))


def single_slices(closed: Any) -> Iterator[tuple[str, ...]]:
    """Yield the mesh axes of each dimension of which a `shard_map` takes the first slice alone.

    Its code is written for one slice on each device, and computes something else on fewer devices.
    """
    for eqn in equations_of(closed.jaxpr):
        if eqn.primitive.name != "shard_map":
            continue
        body = eqn.params["jaxpr"]
        for var, spec in zip(body.invars, eqn.params["in_specs"], strict=True):
            for dim, entry in enumerate(jax_entries(spec)):
                axes = names_of(entry)
                if axes and var.aval.shape[dim] > 1 and _is_first_alone(body, var, dim):
                    yield axes


def _is_first_alone(body: Any, var: Any, dim: int) -> bool:
    readers = [eqn for eqn in body.eqns if any(each is var for each in eqn.invars)]
    return bool(readers) and all(
        eqn.primitive.name == "slice"
        and eqn.params["start_indices"][dim] == 0
        and eqn.params["limit_indices"][dim] == 1
        for eqn in readers
    )


Sizes = dict[str, int]

#: The size of a mesh axis.
_SHORT = 2
#: Devices that are there to be used.
DEVICES = 8
#: Characters of an exception that are shown.
_LONGEST = 200
#: How large random floats are, in the first set of values, the second, the first again: what is
#: large reaches other branches, as that of gradients which are clipped.
_SCALES = (1.0, 4.0)
#: What differs has to differ with other values of the same size, too: two choices may tie.
_AGAIN = 100 * len(_SCALES)
#: No further way to have room for all tokens is tried after so long.
_ROOM_WITHIN_S = 30.0
#: Why an axis is not compared along which code takes one slice for each device.
ONE_SLICE = (
    "the code takes one slice for each device along it, so one device computes something else:"
    " make that size of `resolver.mesh.shape`"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """How numbers are compared.

    Attributes:
      kept: the logical axes whose sizes stay.
      width: of all floats.
      seeds: how many sets of values are tried.
      inputs: `module:function` that gives values for arguments.
    """

    kept: tuple[str, ...] = ()
    width: str = "float32"
    seeds: int = 2
    inputs: str | None = None


class Code(Protocol):
    """A step that can be traced on any small mesh: a dataclass, with a field `noted`."""

    @property
    def name(self) -> str:
        """Return what it is called."""

    @property
    def target(self) -> Target:
        """Return the target whose mesh axes it uses."""

    def small(self, sizes: SmallSizes, mesh: Mapping[str, int]) -> Trial:
        """Return the step on a small mesh."""


class _UntriedError(Exception):
    """The sharded step cannot be compared, and why."""


#: What a trace, a compile or a run that cannot be raises.
_FAILURES = (ShardspecError, RuntimeError, ValueError, TypeError, NotImplementedError)


def compared(
    code: Code,
    sizes: SmallSizes,
    one: Trial,
    facts: Facts,
    asked: Asked,
    tell: Callable[[str], None],
    started: float,
) -> Numbers:
    """Return what a step computes on meshes, compared with one device.

    Where devices have capacities of their own, that is what differs when no token is dropped.

    Args:
      sizes: that became small.
      one: the step on one device.
      facts: of the step at its own sizes.
      started: when all of it began.
    """
    comparison = _compared(_Comparison(code, sizes, one, asked, tell), facts)
    if comparison.found:
        until = started + _ROOM_WITHIN_S
        comparison = next(_with_room(comparison, facts, until), comparison)
    if comparison.found:
        comparison.blame()
    return comparison.numbers(time.monotonic() - started)


def _compared(comparison: _Comparison, facts: Facts) -> _Comparison:
    """Return a comparison on meshes that have the axes of a step."""
    mesh = comparison.code.target.mesh
    used = [each.name for each in mesh.axes if each.size > 1 and each.name in facts.axes]
    single = {axis for axes in single_slices(comparison.one.program.jaxpr) for axis in axes}
    axes = [axis for axis in used if axis not in single]
    comparison.compare(axes, facts)
    untried = {axis: ONE_SLICE for axis in used if axis in single} | comparison.untried
    comparison = _wider(comparison, axes, facts)
    comparison.untried = untried
    return comparison


def _with_room(comparison: _Comparison, facts: Facts, until: float) -> Iterator[_Comparison]:
    """Yield a comparison without dropped tokens: one that is the same, or else the first tried."""

    def noting(noted: room.Noted) -> Code:
        changed: Any = comparison.code
        made: Code = replace(changed, noted=noted)
        return made

    def traced(noted: room.Noted) -> Trial | None:
        with contextlib.suppress(Exception):  # code whose numbers have changed may raise any
            return noting(noted).small(comparison.sizes, {})
        return None

    different: list[_Comparison] = []
    for noted, one in room.with_room(comparison.one.program.jaxpr, traced):
        comparison.tell("running it with room for all tokens")
        again = comparison.anew(comparison.asked)
        again.code, again.one = noting(noted), one
        again.capacities = tuple(dict.fromkeys(map(room.line_of, noted.larger)))
        again = _compared(again, facts)
        if again.numbers(0.0).verdict == "same":
            yield again
            return
        different += [again] if again.found else []
        if time.monotonic() > until:
            break
    yield from different[:1]


#: What computes in floats of a width that is its own, and shows nothing in wider ones.
_OWN_WIDTHS = frozenset((KERNEL, "ffi_call", "pure_callback", "io_callback"))


#: Rounding may grow to such an error where a step divides by what is small: float64 tells.
_GROWN = 0.01


def _wider(comparison: _Comparison, axes: Sequence[str], facts: Facts) -> _Comparison:
    """Return a comparison in float64 where that tells another thing, or else the same one.

    It shows what float32 hides, and that a small difference was rounding.
    """
    names = {eqn.primitive.name for eqn in equations_of(comparison.one.program.jaxpr.jaxpr)}
    is_small = bool(comparison.found) and max(e.error for e in comparison.found) < _GROWN
    is_wide = comparison.width == runs.WIDE
    if is_wide or names & _OWN_WIDTHS or not (comparison.is_same or is_small):
        return comparison
    seeds = comparison.asked.seeds if is_small else 1
    again = comparison.anew(replace(comparison.asked, width=runs.WIDE.name, seeds=seeds))
    again.compare(axes, facts)
    if is_small:
        return again if again.meshes and not again.found else comparison
    return again if again.found else comparison


def need_devices() -> None:
    """Raise a `ShardspecError` where JAX has too few CPU devices."""
    found = len(jax.devices("cpu"))
    if found < DEVICES:
        message = f"JAX has {found} CPU devices, and {DEVICES} are needed to compare numbers"
        help = f"set `XLA_FLAGS=--xla_force_host_platform_device_count={DEVICES}` before it starts"
        raise ShardspecError([Diagnostic(codes.NOT_COMPILED, message, help=help)])


class _Expected(NamedTuple):
    """What one device computes of a set of values, call by call.

    Attributes:
      noisy: of the same values, off by rounding.
    """

    values: list[Any]
    one: list[list[runs.Result]]
    noisy: list[list[runs.Result]]


class _Compared(NamedTuple):
    """The step on a mesh, and what differs there.

    Attributes:
      seed: of the values that showed it.
    """

    trial: Trial
    found: list[OutputDifference]
    seed: int = 0


@dataclass
class _Comparison:
    """A step on one device, and on meshes.

    Attributes:
      meshes: those that were compared.
      found: what differs, on the first mesh where something does.
      axes: the mesh axes at fault.
      untried: why meshes could not be tried, by axis.
      capacities: the lines whose numbers are larger here, so that no token is dropped.
    """

    code: Code
    sizes: SmallSizes
    one: Trial
    asked: Asked
    tell: Callable[[str], None]
    meshes: list[Sizes] = field(default_factory=list)
    found: list[OutputDifference] = field(default_factory=list)
    axes: list[tuple[str, ...]] = field(default_factory=list)
    first: FirstDifference | None = None
    untried: dict[str, str] = field(default_factory=dict)
    device_random: dict[Place, None] = field(default_factory=dict)
    capacities: tuple[str, ...] = ()
    _mesh: Sizes = field(default_factory=dict)
    _expected: dict[int, _Expected] = field(default_factory=dict)
    _kept: dict[object, object] = field(default_factory=dict)
    _runner: runs.Runner | None = None

    def anew(self, asked: Asked) -> _Comparison:
        """Return the same before it is compared, as asked."""
        made = _Comparison(self.code, self.sizes, self.one, asked, self.tell)
        made.capacities = self.capacities
        return made

    @property
    def width(self) -> np.dtype[Any]:
        """Return the dtype of floats."""
        return np.dtype(self.asked.width)

    @property
    def unstable(self) -> tuple[str, ...]:
        """Return the outputs that no set of values makes finite on one device: not compared."""
        paths = self.one.program.results
        ours = [each.one[0] for each in self._expected.values()]
        return tuple(
            path
            for at, path in enumerate(paths)
            if ours and not any(runs.is_comparable(each[at].value) for each in ours)
        )

    @property
    def is_same(self) -> bool:
        """Say whether the step was compared in floats that hide small differences, and is equal."""
        return bool(self.meshes) and not self.found and self.width != runs.WIDE

    def compare(self, axes: Sequence[str], facts: Facts) -> None:
        """Compare on meshes that have each of these axes once above 1."""
        if not axes:
            return
        self.tell("running it on one device")
        try:
            self._run_on_one()
        except _FAILURES as error:
            self.untried = dict.fromkeys(axes, f"it does not run on one device: {_reason(error)}")
            return
        long = [each.name for each in self.code.target.mesh.axes if each.size % (2 * _SHORT) == 0]
        for mesh in meshes_of(axes, facts.rings, long):
            found = self._tried(mesh)
            if found:
                self.found, self._mesh = found, mesh
                return

    def numbers(self, seconds: float) -> Numbers:
        """Return what was found, as it is printed."""
        meshes = (((n, size) for n, size in each.items() if size > 1) for each in self.meshes)
        return Numbers(
            self.code.name,
            self.code.target.name,
            len(self.one.program.results),
            self.asked.width,
            self.asked.seeds,
            tuple(map(tuple, meshes)),
            tuple(sorted(self.found, key=lambda each: (each.call, -each.error))),
            tuple(self.axes),
            self.first,
            tuple(self.untried.items()),
            tuple(sorted(self.sizes.sizes.items())),
            tuple(map(str, self.one.written)),
            self.unstable,
            tuple(self.device_random),
            capacities=self.capacities,
            seconds=seconds,
        )

    def _run_on_one(self) -> None:
        self._runner = runs.Runner(self.one, self.width)
        for seed in range(self.asked.seeds):
            self._expect(seed)
        self.device_random |= self._runner.rerun.device_random

    def _expect(self, seed: int) -> _Expected:
        """Return what one device computes of a set of values, and of the same with rounding."""
        if seed not in self._expected:
            runner = self._runner
            assert runner is not None, "one device runs first"
            scale = _SCALES[seed % len(_SCALES)]
            values = values_of(self.one, seed, self.width, scale)
            noisy = runner(runs.reordered(values, seed))
            self._expected[seed] = _Expected(values, runner(values), noisy)
        return self._expected[seed]

    def _tried(self, mesh: Sizes) -> list[OutputDifference]:
        """Return what differs on a mesh; note a mesh that cannot be tried."""
        long = [name for name, size in mesh.items() if size > 1]
        try:
            found = self._on(mesh).found
        except (*_FAILURES, _UntriedError) as error:
            if len(long) > 1:
                short = dict.fromkeys(long, _SHORT)
                if short != mesh and self._runs(short):
                    return self._tried(short)
                return next(filter(None, map(self._tried, self._alone(mesh))), [])
            self.untried[long[0]] = _reason(error)
            return []
        self.meshes.append(mesh)
        return found

    def _alone(self, mesh: Sizes) -> Iterator[Sizes]:
        for name, size in mesh.items():
            if size > 1:
                yield {name: size}

    def _on(self, mesh: Sizes) -> _Compared:
        """Return what differs on a mesh; each mesh is run once."""
        return self._run_on(*mesh.items())

    @kept
    def _run_on(self, *sizes: tuple[str, int]) -> _Compared:
        text = " ".join(f"{name}={size}" for name, size in sizes if size > 1)
        self.tell(f"running it on {text}")
        trial = self.code.small(self.sizes, dict(sizes))
        self._refuse_other_model(trial)
        runner = runs.Runner(trial, self.width)
        for seed in range(self.asked.seeds):
            found = self._of_seed(runner, trial, seed)
            again = self._of_seed(runner, trial, seed + _AGAIN) if found else {}
            both = [each for key, each in found.items() if key in again]
            if both:
                return _Compared(trial, both, seed)
        return _Compared(trial, [])

    def _of_seed(
        self, runner: runs.Runner, trial: Trial, seed: int
    ) -> dict[tuple[str, int], OutputDifference]:
        expected = self._expect(seed)
        found = runner(_shaped(expected.values, trial))
        told = runs.differences(
            self.one.program, expected.values, expected.one, found, expected.noisy
        )
        return {(each.path, each.call): each for each in told}

    def _refuse_other_model(self, trial: Trial) -> None:
        pairs = zip(self.one.program.leaves, trial.program.leaves, strict=False)
        same = all(math.prod(one.shape) == math.prod(other.shape) for one, other in pairs)
        if not same or len(self.one.program.leaves) != len(trial.program.leaves):
            raise _UntriedError("the step makes another model there: its arrays have other sizes")

    def blame(self) -> None:
        """Find the axes that differ alone, or the fewest that do together; then the first line."""
        mesh = self._mesh
        long = [name for name, size in mesh.items() if size > 1]
        for count in range(1, len(long)):
            for names in itertools.combinations(long, count):
                part = {name: mesh[name] for name in names}
                is_known = any(set(each) <= set(names) for each in self.axes)
                if not is_known and self._differs(part):
                    self.axes.append(names)
            if self.axes:
                break
        self.axes = self.axes or [tuple(long)]
        names = self.axes[0]
        self.tell("looking for the first value that differs")
        self._look(names, {name: mesh[name] for name in names})

    def _runs(self, mesh: Sizes) -> _Compared | None:
        with contextlib.suppress(*_FAILURES, _UntriedError):
            return self._on(mesh)
        return None

    def _differs(self, mesh: Sizes) -> bool:
        compared = self._runs(mesh)
        return compared is not None and bool(compared.found)

    def _look(self, names: Sequence[str], mesh: Sizes) -> None:
        trial, found, seed = self._on(mesh)
        call = min(each.call for each in found) - 1
        places = {path: at for at, path in enumerate(self.one.program.results)}
        wrong = [places[each.path] for each in found if each.call == call + 1]
        for watched in dict.fromkeys((0, call)):  # what is rounding at first may grow
            one, many = (self._watched(each, watched, seed) for each in (self.one, trial))
            self.first = first_difference(one, many, names, wrong)
            if self.first is not None:
                return

    def _watched(self, trial: Trial, call: int, seed: int) -> Watched:
        runner = runs.Runner(trial, self.width, is_watched=True)
        marks, values = runner.watched(_shaped(self._expect(seed).values, trial), call)
        return Watched(marks, values, runner.rerun.results, runner.rerun.ends)


def meshes_of(
    axes: Sequence[str], rings: Mapping[str, None], long: Collection[str] = ()
) -> Iterator[Sizes]:
    """Yield sizes of mesh axes that fit the devices, each axis in one of them at least.

    An axis is 2, and one that arrays move along is 4: on a ring of two both directions are one.
    Code that takes the size of another axis is right where both are equal. So one of two axes is 4,
    and of three, each has another size on a second mesh.

    Args:
      long: axes that may be 4.

    >>> list(meshes_of(["data", "seq", "tensor"], {"seq": None}))
    [{'data': 2, 'seq': 4}, {'tensor': 2}]
    >>> list(meshes_of(["data", "tensor"], {}, ["tensor"]))
    [{'data': 2, 'tensor': 4}]
    >>> list(meshes_of(["data", "fsdp", "tensor"], {}, ["tensor"]))
    [{'data': 2, 'fsdp': 2, 'tensor': 2}, {'data': 2, 'tensor': 4}]
    """
    now: Sizes = {}
    for axis in axes:
        size = 2 * _SHORT if axis in rings else _SHORT
        if math.prod(now.values()) * size > DEVICES:
            yield from _unequal(now, long)
            now = {}
        now[axis] = size
    yield from _unequal(now, long)


def _unequal(mesh: Sizes, long: Collection[str]) -> Iterator[Sizes]:
    """Yield a mesh with a longer axis, or both where that is too large; or the mesh."""
    equal = [axis for axis, size in mesh.items() if size == _SHORT]
    longer = next((axis for axis in reversed(equal) if axis in long), None)
    if not equal[1:] or longer is None:
        yield from (mesh,) if mesh else ()
        return
    made = mesh | {longer: 2 * _SHORT}
    while math.prod(made.values()) > DEVICES:
        made.pop(next(axis for axis in reversed(equal) if axis in made and axis != longer))
    if made.keys() != mesh.keys():
        yield mesh
    yield {axis: made[axis] for axis in mesh if axis in made}


def _shaped(values: Sequence[Any], trial: Trial) -> list[Any]:
    """Return values in the shapes of a trial's arguments, which have as many elements."""
    return [
        value if value.shape == leaf.shape else value.reshape(leaf.shape)
        for value, leaf in zip(values, trial.program.leaves, strict=True)
    ]


def _reason(error: Exception) -> str:
    if isinstance(error, ShardspecError):
        found = error.diagnostics[0]
        where = f" at {found.labels[0].span.place}" if found.labels else ""
        return f"{found.message}{where}"
    return str(error).strip().partition("\n")[0][:_LONGEST]
