"""An array or an activation has a logical axis that no rule and no `axes` entry knows.

An array with `embd` gets no rule, so JAX would silently replicate the dimension. The name must be
known to a rule or to `axes`. A rule for `mpl` where arrays say `mlp`, and no rule places that, is
the same mistake on the other side. A rule for an axis that nothing has is no harm in itself
(SHD230).

Bad:
    shardspec: 1
    mesh: {fsdp: 2, tensor: 4}
    rules:
      - embed -> fsdp
      - mlp -> tensor
    arrays:
      mlp/wi/kernel: bf16[embed=64 mlp=128]
      mlp/wo/kernel: bf16[mlp=128 embd=64]

Good:
    -  mlp/wo/kernel: bf16[mlp=128 embd=64]
    +  mlp/wo/kernel: bf16[mlp=128 embed=64]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Any

from shardspec.diagnostics import Diagnostic, Edit, Fix, Label, Span, codes, point, quote
from shardspec.diagnostics.words import by_key, index_of, listed, near_or_known, nearest, respelt
from shardspec.ir.spec import axis_of
from shardspec.lints.context import Context
from shardspec.lints.evidence.arrays import with_cost
from shardspec.lints.evidence.entries import LoneAxis, first_word, last_word, lone_axes, respelling


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each name in a rule, then for each name of an array."""
    lone = lone_axes(context)
    meant = frozenset(each.meant for each in lone if each.meant is not None)
    yield from _in_rules(context, lone)
    if context.spec.axis_rules:
        yield from _in_arrays(context, meant)
        yield from _in_activations(context, meant)


def _in_rules(context: Context, lone_axes: Iterable[LoneAxis]) -> Iterator[Diagnostic]:
    """Yield a finding for each axis of a rule that is a slip for one that no rule places.

    It tells of both sides: that the arrays have a name which no rule knows is the same mistake.
    """
    for lone in lone_axes:
        if lone.meant is not None:
            paths = context.paths_with(lone.meant)
            told = {"help": f"did you mean `{lone.meant}`?", "fix": respelling(context, lone)}
            found = _finding(lone.name, lone.places[0], "array", **told)
            if (other := _without_rule(context, lone.meant)) is not None:
                no_rule = Label(other, "has no rule", primary=False)
                found = replace(found, labels=(*found.labels, no_rule))
            yield with_cost(found, context, paths, f"no rule is for `{lone.meant}`: ")


def _without_rule(context: Context, axis: str) -> Span | None:
    """Return where an axis that no rule places is declared, or the first array has its name."""
    declared = context.axes.get(axis)
    if declared is not None:
        return declared.span
    paths = context.paths_with(axis)
    named = context.all_plans[0][paths[0]].named_at if paths else None
    return None if named is None else _in_type(last_word(named, axis), axis)


def _in_arrays(context: Context, reported: frozenset[str]) -> Iterator[Diagnostic]:
    known = context.axes_placeable | reported
    unknown = by_key(
        (axis, sharding)
        for sharding in context.having(lambda dims: not known.issuperset(dims.logical_axes))
        for axis in dict.fromkeys(sharding.logical_axes)
        if axis and axis not in known
    )
    for axis, shardings in unknown.items():
        words = (last_word(s.named_at, axis) for s in shardings if s.named_at is not None)
        exact = [_in_type(word, axis) for word in dict.fromkeys(words)]
        beside = {name for sharding in shardings for name in sharding.logical_axes}
        if axis in context.numbers and all(sharding.matched is None for sharding in shardings):
            help, fix = _as_size(axis, exact)
        elif axis in context.spec.inherited_axes:
            help, fix = _removed(axis), None
        else:
            help = _way_out(axis, known, beside, context)
            # two dimensions of an array do not have one name
            fix = _fix(exact, axis, known, beside, context)
        finding = _finding(axis, exact[0] if exact else None, "rule", help=help, fix=fix)
        paths = [sharding.param.path for sharding in shardings]
        yield with_cost(finding, context, paths, "the dimension is replicated: ")


def _as_size(axis: str, places: Iterable[Span]) -> tuple[str, Fix | None]:
    """Return the way out for a number of `let` that stands in types where an axis does."""
    edits = tuple(Edit(place, f"_={axis}") for place in places if place.text == axis)
    fix = Fix(f"replace `{axis}` by `_={axis}`", edits) if edits else None
    return f"`{axis}` is a number of `let`: `_={axis}` says that it is a size", fix


