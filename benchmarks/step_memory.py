"""What a step holds by our floor, beside what libtpu reports of the same step.

    python -m benchmarks.step_memory                    # all that libtpu was asked about before
    python -m benchmarks.step_memory --compile NAME     # asks it: 20 to 80 s for each

Arguments are to be equal to the byte; the total is a floor, so ours is the smaller one. The extra
`tpu-aot` is needed to ask; the figures are kept in `tests/data/final_programs.json`.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

from benchmarks.final_programs import DATA, compiled
from shardspec.analysis.step_memory import Amount
from shardspec.diagnostics.words import binary_bytes

_ALLOCATION = re.compile(r"^allocation \d+: size (\d+),.*\bparameter\b", re.MULTILINE)
_TOTAL = re.compile(r"^Total bytes: (\d+)", re.MULTILINE)


def ask(name: str) -> dict[str, int]:
    """Return what libtpu reports of a step: bytes of its arguments, and of all that it holds."""
    from tests.models.steps import CASES

    with tempfile.TemporaryDirectory() as folder:
        compiled(name, CASES[name].topology, folder)
        buffers = _largest(folder, "*-buffer-assignment.txt")
        report = _largest(folder, "*-memory-usage-report.txt")
    total = _TOTAL.search(report)
    assert total is not None, "a report has a total"
    return {
        "arguments": sum(map(int, _ALLOCATION.findall(buffers))),
        "total": int(total.group(1)),
    }


def _largest(folder: str, pattern: str) -> str:
    found = max(Path(folder).glob(pattern), key=lambda path: path.stat().st_size)
    return found.read_text(encoding="utf-8")


def ours(name: str) -> tuple[int, Amount]:
    """Return the same by shardspec."""
    from shardspec.analysis.step_memory import step_memory
    from tests.analysis.test_step_memory import traced

    found = step_memory(*traced(name))
    given = (found.parameters, found.optimizer, found.batch, found.caches, found.other)
    return sum(part.bytes for part in given if part is not None), found.total


def main(names: list[str], compiles: bool) -> None:
    """Print a row for each step; ask libtpu first where that is wanted."""
    held = json.loads(DATA.read_text(encoding="utf-8"))
    reports = held["memory"]
    for name in names if compiles else ():
        reports[name] = ask(name)
        DATA.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    print(f"{'step':22} {'arguments':>12} {'libtpu':>12} {'floor':>12} {'libtpu':>12}")
    for name in names or [name for name in reports if not name.startswith("_")]:
        arguments, total = ours(name)
        report = reports[name]
        sizes = (arguments, report["arguments"], total.bytes, report["total"])
        equal = "equal" if arguments == report["arguments"] else "DIFFERENT"
        share = total.bytes / report["total"] - 1
        print(
            f"{name:22}", *(f"{binary_bytes(size):>12}" for size in sizes), equal, f"{share:+.1%}"
        )


if __name__ == "__main__":
    wanted = [name for name in sys.argv[1:] if name != "--compile"]
    main(wanted, compiles="--compile" in sys.argv)
