"""A step gives its state back with another type or layout, so that its second call compiles anew.

JAX compiles a function for the types and the shardings of its arguments. What the first call
returns is what the second is given: where a parameter comes back in f32 that went in as bf16, a
number of Python comes back as an array, or the optimizer's state comes back sharded that went in
replicated, JAX compiles the step a second time, which for a large model takes minutes. Memory that
was donated is not reused, either, where sizes differ.

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
    # def step(params):
    #     grads = jax.grad(lambda w: jnp.mean(w["w"].astype(jnp.float32) ** 2))(params)
    #     return jax.tree.map(lambda w, g: w - (0.1 * g).astype(w.dtype), params, grads)
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
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.analysis.cost import Cost
from shardspec.diagnostics import Diagnostic, codes, point
from shardspec.diagnostics.words import binary_bytes, counted, described, grouped
from shardspec.ir.step import Returned
from shardspec.lints.context import Context


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each target on which a step gives back other state than it was given."""
    for cost in context.costs:
        found = [each for each in cost.step.returned if _differs(each, cost)] if cost.step else []
        if found:
            yield _finding(cost, found)


def _differs(each: Returned, cost: Cost) -> bool:
    """Say whether it compiles anew: on one device a number is placed as its array is."""
    is_number = each.kinds[0] and each.before.dtype == each.after.dtype and "weak" in each.kinds[1]
    return not is_number or cost.plan.mesh.device_count > 1


def _finding(cost: Cost, found: Sequence[Returned]) -> Diagnostic:
    ways = grouped(found, _way_out)
    first = found[0].argument.path or "an argument"
    who = f"`{first}`" if len(found) == 1 else f"`{first}` and {counted(len(found) - 1, 'other')}"
    lost = sum(each.after.bytes for each in found if _is_lost(each))
    notes = [
        f"{described(each.argument.path for each in alike)}: {change}"
        for change, alike in grouped(found, _change).items()
    ]
    if lost:
        notes.append(f"{binary_bytes(lost)} that were donated on each device are not reused")
    return point(
        codes.COMPILES_TWICE,
        f"the step gives {who} back otherwise than it was given, so its second call compiles again",
        cost.target.span,
        notes=tuple(notes),
        help="; ".join(
            f"{way}{f' (`{alike[0].argument.path}`)' if len(ways) > 1 else ''}"
            for way, alike in ways.items()
        ),
        target=cost.target.name,
    )


def _is_lost(each: Returned) -> bool:
    return each.argument.is_donated and each.before.bytes != each.after.bytes


def _change(each: Returned) -> str:
    """Return what is given and what comes back: `bf16 P('fsdp', None), then f32 P(None, None)`."""
    before = each.kinds[0] or f"{each.before.dtype} {each.before.split}"
    after = each.kinds[1] or f"{each.after.dtype} {each.after.split}"
    return f"{before}, then {after}"


def _way_out(each: Returned) -> str:
    dtype = "s32" if each.before.dtype == "s32" else each.before.dtype
    if each.before.dtype != each.after.dtype:
        return f"cast it back to {dtype} before it is returned"
    if each.kinds[0] != each.kinds[1]:
        if each.kinds[0]:
            name = {"s": "int", "f": "float", "u": "uint"}.get(dtype[0], "")
            return (
                f"begin with an array of a stated type, as in `jnp.asarray(0, '{name}{dtype[1:]}')`"
            )
        return "return it with a stated type, as in `jnp.asarray(x, x.dtype)`"
    if each.after.bytes < each.before.bytes:
        return f"place it as {each.after.split} from the beginning"
    return f"constrain it to {each.before.split} before it is returned"
