"""Our device order as a `jax.sharding.Mesh`, and the target that a machine's devices fit.

The order comes from `topology`, which knows no devices; here each coordinate gets its device.
All processes list the same devices, so all make the same mesh. Axis types are always passed:
`jax.make_mesh` and `Mesh` no longer agree on a default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from shardspec.diagnostics import Diagnostic, ShardspecError
from shardspec.diagnostics.codes import MESH_PRODUCT, UNKNOWN_TARGET
from shardspec.frontend.catalogue import chips_of_kind
from shardspec.ir.hardware import Hardware, shape_text
from shardspec.ir.mesh import MeshAxis
from shardspec.ir.spec import Target
from shardspec.jax_backend.devices import (
    describe_devices,
    device_extents,
    devices_by_coordinate,
    slices_of,
)
from shardspec.topology.placement import Order, place

if TYPE_CHECKING:
    import jax


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
    import jax
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
    import jax

    sizes = tuple(axis.size for axis in target.mesh.axes)
    types = tuple(_axis_type(axis) for axis in target.mesh.axes)
    return jax.sharding.AbstractMesh(sizes, target.mesh.names, axis_types=types)


def is_abstract(mesh: Any) -> bool:
    """Say whether a mesh has no devices."""
    import jax

    return isinstance(mesh, jax.sharding.AbstractMesh)


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
    import jax

    types = {
        "auto": jax.sharding.AxisType.Auto,
        "explicit": jax.sharding.AxisType.Explicit,
        "manual": jax.sharding.AxisType.Manual,
    }
    return types[axis.axis_type]


def _in_order(target: Target, devices: list[jax.Device], order: Order) -> list[jax.Device]:
    """Return the devices in row-major order of the mesh."""
    if target.hardware is None:
        machine = hardware_of(devices)
        if machine is None:
            return sorted(devices, key=lambda device: device.id)
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
    raise ShardspecError((Diagnostic(UNKNOWN_TARGET, message, notes=wanted, help=help),))


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
    sizes = " * ".join(str(axis.size) for axis in target.mesh.axes)
    message = (
        f"target `{target.name}` needs {sizes} = {target.mesh.device_count} devices, "
        f"but there {'is' if count == 1 else 'are'} {count}"
    )
    hardware = target.hardware
    more = _more_cpus(target, devices) if _may_be_cpu(target.hardware) else None
    help = more or "pass the devices of the whole machine, or another target"
    if hardware is not None and count == 2 * hardware.device_count and hardware.chip.name == "v4":
        help = "each core is a device here: start with megacore, or say `tpu v4-nomegacore`"
    return Diagnostic(MESH_PRODUCT, message, help=help)


def _wrong_machine(target: Target, devices: Sequence[jax.Device]) -> Diagnostic:
    message = (
        f"target `{target.name}` is for {_wish(target)}, but here are {describe_devices(devices)}"
    )
    return Diagnostic(UNKNOWN_TARGET, message, help="name another target, or add one")
