"""A step as the command line names it, traced on a small mesh with small sizes.

The user's code, spec and placements stay. Sizes that the spec states and sizes that are written in
the code become small, and so do those of arguments that come from neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.ir.spec import Spec, Target
from shardspec.jax_backend.entry_point import Call, find_entry, with_call
from shardspec.jax_backend.numbers.literals import smaller_code
from shardspec.jax_backend.numbers.sizes import SmallSizes
from shardspec.jax_backend.numbers.small import Trial, small_spec
from shardspec.jax_backend.on_target import on_target
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.step.trace import Program, program_of
from shardspec.jax_backend.trees import shape_of


@dataclass(frozen=True, slots=True)
class StepCode:
    """A step as the command line names it.

    Attributes:
      name: `module:function`, and `folder` where it is looked for.
      shapes: of the arguments at the sizes that the user states, in the order of their leaves.
      inputs: `module:function` that gives values for arguments, called with them.
      in_code: whether sizes that are written in the code become small.
      has_sizes: whether the small spec states sizes of axes.
    """

    name: str
    folder: str
    spec: Spec
    target: Target
    shapes: tuple[tuple[int, ...], ...] = ()
    inputs: str | None = None
    in_code: bool = True
    has_sizes: bool = True

    def full(self) -> Trial:
        """Return the step on its own target, at its own sizes.

        Raises:
          ShardspecError: it cannot be traced.
        """
        with on_target(self.target, self.spec, has_imports=True):
            resolver = Resolver(self.spec, self.target.name, agree_within_s=None)
            return Trial(self.spec, self.target, self._traced(resolver, lambda call: call))

    def small(self, sizes: SmallSizes, mesh: Mapping[str, int]) -> Trial:
        """Return the step on a small mesh.

        Args:
          sizes: the small size for each.
          mesh: the size of each mesh axis; the others have one.

        Raises:
          ShardspecError: it cannot be traced so.
        """
        spec, target = small_spec(self.spec, self.target, sizes, mesh, has_sizes=self.has_sizes)
        in_code = sizes if self.in_code else SmallSizes()
        with smaller_code(in_code) as code, on_target(target, spec):
            resolver = Resolver(spec, target.name, agree_within_s=None)
            made: list[Any] = []

            def change(call: Call) -> Call:
                small = self._smaller(call, sizes)
                made[:] = self._stated(small)
                return small

            program = self._traced(resolver, change)
        return Trial(spec, target, program, tuple(code.written), tuple(made))

    def _traced(self, resolver: Resolver, change: Callable[[Call], Call]) -> Program:
        def work(call: Call) -> Program:
            call = change(call)
            return program_of(resolver, call.function, call.args, call.kwargs)

        return with_call(self.name, self.folder, resolver, lambda stage: None, work)

    def _stated(self, call: Call) -> list[Any]:
        """Return the values that the user gives for the arguments, None for those not given."""
        if self.inputs is None:
            return []
        made = find_entry(self.inputs, codes.BAD_STEP)(*call.args, **call.kwargs)
        told: Any = (list(made) if isinstance(made, tuple | list) else [made], {})
        flat = jax.tree_util.tree_leaves(told, is_leaf=lambda leaf: leaf is None)
        count = len(jax.tree_util.tree_leaves((list(call.args), call.kwargs)))
        if len(flat) != count:
            message = f"`{self.inputs}` gives {len(flat)} values for {count} arguments"
            help = "return a tree as the arguments are, with None where random values will do"
            raise ShardspecError([Diagnostic(codes.BAD_STEP, message, help=help)])
        return flat

    def _smaller(self, call: Call, sizes: SmallSizes) -> Call:
        """Return a call whose arguments are small where the code left them as they were."""
        return call._replace(
            args=[_smaller_tree(each, self.shapes, sizes) for each in call.args],
            kwargs={
                key: _smaller_tree(each, self.shapes, sizes) for key, each in call.kwargs.items()
            },
        )


def _smaller_tree(tree: Any, shapes: Any, sizes: SmallSizes) -> Any:
    full = set(shapes)

    def smaller(leaf: Any) -> Any:
        shape = shape_of(leaf)
        if shape is None or not hasattr(leaf, "dtype") or tuple(shape) not in full:
            return leaf
        small = tuple(sizes.of(each) for each in shape)
        if small == tuple(shape):
            return leaf
        return jax.ShapeDtypeStruct(small, leaf.dtype, sharding=getattr(leaf, "sharding", None))

    return jax.tree_util.tree_map(smaller, tree)
