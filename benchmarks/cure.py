"""The lines that steps lack: those that search finds beside those that an expert adds.

    python -m benchmarks.cure                # all of `cure_steps`, some 15 minutes of two cores
    python -m benchmarks.cure moe decode     # some of them
    python -m benchmarks.cure --no-compile   # by the model alone

Each step lacks its constraints, and has an expert's where EXPERT is set. Both are compiled by
libtpu, as `shardspec cost --basis compiler` does it. An answer counts where it sends at most 15 %
more than the expert's and takes at most 10 % longer, or adds nothing to `right`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS = Path(__file__).parent / "cure_steps"
_MORE_BYTES, _LONGER = 1.15, 1.10
_GIB = 2**30


def run(folder: Path, *words: str, expert: bool = False) -> dict[str, Any]:
    """Return what a verb prints of a step as JSON."""
    env = {**os.environ, "EXPERT": "1" if expert else ""}
    command = [sys.executable, "-P", "-m", "shardspec", words[0], "spec.yaml", *words[1:]]
    asked = ("--step", "model:step", "--format", "json", "-q")
    done = subprocess.run(
        [*command, *asked], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    if not done.stdout.startswith("{"):
        raise SystemExit(f"{folder.name}: {done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def experts(folder: Path, basis: str) -> tuple[float, float]:
    """Return the bytes and the seconds of a step with an expert's lines."""
    cost = run(folder, "cost", "--basis", basis, expert=True)
    sent = sum(each["wire_bytes"] for each in cost["collectives"])
    return sent, cost["time"]["step_s"]


def main() -> None:
    words = [each for each in sys.argv[1:] if not each.startswith("--")]
    is_compiled = "--no-compile" not in sys.argv
    head = ("step", "GiB now", "expert", "found", "s now", "expert", "found", "lines", "search s")
    print("{:8} {:>9} {:>8} {:>8} {:>9} {:>8} {:>8} {:>5} {:>8}".format(*head))
    for name in words or sorted(each.name for each in STEPS.iterdir()):
        folder = STEPS / name
        sent, seconds = experts(folder, "compiler" if is_compiled else "model")
        started = time.monotonic()
        with tempfile.TemporaryDirectory() as scratch:
            patch = str(Path(scratch, "lines.diff"))
            more = () if is_compiled else ("--no-compile",)
            found = run(folder, "search", "--patch", patch, *more)
        took = time.monotonic() - started
        now = found["now"]
        best = now if found["best"] is None else found["answers"][found["best"]]
        is_good = best["sends"] <= _MORE_BYTES * sent and best["step_s"] <= _LONGER * seconds
        sizes = (each / _GIB for each in (now["sends"], sent, best["sends"]))
        row = (*sizes, now["step_s"], seconds, best["step_s"], len(best["lines"]), took)
        text = "{:9.2f} {:8.2f} {:8.2f} {:9.3f} {:8.3f} {:8.3f} {:5} {:8.0f}".format(*row)
        print(f"{name:8} {text}  {'as good' if is_good else 'WORSE'}", flush=True)


if __name__ == "__main__":
    main()
