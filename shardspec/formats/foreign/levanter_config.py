"""The `trainer:` of a Levanter configuration -> its two axis mappings and its mesh.

Two forms are in use. The older has `tensor_parallel_axes`, `fsdp_axis`, `batch_axis` and
`axis_resources` beside sizes of mesh axes; the newer one has all of it under `mesh:`. In both,
parameters have what is computed has, or the defaults, and entries of their own on top.
Source: stanford-crfm/levanter at 0db8f18, `levanter.trainer.TrainerConfig`; marin-community/marin,
`lib/levanter/src/levanter/utils/mesh.py`, `MeshConfig`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic
from shardspec.formats.foreign.imported import Options, bad, came_from, lost
from shardspec.formats.foreign.machine import machine_named
from shardspec.formats.foreign.node import Node
from shardspec.formats.foreign.rules import ForeignRule, MeshAxes
from shardspec.frontend.reading import Comments, Data, Route
from shardspec.ir.hardware import Hardware

AxisMapping = dict[str, ForeignRule]

_DEFAULTS = {"mlp": ("model",), "heads": ("model",)}
_BATCH: MeshAxes = ("replica_dcn", "replica", "data")
_HELP = "say the machine, --hardware 'tpu v4 4x4x4', or the mesh itself, --mesh 'data=8 model=8'"


@dataclass(frozen=True, slots=True)
class LevanterMapping:
    """The mappings, with what else of a document comes with them.

    Attributes:
      params: of parameters and optimizer state.
      computed: of everything that is computed.
      reasons: why an axis is in a mapping, by its name.
      tool: whose mapping it is; "" for a class of rules.
    """

    params: AxisMapping
    computed: AxisMapping
    batch_axis: str | None = None
    data: Mapping[str, Data] = field(default_factory=dict)
    comments: Mapping[Route, Comments] = field(default_factory=dict)
    lints: Mapping[str, Data] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[Diagnostic, ...] = ()
    is_levanter: bool = True
    tool: str = "Levanter"


class _MeshPart(NamedTuple):
    data: Mapping[str, Data] = {}
    comments: Mapping[Route, Comments] = {}
    faults: tuple[Diagnostic, ...] = ()


def read_mapping(node: Node | None) -> AxisMapping | tuple[Diagnostic, ...]:
    """Return a mapping of axis names to mesh axes, or what in it is none."""
    if node is None or node.kind == "nothing":
        return {}
    if node.kind != "mapping":
        why = node.text if node.kind == "unreadable" else f"it is {node.described()}"
        return (bad(f"this is no mapping of axes to mesh axes: {why}", node.span),)
    mapping: AxisMapping = {}
    faults: list[Diagnostic] = []
    for key, value in zip(node.keys, node.items, strict=True):
        axes = _axes(value)
        if key.kind != "text" or axes is None:
            wrong = key if key.kind != "text" else value
            why = wrong.text if wrong.kind == "unreadable" else wrong.described()
            faults.append(bad(f"an axis maps to names of mesh axes: not {why}", wrong.span))
        else:
            mapping[key.text] = ForeignRule(key.text, axes, span=key.span)
    return tuple(faults) or mapping


def _axes(value: Node) -> MeshAxes | None:
    if value.kind == "nothing":
        return ()
    if value.kind == "text" and value.text:
        return (value.text,)
    if value.is_list and all(item.kind == "text" and item.text for item in value.items):
        return tuple(item.text for item in value.items)
    return None


def levanter_mapping(trainer: Node, options: Options) -> LevanterMapping:
    """Return what a `trainer:` says."""
    if trainer.kind != "mapping":
        fault = bad(f"`trainer` is {trainer.described()}, not a mapping", trainer.span)
        return LevanterMapping({}, {}, faults=(fault,))
    mesh = trainer.get("mesh")
    newer = mesh is not None and mesh.kind == "mapping"
    return _newer(mesh, options) if newer and mesh is not None else _older(trainer, options)


def _older(trainer: Node, options: Options) -> LevanterMapping:
    keys = ("axis_resources", "parameter_axis_resources")
    read = [read_mapping(trainer.get(key)) for key in keys]
    faults = tuple(fault for each in read if isinstance(each, tuple) for fault in each)
    names = _names(trainer, "tensor_parallel_axes"), _names(trainer, "fsdp_axis", "embed")
    faults += tuple(each for each in names if isinstance(each, Diagnostic))
    batch = trainer.get("batch_axis")
    if faults:
        return LevanterMapping({}, {}, faults=faults)
    (resources, own), (tensor, fsdp) = read, names
    assert isinstance(resources, dict)
    assert isinstance(own, dict)
    assert isinstance(tensor, tuple)
    assert isinstance(fsdp, tuple)
    computed = dict(resources)
    reasons = {}
    for name, at in tensor:
        computed[name] = ForeignRule(name, ("model",), span=at.span)
        reasons[name] = "tensor_parallel_axes"
    batch_axis = batch.text if batch is not None and batch.kind == "text" else None
    if batch is None:
        batch_axis = "batch"
    at = batch or trainer
    if batch_axis is not None:
        computed[batch_axis] = ForeignRule(batch_axis, ("replica", "data"), span=at.span)
        reasons[batch_axis] = "batch_axis" + ("" if batch else ", Levanter's default")
    params = {**computed, **own}
    for name, each in fsdp:
        params[name] = ForeignRule(name, ("data",), span=each.span)
        given = trainer.get("fsdp_axis") is not None
        reasons[name] = "fsdp_axis" + ("" if given else ", Levanter's default")
    part = _older_mesh(trainer, options)
    return LevanterMapping(
        params, computed, batch_axis, part.data, part.comments,
        {"size-one-axis": "allow"}, reasons, part.faults,
    )  # fmt: skip


def _names(
    trainer: Node, key: str, default: str | None = None
) -> tuple[tuple[str, Node], ...] | Diagnostic:
    """Return the axis names of a key, with their places."""
    node = trainer.get(key)
    if node is None:
        return () if default is None else ((default, trainer),)
    if node.kind == "nothing":
        return ()
    items = node.items if node.is_list else (node,)
    wrong = next((item for item in items if item.kind != "text"), None)
    if wrong is not None:
        return bad(f"`{key}` has names of axes: not {wrong.described()}", wrong.span)
    return tuple((item.text, item) for item in items)


def _older_mesh(trainer: Node, options: Options) -> _MeshPart:
    """Return the mesh (replica, data, model): replicas first, data is what is left over."""
    if options.mesh:
        return _MeshPart()
    sizes = [
        _size(trainer, key)
        for key in ("replica_ici_axis_size", "replica_dcn_axis_size", "model_axis_size")
    ]
    faults = tuple(each for each in sizes if isinstance(each, Diagnostic))
    if faults:
        return _MeshPart(faults=faults)
    ici, dcn, model = (each for each in sizes if isinstance(each, int))
    machine = _machine(options)
    if machine is None:
        return _MeshPart(faults=(_needs_machine(trainer),))
    across = machine.slice_count if dcn == -1 else dcn
    replica: Data = f"{across} @ dcn" if across > 1 and ici == 1 else ici * across
    mesh: dict[str, Data] = {"replica": replica, "data": "rest", "model": model}
    at = trainer.get("model_axis_size") or trainer
    return _MeshPart({"hardware": options.hardware, "mesh": mesh}, {("mesh",): came_from(at.span)})


def _size(trainer: Node, key: str) -> int | Diagnostic:
    node = trainer.get(key)
    if node is None:
        return 1
    if node.kind == "number" and isinstance(node.number, int) and -1 <= node.number < 2**31:
        return node.number or 1
    return bad(f"`{key}` is {node.described()}, not a size", node.span)


def _needs_machine(node: Node) -> Diagnostic:
    message = "how long the mesh axes are depends on the machine, so no mesh stands in the spec"
    return lost(message, node.span, help=_HELP)


def _machine(options: Options) -> Hardware | None:
    found = None if options.hardware is None else machine_named(options.hardware)
    return found if isinstance(found, Hardware) else None


def _newer(mesh: Node, options: Options) -> LevanterMapping:
    keys = ("shared_mapping", "compute_mapping", "param_mapping")
    read = [read_mapping(mesh.get(key)) for key in keys]
    faults = tuple(fault for each in read if isinstance(each, tuple) for fault in each)
    if faults:
        return LevanterMapping({}, {}, faults=faults)
    shared, compute, own = (each for each in read if isinstance(each, dict))
    reasons = {name: "Levanter's default" for name in _DEFAULTS if name not in shared}
    defaults = {name: ForeignRule(name, axes, span=mesh.span) for name, axes in _DEFAULTS.items()}
    if mesh.get("param_mapping") is None:
        own = {"embed": ForeignRule("embed", ("data",), span=mesh.span)}
        reasons["embed"] = "Levanter's default"
    both = {**defaults, **shared}
    batch = mesh.get("batch_axis_name")
    batch_axis = "batch" if batch is None else (batch.text if batch.kind == "text" else None)
    computed = dict(both)
    if batch_axis is not None and batch_axis not in computed:
        axes = compute["batch"].mesh_axes if "batch" in compute else _BATCH
        computed[batch_axis] = ForeignRule(batch_axis, axes, span=mesh.span)
        reasons[batch_axis] = "" if "batch" in compute else "Levanter's default"
    computed |= compute
    part = _newer_mesh(mesh, options)
    return LevanterMapping(
        {**both, **own}, computed, batch_axis, part.data, part.comments,
        {"size-one-axis": "allow"}, reasons, part.faults,
    )  # fmt: skip


def _newer_mesh(mesh: Node, options: Options) -> _MeshPart:
    """Return the mesh of `axes` and `dcn_axes`: -1 takes what is left inside, or across, slices."""
    if options.mesh:
        return _MeshPart()
    inside = _with_defaults(mesh.get("axes"), {"data": -1, "replica": 1, "model": 1}, "data")
    across = _with_defaults(mesh.get("dcn_axes"), {"replica_dcn": -1}, "replica_dcn")
    faults = [each for each in (inside, across) if isinstance(each, Diagnostic)]
    if isinstance(inside, Diagnostic) or isinstance(across, Diagnostic):
        return _MeshPart(faults=tuple(faults))
    twice = next(iter(inside.keys() & across.keys()), None)
    if twice is not None:
        message = f"`{twice}` stands in `axes` and in `dcn_axes` (ValueError)"
        return _MeshPart(faults=(bad(message, mesh.span),))
    machine = _machine(options)
    if machine is None and -1 in inside.values():
        return _MeshPart(faults=(_needs_machine(mesh),))
    slices = machine.slice_count if machine is not None else 1
    sizes = {
        **{axis: "rest" if size == -1 else size for axis, size in inside.items()},
        **dict(_across(across, slices)),
    }
    data: dict[str, Data] = {"mesh": dict(sizes)}
    if machine is not None:
        data["hardware"] = options.hardware
    return _MeshPart(data, {("mesh",): came_from(mesh.span)})


def _across(sizes: Mapping[str, int], slices: int) -> Iterator[tuple[str, Data]]:
    known = 1
    for size in sizes.values():
        known *= max(size, 1)
    for axis, size in sizes.items():
        count = max(slices // known, 1) if size == -1 else size
        yield axis, f"{count} @ dcn" if count > 1 else count


def _with_defaults(
    node: Node | None, defaults: Mapping[str, int], absorber: str
) -> dict[str, int] | Diagnostic:
    """Return sizes on top of the defaults; where two take the rest, the default one is 1."""
    sizes = dict(defaults)
    given: dict[str, int] = {}
    if node is not None and node.kind == "mapping":
        for key, value in zip(node.keys, node.items, strict=True):
            if key.kind != "text" or value.kind != "number" or not isinstance(value.number, int):
                return bad(f"a mesh axis has a size: not {value.described()}", value.span)
            if value.number < -1 or value.number == 0 or value.number >= 2**31:
                return bad(f"`{key.text}` is {value.text}, which is no size", value.span)
            given[key.text] = value.number
    elif node is not None and node.kind != "nothing":
        return bad(f"mesh axes are a mapping to sizes, not {node.described()}", node.span)
    sizes |= given
    rest = [axis for axis, size in sizes.items() if size == -1]
    if len(rest) > 1 and absorber not in given:
        sizes[absorber] = 1
        rest.remove(absorber)
    if len(rest) > 1 and node is not None:
        return bad(f"only one of {', '.join(rest)} can take what is left (-1)", node.span)
    return sizes
