"""The lines that steps lack: those that search finds beside those that an expert adds.

    python -m benchmarks.cure                # all of `cure_steps`, some 40 minutes of two cores
    python -m benchmarks.cure moe decode     # some of them
    python -m benchmarks.cure --no-compile   # by the model alone
    python -m benchmarks.cure --proof        # the patch is applied, and the expert's step searched

The lines of an expert end in `# expert`, and are taken out before the search. Both steps are
compiled by libtpu, as `shardspec cost --basis compiler` does it. An answer counts where it sends
at most 15 % more than the expert's and takes at most 10 % longer. With `--proof`, the patched step
must cost what was printed, and the search must add nothing to the expert's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

STEPS = Path(__file__).parent / "cure_steps"
_MORE_BYTES, _LONGER, _SAME = 1.15, 1.10, 1.001
_GIB = 2**30
_MARK = "# expert"


@contextmanager
def step(name: str, *, expert: bool) -> Iterator[Path]:
    """Give a folder with a step and its spec, with the lines of an expert or without them."""
    with tempfile.TemporaryDirectory(prefix=f"cure-{name}-") as scratch:
        for each in (STEPS / name).glob("*.*"):
            lines = each.read_text().splitlines(keepends=True)
            kept = (line for line in lines if expert or not line.rstrip().endswith(_MARK))
            (Path(scratch) / each.name).write_text("".join(kept))
        yield Path(scratch)


def run(folder: Path, *words: str) -> dict[str, Any]:
    """Return what a verb prints of a step as JSON."""
    command = [sys.executable, "-P", "-m", "shardspec", words[0], "spec.yaml", *words[1:]]
    asked = ("--step", "model:step", "--format", "json", "-q")
    done = subprocess.run(
        [*command, *asked], cwd=folder, capture_output=True, text=True, check=False
    )
    if not done.stdout.startswith("{"):
        raise SystemExit(f"{folder.name}: {done.stdout}{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def costs(folder: Path, basis: str) -> tuple[float, float]:
    """Return the bytes and the seconds of a step."""
    cost = run(folder, "cost", "--basis", basis)
    return sum(each["wire_bytes"] for each in cost["collectives"]), cost["time"]["step_s"]


def judged(name: str, *, is_compiled: bool, is_proved: bool) -> str:
    """Return the row of one step."""
    basis, more = ("compiler", ()) if is_compiled else ("model", ("--no-compile",))
    told = ""
    with step(name, expert=True) as folder:
        sent, seconds = costs(folder, basis)
        if is_proved:
            right = run(folder, "search", *more)
            told += "" if right["best"] is None else "  and adds to the expert's"
    with step(name, expert=False) as folder:
        started = time.monotonic()
        found = run(folder, "search", "--patch", "lines.diff", *more)
        took = time.monotonic() - started
        now = found["now"]
        best = now if found["best"] is None else found["answers"][found["best"]]
        if is_proved and found["best"] is not None:
            subprocess.run(["git", "apply", "lines.diff"], cwd=folder, check=True)
            again = costs(folder, basis)
            pairs = zip(again, (best["sends"], best["step_s"]), strict=True)
            is_same = all(1 / _SAME < one / two < _SAME for one, two in pairs)
            told += "" if is_same else f"  and the patch gives {again}"
    is_good = best["sends"] <= _MORE_BYTES * sent and best["step_s"] <= _LONGER * seconds
    sizes = (each / _GIB for each in (now["sends"], sent, best["sends"]))
    row = (*sizes, now["step_s"], seconds, best["step_s"], len(best["lines"]), took)
    text = "{:9.2f} {:8.2f} {:8.2f} {:9.3f} {:8.3f} {:8.3f} {:5} {:8.0f}".format(*row)
    return f"{name:8} {text}  {'as good' if is_good else 'WORSE'}{told}"


def main() -> None:
    words = [each for each in sys.argv[1:] if not each.startswith("--")]
    flags = {
        "is_compiled": "--no-compile" not in sys.argv,
        "is_proved": "--proof" in sys.argv,
    }
    head = ("step", "GiB now", "expert", "found", "s now", "expert", "found", "lines", "search s")
    print("{:8} {:>9} {:>8} {:>8} {:>9} {:>8} {:>8} {:>5} {:>8}".format(*head))
    for name in words or sorted(each.name for each in STEPS.iterdir()):
        print(judged(name, **flags), flush=True)


if __name__ == "__main__":
    main()
