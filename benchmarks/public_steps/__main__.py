"""Predict and compile public steps, or print what is kept of them."""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import shardspec
from benchmarks.public_steps import Public
from shardspec.diagnostics import ShardspecError
from shardspec.diagnostics.words import binary_bytes
from shardspec.jax_backend.step.trace import Call
from shardspec.jax_backend.xla.compiling import Compiling
from shardspec.jax_backend.xla.verifying import verify_step

DATA = Path(__file__).parent.parent / "data" / "public_steps.json"
Row = dict[str, Any]


def steps() -> list[Public]:
    """Return all steps, in the order of their files."""
    found: list[Public] = []
    for each in iter_modules([str(Path(__file__).parent)]):
        if not each.name.startswith("_"):
            found += import_module(f"benchmarks.public_steps.{each.name}").STEPS
    return found


def row(step: Public, target: str, checkouts: Path) -> Row:
    """Return what is predicted of a step on a target, and what its compiler makes of it."""
    resolver = shardspec.Resolver(shardspec.loads(step.spec), target, devices="abstract")
    about = {"step": step.name, "target": target, "commit": step.commit}
    with step.importable(checkouts):
        function, args = step.build(resolver)
        try:
            found = verify_step(resolver, Call(function, args), how=Compiling(900.0))
        except ShardspecError as error:
            return {**about, "error": error.diagnostics[0].message[:300]}
    memory = found.memory
    return {
        **about,
        "bytes": found.predicted_bytes,
        "compiled_bytes": found.compiled_bytes,
        "difference": round(found.difference, 4),
        "memory": found.cost.memory.total.bytes,
        "compiled_memory": None if memory is None else memory.bytes,
        "fits": found.cost.memory.fits,
        "compiled_fits": found.fits,
    }


def kept() -> list[Row]:
    """Return the rows that there are."""
    if not DATA.is_file():
        return []
    rows: list[Row] = json.loads(DATA.read_text(encoding="utf-8"))["rows"]
    return rows


def keep(new: Row) -> None:
    """Write a row beside the others, with its first prediction."""
    rows = {(each["step"], each["target"]): each for each in kept()}
    key = new["step"], new["target"]
    first = {name: new[name] for name in ("bytes", "difference", "memory", "fits") if name in new}
    rows[key] = {**new, "first": rows.get(key, {}).get("first") or first}
    about = "Steps of public code; `first` is what was predicted before any rule was changed for it"
    lines = ",\n".join(json.dumps(each) for each in rows.values())
    DATA.write_text(f'{{"about": {json.dumps(about)},\n"rows": [\n{lines}\n]}}\n', encoding="utf-8")


def table() -> None:
    """Print the rows as a table, and how many are how close."""
    names = {each.name: each for each in steps()}
    print("| step | of | machine | sent: predicted / compiled | differs | memory | off |")
    print("|---|---|---|---:|---:|---:|---:|")
    for each in kept():
        step = names[each["step"]]
        of = f"[{step.repository}](https://github.com/{step.repository}/tree/{step.commit[:12]})"
        head = f"| {step.what} | {of} | {each['target']} |"
        if "error" in each:
            print(f"{head} | | {each['error']} | |")
            continue
        sent = f"{binary_bytes(each['bytes'])} / {binary_bytes(each['compiled_bytes'])}"
        held = f"{binary_bytes(each['memory'])} / {binary_bytes(each['compiled_memory'])}"
        room = "" if each["compiled_fits"] else ", does not fit"
        off = each["memory"] / each["compiled_memory"] - 1
        print(f"{head} {sent} | {each['difference']:.1%} | {held}{room} | {off:+.0%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", type=Path, nargs="?")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--table", action="store_true", help="run nothing")
    asked = parser.parse_args()
    if asked.table or asked.checkouts is None:
        table()
        return
    known = {each.name: each for each in steps()}
    unknown = set(asked.names) - known.keys()
    if unknown:
        parser.error(f"there is no step {', '.join(sorted(unknown))}: {', '.join(known)}")
    for name in asked.names or known:
        for target in shardspec.loads(known[name].spec).targets:
            found = row(known[name], target, asked.checkouts)
            keep(found)
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
