"""What libtpu's final programs send: the figures that traced steps are held against in tests.

    python -m benchmarks.final_programs                 # all of them
    python -m benchmarks.final_programs llama-8b-v5p    # one

libtpu compiles for a TPU that is not there and dumps the final program (`after_optimizations`)
long before it is done, so every compile runs in a process of its own that is ended once the dump
is whole. Needs the extra `tpu-aot` (libtpu) and some minutes; tests read the figures it wrote.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data" / "final_programs.json"
#: What libtpu wants to know of a host that it is not on.
AOT = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5e-8",
    "TPU_WORKER_ID": "0",
}
LIMIT_S = 600
SMALL = ("v5e:4x4", {"fsdp": 8, "tensor": 2})
KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

_COMPUTATION = re.compile(r"^(ENTRY )?%([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%([\w.\-]+) = (.*)$")
_ARRAY = re.compile(r"\b(pred|bf16|[fsu]\d+)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:calls|to_apply|called_computations)=\{?%([\w.\-]+)")


# compile


def compile_here(name: str, folder: str) -> None:
    """Compile one program, with its dump in `folder`; runs in a process of its own."""
    from jax.experimental import topologies

    import shardspec
    from shardspec.jax_backend.step_trace import placed
    from tests.models import small_steps
    from tests.models.steps import CASES

    case = CASES.get(name)
    topology = case.topology if case else SMALL[0]
    chip = {"chip_config_name": "megacore"} if topology.startswith("v4") else {}
    devices = topologies.get_topology_desc(topology, platform="tpu", **chip).devices
    if case:
        loaded = shardspec.loads(case.spec)
        resolver = shardspec.Resolver(loaded, "pod", devices=devices, agree_within_s=None)
        function, args = case.step(resolver)
    else:
        resolver = small_steps.resolver(devices=devices)
        function, args = small_steps.PROGRAMS[name](resolver)
    jitted, args = placed(resolver, function, args)
    options = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True}
    jitted.trace(*args).lower(lowering_platforms=("tpu",)).compile(compiler_options=options)


def final_text(name: str) -> str:
    """Return the final program of libtpu."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.final_programs", "--child", name, folder]
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


# read


