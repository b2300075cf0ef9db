"""Which names an array's dimensions have: overrides, then its own, then `params:`.

The first source that says anything decides. A count of names that is not the array's rank is
kept as a mismatch and never falls through to the next source.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardspec.ir.param import LogicalAxes, Param
from shardspec.ir.plan import Origin
from shardspec.ir.spec import Override, PathRule, ScanRule, Spec
from shardspec.resolve.match import PathMatcher, path_matcher


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of one array, and who gave them.

    Attributes:
      logical_axes: one per dimension, or None where nothing names the array or names it wrongly.
      mismatch: the names that were given, where their count is not the array's rank.
    """

    logical_axes: LogicalAxes | None
    origin: Origin = Origin.NONE
    matched: PathRule | Override | None = None
    scan: ScanRule | None = None
    mismatch: LogicalAxes | None = None


@dataclass(frozen=True, slots=True)
class NameSource:
    """The path patterns of a spec, made ready to match."""

    spec: Spec
    overrides: PathMatcher = field(repr=False)
    path_rules: PathMatcher = field(repr=False)
    scans: PathMatcher = field(repr=False)

    def name(self, param: Param) -> Naming:
        """Return the names of one array."""
        index = self.overrides.first_match(param.path) if self.spec.overrides else None
        if index is not None:
            return self.given_by(self.spec.overrides[index], param)
        if param.logical_axes is not None:
            return _checked(param, param.logical_axes, Origin.ARRAY)
        index = self.path_rules.first_match(param.path) if self.spec.path_rules else None
        if index is None:
            return Naming((), Origin.NONE) if param.rank == 0 else Naming(None)
        return self.given_by(self.spec.path_rules[index], param)

    def given_by(self, entry: PathRule | Override, param: Param) -> Naming:
        """Return the names that one entry of the spec gives an array."""
        origin = Origin.OVERRIDE if isinstance(entry, Override) else Origin.PARAMS
        if entry.logical_axes is None:
            return Naming(None, origin, entry)
        return self._fitted(param, entry.logical_axes, origin, entry)

    @property
    def needs_paths(self) -> bool:
        """Say whether an array that carries its own names still depends on its path."""
        return bool(self.spec.overrides)

    def _fitted(
        self, param: Param, names: LogicalAxes, origin: Origin, matched: PathRule | Override
    ) -> Naming:
        """Return `names` with the stacked axes of a scanned array put in."""
        if len(names) == param.rank or not self.spec.scans:
            return _checked(param, names, origin, matched)
        index = self.scans.first_match(param.path)
        if index is None:
            return _checked(param, names, origin, matched)
        scan = self.spec.scans[index]
        whole = stacked(names, scan.axes)
        if whole is None:
            given = (*names, *(axis for axis, _ in scan.axes))
            return Naming(None, origin, matched, scan, mismatch=given)
        return _checked(param, whole, origin, matched, scan)


def name_source(spec: Spec) -> NameSource:
    """Return the patterns of `spec`, compiled."""
    return NameSource(
        spec,
        path_matcher(tuple(override.pattern for override in spec.overrides)),
        path_matcher(tuple(rule.pattern for rule in spec.path_rules)),
        path_matcher(tuple(scan.pattern for scan in spec.scans)),
    )


def stacked(names: LogicalAxes, axes: tuple[tuple[str, int], ...]) -> LogicalAxes | None:
    """Return `names` with each scan axis at its position in the whole array, None if it has none.

    Negative positions count from the end of the stacked array, as in `jax.vmap`.

    >>> stacked(("embed", "mlp"), (("layers", 0),))
    ('layers', 'embed', 'mlp')
    >>> stacked(("embed", "mlp"), (("layers", -1),))
    ('embed', 'mlp', 'layers')
    """
    rank = len(names) + len(axes)
    if not all(-rank <= position < rank for _, position in axes):
        return None
    placed = sorted((position % rank, axis) for axis, position in axes)
    result = list(names)
    for position, axis in placed:
        result.insert(position, axis)
    return tuple(result)


def _checked(
    param: Param,
    names: LogicalAxes,
    origin: Origin,
    matched: PathRule | Override | None = None,
    scan: ScanRule | None = None,
) -> Naming:
    if len(names) == param.rank:
        return Naming(names, origin, matched, scan)
    return Naming(None, origin, matched, scan, mismatch=names)
