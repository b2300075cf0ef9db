"""T5X's partitioner for mixtures of experts: its mesh and its standard rules.

`MoePjitPartitioner` cuts an axis `expert` out of `data`, lays the batch over both, and appends
rules for experts to the standard ones. What counts are its own arguments and those of
`moe_partitioning.standard_logical_axis_rules`.
Source: google-research/t5x, `t5x.contrib.moe.partitioning`: `default_moe_mesh`,
`MoePjitPartitioner`, `standard_logical_axis_rules`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from shardspec.diagnostics import Diagnostic
from shardspec.formats.foreign.gin_config import GinConfig
from shardspec.formats.foreign.gin_text import GinBinding
from shardspec.formats.foreign.imported import Options, came_from, lost
from shardspec.formats.foreign.machine import machine_named
from shardspec.formats.foreign.rules import ForeignRule
from shardspec.formats.foreign.t5x_mesh import T5xMesh, t5x_mesh
from shardspec.frontend.reading import Data
from shardspec.ir.hardware import Hardware

MOE_PARTITIONER = "MoePjitPartitioner"
EXPERTS = "num_expert_partitions"

MOE_RULES = (
    ForeignRule("expert", ("expert",)),
    ForeignRule("expert_mlp", ("model",)),
    ForeignRule("expert_replicas", ("data",)),
    ForeignRule("unmodeled", ()),
)
_MOE_BATCH = ("expert", "data")


def uses_moe(config: GinConfig) -> bool:
    """Say whether the partitioner of the files is the one for mixtures of experts."""
    chosen = [each for each in config.bindings if each.argument == "partitioner"]
    if chosen:
        return config.resolved(chosen[-1]).value.last_name == MOE_PARTITIONER
    return any(each.argument and each.function == MOE_PARTITIONER for each in config.bindings)


def with_moe_batch(rules: Iterable[ForeignRule]) -> tuple[ForeignRule, ...]:
    """Return standard rules as they are here: the batch is over `expert` and `data`."""
    return tuple(
        replace(rule, mesh_axes=_MOE_BATCH) if rule.name == "batch" else rule for rule in rules
    )


def state_of_experts(binding: GinBinding | None) -> Diagnostic:
    """Return the finding for the state of Adafactor, which has an axis put in front."""
    message = f"`{MOE_PARTITIONER}` splits Adafactor's state of experts over `expert`, in its code"
    help = "`state:` follows the parameters here, which have the axis `expert` of their own"
    return lost(message, None if binding is None else binding.span, help=help)


def moe_mesh(arguments: Mapping[str, GinBinding], options: Options) -> T5xMesh:
    """Return the mesh (data, expert, model): the largest part of `data` that experts divide.

    Args:
      arguments: of the partitioner, by name.
    """
    base = t5x_mesh(arguments, options)
    mesh = base.data.get("mesh")
    machine = None if options.hardware is None else machine_named(options.hardware)
    if not isinstance(mesh, dict) or not isinstance(machine, Hardware):
        return base
    binding = arguments.get(EXPERTS)
    most = binding.value.number if binding is not None and binding.value.kind == "number" else 0
    if most < 1 or not isinstance(most, int):
        why = "is not stated" if binding is None else f"is {binding.value.described()}"
        message = f"`{EXPERTS}` {why}, so no mesh stands in the spec"
        help = "say the mesh: --mesh 'data=4 expert=8 model=2'"
        fault = lost(message, None if binding is None else binding.span, help=help)
        return T5xMesh(faults=(*base.faults, fault))
    assert binding is not None
    data = machine.device_count // _size(mesh["model"])
    experts = next(size for size in range(min(most, data), 0, -1) if data % size == 0)
    axes: dict[str, Data] = {"data": mesh["data"], "expert": experts, "model": mesh["model"]}
    comment = came_from(binding.span, f"the most that divides data={data}")
    comments = {**base.comments, ("mesh", "expert"): comment}
    return T5xMesh({**base.data, "mesh": axes}, comments, base.faults)


def _size(model: Data) -> int:
    """Return how many devices `4`, `auto 4` or `submesh 4x1x1x1` is."""
    text = str(model).rpartition(" ")[2]
    return math.prod(int(part) for part in text.split("x"))
