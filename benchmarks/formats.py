"""How long formats take: checkpoints, locks, diffs, other tools' rules, there and back.

    python benchmarks/formats.py                    # every part
    python benchmarks/formats.py --only safetensors
    python benchmarks/formats.py --json

The checkpoint of 70B parameters is fabricated: names, shapes and the 30 shards are those of Llama 3
70B, and the files are sparse, 141 GB long on paper. A figure is the median of several runs in this
process; `bytes read` is what was read of all files together. Locks, diffs and exports are of a plan
of 10,000 arrays; MaxText's base rules are those of `tests/data/maxtext`.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardspec import assets, pipeline
from shardspec.analysis.layout_diff import Layout, diff_layouts, layout_of
from shardspec.arrays.reading import FrugalFile
from shardspec.diagnostics import SourceFile
from shardspec.foreign import maxtext as maxtext_rules
from shardspec.foreign.formats import EXPORTS, Options, Request, module_of, spec_text
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.spec import Param
from shardspec.lock.diff_forms import diff_lines
from shardspec.lock.lock_file import lock_text, read_lock

MODEL = "llama-3-70b"
SHARDS = 30
INDEX = "model.safetensors.index.json"

Row = dict[str, Any]


def arrays_of(model: str) -> tuple[Param, ...]:
    """Return the arrays of a bundled manifest."""
    path = assets.spec_path("arrays", model)
    assert path is not None
    params, faults = pipeline.read_manifest(SourceFile(model, path.read_text(encoding="utf-8")))
    assert not faults
    return params


def write_safetensors(folder: Path, params: tuple[Param, ...], shards: int) -> int:
    """Write an index and sparse shards of about the same size; return the bytes on paper."""
    total = sum(param.bytes for param in params)
    weights: dict[str, str] = {}
    layouts: list[dict[str, Any]] = [{} for _ in range(shards)]
    sizes = [0] * shards
    done = 0
    for param in params:
        number = min(done * shards // total, shards - 1)
        start = sizes[number]
        sizes[number] += param.bytes
        done += param.bytes
        layouts[number][param.path] = {
            "dtype": param.dtype.upper(),
            "shape": param.shape,
            "data_offsets": [start, sizes[number]],
        }
        weights[param.path] = f"model-{number + 1:05}-of-{shards:05}.safetensors"
    for number, (layout, size) in enumerate(zip(layouts, sizes, strict=True), start=1):
        raw = json.dumps({"__metadata__": {"format": "pt"}, **layout}).encode()
        with (folder / f"model-{number:05}-of-{shards:05}.safetensors").open("wb") as file:
            file.write(len(raw).to_bytes(8, "little") + raw)
            file.truncate(8 + len(raw) + size)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weights.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
    return total


@contextmanager
def counting(read: list[int]) -> Iterator[None]:
    """Note the size of each read of a checkpoint."""
    own = FrugalFile.read

    def counted(self: FrugalFile, size: int | None = -1, /) -> bytes:
        data = own(self, size)
        read.append(len(data))
        return data

    FrugalFile.read = counted  # type: ignore[method-assign]
    try:
        yield
    finally:
        FrugalFile.read = own  # type: ignore[method-assign]


def median_seconds(action: Callable[[], object], repeats: int) -> float:
    """Return the median time of one call."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def safetensors(repeats: int) -> Iterator[Row]:
    """Yield the time for an index of 30 shards, and for all of it in one file."""
    params = arrays_of(MODEL)
    for shards in (SHARDS, 1):
        with tempfile.TemporaryDirectory() as folder:
            total = write_safetensors(Path(folder), params, shards)
            index = os.path.join(folder, INDEX)
            read: list[int] = [os.path.getsize(index)]
            with counting(read):
                arrays, faults = pipeline.read_arrays(index)
            assert faults == ()
            assert sum(param.bytes for param in arrays.params) == total
            yield {
                "what": f"safetensors, {shards} shard{'s' if shards > 1 else ''}",
                "arrays": len(arrays.params),
                "bytes on paper": total,
                "bytes read": sum(read),
                "seconds": median_seconds(lambda path=index: pipeline.read_arrays(path), repeats),  # type: ignore[misc]
            }


