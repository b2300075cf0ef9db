"""A plan as JSON: sorted, one line per array, so that `git diff` shows what moved.

No timestamps, hosts or absolute paths; sizes in bytes.
`shardspec compile -o` writes it too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from shardspec.diagnostics.words import natural
from shardspec.foreign.formats import Request, Written
from shardspec.ir.plan import ActivationSharding, ParamSharding, ShardingPlan
from shardspec.records import Data, picked
from shardspec.report.table import beside_data, entries_data
from shardspec.versions import COMPILE_JSON


def plan_text(plan: ShardingPlan) -> str:
    """Return the plan as JSON text, one line per array, with a line break at the end."""

    def mapping(entries: Iterable[tuple[str, Any]]) -> str:
        ordered = sorted(entries, key=lambda entry: natural(entry[0]))
        lines = ",\n".join(f"    {json.dumps(key)}: {json.dumps(value)}" for key, value in ordered)
        return f"{{\n{lines}\n  }}" if lines else "{}"

    head = json.dumps(_head(plan), indent=2)
    arrays = mapping((each.param.path, _array(each)) for each in plan.arrays)
    activations = mapping((each.activation.name, _activation(each)) for each in plan.activations)
    return f'{head[:-2]},\n  "arrays": {arrays},\n  "activations": {activations}\n}}\n'


def _head(plan: ShardingPlan) -> Data:
    hardware = plan.target.hardware
    keys = "chip=chip.name topology slices=slice_count devices=device_count"
    padded = plan.padded
    types = {axis.name: axis.axis_type for axis in plan.mesh.axes if axis.axis_type != "auto"}
    return {
        "schema": COMPILE_JSON,
        "spec": plan.spec.source.name,
        **({"phase": plan.spec.phase} if plan.spec.phase else {}),
        "target": plan.target.name,
        "hardware": hardware and picked(hardware, keys),
        "mesh": plan.mesh.sizes,
        "order": "listed" if plan.target.devices else plan.spec.policy.order,
        "dcn": [axis.name for axis in plan.mesh.axes if axis.network == "dcn"],
        **({"axis_types": types} if types else {}),
        "per_device_bytes": plan.per_device_bytes,
        **({"host_bytes": plan.host_bytes} if plan.host_bytes else {}),
        "total_bytes": sum(sharding.param.bytes for sharding in plan.arrays),
        **({"padding_bytes": sum(each.padding_bytes for each in padded)} if padded else {}),
    }


def _array(sharding: ParamSharding) -> Data:
    return {
        **picked(sharding, "shape=param.shape dtype=param.dtype axes=logical_axes"),
        **(picked(sharding, "true_shape=param.true_shape") if sharding.param.padding else {}),
        "spec": entries_data(sharding.partition_spec),
        **beside_data(sharding.sums, sharding.memory_kind),
        **picked(sharding, "shard=shard_shape per_device_bytes"),
    }


def _activation(sharding: ActivationSharding) -> Any:
    """Return the entries; an object of them and what is beside them, where something is."""
    entries = entries_data(sharding.partition_spec)
    more = beside_data(sharding.sums, sharding.memory_kind)
    return {"spec": entries, **more} if more else entries


def write(request: Request) -> Written:
    """Return the plan."""
    return plan_text(request.plan), ()
