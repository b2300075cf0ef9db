"""A donated array is held twice, because the result in its place has another layout on the chip.

Where nothing states how a result is sharded, XLA propagates a sharding, and the compiler for TPUs
has chosen the result's layout before that: for the whole array. It chooses the layout of an
argument for the part of one device. These differ where a device has one head of a cache, or few:
in tiles of the whole array one head in bf16 takes the memory of two, and one in int8 that of four.
The result then cannot take the memory of the argument, although that is donated. Reported where
what it takes is large for the step.

Bad:
    # shape = (32, 64, 2048, 4, 128)
    # place = resolver.sharding("_ batch _ kv_heads _", shape)
    # cache = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place)
    # def decode(params, x, cache):
    #     return x @ params["q"], cache.at[:, :, 0].set(1)
    # step = jax.jit(decode, donate_argnames="cache")
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: 4, tensor: 4}
    axes: {batch: 64, features: 1024, kv_heads: 4}
    rules:
      - batch -> data
      - kv_heads, embed -> tensor
      - features -> none
    params:
      q: features embed
    arrays:
      q: bf16[1024, 1024]
    activations:
      x: batch features

Good:
    -# step = jax.jit(decode, donate_argnames="cache")
    +# step = jax.jit(decode, donate_argnames="cache", out_shardings=(None, place))
"""

from __future__ import annotations

from collections.abc import Iterator

from shardspec.analysis.cost import Cost
from shardspec.analysis.coverage import is_large
from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.words import binary_bytes, counted
from shardspec.ir.step import Step, StepArgument
from shardspec.lints.evidence.constraints import names_of


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield one finding for the donated arguments of a step whose memory no result can take."""
    # where the sharding of an argument is a guess (SHD518), so is its layout
    unreused = (each for each in step.unreused if not each.argument.is_guess)
    lost = sorted(unreused, key=lambda each: -each.bytes)
    size = sum(each.bytes for each in lost)
    if not is_large(size, cost.memory.total.bytes):
        return
    first, how = lost[0].argument, "state the result's sharding: `jax.jit(..., out_shardings=...)`"
    if lost[0].is_filtered:
        how += " in place of `eqx.filter_jit`, which has no such argument,"
    others = counted(len(lost) - 1, "other donated argument")
    who = f"`{first.path}` and {others} are" if len(lost) > 1 else f"`{first.path}` is"
    yield point(
        codes.DONATION_LOST,
        f"{who} held twice: the result in its place has another layout and takes"
        f" {binary_bytes(size)} more on each device",
        cost.target.span,
        notes=(
            f"a device has {first.array.dtype}{list(first.array.shard_shape)} of `{first.path}`;"
            f" the layout of the result is that of the whole {list(first.array.shape)}, since"
            " nothing states how it is sharded",
        ),
        help=f"{how} with {_wanted(cost, first)}",
    )


def _wanted(cost: Cost, argument: StepArgument) -> str:
    """Return the sharding of a result: of a tree that the spec places, those of all in it."""
    tree, _, inside = argument.path.partition("/")
    if inside and not argument.is_placed and argument.role in ("cache", "batch"):
        return f"`resolver.shardings({tree})` for the new `{tree}`"
    array = argument.array
    names = names_of(cost.plan, array.shape, array.split)
    if names is not None:
        call = f'resolver.sharding("{" ".join(names)}", {array.shape})'
        return f"`{call}` for `{argument.path}`"
    return f"{array.split} for `{argument.path}`"
