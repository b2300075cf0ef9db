"""The plan of a live tree, for whoever reads it in code, in a terminal or in a notebook."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardspec.diagnostics.suggest import did_you_mean
from shardspec.ir.grouping import counted
from shardspec.ir.plan import ParamSharding, ShardingPlan

if TYPE_CHECKING:
    from shardspec.report.drawing import Drawing


@dataclass(frozen=True, repr=False)
class TreePlan(ShardingPlan):
    """The layout of every array of a tree: a `ShardingPlan` that can be printed and asked."""

    def __getitem__(self, path: str) -> ParamSharding:
        """Return the array at `path`; KeyError, with the nearest path, where there is none."""
        try:
            return ShardingPlan.__getitem__(self, path)
        except KeyError:
            count = f"the plan has {counted(len(self), 'array')}"
            hint = did_you_mean(path, list(self)) or count
            raise KeyError(f"no array `{path}`; {hint}") from None

    def __iter__(self) -> Iterator[str]:
        """Yield the paths."""
        return (sharding.param.path for sharding in self.params)

    def __len__(self) -> int:
        """Return the number of arrays."""
        return len(self.params)

    def __repr__(self) -> str:
        count = counted(len(self), "array")
        return f"TreePlan({count}, target {self.target.name}: {self.mesh})"

    def __str__(self) -> str:
        """Return the table that `shardspec compile` prints."""
        from shardspec.report.table import table

        return "\n".join(table(self))

    def _repr_html_(self) -> str:
        from shardspec.report.array_html import plan_html

        return plan_html(self)

    def explain(self, path: str) -> str:
        """Return why the array at `path` is laid out as it is."""
        from shardspec.report.explain import explain

        return "\n".join(explain(self[path], self))

    def visualize(self, path: str) -> Drawing:
        """Return who holds which part of the array at `path`."""
        from shardspec.report.drawing import drawing

        return drawing([self[path]], self)
