"""Our device order as a `jax.sharding.Mesh`, and the target that a machine's devices fit.

TPU devices say where they stand on the machine's physical axes: slice, coordinates, core. GPUs and
CPU devices do not; they are counted node by node (JAX calls the GPUs of one node a slice), in order
of process and id. No order depends on how the devices are listed, so every process finds the same.

The order comes from `topology`, which knows no devices; here each coordinate gets its device. Those
that a spec lists without a machine are numbered by their ids. Axis types are always passed:
`jax.make_mesh` and `Mesh` no longer agree on a default.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import jax

from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.diagnostics.words import counted, grouped
from shardspec.ir.spec import Hardware, MeshAxis, Target, shape_text
from shardspec.jax_backend.target_devices import TargetDevice
from shardspec.language.catalogue import chips_of_kind
from shardspec.topology.machine import Coordinate, machine_of
from shardspec.topology.placement import Order, place

Triple = tuple[int, int, int]


def devices_by_coordinate(
    devices: Sequence[jax.Device], hardware: Hardware
) -> Mapping[Coordinate, jax.Device] | None:
    """Return each device by its coordinate on `machine_of(hardware)`.

    None where the devices are not that machine: another number, another shape, holes. A slice
    whose axes come in another order (8x4 for 4x8) is turned.
    """
    extents = tuple(axis.extent for axis in machine_of(hardware))
    if len(devices) != hardware.device_count:
        return None
    if hardware.chip.platform != "tpu":
        ordered = [device for members in slices_of(devices) for device in _by_process(members)]
        return dict(zip(itertools.product(*map(range, extents)), ordered, strict=True))
    turn = _turn(devices, (extents[1], extents[2], extents[3]))
    if turn is None:
        return None
    slices = slices_of(devices)
    found: dict[Coordinate, jax.Device] = {}
    for number, members in enumerate(slices):
        low = _low_corner(members)
        for device in members:
            place = [device.coords[axis] - low[axis] for axis in range(3)]
            core = getattr(device, "core_on_chip", 0)
            found[(number, *(place[axis] for axis in turn), core)] = device
    complete = len(found) == len(devices) and set(found) == set(
        itertools.product(*map(range, extents))
    )
    return found if complete else None


def slices_of(devices: Iterable[jax.Device]) -> list[list[jax.Device]]:
    """Return the devices of each slice, by slice index; one slice where devices have none."""
    groups = grouped(devices, lambda device: getattr(device, "slice_index", None) or 0)
    return [groups[index] for index in sorted(groups)]


def _by_process(devices: Iterable[jax.Device]) -> list[jax.Device]:
    return sorted(devices, key=lambda device: (device.process_index, device.id))


def device_extents(devices: Sequence[jax.Device]) -> Triple | None:
    """Return the chips along x, y and z of one slice, or None where devices do not say."""
    coords = [tuple(getattr(device, "coords", None) or ()) for device in devices]
    if not coords or any(len(place) != 3 for place in coords):
        return None
    return _extents_of(devices)


def _extents_of(devices: Sequence[jax.Device]) -> Triple:
    low = _low_corner(devices)
    x, y, z = (max(device.coords[axis] for device in devices) - low[axis] + 1 for axis in range(3))
    return x, y, z


def _low_corner(devices: Iterable[jax.Device]) -> Triple:
    places = [device.coords for device in devices]
    x, y, z = (min(place[axis] for place in places) for axis in range(3))
    return x, y, z


def _turn(devices: Sequence[jax.Device], wanted: Triple) -> Triple | None:
    """Return which of the devices' axes are our x, y and z; the order they have, if it fits."""
    extents = device_extents(devices)
    if extents is None:
        return None
    for x, y, z in itertools.permutations(range(3)):
        if (extents[x], extents[y], extents[z]) == wanted:
            return x, y, z
    return None


def describe_devices(devices: Sequence[jax.Device]) -> str:
    """Return `8 devices of kind 'cpu'`, with slices and topology where they are known."""
    if not devices:
        return "no devices"
    kinds = sorted({device.device_kind for device in devices})
    shape = device_extents(devices)
    where = f" in a topology of {'x'.join(map(str, shape))} chips" if shape else ""
    count = len(slices_of(devices))
    slices = f" in {count} slices" if count > 1 else ""
    amount = counted(len(devices), "device")
    return f"{amount} of kind {', '.join(map(repr, kinds))}{slices}{where}"


