"""A rule is for a logical axis that nothing has: no array, no pattern, no activation.

It does no harm: nothing asks for it. It may be left over from another model, or be for what only
code has; then say so, by a size under `axes` or by an activation. Rules of presets may name axes
that this model does not have. Where the name is a slip of the fingers for an axis that arrays have
and no rule places, the rule is missed there, and that is SHD202.

Bad:
    shardspec: 1
    mesh: {fsdp: 2, tensor: 4}
    rules:
      - embed -> fsdp
      - mlp -> tensor
      - joined_kv -> tensor
    arrays:
      mlp/kernel: bf16[embed=64 mlp=128]

Good:
    shardspec: 1
    mesh: {fsdp: 2, tensor: 4}
    rules:
      - embed -> fsdp
      - mlp -> tensor
    arrays:
      mlp/kernel: bf16[embed=64 mlp=128]
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from shardspec.diagnostics import Diagnostic, Fix, Span
from shardspec.diagnostics.codes import AXIS_WITHOUT_ARRAY as CODE
from shardspec.diagnostics.diagnostic import point
from shardspec.diagnostics.name_index import NameIndex, index_of
from shardspec.diagnostics.respell import is_slip, respelt
from shardspec.diagnostics.suggest import did_you_mean
from shardspec.lints.context import Context
from shardspec.lints.words import last_word

#: How far before an alternative the axis of its rule is looked for: a file may be one line.
_FARTHEST = 20_000


class LoneAxis(NamedTuple):
    """A logical axis that rules of the spec itself are for, and nothing has.

    Attributes:
      places: its name in each of the rules.
      meant: the axis that it is a slip for: one that is in use and that no rule places.
    """

    name: str
    places: tuple[Span | None, ...]
    meant: str | None


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each axis of rules that nothing has."""
    known = known_axes(context)
    for lone in lone_axes(context):
        if lone.meant is None:
            out = f"take the rule out; or, if code has it, add `{lone.name}: SIZE` to `axes`"
            near = did_you_mean(lone.name, known)
            yield point(
                CODE,
                f"nothing has the logical axis `{lone.name}` of this rule",
                lone.places[0],
                "no array, activation or `axes` entry has it",
                help=f"{near} else {out}" if near else out,
                fix=respelling(context, lone),
                section="rules",
                subject=lone.name,
            )


def known_axes(context: Context) -> frozenset[str]:
    """Return the logical axes that something has, or that a rule may be for all the same."""
    return context.axes_heard_of()


def lone_axes(context: Context) -> tuple[LoneAxis, ...]:
    """Return the axes of the spec's own rules that nothing has; none of a spec without names."""
    if not context.first and not context.spec.path_rules:
        return ()
    known = known_axes(context)
    places: dict[str, dict[Span | None, None]] = {}
    for rule in context.spec.axis_rules:
        axis = rule.logical_axis
        if axis not in known and context.is_own(rule.span):
            places.setdefault(axis, {}).setdefault(_left_side(rule.span, axis))
    placed = context.axes_in_rules()
    missed = index_of((context.axes_in_use() | context.axes.keys()) - placed if places else ())
    return tuple(
        LoneAxis(axis, tuple(spans), _slip_for(axis, missed)) for axis, spans in places.items()
    )


def _slip_for(axis: str, missed: NameIndex) -> str | None:
    return next((each for each in missed.alike(axis) if is_slip(axis, each)), None)


def respelling(context: Context, lone: LoneAxis) -> Fix | None:
    """Return the fix that writes the nearest name; what it then places may be placed already."""
    fix = respelt(lone.places, lone.name, known_axes(context))
    if lone.meant is not None and (fix is None or fix.edits[0].text != lone.meant):
        return respelt(lone.places, lone.name, [lone.meant], may_be_sure=False)
    if fix is None:
        return None
    name = fix.edits[0].text
    is_free = name in context.axes_stated() and name not in context.axes_in_rules()
    return fix if is_free else fix._replace(is_sure=False)


def _left_side(span: Span | None, axis: str) -> Span | None:
    """Return the place of a rule's axis, which stands before its alternative on the line."""
    if span is None:
        return None
    farthest = max(span.start - _FARTHEST, 0)
    line = max(span.source.text.rfind("\n", farthest, span.start) + 1, farthest)
    before = Span(span.source, line, span.start)
    found = last_word(before, axis)
    return span if found == before else found
