"""The compiler copies a large argument or result in every step.

Found in the compiled program (`--basis auto` or `compiler`), in three cases:

- What reads the array wants its dimensions in another order in memory. The order of an argument is
  that of its shape, unless `jax.experimental.layout` states another.
- A loop reads an array that is donated and makes its successor beside it, as `jax.lax.scan` does
  with `xs` and `ys`. The result is then copied to where the argument was. A loop that carries the
  array writes into it.
- A loop changes an array that is not donated. The caller keeps it, so the loop changes a copy.

Not reported for arguments that are placed by a guess (SHD518), or come back with another type or
layout (SHD517): what these say comes first, and changes what is copied. A copy needs memory for a
second array, and reads and writes all of it. Reported where the copies at
the peak are large beside the memory of the step, or take a fiftieth of its time.

Bad:
    # shape = (8, 64, 2048, 8, 128)
    # place = resolver.sharding("layers batch _ kv_heads _", shape)
    # at = jax.ShapeDtypeStruct((), jnp.int32)
    # cache = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place)
    # def decode(params, x, cache, at):
    #     def layer(carry, number):
    #         x, cache = carry
    #         new = (x @ params["k"]).reshape(64, 8, 128)
    #         cache = cache.at[number, :, at].set(new)
    #         keys = cache[number]
    #         scores = jnp.einsum("bhk,bthk->bht", new, keys)
    #         x += jnp.einsum("bht,bthk->bhk", jax.nn.softmax(scores), keys).reshape(64, 1024)
    #         return (x, cache), None
    #     return jax.lax.scan(layer, (x, cache), jnp.arange(8))[0]
    # step = jax.jit(decode, donate_argnames="cache", out_shardings=(None, place))
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: 4, tensor: 4}
    axes: {batch: 64, features: 1024, kv_heads: 8, layers: 8}
    rules:
      - batch -> data
      - kv_heads, joined -> tensor
      - features, layers -> none
    params:
      k: features joined
    arrays:
      k: bf16[1024, 1024]
    activations:
      x: batch features

Good:
    -# cache = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place)
    +# from jax.experimental.layout import Format, Layout
    +# place = Format(Layout((0, 2, 1, 3, 4)), place)
    +# cache = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=place)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shardspec.analysis.cost import Added, Cost
from shardspec.analysis.coverage import LEAST_BYTES, PARTS, is_large
from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.words import binary_bytes, counted, grouped, listed
from shardspec.ir.step import Step, StepArray
from shardspec.lints.evidence.steps import per_step

_SHOWN = 3
_SAYS = {
    "order": "copied into another order of dimensions",
    "loop": "copied, since a loop makes its successor beside it",
    "kept": "copied, since a loop changes it and it is not donated",
}


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each reason for which a compiler copies arguments and results."""
    # SHD521 tells of donated arguments and of the results that should take their memory
    lost = [each.argument for each in step.unreused]
    told = {each.path for each in lost}
    told |= {_shard(each.array) for each in lost}
    owners = {_shard(each.after): each.argument.path for each in step.returned}
    copies = [each for each in cost.added if each.why and (each.path or each.array) not in told]
    for why, found in grouped(copies, lambda each: each.why).items():
        if _is_costly(cost, found):
            yield _finding(cost, why, found, owners)


def _is_costly(cost: Cost, found: Sequence[Added]) -> bool:
    """Say whether copies take much of the memory at the peak, or of the time of a step."""
    if is_large(_at_peak(cost, found), cost.memory.total.bytes):
        return True
    hardware, size = cost.target.hardware, sum(each.step_bytes for each in found)
    speed = None if hardware is None else hardware.chip.hbm_bytes_per_s
    if cost.time is None or speed is None or size < LEAST_BYTES:
        return False
    return PARTS * 2 * size / speed >= cost.time.step_seconds


def _at_peak(cost: Cost, found: Sequence[Added]) -> int:
    copies = {(each.array, each.place) for each in found}
    held = (each for each in cost.memory.peak if (str(each.array), each.place) in copies)
    return sum(each.bytes * each.count for each in held)


def _shard(array: StepArray) -> str:
    return f"{array.dtype}{[*array.shard_shape]}"


def _finding(cost: Cost, why: str, found: Sequence[Added], owners: Mapping[str, str]) -> Diagnostic:
    """Return the finding for what is copied for one reason.

    Args:
      owners: the argument that a result takes the place of in the next step.
    """
    paths = dict.fromkeys(each.path for each in found if each.path)
    results = {each.array for each in found if not each.path}
    who = listed(paths, _SHOWN) if paths else counted(len(results), "large result")
    held = _at_peak(cost, found)
    more = f", {binary_bytes(held)} of memory at the peak" if held else ""
    size = per_step(sum(each.step_bytes for each in found))
    verb = "is" if max(len(paths), len(results)) == 1 else "are"
    return point(
        codes.ARGUMENT_COPIED,
        f"{who} {verb} {_SAYS[why]}: {size}{more}",
        cost.target.span,
        notes=tuple(_notes(found)),
        help=_help(why, found, who),
        arrays=tuple(
            dict.fromkeys(each.path or owners.get(each.array, each.array) for each in found)
        ),
    )


def _notes(found: Sequence[Added]) -> Iterator[str]:
    alike = grouped(found, lambda each: (each.place, each.array, each.order))
    for (place, array, order), same in [*alike.items()][:_SHOWN]:
        size = binary_bytes(round(sum(each.step_bytes for each in same)))
        wanted = f" wants its dimensions in the order {order}, major to minor" if order else ""
        yield f"{size}  {array}, {place}{wanted}"


def _help(why: str, found: Sequence[Added], who: str) -> str:
    if why == "loop":
        return (
            f"let the loop carry {who} and write into it with `jax.lax.dynamic_update_slice`,"
            " in place of `xs` and `ys`"
        )
    if why == "kept":
        return f"donate {who} (`donate_argnames` of `jax.jit`), if it is not read afterwards"
    stated = [
        f"`Format(Layout({order}), sharding)` for {_of(same)}"
        for order, same in grouped(found, lambda each: each.order).items()
    ]
    return (
        f"state {' and '.join(stated[:_SHOWN])} (`jax.experimental.layout`) in place of the"
        " sharding, both of the argument and of the result"
    )


def _of(found: Sequence[Added]) -> str:
    return listed(dict.fromkeys(each.path or each.array for each in found), _SHOWN)
