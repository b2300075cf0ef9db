"""How the verbs grow: one thing in a spec is doubled, over and over, and each run is measured.

    python benchmarks/growth.py                    # every case, three sizes each
    python benchmarks/growth.py lock regex         # the cases whose name holds one of these words
    python benchmarks/growth.py --json

A run is a whole process from its start (0.2 s of it for nothing at all) under one processor, and
its peak of memory. `tests/properties/test_growth.py` counts the work itself, and so holds these
shapes on any machine; this script says what they cost.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LIMIT_SECONDS = 120

_HEAD = "shardspec: 1\nmesh: {data: 4, model: 2}\n"


class Run(NamedTuple):
    """Files to write, and the verb to run among them."""

    files: dict[str, str]
    arguments: tuple[str, ...]


def dsl_findings(count: int) -> Run:
    """Return a DSL spec whose every rule has a finding that can be mended."""
    rules = "".join(f"  a{n} -> model\n  a{n} -> model\n" for n in range(count // 2))
    text = f"mesh {{ data = 4; model = 2 }}\nrules {{\n{rules}}}\n"
    return Run({"spec.shard": text}, ("check", "spec.shard"))


def yaml_findings(count: int) -> Run:
    """Return the same in YAML."""
    rules = "".join(f"  - a{n} -> model\n  - a{n} -> model\n" for n in range(count // 2))
    return Run({"spec.yaml": f"{_HEAD}rules:\n{rules}"}, ("check", "spec.yaml"))


def dsl_text(count: int) -> Run:
    """Return a DSL spec of so many bytes."""
    entries = "".join(f"  decoder/layer_{n}/kernel : f32[64, 128]\n" for n in range(count // 42))
    text = f"mesh {{ data = 4; model = 2 }}\nrules {{ embed -> data }}\narrays {{\n{entries}}}\n"
    return Run({"spec.shard": text}, ("fmt", "--check", "spec.shard"))


def yaml_text(count: int) -> Run:
    """Return a YAML spec of so many bytes."""
    entries = "".join(f"  decoder/layer_{n}/kernel: f32[64, 128]\n" for n in range(count // 42))
    text = f"{_HEAD}rules:\n  - embed -> data\narrays:\n{entries}"
    return Run({"spec.yaml": text}, ("fmt", "--check", "spec.yaml"))


def lock_line(count: int) -> Run:
    """Return a lock with one line of so many characters, whose answer is one name."""
    spec = f"{_HEAD}rules:\n  - a -> data\narrays:\n  w: f32[8]\n"
    line = f"w : f32[a=8] = ({'x' * count}!)\n"
    lock = f"lock 1, language 1\ntarget default on 8 cpu\n{line}"
    return Run({"spec.yaml": spec, "spec.lock": lock}, ("lock", "--check", "spec.yaml"))


def globs(count: int) -> Run:
    """Return as many globs under `params` as arrays."""
    return _patterns(count, lambda n: f"'**/block_{n}/*/kernel'")


def regexes(count: int) -> Run:
    """Return as many regexes under `params` as arrays."""
    return _patterns(count, lambda n: rf"'re:.*/block_{n}/\w+/kernel'")


def _patterns(count: int, pattern: Callable[[int], str]) -> Run:
    params = "".join(f"  {pattern(n)}: embed mlp\n" for n in range(count))
    arrays = "".join(f"  model/block_{n}/mlp/kernel: bf16[64, 128]\n" for n in range(count))
    text = (
        f"{_HEAD}axes: {{embed: 64, mlp: 128}}\nrules:\n  - mlp -> model\n  - embed -> data\n"
        f"params:\n{params}arrays:\n{arrays}"
    )
    return Run({"spec.yaml": text}, ("check", "spec.yaml"))


def rules(count: int) -> Run:
    """Return so many rules, each for an axis and an array of its own."""
    axes = "".join(f"  a{n}: 8\n" for n in range(count))
    placed = "".join(f"  - a{n} -> data\n" for n in range(count))
    arrays = "".join(f"  w{n}: 'bf16[a{n}]'\n" for n in range(count))
    text = f"{_HEAD}axes:\n{axes}rules:\n{placed}arrays:\n{arrays}"
    return Run({"spec.yaml": text}, ("check", "spec.yaml"))


def listing(count: int) -> Run:
    """Return a listing of so many arrays in ranges, for `manifest`."""
    entries = ",\n".join(
        f'"layer_{n}/w_{{0..999}}": "bf16[64, 128]"' for n in range(max(count // 1000, 1))
    )
    return Run({"arrays.json": f"{{{entries}}}"}, ("manifest", "arrays.json", "-o", "out.json"))


CASES: dict[str, tuple[Callable[[int], Run], tuple[int, ...]]] = {
    "findings in a DSL spec": (dsl_findings, (500, 1_000, 2_000)),
    "findings in a YAML spec": (yaml_findings, (500, 1_000, 2_000)),
    "bytes of a DSL spec": (dsl_text, (250_000, 500_000, 1_000_000)),
    "bytes of a YAML spec": (yaml_text, (250_000, 500_000, 1_000_000)),
    "characters in a line of a lock": (lock_line, (20_000, 40_000, 80_000)),
    "globs and arrays": (globs, (1_000, 2_000, 4_000)),
    "regexes and arrays": (regexes, (1_000, 2_000, 4_000)),
    "rules, axes and arrays": (rules, (2_500, 5_000, 10_000)),
    "arrays of a listing": (listing, (25_000, 50_000, 100_000)),
}


class Cost(NamedTuple):
    """What one run took; `seconds` is that of the processor."""

    seconds: float
    peak_mib: float
    code: int


def measured(run: Run) -> Cost:
    """Return what a run costs, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in run.files.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        child = subprocess.Popen(
            [sys.executable, __file__, "--child", *run.arguments],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert child.stderr is not None
        said = child.stderr.read().splitlines()
        code = child.wait()
    try:
        seconds, peak = map(float, said[-1].split())
    except (IndexError, ValueError):
        return Cost(LIMIT_SECONDS, 0, code)
    return Cost(seconds, peak, code)


def child(arguments: list[str]) -> None:
    """Run one verb in this process, then say what it took."""
    from shardspec.cli.main import main

    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_SECONDS, LIMIT_SECONDS))
    sys.argv = ["shardspec", *arguments]
    code: object = 0
    start = time.process_time()
    try:
        main()
    except SystemExit as end:
        code = end.code
    usage = resource.getrusage(resource.RUSAGE_SELF)
    peak_kib = usage.ru_maxrss if sys.platform != "darwin" else usage.ru_maxrss / 1024
    print(f"\n{time.process_time() - start:.3f} {peak_kib / 1024:.0f}", file=sys.stderr)
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


def main() -> None:
    """Print a table, or everything as JSON."""
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("words", nargs="*", help="only the cases whose name holds one of these")
    parser.add_argument("--scale", type=float, default=1, help="times the sizes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    chosen = {
        name: case
        for name, case in CASES.items()
        if not options.words or any(word in name for word in options.words)
    }
    found: dict[str, dict[int, Cost]] = {}
    if not options.json:
        print("| what grows | count | s | us each | MiB | exit |\n|---|---:|---:|---:|---:|---:|")
    for name, (make, sizes) in chosen.items():
        found[name] = {}
        for size in sizes:
            count = int(size * options.scale)
            cost = found[name][count] = measured(make(count))
            if not options.json:
                each = f"{1e6 * cost.seconds / count:.1f}"
                row = (name, f"{count:,}", f"{cost.seconds:.2f}", each, f"{cost.peak_mib:.0f}")
                print(f"| {' | '.join(row)} | {cost.code} |", flush=True)
    if options.json:
        print(json.dumps({k: {n: c._asdict() for n, c in v.items()} for k, v in found.items()}))


if __name__ == "__main__":
    main()
