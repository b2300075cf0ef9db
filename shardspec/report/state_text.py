"""Optimizer state in a plan: a line with the reason for each array, and one array explained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardspec.diagnostics.lines import columns
from shardspec.diagnostics.words import binary_bytes
from shardspec.ir.plan import DimSharding, ParamSharding, ShardingPlan
from shardspec.ir.spec import target_text
from shardspec.report.explain import explain, memory_line
from shardspec.report.table import table
from shardspec.resolve.state import Relation, StateSharding


def plan_lines(plan: ShardingPlan) -> Iterator[str]:
    """Yield the table of a plan's parameters, then a line for each array of optimizer state."""
    state = [each for each in plan.arrays if isinstance(each, StateSharding) and each.is_state]
    others = tuple(each for each in plan.arrays if not each.is_state)
    if others or not state:
        yield from table(replace(plan, arrays=others) if state else plan, is_whole=not state)
    if others and state:
        yield ""
    if state:
        yield from _state_lines(state, plan)


def _state_lines(state: Sequence[StateSharding], plan: ShardingPlan) -> Iterator[str]:
    """Yield a line for each array: path, type, answer, reason; then the bytes of them all."""
    rows = [(s.path, str(s.param), _answer(s), reason(s, plan)) for s in state]
    yield from columns(rows, indent=0, paths=0)
    held = replace(plan, arrays=tuple(state))
    yield f"{binary_bytes(held.per_device_bytes)} of state per device"
    if any(each.memory_kind for each in state):
        yield f"{binary_bytes(held.host_bytes)} of state in host memory, for each device"


def _answer(found: StateSharding) -> str:
    memory = f" in {found.memory_kind}" if found.memory_kind else ""
    return f"{found.partition_spec}{memory}"


def explain_state(sharding: ParamSharding, plan: ShardingPlan) -> Iterator[str]:
    """Yield the lines of the explanation: the answer, the reason, what each dimension is.

    An array that the spec, or itself, names has its rules as a parameter has them.
    """
    assert isinstance(sharding, StateSharding), "what is state is a StateSharding"
    yield sharding.answer_text
    yield ""
    yield f"state   {reason(sharding, plan)}"
    owner = sharding.owner
    if owner is not None:
        yield f"of      {owner.path}   {owner.param}   ->   {owner.partition_spec}"
    if sharding.placed is not None and sharding.relation is not Relation.OWN:
        yield memory_line(sharding)
    if sharding.relation is Relation.OWN:
        yield from list(explain(sharding, plan))[2:]
    else:
        places = sharding.reading or (None,) * len(sharding.dims)
        for index, (dim, place) in enumerate(zip(sharding.dims, places, strict=True)):
            yield f"  dim {index}  {_dim_text(dim, place)}"


def _dim_text(dim: DimSharding, place: int | None) -> str:
    name = dim.logical_axis or "_"
    where = "" if place is None else f", dim {place} of the parameter"
    return f"{name}={dim.size}  {target_text(dim.mesh_axes)}{where}"


def reason(found: StateSharding, plan: ShardingPlan) -> str:
    """Return in one line why an array of state has its sharding.

    The first part is what it is to its parameter, the second what ZeRO did.
    """
    split, policy = found.split, plan.spec.state
    if split is None or policy is None:
        return found.relation_text
    if split.dim is not None:
        done = f"+ {', '.join(split.mesh_axes)} on dim {split.dim}"
    elif not split.mesh_axes:
        done = "split by all its mesh axes already"
    else:
        sizes = plan.mesh.sizes
        by = " x ".join(f"{axis}={sizes[axis]}" for axis in split.mesh_axes)
        done = f"no dimension is divided by {by}"
    return f"{found.relation_text}; {policy.optimizer}: {done}"
