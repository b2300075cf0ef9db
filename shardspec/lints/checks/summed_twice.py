"""A value is summed over devices twice, or what all devices have is summed with their parts.

A sum over devices leaves the same total on each. Summed again, the total is multiplied by the
number of devices. A bias that is added to each partial product before they are summed is added once
for each device. Add it after the sum.

With `check_vma`, the default of `shard_map`, JAX sums gradients by itself: what `in_specs`
replicates has a gradient that is already the sum over devices. A `psum` of it is a second sum. A
`pmean` of it changes nothing and costs an all-reduce: the gradient stays the sum of what devices
computed. Where each device takes the mean of its own examples, the gradient of the global mean is
that sum divided by the number of devices.

Not reported: a sum of a number of the code, which gives the number of devices; two sums with a
division by a number after either; the sums that JAX adds when it transposes a program without
`check_vma`; a second sum of what was computed from the first by anything that is not linear.

Bad:
    # def step(params, x):
    #     def local(w, x):
    #         total = jax.lax.psum(jnp.sum(jnp.tanh(x @ w), 0), "data")
    #         return w - jax.lax.psum(total, "data")
    #     P = jax.sharding.PartitionSpec
    #     specs = P(), P("data")
    #     update = jax.shard_map(local, mesh=resolver.mesh, in_specs=specs, out_specs=P())
    #     return {"w": update(params["w"], x)}
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: 16}
    axes: {batch: 4096, embed: 1024}
    rules:
      - batch -> data
      - embed, features -> none
    params:
      w: embed features
    arrays:
      w: bf16[1024, 1024]
    activations:
      x: batch embed

Good:
    -#         return w - jax.lax.psum(total, "data")
    +#         return w - total
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.words import grouped
from shardspec.ir.step import Step, WrongSum

_SHOWN = 5


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each line that sums over a mesh axis what is summed already."""
    again = [each for each in step.wrong_sums if each.fault != "missing"]
    for found in grouped(again, lambda e: (e.fault, e.mesh_axis, e.second)).values():
        yield _finding(cost, found)


def _finding(cost: Cost, found: Sequence[WrongSum]) -> Diagnostic:
    first = found[0]
    lines = list(dict.fromkeys(str(each.first) for each in found))
    return point(
        codes.SUMMED_TWICE,
        _fact(first),
        cost.target.span,
        notes=tuple(f"also {line}" for line in lines[1:_SHOWN]),
        help=_way_out(first),
    )


def _fact(found: WrongSum) -> str:
    axis, ways = found.mesh_axis, found.ways
    if found.fault == "added":
        return (
            f"all devices add the same value ({found.first}) before a sum over `{axis}`"
            f" ({found.second}), which counts it {ways} times"
        )
    if found.fault == "mean":
        return (
            f"JAX has summed this gradient over `{axis}` ({found.first}) before its mean is taken"
            f" ({found.second}), so it stays the sum of {ways} gradients"
        )
    who = "by JAX " if found.is_implicit else ""
    return (
        f"a value is summed over `{axis}` {who}({found.first}) and summed again ({found.second}),"
        f" which multiplies it by {ways}"
    )


def _way_out(found: WrongSum) -> str:
    axis = found.mesh_axis
    if found.fault == "added":
        return f"add it after the sum: `jax.lax.psum(x, '{axis}') + b`"
    if not found.is_implicit:
        return f"remove the `psum` at {found.second}, or the one at {found.first}"
    keep = (
        f"give `jax.grad` weights with `jax.lax.pcast(w, '{axis}', to='varying')`, so that JAX does"
        " not sum"
    )
    if found.fault == "mean":
        return f"{keep}; or remove the mean, and divide the loss by {found.ways}"
    return f"remove the `psum` at {found.second}; or {keep}"
