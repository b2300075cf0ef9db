"""Logical axes that code asks for by name: activations, batches, single shardings.

There is no array in the spec behind them, so everything is checked here: names against the
spec, their number against the rank, sizes against the mesh axes. A size is not held against the
one that `axes` states: the batch of an evaluation, or the one position of a decoding step, is as
good as that of training.

Inside `shard_map` code sees one shard. Along the manual axes nothing is left to divide, so there
they count as axes of size 1: they still take their dimension, and split it no further.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
from shardspec.ir.grouping import counted
from shardspec.ir.mesh import Mesh
from shardspec.ir.param import LogicalAxes, Param
from shardspec.ir.plan import Dims, Origin, ParamSharding, ShardingPlan
from shardspec.jax_backend.arguments import kind_of, names_given, sizes_given
from shardspec.jax_backend.arrays import dtype_of, refuse_uncountable
from shardspec.jax_backend.faults import raise_errors
from shardspec.lints.context import Context
from shardspec.resolve.resolver import ArrayResolver, array_resolver

Names = str | Sequence[str | None]
Shape = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class ActivationResolver:
    """A spec and a target, asked for one sharding at a time; answers are remembered."""

    arrays: ArrayResolver
    _known: dict[object, Dims] = field(default_factory=dict, repr=False)
    _inside: dict[frozenset[str], ArrayResolver] = field(default_factory=dict, repr=False)

    def named(self, activation: str) -> LogicalAxes:
        """Return the logical axes of an entry of the spec's `activations`.

        Raises:
          ShardspecError: there is none of this name.
        """
        self.refuse_unnamed(activation)
        entries = {entry.name: entry for entry in self.arrays.spec.activations}
        if activation not in entries:
            self._raise(_unknown_activation(activation, tuple(entries)))
        return entries[activation].logical_axes

    def refuse_unnamed(self, activation: Any) -> None:
        """Raise TypeError for what cannot be the name of an activation."""
        if not isinstance(activation, str):
            raise TypeError(f"an activation is named by a string, not by {kind_of(activation)}")

    def text(self, activation: str) -> str:
        """Return the logical axes of an entry of the spec's `activations` as it spells them."""
        return _text(self.named(activation))

    def dims(
        self,
        names: Names,
        shape: Sequence[Any] | None = None,
        *,
        manual: frozenset[str] = frozenset(),
        name: str | None = None,
        array: Any = None,
    ) -> Dims:
        """Return the sharding of an array with these names.

        Args:
          shape: None for the sizes that the spec's `axes` state, where they do; so does a size
            that is a symbol, as in `jax.export`.
          manual: the mesh axes along which `shape` is that of one shard.
          name: what a message calls the array.
          array: what a message reads the dtype from.
        """
        asked = names_given(names)
        key = (asked, None if shape is None else sizes_given(shape), manual)
        found = self._known.get(key)
        if found is None:
            axes = axes_of(asked)
            label = _Label(name or "", "f32" if array is None else dtype_of(array))
            self._check_names(axes, key[1], label)
            found = self._known[key] = self._checked(axes, key[1], manual, label)
        return found

    def _check_names(self, axes: LogicalAxes, shape: Shape | None, label: _Label) -> None:
        known = self._known_axes()
        for name in dict.fromkeys(axes):
            if name is not None and name not in known:
                found = _unknown_axis(name, axes, known, label)
                activations = {each.name for each in self.arrays.spec.activations}
                if axes == (name,) and name in activations:
                    help = f'that is an activation: `activation="{name}"`'
                    found = replace(found, help=help)
                self._raise(found)
        if shape is not None and len(shape) != len(axes):
            self._raise(_wrong_rank(axes, shape, label))

    def _checked(
        self, axes: LogicalAxes, shape: Shape | None, manual: frozenset[str], label: _Label
    ) -> Dims:
        arrays = self._arrays_inside(manual)
        stated = self._stated(axes)
        sizes = tuple(
            size if isinstance(size, int) else known
            for size, known in zip(stated if shape is None else shape, stated, strict=True)
        )
        shown = tuple(size or 1 for size in sizes)
        refuse_uncountable(Param(_path(axes, label), shown, label.dtype))
        dims = arrays.dims(sizes, axes)
        self._raise_uneven(axes, dims, arrays, label)
        return dims

    def _arrays_inside(self, manual: frozenset[str]) -> ArrayResolver:
        """Return the resolver for code that sees one shard along these mesh axes."""
        if not manual:
            return self.arrays
        found = self._inside.get(manual)
        if found is None:
            axes = self.arrays.target.mesh.axes
            mesh = Mesh(tuple(replace(a, size=1) if a.name in manual else a for a in axes))
            target = replace(self.arrays.target, mesh=mesh)
            found = self._inside[manual] = array_resolver(self.arrays.spec, target)
        return found

    def _raise_uneven(
        self, axes: LogicalAxes, dims: Dims, arrays: ArrayResolver, label: _Label
    ) -> None:
        """Raise where a name stands twice, or mesh axes do not divide a size."""
        spec = arrays.spec
        suspects = {REPEATED_AXIS, CUT_UNIT, INDIVISIBLE}
        if spec.policy.indivisible == "keep":
            suspects.remove(INDIVISIBLE)
        sizes = tuple(dim.size or 0 for dim in dims)
        sharding = ParamSharding(Param(_path(axes, label), sizes, label.dtype), dims, Origin.ARRAY)
        plan = ShardingPlan(spec, arrays.target, (sharding,))
        found = (d for d in pipeline.findings(spec, [plan]) if d.code in suspects)
        raise_errors(_seen_inside(d, arrays.target.mesh, self.arrays.target.mesh) for d in found)

    def _stated(self, axes: LogicalAxes) -> tuple[int | None, ...]:
        sizes = {axis.name: axis.size for axis in self.arrays.spec.logical_axes}
        return tuple(sizes.get(name) if name else None for name in axes)

    def _known_axes(self) -> frozenset[str]:
        context = Context(self.arrays.spec, ())
        return context.axes_in_rules() | context.axes_in_use() | context.axes.keys()

    def _raise(self, diagnostic: Diagnostic) -> None:
        raise_errors(pipeline.leveled(self.arrays.spec, [diagnostic]))