class Program:
    """A program in HLO text: computations of instructions, by name.

    Each instruction is (type, operation, the rest of its line, whether it is the root).
    """

    def __init__(self, text: str) -> None:
        """Parse the text."""
        self.computations: dict[str, dict[str, tuple[str, str, str, bool]]] = {}
        self.entry = current = ""
        for line in text.splitlines():
            head = _COMPUTATION.match(line)
            if head:
                current = head.group(2)
                self.computations[current] = {}
                self.entry = current if head.group(1) else self.entry
            found = _INSTRUCTION.match(line)
            if found and current:
                kind, rest = _type_and_rest(found.group(3))
                operation, _, rest = rest.partition("(")
                self.computations[current][found.group(2)] = (
                    kind,
                    operation,
                    rest,
                    bool(found.group(1)),
                )

    def operands(self, rest: str) -> list[str]:
        """Return the names of the operands in the rest of a line."""
        depth = 1
        for at, letter in enumerate(rest):
            depth += (letter == "(") - (letter == ")")
            if depth == 0:
                return re.findall(r"%([\w.\-]+)", rest[:at])
        return []

    def sends(self, name: str, count: int, within: str) -> Iterator[tuple[Any, ...]]:
        """Yield (key, kind, groups, operand bytes, count, computation) of every collective."""
        body = self.computations[name]
        for at, (_, operation, rest, _) in body.items():
            kind = next((each for each in KINDS if operation in (each, f"{each}-start")), None)
            if kind:
                taken = [body[each][0] for each in self.operands(rest) if each in body]
                size = sum(map(_bytes, taken))
                yield _key(rest, kind, (name, at)), kind, rest, size, count, within
            elif operation == "while":
                inner = _named(rest, "body")
                rounds = self._rounds(inner, _named(rest, "condition"))
                yield from self.sends(inner, count * rounds, within)
            elif operation == "conditional":
                branches = re.findall(r"%([\w.\-]+)", rest[rest.index("computation") :])
                for branch in branches:
                    if branch in self.computations:
                        yield from self.sends(branch, count, within)
            elif operation in ("fusion", "call", "async-start", "custom-call"):
                for inner in _CALLED.findall(rest):
                    if inner in self.computations:
                        where = within + inner if operation == "fusion" else within
                        yield from self.sends(inner, count, where)

    def _rounds(self, body: str, condition: str) -> int:
        """Return the rounds of a loop: the constant it counts to, over the step of its counter."""
        inside = self.computations[condition]
        rest = next(rest for _, _, rest, is_root in inside.values() if is_root)
        names = self.operands(rest)
        limit = next((n for n in (self._number(inside, each) for each in names) if n), 1)
        counter = next((at for at in (_index(inside, each, self) for each in names) if at >= 0), 0)
        held = self.computations[body]
        root = next(rest for _, _, rest, is_root in held.values() if is_root)
        step = self._step(held, self.operands(root)[counter])
        return max(1, math.ceil(limit / step))

    def _step(self, body: dict[str, Any], name: str) -> int:
        _, operation, rest, _ = body[name]
        if operation in ("copy", "bitcast"):
            return self._step(body, self.operands(rest)[0])
        if operation == "add":
            found = [self._number(body, each) for each in self.operands(rest)]
            return next((number for number in found if number), 1)
        if operation == "fusion":
            inner = self.computations[_CALLED.findall(rest)[0]]
            numbers = [self._number(inner, each) for each in inner]
            return next((number for number in numbers if number), 1)
        return 1

    def _number(self, body: dict[str, Any], name: str) -> int | None:
        _, operation, rest, _ = body[name]
        if operation == "constant":
            found = re.match(r"(-?\d+)\)", rest)
            return int(found.group(1)) if found else None
        if operation in ("copy", "bitcast", "convert"):
            return self._number(body, self.operands(rest)[0])
        return None


def _index(body: dict[str, Any], name: str, program: Program) -> int:
    _, operation, rest, _ = body[name]
    while operation in ("copy", "bitcast"):
        _, operation, rest, _ = body[program.operands(rest)[0]]
    found = re.search(r"index=(\d+)", rest)
    return int(found.group(1)) if operation == "get-tuple-element" and found else -1


def _type_and_rest(text: str) -> tuple[str, str]:
    if not text.startswith("("):
        kind, _, rest = text.partition(" ")
        return kind, rest
    depth = 0
    for at, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return text[: at + 1], text[at + 2 :]
    return text, ""


def _named(rest: str, what: str) -> str:
    found = re.search(rf"{what}=%([\w.\-]+)", rest)
    assert found, rest
    return found.group(1)


def _bytes(kind: str) -> int:
    bits = {"pred": 8}
    return sum(
        math.prod(int(size) for size in sizes.split(",") if size)
        * (bits.get(dtype) or int(re.sub(r"\D", "", dtype.replace("bf16", "16"))))
        // 8
        for dtype, sizes in _ARRAY.findall(kind)
    )


def _key(rest: str, kind: str, otherwise: tuple[str, str]) -> tuple[str, ...]:
    """Return what tells a collective from others: its parts share a channel.

    Those that a user writes under `shard_map` all have channel 1.
    """
    channel = re.search(r"channel_id=(\d+)", rest)
    if channel is None:
        return otherwise
    op_name = re.search(r'op_name="([^"]*)"', rest)
    own = op_name.group(1) if op_name and channel.group(1) == "1" else ""
    return channel.group(1), kind, own


