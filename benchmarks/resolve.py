"""How long a sharding takes: ours against Flax's, and the command line against its imports.

    python benchmarks/resolve.py                    # all tables
    python benchmarks/resolve.py --layers 1000 --skip-cli
    python benchmarks/resolve.py --json

Both sides resolve the same tree under the same rules in the same process, in turns; the
figures are medians, with the ratio of the two. Linen and NNX have a table each, and Flax's own
function is the first row of each. `first call` is a resolver that has not answered before.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

#: T5X's standard rules for two-dimensional parameters.
RULES = (
    ("batch", "data"),
    ("vocab", "model"),
    ("mlp", "model"),
    ("heads", "model"),
    ("kv", None),
    ("joined_kv", "model"),
    ("embed", "data"),
    ("relpos_buckets", None),
    ("abspos_buckets", None),
    ("length", None),
    ("layers", None),
    ("stack", None),
    ("mlp_activations", None),
)
SIZES = {"embed": 4096, "joined_kv": 4096, "mlp": 10240}

#: The arrays of one layer of T5 1.1 XXL's decoder, without the cross attention.
LAYER = {
    "attention/query/kernel": ("embed", "joined_kv"),
    "attention/key/kernel": ("embed", "joined_kv"),
    "attention/value/kernel": ("embed", "joined_kv"),
    "attention/out/kernel": ("joined_kv", "embed"),
    "mlp/wi_0/kernel": ("embed", "mlp"),
    "mlp/wi_1/kernel": ("embed", "mlp"),
    "mlp/wo/kernel": ("mlp", "embed"),
    "pre_attention_layer_norm/scale": ("embed",),
    "pre_mlp_layer_norm/scale": ("embed",),
}

#: The same names by path, for a tree that carries none.
PARAMS = {
    "**/attention/{query,key,value}/kernel": "embed joined_kv",
    "**/attention/out/kernel": "joined_kv embed",
    "**/mlp/wi_{0,1}/kernel": "embed mlp",
    "**/mlp/wo/kernel": "mlp embed",
    "**/scale": "embed",
}

#: The libraries that specs were read with: lark makes the tables of the grammars, and no more.
BASELINE = "import yaml, lark; from pydantic import BaseModel\nclass M(BaseModel): x: int = 0"

Row = dict[str, Any]


def model(layers: int, leaf: Callable[[tuple[str, ...]], Any]) -> Any:
    """Return a nested dict of `layers` layers, with a leaf for the names of each array."""
    decoder: dict[str, Any] = {}
    for number in range(layers):
        layer = decoder.setdefault(f"layers_{number}", {})
        for path, names in LAYER.items():
            *above, last = path.split("/")
            node = layer
            for part in above:
                node = node.setdefault(part, {})
            node[last] = leaf(names)
    return {"decoder": decoder}


def spec_text() -> str:
    """Return the rules as a spec on one device, which is all that resolving needs."""
    rules = (f"  - {axis} -> {target or 'none'}" for axis, target in RULES)
    return "\n".join(("shardspec: 1", "mesh: {data: 1, model: 1}", "rules:", *rules, ""))


def params_text() -> str:
    """Return the names by path as an entry of a spec."""
    entries = (f'  "{pattern}": {names}' for pattern, names in PARAMS.items())
    return "\n".join(("params:", *entries, ""))


def timed(sides: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Return the median seconds of each side, run in turns; none sweeps what another left."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            gc.collect()
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def needs_flax() -> None:
    """Stop where there is nothing to compare with."""
    if find_spec("flax") is None:
        raise SystemExit("this benchmark compares with Flax: pip install 'shardspec[flax]'")


def array(names: tuple[str, ...]) -> Any:
    """Return an array of a layer, without values."""
    import jax

    return jax.ShapeDtypeStruct(tuple(SIZES[name] for name in names), "float32")


def resolver(text: str) -> Any:
    """Return a resolver on one device."""
    import jax

    import shardspec

    return shardspec.Resolver(shardspec.loads(text), devices=jax.devices()[:1])


def linen(layers: int, repeats: int) -> list[Row]:
    """Return a row for each way to resolve a tree of Linen's, or a plain one."""
    from flax import linen as nn

    from shardspec.compat import flax as drop_in

    boxed = model(layers, lambda names: nn.LogicallyPartitioned(array(names), names))
    plain = model(layers, array)
    logical = nn.get_partition_spec(boxed)
    by_box, by_path = resolver(spec_text()), resolver(spec_text() + params_text())
    fresh = iter([resolver(spec_text() + params_text()) for _ in range(repeats + 1)])
    mesh = by_box.mesh
    expected = nn.logical_to_mesh_sharding(logical, mesh, RULES)
    sides: dict[str, Callable[[], Any]] = {
        "flax.linen.logical_to_mesh_sharding": lambda: nn.logical_to_mesh_sharding(
            logical, mesh, RULES
        ),
        "Resolver.shardings, names in boxes": lambda: by_box.shardings(boxed, boxed=False),
        "Resolver.shardings, boxes kept": lambda: by_box.shardings(boxed),
        "Resolver.shardings, names by path": lambda: by_path.shardings(plain),
        "the same, first call": lambda: next(fresh).shardings(plain),
        "compat.flax.logical_to_mesh_sharding": lambda: drop_in.logical_to_mesh_sharding(
            logical, mesh, RULES
        ),
    }
    for name, run in sides.items():
        assert nn.unbox(run()) == expected, name
    return rows(timed(sides, repeats), layers)


