"""The devices of a machine that is not here, as code asks for them.

They have what JAX's devices say of themselves: kind, platform, process, coordinates. A
`jax.sharding.Mesh` of them serves to trace and to lower, as one of real devices does. Nothing can
be put on them. What only a real device knows is reported, with the line that asks for it.

Training code makes its state before its first step: `jax.jit(init, out_shardings=...)(key)`, or
`jax.device_put(state, shardings)`. While a step is traced for a target, such a call returns arrays
without values, which have shapes and shardings. The step can be called with them. Code that reads a
value gets a `TypeError`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import jax
import jax.extend.core
import numpy as np
from jax._src import core, dtypes, mesh

from shardspec.ir.spec import Chip, Target
from shardspec.jax_backend.versions import AXES_CONTEXT, DEVICE_CONTEXT
from shardspec.programs.op_names import is_library, shown
from shardspec.topology.machine import PhysicalAxis, machine_of

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
            for place, axis in zip((z, y, x), outwards, strict=True):
                process = process * -(-axis.extent // axis.host) + place // axis.host
            device = TargetDevice(machine, number, kind, process)
            device.coords, device.core_on_chip, device.slice_index = [x, y, z], inner, part
            yield device


#: What the error says that code gets where it reads a value.
NO_VALUE = "has no values: it is on the target"
#: How many values are made here of what code makes under a mesh of the target that it has set.
_MOST_VALUES = 1 << 16
#: How deep constraints are looked for in functions that call others.
_DEEPEST = 20


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
    wanted = (*told["in_shardings"], *told["out_shardings"], *_constraints(jaxpr, _DEEPEST))
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
        return not around.empty and isinstance(around.devices.flat[0], TargetDevice)
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


def _constraints(jaxpr: Any, depth: int) -> Iterator[Any]:
    """Yield the shardings that a function asks for, also in what it calls."""
    for equation in jaxpr.eqns:
        if _is_constraint(equation):
            yield equation.params["sharding"]
        for inner in jax.extend.core.jaxprs_in_params(equation.params) if depth else ():
            yield from _constraints(inner, depth - 1)
