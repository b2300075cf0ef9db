"""Compare a step as a test has it: a function of this process, at its own sizes, on any mesh."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.ir.spec import Spec, Target
from shardspec.jax_backend.equations import backward_lines, equations_of
from shardspec.jax_backend.numbers.comparing import Asked, compared, facts_of, need_devices
from shardspec.jax_backend.numbers.room import Noted, noting
from shardspec.jax_backend.numbers.small import SmallSizes, Trial, small_spec
from shardspec.jax_backend.step.trace import Call, Program, Resolving, program_of
from shardspec.jax_backend.trees import require_call, shape_of
from shardspec.programs.numbers import Numbers


def same_function(step: StepFunction, asked: Asked) -> Numbers:
    """Return what a function computes on small meshes at its own sizes, compared with one device.

    Raises:
      ShardspecError: it cannot be traced, or there are too few devices.
    """
    started = time.monotonic()
    need_devices()
    one = step.small(SmallSizes(), {})
    whole = step.small(SmallSizes(), {each.name: each.size for each in step.target.mesh.axes})
    facts = facts_of(whole.program.jaxpr, whole.program.leaves)
    return compared(step, SmallSizes(), one, facts, asked, lambda stage: None, started)


@dataclass(frozen=True, slots=True)
class StepFunction:
    """A step as a function, or as what makes one of a resolver.

    To trace a function on another mesh, the resolver that its code holds becomes one of that mesh
    for the time of the trace. A function that holds the mesh itself is refused.

    Attributes:
      resolver: that the function was made for.
      args: what it is called with; None where `function` makes both of a resolver.
      on: makes a resolver of a spec and a target.
      noted: the integers that code computes, where they are asked for.
    """

    resolver: Resolving
    function: Callable[..., Any]
    args: tuple[Any, ...] | None
    on: Callable[[Spec, str, Any], Resolving]
    noted: Noted | None = None

    @property
    def name(self) -> str:
        """Return what the function is called."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    @property
    def spec(self) -> Spec:
        """Return the resolver's spec."""
        return self.resolver._arrays.spec

    @property
    def target(self) -> Target:
        """Return the resolver's own target."""
        return self.resolver.target

    def small(self, sizes: SmallSizes, mesh: Mapping[str, int]) -> Trial:
        """Return the step on a small mesh, at its own sizes.

        Raises:
          ShardspecError: it cannot be traced so.
        """
        spec, target = small_spec(self.spec, self.target, sizes, mesh)
        devices = jax.devices()[: target.mesh.device_count]
        other = self.on(spec, target.name, devices)
        with noting(self.noted), _in_context(other.mesh), backward_lines():
            if self.args is None:
                require_call(self.function, (other,), {})
                made = self.function(other)
                function, args = made[0], tuple(made[1])
                program = program_of(other, Call(function, list(args)))
            else:
                args = self.args
                program = self._as(other)
        _refuse_other_mesh(program, other.mesh)
        values = jax.tree_util.tree_leaves(args)
        stated = tuple(each if hasattr(each, "__array__") else None for each in values)
        return Trial(spec, target, program, (), stated)

    def _as(self, other: Resolving) -> Program:
        """Return the program of the function while its resolver is another one."""
        own = vars(self.resolver)
        kept = dict(own)
        jax.clear_caches()  # what was traced for the resolver's own mesh
        try:
            own.update(vars(other))
            structs = jax.tree_util.tree_map(_without_place, list(self.args or ()))
            return program_of(self.resolver, Call(self.function, structs))
        finally:
            own.update(kept)
            jax.clear_caches()


def _in_context(mesh: Any) -> contextlib.AbstractContextManager[Any]:
    """Return the mesh as that of the context, where the caller has one or types are explicit."""
    around: Any = jax.sharding.get_abstract_mesh()
    is_explicit = jax.sharding.AxisType.Explicit in mesh.axis_types
    return contextlib.nullcontext() if around.empty and not is_explicit else jax.set_mesh(mesh)


def _without_place(leaf: Any) -> Any:
    """Return an array that is not there and lies nowhere; what is no array as it is."""
    shape = shape_of(leaf)
    if shape is None or not hasattr(leaf, "dtype"):
        return leaf
    return jax.ShapeDtypeStruct(shape, leaf.dtype)


def _refuse_other_mesh(program: Program, mesh: Any) -> None:
    sizes = dict(mesh.shape)
    for eqn in equations_of(program.jaxpr.jaxpr):
        own = eqn.params.get("mesh") if eqn.primitive.name == "shard_map" else None
        if own is not None and any(sizes.get(n) != size for n, size in dict(own.shape).items()):
            message = "the function holds a mesh, and cannot be run on another one"
            help = (
                "pass what makes it of a resolver: `resolver.same_numbers(make)`, with"
                " `def make(resolver): return step, (params, batch)`"
            )
            raise ShardspecError([Diagnostic(codes.BAD_STEP, message, help=help)])
