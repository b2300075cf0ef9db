"""Run a traced step on the devices that are here, twice in a row, on values of ours.

What two runs return is compared here as well: beyond rounding, or not.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from shardspec.jax_backend.numbers.rerun import Mark, Rerun
from shardspec.jax_backend.numbers.small import Trial
from shardspec.jax_backend.step.trace import Program
from shardspec.jax_backend.target_devices import mesh_for
from shardspec.programs.numbers import OutputDifference

#: Floats that show what is rounding in others.
WIDE = np.dtype("float64")
#: How often a step is called, each call with the state that the one before returned.
CALLS = 2
#: A program that runs once is compiled in a hurry: fewer passes, and fusions without MLIR.
_QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}


@functools.cache
def _quick() -> dict[str, Any]:
    """Return the options of a quick compile that this jaxlib has."""

    def is_known(option: str) -> bool:
        with contextlib.suppress(RuntimeError):
            jax.jit(lambda: 0, compiler_options={option: _QUICK[option]})()
            return True
        return False

    return {option: value for option, value in _QUICK.items() if is_known(option)}


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
        self._jitted = jax.jit(lambda leaves: self.rerun(closed, leaves), compiler_options=_quick())

    def __call__(self, values: Sequence[Any]) -> list[list[Result]]:
        """Return what each call computes, as arrays of this host."""
        return [[_here(each) for each in outs] for outs, _ in self._called(values, CALLS)]

    def watched(self, values: Sequence[Any], call: int) -> tuple[list[Mark], list[Any]]:
        """Return the marks of a call, and their values.

        Args:
          call: 0 for the first.
        """
        *_, (_, seen) = self._called(values, call + 1)
        return list(self.rerun.marks), [_here(each).value for each in seen]

    def _called(self, values: Sequence[Any], calls: int) -> list[tuple[list[Any], list[Any]]]:
        """Return what several calls in a row compute, and their watched values."""
        given, found = list(values), []
        with jax.set_mesh(self.rerun.mesh), self._is_wide():
            for _ in range(calls):
                found.append(self._jitted(self._placed(given)))
                for result, argument in self.trial.program.passed_on:
                    given[argument] = found[-1][0][result]
        return found

    def _is_wide(self) -> contextlib.AbstractContextManager[Any]:
        """Let JAX compute with numbers of 64 bits; the program is traced without."""
        is_wide: Any = jax.enable_x64
        return is_wide(True) if self.width == WIDE else contextlib.nullcontext()

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
        has_nan = bool(np.issubdtype(own.dtype, np.inexact))
        apart |= first is not own and not np.array_equal(first, own, equal_nan=has_nan)
    return Result(np.asarray(value), apart)


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
#: What is rounding in float64, as a share of a value or of what a step changes: two right ways to
#: compute it may differ by what keeps a divisor from being zero.
_LEAST_WIDE = 1e-6
#: A value whose rounding in float64 is a larger share of it is itself what rounding left.
_ALL_ROUNDING = 1e-7
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
    program: Program,
    values: Sequence[Any],
    one: Sequence[Sequence[Result]],
    many: Sequence[Sequence[Result]],
    noisy: Sequence[Sequence[Result]],
) -> Iterator[OutputDifference]:
    """Yield the outputs that differ beyond rounding, call by call.

    Args:
      values: that the first call is given.
      one: of each call on one device, and `many` sharded.
      noisy: of a run on one device whose inputs are off by rounding.
    """
    given = list(values)
    for call, (expected, found) in enumerate(zip(one, many, strict=True)):
        before = {result: given[argument] for result, argument in program.passed_on}
        for at, path in enumerate(program.results):
            own = expected[at].value
            others = [noisy[call][at].value]
            error = difference(own, found[at].value, others, _change(own, before.get(at)))
            apart = found[at].devices_differ
            if error is not None or apart:
                off, share = error or (0.0, 0.0)
                ratio = ratio_of(own, found[at].value) if error else None
                yield OutputDifference(path, call + 1, off, share, ratio, apart)
        for result, argument in program.passed_on:
            given[argument] = expected[result].value


def _change(value: Any, before: Any) -> float | None:
    """Return by how much a step changes an array at the most; None of one that is new."""
    if not np.issubdtype(value.dtype, np.inexact) or np.shape(before) != value.shape:
        return None
    return _far(value, np.asarray(before, value.dtype), np.isfinite(value)) or None


def difference(
    expected: Any, found: Any, others: Sequence[Any], change: float | None = None
) -> tuple[float, float] | None:
    """Return by how much two arrays differ, and the rounding; None where it is no more than that.

    Both are shares of the largest value; of integers, of the elements.

    Args:
      others: what the first is with rounding.
      change: by how much the step changes the array: what a step adds to a weight is small.
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
    limits = np.finfo(expected.dtype)
    least = max(_LEAST * float(limits.eps) * scale, float(limits.tiny))
    if expected.dtype == WIDE:
        least = max(least, _LEAST_WIDE * (scale if change is None else change))
        if noise > _ALL_ROUNDING * scale:
            return None
    if off <= max(least, _NOISE * noise):
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
    both = np.isfinite(expected) & np.isfinite(found)
    expected, found = expected[both], found[both]
    large = np.abs(expected) > 1e-2 * np.abs(expected).max(initial=0.0)
    if not large.any():
        return None
    ratios = found[large] / expected[large]
    middle = float(np.median(ratios))
    is_one = abs(middle - 1) < 1e-3 or np.abs(ratios - middle).max() > 1e-2 * abs(middle)
    return None if is_one else middle
