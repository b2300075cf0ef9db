"""A partial sum is used as the complete one, and devices return different results for one array.

Under `shard_map` each device sums over its own part of an array. The total is the sum over devices,
which code has to ask for: `psum`, `pmean`, `psum_scatter`. Where it does not, each device goes on
with its own part. An `out_specs` that does not name the mesh axis says that all devices return the
same array; JAX checks this by default, and `check_vma=False` turns the check off. Then the step
runs, each device returns its own array, and weights drift apart. The same holds for a maximum.

shardspec follows the program that JAX traces. For each value and each mesh axis it knows that the
value is the same along the axis, that it is split, that it is a partial sum, or nothing. Only what
it can prove is reported: a result that `out_specs` calls complete and that was computed from a
partial sum. A kernel has the type that `vma` states for it while the check is on, and no type
otherwise. Outside of `shard_map` XLA adds every sum that is needed, and JAX itself checks the
`unreduced` types of explicit mesh axes, so nothing is reported there.

Bad:
    # def step(params, x):
    #     def local(w, x):
    #         grad = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)
    #         return w - 0.1 * grad
    #     P = jax.sharding.PartitionSpec
    #     update = jax.shard_map(local, mesh=resolver.mesh, in_specs=(P(), P("data")),
    #                            out_specs=P(), check_vma=False)
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
    -#         return w - 0.1 * grad
    +#         return w - 0.1 * jax.lax.psum(grad, "data")
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.words import counted, grouped
from shardspec.ir.step import Step, WrongSum

_SHOWN = 5


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each `shard_map` and mesh axis whose results differ between devices."""
    missing = [each for each in step.wrong_sums if each.fault == "missing"]
    for found in grouped(missing, lambda each: (each.mapped, each.mesh_axis)).values():
        yield _finding(cost, found)


def _finding(cost: Cost, found: Sequence[WrongSum]) -> Diagnostic:
    first = found[0]
    axis, part = first.mesh_axis, first.part
    pairs = [*grouped(found, lambda each: (each.first, each.second))]
    results = [each.result for each in found if each.result]
    named = f"`{results[0]}`" if results else "a result"
    differ = "differs" if len(results) < 2 else "differ"
    if len(results) > 1:
        named += f" and {counted(len(results) - 1, 'other result')}"
    notes = (
        f"{first.first}: from here each of the {first.ways} devices along `{axis}` has a part",
        f"{first.second}: {_use(first)}, without a {part} over `{axis}`",
        f"{named} of the `shard_map` of {first.mapped} {differ} between devices",
        *(f"also {start} and {end}" for start, end in pairs[1:_SHOWN]),
    )
    verb, name = ("sum", "psum") if part == "sum" else (f"take its {part}", f"p{part[:3]}")
    mean = ", or `jax.lax.pmean` for a mean" if part == "sum" else ""
    return point(
        codes.MISSING_SUM,
        f"a partial {part} over `{axis}` ({first.first}) is {_use(first)} ({first.second})",
        cost.target.span,
        notes=notes,
        help=f"{verb} it first: `jax.lax.{name}(x, '{axis}')`{mean}",
    )


def _use(found: WrongSum) -> str:
    verb = "returned" if found.second == found.mapped else "used"
    return f"{verb} as the complete one"
