"""A plain Python module of literal layouts: a mesh of real devices, and a NamedSharding a path.

It needs jax and numpy and no shardspec. The devices stand in the mesh as `Resolver` puts them: by
coordinate on a TPU, and elsewhere counted slice by slice in order of process and id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from shardspec.diagnostics import Diagnostic
from shardspec.diagnostics.words import counted, natural
from shardspec.foreign import formats
from shardspec.foreign.formats import Request
from shardspec.foreign.regex import spec_literal
from shardspec.ir.plan import Sharding
from shardspec.ir.spec import Hardware
from shardspec.topology.machine import machine_of
from shardspec.topology.placement import place

_WIDTH = 96

_BY_ID = '''
def ordered(devices):
    """Return the devices in the order of the mesh: slice by slice, by process and id."""
    counted = sorted(
        devices, key=lambda d: (getattr(d, "slice_index", None) or 0, d.process_index, d.id)
    )
    return [counted[place] for place in ORDER]
'''

_BARE = '''
def ordered(devices):
    """Return the devices in the order of the mesh: by id, for the spec names no hardware."""
    return sorted(devices, key=lambda device: device.id)
'''

_BY_COORDINATE = '''
def ordered(devices):
    """Return the devices in the order of the mesh: by slice, x, y, z and core."""
    found = {}
    slices = sorted({getattr(device, "slice_index", None) or 0 for device in devices})
    for number, index in enumerate(slices):
        members = [d for d in devices if (getattr(d, "slice_index", None) or 0) == index]
        low = [min(d.coords[axis] for d in members) for axis in range(3)]
        for device in members:
            place = [device.coords[axis] - low[axis] for axis in range(3)]
            found[(number, *place, getattr(device, "core_on_chip", 0))] = device
    for x, y, z in itertools.permutations(range(3)):
        turned = {(c[0], c[1 + x], c[1 + y], c[1 + z], c[4]): d for c, d in found.items()}
        if turned.keys() == set(ORDER):
            return [turned[place] for place in ORDER]
    raise ValueError(f"the devices are no {HARDWARE}")
'''

_REST = '''

def mesh(devices=None):
    """Return the mesh over the devices of all processes."""
    devices = jax.devices() if devices is None else list(devices)
    if len(devices) != math.prod(AXES.values()):
        raise ValueError(f"{len(devices)} devices for the mesh {AXES}")
    array = np.empty(len(devices), dtype=object)
    array[:] = ordered(devices)
    types = tuple(AxisType[name] for name in AXIS_TYPES)
    return Mesh(array.reshape(tuple(AXES.values())), tuple(AXES), axis_types=types)


def shardings(mesh_=None):
    """Return the layout of each array, by path."""
    mesh_ = mesh() if mesh_ is None else mesh_
    return {path: NamedSharding(mesh_, spec) for path, spec in SPECS.items()}
'''

_WITH_MEMORY = _REST.replace(
    "NamedSharding(mesh_, spec)", "NamedSharding(mesh_, spec, memory_kind=MEMORY.get(path))"
)


def write(request: Request) -> formats.Written:
    """Return the module; of a mesh that does not fit its machine, why not."""
    order = _order(request)
    if isinstance(order, Diagnostic):
        return None, (order,)
    hardware = request.plan.target.hardware
    title = f"Layouts of {counted(len(request.plan.arrays), 'array')}"
    body = (*_head(request, hardware), *order, "", *_layouts(request))
    text = formats.python_module(request, title, [f"For {request.target_title}."], body)
    is_apart = any(sharding.memory_kind for sharding in request.plan.arrays)
    is_tpu = request.plan.target.is_tpu
    ordered = _BARE if hardware is None else _BY_COORDINATE if is_tpu else _BY_ID
    text += f"\n{ordered}{_WITH_MEMORY if is_apart else _REST}"
    held = (*formats.BY_PATH, formats.ACTIVATIONS, formats.AXIS_TYPES, formats.MEMORY)
    return text, tuple(formats.losses(request, "a module of layouts", *held))


def _head(request: Request, hardware: Hardware | None) -> Iterator[str]:
    if hardware is not None and hardware.chip.platform == "tpu":
        yield "import itertools"
    yield from ("import math", "", "import jax", "import numpy as np")
    yield "from jax.sharding import AxisType, Mesh, NamedSharding"
    yield "from jax.sharding import PartitionSpec as P"
    yield ""
    axes = request.plan.mesh.axes
    sizes = ", ".join(f'"{axis.name}": {axis.size}' for axis in axes)
    yield f"AXES = {{{sizes}}}"
    types = ", ".join(f'"{axis.axis_type.capitalize()}"' for axis in axes)
    yield f"AXIS_TYPES = ({types}{',' if len(axes) == 1 else ''})"
    if hardware is not None:
        yield f'HARDWARE = "{hardware}"'


def _order(request: Request) -> list[str] | Diagnostic:
    """Return the lines that say which device stands where, row-major order of the mesh."""
    target = request.plan.target
    if target.hardware is None:
        return []
    placement = place(target, request.spec.policy.order)
    if isinstance(placement, Diagnostic):
        return placement
    coordinates = placement.coordinates()
    if target.is_tpu:
        places = [str(coordinate).replace(" ", "") for coordinate in coordinates]
    else:
        extents = [axis.extent for axis in machine_of(target.hardware)]
        places = [str(_position(coordinate, extents)) for coordinate in coordinates]
    return ["ORDER = [", *_filled(places), "]"]


def _position(coordinate: tuple[int, ...], extents: list[int]) -> int:
    number = 0
    for place_, extent in zip(coordinate, extents, strict=True):
        number = number * extent + place_
    return number


def _filled(places: list[str]) -> Iterator[str]:
    """Yield the places, as many as fit in each line."""
    line = "   "
    for text in places:
        if len(line) + len(text) + 2 > _WIDTH:
            yield line
            line = "   "
        line += f" {text},"
    yield line


def _layouts(request: Request) -> Iterator[str]:
    """Yield the partitions, and the memory of what is not in that of its device."""
    arrays = sorted(request.plan.arrays, key=lambda s: natural(s.param.path))
    named = [(each.param.path, each) for each in arrays]
    activations = [(each.activation.name, each) for each in request.plan.activations]
    yield from _mapping("SPECS", _specs(named)) or ("SPECS = {", "}")
    yield from _mapping("MEMORY", _memory(named))
    yield from _mapping("ACTIVATION_MEMORY", _memory(activations))
    if any(each.activation.pattern for each in request.plan.activations):
        yield "# keys with `*`, `?`, `{}` or `re:` are patterns of the names that code uses"
    yield from _mapping("ACTIVATIONS", _specs(activations))


def _mapping(name: str, entries: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    lines = [f"    {_key(key)}: {value}," for key, value in entries]
    return (f"{name} = {{", *lines, "}") if lines else ()


def _specs(found: Iterable[tuple[str, Sharding]]) -> Iterator[tuple[str, str]]:
    return ((name, spec_literal(each.partition_spec)) for name, each in found)


def _memory(found: Iterable[tuple[str, Sharding]]) -> Iterator[tuple[str, str]]:
    return ((name, f'"{each.memory_kind}"') for name, each in found if each.memory_kind)


def _key(path: str) -> str:
    return f'"{path}"' if path.isprintable() and not set(path) & set('"\\') else repr(path)
