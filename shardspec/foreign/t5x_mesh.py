"""The mesh that T5X's partitioner builds on a machine, as the language says it.

Source: google-research/t5x, `t5x.partitioning.default_mesh`, `get_mesh`, `get_cpu_mesh`,
`get_gpu_mesh`.

T5X's partitioner for mixtures of experts: its mesh and its standard rules.

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
from shardspec.foreign import imported
from shardspec.foreign.gin import GinBinding, GinConfig
from shardspec.foreign.imported import ForeignRule, MeshPart, Options, bad, came_from, lost
from shardspec.foreign.values import Node
from shardspec.ir.spec import Hardware, shape_text
from shardspec.language.reading import Comments, Data
from shardspec.topology.machine import slice_extents
from shardspec.topology.submesh import TilingFault, t5x_default_submesh, tiling_on

_HELP = "say the machine, --hardware 'tpu v4 4x4x4', or the mesh itself, --mesh 'data=8 model=8'"

Tile = tuple[int, ...]


def t5x_mesh(arguments: Mapping[str, GinBinding], options: Options) -> MeshPart:
    """Return the mesh of a partitioner; no sections where only the machine can tell.

    Args:
      arguments: of `PjitPartitioner`, by name.
    """
    if options.mesh:
        return MeshPart()
    set_ones = {key: each for key, each in arguments.items() if each.value.kind != "nothing"}
    ici, dcn = set_ones.get("ici_mesh_shape"), set_ones.get("dcn_mesh_shape")
    if ici is not None and dcn is not None:
        return _several_slices(ici, dcn)
    submesh = set_ones.get("model_parallel_submesh")
    if submesh is not None and submesh.value.items:
        tile = _sizes(submesh)
        if isinstance(tile, Diagnostic):
            return MeshPart(faults=(tile,))
        return _of_submesh(tile, submesh, options)
    partitions = set_ones.get("num_partitions")
    count = None if partitions is None else _size(partitions.value)
    if partitions is None or count == 0:
        return MeshPart(
            faults=(lost("the files do not say how the mesh is cut", None, help=_HELP),)
        )
    if count is None:
        why = f"`num_partitions` is {partitions.value.described()}, not a number"
        return MeshPart(faults=(bad(why, partitions.value.span),))
    return _of_partitions(count, partitions, options)


def _size(node: Node) -> int | None:
    is_count = node.kind == "number" and isinstance(node.number, int) and 0 <= node.number < 2**31
    return int(node.number) if is_count else None


def _sizes(binding: GinBinding) -> Tile | Diagnostic:
    sizes = [_size(item) for item in binding.value.items]
    if not binding.value.is_list or not sizes or None in sizes or 0 in sizes:
        message = f"`{binding.argument}` is no tuple of sizes"
        return bad(message, binding.value.span, help="as in (4, 2, 1, 1)")
    return tuple(size for size in sizes if size is not None)


def _several_slices(ici: GinBinding, dcn: GinBinding) -> MeshPart:
    """Return the mesh (replica, data, model): inside a slice times across slices."""
    sizes, faults = imported.parted(map(_sizes, (ici, dcn)))
    if faults:
        return MeshPart(faults=faults[:1])
    inside, across = sizes
    if len(inside) != 3 or len(across) != 3:
        message = "the mesh of several slices has three sizes: replica, data, model"
        return MeshPart(faults=(bad(message, (ici if len(inside) != 3 else dcn).value.span),))
    mesh: dict[str, Data] = {}
    for axis, near, far in zip(("replica", "data", "model"), inside, across, strict=True):
        mesh[axis] = f"{far} @ dcn" if far > 1 and near == 1 else near * far
    return MeshPart({"mesh": mesh}, {("mesh",): came_from(ici.span, "ici times dcn")})


def _of_submesh(tile: Tile, binding: GinBinding, options: Options) -> MeshPart:
    machine = imported.machine_asked(options)
    if machine is None:
        return MeshPart(faults=(_needs_machine(binding),))
    is_torus = machine.chip.torus_rank > 0
    if is_torus and len(tile) != 4:
        message = f"`model_parallel_submesh` has {len(tile)} sizes; a TPU's has x, y, z and core"
        return MeshPart(faults=(bad(message, binding.value.span),))
    model = f"submesh {shape_text(tile)}" if is_torus else math.prod(tile)
    return _data_and_model(model, options, came_from(binding.span))


def _of_partitions(count: int, binding: GinBinding, options: Options) -> MeshPart:
    machine = imported.machine_asked(options)
    if machine is None:
        return MeshPart(faults=(_needs_machine(binding),))
    if machine.chip.platform == "cpu":
        comment = came_from(binding.span, "T5X gives a CPU host to model, whatever the number")
        mesh: dict[str, Data] = {"data": 1, "model": machine.device_count}
        return MeshPart({"mesh": mesh, "hardware": options.hardware}, {("mesh",): comment})
    if machine.chip.torus_rank == 0:
        return _data_and_model(count, options, came_from(binding.span))
    return _default_submesh(count, machine, binding, options)


def _default_submesh(
    count: int, machine: Hardware, binding: GinBinding, options: Options
) -> MeshPart:
    """Return the tile of T5X's table; shardspec's own where T5X would fail."""
    tile = t5x_default_submesh(machine.chip.device_kinds[0], slice_extents(machine), count)
    if tile is None:
        message = f"T5X has no submesh for {count} partitions of {machine}, and fails there"
    elif isinstance(tiling_on(machine, tile), TilingFault):
        shown = shape_text(tile)
        message = f"T5X takes {shown} for {count} partitions, which does not tile {machine}"
    else:
        text = f"submesh {shape_text(tile)}"
        return _data_and_model(text, options, came_from(binding.span, "T5X's own choice"))
    fault = lost(message, binding.span, help=f"`auto {count}` stands there: shardspec chooses")
    found = _data_and_model(f"auto {count}", options, came_from(binding.span))
    return found._replace(faults=(fault,))


def _data_and_model(model: Data, options: Options, comment: Comments) -> MeshPart:
    mesh: dict[str, Data] = {"data": "rest", "model": model}
    return MeshPart({"hardware": options.hardware, "mesh": mesh}, {("mesh", "model"): comment})


def _needs_machine(binding: GinBinding) -> Diagnostic:
    message = f"the mesh of `{binding.argument}` depends on the machine, so none stands in the spec"
    return lost(message, binding.span, help=_HELP)


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


def moe_mesh(arguments: Mapping[str, GinBinding], options: Options) -> MeshPart:
    """Return the mesh (data, expert, model): the largest part of `data` that experts divide.

    Args:
      arguments: of the partitioner, by name.
    """
    base = t5x_mesh(arguments, options)
    mesh = base.data.get("mesh")
    machine = imported.machine_asked(options)
    if not isinstance(mesh, dict) or machine is None:
        return base
    binding = arguments.get(EXPERTS)
    most = binding.value.number if binding is not None and binding.value.kind == "number" else 0
    if most < 1 or not isinstance(most, int):
        why = "is not stated" if binding is None else f"is {binding.value.described()}"
        message = f"`{EXPERTS}` {why}, so no mesh stands in the spec"
        help = "say the mesh: --mesh 'data=4 expert=8 model=2'"
        fault = lost(message, None if binding is None else binding.span, help=help)
        return MeshPart(faults=(*base.faults, fault))
    assert binding is not None
    data = machine.device_count // _moe_size(mesh["model"])
    experts = next(size for size in range(min(most, data), 0, -1) if data % size == 0)
    axes: dict[str, Data] = {"data": mesh["data"], "expert": experts, "model": mesh["model"]}
    comment = came_from(binding.span, f"the most that divides data={data}")
    comments = {**base.comments, ("mesh", "expert"): comment}
    return MeshPart({**base.data, "mesh": axes}, comments, base.faults)


def _moe_size(model: Data) -> int:
    """Return how many devices `4`, `auto 4` or `submesh 4x1x1x1` is."""
    text = str(model).rpartition(" ")[2]
    return math.prod(int(part) for part in text.split("x"))
