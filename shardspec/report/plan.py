"""The plan as its user holds it: printed, asked by path, drawn, and weighed.

Stages hand each other a `ShardingPlan`. What comes out of `Spec.compile`, `Resolver.plan` and
`Resolver.state_plan` is that with what there is to say of it. Each form is loaded when it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.words import counted, did_you_mean
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.versions import renamed

if TYPE_CHECKING:
    from shardspec.analysis.memory import Memory
    from shardspec.report.drawing import Drawing


@dataclass(frozen=True, repr=False)
class Plan(ShardingPlan):
    """The layout of every array on one target, and why.

    `print(plan)` is the table of `shardspec compile`, with a line of reason for each array of
    optimizer state. `plan["decoder/wi/kernel"]` is one array, `for path in plan` yields the paths,
    and `plan.target` has hardware and mesh, and is equal to its name.

    Attributes:
      arrays: one `ParamSharding` each; a `StateSharding` is one of optimizer state.
      told: what its maker has found.
      is_checked: False where `diagnostics` is still to check its parameters, as of a live tree.
    """

    told: tuple[Diagnostic, ...] = field(default=(), compare=False)
    is_checked: bool = field(default=True, compare=False)

    @cached_property
    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Return what the checks have to say; warnings only, where `Spec.compile` made the plan.

        For the parameters of a live tree it is worked out when it is first asked for.
        """
        if self.is_checked:
            return self.told
        from shardspec.pipeline import tree_findings

        params = tuple(each for each in self.arrays if not each.is_state)
        return (*tree_findings(replace(self, arrays=params)), *self.told)

    def __getitem__(self, path: str) -> ParamSharding:
        """Return the array at `path`; KeyError, with the nearest path, where there is none."""
        try:
            return ShardingPlan.__getitem__(self, path)
        except KeyError:
            hint = did_you_mean(path, list(self)) or f"the plan has {counted(len(self), 'array')}"
            raise KeyError(f"no array `{path}`; {hint}") from None

    def __iter__(self) -> Iterator[str]:
        """Yield the paths."""
        return (sharding.path for sharding in self.arrays)

    def __len__(self) -> int:
        """Return the number of arrays."""
        return len(self.arrays)

    def explain(self, path: str) -> str:
        """Return why the array at `path` is laid out as it is."""
        from shardspec.report.explain import explain
        from shardspec.report.state_text import explain_state

        found = self[path]
        return "\n".join((explain_state if found.is_state else explain)(found, self))

    def visualize(self, path: str) -> Drawing:
        """Return who holds which part of the array, or of the activation, at `path`.

        It prints as text, with the borders of hosts and slices, and shows as tables in a notebook.
        """
        from shardspec.report.drawing import drawing_of

        return drawing_of(path, self)

    def memory(self) -> Memory:
        """Return the bytes that one device holds, exactly, by kind and by array.

        The arrays of the plan count; under `state:` in the spec also the gradients, and the
        optimizer state where the plan does not list that itself. `print` shows a line.
        """
        from shardspec.analysis.memory import memory

        return memory(self)

    def __repr__(self) -> str:
        """Return `Plan(12 arrays, target v4-8: data=2 model=4)`."""
        return f"Plan({counted(len(self), 'array')}, target {self.target}: {self.mesh})"

    def __str__(self) -> str:
        """Return the table that `shardspec compile` prints, and the lines of optimizer state."""
        from shardspec.report.state_text import plan_lines

        return "\n".join(plan_lines(self))

    def _repr_html_(self) -> str:
        from shardspec.report.page import plan_pieces

        return plan_pieces(self)

    @property
    def ir(self) -> Plan:
        """Return the plan itself, by the word of the version before."""
        renamed("plan.ir", "plan")
        return self

    @property
    def plan(self) -> Plan:
        """Return the plan itself, by the word of the version before."""
        renamed("state_plan(...).plan", "state_plan(...)")
        return self
