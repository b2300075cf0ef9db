"""What a page needs to answer clicks, as JSON: arrays in rows, why each lies so, and the machine.

Everything is of the same nouns that `compile`, `mesh` and `explain` print, so that no figure can
be another. What arrays share (a trace, a name) stands once, and devices are left out: a page adds
up their places from one offset for each index of each mesh axis, as a `Placement` does.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from shardspec.diagnostics.source import printable
from shardspec.ir.plan import ActivationSharding, ParamSharding, Sharding, ShardingPlan
from shardspec.report.drawing import MOST_DRAWN
from shardspec.report.explain import dim_rows, facts
from shardspec.report.mesh import speed_text
from shardspec.report.table import Row, layout_text, rows, rules_text, target_title
from shardspec.topology.explanation import explain_axes
from shardspec.topology.placement import placed

Data = dict[str, Any]

#: Characters that could end a script element, or start a comment in one.
_UNSAFE = str.maketrans({"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"})


def page_data(plans: Sequence[ShardingPlan]) -> Data:
    """Return what the scripts of a page are given.

    Args:
      plans: one for each target; those of a phase are called `phase@target`.
    """
    pool = _Pool()
    targets = [_target(plan, pool) for plan in plans]
    return {"targets": targets, "paths": pool.paths, "reasons": pool.reasons}


def embedded(data: Data) -> str:
    r"""Return data as JSON that can stand in a script element, whatever its texts hold.

    >>> print(embedded({"</script>": "<!--"}))
    {"\u003c/script\u003e":"\u003c!--"}
    """
    return json.dumps(_shown(data), separators=(",", ":")).translate(_UNSAFE)


def _shown(value: Any) -> Any:
    """Return a value with its texts as they may be shown: none turns lines around."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, dict):
        return {printable(key): _shown(inner) for key, inner in value.items()}
    return [_shown(inner) for inner in value] if isinstance(value, list | tuple) else value


class _Pool:
    """Paths and reasons of all targets, each once."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.reasons: list[Data] = []
        self._paths: dict[str, int] = {}
        self._reasons: dict[object, int] = {}

    def path(self, path: str) -> int:
        """Return the number of a path."""
        if path not in self._paths:
            self._paths[path] = len(self.paths)
            self.paths.append(path)
        return self._paths[path]

    def reason(self, sharding: Sharding, plan: ShardingPlan) -> int:
        """Return the number of the explanation of an array or an activation."""
        told = [list(fact) for fact in facts(sharding, plan)]
        dims = [list(row) for row in dim_rows(sharding, plan)]
        key = json.dumps([told, dims])
        if key not in self._reasons:
            self._reasons[key] = len(self.reasons)
            self.reasons.append({"facts": told, "dims": dims})
        return self._reasons[key]


def _target(plan: ShardingPlan, pool: _Pool) -> Data:
    return {
        "name": plan.name,
        "title": target_title(plan.target).partition(": ")[2],
        "mesh": [[axis.name, axis.size] for axis in plan.mesh.axes],
        "bytes": plan.per_device_bytes,
        "rows": [_row(row, plan, pool) for row in rows(plan)],
        "activations": [_activation(each, plan, pool) for each in plan.activations],
        "machine": machine_data(plan),
    }


def _row(row: Row, plan: ShardingPlan, pool: _Pool) -> Data:
    first = row.first
    return {
        "name": row.name,
        "paths": [pool.path(each.param.path) for each in row.shardings],
        "type": str(first.param),
        "spec": layout_text(first),
        "shard": str(list(first.shard_shape)),
        "rules": rules_text(first, plan),
        "bytes": row.per_device_bytes,
        "answer": str(first.partition_spec),
        **_layout(first),
        "why": pool.reason(first, plan),
        **_kind(first),
    }


def _kind(sharding: ParamSharding) -> Data:
    """Return what is unusual about an array: it lies on its host, is whole, is a cache."""
    said: Data = {"host": 1} if sharding.memory_kind else {}
    if sharding.is_replicated:
        said["whole"] = 1
    return {**said, "cache": 1} if sharding.param.is_cache else said


def _activation(sharding: ActivationSharding, plan: ShardingPlan, pool: _Pool) -> Data:
    names = (
        f"{dim.logical_axis or '_'}{'' if dim.size is None else f'={dim.size}'}"
        for dim in sharding.dims
    )
    return {
        "name": sharding.activation.name,
        "type": " ".join(names),
        "spec": layout_text(sharding),
        "answer": str(sharding.partition_spec),
        **_layout(sharding),
        "why": pool.reason(sharding, plan),
    }


def _layout(sharding: Sharding) -> Data:
    """Return for each dimension its name, size, shard size, and mesh axes."""
    return {
        "dims": [
            [dim.logical_axis or "_", dim.size, dim.shard_size, list(dim.mesh_axes)]
            for dim in sharding.dims
        ]
    }


# the machine


def machine_data(plan: ShardingPlan) -> Data | None:
    """Return physical axes, and for each index of each mesh axis its offset on them."""
    placement = placed(plan.target, plan.spec.policy.order)
    if placement is None or plan.mesh.device_count > MOST_DRAWN:
        return None
    return {
        "platform": placement.hardware.chip.platform,
        "axes": [
            [axis.name, axis.extent, axis.link, axis.wraps, axis.host] for axis in placement.machine
        ],
        "speeds": {each.name: speed_text(each) for each in explain_axes(placement)},
        "routes": {each.axis.name: _offsets(each.route) for each in placement.axes},
    }


def _offsets(route: Iterable[Sequence[int]]) -> list[list[int]]:
    return [list(offset) for offset in route]
