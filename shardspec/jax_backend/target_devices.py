"""The devices of a machine that is not here, as code asks for them.

They have what JAX's devices say of themselves: kind, platform, process, coordinates. A
`jax.sharding.Mesh` of them serves to trace and to lower, as one of real devices does. Nothing can
be put on them. What only a real device knows is reported, with the line that asks for it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardspec.ir.spec import Chip, Target
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
