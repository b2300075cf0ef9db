"""Logical axes that code asks for by name: activations, batches, single shardings.

There is no array in the spec behind them, so everything is checked here: names against the
spec, their number against the rank, sizes against the mesh axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.codes import (
    CUT_UNIT,
    INDIVISIBLE,
    RANK_MISMATCH,
    REPEATED_AXIS,
    UNKNOWN_ACTIVATION,
    UNKNOWN_LOGICAL_AXIS,
)
from shardspec.diagnostics.suggest import did_you_mean, listed
from shardspec.ir.param import LogicalAxes, Param
from shardspec.ir.plan import DimSharding, Origin, ParamSharding, ShardingPlan
from shardspec.jax_backend.faults import raise_errors
from shardspec.lints.context import Context
from shardspec.resolve.resolver import ArrayResolver

Names = str | Sequence[str | None]
Dims = tuple[DimSharding, ...]


@dataclass(frozen=True, slots=True)
class ActivationResolver:
    """A spec and a target, asked for one sharding at a time; answers are remembered."""

    arrays: ArrayResolver
    _known: dict[object, Dims] = field(default_factory=dict, repr=False)

    def named(self, activation: str) -> LogicalAxes:
        """Return the logical axes of an entry of the spec's `activations`."""
        entries = {entry.name: entry for entry in self.arrays.spec.activations}
        if activation not in entries:
            self._raise(_unknown_activation(activation, tuple(entries)))
        return entries[activation].logical_axes

    def dims(self, names: Names, shape: Sequence[int] | None = None) -> Dims:
        """Return the sharding of an array with these names.

        Args:
          shape: None for the sizes that the spec's `axes` state, where they do.
        """
        asked = names if isinstance(names, str) else tuple(names)
        key = (asked, None if shape is None else tuple(shape))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._checked(axes_of(asked), key[1])
        return found

    def _checked(self, axes: LogicalAxes, shape: tuple[int, ...] | None) -> Dims:
        known = self._known_axes()
        for name in dict.fromkeys(axes):
            if name is not None and name not in known:
                self._raise(_unknown_axis(name, axes, known))
        if shape is not None and len(shape) != len(axes):
            self._raise(_wrong_rank(axes, shape))
        dims = self.arrays.dims(self._stated(axes) if shape is None else shape, axes)
        self._raise_uneven(axes, dims)
        return dims

    def _raise_uneven(self, axes: LogicalAxes, dims: Dims) -> None:
        """Raise where a name stands twice, or mesh axes do not divide a size."""
        spec = self.arrays.spec
        suspects = {REPEATED_AXIS, CUT_UNIT, INDIVISIBLE}
        if spec.policy.indivisible == "keep":
            suspects.remove(INDIVISIBLE)
        sizes = tuple(dim.size or 0 for dim in dims)
        sharding = ParamSharding(Param(_text(axes), sizes), dims, Origin.ARRAY)
        plan = ShardingPlan(spec, self.arrays.target, (sharding,))
        raise_errors(d for d in pipeline.findings(spec, [plan]) if d.code in suspects)

    def _stated(self, axes: LogicalAxes) -> tuple[int | None, ...]:
        sizes = {axis.name: axis.size for axis in self.arrays.spec.logical_axes}
        return tuple(sizes.get(name) if name else None for name in axes)

    def _known_axes(self) -> frozenset[str]:
        context = Context(self.arrays.spec, ())
        return context.axes_in_rules() | context.axes_in_use() | context.axes.keys()

    def _raise(self, diagnostic: Diagnostic) -> None:
        raise_errors(pipeline.leveled(self.arrays.spec, [diagnostic]))


def axes_of(names: Names) -> LogicalAxes:
    """Return one name per dimension; `_` is a dimension without a name.

    >>> axes_of("batch length _")
    ('batch', 'length', None)
    """
    entries = names.replace(",", " ").split() if isinstance(names, str) else names
    for entry in entries:
        if entry is not None and not isinstance(entry, str):
            raise TypeError(f"a logical axis is a string or None, not {entry!r}")
    return tuple(None if entry == "_" else entry for entry in entries)


def _text(axes: LogicalAxes) -> str:
    return " ".join(name or "_" for name in axes)


def _unknown_activation(name: str, known: Sequence[str]) -> Diagnostic:
    offer = f"the spec names {listed(known)}" if known else "the spec has no `activations`"
    help = did_you_mean(name, known) or f"{offer}; add `{name}: batch length embed`, say"
    return Diagnostic(UNKNOWN_ACTIVATION, f"no activation is called `{name}`", help=help)


def _unknown_axis(name: str, axes: LogicalAxes, known: frozenset[str]) -> Diagnostic:
    return Diagnostic(
        UNKNOWN_LOGICAL_AXIS,
        f"unknown logical axis `{name}` in `{_text(axes)}`",
        help=did_you_mean(name, known) or f"known here: {listed(sorted(known), limit=16)}",
    )


def _wrong_rank(axes: LogicalAxes, shape: tuple[int, ...]) -> Diagnostic:
    return Diagnostic(
        RANK_MISMATCH,
        f"`{_text(axes)}` names {len(axes)} dimensions, the array {list(shape)} has {len(shape)}",
        help="give one name per dimension, `_` for one without a name",
    )
