"""Rules replicate large arrays on every device and give no reason.

Give the reason in an entry of `replicate:`, or by `because` in an override, or shard the array.
`none` for every dimension costs memory on each device, and no other finding reports how much. A
`none` behind other alternatives says what happens where they do not fit, and is no pin; nor is one
in a preset, which is a strategy that has a name.

Bad:
    shardspec: 1
    mesh: {fsdp: 8}
    rules:
      - vocab, embed -> none
      - mlp -> fsdp
    arrays:
      embedding: bf16[vocab=32768 embed=4096]
      mlp/kernel: bf16[embed=4096 mlp=16384]

Good:
       - mlp -> fsdp
    +replicate:
    +  - {path: embedding, because: looked up on every device}
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.diagnostics import Diagnostic, Span, codes, labels_at, quote
from shardspec.diagnostics.words import as_one, binary_bytes, listed, named, natural, percent
from shardspec.ir.plan import DimSharding, Kind, ParamSharding, ShardingPlan
from shardspec.ir.spec import Override
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import Layers, largest, only, whole_layers, with_cost

#: Places that are shown.
_SHOWN = 4


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for all large arrays that are pinned; targets that agree share it."""
    found: dict[tuple[str, ...], list[tuple[ShardingPlan, tuple[Layers, ...]]]] = {}
    for plan in context.shared_plans:
        pinned = whole_layers(context, plan, _is_pinned)
        groups = tuple(tuple(sorted(layers, key=_order)) for layers in pinned)
        if groups:
            paths = tuple(each.param.path for group in groups for each in group)
            found.setdefault(paths, []).append((plan, groups))
    for paths, targets in found.items():
        plan, groups = targets[0]
        names = [each.target.name for each, _ in targets]
        yield with_cost(_finding(context, plan, groups, names), context, paths)


def _order(sharding: ParamSharding) -> tuple[tuple[int, int, str], ...]:
    return natural(sharding.param.path)


def _is_pinned(sharding: ParamSharding) -> bool:
    """Say whether `none` is the first that rules or an override say of every dimension."""
    matched = sharding.matched
    if isinstance(matched, Override) and matched.because:
        return False
    dims = [dim for dim in sharding.dims if dim.size != 1]
    return bool(dims) and all(map(_is_pin, dims))


def _is_pin(dim: DimSharding) -> bool:
    taken = dim.taken
    if taken is None or len(dim.attempts) > 1:
        return False
    return taken.is_none and taken.kind is not Kind.SMALL and not taken.is_of_preset


def _finding(
    context: Context, plan: ShardingPlan, groups: Sequence[Layers], names: Sequence[str]
) -> Diagnostic:
    arrays = [sharding for group in groups for sharding in group]
    size = sum(sharding.param.bytes for sharding in arrays)
    share = percent(size, plan.held_bytes)
    most = max(groups, key=lambda group: group[0].param.bytes * len(group))
    is_all = len(arrays) == len(plan.arrays)
    pattern = "**" if is_all else as_one(sharding.param.path for sharding in most)
    return Diagnostic(
        codes.PINNED_LARGE,
        f"{binary_bytes(size)} of arrays, {share} of what a device holds, are replicated by"
        f" `none` on {named('target', names)}",
        labels_at(*((span, "pinned here") for span in _places(context, groups)[:_SHOWN])),
        notes=largest((sharding.param.path, sharding.param.bytes) for sharding in arrays),
        help=f"split an axis of them over {listed(a.name for a in plan.mesh.axes if a.size > 1)};"
        f" or say why: {quote.replicate(pattern, 'REASON')}",
        target=only(names),
    )


def _places(context: Context, groups: Sequence[Layers]) -> list[Span]:
    """Return where the rules and overrides stand, the spec's own first."""
    found: dict[Span | None, None] = {}
    for first, *_ in groups:
        if first.is_stated and first.named_at is not None:
            found.setdefault(first.named_at)
        else:
            found.update((dim.taken.span, None) for dim in first.dims if dim.taken is not None)
    places = (span for span in found if span is not None)
    return sorted(places, key=lambda span: (not context.is_own(span), span.start))