@dataclass(frozen=True, slots=True)
class _Label:
    """What a message calls an array, which has no path."""

    name: str
    dtype: str

    def __str__(self) -> str:
        return f"`{self.name}`" if self.name else "the array"


def _seen_inside(diagnostic: Diagnostic, inside: Mesh, whole: Mesh) -> Diagnostic:
    """Return a finding with the mesh axes along which code sees one shard."""
    manual = [axis.name for axis in whole.axes if inside.sizes[axis.name] != axis.size]
    if not manual:
        return diagnostic
    note = f"inside `shard_map` over {listed(manual)}: sizes are those of one shard"
    return replace(diagnostic, notes=(*diagnostic.notes, note))


def axes_of(names: Names) -> LogicalAxes:
    """Return one name per dimension; `_` is a dimension without a name.

    >>> axes_of("batch length _")
    ('batch', 'length', None)
    """
    given = names_given(names)
    entries = given.replace(",", " ").split() if isinstance(given, str) else given
    return tuple(None if entry == "_" else entry for entry in entries)


def _path(axes: LogicalAxes, label: _Label) -> str:
    """Return what stands in a message for the path of the array."""
    return f"{label.name} [{_text(axes)}]" if label.name else _text(axes)


def _text(axes: LogicalAxes) -> str:
    return " ".join(name or "_" for name in axes)


def _unknown_activation(name: str, known: Sequence[str]) -> Diagnostic:
    offer = f"the spec names {listed(known)}" if known else "the spec has no `activations`"
    help = did_you_mean(name, known) or f"{offer}; add `{name}: batch length embed`, say"
    return Diagnostic(UNKNOWN_ACTIVATION, f"no activation is called `{name}`", help=help)


def _unknown_axis(name: str, axes: LogicalAxes, known: frozenset[str], label: _Label) -> Diagnostic:
    whose = f" of {label}" if label.name else ""
    return Diagnostic(
        UNKNOWN_LOGICAL_AXIS,
        f"unknown logical axis `{name}` in `{_text(axes)}`{whose}",
        help=did_you_mean(name, known) or f"known here: {listed(sorted(known), limit=16)}",
    )


def _wrong_rank(axes: LogicalAxes, shape: Shape, label: _Label) -> Diagnostic:
    return Diagnostic(
        RANK_MISMATCH,
        f"`{_text(axes)}` names {counted(len(axes), 'dimension')},"
        f" {label} {list(shape)} has {len(shape)}",
        help="give one name per dimension, `_` for one without a name",
    )
