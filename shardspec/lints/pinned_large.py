"""Rules pin large arrays whole on every device, and nothing says why.

`none` for every dimension of an array is a decision that each device pays for, and no other finding
says how much. A model whose rules were all turned to `none` to make something run looks like one
that is meant to be so. Say why it is: with an entry of `replicate:`, or `because` in an override.
A `none` behind other alternatives says what happens where they do not fit, and is no pin; nor is
one in a preset, which is a strategy that has a name.

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
    shardspec: 1
    mesh: {fsdp: 8}
    rules:
      - vocab, embed -> none
      - mlp -> fsdp
    replicate:
      - {path: embedding, because: looked up on every device}
    arrays:
      embedding: bf16[vocab=32768 embed=4096]
      mlp/kernel: bf16[embed=4096 mlp=16384]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardspec.analysis.coverage import coverage
from shardspec.analysis.large import held_bytes, is_large
from shardspec.diagnostics import Diagnostic, Label, Span
from shardspec.diagnostics.codes import PINNED_LARGE as CODE
from shardspec.diagnostics.suggest import listed
from shardspec.ir.grouping import collapsed, natural, template
from shardspec.ir.plan import DimSharding, ParamSharding, ShardingPlan
from shardspec.ir.spec import Override
from shardspec.ir.units import binary_bytes, percent
from shardspec.lints.context import Context
from shardspec.lints.damage import told
from shardspec.lints.largest import largest

#: Places that are shown.
_SHOWN = 4

_Groups = tuple[tuple[ParamSharding, ...], ...]


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield one finding for all large arrays that are pinned; targets that agree share it."""
    found: dict[tuple[str, ...], list[tuple[ShardingPlan, _Groups]]] = {}
    for plan in context.plans:
        groups = tuple(_pinned(plan)) if plan.mesh.device_count > 1 else ()
        if groups:
            paths = tuple(each.param.path for group in groups for each in group)
            found.setdefault(paths, []).append((plan, groups))
    for paths, targets in found.items():
        plan, groups = targets[0]
        names = [each.target.name for each, _ in targets]
        yield told(_finding(context, plan, groups, names), context, paths)


def _pinned(plan: ShardingPlan) -> Iterator[tuple[ParamSharding, ...]]:
    """Yield arrays that rules pin and that are large, layers together."""
    held = held_bytes(plan)
    groups: dict[tuple[object, ...], list[ParamSharding]] = {}
    for sharding in coverage(plan).counted:
        if _is_pinned(sharding):
            key = (template(sharding.param.path), sharding.dims, sharding.param.dtype)
            groups.setdefault(key, []).append(sharding)
    for group in groups.values():
        if is_large(sum(sharding.param.bytes for sharding in group), held):
            yield tuple(sorted(group, key=lambda sharding: natural(sharding.param.path)))


def _is_pinned(sharding: ParamSharding) -> bool:
    """Say whether `none` is the first that rules or an override say of every dimension."""
    matched = sharding.matched
    if isinstance(matched, Override) and matched.because:
        return False
    dims = [dim for dim in sharding.dims if dim.size != 1]
    return bool(dims) and all(map(_is_pin, dims))


def _is_pin(dim: DimSharding) -> bool:
    taken = dim.taken
    if taken is None or len(dim.attempts) > 1 or not taken.is_none:
        return False
    span = taken.span
    return span is None or not span.source.name.startswith("preset:")


def _finding(
    context: Context, plan: ShardingPlan, groups: _Groups, names: Sequence[str]
) -> Diagnostic:
    size = sum(sharding.param.bytes for group in groups for sharding in group)
    places = _places(context, groups)
    share = percent(size, held_bytes(plan))
    first = max(groups, key=lambda group: group[0].param.bytes * len(group))
    glob = collapsed([sharding.param.path for sharding in first]) or first[0].param.path
    is_all = len({s.param.path for group in groups for s in group}) == len(plan.params)
    pattern = "**" if is_all else glob
    return Diagnostic(
        CODE,
        f"{binary_bytes(size)} of arrays, {share} of what a device holds, are pinned whole by"
        f" `none` on target{'' if len(names) == 1 else 's'} {listed(names)}",
        tuple(Label(span, "pinned here", primary=not i) for i, span in enumerate(places[:_SHOWN])),
        notes=largest((s.param.path, s.param.bytes) for group in groups for s in group),
        help=f"split an axis of them over {listed(a.name for a in plan.mesh.axes if a.size > 1)};"
        f' or say why: `replicate: [{{path: "{pattern}", because: REASON}}]`',
        target=names[0] if len(names) == 1 else None,
    )


def _places(context: Context, groups: _Groups) -> list[Span]:
    """Return where the rules and overrides stand, the spec's own first."""
    found: dict[Span, None] = {}
    for group in groups:
        first = group[0]
        if first.is_stated and first.named_at is not None:
            found.setdefault(first.named_at)
            continue
        for dim in first.dims:
            if dim.taken is not None and dim.taken.span is not None:
                found.setdefault(dim.taken.span)
    return sorted(found, key=lambda span: (not context.is_own(span), span.start))
