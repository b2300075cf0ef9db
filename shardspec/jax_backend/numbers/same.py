"""Make a step small and compare it: the sizes first, by the first way to choose them that works."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from shardspec.diagnostics import Diagnostic, Severity, ShardspecError, codes
from shardspec.ir.spec import Spec, Target
from shardspec.jax_backend.entry_point import find_entry, with_call
from shardspec.jax_backend.equations import backward_lines
from shardspec.jax_backend.numbers import comparing, room
from shardspec.jax_backend.numbers import small as small_steps
from shardspec.jax_backend.numbers.small import TIGHT, SmallSizes, products_among, small_sizes
from shardspec.jax_backend.on_target import on_target
from shardspec.jax_backend.resolver import Resolver
from shardspec.jax_backend.step.trace import Call, Program, program_of
from shardspec.jax_backend.trees import shape_of
from shardspec.programs.numbers import Numbers

#: A step that computes no more elements than this runs at its own sizes.
_SMALL_STEP = 20_000_000
#: A step that computes no more elements than this takes seconds.
_QUICK_STEP = 400_000_000


def same_numbers(code: StepCode, asked: comparing.Asked, tell: Callable[[str], None]) -> Numbers:
    """Return what a step computes on small meshes, compared with one device.

    Raises:
      ShardspecError: the step cannot be traced, or not with small sizes.
    """
    started = time.monotonic()
    comparing.need_devices()
    tell("tracing the step at its own sizes")
    full = code.full()
    facts = comparing.facts_of(full.program.jaxpr, full.program.leaves)
    code = replace(code, shapes=full.shapes, inputs=asked.inputs)
    tell("tracing it with small sizes")
    found: Numbers | None = None
    for split in dict.fromkeys((frozenset[int](), frozenset(facts.split))):
        made, sizes, one = _on_one(code, facts, asked, split)
        numbers = comparing.compared(made, sizes, one, facts, asked, tell, started)
        found = found if found and numbers.untried else numbers
        if numbers.differences or numbers.capacities:
            return numbers
        if not sizes.sizes or all(why == comparing.ONE_SLICE for _, why in numbers.untried):
            return numbers
    assert found is not None, "there are two ways to try"
    return found


def _on_one(
    code: StepCode, facts: comparing.Facts, asked: comparing.Asked, split: Collection[int] = ()
) -> tuple[StepCode, SmallSizes, small_steps.Trial]:
    """Return the step on one device with small sizes, by the first way to choose them that works.

    Args:
      split: sizes that stay larger, since each device has a part of them.

    Raises:
      ShardspecError: as the first way does.
    """
    first: ShardspecError | None = None
    slow: tuple[StepCode, SmallSizes, small_steps.Trial] | None = None
    for made, sizes in _ways(code, facts, asked, split):
        try:
            found = made, sizes, made.small(sizes, {})
        except ShardspecError as error:
            first = first or error
            continue
        program = found[2].program
        if comparing.facts_of(program.jaxpr, program.leaves).elements <= _QUICK_STEP:
            return found
        slow = slow or found
    if slow is not None:
        return slow
    assert first is not None, "there is always a way to try"
    raise ShardspecError([_of_small_sizes(each) for each in first.diagnostics]) from first


def _of_small_sizes(found: Diagnostic) -> Diagnostic:
    """Return a finding about a small step: sizes that disagree there are none of the user's."""
    if found.code != codes.SIZE_MISMATCH:
        return found
    note = "`--numbers` made these sizes small; at its own sizes the step may be right"
    help = "without the size of this axis under `axes:`, its size is that of the arrays"
    return replace(found, notes=(*found.notes, note), help=help)


def _ways(
    code: StepCode, facts: comparing.Facts, asked: comparing.Asked, split: Collection[int]
) -> Iterator[tuple[StepCode, SmallSizes]]:
    """Yield ways to make a step small; a step that is small stays as it is.

    Beside the relations that the program shows there may be some that it does not: a library may
    make the width of a head of two other sizes, and code may multiply a size: then only the code
    knows the small product, and the spec states no sizes. Arrays may have sizes it never states.
    The code may make its arguments or not: without `shapes` they are taken as it makes them.
    """
    module = code.name.partition(":")[0]
    own = {axis.name: axis.size for axis in code.spec.logical_axes if axis.size is not None}
    unknown = [name for name in asked.kept if name not in own]
    if unknown:
        message = f"`--keep-size {unknown[0]}`: the spec states no size of this axis"
        raise ShardspecError([Diagnostic(codes.BAD_STEP, message)])
    if facts.elements <= _SMALL_STEP:
        yield code, SmallSizes()
        return
    named = [*small_steps.numbers_written(module), *own.items()]
    in_code = {size for _, size in named} & facts.sizes
    arguments = {size for _, shape in code.shapes for size in shape}
    wanted = in_code | arguments | {*own.values()}
    kept, loops = [own[name] for name in asked.kept], [*small_steps.loops_written(module)]
    sizes = small_sizes(named, wanted, facts.relations, kept, loops, split=split)
    tight = small_sizes(named, wanted, facts.relations, kept, loops, TIGHT, split)
    for scaled in (sizes, tight):
        yield code, scaled
        yield replace(code, has_sizes=False), scaled
    yield replace(code, shapes=()), sizes
    yield replace(code, shapes=()), tight
    likely = replace(facts.relations, products=(*facts.relations.products, *products_among(wanted)))
    yield code, small_sizes(named, wanted, likely, kept, loops)
    counts = [*kept, *small_steps.of_layers(named)]  # code may take as many keys as it has split
    yield code, small_sizes(named, wanted, facts.relations, counts, (), split=split)
    yield replace(code, in_code=False), sizes


