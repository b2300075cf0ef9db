"""The sharding of an argument is not given, so its memory and traffic are a guess.

What carries no sharding, and has no name in the spec, is taken for a batch: its first dimension is
`batch`, or the one other dimension that is as long as the tokens' first. A cache begins with layers
or pages more often than not, and where the guess is wrong, all figures that it has a part in are.
They are marked `~`. An array whose first dimension is as long as the tokens' is no guess. Reported
for caches, and for other arguments that are large.

Bad:
    # shape = (32, 64, 8192, 1024)
    # cache = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    # def step(params, x, cache):
    #     return jnp.einsum("be,lbse->lbs", x @ params["q"], cache)
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: 16}
    axes: {batch: 64, features: 1024}
    rules:
      - batch -> data
      - embed, features -> none
    params:
      q: features embed
    arrays:
      q: bf16[1024, 1024]
    activations:
      x: batch features

Good:
    -# cache = jax.ShapeDtypeStruct(shape, jnp.bfloat16)
    +# sharding = resolver.sharding("_ batch _ _", shape)
    +# cache = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=sharding)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.analysis.cost import Cost
from shardspec.analysis.coverage import is_large
from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.quote import either
from shardspec.diagnostics.words import binary_bytes, counted, grouped, pattern_of
from shardspec.ir.step import Step, StepArgument, StepArray


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each argument of a step whose sharding is a guess."""
    guesses = [each for each in step.arguments if each.is_guess]
    if step.mesh.device_count == 1:
        return
    for found in grouped(guesses, lambda each: each.path.partition("/")[0]).values():
        size = sum(each.array.bytes * each.count for each in found)
        is_cache = any(each.role == "cache" for each in found)
        if is_cache or is_large(size, cost.memory.total.bytes):
            yield _finding(cost, step, found, size)


def _finding(cost: Cost, step: Step, found: Sequence[StepArgument], size: int) -> Diagnostic:
    largest = max(found, key=lambda each: each.array.bytes)
    array, rest = largest.array, len(found) - 1
    who = f"`{largest.path}`" + (f" and {counted(rest, 'other')} beside it" if rest else "")
    at = next((at for at, axes in enumerate(array.split.dims) if axes), None)
    is_batch = at == 0 or (at is not None and at == _batch_dim(step, array))
    which = "first dimension" if at == 0 else f"dimension {at}"
    how = f"its {which} is taken for the batch" if is_batch else "it is what XLA would choose"
    names = " ".join(_names(cost, step, array))
    entry = pattern_of(each.path for each in found if each.array.shape == array.shape)
    tree, _, inside = largest.path.partition("/")
    row = either(
        f'`"optional:{entry}": {names}` in `params:`', f"`optional {entry} : {names}` in `params`"
    )
    way = (
        f"write {row}, with a name for each dimension to shard, and place the argument with"
        f' `resolver.shardings({{"{tree}": {tree}}})`'
        if inside
        else f'give it `sharding=resolver.sharding("{names}", {array.shape})`, with a name for each'
        " dimension to shard"
    )
    return point(
        codes.GUESSED_PLACEMENT,
        f"nothing says how {who} is sharded, {binary_bytes(size)} per device by a guess:"
        f" {array.split} for {array}, as {how}",
        cost.target.span,
        help=way,
        arrays=tuple(each.path for each in found),
    )


def _names(cost: Cost, step: Step, array: StepArray) -> Iterator[str]:
    """Yield `batch` for the dimension of its size; for others, what has their mesh axes or size."""
    batch = _batch_dim(step, array)
    spec = cost.plan.spec
    by_axes = {rule.mesh_axes: rule.logical_axis for rule in spec.axis_rules[::-1]}
    for at, axes in enumerate(array.split.dims):
        alike = [each.name for each in spec.logical_axes if each.size == array.shape[at]]
        other = by_axes.get(axes, "_") if axes and not array.split.dims[0] else "_"
        by_size = alike[0] if batch is None and len(alike) == 1 else "_"
        yield "batch" if at == batch else by_size if other == "_" else other


def _batch_dim(step: Step, array: StepArray) -> int | None:
    """Return the dimension that is as long as the batch; None where there is none, or not one."""
    given = (each for each in step.arguments if each.role == "batch" and not each.is_guess)
    sizes = {each.array.shape[0] for each in given if each.array.shape}
    fitting = [at for at, size in enumerate(array.shape) if size in sizes]
    return fitting[0] if len(fitting) == 1 or fitting[:1] == [0] else None