def nnx_states(layers: int, repeats: int) -> list[Row]:
    """Return a row for each way to resolve a state of NNX."""
    import jax
    from flax import nnx

    def variable(names: tuple[str, ...]) -> Any:
        return nnx.Param(array(names), out_sharding=names, eager_sharding=False)

    named = nnx.State(model(layers, variable))
    unnamed = nnx.State(model(layers, lambda names: nnx.Param(array(names))))
    by_name, by_path = resolver(spec_text()), resolver(spec_text() + params_text())
    fresh = iter([resolver(spec_text()) for _ in range(repeats + 1)])

    def flaxs_own() -> Any:
        with nnx.logical_axis_rules(RULES):
            return nnx.get_named_sharding(named, by_name.mesh)

    expected = [sharding.spec for sharding in jax.tree.leaves(flaxs_own())]
    sides: dict[str, Callable[[], Any]] = {
        "flax.nnx.get_named_sharding": flaxs_own,
        "Resolver.shardings, Variables kept": lambda: by_name.shardings(named),
        "Resolver.shardings, boxed=False": lambda: by_name.shardings(named, boxed=False),
        "Variables kept, names by path": lambda: by_path.shardings(unnamed),
        "boxed=False, names by path": lambda: by_path.shardings(unnamed, boxed=False),
        "Variables kept, first call": lambda: next(fresh).shardings(named),
    }
    for name, run in sides.items():
        assert [sharding.spec for sharding in jax.tree.leaves(run())] == expected, name
    return rows(timed(sides, repeats), layers)


def rows(seconds: dict[str, float], layers: int) -> list[Row]:
    """Return the seconds of each side as rows, with their ratio to the first."""
    count = layers * len(LAYER)
    first = next(iter(seconds.values()))
    return [
        {
            "what": name,
            "arrays": count,
            "microseconds_per_array": value / count * 1e6,
            "times_faster": first / value,
        }
        for name, value in seconds.items()
    ]


def whole_process(repeats: int) -> list[Row]:
    """Return a row for each command, after the imports that it is measured against."""
    root = Path(__file__).resolve().parent.parent
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        manifest, spec = Path(folder) / "manifest.json", Path(folder) / "spec.yaml"
        arrays = {
            f"decoder/layers_{number}/{path}": {
                "shape": [SIZES[name] for name in names],
                "dtype": "bfloat16",
            }
            for number in range(10_000 // len(LAYER) + 1)
            for path, names in LAYER.items()
        }
        manifest.write_text(json.dumps(dict(list(arrays.items())[:10_000])))
        text = f"shardspec: 1\nextends: [t5x/parameters-2d]\n{params_text()}"
        spec.write_text(f"{text}mesh: {{data: 16, model: 16}}\nmanifest: manifest.json\n")
        xxl = str(root / "specs" / "examples" / "t5-1.1-xxl.yaml")
        path = "decoder/layers_7/self_attention/key/kernel"
        command = [sys.executable, "-m", "shardspec"]
        commands = {
            "baseline: the imports alone": [sys.executable, "-c", BASELINE],
            "shardspec explain, T5 1.1 XXL": [*command, "explain", path, "--spec", xxl],
            "shardspec compile, 10,000 arrays": [*command, "compile", str(spec)],
        }

        def run(arguments: Sequence[str]) -> None:
            done = subprocess.run(
                arguments, cwd=root, env=environment, capture_output=True, text=True
            )
            if done.returncode:
                raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr}")

        for arguments in commands.values():  # writes the .pyc files and caches
            run(arguments)
        sides = {name: lambda a=arguments: run(a) for name, arguments in commands.items()}
        seconds = timed(sides, repeats)
    first = next(iter(seconds.values()))
    return [
        {"what": name, "milliseconds": value * 1e3, "times_baseline": value / first}
        for name, value in seconds.items()
    ]


def machine() -> Row:
    """Return what the figures depend on."""
    from importlib.metadata import version

    return {
        "os": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax", "flax")},
    }


def table(rows: Sequence[Row]) -> str:
    """Return rows as a Markdown table."""
    titles = list(rows[0])
    cells = [[f"{v:.2f}" if isinstance(v, float) else f"{v}" for v in row.values()] for row in rows]
    widths = [max(len(line[i]) for line in (titles, *cells)) for i in range(len(titles))]

    def line(values: Sequence[str]) -> str:
        return "| " + " | ".join(v.ljust(w) for v, w in zip(values, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join((line([title.replace("_", " ") for title in titles]), rule, *map(line, cells)))


def main() -> None:
    """Print the tables, or everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=10_000, help="layers of nine arrays")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each side")
    parser.add_argument("--skip-cli", action="store_true", help="leave out the whole processes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    needs_flax()
    result: Row = {
        "machine": machine(),
        "linen": linen(options.layers, options.repeats),
        "nnx": nnx_states(options.layers, options.repeats),
    }
    if not options.skip_cli:
        result["processes"] = whole_process(options.repeats)
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(" ".join(f"{key} {value}" for key, value in result["machine"].items()), end="\n\n")
    found = filter(None, map(result.get, ("linen", "nnx", "processes")))
    print("\n\n".join(map(table, found)))


if __name__ == "__main__":
    main()
