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
    -  microbatches: 8
    +  microbatches: 4
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardspec.analysis.step_values import counted, sequences
from shardspec.diagnostics import Diagnostic, Span, codes, labels_at, quote
from shardspec.diagnostics.words import by_key, named
from shardspec.ir.plan import ShardingPlan
from shardspec.ir.program import StepSpec
from shardspec.ir.spec import Spec, divisors
from shardspec.lints.context import Context
from shardspec.lints.evidence.sizes import refused, set_text, ways_text
from shardspec.resolve.resolver import array_resolver


class _Refused(NamedTuple):
    """Mesh axes that do not divide a microbatch.

    Attributes:
      ways: their product.
      is_kept: whether the rule is applied anyway (`policy: {indivisible: keep}`).
    """

    mesh_axes: tuple[str, ...]
    ways: int
    is_kept: bool


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for what does not divide: once for the batch, else for each set of axes."""
    step = context.spec.step
    cut = None if step is None else _cut(context.spec, step)
    if step is None or cut is None or (step.tokens is None and cut.parts == 1):
        return
    if cut.batch % cut.parts:
        yield _unequal(context, cut)
        return
    pairs = ((each, plan) for plan in context.plans for each in _refusals(plan, cut.size))
    for found, plans in by_key(pairs).items():
        yield _finding(context, found, cut, plans)


class _Cut(NamedTuple):
    """The sequences of a step, and in how many microbatches they are.

    Attributes:
      length: of a sequence, where tokens are stated and not sequences; else 0.
    """

    batch: int
    parts: int
    length: int = 0

    @property
    def size(self) -> int:
        return self.batch // self.parts


def _cut(spec: Spec, step: StepSpec) -> _Cut | None:
    """Return how a batch is cut; None where its size is not known."""
    sizes = {axis.name: axis.size for axis in spec.logical_axes if axis.size is not None}
    length = 0
    if step.tokens is not None:
        length = max(1, sizes.get("length", 1))
        sizes["batch"] = step.tokens // length
    batch, (parts, _) = sequences(step, sizes), counted(step, sizes)
    return _Cut(batch, parts, length) if batch else None


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


def _unequal(context: Context, cut: _Cut) -> Diagnostic:
    options = divisors(cut.batch)[1:]
    return Diagnostic(
        codes.UNEVEN_MICROBATCH,
        f"{cut.batch:,} sequences do not make {cut.parts:,} microbatches of one size",
        labels_at(*_places(context, cut)),
        help=f"`microbatches` in {set_text(options)}; or another batch",
    )


def _finding(context: Context, found: _Refused, cut: _Cut, plans: list[ShardingPlan]) -> Diagnostic:
    target = plans[0].target
    what = f"a microbatch of {cut.size:,}" if cut.parts > 1 else f"a batch of {cut.size:,}"
    over = ways_text(found.mesh_axes, plans[0].mesh)
    note = f"each of {found.ways} devices computes all of it, {found.ways} times over in all"
    if found.is_kept:
        kept = quote.setting("policy", ("indivisible", "keep"))
        note = f"{kept} applies the rule anyway, and JAX will refuse it"
    axes = [axis for axis in plans[0].mesh.axes if axis.name in found.mesh_axes]
    spans = ((axis.span, f"`{axis.name}` is {axis.size} on `{target.name}`") for axis in axes)
    return Diagnostic(
        codes.UNEVEN_MICROBATCH,
        f"{what} does not divide over {over} on {named('target', [p.target.name for p in plans])}",
        labels_at(*_places(context, cut), *spans),
        notes=(note,),
        help=_help(found, cut),
        target=target.name,
    )


def _help(found: _Refused, cut: _Cut) -> str:
    """Return the counts of microbatches that would divide, and the batch that would."""
    fitting = [count for count in divisors(cut.batch) if cut.batch // count % found.ways == 0]
    least = found.ways * cut.parts
    other = -(-cut.batch // least) * least
    options = [f"`microbatches` in {set_text(fitting)}"] if fitting else []
    whole = (
        quote.word("tokens", other * cut.length) if cut.length else f"{other:,} sequences a step"
    )
    return "; or ".join([*options, whole])


def _places(context: Context, cut: _Cut) -> Iterator[tuple[Span | None, str]]:
    step, axis = context.spec.step, context.axes.get("batch")
    assert step is not None, "looked at before"
    if step.tokens is None and axis is not None:
        yield axis.span, f"`batch` is {axis.size}"
    many = f"in {cut.parts:,} microbatches"
    yield step.span, many if cut.parts > 1 else f"{step.tokens:,} tokens"
