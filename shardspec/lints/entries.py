"""The entries of a spec that have a path pattern, section by section: first match wins in each."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardspec.ir.param import LogicalAxes
from shardspec.ir.spec import Pattern, Spec


@dataclass(frozen=True, slots=True)
class Entry:
    """One pattern, and what it says about the arrays that it matches.

    Attributes:
      answer: equal for two entries that say the same.
    """

    section: str
    pattern: Pattern
    answer: LogicalAxes | tuple[tuple[object, ...], ...] = field(repr=False)


def sections(spec: Spec) -> tuple[tuple[Entry, ...], ...]:
    """Return the overrides, the entries of `params:`, `scan:` and `replicate:`, each in order."""
    return (
        tuple(
            Entry("override", entry.pattern, entry.logical_axes or entry.partition or ())
            for entry in spec.overrides
        ),
        tuple(Entry("params", entry.pattern, entry.logical_axes) for entry in spec.path_rules),
        tuple(Entry("scan", entry.pattern, entry.axes) for entry in spec.scans),
        tuple(Entry("replicate", entry.pattern, ()) for entry in spec.replicate),
    )
