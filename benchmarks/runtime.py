"""What shardspec costs while a program runs: ours against Flax's own way, side by side.

    python benchmarks/runtime.py                    # every part
    python benchmarks/runtime.py state --layers 500
    python benchmarks/runtime.py --json

Both sides of a part do the same work on the same arrays in one process, in turns; the figures
are medians, with the ratio to the first row. A part is a function that returns its rows; to add
one, write it and put it into `PARTS`.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

Row = dict[str, Any]
Sides = dict[str, Callable[[], Any]]

SPEC = """\
shardspec: 1
mesh: {data: 1, model: 1}
rules:
  - embed -> data
  - mlp -> model
"""

#: The arrays of one layer: path, sizes, names.
LAYER = {
    ("attention", "kernel"): ((512, 1024), ("embed", "mlp")),
    ("mlp", "kernel"): ((1024, 512), ("mlp", "embed")),
    ("mlp", "bias"): ((512,), ("embed",)),
    ("norm", "scale"): ((512,), ("embed",)),
}


def in_turns(sides: Sides, repeats: int) -> list[Row]:
    """Return a row for each side: the median of its runs, and the ratio to the first."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, run in sides.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    first = next(iter(medians.values()))
    return [
        {"side": name, "ms": f"{1e3 * median:.1f}", "times_faster": f"{first / median:.1f}"}
        for name, median in medians.items()
    ]


def state(layers: int, repeats: int) -> list[Row]:
    """Shardings of an NNX state of four arrays a layer and of its Adam state."""
    import jax
    import optax
    from flax import nnx

    import shardspec

    def model(spelt: dict[str, str]) -> nnx.State:
        tree: dict[int, Any] = {}
        for number in range(layers):
            for (above, last), (sizes, names) in LAYER.items():
                array = jax.ShapeDtypeStruct(sizes, "float32")
                mesh_axes = tuple(spelt.get(name, name) for name in names)
                node = nnx.Param(array, out_sharding=mesh_axes, eager_sharding=False)
                tree.setdefault(number, {}).setdefault(above, {})[last] = node
        return nnx.State({"layers": tree})

    # Flax takes names for mesh axes; ours go through the rules as well.
    flax_params, params = model({"embed": "data", "mlp": "model"}), model({})
    tx = optax.adam(1e-3)
    flax_state, opt_state = jax.eval_shape(tx.init, flax_params), jax.eval_shape(tx.init, params)
    resolver = shardspec.Resolver(shardspec.loads(SPEC), devices=jax.devices()[:1])
    mesh = resolver.mesh

    def flax() -> Any:
        return nnx.get_named_sharding((flax_params, flax_state), mesh)

    def ours() -> Any:
        return resolver.shardings(params), resolver.state_shardings(opt_state, params)

    def new() -> Any:
        fresh = shardspec.Resolver(shardspec.loads(SPEC), devices=jax.devices()[:1])
        return fresh.shardings(params), fresh.state_shardings(opt_state, params)

    # Flax leaves the count of steps without trailing Nones, which are the same sharding.
    for one, other, array in zip(
        *map(jax.tree.leaves, (flax(), ours(), (params, opt_state))), strict=True
    ):
        assert one.is_equivalent_to(other, array.ndim)
    count = len(jax.tree.leaves((params, opt_state)))
    return in_turns(
        {
            f"nnx.get_named_sharding, {count} arrays": flax,
            "Resolver.shardings and state_shardings": ours,
            "the same, spec read and Resolver made anew": new,
        },
        repeats,
    )


def of_state(options: argparse.Namespace) -> list[Row]:
    """Return the rows of `state` as the command line asks for them."""
    return state(options.layers, options.repeats)


#: What the layers of `trace` constrain: names -> sizes.
TRACED = {
    "batch length embed": (8, 64, 256),
    "batch length heads kv": (8, 64, 8, 32),
    "batch length mlp": (8, 64, 1024),
}
TRACE_SPEC = """\
shardspec: 1
mesh: {data: 1, model: 1}
rules:
  - batch -> data
  - mlp, heads -> model
  - length, embed, kv -> none
"""


