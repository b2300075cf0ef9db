"""The devices of a machine that is not here, as code asks for them.

They have what JAX's devices say of themselves: kind, platform, process, coordinates. A
`jax.sharding.Mesh` of them serves to trace and to lower, as one of real devices does. Nothing can
be put on them. What only a real device knows is reported, with the line that asks for it.

Training code makes its state before its first step: `jax.jit(init, out_shardings=...)(key)`, or
`jax.device_put(state, shardings)`. While a step is traced for a target, such a call returns arrays
without values, which have shapes and shardings. The step can be called with them. Code that reads a
value gets a `TypeError`.

A `jax.sharding.Mesh` is made here in our order, of these devices or of real ones, and the target is
found that a machine's devices fit. TPU devices say where they stand on the machine's physical axes:
slice, coordinates, core. GPUs and CPU devices do not; they are counted node by node (JAX calls the
GPUs of one node a slice), in order of process and id. No order depends on how the devices are
listed, so every process finds the same.

The order comes from `topology`, which knows no devices; here each coordinate gets its device. Those
that a spec lists without a machine are numbered by their ids. Axis types are always passed:
`jax.make_mesh` and `Mesh` no longer agree on a default.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias

import jax
import jax.extend.core
import numpy as np
from jax._src import core, dtypes, mesh

from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.diagnostics.words import counted, grouped
from shardspec.ir.spec import Chip, Hardware, MeshAxis, Target, shape_text
from shardspec.jax_backend.equations import AXES_CONTEXT, DEVICE_CONTEXT, equations_of
from shardspec.language.catalogue import chips_of_kind
from shardspec.programs.op_names import is_library, shown
from shardspec.topology.machine import Coordinate, PhysicalAxis, machine_of
from shardspec.topology.placement import Order, place

#: What only a device or a backend that is there can answer.
_UNANSWERED = frozenset(
    (
        *("memory_stats", "live_buffers", "live_arrays", "live_executables", "buffer_from_pyval"),
        *("compile", "compile_and_load", "heap_profile", "transfer_to_infeed", "platform_version"),
        *("defragment", "poison_execution", "get_stream_for_external_ready_events"),
    )
)
#: The memories that a device has, its own first, by platform.
_MEMORIES = {"cpu": ("device", "unpinned_host", "pinned_host")}
_MEMORIES_ELSE = ("device", "pinned_host", "unpinned_host")


class Question(NamedTuple):
    """Something that the target would answer and this machine cannot.

    Attributes:
      what: what is asked, as the code writes it.
    """

    file: str
    line: int
    what: str

    def __str__(self) -> str:
        """Return what is asked, as a sentence without its place."""
        return f"asks `{self.what}`, which only the target could answer"

    @property
    def note(self) -> str:
        """Return the same with its place, where it has one."""
        return f"{shown(self.file)}:{self.line} {self}" if self.file else f"the step {self}"


@dataclass(eq=False)
class TargetMachine:
    """A target's machine, by the questions of JAX's backends (`jax.extend.backend`).

    Attributes:
      platform: `tpu`, `gpu` or `cpu`.
      questions: those without an answer.
      answered: how many were answered.
    """

    platform: str
    runtime_type: str = ""  # JAX asks for it where it lowers a kernel
    questions: list[Question] = field(default_factory=list)
    answered: int = 0
    _devices: tuple[TargetDevice, ...] = ()

    def devices(self) -> list[TargetDevice]:
        """Return all devices, in the order of their ids."""
        return list(self._devices)

    def local_devices(self) -> list[TargetDevice]:
        """Return the devices of the first process."""
        return [device for device in self._devices if device.process_index == 0]

    def device_count(self) -> int:
        """Return the number of all devices."""
        return len(self._devices)

    def local_device_count(self) -> int:
        """Return the number of the first process's devices."""
        return len(self.local_devices())

    def process_index(self) -> int:
        """Return the first process: the step is traced as there."""
        return 0

    def process_count(self) -> int:
        """Return the number of processes, one for each host."""
        return 1 + max((device.process_index for device in self._devices), default=0)

    def make_python_callback_from_host_send_and_recv(self, *args: Any) -> object:
        """Return something to keep in place of a function that a TPU would call on its host."""
        return args

    def get_default_layout(self, dtype: np.dtype, shape: tuple[int, ...], device: object) -> object:
        """Return the layout of an array that states none: dimensions in order, without tiles."""
        del device
        here = jax.local_devices(backend="cpu")[0]
        return here.client.get_default_layout(dtype, shape, here)

    def __getattr__(self, name: str) -> Any:
        return self.unanswered("backend", name)

    def unanswered(self, owner: str, name: str) -> Any:
        """Record a question without an answer.

        Raises:
          AttributeError: for everything that is not asked of devices.
        """
        if name not in _UNANSWERED:
            raise AttributeError(f"a {owner} of the target has no `{name}` here")
        self.ask(f"{owner}.{name}")
        return "" if name == "platform_version" else lambda *args, **kwargs: None

    def ask(self, what: str) -> None:
        """Record a question without an answer, at the innermost line of the user's code.

        What JAX asks while it lowers a step that is traced, no line of the user's asks. In a thread
        that has none, the question is without its place.
        """
        frame = sys._getframe(1)
        while frame.f_back is not None and is_library(frame.f_code.co_filename):
            if frame.f_globals.get("__name__") == _LOWERS:
                return
            frame = frame.f_back
        file = frame.f_code.co_filename
        place = ("", 0) if is_library(file) else (file, frame.f_lineno)
        self.add((Question(*place, what),))

    def add(self, questions: Iterable[Question]) -> None:
        """Record questions without an answer, each once."""
        self.questions += [each for each in questions if each not in self.questions]


