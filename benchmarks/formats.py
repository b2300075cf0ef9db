"""How long foreign formats take to read: names and shapes of a checkpoint of 70B parameters.

    python benchmarks/formats.py                    # every part
    python benchmarks/formats.py --only safetensors
    python benchmarks/formats.py --json

The checkpoint is fabricated: names, shapes and the 30 shards are those of Llama 3 70B, and the
files are sparse, 141 GB long on paper. A figure is the median of several runs in this process;
`bytes read` is what was read of all files together.
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
from shardspec.diagnostics import SourceFile
from shardspec.frontend.manifests.frugal_file import FrugalFile
from shardspec.ir.param import Param

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


#: Name -> what measures it; each yields rows with `what`, `seconds` and figures of its own.
PARTS: dict[str, Callable[[int], Iterator[Row]]] = {"safetensors": safetensors}


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
