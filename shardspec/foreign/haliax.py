"""Axis mappings of Haliax, and the configurations of Levanter that make two of them.

The `trainer:` of a Levanter configuration has two forms in use. The older has
`tensor_parallel_axes`, `fsdp_axis`, `batch_axis` and `axis_resources` beside sizes of mesh axes;
the newer one has all of it under `mesh:`. In both, parameters have what is computed has, or the
defaults, and entries of their own on top.
Source: stanford-crfm/levanter at 0db8f18, `levanter.trainer.TrainerConfig`; marin-community/marin,
`lib/levanter/src/levanter/utils/mesh.py`, `MeshConfig`.

A mapping is a dictionary from axis names to mesh axes. An axis that is not in it is whole; nothing
looks whether a mesh axis is used twice, which JAX refuses later. Levanter has one mapping for
parameters and one for what is computed; a spec has one list of rules, which is that of parameters.
A class of rules, such as the `ShardingRules` of jax-llm-examples, is such a mapping too: its fields
are axes, and what stands for them in a call or as a default are mesh axes.
Source: haliax 1.3, `haliax.partitioning.pspec_for_axis`.

Written is YAML with one mapping. Haliax compares names and nothing else: a name has the same mesh
axes in every array. Levanter takes it as `trainer.axis_resources`, over defaults of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, SourceFile, parted
from shardspec.foreign import formats, python_text
from shardspec.foreign.formats import Answer, ForeignRule, MeshPart, Options, bad, lost
from shardspec.foreign.values import Node, mapping_of
from shardspec.ir.spec import Mesh, Param, Params
from shardspec.language.reading import Data
from shardspec.language.yaml_text.printer import print_string

AxisMapping = dict[str, ForeignRule]

_DEFAULTS = {"mlp": ("model",), "heads": ("model",)}
_BATCH: formats.MeshAxes = ("replica_dcn", "replica", "data")


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
    mesh: MeshPart = formats.NO_MESH
    reasons: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[Diagnostic, ...] = ()
    tool: str = "Levanter"


def _mappings(node: Node, *keys: str) -> tuple[tuple[AxisMapping, ...], tuple[Diagnostic, ...]]:
    """Return the mappings of some keys, and what in them is none."""
    read = [read_mapping(node.get(key)) for key in keys]
    return tuple(each for each, _ in read), tuple(f for _, faults in read for f in faults)


def read_mapping(node: Node | None) -> tuple[AxisMapping, tuple[Diagnostic, ...]]:
    """Return a mapping of axis names to mesh axes, and what in it is none."""
    if node is None or node.kind == "nothing":
        return {}, ()
    if node.kind != "mapping":
        why = node.text if node.kind == "unreadable" else f"it is {node.described()}"
        return {}, (bad(f"this is no mapping of axes to mesh axes: {why}", node.span),)
    mapping: AxisMapping = {}
    faults: list[Diagnostic] = []
    for key, value in node.pairs:
        axes = value.names
        if key.kind != "text" or axes is None or not all(axes):
            wrong = key if key.kind != "text" else value
            why = wrong.text if wrong.kind == "unreadable" else wrong.described()
            faults.append(bad(f"an axis maps to names of mesh axes: not {why}", wrong.span))
        else:
            mapping[key.text] = ForeignRule(key.text, axes, span=key.span)
    return mapping, tuple(faults)


def levanter_mapping(trainer: Node, options: Options) -> LevanterMapping:
    """Return what a `trainer:` says."""
    if trainer.kind != "mapping":
        fault = bad(f"`trainer` is {trainer.described()}, not a mapping", trainer.span)
        return LevanterMapping({}, {}, faults=(fault,))
    mesh = trainer.get("mesh")
    newer = mesh is not None and mesh.kind == "mapping"
    return _newer(mesh, options) if newer and mesh is not None else _older(trainer, options)


def _older(trainer: Node, options: Options) -> LevanterMapping:
    (resources, own), faults = _mappings(trainer, "axis_resources", "parameter_axis_resources")
    given = (("tensor_parallel_axes", None), ("fsdp_axis", "embed"))
    names, wrong = parted(_names(trainer, key, default) for key, default in given)
    batch = trainer.get("batch_axis")
    if faults or wrong:
        return LevanterMapping({}, {}, faults=(*faults, *wrong))
    tensor, fsdp = names
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
        is_stated = trainer.get("fsdp_axis") is not None
        reasons[name] = "fsdp_axis" + ("" if is_stated else ", Levanter's default")
    part = formats.mesh_part(_older_mesh(trainer, options))
    return LevanterMapping(params, computed, batch_axis, part, reasons, part.faults)


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


def _older_mesh(trainer: Node, options: Options) -> MeshPart | Diagnostic:
    """Return the mesh (replica, data, model): replicas first, data is what is left over."""
    if options.mesh:
        return formats.NO_MESH
    keys = ("replica_ici_axis_size", "replica_dcn_axis_size", "model_axis_size")
    sizes, faults = parted(_size(trainer, key) for key in keys)
    if faults:
        return MeshPart(faults=faults)
    ici, dcn, model = sizes
    machine = formats.machine_asked(options)
    if machine is None:
        return _needs_machine(trainer)
    replica = formats.across_slices(ici, machine.slice_count if dcn == -1 else dcn)
    mesh: dict[str, Data] = {"replica": replica, "data": "rest", "model": model}
    at = formats.came_from((trainer.get("model_axis_size") or trainer).span)
    return MeshPart({"hardware": options.hardware, "mesh": mesh}, {("mesh",): at})


def _size(trainer: Node, key: str) -> int | Diagnostic:
    node = trainer.get(key)
    if node is None:
        return 1
    if node.whole is not None and -1 <= node.whole < 2**31:
        return node.whole or 1
    return bad(f"`{key}` is {node.described()}, not a size", node.span)


def _needs_machine(node: Node) -> Diagnostic:
    message = "how long the mesh axes are depends on the machine, so no mesh stands in the spec"
    return lost(message, node.span, help=formats.SAY_MACHINE)


def _newer(mesh: Node, options: Options) -> LevanterMapping:
    keys = ("shared_mapping", "compute_mapping", "param_mapping")
    (shared, compute, own), faults = _mappings(mesh, *keys)
    if faults:
        return LevanterMapping({}, {}, faults=faults)
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
    part = formats.mesh_part(_newer_mesh(mesh, options))
    return LevanterMapping({**both, **own}, computed, batch_axis, part, reasons, part.faults)


def _newer_mesh(mesh: Node, options: Options) -> MeshPart | Diagnostic:
    """Return the mesh of `axes` and `dcn_axes`: -1 takes what is left inside, or across, slices."""
    if options.mesh:
        return formats.NO_MESH
    inside = _with_defaults(mesh.get("axes"), {"data": -1, "replica": 1, "model": 1}, "data")
    across = _with_defaults(mesh.get("dcn_axes"), {"replica_dcn": -1}, "replica_dcn")
    sized, faults = parted((inside, across))
    if faults:
        return MeshPart(faults=faults)
    inside, across = sized
    twice = next(iter(inside.keys() & across.keys()), None)
    if twice is not None:
        return bad(f"`{twice}` stands in `axes` and in `dcn_axes` (ValueError)", mesh.span)
    machine = formats.machine_asked(options)
    if machine is None and -1 in inside.values():
        return _needs_machine(mesh)
    slices = machine.slice_count if machine is not None else 1
    known = math.prod(max(size, 1) for size in across.values())
    sizes: dict[str, Data] = {axis: "rest" if size == -1 else size for axis, size in inside.items()}
    for axis, size in across.items():
        sizes[axis] = formats.across_slices(1, max(slices // known, 1) if size == -1 else size)
    data: dict[str, Data] = {"mesh": sizes}
    if machine is not None:
        data["hardware"] = options.hardware
    return MeshPart(data, {("mesh",): formats.came_from(mesh.span)})


def _with_defaults(
    node: Node | None, defaults: Mapping[str, int], absorber: str
) -> dict[str, int] | Diagnostic:
    """Return sizes on top of the defaults; where two take the rest, the default one is 1."""
    sizes = dict(defaults)
    given: dict[str, int] = {}
    if node is not None and node.kind == "mapping":
        for key, value in node.pairs:
            size = value.whole
            if key.kind != "text" or size is None:
                return bad(f"a mesh axis has a size: not {value.described()}", value.span)
            if size < -1 or size == 0 or size >= 2**31:
                return bad(f"`{key.text}` is {value.text}, which is no size", value.span)
            given[key.text] = size
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


_FORM = "a mapping of axis names to mesh axes: {embed: data, mlp: model}"
_CLASS = "the class of rules"
_NAMES = ("parameter_axis_mapping", "axis_mapping", "param_axis_mapping", "axis_resources")


class HaliaxReading(NamedTuple):
    """The mapping that parameters have.

    Attributes:
      is_class: whether names that are not in it are an error, as the fields of a class are.
    """

    mapping: tuple[ForeignRule, ...]
    is_class: bool = False


def read(sources: Sequence[SourceFile], options: Options) -> formats.Outcome:
    """Return the spec that says what a mapping does."""
    if len(sources) != 1:
        return None, (bad(f"one file, please: here are {len(sources)}", sources[1].whole),)
    found = _find(sources[0], options)
    if isinstance(found, tuple):
        return None, found
    if any(fault.is_error for fault in found.faults):
        return None, found.faults
    tool = found.tool
    rules, faults = parted(formats.writable(found.params.values(), tool))
    if found.batch_axis in found.computed and found.batch_axis not in found.params:
        rules += (found.computed[found.batch_axis],)
    faults = (*found.faults, *faults, *_only_computed(found))
    lines = (formats.rule_line(rule, found.reasons.get(str(rule.name), "")) for rule in rules)
    data, comments = formats.rules_document(lines, formats.AS_JAX, found.mesh)
    data["doc"] = "Rules of a class" if tool == _CLASS else f"{tool}'s mapping of parameters"
    if tool == "Levanter":
        data["lints"] = {"axis-without-array": "allow", "size-one-axis": "allow"}
    reading = HaliaxReading(tuple(found.params.values()), tool == _CLASS)
    return formats.Imported(data, comments, reading, tool, leaves_whole=True), faults


def _only_computed(found: LevanterMapping) -> list[Diagnostic]:
    """Return a finding for each axis that is laid out otherwise in what is computed."""
    faults = []
    for name, rule in found.computed.items():
        ours = found.params.get(name)
        if name == found.batch_axis or (ours is not None and ours.mesh_axes == rule.mesh_axes):
            continue
        there = formats.rule_text(name, rule.mesh_axes)
        here = "whole" if ours is None else f"`{formats.rule_text(name, ours.mesh_axes)}`"
        message = f"`{there}` is for what is computed; in parameters the axis is {here}"
        help = "an activation that has it: rename the axis there, and give that name the rule"
        faults.append(lost(message, rule.span, help=help))
    for name, ours in found.params.items():
        if found.tool == "Levanter" and name not in found.computed and ours.mesh_axes:
            text = formats.rule_text(name, ours.mesh_axes)
            message = f"`{text}` is for parameters; what is computed keeps `{name}` whole"
            help = "activations with it are split here too: `constrain` them by another name"
            faults.append(lost(message, ours.span, help=help))
    return faults


def _find(source: SourceFile, options: Options) -> LevanterMapping | tuple[Diagnostic, ...]:
    values = python_text.read_named_values(source)
    if isinstance(values, tuple):
        return values
    root = values.root
    if root is not None and options.name is None:
        trainer = root.get("trainer")
        if trainer is not None:
            return levanter_mapping(trainer, options)
        if _is_mapping(root):
            return _plain(root)
    return _choose(values, source, options)


def _classes_as_used(values: python_text.NamedValues) -> Iterator[tuple[str, Node]]:
    """Yield classes of rules, with what the only call of one gives in place of its defaults."""
    for name, fields in values.rules:
        last = name.rpartition(".")[2]
        calls = [v for _, v in values.named if v.kind == "call" and v.last_name == last]
        own = calls[0].keywords if len(calls) == 1 and not calls[0].items else ()
        given = {key for key, _ in own}
        kept = (pair for pair in fields.pairs if pair[0].text not in given)
        ours = ((Node("text", value.span, key), value) for key, value in own)
        yield name, mapping_of(fields.span, (*kept, *ours))


def _choose(
    values: python_text.NamedValues, source: SourceFile, options: Options
) -> LevanterMapping | tuple[Diagnostic, ...]:
    classes = tuple(_classes_as_used(values))
    named, name = (*classes, *values.named), options.name
    fitting = [(key, value) for key, value in named if _is_mapping(value)]
    if name is not None:
        meant = python_text.by_name(named, name, source, _FORM)
        if isinstance(meant, Diagnostic):
            return (meant,)
        fitting = [(name, meant)]
    usual = [each for each in fitting if each[0].rpartition(".")[2] in _NAMES]
    if len(fitting) > 1 and len(usual) == 1:
        fitting = usual
    is_class = bool(fitting) and any(fitting[0][1] is node for _, node in classes)
    if name is None and not usual and not is_class:
        found = python_text.likely(fitting, [axis for axis, _ in options.mesh])
        if isinstance(found, Diagnostic):
            return (found,)
        fitting = list(found)
    if not fitting:
        return (python_text.no_list(source, "axis mapping", _FORM),)
    if len(fitting) > 1:
        keys = [key for key, _ in fitting]
        return (python_text.several(source, keys, "mappings", fitting[1][1].span),)
    plain = _plain(fitting[0][1])
    is_class = any(fitting[0][1] is node for _, node in classes)
    return replace(plain, tool=_CLASS) if is_class else plain


def _is_mapping(node: Node) -> bool:
    """Say whether a value maps names to mesh axes."""
    return node.has_names and all(item.names is not None for item in node.items)


def _plain(node: Node) -> LevanterMapping:
    mapping, faults = read_mapping(node)
    return LevanterMapping(mapping, {}, tool="Haliax", faults=faults)


def answer(reading: HaliaxReading, params: Params, mesh: Mesh) -> tuple[Answer, ...]:
    """Return what the mapping gives each array; one without names is whole."""
    mapping = {rule.name: rule.mesh_axes for rule in reading.mapping}
    return tuple(_answer(reading, mapping, param, mesh) for param in params)


def _answer(
    reading: HaliaxReading, mapping: dict[str | None, tuple[str, ...]], param: Param, mesh: Mesh
) -> Answer:
    names = param.logical_axes or (None,) * param.rank
    known = [name for name in names if name is not None]
    if reading.is_class:
        why = "the class has no field `{}` (AttributeError)"
        wrong = [name for name in known if name not in mapping]
    else:
        why = "`{}` names two dimensions, which Haliax refuses (ValueError)"
        wrong = [name for name in known if known.count(name) > 1]
    if wrong:
        help = "add the field to the class" if reading.is_class else "name each dimension apart"
        return formats.NoAnswer(why.format(wrong[0]), help=help)
    return formats.placed(tuple(mapping.get(name, ()) for name in names), param, mesh)


def write(request: formats.Request) -> formats.Written:
    """Return the mapping under which Haliax gives the plan's answers."""
    mapping, faults = formats.by_name(request, "Haliax")
    lines = [f"  {_word(name)}: {_value(axes)}" for name, axes in mapping.items() if axes]
    head = f"# Exported by shardspec from {request.title}"
    section = "axis_mapping:" if lines else "axis_mapping: {}"
    text = "\n".join((head, section, *lines)) + "\n"
    return text, (*faults, *formats.losses(request, "an axis mapping"))


def _value(axes: formats.MeshAxes) -> str:
    words = ", ".join(map(_word, axes))
    return words if len(axes) == 1 else f"[{words}]"


def _word(name: str) -> str:
    return print_string(name, in_flow=True)