#: The module of JAX that makes a program of what was traced.
_LOWERS = "jax._src.interpreters.mlir"
#: How far apart the ids of two TPU slices are, the first included.
#: Source: the topologies of libtpu 0.0.52 with `num_slices`.
_IDS_OF_SLICE = 100_000


class TargetDevice:
    """A device of a machine that is not here.

    Attributes:
      slice_index: the TPU slice, or the GPU node; none of CPUs.
      coords: of TPUs alone, as are the core and the number of cores that are one device.
      compute_capability: of GPUs alone, as is the number of their cores.
    """

    slice_index: int
    coords: list[int]
    core_on_chip: int
    num_cores: int
    compute_capability: str
    core_count: int

    def __init__(self, machine: TargetMachine, number: int, kind: str, process: int) -> None:
        """Make a device; where it stands is added by who knows."""
        self.client = machine
        self.id = number
        self.platform = machine.platform
        self.device_kind = kind
        self.process_index = self.host_id = self.task_id = process

    @property
    def local_hardware_id(self) -> int:
        """Return its number among the devices of its process."""
        alike = (each for each in self.client.devices() if each.host_id == self.host_id)
        return next(number for number, each in enumerate(alike) if each is self)

    def __repr__(self) -> str:
        """Return `TPU v5 lite 3 (of the target)`."""
        return f"{self.device_kind} {self.id} (of the target)"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "client" not in self.__dict__:
            raise AttributeError(name)
        return self.client.unanswered("device", name)

    def addressable_memories(self) -> list[TargetMemory]:
        """Return its memories."""
        kinds = _MEMORIES.get(self.platform, _MEMORIES_ELSE)
        return [TargetMemory(kind, self.platform) for kind in kinds]

    def default_memory(self) -> TargetMemory:
        """Return its own memory."""
        return self.addressable_memories()[0]

    def memory(self, kind: str) -> TargetMemory:
        """Return one of its memories."""
        return TargetMemory(kind, self.platform)


class TargetMemory(str):
    """A memory of such a device: equal to its kind, to which jaxlib compares it."""

    platform: str

    def __new__(cls, kind: str, platform: str) -> TargetMemory:
        """Take the kind, and whose memory it is."""
        made = super().__new__(cls, kind)
        made.platform = platform
        return made

    @property
    def kind(self) -> str:
        """Return the kind: `pinned_host`."""
        return str(self)


