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
from shardspec.analysis.cost import Compiler, Cost, cost_of
from shardspec.diagnostics import Diagnostic

_CODE = re.compile(r"((?:^#.*\n)*)", re.MULTILINE)


def cost(text: str, *, is_compiled: bool = False) -> Cost:
    """Return the cost of the step of an example, on its first target."""
    from shardspec.jax_backend.on_target import on_target

    found = _CODE.match(text)
    assert found is not None
    code = "".join(line.removeprefix("#").removeprefix(" ") for line in found[1].splitlines(True))
    loaded = shardspec.loads(text, "spec.yaml")
    if is_compiled:
        spec, _ = pipeline.load_text(text, "spec.yaml")
        assert spec is not None
        with on_target(spec.targets[0], spec):
            return _cost(text, code, shardspec.Resolver(loaded), is_compiled=True)
    return _cost(text, code, shardspec.Resolver(loaded, devices="abstract"), is_compiled=False)


def _cost(text: str, code: str, resolver: Any, *, is_compiled: bool) -> Cost:
    import jax
    import jax.numpy as jnp

    from shardspec.jax_backend.step.reading import step_of
    from shardspec.jax_backend.step.trace import Call
    from shardspec.jax_backend.xla.verifying import verify_step
    from shardspec.programs.costs import compiled_cost

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
    call = Call(names["step"], tuple(given[name] for name in asked), {})
    with resolver:
        if is_compiled:
            proof = verify_step(resolver, call)
            return compiled_cost(proof.cost, proof.program, proof.memory, Compiler("libtpu"))
        return cost_of(plan, step_of(resolver, call.function, *call.args))


def _tree(plan: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return {
        each.param.path: jax.ShapeDtypeStruct(each.param.shape, jnp.bfloat16)
        for each in plan.arrays
    }


def findings(text: str, *, is_compiled: bool = False) -> tuple[Diagnostic, ...]:
    """Return everything that `check` says of an example, its step included."""
    spec, faults = pipeline.load_text(text, "spec.yaml")
    assert spec is not None
    costs = (cost(text, is_compiled=is_compiled),)
    return pipeline.checked(spec, faults, pipeline.compile_plans(spec), costs=costs).shown
