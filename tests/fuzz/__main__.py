"""`python -m tests.fuzz --inputs 100000 --seed 7`: fuzz until so many inputs were run, print what broke.

Input number N of a seed is always the same, so `--seed 7 --only N` runs one again, and shows it.
Exits with 1 where a law broke.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.fuzz.trials import Trial, growth_broken_by, law_broken_by, trial

#: Inputs that once broke one, whole: what a number stands for changes with the house's files.
FOUND = Path(__file__).with_name("found.json")


def main() -> None:
    """Run the inputs that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--found", action="store_true", help="the inputs that once broke a law")
    parser.add_argument("--only", type=int)
    parser.add_argument("--stretch", type=int, default=20, help="stretch every so many")
    parser.add_argument("--verb", help="of the inputs those for this verb")
    parser.add_argument("--seconds", type=float, default=1e9, help="stop after so many")
    options = parser.parse_args()
    numbers = range(options.first, options.first + options.inputs)
    if options.only is not None:
        numbers = range(options.only, options.only + 1)
    found_before = [Trial(**each) for each in json.loads(FOUND.read_text("utf-8"))]
    if options.found:
        numbers = range(len(found_before))
    seen: Counter[str] = Counter()
    verbs: Counter[str] = Counter()
    codes: Counter[object] = Counter()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number in numbers:
            if time.monotonic() - start > options.seconds:
                break
            each = found_before[number] if options.found else trial(options.seed, number)
            if options.verb not in (None, each.arguments[0]):
                continue
            if options.only is not None:
                _show(each)
            found, code = law_broken_by(each, Path(folder))
            if found is None and not options.found and number % options.stretch == 0:
                key = f"{options.seed}/{number}"
                found = growth_broken_by(each, key, Path(folder))
            verbs[each.arguments[0]] += 1
            codes[code] += 1
            if found is not None:
                key = found.strip().splitlines()[-1][:160]
                seen[key] += 1
                if seen[key] <= 2 or options.only is not None:
                    print(
                        f"--- {options.seed}:{number} {each.arguments}\n{found[-1800:]}", flush=True
                    )
            if number % 200 == 0:
                gc.collect()
        os.chdir("/")
    print(f"{sum(verbs.values()):,} inputs, {sum(seen.values())} faults of {len(seen)} kinds")
    print(dict(verbs), {str(key): count for key, count in codes.items()}, dict(seen))
    sys.exit(1 if seen else 0)


def _show(each: Trial) -> None:
    for name, text in each.files.items():
        print(f"=== {name}\n{text!r}" if len(text) < 4000 else f"=== {name}: {len(text):,}")


if __name__ == "__main__":
    main()
