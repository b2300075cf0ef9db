"""Arrays drawn, in the two forms a reader may want: text in a terminal, tables in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shardspec.ir.grouping import counted
from shardspec.ir.plan import Sharding, ShardingPlan
from shardspec.report.array_grid import Grid, grid
from shardspec.report.array_text import grid_lines

#: Devices of a mesh that is drawn at most: a terminal has less room long before.
MOST_DRAWN = 65_536


@dataclass(frozen=True, slots=True, repr=False)
class Drawing:
    """Arrays, drawn: text in a terminal, tables in a notebook."""

    grids: tuple[Grid, ...]

    def __str__(self) -> str:
        return "\n\n".join("\n".join(grid_lines(each)) for each in self.grids)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from shardspec.report.array_html import grids_html

        return grids_html(self.grids)


def drawing(shardings: Sequence[Sharding], plan: ShardingPlan) -> Drawing:
    """Return arrays of a plan, drawn."""
    return Drawing(tuple(grid(sharding, plan) for sharding in shardings))


def drawing_of(name: str, plan: ShardingPlan) -> Drawing:
    """Return the array at a path, or the activation of this name, drawn.

    Raises:
      KeyError: there is neither; it has the nearest name.
    """
    if not isinstance(name, str):
        raise TypeError(f"what is drawn is named by a string, not by a `{type(name).__name__}`")
    arrays = {each.param.path: each for each in plan.params}
    activations = {each.activation.name: each for each in plan.activations}
    found = arrays.get(name) or activations.get(name)
    if found is None:
        from shardspec.diagnostics.suggest import did_you_mean

        near = did_you_mean(name, [*arrays, *activations])
        hint = near or f"there are {counted(len(arrays), 'array')}"
        raise KeyError(f"no array and no activation `{name}`; {hint}")
    return drawing([found], plan)
