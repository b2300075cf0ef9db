"""A loop sums over devices in every iteration, and only adds the result up.

Gradients of microbatches are such sums. The total is the same where each device adds up its own
part of it, and the parts are summed over devices once, behind the loop. XLA moves a sum out of a
loop only in simple cases, and not out of a loop over layers within one over microbatches. Reported
where a device holds all of the total in any case, so that its own part takes no more memory, and
where nothing in the loop needs the sum: clipping each microbatch's gradient, for one, does. Where
each microbatch is a call of its own, and the total goes from one call to the next, the same holds.

Where another axis splits weights and batch, as FSDP within each replica does, help has `jax.vmap`
in place of `shard_map`: libtpu 0.0.50 and 0.0.52 crash on a lookup in a table that is split so,
under a `shard_map` over the replicas alone. Weights may be gathered once more in each round then,
so it is reported only where the sums are a tenth of what is sent.

Bad:
    # def step(params, x):
    #     def loss(params, x):
    #         layer = lambda x, w: (jnp.tanh(x @ w), None)
    #         x, _ = jax.lax.scan(layer, x, params["w"])
    #         return jnp.mean(x.astype(jnp.float32) ** 2)
    #     def accumulate(params, x):
    #         def one(total, x):
    #             return jax.tree.map(jnp.add, total, jax.grad(loss)(params, x)), None
    #         total, _ = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, params), x)
    #         return total
    #     total = accumulate(params, x)
    #     return jax.tree.map(lambda w, g: w - g, params, total)
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {data: 16}
    axes: {microbatch: 8, batch: 4096, features: 4096}
    rules:
      - batch -> data
      - layers, microbatch, embed, features -> none
    params:
      w: layers embed features
    arrays:
      w: bf16[4, 4096, 4096]
    activations:
      x: microbatch batch features
    lints: {pinned-large: allow}

Good:
    -#         return total
    -#     total = accumulate(params, x)
    +#         return jax.lax.pmean(total, "data")
    +#     P = jax.sharding.PartitionSpec
    +#     total = jax.shard_map(accumulate, mesh=resolver.mesh, in_specs=(P(), P(None, "data")),
    +#                           out_specs=P(), axis_names={"data"}, check_vma=False)(params, x)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic, codes, labels_at
from shardspec.diagnostics.words import counted, grouped, listed
from shardspec.ir.step import Collective, Step, ring_bytes
from shardspec.lints.evidence import steps


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each set of mesh axes over which a loop sums again and again."""
    gradients = filter(_is_gradient, step.collectives)
    sums = (each for each in gradients if each.wire_bytes > _once(each, step))
    key = attrgetter("axes", "is_written", "is_kept")
    for found in grouped(sums, key).values():
        saved = sum(each.wire_bytes - _once(each, step) for each in found)
        fsdp = _fsdp(step, found[0])
        is_worth = not fsdp or 10 * saved >= sum(step.wire_bytes.values())
        if steps.is_large_traffic(saved, step) and is_worth:
            yield _finding(cost, step, found, saved, fsdp)


def _is_gradient(each: Collective) -> bool:
    """Say whether it is a gradient of a weight, or a sum that the user wrote, and only added up."""
    return each.is_added_up and (each.is_written or each.carries.kind == "gradient")


def _once(each: Collective, step: Step) -> int:
    """Return what a sum of the total would send in a step; nothing, where the step keeps it."""
    total = 0 if each.is_kept else each.total_bytes
    return ring_bytes(each.kind, total, step.mesh.ways(each.mesh_axes))


def _fsdp(step: Step, summed: Collective) -> tuple[str, ...]:
    """Return the other mesh axes that split both weights and the batch."""
    split: dict[str, set[str]] = {"parameter": set(), "batch": set()}
    for each in step.arguments:
        split.get(each.role, set()).update(each.array.split.mesh_axes)
    both = split["parameter"] & split["batch"]
    return tuple(axis for axis in step.mesh.sizes if axis in both - {*summed.axes})


def _finding(
    cost: Cost, step: Step, found: Sequence[Collective], saved: int, fsdp: Sequence[str]
) -> Diagnostic:
    first = max(found, key=lambda each: each.wire_bytes)
    axes = first.axes
    once = sum(_once(each, step) for each in found)
    carried = dict.fromkeys(str(each.carries) for each in found)
    what = next(iter(carried)) if len(carried) == 1 else counted(len(carried), "array")
    fact = f"{what} over {listed(axes)}"
    size = steps.per_step(once + saved)
    return Diagnostic(
        codes.REPEATED_SUM,
        f"each call sums {fact} and only adds the result to what it gives back: {size}"
        if first.is_kept
        else f"a loop sums {fact} in every round and only adds the results up: {size}, where"
        f" summing the total once sends {steps.per_step(once).partition(' per')[0]}",
        labels_at(*steps.spans_of([first]))
        or labels_at((cost.target.span, f"{listed(axes)} is an axis of this mesh")),
        steps.sent_lines(found),
        _help(first, step.mesh.ways(axes), fsdp),
    )


def _help(first: Collective, ways: int, fsdp: Sequence[str]) -> str:
    """Return how each device adds up a part of its own, which is summed over devices once."""
    names = ", ".join(f"'{axis}'" for axis in first.axes)
    over = f"({names})" if len(first.axes) > 1 else names
    mapped = f"`jax.shard_map(..., axis_names={{{names}}}, check_vma=False)`"
    if first.is_written and not first.is_kept:
        return f"take the sum at {first.place} out of the loop, and sum the total behind it"
    if fsdp:
        return (
            f"give the batch a first dimension of {ways} that is P({over}), and the total one, too:"
            f" take the gradient of each part with `jax.vmap`, with {listed(fsdp)} and not"
            f" {listed(first.axes)} in the constraints inside of it, and after the last round the"
            " mean over that dimension, or the sum where the loss is one"
        )
    if first.is_kept:
        return (
            f"give the total a first dimension of {ways} that is P({over}), add to it under"
            f" {mapped} with the batch and the total P({over}) and the weights P(), and take its"
            " mean over that dimension before the update, or its sum where the loss is one"
        )
    return (
        f"run the loop under {mapped} with the batch P({over}), and P() for the weights and"
        f" `out_specs`, and behind the loop take `jax.lax.pmean(total, {over})`, or"
        " `psum` where the loss is a sum over examples"
    )