def trace(repeats: int, layers: int = 48) -> list[Row]:
    """Tracing of a transformer of 48 layers with six constraints each, and of none at all."""
    import jax
    import jax.numpy as jnp
    from flax import linen as nn

    import shardspec
    from shardspec.compat import flax as compat

    resolver = shardspec.Resolver(shardspec.loads(TRACE_SPEC), devices=jax.devices()[:1])
    mesh = resolver.mesh
    rules = (("batch", "data"), ("mlp", "model"), ("heads", "model"))
    spelt = {names: tuple(names.split()) for names in TRACED}
    places = {names: resolver.sharding(names, sizes) for names, sizes in TRACED.items()}

    def model(constrain: Callable[[Any, str], Any]) -> Callable[[Any, Any], Any]:
        def forward(x: Any, weights: Any) -> Any:
            for _ in range(layers):
                x = constrain(x, "batch length embed")
                q, k, v = (
                    constrain(jnp.einsum("ble,ehd->blhd", x, w), "batch length heads kv")
                    for w in weights["qkv"]
                )
                seen = jnp.einsum("blhd,bmhd->bhlm", q, k)
                mixed = jnp.einsum("bhlm,bmhd->blhd", jax.nn.softmax(seen), v)
                x = x + jnp.einsum("blhd,ehd->ble", mixed, weights["qkv"][0])
                hidden = constrain(jax.nn.gelu(x @ weights["wi"]), "batch length mlp")
                x = constrain(x + hidden @ weights["wo"], "batch length embed")
            return x

        return forward

    shapes = {"qkv": [(256, 8, 32)] * 3, "wi": (256, 1024), "wo": (1024, 256)}
    weights = jax.tree.map(
        lambda sizes: jax.ShapeDtypeStruct(sizes, "float32"),
        shapes,
        is_leaf=lambda node: isinstance(node, tuple),
    )
    x = jax.ShapeDtypeStruct(TRACED["batch length embed"], "float32")

    def traced(constrain: Callable[[Any, str], Any], count: int) -> Callable[[], Any]:
        def run() -> Any:
            jaxpr = jax.make_jaxpr(model(constrain))(x, weights)  # a new function: not cached
            found = sum(e.primitive.name == "sharding_constraint" for e in jaxpr.jaxpr.eqns)
            assert found == count, f"{found} constraints, not {count}"

        return run

    def by_flax(y: Any, names: str) -> Any:
        return nn.with_logical_constraint(y, spelt[names], rules=rules, mesh=mesh)

    def by_compat(y: Any, names: str) -> Any:
        return compat.with_logical_constraint(y, spelt[names], rules=rules, mesh=mesh)

    def by_jax(y: Any, names: str) -> Any:
        return jax.lax.with_sharding_constraint(y, places[names])

    every = 6 * layers
    sides = {
        f"Flax, with_logical_constraint, {every} times": traced(by_flax, every),
        "compat.flax.with_logical_constraint": traced(by_compat, every),
        "Resolver.constrain": traced(resolver.constrain, every),
        "jax.lax.with_sharding_constraint alone": traced(by_jax, every),
        "no constraint": traced(lambda y, _: y, 0),
    }
    for run in sides.values():
        run()
    return in_turns(sides, 3 * repeats)


def of_trace(options: argparse.Namespace) -> list[Row]:
    """Return the rows of `trace` as the command line asks for them."""
    return trace(options.repeats)


