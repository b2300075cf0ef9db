"""Compile one lowered module for a machine that is not here; run as a process of its own.

    python -P -m shardspec.jax_backend.xla.child FOLDER PARENT

The folder holds `job.json` and, once the step is traced, `module.mlirbc`, which is all that is
read: no code of the user's runs here. Until the module is there, the machine is described and
waits. What comes of it is written beside them: `stage.txt`, a line for each that begins;
`chips.json`, the numbers of the devices in the order of the mesh; the dumps of the compiler in
`dump`; `final.txt` and `memory.json` where the compile came to its end, `error.json` where it did
not. A job that lists matmuls has no module: each is compiled by itself, and `cycles.txt` gets a
line for each, of how long the compiler takes it to be. A job that states `partitions` describes no
machine: it runs XLA's partitioner alone, for that number of devices. One that lists the sizes of
`programs` prints each as text, of those that a stranger's capture carries.

Whoever started this process may end it as soon as the dumps hold what it wants, and where he is
gone it ends itself.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardspec.orphans import end_with

#: How often it is looked whether the module is there.
_POLL_S = 0.02
#: Fields of XLA's memory statistics that are kept.
MEMORY = ("argument", "output", "alias", "temp")


def main(folder: Path, parent: int) -> int:
    """Compile what the folder holds; return the exit status.

    Args:
      parent: the number of the process that started this one, which may have ended already.
    """
    end_with(parent, lambda: shutil.rmtree(folder, ignore_errors=True))
    try:
        job = json.loads((folder / "job.json").read_text("utf-8"))
        if "partitions" in job:
            partition(folder, job["partitions"], lambda: _module(folder))
            return 0
        if "programs" in job:
            _print(folder, job["programs"], _module(folder))
            return 0
        if "matmuls" in job:
            _estimate(folder, job)
            return 0
        executable = _compiled(folder, job)
        _tell(folder, "reading")
        stats = executable.get_compiled_memory_stats()
        sizes = {each: getattr(stats, f"{each}_size_in_bytes") for each in MEMORY}
        if not any((folder / "dump").glob("*after_optimizations.txt")):
            text = executable.hlo_modules()[0].to_string()
            _write(folder / "final.txt", text)
        _write(folder / "memory.json", json.dumps(sizes))
    except Exception as error:
        _write(
            folder / "error.json", json.dumps({"type": type(error).__name__, "text": str(error)})
        )
        return 1
    return 0


def _compiled(folder: Path, job: dict[str, Any]) -> Any:
    _tell(folder, "describing the machine")
    devices = _devices(job)
    _write(folder / "chips.json", json.dumps([device.id for device in devices]))
    module = _module(folder)
    _tell(folder, "compiling")
    return _compile(module, devices, folder)


def _module(folder: Path) -> bytes:
    """Return the module, once it is there."""
    module = folder / "module.mlirbc"
    while not module.exists():
        time.sleep(_POLL_S)
    return module.read_bytes()


def _compile(text: bytes | str, devices: list[Any], folder: Path) -> Any:
    """Compile a module, its text or bytecode, for devices."""
    from jax.interpreters import mlir
    from jaxlib import xla_client
    from jaxlib.mlir import ir

    with mlir.make_ir_context():
        module = ir.Module.parse(text)
    return devices[0].client.compile(
        module,
        executable_devices=xla_client.DeviceList(tuple(devices)),
        compile_options=_options(devices, folder),
    )


def _options(devices: list[Any], folder: Path) -> Any:
    """Return how a program is compiled: partitioned over devices, and what is dumped of it."""
    import numpy as np
    from jaxlib import xla_client

    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = 1, len(devices)
    options.executable_build_options.use_spmd_partitioning = True
    options.executable_build_options.use_shardy_partitioner = True
    ids = np.array([[device.id for device in devices]])
    options.device_assignment = xla_client.DeviceAssignment.create(ids)
    dumps = [("xla_dump_to", str(folder / "dump")), ("xla_dump_hlo_as_text", True)]
    options.env_option_overrides = dumps
    return options


#: The pass of XLA that turns the program of all devices into that of one.
_PARTITIONING = "spmd-partitioning"


def partition(folder: Path, count: int, module: Callable[[], bytes]) -> None:
    """Partition a module for a number of devices, and end this process.

    One CPU device stands for all of them: the CPU client has 2,048 at most, and the partitioner
    does not ask how many there are. XLA may notice when it loads the finished program, and then
    ends this process; the partitioned program is on disk by then. JAX is not imported, which would
    take a second.
    """
    from jaxlib import xla_client

    client: Any = xla_client.make_cpu_client()
    device, *_ = client.local_devices()
    options = _options([device] * count, folder)
    options.env_option_overrides += [("xla_dump_hlo_pass_re", _PARTITIONING)]
    given = module()
    threading.Thread(target=_end_once_partitioned, args=(folder, count), daemon=True).start()
    client.compile_and_load(given, xla_client.DeviceList((device,)), options)


def _end_once_partitioned(folder: Path, count: int) -> None:
    """End this process once the partitioned program is written: nobody needs code for a CPU."""
    while not partitioned_text(folder, count):
        time.sleep(_POLL_S)
    os._exit(0)


def partitioned_text(folder: Path, count: int) -> str:
    """Return the partitioned program; nothing as long as it is not written to its end.

    The entry computation is the last one, and only the last line of a computation is a `}` that is
    not indented. A program for one device is the one that XLA begins with.
    """
    pattern = "*before_optimizations.txt" if count == 1 else f"*after_{_PARTITIONING}*"
    for path in (folder / "dump").glob(pattern):
        text = path.read_text("utf-8", errors="replace")
        _, entry, rest = text.rpartition("\nENTRY ")
        if entry and rest.rstrip().endswith("\n}"):
            return text
    return ""


def _print(folder: Path, sizes: list[int], protos: bytes) -> None:
    """Write the text of each of some programs, which are serialized one behind the other."""
    from jaxlib import _jax, xla_client

    hlo: Any = vars(xla_client).get("hlo", _jax)  # before jaxlib 0.10.1 it is there
    texts, at = [], 0
    for size in sizes:
        proto, at = protos[at : at + size], at + size
        texts.append(hlo.HloModule.from_serialized_hlo_module_proto(proto).to_string())
    _write(folder / "final.txt", json.dumps(texts))


#: A matmul alone in a program, for one device.
_MATMUL = """\
func.func public @main(%left: {left}, %right: {right}) -> {result} {{
  %out = stablehlo.dot_general %left, %right, contracting_dims = [1] x [0]
    : ({left}, {right}) -> {result}
  return %out : {result}
}}
"""


def _estimate(folder: Path, job: dict[str, Any]) -> None:
    """Write the cycles that the compiler takes each matmul for, a line for each; `-` for none."""
    from shardspec.programs.calls import cycles_in  # which a partition has no use for

    devices = _devices(job)[:1]
    dumps = folder / "dump"
    for dtype, result, m, k, n in job["matmuls"]:
        text = _MATMUL.format(
            left=f"tensor<{m}x{k}x{dtype}>",
            right=f"tensor<{k}x{n}x{dtype}>",
            result=f"tensor<{m}x{n}x{result}>",
        )
        _compile(text, devices, folder)
        programs = sorted(dumps.glob("*after_codegen.txt"), key=lambda path: path.stat().st_size)
        cycles = cycles_in(programs[-1].read_text("utf-8")) if programs else None
        with (folder / "cycles.txt").open("a", encoding="utf-8") as file:
            file.write(f"{cycles or '-'}\n")
        shutil.rmtree(dumps, ignore_errors=True)


def _devices(job: dict[str, Any]) -> list[Any]:
    """Return the devices of the described machine, in the order of the mesh."""
    from jax.experimental import topologies

    import shardspec
    from shardspec.jax_backend.target_devices import describe_devices, devices_by_coordinate

    name, platform, described = job["topology"], job["platform"], job["described"]
    found = topologies.get_topology_desc(name, platform=platform, **described).devices
    spec = shardspec.loads(f"shardspec: 1\nhardware: {job['hardware']}\nmesh: {{all: rest}}\n")
    hardware = spec.ir.targets[0].hardware
    assert hardware is not None
    places = devices_by_coordinate(found, hardware)
    if places is None:
        raise ValueError(f"{name} gives {describe_devices(found)}, not {hardware}")
    return [places[tuple(each)] for each in job["order"]]


def _tell(folder: Path, stage: str) -> None:
    with (folder / "stage.txt").open("a", encoding="utf-8") as file:
        file.write(f"{stage}\n")


def _write(path: Path, text: str) -> None:
    """Write a file that is never seen half written."""
    temporary = path.with_suffix(".part")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), int(sys.argv[2])))
