"""Run a traced step on the devices that are here, twice in a row, on values of ours.

What two runs return is compared here as well: beyond rounding, or not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from shardspec.jax_backend.mesh import mesh_for
from shardspec.jax_backend.numbers.rerun import Mark, Rerun
from shardspec.jax_backend.numbers.small import Trial
from shardspec.jax_backend.numbers.values import uses_of, value_for
from shardspec.programs.numbers import OutputDifference

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
