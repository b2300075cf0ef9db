"""Mesh axes do not divide a microbatch, or microbatches do not divide the batch.

In a step of several microbatches it is each of them that mesh axes split: 256 sequences over
`fsdp: 32` divide, and in 16 microbatches there are 16 at a time, for 32 devices. JAX refuses such
a constraint; where the next alternative of the rule is `none`, or there is none, all devices
compute the whole microbatch, and a step takes so many times as long. The same holds for a batch
that is stated by `tokens`.

Bad:
    shardspec: 1
    axes: {batch: 64, embed: 1024, mlp: 4096}
    mesh: {fsdp: 16}
    rules: [batch -> fsdp, embed -> fsdp, mlp -> none]
    params: {"**/up": embed mlp, "**/down": mlp embed}
    arrays:
      "layers_{0..3}/up": bf16[1024, 4096]
      "layers_{0..3}/down": bf16[4096, 1024]
    activations: {residual: batch embed, hidden: batch mlp}
    step:
      microbatches: 8
      program:
        - residual, "**/up" -> hidden
        - hidden, "**/down" -> residual

Good:
    shardspec: 1
    axes: {batch: 64, embed: 1024, mlp: 4096}
    mesh: {fsdp: 16}
    rules: [batch -> fsdp, embed -> fsdp, mlp -> none]
    params: {"**/up": embed mlp, "**/down": mlp embed}
    arrays:
      "layers_{0..3}/up": bf16[1024, 4096]
      "layers_{0..3}/down": bf16[4096, 1024]
    activations: {residual: batch embed, hidden: batch mlp}
    step:
      microbatches: 4
      program:
        - residual, "**/up" -> hidden
        - hidden, "**/down" -> residual
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, Span, codes, labels_at
from shardspec.diagnostics.words import by_key, named
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.program import StepSpec
from shardspec.ir.spec import Mesh, Spec, divisors
from shardspec.lints.context import Context
from shardspec.lints.evidence.sizes import refused, set_text
from shardspec.resolve.resolver import array_resolver


class _Refused(NamedTuple):
    """Mesh axes that do not divide a microbatch.

    Attributes:
      ways: their product.
      is_kept: whether the rule fires all the same (`policy: {indivisible: keep}`).
    """

    mesh_axes: tuple[str, ...]
    ways: int
    is_kept: bool


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for what does not divide: once for the batch, else for each set of axes."""
    step, batch = context.spec.step, _batch(context.spec)
    if step is None or batch is None or (step.tokens is None and step.microbatches == 1):
        return
    size, rest = divmod(batch, step.microbatches)
    if rest or not size:
        yield _unequal(context, step, batch)
        return
    pairs = ((each, plan) for plan in context.plans for each in _refusals(plan, size))
    for found, plans in by_key(pairs).items():
        yield _finding(context, found, batch, plans)


def _batch(spec: Spec) -> int | None:
    """Return the sequences of a step; None where they are not known."""
    sizes = {axis.name: axis.size for axis in spec.logical_axes}
    if spec.step is not None and spec.step.tokens is not None:
        return spec.step.tokens // max(1, sizes.get("length") or 1)
    return sizes.get("batch")


def _refusals(plan: ShardingPlan, size: int) -> Iterator[_Refused]:
    """Yield the mesh axes that would split the batch of an activation, and do not divide `size`."""
    resolver = array_resolver(plan.spec, plan.target)
    found: dict[_Refused, None] = {}
    for each in plan.activations:
        names = each.activation.logical_axes
        if "batch" not in names or each.activation.partition is not None:
            continue
        at = names.index("batch")
        shape = (size if dim is each.dims[at] else dim.size for dim in each.dims)
        dim = resolver.dims(tuple(shape), names)[at]
        attempt = refused(dim)
        if attempt is not None and (each.dims[at].size is None or not refused(each.dims[at])):
            found[_Refused(attempt.mesh_axes, attempt.ways, attempt is dim.taken)] = None
    yield from found


def _unequal(context: Context, step: StepSpec, batch: int) -> Diagnostic:
    options = divisors(batch)[1:]
    return Diagnostic(
        codes.UNEVEN_MICROBATCH,
        f"{batch:,} sequences do not make {step.microbatches:,} microbatches of one size",
        labels_at(*_places(context)),
        help=f"`microbatches` in {set_text(options)}; or another batch",
    )


def _finding(
    context: Context, found: _Refused, batch: int, plans: list[ShardingPlan]
) -> Diagnostic:
    step, target = context.spec.step, plans[0].target
    assert step is not None, "looked at before"
    size = batch // step.microbatches
    what = f"a microbatch of {size:,}" if step.microbatches > 1 else f"a batch of {size:,}"
    over = _over(found, plans[0].mesh)
    note = f"each of {found.ways} devices computes all of it, {found.ways} times over in all"
    if found.is_kept:
        note = "the rule fires all the same, by `policy: {indivisible: keep}`, and JAX will refuse"
    axes = [axis for axis in plans[0].mesh.axes if axis.name in found.mesh_axes]
    spans = ((axis.span, f"`{axis.name}` is {axis.size} on `{target.name}`") for axis in axes)
    return Diagnostic(
        codes.UNEVEN_MICROBATCH,
        f"{what} does not divide over {over} on {named('target', [p.target.name for p in plans])}",
        labels_at(*_places(context), *spans),
        notes=(note,),
        help=_help(found, batch, step),
        target=target.name,
    )


def _over(found: _Refused, mesh: Mesh) -> str:
    """Return "`fsdp` = 32", or "`(data, fsdp)` = 2 x 16 = 32"."""
    if len(found.mesh_axes) == 1:
        return f"`{found.mesh_axes[0]}` = {found.ways}"
    sizes = " x ".join(str(mesh.sizes[axis]) for axis in found.mesh_axes)
    return f"`({', '.join(found.mesh_axes)})` = {sizes} = {found.ways}"


def _help(found: _Refused, batch: int, step: StepSpec) -> str:
    """Return the counts of microbatches that would divide, and the batch that would."""
    fitting = [count for count in divisors(batch) if batch // count % found.ways == 0]
    least = found.ways * step.microbatches
    other = -(-batch // least) * least
    options = [f"`microbatches` in {set_text(fitting)}"] if fitting else []
    return "; or ".join([*options, f"{other:,} sequences a step"])


def _places(context: Context) -> Iterator[tuple[Span | None, str]]:
    step, axis = context.spec.step, context.axes.get("batch")
    assert step is not None, "looked at before"
    if step.tokens is None and axis is not None:
        yield axis.span, f"`batch` is {axis.size}"
    many = f"in {step.microbatches:,} microbatches"
    yield step.span, many if step.microbatches > 1 else f"{step.tokens:,} tokens"