def machine_for(target: Target) -> TargetMachine:
    """Return the machine of a target with its devices; CPUs where it names no hardware."""
    hardware = target.hardware
    machine = TargetMachine("cpu" if hardware is None else hardware.chip.platform)
    if hardware is None:
        count = target.mesh.device_count
        machine._devices = tuple(TargetDevice(machine, at, "cpu", 0) for at in range(count))
        return machine
    axes = machine_of(hardware)
    kind = hardware.chip.device_kinds[0]
    build: Callable[[TargetMachine, tuple[PhysicalAxis, ...], str], Iterator[TargetDevice]]
    build = _of_torus if hardware.chip.platform == "tpu" else _of_nodes
    machine._devices = tuple(build(machine, axes, kind))
    for device in machine._devices:
        vars(device).update(_of_chip(hardware.chip))
    return machine


def _of_chip(chip: Chip) -> dict[str, Any]:
    """Return what all devices of a chip say alike."""
    if chip.platform == "tpu":
        return {"num_cores": max(1, chip.cores_per_chip // chip.devices_per_chip)}
    known = dict(chip.compiler)
    told: dict[str, Any] = {}
    if "cuda_compute_capability" in known:
        told["compute_capability"] = known["cuda_compute_capability"]
    if "core_count" in known:
        told["core_count"] = int(known["core_count"])
    return told


def _of_nodes(
    machine: TargetMachine, axes: tuple[PhysicalAxis, ...], kind: str
) -> Iterator[TargetDevice]:
    """Yield the devices of GPU nodes or CPU hosts: a process each, which JAX calls a slice."""
    places = itertools.product(*(range(axis.extent) for axis in axes))
    for number, (node, _) in enumerate(places):
        device = TargetDevice(machine, number, kind, node)
        if machine.platform == "gpu":
            device.slice_index = node
        yield device


def _of_torus(
    machine: TargetMachine, axes: tuple[PhysicalAxis, ...], kind: str
) -> Iterator[TargetDevice]:
    """Yield the devices of TPU slices, x fastest, the cores of a chip together."""
    slices, *torus, core = axes
    outwards = torus[::-1]
    inside = [range(axis.extent) for axis in (*outwards, core)]
    for part in range(slices.extent):
        first = _IDS_OF_SLICE * (part + 1) if slices.extent > 1 else 0
        for number, (z, y, x, inner) in enumerate(itertools.product(*inside), first):
            process = part
            for at, axis in zip((z, y, x), outwards, strict=True):
                process = process * -(-axis.extent // axis.host) + at // axis.host
            device = TargetDevice(machine, number, kind, process)
            device.coords, device.core_on_chip, device.slice_index = [x, y, z], inner, part
            yield device


#: What the error says that code gets where it reads a value.
NO_VALUE = "has no values: it is on the target"
#: How many values are made here of what code makes under a mesh of the target that it has set.
_MOST_VALUES = 1 << 16


class TargetArray(jax.Array):
    """An array on the target, without values.

    Attributes:
      sharding: None where XLA would choose it.
    """

    __slots__ = ("_given",)

    def __init__(self, aval: Any, sharding: Any = None) -> None:
        """Take what JAX knows of the array."""
        self._given = aval, sharding

    aval = property(lambda self: self._given[0])
    sharding = property(lambda self: self._given[1])
    shape = property(lambda self: self.aval.shape)
    dtype = property(lambda self: self.aval.dtype)
    weak_type = property(lambda self: getattr(self.aval, "weak_type", False))
    ndim = property(lambda self: len(self.aval.shape))
    size = property(lambda self: int(np.prod(self.aval.shape)))
    nbytes = property(lambda self: self.size * self.dtype.itemsize)
    is_fully_addressable = property(lambda self: self._is("addressable"))
    is_fully_replicated = property(lambda self: self._is("replicated"))
    committed = _committed = property(lambda self: self.sharding is not None)

    def _is(self, what: str) -> bool:
        return self.sharding is None or bool(getattr(self.sharding, f"is_fully_{what}"))

    def __repr__(self) -> str:
        """Return `f32[4,8] (of the target)`."""
        return f"{self.aval.str_short()} (of the target)"

    def __len__(self) -> int:
        """Return the size of its first dimension."""
        return int(self.shape[0])

    def block_until_ready(self) -> TargetArray:
        """Return the array itself."""
        return self

    def copy_to_host_async(self) -> None:
        """Do nothing: what waits for the copy is refused."""

    def _value(self, *_: object, **__: object) -> NoReturn:
        raise TypeError(f"{self.aval.str_short()} {NO_VALUE}")

    __array__ = __bool__ = __int__ = __float__ = __index__ = __complex__ = item = tolist = _value
    __iter__ = __hash__ = _value


def _can_compute() -> None:
    """Let code compute with such arrays; JAX traces what it does, and nothing more."""
    from jax._src.numpy import array_methods

    core.pytype_aval_mappings[TargetArray] = _aval
    try:
        dtypes.register_canonicalize_value_handler(TargetArray, None)
    except AttributeError:  # before jax 0.10.1
        dtypes.canonicalize_value_handlers[TargetArray] = lambda array: array
    own = {name for name in vars(TargetArray) if not name.startswith("__slots")}
    array_methods._set_array_base_attributes(TargetArray, exclude=own | {"__array__", "__iter__"})


def _aval(array: TargetArray) -> Any:
    own = core.ShapedArray(array.shape, array.dtype, weak_type=array.weak_type)
    return own if array.sharding is None else core.update_aval_with_sharding(own, array.sharding)


def instead(is_traced: Callable[[], bool]) -> tuple[tuple[Any, Any], ...]:
    """Return JAX's functions that make arrays and ours for them; none where this JAX has others.

    Args:
      is_traced: whether this thread traces for a target; elsewhere, arrays are made as ever.
    """
    try:
        from jax._src import api, array, dispatch, pjit, sharding_impls
        from jax._src.lax import lax

        _can_compute()
        known = (
            (pjit._pjit_call_impl_python, _called),
            (dispatch._device_put_impl, _put),
            (api._check_sharding, _checked),
            (lax.full_like, _like),
            (sharding_impls.set_mesh, _set_mesh),
            (array.make_array_from_callback, _of_callback),
            (array.make_array_from_single_device_arrays, _of_shards),
        )
    except (ImportError, AttributeError):
        return ()
    return tuple((original, _wrapped(original, ours, is_traced)) for original, ours in known)


def _wrapped(
    original: Callable[..., Any], ours: Callable[..., Any], is_traced: Callable[[], bool]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def made(*args: Any, **kwargs: Any) -> Any:
        return ours(original, args, kwargs) if is_traced() else original(*args, **kwargs)

    return made


def _called(original: Callable[..., Any], args: Sequence[Any], told: dict[str, Any]) -> Any:
    """Return what a jitted function makes on the target; one for this machine is run here."""
    jaxpr = told["jaxpr"].jaxpr
    inside = (each.params["sharding"] for each in filter(_is_constraint, equations_of(jaxpr)))
    wanted = (*told["in_shardings"], *told["out_shardings"], *inside)
    if not any(isinstance(each, TargetArray) or _is_of_target(each) for each in (*args, *wanted)):
        if not _is_of_target(told["ctx_mesh"]):
            return original(*args, **told)
        if sum(var.aval.size for var in jaxpr.outvars) <= _MOST_VALUES:
            with contextlib.suppress(Exception):
                return _here(original, args, told)
    return list(_results(jaxpr, args, told)), None, None, []


def _here(original: Callable[..., Any], args: Sequence[Any], told: dict[str, Any]) -> Any:
    """Run a function on this machine, without the mesh around it."""
    kept = DEVICE_CONTEXT.get_local(), AXES_CONTEXT.get_local()
    try:
        DEVICE_CONTEXT.set_local(mesh.empty_concrete_mesh)
        AXES_CONTEXT.set_local(mesh.empty_abstract_mesh)
        return original(*args, **told | {"ctx_mesh": mesh.empty_concrete_mesh})
    finally:
        DEVICE_CONTEXT.set_local(kept[0])
        AXES_CONTEXT.set_local(kept[1])


def _results(jaxpr: Any, args: Sequence[Any], told: dict[str, Any]) -> Iterator[TargetArray]:
    """Yield the results, with the shardings that code asks for or that arguments bring along."""
    given = zip(jaxpr.invars, args, strict=True)
    known = {id(var): getattr(arg, "sharding", None) for var, arg in given}
    around = told["ctx_mesh"]
    theirs = [arg.sharding for arg in args if isinstance(arg, TargetArray)]
    is_whole = all(each is not None and each.is_fully_replicated for each in theirs)
    is_known = is_whole and _is_of_target(around)
    whole = jax.sharding.NamedSharding(around, jax.sharding.PartitionSpec()) if is_known else None
    for equation in filter(_is_constraint, jaxpr.eqns):
        known[id(equation.outvars[0])] = equation.params["sharding"]
    for var, sharding in zip(jaxpr.outvars, told["out_shardings"], strict=True):
        is_stated = isinstance(sharding, jax.sharding.Sharding)
        typed = getattr(var.aval, "sharding", None)  # has the mesh alone where axes are automatic
        is_typed = typed is not None and not typed.mesh.empty and typed.mesh.are_all_axes_explicit
        found = sharding if is_stated else typed if is_typed else known.get(id(var)) or whole
        own = _with_devices(found, around)
        if not is_stated and own is not None and typed is not None:
            own = _of_types(own, typed.mesh)
        yield TargetArray(var.aval, own)


def _put(original: Callable[..., Any], args: Sequence[Any], told: dict[str, Any]) -> Any:
    array, device = args[0], told.get("device")
    if isinstance(array, TargetArray) and (device is None or not _is_of_target(device)):
        return array
    if not _is_of_target(device):
        return original(*args, **told)
    aval = told.get("aval") or core.typeof(array)
    return TargetArray(aval, device if isinstance(device, jax.sharding.Sharding) else None)


def _checked(original: Callable[..., Any], args: Sequence[Any], told: dict[str, Any]) -> None:
    if not isinstance(args[1], TargetDevice):
        original(*args, **told)


def _like(original: Callable[..., Any], args: Sequence[Any], told: dict[str, Any]) -> Any:
    given = dict(zip(("x", "fill_value", "dtype", "shape", "sharding"), args, strict=False)) | told
    array, shape, dtype, sharding = map(given.get, ("x", "shape", "dtype", "sharding"))
    if not isinstance(array, TargetArray):
        return original(*args, **told)
    if sharding is None and shape in (None, array.shape):
        sharding = array.sharding
    shape = array.shape if shape is None else tuple(shape)
    return TargetArray(
        core.ShapedArray(shape, array.dtype if dtype is None else np.dtype(dtype)), sharding
    )


def _set_mesh(original: Callable[..., Any], args: Sequence[Any], told: dict[str, Any]) -> Any:
    """Set a mesh also where a step that calls a jitted function is itself traced."""
    given = (*args, *told.values())[0]
    if core.trace_state_clean() or not _is_of_target(given):
        return original(*args, **told)
    return jax.sharding.use_abstract_mesh(given.abstract_mesh)


def _of_callback(original: Callable[..., Any], args: Sequence[Any], told: dict[str, Any]) -> Any:
    given = dict(zip(("shape", "sharding", "data_callback", "dtype"), args, strict=False)) | told
    shape, sharding, dtype = tuple(given["shape"]), given["sharding"], given.get("dtype")
    if not _is_of_target(sharding):
        return original(*args, **told)
    if dtype is None:
        index = next(iter(sharding.devices_indices_map(shape).values()))
        dtype = jax.numpy.asarray(given["data_callback"](index)).dtype
    return TargetArray(core.ShapedArray(shape, dtype), sharding)


def _of_shards(original: Callable[..., Any], args: Sequence[Any], told: dict[str, Any]) -> Any:
    given = dict(zip(("shape", "sharding", "arrays"), args, strict=False)) | told
    if not _is_of_target(given["sharding"]):
        return original(*args, **told)
    dtype = given["arrays"][0].dtype if given["arrays"] else given["dtype"]
    return TargetArray(core.ShapedArray(tuple(given["shape"]), dtype), given["sharding"])


def _is_of_target(place: Any) -> bool:
    """Say whether a device, a mesh, a sharding or a layout is of a machine that is not here."""
    around = getattr(getattr(place, "sharding", place), "mesh", place)
    if isinstance(around, jax.sharding.AbstractMesh):
        return int(around.size) > 1
    if isinstance(around, jax.sharding.Mesh):
        return has_target_devices(around)
    devices = getattr(place, "_device_assignment", (place,))
    return isinstance(next(iter(devices), None), TargetDevice)


def _with_devices(sharding: Any, around: Any) -> Any:
    """Return a sharding over the devices of the mesh that code has set, where it names none."""
    if not _is_of_target(sharding):
        return None
    meshes = (around, mesh.thread_resources.env.physical_mesh)
    is_abstract = isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh)
    same = (
        each for each in meshes if is_abstract and each.shape_tuple == sharding.mesh.shape_tuple
    )
    own = next(same, None)
    return sharding if own is None else jax.sharding.NamedSharding(own, sharding.spec)


def _of_types(sharding: Any, other: Any) -> Any:
    """Return a sharding whose mesh has the types of axes that an array has, set by `auto_axes`."""
    own = getattr(sharding, "mesh", other)
    if own.shape_tuple != other.shape_tuple or own.axis_types == other.axis_types:
        return sharding
    return jax.sharding.NamedSharding(own.update(axis_types=other.axis_types), sharding.spec)


def _is_constraint(equation: Any) -> bool:
    return bool(equation.primitive.name == "sharding_constraint")


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
        ordered = [
            device
            for members in slices_of(devices)
            for device in sorted(members, key=lambda each: (each.process_index, each.id))
        ]
        return dict(zip(itertools.product(*map(range, extents)), ordered, strict=True))
    turn = _turn(devices, (extents[1], extents[2], extents[3]))
    if turn is None:
        return None
    found: dict[Coordinate, jax.Device] = {}
    for number, members in enumerate(slices_of(devices)):
        low = [min(along) for along in zip(*(each.coords for each in members), strict=True)]
        for device in members:
            core = getattr(device, "core_on_chip", 0)
            found[(number, *(device.coords[at] - low[at] for at in turn), core)] = device
    return found if found.keys() == {*itertools.product(*map(range, extents))} else None


def slices_of(devices: Iterable[jax.Device]) -> list[list[jax.Device]]:
    """Return the devices of each slice, by slice index; one slice where devices have none."""
    groups = grouped(devices, lambda device: getattr(device, "slice_index", None) or 0)
    return [groups[index] for index in sorted(groups)]


def device_extents(devices: Sequence[jax.Device]) -> Triple | None:
    """Return the chips along x, y and z of one slice, or None where devices do not say."""
    coords = [tuple(getattr(device, "coords", None) or ()) for device in devices]
    if not coords or any(len(place) != 3 for place in coords):
        return None
    x, y, z = (max(along) - min(along) + 1 for along in zip(*coords, strict=True))
    return x, y, z


def _turn(devices: Sequence[jax.Device], wanted: Triple) -> Triple | None:
    """Return which of the devices' axes are our x, y and z; the order they have, if it fits."""
    extents = device_extents(devices)
    if extents is not None:
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
