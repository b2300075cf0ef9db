"""A spec with small sizes, on a small mesh of CPU devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardspec.ir.spec import LogicalAxis, Mesh, Spec, Target
from shardspec.jax_backend.numbers.literals import Written
from shardspec.jax_backend.numbers.sizes import SmallSizes
from shardspec.jax_backend.step.trace import Program


@dataclass(frozen=True, slots=True)
class Trial:
    """A step, traced on a mesh.

    Attributes:
      target: has the mesh.
      written: the sizes in code that became small.
      stated: values for its arguments, where the user gives some; None for others.
    """

    spec: Spec
    target: Target
    program: Program
    written: tuple[Written, ...] = ()
    stated: tuple[Any, ...] = ()


def small_spec(
    spec: Spec,
    target: Target,
    sizes: SmallSizes,
    mesh: Mapping[str, int],
    *,
    has_sizes: bool = True,
) -> tuple[Spec, Target]:
    """Return a spec with small sizes, and a small target in place of one: a mesh of CPUs."""
    axes = tuple(
        replace(each, size=mesh.get(each.name, 1), submesh=None, auto=False, over=())
        for each in target.mesh.axes
    )
    small = Target(target.name, Mesh(axes, target.mesh.wholes))
    logical = tuple(_small_axis(each, sizes, has_sizes) for each in spec.logical_axes)
    policy = replace(spec.policy, whole_below=None, whole_below_span=None)
    return (
        replace(
            spec,
            logical_axes=logical,
            targets=tuple(small if each is target else each for each in spec.targets),
            policy=policy,
            params=(),
            memory=(),
            coverage=None,
            step=None,
        ),
        small,
    )


def _small_axis(axis: LogicalAxis, sizes: SmallSizes, has_size: bool) -> LogicalAxis:
    """Return an axis with its small size; what it is made of stays where that still fits."""
    size = axis.size if has_size else None
    if size is not None:
        size = sizes.named(size, axis.name) or size
    unit = sizes.of(axis.unit)
    if size is None or size % unit:
        unit = 1
    parts = axis.parts
    if parts is not None:
        small = tuple((name, sizes.of(each)) for name, each in parts.sizes)
        parts = parts._replace(sizes=small, unit=sizes.of(parts.unit))
        parts = parts if parts.size == size else None
    return replace(axis, size=size, unit=unit, min_shard=1, parts=parts)
