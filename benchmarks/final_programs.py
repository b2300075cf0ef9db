"""What compilers' final programs send: the figures that traced steps are held against in tests.

    python -m benchmarks.final_programs                 # all of them
    python -m benchmarks.final_programs llama-8b-v5p    # one
    python -m benchmarks.final_programs --samples       # the small programs of tests/data/programs

libtpu compiles for a TPU that is not there and dumps the final program (`after_optimizations`)
long before it is done, so every compile runs in a process of its own that is ended once the dump
is whole. XLA:GPU compiles whole for GPUs that are not there. Needs libtpu (the extra `tpu-aot`) and
`jax-cuda12-plugin` with `jax-cuda12-pjrt` of jax's own version; those may lie in a folder that only
PYTHONPATH of this process names (`pip install --no-deps --target`). Takes some minutes; tests read
the figures it wrote.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import Mesh, MeshAxis
from shardspec.jax_backend.compiling import TPU_ENVIRONMENT, described
from shardspec.programs.reading import step_of_program

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data" / "final_programs.json"
SAMPLES = ROOT / "tests" / "data" / "programs"
AOT = {
    **TPU_ENVIRONMENT,
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=16",
}
LIMIT_S = 600
SMALL_MESH = {"fsdp": 8, "tensor": 2}
#: Where the small steps are compiled for, by the key of their figures.
SMALL = {"small": "v5e:4x4", "small-h100": "h100:1x2x8"}
#: A kernel is for one kind of chip.
NOT_COMPILED = {("small-h100", "kernel")}
#: One small step for every compiler, and others that show what only some programs hold.
SAMPLED = {
    "microbatches": ("v4:2x2x4", "v5e:4x4", "v5p:2x2x4", "v6e:4x4", "tpu7x:2x2x2", "cpu"),
    "clipped_adam": ("h100:1x2x8",),
    "kept_activations": ("v5e:4x4",),
    "shard_mapped": ("v5e:4x4", "h100:1x2x8"),
    "branch": ("cpu",),
}


# compile


def compile_here(name: str, topology: str, folder: str) -> None:
    """Compile one program, with its text in `folder`; runs in a process of its own."""
    import shardspec
    from shardspec.jax_backend.step_trace import placed
    from tests.models import small_steps
    from tests.models.steps import CASES

    platform, devices = _devices(topology)
    if name in CASES:
        loaded = shardspec.loads(CASES[name].spec)
        resolver = shardspec.Resolver(loaded, "pod", devices=devices, agree_within_s=None)
        function, args = CASES[name].step(resolver)
    else:
        loaded = shardspec.loads(re.sub(r"hardware: tpu v5e 4x4, ", "", small_steps.SPEC))
        resolver = shardspec.Resolver(loaded, "pod", devices=devices, agree_within_s=None)
        function, args = small_steps.PROGRAMS[name](resolver)
    jitted, args = placed(resolver, function, args)
    lowered = jitted.trace(*args).lower(lowering_platforms=(platform,))
    if platform == "tpu":
        options = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
        lowered.compile(compiler_options=options)
    else:
        text = lowered.compile().as_text()
        (Path(folder) / "whole.after_optimizations.txt").write_text(text, encoding="utf-8")


def _devices(topology: str) -> tuple[str, Any]:
    """Return the platform and the devices of a topology, none of which are there."""
    import jax
    from jax.experimental import topologies

    import shardspec

    if topology == "cpu":
        return "cpu", jax.devices()
    if topology.startswith("h100:"):
        shape = topology.removeprefix("h100:")
        spec = shardspec.loads("shardspec: 1\nhardware: h100\nmesh: {all: rest}\n")
        machine = spec.ir.targets[0].hardware
        assert machine is not None
        told = {**described(machine)["described"], "topology": shape}
        found = topologies.get_topology_desc(shape, platform="cuda", **told)
        return "cuda", found.devices
    chip = {"chip_config_name": "megacore"} if topology.startswith("v4") else {}
    return "tpu", topologies.get_topology_desc(topology, platform="tpu", **chip).devices


def final_text(name: str, topology: str) -> str:
    """Return the final program of a compiler."""
    with tempfile.TemporaryDirectory() as folder:
        return compiled(name, topology, folder)


def compiled(name: str, topology: str, folder: str) -> str:
    """Return the final program of a compiler; `folder` then holds its dump."""
    command = [sys.executable, "-m", "benchmarks.final_programs", "--child"]
    command += [name, topology, folder]
    child = subprocess.Popen(command, env={**os.environ, **AOT}, stderr=subprocess.DEVNULL)
    try:
        return _awaited(child, Path(folder))
    finally:
        child.terminate()
        child.wait()


def _awaited(child: subprocess.Popen[bytes], folder: Path) -> str:
    """Return the largest dump once it is whole: nothing has changed for two seconds."""
    start = time.time()
    while time.time() - start < LIMIT_S:
        time.sleep(0.5)
        ended = child.poll() is not None
        found = sorted(
            folder.glob("*after_optimizations.txt"), key=lambda path: path.stat().st_size
        )
        reports = list(folder.glob("*memory-usage-report.txt"))
        quiet = [time.time() - path.stat().st_mtime > 2 for path in (*found, *reports)]
        if found and (ended or (reports and all(quiet))):
            return found[-1].read_text(encoding="utf-8")
        if ended:
            raise RuntimeError(f"libtpu wrote no final program, and ended with {child.returncode}")
    raise TimeoutError(f"no final program after {LIMIT_S} s")


# run


def figures(name: str, topology: str = "") -> dict[str, int]:
    """Return what one device sends in a program by mesh axes, by its name."""
    from tests.models.steps import CASES

    case = CASES.get(name)
    text = final_text(name, case.topology if case else topology)
    return wire_bytes(text, case.mesh if case else SMALL_MESH)


def wire_bytes(text: str, sizes: dict[str, int]) -> dict[str, int]:
    """Return what one device sends in a program, by mesh axes."""
    mesh = Mesh(tuple(MeshAxis(name, size) for name, size in sizes.items()))
    step = step_of_program(text, mesh)
    if isinstance(step, Diagnostic):
        raise RuntimeError(str(step))
    return {"+".join(axes): count for axes, count in sorted(step.wire_bytes.items())}


#: What of a configuration says something of a program: the rest is how it is carried out.
_KEPT = re.compile(
    r'"(?:async_collective_fusion_config":\{[^}]*\}|known_trip_count":\{[^}]*\}'
    r'|cost_estimate":\{[^}]*\})'
)
_LAYOUT = re.compile(r"(?<=\])\{[\d,]*(?::[^{}]*)?\}")


def cut(text: str) -> str:
    """Return a program without layouts and without most of what says how it is carried out."""
    lines = []
    for line in text.splitlines():
        line, _, config = line.partition(", backend_config=")
        kept = ",".join(_KEPT.findall(config))
        line += f", backend_config={{{kept}}}" if kept else ""
        line = re.sub(r", (?:frontend_attributes|sharding)=\{[^{}]*\}", "", line)
        line = re.sub(r" scheduling_name=\"[^\"]*\"", "", line)
        line = line.replace(f"{ROOT}/shardspec/", "site-packages/shardspec/")
        lines.append(_LAYOUT.sub("", line).replace(f"{ROOT}/", "").rstrip())
    return "\n".join(lines) + "\n"


def sample(name: str, topology: str) -> None:
    """Write one small program to `tests/data/programs`, with what it sends."""
    SAMPLES.mkdir(exist_ok=True)
    whole = final_text(name, topology)
    text = cut(whole)
    assert wire_bytes(text, SMALL_MESH) == wire_bytes(whole, SMALL_MESH)
    path = SAMPLES / f"{name}-{topology.partition(':')[0]}.txt"
    path.write_text(text, encoding="utf-8")
    print(path.name, len(whole), len(text), wire_bytes(text, SMALL_MESH))


def main(names: list[str]) -> None:
    """Write the figures of all programs, or of some, to `tests/data`."""
    from tests.models.small_steps import PROGRAMS
    from tests.models.steps import CASES

    held = json.loads(DATA.read_text(encoding="utf-8"))
    small = [(key, name) for key in SMALL for name in PROGRAMS if (key, name) not in NOT_COMPILED]
    for key, name in [*(("large", name) for name in CASES), *small]:
        if not names or name in names:
            found, before = figures(name, SMALL.get(key, "")), held[key].get(name)
            print(key, name, found, "as before" if before == found else f"was {before}")
            held[key][name] = found
            DATA.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        compile_here(*sys.argv[2:5])
    elif sys.argv[1:2] == ["--samples"]:
        for program, topologies in SAMPLED.items():
            for each in topologies:
                if not sys.argv[2:] or program in sys.argv[2:]:
                    sample(program, each)
    else:
        main(sys.argv[1:])
