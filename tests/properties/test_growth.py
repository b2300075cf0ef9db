"""Four times as much in a file is some four times the work: counted, so that any machine agrees.

What is counted are calls, of C functions and steps of generators among them. What C does in one
call is not seen: `benchmarks/growth.py` measures it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest

from shardspec import pipeline
from shardspec.lock.lock_file import read_lock

MOST = 6.0
HEAD = "shardspec: 1\nmesh: {data: 4, model: 2}\n"


def checked(name: str, text: str) -> None:
    spec, faults = pipeline.load_text(text, name)
    if spec is not None:
        pipeline.check(spec, faults, spec.params)


def dsl(text: str) -> None:
    checked(
        "spec.shard", f"mesh {{ data = 4; model = 2 }}\n{text}\narrays {{ w : f32[64, 128] }}\n"
    )


def yaml(text: str) -> None:
    checked("spec.yaml", HEAD + text)


def dsl_findings(n: int) -> None:
    dsl("rules {\n" + "".join(f"  a{i} -> model\n  a{i} -> model\n" for i in range(n)) + "}")


def dsl_one_line(n: int) -> None:
    dsl("rules { " + "; ".join(f"a{i} -> data" for i in range(n)) + " }")


def yaml_flow(n: int) -> None:
    rules = ", ".join(f"a{i} -> data" for i in range(n))
    yaml(f"rules: [{rules}]\narrays: {{w: 'f32[64, 128]'}}\n")


def yaml_flow_unknown(n: int) -> None:
    arrays = ", ".join(f"w{i}: 'f32[64, bb{i}]'" for i in range(n))
    yaml(f"rules: [b -> data]\naxes: {{b: 64}}\narrays: {{{arrays}}}\n")


def suppressions(n: int) -> None:
    rules = "".join(f"  - a{i} -> model  # shardspec: ignore[uneven]\n" for i in range(n))
    yaml(f"rules:\n{rules}arrays: {{w: 'f32[64]'}}\n")


def rules_and_axes(n: int) -> None:
    axes = "".join(f"  a{i}: 8\n" for i in range(n))
    rules = "".join(f"  - a{i} -> data\n" for i in range(n))
    arrays = "".join(f"  w{i}: 'bf16[a{i}]'\n" for i in range(n))
    yaml(f"axes:\n{axes}rules:\n{rules}arrays:\n{arrays}")


def patterns(pattern: Callable[[int], str]) -> Callable[[int], None]:
    def run(n: int) -> None:
        params = "".join(f"  {pattern(i)}: embed mlp\n" for i in range(n))
        arrays = "".join(f"  model/block_{i}/mlp/kernel: bf16[64, 128]\n" for i in range(n))
        axes = "axes: {embed: 64, mlp: 128}\nrules: [mlp -> model, embed -> data]\n"
        yaml(f"{axes}params:\n{params}arrays:\n{arrays}")

    return run


def rules_misspelt(n: int) -> None:
    rules = "".join(f"  - aa{i}x -> data\n" for i in range(n))
    arrays = "".join(f"  w{i}: 'bf16[aa{i}=8]'\n" for i in range(n))
    yaml(f"rules:\n{rules}arrays:\n{arrays}")


def mesh_axes_misspelt(n: int) -> None:
    rules = "".join(f"  - aa{i} -> data{i}\n" for i in range(n))
    arrays = "".join(f"  w{i}: 'bf16[aa{i}=8]'\n" for i in range(n))
    acts = "".join(f"  act{i}: aa{i}\n" for i in range(n))
    yaml(f"rules:\n{rules}arrays:\n{arrays}activations:\n{acts}")


def axes_without_rules(n: int) -> None:
    axes = "".join(f"  aa{i}: 8\n" for i in range(n))
    arrays = "".join(f"  w{i}: 'bf16[aa{i}]'\n" for i in range(n))
    acts = "".join(f"  act{i}: aa{i}\n" for i in range(n))
    yaml(f"axes:\n{axes}rules: [b -> data]\narrays:\n{arrays}activations:\n{acts}")


def manifest(n: int) -> None:
    from shardspec.arrays import read_manifest
    from shardspec.diagnostics import SourceFile

    entries = ", ".join(f'"layer_{i}/w_{{0..9}}": "bf16[64, 128]"' for i in range(n))
    read_manifest(SourceFile("arrays.json", f"{{{entries}}}"))


def lock_line(n: int) -> None:
    from shardspec.diagnostics import SourceFile

    line = f"w : f32[a=8] = ({'x, ' * n}!)\n"
    read_lock(SourceFile("spec.lock", f"lock 1, language 1\ntarget default on 8 cpu\n{line}"))


CASES: dict[str, tuple[Callable[[int], None], int]] = {
    "findings with a fix in the DSL": (dsl_findings, 60),
    "rules on one line of the DSL": (dsl_one_line, 60),
    "a YAML flow list": (yaml_flow, 60),
    "faults in a YAML flow map": (yaml_flow_unknown, 60),
    "suppressions of nothing": (suppressions, 30),
    "rules, axes and arrays": (rules_and_axes, 60),
    "globs and arrays": (patterns(lambda i: f"'**/block_{i}/*/kernel'"), 100),
    "regexes and arrays": (patterns(lambda i: rf"'re:.*/block_{i}/\w+/kernel'"), 100),
    "globs that match nothing": (patterns(lambda i: f"'**/block_{i}/*/bias'"), 150),
    "regexes that match nothing": (patterns(lambda i: rf"'re:.*/block_{i}/\w+/bias'"), 150),
    "misspelt axes of rules": (rules_misspelt, 60),
    "misspelt mesh axes": (mesh_axes_misspelt, 60),
    "axes without rules": (axes_without_rules, 60),
    "a long line of a lock": (lock_line, 1000),
    "entries of a manifest": (manifest, 100),
}


def work(run: Callable[[int], None], n: int) -> int:
    """Return how many calls a run makes."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run(n)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("name", CASES)
def test_work_grows_with_the_text(name: str) -> None:
    run, n = CASES[name]
    run(2)  # what is loaded or compiled once is no part of it
    few, many = work(run, n), work(run, 4 * n)
    assert many / few < MOST, f"{few:,} steps for {n}, {many:,} for {4 * n}"


def test_the_measure_sees_a_square() -> None:
    def square(n: int) -> None:
        for i in range(n):
            sum(1 for _ in range(n) if i)

    assert work(square, 200) * MOST < work(square, 800)


def test_the_benchmark_names_this_file() -> None:
    root = Path(__file__).parents[2]
    text = (root / "benchmarks" / "growth.py").read_text(encoding="utf-8")
    assert Path(__file__).relative_to(root).as_posix() in text
