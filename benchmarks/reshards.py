"""Which transitions between two shardings XLA answers by gathering the array whole.

    python -m benchmarks.reshards              # some minutes; writes tests/data/reshards.json
    python -m benchmarks.reshards --some 20    # compiles so many of those in the file, compares

Each transition is a small program for CPU devices that are not there, and XLA's log is read for
"rematerialization". What counts is into how many parts each dimension is split: which mesh axes
split it made no difference in 2,400 transitions.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

DATA = Path(__file__).parent.parent / "tests" / "data" / "reshards.json"
#: Meshes, ranks of the array, and how many transitions of each are tried.
TRIED = (((2, 2, 2), 2, 1200), ((4, 2), 3, 400), ((4, 2, 2), 3, 900))

Parts = tuple[int, ...]


def splits(sizes: Parts, rank: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield every sharding of an array: for each dimension the mesh axes, by number."""
    for places in itertools.product(range(-1, rank), repeat=len(sizes)):
        dims = [[axis for axis, at in enumerate(places) if at == dim] for dim in range(rank)]
        yield from itertools.product(*map(itertools.permutations, dims))


def is_gathered(sizes: Parts, before: Sequence[Parts], after: Sequence[Parts]) -> bool:
    """Compile one transition; say whether XLA logs that it gathers the array whole."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    names = tuple(f"a{at}" for at in range(len(sizes)))
    mesh = jax.make_mesh(sizes, names, axis_types=(AxisType.Auto,) * len(sizes))
    one, other = (
        NamedSharding(mesh, PartitionSpec(*(tuple(names[at] for at in axes) for axes in dims)))
        for dims in (before, after)
    )
    side = math.prod(sizes)
    shape = jax.ShapeDtypeStruct((side,) * len(tuple(before)), jnp.float32)
    moved = jax.jit(
        lambda x: jax.lax.with_sharding_constraint(jnp.sin(x), other) * 2,
        in_shardings=one,
        out_shardings=other,
    )
    with tempfile.TemporaryFile() as log:
        stderr = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            moved.lower(shape).compile()
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        log.seek(0)
        return b"rematerialization" in log.read()


def parts(sizes: Parts, dims: tuple[tuple[int, ...], ...]) -> Parts:
    """Return into how many parts each dimension is split."""
    return tuple(math.prod(sizes[axis] for axis in axes) for axes in dims)


def main() -> None:
    """Write the figures, or compare some of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--some", type=int, default=0)
    some = parser.parse_args().some
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=16"
    known = json.loads(DATA.read_text(encoding="utf-8")) if some else {}
    found: dict[int, dict[tuple[Parts, Parts], bool]] = {}
    chosen = random.Random(0)
    for sizes, rank, count in TRIED:
        pairs = list(itertools.product(splits(sizes, rank), repeat=2))
        for before, after in chosen.sample(pairs, min(some or count, len(pairs))):
            sides = (parts(sizes, before), parts(sizes, after))
            if sides[0] != sides[1]:
                told = is_gathered(sizes, before, after)
                devices = math.prod(sizes)
                if some:
                    _compare(known[str(devices)], sides, told)
                found.setdefault(devices, {})[sides] = told
    if not some:
        DATA.write_text(_text(found), encoding="utf-8")


def _compare(known: dict[str, list[list[Parts]]], sides: tuple[Parts, Parts], told: bool) -> None:
    pair = [list(side) for side in sides]
    if pair in known["straight" if told else "gathered"]:
        sys.exit(f"{sides} is {'gathered' if told else 'straight'} now")


def _text(found: dict[int, dict[tuple[Parts, Parts], bool]]) -> str:
    from importlib.metadata import version

    head = {
        "_what": "Transitions between two shardings, as parts of each dimension, on so many"
        " devices: those that XLA logs as involuntary full rematerialization, and the others.",
        "_source": f"jaxlib {version('jaxlib')} for CPU, compiled by benchmarks/reshards.py",
    }
    lines = [f" {json.dumps(key)}: {json.dumps(text)}" for key, text in head.items()]
    for devices, told in sorted(found.items()):
        rows = [
            f'  "{name}": '
            + json.dumps(sorted(pair for pair, is_it in told.items() if is_it is want)).replace(
                " ", ""
            )
            for name, want in (("gathered", True), ("straight", False))
        ]
        lines.append(f' "{devices}": {{\n' + ",\n".join(rows) + "\n }")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    main()
