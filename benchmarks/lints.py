"""How long all findings take: a spec with 10,000 arrays, 100 rules and 6 targets, in one process.

    python benchmarks/lints.py                  # each check at 10,000 arrays, totals for four sizes
    python benchmarks/lints.py --arrays 2500 5000
    python benchmarks/lints.py --broken         # every array and entry has something wrong
    python benchmarks/lints.py --json

The arrays are those of a hundred kinds, in layers; every kind has names of its own, and a third of
the entries are regexes; elements have four bits, so that all of them fit into memory (a finding
else). Figures are medians over runs that start from the text each time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import time
from collections.abc import Sequence
from typing import Any

from shardspec import pipeline
from shardspec.lints.context import Context
from shardspec.lints.registry import checks, codes

KINDS = 100
AXES = 49
TARGETS = """\
targets:
  v4-512: {hardware: tpu v4 4x8x8, mesh: {data: rest, model: submesh 4x2x2x1}}
  v5p-256: {hardware: tpu v5p 4x4x8, mesh: {data: rest, model: 8}}
  v5e-256: {hardware: tpu v5e 16x16, mesh: {data: rest, model: 16}}
  two-v6e-256: {hardware: 2 * tpu v6e 16x16, mesh: {replica: 2 @ dcn, data: rest, model: 8}}
  nodes: {hardware: 16 * h100, mesh: {replica: 4 @ dcn, data: 4 @ dcn, model: 8}}
  laptop: {hardware: 8 cpu, mesh: {data: rest, model: 2}}
"""


def broken(text: str) -> str:
    """Return the spec with a mistake in every array, in a third of the entries and in a target."""
    text = re.sub(r"s4\[(\d+), ", lambda found: f"s4[{int(found[1]) + 1}, ", text)
    return text.replace("layers_\\d+", "layer_\\d+").replace("model: 16", "modle: 16")


def spec_text(arrays: int) -> str:
    """Return a spec without findings: 100 rules, an entry of `params` for each kind of array."""
    layers = arrays // KINDS
    sizes = [(4096 + 512 * (n % 5), 4096 + 512 * (n % 3)) for n in range(AXES)]
    axes = [f"  out_{n}: {sizes[n][0]}\n  in_{n}: {sizes[n][1]}\n" for n in range(AXES)]
    rules = [f"  - out_{n} -> model\n  - in_{n} -> data | none\n" for n in range(AXES)]
    names = [f"out_{n % AXES} in_{n % AXES}" for n in range(KINDS)]
    params = [f"  {_pattern(n)}: {names[n]}\n" for n in range(KINDS)]
    listed = [
        f'  "decoder/layers_{{0..{layers - 1}}}/block_{n}/kernel": s4{list(sizes[n % AXES])}\n'
        for n in range(KINDS)
    ]
    return "".join(
        (
            "shardspec: 1\naxes:\n  batch: 4096\n  length: 2048\n",
            *axes,
            TARGETS,
            "rules:\n  - batch -> (replica, data)\n  - length -> none\n",
            *rules,
            "params:\n",
            *params,
            "activations:\n  tokens: batch length\n  hidden: batch length out_0\n",
            "arrays:\n",
            *listed,
        )
    )


def _pattern(kind: int) -> str:
    if kind % 3:
        return f'"**/block_{kind}/kernel"'
    return rf"'re:decoder/layers_\d+/block_{kind}/kernel'"


def one_run(text: str, *, is_broken: bool) -> dict[str, float]:
    """Return the seconds of each stage and check, from the text to the last finding."""
    seconds: dict[str, float] = {}
    start = time.perf_counter()
    spec, faults = pipeline.load_text(text, "spec.yaml")
    seconds["(text -> spec)"] = time.perf_counter() - start
    if spec is None or (faults and not is_broken):
        raise SystemExit(f"the spec is not sound: {faults}")
    start = time.perf_counter()
    plans = pipeline.compile_plans(spec)
    seconds["(spec -> plans)"] = time.perf_counter() - start
    context = Context(spec, plans)
    for code, module in zip(codes(), checks(), strict=True):
        start = time.perf_counter()
        found = [d for d in module.check(context) if not d.code.is_pedantic]
        seconds[code.name] = time.perf_counter() - start
        if found and not is_broken:
            raise SystemExit(f"the spec has findings: {found[0].message}")
    return seconds


def medians(text: str, repeats: int, *, is_broken: bool) -> dict[str, float]:
    """Return the median seconds of each stage and check."""
    one_run(text, is_broken=is_broken)  # imports, compiled grammars and the catalogue
    runs = [one_run(text, is_broken=is_broken) for _ in range(repeats)]
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def findings_seconds(seconds: dict[str, float]) -> float:
    """Return the seconds of all checks together."""
    return sum(value for name, value in seconds.items() if not name.startswith("("))


def main() -> None:
    """Print the tables, or everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--arrays", type=int, nargs="+", default=[2_500, 5_000, 10_000, 20_000], help="sizes"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each size")
    parser.add_argument("--broken", action="store_true", help="a spec full of mistakes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    sizes: dict[int, dict[str, float]] = {
        arrays: medians(
            broken(spec_text(arrays)) if options.broken else spec_text(arrays),
            options.repeats,
            is_broken=options.broken,
        )
        for arrays in options.arrays
    }
    machine: dict[str, Any] = {
        "os": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
    }
    if options.json:
        print(json.dumps({"machine": machine, "seconds": sizes}, indent=2))
        return
    print(" ".join(f"{key} {value}" for key, value in machine.items()), end="\n\n")
    middle = 10_000 if 10_000 in sizes else options.arrays[-1]
    print("\n".join((*per_check(middle, sizes[middle]), "", *per_size(sizes))))


def per_check(arrays: int, seconds: dict[str, float]) -> Sequence[str]:
    """Return a table of the checks at one size, the slowest first."""
    order = sorted(seconds, key=lambda name: -seconds[name])
    rows = [f"| {name} | {1e3 * seconds[name]:.1f} |" for name in order]
    return [f"| {arrays:,} arrays | ms |", "|---|---:|", *rows]


def per_size(sizes: dict[int, dict[str, float]]) -> Sequence[str]:
    """Return a table of totals, and what an array costs at each size."""
    rows = []
    for arrays, seconds in sizes.items():
        found, whole = findings_seconds(seconds), sum(seconds.values())
        rows.append(
            f"| {arrays:,} | {whole - found:.2f} | {found:.2f} | {1e6 * found / arrays:.1f} |"
        )
    head = "| arrays | text to plans, s | all findings, s | findings, us an array |"
    return [head, "|---:|---:|---:|---:|", *rows]


if __name__ == "__main__":
    main()
