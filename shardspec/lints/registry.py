"""Every finding, in one hand-written tuple, in the order they run."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from shardspec.diagnostics import Code, Diagnostic
from shardspec.lints import (
    axis_without_rule,
    crosses_slices,
    cut_unit,
    dead_rule,
    hidden_pattern,
    indivisible,
    rank_mismatch,
    repeated_axis,
    replicated_large,
    single_digit,
    size_mismatch,
    size_one_axis,
    slow_regex,
    slow_ring,
    submesh_tiling,
    unknown_logical_axis,
    unknown_mesh_axis,
    unmatched_pattern,
    unnamed_array,
)
from shardspec.lints.context import Context

#: Each module has a docstring that is its page, a `CODE`, and `check(context)`.
CHECKS: tuple[ModuleType, ...] = (
    unknown_mesh_axis,
    unknown_logical_axis,
    axis_without_rule,
    dead_rule,
    unmatched_pattern,
    hidden_pattern,
    single_digit,
    unnamed_array,
    rank_mismatch,
    slow_regex,
    repeated_axis,
    indivisible,
    size_mismatch,
    cut_unit,
    size_one_axis,
    submesh_tiling,
    crosses_slices,
    slow_ring,
    replicated_large,
)


def run(context: Context) -> Iterator[Diagnostic]:
    """Yield what every check finds."""
    for module in CHECKS:
        yield from module.check(context)


def codes() -> tuple[Code, ...]:
    """Return the codes that have a check."""
    return tuple(module.CODE for module in CHECKS)