def _in_type(span: Span, axis: str) -> Span:
    """Return the place of a name: in `span`, or behind the path at `span`, in the array's type."""
    if span.text == axis:
        return span
    text = span.source.text
    end = text.find("\n", span.end)
    rest = Span(span.source, span.end, len(text) if end < 0 else end)
    return first_word(rest, axis)


def _fix(
    spans: Iterable[Span | None],
    axis: str,
    known: frozenset[str],
    beside: Collection[str | None],
    context: Context,
) -> Fix | None:
    """Return the fix for a name of arrays; None where the nearest rule is a slip itself, maybe."""
    if axis in context.numbers:
        return None
    fix = respelt(spans, axis, known, without=_not_meant(axis, known, beside, context))
    heard = context.axes_heard_of
    return fix if fix is not None and fix.edits[0].text in heard else None


def _not_meant(
    axis: str, known: frozenset[str], beside: Collection[str | None], context: Context
) -> frozenset[str]:
    """Return the names that others of the array have, and those of other sizes."""
    others = frozenset(name for name in known if not context.may_be_same(axis, name))
    return others | frozenset(name for name in beside if name)


def _removed(axis: str) -> str:
    """Return the way out for an axis whose inherited rules were dropped."""
    axes = quote.section("axes")
    return (
        f"`drop` removed the rule for `{axis}`: keep it, write another, or add `{axis}` to {axes}"
    )


def _way_out(
    axis: str, known: frozenset[str], beside: Collection[str | None], context: Context
) -> str:
    """Return the way out for an axis that no rule knows: its right name, or else a rule.

    Args:
      known: the names that the dimension could have, but for those `beside` it.
    """
    if axis in context.numbers:
        return f"`{axis}` is a number of `let`, no axis: `_` is a dimension without a name"
    whole = axis_of(axis)
    if whole != axis and whole in known:
        declared = quote.either(
            f'stands in `axes`, as `"{axis}":`', f'is declared, as `axis "{axis}"`'
        )
        return (
            f"`{axis}` is a place of `{whole}`: what only code names so {declared},"
            f" and goes by the rules for `{whole}`"
        )
    if axis in context.spec.mesh_axis_names:
        over = [rule.logical_axis for rule in context.spec.axis_rules if axis in rule.mesh_axes]
        names = [name for name in dict.fromkeys(over) if name not in beside]
        logical = f"write a logical axis that has a rule to it: {listed(names)}" if names else ""
        own = f"a rule of its own: `{axis} -> {axis}`"
        return f"`{axis}` is a mesh axis; {f'{logical}; or {own}' if logical else f'write {own}'}"
    rule = f"give it a rule: `{axis} -> none`"
    near = nearest(axis, known, without=_not_meant(axis, known, beside, context))
    if near and near[0] not in context.axes_heard_of:
        return f"a rule is for `{near[0]}`, which nothing has: if both mean the same, use one name"
    if near:
        return f"did you mean `{near[0]}`?"
    free = [name for name in index_of(known).names if name not in beside]
    return f"{near_or_known(axis, free)}; or {rule}" if free else rule


def _in_activations(context: Context, reported: frozenset[str]) -> Iterator[Diagnostic]:
    known = context.axes_placeable | context.axes_stated | reported
    for activation in context.spec.activations:
        for axis in dict.fromkeys(activation.logical_axes):
            if axis and axis not in known:
                span = activation.span
                exact = None if span is None else last_word(span, axis)
                notes = (f"activation `{activation.name}`; the dimension is replicated",)
                beside = activation.logical_axes
                fix = _fix([exact], axis, known, beside, context)
                help = _way_out(axis, known, beside, context)
                yield _finding(axis, exact, "rule", notes=notes, help=help, fix=fix)


def _finding(axis: str, span: Span | None, what: str, **told: Any) -> Diagnostic:
    """Return the finding that no rule, or else no array, has an axis."""
    message = f"unknown logical axis `{axis}`"
    label = f"no {what} and no {quote.entry_of('axes')} has it"
    return point(codes.UNKNOWN_LOGICAL_AXIS, message, span, label, subject=axis, **told)
