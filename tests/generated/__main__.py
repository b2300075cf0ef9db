"""Draw cases, predict and compile them, and print how far the predictions are off.

python -m tests.generated --count 300 --seed 0 --jobs 2 --out rows.json
python -m tests.generated --recipe 'layers=scan,depth=2,placed=fsdp'
python -m tests.generated --recipe ... --write FOLDER   # a spec and a step for the command line
python -m tests.generated --out rows.json --table        # of the rows that are there
python -m tests.generated --out rows.json --table --shrink 3
python -m tests.generated --out rows.json --accuracy     # what shardspec/analysis/accuracy.py holds
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from tests.generated.recipe import Recipe, drawn, parsed
from tests.generated.rows import Row
from tests.generated.running import ROOT, Rows, run
from tests.generated.shrinking import shrunk
from tests.generated.table import accuracy, bytes_error, ranked, table, worst


def main() -> int:
    """Run what was asked for."""
    parser = _parser()
    asked = parser.parse_args()
    rows = Rows(asked.out)
    if asked.recipe is not None:
        try:
            recipe = parsed(asked.recipe)
        except ValueError as error:
            parser.error(str(error))
        if asked.write is not None:
            return _write(recipe, asked.write)
        for row in run([(None, recipe)], Rows(), timeout_s=asked.timeout):
            print(json.dumps(row, indent=1))
        return 0
    seeds = range(asked.seed, asked.seed + asked.count)
    cases = [(seed, drawn(seed, asked.target)) for seed in seeds]
    if asked.accuracy:
        print("\n".join(accuracy(rows.found.values())))
        return 0
    if asked.table:
        done = list(rows.found.values())
    else:
        done = run(cases, rows, jobs=asked.jobs, timeout_s=asked.timeout, tell=_tell)
    print("\n".join(table(done)))
    print("\n".join(("", *worst(done), *_failures(done))))
    for row in ranked(done, bytes_error)[: asked.shrink]:
        _shrink(row, asked.timeout)
    return 0


def _failures(rows: list[Row]) -> list[str]:
    """Return why rows have no figures, each reason with one command that shows it."""
    lost = [row for row in rows if row["error"] is not None]
    counts = Counter((row["fault"], row["error"][:100]) for row in lost)
    first = {(row["fault"], row["error"][:100]): row["recipe"] for row in reversed(lost)}
    return [
        f"{count} {fault}: {error}: python -m tests.generated --recipe '{first[fault, error]}'"
        for (fault, error), count in counts.most_common()
    ]


def _shrink(row: Row, timeout_s: float) -> None:
    """Print the smallest recipe whose bytes are off by half as much as a row's, and over 10 %."""
    least = max((bytes_error(row) or 0.0) / 2, 0.1)

    def is_bad(recipe: Recipe) -> bool:
        (found,) = run([(None, recipe)], Rows(), timeout_s=timeout_s)
        return (bytes_error(found) or 0.0) >= least

    found = shrunk(parsed(row["recipe"]), is_bad)
    print(f"\nof {row['recipe']}\nthe smallest off by {least:.0%} is {found.text}", flush=True)


def _tell(row: Row) -> None:
    """Print a row as soon as it is there."""
    if row["error"]:
        said = f"{row['fault']}: {row['error'][:150]}"
    else:
        share = "-" if row["difference"] is None else f"{row['difference'] * 100:.1f} %"
        held, compiled = row["predicted_memory"], row["compiled_memory"] or 0
        said = f"bytes differ {share}, memory {held / 2**30:.2f} / {compiled / 2**30:.2f} GiB"
    print(f"{row['seed']}: {said}, {row['seconds']} s", flush=True)


def _write(recipe: Recipe, folder: Path) -> int:
    from tests.generated.arrays import spec_of

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.yaml").write_text(spec_of(recipe), "utf-8")
    text = (
        "from tests.generated.recipe import parsed\n"
        "from tests.generated.steps import step_of_recipe\n\n\n"
        "def step(resolver):\n"
        f"    return step_of_recipe(parsed({recipe.text!r}), resolver)\n"
    )
    (folder / "step.py").write_text(text, "utf-8")
    print(f"cd {folder} && PYTHONPATH={ROOT} shardspec verify spec.yaml --step step:step")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="how many cases")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile at once")
    parser.add_argument("--out", type=Path, help="JSON of rows; those that are there are not rerun")
    parser.add_argument("--target", choices=("tpu", "gpu", "all"), default="all")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds of a compile")
    parser.add_argument("--table", action="store_true", help="run nothing: print what --out has")
    parser.add_argument(
        "--accuracy", action="store_true", help="print what --out says of the model"
    )
    parser.add_argument("--shrink", type=int, default=0, help="shrink so many of the worst")
    parser.add_argument("--recipe", help="run this case alone")
    parser.add_argument("--write", type=Path, help="write its spec and step to a folder instead")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
