"""What compilers' final programs send: the figures that traced steps are held against in tests.

    python -m benchmarks.final_programs                 # all of them
    python -m benchmarks.final_programs llama-8b-v5p    # one
    python -m benchmarks.final_programs --samples       # the small programs of tests/data/programs

They are compiled as `shardspec verify` compiles. Needs libtpu (the extra `tpu-aot`), and for GPUs
the plugin's folder in SHARDSPEC_GPU_COMPILER. Takes some minutes; tests read the figures it wrote.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from shardspec.diagnostics import Diagnostic
from shardspec.ir.spec import Mesh, MeshAxis
from shardspec.jax_backend.xla.compiling import Compiling, compiled
from shardspec.programs.reading import read_program

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data" / "final_programs.json"
SAMPLES = ROOT / "tests" / "data" / "programs"
#: What the lines of the small steps said when a sample was made: they move as steps are added.
LINES = SAMPLES / "lines.json"
SMALL_STEPS = ROOT / "tests" / "models" / "small_steps.py"
SMALL_MESH = {"fsdp": 8, "tensor": 2}
#: Where the small steps are compiled for, by the key of their figures.
SMALL = {"small": "tpu v5e 4x4", "small-h100": "2 * h100"}
#: A kernel is for one kind of chip.
NOT_COMPILED = {("small-h100", "kernel")}
#: The machines of samples, by the end of their names.
MACHINES = {
    "v4": "tpu v4 2x2x4",
    "v5e": "tpu v5e 4x4",
    "v5p": "tpu v5p 2x2x4",
    "v6e": "tpu v6e 4x4",
    "tpu7x": "tpu v7x 2x2x2",
    "h100": "2 * h100",
    "cpu": "16 cpu",
}
#: One small step for every compiler, and others that show what only some programs hold.
SAMPLED = {
    "microbatches": ("v4", "v5e", "v5p", "v6e", "tpu7x", "cpu"),
    "clipped_adam": ("h100",),
    "kept_activations": ("v5e",),
    "shard_mapped": ("v5e", "h100"),
    "branch": ("cpu",),
}


# compile


def final_text(name: str, hardware: str = "") -> str:
    """Return the final program of a step, by its name.

    Args:
      hardware: of a small step, which names none itself.
    """
    import shardspec
    from shardspec.jax_backend.step.passes import bytecode_of
    from shardspec.jax_backend.step.trace import Call, lowered_here, traced
    from tests.models import small_steps
    from tests.models.steps import CASES

    build, text = small_steps.PROGRAMS.get(name), small_steps.SPEC
    if name in CASES:
        build, text = CASES[name].step, CASES[name].spec
    assert build is not None
    spec = shardspec.loads(text.replace(SMALL["small"], hardware or SMALL["small"]))
    devices: Any = None if hardware.endswith("cpu") else "abstract"
    resolver = shardspec.Resolver(spec, "pod", devices=devices, agree_within_s=None)
    function, args = build(resolver)
    if devices is None:
        return lowered_here(resolver, Call(function, args)).compile().as_text()
    module = bytecode_of(traced(resolver, Call(function, args)).module)
    return compiled(module, resolver.target, Compiling(is_cached=False)).text


# run


def figures(name: str, hardware: str = "") -> dict[str, int]:
    """Return what one device sends in a program by mesh axes, by its name."""
    from tests.models.steps import CASES

    case = CASES.get(name)
    return wire_bytes(final_text(name, hardware), case.mesh if case else SMALL_MESH)


def wire_bytes(text: str, sizes: dict[str, int]) -> dict[str, int]:
    """Return what one device sends in a program, by mesh axes."""
    mesh = Mesh(tuple(MeshAxis(name, size) for name, size in sizes.items()))
    read = read_program(text, mesh)
    if isinstance(read, Diagnostic):
        raise RuntimeError(str(read))
    return {"+".join(axes): count for axes, count in sorted(read.step.wire_bytes.items())}


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


def sample(name: str, chip: str) -> None:
    """Write one small program to `tests/data/programs`, with what it sends."""
    SAMPLES.mkdir(exist_ok=True)
    whole = final_text(name, MACHINES[chip])
    text = cut(whole)
    assert wire_bytes(text, SMALL_MESH) == wire_bytes(whole, SMALL_MESH)
    path = SAMPLES / f"{name}-{chip}.txt"
    path.write_text(text, encoding="utf-8")
    held = json.loads(LINES.read_text(encoding="utf-8")) if LINES.exists() else {}
    code = SMALL_STEPS.read_text(encoding="utf-8").splitlines()
    file = re.search(rf'^(\d+) ".*{SMALL_STEPS.name}"$', text, re.MULTILINE)
    assert file is not None
    numbers = re.findall(rf"\bfile_name_id={file[1]} .*?\bline=(\d+)", text)
    held[path.stem] = {each: code[int(each) - 1] for each in sorted(set(numbers), key=int)}
    LINES.write_text(json.dumps(held, indent=1, sort_keys=True) + "\n", encoding="utf-8")
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
    # Before jax is imported: steps that are compiled for what is here need as many devices.
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=16"
    if sys.argv[1:2] == ["--samples"]:
        for program, chips in SAMPLED.items():
            for each in chips:
                if not sys.argv[2:] or program in sys.argv[2:]:
                    sample(program, each)
    else:
        main(sys.argv[1:])
