"""The plan of a live tree, for whoever reads it in code, in a terminal or in a notebook.

What is wrong with its arrays is raised once for all of them. New answers are checked a few at a
time, one per distinct pair of shape and names. Only when one is at fault is the whole tree planned,
so that the message can say how many arrays it touches, which is the first, and what it costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardspec import pipeline
from shardspec.diagnostics import Diagnostic, ShardspecError, sort_key
from shardspec.diagnostics import codes as c
from shardspec.diagnostics.suggest import did_you_mean
from shardspec.ir.grouping import counted
from shardspec.ir.plan import ParamSharding, ShardingPlan
from shardspec.ir.spec import Spec
from shardspec.jax_backend.trees import params_of
from shardspec.lints.context import Context
from shardspec.resolve.resolver import ArrayResolver

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
        from shardspec.report.drawing import plan_html

        return plan_html(self)

    def explain(self, path: str) -> str:
        """Return why the array at `path` is laid out as it is."""
        from shardspec.report.explain import explain

        return "\n".join(explain(self[path], self))

    def visualize(self, path: str) -> Drawing:
        """Return who holds which part of the array at `path`."""
        from shardspec.report.drawing import drawing

        return drawing([self[path]], self)


#: Findings about one array; the others are about the spec, or a tree as a whole.
_OF_ONE_ARRAY = frozenset(
    (
        c.UNNAMED_ARRAY,
        c.RANK_MISMATCH,
        c.REPEATED_AXIS,
        c.INDIVISIBLE,
        c.SIZE_MISMATCH,
        c.CUT_UNIT,
    )
)


def plan_of(arrays: ArrayResolver, tree: Any) -> TreePlan:
    """Return the plan for the arrays of a pytree."""
    resolved = tuple(arrays.resolve(param) for param in params_of(tree))
    return TreePlan(arrays.spec, arrays.target, resolved)


def raise_faults(arrays: ArrayResolver, fresh: Sequence[ParamSharding], tree: Any) -> None:
    """Raise every finding about `tree` if one of `fresh` is an error.

    Args:
      fresh: one array for each answer that was not seen before; paths do not matter.
    """
    if _is_at_fault(arrays, fresh):
        raise_errors(tree_findings(plan_of(arrays, tree)))


def plan_faults(arrays: ArrayResolver, plan: ShardingPlan) -> tuple[Diagnostic, ...]:
    """Return the errors about arrays that `shardings` of the tree would raise."""
    # The resolver keeps equal dims as one object, which lives as long as it does.
    distinct = {(each.dims, each.origin, each.mismatch): each for each in plan.params}
    if not distinct or not _is_at_fault(arrays, tuple(distinct.values())):
        return ()
    kept = {*_OF_ONE_ARRAY, c.UNKNOWN_LOGICAL_AXIS}
    found = pipeline.heard(_with_axes_of_code(plan), [plan])
    errors = (each for each in found if each.is_error and each.code in kept)
    return tuple(dict.fromkeys(map(_for_trees, sorted(errors, key=sort_key))))


def _is_at_fault(arrays: ArrayResolver, sample: Sequence[ParamSharding]) -> bool:
    plan = ShardingPlan(arrays.spec, arrays.target, tuple(sample))
    unknown = {name for sharding in sample for name in sharding.logical_axes if name}
    unknown -= declared_axes(arrays)
    suspects = _OF_ONE_ARRAY | ({c.UNKNOWN_LOGICAL_AXIS} if unknown else set())
    found = pipeline.heard(arrays.spec, [plan])
    return any(diagnostic.is_error and diagnostic.code in suspects for diagnostic in found)


def tree_findings(plan: ShardingPlan) -> tuple[Diagnostic, ...]:
    """Return everything the checks have to say about the plan of a live tree.

    A name that only rules have may be one that `constrain` gives to an activation, or the layers
    of a scan. It is a finding only where it is spelt much like one that the arrays have.
    """
    return tuple(map(_for_trees, pipeline.findings(_with_axes_of_code(plan), [plan])))


def _for_trees(found: Diagnostic) -> Diagnostic:
    """Return a finding with the way out that only a live tree has."""
    if found.code is not c.UNNAMED_ARRAY:
        return found
    way_out = "of a tree that Flax's boxes name: `like=BOXED` tells the names to `put`, `check`,"
    return replace(found, help=f"{found.help}\n{way_out} `abstract` and `restore`")


def _with_axes_of_code(plan: ShardingPlan) -> Spec:
    spec = plan.spec
    context = Context(spec, (plan,))
    known = context.axes_in_use() | context.axes.keys()
    lone = sorted(context.axes_in_rules() - known)
    more = tuple(axis for axis in lone if did_you_mean(axis, sorted(known)) is None)
    return replace(spec, axes_of_code=more) if more else spec


def declared_axes(arrays: ArrayResolver) -> set[str]:
    """Return the logical axes that a rule or an entry of `axes` knows."""
    declared = {axis.name for axis in arrays.spec.logical_axes}
    return declared.union(arrays.table.by_axis)


def raise_errors(diagnostics: Iterable[Diagnostic]) -> None:
    """Raise all of `diagnostics` if one of them is an error."""
    found = tuple(diagnostics)
    if any(diagnostic.is_error for diagnostic in found):
        raise ShardspecError(found)
