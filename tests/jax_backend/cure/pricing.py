"""Prices steps with lines in them, in a process of its own, as the search's workers do.

Pickled pairs of a `Base` and lines come in on stdin; their figures go out in the same order. A step
is read once for all its lines, as there.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shardspec.cure.figures import Figures
from shardspec.cure.lines import Line
from shardspec.jax_backend.cure.worker import Base, Pricing
from shardspec.jax_backend.xla.compiling import environment

ROOT = Path(__file__).parents[3]
Pair = tuple[Base, Sequence[Line]]


def prices(pairs: Sequence[Pair]) -> list[Figures | str]:
    """Return the figures of steps with lines, or why there are none."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tests.jax_backend.cure.pricing"],
        input=pickle.dumps(list(pairs)),
        env=environment(),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    found: list[Figures | str] = pickle.loads(done.stdout)
    return found


def main() -> None:
    pairs: list[Pair] = pickle.load(sys.stdin.buffer)
    answer = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as folder:
        steps = {id(base): base for base, _ in pairs}
        pricing = {key: Pricing(base, Path(folder)) for key, base in steps.items()}
        found = [pricing[id(base)].figures(lines) for base, lines in pairs]
    pickle.dump(found, answer)
    answer.close()


if __name__ == "__main__":
    main()
