"""The batch: whole on every device, torn, or cut into uneven microbatches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from shardspec.analysis.cost import Cost
from shardspec.analysis.step_stages import counted, sequences
from shardspec.diagnostics import Diagnostic, Span, codes, labels_at, quote
from shardspec.diagnostics.words import by_key, grouped, listed, named
from shardspec.ir.plan import ActivationSharding, DimSharding, Outcome, ShardingPlan
from shardspec.ir.spec import AxisRule, Spec, divisors
from shardspec.ir.step import Collective, Step, Tear
from shardspec.lints.context import Context
from shardspec.lints.evidence import steps
from shardspec.lints.evidence.arrays import Affected
from shardspec.lints.evidence.sizes import refused, set_text, ways_text
from shardspec.resolve.resolver import array_resolver

if TYPE_CHECKING:
    from shardspec.ir.program import StepSpec

# whole-batch


#: What T5X, MaxText and the presets call the dimension of examples.
_BATCH = "batch"


class _Loss(NamedTuple):
    """Two rules of which the wrong one wins, with all that it happens to."""

    rule: AxisRule
    winner: AxisRule
    affected: Affected


def whole_batch(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each rule that takes the mesh axes of `batch` before it."""
    losses: dict[object, _Loss] = {}
    for plan in context.plans:
        for sharding in plan.activations:
            found = _lost_at(sharding)
            if found is not None:
                _, rule, winner = found
                key = (rule.span, winner.span, winner.logical_axis)
                loss = losses.setdefault(key, _Loss(rule, winner, Affected()))
                loss.affected.add(sharding, plan)
    for loss in losses.values():
        yield _whole_batch_finding(context, loss)


def lost_batch(sharding: ActivationSharding) -> DimSharding | None:
    """Return the dimension of an activation that this finding is about; None for no such one."""
    found = _lost_at(sharding)
    return None if found is None else sharding.dims[found[0]]


def _lost_at(sharding: ActivationSharding) -> tuple[int, AxisRule, AxisRule] | None:
    """Return the index of the dimension, the rule that came too late, and the one before it."""
    for index, dim in enumerate(sharding.dims):
        if dim.logical_axis != _BATCH or dim.taken is not None:
            continue
        for attempt in dim.attempts:
            if attempt.outcome is Outcome.BUSY and (attempt.blocked_by or 0) > index:
                won = sharding.dims[attempt.blocked_by or 0]
                if won.ways > 1 and won.rule is not None and attempt.rule is not None:
                    return index, attempt.rule, won.rule
    return None


def _whole_batch_finding(context: Context, loss: _Loss) -> Diagnostic:
    rule, winner, affected = loss
    first = next(iter(affected.activations))
    spans = {each.name: each.span for each in context.spec.activations}
    return Diagnostic(
        codes.WHOLE_BATCH,
        f"`{_BATCH}` is replicated in {named('activation', affected.activations)} on"
        f" {named('target', affected.targets)}: `{winner}` comes first",
        labels_at(
            *context.own_first(
                (winner.span, f"`{winner.logical_axis}` takes it first"),
                (rule.span, f"and `{_BATCH}` finds it taken"),
            ),
            (spans.get(first), "every device has the full batch"),
        ),
        help=f"put `{rule}` above `{winner}`",
    )


# uneven-microbatch


class _Refused(NamedTuple):
    """Mesh axes that do not divide a microbatch.

    Attributes:
      ways: their product.
      is_kept: whether the rule fires all the same (`policy: {indivisible: keep}`).
    """

    mesh_axes: tuple[str, ...]
    ways: int
    is_kept: bool


def uneven_microbatch(context: Context) -> Iterator[Diagnostic]:
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
        yield _uneven_microbatch_finding(context, found, cut, plans)


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


def _uneven_microbatch_finding(
    context: Context, found: _Refused, cut: _Cut, plans: list[ShardingPlan]
) -> Diagnostic:
    target = plans[0].target
    what = f"a microbatch of {cut.size:,}" if cut.parts > 1 else f"a batch of {cut.size:,}"
    over = ways_text(found.mesh_axes, plans[0].mesh)
    note = f"each of {found.ways} devices computes all of it, {found.ways} times over in all"
    if found.is_kept:
        kept = quote.setting("policy", ("indivisible", "keep"))
        note = f"the rule fires all the same, by {kept}, and JAX will refuse"
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


# torn-batch


def torn_batch(cost: Cost, step: Step) -> Iterator[Diagnostic]:
    """Yield a finding for each line that cuts a sharded batch."""
    by_place = grouped(_torn(step), lambda pair: str(pair[0].place))
    for pairs in by_place.values():
        tear, first = pairs[0]
        found = [each for _, each in pairs]
        if len(by_place) == 1:
            found += _in_parts(step, first)
        if steps.is_large_traffic(sum(each.wire_bytes for each in found), step):
            yield _torn_batch_finding(cost, tear, found)


def _torn(step: Step) -> Iterator[tuple[Tear, Collective]]:
    for each in step.collectives:
        if each.reshard is not None and each.reshard.tear is not None:
            yield each.reshard.tear, each


def _in_parts(step: Step, first: Collective) -> Iterator[Collective]:
    """Yield what else moves since parts of the same mesh axes lie in another order."""
    for each in step.collectives:
        reshard = each.reshard
        is_whole = reshard is None or reshard.tear is not None or not reshard.has_parts
        if not is_whole and set(each.mesh_axes) <= set(first.mesh_axes):
            yield each


def _torn_batch_finding(cost: Cost, tear: Tear, found: Sequence[Collective]) -> Diagnostic:
    first = found[0]
    shapes = [f"[{', '.join(map(str, shape))}]" for shape in (tear.before, tear.after)]
    rest = ", ..." if len(tear.after) > len(tear.after[:2]) else ""
    rows, parts = tear.after[1], tear.after[0]
    return Diagnostic(
        codes.TORN_BATCH,
        f"the reshape at {tear.place} cuts {shapes[0]}, whose first dimension"
        f" {listed(first.axes)} shards, into {shapes[1]}: its rows move to other devices,"
        f" {steps.per_step(sum(each.wire_bytes for each in found))}",
        labels_at(
            *steps.spans_of(found),
            (cost.target.span, f"{listed(first.axes)} is an axis of this mesh"),
        ),
        steps.sent_lines(found),
        f"write `.reshape({rows}, {parts}{rest}).swapaxes(0, 1)` at {tear.place}: each device then"
        " cuts its own rows, and a microbatch has every n-th row",
    )
