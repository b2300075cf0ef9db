"""A step returns its state with another type or layout, so that its second call compiles again.

JAX compiles a function for the types and the shardings of its arguments. What the first call
returns is what the second is given: where a parameter comes back in f32 that went in as bf16, a
number of Python comes back as an array, or the optimizer's state comes back sharded that went in
replicated, JAX compiles the step a second time, which for a big model takes minutes. So it does
where state that went in from the memory of the host comes back in that of the device, which has to
hold it from then on. Memory that was donated is not reused, either, where sizes differ.

Bad:
    # def step(params):
    #     grads = jax.grad(lambda w: jnp.mean(w["w"].astype(jnp.float32) ** 2))(params)
    #     return jax.tree.map(lambda w, g: w - 0.1 * g.astype(jnp.float32), params, grads)
    shardspec: 1
    hardware: tpu v5e 4x4
    mesh: {fsdp: 16}
    rules:
      - embed -> fsdp
      - features -> none
    params:
      w: embed features
    arrays:
      w: bf16[4096, 4096]

Good:
    -#     return jax.tree.map(lambda w, g: w - 0.1 * g.astype(jnp.float32), params, grads)
    +#     return jax.tree.map(lambda w, g: w - (0.1 * g).astype(w.dtype), params, grads)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.words import binary_bytes, counted, described, grouped
from shardspec.ir.step import ON_HOST, Returned, Step
from shardspec.lints.evidence.constraints import names_of

_SHOWN = 5


def check(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each target on which a step gives back other state than it was given."""
    found = [each for each in step.returned if _differs(each, cost)]
    if found:
        yield _finding(cost, found)


def _differs(each: Returned, cost: Cost) -> bool:
    """Say whether JAX compiles anew: on one device a number is placed as its array is."""
    is_same = bool(each.kinds[0] and each.kinds[1]) and each.before.dtype == each.after.dtype
    return not is_same or cost.plan.mesh.device_count > 1


def _finding(cost: Cost, found: Sequence[Returned]) -> Diagnostic:
    first = found[0].argument.path or "an argument"
    who = f"`{first}`" if len(found) == 1 else f"`{first}` and {counted(len(found) - 1, 'other')}"
    pairs = ((each.argument.is_donated, each.before.bytes, each.after.bytes) for each in found)
    lost = sum(after for is_donated, before, after in pairs if is_donated and before != after)
    notes = [
        f"{described(each.argument.path for each in alike)}: {change}"
        for change, alike in grouped(found, _change).items()
    ]
    ways = grouped(found, lambda each: _way_out(cost, each)).values()
    told = [(_way_out(cost, *alike), f" (`{alike[0].argument.path}`)") for alike in ways]
    idle = f"{binary_bytes(lost)} that were donated on each device are not reused"
    return point(
        codes.COMPILES_TWICE,
        f"the step gives {who} back with another type or layout, so its second call compiles again",
        cost.target.span,
        notes=(*notes[:_SHOWN], *([idle] if lost else ())),
        help="; ".join(f"{way}{who if len(ways) > 1 else ''}" for way, who in told[:_SHOWN]),
        arrays=tuple(each.argument.path for each in found),
    )


def _change(each: Returned) -> str:
    """Return what is given and what comes back: `bf16 P('fsdp', None), then f32 P(None, None)`."""
    before = each.kinds[0] or f"{each.before.dtype} {each.before.split}"
    after = each.kinds[1] or f"{each.after.dtype} {each.after.split}"
    return f"{before}, then {after}"


def _way_out(cost: Cost, first: Returned, *others: Returned) -> str:
    """Return how state comes back as it was given, of several arrays that need the same."""
    dtype, it = first.before.dtype, "them" if others else "it"
    was_on_host, is_on_host = (kind.endswith(ON_HOST) for kind in first.kinds)
    if was_on_host != is_on_host:
        kind = "pinned_host" if was_on_host else "device"
        return f"return {it} by `jax.device_put(x, sharding.with_memory_kind('{kind}'))`"
    if dtype != first.after.dtype:
        return f"cast {it} back to {dtype} before {'they are' if others else 'it is'} returned"
    if first.kinds[0]:
        name = {"s": "int", "f": "float", "u": "uint"}.get(dtype[0], "") + dtype[1:]
        return f"begin with an array of a stated type, as in `jnp.asarray(0, '{name}')`"
    if first.kinds[1]:
        return f"return {it} with a stated type, as in `jnp.asarray(x, x.dtype)`"
    split = first.after.split
    if first.after.bytes < first.before.bytes:
        names = names_of(cost.plan, first.after.shape, split)
        how = f", by the names `{' '.join(names)}`" if names else ""
        return f"place {it} as {split} from the beginning{how}"
    stays = first.before.split
    return f"let {it} come back as {stays}, by `out_shardings` or the constraint on {it}"