# A step as the command line names it, traced on a small mesh with small sizes.
#
# The user's code, spec and placements stay. Sizes that the spec states and sizes that are written
# in the code become small, and so do those of arguments that come from neither.


@dataclass(frozen=True, slots=True)
class StepCode:
    """A step as the command line names it.

    Attributes:
      name: `module:function`, and `folder` where it is looked for.
      shapes: of the arguments at the sizes that the user states, each leaf by its path.
      inputs: `module:function` that gives values for arguments, called with them.
      in_code: whether sizes that are written in the code become small.
      noted: the integers that code computes, where they are asked for.
      has_sizes: whether the small spec states sizes of axes.
    """

    name: str
    folder: str
    spec: Spec
    target: Target
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    inputs: str | None = None
    in_code: bool = True
    noted: room.Noted | None = None
    has_sizes: bool = True

    def full(self) -> small_steps.Trial:
        """Return the step on its own target, at its own sizes.

        Raises:
          ShardspecError: it cannot be traced.
        """
        spec = _with_gaps(self.spec)
        shapes: dict[str, Any] = {}

        def note(call: Call) -> Call:
            shapes.update((path, shape_of(leaf)) for path, leaf in _leaves(call))
            return call

        with on_target(self.target, spec, has_imports=True):
            resolver = Resolver(spec, self.target.name, agree_within_s=None)
            program = self._traced(resolver, note)
        known = ((path, tuple(shape)) for path, shape in shapes.items() if shape is not None)
        return small_steps.Trial(self.spec, self.target, program, shapes=tuple(known))

    def small(self, sizes: SmallSizes, mesh: Mapping[str, int]) -> small_steps.Trial:
        """Return the step on a small mesh.

        Args:
          sizes: the small size for each.
          mesh: the size of each mesh axis; the others have one.

        Raises:
          ShardspecError: it cannot be traced so.
        """
        spec, target = small_steps.small_spec(
            self.spec, self.target, sizes, mesh, has_sizes=self.has_sizes
        )
        spec = _with_gaps(spec)
        in_code = sizes if self.in_code else SmallSizes()
        with small_steps.smaller_code(in_code, self.noted) as code, on_target(target, spec):
            resolver = Resolver(spec, target.name, agree_within_s=None)
            made: list[Any] = []

            def change(call: Call) -> Call:
                small = self._smaller(call, sizes)
                made[:] = self._stated(small)
                return small

            program = self._traced(resolver, change)
        return small_steps.Trial(spec, target, program, tuple(code.written), tuple(made))

    def _traced(self, resolver: Resolver, change: Callable[[Call], Call]) -> Program:
        def work(call: Call) -> Program:
            with backward_lines():
                return program_of(resolver, change(call))

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
        full = dict(self.shapes)

        def smaller(path: Any, leaf: Any) -> Any:
            shape = shape_of(leaf)
            if shape is None or not hasattr(leaf, "dtype") or tuple(shape) != full.get(str(path)):
                return leaf
            small = tuple(sizes.of(each) for each in shape)
            if small == tuple(shape):
                return leaf
            return jax.ShapeDtypeStruct(small, leaf.dtype, sharding=getattr(leaf, "sharding", None))

        given = list(call.args), dict(call.kwargs)
        args, kwargs = jax.tree_util.tree_map_with_path(smaller, given)
        return call._replace(args=args, kwargs=kwargs)


def _leaves(call: Call) -> Iterator[tuple[str, Any]]:
    """Yield the arrays that a step is called with, by their paths."""
    flat, _ = jax.tree_util.tree_flatten_with_path((list(call.args), dict(call.kwargs)))
    yield from ((str(path), leaf) for path, leaf in flat)


#: What makes an array replicated: the same on both sides.
_GAPS = (codes.UNNAMED_ARRAY, codes.REPEATED_AXIS, codes.INDIVISIBLE)


def _with_gaps(spec: Spec) -> Spec:
    """Return a spec that may leave arrays replicated that it should shard."""
    levels = tuple(codes.LintLevel(each.id, Severity.ALLOW) for each in _GAPS)
    return replace(spec, lint_levels=(*spec.lint_levels, *levels))
