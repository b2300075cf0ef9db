"""A logical axis that only one side knows.

A rule for `mpl` moves nothing when the arrays say `mlp`, and an array that says `embd` gets no
rule: both end replicated without a word. Here a name in a rule must be known to an array, a
pattern or `axes`, and a name of an array to a rule or `axes`. Rules of presets may name axes
that this model does not have.

Bad:
    shardspec: 1
    mesh: {fsdp: 2, tensor: 4}
    rules:
      - embed -> fsdp
      - mlp -> tensor
      - hedas -> tensor
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

from collections.abc import Iterable, Iterator

from shardspec.diagnostics import Diagnostic, Label, Span
from shardspec.diagnostics.codes import UNKNOWN_LOGICAL_AXIS as CODE
from shardspec.diagnostics.suggest import did_you_mean, listed
from shardspec.ir.grouping import described
from shardspec.lints.context import Context
from shardspec.lints.words import last_word


def check(context: Context) -> Iterator[Diagnostic]:
    """Yield a finding for each name in a rule, then for each name of an array."""
    if context.first or context.spec.path_rules:
        yield from _in_rules(context)
    if context.spec.axis_rules:
        yield from _in_arrays(context)
        yield from _in_activations(context)


def _in_rules(context: Context) -> Iterator[Diagnostic]:
    known = context.axes_in_use() | context.axes.keys() | set(context.spec.inherited_axes)
    reported = set()
    for rule in context.spec.axis_rules:
        axis = rule.logical_axis
        if axis in known or axis in reported or not context.is_own(rule.span):
            continue
        reported.add(axis)
        yield _finding(
            axis, known, _left_side(rule.span, axis), "no array and no `axes` entry has it"
        )


def _left_side(span: Span | None, axis: str) -> Span | None:
    """Return the place of a rule's axis, which stands before its alternative on the line."""
    if span is None:
        return None
    line = span.source.text.rfind("\n", 0, span.start) + 1
    before = Span(span.source, line, span.start)
    found = last_word(before, axis)
    return span if found == before else found


def _in_arrays(context: Context) -> Iterator[Diagnostic]:
    known = context.axes_in_rules() | context.axes.keys()
    found: dict[str, tuple[Span | None, list[str]]] = {}
    for sharding in context.first:
        for axis in sharding.logical_axes:
            if axis and axis not in known:
                place = sharding.named_at
                found.setdefault(axis, (place, []))[1].append(sharding.param.path)
    for axis, (span, paths) in found.items():
        notes = (f"{described(paths)}; the dimension is replicated",)
        exact = None if span is None else last_word(span, axis)
        removed = _removed(axis) if axis in context.spec.inherited_axes else None
        yield _finding(axis, known, exact, "no rule and no `axes` entry has it", notes, removed)


def _removed(axis: str) -> str:
    """Return the way out for an axis whose inherited rules were dropped."""
    return (
        f"`drop` removed the rule for `{axis}`: keep it, write another, or add `{axis}` to `axes`"
    )


def _in_activations(context: Context) -> Iterator[Diagnostic]:
    known = context.axes_in_rules() | context.axes.keys() | set(context.spec.inherited_axes)
    for activation in context.spec.activations:
        for axis in dict.fromkeys(activation.logical_axes):
            if axis and axis not in known:
                span = activation.span
                exact = None if span is None else last_word(span, axis)
                notes = (f"activation `{activation.name}`; the dimension is left whole",)
                yield _finding(axis, known, exact, "no rule and no `axes` entry has it", notes)


def _finding(
    axis: str,
    known: Iterable[str],
    span: Span | None,
    label: str,
    notes: tuple[str, ...] = (),
    help: str | None = None,
) -> Diagnostic:
    labels = () if span is None else (Label(span, label),)
    names = sorted(known)
    shown = f"known here: {listed(names, limit=16)}" if names else "nothing names an axis yet"
    help = help or did_you_mean(axis, names) or shown
    return Diagnostic(CODE, f"unknown logical axis `{axis}`", labels, notes, help)
