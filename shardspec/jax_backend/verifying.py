"""A step, predicted and compiled: the same lowered module goes to Shardy and to the compiler."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shardspec import pipeline
from shardspec.analysis.cost import cost_of
from shardspec.diagnostics import Diagnostic, ShardspecError
from shardspec.jax_backend.compiling import Tell, compiled
from shardspec.jax_backend.step_reading import step_of_traced
from shardspec.jax_backend.step_trace import Traced, traced
from shardspec.programs.proof import Proof, places_in, with_causes
from shardspec.programs.reading import step_of_program

if TYPE_CHECKING:
    from shardspec.jax_backend.resolver import Resolver


def verify_step(
    resolver: Resolver,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    tolerance: float = 0.1,
    timeout_s: float = 600.0,
    is_whole: bool = False,
    tell: Tell = lambda stage: None,
) -> Proof:
    """Return what was predicted of a step, and what the compiler of the target made of it.

    Args:
      tolerance: the share of all compiled bytes by which the prediction may differ.
      is_whole: let the compiler generate code, too.
      tell: hears of each stage.

    Raises:
      ShardspecError: the step cannot be traced, or there is no program.
    """
    tell("tracing")
    found = traced(resolver, function, args, dict(kwargs or {}))
    module = _bytecode(found)
    step = step_of_traced(resolver, found)
    spec, target = resolver._arrays.spec, resolver.target
    (plan,) = pipeline.compile_plans(spec, None, [target])
    cost = cost_of(plan, step)
    made = compiled(
        module,
        target,
        order=spec.policy.order,
        timeout_s=timeout_s,
        is_whole=is_whole,
        tell=tell,
    )
    program = step_of_program(made.text, target.mesh, step.arguments)
    if isinstance(program, Diagnostic):
        raise ShardspecError((program,))
    held = () if made.memory is None else made.memory.largest
    return Proof(
        cost,
        with_causes(program, cost),
        made.memory,
        made.compiler,
        made.seconds,
        made.refusal,
        tolerance,
        places_in(made.text, {each.name for each in held}),
    )


def _bytecode(found: Traced) -> bytes:
    """Return the module before anything is propagated through it."""
    buffer = io.BytesIO()
    with found.module.context:
        found.module.operation.write_bytecode(buffer)
    return buffer.getvalue()
