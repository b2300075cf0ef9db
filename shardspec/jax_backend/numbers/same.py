"""Make a step small and compare it: the sizes first, by the first way to choose them that works."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import jax

from shardspec.diagnostics import Diagnostic, ShardspecError, codes
from shardspec.jax_backend.numbers.code import StepCode
from shardspec.jax_backend.numbers.comparing import Asked, compared, need_devices
from shardspec.jax_backend.numbers.facts import Facts, facts_of
from shardspec.jax_backend.numbers.literals import loops_written, numbers_written
from shardspec.jax_backend.numbers.sizes import TIGHT, SmallSizes, products_among, small_sizes
from shardspec.jax_backend.numbers.small import Trial
from shardspec.programs.numbers import Numbers

#: A step that computes no more elements than this runs at its own sizes.
_SMALL_STEP = 20_000_000
#: A step that computes no more elements than this takes seconds.
_QUICK_STEP = 400_000_000


def same_numbers(code: StepCode, asked: Asked, tell: Callable[[str], None]) -> Numbers:
    """Return what a step computes on small meshes, compared with one device.

    Raises:
      ShardspecError: the step cannot be traced, or not with small sizes.
    """
    started = time.monotonic()
    if asked.width == "float64":
        jax.config.update("jax_enable_x64", True)
    need_devices()
    tell("tracing the step at its own sizes")
    full = code.full()
    facts = facts_of(full.program.jaxpr, full.program.leaves)
    shapes = tuple(tuple(leaf.shape) for leaf in full.program.leaves)
    code = replace(code, shapes=shapes, inputs=asked.inputs)
    tell("tracing it with small sizes")
    code, sizes, one = _on_one(code, facts, asked)
    return compared(code, sizes, one, facts, asked, tell, started)


def _on_one(code: StepCode, facts: Facts, asked: Asked) -> tuple[StepCode, SmallSizes, Trial]:
    """Return the step on one device with small sizes, by the first way to choose them that works.

    Raises:
      ShardspecError: as the first way does.
    """
    first: ShardspecError | None = None
    slow: tuple[StepCode, SmallSizes, Trial] | None = None
    for made, sizes in _ways(code, facts, asked):
        try:
            found = made, sizes, made.small(sizes, {})
        except ShardspecError as error:
            first = first or error
            continue
        program = found[2].program
        if facts_of(program.jaxpr, program.leaves).elements <= _QUICK_STEP:
            return found
        slow = slow or found
    if slow is not None:
        return slow
    assert first is not None, "there is always a way to try"
    raise first


def _ways(code: StepCode, facts: Facts, asked: Asked) -> Iterator[tuple[StepCode, SmallSizes]]:
    """Yield ways to make a step small; a step that is small stays as it is.

    Beside the relations that the program shows there may be some that it does not: a library may
    make the width of a head of two other sizes. And arrays may have sizes that the spec does not
    state, or not be made by the code.
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
    named = [*numbers_written(module), *own.items()]
    in_code = {size for _, size in named} & facts.sizes
    arguments = {size for shape in code.shapes for size in shape}
    wanted = in_code | arguments | {*own.values()}
    kept, loops = [own[name] for name in asked.kept], [*loops_written(module)]
    sizes = small_sizes(named, wanted, facts.relations, kept, loops)
    yield code, sizes
    yield code, small_sizes(named, wanted, facts.relations, kept, loops, TIGHT)
    likely = replace(facts.relations, products=(*facts.relations.products, *products_among(wanted)))
    yield code, small_sizes(named, wanted, likely, kept, loops)
    yield replace(code, has_sizes=False), sizes
    yield replace(code, in_code=False), sizes
