"""Which machines, preset and meshes a first spec has, where nobody said, and why.

A model in training holds for each parameter its gradient and two moments as well. One mesh axis is
the least to set up and serves up to some hundred devices; beyond those each would get too few
examples, and weights are split by heads and width as well. Slices and nodes are joined by a
network, over which the batch alone is split, unless one of them is too small for the model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from shardspec.analysis.memory import limit
from shardspec.diagnostics.words import binary_bytes, counted
from shardspec.ir.spec import Hardware, Mesh, Params, Spec, Target
from shardspec.language.catalogue import usual_machines
from shardspec.pipeline import load_text

#: For each parameter beside itself, in training with Adam: a gradient and two moments in f32.
_TRAINING_BYTES = 12
#: The share of a device's memory that a guess lets parameters and their state take.
_USUAL_SHARE = 0.6
#: Devices beyond which one mesh axis leaves too few examples for each.
_MOST_ON_ONE_AXIS = 256
_IN_TRAINING = "parameters, gradients and moments of Adam"
_LAPTOP = "8 cpu"
#: Generations whose slices are tried for a model, the cheaper first.
_USUAL_CHIPS = ("v5e", "v5p")

#: Mesh axes of presets that take what other axes leave, and those that split heads and width.
_REST_AXES = ("fsdp", "data")
_TENSOR_AXES = ("tensor", "model")
_TENSOR_WAYS = (8, 4, 2)
#: What mesh axes that split weights are called, by what they do; axes of presets among them.
_PARTS: Mapping[str, Sequence[str]] = {
    "rest": (*_REST_AXES, "dp", "zero", "dp_shard", "data_parallel"),
    "tensor": (*_TENSOR_AXES, "tp", "mdl", "mp", "tensor_parallel", "model_parallel"),
    "expert": ("expert", "ep", "experts", "expert_parallel"),
}
#: Of any other mesh axis of a preset: enough to show what it does.
_FEW = 2
_REPLICA = "replica"


class Machine(NamedTuple):
    """One target of a first spec.

    Attributes:
      mesh: size by mesh axis, as a spec says it.
      why: how it came to be chosen; "" where somebody said it.
    """

    name: str
    hardware: Hardware
    mesh: Mapping[str, str | int]
    why: str = ""


class Base(NamedTuple):
    """What a first spec extends.

    Attributes:
      spec: the presets alone, merged.
      why: how they came to be chosen; "" where somebody said it.
    """

    presets: tuple[str, ...]
    spec: Spec
    why: str = ""

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """Return the mesh axes of the rules, in order of the rules."""
        axes = (axis for rule in self.spec.axis_rules for axis in rule.mesh_axes)
        return tuple(dict.fromkeys(axes))


def usual_hardware(params: Params) -> tuple[tuple[Hardware, str], ...]:
    """Return a laptop and the smallest usual slice that can train the model, with reasons."""
    laptop = hardware_of(_LAPTOP)
    found = [(laptop, "any laptop, to try it on")] if laptop else []
    slice_, why = _smallest(params)
    return (*found, (slice_, why)) if slice_ else tuple(found)


def _smallest(params: Params) -> tuple[Hardware | None, str]:
    """Return the first of the usual slices with memory for the model, else the last."""
    need = binary_bytes(training_bytes(params))
    largest = None
    for text, entry in usual_machines():
        if entry.chip.name in _USUAL_CHIPS and (found := hardware_of(text)):
            largest = found
            if found.device_count > 1 and has_room(params, found, 1):
                return found, f"the smallest usual slice with room for {need}: {_IN_TRAINING}"
    return largest, f"no usual slice has room for {need}"


def hardware_of(text: str) -> Hardware | None:
    """Return the machine that a spec writes so; None where there is none."""
    spec, _ = load_text(f'hardware: "{text}"\nmesh: {{data: rest}}\n', "hardware")
    return spec.targets[0].hardware if spec and spec.targets else None


def training_bytes(params: Params) -> int:
    """Return what parameters, gradients and moments take, of all devices together."""
    return sum(param.bytes + _TRAINING_BYTES * param.element_count for param in params)


def has_room(params: Params, hardware: Hardware, copies: int) -> bool:
    """Say whether a machine can train a model of which it holds so many copies."""
    of_device = limit(Target("", Mesh(), hardware))
    room = math.inf if of_device is None else of_device * hardware.device_count * _USUAL_SHARE
    return training_bytes(params) * copies <= room


def base_of(presets: Sequence[str], why: str = "") -> Base:
    """Return presets as what a spec extends."""
    spec, _ = load_text(f"extends: [{', '.join(presets)}]\n", "presets")
    assert spec is not None, "presets that come along can be read"
    return Base(tuple(presets), spec, why)


def part_of(name: str) -> str | None:
    """Return what a mesh axis of this name does: `rest`, `tensor`, `expert`; None for no such."""
    return next((part for part, names in _PARTS.items() if name in names), None)


def mesh_axis_for(name: str, mesh_axes: Sequence[str]) -> str | None:
    """Return the mesh axis of presets that does what the name says; None where none does.

    >>> mesh_axis_for("tp", ("fsdp", "tensor")), mesh_axis_for("sp", ("fsdp", "tensor"))
    ('tensor', None)
    """
    if name in mesh_axes:
        return name
    part = part_of(name)
    return next((axis for axis in mesh_axes if part and axis in _PARTS[part]), None)


def ways_for(sizes: Mapping[int, int]) -> int:
    """Return into how many pieces most bytes divide, of dimensions by size with their bytes."""
    total = sum(sizes.values())
    shares = ((ways, sum(sizes[n] for n in sizes if n % ways == 0)) for ways in _TENSOR_WAYS)
    return next((ways for ways, share in shares if 2 * share > total), 1)


def usual_base(
    params: Params,
    machines: Sequence[Hardware],
    has_experts: bool,
    has_tensor: bool = False,
    *,
    is_serving: bool = False,
) -> Base:
    """Return the presets that suit the largest of some machines.

    Args:
      has_tensor: whether arrays name a mesh axis that splits heads and width.
      is_serving: whether the arrays are those of a step that answers from caches.
    """
    if is_serving:
        why = "the step reads caches and computes no gradients, so its weights stay where they are"
        return base_of(("serving",), why)
    largest = max(machines, key=lambda each: each.device_count)
    more = ("expert",) if has_experts else ()
    also = "; `expert` is for arrays that have experts" if has_experts else ""
    devices = largest.devices_per_slice
    if has_tensor:
        why = "arrays name a mesh axis that splits heads and width"
        return base_of(("fsdp-tensor", *more), why + also)
    if devices > _MOST_ON_ONE_AXIS:
        why = f"{devices} devices: over one mesh axis each would have too few examples"
        return base_of(("fsdp-tensor", *more), why + also)
    if largest.slice_count > 1 and not has_room(params, largest, largest.slice_count):
        why = f"one of {counted(largest.slice_count, 'node')} has no room for the model in training"
        return base_of(("fsdp-tensor", *more), why + also)
    why = f"one mesh axis is enough for {counted(devices, 'device')} with fast links"
    return base_of(("fsdp", *more), why + also)


def machine(
    hardware: Hardware, why: str, base: Base, params: Params, widths: Mapping[str, int]
) -> Machine:
    """Return a target whose mesh has what the rules of the presets name.

    Args:
      widths: how many there are of what a mesh axis splits: of heads for `tensor`, of experts.
    """
    axes = base.mesh_axes
    rest = next((axis for axis in _REST_AXES if axis in axes), next(iter(axes), "data"))
    sizes: dict[str, int] = {}
    left = hardware.devices_per_slice
    for axis in axes:
        if axis not in (rest, _REPLICA):
            sizes[axis] = _ways(left, axis, widths)
            left //= sizes[axis]
    mesh: dict[str, str | int] = {}
    slices = hardware.slice_count
    tensor = next((axis for axis in _TENSOR_AXES if axis in sizes), None)
    if slices > 1 and tensor is not None and not has_room(params, hardware, slices):
        # The model is split over all nodes: what each layer waits for stays inside one.
        others = {axis: size for axis, size in sizes.items() if axis != tensor}
        mesh = {rest: f"{slices} @ dcn", **others, tensor: "rest"}
    else:
        if slices > 1:
            mesh[_REPLICA] = f"{slices} @ dcn"
        mesh |= {rest: "rest", **sizes}
    return Machine(_name(hardware, why), hardware, mesh, why)


def _ways(left: int, axis: str, widths: Mapping[str, int]) -> int:
    """Return a size for a mesh axis that divides the devices left and what it splits."""
    of = widths.get("tensor" if axis in _TENSOR_AXES else axis, 0)
    usual = _TENSOR_WAYS if axis in _TENSOR_AXES or of else (_FEW,)
    fitting = (ways for ways in usual if left % ways == 0 and left > ways and of % ways == 0)
    return next(fitting, 1)


def _name(hardware: Hardware, why: str) -> str:
    if hardware.chip.platform == "cpu":
        return "laptop" if why else f"cpu-{hardware.device_count}"
    return f"{hardware.chip.name}-{hardware.device_count}"


def distinct(machines: Sequence[Machine]) -> Iterator[Machine]:
    """Yield machines, those of one name told apart by a letter."""
    seen: dict[str, int] = {}
    for each in machines:
        count = seen[each.name] = seen.get(each.name, 0) + 1
        yield each if count == 1 else each._replace(name=f"{each.name}-{chr(96 + count)}")