def constraint(repeats: int, count: int = 1000) -> list[Row]:
    """One constraint by logical names in traced code, and nothing else: microseconds a call."""
    import jax
    from flax import linen as nn

    import shardspec
    from shardspec.compat import flax as compat

    mesh = shardspec.Resolver(shardspec.loads(TRACE_SPEC), devices=jax.devices()[:1]).mesh
    rules = (("batch", "data"), ("mlp", "model"), ("heads", "model"))
    names = ("batch", "length", "heads", "kv")
    x = jax.ShapeDtypeStruct(TRACED[" ".join(names)], "float32")

    def traced(constrain: Callable[..., Any], **given: Any) -> Callable[[], Any]:
        def chain(y: Any) -> Any:
            for _ in range(count):
                y = constrain(y, names, **given)
            return y

        def run() -> Any:
            with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
                jaxpr = jax.make_jaxpr(lambda y: chain(y))(x)
            assert len(jaxpr.jaxpr.eqns) == count

        return run

    sides = {
        "Flax, with_logical_constraint": traced(nn.with_logical_constraint),
        "compat.flax.with_logical_constraint": traced(compat.with_logical_constraint),
        "Flax, rules= and mesh=": traced(nn.with_logical_constraint, rules=rules, mesh=mesh),
        "compat.flax, rules= and mesh=": traced(
            compat.with_logical_constraint, rules=rules, mesh=mesh
        ),
    }
    for run in sides.values():
        run()
    rows = in_turns(sides, 3 * repeats)
    return [
        {"side": row["side"], "us_a_call": f"{float(row['ms']) * 1e3 / count:.1f}"} for row in rows
    ]


def of_constraint(options: argparse.Namespace) -> list[Row]:
    """Return the rows of `constraint` as the command line asks for them."""
    return constraint(options.repeats)


def construct(repeats: int) -> list[Row]:
    """Construction of a `Resolver` for specs of several sizes, on one device."""
    import jax

    import shardspec
    from shardspec.ir.spec import Mesh

    folder = Path(__file__).parent.parent / "specs" / "examples"
    small = shardspec.loads(TRACE_SPEC)
    one = jax.devices()[:1]
    loaded = {name: shardspec.load(folder / f"{name}.yaml") for name in ("gpt2", "t5-1.1-xxl")}

    def on_one(name: str) -> Callable[[], Any]:
        """Return the construction on one device: the mesh of the target, each size 1."""
        target = loaded[name].ir.targets[0]
        axes = tuple(dataclasses.replace(axis, size=1) for axis in target.mesh.axes)
        small = dataclasses.replace(target, mesh=Mesh(axes), hardware=None)
        ir = loaded[name].ir
        spec = dataclasses.replace(ir, targets=(small, *ir.targets[1:]))
        return lambda: shardspec.Resolver(spec, target=small.name, devices=one)

    rows = in_turns(
        {
            "spec of 3 rules, one device": lambda: shardspec.Resolver(small, devices=one),
            "the same, read from text": lambda: shardspec.Resolver(
                shardspec.loads(TRACE_SPEC), devices=one
            ),
            **{f"{name}.yaml, loaded": on_one(name) for name in loaded},
            "t5-1.1-xxl.yaml, shardspec.load alone": lambda: shardspec.load(
                folder / "t5-1.1-xxl.yaml"
            ),
        },
        3 * repeats,
    )
    return [{"side": row["side"], "ms": row["ms"]} for row in rows]


def of_construct(options: argparse.Namespace) -> list[Row]:
    """Return the rows of `construct` as the command line asks for them."""
    return construct(options.repeats)


PARTS: dict[str, Callable[[argparse.Namespace], list[Row]]] = {
    "state": of_state,
    "trace": of_trace,
    "constraint": of_constraint,
    "construct": of_construct,
}


def table(rows: Sequence[Row]) -> str:
    """Return rows as a Markdown table."""
    titles = list(rows[0])
    cells = [[title.replace("_", " ") for title in titles], *([*row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(titles))]
    lines = [f"| {' | '.join(map(str.ljust, line, widths))} |" for line in cells]
    return "\n".join((lines[0], f"|{'|'.join('-' * (w + 2) for w in widths)}|", *lines[1:]))


def main() -> None:
    """Print the tables, or everything as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], help="all, if none is named")
    parser.add_argument("--layers", type=int, default=2500, help="layers of four arrays")
    parser.add_argument("--repeats", type=int, default=7, help="runs of each side")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    result = {name: PARTS[name](options) for name in options.parts or PARTS}
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} CPUs\n")
    print("\n\n".join(f"{name}\n\n{table(rows)}" for name, rows in result.items()))


if __name__ == "__main__":
    main()
