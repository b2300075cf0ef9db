"""A step, predicted and compiled: the same lowered module goes to Shardy and to the compiler."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import NamedTuple

from shardspec import pipeline
from shardspec.analysis.cost import Compiler, Cost, cost_of
from shardspec.diagnostics import Diagnostic, ShardspecError
from shardspec.ir.step import Place, Step, StepArgument, wire_bytes
from shardspec.jax_backend.step.passes import bytecode_of
from shardspec.jax_backend.step.reading import traced_step
from shardspec.jax_backend.step.trace import Call, Resolving, lowered_here
from shardspec.jax_backend.target_devices import need_devices
from shardspec.jax_backend.xla import compiling
from shardspec.jax_backend.xla.cache import Compiled, flags_here
from shardspec.jax_backend.xla.child import MEMORY
from shardspec.jax_backend.xla.compiling import Compile, Compiling, Tell
from shardspec.programs.costs import compiled_cost
from shardspec.programs.hlo import with_chips
from shardspec.programs.memory import HeldValue, memory_of_stats
from shardspec.programs.proof import Proof, WhatIf, miscompiled, with_causes
from shardspec.programs.reading import ReadProgram, read_program
from shardspec.topology.placement import Order

#: Ten minutes, no code, what was compiled before is taken.
ANY_WAY = Compiling()


class Lowered(NamedTuple):
    """A step that was traced once, and its lowered module for a compiler."""

    step: Step
    module: bytes


def lowered(resolver: Resolving, call: Call) -> Lowered:
    """Return a step, and its lowered module.

    Raises:
      ShardspecError: the step cannot be traced.
    """
    found, step = traced_step(resolver, call)
    return Lowered(step, bytecode_of(found.module))


def cost_by(cost: Cost, made: Compiled, arguments: Sequence[StepArgument]) -> Cost:
    """Return what a step costs by its compiled program.

    Args:
      cost: the model's.
      arguments: of the function that was compiled.

    Raises:
      ShardspecError: the program cannot be read.
    """
    kept_from = made.date if made.was_kept else ""
    by = Compiler(made.compiler, made.seconds, made.held_bytes, kept_from, made.flags)
    program = _read(made, cost, arguments)
    return compiled_cost(
        cost, program, made.memory, by, refusal=made.refusal, warnings=made.warnings
    )


def _read(made: Compiled, cost: Cost, arguments: Sequence[StepArgument]) -> ReadProgram:
    program = read_program(made.text, cost.target.mesh, arguments)
    if isinstance(program, Diagnostic):
        raise ShardspecError((program,))
    return program


def verify_step(
    resolver: Resolving,
    call: Call,
    *,
    cost: Cost | None = None,
    tolerance: float = 0.1,
    is_here: bool = False,
    how: Compiling = ANY_WAY,
    tell: Tell = lambda stage: None,
) -> Proof:
    """Return what was predicted of a step, and what the compiler of the target made of it.

    Args:
      cost: what was predicted; None for what the trace says.
      tolerance: the share of all compiled bytes by which the prediction may differ.
      is_here: compile for the devices of the resolver, whole and in this process.
      how: otherwise.
      tell: hears of each stage.

    Raises:
      ShardspecError: the step cannot be traced, or there is no program.
    """
    if is_here:
        need_devices(resolver.mesh, "a compile for the devices that are here")
        tell("tracing")
        step, _ = lowered(resolver, call)
        cost = cost or _cost_of(resolver, step)
        tell("compiling")
        made = _compiled_here(resolver, call)
        return _proof(made, cost, tolerance, step.arguments, has_estimates=how.is_whole)
    alone, order = replace(how, flags=""), resolver._arrays.spec.policy.order
    with compiling.Compile(resolver.target, alone, order) as compile:
        tell("tracing")
        asked = given(compile, resolver, call, cost=cost)
        return asked.proof(how, tolerance, tell)


def given(
    compile: Compile,
    resolver: Resolving,
    call: Call,
    *,
    cost: Cost | None = None,
    notes: tuple[str, ...] = (),
) -> Asked:
    """Trace a step for a compile that has begun; see `verify_step`.

    Args:
      notes: on what is compiled, for the proof.
    """
    step, module = lowered(resolver, call)
    compile.give(module)
    order = resolver._arrays.spec.policy.order
    own = _cost_of(resolver, step)
    return Asked(compile, module, cost or own, own, step.arguments, order, notes)


def _cost_of(resolver: Resolving, step: Step) -> Cost:
    (plan,) = pipeline.compile_plans(resolver._arrays.spec, None, [resolver.target])
    return cost_of(plan, step)


#: Noted where what is compiled has a prediction of its own, and that is the one that holds.
_BY_FUNCTION = "predicted from the function that is compiled: XLA reshards beside the lines"


class Asked(NamedTuple):
    """A step that was predicted, and that a compiler is at work on.

    Attributes:
      cost: what was predicted.
      own: what the model predicts of the function that is compiled.
    """

    compile: Compile
    module: bytes
    cost: Cost
    own: Cost
    arguments: tuple[StepArgument, ...]
    order: Order
    notes: tuple[str, ...]

    def proof(self, how: Compiling, tolerance: float, tell: Tell) -> Proof:
        """Wait for the program, and return it beside the prediction."""
        made, has_estimates = self.compile.result(tell), how.is_whole
        proof = _proof(made, self.cost, tolerance, self.arguments, has_estimates=has_estimates)
        notes = (*self.notes, *proof.step.notes)
        if proof.difference > tolerance and self.own is not self.cost:
            other = _proof(made, self.own, tolerance, self.arguments, has_estimates=has_estimates)
            if other.difference <= tolerance:
                proof, notes = other, (*self.notes, _BY_FUNCTION, *other.step.notes)
        proof = replace(proof, step=replace(proof.step, notes=notes))
        if not how.flags.strip():
            return proof
        return replace(proof, what_if=_what_if(self.module, self.cost, how, self.order, tell))


def _what_if(module: bytes, cost: Cost, how: Compiling, order: Order, tell: Tell) -> WhatIf:
    """Return what the compiler makes of the same module with more flags, or why it does not."""
    tell(f"compiling with {how.flags}")
    try:
        made = compiling.compiled(module, cost.target, how, order=order, tell=tell)
        proof = _proof(made, cost, 1.0, has_estimates=False)  # of which no array is named
    except ShardspecError as error:
        return WhatIf(how.flags, refusal=error.diagnostics[0].message)
    held = None if proof.memory is None else proof.memory.bytes
    return WhatIf(how.flags, wire_bytes(proof.step.collectives), held, proof.refusal)


def _proof(
    made: Compiled,
    cost: Cost,
    tolerance: float,
    arguments: Sequence[StepArgument] = (),
    *,
    has_estimates: bool,
) -> Proof:
    """Return a program beside the prediction.

    Args:
      has_estimates: whether the compiler was asked how long operations take.
    """
    program = _read(made, cost, arguments)
    held = () if made.memory is None else made.memory.largest
    estimates = program.estimates() if has_estimates else ()
    notes = (*program.step.notes, *made.warnings)
    if has_estimates and not estimates:
        notes = (*notes, f"{made.compiler} does not say how long operations take")
    return Proof(
        cost,
        replace(with_causes(program.step, cost), notes=notes),
        made.memory,
        made.compiler,
        made.seconds,
        made.refusal,
        tolerance,
        _places(program, held),
        estimates,
        made.date if made.was_kept else "",
        made.flags,
        miscompiled=miscompiled(program, cost.target.mesh),
        program=program,
    )


def _places(program: ReadProgram, held: Sequence[HeldValue]) -> dict[str, Place]:
    """Return the user's lines of values, by name, where they are known."""
    pairs = zip(held, program.makers(held), strict=True)
    return {each.name: maker.place for each, maker in pairs if maker.place.is_known}


def _compiled_here(resolver: Resolving, call: Call) -> Compiled:
    """Return the program for the devices that are here."""
    started = time.monotonic()
    lowered = lowered_here(resolver, call)
    executable = lowered.compile()
    stats = executable.memory_analysis()
    device = resolver.mesh.devices.flat[0]
    sizes = {each: int(getattr(stats, f"{each}_size_in_bytes")) for each in MEMORY}
    name = f"{device.platform} of jaxlib {version('jaxlib')}"
    seconds = time.monotonic() - started
    memory = memory_of_stats(sizes)
    text = with_chips(executable.as_text(), [each.id for each in resolver.mesh.devices.flat])
    return Compiled(text, memory, name, seconds, True, flags=flags_here())
