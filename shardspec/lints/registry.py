"""Every finding, in one hand-written tuple, in the order they run."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

from shardspec.diagnostics import Code, Diagnostic
from shardspec.lints import (
    activation_conflict,
    axis_without_array,
    axis_without_rule,
    below_minimum,
    below_tile,
    broken_unit,
    conflicting_names,
    crosses_slices,
    cut_unit,
    dead_rule,
    dominant_array,
    exceeds_memory,
    explicit_fsdp,
    fallback_never_reached,
    hidden_pattern,
    indivisible,
    lost_contest,
    nameless_dimension,
    needless_replicate,
    nnx_differs,
    pinned_large,
    priority_reorders,
    rank_mismatch,
    regex_budget,
    regex_like_glob,
    repeated_axis,
    replicated_here,
    replicated_large,
    replicated_over_budget,
    rule_without_array,
    short_range,
    single_digit,
    size_mismatch,
    size_one_axis,
    slow_regex,
    slow_ring,
    state_not_split,
    submesh_tiling,
    target_name,
    tensor_over_dcn,
    tuple_skipped,
    uneven_load,
    unknown_logical_axis,
    unknown_mesh_axis,
    unmatched_pattern,
    unnamed_array,
    unused_mesh_axis,
    whole_batch,
)
from shardspec.lints.context import Context

#: Each module has a docstring that is its page, a `CODE`, and `check(context)`.
CHECKS: tuple[ModuleType, ...] = (
    unknown_mesh_axis,
    unknown_logical_axis,
    axis_without_array,
    axis_without_rule,
    dead_rule,
    unmatched_pattern,
    hidden_pattern,
    single_digit,
    unnamed_array,
    rank_mismatch,
    repeated_axis,
    indivisible,
    size_mismatch,
    cut_unit,
    below_tile,
    below_minimum,
    size_one_axis,
    submesh_tiling,
    crosses_slices,
    slow_ring,
    replicated_large,
    pinned_large,
    replicated_over_budget,
    exceeds_memory,
    dominant_array,
    uneven_load,
    needless_replicate,
    activation_conflict,
    state_not_split,
    target_name,
    nameless_dimension,
    lost_contest,
    short_range,
    broken_unit,
    whole_batch,
    unused_mesh_axis,
    tensor_over_dcn,
    replicated_here,
    explicit_fsdp,
    rule_without_array,
    fallback_never_reached,
    priority_reorders,
    tuple_skipped,
    conflicting_names,
    regex_like_glob,
    nnx_differs,
    slow_regex,  # after those that ask about paths: what they ran under shows then
    regex_budget,
)


def run(context: Context) -> Iterator[Diagnostic]:
    """Yield what every check finds."""
    for module in CHECKS:
        yield from module.check(context)


def codes() -> tuple[Code, ...]:
    """Return the codes that have a check."""
    return tuple(module.CODE for module in CHECKS)