def large_plan(rules: str) -> ShardingPlan:
    """Return the plan of a model of 10,000 arrays in 1,000 layers of ten."""
    kernels = ", ".join(f"w{n}" for n in range(9))
    text = f"""\
mesh: {{data: 16, model: 16}}
rules: [{rules}]
arrays:
  "layers_{{0..999}}/{{{kernels.replace(" ", "")}}}/kernel": f32[embed=4096 mlp=16384]
  "layers_{{0..999}}/norm/scale": f32[embed=4096]
"""
    spec, faults = pipeline.load_text(text)
    assert spec is not None, faults
    return pipeline.compile_plans(spec)[0]


def lock(repeats: int) -> Iterator[Row]:
    """Yield the time to write a lock of 10,000 arrays from its plan, and to read it."""
    plan = large_plan("mlp -> model, embed -> data")
    text = lock_text(layout_of(plan.spec, (plan,)))
    source = SourceFile("spec.lock", text)
    figures = {"arrays": len(plan.arrays), "bytes": len(text)}
    seconds = median_seconds(lambda: lock_text(layout_of(plan.spec, (plan,))), repeats)
    yield {"what": "lock, written", **figures, "seconds": seconds}
    assert isinstance(read_lock(source), Layout)
    seconds = median_seconds(lambda: read_lock(source), repeats)
    yield {"what": "lock, read", **figures, "seconds": seconds}


def diff(repeats: int) -> Iterator[Row]:
    """Yield the time to compare two plans of 10,000 arrays, of which 9,000 moved."""
    before = large_plan("mlp -> model, embed -> data")
    after = large_plan("mlp -> data, embed -> model")
    old, new = (layout_of(plan.spec, (plan,)) for plan in (before, after))
    lines = len(list(diff_lines(diff_layouts(old, new))))
    seconds = median_seconds(lambda: list(diff_lines(diff_layouts(old, new))), repeats)
    yield {"what": "diff", "arrays": len(after.params), "lines": lines, "seconds": seconds}


def maxtext(repeats: int) -> Iterator[Row]:
    """Yield the time to import MaxText's own base rules, up to the text of the spec."""
    path = Path(__file__).parents[1] / "tests" / "data" / "maxtext" / "base.yml"
    source = SourceFile(path.name, path.read_text(encoding="utf-8"))
    options = Options(mesh=(("fsdp", "16"), ("tensor", "4")))

    def imported() -> str:
        found, faults = maxtext_rules.read([source], options)
        assert found is not None, faults
        text, wrong = spec_text(found, options, [source], "spec.yaml")
        assert text is not None, wrong
        return text

    rules = imported().count(" -> ")
    yield {"what": "import maxtext", "rules": rules, "seconds": median_seconds(imported, repeats)}


def export(repeats: int) -> Iterator[Row]:
    """Yield the time to write the plan of 10,000 arrays in each format, proof included."""
    request = Request(large_plan("mlp -> model, embed -> data"))
    for entry in EXPORTS:
        write = module_of(entry).write
        text, _ = write(request)
        if text is not None:
            seconds = median_seconds(lambda write=write: write(request), repeats)  # type: ignore[misc]
            what = f"export {entry.name}"
            figures = {"arrays": len(request.plan.arrays), "bytes": len(text)}
            yield {"what": what, **figures, "seconds": seconds}


#: Name -> what measures it; each yields rows with `what`, `seconds` and figures of its own.
PARTS: dict[str, Callable[[int], Iterator[Row]]] = {
    "safetensors": safetensors,
    "lock": lock,
    "diff": diff,
    "maxtext": maxtext,
    "export": export,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--only", choices=sorted(PARTS), action="append", help="a part; all of them"
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    rows = [row for name in options.only or PARTS for row in PARTS[name](options.repeats)]
    if options.json:
        print(json.dumps({"python": platform.python_version(), "rows": rows}, indent=1))
        return
    for row in rows:
        figures = "  ".join(
            f"{value:>15,} {key}" for key, value in row.items() if key not in {"what", "seconds"}
        )
        print(f"{row['what']:<26} {row['seconds'] * 1e3:>8.1f} ms  {figures}")


if __name__ == "__main__":
    main()
