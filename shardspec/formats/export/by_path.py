"""The layouts of a plan, arrays that share one together: what formats by path are written from."""

from __future__ import annotations

from typing import NamedTuple

from shardspec.formats.export.path_regex import path_regex
from shardspec.ir.grouping import natural, template
from shardspec.ir.partition import PartitionSpec
from shardspec.ir.plan import ShardingPlan


class Group(NamedTuple):
    """Arrays whose paths differ in numbers alone, and that are laid out alike.

    Attributes:
      regex: matches exactly these paths under `fullmatch`.
    """

    paths: tuple[str, ...]
    regex: str
    partition: PartitionSpec


def line_end(plan: ShardingPlan) -> str:
    """Return what ends a regex under `search`: `$`, where no path ends with a line break."""
    return r"\Z" if any(each.param.path.endswith("\n") for each in plan.params) else "$"


def groups(plan: ShardingPlan) -> tuple[Group, ...]:
    """Return the arrays of a plan in groups, in natural order of their first paths."""
    found: dict[tuple[str, PartitionSpec], list[str]] = {}
    for sharding in plan.params:
        path = sharding.param.path
        found.setdefault((template(path), sharding.partition_spec), []).append(path)
    for paths in found.values():
        paths.sort(key=natural)
    ordered = sorted(found.items(), key=lambda item: natural(item[1][0]))
    return tuple(Group(tuple(paths), path_regex(paths), spec) for (_, spec), paths in ordered)