def groups(rest: str, count: int) -> list[tuple[int, ...]]:
    """Return the groups of devices of a collective, in each of the ways they are printed."""
    import numpy as np

    pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", rest)
    if pairs:
        found = re.findall(r"(\d+),(\d+)", pairs.group(1))
        return [(int(a), int(b)) for a, b in found]
    iota = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest)
    if iota:
        shape, dims, order = (
            [int(n) for n in part.split(",")] if part else None for part in iota.groups()
        )
        devices = np.arange(count).reshape(dims)
        devices = devices.transpose(order) if order else devices
        return [tuple(map(int, row)) for row in devices.reshape(shape)]
    mesh = re.search(r"replica_groups=mesh\[(.*?)\] \{(.*?)\}", rest)
    if mesh:
        return _mesh_groups(mesh.group(1), mesh.group(2), count)
    listed = re.search(r"replica_groups=\{(\{.*?\})\}", rest)
    rows = re.findall(r"\{([\d,]+)\}", listed.group(1)) if listed else []
    return [tuple(map(int, row.split(","))) for row in rows] or [tuple(range(count))]


def _mesh_groups(sizes: str, used: str, count: int) -> list[tuple[int, ...]]:
    import numpy as np

    axes = [(name, int(size)) for name, size in re.findall(r"'(\w+)'=(\d+)", sizes)]
    assert ":" not in used, "parts of axes are not read"
    names = re.findall(r"'(\w+)'", used)
    devices = np.arange(count).reshape([size for _, size in axes])
    inner = [at for at, (name, _) in enumerate(axes) if name in names]
    outer = [at for at, (name, _) in enumerate(axes) if name not in names]
    ways = math.prod(axes[at][1] for at in inner)
    return [tuple(map(int, row)) for row in devices.transpose(outer + inner).reshape(-1, ways)]


def axes_of(found: list[tuple[int, ...]], mesh: dict[str, int]) -> str:
    """Return the mesh axes whose coordinate differs within a group."""
    names: set[str] = set()
    for group in found:
        for name in mesh:
            if len({_coordinate(device, name, mesh) for device in group}) > 1:
                names.add(name)
    return "+".join(name for name in mesh if name in names)


def _coordinate(device: int, name: str, mesh: dict[str, int]) -> int:
    names = list(mesh)
    below = math.prod(mesh[each] for each in names[names.index(name) + 1 :])
    return device // below % mesh[name]


def wire_bytes(text: str, mesh: dict[str, int]) -> dict[str, int]:
    """Return what one device sends in the whole program, by mesh axes."""
    program = Program(text)
    devices = math.prod(mesh.values())
    least: dict[tuple[str, ...], tuple[int, str, int]] = {}
    for key, kind, rest, size, count, within in program.sends(program.entry, 1, ""):
        found = groups(rest, devices)
        sent = _ring(kind, size, 2 if "pairs" in rest else len(found[0]), within)
        if key not in least or least[key][0] > count:
            least[key] = (count, axes_of(found, mesh), sent)
    total: dict[str, int] = {}
    for count, axes, sent in least.values():
        total[axes] = total.get(axes, 0) + count * sent
    return {axes: total[axes] for axes in sorted(total) if axes}


def _ring(kind: str, operand_bytes: int, ways: int, within: str) -> int:
    """Return what a device sends; an all-reduce in a fusion that slices it is a scatter."""
    if kind == "collective-permute":
        return operand_bytes
    if kind == "all-gather":
        return operand_bytes * (ways - 1)
    turns = 2 if kind == "all-reduce" and "scatter" not in within else 1
    return turns * (ways - 1) * operand_bytes // ways


# run


def figures(name: str) -> dict[str, int]:
    """Return the figures of one program, by name."""
    from tests.models.steps import CASES

    mesh = CASES[name].mesh if name in CASES else SMALL[1]
    return wire_bytes(final_text(name), mesh)


def main(names: list[str]) -> None:
    """Write the figures of all programs, or of some, to `tests/data`."""
    from tests.models.small_steps import PROGRAMS
    from tests.models.steps import CASES

    held = json.loads(DATA.read_text(encoding="utf-8"))
    for name in names or [*CASES, *PROGRAMS]:
        where = held["large" if name in CASES else "small"]
        found = figures(name)
        print(name, found, "as before" if where.get(name) == found else f"was {where.get(name)}")
        where[name] = found
        DATA.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        compile_here(sys.argv[2], sys.argv[3])
    else:
        main(sys.argv[1:])