#: What to lay out on: devices, all that this machine has, or none.
Devices: TypeAlias = "Sequence[jax.Device] | Literal['abstract'] | None"


def mesh_for(target: Target, devices: Devices, order: Order) -> Any:
    """Return the mesh of `target`: `device_mesh`, or `abstract_mesh` where there are no devices.

    Raises:
      ShardspecError: as `device_mesh`.
    """
    if isinstance(devices, str):
        return abstract_mesh(target)
    return device_mesh(target, devices, order=order)


def device_mesh(
    target: Target, devices: Sequence[jax.Device] | None = None, *, order: Order = "t5x"
) -> jax.sharding.Mesh:
    """Return the mesh of `target` over real devices, in the order the topology asks for.

    Args:
      devices: those of every process, in any order; None takes `jax.devices()`.
      order: how a mesh axis counts the chips of its tile, see `topology.placement.place`.

    Raises:
      ShardspecError: the devices are not the target's machine, or its mesh does not fit it.
    """
    import numpy as np

    chosen = list(jax.devices() if devices is None else devices)
    shape = tuple(axis.size for axis in target.mesh.axes)
    if len(chosen) != target.mesh.device_count:
        raise ShardspecError((_wrong_count(target, chosen),))
    array = np.empty(len(chosen), dtype=object)
    array[:] = _in_order(target, chosen, order)
    types = tuple(_axis_type(axis) for axis in target.mesh.axes)
    return jax.sharding.Mesh(array.reshape(shape), target.mesh.names, axis_types=types)


def abstract_mesh(target: Target) -> jax.sharding.AbstractMesh:
    """Return the mesh of `target` without devices: names, sizes and axis types."""
    sizes = tuple(axis.size for axis in target.mesh.axes)
    types = tuple(_axis_type(axis) for axis in target.mesh.axes)
    return jax.sharding.AbstractMesh(sizes, target.mesh.names, axis_types=types)


def is_abstract(mesh: Any) -> bool:
    """Say whether a mesh has no devices that arrays could be put on."""
    return isinstance(mesh, jax.sharding.AbstractMesh) or has_target_devices(mesh)


def has_target_devices(mesh: Any) -> bool:
    """Say whether a mesh is of the devices of a machine that is not here."""
    is_whole = isinstance(mesh, jax.sharding.Mesh) and not mesh.empty
    return is_whole and isinstance(mesh.devices.flat[0], TargetDevice)


def need_devices(mesh: Any, call: str) -> None:
    """Refuse what only devices can do.

    Raises:
      TypeError: the mesh has none.
    """
    if is_abstract(mesh):
        raise TypeError(
            f"{call} needs devices, and this resolver has none (`devices='abstract'`): make one"
            " with `devices=None` on the machine of the target"
        )


def _axis_type(axis: MeshAxis) -> jax.sharding.AxisType:
    """Return JAX's word for the type of a mesh axis."""
    return jax.sharding.AxisType[axis.axis_type.capitalize()]


def _in_order(target: Target, devices: list[jax.Device], order: Order) -> list[jax.Device]:
    """Return the devices in row-major order of the mesh."""
    if target.hardware is None:
        machine = hardware_of(devices)
        if machine is None:
            by_id = sorted(devices, key=lambda device: device.id)
            return [by_id[number] for number in target.devices] or by_id
        target = dataclasses.replace(target, hardware=machine)
    hardware = target.hardware
    assert hardware is not None
    found = devices_by_coordinate(devices, hardware)
    if found is None:
        raise ShardspecError((_wrong_machine(target, devices),))
    placement = place(target, order)
    if isinstance(placement, Diagnostic):
        raise ShardspecError((placement,))
    return [found[coordinate] for coordinate in placement.coordinates()]


