"""Examples of findings that need a step: its code stands in the comments above the spec.

`step(params, x)` is called with the arrays of the spec as a tree, and with the activation `x`; what
has another name is what the code calls so.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import shardspec
from shardspec import pipeline
from shardspec.analysis.cost import Cost, cost_of
from shardspec.diagnostics import Diagnostic

_CODE = re.compile(r"((?:^#.*\n)*)", re.MULTILINE)


def cost(text: str) -> Cost:
    """Return the cost of the step of an example, on its first target."""
    import jax
    import jax.numpy as jnp

    from shardspec.jax_backend.step.reading import step_of

    found = _CODE.match(text)
    assert found is not None
    code = "".join(line.removeprefix("#").removeprefix(" ") for line in found[1].splitlines(True))
    resolver = shardspec.Resolver(shardspec.loads(text, "spec.yaml"), devices="abstract")
    names: dict[str, Any] = {"jax": jax, "jnp": jnp, "resolver": resolver, "shardspec": shardspec}
    names |= {"P": jax.sharding.PartitionSpec, "NamedSharding": jax.sharding.NamedSharding}
    exec(compile(code, "model.py", "exec"), names)
    spec, _ = pipeline.load_text(text, "spec.yaml")
    assert spec is not None
    (plan,) = pipeline.compile_plans(spec)
    given: dict[str, Any] = {**names, "params": _tree(plan)}
    for each in plan.activations:
        shape = tuple(dim.size or 0 for dim in each.dims)
        sharding = resolver.sharding(each.activation.logical_axes, shape)
        given[each.activation.name] = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)
    asked = inspect.signature(names["step"]).parameters
    with resolver:
        step = step_of(resolver, names["step"], *(given[name] for name in asked))
    return cost_of(plan, step)


def _tree(plan: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return {
        each.param.path: jax.ShapeDtypeStruct(each.param.shape, jnp.bfloat16)
        for each in plan.arrays
    }


def findings(text: str) -> tuple[Diagnostic, ...]:
    """Return everything that `check` says of an example, its step included."""
    spec, faults = pipeline.load_text(text, "spec.yaml")
    assert spec is not None
    return pipeline.checked(spec, faults, pipeline.compile_plans(spec), costs=(cost(text),)).shown