def hardware_of(devices: Sequence[jax.Device]) -> Hardware | None:
    """Return the machine that these devices are; None where the catalogue does not know it."""
    kinds = {device.device_kind for device in devices}
    if len(kinds) != 1 or devices[0].platform != "tpu":
        return None
    extents = device_extents(devices)
    chips = chips_of_kind(kinds.pop())
    if extents is None or not chips:
        return None
    count = len(slices_of(devices))
    machines = (Hardware(chip, count, extents[: chip.torus_rank]) for chip in chips)
    return next((each for each in machines if each.device_count == len(devices)), None)


def match_target(targets: Sequence[Target], devices: Sequence[jax.Device]) -> Target:
    """Return the target whose hardware is what `devices` are.

    A target without hardware fits any devices of the right number, if no other target does.

    Raises:
      ShardspecError: none fits; the message says what is here and what each target wants.
    """
    stated = [target for target in targets if target.hardware and _fits(target.hardware, devices)]
    bare = [
        target
        for target in targets
        if target.hardware is None and target.mesh.device_count == len(devices)
    ]
    for target in (*stated, *bare):
        return target
    wanted = tuple(f"target `{target.name}` wants {_wish(target)}" for target in targets)
    message = f"no target fits the devices here: {describe_devices(devices)}"
    fits_cpu = (target for target in targets if _may_be_cpu(target.hardware))
    help = _more_cpus(next(fits_cpu, None), devices) or "add a target for this machine"
    if targets:
        help += f"; {_elsewhere(targets[0])}"
    raise ShardspecError((Diagnostic(codes.UNKNOWN_TARGET, message, notes=wanted, help=help),))


def _fits(hardware: Hardware, devices: Sequence[jax.Device]) -> bool:
    """Say whether the devices are of the kind, the number and the topology of `hardware`."""
    kinds = {device.device_kind for device in devices}
    is_kind = kinds <= set(hardware.chip.device_kinds)
    return is_kind and devices_by_coordinate(devices, hardware) is not None


def _wish(target: Target) -> str:
    hardware = target.hardware
    if hardware is None:
        return f"{target.mesh.device_count} devices of any kind"
    shape = shape_text(hardware.topology)
    slices = f"{hardware.slice_count} * " if hardware.slice_count > 1 else ""
    return f"{slices}{hardware.chip.title} {shape}, {hardware.device_count} devices"


def _may_be_cpu(hardware: Hardware | None) -> bool:
    return hardware is None or hardware.chip.platform == "cpu"


def _more_cpus(target: Target | None, devices: Sequence[jax.Device]) -> str | None:
    """Return how a lone CPU shows as many devices as a target wants; None where there are more."""
    if target is None or len(devices) != 1 or devices[0].platform != "cpu":
        return None
    flag = f"--xla_force_host_platform_device_count={target.mesh.device_count}"
    return f"one CPU shows more devices under `XLA_FLAGS={flag}`, set before jax is first used"


def _wrong_count(target: Target, devices: Sequence[jax.Device]) -> Diagnostic:
    count = len(devices)
    sizes = [str(axis.size) for axis in target.mesh.axes]
    product = f"{' * '.join(sizes)} = " if len(sizes) > 1 else ""
    message = (
        f"target `{target.name}` needs {product}{counted(target.mesh.device_count, 'device')}, "
        f"but there {'is' if count == 1 else 'are'} {count}"
    )
    hardware = target.hardware
    more = _more_cpus(target, devices) if _may_be_cpu(target.hardware) else None
    help = more or "pass the devices of the whole machine, or another target"
    if hardware is not None and count == 2 * hardware.device_count and hardware.chip.name == "v4":
        help = "each core is a device here: start with megacore, or say `tpu v4-nomegacore`"
    return Diagnostic(codes.MESH_PRODUCT, message, help=help)


def _wrong_machine(target: Target, devices: Sequence[jax.Device]) -> Diagnostic:
    message = (
        f"target `{target.name}` is for {_wish(target)}, but here are {describe_devices(devices)}"
    )
    help = f"name another target, or add one; {_elsewhere(target)}"
    return Diagnostic(codes.UNKNOWN_TARGET, message, help=help)


def _elsewhere(target: Target) -> str:
    """Return how code is traced for a machine that is not here, as `cost --step` does."""
    asked = f'target="{target.name}", devices="abstract"'
    return f"to trace for a machine that is not here, `Resolver(spec, {asked})`"
